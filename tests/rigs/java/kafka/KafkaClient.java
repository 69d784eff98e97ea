import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

/**
 * A client that does what it is told, one command a line, each answered by "ok ..." or "error ...". The first argument is the
 * broker's address; producers and open transactions live as long as the process, also while the broker is away.
 *
 *   create NAME PARTITIONS [key=value]...        creates a topic
 *   fill NAME PARTITIONS KIND BYTES RECORD BATCH SEED
 *       KIND: none gzip snappy lz4 zstd (compression), idempotent, keyed (few keys, some tombstones), headers, disorder (timestamps)
 *   transactions NAME PARTITIONS BYTES RECORD BATCH SEED OPEN
 *       four producers whose transactions overlap; with OPEN=true two stay open
 *   begin ID | send ID NAME PARTITION COUNT | commit ID | abort ID      one transactional producer by name
 *   stream NAME PARTITION SECONDS                sends without pause in the background
 *   read NAME committed|uncommitted              counts records and sums up a checksum of them
 */
public class KafkaClient {
    static String broker;
    static final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();

    public static void main(String[] args) throws Exception {
        broker = args[0];
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String answer;
            try {
                answer = "ok " + run(line.trim().split(" +"));
            } catch (Throwable t) {
                t.printStackTrace();
                answer = "error " + t.toString().replaceAll("\\s+", " ");
            }
            answers.println(answer);
            answers.flush();
        }
        // Without closing anything: transactions that are open stay open.
        Runtime.getRuntime().halt(0);
    }

    static String run(String[] w) throws Exception {
        switch (w[0]) {
            case "create": return create(w[1], Integer.parseInt(w[2]), Arrays.asList(w).subList(3, w.length));
            case "fill": return fill(w[1], Integer.parseInt(w[2]), w[3], Long.parseLong(w[4]), Integer.parseInt(w[5]), Integer.parseInt(w[6]), Long.parseLong(w[7]));
            case "transactions": return transactions(w[1], Integer.parseInt(w[2]), Long.parseLong(w[3]), Integer.parseInt(w[4]), Integer.parseInt(w[5]), Long.parseLong(w[6]), Boolean.parseBoolean(w[7]));
            case "begin": named(w[1]).beginTransaction(); return "";
            case "send": {
                var producer = named(w[1]);
                for (int i = 0; i < Integer.parseInt(w[4]); i++) producer.send(new ProducerRecord<>(w[2], Integer.parseInt(w[3]), null, ("r" + i).getBytes()));
                producer.flush();
                return "";
            }
            case "commit": named(w[1]).commitTransaction(); return "";
            case "abort": named(w[1]).abortTransaction(); return "";
            case "stream": return stream(w[1], Integer.parseInt(w[2]), Long.parseLong(w[3]));
            case "read": return read(w[1], w[2]);
            default: throw new IllegalArgumentException(w[0]);
        }
    }

    static String create(String name, int partitions, List<String> settings) throws Exception {
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", broker))) {
            Map<String, String> configs = new HashMap<>();
            for (String setting : settings) configs.put(setting.split("=")[0], setting.split("=")[1]);
            List<NewTopic> topics = new ArrayList<>();
            // "name*40" makes name-0 to name-39.
            String[] parts = name.split("\\*");
            if (parts.length == 1) topics.add(new NewTopic(name, partitions, (short) 1).configs(configs));
            else for (int i = 0; i < Integer.parseInt(parts[1]); i++) topics.add(new NewTopic(parts[0] + "-" + i, partitions, (short) 1).configs(configs));
            admin.createTopics(topics).all().get(120, TimeUnit.SECONDS);
            return Integer.toString(topics.size());
        }
    }

    static KafkaProducer<byte[], byte[]> producer(String compression, boolean idempotent, String transactionalId, int batch) {
        Map<String, Object> p = new HashMap<>();
        p.put("bootstrap.servers", broker);
        p.put("compression.type", compression);
        p.put("enable.idempotence", idempotent || transactionalId != null);
        p.put("acks", idempotent || transactionalId != null ? "all" : "1");
        p.put("batch.size", batch);
        p.put("linger.ms", 20);
        p.put("max.block.ms", 120_000);
        p.put("delivery.timeout.ms", 240_000);
        p.put("reconnect.backoff.max.ms", 500);
        if (transactionalId != null) {
            p.put("transactional.id", transactionalId);
            p.put("transaction.timeout.ms", 900_000);
        }
        return new KafkaProducer<>(p, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaProducer<byte[], byte[]> named(String id) {
        return producers.computeIfAbsent(id, x -> {
            var made = producer("none", true, id, 16384);
            made.initTransactions();
            return made;
        });
    }

    static byte[] payload(Random random, int size, boolean compressible) {
        byte[] bytes = new byte[size];
        random.nextBytes(bytes);
        if (compressible) for (int i = 0; i < size; i++) if (i % 8 < 5) bytes[i] = 42;
        return bytes;
    }

    static String fill(String name, int partitions, String kind, long bytes, int record, int batch, long seed) {
        Random random = new Random(seed);
        boolean codec = Set.of("gzip", "snappy", "lz4", "zstd").contains(kind);
        int rounds = kind.equals("idempotent") ? 3 : 1;
        long sent = 0, n = 0, now = System.currentTimeMillis();
        for (int round = 0; round < rounds; round++) {
            try (var producer = producer(codec ? kind : "none", kind.equals("idempotent"), null, batch)) {
                for (int partition = 0; partition < partitions; partition++) {
                    for (long done = 0; done < bytes / partitions / rounds; n++) {
                        int size = record / 2 + random.nextInt(record);
                        byte[] key = kind.equals("keyed") ? ("k" + random.nextInt(40)).getBytes() : kind.equals("headers") && n % 3 == 0 ? null : Long.toString(n).getBytes();
                        byte[] value = kind.equals("keyed") && n % 13 == 0 || kind.equals("headers") && n % 7 == 0 ? null : payload(random, size, codec);
                        Long timestamp = kind.equals("disorder") ? now - random.nextInt(90_000_000) : null;
                        var r = new ProducerRecord<byte[], byte[]>(name, partition, timestamp, key, value);
                        if (kind.equals("headers")) for (int h = 0; h < n % 4; h++) r.headers().add("h" + h, h == 1 ? null : key);
                        producer.send(r);
                        done += size + 20;
                        sent += size;
                    }
                    producer.flush();
                }
            }
        }
        return Long.toString(sent);
    }

    static String transactions(String name, int partitions, long bytes, int record, int batch, long seed, boolean leaveOpen) {
        Random random = new Random(seed);
        List<KafkaProducer<byte[], byte[]>> four = new ArrayList<>();
        for (int k = 0; k < 4; k++) {
            var made = producer("none", true, name + "-" + k, batch);
            made.initTransactions();
            four.add(made);
        }
        int[] left = new int[4];
        long sent = 0;
        for (int step = 0; sent < bytes; step++) {
            int k = step % 4;
            var p = four.get(k);
            if (left[k] == 0) {
                p.beginTransaction();
                // The first producer's transactions are long and span segments.
                left[k] = k == 0 ? 9 : 1 + random.nextInt(3);
            }
            for (int i = 0; i < 10; i++) {
                byte[] value = payload(random, record / 2 + random.nextInt(record), false);
                p.send(new ProducerRecord<>(name, random.nextInt(partitions), null, value));
                sent += value.length;
            }
            p.flush();
            if (--left[k] == 0) {
                if (random.nextBoolean()) p.commitTransaction(); else p.abortTransaction();
            }
        }
        for (int k = 0; k < 4; k++) {
            var p = four.get(k);
            if (leaveOpen && k < 2) {
                if (left[k] == 0) p.beginTransaction();
                for (int partition = 0; partition < partitions; partition++) p.send(new ProducerRecord<>(name, partition, null, "open".getBytes()));
                p.flush();
                producers.put(name + "-" + k, p);
            } else {
                if (left[k] != 0) p.abortTransaction();
                p.close();
            }
        }
        return Long.toString(sent);
    }

    static String stream(String name, int partition, long seconds) {
        Thread thread = new Thread(() -> {
            Random random = new Random(1);
            long end = System.currentTimeMillis() + seconds * 1000;
            try (var producer = producer("none", true, null, 16384)) {
                while (System.currentTimeMillis() < end) producer.send(new ProducerRecord<>(name, partition, null, payload(random, 500, false)));
            } catch (RuntimeException e) {
                e.printStackTrace();
            }
        });
        thread.setDaemon(true);
        thread.start();
        return "";
    }

    static String read(String name, String isolation) {
        Map<String, Object> c = Map.of("bootstrap.servers", broker, "isolation.level", "read_" + isolation, "auto.offset.reset", "earliest", "check.crcs", true);
        try (var consumer = new KafkaConsumer<byte[], byte[]>(c, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(name).forEach(p -> all.add(new TopicPartition(name, p.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            long count = 0, sum = 0, idle = 0;
            while (all.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                var records = consumer.poll(Duration.ofMillis(500));
                idle = records.isEmpty() ? idle + 1 : 0;
                if (idle > 60) throw new IllegalStateException("no progress at " + all.stream().map(p -> p + "=" + consumer.position(p) + "/" + ends.get(p)).toList());
                for (var r : records) {
                    count++;
                    sum += 31L * r.partition() + 131L * r.offset() + Arrays.hashCode(r.key()) + 7L * Arrays.hashCode(r.value());
                }
            }
            return count + " " + sum;
        }
    }
}
