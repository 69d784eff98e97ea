//! What leaves a region as it found it shares one, and happens at once, each on topics of its own.

use trimtab_tests::hedwig::{HedwigRig, Part};
use trimtab_tests::together::{self, side_by_side};

use super::{acts, steps};

#[test]
#[ignore = "needs Hedwig"]
fn acts_on_a_region_that_works() {
    let rig = &HedwigRig::builder().start().unwrap();
    let mut parts: Vec<together::Part<'_>> = vec![
        ("who is idle is freed, who is online left alone".into(), Box::new(|| acts::idle_is_freed_online_is_not(rig))),
        ("what was decided is never overstepped".into(), Box::new(|| acts::never_overstepped(rig))),
        ("doubt keeps".into(), Box::new(|| acts::doubt_keeps(rig))),
        ("what a hub never collects is said".into(), Box::new(|| acts::never_collected(rig))),
    ];
    for adversary in steps::Adversary::ALL {
        for lane in 0..steps::LANES {
            let name = format!("{adversary:?} at every step, lane {lane}");
            parts.push((name, Box::new(move || steps::at_every_step(rig, adversary, lane))));
        }
    }
    side_by_side(parts);
    // Nobody stayed attached while a hub collected: that can make it lose a topic.
    assert!(!rig.log_has(Part::Hub1, "Invalid RangeScan") && !rig.log_has(Part::Hub2, "Invalid RangeScan"));
    acts::old_hubs_are_left_alone(rig);
}
