//! Closing a topic again that a visit has loaded: asked who is connected, then unloaded if nobody is.
//!
//! `targets/src/pulsar/admin.rs` (`close`, `connected`, `unload`), `pulsar/act.rs` (`act`, `tidy`). The broker unloads whoever is there.
//! No data goes: a client that connects in between is thrown off once, and connects again. What must not be is a topic that stays loaded
//! for nobody: after a minute its broker may take it for inactive, and delete it where it has neither subscriptions nor retention.

use crate::protocol::{Effect, Kind, Next};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Close {
    /// Who is connected is asked first.
    pub(crate) asks: bool,
    /// What a crash left open is closed when its intent is judged.
    pub(crate) tidies: bool,
    /// The minute may pass while nobody of us is at work.
    pub(crate) minute: bool,
}

impl Close {
    /// As in the code.
    pub(crate) const CODE: Close = Close { asks: true, tidies: true, minute: false };
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Topic {
    /// What a trim would free.
    due: bool,
    loaded: bool,
    deleted: bool,
    /// Tasks that are visiting it.
    visiting: [bool; 2],
    connected: bool,
    comes: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    due: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Trim,
    /// How many might yet come when it was asked who is there.
    Unload {
        comes: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    Come,
    Leave,
    /// The broker takes it for inactive.
    Inactive,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    #[default]
    Trim,
    Ask,
    Unload {
        comes: u8,
    },
    Closed,
}

impl Kind for Close {
    type World = Topic;
    type Look = Look;
    type Act = ();
    type Step = Step;
    type Call = Call;
    type Change = Change;

    const ONE_EFFECT: bool = false;

    fn world(&self) -> Topic {
        Topic { due: true, loaded: false, deleted: false, visiting: [false; 2], connected: false, comes: 1 }
    }

    fn read(&self, topic: &Topic, _part: u8, look: &mut Look) {
        look.due = topic.due && !topic.deleted;
    }

    fn decide(&self, look: &Look) -> Option<()> {
        look.due.then_some(())
    }

    fn changes(&self, topic: &Topic, changes: &mut Vec<Change>) {
        if topic.comes > 0 && !topic.connected {
            changes.push(Change::Come);
        }
        if topic.connected {
            changes.push(Change::Leave);
        }
        if self.minute && topic.loaded && !topic.connected && topic.visiting == [false; 2] {
            changes.push(Change::Inactive);
        }
    }

    fn change(&self, topic: &mut Topic, change: Change) {
        match change {
            Change::Come => {
                topic.comes -= 1;
                (topic.connected, topic.loaded, topic.deleted) = (true, true, false);
            }
            // Whoever loaded it by using it has used it; what its broker does with it is its own affair.
            Change::Leave => (topic.connected, topic.loaded) = (false, false),
            Change::Inactive => topic.deleted = true,
        }
    }

    fn step(&self, topic: &mut Topic, who: u8, _act: &(), step: Step) -> Next<Self> {
        match step {
            Step::Trim => {
                topic.visiting[usize::from(who)] = true;
                Next::Send(Call::Trim, Step::Ask)
            }
            Step::Ask if self.asks && topic.connected => Next::Go(Step::Closed),
            Step::Ask => Next::Go(Step::Unload { comes: topic.comes }),
            Step::Unload { comes } => Next::Send(Call::Unload { comes }, Step::Closed),
            Step::Closed => {
                topic.visiting[usize::from(who)] = false;
                Next::End
            }
        }
    }

    fn arrive(&self, topic: &mut Topic, call: Call) -> Effect {
        match call {
            Call::Trim => {
                let changed = topic.due && !topic.deleted;
                (topic.due, topic.loaded) = (false, topic.loaded || !topic.deleted);
                Effect { changed, ..Effect::default() }
            }
            Call::Unload { comes } => {
                // Who is thrown off connects again. Who had been there all along should not have been.
                let harm = topic.connected;
                topic.loaded = topic.connected;
                Effect { harm, wrong: harm && topic.comes == comes, ..Effect::default() }
            }
        }
    }

    /// Also after a call that failed: it may have loaded the topic.
    fn unanswered(&self, step: Step) -> Next<Self> {
        Next::Go(step)
    }

    fn gone(&self, topic: &mut Topic, who: u8) {
        topic.visiting[usize::from(who)] = false;
    }

    fn tidy(&self, topic: &mut Topic) {
        if self.tidies && !topic.connected {
            topic.loaded = false;
        }
    }

    fn calm(&self, topic: &mut Topic) {
        if topic.connected {
            self.change(topic, Change::Leave);
        }
    }

    fn left(&self, topic: &Topic) -> bool {
        topic.deleted || topic.loaded || topic.due
    }
}

mod tests {
    use super::*;
    use crate::protocol::{Action, DONE, Faults, Protocol, SAFE, UNHARMED, breaks, holds};

    fn model(kind: Close) -> Protocol<Close> {
        let model = Protocol::new(kind);
        Protocol { faults: Faults { silent: 0, ..model.faults }, late: false, ..model }
    }

    /// `nothing is gone that somebody needs` says here: nobody is thrown off who was there when it was asked. And what is done in the end
    /// is that the topic is closed again.
    #[test]
    fn what_was_opened_is_closed_and_who_was_there_stays() {
        holds("close", model(Close::CODE), &[UNHARMED]);
    }

    /// The window that is left, without loss: who connects between the question and the call connects once more.
    #[test]
    fn who_connects_in_between_is_thrown_off_once() {
        let steps = breaks("close, window", model(Close::CODE), UNHARMED);
        assert!(steps.contains(&Action::Change(Change::Come)), "{steps:?}");
    }

    #[test]
    fn each_guard_that_is_taken_away_breaks_a_promise() {
        breaks("close without asking", model(Close { asks: false, ..Close::CODE }), SAFE);
        breaks("close without tidying", model(Close { tidies: false, ..Close::CODE }), DONE);
    }

    /// The windows that are left for a topic that has neither subscriptions nor retention: an executor that is killed in the middle of a
    /// visit and stays away for longer than its broker waits, and a call that loads the topic after it was closed.
    #[test]
    fn a_topic_stays_open_if_its_visitor_dies_for_long_or_a_call_comes_late() {
        breaks("close, dead for a minute", model(Close { minute: true, ..Close::CODE }), DONE);
        breaks("close, a late call", Protocol { late: true, ..model(Close::CODE) }, DONE);
    }
}
