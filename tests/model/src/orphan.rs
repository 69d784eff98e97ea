//! Deleting a ledger that nothing names: one transaction, conditional on the ledger's node and on every node that might name it.
//!
//! `targets/src/bookkeeper/look.rs` (`observe`, read by read), `bookkeeper/act.rs` (`LedgerAct::delete`, `guarded`). A node that is there
//! is checked by its version; one that is not is made and deleted in the same transaction, which fails where it is there. How old a
//! ledger must be (`policy/src/orphan.rs`) is what keeps one that its maker has not listed yet.

use crate::protocol::{Effect, Kind, Next};

/// What the transaction is conditional on, and how old a ledger must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Orphan {
    /// The ledger's own version.
    pub(crate) itself: bool,
    /// The version of the node that might name it.
    pub(crate) named: bool,
    /// That another one is not there.
    pub(crate) absent: bool,
    /// Only what is older than its maker may take to list it.
    pub(crate) grace: bool,
    /// Version that the ledger's node begins with: 0 is one that nobody closed.
    pub(crate) version: u8,
    /// Whether a person may bring it back.
    pub(crate) undo: bool,
}

impl Orphan {
    /// As in the code.
    pub(crate) const CODE: Orphan =
        Orphan { itself: true, named: true, absent: true, grace: true, version: 1, undo: false };
}

/// Who made the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Maker {
    /// Has made it and will list it.
    Busy,
    /// Has listed it, or is dead.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    /// How often it was made, and its version.
    ledger: Option<(u8, u8)>,
    maker: Maker,
    old: bool,
    /// A topic's list: its version, and whether it names the ledger.
    list: u8,
    named: bool,
    /// A cursor's node that might be made, naming it.
    cursor: bool,
    /// How often somebody may yet write the ledger, or the list without naming it; name it; bring it back.
    writes: u8,
    names: u8,
    undos: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    ledger: Option<(u8, u8)>,
    old: bool,
    list: u8,
    named: bool,
    cursor: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Decided {
    ledger: (u8, u8),
    list: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// The maker lists it.
    List,
    /// The maker dies.
    Die,
    /// Time passes: more than a maker takes.
    Age,
    /// Somebody names it in the list.
    Name,
    /// Somebody makes the node, naming it.
    Make,
    /// Somebody writes the list, naming nothing.
    Write,
    /// Somebody writes the ledger's node: it is used.
    Use,
    /// A person brings it back.
    Undo,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The ledger's node once more, then the evidence into the record.
    #[default]
    Again,
    Commit,
    Committed,
}

impl Kind for Orphan {
    type World = Store;
    type Look = Look;
    type Act = Decided;
    type Step = Step;
    type Call = Decided;
    type Change = Change;

    const READS: u8 = 3;

    fn world(&self) -> Store {
        Store {
            ledger: Some((0, self.version)),
            maker: Maker::Busy,
            old: false,
            list: 0,
            named: false,
            cursor: false,
            writes: u8::from(!self.undo),
            names: 1,
            undos: u8::from(self.undo),
        }
    }

    fn read(&self, store: &Store, part: u8, look: &mut Look) {
        match part {
            0 => (look.ledger, look.old) = (store.ledger, store.old),
            1 => (look.list, look.named) = (store.list, store.named),
            _ => look.cursor = store.cursor,
        }
    }

    fn decide(&self, look: &Look) -> Option<Decided> {
        let ledger = look.ledger?;
        let orphan = !look.named && !look.cursor && (look.old || !self.grace);
        orphan.then_some(Decided { ledger, list: look.list })
    }

    fn same(&self, was: &Decided, is: &Decided) -> bool {
        was.ledger == is.ledger
    }

    fn changes(&self, store: &Store, changes: &mut Vec<Change>) {
        if store.maker == Maker::Busy {
            changes.extend([Change::List, Change::Die]);
        } else if !store.old {
            changes.push(Change::Age);
        }
        // Nobody names a ledger that is not there.
        if store.ledger.is_some() && store.names > 0 {
            changes.extend([Change::Name, Change::Make]);
        }
        if store.writes > 0 {
            changes.push(Change::Write);
            if store.ledger.is_some() {
                changes.push(Change::Use);
            }
        }
        if store.ledger.is_none() && store.undos > 0 {
            changes.push(Change::Undo);
        }
    }

    fn change(&self, store: &mut Store, change: Change) {
        match change {
            Change::List => {
                store.maker = Maker::Gone;
                (store.named, store.list) = (true, store.list + 1);
            }
            Change::Die => store.maker = Maker::Gone,
            Change::Age => store.old = true,
            Change::Name => {
                store.names -= 1;
                (store.named, store.list) = (true, store.list + 1);
            }
            Change::Make => {
                store.names -= 1;
                store.cursor = true;
            }
            Change::Write => {
                store.writes -= 1;
                store.list += 1;
            }
            Change::Use => {
                store.writes -= 1;
                store.ledger = store.ledger.map(|(made, version)| (made, version + 1));
            }
            // Made anew, so from version 0.
            Change::Undo => {
                store.undos -= 1;
                store.ledger = Some((1, 0));
            }
        }
    }

    fn step(&self, store: &mut Store, _who: u8, act: &Decided, step: Step) -> Next<Self> {
        match step {
            Step::Again if self.itself && store.ledger != Some(act.ledger) => Next::End,
            Step::Again => Next::Go(Step::Commit),
            Step::Commit => Next::Send(*act, Step::Committed),
            Step::Committed => Next::End,
        }
    }

    fn arrive(&self, store: &mut Store, call: Decided) -> Effect {
        // Of itself only the version is a condition that ZooKeeper knows, not when it was made.
        let same = store.ledger.is_some_and(|(_, version)| version == call.ledger.1);
        let refused =
            (self.itself && !same) || (self.named && store.list != call.list) || (self.absent && store.cursor);
        let Some(ledger) = store.ledger.filter(|_| !refused) else { return Effect::default() };
        store.ledger = None;
        let needed = store.named || store.cursor || store.maker == Maker::Busy || ledger != call.ledger;
        Effect { changed: true, wrong: needed, harm: false }
    }
}

mod tests {
    use super::*;
    use crate::protocol::{Action, Faults, Guards, Protocol, RECORDED, SAFE, breaks, holds};

    #[test]
    fn every_promise_holds() {
        holds("orphan", Protocol::new(Orphan::CODE), &[]);
        let faults = Faults { crashes: 1, again: 1, lost: 0, silent: 0 };
        holds("orphan, two decisions", Protocol { faults, ..Protocol::new(Orphan::CODE).twice() }, &[]);
    }

    #[test]
    #[cfg(feature = "long")]
    fn every_promise_holds_with_two_decisions_and_every_fault() {
        holds("orphan, two decisions, every fault", Protocol::new(Orphan::CODE).twice(), &[]);
    }

    /// One that was brought back is not deleted by what was on its way: it is made anew, in another version.
    #[test]
    fn every_promise_holds_when_a_person_brings_it_back() {
        let kind = Orphan { undo: true, ..Orphan::CODE };
        holds("orphan, brought back", Protocol::new(kind), &[]);
    }

    #[test]
    fn each_guard_that_is_taken_away_breaks_a_promise() {
        let code = Orphan::CODE;
        let without = |what: &str, kind| breaks(what, Protocol::new(kind), SAFE);
        without("orphan, its own version unchecked", Orphan { itself: false, ..code });
        without("orphan, a node that names it unchecked", Orphan { named: false, ..code });
        without("orphan, a node that is not there unchecked", Orphan { absent: false, ..code });
        without("orphan, however young", Orphan { grace: false, ..code });
        let guards = Guards { record: false, ..Guards::CODE };
        breaks("orphan recorded afterwards", Protocol::new(code).guarded(guards), RECORDED);
    }

    /// A second look finds nothing that the transaction does not, and replaces none of its conditions.
    #[test]
    fn the_conditional_call_needs_no_second_look() {
        let guards = Guards { look_again: false, key: false, ..Guards::CODE };
        holds("orphan, conditional call alone", Protocol::new(Orphan::CODE).guarded(guards), &[]);
        let kind = Orphan { itself: false, named: false, absent: false, ..Orphan::CODE };
        breaks("orphan, second look alone", Protocol::new(kind), SAFE);
    }

    /// The window that is left: versions begin at 0 again. Of a ledger that was never closed, deleted, and brought back, a transaction that
    /// was on its way all that time cannot tell.
    #[test]
    fn a_ledger_that_nobody_closed_can_be_deleted_again_by_what_was_on_its_way() {
        let kind = Orphan { undo: true, version: 0, ..Orphan::CODE };
        let steps = breaks("orphan, never closed, brought back", Protocol::new(kind), SAFE);
        assert!(steps.contains(&Action::Change(Change::Undo)), "{steps:?}");
    }
}
