//! The look before an act, by the paths that a ledger's marks give: it finds whatever names the ledger, and no error at any of its calls
//! makes a named one an orphan.

use trimtab_events::{
    Ceiling, Decision, DeleteOrphan, Evidence, OrphanCandidate, Sighting, TargetClock, Verdict, ledger_subject,
};
use trimtab_policy::{check_orphan, decide_orphan, reinstate_orphan};
use trimtab_targets::TargetError;
use trimtab_targets::bookkeeper::{Tree, look};
use trimtab_targets::pulsar::managed_ledger_info;
use uuid::Uuid;

use crate::fake::{Fake, Fault, NOW_MS, Nodes, context, live, policy, rules};
use crate::world::{DAY_MS, World};

fn looked(tree: &Fake, id: i64) -> Result<Option<OrphanCandidate>, TargetError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(look(tree, "/ledgers", id, NOW_MS))
}

/// What an executor makes of a look when two scans had found the ledger unnamed, as it is now.
fn decided(mut ledger: OrphanCandidate) -> Decision {
    let Some(owner) = ledger.owner().cloned() else { return decide_orphan(&ledger, policy(), &context()) };
    let earlier = Sighting { scan: Uuid::from_u128(1), at_ms: NOW_MS - 2 * DAY_MS, seen: ledger.seen };
    let mut decision = decide_orphan(&ledger, policy(), &context());
    decision.orphan = Some(DeleteOrphan {
        path: ledger.path.clone(),
        owner,
        ceiling: Ceiling { handed_out: Evidence::Present(1_000_000), highest_named: Evidence::Present(999_999) },
        clock: TargetClock { newest_ms: NOW_MS, written_after_ms: 0 },
        sightings: vec![earlier],
        collected_within_s: 900,
    });
    reinstate_orphan(&mut ledger, &decision);
    let again = decide_orphan(&ledger, policy(), &context());
    assert_eq!(again.subject, ledger_subject(ledger.ledger));
    if again.verdict == Verdict::DeleteOrphan {
        check_orphan(&again, &ledger, &rules(), NOW_MS).unwrap();
    }
    again
}

/// A named ledger of each kind.
fn named(nodes: &Nodes) -> Vec<i64> {
    let report = live(&Fake::new(nodes)).unwrap().report;
    let mut ids: Vec<i64> = report.comparison.named.values().map(|kept| kept.examples[0]).collect();
    assert_eq!(ids.len(), 4);
    let list = &nodes.0["/managed-ledgers/acme/week/persistent/exact"].value;
    ids.extend(managed_ledger_info(list).unwrap().ledgers.iter().map(|info| info.id));
    ids
}

#[test]
fn a_look_agrees_with_the_scan() {
    let nodes = Nodes::captured();
    let tree = Fake::new(&nodes);
    let scanned = live(&tree).unwrap();
    for (id, decision) in &scanned.decisions {
        let looked = decided(looked(&tree, *id).unwrap().unwrap());
        // Only a scan knows the highest id that is named; these are above it.
        if decision.reasons[0].rule != "ceiling" {
            assert_eq!(
                (looked.verdict, &looked.reasons[0].rule),
                (decision.verdict, &decision.reasons[0].rule),
                "{id}"
            );
        }
    }
    for id in named(&nodes) {
        let decision = decided(looked(&tree, id).unwrap().unwrap());
        assert_eq!((decision.verdict, decision.reasons[0].rule.as_ref()), (Verdict::Keep, "referenced"), "{id}");
    }
    assert_eq!(looked(&tree, 99_999).unwrap(), None);
}

#[test]
fn a_look_alone_is_not_enough() {
    let mut world = World::new();
    world.topic("t/n/persistent/x", &[12, 13]);
    for id in [11, 12, 13] {
        world.ledger(id, "t/n/persistent/x");
    }
    let ledger = looked(&world.tree(), 11).unwrap().unwrap();
    assert_eq!(decide_orphan(&ledger, policy(), &context()).verdict, Verdict::Skip);
    assert_eq!(decided(ledger.clone()).verdict, Verdict::DeleteOrphan);
    // The topic was given to somebody else meanwhile, or the ledger was written.
    world.topic("t/n/persistent/x", &[11, 12, 13]);
    assert_eq!(decided(looked(&world.tree(), 11).unwrap().unwrap()).reasons[0].rule, "referenced");
}

#[test]
fn no_error_at_any_call_of_a_look_makes_an_orphan() {
    let nodes = Nodes::captured();
    let (shared, mut tried) = (nodes.shared(), 0);
    for id in named(&nodes) {
        let clean = Fake::of(shared.clone());
        looked(&clean, id).unwrap();
        for at in 0..clean.operations() {
            for fault in Fault::ALL {
                let tree = Fake::with_fault(shared.clone(), at, fault);
                if let Ok(Some(ledger)) = looked(&tree, id) {
                    let decision = decided(ledger);
                    let log = tree.log.lock().unwrap();
                    let call = &log[usize::try_from(at).unwrap()];
                    assert_ne!(decision.verdict, Verdict::DeleteOrphan, "{fault:?} at {call} of ledger {id}");
                }
                tried += 1;
            }
        }
    }
    println!("{tried} looks with an error");
}
