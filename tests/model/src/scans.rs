//! Who leads a scan, and when its decisions may be carried out: lease, fencing number, checkpoint, gate and budget.
//!
//! `trimtab/src/workers/scanner.rs` (`scan`, `begin`, `shards`, `renew`, `end`), `trimtab/src/scans.rs` (`lead`, `finish`, `reserve`),
//! `executor.rs` (`handle`). A lease is a way to save work: its holder may be paused at any point and go on when another leads. What a
//! paused one does is harmless since the gate carries its leader's fencing number, and since the budget is counted by itself.

use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// Scanners.
const SCANNERS: usize = 2;
/// Shards; something more may turn up in the last one while it is scanned.
const SHARDS: u8 = 2;
/// How often somebody may lead.
const LEADERS: usize = 3;
/// What a scan may propose, and have carried out.
const CAP: u8 = 1;

/// What is done to be safe.
#[derive(Debug, Clone, Copy)]
struct Guards {
    /// One leads at a time, as far as leases go.
    lease: bool,
    /// A lease that is not renewed ends.
    ends: bool,
    /// A gate is not replaced by that of an earlier leader.
    gate: bool,
    /// A decision waits for the gate of its leader, or of a later one.
    waits: bool,
    /// Acts are counted by compare-and-set.
    budget: bool,
}

const CODE: Guards = Guards { lease: true, ends: true, gate: true, waits: true, budget: true };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// Shards below `next` are read.
    Reads {
        fence: u8,
        next: u8,
        found: u8,
    },
    /// One more is read, the lease not yet renewed.
    Read {
        fence: u8,
        next: u8,
        found: u8,
    },
    /// Renewed; the checkpoint is not yet stored, or, after the last shard, the gate.
    Renewed {
        fence: u8,
        next: u8,
        found: u8,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    scanners: [At; SCANNERS],
    lease: Option<u8>,
    fence: u8,
    checkpoint: (u8, u8),
    /// What is in the last shard.
    things: u8,
    /// Decisions by leader: stored, and not carried out.
    waiting: [u8; LEADERS],
    /// The gate: by whom, and whether it is open.
    gate: Option<(u8, bool)>,
    /// What each leader has judged.
    judged: [Option<bool>; LEADERS],
    acts: u8,
    unjudged: bool,
    crashes: u8,
    grows: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Lead(usize),
    Step(usize),
    Crash(usize),
    LeaseEnds,
    Grow,
    Act(usize),
}

#[derive(Debug, Clone, Copy)]
struct Scans(Guards);

const JUDGED: &str = "nothing is carried out before its leader, or a later one, has judged the totals";
const CAPPED: &str = "no more is carried out than the limit allows";
const ENDED: &str = "a scan comes to its end";
const ACTED: &str = "something is carried out";

impl Scans {
    fn step(&self, state: &mut State, who: usize) {
        state.scanners[who] = match state.scanners[who] {
            At::Idle => At::Idle,
            At::Reads { fence, next, found } => {
                let here = if next + 1 == SHARDS { state.things } else { 0 };
                state.waiting[usize::from(fence) - 1] += here;
                At::Read { fence, next: next + 1, found: found + here }
            }
            // `renew`: the lease, then `lead` on the leader's document.
            At::Read { fence, .. } if self.0.lease && (state.lease != Some(who as u8) || state.fence != fence) => {
                At::Idle
            }
            At::Read { fence, next, found } => At::Renewed { fence, next, found },
            At::Renewed { fence, next, found } if next < SHARDS => {
                state.checkpoint = (next, found);
                At::Reads { fence, next, found }
            }
            At::Renewed { fence, found, .. } => {
                let open = found <= CAP;
                state.judged[usize::from(fence) - 1] = Some(open);
                if !self.0.gate || state.gate.is_none_or(|(by, _)| by < fence) {
                    state.gate = Some((fence, open));
                }
                if state.lease == Some(who as u8) && state.fence == fence {
                    state.lease = None;
                }
                At::Idle
            }
        };
    }

    fn may_act(&self, state: &State, leader: usize) -> bool {
        let Some((by, true)) = state.gate else { return false };
        let waits = self.0.waits && usize::from(by) < leader + 1;
        state.waiting[leader] > 0 && !waits && (!self.0.budget || state.acts < CAP)
    }
}

impl Model for Scans {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            scanners: [At::Idle; SCANNERS],
            lease: None,
            fence: 0,
            checkpoint: (0, 0),
            things: 1,
            waiting: [0; LEADERS],
            gate: None,
            judged: [None; LEADERS],
            acts: 0,
            unjudged: false,
            crashes: 1,
            grows: 1,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for who in 0..SCANNERS {
            if state.scanners[who] != At::Idle {
                actions.push(Action::Step(who));
                if state.crashes > 0 {
                    actions.push(Action::Crash(who));
                }
            } else if state.gate.is_none()
                && (state.lease.is_none() || !self.0.lease)
                && usize::from(state.fence) < LEADERS
            {
                actions.push(Action::Lead(who));
            }
        }
        if self.0.ends && state.lease.is_some() {
            actions.push(Action::LeaseEnds);
        }
        if state.grows > 0 {
            actions.push(Action::Grow);
        }
        actions.extend((0..LEADERS).filter(|leader| self.may_act(state, *leader)).map(Action::Act));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Lead(who) => {
                state.fence += 1;
                state.lease = Some(who as u8);
                let (next, found) = state.checkpoint;
                state.scanners[who] = At::Reads { fence: state.fence, next, found };
            }
            Action::Step(who) => self.step(&mut state, who),
            Action::Crash(who) => {
                state.crashes -= 1;
                state.scanners[who] = At::Idle;
            }
            Action::LeaseEnds => state.lease = None,
            Action::Grow => {
                state.grows -= 1;
                state.things += 1;
            }
            Action::Act(leader) => {
                state.waiting[leader] -= 1;
                state.acts += 1;
                let judged = state.judged[leader..].iter().rev().flatten().next();
                state.unjudged |= judged != Some(&true);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(JUDGED, |_, state: &State| !state.unjudged),
            Property::always(CAPPED, |_, state: &State| state.acts <= CAP),
            // Where nothing happens any more and somebody could still have led.
            Property::always(ENDED, |model: &Scans, state| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty() || state.gate.is_some() || usize::from(state.fence) == LEADERS
            }),
            Property::sometimes(ACTED, |_, state: &State| state.acts > 0),
        ]
    }
}

mod tests {
    use super::*;

    fn check(what: &str, guards: Guards) {
        let model = Scans(guards);
        let all = HasDiscoveries::AllOf([JUDGED, CAPPED, ENDED, ACTED].into());
        let checker = model.checker().finish_when(all).spawn_bfs().join();
        for name in [JUDGED, CAPPED, ENDED] {
            checker.assert_no_discovery(name);
        }
        checker.assert_any_discovery(ACTED);
        println!("{what}: {} states", checker.unique_state_count());
    }

    fn breaks(what: &str, guards: Guards, name: &'static str) {
        let checker = Scans(guards).checker().finish_when(HasDiscoveries::AllOf([name].into())).spawn_bfs().join();
        let steps = checker.assert_any_discovery(name).into_actions();
        println!("{what}: breaks {name:?} in {} steps: {steps:?}", steps.len());
    }

    #[test]
    fn every_promise_holds_whoever_is_paused() {
        check("scans", CODE);
    }

    #[test]
    fn each_guard_that_is_taken_away_breaks_a_promise() {
        breaks("a gate of an earlier leader", Guards { gate: false, ..CODE }, JUDGED);
        breaks("a decision before its leader's gate", Guards { waits: false, ..CODE }, JUDGED);
        breaks("acts that are not counted", Guards { budget: false, ..CODE }, CAPPED);
        breaks("a lease without an end", Guards { ends: false, ..CODE }, ENDED);
    }

    /// The lease saves work. Without it several lead at once, and no promise is broken; with it alone, one is.
    #[test]
    fn no_promise_rests_on_the_lease() {
        check("scans without a lease", Guards { lease: false, ..CODE });
        breaks("a lease without fencing", Guards { gate: false, waits: false, ..CODE }, JUDGED);
    }
}
