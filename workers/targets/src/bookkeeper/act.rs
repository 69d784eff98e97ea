//! Deleting a ledger that nothing names, and bringing it back. Each is one transaction that is conditional on what was read.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::future::{BoxFuture, FutureExt};
use serde::{Deserialize, Serialize};
use trimtab_events::{Candidate, Decision, Evidence, Guard, OrphanCandidate, Verdict};

use super::inventory::{LedgerInventory, now_ms};
use crate::error::{Class, Result, TargetError};
use crate::finding::{Finding, ZK_RIGHTS};
use crate::pulsar::cluster_identity;
use crate::zk::Zk;
use crate::zk_writes::{Access, Answer, DELETE, Write};
use crate::{Act, Effect, Permit, Record, Skipped, Undo};

/// Deletes ledgers that nothing names.
pub struct LedgerAct {
    inventory: Arc<LedgerInventory>,
}

/// What brings a ledger back: taken down before it is deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Saved {
    /// The cluster it is of.
    cluster: String,
    /// Path of its node.
    path: String,
    /// The node's value, base64.
    metadata: String,
    /// The version that is deleted.
    version: i32,
    /// Who may do what with the node.
    access: Vec<Access>,
    /// When it was deleted at the earliest, milliseconds since 1970.
    at_ms: i64,
}

fn skipped(rule: &'static str, says: impl Into<String>) -> Result<Effect> {
    let skipped = Skipped { rule, says: says.into(), alive: false };
    Ok(Effect { skipped: Some(skipped), ..Effect::default() })
}

/// A node that is made only to be deleted in the same transaction may be anybody's.
fn anybody() -> Vec<Access> {
    vec![Access { permissions: 31, scheme: "world".to_owned(), id: "anyone".to_owned() }]
}

impl LedgerAct {
    /// Acts through the inventory's second reader.
    pub fn new(inventory: Arc<LedgerInventory>) -> LedgerAct {
        LedgerAct { inventory }
    }

    fn zk(&self) -> &Zk {
        self.inventory.again()
    }

    async fn delete(
        &self,
        decision: &Decision,
        ledger: &OrphanCandidate,
        record: &dyn Record,
        _permit: &Permit,
    ) -> Result<Effect> {
        let Some(decided) = decision.orphan.as_ref().filter(|_| decision.verdict == Verdict::DeleteOrphan) else {
            let why = format!("a {} is nothing that is done to ledgers", decision.verdict);
            return Err(TargetError::new(Class::Bug, format!("acting on {}", decision.subject), why));
        };
        let path = &ledger.path;
        let (Some((value, stat)), Some(access)) = (self.zk().get_synced(path).await?, self.zk().access(path).await?)
        else {
            return skipped("gone", "it does not exist any more");
        };
        if stat.seen() != ledger.seen || BASE64.encode(&value) != ledger.metadata {
            return skipped("changed", format!("{path} was written since it was looked at"));
        }
        let saved = Saved {
            cluster: cluster_identity(self.zk()).await?,
            path: path.clone(),
            metadata: ledger.metadata.clone(),
            version: stat.version,
            access,
            at_ms: now_ms(),
        };
        let evidence = serde_json::json!({ "ledger": saved });
        record.record(evidence).await?;
        let anybody = anybody();
        let Some(mut writes) = guarded(&ledger.guards, &anybody) else {
            return skipped("unknown", "a node that may name it is not known");
        };
        writes.push(Write::Delete { path, version: stat.version });
        match self.zk().commit(&writes).await? {
            Answer::Done => Ok(Effect {
                notes: vec![format!(
                    "its metadata is gone; bookies drop its data within {} s, and may do so at once: until then `trimtab undo {}` brings \
                     it back, after that it is gone. They give the disk back later, when they compact their entry logs",
                    decided.collected_within_s, decision.id
                )],
                ..Effect::default()
            }),
            Answer::Refused { path: refused, why } if refused == *path => {
                skipped("changed", format!("{path} was written in this moment: {why}"))
            }
            Answer::Refused { path, why } => {
                skipped("changed", format!("{path}, which may name it, is not as it was read: {why}"))
            }
        }
    }

    async fn put_back(&self, undo: &Undo, _permit: &Permit) -> Result<Effect> {
        let subject = &undo.decision.subject;
        let error = |why: String| TargetError::new(Class::Invalid, format!("bringing back {subject}"), why);
        let saved = undo.evidence.iter().rev().find_map(|evidence| evidence.get("ledger"));
        let saved = saved.ok_or_else(|| error("the record does not have its metadata".to_owned()))?;
        let saved: Saved = serde_json::from_value(saved.clone()).map_err(|e| error(e.to_string()))?;
        let value = BASE64.decode(&saved.metadata).map_err(|e| error(e.to_string()))?;
        let cluster = cluster_identity(self.zk()).await?;
        if cluster != saved.cluster {
            return Err(error(format!("it was of the cluster {:?}, this is {cluster:?}", saved.cluster)));
        }
        if !saved.path.starts_with(&format!("{}/", self.inventory.root())) {
            return Err(error(format!("{} is not below {}, where ledgers are", saved.path, self.inventory.root())));
        }
        if self.zk().get_synced(&saved.path).await?.is_some() {
            return skipped("there", format!("{} exists", saved.path));
        }
        let within_s = undo.decision.orphan.as_ref().map_or(0, |orphan| orphan.collected_within_s);
        let passed_s = now_ms().saturating_sub(saved.at_ms) / 1000;
        if passed_s >= within_s {
            return skipped(
                "collected",
                format!(
                    "it was deleted {passed_s} s ago and bookies drop the data within {within_s} s: metadata without data would be worse \
                     than none"
                ),
            );
        }
        self.parents(&saved.path).await?;
        let create = Write::Create { path: &saved.path, value: &value, access: &saved.access };
        if let Answer::Refused { path, why } = self.zk().commit(&[create]).await? {
            return skipped("changed", format!("{path} could not be made: {why}"));
        }
        match self.zk().get_synced(&saved.path).await? {
            Some((now, _)) if now == value => Ok(Effect {
                notes: vec![format!(
                    "its metadata is back after {passed_s} s. If a collection of a bookie came in between, that copy of its data is gone: read it \
                     to be sure"
                )],
                ..Effect::default()
            }),
            _ => Err(error("what was put back is not what was saved".to_owned())),
        }
    }

    /// Folders that were removed since: BookKeeper removes those that become empty.
    async fn parents(&self, path: &str) -> Result<()> {
        let root = self.inventory.root();
        let access = self.zk().access(root).await?.unwrap_or_else(anybody);
        let below = &path[root.len() + 1..];
        for (at, _) in below.match_indices('/') {
            let folder = &path[..root.len() + 1 + at];
            if self.zk().get_synced(folder).await?.is_none() {
                // Somebody else may make it in the same moment.
                self.zk().commit(&[Write::Create { path: folder, value: &[], access: &access }]).await?;
            }
        }
        Ok(())
    }
}

/// What a deletion is conditional on: each node that may name the ledger is as it was read. One that is not there is made and deleted, which
/// only succeeds where it is not there.
fn guarded<'a>(guards: &'a [Guard], anybody: &'a [Access]) -> Option<Vec<Write<'a>>> {
    let mut writes = Vec::with_capacity(guards.len() + 2);
    for Guard { path, node, .. } in guards {
        match node {
            Evidence::Present(seen) => writes.push(Write::Check { path, version: seen.version }),
            Evidence::Absent => {
                writes.push(Write::Create { path, value: &[], access: anybody });
                writes.push(Write::Delete { path, version: 0 });
            }
            Evidence::Unknown(_) => return None,
        }
    }
    (!writes.is_empty()).then_some(writes)
}

/// A transaction leaves nothing half done: there is nothing to tidy.
impl Act for LedgerAct {
    fn examine(&self) -> BoxFuture<'_, Vec<Finding>> {
        async move {
            let (name, root) = ("right to delete ledgers", self.inventory.root());
            vec![match self.inventory.again().access(root).await {
                Ok(Some(access)) if access.iter().any(|one| one.id == "anyone" && one.permissions & DELETE != 0) => {
                    Finding::good(name, format!("everybody may, below {root}"))
                }
                Ok(_) => Finding::doubtful(
                    name,
                    format!("{root} has an access list"),
                    "whether trimtab's identity may delete below it, only the first act tells; nothing is lost if it may not",
                ),
                Err(e) => Finding::failed(name, &e, ZK_RIGHTS),
            }]
        }
        .boxed()
    }

    fn act<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        record: &'a dyn Record,
        permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            let Candidate::Orphan(ledger) = seen else {
                let why = "it is not a ledger";
                return Err(TargetError::new(Class::Bug, format!("acting on {}", decision.subject), why));
            };
            self.delete(decision, ledger, record, permit).await
        }
        .boxed()
    }

    fn undo<'a>(
        &'a self,
        undo: &'a Undo,
        _record: &'a dyn Record,
        permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            match undo.decision.verdict {
                Verdict::DeleteOrphan => self.put_back(undo, permit).await,
                _ => Err(undo.impossible()),
            }
        }
        .boxed()
    }
}
