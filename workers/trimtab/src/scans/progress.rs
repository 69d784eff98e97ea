//! How far a scan is: one document, which whoever has read a shard adds it to, by compare-and-set and once.

use std::collections::BTreeMap;
use std::ops::Range;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use serde::{Deserialize, Serialize};
use trimtab_events::{ScanRef, ScanReport, Trigger};

/// Shards in a page of the list, and in what is emitted at once.
pub const SHARDS_PAGE: usize = 64;
/// When fewer are under way than this, the next page is emitted.
const UNDER_WAY: u32 = SHARDS_PAGE as u32 / 2;
/// How long nothing is heard of any shard before those that are missing are emitted again. Each further time it is twice as long: whoever reads a
/// large shard says nothing, and those that wait for a reader are not lost.
const QUIET_MS: i64 = 30 * 1000;
/// How often it is twice as long at most: about an hour.
const QUIET_MOST: u32 = 7;
/// Shards that could not be read and are named with the reason: a document and an event have a limit.
const FAILED: usize = 500;
/// Bytes of such a reason.
const WHY: usize = 300;

/// How far a scan is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Who asked for it.
    pub trigger: Trigger,
    /// What its finished shards came to. Names the scan as it is led.
    pub report: ScanReport,
    /// Topics of users in them.
    pub user_topics: u64,
    /// The latest time that a node was written, as the target's clock says.
    pub newest_ms: i64,
    /// How far the target's clock is behind ours at least.
    pub behind_ms: i64,
    /// Shards that could not be read and are not named in the report.
    pub more_failed: u64,
    /// Fencing number under which the list of its shards is stored.
    pub list: u64,
    /// How many they are.
    pub shards: u32,
    /// The first so many of them were emitted.
    pub emitted: u32,
    /// Those that are finished.
    done: Bits,
    /// Acts of which candidates were emitted, of shards that are not finished.
    under_way: BTreeMap<u32, u64>,
    /// How often those that were missing were emitted again.
    pub round: u32,
    /// How often since the last one was finished.
    quiet: u32,
    /// When one was finished, or those that were missing were emitted, the last time; milliseconds since 1970.
    at_ms: i64,
}

/// What one shard came to.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its counts, as the report of a scan of it alone. Names the scan as whoever read it was told.
    pub report: ScanReport,
    /// See [`Progress`].
    pub user_topics: u64,
    /// See [`Progress`].
    pub newest_ms: i64,
    /// See [`Progress`].
    pub behind_ms: i64,
}

/// What became of a [`Part`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Merged {
    /// It is in the report now. Those shards that are to be emitted next, if it is time.
    In(Option<Range<u32>>),
    /// The shard was finished before.
    Before,
    /// The scan is led anew since it was emitted: whoever leads has emitted it again.
    Outdated,
}

/// Bits by number, base64 in JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Bits(Vec<u8>);

impl Bits {
    fn get(&self, index: u32) -> bool {
        self.0.get(index as usize / 8).is_some_and(|byte| byte & (1 << (index % 8)) != 0)
    }

    fn set(&mut self, index: u32) {
        let byte = index as usize / 8;
        if self.0.len() <= byte {
            self.0.resize(byte + 1, 0);
        }
        self.0[byte] |= 1 << (index % 8);
    }
}

impl Serialize for Bits {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Bits, D::Error> {
        let text = String::deserialize(from)?;
        BASE64.decode(text).map(Bits).map_err(serde::de::Error::custom)
    }
}

impl Progress {
    /// A scan of so many shards that has seen nothing yet.
    pub fn begun(trigger: Trigger, report: ScanReport, shards: u32) -> Progress {
        Progress {
            trigger,
            user_topics: 0,
            newest_ms: 0,
            behind_ms: 0,
            more_failed: 0,
            list: report.scan.fence,
            shards,
            emitted: shards.min(SHARDS_PAGE as u32),
            done: Bits::default(),
            under_way: BTreeMap::new(),
            round: 0,
            quiet: 0,
            at_ms: report.started_ms,
            report,
        }
    }

    /// Whether all shards are in.
    pub fn finished(&self) -> bool {
        self.report.shards >= u64::from(self.shards)
    }

    /// Whether a shard is in.
    pub fn is_done(&self, index: u32) -> bool {
        self.done.get(index)
    }

    /// Those that were emitted and are not in.
    pub fn missing(&self) -> Vec<u32> {
        (0..self.emitted).filter(|index| !self.done.get(*index)).collect()
    }

    /// Acts that were proposed by finished shards, and emitted by others than this one.
    pub fn acts_but(&self, index: u32) -> u64 {
        let others: u64 = self.under_way.iter().filter(|(other, _)| **other != index).map(|(_, acts)| acts).sum();
        self.report.proposed.acts.saturating_add(others)
    }

    /// Sets aside room for all acts that a shard has emitted candidates of so far, in the place of what was for whoever read it before. False
    /// when all shards together would have emitted more than `most`.
    pub fn admit(&mut self, index: u32, acts: u64, most: u64) -> bool {
        let fits = !self.done.get(index) && self.acts_but(index).saturating_add(acts) <= most;
        if fits {
            self.under_way.insert(index, acts);
        }
        fits
    }

    /// Adds a shard, once, and by whoever was told to read it by the present leader.
    pub fn merge(&mut self, index: u32, part: &Part, now_ms: i64) -> Merged {
        if self.done.get(index) {
            return Merged::Before;
        }
        if self.report.scan != part.report.scan {
            return Merged::Outdated;
        }
        self.done.set(index);
        self.under_way.remove(&index);
        self.add(part);
        (self.quiet, self.at_ms) = (0, now_ms);
        let under_way = u64::from(self.emitted).saturating_sub(self.report.shards);
        if self.emitted == self.shards || under_way >= u64::from(UNDER_WAY) {
            return Merged::In(None);
        }
        let from = self.emitted;
        self.emitted = from.saturating_add(SHARDS_PAGE as u32).min(self.shards);
        Merged::In(Some(from..self.emitted))
    }

    fn add(&mut self, part: &Part) {
        let (to, from) = (&mut self.report, &part.report);
        to.complete &= from.complete;
        to.shards += 1;
        for (shard, why) in &from.failed_shards {
            if to.failed_shards.len() < FAILED {
                let end = why.floor_char_boundary(WHY);
                to.failed_shards.insert(shard.clone(), why[..end].to_owned());
            } else {
                self.more_failed += 1;
            }
        }
        to.topics += from.topics;
        to.bytes = to.bytes.saturating_add(from.bytes);
        to.unknown += from.unknown;
        for (to, from) in [(&mut to.verdicts, &from.verdicts), (&mut to.subscribers, &from.subscribers)] {
            from.iter().for_each(|(verdict, count)| *to.entry(verdict.clone()).or_default() += count);
        }
        if from.survey.is_some() {
            to.survey.clone_from(&from.survey);
        }
        to.proposed = to.proposed.and(from.proposed);
        to.candidates += from.candidates;
        to.operations += from.operations;
        self.user_topics += part.user_topics;
        self.newest_ms = self.newest_ms.max(part.newest_ms);
        self.behind_ms = self.behind_ms.max(part.behind_ms);
    }

    /// Has the scan led under a later lease: what is missing is emitted anew.
    pub fn led(&mut self, scan: ScanRef, now_ms: i64) {
        self.report.scan = scan;
        self.round += 1;
        (self.quiet, self.at_ms) = (0, now_ms);
    }

    /// Whether so long nothing was heard that what is missing is to be emitted again. From now on it is counted anew.
    pub fn lost(&mut self, now_ms: i64) -> bool {
        // Long from now was a clock that was wrong.
        let quiet = now_ms.abs_diff(self.at_ms);
        let lost = quiet > (QUIET_MS << self.quiet.min(QUIET_MOST)).unsigned_abs();
        if lost {
            self.round += 1;
            self.quiet += 1;
            self.at_ms = now_ms;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use trimtab_events::{Proposed, Scope};
    use uuid::Uuid;

    use super::*;

    fn scan(fence: u64) -> ScanRef {
        ScanRef { id: Uuid::nil(), fence }
    }

    fn progress(shards: u32) -> Progress {
        Progress::begun(Trigger::Cli, ScanReport::begun(scan(1), "t", &Scope::default(), 0), shards)
    }

    fn part(fence: u64, acts: u64) -> Part {
        let mut report = ScanReport::begun(scan(fence), "t", &Scope::default(), 0);
        (report.topics, report.proposed) = (1, Proposed { acts, ..Proposed::default() });
        Part { report, user_topics: 1, newest_ms: 5, behind_ms: 0 }
    }

    /// However often and in whatever order shards come in, and wherever the document is stored in between.
    #[test]
    fn each_shard_counts_once_and_at_most_a_page_and_a_half_is_under_way() {
        let mut progress = progress(1000);
        let (mut waiting, mut seen): (Vec<u32>, Vec<u32>) = ((0..64).collect(), Vec::new());
        while let Some(index) = waiting.pop() {
            assert!(waiting.len() < 96, "{} under way", waiting.len());
            match progress.merge(index, &part(1, 2), 0) {
                Merged::In(Some(next)) => {
                    assert_eq!((next.start % 64, next.end), (0, (next.start + 64).min(1000)));
                    assert_eq!(progress.emitted, next.end);
                    waiting.extend(next);
                }
                other => assert_eq!(other, Merged::In(None)),
            }
            seen.push(index);
            assert_eq!(progress.merge(index, &part(1, 2), 0), Merged::Before);
            let stored = serde_json::to_vec(&progress).unwrap();
            progress = serde_json::from_slice(&stored).unwrap();
            assert_eq!(progress.finished(), seen.len() == 1000);
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..1000));
        let report = &progress.report;
        assert_eq!(
            (report.shards, report.topics, report.proposed.acts, progress.user_topics),
            (1000, 1000, 2000, 1000)
        );
    }

    #[test]
    fn what_was_read_for_an_earlier_leader_counts_nothing() {
        let mut progress = progress(2);
        progress.led(scan(2), 0);
        assert_eq!(progress.merge(0, &part(1, 1), 0), Merged::Outdated);
        assert_eq!((progress.missing(), progress.report.shards), (vec![0, 1], 0));
        assert_eq!(progress.merge(0, &part(2, 1), 0), Merged::In(None));
        assert_eq!(progress.missing(), [1]);
    }

    #[test]
    fn all_shards_together_emit_no_more_than_the_limit() {
        let mut progress = progress(3);
        assert!(progress.admit(0, 6, 10) && progress.admit(1, 4, 10));
        assert!(!progress.admit(2, 1, 10));
        // Whoever reads it again has its place.
        assert!(progress.admit(0, 5, 10) && progress.admit(2, 1, 10) && !progress.admit(2, 2, 10));
        assert_eq!(progress.merge(1, &part(1, 40), 0), Merged::In(None));
        assert!(!progress.admit(0, 1, 10), "what a shard proposes counts whether it was emitted or not");
    }

    #[test]
    fn what_is_missing_is_emitted_again_ever_more_seldom() {
        let mut progress = progress(2);
        let mut again = Vec::new();
        for minute in 0..600 {
            if progress.lost(minute * 60_000) {
                again.push(minute);
            }
        }
        assert_eq!(again, [1, 3, 6, 11, 20, 37, 70, 135, 200, 265, 330, 395, 460, 525, 590]);
        let _ = progress.merge(0, &part(1, 0), 600 * 60_000);
        assert!(!progress.lost(600 * 60_000 + 30_000) && progress.lost(600 * 60_000 + 30_001));
    }

    #[test]
    fn a_cluster_that_cannot_be_read_at_all_fits_a_document() {
        let mut progress = progress(20_000);
        for index in 0..20_000 {
            let mut part = part(1, 0);
            part.report.complete = false;
            part.report.failed_shards.insert(format!("tenant/namespace-{index}"), "ä".repeat(5_000));
            let _ = progress.merge(index, &part, 0);
        }
        assert!(!progress.report.complete && progress.more_failed == 19_500);
        assert!(serde_json::to_vec(&progress).unwrap().len() < trimtab_bus::MAX_VALUE_BYTES / 2);
    }
}
