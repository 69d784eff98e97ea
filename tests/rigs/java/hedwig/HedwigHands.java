import com.google.protobuf.ByteString;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hedwig.client.HedwigClient;
import org.apache.hedwig.client.api.Client;
import org.apache.hedwig.client.api.MessageHandler;
import org.apache.hedwig.client.api.Subscriber;
import org.apache.hedwig.client.conf.ClientConfiguration;
import org.apache.hedwig.exceptions.PubSubException;
import org.apache.hedwig.protocol.PubSubProtocol.LedgerRange;
import org.apache.hedwig.protocol.PubSubProtocol.LedgerRanges;
import org.apache.hedwig.protocol.PubSubProtocol.Message;
import org.apache.hedwig.protocol.PubSubProtocol.MessageSeqId;
import org.apache.hedwig.protocol.PubSubProtocol.PublishResponse;
import org.apache.hedwig.protocol.PubSubProtocol.SubscribeRequest.CreateOrAttach;
import org.apache.hedwig.protocol.PubSubProtocol.SubscriptionData;
import org.apache.hedwig.protocol.PubSubProtocol.SubscriptionEvent;
import org.apache.hedwig.protocol.PubSubProtocol.SubscriptionOptions;
import org.apache.hedwig.protocol.PubSubProtocol.SubscriptionPreferences;
import org.apache.hedwig.protocol.PubSubProtocol.SubscriptionState;
import org.apache.hedwig.protoextensions.SubscriptionStateUtils;
import org.apache.hedwig.server.regions.HedwigHubClient;
import org.apache.hedwig.util.Callback;
import org.apache.hedwig.util.HedwigSocketAddress;
import org.apache.hedwig.util.SubscriptionListener;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.server.auth.DigestAuthenticationProvider;

/**
 * The hands of the Hedwig rig: Hedwig's own client, which stays up and does what standard input says.
 *
 * Started with a hub's host:port:sslport and the ZooKeeper's address. One command a line, words apart by blanks, each word
 * percent-encoded where needed, options as KEY=VALUE at the end. One answer a line: "ok", with what the command has to tell,
 * or "failed" and why. A subscriber with the option hub=true is a hub's own, whose id begins with two underscores.
 *
 *   publish TOPIC COUNT [size=100]           tells the last message's number
 *   subscribe TOPIC SUB [mode=create_or_attach] [bound=N] [window=N] [filter=CLASS]      and lets go at once
 *   prepare ROOT TOPIC SUB...                subscribers at 0 of a topic that no hub has yet, as a hub would write them: a hub that
 *                                            finds them when it takes the topic never sees it without any, which would keep it from
 *                                            ever collecting
 *   consume TOPIC SUB COUNT [wait=20000]     receives so many messages, consumes up to the last of them, lets go
 *   consumeto TOPIC SUB ID                   consumes up to a number without having received it, lets go
 *   online NAME TOPIC SUB [consume=false] [comeback=true]      stays attached
 *   heard NAME                               received=COUNT first=ID last=ID events=EVENT,...
 *   release NAME                             lets go           abandon NAME     closes the connection without a word
 *   unsubscribe TOPIC SUB
 *   show ROOT TOPIC                          the metadata, decoded by Hedwig's classes: ledgers=ID:START:END,...
 *                                            subs=NAME:POINTER:VERSION:MTIME,... with - for what is not there
 *   lock PATH USER:PASSWORD                  from now on only this user sees a node
 *   get PATH    stat PATH    put PATH [BASE64]    ls PATH    rm PATH
 */
public final class HedwigHands {
    private final String hub;
    private final String zkAddress;
    private final Map<Boolean, Client> clients = new HashMap<>();
    private final Map<String, Online> online = new HashMap<>();
    private ZooKeeper zk;

    private HedwigHands(String[] args) {
        hub = args[0];
        zkAddress = args[1];
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // libraries may print what they like, elsewhere
        HedwigHands hands = new HedwigHands(args);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String answer;
            try {
                String told = hands.run(line.strip().split("\\s+"));
                answer = told.isEmpty() ? "ok" : "ok " + told;
            } catch (Throwable t) {
                t.printStackTrace();
                answer = "failed " + t;
            }
            answers.println(answer.replace('\n', ' '));
            answers.flush();
        }
        Runtime.getRuntime().halt(0); // what is online goes as a crashed client would
    }

    /** The words of a command: plain ones first, then options. */
    private static final class Words {
        private final List<String> plain = new ArrayList<>();
        private final Map<String, String> options = new HashMap<>();

        Words(String[] words) {
            for (int i = 1; i < words.length; i++) {
                int eq = words[i].indexOf('=');
                if (eq > 0) {
                    options.put(words[i].substring(0, eq), decode(words[i].substring(eq + 1)));
                } else {
                    plain.add(decode(words[i]));
                }
            }
        }

        static String decode(String s) {
            return URLDecoder.decode(s.replace("+", "%2B"), StandardCharsets.UTF_8);
        }

        String at(int i) {
            return plain.get(i);
        }

        ByteString bytes(int i) {
            return ByteString.copyFromUtf8(plain.get(i));
        }

        int number(int i) {
            return Integer.parseInt(plain.get(i));
        }

        boolean is(String key, boolean otherwise) {
            return Boolean.parseBoolean(options.getOrDefault(key, Boolean.toString(otherwise)));
        }

        SubscriptionOptions subscription(boolean comeBack) {
            SubscriptionOptions.Builder builder = SubscriptionOptions.newBuilder().setForceAttach(false)
                    .setEnableResubscribe(comeBack)
                    .setCreateOrAttach(CreateOrAttach.valueOf(options.getOrDefault("mode", "create_or_attach").toUpperCase()));
            if (options.containsKey("bound")) {
                builder.setMessageBound(Integer.parseInt(options.get("bound")));
            }
            if (options.containsKey("window")) {
                builder.setMessageWindowSize(Integer.parseInt(options.get("window")));
            }
            if (options.containsKey("filter")) {
                builder.setMessageFilter(options.get("filter"));
            }
            return builder.build();
        }
    }

    private String run(String[] words) throws Exception {
        Words w = new Words(words);
        switch (words[0]) {
            case "publish":
                return publish(w);
            case "subscribe":
                subscriber(w).subscribe(w.bytes(0), w.bytes(1), w.subscription(false));
                subscriber(w).closeSubscription(w.bytes(0), w.bytes(1));
                return "";
            case "prepare":
                prepare(w.at(0) + "/" + w.at(1), w.plain.subList(2, w.plain.size()));
                return "";
            case "consume":
                return consume(w);
            case "consumeto":
                subscriber(w).subscribe(w.bytes(0), w.bytes(1), w.subscription(false));
                subscriber(w).consume(w.bytes(0), w.bytes(1), MessageSeqId.newBuilder().setLocalComponent(w.number(2)).build());
                Thread.sleep(200); // it has no answer
                subscriber(w).closeSubscription(w.bytes(0), w.bytes(1));
                return "";
            case "online":
                online.put(w.at(0), new Online(w));
                return "";
            case "heard":
                return online.get(w.at(0)).heard();
            case "release":
                online.remove(w.at(0)).release(true);
                return "";
            case "abandon":
                online.remove(w.at(0)).release(false);
                return "";
            case "unsubscribe":
                subscriber(w).unsubscribe(w.bytes(0), w.bytes(1));
                return "";
            case "show":
                return show(w.at(0) + "/" + w.at(1));
            case "get":
                return Base64.getEncoder().encodeToString(zk().getData(w.at(0), false, null));
            case "stat":
                Stat s = zk().exists(w.at(0), false);
                return s == null ? "none" : String.format("version=%d czxid=%d mzxid=%d ctime=%d mtime=%d children=%d",
                        s.getVersion(), s.getCzxid(), s.getMzxid(), s.getCtime(), s.getMtime(), s.getNumChildren());
            case "put":
                put(w.at(0), w.plain.size() > 1 ? Base64.getDecoder().decode(w.at(1)) : new byte[0]);
                return "";
            case "ls":
                List<String> children = new ArrayList<>(zk().getChildren(w.at(0), false));
                children.sort(null);
                children.replaceAll(child -> URLEncoder.encode(child, StandardCharsets.UTF_8));
                return String.join(" ", children);
            case "lock":
                String digest = DigestAuthenticationProvider.generateDigest(w.at(1));
                zk().setACL(w.at(0), List.of(new ACL(ZooDefs.Perms.ALL, new Id("digest", digest))), -1);
                return "";
            case "rm":
                zk().delete(w.at(0), -1);
                return "";
            default:
                throw new IllegalArgumentException("no such command: " + words[0]);
        }
    }

    // ---- connections

    private Client client(boolean hubs) {
        ClientConfiguration configuration = new ClientConfiguration() {
            @Override
            protected HedwigSocketAddress getDefaultServerHedwigSocketAddress() {
                return new HedwigSocketAddress(hub);
            }

            @Override
            public boolean isAutoSendConsumeMessageEnabled() {
                return false;
            }

            @Override
            public long getSubscribeReconnectRetryWaitTime() {
                return 2_000; // a fifth of the usual, so that tests need not wait
            }

            @Override
            public int getMaximumOutstandingMessages() {
                return 1_000_000;
            }
        };
        return hubs ? new HedwigHubClient(configuration) : new HedwigClient(configuration);
    }

    private Client shared(boolean hubs) {
        return clients.computeIfAbsent(hubs, this::client);
    }

    private Subscriber subscriber(Words w) {
        return shared(w.is("hub", false)).getSubscriber();
    }

    private ZooKeeper zk() throws Exception {
        if (zk == null || !zk.getState().isAlive()) {
            CountDownLatch connected = new CountDownLatch(1);
            zk = new ZooKeeper(zkAddress, 30_000, event -> connected.countDown());
            if (!connected.await(20, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no ZooKeeper at " + zkAddress);
            }
        }
        return zk;
    }

    private void put(String path, byte[] data) throws Exception {
        try {
            zk().setData(path, data, -1);
        } catch (KeeperException.NoNodeException e) {
            zk().create(path, data, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        }
    }

    private void prepare(String path, List<String> subs) throws Exception {
        if (zk().exists(path + "/hub", false) != null) {
            throw new IllegalStateException("a hub has it already");
        }
        for (int at = path.indexOf('/', 1); at > 0; at = path.indexOf('/', at + 1)) {
            createIfMissing(path.substring(0, at), new byte[0]);
        }
        createIfMissing(path, new byte[0]);
        createIfMissing(path + "/subscribers", new byte[0]);
        byte[] atZero = SubscriptionData.newBuilder()
                .setState(SubscriptionState.newBuilder().setMsgId(MessageSeqId.newBuilder().setLocalComponent(0)))
                .setPreferences(SubscriptionPreferences.newBuilder()).build().toByteArray();
        for (String sub : subs) {
            createIfMissing(path + "/subscribers/" + sub, atZero);
        }
    }

    private void createIfMissing(String path, byte[] data) throws Exception {
        try {
            zk().create(path, data, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        } catch (KeeperException.NodeExistsException e) {
            // as wanted
        }
    }

    // ---- messages

    /** Bodies start with the message's number and a blank, and are filled up with dots. */
    private String publish(Words w) throws Exception {
        int count = w.number(1);
        int size = Integer.parseInt(w.options.getOrDefault("size", "100"));
        var publisher = shared(false).getPublisher();
        AtomicLong last = new AtomicLong();
        AtomicReference<PubSubException> failed = new AtomicReference<>();
        Semaphore inFlight = new Semaphore(200);
        for (int i = 0; i < count; i++) {
            StringBuilder body = new StringBuilder(i + " ");
            while (body.length() < size) {
                body.append('.');
            }
            Message message = Message.newBuilder().setBody(ByteString.copyFromUtf8(body.toString())).build();
            if (i == 0) {
                // the first one alone, so that the connection to the owner exists before the others
                last.set(publisher.publish(w.bytes(0), message).getPublishedMsgId().getLocalComponent());
                continue;
            }
            inFlight.acquire();
            publisher.asyncPublishWithResponse(w.bytes(0), message, new Callback<PublishResponse>() {
                @Override
                public void operationFinished(Object context, PublishResponse response) {
                    last.accumulateAndGet(response.getPublishedMsgId().getLocalComponent(), Math::max);
                    inFlight.release();
                }

                @Override
                public void operationFailed(Object context, PubSubException e) {
                    failed.compareAndSet(null, e);
                    inFlight.release();
                }
            }, null);
        }
        if (!inFlight.tryAcquire(200, 60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("not all messages were taken within a minute");
        }
        if (failed.get() != null) {
            throw failed.get();
        }
        return Long.toString(last.get());
    }

    private String consume(Words w) throws Exception {
        int count = w.number(2);
        Subscriber subscriber = subscriber(w);
        CountDownLatch done = new CountDownLatch(1);
        AtomicLong received = new AtomicLong();
        AtomicReference<MessageSeqId> last = new AtomicReference<>();
        subscriber.subscribe(w.bytes(0), w.bytes(1), w.subscription(false));
        subscriber.startDelivery(w.bytes(0), w.bytes(1), (topic, sub, message, callback, context) -> {
            long number = received.incrementAndGet();
            if (number == count) {
                last.set(message.getMsgId());
                done.countDown();
            }
            callback.operationFinished(context, null);
        });
        boolean all = done.await(Long.parseLong(w.options.getOrDefault("wait", "20000")), TimeUnit.MILLISECONDS);
        if (all) {
            subscriber.consume(w.bytes(0), w.bytes(1), last.get());
            Thread.sleep(200); // it has no answer
        }
        subscriber.stopDelivery(w.bytes(0), w.bytes(1));
        subscriber.closeSubscription(w.bytes(0), w.bytes(1));
        if (!all) {
            throw new IllegalStateException("nothing more after " + received.get() + " messages");
        }
        return Long.toString(last.get().getLocalComponent());
    }

    /** A subscriber that stays, with a client of its own. */
    private final class Online implements MessageHandler, SubscriptionListener {
        private final Client client;
        private final ByteString topic;
        private final ByteString sub;
        private final boolean consume;
        private final List<String> events = new ArrayList<>();
        private long received;
        private long first;
        private long last;

        Online(Words w) throws Exception {
            client = client(w.is("hub", false));
            topic = w.bytes(1);
            sub = w.bytes(2);
            consume = w.is("consume", false);
            client.getSubscriber().addSubscriptionListener(this);
            client.getSubscriber().subscribe(topic, sub, w.subscription(w.is("comeback", true)));
            client.getSubscriber().startDelivery(topic, sub, this);
        }

        @Override
        public synchronized void deliver(ByteString t, ByteString s, Message message, Callback<Void> callback, Object context) {
            received++;
            if (received == 1) {
                first = message.getMsgId().getLocalComponent();
            }
            last = message.getMsgId().getLocalComponent();
            if (consume) {
                try {
                    client.getSubscriber().consume(topic, sub, message.getMsgId());
                } catch (Exception e) {
                    events.add(e.getClass().getSimpleName());
                }
            }
            callback.operationFinished(context, null);
        }

        @Override
        public synchronized void processEvent(ByteString t, ByteString s, SubscriptionEvent event) {
            events.add(event.toString());
        }

        synchronized String heard() {
            return "received=" + received + " first=" + first + " last=" + last + " events=" + String.join(",", events);
        }

        void release(boolean politely) throws Exception {
            if (politely) {
                client.getSubscriber().stopDelivery(topic, sub);
                client.getSubscriber().closeSubscription(topic, sub);
            }
            client.close();
        }
    }

    // ---- metadata

    private String show(String path) throws Exception {
        List<String> ledgers = new ArrayList<>();
        for (LedgerRange range : LedgerRanges.parseFrom(zk().getData(path + "/ledgers", false, null)).getRangesList()) {
            ledgers.add(range.getLedgerId() + ":"
                    + (range.hasStartSeqIdIncluded() ? Long.toString(range.getStartSeqIdIncluded()) : "-") + ":"
                    + (range.hasEndSeqIdIncluded() ? Long.toString(range.getEndSeqIdIncluded().getLocalComponent()) : "-"));
        }
        List<String> subs = new ArrayList<>();
        List<String> names = new ArrayList<>();
        try {
            names.addAll(zk().getChildren(path + "/subscribers", false));
        } catch (KeeperException.NoNodeException e) {
            // nobody ever subscribed
        }
        names.sort(null);
        for (String name : names) {
            Stat stat = new Stat();
            SubscriptionData data = SubscriptionStateUtils.parseSubscriptionData(
                    zk().getData(path + "/subscribers/" + name, false, stat));
            subs.add(URLEncoder.encode(name, StandardCharsets.UTF_8) + ":" + data.getState().getMsgId().getLocalComponent()
                    + ":" + stat.getVersion() + ":" + stat.getMtime());
        }
        return "ledgers=" + String.join(",", ledgers) + " subs=" + String.join(",", subs);
    }
}
