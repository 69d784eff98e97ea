import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * What the owners of ledgers still get out of them: compacted topics, transactions that go on. Started and told what to do like
 * RigClient.
 *
 *   compacted TOPIC                  reads it compacted, to its end: keys and messages
 *   txn-begin NAME    txn-produce NAME TOPIC COUNT    txn-commit NAME
 *   recover ID                       closes a ledger whose writer died; its entries
 */
public final class Owners {
    private final String service;
    private final String zkAddress;
    private final Map<String, Transaction> transactions = new HashMap<>();
    private PulsarClient pulsar;

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
            case "txn-begin":
                transactions.put(w[1], pulsar().newTransaction().withTransactionTimeout(1, TimeUnit.HOURS).build()
                        .get(60, TimeUnit.SECONDS));
                return "";
            case "txn-produce":
                try (Producer<byte[]> producer = pulsar().newProducer().topic(w[2]).enableBatching(false)
                        .sendTimeout(0, TimeUnit.SECONDS).create()) {
                    for (int i = 0; i < Integer.parseInt(w[3]); i++) {
                        producer.newMessage(transactions.get(w[1])).value((i + " in a transaction").getBytes(StandardCharsets.US_ASCII))
                                .sendAsync().get(60, TimeUnit.SECONDS);
                    }
                }
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
            default:
                throw new IllegalArgumentException("no such command: " + w[0]);
        }
    }

    private PulsarClient pulsar() throws Exception {
        if (pulsar == null) {
            pulsar = PulsarClient.builder().serviceUrl(service).enableTransaction(true).statsInterval(0, TimeUnit.SECONDS)
                    .operationTimeout(60, TimeUnit.SECONDS).ioThreads(1).listenerThreads(1)
                    .startingBackoffInterval(50, TimeUnit.MILLISECONDS).build();
        }
        return pulsar;
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
