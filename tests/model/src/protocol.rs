//! What all acts have in common: a scan decides, the bus delivers, an executor looks again, decides again, records, calls, and records what
//! came of it.
//!
//! Where this is in the code:
//! * `Scan`: `workers/scanner.rs` reads and emits; `workers/decider.rs` decides and stores, one decision for a resource at a time
//!   ([`Guards::key`]). One step here: how long a candidate is on its way only makes a decision older, and so does the queue after it.
//! * `Take`: `Executor::carry_out`: what the journal knows of the decision ([`Guards::remember`], [`Guards::close`]), and that one
//!   task of a process has it ([`Guards::claim`]).
//! * `Step`: `Executor::attempt`: `observe`, `decide_any`, `difference` ([`Guards::look_again`]), then `intend` ([`Guards::record`]), then
//!   [`Kind::step`], which is `Act::act` of the target.
//! * `Arrive`: what was sent to the owner comes there, soon, late, or after its sender died. `GiveUp`: no answer comes.
//! * `Close`: `Executor::close_open_intents`.
//!
//! What may go wrong, each a number of times: a process is killed; the bus delivers again what is being handled or was settled (a late
//! acknowledgement, a stream put back from a copy); the bus forgets; an answer does not come; and whatever [`Kind::changes`] has.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Property};

/// Decisions that a run may have: two, and one more to see that what is due is done in the end.
pub(crate) const DECISIONS: usize = 3;
/// Tasks that carry out decisions.
const TASKS: usize = 2;

/// A kind of act: what it is done to, and what is done.
pub(crate) trait Kind: Copy + Debug + Eq + Hash + Send + Sync + 'static {
    /// The owner and its metadata.
    type World: Clone + Debug + Eq + Hash + Send + Sync;
    /// What a look at the metadata shows.
    type Look: Copy + Debug + Default + Eq + Hash + Send + Sync;
    /// What a decision says.
    type Act: Copy + Debug + Eq + Hash + Send + Sync;
    /// How far an act is, between what it does at the owner.
    type Step: Copy + Debug + Default + Eq + Hash + Send + Sync;
    /// What is sent to the owner.
    type Call: Copy + Debug + Eq + Hash + Send + Sync;
    /// What others do.
    type Change: Copy + Debug + Eq + Hash + Send + Sync;

    /// Reads that a look consists of; others may write in between.
    const READS: u8 = 1;
    /// Whether a decision may have one effect at most. Where the owner checks, a second call frees what is due by then, and that is well.
    const ONE_EFFECT: bool = true;

    /// The beginning.
    fn world(&self) -> Self::World;
    /// One read of a look.
    fn read(&self, world: &Self::World, part: u8, look: &mut Self::Look);
    /// The rules.
    fn decide(&self, look: &Self::Look) -> Option<Self::Act>;
    /// Whether two decisions are the same for `difference` in `executor.rs`.
    fn same(&self, was: &Self::Act, is: &Self::Act) -> bool {
        was == is
    }
    /// What others may do now.
    fn changes(&self, world: &Self::World, changes: &mut Vec<Self::Change>);
    /// Somebody does it.
    fn change(&self, world: &mut Self::World, change: Self::Change);
    /// The next step of an act by task `who`.
    fn step(&self, world: &mut Self::World, who: u8, act: &Self::Act, step: Self::Step) -> Next<Self>;
    /// What was sent comes to the owner.
    fn arrive(&self, world: &mut Self::World, call: Self::Call) -> Effect;
    /// What was sent does not come there any more.
    fn vanish(&self, _world: &mut Self::World, _call: Self::Call) {}
    /// How an act goes on that gets no answer.
    fn unanswered(&self, _step: Self::Step) -> Next<Self> {
        Next::End
    }
    /// `who` is gone, and its connections with it.
    fn gone(&self, _world: &mut Self::World, _who: u8) {}
    /// `Act::tidy`, which follows a crash.
    fn tidy(&self, _world: &mut Self::World) {}
    /// What happens by itself when everybody else keeps still: the owner stores what it has in memory, clients go home.
    fn calm(&self, _world: &mut Self::World) {}
    /// Whether something is left that should have been done, once everybody keeps still.
    fn left(&self, world: &Self::World) -> bool {
        self.decide(&look(self, world)).is_some()
    }
}

/// All reads of a look at once.
fn look<K: Kind>(kind: &K, world: &K::World) -> K::Look {
    let mut look = K::Look::default();
    for part in 0..K::READS {
        kind.read(world, part, &mut look);
    }
    look
}

/// How an act goes on.
pub(crate) enum Next<K: Kind> {
    /// With this step.
    Go(K::Step),
    /// With this step, once the call was answered.
    Send(K::Call, K::Step),
    /// It is over.
    End,
}

/// What a call did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Effect {
    /// Something changed.
    pub(crate) changed: bool,
    /// Something is gone that somebody needs.
    pub(crate) wrong: bool,
    /// Somebody was harmed who loses nothing for good.
    pub(crate) harm: bool,
}

/// What the workers do to be safe, whatever the act. All are on in the code but the lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guards {
    /// The executor looks again and decides again before it acts.
    pub(crate) look_again: bool,
    /// The intent is in the record before the first call.
    pub(crate) record: bool,
    /// One task of a process carries out a decision at a time.
    pub(crate) claim: bool,
    /// What has an outcome in the record is not carried out again.
    pub(crate) remember: bool,
    /// What was begun and has no outcome is judged by looking, not carried out again.
    pub(crate) close: bool,
    /// The bus holds one decision for a resource at a time.
    pub(crate) key: bool,
    /// Not in the code: whoever acts holds a lease on the resource, and compares its fencing number right before the call.
    pub(crate) lease: bool,
}

impl Guards {
    /// As in the code.
    pub(crate) const CODE: Guards =
        Guards { look_again: true, record: true, claim: true, remember: true, close: true, key: true, lease: false };
}

/// How often what goes wrong does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Faults {
    /// A process is killed and started again.
    pub(crate) crashes: u8,
    /// The bus delivers once more.
    pub(crate) again: u8,
    /// The bus forgets.
    pub(crate) lost: u8,
    /// An answer does not come.
    pub(crate) silent: u8,
}

/// The model of one kind of act.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Protocol<K: Kind> {
    /// The act.
    pub(crate) kind: K,
    /// The guards.
    pub(crate) guards: Guards,
    /// The faults.
    pub(crate) faults: Faults,
    /// Both tasks are of one process, with one journal; else each has its own.
    pub(crate) together: bool,
    /// Scans.
    pub(crate) scans: u8,
    /// What was sent may come to the owner after its sender was killed, started again, and judged what came of it.
    pub(crate) late: bool,
}

impl<K: Kind> Protocol<K> {
    /// As the code is, with every fault once, and one decision.
    pub(crate) fn new(kind: K) -> Protocol<K> {
        let faults = Faults { crashes: 1, again: 1, lost: 1, silent: 1 };
        Protocol { kind, guards: Guards::CODE, faults, together: false, scans: 1, late: true }
    }

    /// With two decisions, one after the other or, without keys, at once.
    pub(crate) fn twice(self) -> Protocol<K> {
        Protocol { scans: 2, ..self }
    }

    /// With the workers' guards changed.
    pub(crate) fn guarded(self, guards: Guards) -> Protocol<K> {
        Protocol { guards, ..self }
    }

    fn process(&self, task: usize) -> usize {
        if self.together { 0 } else { task }
    }
}

/// Where a decision is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Queued {
    Waits,
    Taken,
    /// Settled, refused, or forgotten.
    Gone,
}

/// What a journal says of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Noted {
    Nothing,
    Begun,
    Ended,
}

/// What a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At<K: Kind> {
    Idle,
    Looking {
        d: u8,
        part: u8,
        look: K::Look,
    },
    Looked {
        d: u8,
        act: K::Act,
    },
    Acting {
        d: u8,
        act: K::Act,
        step: K::Step,
    },
    Waiting {
        d: u8,
        act: K::Act,
        step: K::Step,
    },
    /// The act is over, or was found open: what is there now is looked at, and recorded.
    Judging {
        d: u8,
        tidy: bool,
    },
    /// The outcome is recorded.
    Recorded {
        d: u8,
    },
}

impl<K: Kind> At<K> {
    fn decision(&self) -> Option<usize> {
        match self {
            At::Idle => None,
            At::Looking { d, .. }
            | At::Looked { d, .. }
            | At::Acting { d, .. }
            | At::Waiting { d, .. }
            | At::Judging { d, .. }
            | At::Recorded { d } => Some(usize::from(*d)),
        }
    }
}

/// A call on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sent<K: Kind> {
    d: u8,
    by: u8,
    /// Somebody waits for the answer.
    awaited: bool,
    call: K::Call,
}

/// Promises that were broken, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Broken(u8);

impl Broken {
    const WRONG: u8 = 1;
    const UNRECORDED: u8 = 2;
    const NEEDLESS: u8 = 4;
    const TWICE: u8 = 8;
    const RECORDED_TWICE: u8 = 16;
    const HARM: u8 = 32;

    fn note(&mut self, what: u8, is: bool) {
        if is {
            self.0 |= what;
        }
    }
}

/// Everything there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State<K: Kind> {
    world: K::World,
    scans: u8,
    faults: [u8; 4],
    decisions: [Option<(K::Act, Queued)>; DECISIONS],
    tasks: [At<K>; TASKS],
    /// Whether what a task has in hand was due at some moment since it took it.
    was_due: [bool; TASKS],
    journals: [[Noted; DECISIONS]; TASKS],
    sent: Vec<Sent<K>>,
    /// Who holds the lease, and the number of the last one; each task's own number.
    lease: (Option<u8>, u8, [u8; TASKS]),
    effects: [u8; DECISIONS],
    broken: Broken,
}

/// What can happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action<C> {
    Scan,
    Take { task: u8, d: u8 },
    Close { task: u8, d: u8 },
    Step { task: u8 },
    Arrive { call: u8 },
    Return { d: u8 },
    // From here on: what need not happen.
    Vanish { call: u8 },
    Crash { process: u8 },
    Again { d: u8 },
    Lose { d: u8 },
    GiveUp { task: u8 },
    LeaseEnds,
    Change(C),
}

const CRASHES: usize = 0;
const AGAIN: usize = 1;
const LOST: usize = 2;
const SILENT: usize = 3;

impl<K: Kind> Protocol<K> {
    fn at_work(&self, state: &State<K>, d: usize) -> bool {
        state.tasks.iter().any(|at| at.decision() == Some(d))
    }

    /// Whether something that was sent for a decision may still come, and nobody waits for it.
    fn under_way(&self, state: &State<K>, d: usize) -> bool {
        state.sent.iter().any(|sent| usize::from(sent.d) == d && !sent.awaited)
    }

    /// Whether a task may take a decision up: none of its process has it.
    fn unclaimed(&self, state: &State<K>, task: usize, d: usize) -> bool {
        let same = |other: usize| self.process(other) == self.process(task);
        !self.guards.claim || !(0..TASKS).any(|other| same(other) && state.tasks[other].decision() == Some(d))
    }

    /// Whether a scan would find something, and the bus would take it: any other scan changes nothing.
    fn scan_stores(&self, state: &State<K>) -> bool {
        let outstanding = state.decisions.iter().flatten().any(|(_, queued)| *queued != Queued::Gone);
        let room = state.decisions.iter().any(Option::is_none) && !(self.guards.key && outstanding);
        state.scans > 0 && room && self.kind.decide(&look(&self.kind, &state.world)).is_some()
    }

    /// Whether two tasks that both have done nothing yet are idle: which of them is the first to take something makes no difference.
    fn alike(&self, state: &State<K>) -> bool {
        let fresh = |task: usize| {
            let journal = &state.journals[self.process(task)];
            state.tasks[task] == At::Idle && journal.iter().all(|noted| *noted == Noted::Nothing)
        };
        (0..TASKS).all(fresh)
    }

    /// What goes on by itself.
    fn goes_on(&self, state: &State<K>, actions: &mut Vec<Action<K::Change>>) {
        if self.scan_stores(state) {
            actions.push(Action::Scan);
        }
        for task in 0..if self.alike(state) { 1 } else { TASKS } {
            let number = task as u8;
            match &state.tasks[task] {
                At::Idle => {
                    for d in 0..DECISIONS {
                        let waits = matches!(state.decisions[d], Some((_, Queued::Waits)));
                        let leased = !self.guards.lease || state.lease.0.is_none();
                        let settled = self.late || !self.under_way(state, d);
                        if waits && leased && settled && self.unclaimed(state, task, d) {
                            actions.push(Action::Take { task: number, d: d as u8 });
                        }
                        let open = state.journals[self.process(task)][d] == Noted::Begun;
                        if open && settled && self.guards.close && self.unclaimed(state, task, d) {
                            actions.push(Action::Close { task: number, d: d as u8 });
                        }
                    }
                }
                At::Waiting { .. } => {}
                _ => actions.push(Action::Step { task: number }),
            }
        }
        for call in 0..state.sent.len() {
            actions.push(Action::Arrive { call: call as u8 });
        }
        for d in 0..DECISIONS {
            if matches!(state.decisions[d], Some((_, Queued::Taken))) && !self.at_work(state, d) {
                actions.push(Action::Return { d: d as u8 });
            }
        }
    }

    /// What may come between.
    fn goes_wrong(&self, state: &State<K>, actions: &mut Vec<Action<K::Change>>) {
        for (call, sent) in state.sent.iter().enumerate() {
            if !sent.awaited {
                actions.push(Action::Vanish { call: call as u8 });
            }
        }
        if state.faults[CRASHES] > 0 {
            for process in 0..if self.together { 1 } else { TASKS } {
                if (0..TASKS).any(|task| self.process(task) == process && state.tasks[task] != At::Idle) {
                    actions.push(Action::Crash { process: process as u8 });
                }
            }
        }
        for d in 0..DECISIONS {
            let Some((_, queued)) = state.decisions[d] else { continue };
            if state.faults[AGAIN] > 0 && queued != Queued::Waits {
                actions.push(Action::Again { d: d as u8 });
            }
            if state.faults[LOST] > 0 && queued != Queued::Gone {
                actions.push(Action::Lose { d: d as u8 });
            }
        }
        for task in 0..TASKS {
            if state.faults[SILENT] > 0 && matches!(state.tasks[task], At::Waiting { .. }) {
                actions.push(Action::GiveUp { task: task as u8 });
            }
        }
        if self.guards.lease && state.lease.0.is_some() {
            actions.push(Action::LeaseEnds);
        }
        let mut changes = Vec::new();
        self.kind.changes(&state.world, &mut changes);
        actions.extend(changes.into_iter().map(Action::Change));
    }

    fn settle(&self, state: &mut State<K>, d: usize, to: Queued) {
        if let Some((_, queued)) = &mut state.decisions[d] {
            *queued = to;
        }
    }

    fn release(&self, state: &mut State<K>, task: usize) {
        if self.guards.lease && state.lease.0 == Some(task as u8) {
            state.lease.0 = None;
        }
    }

    fn take_up(&self, state: &mut State<K>, task: usize, d: usize) {
        let Some((act, _)) = state.decisions[d] else { return };
        if self.guards.lease {
            state.lease.1 += 1;
            state.lease.0 = Some(task as u8);
            state.lease.2[task] = state.lease.1;
        }
        state.was_due[task] = false;
        let d = d as u8;
        state.tasks[task] = match state.journals[self.process(task)][usize::from(d)] {
            Noted::Ended if self.guards.remember => At::Recorded { d },
            Noted::Begun if self.guards.close => At::Judging { d, tidy: true },
            _ if self.guards.look_again => At::Looking { d, part: 0, look: K::Look::default() },
            _ => At::Looked { d, act },
        };
    }

    fn record(&self, state: &mut State<K>, task: usize, d: u8, what: Noted) {
        let noted = &mut state.journals[self.process(task)][usize::from(d)];
        // Begun twice, or an outcome more than once.
        let again = if what == Noted::Begun { *noted != Noted::Nothing } else { *noted == Noted::Ended };
        *noted = what;
        state.broken.note(Broken::RECORDED_TWICE, again);
    }

    fn step(&self, state: &mut State<K>, task: usize) {
        let at = state.tasks[task];
        state.tasks[task] = match at {
            At::Idle | At::Waiting { .. } => at,
            At::Looking { d, part, mut look } => {
                self.kind.read(&state.world, part, &mut look);
                if part + 1 < K::READS {
                    At::Looking { d, part: part + 1, look }
                } else {
                    let was = state.decisions[usize::from(d)].map(|(act, _)| act);
                    match (self.kind.decide(&look), was) {
                        (Some(is), Some(was)) if self.kind.same(&was, &is) => At::Looked { d, act: is },
                        // Changed: skipped, and that is recorded.
                        _ => {
                            self.record(state, task, d, Noted::Ended);
                            At::Recorded { d }
                        }
                    }
                }
            }
            At::Looked { d, act } => {
                if self.guards.record {
                    self.record(state, task, d, Noted::Begun);
                }
                At::Acting { d, act, step: K::Step::default() }
            }
            At::Acting { d, act, step } => match self.kind.step(&mut state.world, task as u8, &act, step) {
                Next::Go(step) => At::Acting { d, act, step },
                Next::End => At::Judging { d, tidy: false },
                Next::Send(..) if self.guards.lease && state.lease.2[task] != state.lease.1 => {
                    At::Judging { d, tidy: false }
                }
                Next::Send(call, step) => {
                    let noted = state.journals[self.process(task)][usize::from(d)];
                    state.broken.note(Broken::UNRECORDED, noted == Noted::Nothing);
                    state.broken.note(Broken::NEEDLESS, K::READS == 1 && !state.was_due[task]);
                    state.sent.push(Sent { d, by: task as u8, awaited: true, call });
                    At::Waiting { d, act, step }
                }
            },
            At::Judging { d, tidy } => {
                if tidy {
                    self.kind.tidy(&mut state.world);
                }
                if !self.guards.record && state.journals[self.process(task)][usize::from(d)] == Noted::Nothing {
                    self.record(state, task, d, Noted::Begun);
                }
                self.record(state, task, d, Noted::Ended);
                At::Recorded { d }
            }
            At::Recorded { d } => {
                self.settle(state, usize::from(d), Queued::Gone);
                self.release(state, task);
                At::Idle
            }
        };
    }

    fn happen(&self, state: &mut State<K>, action: Action<K::Change>) {
        match action {
            Action::Scan => {
                state.scans -= 1;
                let act = self.kind.decide(&look(&self.kind, &state.world));
                if let Some(free) = state.decisions.iter_mut().find(|decision| decision.is_none()) {
                    *free = act.map(|act| (act, Queued::Waits));
                }
            }
            Action::Take { task, d } => {
                self.settle(state, usize::from(d), Queued::Taken);
                self.take_up(state, usize::from(task), usize::from(d));
            }
            Action::Close { task, d } => state.tasks[usize::from(task)] = At::Judging { d, tidy: true },
            Action::Step { task } => self.step(state, usize::from(task)),
            Action::Arrive { call } => {
                let Sent { d, by, awaited, call } = state.sent.remove(usize::from(call));
                let effect = self.kind.arrive(&mut state.world, call);
                if effect.changed {
                    let effects = &mut state.effects[usize::from(d)];
                    *effects = (*effects + 1).min(2);
                    state.broken.note(Broken::TWICE, K::ONE_EFFECT && *effects > 1);
                }
                state.broken.note(Broken::WRONG, effect.wrong);
                state.broken.note(Broken::HARM, effect.harm);
                let task = &mut state.tasks[usize::from(by)];
                if let (true, At::Waiting { d, act, step }) = (awaited, *task) {
                    *task = At::Acting { d, act, step };
                }
            }
            Action::Return { d } => self.settle(state, usize::from(d), Queued::Waits),
            Action::Vanish { call } => {
                let sent = state.sent.remove(usize::from(call));
                self.kind.vanish(&mut state.world, sent.call);
            }
            Action::Crash { process } => {
                state.faults[CRASHES] -= 1;
                for task in (0..TASKS).filter(|task| self.process(*task) == usize::from(process)) {
                    state.tasks[task] = At::Idle;
                    for sent in state.sent.iter_mut().filter(|sent| usize::from(sent.by) == task) {
                        sent.awaited = false;
                    }
                    self.kind.gone(&mut state.world, task as u8);
                    self.release(state, task);
                }
            }
            Action::Again { d } => {
                state.faults[AGAIN] -= 1;
                self.settle(state, usize::from(d), Queued::Waits);
            }
            Action::Lose { d } => {
                state.faults[LOST] -= 1;
                self.settle(state, usize::from(d), Queued::Gone);
            }
            Action::GiveUp { task } => {
                state.faults[SILENT] -= 1;
                let task = usize::from(task);
                for sent in state.sent.iter_mut().filter(|sent| usize::from(sent.by) == task) {
                    sent.awaited = false;
                }
                if let At::Waiting { d, act, step } = state.tasks[task] {
                    state.tasks[task] = match self.kind.unanswered(step) {
                        Next::Go(step) => At::Acting { d, act, step },
                        _ => At::Judging { d, tidy: false },
                    };
                }
            }
            Action::LeaseEnds => state.lease.0 = None,
            Action::Change(change) => self.kind.change(&mut state.world, change),
        }
        // What is due at this moment, for who has it in hand.
        if K::READS == 1 {
            let due = self.kind.decide(&look(&self.kind, &state.world));
            for task in 0..TASKS {
                let Some(d) = state.tasks[task].decision() else {
                    state.was_due[task] = false;
                    continue;
                };
                if let (Some(is), Some((was, _))) = (&due, &state.decisions[d]) {
                    state.was_due[task] |= self.kind.same(was, is);
                }
            }
        }
    }

    /// Whether all is done in the end: nothing goes wrong any more, everybody else keeps still, and one more scan is made.
    fn ends_well(&self, state: &State<K>) -> bool {
        let mut state = state.clone();
        state.scans = 1;
        let mut actions = Vec::new();
        for _ in 0..100 {
            if state.tasks.iter().all(|at| *at == At::Idle) {
                self.kind.calm(&mut state.world);
            }
            actions.clear();
            self.goes_on(&state, &mut actions);
            // The scan comes when nothing else is left to do.
            let Some(next) = actions.iter().rev().find(|a| **a != Action::Scan).or(actions.first()) else { break };
            let next = *next;
            self.happen(&mut state, next);
        }
        let idle = state.tasks.iter().all(|at| *at == At::Idle) && state.sent.is_empty();
        let open = state.journals.iter().flatten().any(|noted| *noted == Noted::Begun);
        let waits = state.decisions.iter().flatten().any(|(_, queued)| *queued != Queued::Gone);
        idle && !open && !waits && !self.kind.left(&state.world)
    }
}

/// Nothing is gone that somebody needs.
pub(crate) const SAFE: &str = "nothing is gone that somebody needs";
/// Nobody is harmed in a lesser way.
pub(crate) const UNHARMED: &str = "nobody is disturbed";
/// The record comes before the call.
pub(crate) const RECORDED: &str = "no call without a record before it";
/// What is called about was due.
pub(crate) const DUE: &str = "what is called was due at a moment after it was taken";
/// One effect of a decision.
pub(crate) const ONCE: &str = "a decision has one effect at most";
/// One intent and one outcome of a decision in a record.
pub(crate) const ONE_RECORD: &str = "a record begins and ends an act once";
/// What is due is done.
pub(crate) const DONE: &str = "what is due is done once nothing goes wrong";
/// The model does something.
pub(crate) const FREES: &str = "something is freed";

impl<K: Kind> Model for Protocol<K> {
    type State = State<K>;
    type Action = Action<K::Change>;

    fn init_states(&self) -> Vec<State<K>> {
        let Faults { crashes, again, lost, silent } = self.faults;
        vec![State {
            world: self.kind.world(),
            scans: self.scans,
            faults: [crashes, again, lost, silent],
            decisions: [None; DECISIONS],
            tasks: [At::Idle; TASKS],
            was_due: [false; TASKS],
            journals: [[Noted::Nothing; DECISIONS]; TASKS],
            sent: Vec::new(),
            lease: (None, 0, [0; TASKS]),
            effects: [0; DECISIONS],
            broken: Broken::default(),
        }]
    }

    fn actions(&self, state: &State<K>, actions: &mut Vec<Action<K::Change>>) {
        self.goes_on(state, actions);
        self.goes_wrong(state, actions);
    }

    fn next_state(&self, last: &State<K>, action: Action<K::Change>) -> Option<State<K>> {
        let mut state = last.clone();
        self.happen(&mut state, action);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn kept<K: Kind>(state: &State<K>, what: u8) -> bool {
            state.broken.0 & what == 0
        }
        vec![
            Property::always(SAFE, |_, state| kept(state, Broken::WRONG)),
            Property::always(UNHARMED, |_, state| kept(state, Broken::HARM)),
            Property::always(RECORDED, |_, state| kept(state, Broken::UNRECORDED)),
            Property::always(DUE, |_, state| kept(state, Broken::NEEDLESS)),
            Property::always(ONCE, |_, state| kept(state, Broken::TWICE)),
            Property::always(ONE_RECORD, |_, state| kept(state, Broken::RECORDED_TWICE)),
            Property::always(DONE, |model: &Protocol<K>, state: &State<K>| {
                if !state.sent.is_empty() || state.tasks.iter().any(|at| *at != At::Idle) {
                    return true;
                }
                let mut actions = Vec::new();
                model.goes_on(state, &mut actions);
                // Only where nothing goes on by itself: every other state leads there.
                !actions.is_empty() || model.ends_well(state)
            }),
            Property::sometimes(FREES, |_, state: &State<K>| state.effects != [0; DECISIONS]),
        ]
    }
}

/// Tries everything; all promises but those of `but` must hold in every state. Prints how many states there are.
pub(crate) fn holds<K: Kind>(what: &str, model: Protocol<K>, but: &[&str]) {
    let begun = std::time::Instant::now();
    let names: Vec<&'static str> = model.properties().iter().map(|property| property.name).collect();
    let all = HasDiscoveries::AllOf(names.iter().copied().collect());
    let checker = model.checker().threads(2).finish_when(all).spawn_bfs().join();
    for name in names.iter().filter(|name| !but.contains(name)) {
        if *name == FREES {
            checker.assert_any_discovery(name);
        } else {
            checker.assert_no_discovery(name);
        }
    }
    assert!(checker.is_done());
    println!("{what}: {} states, {:.1} s", checker.unique_state_count(), begun.elapsed().as_secs_f64());
}

/// Finds how a promise is broken, in as few steps as it takes; prints and returns them.
pub(crate) fn breaks<K: Kind>(what: &str, model: Protocol<K>, name: &'static str) -> Vec<Action<K::Change>> {
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AllOf([name].into())).spawn_bfs().join();
    let steps = checker.assert_any_discovery(name).into_actions();
    println!("{what}: breaks {name:?} in {} steps: {steps:?}", steps.len());
    steps
}
