//! Metrics in OpenMetrics' format, which says of the last thing that was counted in which trace it happened (an exemplar). The library that
//! collects the metrics knows no exemplars, so they are noted here, the last one of each series, and put in where the page is served.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry::trace::TraceContextExt;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// What a page in this format is served as.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// By series, as the page names it; bounded, because series are. None while no trace goes anywhere.
static NOTED: OnceLock<Mutex<BTreeMap<String, Exemplar>>> = OnceLock::new();

struct Exemplar {
    trace_id: String,
    span_id: String,
    value: f64,
    at: SystemTime,
}

/// From now on, traces are noted: there is somebody who keeps them.
pub fn begin() {
    let _ = NOTED.set(Mutex::default());
}

/// Whether whoever asks for a page understands this format.
pub fn wanted(accept: &str) -> bool {
    accept.split(',').any(|kind| kind.trim_start().starts_with("application/openmetrics-text"))
}

/// Notes that `value` was counted in a series now, in the trace of the current span.
pub(crate) fn note(series: impl FnOnce() -> String, value: f64) {
    let Some(noted) = NOTED.get() else { return };
    let context = Span::current().context();
    let span = context.span().span_context().clone();
    if span.is_valid() && span.is_sampled() {
        let (trace_id, span_id) = (span.trace_id().to_string(), span.span_id().to_string());
        let exemplar = Exemplar { trace_id, span_id, value, at: SystemTime::now() };
        noted.lock().unwrap_or_else(PoisonError::into_inner).insert(series(), exemplar);
    }
}

/// A page in Prometheus' format as one in this.
pub fn page(text: &str) -> String {
    match NOTED.get() {
        Some(noted) => with(text, &noted.lock().unwrap_or_else(PoisonError::into_inner)),
        None => with(text, &BTreeMap::new()),
    }
}

fn with(text: &str, noted: &BTreeMap<String, Exemplar>) -> String {
    let mut page = String::with_capacity(text.len() + 64 * noted.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        // Here a family of counters is named without what its samples end with.
        let counter = |line: &str| line.starts_with("# TYPE ") && line.ends_with("_total counter");
        let described = line.starts_with("# HELP ") && lines.peek().is_some_and(|next| counter(next));
        if counter(line) || described {
            page.push_str(&line.replacen("_total ", " ", 1));
        } else {
            page.push_str(line);
        }
        if let Some(exemplar) = line.rsplit_once(' ').and_then(|(series, _)| noted.get(series)) {
            let Exemplar { trace_id, span_id, value, at } = exemplar;
            let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            let _ = write!(page, " # {{trace_id=\"{trace_id}\",span_id=\"{span_id}\"}} {value} {at:.3}");
        }
        page.push('\n');
    }
    page.push_str("# EOF\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_lose_their_suffix_and_series_get_their_trace() {
        let text = "# HELP a_total said\n# TYPE a_total counter\na_total{x=\"1\"} 2\na_total{x=\"2\"} 0\n# HELP b of a_total \n# TYPE b gauge\nb 1\n";
        let exemplar = || Exemplar {
            trace_id: "0af7".to_owned(),
            span_id: "b7".to_owned(),
            value: 1.0,
            at: UNIX_EPOCH + std::time::Duration::from_millis(1_500),
        };
        let noted = [("a_total{x=\"1\"}".to_owned(), exemplar()), ("c".to_owned(), exemplar())].into();
        let expected = "# HELP a said\n# TYPE a counter\na_total{x=\"1\"} 2 # {trace_id=\"0af7\",span_id=\"b7\"} 1 1.500\na_total{x=\"2\"} 0\n\
                        # HELP b of a_total \n# TYPE b gauge\nb 1\n# EOF\n";
        assert_eq!(with(text, &noted), expected);
    }

    #[test]
    fn whoever_does_not_ask_for_it_gets_what_everybody_understands() {
        assert!(wanted("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"));
        assert!(!wanted("text/plain") && !wanted("*/*") && !wanted(""));
    }
}
