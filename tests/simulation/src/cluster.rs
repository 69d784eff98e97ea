//! A Pulsar cluster that exists in memory only: topics with ledgers and cursors, and a broker that loads, expires, trims and closes them
//! as the real one does, by rules of its own that know nothing of ours.

use std::collections::BTreeMap;

use trimtab_events::{
    Cursor, CursorKind, Evidence, LastLedger, LedgerCandidate, LedgerInfo, Level, Loaded, Partition, Policies,
    Position, Retention, Seen, Setting, TopicClass,
};

/// A minute in milliseconds.
pub const MINUTE: i64 = 60_000;
/// A day in milliseconds.
pub const DAY: i64 = 24 * 60 * MINUTE;

/// Where a topic's one cursor stands at its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Behind everything.
    Caught,
    /// Before everything.
    Start,
}

/// The topics, by full name, as their metadata shows them.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// The topics.
    pub topics: BTreeMap<String, LedgerCandidate>,
    zxid: i64,
    next_ledger: i64,
}

/// A topic's full name.
pub fn subject(name: &str) -> String {
    format!("persistent://acme/{name}")
}

fn entries(topic: &LedgerCandidate, info: &LedgerInfo) -> i64 {
    match (&topic.last, info.closed_ms) {
        (LastLedger::Closed { entries, .. }, 0) => *entries,
        _ => info.entries.unwrap_or(0),
    }
}

/// Ids of a topic's ledgers that hold anything.
pub fn filled(topic: &LedgerCandidate) -> Vec<i64> {
    let list = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
    list.iter().filter(|info| entries(topic, info) > 0).map(|info| info.id).collect()
}

impl Cluster {
    /// Makes a topic with a ledger for each time of closing, and a last one that only BookKeeper knows to be closed, at the first of these
    /// times or long ago. `minutes` is its retention, negative for ever; `ttl_s` its time to live, 0 for none.
    pub fn add(&mut self, name: &str, closed: &[i64], minutes: i64, ttl_s: i64, end: End) {
        let first = self.next_ledger;
        let ledger = |(index, closed_ms): (i64, &i64)| LedgerInfo {
            id: first + index,
            entries: Some(10),
            bytes: Some(1000),
            closed_ms: *closed_ms,
            offload: None,
        };
        let mut list: Vec<LedgerInfo> = (0..).zip(closed).map(ledger).collect();
        let last = first + (0..).zip(closed).count() as i64;
        // Room for what it gets later, so that ids never meet.
        self.next_ledger += 10_000;
        list.push(LedgerInfo { id: last, entries: None, bytes: None, closed_ms: 0, offload: None });
        let old = closed.first().copied().unwrap_or(DAY);
        let position = match end {
            End::Caught => Position { ledger: last, entry: 9 },
            End::Start => Position { ledger: first, entry: -1 },
        };
        let cursor = Cursor {
            name: "s".to_owned(),
            kind: CursorKind::Subscription,
            mark_delete: Evidence::Present(position),
            lower_bound: false,
            modified_ms: old,
            last_active_ms: old,
            detail: None,
        };
        self.zxid += 1;
        let level = Level::Namespace;
        let topic = LedgerCandidate {
            subject: subject(name),
            class: TopicClass::User,
            seen: Seen { version: 0, created_zxid: self.zxid, modified_zxid: self.zxid, modified_ms: old },
            partition: Partition::None,
            ledgers: Evidence::Present(list),
            last: LastLedger::Closed { entries: 10, bytes: 1000, closed_ms: old },
            loaded: Loaded::No,
            cursors: Evidence::Present(vec![cursor]),
            terminated: false,
            shadow: false,
            policies: Evidence::Present(Policies {
                deleted: false,
                retention: Setting { value: Retention { minutes, mib: -1 }, level },
                ttl_s: Setting { value: ttl_s, level },
                offload_deletion_lag_ms: 4 * 60 * MINUTE,
                topic_level_unknown: None,
                subscription_expiration_minutes: None,
            }),
        };
        self.topics.insert(subject(name), topic);
    }

    /// Notes that a topic's node was written.
    pub fn touch(&mut self, name: &str, now_ms: i64) {
        self.zxid += 1;
        let Some(topic) = self.topics.get_mut(name) else { return };
        topic.seen = Seen {
            version: topic.seen.version + 1,
            modified_zxid: self.zxid,
            modified_ms: now_ms.max(topic.seen.modified_ms),
            ..topic.seen
        };
    }

    /// Loading closes the last ledger in the list as of now, and makes a new one.
    pub fn load(&mut self, name: &str, now_ms: i64) {
        let Some(topic) = self.topics.get_mut(name).filter(|topic| topic.loaded == Loaded::No) else { return };
        let LastLedger::Closed { entries, bytes, .. } = topic.last else { return };
        let Evidence::Present(list) = &mut topic.ledgers else { return };
        let Some(end) = list.pop() else { return };
        let next = end.id + 1;
        if entries > 0 {
            list.push(LedgerInfo { entries: Some(entries), bytes: Some(bytes), closed_ms: now_ms, ..end });
        }
        list.push(LedgerInfo { id: next, entries: None, bytes: None, closed_ms: 0, offload: None });
        (topic.last, topic.loaded) = (LastLedger::Open, Loaded::Yes);
        self.touch(name, now_ms);
    }

    /// Closes a topic that is loaded; `entries` were written to its last ledger meanwhile.
    pub fn close(&mut self, name: &str, entries: i64, now_ms: i64) {
        let Some(topic) = self.topics.get_mut(name).filter(|topic| topic.loaded == Loaded::Yes) else { return };
        topic.last = LastLedger::Closed { entries, bytes: entries * 100, closed_ms: now_ms };
        topic.loaded = Loaded::No;
        self.touch(name, now_ms);
    }

    /// Moves a cursor behind each ledger whose messages are all older than that.
    pub fn expire(&mut self, name: &str, subscription: &str, ttl_s: i64, now_ms: i64) {
        self.load(name, now_ms);
        let Some(topic) = self.topics.get_mut(name) else { return };
        let Some(list) = topic.ledgers.present().cloned() else { return };
        let Evidence::Present(cursors) = &mut topic.cursors else { return };
        let Some(cursor) = cursors.iter_mut().find(|cursor| cursor.name == subscription) else { return };
        let written = |info: &&LedgerInfo| info.closed_ms > 0 && now_ms - info.closed_ms > ttl_s * 1000;
        if let Some(old) = list.iter().take_while(written).last() {
            let behind = Position { ledger: old.id, entry: old.entries.unwrap_or(0) - 1 };
            if cursor.mark_delete.present().is_some_and(|at| *at < behind) {
                cursor.mark_delete = Evidence::Present(behind);
            }
        }
    }

    /// Removes what is before every cursor and past retention, from the front.
    pub fn trim(&mut self, name: &str, now_ms: i64) {
        self.load(name, now_ms);
        let Some(topic) = self.topics.get_mut(name) else { return };
        let due = due(topic, now_ms);
        let Evidence::Present(list) = &mut topic.ledgers else { return };
        list.drain(..due.len());
        self.touch(name, now_ms);
    }
}

/// The ledgers that a broker which has a topic loaded removes from the front of its list: past every cursor and past retention.
pub fn due(topic: &LedgerCandidate, now_ms: i64) -> Vec<i64> {
    let minutes = topic.policies.present().map_or(-1, |policies| policies.retention.value.minutes);
    let cursors = topic.cursors.present().map_or(&[][..], Vec::as_slice);
    let Some((_, list)) = topic.ledgers.present().and_then(|list| list.split_last()) else { return Vec::new() };
    let passed = |info: &LedgerInfo| {
        let at_end = Position { ledger: info.id, entry: info.entries.unwrap_or(0) - 1 };
        cursors.iter().all(|cursor| cursor.mark_delete.present().is_some_and(|at| *at >= at_end))
    };
    let past = |info: &LedgerInfo| info.closed_ms > 0 && now_ms - info.closed_ms > minutes * MINUTE;
    let old = |info: &LedgerInfo| minutes == 0 || (minutes > 0 && past(info));
    list.iter().take_while(|info| passed(info) && old(info)).map(|info| info.id).collect()
}
