//! Who leads a scan, who reads its shards, and when its decisions may be carried out: leases, fencing numbers, progress, gate and budget.
//!
//! `trimtab/src/workers/scanner.rs` (`lead`, `read`, `begin`, `read_and_merge`, `end`), `trimtab/src/scans.rs` (`lead`, `begin`, `advance`,
//! `finish`, `reserve`), `scans/progress.rs` (`merge`), `executor.rs` (`handle`). A lease is a way to save work: its holder may be paused at
//! any point and go on when another has it. What a paused one does is harmless since a shard is added once, by compare-and-set, since a gate
//! carries the fencing number of who judged, and since the budget is counted by itself.

use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// Scanners.
const SCANNERS: usize = 2;
/// Shards; something more may turn up in the last one while it is scanned. In the others there is nothing: each is read in one step.
const SHARDS: usize = 2;
/// How often the target's lease may be taken, to lead or to end.
const FENCES: usize = 3;
/// What a scan may propose, and have carried out.
const CAP: u8 = 1;

/// What is done to be safe.
#[derive(Debug, Clone, Copy)]
struct Guards {
    /// One reads a shard, and one leads or ends, at a time, as far as leases go.
    lease: bool,
    /// A lease that is not renewed ends.
    ends: bool,
    /// A shard that is in is not added again.
    once: bool,
    /// What is added was read for the present leader.
    led: bool,
    /// A scan ends when all of its shards are in.
    all: bool,
    /// A gate is not replaced by that of an earlier leader.
    gate: bool,
    /// A decision waits for the gate of its leader, or of a later one.
    waits: bool,
    /// Acts are counted by compare-and-set.
    budget: bool,
}

const CODE: Guards =
    Guards { lease: true, ends: true, once: true, led: true, all: true, gate: true, waits: true, budget: true };

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    /// Has the target's lease, and has not said yet that it leads.
    Leads {
        fence: u8,
    },
    /// Has the shard's lease, and was told by that leader.
    Reads {
        fence: u8,
    },
    /// Has read it, emitted what it found, and not yet renewed its lease.
    Read {
        fence: u8,
        found: u8,
    },
    /// Has renewed it, and not yet added what it found.
    Renewed {
        fence: u8,
        found: u8,
    },
    /// Has the target's lease, and all shards are in.
    Ends {
        fence: u8,
    },
    /// Has judged them, and not yet stored the gate.
    Judged {
        fence: u8,
        open: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    scanners: [At; SCANNERS],
    lease: Option<usize>,
    fence: u8,
    /// Of the last shard.
    shard_lease: Option<usize>,
    /// The progress: by whom it is led, which shards are in, how often one was added, and what they came to.
    led: u8,
    done: [bool; SHARDS],
    added: u8,
    found: u8,
    /// What is in the last shard.
    things: u8,
    /// Decisions by leader: stored, and not carried out.
    waiting: [u8; FENCES],
    /// The gate: by whom, and whether it is open.
    gate: Option<(u8, bool)>,
    /// The gate of the last lease that stored one.
    last_gate: Option<(u8, bool)>,
    /// What each who ended it has judged.
    judged: [Option<bool>; FENCES],
    acts: u8,
    unjudged: bool,
    crashes: u8,
    grows: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Lead(usize),
    Take(usize, usize),
    End(usize),
    Judge(usize, bool),
    Step(usize),
    Crash(usize),
    LeaseEnds,
    ShardLeaseEnds,
    Grow,
    Act(usize),
}

#[derive(Debug, Clone, Copy)]
struct Scans(Guards);

const JUDGED: &str = "nothing is carried out before its leader, or a later one, has judged the totals, nor against what the last has said";
const WHOLE: &str = "a scan ends with each of its shards, each once";
const CAPPED: &str = "no more is carried out than the limit allows";
const ENDED: &str = "a scan comes to its end";
const ACTED: &str = "something is carried out";

impl Scans {
    fn step(&self, state: &mut State, who: usize) {
        state.scanners[who] = match state.scanners[who] {
            at @ (At::Idle | At::Ends { .. }) => at,
            At::Leads { fence } => {
                // `lead` on the leader's document, `begin` or `led` on the progress.
                state.led = state.led.max(fence);
                self.give_back(state, who);
                At::Idle
            }
            At::Reads { fence } => {
                // Read again and again, it finds the same: a decision that waits already is not stored once more.
                let waiting = &mut state.waiting[usize::from(fence) - 1];
                *waiting = state.things.max(*waiting);
                At::Read { fence, found: state.things }
            }
            At::Read { .. } if self.0.lease && state.shard_lease != Some(who) => At::Idle,
            At::Read { fence, found } => At::Renewed { fence, found },
            At::Renewed { fence, found } => {
                self.add(state, SHARDS - 1, fence, found);
                if state.shard_lease == Some(who) {
                    state.shard_lease = None;
                }
                At::Idle
            }
            At::Judged { fence, open } => {
                if state.last_gate.is_none_or(|(by, _)| by < fence) {
                    state.last_gate = Some((fence, open));
                }
                if !self.0.gate || state.gate.is_none_or(|(by, _)| by < fence) {
                    state.gate = Some((fence, open));
                }
                self.give_back(state, who);
                At::Idle
            }
        };
    }

    /// `merge`, by compare-and-set.
    fn add(&self, state: &mut State, shard: usize, fence: u8, found: u8) {
        let before = self.0.once && state.done[shard];
        if !before && (!self.0.led || state.led == fence) && state.gate.is_none() {
            state.done[shard] = true;
            state.added += 1;
            state.found += found;
        }
    }

    fn give_back(&self, state: &mut State, who: usize) {
        if state.lease == Some(who) {
            state.lease = None;
        }
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
            shard_lease: None,
            led: 0,
            done: [false; SHARDS],
            added: 0,
            found: 0,
            things: 1,
            waiting: [0; FENCES],
            gate: None,
            last_gate: None,
            judged: [None; FENCES],
            acts: 0,
            unjudged: false,
            crashes: 1,
            grows: 1,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let free = (state.lease.is_none() || !self.0.lease) && usize::from(state.fence) < FENCES;
        let all = state.done.iter().all(|done| *done);
        for who in 0..SCANNERS {
            match state.scanners[who] {
                At::Idle if state.gate.is_none() => {
                    // The request comes again, or another scan led in between and this one leads once more.
                    if free && !all {
                        actions.push(Action::Lead(who));
                    }
                    // The event of a shard, for the first time or once more.
                    let wanted = |shard: &usize| {
                        let free = state.shard_lease.is_none() || !self.0.lease || *shard + 1 < SHARDS;
                        state.led > 0 && (!self.0.once || !state.done[*shard]) && state.added < 4 && free
                    };
                    actions.extend((0..SHARDS).filter(wanted).map(|shard| Action::Take(who, shard)));
                    if free && state.led > 0 && (all || !self.0.all) {
                        actions.push(Action::End(who));
                    }
                }
                At::Idle => {}
                At::Ends { .. } => actions.extend([true, false].map(|open| Action::Judge(who, open))),
                _ => actions.push(Action::Step(who)),
            }
            if state.scanners[who] != At::Idle && state.crashes > 0 {
                actions.push(Action::Crash(who));
            }
        }
        if self.0.ends {
            if state.lease.is_some() {
                actions.push(Action::LeaseEnds);
            }
            if state.shard_lease.is_some() {
                actions.push(Action::ShardLeaseEnds);
            }
        }
        if state.grows > 0 {
            actions.push(Action::Grow);
        }
        actions.extend((0..FENCES).filter(|leader| self.may_act(state, *leader)).map(Action::Act));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Lead(who) | Action::End(who) => {
                state.fence += 1;
                state.lease = Some(who);
                let fence = state.fence;
                let leads = matches!(action, Action::Lead(_));
                state.scanners[who] = if leads { At::Leads { fence } } else { At::Ends { fence } };
            }
            Action::Take(_, shard) if shard + 1 < SHARDS => {
                let led = state.led;
                self.add(&mut state, shard, led, 0);
            }
            Action::Take(who, _) => {
                state.shard_lease = Some(who);
                state.scanners[who] = At::Reads { fence: state.led };
            }
            // Whoever ends a scan has limits and a clock of its own: it may find a reason to stop it where another finds none.
            Action::Judge(who, open) => {
                let At::Ends { fence } = state.scanners[who] else { return None };
                let open = open && state.found <= CAP;
                state.judged[usize::from(fence) - 1] = Some(open);
                state.scanners[who] = At::Judged { fence, open };
            }
            Action::Step(who) => self.step(&mut state, who),
            Action::Crash(who) => {
                state.crashes -= 1;
                state.scanners[who] = At::Idle;
            }
            Action::LeaseEnds => state.lease = None,
            Action::ShardLeaseEnds => state.shard_lease = None,
            Action::Grow => {
                state.grows -= 1;
                state.things += 1;
            }
            Action::Act(leader) => {
                state.waiting[leader] -= 1;
                state.acts += 1;
                let judged = state.judged[leader..].iter().any(Option::is_some);
                state.unjudged |= !judged || state.last_gate.is_none_or(|(_, open)| !open);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(JUDGED, |_, state: &State| !state.unjudged),
            Property::always(WHOLE, |_, state: &State| {
                state.gate.is_none() || (usize::from(state.added) == SHARDS && state.done == [true; SHARDS])
            }),
            Property::always(CAPPED, |_, state: &State| state.acts <= CAP),
            // Where nothing happens any more and somebody could still have led.
            Property::always(ENDED, |model: &Scans, state| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                !actions.is_empty() || state.gate.is_some() || usize::from(state.fence) == FENCES
            }),
            Property::sometimes(ACTED, |_, state: &State| state.acts > 0),
        ]
    }
}

mod tests {
    use super::*;

    fn check(what: &str, guards: Guards) {
        let model = Scans(guards);
        let all = HasDiscoveries::AllOf([JUDGED, WHOLE, CAPPED, ENDED, ACTED].into());
        let checker = model.checker().finish_when(all).spawn_bfs().join();
        for name in [JUDGED, WHOLE, CAPPED, ENDED] {
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
        breaks("a shard that is added twice", Guards { once: false, ..CODE }, WHOLE);
        breaks("an end before all shards are in", Guards { all: false, ..CODE }, WHOLE);
        breaks("a gate of an earlier leader", Guards { gate: false, ..CODE }, JUDGED);
        breaks("acts that are not counted", Guards { budget: false, ..CODE }, CAPPED);
        breaks("leases without an end", Guards { ends: false, ..CODE }, ENDED);
    }

    /// Leases save work. Without them several lead, end, and read a shard at once, and no promise is broken. Nor does one rest on what a shard
    /// was read for, or on a decision's waiting for its own leader's gate: there is a gate only when all shards are in.
    #[test]
    fn no_promise_rests_on_a_lease() {
        check("scans without leases", Guards { lease: false, ..CODE });
        check("scans of what was read for earlier leaders", Guards { led: false, waits: false, ..CODE });
        breaks("leases alone", Guards { once: false, led: false, gate: false, waits: false, ..CODE }, WHOLE);
    }
}
