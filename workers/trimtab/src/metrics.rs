//! The counters, by convention: prefix `trimtab`, base units, no label that grows with the number of topics.

use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};
use opentelemetry::{KeyValue, global};
use trimtab_events::{Outcome, Status, Verdict};
use trimtab_recovery::DirProgress;

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

/// The instruments of recovery: of the process that recovers, and of workers.
pub struct RecoveryMetrics {
    /// Bytes of segments that were read.
    pub read: Counter<u64>,
    segments: Counter<u64>,
    reports: Counter<u64>,
    runs: Counter<u64>,
    gauges: Vec<(Gauge<u64>, Figure)>,
}

/// A figure of a log dir's progress, once it is known.
type Figure = fn(&DirProgress) -> Option<u64>;
/// A gauge: name, unit, description, and where its value comes from.
type Progress = (&'static str, &'static str, &'static str, Figure);

const PROGRESS: [Progress; 8] = [
    ("trimtab.recovery.bytes.done", "By", "bytes of a log dir that are verified", |dir| Some(dir.bytes.0)),
    ("trimtab.recovery.bytes.all", "By", "bytes of a log dir that are to be verified", |dir| Some(dir.bytes.1)),
    ("trimtab.recovery.segments.done", "{segment}", "segments that are verified", |dir| Some(dir.segments.0)),
    ("trimtab.recovery.segments.all", "{segment}", "segments that are to be verified", |dir| Some(dir.segments.1)),
    ("trimtab.recovery.partitions.done", "{partition}", "partitions that are finished", |dir| Some(dir.partitions.0)),
    ("trimtab.recovery.partitions.all", "{partition}", "partitions to be finished", |dir| Some(dir.partitions.1)),
    ("trimtab.recovery.rate", "By/s", "bytes verified in a second", |dir| Some(dir.bytes_per_second)),
    ("trimtab.recovery.remaining", "s", "time left at that rate", |dir| dir.seconds_left),
];

impl RecoveryMetrics {
    /// Makes all instruments on the global meter and touches the counters.
    pub fn new() -> RecoveryMetrics {
        let meter = global::meter("trimtab");
        let gauge = |(name, unit, says, of): Progress| {
            (meter.u64_gauge(name).with_unit(unit).with_description(says).build(), of)
        };
        let metrics = RecoveryMetrics {
            read: bare(&meter, "trimtab.recovery.read", "By", "bytes of segments that were read for others"),
            segments: bare(&meter, "trimtab.recovery.segments.verified", "{segment}", "segments verified, by whom"),
            reports: bare(
                &meter,
                "trimtab.recovery.reports.refused",
                "{report}",
                "reports that were not used, and why",
            ),
            runs: bare(&meter, "trimtab.recovery.runs", "{run}", "runs that ended, by outcome"),
            gauges: PROGRESS.map(gauge).into(),
        };
        metrics.read.add(0, &[]);
        for by in ["here", "worker"] {
            metrics.segments.add(0, &[KeyValue::new("by", by)]);
        }
        for why in ["not-believed", "failed", "other-file", "side-file", "damage"] {
            metrics.reports.add(0, &[KeyValue::new("why", why)]);
        }
        metrics
    }

    /// Counts a segment that was verified, `here` or by a `worker`.
    pub fn verified(&self, by: &'static str) {
        self.segments.add(1, &[KeyValue::new("by", by)]);
    }

    /// Counts a report that was not used.
    pub fn refused(&self, why: &'static str) {
        self.reports.add(1, &[KeyValue::new("why", why)]);
    }

    /// Counts a run.
    pub fn ended(&self, outcome: &'static str) {
        self.runs.add(1, &[KeyValue::new("outcome", outcome)]);
    }

    /// Shows how far a run is.
    pub fn progress(&self, dirs: &[DirProgress]) {
        for dir in dirs {
            let label = [KeyValue::new("log_dir", dir.path.display().to_string())];
            for (gauge, of) in &self.gauges {
                if let Some(value) = of(dir) {
                    gauge.record(value, &label);
                }
            }
        }
    }
}

impl Default for RecoveryMetrics {
    fn default() -> Self {
        RecoveryMetrics::new()
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
