//! What people who do this job really met: public reports, cut down to the state that each is about.

use std::collections::BTreeSet;

use trimtab_events::Verdict;
use trimtab_policy::decide_orphan;
use trimtab_tests::formats::{self, Stage, ledger_path};

use crate::fake::{Fake, Fault, Judged, NOW_MS, context, live, policy};
use crate::world::{DAY_MS, World};

fn orphans(world: &World) -> Vec<i64> {
    world.judged().orphans().into_iter().collect()
}

fn rule_of(judged: &Judged, id: i64) -> &str {
    &judged.decisions[&id].reasons[0].rule
}

/// apache/pulsar#12131: a ledger carries a topic's name, and the topic does not list it.
#[test]
fn a_ledger_that_its_topic_does_not_list_goes_after_two_sightings() {
    let mut world = World::new();
    world.handed_out(2_000_000);
    world.topic("t/n/persistent/x", &[1_110_100, 1_110_200]);
    for id in [1_110_100, 1_110_144, 1_110_200] {
        world.ledger(id, "t/n/persistent/x");
    }
    let judged = world.judged();
    assert_eq!(judged.orphans(), BTreeSet::from([1_110_144]));
    let mut first = judged.candidates[&1_110_144].clone();
    let decide = |candidate: &_| decide_orphan(candidate, policy(), &context());
    let earlier = std::mem::take(&mut first.sightings);
    assert_eq!(decide(&first).verdict, Verdict::Keep);
    // The same scan again is no second sighting, nor is one of another version of the node, nor one a minute ago.
    first.sightings = earlier.clone();
    first.sightings[0].scan = context().scan.id;
    assert_eq!(decide(&first).reasons[0].rule, "sightings");
    first.sightings = earlier.clone();
    first.sightings[0].seen.version += 1;
    assert_eq!(decide(&first).reasons[0].rule, "sightings");
    first.sightings = earlier.clone();
    first.sightings[0].at_ms = NOW_MS - 60_000;
    assert_eq!(decide(&first).reasons[0].rule, "sightings");
    first.sightings[0].at_ms = NOW_MS + DAY_MS;
    assert_eq!(decide(&first).reasons[0].rule, "sightings");
    first.sightings = earlier;
    assert_eq!(decide(&first).verdict, Verdict::DeleteOrphan);
}

/// apache/pulsar#13238: a broker died between "remove from list" and "delete in BookKeeper".
#[test]
fn what_was_taken_off_the_list_goes() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[12, 13]);
    for id in [11, 12, 13] {
        world.ledger(id, "t/n/persistent/x");
    }
    assert_eq!(orphans(&world), [11]);
}

/// BOOKKEEPER-449: a process died between creating a ledger and recording it.
#[test]
fn a_ledger_in_creation_stays() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[49]);
    world.ledger(49, "t/n/persistent/x");
    world.staged(50, "t/n/persistent/x", Stage::Open);
    world.written_ms(50, NOW_MS - 70_000);
    assert_eq!(rule_of(&world.judged(), 50), "ceiling");
    world.topic("t/n/persistent/y", &[9_000]);
    world.ledger(9_000, "t/n/persistent/y");
    assert_eq!(rule_of(&world.judged(), 50), "too-young");
    // Thirty days later it is still open: whoever made it may live, so a person is told.
    world.written_ms(50, NOW_MS - 30 * DAY_MS);
    let judged = world.judged();
    assert_eq!((rule_of(&judged, 50), judged.decisions[&50].verdict), ("suspect-open", Verdict::Report));
    // Recovered, which fences its writer and closes it, it is one.
    world.staged(50, "t/n/persistent/x", Stage::Closed(0, 0));
    assert_eq!(orphans(&world), [50]);
    // Not if that id was handed out after the scan began.
    world.handed_out(50);
    assert_eq!(rule_of(&world.judged(), 50), "ceiling");
}

/// apache/pulsar#11195: nodes of managed ledgers that outlived their namespace.
#[test]
fn a_namespace_without_policies_is_only_reported() {
    let mut world = World::new();
    world.topic("t/gone/persistent/x", &[5, 7]);
    for id in [4, 5, 7] {
        world.ledger(id, "t/gone/persistent/x");
    }
    let judged = world.judged();
    assert_eq!(judged.report.namespaces_missing_examples, ["t/gone"]);
    assert_eq!(judged.decisions[&4].verdict, Verdict::Report);
    assert_eq!(rule_of(&judged, 4), "namespace-missing");
    world.node("/admin/policies/t/gone", br#"{"deleted":true}"#);
    assert_eq!(rule_of(&world.judged(), 4), "namespace-deleted");
    world.node("/admin/policies/t/gone", b"no json");
    assert_eq!(rule_of(&world.judged(), 4), "unknown");
    world.node("/admin/policies/t/gone", b"{}");
    assert_eq!(orphans(&world), [4]);
    // Policies may be kept in another store altogether.
    world.nodes.remove("/admin/policies");
    assert_eq!(rule_of(&world.judged(), 4), "unknown");
}

/// apache/pulsar#21942: function packages lie in ledgers without any mark.
#[test]
fn ledgers_without_marks_stay_and_are_counted() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[90]);
    world.ledger(90, "t/n/persistent/x");
    world.marked(5, Stage::Closed(1, 1), &[]);
    world.marked(6, Stage::Closed(1, 1), &[("application", "backup")]);
    world.marked(7, Stage::Closed(1, 1), &[("application", "pulsar"), ("component", "functions")]);
    world.marked(8, Stage::Closed(1, 1), &[("mine", "1")]);
    world.node("/pulsar/functions/a/b/f/<default>/ledgers/inprogress_000", b"5;9;1;1;0;0");
    world.marked(9, Stage::Open, &[]);
    let judged = world.judged();
    assert!(judged.orphans().is_empty());
    assert_eq!(judged.by_rule("foreign"), [5, 6]);
    assert_eq!(judged.by_rule("unknown"), [7, 8]);
    assert_eq!(judged.report.references["distributed-log"], 1);
    assert_eq!(judged.report.comparison.named["distributed-log"].examples, [9]);
}

/// apache/pulsar#9962: what BookKeeper no longer has because a copy lies in tiered storage is not missing.
#[test]
fn tiered_copies_are_not_missing() {
    let mut world = World::new();
    world.node("/managed-ledgers/t/n/persistent/x", &formats::tiered_ledger(5));
    world.topic("t/n/persistent/y", &[90]);
    world.ledger(90, "t/n/persistent/y");
    world.ledger(4, "t/n/persistent/x");
    let judged = world.judged();
    assert_eq!((judged.report.missing, judged.orphans()), (0, BTreeSet::from([4])));
    // One whose copy in BookKeeper outlived the crash is still listed: the broker's own.
    world.ledger(5, "t/n/persistent/x");
    assert_eq!(orphans(&world), [4]);
}

/// apache/pulsar#1571: a list names a ledger that BookKeeper does not have.
#[test]
fn nothing_of_a_topic_goes_while_a_ledger_that_it_names_is_missing() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[5, 6, 7]);
    for id in [4, 5, 7] {
        world.ledger(id, "t/n/persistent/x");
    }
    let judged = world.judged();
    assert_eq!(judged.report.missing, 1);
    assert_eq!(judged.report.missing_examples[0].ledger, 6);
    assert_eq!(rule_of(&judged, 4), "missing-ledgers");
    // The same for one that a cursor of it names.
    world.ledger(6, "t/n/persistent/x");
    assert_eq!(orphans(&world), [4]);
    world.cursor("t/n/persistent/x", "s", &formats::cursor(3, None, &[]));
    assert_eq!(rule_of(&world.judged(), 4), "missing-ledgers");
}

/// tomjo/pulsar-bookie-utils: a call that failed became an empty set, and all ledgers of a live topic orphans.
#[test]
fn a_topic_that_cannot_be_read_loses_nothing() {
    let mut world = World::new();
    world.topic("t/n/persistent/orders", &[1, 2, 3]);
    world.topic("t/m/persistent/x", &[90]);
    world.namespace("t/m");
    for id in [1, 2, 3] {
        world.ledger(id, "t/n/persistent/orders");
    }
    world.ledger(90, "t/m/persistent/x");
    world.ledger(50, "t/m/persistent/x");
    assert_eq!(orphans(&world), [50]);
    let tree = world.tree();
    live(&tree).unwrap();
    let log = tree.log.lock().unwrap().clone();
    let of_orders = |call: &&str| call.contains("orders");
    let calls = log.iter().map(String::as_str).enumerate().filter(|(_, call)| of_orders(call));
    let mut met = 0;
    for (at, _) in calls {
        for fault in Fault::ALL {
            let tree = Fake::with_fault(world.tree().shared(), at as u64, fault);
            let orphans = live(&tree).unwrap().orphans();
            // Neighbouring namespaces are not concerned.
            assert_eq!(orphans, BTreeSet::from([50]), "{fault:?} at {}", log[at]);
            met += 1;
        }
    }
    assert!(met >= Fault::ALL.len());
}

/// pravega/pravega#1165: ids above the highest one that is named stay.
#[test]
fn what_is_above_the_highest_name_stays() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[3, 9, 15]);
    for id in 1..=20 {
        world.ledger(id, "t/n/persistent/x");
    }
    assert_eq!(orphans(&world), [1, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14]);
    assert_eq!(world.judged().by_rule("ceiling"), [16, 17, 18, 19, 20]);
}

/// YahooArchive/bookkeeper#15: a level that is missing is no end, and a folder that vanishes is no empty one.
#[test]
fn gaps_in_the_levels_are_no_ends() {
    let mut world = World::new();
    let ids = [4_200_000_001, 4_200_040_001, 4_200_040_002, 5_000_000_000];
    for id in ids {
        let marks =
            [("application", "pulsar"), ("component", "managed-ledger"), ("pulsar/managed-ledger", "t/n/persistent/x")];
        let value = formats::ledger(Stage::Closed(1, 1), &["b:1".to_owned()], None, &marks);
        world.node(&trimtab_targets::pulsar::ledger_path("/ledgers", false, false, id), &value);
    }
    world.topic("t/n/persistent/x", &[4_200_040_002, 5_000_000_000]);
    let judged = world.judged();
    assert_eq!(judged.report.ledgers, 4);
    assert_eq!(judged.orphans(), BTreeSet::from([4_200_000_001, 4_200_040_001]));
    // The folder of one that is named vanishes: whether it exists is not known, and nothing of its topic goes.
    let tree = world.tree();
    live(&tree).unwrap();
    let log = tree.log.lock().unwrap().clone();
    let at = log.iter().position(|call| call == "children /ledgers/000/0000/0050/0000").unwrap();
    let judged = live(&Fake::with_fault(tree.shared(), at as u64, Fault::Gone)).unwrap();
    assert_eq!((judged.report.unread[0].from, judged.report.unread[0].to), (5_000_000_000, 5_000_009_999));
    assert!(judged.orphans().is_empty());
    assert_eq!(judged.report.missing, 0);
}

/// apache/bookkeeper#2802: sessions die over large folders.
#[test]
fn a_range_is_listed_again_after_a_lost_session() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[5_001]);
    for id in 1..=5_001 {
        world.ledger(id, "t/n/persistent/x");
    }
    let tree = world.tree();
    live(&tree).unwrap();
    let at = tree.log.lock().unwrap().iter().position(|call| call == "children /ledgers/00/0000").unwrap();
    let judged = live(&Fake::with_fault(tree.shared(), at as u64, Fault::Behind)).unwrap();
    assert_eq!((judged.report.ledgers, judged.report.unread.len()), (5_001, 0));
    assert_eq!(judged.orphans().len(), 5_000);
}

/// iceberg#4194: two spellings of one address, and a kind of referrer that was forgotten.
#[test]
fn names_have_one_spelling_and_unknown_ones_stay() {
    let mut world = World::new();
    let known = [
        "t/n/persistent/a%2Fb",
        "t/n/persistent/x-partition-1-y",
        "t/n/persistent/a+b",
        "t/n/persistent/p-partition-0",
    ];
    for (at, name) in known.iter().enumerate() {
        world.topic(name, &[90 + at as i64]);
        world.ledger(90 + at as i64, name);
        world.ledger(10 + at as i64, name);
    }
    let odd = ["t/n/persistent/a%2fb", "p/c/n/persistent/x", "t/n/x", "t/n/persistent/a/b"];
    for (at, name) in odd.iter().enumerate() {
        world.ledger(20 + at as i64, name);
    }
    world.topic("p/c/n/persistent/x", &[99]);
    world.ledger(99, "p/c/n/persistent/x");
    let judged = world.judged();
    assert_eq!(judged.orphans(), BTreeSet::from([10, 11, 12, 13]));
    assert_eq!(rule_of(&judged, 21), "legacy-name");
    assert_eq!(judged.by_rule("unknown"), [20, 22, 23]);
}

/// Every kind of name keeps, whoever's marks the ledger has.
#[test]
fn every_kind_of_name_keeps() {
    let base = || {
        let mut world = World::new();
        world.topic("t/n/persistent/x", &[90]);
        world.ledger(90, "t/n/persistent/x");
        world.ledger(5, "t/n/persistent/x");
        world
    };
    assert_eq!(orphans(&base()), [5]);
    type Name = fn(&mut World);
    let names: [(&str, Name); 12] = [
        ("topic", |w| w.topic("t/n/persistent/x", &[5, 90])),
        ("another topic", |w| w.topic("t/m/persistent/y", &[5, 90])),
        ("transaction log", |w| w.topic("pulsar/system/persistent/__transaction_log_0", &[5])),
        ("pending ack", |w| w.topic("t/n/persistent/x-s__transaction_pending_ack", &[5])),
        ("topic of before 2.0", |w| w.topic("p/c/n/persistent/y", &[5])),
        ("cursor", |w| w.cursor("t/n/persistent/x", "s", &formats::cursor(5, None, &[]))),
        ("compacted", |w| w.cursor("t/n/persistent/x", "__compaction", &formats::cursor(-1, Some(5), &[]))),
        ("bucket", |w| w.cursor("t/n/persistent/x", "s", &formats::cursor(-1, None, &[5]))),
        ("schema, an old version", |w| w.schema("t/n/x", &[5, 90])),
        ("schema of before 2.0", |w| w.schema("p/c/n/x", &[5, 90])),
        ("package", |w| {
            w.node("/pulsar/packages/function/t/n/f/<default>/ledgers/logrecs_1_1", b"5;5;1;1;1;1;1;0;0;0;0")
        }),
        ("Hedwig", |w| w.node("/hedwig/r/topics/a/b/ledgers", &formats::hedwig_ranges(&[5]))),
    ];
    for (name, add) in names {
        let mut world = base();
        add(&mut world);
        let judged = world.judged();
        assert!(judged.orphans().is_empty(), "{name}");
        assert!(!judged.candidates.contains_key(&5), "{name}");
    }
}

/// What may be named in a ledger that only a broker reads stays.
#[test]
fn a_name_that_may_be_hidden_keeps() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[90]);
    world.ledger(90, "t/n/persistent/x");
    world.ledger(80, "t/n/persistent/x");
    let pulsar = ("application", "pulsar");
    let compacted = [
        pulsar,
        ("component", "compacted-ledger"),
        ("pulsar/compactedTopic", "persistent://t/n/x"),
        ("pulsar/compactedTo", "?"),
    ];
    world.marked(5, Stage::Closed(1, 1), &compacted);
    let bucket = [
        pulsar,
        ("component", "delayed-index-bucket"),
        ("pulsar/delayedIndexBucketKey", "k"),
        ("pulsar/delayedIndexTopic", "persistent://t/n/x"),
        ("pulsar/delayedIndexCursor", "s"),
    ];
    world.marked(6, Stage::Closed(1, 1), &bucket);
    world.cursor("t/n/persistent/x", "__compaction", &formats::cursor(-1, None, &[]));
    world.cursor("t/n/persistent/x", "s", &formats::cursor(-1, None, &[]));
    assert_eq!(orphans(&world), [5, 6, 80]);
    world.cursor("t/n/persistent/x", "__compaction", &formats::cursor(90, None, &[]));
    world.cursor("t/n/persistent/x", "s", &formats::cursor(90, None, &[]));
    assert_eq!(orphans(&world), [80]);
    assert_eq!(world.judged().by_rule("unknown"), [5, 6]);
}

/// What a later version of Pulsar may add could name ledgers too.
#[test]
fn unknown_fields_leave_a_namespace_undecided() {
    for (path, mut value) in [
        ("/managed-ledgers/t/n/persistent/y", formats::managed_ledger(&[91])),
        ("/managed-ledgers/t/n/persistent/x/s", formats::cursor(-1, None, &[])),
        ("/schemas/t/n/x", formats::schema(&[92])),
    ] {
        let mut world = World::new();
        world.namespace("t/m");
        for (namespace, first) in [("t/n", 90), ("t/m", 95)] {
            let name = format!("{namespace}/persistent/x");
            world.topic(&name, &[first]);
            world.ledger(first, &name);
            world.ledger(first - 50, &name);
        }
        world.marked(91, Stage::Open, &[]);
        world.marked(92, Stage::Open, &[]);
        world.node(path, &value);
        assert_eq!(orphans(&world), [40, 45], "{path}");
        value.extend([15 << 3, 1]);
        world.node(path, &value);
        assert_eq!(orphans(&world), [45], "{path}");
    }
}

/// Clocks: 0, before 0, far ahead, a server whose clock was behind, a client whose clock is ahead.
#[test]
fn times_that_cannot_be_trusted_make_nothing_old() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[90]);
    world.ledger(90, "t/n/persistent/x");
    world.ledger(5, "t/n/persistent/x");
    assert_eq!(orphans(&world), [5]);
    for odd in [0, -1, NOW_MS + DAY_MS, i64::MAX, i64::MIN] {
        world.written_ms(5, odd);
        assert_eq!(rule_of(&world.judged(), 5), "unknown", "{odd}");
    }
    // Written after something that is a minute old, whatever it says of itself.
    world.ledger(6, "t/n/persistent/x");
    world.written_ms(6, NOW_MS - 400 * DAY_MS);
    world.written_ms(5, NOW_MS - 30 * DAY_MS);
    assert_eq!(orphans(&world), [5, 6]);
    world.nodes.put("/managed-ledgers/t/n/persistent/x", &formats::managed_ledger(&[90]));
    let topic = world.nodes.0.get_mut("/managed-ledgers/t/n/persistent/x").unwrap();
    topic.modified_ms = NOW_MS - 61_000;
    let before = topic.modified_zxid;
    let late = world.nodes.0.get_mut(&ledger_path(6)).unwrap();
    assert!(late.modified_zxid > before);
    assert_eq!(rule_of(&world.judged(), 6), "too-young");
    // Ours is a year ahead: ages count from what ZooKeeper wrote last.
    let judged = world.judged();
    let mut candidate = judged.candidates[&5].clone();
    for (newest_ms, rule) in
        [(candidate.created_ms + 60_000, "too-young"), (candidate.created_ms - 1, "unknown"), (0, "unknown")]
    {
        candidate.clock.newest_ms = newest_ms;
        let decision = decide_orphan(&candidate, policy(), &context());
        assert_eq!(decision.reasons[0].rule, rule);
    }
}

/// Another cluster in the same BookKeeper looks like a heap of orphans.
#[test]
fn ledgers_of_another_cluster_leave_everything_undecided() {
    let mut world = World::new();
    let here: Vec<i64> = (1..200).step_by(2).collect();
    world.topic("t/n/persistent/x", &here);
    for id in 1..=200 {
        world.ledger(id, "t/n/persistent/x");
    }
    assert_eq!(world.judged().orphans().len(), 99);
    for id in (100..150).step_by(2) {
        world.written_ms(id, NOW_MS - 3_600_000);
    }
    let judged = world.judged();
    assert!(judged.orphans().is_empty());
    assert!(judged.report.broken.is_some_and(|why| why.contains("another cluster")));
}

/// Metadata that moves to another store, or moved, does not tell the truth.
#[test]
fn nothing_is_decided_while_metadata_moves() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[90]);
    world.ledger(90, "t/n/persistent/x");
    world.ledger(5, "t/n/persistent/x");
    world.node("/pulsar/migration-coordinator", b"");
    assert_eq!(orphans(&world), [5]);
    world.node("/pulsar/migration-coordinator/migration", br#"{"phase":"COMPLETED","targetUrl":"oxia://x"}"#);
    assert_eq!(rule_of(&world.judged(), 5), "unknown");
}

/// All layouts, and what lies where nobody looks for it.
#[test]
fn every_layout_is_read() {
    let factories = [
        (Some("FlatLedgerManagerFactory"), true, false),
        (Some("HierarchicalLedgerManagerFactory"), false, false),
        (Some("LongHierarchicalLedgerManagerFactory"), false, true),
        (None, false, false),
    ];
    for (factory, flat, long) in factories {
        let mut world = World::new();
        if let Some(factory) = factory {
            let value = format!("2\norg.apache.bookkeeper.meta.{factory}:1");
            world.node("/ledgers/LAYOUT", value.as_bytes());
        }
        let marks =
            [("application", "pulsar"), ("component", "managed-ledger"), ("pulsar/managed-ledger", "t/n/persistent/x")];
        let value = formats::ledger(Stage::Closed(1, 1), &["b:1".to_owned()], None, &marks);
        for id in [0, 1234, 90_000] {
            world.node(&trimtab_targets::pulsar::ledger_path("/ledgers", flat, long, id), &value);
        }
        world.topic("t/n/persistent/x", &[90_000]);
        world.node(&trimtab_targets::pulsar::ledger_path("/ledgers", !flat, false, 77), &value);
        world.node("/ledgers/mine", b"");
        let judged = world.judged();
        assert_eq!(judged.orphans(), BTreeSet::from([0, 1234]), "{factory:?}");
        assert!(judged.report.strays >= 2, "{factory:?}");
    }
    let mut world = World::new();
    world.node("/ledgers/LAYOUT", b"2\norg.example.Mine:1");
    assert!(live(&world.tree()).is_err());
}
