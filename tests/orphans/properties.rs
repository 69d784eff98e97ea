//! Over clusters made up at random: one more name, or any errors, never make a candidate.

use std::collections::BTreeMap;

use proptest::prelude::*;
use trimtab_tests::formats::{self, Stage};

use crate::fake::{Fake, Fault, live, snapshot};
use crate::world::World;

const TOPICS: [&str; 4] =
    ["t/n/persistent/a", "t/n/persistent/b", "t/m/persistent/c", "pulsar/system/persistent/__transaction_log_0"];
/// Ids of ledgers; the last one is always named, so that none is above the highest name.
const IDS: i64 = 60;

/// Something that names a ledger.
#[derive(Debug, Clone)]
enum Name {
    Topic(usize, i64),
    Cursor(usize, i64),
    Compacted(usize, i64),
    Bucket(usize, i64),
    Schema(usize, i64),
    Package(i64),
    Hedwig(i64),
}

fn name() -> impl Strategy<Value = Name> {
    let topic = 0..TOPICS.len();
    let id = 0..IDS;
    prop_oneof![
        6 => (topic.clone(), id.clone()).prop_map(|(topic, id)| Name::Topic(topic, id)),
        1 => (topic.clone(), id.clone()).prop_map(|(topic, id)| Name::Cursor(topic, id)),
        1 => (topic.clone(), id.clone()).prop_map(|(topic, id)| Name::Compacted(topic, id)),
        1 => (topic.clone(), id.clone()).prop_map(|(topic, id)| Name::Bucket(topic, id)),
        1 => (topic, id.clone()).prop_map(|(topic, id)| Name::Schema(topic, id)),
        1 => id.clone().prop_map(Name::Package),
        1 => id.prop_map(Name::Hedwig),
    ]
}

/// A ledger: whose, of what kind, closed or not.
type Ledger = (i64, usize, usize, bool);

fn build(ledgers: &[Ledger], names: &[Name]) -> World {
    let mut world = World::new();
    world.namespace("t/m");
    world.namespace("pulsar/system");
    for (id, topic, kind, closed) in ledgers {
        let stage = if *closed { Stage::Closed(1, 1) } else { Stage::Open };
        let full = format!("persistent://{}", TOPICS[*topic].replace("/persistent/", "/"));
        let schema = TOPICS[*topic].replace("/persistent/", "/");
        let pulsar = ("application", "pulsar");
        let ml = ("pulsar/managed-ledger", TOPICS[*topic]);
        let marks: Vec<(&str, &str)> = match kind {
            0..=2 => vec![pulsar, ("component", "managed-ledger"), ml],
            3 => vec![pulsar, ("component", "managed-ledger"), ml, ("pulsar/cursor", "s")],
            4 => vec![pulsar, ("component", "schema"), ("pulsar/schemaId", &schema)],
            5 => vec![
                pulsar,
                ("component", "compacted-ledger"),
                ("pulsar/compactedTopic", &full),
                ("pulsar/compactedTo", "x"),
            ],
            6 => vec![
                pulsar,
                ("component", "delayed-index-bucket"),
                ("pulsar/delayedIndexBucketKey", "k"),
                ("pulsar/delayedIndexTopic", &full),
                ("pulsar/delayedIndexCursor", "s"),
            ],
            _ => vec![],
        };
        world.marked(*id, stage, &marks);
    }
    let mut listed: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    let mut schemas: BTreeMap<usize, Vec<i64>> = BTreeMap::new();
    listed.entry(1).or_default().push(IDS);
    for (at, name) in names.iter().enumerate() {
        match name {
            Name::Topic(topic, id) => listed.entry(*topic).or_default().push(*id),
            Name::Cursor(topic, id) => {
                world.cursor(TOPICS[*topic], &format!("c{at}"), &formats::cursor(*id, None, &[]));
            }
            Name::Compacted(topic, id) => {
                world.cursor(TOPICS[*topic], &format!("c{at}"), &formats::cursor(-1, Some(*id), &[]));
            }
            Name::Bucket(topic, id) => {
                world.cursor(TOPICS[*topic], &format!("c{at}"), &formats::cursor(-1, None, &[*id]));
            }
            Name::Schema(topic, id) => schemas.entry(*topic).or_default().push(*id),
            Name::Package(id) => {
                let path = format!("/pulsar/packages/f{at}/<default>/ledgers/inprogress_0");
                world.node(&path, format!("5;{id};1").as_bytes());
            }
            Name::Hedwig(id) => {
                world.node(&format!("/hedwig/r/topics/h{at}/ledgers"), &formats::hedwig_ranges(&[*id]));
            }
        }
    }
    for (topic, mut ids) in listed {
        ids.sort_unstable();
        ids.dedup();
        world.topic(TOPICS[topic], &ids);
    }
    for (topic, ids) in schemas {
        world.schema(&TOPICS[topic].replace("/persistent/", "/"), &ids);
    }
    world.ledger(IDS, TOPICS[1]);
    world
}

fn ledgers() -> impl Strategy<Value = Vec<Ledger>> {
    let ledger = (0..TOPICS.len(), 0_usize..8, prop::bool::weighted(0.85));
    prop::collection::btree_map(0..IDS, ledger, 1..40)
        .prop_map(|all| all.into_iter().map(|(id, (topic, kind, closed))| (id, topic, kind, closed)).collect())
}

/// Leaves out what Pulsar does not do: naming a ledger from another namespace than the one that its marks say. A namespace that cannot be
/// read keeps what is marked as its own, and no more.
fn at_home(ledgers: &[Ledger], names: Vec<Name>) -> Vec<Name> {
    let namespace = |topic: usize| TOPICS[topic].split("/persistent/").next();
    let home = |id: i64| ledgers.iter().find(|(known, ..)| *known == id).map(|(_, topic, ..)| namespace(*topic));
    let kept = |name: &Name| match name {
        Name::Topic(topic, id)
        | Name::Cursor(topic, id)
        | Name::Compacted(topic, id)
        | Name::Bucket(topic, id)
        | Name::Schema(topic, id) => home(*id).is_none_or(|home| home == namespace(*topic)),
        Name::Package(_) | Name::Hedwig(_) => true,
    };
    names.into_iter().filter(kept).collect()
}

fn faults() -> impl Strategy<Value = BTreeMap<u64, Fault>> {
    prop::collection::btree_map(0_u64..200, prop::sample::select(Fault::ALL.to_vec()), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn one_more_name_never_makes_a_candidate(ledgers in ledgers(), names in prop::collection::vec(name(), 0..30), more in name()) {
        let before = build(&ledgers, &names).judged();
        let mut names = names;
        names.push(more);
        let after = build(&ledgers, &names).judged();
        prop_assert!(after.orphans().is_subset(&before.orphans()), "{:?} and then {:?}", before.orphans(), after.orphans());
    }

    #[test]
    fn errors_never_make_a_candidate(ledgers in ledgers(), names in prop::collection::vec(name(), 0..30), faults in faults()) {
        let tree = build(&ledgers, &at_home(&ledgers, names)).tree();
        let before = live(&tree).unwrap().orphans();
        let faulty = Fake::with_faults(tree.shared(), faults.clone());
        let after = live(&faulty).map(|judged| judged.orphans()).unwrap_or_default();
        prop_assert!(after.is_subset(&before), "{:?} and then {:?}", before, after);
    }

    #[test]
    fn what_a_snapshot_lacks_never_makes_a_candidate(
        ledgers in ledgers(),
        names in prop::collection::vec(name(), 0..30),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
    ) {
        let world = build(&ledgers, &at_home(&ledgers, names));
        let before = world.judged().orphans();
        let whole = std::fs::read_to_string(world.finished().file().path()).unwrap();
        let mut lines: Vec<&str> = whole.lines().collect();
        for index in gone {
            lines.remove(index.index(lines.len()));
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines.join("\n") + "\n").unwrap();
        let after = crate::fake::snapshot_file(file.path()).map(|judged| judged.orphans()).unwrap_or_default();
        prop_assert!(after.is_subset(&before), "{:?} and then {:?}", before, after);
    }
}

/// Each line of the captured tree is left out, or loses its value, once.
#[test]
fn no_line_that_a_snapshot_lacks_makes_a_candidate() {
    let nodes = crate::fake::Nodes::few();
    let expected = snapshot(&nodes).unwrap().orphans();
    let whole = std::fs::read_to_string(nodes.file().path()).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut lost = 0;
    for at in 0..lines.len() {
        let mut line: serde_json::Value = serde_json::from_str(lines[at]).unwrap();
        line["data"] = serde_json::json!("");
        let empty = line.to_string();
        for other in [None, Some(empty.as_str())] {
            let mut changed = lines.clone();
            match other {
                Some(empty) => changed[at] = empty,
                None => drop(changed.remove(at)),
            }
            std::fs::write(file.path(), changed.join("\n") + "\n").unwrap();
            let orphans = crate::fake::snapshot_file(file.path()).map(|judged| judged.orphans()).unwrap_or_default();
            assert!(orphans.is_subset(&expected), "{}: {orphans:?}", lines[at]);
            lost += u64::from(orphans != expected);
        }
    }
    assert!(lost > 50, "leaving lines out changed something {lost} times only");
}
