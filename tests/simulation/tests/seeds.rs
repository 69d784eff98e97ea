//! The seeds that are run each time.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use trimtab_simulation::{Fault, each, run};

/// Ten thousand clusters, each with its own faults. `TRIMTAB_SEEDS` says how many instead.
#[test]
fn every_promise_is_kept_with_every_seed() {
    let count = std::env::var("TRIMTAB_SEEDS").map_or(10_000, |text| text.parse().expect("a number of seeds"));
    let (broken, reached, made) = (Mutex::default(), Mutex::default(), Mutex::default());
    let (acts, moved) = (AtomicU64::new(0), AtomicU64::new(0));
    each(0..count, |seed, ran| {
        if let Some(first) = ran.wrong.into_iter().next() {
            let mut broken: std::sync::MutexGuard<'_, Vec<String>> = broken.lock().unwrap();
            broken.push(format!("seed {seed}: {first}"));
        }
        let mut all: std::sync::MutexGuard<'_, BTreeSet<(String, Fault)>> = reached.lock().unwrap();
        all.extend(ran.reached.into_keys());
        let mut all: std::sync::MutexGuard<'_, BTreeSet<String>> = made.lock().unwrap();
        all.extend(ran.made.into_keys());
        acts.fetch_add(ran.acts, Ordering::Relaxed);
        moved.fetch_add(ran.moved, Ordering::Relaxed);
    });
    let (broken, reached, made) =
        (broken.into_inner().unwrap(), reached.into_inner().unwrap(), made.into_inner().unwrap());
    assert!(
        broken.is_empty(),
        "{} of {count} seeds broke a promise; `simulate SEED` shows all:\n{}",
        broken.len(),
        broken.join("\n")
    );
    // What never happened proves nothing.
    assert!(
        acts.into_inner() > count * 5 && moved.into_inner() > count / 2,
        "too little was done to be worth anything"
    );
    let points = made.len() * Fault::ALL.len();
    println!("{count} seeds: {} of {points} fault points reached", reached.len());
    assert!(
        count < 1_000 || reached.len() * 10 >= points * 8,
        "{} of {points} fault points were reached",
        reached.len()
    );
}

/// The same seed is the same run, to the last byte of everything that happened.
#[test]
fn a_seed_is_one_run() {
    each(0..100, |seed, ran| {
        let again = run(seed);
        let differs = ran.log.lines().zip(again.log.lines()).find(|(one, other)| one != other);
        assert!(ran.log == again.log, "seed {seed}: {differs:?}");
        assert!(ran.log.len() > 10_000, "seed {seed} did next to nothing");
    });
}

/// What the simulation has to notice can still be tried; `simulate mutants` does.
#[test]
fn mutants_fit_the_code() {
    let workers = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workers");
    for mutant in trimtab_simulation::mutants::MUTANTS {
        for (file, from, to) in mutant.changes {
            let text = std::fs::read_to_string(workers.join(file)).unwrap();
            assert_eq!(text.matches(from).count(), 1, "{}: {file} has not once: {from}", mutant.does);
            assert_ne!(from, to);
        }
    }
}
