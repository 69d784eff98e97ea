//! Whose a ledger is, by the custom metadata that its creator wrote.
//!
//! Source: `LedgerMetadataUtils` of Pulsar 4.2. A key, a component or a name that is not one of those makes it unknown: whoever
//! wrote it may have plans for the ledger that nobody here knows of.

use trimtab_events::{GuardKind, LedgerOwner, Marks, OwnedKind, TopicClass};

use super::metadata::LedgerMetadata;
use crate::pulsar::TopicName;
use crate::pulsar::names::encode;

const APPLICATION: &str = "application";
const COMPONENT: &str = "component";
const MANAGED_LEDGER: &str = "pulsar/managed-ledger";
const CURSOR: &str = "pulsar/cursor";
const SCHEMA: &str = "pulsar/schemaId";
const COMPACTED_TOPIC: &str = "pulsar/compactedTopic";
const COMPACTED_TO: &str = "pulsar/compactedTo";
const BUCKET_KEY: &str = "pulsar/delayedIndexBucketKey";
const BUCKET_TOPIC: &str = "pulsar/delayedIndexTopic";
const BUCKET_CURSOR: &str = "pulsar/delayedIndexCursor";
/// Where the copies of a ledger are to lie: says nothing of whose it is.
const PLACEMENT: &str = "EnsemblePlacementPolicyConfig";

/// The owner of a ledger, and the nodes that would name it, outermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// Who.
    pub owner: LedgerOwner,
    /// Full paths in the metadata store. Never empty.
    pub nodes: Vec<(GuardKind, String)>,
    /// The topic's path below `/managed-ledgers/`.
    pub managed_ledger: String,
}

/// What a ledger's metadata says of its owner.
///
/// # Errors
/// Why it does not say that it is Pulsar's.
pub fn owned(ledger: &LedgerMetadata) -> Result<Owned, Marks> {
    let unknown = |why: String| Err(Marks::Unknown { why });
    let mut keys: Vec<&str> =
        ledger.custom.iter().map(|(key, _)| key.as_str()).filter(|key| *key != PLACEMENT).collect();
    keys.sort_unstable();
    if keys.is_empty() {
        return Err(Marks::None);
    }
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return unknown(format!("{:?} is there twice", pair[0]));
    }
    let Some(application) = text(ledger, APPLICATION)? else {
        return unknown(format!("it has {keys:?} and does not name its application"));
    };
    if application != "pulsar" {
        return Err(Marks::Other { application: application.to_owned() });
    }
    let component = text(ledger, COMPONENT)?.unwrap_or_default();
    let (kind, known): (_, &[&str]) = match component {
        "managed-ledger" if keys.contains(&CURSOR) => (OwnedKind::Cursor, &[MANAGED_LEDGER, CURSOR]),
        "managed-ledger" => (OwnedKind::Data, &[MANAGED_LEDGER]),
        "schema" => (OwnedKind::Schema, &[SCHEMA]),
        "compacted-ledger" => (OwnedKind::Compacted, &[COMPACTED_TOPIC, COMPACTED_TO]),
        "delayed-index-bucket" => (OwnedKind::DelayedBucket, &[BUCKET_KEY, BUCKET_TOPIC, BUCKET_CURSOR]),
        other => return unknown(format!("component {other:?} of Pulsar is not known")),
    };
    if let Some(key) = keys.iter().find(|key| ![APPLICATION, COMPONENT].contains(*key) && !known.contains(*key)) {
        return unknown(format!("mark {key:?} of a {component} is not known"));
    }
    let needed = |key| text(ledger, key)?.ok_or_else(|| Marks::Unknown { why: format!("{component} without {key:?}") });
    match kind {
        OwnedKind::Data => of_topic(kind, needed(MANAGED_LEDGER)?.to_owned(), None),
        OwnedKind::Cursor => of_topic(kind, needed(MANAGED_LEDGER)?.to_owned(), Some(needed(CURSOR)?)),
        OwnedKind::Schema => of_schema(needed(SCHEMA)?),
        OwnedKind::Compacted => of_topic(kind, managed_ledger_of(needed(COMPACTED_TOPIC)?)?, Some("__compaction")),
        OwnedKind::DelayedBucket => {
            needed(BUCKET_KEY)?;
            of_topic(kind, managed_ledger_of(needed(BUCKET_TOPIC)?)?, Some(needed(BUCKET_CURSOR)?))
        }
    }
}

fn text<'l>(ledger: &'l LedgerMetadata, key: &str) -> Result<Option<&'l str>, Marks> {
    let Some((_, value)) = ledger.custom.iter().find(|(known, _)| known == key) else { return Ok(None) };
    std::str::from_utf8(value).map(Some).map_err(|_| Marks::Unknown { why: format!("{key:?} is not UTF-8") })
}

/// A topic's path below `/managed-ledgers/` from its full name. Only names with one possible meaning: a further `/` would make it
/// either a name from before Pulsar 2.0 or a name of old with a slash in it.
fn managed_ledger_of(topic: &str) -> Result<String, Marks> {
    let unknown = || Marks::Unknown { why: format!("{topic:?} is not a topic's name of a known form") };
    let rest = topic.strip_prefix("persistent://").ok_or_else(unknown)?;
    match rest.split('/').collect::<Vec<_>>().as_slice() {
        [tenant, namespace, local] => Ok(format!("{tenant}/{namespace}/persistent/{}", encode(local))),
        _ => Err(unknown()),
    }
}

fn name_of(managed_ledger: &str) -> Result<TopicName, Marks> {
    let unknown = || Marks::Unknown { why: format!("{managed_ledger:?} is not a topic's name of a known form") };
    TopicName::of_managed_ledger(managed_ledger)
        .filter(|name| name.class != TopicClass::UnknownName)
        .ok_or_else(unknown)
}

fn of_topic(kind: OwnedKind, managed_ledger: String, cursor: Option<&str>) -> Result<Owned, Marks> {
    let name = name_of(&managed_ledger)?;
    let topic = format!("/managed-ledgers/{managed_ledger}");
    let mut nodes = vec![(GuardKind::Topic, topic.clone())];
    match cursor {
        Some("") => return Err(Marks::Unknown { why: "the name of its cursor is empty".to_owned() }),
        Some(cursor) => nodes.push((GuardKind::Cursor, format!("{topic}/{}", encode(cursor)))),
        None => {}
    }
    let owner = LedgerOwner {
        kind,
        topic: name.subject(),
        namespace: name.namespace,
        class: name.class,
        cursor: cursor.map(str::to_owned),
    };
    Ok(Owned { owner, nodes, managed_ledger })
}

/// `tenant/namespace/encoded-name`; before Pulsar 2.0 with a cluster between.
fn of_schema(id: &str) -> Result<Owned, Marks> {
    let unknown = || Marks::Unknown { why: format!("{id:?} is not a schema's name of a known form") };
    let (namespace, encoded) = id.rsplit_once('/').ok_or_else(unknown)?;
    let managed_ledger = format!("{namespace}/persistent/{encoded}");
    let name = name_of(&managed_ledger)?;
    let nodes = vec![(GuardKind::Schema, format!("/schemas/{id}"))];
    let owner = LedgerOwner {
        kind: OwnedKind::Schema,
        topic: name.subject(),
        namespace: name.namespace,
        class: name.class,
        cursor: None,
    };
    Ok(Owned { owner, nodes, managed_ledger })
}

#[cfg(test)]
mod tests {
    use trimtab_events::{LedgerContent, LedgerStage};

    use super::*;

    fn ledger(custom: &[(&str, &str)]) -> LedgerMetadata {
        let content = LedgerContent { state: LedgerStage::Open, entries: None, bytes: None, created_ms: None };
        let custom = custom.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect();
        LedgerMetadata { content, custom }
    }

    fn pulsar(component: &str, more: &[(&str, &str)]) -> Result<Owned, Marks> {
        let mut all = vec![("component", component), ("application", "pulsar")];
        all.extend(more);
        owned(&ledger(&all))
    }

    fn nodes(owned: &Owned) -> Vec<&str> {
        owned.nodes.iter().map(|(_, path)| path.as_str()).collect()
    }

    #[test]
    fn the_five_kinds() {
        let data = pulsar("managed-ledger", &[(MANAGED_LEDGER, "t/n/persistent/a%2Fb")]).unwrap();
        assert_eq!((data.owner.kind, data.owner.topic.as_str()), (OwnedKind::Data, "persistent://t/n/a/b"));
        assert_eq!(nodes(&data), ["/managed-ledgers/t/n/persistent/a%2Fb"]);
        let name = "t/n/persistent/x-partition-1-partition-2";
        let cursor = pulsar("managed-ledger", &[(MANAGED_LEDGER, name), (CURSOR, "a b/ü"), (PLACEMENT, "{}")]).unwrap();
        assert_eq!(nodes(&cursor)[1], format!("/managed-ledgers/{name}/a+b%2F%C3%BC"));
        let schema = pulsar("schema", &[(SCHEMA, "t/n/x+y")]).unwrap();
        assert_eq!((nodes(&schema), schema.owner.topic.as_str()), (vec!["/schemas/t/n/x+y"], "persistent://t/n/x y"));
        let compacted = [(COMPACTED_TOPIC, "persistent://t/n/x y"), (COMPACTED_TO, "\u{1}")];
        let compacted = pulsar("compacted-ledger", &compacted).unwrap();
        let path = "/managed-ledgers/t/n/persistent/x+y";
        assert_eq!(nodes(&compacted), [path, &format!("{path}/__compaction")]);
        let bucket = [(BUCKET_KEY, "k"), (BUCKET_TOPIC, "persistent://t/n/x y"), (BUCKET_CURSOR, "s")];
        let bucket = pulsar("delayed-index-bucket", &bucket).unwrap();
        assert_eq!(nodes(&bucket), [path, &format!("{path}/s")]);
    }

    #[test]
    fn names_of_other_times() {
        let class = |ml: &str| pulsar("managed-ledger", &[(MANAGED_LEDGER, ml)]).map(|owned| owned.owner.class);
        assert_eq!(class("p/c/n/persistent/x"), Ok(TopicClass::LegacyName));
        assert_eq!(class("pulsar/system/persistent/__transaction_log_0"), Ok(TopicClass::System));
        for odd in
            ["t/n/persistent/a%2fb", "t/n/persistent/a/b", "t/n/x", "", "t/n/non-persistent/x", "t/n/persistent/"]
        {
            assert!(class(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn whatever_else_is_not_ours() {
        assert_eq!(owned(&ledger(&[])), Err(Marks::None));
        assert_eq!(owned(&ledger(&[(PLACEMENT, "{}")])), Err(Marks::None));
        let other = Marks::Other { application: "backup".into() };
        assert_eq!(owned(&ledger(&[("application", "backup"), ("component", "schema")])), Err(other));
        let unknown = |result: Result<Owned, Marks>| matches!(result, Err(Marks::Unknown { .. }));
        let ml = (MANAGED_LEDGER, "t/n/persistent/x");
        assert!(unknown(owned(&ledger(&[("component", "managed-ledger"), ml]))));
        assert!(unknown(pulsar("managed-ledger", &[])));
        assert!(unknown(pulsar("managed-ledger", &[ml, ("mine", "1")])));
        assert!(unknown(pulsar("managed-ledger", &[ml, ml])));
        assert!(unknown(pulsar("functions", &[ml])));
        assert!(unknown(pulsar("schema", &[ml])));
        assert!(unknown(pulsar("managed-ledger", &[ml, (CURSOR, "")])));
        assert!(unknown(pulsar("compacted-ledger", &[(COMPACTED_TOPIC, "persistent://p/c/n/x")])));
        assert!(unknown(pulsar("delayed-index-bucket", &[(BUCKET_TOPIC, "persistent://t/n/x"), (BUCKET_CURSOR, "s")])));
        let binary = LedgerMetadata { custom: vec![("application".into(), vec![0xff])], ..ledger(&[]) };
        assert!(unknown(owned(&binary)));
    }
}
