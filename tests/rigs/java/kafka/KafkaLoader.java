import java.io.*;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own LogManager as a judge: loads (and so recovers) stopped log dirs without a broker around it, then closes them
 * as a clean stop would. Reads one command a line:
 *
 *   load dir=PATH [dir=PATH]... threads=N now=MS [close=false] [default=key:value]... [topic=NAME:key:value]...
 *
 * and answers "ok loaded ms=N cpu=N", "ok failed TEXT" when a broker would not have started, or "ok offline ms=N cpu=N" when
 * a dir was taken offline.
 */
public class KafkaLoader {
    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String answer;
            try {
                answer = "ok " + load(line.trim().split(" +"));
            } catch (Throwable t) {
                answer = "error " + oneLine(t);
            }
            answers.println(answer);
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static String oneLine(Throwable t) {
        return t.toString().replaceAll("\\s+", " ");
    }

    /** The clock, standing still at {@code now}, everything else real. */
    static Time clock(long now) {
        return (Time) Proxy.newProxyInstance(KafkaLoader.class.getClassLoader(), new Class<?>[] {Time.class}, (p, method, args) -> {
            if (method.getName().equals("milliseconds")) return now;
            try {
                return method.invoke(Time.SYSTEM, args);
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        });
    }

    static String load(String[] words) throws Exception {
        List<File> dirs = new ArrayList<>();
        Map<String, Object> defaults = new HashMap<>();
        Map<String, Properties> topics = new HashMap<>();
        int threads = 1;
        long now = System.currentTimeMillis();
        boolean close = true;
        for (String word : words) {
            int eq = word.indexOf('=');
            String key = eq < 0 ? word : word.substring(0, eq), value = word.substring(eq + 1);
            switch (key) {
                case "load" -> { }
                case "dir" -> dirs.add(new File(value));
                case "threads" -> threads = Integer.parseInt(value);
                case "now" -> now = Long.parseLong(value);
                case "close" -> close = Boolean.parseBoolean(value);
                case "default" -> defaults.put(value.split(":")[0], value.split(":")[1]);
                case "topic" -> topics.computeIfAbsent(value.split(":")[0], x -> new Properties()).put(value.split(":")[1], value.split(":")[2]);
                default -> throw new IllegalArgumentException(word);
            }
        }
        LogConfig base = new LogConfig(defaults);
        Map<String, LogConfig> overrides = new HashMap<>();
        topics.forEach((name, props) -> overrides.put(name, LogConfig.fromProps(defaults, props)));
        KafkaScheduler scheduler = new KafkaScheduler(1, true);
        scheduler.startup();
        LogDirFailureChannel failures = new LogDirFailureChannel(dirs.size());
        long never = Long.MAX_VALUE;
        LogManager manager = new LogManager(dirs, List.of(), resource -> new Properties(), base, new CleanerConfig(false), threads,
            never, never, never, never, 900_000, new ProducerStateManagerConfig(86_400_000, true), 600_000, scheduler,
            new BrokerTopicStats(), failures, clock(now), false, never, (a, b, c, d, e) -> null);
        var system = (com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        long wall = System.nanoTime(), cpu = system.getProcessCpuTime();
        try {
            manager.loadLogs(base, overrides, log -> false);
        } catch (Throwable t) {
            scheduler.shutdown();
            return "failed " + oneLine(t);
        }
        wall = System.nanoTime() - wall;
        cpu = system.getProcessCpuTime() - cpu;
        // Leader epochs are written by tasks of this one-threaded scheduler; ours comes behind them.
        CountDownLatch written = new CountDownLatch(1);
        scheduler.scheduleOnce("behind the leader epochs", written::countDown);
        written.await();
        boolean offline = dirs.stream().anyMatch(dir -> failures.hasOfflineLogDir(dir.getAbsolutePath()));
        if (close) manager.shutdown(-1);
        scheduler.shutdown();
        return (offline ? "offline" : "loaded") + " ms=" + wall / 1_000_000 + " cpu=" + cpu / 1_000_000;
    }
}
