import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.conf.InternalConfigurationData;
import org.apache.pulsar.functions.worker.WorkerConfig;
import org.apache.pulsar.functions.worker.WorkerUtils;

/**
 * What the owners of ledgers still get out of them: compacted topics, transactions that go on. Started and told what to do like
 * RigClient.
 *
 *   produce TOPIC FROM COUNT         messages with these numbers, however long it takes
 *   compacted TOPIC                  reads it compacted, to its end: keys and messages
 *   txn-begin NAME    txn-produce NAME TOPIC FROM COUNT    txn-commit NAME
 *   package-put PATH SIZE            a function's package, as the functions worker stores one
 *   package-get PATH                 reads it: how long it is, and whether it is what was put
 *   recover ID                       closes a ledger whose writer died; its entries
 */
public final class Owners {
    private final String service;
    private final String zkAddress;
    private final Map<String, Transaction> transactions = new HashMap<>();
    private PulsarClient pulsar;
    private Namespace packages;

    private Owners(String[] args) {
        service = args[0];
        zkAddress = args[1];
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // libraries may print what they like, elsewhere
        Owners owners = new Owners(args);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String answer;
            try {
                answer = ("ok " + owners.run(line.strip().split("\\s+"))).strip();
            } catch (Throwable t) {
                t.printStackTrace();
                answer = "failed " + t;
            }
            answers.println(answer.replace('\n', ' '));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private String run(String[] w) throws Exception {
        switch (w[0]) {
            case "compacted":
                return compacted(w[1]);
            case "produce":
                produce(w[1], null, w[2], w[3]);
                return "";
            case "txn-begin":
                transactions.put(w[1], pulsar().newTransaction().withTransactionTimeout(10, TimeUnit.DAYS).build()
                        .get(60, TimeUnit.SECONDS));
                return "";
            case "txn-produce":
                produce(w[2], transactions.get(w[1]), w[3], w[4]);
                return "";
            case "txn-commit":
                transactions.remove(w[1]).commit().get(60, TimeUnit.SECONDS);
                return "";
            case "recover":
                try (BookKeeper bookkeeper =
                        new BookKeeper(new ClientConfiguration().setMetadataServiceUri("metadata-store:zk:" + zkAddress));
                        LedgerHandle ledger =
                                bookkeeper.openLedger(Long.parseLong(w[1]), BookKeeper.DigestType.CRC32C, new byte[0])) {
                    return Long.toString(ledger.getLastAddConfirmed() + 1);
                }
            case "package-put":
                WorkerUtils.uploadToBookKeeper(packages(), new ByteArrayInputStream(content(Integer.parseInt(w[2]))), w[1]);
                return "";
            case "package-get":
                ByteArrayOutputStream read = new ByteArrayOutputStream();
                WorkerUtils.downloadFromBookkeeper(packages(), read, w[1]);
                return read.size() + (Arrays.equals(read.toByteArray(), content(read.size())) ? " whole" : " damaged");
            default:
                throw new IllegalArgumentException("no such command: " + w[0]);
        }
    }

    private PulsarClient pulsar() throws Exception {
        if (pulsar == null) {
            pulsar = PulsarClient.builder().serviceUrl(service).enableTransaction(true).statsInterval(0, TimeUnit.SECONDS)
                    .operationTimeout(60, TimeUnit.SECONDS).ioThreads(1).listenerThreads(1)
                    .startingBackoffInterval(50, TimeUnit.MILLISECONDS).maxBackoffInterval(500, TimeUnit.MILLISECONDS)
                    .build();
        }
        return pulsar;
    }

    private void produce(String topic, Transaction transaction, String from, String count) throws Exception {
        try (Producer<byte[]> producer = pulsar().newProducer().topic(topic).enableBatching(false)
                .sendTimeout(0, TimeUnit.SECONDS).create()) {
            for (int i = 0; i < Integer.parseInt(count); i++) {
                byte[] value = (Integer.parseInt(from) + i + " of an owner").getBytes(StandardCharsets.US_ASCII);
                (transaction == null ? producer.newMessage() : producer.newMessage(transaction)).value(value)
                        .sendAsync().get(120, TimeUnit.SECONDS);
            }
        }
    }

    /** Where the functions worker keeps packages: a DistributedLog. */
    private Namespace packages() throws Exception {
        if (packages == null) {
            String store = "zk:" + zkAddress;
            URI uri = WorkerUtils.initializeDlogNamespace(new InternalConfigurationData(store, store, "/ledgers", null, null));
            // It was bound when the cluster was set up, and ZooKeeper has another port in each of its lives.
            DLMetadata.create(new BKDLConfig(zkAddress, "/ledgers")).update(uri);
            WorkerConfig config = new WorkerConfig();
            config.setNumFunctionPackageReplicas(1);
            packages = NamespaceBuilder.newBuilder().conf(WorkerUtils.getDlogConf(config)).clientId("owners").uri(uri).build();
        }
        return packages;
    }

    private static byte[] content(int size) {
        byte[] content = new byte[size];
        new Random(size).nextBytes(content);
        return content;
    }

    private String compacted(String topic) throws Exception {
        Set<String> keys = new HashSet<>();
        List<Message<byte[]>> all = new ArrayList<>();
        try (Reader<byte[]> reader = pulsar().newReader().topic(topic).startMessageId(MessageId.earliest)
                .readCompacted(true).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(20, TimeUnit.SECONDS);
                all.add(message);
                keys.add(message.getKey());
            }
        }
        return "keys=" + keys.size() + " messages=" + all.size();
    }
}
