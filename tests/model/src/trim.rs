//! Trim: the broker's own. It looks at its cursors and its policies at the moment of the call, and frees what they allow.
//!
//! `targets/src/pulsar/act.rs` (`PulsarAct::trim`), `pulsar/visit.rs`, `pulsar/admin.rs` (`POST …/trim`). The call names a topic and no
//! ledgers: what was decided on bounds nothing, the owner's rules do.

use crate::protocol::{Effect, Kind, Next};

/// Ledgers of the topic; the last one is open.
const LEDGERS: u8 = 3;

/// What guards the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum By {
    /// The owner's rules, at that moment: Pulsar.
    Owner,
    /// The version of the metadata that was looked at, where the metadata is all there is.
    Version,
    /// Nobody: what was decided on is deleted.
    Nobody,
}

/// A topic of [`LEDGERS`] ledgers with one cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Trim(pub(crate) By);

/// The topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Topic {
    /// Ledgers that are gone.
    first: u8,
    /// Ledgers that the subscriber has gone through, as the broker has it and as it is stored.
    cursor: u8,
    stored: u8,
    /// Ledgers that retention keeps behind the cursor.
    keep: u8,
    /// Grows with what is stored, and when the policy changes; where that guards the call.
    version: u8,
    resets: u8,
    stricter: u8,
}

impl Topic {
    /// How many may go, by the policy and this position.
    fn allowed(&self, cursor: u8) -> u8 {
        cursor.min(LEDGERS - 1).saturating_sub(self.keep)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    first: u8,
    allowed: u8,
    version: u8,
}

/// Ledgers below `to` are to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Decided {
    from: u8,
    to: u8,
    version: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    Consume,
    Store,
    Reset,
    Stricter,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    #[default]
    Call,
    Called,
}

impl Kind for Trim {
    type World = Topic;
    type Look = Look;
    type Act = Decided;
    type Step = Step;
    type Call = Decided;
    type Change = Change;

    const ONE_EFFECT: bool = false;

    fn world(&self) -> Topic {
        Topic { first: 0, cursor: 1, stored: 1, keep: 0, version: 0, resets: 1, stricter: 1 }
    }

    fn read(&self, topic: &Topic, _part: u8, look: &mut Look) {
        *look = Look { first: topic.first, allowed: topic.allowed(topic.stored), version: topic.version };
    }

    fn decide(&self, look: &Look) -> Option<Decided> {
        let Look { first, allowed, version } = *look;
        (allowed > first).then_some(Decided { from: first, to: allowed, version })
    }

    fn same(&self, was: &Decided, is: &Decided) -> bool {
        (was.from, was.to) == (is.from, is.to)
    }

    fn changes(&self, topic: &Topic, changes: &mut Vec<Change>) {
        if topic.cursor < LEDGERS {
            changes.push(Change::Consume);
        }
        if topic.stored != topic.cursor {
            changes.push(Change::Store);
        }
        if topic.resets > 0 && topic.cursor > topic.first {
            changes.push(Change::Reset);
        }
        if topic.stricter > 0 {
            changes.push(Change::Stricter);
        }
    }

    fn change(&self, topic: &mut Topic, change: Change) {
        match change {
            Change::Consume => topic.cursor += 1,
            Change::Store => {
                topic.stored = topic.cursor;
                topic.version += u8::from(self.0 == By::Version);
            }
            Change::Reset => {
                topic.resets -= 1;
                topic.cursor = topic.first;
                // A version guards what is stored, so what is stored must be all there is.
                if self.0 == By::Version {
                    topic.stored = topic.cursor;
                }
                topic.version += u8::from(self.0 == By::Version);
            }
            Change::Stricter => {
                topic.stricter -= 1;
                topic.keep += 1;
                topic.version += u8::from(self.0 == By::Version);
            }
        }
    }

    fn step(&self, _topic: &mut Topic, _who: u8, act: &Decided, step: Step) -> Next<Self> {
        match step {
            Step::Call => Next::Send(*act, Step::Called),
            Step::Called => Next::End,
        }
    }

    fn arrive(&self, topic: &mut Topic, call: Decided) -> Effect {
        let allowed = topic.allowed(topic.cursor);
        let to = match self.0 {
            By::Owner => allowed,
            By::Version if topic.version != call.version => 0,
            By::Version | By::Nobody => call.to,
        };
        let changed = to > topic.first;
        if changed {
            topic.first = to;
            topic.version += u8::from(self.0 == By::Version);
            // Whoever stood before it stands at the first that is left.
            topic.cursor = topic.cursor.max(to);
        }
        Effect { changed, wrong: changed && to > allowed, harm: false }
    }

    fn calm(&self, topic: &mut Topic) {
        topic.stored = topic.cursor;
    }
}

mod tests {
    use super::*;
    use crate::protocol::{Action, DONE, DUE, Faults, Guards, ONE_RECORD, Protocol, RECORDED, SAFE, breaks, holds};

    fn model(by: By, guards: Guards) -> Protocol<Trim> {
        Protocol::new(Trim(by)).guarded(guards)
    }

    /// Two decisions; a crash and a delivery more than there should be.
    fn two(by: By, guards: Guards) -> Protocol<Trim> {
        let faults = Faults { crashes: 1, again: 1, lost: 0, silent: 0 };
        Protocol { faults, ..model(by, guards).twice() }
    }

    #[test]
    fn every_promise_holds() {
        holds("trim", model(By::Owner, Guards::CODE), &[]);
        holds("trim, two decisions", two(By::Owner, Guards::CODE), &[]);
    }

    #[test]
    #[cfg(feature = "long")]
    fn every_promise_holds_with_two_decisions_and_every_fault() {
        holds("trim, two decisions, every fault", model(By::Owner, Guards::CODE).twice(), &[]);
    }

    #[test]
    fn every_promise_holds_with_both_tasks_in_one_process() {
        holds("trim, one process", Protocol { together: true, ..model(By::Owner, Guards::CODE) }, &[]);
    }

    /// Every guard of the workers, and the owner's.
    #[test]
    fn each_guard_that_is_taken_away_breaks_a_promise() {
        let code = Guards::CODE;
        breaks("trim without the owner's check", model(By::Nobody, code), SAFE);
        breaks("trim without a second look", model(By::Owner, Guards { look_again: false, ..code }), DUE);
        breaks("trim recorded afterwards", model(By::Owner, Guards { record: false, ..code }), RECORDED);
        breaks("trim of what has an outcome", model(By::Owner, Guards { remember: false, ..code }), ONE_RECORD);
        let together = |guards| Protocol { together: true, ..model(By::Owner, guards) };
        breaks("trim by two tasks at once", together(Guards { claim: false, ..code }), ONE_RECORD);
        breaks("trim with open intents left open", model(By::Owner, Guards { close: false, ..code }), DONE);
    }

    /// What is no guard: the call says by itself what is deleted, and one of these is all there is.
    #[test]
    fn a_lease_a_fence_and_a_second_look_do_not_make_a_call_safe() {
        let obeys = Guards { look_again: false, ..Guards::CODE };
        let leased = Guards { lease: true, ..obeys };
        let looks = Guards::CODE;
        let both = Guards { lease: true, ..looks };
        for (what, guards) in [("obeys", obeys), ("lease and fence", leased), ("looks again", looks), ("both", both)] {
            let steps = breaks(what, model(By::Nobody, guards), SAFE);
            // What happens in between is somebody else's right: no order of our own steps rules it out.
            let theirs = |step: &Action<Change>| matches!(step, Action::Change(Change::Reset | Change::Stricter));
            assert!(steps.iter().any(theirs), "{steps:?}");
        }
    }

    /// And what is: either of the two, with none of the former.
    #[test]
    fn the_owners_check_or_a_conditional_call_alone_makes_it_safe() {
        let none = Guards { look_again: false, key: false, ..Guards::CODE };
        let faults = Faults { crashes: 0, again: 1, lost: 0, silent: 0 };
        let again = |by| Protocol { faults, ..model(by, none) };
        holds("trim, owner's check alone", again(By::Owner), &[DUE]);
        holds("trim, conditional call alone", again(By::Version), &[DUE]);
    }

    /// One decision at a time for a resource saves work and nothing else.
    #[test]
    fn no_promise_needs_the_bus_to_hold_decisions_back() {
        let faults = Faults { crashes: 0, again: 1, lost: 0, silent: 0 };
        let model = two(By::Owner, Guards { key: false, ..Guards::CODE });
        holds("trim without keys, two decisions", Protocol { faults, ..model }, &[]);
    }
}
