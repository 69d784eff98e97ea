//! When topics fall due by time alone: one bounded document of the store for each shard. Written by whoever reads the shard, read by
//! whoever follows changes.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::warn;
use trimtab_bus::{BusError, Expect, Store};
use trimtab_events::{Decision, LedgerCandidate, Scope, key_of};
use trimtab_policy::{Context, Policy};
use trimtab_targets::Class;
use uuid::Uuid;

use crate::scans::BUCKET;
use crate::worker::Failure;

/// Topics of a shard that are listed with their moments.
const LISTED: usize = 4_000;
/// Bytes of their names: with everything else a document stays well below what one may have.
const LISTED_BYTES: usize = 224 * 1024;
/// Proposals of a shard that are remembered between two full scans.
const PROPOSALS: usize = 1_000;
/// Bytes of the names of their topics.
const PROPOSALS_BYTES: usize = 64 * 1024;
/// How long a shard that could not be read is left alone at first. Doubled each time.
const FAILED_MS: i64 = 10 * 60_000;
/// How often it is doubled at most: ten minutes become ten hours.
const DOUBLED: u32 = 6;

/// What is known of a shard. Topics are named without what they have in common, `persistent://` and the shard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Known {
    target: String,
    shard: String,
    /// Moments, milliseconds since 1970, with the topics that fall due at them.
    due: BTreeSet<(i64, String)>,
    /// The earliest moment of a topic that is not listed.
    more_ms: Option<i64>,
    /// What followed scans have proposed since the last full scan.
    proposed: BTreeMap<String, Proposal>,
    /// How often in a row the shard could not be read.
    failures: u32,
}

/// What was proposed about a topic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Proposal {
    digest: String,
    scan: Uuid,
}

impl Known {
    fn first_ms(&self) -> Option<i64> {
        let listed = self.due.first().map(|(at, _)| *at);
        listed.into_iter().chain(self.more_ms).min()
    }

    fn list(&mut self, at_ms: i64, name: String, bytes: &mut usize) {
        *bytes += size(&name);
        self.due.insert((at_ms, name));
        while self.due.len() > LISTED || *bytes > LISTED_BYTES {
            let Some((at_ms, name)) = self.due.pop_last() else { return };
            *bytes -= size(&name);
            self.more_ms = Some(self.more_ms.map_or(at_ms, |more| more.min(at_ms)));
        }
    }
}

/// What fell due in a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fallen {
    /// These topics.
    pub(crate) topics: Vec<String>,
    /// Or all of it.
    pub(crate) whole: bool,
}

/// The documents of a target.
#[derive(Clone)]
pub(crate) struct DueIndex {
    store: Arc<dyn Store>,
    target: String,
}

impl DueIndex {
    pub(crate) fn new(store: Arc<dyn Store>, target: &str) -> DueIndex {
        DueIndex { store, target: target.to_owned() }
    }

    fn key(&self, shard: &str) -> String {
        format!("due/{}", key_of(&self.target, shard))
    }

    async fn read(&self, shard: &str) -> Result<(Known, Expect), Failure> {
        let key = self.key(shard);
        let fresh = || Known { target: self.target.clone(), shard: shard.to_owned(), ..Known::default() };
        let Some(document) = self.store.get(BUCKET, &key).await? else { return Ok((fresh(), Expect::Absent)) };
        let expect = Expect::Revision(document.revision);
        match serde_json::from_slice::<Known>(&document.value) {
            Ok(known) if known.target == self.target && known.shard == shard => Ok((known, expect)),
            // The next full scan writes it anew; until then all of the shard is looked at.
            _ => {
                warn!(shard, key, "what falls due in a shard cannot be read: it is taken to be all of it");
                Ok((Known { more_ms: Some(0), ..fresh() }, expect))
            }
        }
    }

    async fn write(&self, known: &Known, expect: Expect) -> Result<(), BusError> {
        let value = serde_json::to_vec(known).unwrap_or_default();
        self.store.put(BUCKET, &self.key(&known.shard), &value, expect).await.map(|_| ())
    }

    async fn change(&self, shard: &str, by: impl Fn(&mut Known)) -> Result<(), Failure> {
        for _ in 0..100 {
            let (mut known, expect) = self.read(shard).await?;
            by(&mut known);
            match self.write(&known, expect).await {
                Err(BusError::Conflict { .. }) => {}
                written => return Ok(written?),
            }
        }
        Err(Failure::new(Class::Transient, format!("what falls due in {shard} kept changing")))
    }

    /// When something in each shard falls due, for those in which anything does.
    pub(crate) async fn earliest(&self) -> Result<BTreeMap<String, i64>, Failure> {
        let (mut all, mut after) = (BTreeMap::new(), None::<String>);
        loop {
            // A document may be large, so few of them at once.
            let page = self.store.list(BUCKET, "due/", after.as_deref(), 32).await?;
            let Some(last) = page.last() else { return Ok(all) };
            after = Some(last.key.clone());
            for document in &page {
                match serde_json::from_slice::<Known>(&document.value) {
                    Ok(known) if known.target == self.target => {
                        if let Some(at) = known.first_ms() {
                            all.insert(known.shard, at);
                        }
                    }
                    Ok(_) => {}
                    Err(e) => warn!(key = document.key, error = %e, "what falls due in a shard cannot be read"),
                }
            }
        }
    }

    /// When something in a shard falls due.
    pub(crate) async fn first_ms(&self, shard: &str) -> Result<Option<i64>, Failure> {
        Ok(self.read(shard).await?.0.first_ms())
    }

    /// What of a shard is due by now.
    pub(crate) async fn fallen(&self, shard: &str, now_ms: i64) -> Result<Fallen, Failure> {
        let (known, _) = self.read(shard).await?;
        if known.more_ms.is_some_and(|more| more <= now_ms) {
            return Ok(Fallen { topics: Vec::new(), whole: true });
        }
        let due = known.due.iter().take_while(|(at, _)| *at <= now_ms);
        Ok(Fallen { topics: due.map(|(_, name)| subject_of(shard, name)).collect(), whole: false })
    }

    /// Begins to note what a scan sees of a shard. None where it looks at what it was not told by name: nothing that is noted is
    /// touched then.
    pub(crate) async fn begin(
        &self,
        shard: &str,
        scan: Uuid,
        scope: &Scope,
        follows: bool,
        until_ms: i64,
    ) -> Result<Option<Noting>, Failure> {
        let Some(part) = Part::of(scope, shard) else { return Ok(None) };
        // One scan of a target at a time: nobody else writes this meanwhile.
        let proposed = if follows { self.read(shard).await?.0.proposed } else { BTreeMap::new() };
        let proposed_bytes = proposed.keys().map(|name| size(name)).sum();
        let noted = Known { target: self.target.clone(), shard: shard.to_owned(), proposed, ..Known::default() };
        let index = self.clone();
        Ok(Some(Noting { index, part, follows, scan, until_ms, noted, listed_bytes: 0, proposed_bytes, full: false }))
    }

    /// Notes that what was to be looked at could not be read: it is due again later, and later each time.
    pub(crate) async fn failed(&self, shard: &str, scope: &Scope, now_ms: i64) -> Result<(), Failure> {
        let part = Part::of(scope, shard);
        self.change(shard, |known| {
            let at_ms = now_ms.saturating_add(FAILED_MS << known.failures.min(DOUBLED));
            known.failures = known.failures.saturating_add(1);
            match &part {
                Some(Part::Topics(names)) if !names.is_empty() => {
                    known.due.retain(|(_, name)| !names.contains(name));
                    let mut bytes = known.due.iter().map(|(_, name)| size(name)).sum();
                    for name in names {
                        known.list(at_ms, name.clone(), &mut bytes);
                    }
                }
                Some(_) => known.more_ms = Some(at_ms),
                None => {}
            }
        })
        .await
    }
}

/// Bytes of a name in a document.
fn size(name: &str) -> usize {
    let escaped = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    name.bytes().map(|byte| if escaped(byte) { 6 } else { 1 }).sum()
}

fn subject_of(shard: &str, name: &str) -> String {
    format!("persistent://{shard}/{name}")
}

fn name_of<'a>(shard: &str, subject: &'a str) -> Option<&'a str> {
    subject.strip_prefix("persistent://")?.strip_prefix(shard)?.strip_prefix('/')
}

/// What of a shard is looked at.
enum Part {
    Whole,
    /// These and those that are seen.
    Topics(HashSet<String>),
}

impl Part {
    fn of(scope: &Scope, shard: &str) -> Option<Part> {
        if scope.whole_namespaces() {
            return Some(Part::Whole);
        }
        let named = scope.topic.is_some() || !scope.topics.is_empty();
        let by_name = named && scope.include.is_empty() && scope.exclude.is_empty();
        let names = scope.topics.iter().filter_map(|topic| {
            let topic = topic.strip_prefix("persistent://").unwrap_or(topic);
            Some(topic.strip_prefix(shard)?.strip_prefix('/')?.to_owned())
        });
        by_name.then(|| Part::Topics(names.collect()))
    }
}

/// What a scan notes of one shard while it reads it.
pub(crate) struct Noting {
    index: DueIndex,
    part: Part,
    follows: bool,
    /// Later moments are left to a later full scan.
    until_ms: i64,
    scan: Uuid,
    noted: Known,
    listed_bytes: usize,
    proposed_bytes: usize,
    full: bool,
}

impl Noting {
    /// Notes a topic, and what was decided about it. True when the same was proposed before by a scan of this kind: it is then left to the
    /// next full scan.
    pub(crate) fn see(
        &mut self,
        topic: &LedgerCandidate,
        decision: &Decision,
        policy: &Policy,
        context: &Context<'_>,
    ) -> bool {
        let Some(name) = name_of(&self.noted.shard, &topic.subject) else { return false };
        if let Some(at_ms) = trimtab_policy::due(topic, policy, context, self.until_ms) {
            self.noted.list(at_ms, name.to_owned(), &mut self.listed_bytes);
        }
        if let Part::Topics(names) = &mut self.part {
            names.insert(name.to_owned());
        }
        if !self.follows {
            return false;
        }
        if !decision.verdict.acts() {
            if self.noted.proposed.remove(name).is_some() {
                self.proposed_bytes -= size(name);
            }
            return false;
        }
        let digest = digest_of(decision);
        if let Some(before) = self.noted.proposed.get_mut(name) {
            // A scan that is read again after a crash proposes what it has proposed.
            let again = before.digest == digest && before.scan != self.scan;
            *before = Proposal { digest, scan: if again { before.scan } else { self.scan } };
            return again;
        }
        if self.noted.proposed.len() >= PROPOSALS || self.proposed_bytes + size(name) > PROPOSALS_BYTES {
            if !std::mem::replace(&mut self.full, true) {
                let shard = &self.noted.shard;
                warn!(
                    shard,
                    "more is proposed in this shard than is remembered; the rest is left to the next full scan"
                );
            }
            return true;
        }
        self.proposed_bytes += size(name);
        self.noted.proposed.insert(name.to_owned(), Proposal { digest, scan: self.scan });
        false
    }

    /// Ends the shard, which was read to its end.
    pub(crate) async fn finish(self) -> Result<(), Failure> {
        let Noting { index, part, noted, follows, .. } = self;
        match part {
            Part::Whole => {
                let (_, expect) = index.read(&noted.shard).await?;
                if expect == Expect::Absent && noted.first_ms().is_none() && noted.proposed.is_empty() {
                    return Ok(());
                }
                Ok(index.write(&noted, Expect::Anything).await?)
            }
            Part::Topics(names) => {
                index
                    .change(&noted.shard, |known| {
                        known.due.retain(|(_, name)| !names.contains(name));
                        let mut bytes = known.due.iter().map(|(_, name)| size(name)).sum();
                        for (at_ms, name) in &noted.due {
                            known.list(*at_ms, name.clone(), &mut bytes);
                        }
                        known.more_ms = known.more_ms.into_iter().chain(noted.more_ms).min();
                        known.failures = 0;
                        if follows {
                            known.proposed.clone_from(&noted.proposed);
                        }
                    })
                    .await
            }
        }
    }
}

/// What a decision does, whenever it is made.
fn digest_of(decision: &Decision) -> String {
    let Decision { verdict, ledgers, offloaded_copies, expire, .. } = decision;
    let expire: Vec<_> = expire.iter().map(|expire| (&expire.subscription, expire.ttl_s)).collect();
    let what = format!("{verdict} {ledgers:?} {offloaded_copies:?} {expire:?}");
    key_of("proposal", &what).chars().take(16).collect()
}

/// For how long a full scan notes what falls due: until after the next but one, so that one that is late or fails leaves no gap.
pub(crate) fn horizon_ms(now_ms: i64, every: Duration) -> i64 {
    now_ms.saturating_add(i64::try_from(every.as_millis()).unwrap_or(i64::MAX).saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use trimtab_bus::SqliteStore;
    use trimtab_events::{
        Evidence, LastLedger, LedgerInfo, Level, Loaded, Partition, Policies, Retention, ScanRef, Seen, Setting,
        TopicClass, Trigger,
    };
    use trimtab_policy::{PolicyConfig, decide};

    use super::*;

    const HOUR: i64 = 3_600_000;
    const NOW: i64 = 1_800_000_000_000;
    const SHARD: &str = "t/n";

    /// A topic of which the first of two ledgers was closed so long ago; retention is an hour.
    fn topic(name: &str, closed_ms_ago: i64) -> LedgerCandidate {
        let ledger = |id, closed_ms| LedgerInfo { id, entries: Some(1), bytes: Some(10), closed_ms, offload: None };
        let last = LedgerInfo { entries: None, bytes: None, ..ledger(2, 0) };
        let level = Level::Namespace;
        LedgerCandidate {
            subject: subject_of(SHARD, name),
            class: TopicClass::User,
            seen: Seen { version: 1, created_zxid: 1, modified_zxid: 1, modified_ms: NOW },
            partition: Partition::None,
            ledgers: Evidence::Present(vec![ledger(1, NOW - closed_ms_ago), last]),
            last: LastLedger::Closed { entries: 1, bytes: 10, closed_ms: NOW },
            loaded: Loaded::No,
            cursors: Evidence::Absent,
            terminated: false,
            shadow: false,
            policies: Evidence::Present(Policies {
                deleted: false,
                retention: Setting { value: Retention { minutes: 60, mib: -1 }, level },
                ttl_s: Setting { value: 0, level },
                offload_deletion_lag_ms: -1,
                subscription_expiration_minutes: None,
                topic_level_unknown: None,
            }),
        }
    }

    fn index() -> (tempfile::TempDir, DueIndex) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(folder.path().join("state.db")).unwrap();
        (folder, DueIndex::new(Arc::new(store), "pulsar"))
    }

    fn scope(names: &[&str]) -> Scope {
        Scope { topics: names.iter().map(|name| subject_of(SHARD, name)).collect(), ..Scope::default() }
    }

    /// Reads these topics in one scan; which of them were proposed before.
    async fn scan(
        index: &DueIndex,
        id: u128,
        (scope, trigger): (Scope, Trigger),
        seen: &[(&str, i64)],
        now_ms: i64,
    ) -> Vec<bool> {
        let policy = Policy::new(PolicyConfig::default(), "test").unwrap();
        let scan = ScanRef { id: Uuid::from_u128(id), fence: 1 };
        let context = Context { scan, target: "pulsar", now_ms };
        let mut noting =
            index.begin(SHARD, scan.id, &scope, trigger.follows(), NOW + 48 * HOUR).await.unwrap().unwrap();
        let again = |(name, closed): &(&str, i64)| {
            let topic = topic(name, *closed);
            noting.see(&topic, &decide(&topic, &policy, &context), &policy, &context)
        };
        let again = seen.iter().map(again).collect();
        noting.finish().await.unwrap();
        again
    }

    async fn due(index: &DueIndex, now_ms: i64) -> Vec<String> {
        let fallen = index.fallen(SHARD, now_ms).await.unwrap();
        assert!(!fallen.whole);
        fallen.topics.into_iter().map(|topic| topic.rsplit('/').next().unwrap().to_owned()).collect()
    }

    #[tokio::test]
    async fn what_a_scan_of_some_topics_sees_replaces_what_was_known_of_them() {
        let (_folder, index) = index();
        let all = (Scope::default(), Trigger::Timer);
        // Due in 50, 30 and 10 minutes; the last one is due now and will not change.
        let minutes = |n: i64| n * 60_000;
        let seen = [("a", minutes(10)), ("b", minutes(30)), ("c", minutes(50)), ("d", 2 * HOUR)];
        scan(&index, 1, all, &seen, NOW).await;
        assert_eq!(index.first_ms(SHARD).await.unwrap(), Some(NOW + minutes(10) + 1));
        assert_eq!(index.earliest().await.unwrap(), BTreeMap::from([(SHARD.to_owned(), NOW + minutes(10) + 1)]));
        assert_eq!(due(&index, NOW + minutes(10)).await, [""; 0]);
        assert_eq!(due(&index, NOW + minutes(30) + 1).await, ["c", "b"]);
        // One is gone, one has a newer ledger now, the third was not looked at.
        scan(&index, 2, (scope(&["b", "c"]), Trigger::Due), &[("c", minutes(1))], NOW).await;
        assert_eq!(due(&index, NOW + HOUR).await, ["a", "c"]);
        // Globs see some topics of a shard, and cannot say which are gone.
        let globs = Scope { include: vec!["**".into()], ..Scope::default() };
        assert!(index.begin(SHARD, Uuid::nil(), &globs, false, NOW).await.unwrap().is_none());
        // A full scan knows best.
        scan(&index, 3, (Scope::default(), Trigger::Timer), &[], NOW).await;
        assert_eq!((index.first_ms(SHARD).await.unwrap(), index.earliest().await.unwrap().len()), (None, 0));
    }

    #[tokio::test]
    async fn the_same_proposal_is_made_once_between_two_full_scans() {
        let (_folder, index) = index();
        let old = [("a", 2 * HOUR), ("b", 0)];
        let some = || (scope(&["a", "b"]), Trigger::Change);
        assert_eq!(scan(&index, 1, some(), &old, NOW).await, [false, false]);
        // The same scan, delivered again after a crash, and another one.
        assert_eq!(scan(&index, 1, some(), &old, NOW).await, [false, false]);
        assert_eq!(scan(&index, 2, some(), &old, NOW).await, [true, false]);
        // After it had nothing to propose, it may.
        assert_eq!(scan(&index, 3, some(), &[("a", 0)], NOW).await, [false]);
        assert_eq!(scan(&index, 4, some(), &old, NOW).await, [false, false]);
        let full = (Scope::default(), Trigger::Timer);
        assert_eq!(scan(&index, 5, full, &old, NOW).await, [false, false]);
        assert_eq!(scan(&index, 6, some(), &old, NOW).await, [false, false]);
    }

    #[tokio::test]
    async fn more_than_is_listed_makes_the_whole_shard_due_in_its_time() {
        let (_folder, index) = index();
        let names: Vec<String> = (0..LISTED + 2).map(|n| format!("{n:05}")).collect();
        let seen: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), name.parse::<i64>().unwrap())).collect();
        scan(&index, 1, (Scope::default(), Trigger::Timer), &seen, NOW).await;
        // Who was closed longest ago is due first, so the first two of the list are left out.
        let first_out = NOW + HOUR + 1 - 1;
        assert_eq!(due(&index, first_out - 1).await.len(), LISTED);
        assert!(index.fallen(SHARD, first_out).await.unwrap().whole);
    }

    #[tokio::test]
    async fn a_document_is_never_too_large() {
        let (_folder, index) = index();
        let names: Vec<String> = (0..5_000).map(|n| format!("{n:05}{}", "\u{1}\"ü".repeat(20))).collect();
        let seen: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 0)).collect();
        let old: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 2 * HOUR)).collect();
        scan(&index, 1, (Scope::default(), Trigger::Timer), &seen, NOW).await;
        let again = scan(&index, 2, (scope(&["x"]), Trigger::Change), &old, NOW).await;
        assert!(!again[0] && again[4_999], "what is not remembered is not proposed");
        let document = index.store.get(BUCKET, &index.key(SHARD)).await.unwrap().unwrap();
        assert!(document.value.len() < trimtab_bus::MAX_VALUE_BYTES, "{}", document.value.len());
    }

    #[tokio::test]
    async fn what_could_not_be_read_is_due_again_later_and_later() {
        let (_folder, index) = index();
        let minutes = |n: i64| n * 60_000;
        index.failed(SHARD, &scope(&["x"]), NOW).await.unwrap();
        assert_eq!(due(&index, NOW + minutes(10)).await, ["x"]);
        index.failed(SHARD, &Scope::default(), NOW).await.unwrap();
        assert!(!index.fallen(SHARD, NOW + minutes(20) - 1).await.unwrap().whole);
        assert!(index.fallen(SHARD, NOW + minutes(20)).await.unwrap().whole);
        for _ in 0..40 {
            index.failed(SHARD, &Scope::default(), NOW).await.unwrap();
        }
        assert!(index.fallen(SHARD, NOW + 11 * HOUR).await.unwrap().whole);
        scan(&index, 1, (Scope::default(), Trigger::Timer), &[], NOW).await;
        index.failed(SHARD, &Scope::default(), NOW).await.unwrap();
        assert!(index.fallen(SHARD, NOW + minutes(10)).await.unwrap().whole);
    }
}
