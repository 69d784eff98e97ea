//! Moving a consumer of JetStream. Its servers carry out RESET whether somebody is there or not, so nothing guards the call; a rule has to
//! allow it in so many words.
//!
//! `targets/src/jetstream/act.rs`: look, pause, watch for some seconds, look, call, let go. While it is paused nothing is handed out, and
//! whoever asks waits, and can be seen to. What remains is who comes between the last look and the call.

use crate::protocol::{Effect, Kind, Next};

/// Where an abandoned consumer is to be moved to.
const END: u8 = 3;

/// What is done to be careful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Reset {
    /// It is paused meanwhile.
    pub(crate) hold: bool,
    /// It is looked at again while it is paused.
    pub(crate) watch: bool,
    /// The call is made well before the pause ends, or not at all, and the pause is not ended while the call may still come.
    pub(crate) outlasts: bool,
}

impl Reset {
    /// As in the code.
    pub(crate) const CODE: Reset = Reset { hold: true, watch: true, outlasts: true };
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Consumer {
    floor: u8,
    /// Somebody waits for messages.
    asked: bool,
    /// The task by which it is paused.
    paused: Option<u8>,
    /// Calls that are about to be made, or on their way.
    about: [bool; 2],
    under_way: u8,
    comes: u8,
    takes: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    floor: u8,
    used: bool,
    paused: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Decided {
    from: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    Come,
    Take,
    Leave,
    /// A pause is over, by the servers' clock.
    PauseEnds,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    #[default]
    Check,
    Hold,
    Watch,
    Call,
    LetGo,
}

impl Kind for Reset {
    type World = Consumer;
    type Look = Look;
    type Act = Decided;
    type Step = Step;
    type Call = Decided;
    type Change = Change;

    fn world(&self) -> Consumer {
        Consumer { floor: 0, asked: false, paused: None, about: [false; 2], under_way: 0, comes: 2, takes: 2 }
    }

    fn read(&self, consumer: &Consumer, _part: u8, look: &mut Look) {
        *look = Look { floor: consumer.floor, used: consumer.asked, paused: consumer.paused.is_some() };
    }

    fn decide(&self, look: &Look) -> Option<Decided> {
        // One that has moved has no history.
        (look.floor == 0 && !look.used && !look.paused).then_some(Decided { from: 0 })
    }

    fn changes(&self, now: &Consumer, changes: &mut Vec<Change>) {
        if now.comes > 0 && !now.asked {
            changes.push(Change::Come);
        }
        if now.asked {
            changes.push(Change::Leave);
            if now.paused.is_none() && now.takes > 0 && now.floor < END {
                changes.push(Change::Take);
            }
        }
        let waits = self.outlasts && (now.under_way > 0 || now.about != [false; 2]);
        if now.paused.is_some() && !waits {
            changes.push(Change::PauseEnds);
        }
    }

    fn change(&self, now: &mut Consumer, change: Change) {
        match change {
            Change::Come => {
                now.comes -= 1;
                now.asked = true;
            }
            Change::Take => {
                now.takes -= 1;
                now.floor += 1;
            }
            Change::Leave => now.asked = false,
            Change::PauseEnds => now.paused = None,
        }
    }

    fn step(&self, now: &mut Consumer, who: u8, act: &Decided, step: Step) -> Next<Self> {
        let still = now.floor == act.from && !now.asked;
        match step {
            Step::Check if !still || now.paused.is_some() => Next::End,
            Step::Check if !self.hold => Next::Go(Step::Watch),
            Step::Check => Next::Go(Step::Hold),
            Step::Hold => {
                now.paused = Some(who);
                Next::Go(Step::Watch)
            }
            Step::Watch => {
                let held = !self.hold || now.paused == Some(who);
                if self.watch && !(still && held) {
                    return Next::Go(Step::LetGo);
                }
                now.about[usize::from(who)] = true;
                Next::Go(Step::Call)
            }
            Step::Call => {
                now.about[usize::from(who)] = false;
                now.under_way += 1;
                Next::Send(*act, Step::LetGo)
            }
            Step::LetGo => {
                if now.paused == Some(who) {
                    now.paused = None;
                }
                Next::End
            }
        }
    }

    fn arrive(&self, now: &mut Consumer, act: Decided) -> Effect {
        now.under_way -= 1;
        let changed = now.floor < END;
        let taken = now.floor != act.from;
        now.floor = END;
        // Who waits goes on behind what was given up: lost to it, though nobody had handed it out.
        Effect { changed, wrong: changed && taken, harm: changed && now.asked }
    }

    /// The hold is not ended, for it may come yet.
    fn unanswered(&self, _step: Step) -> Next<Self> {
        Next::End
    }

    fn vanish(&self, now: &mut Consumer, _call: Decided) {
        now.under_way -= 1;
    }

    fn gone(&self, now: &mut Consumer, who: u8) {
        now.about[usize::from(who)] = false;
    }

    fn calm(&self, now: &mut Consumer) {
        now.asked = false;
        if now.under_way == 0 && now.about == [false; 2] {
            now.paused = None;
        }
    }
}

mod tests {
    use super::*;
    use crate::protocol::{Action, Faults, Guards, Protocol, RECORDED, SAFE, UNHARMED, breaks, holds};

    /// The bus delivers a decision to one executor at a time.
    fn model(kind: Reset) -> Protocol<Reset> {
        let model = Protocol::new(kind);
        Protocol { faults: Faults { again: 0, ..model.faults }, ..model }
    }

    /// Here `nothing is gone that somebody needs` says: nobody who has taken something since is moved.
    #[test]
    fn nobody_is_moved_who_has_taken_something() {
        holds("reset (JetStream)", model(Reset::CODE), &[UNHARMED]);
    }

    /// The other window: two executors with the same decision, since the bus delivered it again while the first one was at it. One ends
    /// the pause while the call of the other is on its way.
    #[test]
    fn two_at_once_can_end_each_others_pause() {
        breaks("reset (JetStream), two at once", Protocol::new(Reset::CODE), SAFE);
    }

    /// The window that is left, in as few steps as it takes: the last look, somebody asks, the call.
    #[test]
    fn who_comes_between_the_last_look_and_the_call_is_moved() {
        let steps = breaks("reset (JetStream), window", model(Reset::CODE), UNHARMED);
        assert!(steps.contains(&Action::Change(Change::Come)), "{steps:?}");
        let guards = Guards { lease: true, ..Guards::CODE };
        breaks("reset (JetStream) with a lease and a fence", model(Reset::CODE).guarded(guards), UNHARMED);
    }

    #[test]
    fn each_guard_that_is_taken_away_breaks_a_promise() {
        let code = Reset::CODE;
        breaks("reset without a pause", model(Reset { hold: false, ..code }), SAFE);
        breaks("reset without watching", model(Reset { watch: false, ..code }), SAFE);
        breaks("reset that comes after the pause", model(Reset { outlasts: false, ..code }), SAFE);
        let guarded = |guards| model(code).guarded(guards);
        breaks("reset recorded afterwards", guarded(Guards { record: false, ..Guards::CODE }), RECORDED);
    }
}
