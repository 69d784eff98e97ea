//! The counters, by convention: prefix `trimtab`, base units, no label that grows with the number of topics.

use opentelemetry::metrics::{Counter, Histogram, Meter};
use opentelemetry::{KeyValue, global};
use trimtab_events::{Outcome, Status, Verdict};

/// Every instrument.
pub struct Metrics {
    /// Metadata operations.
    pub operations: Counter<u64>,
    /// Topics seen by scans.
    pub topics: Counter<u64>,
    /// Topics about which something could not be learned.
    pub unknown: Counter<u64>,
    /// Candidates emitted.
    pub candidates: Counter<u64>,
    /// Scans that ended, by `result`.
    pub scans: Counter<u64>,
    /// Decisions, by `verdict`.
    pub decisions: Counter<u64>,
    /// Outcomes, by `status`.
    pub outcomes: Counter<u64>,
    /// Ledgers freed.
    pub ledgers: Counter<u64>,
    /// Bytes freed, one replica.
    pub bytes: Counter<u64>,
    /// Events given up, by `role`.
    pub dead: Counter<u64>,
    /// Events handled, by `role` and `result`.
    pub events: Counter<u64>,
    /// Time to handle one event, seconds, by `role`.
    pub handle: Histogram<f64>,
}

impl Metrics {
    /// Makes all instruments on the global meter and touches the counters, so that "never" differs from "not running".
    pub fn new() -> Metrics {
        let meter = global::meter("trimtab");
        let counter = |name: &'static str, unit: &'static str, says: &'static str| {
            let made: Counter<u64> = meter.u64_counter(name).with_unit(unit).with_description(says).build();
            made.add(0, &[]);
            made
        };
        let metrics = Metrics {
            operations: counter("trimtab.metadata.operations", "{operation}", "metadata operations"),
            topics: counter("trimtab.scan.topics", "{topic}", "topics seen by scans"),
            unknown: counter("trimtab.scan.unknown", "{topic}", "topics kept because something could not be learned"),
            candidates: counter("trimtab.scan.candidates", "{candidate}", "candidates emitted"),
            scans: bare(&meter, "trimtab.scans", "{scan}", "scans that ended"),
            decisions: bare(&meter, "trimtab.decisions", "{decision}", "decisions by verdict"),
            outcomes: bare(&meter, "trimtab.outcomes", "{outcome}", "outcomes by status"),
            ledgers: counter("trimtab.ledgers.freed", "{ledger}", "ledgers freed"),
            bytes: counter("trimtab.freed", "By", "bytes freed, one replica"),
            dead: bare(&meter, "trimtab.events.dead", "{event}", "events given up"),
            events: bare(&meter, "trimtab.events.handled", "{event}", "events handled"),
            handle: meter
                .f64_histogram("trimtab.handle.duration")
                .with_unit("s")
                .with_description("time to handle one event")
                .with_boundaries(vec![0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0])
                .build(),
        };
        for verdict in Verdict::ALL {
            metrics.decisions.add(0, &[KeyValue::new("verdict", verdict.name())]);
        }
        for status in [Status::Done, Status::Pending, Status::Skipped, Status::Failed] {
            metrics.outcomes.add(0, &[KeyValue::new("status", status.name())]);
        }
        for result in ["complete", "incomplete", "stopped", "failed"] {
            metrics.scans.add(0, &[KeyValue::new("result", result)]);
        }
        let build = [KeyValue::new("version", env!("CARGO_PKG_VERSION"))];
        meter.u64_gauge("trimtab.build_info").with_description("always 1").build().record(1, &build);
        metrics
    }

    /// Counts an outcome.
    pub fn outcome(&self, outcome: &Outcome) {
        self.outcomes.add(1, &[KeyValue::new("status", outcome.status.name())]);
        self.ledgers.add(outcome.freed.len() as u64, &[]);
        self.bytes.add(u64::try_from(outcome.freed_bytes).unwrap_or(0), &[]);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

fn bare(meter: &Meter, name: &'static str, unit: &'static str, says: &'static str) -> Counter<u64> {
    meter.u64_counter(name).with_unit(unit).with_description(says).build()
}
