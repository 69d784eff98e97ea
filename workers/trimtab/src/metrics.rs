//! The metrics: each is declared once, here, and made from its declaration. `docs/metrics.md` is written from the same list.
//!
//! By convention: prefix `trimtab`, base units, and no label that grows with the number of topics.

use std::fmt::Write as _;

use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};
use opentelemetry::{KeyValue, global};
use trimtab_bus::Role;
use trimtab_events::{Outcome, Status, Verdict};
use trimtab_recovery::DirProgress;

use crate::openmetrics::note;

/// What a metric does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Is what it is now.
    Gauge,
    /// How often it was up to each bound.
    Histogram,
}

impl Kind {
    /// As Prometheus calls it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// The values that a label can have.
#[derive(Debug, Clone, Copy)]
pub enum Values {
    /// These. A counter has all of them from the start, so that "never" differs from "not running".
    These(fn() -> Vec<&'static str>),
    /// One of these in a process.
    OneOf(fn() -> Vec<&'static str>),
    /// What is described here: not many.
    Few(&'static str),
}

/// A label.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// What it can be.
    pub values: Values,
}

/// A metric, as declared.
#[derive(Debug)]
pub struct Declared {
    /// Its name in OpenTelemetry.
    pub name: &'static str,
    /// What it does.
    pub kind: Kind,
    /// Its unit (UCUM); empty for a yes or no.
    pub unit: &'static str,
    /// Its labels, in the order in which their values are given.
    pub labels: &'static [Label],
    /// What it means.
    pub says: &'static str,
}

/// Declares metrics, and the list of all of them.
macro_rules! declare {
    ($($id:ident: $kind:ident $name:literal $unit:literal [$($label:ident: $values:expr),*] $says:literal;)*) => {
        $(
            #[doc = $says]
            pub static $id: Declared = Declared {
                name: $name,
                kind: Kind::$kind,
                unit: $unit,
                labels: &[$(Label { name: stringify!($label), values: $values }),*],
                says: $says,
            };
        )*
        /// All of them, in the order of the documentation.
        pub static ALL: &[&Declared] = &[$(&$id),*];
    };
}

const ROLE: Values = Values::OneOf(|| Role::ALL.iter().chain(&Role::LANED).map(|role| role.name()).collect());

declare! {
    BUILD: Gauge "trimtab.build_info" "" [version: Values::Few("the version of the program"),
        role: Values::Few("what the process does: a role, `run` or `recover`")] "always 1";
    CHECK: Gauge "trimtab.check" "" [check: Values::OneOf(|| vec!["work", "bus", "store", "target", "follow"])]
        "1 if a check of `/readyz` passed when it was last made, else 0; made every 15 s";
    QUEUE: Gauge "trimtab.queue.depth" "{event}" [role: ROLE]
        "events that wait for a role or are being worked on by it, in all processes together";
    EVENTS: Counter "trimtab.events.handled" "{event}" [role: ROLE,
        result: Values::These(|| vec!["done", "later", "again", "gone", "dead", "invalid", "malformed"])]
        "events handled, by what became of them";
    DEAD: Counter "trimtab.events.dead" "{event}" [role: ROLE] "events given up: what they asked for is not done";
    HANDLE: Histogram "trimtab.handle.duration" "s" [role: ROLE] "time to handle one event";
    RECORD_FAILURES: Counter "trimtab.record.failures" "{record}" []
        "records that could not be written to disk; what they precede is not done";

    SCANS: Counter "trimtab.scans" "{scan}" [result: Values::These(|| vec!["complete", "incomplete", "stopped", "failed"])]
        "scans that ended, and tries at one that failed";
    SCAN_COMPLETE: Gauge "trimtab.scan.last_complete.timestamp" "s" []
        "when the last complete scan of everything, stopped by no limit, that this process brought to its end did end (seconds since 1970); 0 before";
    SCAN_INTERVAL: Gauge "trimtab.scan.interval" "s" [] "how often a scan of everything is asked for; 0 when no timer does";
    SCAN_STOPPED: Gauge "trimtab.scan.stopped" "" []
        "1 while a limit keeps everything that the last scan found from being done, until a person confirms it";
    SCAN_TOPICS: Counter "trimtab.scan.topics" "{topic}" [] "topics (streams, ledgers that nothing names) seen by scans";
    SCAN_UNKNOWN: Counter "trimtab.scan.unknown" "{topic}" [] "topics kept because something could not be learned";
    SCAN_CANDIDATES: Counter "trimtab.scan.candidates" "{candidate}" [] "candidates that scans found";
    SCAN_SEEN: Gauge "trimtab.scan.seen" "By" [] "bytes of closed ledgers that the last scan of everything saw, one replica";
    SCAN_PROPOSED: Gauge "trimtab.scan.proposed" "By" [] "bytes that the last scan of everything would free, one replica";
    SCAN_ACTS: Gauge "trimtab.scan.proposed.acts" "{act}" [] "acts that the last scan of everything would carry out";
    OPERATIONS: Counter "trimtab.metadata.operations" "{operation}" [] "metadata operations of scans";

    DECISIONS: Counter "trimtab.decisions" "{decision}"
        [verdict: Values::These(|| Verdict::ALL.iter().map(|verdict| verdict.name()).collect())] "decisions by verdict";
    OUTCOMES: Counter "trimtab.outcomes" "{outcome}" [status: Values::These(|| STATUSES.iter().map(|status| status.name()).collect())]
        "what came of acts, counted where it is recorded";
    SKIPPED: Counter "trimtab.outcomes.skipped" "{outcome}" [why: Values::These(|| SKIPS.to_vec())] "acts that were not carried out, by why";
    BEYOND: Counter "trimtab.outcomes.beyond" "{outcome}" [] "acts after which more was gone than had been predicted";
    LEDGERS: Counter "trimtab.ledgers.freed" "{ledger}" [] "ledgers freed";
    FREED: Counter "trimtab.freed" "By" [] "bytes freed, one replica";

    FOLLOW_WATCHING: Gauge "trimtab.follow.watching" "" [] "1 while this process hears changes; one process of a target does";
    FOLLOW_LAG: Gauge "trimtab.follow.lag" "s" [] "age of the oldest change that no scan was asked for yet";
    FOLLOW_CHANGES: Counter "trimtab.follow.changes" "{change}" [] "changes in the metadata that were followed";
    FOLLOW_DUE: Counter "trimtab.follow.due" "{topic}" [] "topics that fell due by time";
    FOLLOW_REQUESTS: Counter "trimtab.follow.requests" "{scan}" [trigger: Values::These(|| vec!["change", "due", "full"])]
        "scans that were asked for";
    FOLLOW_CATCH_UPS: Counter "trimtab.follow.catch_ups" "{scan}" [] "scans of everything because changes may have been missed";

    RECOVERY_DONE: Gauge "trimtab.recovery.done" "By" [log_dir: LOG_DIR] "bytes of a log dir that are verified";
    RECOVERY_SIZE: Gauge "trimtab.recovery.size" "By" [log_dir: LOG_DIR] "bytes of a log dir that are to be verified, in all";
    RECOVERY_SEGMENTS_DONE: Gauge "trimtab.recovery.segments.done" "{segment}" [log_dir: LOG_DIR] "segments that are verified";
    RECOVERY_SEGMENTS: Gauge "trimtab.recovery.segments.all" "{segment}" [log_dir: LOG_DIR] "segments that are to be verified, in all";
    RECOVERY_PARTITIONS_DONE: Gauge "trimtab.recovery.partitions.done" "{partition}" [log_dir: LOG_DIR] "partitions that are finished";
    RECOVERY_PARTITIONS: Gauge "trimtab.recovery.partitions.all" "{partition}" [log_dir: LOG_DIR] "partitions to be finished, in all";
    RECOVERY_RATE: Gauge "trimtab.recovery.rate" "By/s" [log_dir: LOG_DIR] "bytes verified in a second";
    RECOVERY_REMAINING: Gauge "trimtab.recovery.remaining" "s" [log_dir: LOG_DIR] "time left at that rate";
    RECOVERY_READ: Counter "trimtab.recovery.read" "By" [] "bytes of segments that a worker read for others";
    RECOVERY_VERIFIED: Counter "trimtab.recovery.segments.verified" "{segment}" [by: Values::These(|| vec!["here", "worker"])]
        "segments verified, by whom";
    RECOVERY_REFUSED: Counter "trimtab.recovery.reports.refused" "{report}"
        [why: Values::These(|| vec!["not-believed", "failed", "other-file", "side-file", "damage"])]
        "reports of workers that were not used: what they are about was verified here";
    RECOVERY_RUNS: Counter "trimtab.recovery.runs" "{run}"
        [outcome: Values::These(|| vec!["nothing-to-do", "recovered", "failed", "stopped", "refused"])] "recoveries that ended";
}

const LOG_DIR: Values = Values::Few("path of a log dir");
const STATUSES: [Status; 4] = [Status::Done, Status::Pending, Status::Skipped, Status::Failed];
/// Rules by which an act is not carried out; the last stands for all others.
const SKIPS: [&str; 15] = [
    "changed",
    "gone",
    "protected",
    "online",
    "active",
    "caps",
    "expired",
    "check",
    "dry-run",
    "paused",
    "settling",
    "slow",
    "unknown",
    "repeated",
    "other",
];
/// The rule by which an executor says that more was freed than predicted.
pub(crate) const BEYOND_RULE: &str = "beyond";
/// Bounds of the time to handle an event, seconds.
const BOUNDS: [f64; 12] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

fn meter() -> Meter {
    global::meter("trimtab")
}

impl Declared {
    /// Its name for Prometheus: with the unit, and `_total` for what only grows. A histogram's parts begin with it.
    pub fn exposed(&self) -> String {
        let mut name = self.name.replace('.', "_");
        name.push_str(match self.unit {
            "By" => "_bytes",
            "By/s" => "_bytes_per_second",
            "s" => "_seconds",
            _ => "",
        });
        if self.kind == Kind::Counter {
            name.push_str("_total");
        }
        name
    }

    fn labelled(&self, values: &[&'static str]) -> Vec<KeyValue> {
        self.labels.iter().zip(values).map(|(label, value)| KeyValue::new(label.name, *value)).collect()
    }

    /// A series of it as a page for Prometheus names it; `part` and `more` are those of a histogram.
    fn series(&self, part: &str, values: &[&'static str], more: Option<(&str, String)>) -> String {
        let labels = self.labels.iter().map(|label| label.name).zip(values.iter().map(|value| (*value).to_owned()));
        let mut labels: Vec<(&str, String)> = labels.collect();
        labels.sort();
        let labels: Vec<String> =
            labels.into_iter().chain(more).map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let name = self.exposed();
        if labels.is_empty() { format!("{name}{part}") } else { format!("{name}{part}{{{}}}", labels.join(",")) }
    }

    /// All combinations of values, where they are known beforehand; those of a label that is one of several in a process are `fixed`.
    fn combinations(&self, fixed: Option<&'static str>) -> Vec<Vec<&'static str>> {
        let mut all = vec![Vec::new()];
        for label in self.labels {
            let values = match (label.values, fixed) {
                (Values::These(values), _) => values(),
                (Values::OneOf(_), Some(value)) => vec![value],
                _ => return Vec::new(),
            };
            all = all
                .iter()
                .flat_map(|before| values.iter().map(|value| [before.as_slice(), &[*value]].concat()))
                .collect();
        }
        all
    }

    /// A counter of it. It is 0 from now on for each combination of values that is known.
    pub fn counts(&'static self) -> Counts {
        debug_assert_eq!(self.kind, Kind::Counter, "{}", self.name);
        let counter = meter().u64_counter(self.name).with_unit(self.unit).with_description(self.says).build();
        let counts = Counts { declared: self, counter };
        counts.touch(None);
        counts
    }

    /// A gauge of it. It has no value before it is set.
    pub fn level(&'static self) -> Level {
        debug_assert_eq!(self.kind, Kind::Gauge, "{}", self.name);
        let gauge = meter().f64_gauge(self.name).with_unit(self.unit).with_description(self.says).build();
        Level { declared: self, gauge }
    }

    /// A histogram of it.
    pub fn times(&'static self) -> Times {
        debug_assert_eq!(self.kind, Kind::Histogram, "{}", self.name);
        let meter = meter();
        let histogram = meter.f64_histogram(self.name).with_unit(self.unit).with_description(self.says);
        Times { declared: self, histogram: histogram.with_boundaries(BOUNDS.to_vec()).build() }
    }
}

/// A counter.
pub struct Counts {
    declared: &'static Declared,
    counter: Counter<u64>,
}

impl Counts {
    /// Counts `n` more, of these values of its labels.
    pub fn add(&self, n: u64, values: &[&'static str]) {
        self.counter.add(n, &self.declared.labelled(values));
        if n > 0 {
            note(|| self.declared.series("", values, None), n as f64);
        }
    }

    fn touch(&self, fixed: Option<&'static str>) {
        self.declared.combinations(fixed).iter().for_each(|values| self.add(0, values));
    }
}

/// A gauge.
pub struct Level {
    declared: &'static Declared,
    gauge: Gauge<f64>,
}

impl Level {
    /// Sets it, for these values of its labels.
    pub fn set(&self, value: f64, values: &[&str]) {
        let labels = self.declared.labels.iter().zip(values);
        let labels: Vec<_> = labels.map(|(label, value)| KeyValue::new(label.name, (*value).to_owned())).collect();
        self.gauge.record(value, &labels);
    }
}

/// A histogram of times.
pub struct Times {
    declared: &'static Declared,
    histogram: Histogram<f64>,
}

impl Times {
    /// Notes how long something took.
    pub fn note(&self, seconds: f64, values: &[&'static str]) {
        self.histogram.record(seconds, &self.declared.labelled(values));
        let bound = BOUNDS.into_iter().find(|bound| seconds <= *bound);
        let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
        note(|| self.declared.series("_bucket", values, Some(("le", bound))), seconds);
    }
}

/// The instruments of workers.
pub struct Metrics {
    /// [`OPERATIONS`].
    pub operations: Counts,
    /// [`SCAN_TOPICS`].
    pub topics: Counts,
    /// [`SCAN_UNKNOWN`].
    pub unknown: Counts,
    /// [`SCAN_CANDIDATES`].
    pub candidates: Counts,
    /// [`SCANS`].
    pub scans: Counts,
    /// [`DECISIONS`].
    pub decisions: Counts,
    /// [`DEAD`].
    pub dead: Counts,
    /// [`EVENTS`].
    pub events: Counts,
    /// [`HANDLE`].
    pub handle: Times,
    outcomes: Counts,
    skipped: Counts,
    beyond: Counts,
    ledgers: Counts,
    bytes: Counts,
    complete: Level,
    seen: Level,
    proposed: Level,
    acts: Level,
}

impl Metrics {
    /// Makes all of them on the global meter.
    pub fn new() -> Metrics {
        Metrics {
            operations: OPERATIONS.counts(),
            topics: SCAN_TOPICS.counts(),
            unknown: SCAN_UNKNOWN.counts(),
            candidates: SCAN_CANDIDATES.counts(),
            scans: SCANS.counts(),
            decisions: DECISIONS.counts(),
            dead: DEAD.counts(),
            events: EVENTS.counts(),
            handle: HANDLE.times(),
            outcomes: OUTCOMES.counts(),
            skipped: SKIPPED.counts(),
            beyond: BEYOND.counts(),
            ledgers: LEDGERS.counts(),
            bytes: FREED.counts(),
            complete: SCAN_COMPLETE.level(),
            seen: SCAN_SEEN.level(),
            proposed: SCAN_PROPOSED.level(),
            acts: SCAN_ACTS.level(),
        }
    }

    /// A worker of this role begins: what it counts is 0 so far.
    pub fn begins(&self, role: Role) {
        [&self.events, &self.dead].into_iter().for_each(|counts| counts.touch(Some(role.name())));
    }

    /// A scanner begins: how often a scan of everything is asked for, and none has come to its end.
    pub fn scans_every(&self, every: Option<std::time::Duration>) {
        SCAN_INTERVAL.level().set(every.unwrap_or_default().as_secs_f64(), &[]);
        self.complete.set(0.0, &[]);
    }

    /// A scan of everything ended with this report.
    pub fn saw_everything(&self, report: &trimtab_events::ScanReport) {
        self.seen.set(report.bytes as f64, &[]);
        self.proposed.set(report.proposed.bytes as f64, &[]);
        self.acts.set(report.proposed.acts as f64, &[]);
        if report.complete && report.stopped.is_none() {
            self.complete.set((report.ended_ms / 1000) as f64, &[]);
        }
    }

    /// Counts an outcome.
    pub fn outcome(&self, outcome: &Outcome) {
        self.outcomes.add(1, &[outcome.status.name()]);
        if outcome.status == Status::Skipped {
            let rule = outcome.reasons.first().map(|reason| &*reason.rule).unwrap_or_default();
            self.skipped.add(1, &[SKIPS.into_iter().find(|why| *why == rule).unwrap_or("other")]);
        }
        self.beyond.add(u64::from(outcome.reasons.iter().any(|reason| reason.rule == BEYOND_RULE)), &[]);
        self.ledgers.add(outcome.freed.len() as u64, &[]);
        self.bytes.add(u64::try_from(outcome.freed_bytes).unwrap_or(0), &[]);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

/// The instruments of whoever follows changes.
pub struct FollowMetrics {
    /// [`FOLLOW_CHANGES`].
    pub changes: Counts,
    /// [`FOLLOW_DUE`].
    pub due: Counts,
    /// [`FOLLOW_REQUESTS`].
    pub requests: Counts,
    /// [`FOLLOW_CATCH_UPS`].
    pub catch_ups: Counts,
    /// [`FOLLOW_WATCHING`].
    pub watching: Level,
    /// [`FOLLOW_LAG`].
    pub lag: Level,
}

impl FollowMetrics {
    /// Makes all of them on the global meter. Nothing is heard so far.
    pub fn new() -> FollowMetrics {
        let watching = FOLLOW_WATCHING.level();
        watching.set(0.0, &[]);
        FollowMetrics {
            changes: FOLLOW_CHANGES.counts(),
            due: FOLLOW_DUE.counts(),
            requests: FOLLOW_REQUESTS.counts(),
            catch_ups: FOLLOW_CATCH_UPS.counts(),
            watching,
            lag: FOLLOW_LAG.level(),
        }
    }
}

impl Default for FollowMetrics {
    fn default() -> Self {
        FollowMetrics::new()
    }
}

/// The instruments of recovery: of the process that recovers, and of workers.
pub struct RecoveryMetrics {
    /// [`RECOVERY_READ`].
    pub read: Counts,
    segments: Counts,
    reports: Counts,
    runs: Counts,
    gauges: Vec<(Level, Figure)>,
}

/// A figure of a log dir's progress, once it is known.
type Figure = fn(&DirProgress) -> Option<u64>;

static PROGRESS: [(&Declared, Figure); 8] = [
    (&RECOVERY_DONE, |dir| Some(dir.bytes.0)),
    (&RECOVERY_SIZE, |dir| Some(dir.bytes.1)),
    (&RECOVERY_SEGMENTS_DONE, |dir| Some(dir.segments.0)),
    (&RECOVERY_SEGMENTS, |dir| Some(dir.segments.1)),
    (&RECOVERY_PARTITIONS_DONE, |dir| Some(dir.partitions.0)),
    (&RECOVERY_PARTITIONS, |dir| Some(dir.partitions.1)),
    (&RECOVERY_RATE, |dir| Some(dir.bytes_per_second)),
    (&RECOVERY_REMAINING, |dir| dir.seconds_left),
];

impl RecoveryMetrics {
    /// Makes all of them on the global meter.
    pub fn new() -> RecoveryMetrics {
        RecoveryMetrics {
            read: RECOVERY_READ.counts(),
            segments: RECOVERY_VERIFIED.counts(),
            reports: RECOVERY_REFUSED.counts(),
            runs: RECOVERY_RUNS.counts(),
            gauges: PROGRESS.iter().map(|(declared, of)| (declared.level(), *of)).collect(),
        }
    }

    /// Counts a segment that was verified, `here` or by a `worker`.
    pub fn verified(&self, by: &'static str) {
        self.segments.add(1, &[by]);
    }

    /// Counts a report that was not used.
    pub fn refused(&self, why: &'static str) {
        self.reports.add(1, &[why]);
    }

    /// Counts a run.
    pub fn ended(&self, outcome: &'static str) {
        self.runs.add(1, &[outcome]);
    }

    /// Shows how far a run is.
    pub fn progress(&self, dirs: &[DirProgress]) {
        for dir in dirs {
            let path = dir.path.display().to_string();
            for (level, of) in &self.gauges {
                if let Some(value) = of(dir) {
                    level.set(value as f64, &[&path]);
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

/// All metrics as a table in Markdown, for the documentation.
pub fn table() -> String {
    let mut text = String::from("| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for metric in ALL {
        let labels = metric.labels.iter().map(|label| {
            let values = match label.values {
                Values::These(values) | Values::OneOf(values) => {
                    values().iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ")
                }
                Values::Few(says) => says.to_owned(),
            };
            format!("`{}`: {values}", label.name)
        });
        let labels = labels.collect::<Vec<_>>().join("; ");
        let _ = writeln!(text, "| `{}` | {} | {labels} | {} |", metric.exposed(), metric.kind.name(), metric.says);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_declared_once_and_by_convention() {
        let mut names: Vec<String> = ALL.iter().map(|metric| metric.exposed()).collect();
        for name in &names {
            let fits = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(fits && name.starts_with("trimtab_"), "{name}");
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn a_series_is_named_as_on_the_page() {
        assert_eq!(FREED.series("", &[], None), "trimtab_freed_bytes_total");
        let of = EVENTS.series("", &["audit", "done"], None);
        assert_eq!(of, r#"trimtab_events_handled_total{result="done",role="audit"}"#);
        let of = HANDLE.series("_bucket", &["audit"], Some(("le", "5".to_owned())));
        assert_eq!(of, r#"trimtab_handle_duration_seconds_bucket{role="audit",le="5"}"#);
    }

    #[test]
    fn every_series_that_is_known_beforehand_is_listed() {
        assert_eq!(OPERATIONS.combinations(None), [Vec::<&str>::new()]);
        assert_eq!(OUTCOMES.combinations(None), [["done"], ["pending"], ["skipped"], ["failed"]]);
        assert!(EVENTS.combinations(None).is_empty());
        assert_eq!(EVENTS.combinations(Some("audit")).len(), 7);
        assert!(RECOVERY_DONE.combinations(None).is_empty());
    }
}
