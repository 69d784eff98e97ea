//! Every call of a scan goes wrong once, in every way: no ledger ever becomes a candidate because of it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use trimtab_targets::bookkeeper::Tree;

use crate::fake::{Fake, Fault, Nodes, live};

fn no_error_makes_a_candidate(nodes: &Nodes) {
    let nodes = nodes.shared();
    let clean = Fake::of(nodes.clone());
    let expected = live(&clean).unwrap().orphans();
    assert_eq!(expected.len(), 16);
    let calls = clean.operations();
    let log = clean.log.lock().unwrap().clone();
    let next = AtomicU64::new(0);
    let tried: Mutex<BTreeMap<String, (u64, u64)>> = Mutex::default();
    let wrong: Mutex<Vec<String>> = Mutex::default();
    let work = || {
        loop {
            let one = next.fetch_add(1, Ordering::Relaxed);
            let (at, fault) = (one % calls, usize::try_from(one / calls).unwrap());
            let Some(fault) = Fault::ALL.get(fault).copied() else { return };
            let tree = Fake::with_fault(nodes.clone(), at, fault);
            let judged = live(&tree);
            assert_eq!(tree.met.load(Ordering::Relaxed), 1);
            let orphans = judged.map(|judged| judged.orphans()).unwrap_or_default();
            let mut tried = tried.lock().unwrap();
            let tried = tried.entry(format!("{fault:?}")).or_default();
            *tried = (tried.0 + 1, tried.1 + u64::from(orphans == expected));
            let new: Vec<i64> = orphans.difference(&expected).copied().collect();
            if !new.is_empty() {
                wrong.lock().unwrap().push(format!("{fault:?} at {}: {new:?}", log[usize::try_from(at).unwrap()]));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            scope.spawn(work);
        }
    });
    println!("{calls} calls; tried, and how often nothing was lost by it: {:?}", tried.into_inner().unwrap());
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of them: {:#?}", wrong.len(), &wrong[..wrong.len().min(40)]);
}

#[test]
fn no_error_at_any_call_makes_a_candidate() {
    no_error_makes_a_candidate(&Nodes::few());
}

/// The same over the whole captured tree: minutes, see the justfile.
#[cfg(feature = "long")]
#[test]
fn no_error_at_any_call_of_the_whole_tree_makes_a_candidate() {
    no_error_makes_a_candidate(&Nodes::captured());
}
