//! Moving a subscriber by being it: an exclusive attach, which the owner refuses while anybody is connected, then an acknowledgement on
//! that attachment up to a fixed entry.
//!
//! `targets/src/pulsar/subscriptions/mod.rs` (`try_consume`, `consume_held`), `hold.rs` (`same`, `hold`, `confirm`). Hedwig's is the same
//! (`targets/src/hedwig/act.rs`), where a hub that takes a topic over may be reached before its subscribers are back: `settled`.
//!
//! Not modelled: a position that moves away and comes back to the very same entry between two looks, and a consumer that connects,
//! acknowledges nothing and leaves; neither leaves a trace anywhere.

use crate::protocol::{Effect, Kind, Next};

/// The end of what was there when it was decided.
const END: u8 = 4;

/// What guards the act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Attach {
    /// The owner refuses to attach us while somebody is connected.
    pub(crate) exclusive: bool,
    /// What is sent counts only while the attachment lasts.
    pub(crate) bound: bool,
    /// Once attached: the node is the one that was decided on.
    pub(crate) identity: bool,
    /// Once attached: the owner has it where it was decided that it stands.
    pub(crate) position: bool,
    /// Up to an entry that the decision names, and not to whatever is the end by then.
    pub(crate) fixed: bool,
    /// What the owner has is where the node says that it stands: not so while the node gives a lower bound only, as it does once the
    /// owner has stored a position since it loaded the topic.
    pub(crate) closed: bool,
    /// An attach that took long is given up: it may have put out a consumer that does not answer.
    pub(crate) prompt: bool,
    /// Hedwig: nothing is attached to before a topic that changed hands has settled.
    pub(crate) settled: bool,
    /// Which owner: Pulsar's consumers may freeze; a hub's die with their hub, and come back.
    pub(crate) hub: bool,
}

impl Attach {
    /// As in the code, for Pulsar.
    pub(crate) const PULSAR: Attach = Attach {
        exclusive: true,
        bound: true,
        identity: true,
        position: true,
        fixed: true,
        closed: true,
        prompt: true,
        settled: true,
        hub: false,
    };
    /// And for Hedwig.
    pub(crate) const HEDWIG: Attach = Attach { hub: true, ..Attach::PULSAR };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Connected {
    Nobody,
    Theirs,
    /// Theirs, and it does not answer the broker's probe.
    Frozen,
    /// An attachment of ours, by number.
    Ours(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subscription {
    exists: bool,
    /// How often it was made anew.
    made: u8,
    /// Where it stands as its owner has it; and as its node says, if that does.
    at: u8,
    stored: Option<u8>,
    /// The position is not stored yet.
    dirty: bool,
    /// Messages.
    end: u8,
    connected: Connected,
    /// The consumer was put out, by the end of its owner or by us, and will be back before things settle.
    displaced: bool,
    /// Signs of life, in truth and as far as they are stored.
    life: u8,
    stored_life: u8,
    attachments: [u8; 2],
    next: u8,
    /// How often it may yet be visited, take a message, be moved by a person, be made anew, get a message; its owner die.
    visits: u8,
    takes: u8,
    resets: u8,
    makes: u8,
    publishes: u8,
    deaths: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Look {
    exists: bool,
    made: u8,
    stored: Option<u8>,
    life: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Decided {
    made: u8,
    from: u8,
    to: u8,
    /// Signs of life up to what was looked at. Nobody can see it; the model judges by it.
    life: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Acknowledge {
    attachment: u8,
    act: Decided,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    Connect,
    Take,
    Freeze,
    Leave,
    /// The owner writes the node, as it does when the first position after a load is stored.
    Store,
    /// The topic is closed: its node says where the subscription stands.
    Close,
    Reset,
    MakeAnew,
    Publish,
    /// The owner dies, and another one takes over.
    Die,
    /// The consumer of before is back.
    Return,
    /// The owner sees that one of our connections is gone.
    Notice,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The node once more, and who is connected.
    #[default]
    Ask,
    Attach,
    Confirm,
    Stand,
    Acknowledge,
    Detach,
}

impl Subscription {
    fn detach(&mut self, number: u8) {
        if self.connected == Connected::Ours(number) {
            self.connected = Connected::Nobody;
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.connected, Connected::Theirs | Connected::Frozen)
    }
}

impl Kind for Attach {
    type World = Subscription;
    type Look = Look;
    type Act = Decided;
    type Step = Step;
    type Call = Acknowledge;
    type Change = Change;

    fn world(&self) -> Subscription {
        Subscription {
            exists: true,
            made: 0,
            at: 2,
            stored: Some(2),
            dirty: false,
            end: END,
            connected: Connected::Nobody,
            displaced: false,
            life: 0,
            stored_life: 0,
            attachments: [0; 2],
            next: 1,
            visits: 1,
            takes: 1,
            resets: 1,
            makes: u8::from(!self.hub),
            // Nobody looks at the end but who is not told where to stop.
            publishes: u8::from(!self.fixed),
            deaths: u8::from(self.hub),
        }
    }

    fn read(&self, subscription: &Subscription, _part: u8, look: &mut Look) {
        let Subscription { exists, made, stored, stored_life, .. } = *subscription;
        *look = Look { exists, made, stored, life: stored_life };
    }

    fn decide(&self, look: &Look) -> Option<Decided> {
        // Where the node does not say where it stands, nothing is known. A history as long as it must be is of before the first scan:
        // whatever has moved or was made anew since has none.
        let from = look.stored.filter(|_| look.exists && look.made == 0)?;
        (from == 2).then_some(Decided { made: look.made, from, to: END, life: look.life })
    }

    fn changes(&self, now: &Subscription, changes: &mut Vec<Change>) {
        let ours_is_gone = matches!(now.connected, Connected::Ours(number) if !now.attachments.contains(&number));
        if ours_is_gone {
            changes.push(Change::Notice);
        }
        if now.exists && now.connected == Connected::Nobody && now.visits > 0 && !now.displaced {
            changes.push(Change::Connect);
        }
        if now.connected == Connected::Theirs {
            changes.push(Change::Leave);
            if now.takes > 0 && now.at < now.end {
                changes.push(Change::Take);
            }
            if !self.hub {
                changes.push(Change::Freeze);
            }
            if now.deaths > 0 {
                changes.push(Change::Die);
            }
        }
        if now.displaced {
            changes.push(Change::Return);
        }
        if now.dirty {
            changes.push(Change::Store);
        }
        if now.stored.is_none() && now.connected == Connected::Nobody {
            changes.push(Change::Close);
        }
        if now.exists && now.resets > 0 && !self.hub {
            changes.push(Change::Reset);
        }
        if now.makes > 0 && !now.is_open() {
            changes.push(Change::MakeAnew);
        }
        if now.publishes > 0 {
            changes.push(Change::Publish);
        }
    }

    fn change(&self, now: &mut Subscription, change: Change) {
        match change {
            Change::Connect => {
                now.visits -= 1;
                now.connected = Connected::Theirs;
            }
            Change::Take => {
                now.takes -= 1;
                now.at += 1;
                now.life += 1;
                now.dirty = true;
            }
            Change::Freeze => now.connected = Connected::Frozen,
            Change::Leave => now.connected = Connected::Nobody,
            // From here on the position is where only the owner reads it.
            Change::Store => (now.dirty, now.stored) = (false, None),
            Change::Close => (now.dirty, now.stored, now.stored_life) = (false, Some(now.at), now.life),
            Change::Reset => {
                now.resets -= 1;
                (now.at, now.dirty) = (0, true);
                now.life += 1;
                // Whoever is connected is put out, we as well.
                now.connected = Connected::Nobody;
            }
            Change::MakeAnew => {
                now.makes -= 1;
                // At the beginning of what is there, or, by chance, where the former one stood.
                (now.made, now.exists) = (now.made + 1, true);
                now.life += 1;
                (now.stored, now.stored_life, now.dirty) = (Some(now.at), now.life, false);
                now.connected = Connected::Nobody;
            }
            Change::Publish => {
                now.publishes -= 1;
                now.end += 1;
            }
            Change::Die => {
                now.deaths -= 1;
                (now.connected, now.displaced) = (Connected::Nobody, true);
            }
            Change::Return => {
                now.displaced = false;
                // Where somebody else is, its client tries again.
                if now.connected == Connected::Nobody {
                    now.connected = Connected::Theirs;
                } else {
                    now.displaced = true;
                }
            }
            Change::Notice => now.connected = Connected::Nobody,
        }
    }

    fn step(&self, now: &mut Subscription, who: u8, act: &Decided, step: Step) -> Next<Self> {
        let mine = now.attachments[usize::from(who)];
        match step {
            Step::Ask if !now.exists || now.made != act.made || now.is_open() => Next::End,
            Step::Ask => Next::Go(Step::Attach),
            Step::Attach if self.settled && now.displaced => Next::End,
            Step::Attach => {
                let free = match now.connected {
                    Connected::Nobody => true,
                    // The broker takes a consumer that does not answer for dead; that takes it a while.
                    Connected::Frozen if !self.prompt => true,
                    Connected::Frozen | Connected::Theirs | Connected::Ours(_) => !self.exclusive,
                };
                if !free {
                    if now.connected == Connected::Frozen {
                        now.connected = Connected::Nobody;
                    }
                    return Next::End;
                }
                // Whoever is put out like that will be back.
                now.displaced |= now.connected == Connected::Frozen;
                let number = now.next;
                now.next += 1;
                now.attachments[usize::from(who)] = number;
                if self.exclusive {
                    now.connected = Connected::Ours(number);
                }
                Next::Go(Step::Confirm)
            }
            Step::Confirm if self.identity && now.made != act.made => Next::Go(Step::Detach),
            Step::Confirm => Next::Go(Step::Stand),
            Step::Stand if self.position && self.closed && now.at != act.from => Next::Go(Step::Detach),
            Step::Stand if now.at >= act.to => Next::Go(Step::Detach),
            // `Recorded::before`: where it stands goes into the record.
            Step::Stand => Next::Go(Step::Acknowledge),
            Step::Acknowledge => Next::Send(Acknowledge { attachment: mine, act: *act }, Step::Detach),
            Step::Detach => {
                now.detach(mine);
                now.attachments[usize::from(who)] = 0;
                Next::End
            }
        }
    }

    fn arrive(&self, now: &mut Subscription, call: Acknowledge) -> Effect {
        let Acknowledge { attachment, act } = call;
        if self.bound && self.exclusive && now.connected != Connected::Ours(attachment) {
            return Effect::default();
        }
        let to = if self.fixed { act.to } else { now.end };
        let changed = now.exists && now.at < to;
        if !changed {
            return Effect::default();
        }
        // It has shown a sign of life, is there now, or will be as soon as its owner is.
        let alive = now.life != act.life || now.made != act.made || now.is_open() || now.displaced;
        now.at = to;
        now.dirty = true;
        Effect { changed, wrong: alive || to > act.to, harm: false }
    }

    /// It is detached all the same.
    fn unanswered(&self, _step: Step) -> Next<Self> {
        Next::Go(Step::Detach)
    }

    fn gone(&self, now: &mut Subscription, who: u8) {
        // The connection ends; the owner notices later.
        now.attachments[usize::from(who)] = 0;
    }

    fn calm(&self, now: &mut Subscription) {
        now.displaced = false;
        match now.connected {
            Connected::Theirs | Connected::Frozen => now.connected = Connected::Nobody,
            Connected::Ours(number) if !now.attachments.contains(&number) => now.connected = Connected::Nobody,
            _ => {}
        }
        if now.connected == Connected::Nobody {
            self.change(now, Change::Close);
        }
    }
}

mod tests {
    use super::*;
    use crate::protocol::{Guards, Protocol, RECORDED, SAFE, breaks, holds};

    #[test]
    fn every_promise_holds_on_pulsar() {
        holds("attach (Pulsar)", Protocol::new(Attach::PULSAR), &[]);
    }

    #[test]
    #[cfg(feature = "long")]
    fn every_promise_holds_with_two_decisions() {
        holds("attach (Pulsar), two decisions", Protocol::new(Attach::PULSAR).twice(), &[]);
        holds("attach (Hedwig), two decisions", Protocol::new(Attach::HEDWIG).twice(), &[]);
    }

    #[test]
    fn every_promise_holds_on_hedwig() {
        holds("attach (Hedwig)", Protocol::new(Attach::HEDWIG), &[]);
    }

    #[test]
    fn each_guard_that_is_taken_away_breaks_a_promise() {
        let without = |what: &str, kind| breaks(what, Protocol::new(kind), SAFE);
        let pulsar = Attach::PULSAR;
        without("attach that is not exclusive", Attach { exclusive: false, ..pulsar });
        without("acknowledgement without its attachment", Attach { bound: false, ..pulsar });
        without("attach to one made anew", Attach { identity: false, ..pulsar });
        without("attach to one that has moved", Attach { position: false, ..pulsar });
        without("acknowledgement up to the end", Attach { fixed: false, ..pulsar });
        without("attach in the place of one that is frozen", Attach { prompt: false, ..pulsar });
        without("attach right after an owner died", Attach { settled: false, ..Attach::HEDWIG });
        let guarded = |guards| Protocol::new(pulsar).guarded(guards);
        breaks("attach recorded afterwards", guarded(Guards { record: false, ..Guards::CODE }), RECORDED);
    }

    /// The window that is left: where a node gives a lower bound only, who comes, takes something and leaves between the node's last look and
    /// the attach is not seen.
    #[test]
    fn who_was_there_in_between_is_not_seen_where_the_node_does_not_say_where_it_stands() {
        breaks("attach, lower bound", Protocol::new(Attach { closed: false, ..Attach::PULSAR }), SAFE);
    }

    /// All that is done before the attach is no guard: whoever comes after the last look is moved.
    #[test]
    fn looks_alone_do_not_make_it_safe() {
        let kind = Attach { exclusive: false, bound: false, ..Attach::PULSAR };
        let guards = Guards { lease: true, ..Guards::CODE };
        breaks("a second look, a lease and a fence without the attach", Protocol::new(kind).guarded(guards), SAFE);
    }
}
