//! Records what came of decisions, scans and recoveries, and counts the first for each scan. Believes only what a trusted executor
//! (or finisher of a recovery) signed.

use std::collections::HashSet;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use tokio::sync::Mutex;
use trimtab_bus::Role;
use trimtab_events::{Body, Event, Outcome};
use trimtab_targets::Class;

use crate::journal::{self, Entry, Journal, JournalError, RecordKind};
use crate::metrics::Metrics;
use crate::notify::Notify;
use crate::scans::Scans;
use crate::sign::Trusted;
use crate::telemetry;
use crate::worker::{Failure, Out, Worker};

/// The audit role.
pub struct Audit {
    journal: Arc<Journal>,
    /// Outcomes are recorded here as well; not where the executor writes the same journal.
    outcomes: bool,
    trusted: Trusted,
    scans: Scans,
    metrics: Arc<Metrics>,
    notify: Option<Notify>,
    /// What this journal has already: an event comes again after a crash or a lost acknowledgement.
    recorded: Mutex<HashSet<String>>,
}

impl Audit {
    /// Records into this journal: `outcomes` as well, unless executors of this process write the same one.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn new(
        journal: Arc<Journal>,
        outcomes: bool,
        trusted: Trusted,
        scans: Scans,
        metrics: Arc<Metrics>,
        notify: Option<Notify>,
    ) -> Result<Audit, JournalError> {
        let mut recorded = HashSet::new();
        journal::read(journal.path(), |record| match record.kind {
            RecordKind::Scan | RecordKind::Notice => {
                recorded.insert(record.id);
            }
            RecordKind::Recovery => {
                recorded.insert(journal::key_of_recovery(&record.body));
            }
            RecordKind::Outcome if outcomes => {
                recorded.insert(journal::key_of_outcome(&record.body));
            }
            _ => {}
        })?;
        Ok(Audit { journal, outcomes, trusted, scans, metrics, notify, recorded: Mutex::new(recorded) })
    }

    /// Writes it, unless it is there. Not under the lock: what waits is written together, and the bus hands the same event out
    /// once at a time.
    async fn once(&self, key: String, entry: Entry) -> Result<(), Failure> {
        if self.recorded.lock().await.contains(&key) {
            return Ok(());
        }
        self.journal.write(entry).await?;
        self.recorded.lock().await.insert(key);
        Ok(())
    }
}

impl Worker for Audit {
    fn role(&self) -> Role {
        Role::Audit
    }

    fn handle<'a>(&'a self, event: &'a Event, body: Body, _out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let trace_id = telemetry::trace_id(&tracing::Span::current());
            let value = |outcome: &Outcome| serde_json::to_value(outcome).map_err(|e| Failure::new(Class::Bug, e));
            match body {
                Body::Outcome(outcome) => {
                    self.trusted.check(event).map_err(|e| Failure::new(Class::Refused, e))?;
                    if self.outcomes {
                        let body = value(&outcome)?;
                        let key = journal::key_of_outcome(&body);
                        let entry = Entry {
                            kind: RecordKind::Outcome,
                            id: outcome.decision.to_string(),
                            subject: outcome.subject.clone(),
                            trace_id: outcome.trace_id.clone(),
                            body,
                        };
                        self.once(key, entry).await?;
                    }
                    // Its id is the same each time it comes.
                    if self.scans.count(&event.id, &outcome).await? {
                        self.metrics.outcome(&outcome);
                    }
                    Ok(())
                }
                Body::Notice(notice) => {
                    let entry = Entry {
                        kind: RecordKind::Notice,
                        id: event.id.clone(),
                        subject: notice.subject.clone(),
                        trace_id: notice.trace_id.clone(),
                        body: serde_json::to_value(&notice).map_err(|e| Failure::new(Class::Bug, e))?,
                    };
                    self.once(event.id.clone(), entry).await?;
                    match &self.notify {
                        Some(notify) => notify.send(&notice).await,
                        None => Ok(()),
                    }
                }
                Body::ScanReport(report) => {
                    let entry = Entry {
                        kind: RecordKind::Scan,
                        id: report.scan.id.to_string(),
                        subject: String::new(),
                        trace_id,
                        body: serde_json::to_value(&report).map_err(|e| Failure::new(Class::Bug, e))?,
                    };
                    self.once(report.scan.id.to_string(), entry).await
                }
                Body::RecoveryOutcome(outcome) => {
                    self.trusted.check(event).map_err(|e| Failure::new(Class::Refused, e))?;
                    let body = serde_json::to_value(&outcome).map_err(|e| Failure::new(Class::Bug, e))?;
                    let key = journal::key_of_recovery(&body);
                    let folder = outcome.folder.iter().map(|folder| format!("/{folder}"));
                    let entry = Entry {
                        kind: RecordKind::Recovery,
                        id: outcome.run.to_string(),
                        subject: outcome.log_dir + &folder.collect::<String>(),
                        trace_id: outcome.trace_id,
                        body,
                    };
                    self.once(key, entry).await
                }
                _ => Err(Failure::new(Class::Invalid, "the audit takes outcomes, notices and scan reports only")),
            }
        }
        .boxed()
    }
}
