//! What starts a scan: the timer, the command line, a NATS request, an HTTP call, an alert, a second visit that fell due.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use trimtab_bus::Bus;
use trimtab_events::{Event, ScanRequest, Scope, Trace, Trigger};
use trimtab_targets::Class;
use uuid::Uuid;

use crate::clock::{Clock, timestamp};
use crate::scans::Scans;
use crate::worker::Failure;
use crate::workers::source;

/// Asks for scans of one target.
#[derive(Clone)]
pub struct Triggers {
    bus: Arc<dyn Bus>,
    target: String,
    clock: Clock,
    source: String,
    ids: Arc<dyn Fn() -> Uuid + Send + Sync>,
}

impl Triggers {
    /// Asks over this bus.
    pub fn new(bus: Arc<dyn Bus>, target: &str, clock: Clock, instance: &str) -> Triggers {
        let (source, ids) = (source("trigger", instance), Arc::new(Uuid::now_v7));
        Triggers { bus, target: target.to_owned(), clock, source, ids }
    }

    /// The same, with scans named by `ids`: none may come twice.
    pub fn with_ids(self, ids: impl Fn() -> Uuid + Send + Sync + 'static) -> Triggers {
        Triggers { ids: Arc::new(ids), ..self }
    }

    /// Asks for a scan; its id.
    ///
    /// # Errors
    /// When the scope is not valid, or the request could not be stored.
    pub async fn scan(&self, scope: Scope, trigger: Trigger) -> Result<Uuid, Failure> {
        // Whoever asks is told now; a scanner could only make it a dead letter.
        trimtab_targets::pulsar::check_scope(&scope)?;
        let id = (self.ids)();
        info!(scan = %id, %scope, ?trigger, "a scan is asked for");
        let body = ScanRequest { id, target: self.target.clone(), scope, trigger };
        let trace: Trace = crate::telemetry::trace_of(&tracing::Span::current());
        let now = timestamp(self.clock.now_ms());
        let event = Event::new(id.to_string(), &self.source, &self.target, now, trace, body)?;
        self.bus.publish(&event).await?;
        Ok(id)
    }

    /// Asks for the second visits that are due. How many.
    ///
    /// # Errors
    /// When the store or the bus fails.
    pub async fn revisits(&self, scans: &Scans) -> Result<usize, Failure> {
        let due = scans.due(self.clock.now_ms(), 100).await?;
        let due: Vec<_> = due.into_iter().filter(|revisit| revisit.target == self.target).collect();
        for revisit in &due {
            let scope = Scope { topic: Some(revisit.subject.clone()), ..Scope::default() };
            self.scan(scope, Trigger::Revisit).await?;
            // Only then: a crash in between asks twice, which is a scan too many and nothing lost.
            scans.visited(revisit).await?;
        }
        Ok(due.len())
    }

    /// Asks for a full scan every so often, and for second visits as they fall due, until `stop`.
    pub async fn timer(&self, every: Option<Duration>, scope: Scope, scans: Scans, stop: CancellationToken) {
        let mut next = tokio::time::Instant::now();
        let minute = Duration::from_secs(60);
        loop {
            if let Some(every) = every.filter(|_| tokio::time::Instant::now() >= next) {
                next = tokio::time::Instant::now() + every;
                if let Err(e) = self.scan(scope.clone(), Trigger::Timer).await {
                    warn!(error = %e, "the timer could not ask for a scan");
                }
            }
            if let Err(e) = self.revisits(&scans).await {
                warn!(error = %e, "second visits could not be asked for; they stay due");
            }
            let wait =
                if every.is_some() { next.duration_since(tokio::time::Instant::now()).min(minute) } else { minute };
            tokio::select! { biased; () = stop.cancelled() => return, () = tokio::time::sleep(wait) => {} }
        }
    }
}

/// Reads what an HTTP or NATS request asks for: a scope, or an Alertmanager notification. The scopes to scan.
///
/// # Errors
/// What is wrong with it.
pub fn scopes_of(body: &[u8]) -> Result<(Vec<Scope>, Trigger), Failure> {
    let invalid = |why: String| Failure::new(Class::Invalid, why);
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok((vec![Scope::default()], Trigger::Http));
    }
    let value: serde_json::Value =
        serde_json::from_slice(body).map_err(|e| invalid(format!("the body is not JSON: {e}")))?;
    if !value.is_object() {
        return Err(invalid("the body is not a JSON object".to_owned()));
    }
    if value.get("alerts").is_none() {
        let scope = serde_json::from_value(value).map_err(|e| invalid(format!("the body is not a scope: {e}")))?;
        return Ok((vec![scope], Trigger::Http));
    }
    #[derive(Deserialize)]
    struct Notification {
        alerts: Vec<Alert>,
    }
    #[derive(Deserialize)]
    struct Alert {
        #[serde(default)]
        status: String,
        #[serde(default)]
        labels: std::collections::BTreeMap<String, String>,
    }
    let notification: Notification = serde_json::from_value(value)
        .map_err(|e| invalid(format!("the body is not an Alertmanager notification: {e}")))?;
    let mut scopes: Vec<Scope> = Vec::new();
    for alert in notification.alerts.iter().filter(|alert| alert.status == "firing") {
        let scope = scope_of_labels(&alert.labels);
        if let Some(scope) = scope.filter(|scope| !scopes.contains(scope)) {
            scopes.push(scope);
        }
    }
    Ok((scopes, Trigger::Alert))
}

/// The part of the cluster that an alert names. Only what it names is scanned: an alert without one starts nothing.
fn scope_of_labels(labels: &std::collections::BTreeMap<String, String>) -> Option<Scope> {
    let label =
        |names: &[&str]| names.iter().find_map(|name| labels.get(*name)).filter(|value| !value.is_empty()).cloned();
    if let Some(topic) = label(&["topic", "pulsar_topic"]).filter(|topic| topic.matches('/').count() >= 2) {
        return Some(Scope { topic: Some(topic), ..Scope::default() });
    }
    let namespace = label(&["namespace", "pulsar_namespace"]);
    let tenant = label(&["tenant", "pulsar_tenant"]);
    let namespace = match (namespace, &tenant) {
        (Some(namespace), _) if namespace.contains('/') => Some(namespace),
        (Some(namespace), Some(tenant)) => Some(format!("{tenant}/{namespace}")),
        _ => None,
    };
    match (namespace, tenant) {
        (Some(namespace), _) => Some(Scope { namespace: Some(namespace), ..Scope::default() }),
        (None, Some(tenant)) => Some(Scope { tenant: Some(tenant), ..Scope::default() }),
        (None, None) => None,
    }
}

/// Subject of scan requests over NATS; the body is a scope as JSON, or nothing for everything. Answered with the scan's id.
#[cfg(feature = "nats")]
pub const REQUEST_SUBJECT: &str = "trimtab.scan.request";

/// Answers scan requests over NATS until `stop`. Several scanners may listen: each request goes to one.
#[cfg(feature = "nats")]
pub async fn answer_requests(client: async_nats::Client, triggers: Triggers, stop: CancellationToken) {
    use futures::StreamExt;
    let mut requests = match client.queue_subscribe(REQUEST_SUBJECT, "trimtab".into()).await {
        Ok(requests) => requests,
        Err(e) => return warn!(error = %e, "scan requests over NATS cannot be answered"),
    };
    loop {
        let request = tokio::select! {
            () = stop.cancelled() => return,
            request = requests.next() => request,
        };
        let Some(request) = request else { return };
        let asked = match scopes_of(&request.payload) {
            Ok((scopes, _)) => {
                let scope = scopes.into_iter().next().unwrap_or_default();
                triggers.scan(scope, Trigger::Nats).await
            }
            Err(e) => Err(e),
        };
        let answer = match asked {
            Ok(id) => serde_json::json!({ "scan": id }),
            Err(e) => serde_json::json!({ "error": e.to_string() }),
        };
        if let Some(reply) = request.reply
            && let Err(e) = client.publish(reply, answer.to_string().into()).await
        {
            warn!(error = %e, "a scan request could not be answered");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_body_means_everything_and_a_scope_is_taken() {
        assert_eq!(scopes_of(b" ").unwrap().0, [Scope::default()]);
        let (scopes, _) = scopes_of(br#"{"namespace":"acme/a"}"#).unwrap();
        assert_eq!(scopes[0].namespace.as_deref(), Some("acme/a"));
        for bad in [&b"{"[..], b"[]", br#"{"namspace":"x"}"#, br#"{"alerts":1}"#] {
            assert!(scopes_of(bad).is_err());
        }
    }

    #[test]
    fn firing_alerts_name_what_is_scanned() {
        let body = br#"{"version":"4","status":"firing","alerts":[
            {"status":"firing","labels":{"alertname":"DiskFull","namespace":"acme/a"}},
            {"status":"firing","labels":{"namespace":"acme/a"}},
            {"status":"firing","labels":{"tenant":"acme","namespace":"b"}},
            {"status":"resolved","labels":{"namespace":"acme/c"}},
            {"status":"firing","labels":{"namespace":"kube-system"}},
            {"status":"firing","labels":{}}]}"#;
        let (scopes, trigger) = scopes_of(body).unwrap();
        let names: Vec<_> = scopes.iter().map(|scope| scope.namespace.clone().unwrap_or_default()).collect();
        assert_eq!((names, trigger), (vec!["acme/a".to_owned(), "acme/b".to_owned()], Trigger::Alert));
    }
}
