//! Each call of a whole run goes wrong once: every one of its kind in turn fails, is refused, takes effect and seems not to, or is
//! the last thing the process did. Then a run without faults follows. Whatever it was: nothing is acted on twice or before it is
//! recorded, nothing goes that is not due, a run that says it is done has done it, and nothing is left for ever.
//!
//! Target and brokers are a model, everything else is the real thing.

use std::collections::BTreeMap;

use trimtab::journal::RecordKind;
use trimtab::once::{Judgement, Ran};
use trimtab_events::{Decision, PlanItem, Status};

use crate::inside::{AT_ONCE, DUE, Ground, all_due, clean_runs, each, in_order, lost, only_what_is_due, quiet};
use crate::points::{Mode, Point, Points};

/// Acts whose budget is lost when this goes wrong: who crashes, or is not told that it was set aside, cannot give it back.
fn lost_budget(point: &Point, mode: Mode) -> u64 {
    match mode {
        Mode::CrashBefore | Mode::CrashAfter => AT_ONCE as u64,
        Mode::TimeOut if point.label == "store.put.budget" => 1,
        _ => 0,
    }
}

#[test]
fn any_call_of_a_run_may_go_wrong_once() {
    let points = quiet(async |process| {
        let ran = process.run().await.unwrap();
        assert_eq!(ran.judgement(), Judgement::Done, "{ran:?}");
    });
    each(&points, &Mode::ALL, &[false, true], |point, mode, keeps_bus| {
        let ground = Ground::that_loses(keeps_bus, lost_budget(point, mode));
        let before = ground.cluster.filled();
        let points = Points::with(point.clone(), mode);
        let first = ground.process(&points, async |process| process.run().await);
        in_order(&ground);
        let gone = lost(&before, &ground.cluster.filled());
        only_what_is_due(&gone);
        match first {
            None => assert!(mode.crashes(), "it crashed by itself"),
            Some(Err(e)) => assert!(e.to_string().len() > 20, "{e}"),
            Some(Ok(ran)) => {
                let Ran::Through { gate, tally, .. } = &ran else { panic!("{ran:?}") };
                assert!(tally.outcomes() <= gate.proposed.acts, "counted twice: {tally:?}");
                let problems = tally.problems.join("; ");
                match ran.judgement() {
                    Judgement::Done => assert_eq!(gone, all_due(), "it says that it is done: {tally:?}"),
                    _ => assert!(
                        gate.incomplete || !problems.is_empty() || tally.outcomes() < gate.proposed.acts,
                        "it does not say why: {ran:?}"
                    ),
                }
            }
        }
        // A topic that cannot be closed stays open, and then its broker has the say.
        let left_open = point.label == "act.close" && !mode.crashes() && points.reached();
        clean_runs(&ground, &before, left_open);
        points.reached()
    });
}

/// A plan, and what it would have carried out.
fn decisions(ground: &Ground) -> Vec<Decision> {
    let planned = ground.process(&Points::default(), async |process| process.plan().await).unwrap();
    planned.unwrap().0.into_iter().filter_map(|item| item.decision).collect()
}

#[test]
fn any_call_of_an_apply_may_go_wrong_once() {
    let points = quiet(async |process| {
        let (items, _) = process.plan().await.unwrap();
        let decisions: Vec<Decision> = items.into_iter().filter_map(|item| item.decision).collect();
        assert_eq!(decisions.len(), DUE.len() + 1);
        for outcome in process.apply(&decisions).await {
            assert_eq!(outcome.unwrap().status, Status::Done);
        }
    });
    let planning = |label: &str| ["target.shards", "target.scan"].contains(&label);
    let points: Vec<Point> = points.into_iter().filter(|point| !planning(&point.label)).collect();
    each(&points, &Mode::ALL, &[false], |point, mode, _| {
        let ground = Ground::that_loses(false, lost_budget(point, mode));
        let before = ground.cluster.filled();
        let plan = decisions(&ground);
        let points = Points::with(point.clone(), mode);
        let first = ground.process(&points, async |process| process.apply(&plan).await);
        in_order(&ground);
        only_what_is_due(&lost(&before, &ground.cluster.filled()));
        match &first {
            None => assert!(mode.crashes(), "it crashed by itself"),
            Some(outcomes) => {
                for (decision, outcome) in plan.iter().zip(outcomes) {
                    let done = matches!(outcome, Ok(outcome) if outcome.status == Status::Done);
                    let says = match outcome {
                        Ok(outcome) => outcome.reasons.iter().map(|reason| reason.says.clone()).collect::<String>(),
                        Err(e) => e.to_string(),
                    };
                    assert!(done || says.contains("the test says so") || says.contains("storage") || says.len() > 20);
                    let gone = &ground.cluster.filled()[&decision.subject];
                    assert!(!done || decision.ledgers.iter().all(|id| !gone.contains(id)), "{decision:?} is not done");
                }
            }
        }
        // The same plan once more: nothing is done twice, what was not begun is done now.
        let second = ground.process(&Points::default(), async |process| process.apply(&plan).await).unwrap();
        in_order(&ground);
        for (decision, outcome) in plan.iter().zip(second) {
            let outcome = outcome.unwrap_or_else(|e| panic!("{}: {e}", decision.subject));
            let why = outcome.reasons.first().map_or("", |reason| &*reason.rule);
            let fine = outcome.status == Status::Done || why == "repeated" || why == "changed";
            assert!(fine, "{}: {outcome:?}", decision.subject);
        }
        let (intents, outcomes) = (ground.recorded(RecordKind::Intent), ground.recorded(RecordKind::Outcome));
        for intent in &intents {
            assert_eq!(outcomes.iter().filter(|outcome| *outcome == intent).count(), 1, "outcomes of {intent}");
        }
        // What was begun and failed is in the next plan.
        let left_open = point.label == "act.close" && !mode.crashes() && points.reached();
        let next = decisions(&ground);
        let third = ground.process(&Points::default(), async |process| process.apply(&next).await).unwrap();
        assert!(third.iter().all(|outcome| matches!(outcome, Ok(outcome) if outcome.status == Status::Done)));
        in_order(&ground);
        let (gone, loaded) = (lost(&before, &ground.cluster.filled()), ground.cluster.loaded());
        assert!(left_open || (gone == all_due() && loaded.is_empty()), "{gone:?}, left open: {loaded:?}");
        points.reached()
    });
}

#[test]
fn any_call_of_a_plan_may_go_wrong_once() {
    let points = quiet(async |process| {
        let (items, planned) = process.plan().await.unwrap();
        assert!(planned.report.complete && items.len() > DUE.len());
    });
    let whole = {
        let ground = Ground::new(false);
        ground.process(&Points::default(), async |process| process.plan().await).unwrap().unwrap().0
    };
    let subjects = |items: &[PlanItem]| -> BTreeMap<String, Vec<i64>> {
        items.iter().map(|item| (item.subject.clone(), item.ledgers.clone())).collect()
    };
    let whole = subjects(&whole);
    each(&points, &[Mode::Fail, Mode::Refuse, Mode::TimeOut], &[false], |point, mode, _| {
        let ground = Ground::new(false);
        let before = ground.cluster.filled();
        let points = Points::with(point.clone(), mode);
        match ground.process(&points, async |process| process.plan().await).unwrap() {
            Err(e) => assert!(e.to_string().contains("the test says so"), "{e}"),
            Ok((items, planned)) => {
                let items = subjects(&items);
                assert!(items.iter().all(|(subject, ledgers)| whole.get(subject) == Some(ledgers)), "{items:?}");
                assert_eq!(planned.report.complete, items == whole, "{:?}", planned.problems);
                let told = planned.problems.iter().any(|problem| problem.contains("the test says so"));
                assert!(planned.report.complete || told, "{:?}", planned.problems);
            }
        }
        assert!(lost(&before, &ground.cluster.filled()).is_empty() && ground.cluster.acts().is_empty());
        points.reached()
    });
}
