//! Records what came of decisions and scans, and counts it for each scan. Believes only what a trusted executor signed.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use trimtab_bus::Role;
use trimtab_events::{Body, Event};
use trimtab_targets::Class;

use crate::journal::{Entry, Journal, RecordKind};
use crate::metrics::Metrics;
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
}

impl Audit {
    /// Records into this journal: `outcomes` as well, unless executors of this process write the same one.
    pub fn new(journal: Arc<Journal>, outcomes: bool, trusted: Trusted, scans: Scans, metrics: Arc<Metrics>) -> Audit {
        Audit { journal, outcomes, trusted, scans, metrics }
    }
}

impl Worker for Audit {
    fn role(&self) -> Role {
        Role::Audit
    }

    fn handle<'a>(&'a self, event: &'a Event, body: Body, _out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let trace_id = telemetry::trace_id(&tracing::Span::current());
            let value = |body| serde_json::to_value(body).map_err(|e| Failure::new(Class::Bug, e));
            match body {
                Body::Outcome(outcome) => {
                    self.trusted.check(event).map_err(|e| Failure::new(Class::Refused, e))?;
                    self.metrics.outcome(&outcome);
                    if self.outcomes {
                        let entry = Entry {
                            kind: RecordKind::Outcome,
                            id: outcome.decision.to_string(),
                            subject: outcome.subject.clone(),
                            trace_id: outcome.trace_id.clone(),
                            body: value(serde_json::to_value(&outcome).unwrap_or_default())?,
                        };
                        self.journal.write(entry).await?;
                    }
                    self.scans.count(&outcome).await
                }
                Body::ScanReport(report) => {
                    let entry = Entry {
                        kind: RecordKind::Scan,
                        id: report.scan.id.to_string(),
                        subject: String::new(),
                        trace_id,
                        body: serde_json::to_value(&report).map_err(|e| Failure::new(Class::Bug, e))?,
                    };
                    self.journal.write(entry).await?;
                    Ok(())
                }
                _ => Err(Failure::new(Class::Invalid, "the audit takes outcomes and scan reports only")),
            }
        }
        .boxed()
    }
}
