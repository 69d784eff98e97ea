//! A broker's own configuration file (`broker.conf`), as far as it says something about us. With PIP-219's two names.

use std::path::Path;
use std::time::Duration;

use crate::config::{Config, ConfigError};

/// Takes over what the file says.
///
/// # Errors
/// When it cannot be read, or a value is not what its name asks for.
pub(crate) fn apply(config: &mut Config, path: &Path) -> Result<(), ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|e| ConfigError(format!("{} cannot be read: {e}", path.display())))?;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let Some((key, value)) = line.split_once(['=', ':']).map(|(key, value)| (key.trim(), value.trim())) else {
            continue;
        };
        if !value.is_empty() {
            one(config, key, value)
                .map_err(|why| ConfigError(format!("{} line {number}: {key}: {why}", path.display())))?;
        }
    }
    Ok(())
}

fn one(config: &mut Config, key: &str, value: &str) -> Result<(), String> {
    let number = || value.parse::<i64>().map_err(|_| format!("{value:?} is not a number"));
    let pulsar = &mut config.pulsar;
    match key {
        "fullScanTrimLedgerInterval" => {
            let seconds = u64::try_from(number()?).map_err(|_| "it is negative".to_owned())?;
            config.every = (seconds > 0).then(|| Duration::from_secs(seconds));
        }
        "fullScanMaximumMetadataConcurrencyPerSecond" | "fullScanMaximumZooKeeperRequestsPerSecond" => {
            config.limits.metadata_rate = number()? as f64;
        }
        "metadataStoreUrl" => match value.strip_prefix("zk:") {
            Some(servers) => pulsar.metadata = Some(format!("zk://{}", servers.trim_start_matches("//"))),
            None => {
                return Err(format!(
                    "{value:?} is not a ZooKeeper address (zk:host:port); other stores are not supported"
                ));
            }
        },
        "zookeeperServers" => pulsar.metadata = Some(format!("zk://{value}")),
        "defaultRetentionTimeInMinutes" => pulsar.default_retention_minutes = number()?,
        "defaultRetentionSizeInMB" => pulsar.default_retention_mib = number()?,
        "ttlDurationDefaultInSeconds" => pulsar.default_ttl_s = number()?,
        "subscriptionExpirationTimeMinutes" => pulsar.default_subscription_expiration_minutes = number()?,
        "managedLedgerOffloadDeletionLagMs" => pulsar.default_offload_deletion_lag_ms = number()?,
        "replicatorPrefix" => value.clone_into(&mut pulsar.replicator_prefix),
        "additionalSystemCursorNames" => {
            pulsar.system_cursors =
                value.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect();
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_219_names_and_defaults_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker.conf");
        let text = "# c\nfullScanTrimLedgerInterval=3600\nfullScanMaximumMetadataConcurrencyPerSecond = 50\n\
            metadataStoreUrl=zk:a:2181/x\nttlDurationDefaultInSeconds=7\nadditionalSystemCursorNames=a, b\nother=1\n";
        std::fs::write(&path, text).unwrap();
        let mut config = Config::default();
        apply(&mut config, &path).unwrap();
        assert_eq!((config.every, config.limits.metadata_rate), (Some(Duration::from_secs(3600)), 50.0));
        assert_eq!(config.pulsar.metadata.as_deref(), Some("zk://a:2181/x"));
        assert_eq!((config.pulsar.default_ttl_s, config.pulsar.system_cursors.len()), (7, 2));
        std::fs::write(&path, "fullScanTrimLedgerInterval=0\n").unwrap();
        apply(&mut config, &path).unwrap();
        assert_eq!(config.every, None);
        std::fs::write(&path, "a=1\nttlDurationDefaultInSeconds=x\n").unwrap();
        let error = apply(&mut config, &path).unwrap_err().to_string();
        assert!(error.contains("line 2: ttlDurationDefaultInSeconds"), "{error}");
    }
}
