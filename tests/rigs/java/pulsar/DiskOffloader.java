import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderFactory;
import org.apache.bookkeeper.mledger.LedgerOffloaderStats;
import org.apache.pulsar.common.policies.data.OffloadPolicies;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/**
 * Tiered storage in its smallest form: one file a ledger, in the folder that the property rig.offload names. A broker
 * takes it under the driver name "filesystem", so that offload contexts in the metadata are real ones. Write and delete only.
 */
public final class DiskOffloader implements LedgerOffloaderFactory<DiskOffloader.Driver> {
    @Override
    public boolean isDriverSupported(String name) {
        return "filesystem".equals(name);
    }

    @Override
    public Driver create(OffloadPoliciesImpl policies, Map<String, String> user, OrderedScheduler scheduler) {
        return new Driver(policies);
    }

    @Override
    public Driver create(OffloadPoliciesImpl policies, Map<String, String> user, OrderedScheduler scheduler,
                         LedgerOffloaderStats stats) {
        return new Driver(policies);
    }

    /** The driver. */
    public record Driver(OffloadPoliciesImpl policies) implements LedgerOffloader {
        private static Path file(long ledger, UUID id) {
            return Path.of(System.getProperty("rig.offload"), ledger + "." + id);
        }

        @Override
        public String getOffloadDriverName() {
            return "filesystem";
        }

        @Override
        public Map<String, String> getOffloadDriverMetadata() {
            return Map.of("bucket", "rig");
        }

        @Override
        public OffloadPolicies getOffloadPolicies() {
            return policies;
        }

        @Override
        public CompletableFuture<Void> offload(ReadHandle ledger, UUID id, Map<String, String> extra) {
            return ledger.readAsync(0, ledger.getLastAddConfirmed()).thenAcceptAsync(entries -> {
                try (LedgerEntries all = entries; var out = Files.newOutputStream(file(ledger.getId(), id))) {
                    for (LedgerEntry entry : all) {
                        out.write(entry.getEntryBytes());
                    }
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            });
        }

        @Override
        public CompletableFuture<ReadHandle> readOffloaded(long ledger, UUID id, Map<String, String> metadata) {
            return CompletableFuture.failedFuture(new UnsupportedOperationException("what went in stays in"));
        }

        @Override
        public CompletableFuture<Void> deleteOffloaded(long ledger, UUID id, Map<String, String> metadata) {
            return CompletableFuture.runAsync(() -> {
                try {
                    Files.deleteIfExists(file(ledger, id));
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            });
        }

        @Override
        public void close() {
            // no handle stays open
        }
    }
}
