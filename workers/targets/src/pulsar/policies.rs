//! Policies of namespaces and topics: what is in force for one topic, and from which level.
//!
//! Source: `Policies`, `LocalPolicies` and `TopicPolicies` of Pulsar 4.2 as JSON. Unknown fields are ignored: brokers of
//! other versions write more of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use trimtab_events::{Evidence, Level, Policies, Retention, Setting};

use super::assemble::Settings;
use super::names::TopicName;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawRetention {
    retention_time_in_minutes: i64,
    #[serde(rename = "retentionSizeInMB")]
    retention_size_in_mb: i64,
}

impl From<RawRetention> for Retention {
    fn from(raw: RawRetention) -> Self {
        Retention { minutes: raw.retention_time_in_minutes, mib: raw.retention_size_in_mb }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawOffload {
    managed_ledger_offload_deletion_lag_in_millis: Option<i64>,
}

/// A namespace's own policies, the fields that count here.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct NamespacePolicies {
    retention_policies: Option<RawRetention>,
    message_ttl_in_seconds: Option<i64>,
    offload_policies: Option<RawOffload>,
    offload_deletion_lag_ms: Option<i64>,
    subscription_expiration_time_minutes: Option<i64>,
    deleted: Option<bool>,
}

impl NamespacePolicies {
    pub(crate) fn parse(value: &[u8]) -> Result<NamespacePolicies, String> {
        serde_json::from_slice(value).map_err(|e| format!("the namespace's policies could not be decoded: {e}"))
    }
}

#[derive(Deserialize)]
struct RawLocal {
    bundles: RawBundles,
}

#[derive(Deserialize)]
struct RawBundles {
    boundaries: Vec<String>,
}

/// The boundaries of a namespace's bundles, from its local policies.
pub(crate) fn boundaries(value: &[u8]) -> Result<Vec<u32>, String> {
    let raw: RawLocal =
        serde_json::from_slice(value).map_err(|e| format!("local policies could not be decoded: {e}"))?;
    let number = |text: &String| u32::from_str_radix(text.trim_start_matches("0x"), 16);
    let all: Result<Vec<u32>, _> = raw.bundles.boundaries.iter().map(number).collect();
    let all = all.map_err(|e| format!("a bundle boundary is not a number: {e}"))?;
    if all.len() < 2 || all.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err("the bundle boundaries are not in order".to_owned());
    }
    Ok(all)
}

/// The bundle of a hash, as its node is called: half-open intervals, the last one closed.
pub(crate) fn bundle_of(boundaries: &[u32], hash: u32) -> Option<String> {
    let last = boundaries.len().checked_sub(2)?;
    let pair = boundaries
        .windows(2)
        .enumerate()
        .find(|(i, pair)| hash >= pair[0] && (hash < pair[1] || (*i == last && hash == pair[1])))?;
    Some(format!("0x{:08x}_0x{:08x}", pair.1[0], pair.1[1]))
}

/// How many partitions a partitioned topic has.
pub(crate) fn partitions(value: &[u8]) -> Evidence<u32> {
    #[derive(Deserialize)]
    struct Raw {
        partitions: u32,
    }
    match serde_json::from_slice::<Raw>(value) {
        Ok(raw) => Evidence::Present(raw.partitions),
        Err(e) => Evidence::Unknown(format!("the partitioned topic's metadata could not be decoded: {e}")),
    }
}

/// What one topic sets for itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TopicPolicies {
    /// Retention.
    pub retention: Option<Retention>,
    /// TTL in seconds; 0 switches it off.
    pub ttl_s: Option<i64>,
    /// Minutes after which an idle subscription expires; 0 is never.
    pub subscription_expiration_minutes: Option<i64>,
}

/// The topic-level policies of a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TopicLevel {
    /// Everything is known: by the topic's base name (`persistent://…` without `-partition-<n>`); who is not listed has none.
    Known(Arc<BTreeMap<String, TopicPolicies>>),
    /// They could not be learned.
    Unknown(String),
}

/// Reads a `--topic-policies` file: JSON, topic → `{"retention": [minutes, MiB], "ttl": seconds}`. It is taken to be complete:
/// topics it does not name have no policies of their own.
///
/// # Errors
/// What is wrong with it.
pub fn topic_policies_file(text: &str) -> Result<BTreeMap<String, TopicPolicies>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Raw {
        retention: Option<(i64, i64)>,
        ttl: Option<i64>,
    }
    let raw: BTreeMap<String, Raw> = serde_json::from_str(text).map_err(|e| e.to_string())?;
    raw.into_iter()
        .map(|(topic, raw)| {
            let name = TopicName::of_subject(&topic).ok_or_else(|| {
                format!("{topic:?} is not a topic's name; expected persistent://tenant/namespace/topic")
            })?;
            let retention = raw.retention.map(|(minutes, mib)| Retention { minutes, mib });
            Ok((name.base_subject(), TopicPolicies { retention, ttl_s: raw.ttl, ..TopicPolicies::default() }))
        })
        .collect()
}

/// One node below `/admin/topic-policies`, kept there by brokers with `MetadataStoreTopicPoliciesService`.
pub(crate) fn stored_topic_policies(value: &[u8]) -> Result<TopicPolicies, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Raw {
        retention_policies: Option<RawRetention>,
        #[serde(rename = "messageTTLInSeconds")]
        ttl: Option<i64>,
        subscription_expiration_time_in_minutes: Option<i64>,
    }
    let raw: Raw = serde_json::from_slice(value).map_err(|e| format!("topic policies could not be decoded: {e}"))?;
    Ok(TopicPolicies {
        retention: raw.retention_policies.map(Into::into),
        ttl_s: raw.ttl,
        subscription_expiration_minutes: raw.subscription_expiration_time_in_minutes,
    })
}

/// What is in force for a topic: topic, then namespace, then broker.
pub(crate) fn effective(
    namespace: &Evidence<NamespacePolicies>,
    topic_level: &TopicLevel,
    name: &TopicName,
    settings: &Settings,
) -> Evidence<Policies> {
    let own = match namespace {
        Evidence::Present(own) => own,
        Evidence::Absent => return Evidence::Absent,
        Evidence::Unknown(why) => return Evidence::Unknown(why.clone()),
    };
    let (topic, unknown) = match topic_level {
        TopicLevel::Known(all) if all.is_empty() => (TopicPolicies::default(), None),
        TopicLevel::Known(all) => (all.get(&name.base_subject()).copied().unwrap_or_default(), None),
        TopicLevel::Unknown(why) => (TopicPolicies::default(), Some(why.clone())),
    };
    let first = |topic: Option<i64>, namespace: Option<i64>, broker: i64| match (topic, namespace) {
        (Some(value), _) => Setting { value, level: Level::Topic },
        (None, Some(value)) => Setting { value, level: Level::Namespace },
        (None, None) => Setting { value: broker, level: Level::Broker },
    };
    let retention = match (topic.retention, own.retention_policies) {
        (Some(value), _) => Setting { value, level: Level::Topic },
        (None, Some(raw)) => Setting { value: raw.into(), level: Level::Namespace },
        (None, None) => Setting { value: settings.default_retention, level: Level::Broker },
    };
    let expiration = first(
        topic.subscription_expiration_minutes,
        own.subscription_expiration_time_minutes.filter(|minutes| *minutes >= 0),
        settings.default_subscription_expiration_minutes,
    );
    let lag = own.offload_policies.as_ref().and_then(|o| o.managed_ledger_offload_deletion_lag_in_millis);
    Evidence::Present(Policies {
        deleted: own.deleted.unwrap_or(false),
        retention,
        // At namespace level a negative TTL counts as unset; a topic's own 0 counts.
        ttl_s: first(topic.ttl_s, own.message_ttl_in_seconds.filter(|ttl| *ttl >= 0), settings.default_ttl_s),
        offload_deletion_lag_ms: lag
            .or(own.offload_deletion_lag_ms)
            .unwrap_or(settings.default_offload_deletion_lag_ms),
        // A default of "never" says nothing, so it is not said.
        subscription_expiration_minutes: Some(expiration).filter(|e| e.value > 0 || e.level != Level::Broker),
        topic_level_unknown: unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_are_half_open_and_the_last_is_closed() {
        let local = br#"{"bundles":{"boundaries":["0x00000000","0x80000000","0xffffffff"],"numBundles":2}}"#;
        let bounds = boundaries(local).unwrap();
        assert_eq!(bundle_of(&bounds, 0).as_deref(), Some("0x00000000_0x80000000"));
        assert_eq!(bundle_of(&bounds, 0x8000_0000).as_deref(), Some("0x80000000_0xffffffff"));
        assert_eq!(bundle_of(&bounds, u32::MAX).as_deref(), Some("0x80000000_0xffffffff"));
        assert!(boundaries(br#"{"bundles":{"boundaries":["0x1","0x0"]}}"#).is_err());
        assert!(boundaries(b"{}").is_err());
    }

    #[test]
    fn precedence_and_the_meaning_of_zero_and_negative() {
        let settings = Settings { default_ttl_s: 7, ..Settings::default() };
        let name = TopicName::of_subject("persistent://t/n/p-partition-1").unwrap();
        let ns = |text: &str| Evidence::Present(NamespacePolicies::parse(text.as_bytes()).unwrap());
        let none = TopicLevel::Known(Arc::default());
        let of = |ns: &Evidence<NamespacePolicies>, level: &TopicLevel| match effective(ns, level, &name, &settings) {
            Evidence::Present(p) => p,
            other => panic!("{other:?}"),
        };
        let unset = of(&ns("{}"), &none);
        assert_eq!(unset.retention, Setting { value: Retention { minutes: 0, mib: 0 }, level: Level::Broker });
        assert_eq!(unset.ttl_s, Setting { value: 7, level: Level::Broker });
        assert_eq!(of(&ns(r#"{"message_ttl_in_seconds":-1}"#), &none).ttl_s.value, 7);
        let set = ns(
            r#"{"message_ttl_in_seconds":60,"retention_policies":{"retentionTimeInMinutes":5,"retentionSizeInMB":-1}}"#,
        );
        assert_eq!(of(&set, &none).ttl_s, Setting { value: 60, level: Level::Namespace });
        let file = topic_policies_file(r#"{"persistent://t/n/p": {"retention": [1, 2], "ttl": 0}}"#).unwrap();
        let topic = of(&set, &TopicLevel::Known(Arc::new(file)));
        assert_eq!(topic.ttl_s, Setting { value: 0, level: Level::Topic });
        assert_eq!(topic.retention.value, Retention { minutes: 1, mib: 2 });
        assert!(topic_policies_file(r#"{"x": {}}"#).is_err());
        assert!(topic_policies_file(r#"{"persistent://t/n/p": {"rention": [1, 2]}}"#).is_err());
    }
}
