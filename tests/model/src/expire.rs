//! Expire: the broker moves a subscription over messages that are older than a number of seconds, as they are at the moment of the call.
//!
//! `targets/src/pulsar/act.rs` (`PulsarAct::expire`), `pulsar/admin.rs` (`POST …/expireMessages/{seconds}`). The owner checks the age of
//! each message. It does not check the number: that is the time to live that was read a moment ago.

use crate::protocol::{Effect, Kind, Next};

/// Messages that were there from the beginning; one more may come.
const MESSAGES: u8 = 2;

/// What the call says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum By {
    /// Expire what is older than this: Pulsar.
    Age,
    /// Skip everything, whatever that is by then.
    All,
}

/// A topic with a time to live, and a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Expire {
    /// What the call says.
    pub(crate) by: By,
    /// Whether somebody may raise the time to live meanwhile.
    pub(crate) raised: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Topic {
    /// Messages older than the short and the long time to live, and messages in all.
    older: [u8; 2],
    end: u8,
    cursor: u8,
    stored: u8,
    /// Which of the two holds.
    ttl: u8,
    raises: u8,
    takes: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    stored: u8,
    older: u8,
    ttl: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Decided {
    from: u8,
    to: u8,
    ttl: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    Time,
    Publish,
    Consume,
    Store,
    Raise,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    #[default]
    Call,
    Called,
}

impl Kind for Expire {
    type World = Topic;
    type Look = Look;
    type Act = Decided;
    type Step = Step;
    /// The time to live.
    type Call = u8;
    type Change = Change;

    const ONE_EFFECT: bool = false;

    fn world(&self) -> Topic {
        Topic { older: [1, 0], end: MESSAGES, cursor: 0, stored: 0, ttl: 0, raises: u8::from(self.raised), takes: 1 }
    }

    fn read(&self, topic: &Topic, _part: u8, look: &mut Look) {
        *look = Look { stored: topic.stored, older: topic.older[usize::from(topic.ttl)], ttl: topic.ttl };
    }

    fn decide(&self, look: &Look) -> Option<Decided> {
        let Look { stored, older, ttl } = *look;
        (older > stored).then_some(Decided { from: stored, to: older, ttl })
    }

    fn changes(&self, topic: &Topic, changes: &mut Vec<Change>) {
        if topic.older[1] < MESSAGES {
            changes.push(Change::Time);
        }
        if topic.end == MESSAGES {
            changes.push(Change::Publish);
        }
        if topic.takes > 0 && topic.cursor < topic.end {
            changes.push(Change::Consume);
        }
        if topic.stored != topic.cursor {
            changes.push(Change::Store);
        }
        if topic.raises > 0 {
            changes.push(Change::Raise);
        }
    }

    fn change(&self, topic: &mut Topic, change: Change) {
        match change {
            // What is older than the short one now is older than the long one then.
            Change::Time => topic.older = [(topic.older[0] + 1).min(MESSAGES), topic.older[0]],
            Change::Publish => topic.end += 1,
            Change::Consume => (topic.cursor, topic.takes) = (topic.cursor + 1, 0),
            Change::Store => topic.stored = topic.cursor,
            Change::Raise => (topic.ttl, topic.raises) = (1, 0),
        }
    }

    fn step(&self, _topic: &mut Topic, _who: u8, act: &Decided, step: Step) -> Next<Self> {
        match step {
            Step::Call => Next::Send(act.ttl, Step::Called),
            Step::Called => Next::End,
        }
    }

    fn arrive(&self, topic: &mut Topic, ttl: u8) -> Effect {
        let to = match self.by {
            By::Age => topic.older[usize::from(ttl)],
            By::All => topic.end,
        };
        let changed = to > topic.cursor;
        topic.cursor = topic.cursor.max(to);
        Effect { changed, wrong: changed && to > topic.older[usize::from(topic.ttl)], harm: false }
    }

    fn calm(&self, topic: &mut Topic) {
        topic.stored = topic.cursor;
    }
}

mod tests {
    use super::*;
    use crate::protocol::{Action, DUE, Guards, Protocol, RECORDED, SAFE, breaks, holds};

    fn model(by: By, raised: bool) -> Protocol<Expire> {
        Protocol::new(Expire { by, raised })
    }

    #[test]
    fn every_promise_holds_while_the_time_to_live_stays() {
        holds("expire", model(By::Age, false), &[]);
    }

    #[test]
    #[cfg(feature = "long")]
    fn every_promise_holds_with_two_decisions() {
        holds("expire, two decisions", model(By::Age, false).twice(), &[]);
    }

    #[test]
    fn each_guard_that_is_taken_away_breaks_a_promise() {
        breaks("expire without the owner's check of ages", model(By::All, false), SAFE);
        let guarded = |guards| model(By::Age, false).guarded(guards);
        breaks("expire without a second look", guarded(Guards { look_again: false, ..Guards::CODE }), DUE);
        breaks("expire recorded afterwards", guarded(Guards { record: false, ..Guards::CODE }), RECORDED);
    }

    /// The window that is left: a time to live that is raised between the last look and the call is not seen.
    #[test]
    fn a_time_to_live_that_is_raised_in_between_is_not_seen() {
        let steps = breaks("expire, time to live raised", model(By::Age, true), SAFE);
        let raised = steps.iter().position(|step| *step == Action::Change(Change::Raise));
        assert!(raised.is_some_and(|at| at + 1 < steps.len()), "{steps:?}");
    }
}
