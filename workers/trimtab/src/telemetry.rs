//! Logs, traces and metrics: started once, carried across processes in events.
//!
//! A trace is not a record: spans can be dropped under load, and nothing here waits for them.

use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{TraceContextExt, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{MeterProviderBuilder, SdkMeterProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};
use trimtab_events::Trace;

use crate::config::TelemetryConfig;

/// Keeps telemetry going; flushes it when dropped.
pub struct Telemetry {
    traces: SdkTracerProvider,
    meters: SdkMeterProvider,
    registry: prometheus::Registry,
}

/// Why telemetry could not be started.
#[derive(Debug, thiserror::Error)]
#[error("telemetry cannot be started: {0}")]
pub struct TelemetryError(String);

/// Starts logs on standard error (JSON lines when that is no terminal), traces and metrics for a process of this role.
///
/// # Errors
/// When an address is not valid or it was started before.
pub fn start(role: &str, config: &TelemetryConfig) -> Result<Telemetry, TelemetryError> {
    let failed = |e: &dyn std::fmt::Display| TelemetryError(e.to_string());
    let resource = Resource::builder()
        .with_service_name("trimtab")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("trimtab.role", role.to_owned()))
        .build();
    let traces = tracer(config, resource.clone()).map_err(|e| failed(&e))?;
    if endpoint(config).is_some() {
        crate::openmetrics::begin();
    }
    let registry = prometheus::Registry::new();
    // There is one scope: its name on every series would say nothing.
    let exporter = opentelemetry_prometheus::exporter().with_registry(registry.clone()).scope_info_enabled(false);
    let exporter = exporter.build().map_err(|e| failed(&e))?;
    let meters = SdkMeterProvider::builder().with_reader(exporter).with_resource(resource);
    let meters = pushed(meters, config).map_err(|e| failed(&e))?.build();
    opentelemetry::global::set_meter_provider(meters.clone());

    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,trimtab=info,opentelemetry=warn"));
    let plain = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let text = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let text = if plain { text.with_target(false).boxed() } else { text.json().boxed() };
    // Spans are made at debug and info; what is logged does not decide what is traced.
    let spans = EnvFilter::new("off,trimtab=debug");
    let otel = tracing_opentelemetry::layer().with_tracer(traces.tracer("trimtab")).with_filter(spans);
    tracing_subscriber::registry().with(text.with_filter(filter)).with(otel).try_init().map_err(|e| failed(&e))?;
    Ok(Telemetry { traces, meters, registry })
}

/// Where telemetry is sent, if anywhere: the base address of an OTLP receiver.
fn endpoint(config: &TelemetryConfig) -> Option<String> {
    let endpoint = config.otlp_endpoint.clone().or_else(|| std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok());
    let endpoint = endpoint.filter(|_| std::env::var("OTEL_SDK_DISABLED").as_deref() != Ok("true"))?;
    Some(endpoint.trim_end_matches('/').to_owned())
}

/// Has metrics sent where traces are sent, every minute (`OTEL_METRIC_EXPORT_INTERVAL`), unless `OTEL_METRICS_EXPORTER` is another one.
fn pushed(builder: MeterProviderBuilder, config: &TelemetryConfig) -> Result<MeterProviderBuilder, String> {
    let others =
        std::env::var("OTEL_METRICS_EXPORTER").is_ok_and(|exporter| !exporter.is_empty() && exporter != "otlp");
    let Some(endpoint) = endpoint(config).filter(|_| !others) else { return Ok(builder) };
    #[cfg(not(feature = "otlp"))]
    return Err(format!("this build cannot export metrics to {endpoint}; build it with the feature otlp"));
    #[cfg(feature = "otlp")]
    {
        use opentelemetry_otlp::WithExportConfig;
        let exporter = opentelemetry_otlp::MetricExporter::builder()
            .with_http()
            .with_endpoint(format!("{endpoint}/v1/metrics"))
            .build()
            .map_err(|e| e.to_string())?;
        Ok(builder.with_periodic_exporter(exporter))
    }
}

fn tracer(config: &TelemetryConfig, resource: Resource) -> Result<SdkTracerProvider, String> {
    let builder = SdkTracerProvider::builder().with_resource(resource);
    let Some(endpoint) = endpoint(config) else { return Ok(builder.build()) };
    #[cfg(not(feature = "otlp"))]
    return Err(format!("this build cannot export traces to {endpoint}; build it with the feature otlp"));
    #[cfg(feature = "otlp")]
    {
        use opentelemetry_otlp::WithExportConfig;
        use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor};
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(format!("{endpoint}/v1/traces"))
            .build()
            .map_err(|e| e.to_string())?;
        // The default queue of 2,048 drops spans in bursts of a few thousand.
        let mut batch = BatchConfigBuilder::default();
        if std::env::var_os("OTEL_BSP_MAX_QUEUE_SIZE").is_none() {
            batch = batch.with_max_queue_size(65_536);
        }
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batch.build()).build();
        Ok(builder.with_span_processor(processor).build())
    }
}

impl Telemetry {
    /// The metrics as a Prometheus page.
    ///
    /// # Errors
    /// When they cannot be written as text.
    pub fn page(registry: &prometheus::Registry) -> Result<String, TelemetryError> {
        let mut text = String::new();
        let encoder = prometheus::TextEncoder::new();
        encoder.encode_utf8(&registry.gather(), &mut text).map_err(|e| TelemetryError(e.to_string()))?;
        Ok(text)
    }

    /// Where the metrics are collected.
    pub fn registry(&self) -> prometheus::Registry {
        self.registry.clone()
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // An absent collector must not keep a process from ending, and is no error of the work that was done.
        std::thread::scope(|scope| {
            // It gives up after five seconds. The exporter has said itself what is wrong, if somebody takes only traces.
            scope.spawn(|| {
                if let Err(e) = self.meters.shutdown() {
                    tracing::debug!(error = %e, "the last metrics were not exported");
                }
            });
            if let Err(e) = self.traces.shutdown_with_timeout(std::time::Duration::from_secs(3)) {
                tracing::warn!(error = %e, "not all traces were exported");
            }
        });
    }
}

struct Carrier(Trace);

impl Injector for Carrier {
    fn set(&mut self, key: &str, value: String) {
        match key {
            "traceparent" => self.0.parent = Some(value),
            "tracestate" if !value.is_empty() => self.0.state = Some(value),
            _ => {}
        }
    }
}

impl Extractor for Carrier {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.0.parent.as_deref(),
            "tracestate" => self.0.state.as_deref(),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// The trace context of a span, to be carried in an event.
pub fn trace_of(span: &Span) -> Trace {
    if span.is_disabled() {
        return Trace::default();
    }
    let mut carrier = Carrier(Trace::default());
    TraceContextPropagator::new().inject_context(&span.context(), &mut carrier);
    carrier.0
}

/// Makes a span the child of what an event carries.
pub fn follow(span: &Span, trace: &Trace) {
    if span.is_disabled() || trace.parent.is_none() {
        return;
    }
    let context = TraceContextPropagator::new().extract(&Carrier(trace.clone()));
    if context.span().span_context().is_valid() {
        // Fails only for a span that has begun to be exported; it is then traced on its own.
        let _ = span.set_parent(context);
    }
}

/// Links a span to what an event carries, without making it its child.
pub fn link(span: &Span, trace: &Trace) {
    if span.is_disabled() || trace.parent.is_none() {
        return;
    }
    let context: Context = TraceContextPropagator::new().extract(&Carrier(trace.clone()));
    let other = context.span().span_context().clone();
    if other.is_valid() {
        span.add_link(other);
    }
}

/// A span's trace id, 32 hexadecimal digits; empty when nothing is traced.
pub fn trace_id(span: &Span) -> String {
    let context = span.context();
    let id = context.span().span_context().clone();
    if id.is_valid() { id.trace_id().to_string() } else { String::new() }
}
