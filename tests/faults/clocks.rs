//! Clocks that are wrong: that of trimtab a day behind, a day ahead, 400 days ahead, or stepping while a run is under way, while
//! that of the cluster is right. Brokers go by their own clock, so nothing goes that is not due; and once the clock is right again,
//! the rest is done.

use trimtab::once::{Judgement, Ran};
use trimtab_simulation::cluster::DAY;

use crate::inside::{DUE, Ground, all_due, clean_runs, each, in_order, lost, only_what_is_due, quiet};
use crate::points::{Mode, Point, Points};

const SKEWS: [i64; 4] = [-DAY, DAY, 400 * DAY, -400 * DAY];

fn points() -> Vec<Point> {
    quiet(async |process| {
        assert_eq!(process.run().await.unwrap().judgement(), Judgement::Done);
    })
}

/// One run with a wrong clock, then some with a right one.
fn trial(mut ground: Ground, points: &Points) {
    let before = ground.cluster.filled();
    let first = ground.process(points, async |process| process.run().await);
    in_order(&ground);
    let gone = lost(&before, &ground.cluster.filled());
    only_what_is_due(&gone);
    match first {
        // Crashed.
        None => {}
        Some(Err(e)) => panic!("{e}"),
        Some(Ok(Ran::Stopped { why, .. })) => assert!(why.contains("clock"), "{why}"),
        Some(Ok(ran)) => {
            let Ran::Through { tally, .. } = &ran else { panic!("{ran:?}") };
            let done = ran.judgement() == Judgement::Done;
            assert!(!done || gone == all_due() || tally.outcomes() < DUE.len() as u64, "{ran:?}");
            assert!(done || !tally.problems.is_empty(), "it does not say why: {ran:?}");
        }
    }
    ground.skew_ms = 0;
    clean_runs(&ground, &before, false);
}

#[test]
fn a_clock_that_is_wrong_all_the_time() {
    for skew_ms in SKEWS {
        let ground = Ground::skewed(skew_ms);
        trial(ground, &Points::default());
    }
}

#[test]
fn a_clock_that_steps_during_the_run() {
    each(&points(), &SKEWS.map(Mode::Step), &[false], |point, mode, _| {
        let points = Points::with(point.clone(), mode);
        trial(Ground::that_loses(false, 10), &points);
        points.reached()
    });
}

/// What a process with a wrong clock leaves behind when it crashes keeps nobody waiting who has the right time.
#[test]
fn a_process_that_crashes_with_a_wrong_clock() {
    let firsts: Vec<Point> = points().into_iter().filter(|point| point.number == 0).collect();
    for skew_ms in SKEWS {
        each(&firsts, &[Mode::CrashAfter], &[false], |point, mode, _| {
            let points = Points::with(point.clone(), mode);
            trial(Ground::skewed(skew_ms), &points);
            // Some calls are not made where nothing is due by that clock.
            points.reached() || skew_ms < 0
        });
    }
}
