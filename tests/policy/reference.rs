//! The rules once more, written from the description of what a broker does, as slowly and as plainly as possible: nothing is
//! walked, every set is found by asking each ledger on its own. Shares nothing with `trimtab-policy` but the events.

use trimtab_events::{
    Cursor, CursorKind, Evidence, LastLedger, LedgerCandidate, LedgerInfo, Loaded, Partition, Policies, Retention,
    TopicClass, Verdict,
};

/// What an operator's one rule asks for, in the reference's own words.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    pub keep: bool,
    pub report: bool,
    pub retention_s: Option<i64>,
    pub retention_bytes: Option<i64>,
    pub ttl_s: Option<i64>,
    pub overrides: bool,
    pub min_reclaim_bytes: i64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub verdict: Verdict,
    pub ledgers: Vec<i64>,
    pub bytes: i64,
    pub dropped: Vec<i64>,
    pub copies: Vec<i64>,
}

/// A ledger as a broker sees it once it has loaded the topic.
pub struct Row {
    pub id: i64,
    /// None: not known.
    pub entries: Option<i64>,
    pub bytes: i64,
    /// What retention counts from; none: from the loading.
    pub counted_ms: Option<i64>,
    /// What the age of messages is judged by.
    pub closed_ms: Option<i64>,
    pub open: bool,
    pub last: bool,
}

fn moment(ms: i64) -> Option<i64> {
    if ms > 0 { Some(ms) } else { None }
}

/// The list after loading, and what loading drops from it.
pub fn rows(list: &[LedgerInfo], last: &LastLedger) -> (Vec<Row>, Vec<i64>) {
    let (mut rows, mut dropped) = (Vec::new(), Vec::new());
    for info in list {
        let is_last = info.id == list[list.len() - 1].id;
        let own_figures = !is_last || info.closed_ms > 0;
        let mut row = Row {
            id: info.id,
            entries: info.entries,
            bytes: info.bytes.unwrap_or(0).max(0),
            counted_ms: if is_last { None } else { moment(info.closed_ms) },
            closed_ms: moment(info.closed_ms),
            open: false,
            last: is_last,
        };
        if is_last {
            match last {
                LastLedger::Missing => row.entries = Some(0),
                LastLedger::Open => row = Row { open: true, entries: None, bytes: 0, ..row },
                LastLedger::Unknown { .. } if !own_figures => row = Row { open: true, entries: None, bytes: 0, ..row },
                LastLedger::Closed { entries, bytes, closed_ms } if !own_figures => {
                    row = Row { entries: Some(*entries), bytes: (*bytes).max(0), closed_ms: Some(*closed_ms), ..row };
                }
                LastLedger::Unknown { .. } | LastLedger::Closed { .. } => {}
            }
        }
        if row.entries.is_some_and(|n| n <= 0) { dropped.push(row.id) } else { rows.push(row) }
    }
    (rows, dropped)
}

/// Whether everything in a ledger closed then is older than that. A time that is no moment, or has not come yet, is not old.
fn older(closed_ms: Option<i64>, seconds: i128, now_ms: i64) -> bool {
    closed_ms.is_some_and(|closed| closed > 0 && i128::from(now_ms) - i128::from(closed) > seconds * 1000)
}

/// Whether retention lets this row go, seen for itself.
fn past_retention(rows: &[Row], row: &Row, limit: Retention, now_ms: i64) -> bool {
    let minutes = i128::from(limit.minutes);
    let by_time = match row.counted_ms {
        None => minutes == 0,
        Some(closed) if minutes == 0 => closed <= now_ms,
        Some(_) => minutes > 0 && older(row.counted_ms, minutes * 60, now_ms),
    };
    let behind: i128 = rows.iter().filter(|other| other.id > row.id).map(|other| i128::from(other.bytes)).sum();
    by_time || (limit.mib >= 0 && behind >= i128::from(limit.mib) * 1_048_576)
}

/// Whether a cursor has not passed a row.
pub fn holds(cursor: &Cursor, row: &Row) -> bool {
    let Evidence::Present(at) = &cursor.mark_delete else { return true };
    let on_its_last_entry =
        row.id == at.ledger && !row.open && row.entries.is_some_and(|n| n.checked_sub(1) == Some(at.entry));
    row.id >= at.ledger && !on_its_last_entry
}

/// The same, after messages older than `ttl_s` were expired: a subscription moves on over what it held as long as all of it is
/// older than that.
fn holds_after_expiry(cursor: &Cursor, rows: &[Row], row: &Row, ttl_s: i64, now_ms: i64) -> bool {
    if !holds(cursor, row) {
        return false;
    }
    let old = |other: &Row| !other.open && older(other.closed_ms, i128::from(ttl_s), now_ms);
    let up_to_it = rows.iter().filter(|other| other.id <= row.id && holds(cursor, other));
    cursor.kind != CursorKind::Subscription || !up_to_it.into_iter().all(old)
}

struct Topic<'a> {
    rows: Vec<Row>,
    terminated: bool,
    policies: &'a Policies,
    now_ms: i64,
}

impl Topic<'_> {
    /// The longest beginning of the list in which every ledger may go.
    fn freed(&self, cursors: &[Cursor], ttl_s: Option<i64>) -> Vec<i64> {
        let may_go = |row: &Row| {
            let final_of_terminated = self.terminated && self.rows.last().is_some_and(|last| last.id == row.id);
            let held = cursors.iter().any(|cursor| match ttl_s {
                Some(ttl) => holds_after_expiry(cursor, &self.rows, row, ttl, self.now_ms),
                None => holds(cursor, row),
            });
            !row.open
                && !final_of_terminated
                && !held
                && past_retention(&self.rows, row, self.policies.retention.value, self.now_ms)
        };
        let longest = (0..=self.rows.len()).rev().find(|k| self.rows[..*k].iter().all(may_go)).unwrap_or(0);
        self.rows[..longest].iter().map(|row| row.id).collect()
    }

    fn bytes(&self, ids: &[i64]) -> i64 {
        self.rows.iter().filter(|row| ids.contains(&row.id)).map(|row| row.bytes).sum()
    }
}

fn copies(list: &[LedgerInfo], lag_ms: i64, now_ms: i64) -> Vec<i64> {
    let due = |info: &&LedgerInfo| {
        info.offload.is_some_and(|o| {
            let age = i128::from(now_ms) - i128::from(o.offloaded_ms);
            lag_ms >= 0 && o.complete && !o.bookkeeper_deleted && o.offloaded_ms > 0 && age > i128::from(lag_ms)
        })
    };
    list.iter().filter(due).map(|info| info.id).collect()
}

pub fn answer(topic: &LedgerCandidate, asked: Option<&Asked>, now_ms: i64) -> Answer {
    let only = |verdict| Answer { verdict, ledgers: vec![], bytes: 0, dropped: vec![], copies: vec![] };
    match judge(topic, asked, now_ms) {
        Ok(answer) => answer,
        Err(verdict) => only(verdict),
    }
}

fn judge(topic: &LedgerCandidate, asked: Option<&Asked>, now_ms: i64) -> Result<Answer, Verdict> {
    use Verdict::{Blocked, ExpireThenTrim, Keep, Report, Skip, StartClock, Trim};
    let (policies, list) = gates(topic)?;
    if asked.is_some_and(|asked| asked.keep) {
        return Err(Keep);
    }
    if topic.loaded == Loaded::Yes || (topic.last == LastLedger::Open && matches!(topic.loaded, Loaded::Unknown { .. }))
    {
        return Err(Skip);
    }
    let (rows, dropped) = rows(list, &topic.last);
    let all = Topic { rows, terminated: topic.terminated, policies, now_ms };
    let due = all.freed(&[], None);
    let copies = copies(list, policies.offload_deletion_lag_ms, now_ms);
    let limit = policies.retention.value;
    let mut answer = Answer { verdict: Keep, ledgers: vec![], bytes: 0, dropped, copies: vec![] };
    if due.is_empty() && copies.is_empty() {
        let [only] = all.rows.as_slice() else { return Err(Keep) };
        let old = limit.minutes >= 0 && older(only.closed_ms, i128::from(limit.minutes) * 60, now_ms);
        if !only.last || only.open || !old || topic.terminated {
            return Err(Keep);
        }
        if known_cursors(topic, list)?.iter().any(|cursor| holds(cursor, only)) {
            return Err(Keep);
        }
        answer.verdict = StartClock;
    } else {
        let cursors = known_cursors(topic, list)?;
        let now = all.freed(cursors, None);
        let later = ttl(policies, asked).map_or_else(|| now.clone(), |ttl| all.freed(cursors, Some(ttl)));
        answer.verdict = if later.len() > now.len() { ExpireThenTrim } else { Trim };
        answer.copies = copies.into_iter().filter(|id| !later.contains(id)).collect();
        answer.bytes = all.bytes(&later);
        answer.ledgers = later;
        if answer.ledgers.is_empty() && answer.copies.is_empty() {
            return Err(Blocked);
        }
    }
    // Something is to be done: everything must be known, and the rule must like it.
    let unread = |partition: &Partition| matches!(partition, Partition::Of { count: Evidence::Unknown(_), .. });
    if unread(&topic.partition) || matches!(topic.loaded, Loaded::Unknown { .. }) {
        return Err(Skip);
    }
    let Some(asked) = asked else { return Ok(answer) };
    if asked.report {
        return Err(Report);
    }
    let cursors = topic.cursors.present().map_or(&[][..], Vec::as_slice);
    let own =
        Some(policies.ttl_s.value).filter(|ttl| *ttl > 0).map_or_else(Vec::new, |ttl| all.freed(cursors, Some(ttl)));
    let going = if own.len() > answer.ledgers.len() { &own } else { &answer.ledgers };
    let gone = all.rows.iter().filter(|row| going.contains(&row.id));
    let left: i64 = all.rows.iter().filter(|row| !going.contains(&row.id)).map(|row| row.bytes).sum();
    let too_young = |row: &Row| asked.retention_s.is_some_and(|s| !older(row.closed_ms, i128::from(s), now_ms));
    let too_much = asked.ttl_s.is_some() && !asked.overrides && own.len() > answer.ledgers.len();
    let refused = answer.bytes < asked.min_reclaim_bytes
        || too_much
        || gone.into_iter().any(too_young)
        || asked.retention_bytes.is_some_and(|bytes| left < bytes);
    if refused { Err(Keep) } else { Ok(answer) }
}

fn ttl(policies: &Policies, asked: Option<&Asked>) -> Option<i64> {
    let own = Some(policies.ttl_s.value).filter(|ttl| *ttl > 0);
    let Some((wish, overrides)) = asked.and_then(|asked| asked.ttl_s.map(|ttl| (ttl.max(1), asked.overrides))) else {
        return own;
    };
    match own {
        Some(own) if overrides => Some(own.min(wish)),
        Some(own) => Some(own.max(wish)),
        None => overrides.then_some(wish),
    }
}

/// What ends the matter before a ledger is looked at, in the order in which it is to be asked.
fn gates(topic: &LedgerCandidate) -> Result<(&Policies, &[LedgerInfo]), Verdict> {
    if topic.class != TopicClass::User {
        return Err(Verdict::Skip);
    }
    let Evidence::Present(policies) = &topic.policies else { return Err(Verdict::Skip) };
    if policies.deleted {
        return Err(Verdict::Skip);
    }
    match &topic.partition {
        Partition::Of { count: Evidence::Absent, .. } => return Err(Verdict::Report),
        Partition::Of { index, count: Evidence::Present(count) } if index >= count => return Err(Verdict::Report),
        Partition::Of { count: Evidence::Unknown(why), .. } if why != "not read" => return Err(Verdict::Skip),
        _ => {}
    }
    if topic.shadow || policies.topic_level_unknown.is_some() {
        return Err(Verdict::Skip);
    }
    let list = match &topic.ledgers {
        Evidence::Present(list) if !list.is_empty() => list,
        Evidence::Unknown(_) => return Err(Verdict::Skip),
        _ => return Err(Verdict::Nothing),
    };
    let rising = list.iter().zip(list.iter().skip(1)).all(|(a, b)| a.id < b.id);
    if rising && list[0].id >= 0 { Ok((policies, list)) } else { Err(Verdict::Skip) }
}

/// The cursors, where everything that an act depends on is known.
fn known_cursors<'a>(topic: &'a LedgerCandidate, list: &[LedgerInfo]) -> Result<&'a [Cursor], Verdict> {
    if matches!(topic.last, LastLedger::Unknown { .. }) {
        return Err(Verdict::Skip);
    }
    let own_figures = |info: &&LedgerInfo| info.id != list[list.len() - 1].id || info.closed_ms > 0;
    if list.iter().filter(own_figures).any(|info| info.entries.is_none_or(|n| n < 0)) {
        return Err(Verdict::Skip);
    }
    match &topic.cursors {
        Evidence::Absent => Ok(&[]),
        Evidence::Present(all) if all.iter().all(|c| matches!(c.mark_delete, Evidence::Present(_))) => Ok(all),
        _ => Err(Verdict::Skip),
    }
}
