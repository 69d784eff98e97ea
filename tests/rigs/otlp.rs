//! A receiver of telemetry: takes OTLP over HTTP and keeps the spans, and the last value of each metric.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::{NumberDataPoint, metric::Data, number_data_point};
use prost::Message;

/// A span, as far as tests look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Trace id, hexadecimal.
    pub trace_id: String,
    /// Its own id, hexadecimal.
    pub span_id: String,
    /// Its parent's id, hexadecimal; empty for the first of a trace.
    pub parent_id: String,
    /// Its name.
    pub name: String,
    /// `trimtab.role` of the process that made it.
    pub role: String,
    /// How many links it has.
    pub links: usize,
}

/// The receiver.
#[derive(Debug)]
pub struct Receiver {
    address: String,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    spans: Vec<Span>,
    metrics: BTreeMap<String, f64>,
}

impl Receiver {
    /// Listens on a free port.
    ///
    /// # Errors
    /// When there is none.
    pub fn start() -> Result<Receiver> {
        Receiver::in_front_of(None)
    }

    /// The same, in front of another receiver, by its base address: what comes in is sent on as it came.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn in_front_of(other: Option<String>) -> Result<Receiver> {
        let other = other.map(|url| url.trim_start_matches("http://").to_owned());
        let listener = TcpListener::bind("127.0.0.1:0").context("listening for traces")?;
        let address = listener.local_addr()?.to_string();
        let kept: Arc<Mutex<Kept>> = Arc::default();
        let into = kept.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                let (into, other) = (into.clone(), other.clone());
                std::thread::spawn(move || while take(&stream, &into, other.as_deref()).is_ok_and(|more| more) {});
            }
        });
        Ok(Receiver { address, kept })
    }

    /// Its base address, for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).spans.clone()
    }

    /// Every metric that was sent, by name: its last value, summed over its labels; of a histogram, how many were noted. One sender.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).metrics.clone()
    }

    /// The spans of one trace.
    pub fn trace(&self, trace_id: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.trace_id == trace_id).collect()
    }
}

/// Takes one request of a connection; false at its end.
fn take(stream: &TcpStream, kept: &Mutex<Kept>, other: Option<&str>) -> Result<bool> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line, mut metrics) = (0, String::new(), false);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        metrics |= line.starts_with("POST /v1/metrics ");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if metrics {
        let sent = metrics_of(&ExportMetricsServiceRequest::decode(body.as_slice())?);
        kept.lock().unwrap_or_else(PoisonError::into_inner).metrics.extend(sent);
    } else {
        if let Some(other) = other {
            send_on(&body, other)?;
        }
        let sent = spans_of(&ExportTraceServiceRequest::decode(body.as_slice())?);
        kept.lock().unwrap_or_else(PoisonError::into_inner).spans.extend(sent);
    }
    let mut stream = stream;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")?;
    Ok(true)
}

/// Gives spans to another receiver; an error breaks the connection to whoever sent them, which says so.
fn send_on(body: &[u8], other: &str) -> Result<()> {
    let mut stream = TcpStream::connect(other).context("connecting to the other receiver")?;
    let head = "POST /v1/traces HTTP/1.1\r\ncontent-type: application/x-protobuf\r\nconnection: close";
    write!(stream, "{head}\r\nhost: {other}\r\ncontent-length: {}\r\n\r\n", body.len())?;
    stream.write_all(body)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("reading what the other receiver says")?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "the other receiver does not take them: {answer}");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn spans_of(request: &ExportTraceServiceRequest) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource in &request.resource_spans {
        let attributes = resource.resource.iter().flat_map(|resource| &resource.attributes);
        let role =
            attributes.filter(|attribute| attribute.key == "trimtab.role").find_map(|attribute| {
                match attribute.value.as_ref()?.value.as_ref()? {
                    Value::StringValue(text) => Some(text.clone()),
                    _ => None,
                }
            });
        for span in resource.scope_spans.iter().flat_map(|scope| &scope.spans) {
            spans.push(Span {
                trace_id: hex(&span.trace_id),
                span_id: hex(&span.span_id),
                parent_id: hex(&span.parent_span_id),
                name: span.name.clone(),
                role: role.clone().unwrap_or_default(),
                links: span.links.len(),
            });
        }
    }
    spans
}

fn metrics_of(request: &ExportMetricsServiceRequest) -> BTreeMap<String, f64> {
    let sum = |points: &[NumberDataPoint]| -> f64 {
        let values = points.iter().map(|point| match point.value {
            Some(number_data_point::Value::AsDouble(value)) => value,
            Some(number_data_point::Value::AsInt(value)) => value as f64,
            None => 0.0,
        });
        values.sum()
    };
    let scopes = request.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
    let metrics = scopes.flat_map(|scope| &scope.metrics).map(|metric| {
        let value = match &metric.data {
            Some(Data::Sum(of)) => sum(&of.data_points),
            Some(Data::Gauge(of)) => sum(&of.data_points),
            Some(Data::Histogram(of)) => of.data_points.iter().map(|point| point.count as f64).sum(),
            _ => f64::NAN,
        };
        (metric.name.clone(), value)
    });
    metrics.collect()
}
