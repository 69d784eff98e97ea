//! What earlier scans saw of ledgers that nothing names. A document has those of one range of ids; a scan meets them in order of id, so it
//! holds one document whatever their number. What a scan does not find unnamed any more is forgotten: it was named in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trimtab_bus::{Expect, Store};
use trimtab_events::{Decision, OrphanCandidate, Seen, Sighting, Verdict};
use trimtab_targets::Class;
use uuid::Uuid;

use crate::worker::Failure;

pub(crate) const BUCKET: &str = "sightings";
/// Ids of one document: about a quarter of a megabyte when every one of them was seen as often as is kept.
const RANGE: i64 = 500;
/// Sightings kept of each ledger: the first, and the latest.
pub(crate) const KEPT: usize = 8;
/// Documents looked at at once for being out of date.
const LISTED: usize = 16;

/// What is remembered of one ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    /// The version of its node.
    seen: Seen,
    /// Scans that saw it so, with their times, oldest first.
    scans: Vec<(Uuid, i64)>,
}

/// The sightings of one target's ledgers during one scan. Ledgers come in order of id.
pub(crate) struct Sightings {
    store: Arc<dyn Store>,
    target: String,
    /// Whether what is seen is remembered: only when everything is looked at.
    record: bool,
    scan: Uuid,
    range: Option<i64>,
    /// Of its document: who reads the same at the same time must not write over what another has written.
    revision: Option<u64>,
    old: BTreeMap<i64, Known>,
    new: BTreeMap<i64, Known>,
    /// Every document up to this one is of this scan.
    after: Option<String>,
}

impl Sightings {
    pub(crate) fn new(store: Arc<dyn Store>, target: &str, scan: Uuid, record: bool) -> Sightings {
        let (old, new) = (BTreeMap::new(), BTreeMap::new());
        Sightings { store, target: target.to_owned(), record, scan, range: None, revision: None, old, new, after: None }
    }

    fn prefix(&self) -> String {
        format!("{}/", self.target)
    }

    fn key(&self, range: i64) -> String {
        format!("{}/{range:019}", self.target)
    }

    /// Fills in what earlier scans saw of a ledger.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub(crate) async fn recall(&mut self, ledger: &mut OrphanCandidate) -> Result<(), Failure> {
        let range = ledger.ledger / RANGE;
        if self.range != Some(range) {
            self.turn(Some(range)).await?;
        }
        let known = self.old.get(&ledger.ledger).filter(|known| known.seen == ledger.seen);
        let sighting = |(scan, at_ms): &(Uuid, i64)| Sighting { scan: *scan, at_ms: *at_ms, seen: ledger.seen };
        ledger.sightings = known.into_iter().flat_map(|known| known.scans.iter().map(sighting)).collect();
        Ok(())
    }

    /// Remembers what was decided about the ledger that was recalled last: that it was seen, if it waits for further sightings or may go;
    /// what was known before, if something about it is not known this time.
    pub(crate) fn note(&mut self, ledger: &OrphanCandidate, decision: &Decision, now_ms: i64) {
        let waits = decision.verdict == Verdict::DeleteOrphan
            || decision.reasons.first().is_some_and(|reason| reason.rule == "sightings");
        let known = self.old.get(&ledger.ledger).filter(|known| known.seen == ledger.seen).cloned();
        let known = match (waits, decision.verdict, known) {
            (true, _, known) => {
                let mut known = known.unwrap_or(Known { seen: ledger.seen, scans: Vec::new() });
                // The same moment again is the same snapshot again.
                let new = known.scans.iter().all(|(scan, at_ms)| *scan != self.scan && *at_ms < now_ms);
                if new {
                    known.scans.push((self.scan, now_ms));
                }
                if known.scans.len() > KEPT {
                    known.scans.remove(1);
                }
                known
            }
            (false, Verdict::Skip, Some(known)) => known,
            _ => return,
        };
        self.new.insert(ledger.ledger, known);
    }

    /// Ends the scan: what it did not see is forgotten.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub(crate) async fn finish(mut self) -> Result<(), Failure> {
        self.turn(None).await
    }

    /// Writes the present range down, and goes to the next one.
    async fn turn(&mut self, next: Option<i64>) -> Result<(), Failure> {
        if let Some(range) = self.range.take() {
            let key = self.key(range);
            let (old, new) = (std::mem::take(&mut self.old), std::mem::take(&mut self.new));
            let expect = self.revision.take().map_or(Expect::Absent, Expect::Revision);
            if self.record && new.is_empty() && !old.is_empty() {
                self.store.delete(BUCKET, &key, expect).await?;
            } else if self.record && new != old {
                let value = serde_json::to_vec(&new).map_err(|e| Failure::new(Class::Bug, e))?;
                self.store.put(BUCKET, &key, &value, expect).await?;
            }
            self.after = Some(key);
        }
        if self.record {
            self.forget_before(next.map(|range| self.key(range))).await?;
        }
        let Some(range) = next else { return Ok(()) };
        let key = self.key(range);
        if let Some(document) = self.store.get(BUCKET, &key).await? {
            self.revision = Some(document.revision);
            self.old = serde_json::from_slice(&document.value).map_err(|e| {
                let why = format!("document {BUCKET}/{key} is not what it should be: {e}; remove it to go on");
                Failure::new(Class::Bug, why)
            })?;
        }
        self.range = Some(range);
        Ok(())
    }

    /// Forgets the ranges between the last one and the next: nothing in them is unnamed any more.
    async fn forget_before(&mut self, next: Option<String>) -> Result<(), Failure> {
        loop {
            let documents = self.store.list(BUCKET, &self.prefix(), self.after.as_deref(), LISTED).await?;
            if documents.is_empty() {
                return Ok(());
            }
            for document in documents {
                if next.as_ref().is_some_and(|next| document.key >= *next) {
                    return Ok(());
                }
                self.store.delete(BUCKET, &document.key, Expect::Anything).await?;
                self.after = Some(document.key);
            }
        }
    }
}
