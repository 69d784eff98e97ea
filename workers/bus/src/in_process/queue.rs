//! The rules of one queue. Nothing here waits: every call says what time it is.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use trimtab_events::Event;

use crate::{BusOptions, Published, Role};

/// Ids are forgotten before their time when there are more of them than this many queues full.
const REMEMBERED_QUEUES: usize = 8;

/// What travels.
#[derive(Clone)]
pub(super) enum Payload {
    Event(Box<Event>),
    Bytes(Arc<[u8]>),
}

/// Something to be queued.
pub(super) struct Offer {
    pub(super) payload: Payload,
    /// Refused while another of this key is in the queue.
    pub(super) key: Option<String>,
    /// Refused when seen inside the window.
    pub(super) id: Option<String>,
    pub(super) bytes: u64,
}

/// What became of an offer.
pub(super) enum Offered {
    Is(Published),
    Full(Offer),
}

/// A delivery.
pub(super) struct Taken {
    pub(super) payload: Payload,
    pub(super) number: u64,
    pub(super) tries: u64,
}

/// An event that left without being handled.
pub(super) struct GivenUp {
    pub(super) payload: Payload,
    pub(super) tries: u64,
}

struct Entry {
    payload: Payload,
    key: Option<String>,
    bytes: u64,
    tries: u64,
    /// When it comes back; none while it waits for a taker.
    held_until: Option<Instant>,
}

/// One queue.
pub(super) struct Queue {
    ack_wait: Duration,
    duplicate_window: Duration,
    max_deliver: u64,
    max_events: u64,
    max_bytes: u64,
    max_outstanding: u64,

    entries: HashMap<u64, Entry>,
    /// Numbers that came back, to be delivered before those that wait for the first time. Both lists may name numbers that
    /// are gone: a late acknowledgement removes the entry only.
    returned: VecDeque<u64>,
    ready: VecDeque<u64>,
    /// When each held entry comes back.
    due: BTreeSet<(Instant, u64)>,
    keys: HashSet<String>,
    ids: HashSet<Arc<str>>,
    id_ages: VecDeque<(Instant, Arc<str>)>,
    next: u64,
    bytes: u64,
}

impl Queue {
    pub(super) fn new(role: Role, options: &BusOptions) -> Queue {
        Queue {
            ack_wait: options.ack_wait,
            duplicate_window: options.duplicate_window,
            max_deliver: options.max_deliver.max(1),
            max_events: options.queue_events.max(1),
            max_bytes: options.queue_bytes,
            max_outstanding: options.outstanding(role),
            entries: HashMap::new(),
            returned: VecDeque::new(),
            ready: VecDeque::new(),
            due: BTreeSet::new(),
            keys: HashSet::new(),
            ids: HashSet::new(),
            id_ages: VecDeque::new(),
            next: 0,
            bytes: 0,
        }
    }

    /// Brings back what fell due; what was delivered too often leaves instead.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<GivenUp> {
        let mut given_up = Vec::new();
        while let Some(&(due, number)) = self.due.first() {
            if due > now {
                break;
            }
            self.due.pop_first();
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            entry.held_until = None;
            if entry.tries >= self.max_deliver {
                given_up.extend(self.remove(number));
            } else {
                self.returned.push_back(number);
            }
        }
        self.forget_ids(now);
        given_up
    }

    fn forget_ids(&mut self, now: Instant) {
        let most = (self.max_events as usize).saturating_mul(REMEMBERED_QUEUES);
        while let Some((seen, _)) = self.id_ages.front() {
            if now.duration_since(*seen) < self.duplicate_window && self.id_ages.len() <= most {
                break;
            }
            if let Some((_, id)) = self.id_ages.pop_front() {
                self.ids.remove(&id);
            }
        }
    }

    /// Queues `offer`, unless it is there already or there is no room. In this order, as a JetStream stream does: a repeat
    /// is no reason to wait.
    pub(super) fn offer(&mut self, offer: Offer, now: Instant) -> Offered {
        if offer.id.as_ref().is_some_and(|id| self.ids.contains(id.as_str())) {
            return Offered::Is(Published::Duplicate);
        }
        if offer.key.as_ref().is_some_and(|key| self.keys.contains(key)) {
            return Offered::Is(Published::Outstanding);
        }
        // An empty queue takes anything, or an event larger than the whole queue would wait for ever.
        let fits = self.entries.is_empty() || self.bytes.saturating_add(offer.bytes) <= self.max_bytes;
        if !fits || self.depth() >= self.max_events {
            return Offered::Full(offer);
        }
        if let Some(id) = offer.id {
            let id: Arc<str> = id.into();
            self.ids.insert(Arc::clone(&id));
            self.id_ages.push_back((now, id));
        }
        if let Some(key) = &offer.key {
            self.keys.insert(key.clone());
        }
        let number = self.next;
        self.next += 1;
        self.bytes += offer.bytes;
        let entry = Entry { payload: offer.payload, key: offer.key, bytes: offer.bytes, tries: 0, held_until: None };
        self.entries.insert(number, entry);
        self.ready.push_back(number);
        Offered::Is(Published::Stored)
    }

    /// Hands out the next entry, if there is one and not too many are out.
    pub(super) fn take(&mut self, now: Instant) -> Option<Taken> {
        if self.due.len() as u64 >= self.max_outstanding {
            return None;
        }
        while let Some(number) = self.returned.pop_front().or_else(|| self.ready.pop_front()) {
            let Some(entry) = self.entries.get_mut(&number) else { continue };
            let until = now + self.ack_wait;
            entry.tries += 1;
            entry.held_until = Some(until);
            self.due.insert((until, number));
            return Some(Taken { payload: entry.payload.clone(), number, tries: entry.tries });
        }
        None
    }

    /// Holds delivery `tries` of an entry until `until`. A later delivery of the same entry is not touched.
    pub(super) fn hold_until(&mut self, number: u64, tries: u64, until: Instant) {
        let Some(entry) = self.entries.get_mut(&number).filter(|entry| entry.tries == tries) else { return };
        let Some(held_until) = entry.held_until.replace(until) else {
            // It came back already and waits; it goes on waiting.
            entry.held_until = None;
            return;
        };
        self.due.remove(&(held_until, number));
        self.due.insert((until, number));
    }

    /// Takes an entry away, whoever has it: an acknowledgement that comes late is one all the same.
    pub(super) fn remove(&mut self, number: u64) -> Option<GivenUp> {
        let entry = self.entries.remove(&number)?;
        if let Some(held_until) = entry.held_until {
            self.due.remove(&(held_until, number));
        }
        if let Some(key) = &entry.key {
            self.keys.remove(key);
        }
        self.bytes -= entry.bytes;
        Some(GivenUp { payload: entry.payload, tries: entry.tries })
    }

    pub(super) fn depth(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn has_room(&self) -> bool {
        self.depth() < self.max_events && self.bytes < self.max_bytes
    }

    /// Whether another [`Queue::take`] may find something.
    pub(super) fn is_ready(&self) -> bool {
        !(self.ready.is_empty() && self.returned.is_empty()) && (self.due.len() as u64) < self.max_outstanding
    }

    /// When something comes back next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }
}
