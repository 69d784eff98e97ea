//! What the processes are told: their configuration files, and the tokens that brokers check.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};

use super::{CLUSTER, Part, PulsarRig, SUPERUSER};

impl PulsarRig {
    pub(super) fn zookeeper_config(&self) -> String {
        format!(
            "tickTime=1000\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n\
             minSessionTimeout=2000\nmaxSessionTimeout=60000\nautopurge.purgeInterval=0\n",
            self.folder.path().join("zookeeper").display(),
            self.ports.zookeeper.number(),
        )
    }

    pub(super) fn bookie_config(&self) -> String {
        format!(
            "bookieId=rig-bookie\nbookiePort={}\nlisteningInterface=lo\nallowLoopback=true\n\
             advertisedAddress=127.0.0.1\njournalDirectory=bookie/journal\n\
             ledgerDirectories=bookie/ledgers\nmetadataServiceUri=metadata-store:zk:{}\n\
             httpServerEnabled=true\nhttpServerPort={}\nhttpServerHost=127.0.0.1\n{}",
            self.ports.bookie.number(),
            self.zk(),
            self.ports.bookie_http.number(),
            BOOKIE_SETTINGS.replace(' ', "\n"),
        )
    }

    pub(super) fn broker_config(&self, part: Part) -> Result<String> {
        let [binary, web, web_tls] = match part {
            Part::Broker2 => &self.ports.brokers[1],
            _ => &self.ports.brokers[0],
        };
        let folder = self.folder.path();
        let store = format!("zk:{}", self.zk());
        let mut all: BTreeMap<String, String> = BROKER_SETTINGS
            .split_whitespace()
            .filter_map(|setting| setting.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        let mut set = |key: &str, value: String| all.insert(key.to_owned(), value);
        set("clusterName", CLUSTER.into());
        set("metadataStoreUrl", store.clone());
        set("configurationMetadataStoreUrl", store);
        set("brokerServicePort", binary.number().to_string());
        set("webServicePort", web.number().to_string());
        set("offloadersDirectory", folder.join("offloaders").display().to_string());
        set("narExtractionDirectory", folder.join("nar").display().to_string());
        if self.tls {
            set("webServicePortTls", web_tls.number().to_string());
            set("tlsEnabledWithKeyStore", "true".into());
            set("tlsKeyStoreType", "PKCS12".into());
            set("tlsKeyStore", folder.join("keystore.p12").display().to_string());
            set("tlsKeyStorePassword", "rig-password".into());
        }
        if self.secret.is_some() {
            let file = folder.join("token.secret").display().to_string();
            let provider = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken";
            let plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken";
            set("authenticationEnabled", "true".into());
            set("authorizationEnabled", "true".into());
            set("authenticationProviders", provider.into());
            set("tokenSecretKey", format!("file://{file}"));
            set("superUserRoles", SUPERUSER.into());
            set("brokerClientAuthenticationPlugin", plugin.into());
            set("brokerClientAuthenticationParameters", format!("token:{}", self.token(SUPERUSER)?));
        }
        all.extend(self.settings.clone());
        Ok(all.iter().map(|(k, v)| format!("{k}={v}\n")).collect())
    }

    /// A token for a role: [`SUPERUSER`] may do everything, any other name nothing until it is granted something.
    pub fn token(&self, role: &str) -> Result<String> {
        let secret = self.secret.as_ref().context("this rig asks for no tokens")?;
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let claims = serde_json::json!({ "sub": role }).to_string();
        let signed = format!("{}.{}", encode(br#"{"alg":"HS256"}"#), encode(claims.as_bytes()));
        let mac = hmac_sha256(secret.as_bytes(), signed.as_bytes());
        Ok(format!("{signed}.{}", encode(&mac)))
    }
}

const BOOKIE_SETTINGS: &str = "\
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage \
dbStorage_writeCacheMaxSizeMb=16 dbStorage_readAheadCacheMaxSizeMb=8 \
dbStorage_rocksDB_blockCacheSize=8388608 dbStorage_rocksDB_writeBufferSizeMB=4 \
journalPreAllocSizeMB=4 journalMaxSizeMB=64 journalSyncData=false \
entryLogFilePreallocationEnabled=false logSizeLimit=67108864 flushInterval=1000 gcWaitTime=5000 \
minorCompactionInterval=0 majorCompactionInterval=0 \
diskUsageThreshold=0.99 diskUsageWarnThreshold=0.99 isForceGCAllowWhenNoSpace=true \
autoRecoveryDaemonEnabled=false numReadWorkerThreads=2 numHighPriorityWorkerThreads=1 \
serverNumIOThreads=2 httpServerClass=org.apache.bookkeeper.http.vertx.VertxHttpServer ";

const BROKER_SETTINGS: &str = "
bindAddress=127.0.0.1 advertisedAddress=127.0.0.1
managedLedgerDefaultEnsembleSize=1 managedLedgerDefaultWriteQuorum=1 managedLedgerDefaultAckQuorum=1
managedLedgerMaxEntriesPerLedger=10 managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerCursorMaxEntriesPerLedger=50 managedLedgerCursorPositionFlushSeconds=2
retentionCheckIntervalInSeconds=10 messageExpiryCheckIntervalInMinutes=1
backlogQuotaCheckIntervalInSeconds=20
brokerDeleteInactiveTopicsEnabled=false
brokerDeduplicationEntriesInterval=20 brokerServiceCompactionMonitorIntervalInSeconds=3600
defaultNumberOfNamespaceBundles=4
loadBalancerSheddingEnabled=false loadBalancerAutoBundleSplitEnabled=false
forceDeleteNamespaceAllowed=true forceDeleteTenantAllowed=true
transactionCoordinatorEnabled=true systemTopicEnabled=true topicLevelPoliciesEnabled=true
functionsWorkerEnabled=false webSocketServiceEnabled=false
managedLedgerOffloadDriver=filesystem managedLedgerOffloadDeletionLagMs=14400000
managedLedgerOffloadThresholdInSeconds=-1 managedLedgerOffloadAutoTriggerSizeThresholdBytes=-1
delayedDeliveryTrackerFactoryClassName=org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory
delayedDeliveryMinIndexCountPerBucket=5 delayedDeliveryMaxIndexesPerBucketSnapshotSegment=5
delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds=1
numIOThreads=2 numHttpServerThreads=16 numOrderedExecutorThreads=2 managedLedgerNumSchedulerThreads=2
bookkeeperClientNumIoThreads=2 bookkeeperClientNumWorkerThreads=2 bookkeeperNumberOfChannelsPerBookie=1
managedLedgerCacheSizeMB=16
";

fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|b| b ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|b| b ^ 0x5c)).chain_update(inner).finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mac_is_that_of_rfc_4231() {
        let mac = hmac_sha256(b"Jefe", b"what do ya want for nothing?");
        let hex: String = mac.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
