//! What workers share about scans, as small documents: who leads, how far it is, whether its decisions may be carried out, how much
//! was, and what falls due later.

mod progress;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use trimtab_bus::{BusError, Document, Expect, Store};
use trimtab_events::{Outcome, Proposed, ScanRef, ScanReport, Scope, Status, Verdict, key_of, shard_of};
use trimtab_targets::Class;
use uuid::Uuid;

pub use progress::{Merged, Part, Progress, SHARDS_PAGE};

use crate::config::Caps;
use crate::worker::Failure;

/// How long a leader says nothing before another scan may lead, and before executors do not wait for its scan's end any more.
pub(crate) const LEADER_SILENCE_MS: i64 = 10 * 60 * 1000;
/// A leader that was heard of so lately need not be again.
const HEARD_MS: i64 = 10 * 1000;

/// Keys begin with what they are about and a `/`: over NATS that is a part of the subject of its own, so that a role can be let write some
/// and not others (`deploy/nats/pipeline.conf`).
pub(crate) const BUCKET: &str = "scans";

/// Who leads the present scan of a target, or led the last one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// The scan.
    pub scan: ScanRef,
    /// It has ended.
    pub ended: bool,
    /// Last sign of life, milliseconds since 1970.
    pub at_ms: i64,
}

/// Whether decisions of a scan may be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// The scan.
    pub scan: ScanRef,
    /// What it proposes.
    pub proposed: Proposed,
    /// Why not, if not.
    pub stopped: Option<String>,
    /// Who said so nevertheless.
    pub confirmed_by: Option<String>,
    /// Not everything could be read.
    pub incomplete: bool,
}

impl Gate {
    /// Why its decisions may not be carried out, if so.
    pub fn closed(&self) -> Option<&str> {
        self.stopped.as_deref().filter(|_| self.confirmed_by.is_none())
    }
}

/// What the last scan of everything saw, and what followed scans have proposed since.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Whole {
    /// The scan.
    pub scan: Uuid,
    /// Topics of users.
    pub user_topics: u64,
    /// Bytes of all closed ledgers, one replica.
    pub bytes: u64,
    /// What followed scans may do by now, all together: those that no limit stopped.
    pub followed: Proposed,
    /// The last of them, and its part.
    pub last: Option<(Uuid, Proposed)>,
}

impl Whole {
    /// What they have proposed besides one scan, which may have come to its end before.
    fn others(&self, scan: Uuid) -> Proposed {
        let of = self.last.filter(|(last, _)| *last == scan).map(|(_, part)| part).unwrap_or_default();
        Proposed {
            acts: self.followed.acts.saturating_sub(of.acts),
            ledgers: self.followed.ledgers.saturating_sub(of.ledgers),
            bytes: self.followed.bytes.saturating_sub(of.bytes),
        }
    }
}

/// What was set aside for acts of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Acts.
    pub acts: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What came of a scan's decisions so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Outcomes by status.
    pub statuses: BTreeMap<String, u64>,
    /// Ledgers freed.
    pub ledgers: u64,
    /// Bytes freed, one replica.
    pub bytes: i64,
    /// Subscribers that were announced to be acted on.
    #[serde(default)]
    pub announced: u64,
    /// The first few that are not done, for a person.
    pub problems: Vec<String>,
}

/// A part of a tally: of those outcomes whose ids hash to it. In parts, since each names the outcomes that it has counted.
#[derive(Default, Serialize, Deserialize)]
struct TallyPart {
    tally: Tally,
    /// Ids, as short as they may be.
    counted: BTreeSet<String>,
}

impl Tally {
    /// Outcomes in all.
    pub fn outcomes(&self) -> u64 {
        self.statuses.values().sum()
    }
}

/// How many problems a [`Tally`] keeps.
const TALLY_PROBLEMS: usize = 20;

/// A visit that falls due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revisit {
    /// The target.
    pub target: String,
    /// The topic.
    pub subject: String,
    /// When, milliseconds since 1970.
    pub due_ms: i64,
}

/// The documents, over a store.
#[derive(Clone)]
pub struct Scans {
    store: Arc<dyn Store>,
}

fn read<T: DeserializeOwned>(document: &Document) -> Result<T, Failure> {
    serde_json::from_slice(&document.value)
        .map_err(|e| Failure::new(Class::Invalid, format!("document {BUCKET}/{} cannot be read: {e}", document.key)))
}

fn written<T: Serialize>(value: &T) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(value).map_err(|e| Failure::new(Class::Bug, e))
}

impl Scans {
    /// Over this store.
    pub fn new(store: Arc<dyn Store>) -> Scans {
        Scans { store }
    }

    async fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, u64)>, Failure> {
        let Some(document) = self.store.get(BUCKET, key).await? else { return Ok(None) };
        Ok(Some((read(&document)?, document.revision)))
    }

    async fn put<T: Serialize>(&self, key: &str, value: &T) -> Result<(), Failure> {
        self.store.put(BUCKET, key, &written(value)?, Expect::Anything).await?;
        Ok(())
    }

    /// Changes a document, however many others do the same: reads, changes, writes on the revision read, and again.
    async fn change<T, R>(&self, key: &str, mut by: impl FnMut(&mut T) -> R) -> Result<R, Failure>
    where
        T: Serialize + DeserializeOwned + Default,
    {
        for _ in 0..1000 {
            let (mut value, expect) = match self.get::<T>(key).await? {
                Some((value, revision)) => (value, Expect::Revision(revision)),
                None => (T::default(), Expect::Absent),
            };
            let result = by(&mut value);
            match self.store.put(BUCKET, key, &written(&value)?, expect).await {
                Ok(_) => return Ok(result),
                Err(BusError::Conflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Failure::new(Class::Transient, format!("document {BUCKET}/{key} kept changing")))
    }

    /// The present or last leader of a target's scans.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn leader(&self, target: &str) -> Result<Option<Leader>, Failure> {
        Ok(self.get(&format!("leader/{target}")).await?.map(|(leader, _)| leader))
    }

    /// Says who leads; refused when a later lease has led meanwhile.
    ///
    /// # Errors
    /// When the store fails, or somebody with a higher fencing number led after it.
    pub async fn lead(&self, target: &str, leader: &Leader) -> Result<(), Failure> {
        let key = format!("leader/{target}");
        for _ in 0..100 {
            let (expect, fence) = match self.get::<Leader>(&key).await? {
                Some((known, revision)) => (Expect::Revision(revision), known.scan.fence),
                None => (Expect::Absent, 0),
            };
            if fence > leader.scan.fence {
                let why = format!(
                    "the lease of scan {} was lost: a later one has the fencing number {fence}",
                    leader.scan.id
                );
                return Err(Failure::new(Class::Gone, why));
            }
            match self.store.put(BUCKET, &key, &written(leader)?, expect).await {
                Ok(_) => return Ok(()),
                // Readers say that they are alive meanwhile.
                Err(BusError::Conflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Failure::new(Class::Transient, format!("document {BUCKET}/{key} kept changing")))
    }

    /// Whether a scan leads. If so, it is known from now on that it was so at this moment.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn leads(&self, target: &str, scan: Uuid, now_ms: i64) -> Result<bool, Failure> {
        let key = format!("leader/{target}");
        let Some((mut leader, revision)) = self.get::<Leader>(&key).await? else { return Ok(false) };
        if leader.scan.id != scan || leader.ended {
            return Ok(false);
        }
        if now_ms.abs_diff(leader.at_ms) > HEARD_MS.unsigned_abs() {
            leader.at_ms = now_ms;
            match self.store.put(BUCKET, &key, &written(&leader)?, Expect::Revision(revision)).await {
                // Somebody else has just said it, or leads by now: the next look tells.
                Ok(_) | Err(BusError::Conflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }

    /// How far a scan is, if it has begun and not ended.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn progress(&self, scan: Uuid) -> Result<Option<Progress>, Failure> {
        Ok(self.get(&progress_key(scan)).await?.map(|(progress, _)| progress))
    }

    /// Begins a scan, of these shards. False when it was begun before: what is there stays.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn begin(&self, progress: &Progress, shards: &[String]) -> Result<bool, Failure> {
        let ScanRef { id, fence } = progress.report.scan;
        for (page, names) in shards.chunks(SHARDS_PAGE).enumerate() {
            self.put(&shards_key(id, fence, page), &names).await?;
        }
        match self.store.put(BUCKET, &progress_key(id), &written(progress)?, Expect::Absent).await {
            Ok(_) => Ok(true),
            Err(BusError::Conflict { .. }) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Changes how far a scan is, however many others do the same; `by` says whether it did. None when there is nothing to change: it has not
    /// begun, or it has ended.
    ///
    /// # Errors
    /// When the store fails; whether it was changed is not known then.
    pub async fn advance<R>(
        &self,
        scan: Uuid,
        mut by: impl FnMut(&mut Progress) -> (bool, R),
    ) -> Result<Option<R>, Failure> {
        let key = progress_key(scan);
        for _ in 0..1000 {
            let Some((mut progress, revision)) = self.get::<Progress>(&key).await? else { return Ok(None) };
            let (changed, result) = by(&mut progress);
            if !changed {
                return Ok(Some(result));
            }
            match self.store.put(BUCKET, &key, &written(&progress)?, Expect::Revision(revision)).await {
                Ok(_) => return Ok(Some(result)),
                Err(BusError::Conflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Failure::new(Class::Transient, format!("document {BUCKET}/{key} kept changing")))
    }

    /// A page of a scan's list of shards.
    ///
    /// # Errors
    /// When the store fails, or the page is not there: the scan has ended meanwhile.
    pub async fn shards(&self, progress: &Progress, page: usize) -> Result<Vec<String>, Failure> {
        let scan = progress.report.scan.id;
        let found = self.get(&shards_key(scan, progress.list, page)).await?;
        found.map(|(names, _)| names).ok_or_else(|| Failure::new(Class::Gone, format!("scan {scan} has ended")))
    }

    /// Ends a scan: what the next one is compared with, and its gate. The gate is last: with it the scan has ended. Somebody who was paused
    /// while a later lease led changes nothing any more.
    ///
    /// # Errors
    /// When the store fails, or the gate is by a leader with a higher fencing number.
    pub async fn finish(&self, gate: &Gate, report: &ScanReport) -> Result<(), Failure> {
        let key = format!("gate/{}", gate.scan.id);
        let expect = match self.get::<Gate>(&key).await? {
            Some((known, _)) if known.scan.fence > gate.scan.fence => {
                let (scan, fence) = (gate.scan.id, known.scan.fence);
                let why = format!("scan {scan} was ended by a later lease, with the fencing number {fence}");
                return Err(Failure::new(Class::Gone, why));
            }
            Some((_, revision)) => Expect::Revision(revision),
            None => Expect::Absent,
        };
        // Which topics were named is not the same twice, so there is nothing to compare.
        if report.complete && report.stopped.is_none() && report.scope.topics.is_empty() {
            self.put(&last_key(&report.target, &report.scope), &report.topics).await?;
        }
        self.store.put(BUCKET, &key, &written(gate)?, expect).await?;
        Ok(())
    }

    /// Forgets how far a scan was that has ended, and its shards.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn forget(&self, scan: Uuid) -> Result<(), Failure> {
        self.store.delete(BUCKET, &progress_key(scan), Expect::Anything).await?;
        loop {
            // Of whoever began to list them and was overtaken, too.
            let pages = self.store.list(BUCKET, &format!("shards/{scan}/"), None, 100).await?;
            if pages.is_empty() {
                return Ok(());
            }
            for page in pages {
                self.store.delete(BUCKET, &page.key, Expect::Anything).await?;
            }
        }
    }

    /// Topics that the last complete scan of a scope saw.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn last_topics(&self, target: &str, scope: &Scope) -> Result<Option<u64>, Failure> {
        Ok(self.get(&last_key(target, scope)).await?.map(|(topics, _)| topics))
    }

    /// What the last scan of everything saw, and what was proposed since.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn whole(&self, target: &str) -> Result<Option<Whole>, Failure> {
        Ok(self.get(&whole_key(target)).await?.map(|(whole, _)| whole))
    }

    /// Notes what a scan of everything saw. What was proposed before it counts no more.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn set_whole(&self, target: &str, whole: &Whole) -> Result<(), Failure> {
        self.put(&whole_key(target), whole).await
    }

    /// Why decisions of a followed scan must not be carried out before a person has looked, if so. If not, it counts from now on.
    ///
    /// # Errors
    /// When the store fails; whether it counts is not known then, and it may be asked again.
    pub async fn follow(&self, report: &ScanReport, caps: &Caps) -> Result<Option<String>, Failure> {
        if report.proposed == Proposed::default() {
            return Ok(None);
        }
        // What made that one stop may be what makes these propose anything.
        if let Some(whole) = self.whole(&report.target).await?.filter(|whole| !whole.scan.is_nil()) {
            match self.gate(whole.scan).await?.as_ref().map(Gate::closed) {
                Some(None) => {}
                Some(Some(why)) => {
                    let scan = whole.scan;
                    return Ok(Some(format!(
                        "the last scan of everything, {scan}, is stopped, and so is this one: {why}"
                    )));
                }
                None => return Ok(Some("the last scan of everything has not come to its end".to_owned())),
            }
        }
        self.change(&whole_key(&report.target), |whole: &mut Whole| {
            let (scan, others) = (report.scan.id, whole.others(report.scan.id));
            let stopped = over_followed(report, whole, others, caps);
            let part = if stopped.is_some() { Proposed::default() } else { report.proposed };
            whole.followed = others.and(part);
            whole.last = Some((scan, part));
            stopped
        })
        .await
    }

    /// Forgets the gate of a scan that proposed nothing.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn forget_gate(&self, scan: Uuid) -> Result<(), Failure> {
        Ok(self.store.delete(BUCKET, &format!("gate/{scan}"), Expect::Anything).await?)
    }

    /// The gate of a scan, once it has ended.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn gate(&self, scan: Uuid) -> Result<Option<Gate>, Failure> {
        Ok(self.get(&format!("gate/{scan}")).await?.map(|(gate, _)| gate))
    }

    /// The gates of scans that began since, the newest first, at most `limit`. Their ids are of version 7: in order of time.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn gates(&self, since_ms: i64, limit: usize) -> Result<Vec<Gate>, Failure> {
        let ms = u64::try_from(since_ms).unwrap_or(0);
        let mut after = format!("gate/{}", uuid::Builder::from_unix_timestamp_millis(ms, &[0; 10]).into_uuid());
        let mut newest = std::collections::VecDeque::new();
        loop {
            let page = self.store.list(BUCKET, "gate/", Some(&after), 256).await?;
            let Some(last) = page.last() else { return Ok(newest.into_iter().rev().collect()) };
            after.clone_from(&last.key);
            for document in &page {
                newest.push_back(read(document)?);
                if newest.len() > limit {
                    newest.pop_front();
                }
            }
        }
    }

    /// Writes the gate of a plan that a person approved: its decisions come from no scan that could end. Refused when there is one: what was
    /// approved once is not approved again.
    ///
    /// # Errors
    /// When the store fails, or the gate is there.
    pub async fn approve(&self, gate: &Gate) -> Result<(), Failure> {
        match self.store.put(BUCKET, &format!("gate/{}", gate.scan.id), &written(gate)?, Expect::Absent).await {
            Ok(_) => Ok(()),
            Err(BusError::Conflict { .. }) => {
                Err(Failure::new(Class::Gone, format!("plan {} was approved before", gate.scan.id)))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Closes a gate: nothing more of its scan begins until somebody confirms it.
    ///
    /// # Errors
    /// When the store fails or there is no such gate.
    pub async fn stop(&self, scan: Uuid, why: &str) -> Result<Gate, Failure> {
        let key = format!("gate/{scan}");
        for _ in 0..100 {
            let Some((mut gate, revision)) = self.get::<Gate>(&key).await? else {
                return Err(Failure::new(Class::Invalid, format!("no scan {scan} has ended here")));
            };
            (gate.stopped, gate.confirmed_by) = (Some(why.to_owned()), None);
            match self.store.put(BUCKET, &key, &written(&gate)?, Expect::Revision(revision)).await {
                Ok(_) => return Ok(gate),
                Err(BusError::Conflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Failure::new(Class::Transient, format!("document {BUCKET}/{key} kept changing")))
    }

    /// What was set aside for acts of a scan.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn budget(&self, scan: Uuid) -> Result<Budget, Failure> {
        Ok(self.get(&format!("budget/{scan}")).await?.map(|(budget, _)| budget).unwrap_or_default())
    }

    /// Whether a limit keeps what the last scan found from being done: it has ended, and no person has confirmed it. Where changes are
    /// followed (`follows`), the last scan of everything counts besides: while it is stopped, so is everything that is followed.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn stopped(&self, target: &str, follows: bool) -> Result<bool, Failure> {
        let last = self.leader(target).await?.map(|leader| leader.scan.id);
        let whole = if follows { self.whole(target).await?.map(|whole| whole.scan) } else { None };
        for scan in [last, whole].into_iter().flatten() {
            if self.gate(scan).await?.is_some_and(|gate| gate.closed().is_some()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens a gate that a limit had closed.
    ///
    /// # Errors
    /// When the store fails or there is no such gate.
    pub async fn confirm(&self, scan: Uuid, by: &str) -> Result<Gate, Failure> {
        let Some(mut gate) = self.gate(scan).await? else {
            return Err(Failure::new(Class::Invalid, format!("no scan {scan} has ended here")));
        };
        gate.confirmed_by = Some(by.to_owned());
        self.put(&format!("gate/{scan}"), &gate).await?;
        Ok(gate)
    }

    /// Sets aside one act and its bytes from a scan's budget. False when that would cross a limit.
    ///
    /// # Errors
    /// When the store fails. It may be set aside then, and so it may when a process ends before it acts: the budget of that scan is
    /// smaller by it, never larger.
    pub async fn reserve(&self, scan: Uuid, bytes: u64, caps: &Caps) -> Result<bool, Failure> {
        self.change(&format!("budget/{scan}"), |budget: &mut Budget| {
            let (acts, all) = (budget.acts + 1, budget.bytes.saturating_add(bytes));
            if acts > caps.max_acts || all > caps.max_bytes {
                return false;
            }
            (budget.acts, budget.bytes) = (acts, all);
            true
        })
        .await
    }

    /// Gives back what was set aside for an act that was not begun.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn give_back(&self, scan: Uuid, bytes: u64) -> Result<(), Failure> {
        self.change(&format!("budget/{scan}"), |budget: &mut Budget| {
            (budget.acts, budget.bytes) = (budget.acts.saturating_sub(1), budget.bytes.saturating_sub(bytes));
        })
        .await
    }

    /// Adds an outcome to its scan's tally, once for each `id`: false when it was counted before.
    ///
    /// # Errors
    /// When the store fails; whether it was counted is not known then, and it may be tried again.
    pub async fn count(&self, id: &str, outcome: &Outcome) -> Result<bool, Failure> {
        let key = format!("{}{}", tally_of(outcome.scan.id), shard_of(id));
        let short: String = key_of("", id).chars().take(16).collect();
        self.change(&key, |part: &mut TallyPart| {
            if !part.counted.insert(short.clone()) {
                return false;
            }
            let tally = &mut part.tally;
            // An announcement is none of the acts that the scan proposes.
            if outcome.verdict == Verdict::Mark {
                tally.announced += 1;
                return true;
            }
            *tally.statuses.entry(outcome.status.name().to_owned()).or_default() += 1;
            tally.ledgers += outcome.freed.len() as u64;
            tally.bytes += outcome.freed_bytes;
            if outcome.status != Status::Done && tally.problems.len() < TALLY_PROBLEMS {
                let why = outcome.reasons.iter().map(|r| r.says.as_str()).collect::<Vec<_>>().join("; ");
                tally.problems.push(format!("{}: {}: {why}", outcome.subject, outcome.status.name()));
            }
            true
        })
        .await
    }

    /// A scan's tally.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn tally(&self, scan: Uuid) -> Result<Tally, Failure> {
        let mut all = Tally::default();
        // No more parts than there are shards.
        for document in self.store.list(BUCKET, &tally_of(scan), None, 1000).await? {
            let TallyPart { tally, .. } = read(&document)?;
            for (status, count) in tally.statuses {
                *all.statuses.entry(status).or_default() += count;
            }
            all.announced += tally.announced;
            all.ledgers += tally.ledgers;
            all.bytes += tally.bytes;
            all.problems.extend(tally.problems);
        }
        all.problems.truncate(TALLY_PROBLEMS);
        Ok(all)
    }

    /// Remembers a visit that falls due.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn revisit(&self, revisit: &Revisit) -> Result<(), Failure> {
        self.put(&format!("revisit/{}", key_of(&revisit.target, &revisit.subject)), revisit).await
    }

    /// Visits that are due, at most `limit`.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn due(&self, now_ms: i64, limit: usize) -> Result<Vec<Revisit>, Failure> {
        let (mut due, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self.store.list(BUCKET, "revisit/", after.as_deref(), 256).await?;
            let Some(last) = page.last() else { return Ok(due) };
            after = Some(last.key.clone());
            for document in &page {
                let revisit: Revisit = read(document)?;
                if revisit.due_ms <= now_ms && due.len() < limit {
                    due.push(revisit);
                }
            }
        }
    }

    /// Forgets a visit.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn visited(&self, revisit: &Revisit) -> Result<(), Failure> {
        let key = format!("revisit/{}", key_of(&revisit.target, &revisit.subject));
        Ok(self.store.delete(BUCKET, &key, Expect::Anything).await?)
    }
}

fn progress_key(scan: Uuid) -> String {
    format!("progress/{scan}")
}

fn shards_key(scan: Uuid, list: u64, page: usize) -> String {
    format!("shards/{scan}/{list}/{page}")
}

fn tally_of(scan: Uuid) -> String {
    format!("tally/{scan}/")
}

fn last_key(target: &str, scope: &Scope) -> String {
    let scope = serde_json::to_string(scope).unwrap_or_default();
    format!("last/{}", key_of(target, &scope))
}

fn whole_key(target: &str) -> String {
    format!("last/{}", key_of(target, "whole"))
}

/// Why the clocks forbid to act, if so: something was written later than now.
pub fn skewed(newest_ms: i64, behind_ms: i64, now_ms: i64, caps: &Caps) -> Option<String> {
    let ahead_ms = newest_ms.saturating_sub(now_ms);
    let most_ms = i64::try_from(caps.max_clock_skew.as_millis()).unwrap_or(i64::MAX);
    if behind_ms > most_ms {
        return Some(format!(
            "the target's clock is at least {} s behind ours, more than max_clock_skew ({} s): a node was written after we had last seen \
             it, and carries a time so long before that. Every age would be too high; set the clocks of this machine and of ZooKeeper's",
            behind_ms / 1000,
            most_ms / 1000
        ));
    }
    (ahead_ms > most_ms).then(|| {
        format!(
            "the target's newest node was written {} s from now, more than max_clock_skew ({} s): every age would be wrong. Set the clocks \
             of this machine and of ZooKeeper's",
            ahead_ms / 1000,
            most_ms / 1000
        )
    })
}

/// Why what a scan saw cannot be all there is, if so.
pub fn shrunk(report: &ScanReport, last_topics: Option<u64>, caps: &Caps) -> Option<String> {
    let last = last_topics.filter(|last| *last > 0)?;
    let shrunk = 1.0 - share(report.topics, last);
    (shrunk > caps.max_shrink).then(|| {
        format!(
            "the scan saw {} topics, the one before it {last}: {} fewer, more than max_shrink ({}). A partial listing looks \
             like this; if topics were really deleted, raise --max-shrink once",
            report.topics,
            percent(shrunk),
            percent(caps.max_shrink)
        )
    })
}

fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { part as f64 / of as f64 }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Why decisions of a followed scan must not be carried out before a person has looked, if so: what all of them propose together between
/// two scans of everything is what one of those may do.
fn over_followed(report: &ScanReport, whole: &Whole, others: Proposed, caps: &Caps) -> Option<String> {
    if whole.scan.is_nil() {
        let why = "no scan of everything is known that it could be compared with; the next one finds the same";
        return Some(why.to_owned());
    }
    let all = others.and(report.proposed);
    let together = "together with what followed scans have proposed since the last scan of everything";
    let until = "the next scan of everything begins anew";
    if all.acts > caps.max_acts {
        let most = caps.max_acts;
        return Some(format!("{together}, {} acts are more than max_acts ({most}); {until}", all.acts));
    }
    if all.bytes > caps.max_bytes {
        let most = caps.max_bytes;
        return Some(format!("{together}, {} bytes are more than max_bytes ({most}); {until}", all.bytes));
    }
    // Of nothing seen, nothing may be acted on.
    let of = |part: u64, of: u64| if of == 0 && part > 0 { 1.0 } else { share(part, of) };
    let (topics, bytes) = (of(all.acts, whole.user_topics), of(all.bytes, whole.bytes));
    (topics.max(bytes) > caps.max_share).then(|| {
        format!(
            "{together}, {} of its topics or subscribers of users and {} of its bytes would be acted on, more than max_share ({}); {until}",
            percent(topics),
            percent(bytes),
            percent(caps.max_share)
        )
    })
}

/// Why decisions of a scan must not be carried out before a person has looked, if so.
pub fn over_caps(report: &ScanReport, user_topics: u64, last_topics: Option<u64>, caps: &Caps) -> Option<String> {
    let proposed = report.proposed;
    if let Some(why) = shrunk(report, last_topics, caps) {
        return Some(why);
    }
    if proposed.acts > caps.max_acts {
        return Some(format!(
            "{} acts are more than max_acts ({}); raise --max-acts to allow them",
            proposed.acts, caps.max_acts
        ));
    }
    if proposed.bytes > caps.max_bytes {
        return Some(format!(
            "{} bytes are more than max_bytes ({}); raise --max-bytes to allow them",
            proposed.bytes, caps.max_bytes
        ));
    }
    let (all, what) = match &report.survey {
        Some(survey) => (survey.ledgers, "ledgers"),
        None => (user_topics, "topics or subscribers of users"),
    };
    let topics = share(proposed.acts, all);
    let bytes = share(proposed.bytes, report.bytes);
    let most = topics.max(bytes);
    (report.scope.topic.is_none() && most > caps.max_share).then(|| {
        format!(
            "{} of the {all} {what} and {} of the bytes seen would be acted on, more than max_share ({}); look at the \
             plan, and raise --max-share to allow it",
            percent(topics),
            percent(bytes),
            percent(caps.max_share)
        )
    })
}

#[cfg(test)]
mod tests {
    use trimtab_bus::SqliteStore;

    use super::*;

    /// A leader that was paused right before the gate, while a later one led the same scan to its end.
    #[tokio::test]
    async fn a_later_leaders_gate_stays() {
        let folder = tempfile::tempdir().unwrap();
        let scans = Scans::new(Arc::new(SqliteStore::open(folder.path().join("state.db")).unwrap()));
        let id = Uuid::now_v7();
        let ended = |fence: u64, stopped: Option<&str>| {
            let scan = ScanRef { id, fence };
            let stopped = stopped.map(str::to_owned);
            let report = ScanReport::begun(scan, "pulsar", &Scope::default(), 0);
            (Gate { scan, proposed: Proposed::default(), stopped, confirmed_by: None, incomplete: false }, report)
        };
        let (late, report) = ended(1, None);
        let (stopped, stopped_report) = ended(2, Some("too much"));
        scans.finish(&stopped, &stopped_report).await.unwrap();
        let refused = scans.finish(&late, &report).await.unwrap_err();
        assert!(matches!(refused, Failure::Failed { class: Class::Gone, .. }), "{refused}");
        assert_eq!(scans.gate(id).await.unwrap().as_ref(), Some(&stopped));
        // The other way round it is replaced, and a try that comes to its end again changes nothing.
        let (last, report) = ended(3, None);
        for _ in 0..2 {
            scans.finish(&last, &report).await.unwrap();
            assert_eq!(scans.gate(id).await.unwrap().as_ref(), Some(&last));
        }
    }

    /// However many small ones: together they may do what one scan of everything may.
    #[tokio::test]
    async fn followed_scans_share_the_limits_of_one() {
        let folder = tempfile::tempdir().unwrap();
        let scans = Scans::new(Arc::new(SqliteStore::open(folder.path().join("state.db")).unwrap()));
        let caps = Caps { max_acts: 10, max_bytes: 1_000, max_share: 0.5, ..Caps::default() };
        let report = |id: u128, acts: u64, bytes: u64| {
            let scan = ScanRef { id: Uuid::from_u128(id), fence: 1 };
            let proposed = Proposed { acts, ledgers: acts, bytes };
            // All that such a scan sees it may propose.
            ScanReport { proposed, topics: acts, bytes, ..ScanReport::begun(scan, "pulsar", &Scope::default(), 0) }
        };
        let follow = async |id, acts, bytes| scans.follow(&report(id, acts, bytes), &caps).await.unwrap();
        assert_eq!(follow(1, 0, 0).await, None);
        assert!(follow(2, 1, 1).await.unwrap().contains("no scan of everything"));
        let end = async |id: u128, stopped: Option<&str>| {
            let (scan, stopped) = (ScanRef { id: Uuid::from_u128(id), fence: 1 }, stopped.map(str::to_owned));
            let gate = Gate { scan, proposed: Proposed::default(), stopped, confirmed_by: None, incomplete: false };
            scans.finish(&gate, &ScanReport::begun(scan, "pulsar", &Scope::default(), 0)).await.unwrap();
        };
        let whole = async |user_topics, bytes| {
            let whole = Whole { scan: Uuid::from_u128(9), user_topics, bytes, ..Whole::default() };
            scans.set_whole("pulsar", &whole).await.unwrap();
        };
        whole(100, 100_000).await;
        assert!(follow(3, 6, 10).await.unwrap().contains("not come to its end"));
        end(9, Some("too much")).await;
        assert!(follow(3, 6, 10).await.unwrap().contains("too much"));
        scans.confirm(Uuid::from_u128(9), "somebody").await.unwrap();
        assert_eq!(follow(3, 6, 10).await, None);
        assert_eq!(follow(4, 4, 10).await, None);
        // One that comes to its end again counts once; one that was stopped counts for nothing.
        assert_eq!(follow(4, 4, 10).await, None);
        assert!(follow(5, 1, 10).await.unwrap().contains("max_acts"));
        whole(100, 100_000).await;
        assert_eq!(follow(6, 1, 990).await, None);
        assert!(follow(7, 1, 11).await.unwrap().contains("max_bytes"));
        assert_eq!(follow(8, 1, 10).await, None);
        whole(10, 1_000).await;
        assert_eq!(follow(10, 5, 10).await, None);
        assert!(follow(11, 1, 10).await.unwrap().contains("max_share"));
        whole(0, 0).await;
        assert!(follow(12, 1, 0).await.unwrap().contains("max_share"));
    }
}
