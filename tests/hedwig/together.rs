//! What leaves a region as it found it shares one, and happens at once, each on topics of its own.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use trimtab_tests::hedwig::{HedwigRig, Part};

use super::{acts, steps};

type Doing<'a> = Box<dyn Fn() + Send + Sync + 'a>;

#[test]
#[ignore = "needs Hedwig"]
fn acts_on_a_region_that_works() {
    let rig = &HedwigRig::builder().start().unwrap();
    let mut all: Vec<(String, Doing<'_>)> = vec![
        ("who is idle is freed, who is online left alone".into(), Box::new(|| acts::idle_is_freed_online_is_not(rig))),
        ("what was decided is never overstepped".into(), Box::new(|| acts::never_overstepped(rig))),
        ("doubt keeps".into(), Box::new(|| acts::doubt_keeps(rig))),
        ("what a hub never collects is said".into(), Box::new(|| acts::never_collected(rig))),
    ];
    for adversary in steps::Adversary::ALL {
        for lane in 0..steps::LANES {
            let name = format!("{adversary:?} at every step, lane {lane}");
            all.push((name, Box::new(move || steps::at_every_step(rig, adversary, lane))));
        }
    }
    let failed = std::thread::scope(|scope| {
        let begun: Vec<_> = all
            .iter()
            .map(|(name, doing)| {
                scope.spawn(move || {
                    let start = Instant::now();
                    let ended = catch_unwind(AssertUnwindSafe(doing));
                    println!(
                        "{:6.1} s  {name}: {}",
                        start.elapsed().as_secs_f32(),
                        if ended.is_ok() { "ok" } else { "FAILED" }
                    );
                    ended.err()
                })
            })
            .collect();
        begun.into_iter().filter_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    if let Some(first) = failed.into_iter().next() {
        resume_unwind(first);
    }
    // Nobody stayed attached while a hub collected: that can make it lose a topic.
    assert!(!rig.log_has(Part::Hub1, "Invalid RangeScan") && !rig.log_has(Part::Hub2, "Invalid RangeScan"));
    acts::old_hubs_are_left_alone(rig);
}
