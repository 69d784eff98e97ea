import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.StringJoiner;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.mledger.MetadataCompressionConfig;
import org.apache.bookkeeper.mledger.impl.MetaStoreImpl;
import org.apache.bookkeeper.mledger.proto.ManagedCursorInfo;
import org.apache.bookkeeper.mledger.proto.ManagedLedgerInfo;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.metadata.api.MetadataStore;
import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.MetadataStoreFactory;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.ACL;
import org.apache.zookeeper.data.Id;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.server.auth.DigestAuthenticationProvider;

/**
 * The hands of the Pulsar rig: a client that stays up and does what standard input says.
 *
 * Started with the broker's address, the ZooKeeper's address, and perhaps a token. One command a line, words apart by
 * blanks, each word percent-encoded where needed, options as KEY=VALUE at the end. One answer a line: "ok", with what the
 * command has to tell, or "failed" and why. Every connection is opened when first needed.
 *
 *   produce TOPIC COUNT SIZE [from=0] [keys=K] [delay=MS] [batch=5] [schema=1|2]
 *   consume TOPIC SUB COUNT [type=Exclusive] [ack=all|none|odd]         odd: the first, the third, ...
 *   drain TOPIC SUB [wait=2000]      reads and acknowledges until nothing more comes; tells the numbers of the messages
 *   sub TOPIC SUB [at=latest]        unsub TOPIC SUB        seek TOPIC SUB earliest|latest
 *   hold NAME TOPIC SUB              a consumer that stays connected and acknowledges nothing
 *   watch NAME TOPIC COUNT           a reader that reads COUNT messages and stays connected
 *   release NAME                     closes what hold or watch opened
 *   peek TOPIC SUB                   connects for two seconds, so that delayed messages get indexed
 *   txn-produce TOPIC COUNT commit|abort|open      txn-ack TOPIC SUB COUNT commit|abort|open
 *   ledger ENTRIES close|open [TAG=VALUE...]       rm-ledger ID        has-ledger ID
 *   rm-listed ML first|last          deletes from BookKeeper a ledger that the managed ledger lists
 *   listed ML                        the ledgers that a managed ledger lists: ID:ENTRIES:BYTES:CLOSED, in the order of the
 *                                    list; what the list leaves open comes from BookKeeper, -1 entries if it lost the ledger
 *   compress ML TYPE                 writes a managed ledger's node and cursors anew, compressed
 *   get PATH    stat PATH    put PATH [BASE64]    ls PATH    rm PATH    dump PATH
 *   fill TENANT TOPICS LEDGERS [first=1] [cluster=rig]
 *   sleep MS
 *   bg KEY COMMAND...                in the background; those of one KEY one after another
 *   join                             waits for everything in the background; fails if any of it did
 */
public final class RigClient {
    private final String service;
    private final String zkAddress;
    private final String token;
    private final ExecutorService pool = Executors.newFixedThreadPool(8);
    private final Map<String, CompletableFuture<Void>> background = new LinkedHashMap<>();
    private final Map<String, AutoCloseable> held = new HashMap<>();
    private PulsarClient pulsar;
    private BookKeeper bookkeeper;
    private MetadataStore store;
    private ZooKeeper zk;

    private RigClient(String[] args) {
        service = args[0];
        zkAddress = args[1];
        token = args.length > 2 ? args[2] : null;
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // libraries may print what they like, elsewhere
        RigClient rig = new RigClient(args);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String answer;
            try {
                String told = rig.run(line.strip().split("\\s+"));
                answer = told.isEmpty() ? "ok" : "ok " + told;
            } catch (Throwable t) {
                t.printStackTrace();
                answer = "failed " + t;
            }
            answers.println(answer.replace('\n', ' '));
            answers.flush();
        }
        Runtime.getRuntime().halt(0); // what is held online goes as a crashed client would
    }

    /** The words of a command: plain ones first, then options. */
    private static final class Words {
        private final List<String> plain = new ArrayList<>();
        private final Map<String, String> options = new LinkedHashMap<>();

        Words(String[] words) {
            for (int i = 1; i < words.length; i++) {
                int eq = words[i].indexOf('=');
                if (eq > 0) {
                    options.put(decode(words[i].substring(0, eq)), decode(words[i].substring(eq + 1)));
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

        int number(int i) {
            return Integer.parseInt(plain.get(i));
        }

        long option(String key, long otherwise) {
            return options.containsKey(key) ? Long.parseLong(options.get(key)) : otherwise;
        }

        String option(String key, String otherwise) {
            return options.getOrDefault(key, otherwise);
        }
    }

    private String run(String[] words) throws Exception {
        if (words[0].equals("bg")) {
            String[] command = java.util.Arrays.copyOfRange(words, 2, words.length);
            background.compute(words[1], (key, before) ->
                    (before == null ? CompletableFuture.<Void>completedFuture(null) : before).thenRunAsync(() -> {
                        try {
                            run(command);
                        } catch (Exception e) {
                            throw new IllegalStateException(String.join(" ", command) + ": " + e, e);
                        }
                    }, pool));
            return "";
        }
        if (words[0].equals("join")) {
            try {
                CompletableFuture.allOf(background.values().toArray(CompletableFuture[]::new)).join();
            } finally {
                background.clear();
            }
            return "";
        }
        Words w = new Words(words);
        return switch (words[0]) {
            case "produce" -> produce(w);
            case "consume" -> consume(w);
            case "drain" -> drain(w);
            case "sub" -> {
                consumer(w.at(0), w.at(1)).subscriptionInitialPosition(w.option("at", "earliest").equals("latest")
                        ? SubscriptionInitialPosition.Latest : SubscriptionInitialPosition.Earliest).subscribe().close();
                yield "";
            }
            case "unsub" -> {
                consumer(w.at(0), w.at(1)).subscribe().unsubscribe();
                yield "";
            }
            case "seek" -> {
                try (Consumer<byte[]> c = consumer(w.at(0), w.at(1)).subscribe()) {
                    c.seek(w.at(2).equals("latest") ? MessageId.latest : MessageId.earliest);
                }
                yield "";
            }
            case "hold" -> {
                held.put(w.at(0), consumer(w.at(1), w.at(2)).subscribe());
                yield "";
            }
            case "watch" -> {
                Reader<byte[]> reader = pulsar().newReader().topic(w.at(1)).startMessageId(MessageId.earliest).create();
                held.put(w.at(0), reader);
                for (int i = 0; i < w.number(2); i++) {
                    need(reader.readNext(15, TimeUnit.SECONDS), i);
                }
                yield "";
            }
            case "release" -> {
                held.remove(w.at(0)).close();
                yield "";
            }
            case "peek" -> {
                try (Consumer<byte[]> c = consumer(w.at(0), w.at(1)).subscribe()) {
                    c.receive(2, TimeUnit.SECONDS);
                }
                yield "";
            }
            case "txn-produce" -> txnProduce(w);
            case "txn-ack" -> txnAck(w);
            case "ledger" -> ledger(w);
            case "rm-ledger" -> {
                bookkeeper().deleteLedger(Long.parseLong(w.at(0)));
                yield "";
            }
            case "has-ledger" -> hasLedger(Long.parseLong(w.at(0)));
            case "rm-listed" -> {
                ManagedLedgerInfo info = new ManagedLedgerInfo();
                info.parseFrom(zk().getData("/managed-ledgers/" + w.at(0), false, null));
                int index = w.at(1).equals("first") ? 0 : info.getLedgerInfosCount() - 1;
                long id = info.getLedgerInfoAt(index).getLedgerId();
                bookkeeper().deleteLedger(id);
                yield Long.toString(id);
            }
            case "listed" -> listed(w.at(0));
            case "compress" -> compress(w.at(0), w.at(1));
            case "get" -> Base64.getEncoder().encodeToString(zk().getData(w.at(0), false, null));
            case "stat" -> {
                Stat s = zk().exists(w.at(0), false);
                yield s == null ? "none" : "version=%d czxid=%d mzxid=%d ctime=%d mtime=%d children=%d".formatted(
                        s.getVersion(), s.getCzxid(), s.getMzxid(), s.getCtime(), s.getMtime(), s.getNumChildren());
            }
            case "put" -> {
                byte[] data = w.plain.size() > 1 ? Base64.getDecoder().decode(w.at(1)) : new byte[0];
                put(w.at(0), data);
                yield "";
            }
            case "ls" -> {
                List<String> children = new ArrayList<>(zk().getChildren(w.at(0), false));
                children.sort(null);
                yield String.join(" ", children.stream()
                        .map(c -> java.net.URLEncoder.encode(c, StandardCharsets.UTF_8)).toList());
            }
            case "rm" -> {
                zk().delete(w.at(0), -1);
                yield "";
            }
            case "restrict" -> restrict(w);
            case "dump" -> dump(w.at(0));
            case "fill" -> Long.toString(new Filler(zk()).fill(w.at(0), w.number(1), w.number(2), w.option("first", 1),
                    w.option("cluster", "rig")));
            case "sleep" -> {
                Thread.sleep(w.number(0));
                yield "";
            }
            default -> throw new IllegalArgumentException("no such command: " + words[0]);
        };
    }

    // ---- connections

    private synchronized PulsarClient pulsar() throws Exception {
        if (pulsar == null) {
            ClientBuilder builder = PulsarClient.builder().serviceUrl(service).enableTransaction(true)
                    .statsInterval(0, TimeUnit.SECONDS).operationTimeout(60, TimeUnit.SECONDS)
                    .ioThreads(1).listenerThreads(1).startingBackoffInterval(50, TimeUnit.MILLISECONDS);
            if (token != null) {
                builder.authentication(AuthenticationFactory.token(token));
            }
            pulsar = builder.build();
        }
        return pulsar;
    }

    private synchronized BookKeeper bookkeeper() throws Exception {
        if (bookkeeper == null) {
            bookkeeper = new BookKeeper(new ClientConfiguration().setMetadataServiceUri("metadata-store:zk:" + zkAddress));
        }
        return bookkeeper;
    }

    private synchronized MetadataStore store() throws Exception {
        if (store == null) {
            store = MetadataStoreFactory.create("zk:" + zkAddress, MetadataStoreConfig.builder().build());
        }
        return store;
    }

    private synchronized ZooKeeper zk() throws Exception {
        if (zk == null || !zk.getState().isAlive()) {
            CountDownLatch connected = new CountDownLatch(1);
            zk = new ZooKeeper(zkAddress, 30_000, event -> connected.countDown());
            if (!connected.await(20, TimeUnit.SECONDS)) {
                throw new IllegalStateException("no ZooKeeper at " + zkAddress);
            }
        }
        return zk;
    }

    private ConsumerBuilder<byte[]> consumer(String topic, String sub) throws Exception {
        return pulsar().newConsumer().topic(topic).subscriptionName(sub).subscriptionType(SubscriptionType.Shared)
                .receiverQueueSize(1000).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    private static <T> T need(T message, int got) {
        if (message == null) {
            throw new IllegalStateException("nothing more after " + got + " messages");
        }
        return message;
    }

    private static void all(List<? extends CompletableFuture<?>> futures) throws Exception {
        for (CompletableFuture<?> f : futures) {
            f.get(60, TimeUnit.SECONDS);
        }
    }

    // ---- messages

    /** Bodies start with the message's number and a blank, and are filled up with dots. */
    private static byte[] body(long number, int size) {
        byte[] head = (number + " ").getBytes(StandardCharsets.US_ASCII);
        byte[] body = java.util.Arrays.copyOf(head, Math.max(size, head.length));
        java.util.Arrays.fill(body, head.length, body.length, (byte) '.');
        return body;
    }

    private String produce(Words w) throws Exception {
        int count = w.number(1);
        if (w.options.containsKey("schema")) {
            return w.option("schema", "1").equals("1") ? produceTyped(w.at(0), count, First.class)
                    : produceTyped(w.at(0), count, Second.class);
        }
        long from = w.option("from", 0);
        long keys = w.option("keys", 0);
        long delay = w.option("delay", 0);
        int batch = (int) w.option("batch", 1);
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        try (Producer<byte[]> producer = pulsar().newProducer().topic(w.at(0)).enableBatching(batch > 1)
                .batchingMaxMessages(Math.max(batch, 2)).messageRoutingMode(MessageRoutingMode.RoundRobinPartition)
                .maxPendingMessages(500).blockIfQueueFull(true).create()) {
            for (int i = 0; i < count; i++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage().value(body(from + i, w.number(2)));
                if (keys > 0) {
                    message.key("key-" + i % keys);
                }
                if (delay > 0) {
                    message.deliverAfter(delay + 1000L * i, TimeUnit.MILLISECONDS);
                }
                sent.add(message.sendAsync());
            }
            producer.flush();
            all(sent);
        }
        return sent.isEmpty() ? "" : sent.get(0).get() + " " + sent.get(count - 1).get();
    }

    /** The first version of a schema. */
    public static class First {
        public String name;
        public long number;
    }

    /** The second version. */
    public static class Second extends First {
        public String remark;
    }

    private <T extends First> String produceTyped(String topic, int count, Class<T> type) throws Exception {
        try (Producer<T> producer = pulsar().newProducer(Schema.JSON(type)).topic(topic).create()) {
            for (int i = 0; i < count; i++) {
                T value = type.getConstructor().newInstance();
                value.number = i;
                producer.send(value);
            }
        }
        return "";
    }

    private String consume(Words w) throws Exception {
        String ack = w.option("ack", "all");
        List<CompletableFuture<Void>> acks = new ArrayList<>();
        try (Consumer<byte[]> consumer = consumer(w.at(0), w.at(1))
                .subscriptionType(SubscriptionType.valueOf(w.option("type", "Exclusive"))).subscribe()) {
            for (int i = 0; i < w.number(2); i++) {
                Message<byte[]> message = need(consumer.receive(20, TimeUnit.SECONDS), i);
                if (ack.equals("all") || ack.equals("odd") && i % 2 == 0) {
                    acks.add(consumer.acknowledgeAsync(message));
                }
            }
            all(acks);
        }
        return Integer.toString(acks.size());
    }

    private String drain(Words w) throws Exception {
        int wait = (int) w.option("wait", 2000);
        StringJoiner numbers = new StringJoiner(" ");
        List<CompletableFuture<Void>> acks = new ArrayList<>();
        try (Consumer<byte[]> consumer = consumer(w.at(0), w.at(1)).subscribe()) {
            for (Message<byte[]> m; (m = consumer.receive(wait, TimeUnit.MILLISECONDS)) != null; ) {
                numbers.add(new String(m.getValue(), StandardCharsets.US_ASCII).split(" ", 2)[0]);
                acks.add(consumer.acknowledgeAsync(m));
            }
            all(acks);
        }
        return numbers.toString();
    }

    private Transaction transaction() throws Exception {
        return pulsar().newTransaction().withTransactionTimeout(1, TimeUnit.HOURS).build().get(60, TimeUnit.SECONDS);
    }

    private static String end(Transaction t, String how) throws Exception {
        switch (how) {
            case "commit" -> t.commit().get();
            case "abort" -> t.abort().get();
            default -> { }
        }
        return t.getTxnID().toString();
    }

    private String txnProduce(Words w) throws Exception {
        Transaction t = transaction();
        try (Producer<byte[]> producer = pulsar().newProducer().topic(w.at(0)).enableBatching(false)
                .sendTimeout(0, TimeUnit.SECONDS).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int i = 0; i < w.number(1); i++) {
                sent.add(producer.newMessage(t).value(body(i, 20)).sendAsync());
            }
            all(sent);
        }
        return end(t, w.at(2));
    }

    private String txnAck(Words w) throws Exception {
        Transaction t = transaction();
        try (Consumer<byte[]> consumer = consumer(w.at(0), w.at(1)).subscribe()) {
            for (int i = 0; i < w.number(2); i++) {
                Message<byte[]> message = need(consumer.receive(20, TimeUnit.SECONDS), i);
                consumer.acknowledgeAsync(message.getMessageId(), t).get();
            }
            return end(t, w.at(3));
        }
    }

    // ---- ledgers and nodes

    private String ledger(Words w) throws Exception {
        Map<String, byte[]> tags = new HashMap<>();
        w.options.forEach((key, value) -> tags.put(key, value.getBytes(StandardCharsets.UTF_8)));
        LedgerHandle ledger = bookkeeper().createLedger(1, 1, 1, BookKeeper.DigestType.CRC32C, new byte[0], tags);
        for (int i = 0; i < w.number(0); i++) {
            ledger.addEntry(body(i, 2000));
        }
        if (w.at(1).equals("close")) {
            ledger.close();
        }
        return Long.toString(ledger.getId());
    }

    private String hasLedger(long id) throws Exception {
        try (LedgerHandle ledger = bookkeeper().openLedgerNoRecovery(id, BookKeeper.DigestType.CRC32C, new byte[0])) {
            return ledger.getLastAddConfirmed() >= 0 && ledger.readEntries(0, 0).hasMoreElements() ? "yes" : "empty";
        } catch (BKException.BKNoSuchLedgerExistsException | BKException.BKNoSuchLedgerExistsOnMetadataServerException e) {
            return "no";
        }
    }

    private String listed(String managedLedger) throws Exception {
        byte[] raw = zk().getData("/managed-ledgers/" + managedLedger, false, null);
        ManagedLedgerInfo info = new MetaStoreImpl(store(), null).parseManagedLedgerInfo(raw);
        StringJoiner told = new StringJoiner(" ");
        for (int i = 0; i < info.getLedgerInfosCount(); i++) {
            ManagedLedgerInfo.LedgerInfo ledger = info.getLedgerInfoAt(i);
            long id = ledger.getLedgerId();
            long entries = ledger.hasEntries() ? ledger.getEntries() : 0;
            long bytes = ledger.hasSize() ? ledger.getSize() : 0;
            long closed = ledger.hasTimestamp() ? ledger.getTimestamp() : 0;
            if (closed == 0) {
                String digits = "%010d".formatted(id);
                String path = "/ledgers/" + digits.substring(0, 2) + "/" + digits.substring(2, 6) + "/L" + digits.substring(6);
                try {
                    byte[] node = zk().getData(path, false, null);
                    var metadata = new LedgerMetadataSerDe().parseConfig(node, id, Optional.empty());
                    entries = metadata.getLastEntryId() + 1;
                    bytes = metadata.getLength();
                } catch (KeeperException.NoNodeException e) {
                    entries = -1;
                }
            }
            told.add(id + ":" + entries + ":" + bytes + ":" + closed);
        }
        return told.toString();
    }

    private String compress(String managedLedger, String type) throws Exception {
        MetadataCompressionConfig config = new MetadataCompressionConfig(type, 0);
        MetaStoreImpl codec = new MetaStoreImpl(store(), null, config, config);
        String path = "/managed-ledgers/" + managedLedger;
        ManagedLedgerInfo info = new ManagedLedgerInfo();
        info.parseFrom(zk().getData(path, false, null));
        zk().setData(path, codec.compressLedgerInfo(info), -1);
        for (String name : zk().getChildren(path, false)) {
            ManagedCursorInfo cursor = new ManagedCursorInfo();
            cursor.parseFrom(zk().getData(path + "/" + name, false, null));
            zk().setData(path + "/" + name, codec.compressCursorInfo(cursor), -1);
        }
        return "";
    }

    private void put(String path, byte[] data) throws Exception {
        try {
            zk().setData(path, data, -1);
        } catch (KeeperException.NoNodeException e) {
            for (int at = path.indexOf('/', 1); at > 0; at = path.indexOf('/', at + 1)) {
                try {
                    zk().create(path.substring(0, at), new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
                } catch (KeeperException.NodeExistsException there) {
                    // a parent that somebody made
                }
            }
            zk().create(path, data, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
        }
    }

    /** PATH:version:mzxid of every node below, for comparing two moments. */
    /** Lets only these read a node and all below it: `digest:user:password` or `sasl:user`. For ever: this client may not either. */
    private String restrict(Words w) throws Exception {
        List<ACL> readers = new ArrayList<>();
        for (String who : w.plain.subList(1, w.plain.size())) {
            String[] parts = who.split(":", 2);
            String id = parts[0].equals("digest") ? DigestAuthenticationProvider.generateDigest(parts[1]) : parts[1];
            readers.add(new ACL(ZooDefs.Perms.READ, new Id(parts[0], id)));
        }
        List<String> all = new ArrayList<>(List.of(w.at(0)));
        for (int i = 0; i < all.size(); i++) {
            for (String child : zk().getChildren(all.get(i), false)) {
                all.add((all.get(i).equals("/") ? "" : all.get(i)) + "/" + child);
            }
        }
        for (String path : all) {
            zk().setACL(path, readers, -1);
        }
        return Integer.toString(all.size());
    }

    private String dump(String root) throws Exception {
        StringJoiner out = new StringJoiner(" ");
        List<String> todo = new ArrayList<>(List.of(root));
        while (!todo.isEmpty()) {
            String path = todo.remove(todo.size() - 1);
            Stat stat = new Stat();
            try {
                zk().getData(path, false, stat);
                for (String child : zk().getChildren(path, false)) {
                    todo.add(path.equals("/") ? "/" + child : path + "/" + child);
                }
            } catch (KeeperException.NoNodeException e) {
                continue;
            }
            out.add(java.net.URLEncoder.encode(path, StandardCharsets.UTF_8) + ":" + stat.getVersion() + ":" + stat.getMzxid());
        }
        return out.toString();
    }
}
