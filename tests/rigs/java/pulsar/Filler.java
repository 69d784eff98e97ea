import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.mledger.proto.ManagedCursorInfo;
import org.apache.bookkeeper.mledger.proto.ManagedLedgerInfo;
import org.apache.bookkeeper.net.BookieId;
import org.apache.pulsar.common.policies.data.BundlesData;
import org.apache.pulsar.common.policies.data.Policies;
import org.apache.pulsar.common.policies.data.RetentionPolicies;
import org.apache.pulsar.common.policies.data.TenantInfoImpl;
import org.apache.pulsar.common.util.ObjectMapperFactory;
import org.apache.zookeeper.AsyncCallback;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;

/**
 * Fills a ZooKeeper with the metadata of many topics that no broker ever saw, in the bytes that Pulsar and BookKeeper
 * themselves would write. Creations travel in transactions, many of them under way at once.
 *
 * Topic number i (from 0) of all is tenant/nXXXX/tYYYYY, 1,000 a namespace, retention seven days, with its ledgers closed
 * 30 days ago by their timestamps. By i % 8:
 *   0 to 4  its one cursor is caught up         due
 *   5       its cursor stands at the beginning  blocked
 *   6       its ledgers closed an hour ago      young
 *   7       no cursor                           due
 */
final class Filler {
    private static final int OPS_A_TRANSACTION = 200;
    private static final int UNDER_WAY = 64;
    private static final long DAY = 86_400_000L;

    private final ZooKeeper zk;
    private final Semaphore window = new Semaphore(UNDER_WAY);
    private final AtomicReference<KeeperException> failure = new AtomicReference<>();
    private final LedgerMetadataSerDe serde = new LedgerMetadataSerDe();
    private List<Op> pending = new ArrayList<>();
    private long nodes;

    Filler(ZooKeeper zk) {
        this.zk = zk;
    }

    /** Creates the topics; answers how many nodes that took. */
    long fill(String tenant, int topics, int ledgersEach, long firstLedger, String cluster) throws Exception {
        long now = System.currentTimeMillis();
        for (String parent : List.of("/admin", "/admin/policies", "/admin/local-policies", "/admin/clusters",
                "/managed-ledgers", "/ledgers", "/namespace", "/loadbalance", "/loadbalance/brokers", "/schemas")) {
            make(parent, new byte[0]);
        }
        make("/admin/clusters/" + cluster, "{\"serviceUrl\":\"http://127.0.0.1:1\"}".getBytes(StandardCharsets.UTF_8));
        make("/admin/policies/" + tenant, json(TenantInfoImpl.builder().allowedClusters(java.util.Set.of(cluster))
                .adminRoles(java.util.Set.of()).build()));
        make("/admin/local-policies/" + tenant, new byte[0]);
        make("/managed-ledgers/" + tenant, new byte[0]);

        BundlesData bundles = BundlesData.builder().boundaries(List.of("0x00000000", "0xffffffff")).numBundles(1).build();
        Policies policies = new Policies();
        policies.bundles = bundles;
        policies.retention_policies = new RetentionPolicies(7 * 24 * 60, -1);
        policies.replication_clusters = java.util.Set.of(cluster);
        byte[] policiesJson = json(policies);
        byte[] localJson = json(Map.of("bundles", bundles));

        long ledger = firstLedger;
        String[] folders = new String[2];
        for (int i = 0; i < topics; i++) {
            String namespace = "%s/n%04d".formatted(tenant, i / 1000);
            if (i % 1000 == 0) {
                make("/admin/policies/" + namespace, policiesJson);
                make("/admin/local-policies/" + namespace, localJson);
                make("/managed-ledgers/" + namespace, new byte[0]);
                make("/managed-ledgers/" + namespace + "/persistent", new byte[0]);
            }
            String name = "%s/persistent/t%05d".formatted(namespace, i);
            ManagedLedgerInfo info = new ManagedLedgerInfo();
            long closed = i % 8 == 6 ? now - 3_600_000 : now - 30 * DAY;
            for (int k = 0; k < ledgersEach; k++, ledger++) {
                boolean last = k == ledgersEach - 1;
                var listed = info.addLedgerInfo().setLedgerId(ledger).setTimestamp(last ? 0 : closed + k);
                if (!last) {
                    listed.setEntries(10).setSize(10_310);
                }
                String digits = "%010d".formatted(ledger);
                String upper = "/ledgers/" + digits.substring(0, 2);
                String lower = upper + "/" + digits.substring(2, 6);
                if (!upper.equals(folders[0])) {
                    make(upper, new byte[0]);
                    folders[0] = upper;
                }
                if (!lower.equals(folders[1])) {
                    make(lower, new byte[0]);
                    folders[1] = lower;
                }
                add(lower + "/L" + digits.substring(6), ledgerMetadata(ledger, name, last ? 5 : 10));
            }
            add("/managed-ledgers/" + name, info.toByteArray());
            if (i % 8 != 7) {
                boolean blocked = i % 8 == 5;
                ManagedCursorInfo cursor = new ManagedCursorInfo();
                cursor.setCursorsLedgerId(-1).setMarkDeleteLedgerId(blocked ? ledger - ledgersEach : ledger - 1)
                        .setMarkDeleteEntryId(blocked ? -1 : 4).setLastActive(closed);
                add("/managed-ledgers/" + name + "/s", cursor.toByteArray());
            }
        }
        flush();
        window.acquire(UNDER_WAY);
        window.release(UNDER_WAY);
        if (failure.get() != null) {
            throw failure.get();
        }
        return nodes;
    }

    private static byte[] json(Object value) throws Exception {
        return ObjectMapperFactory.getMapper().writer().writeValueAsBytes(value);
    }

    private byte[] ledgerMetadata(long id, String managedLedger, int entries) throws Exception {
        Map<String, byte[]> tags = new HashMap<>();
        tags.put("application", "pulsar".getBytes(StandardCharsets.UTF_8));
        tags.put("component", "managed-ledger".getBytes(StandardCharsets.UTF_8));
        tags.put("pulsar/managed-ledger", managedLedger.getBytes(StandardCharsets.UTF_8));
        return serde.serialize(LedgerMetadataBuilder.create().withId(id).withEnsembleSize(1).withWriteQuorumSize(1)
                .withAckQuorumSize(1).withDigestType(DigestType.CRC32C).withPassword(new byte[0])
                .newEnsembleEntry(0, List.of(BookieId.parse("rig-bookie"))).withClosedState().withLastEntryId(entries - 1)
                .withLength(1031L * entries).withCustomMetadata(tags).build());
    }

    /** A node that others stand below: it must be there before them, and may be there already. */
    private void make(String path, byte[] data) throws Exception {
        flush();
        try {
            zk.create(path, data, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
            nodes++;
        } catch (KeeperException.NodeExistsException e) {
            // a broker, or an earlier filling, made it
        }
    }

    private void add(String path, byte[] data) throws Exception {
        pending.add(Op.create(path, data, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
        nodes++;
        if (pending.size() >= OPS_A_TRANSACTION) {
            flush();
        }
    }

    private void flush() throws Exception {
        if (pending.isEmpty()) {
            return;
        }
        List<Op> ops = pending;
        pending = new ArrayList<>();
        window.acquire();
        AsyncCallback.MultiCallback done = (code, path, context, results) -> {
            if (code != KeeperException.Code.OK.intValue()) {
                failure.compareAndSet(null, KeeperException.create(KeeperException.Code.get(code)));
            }
            window.release();
        };
        zk.multi(ops, done, null);
    }
}
