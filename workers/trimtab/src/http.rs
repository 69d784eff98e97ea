//! The HTTP server: health, metrics, and the two calls that start something.
//!
//! `GET /livez`, `/readyz` (`?verbose`), `/metrics`; `POST /v1/scans` (a scope, or an Alertmanager notification) and
//! `POST /v1/trims` (one topic, PIP-219's TrimLedger), both through the same scanner, decider and executor as everything else;
//! `POST /v1/protections` (leave something alone). Everything else is the [`console`](crate::console), where there is one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use trimtab_events::{Protection, Scope, Trigger};
use trimtab_targets::Class;

use crate::console::{self, Console};
use crate::openmetrics;
use crate::telemetry::Telemetry;
use crate::triggers::{Triggers, scopes_of};
use crate::wishes::Wishes;
use crate::worker::Failure;

/// One thing that must work for this process to take work; its name, and how to find out.
#[derive(Clone)]
pub struct Check {
    /// What it is called.
    pub name: &'static str,
    /// Whether it works, or why not.
    pub find: Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>,
}

/// What does not answer in this time does not work: whoever asks waits only a little longer.
const CHECK_PATIENCE: Duration = Duration::from_secs(2);

/// Makes all checks at once; each with its name.
pub async fn judge(checks: &[Check]) -> Vec<(&'static str, Result<(), String>)> {
    futures::future::join_all(checks.iter().map(|check| async move {
        let found = tokio::time::timeout(CHECK_PATIENCE, (check.find)()).await;
        (check.name, found.unwrap_or_else(|_| Err(format!("no answer within {CHECK_PATIENCE:?}"))))
    }))
    .await
}

/// What the server serves.
#[derive(Clone)]
pub struct Served {
    /// The metrics.
    pub registry: prometheus::Registry,
    /// Checks of readiness.
    pub checks: Vec<Check>,
    /// What calls start; none in roles that start nothing.
    pub triggers: Option<Triggers>,
    /// Where wishes to be left alone are noted and recorded.
    pub wishes: Option<Wishes>,
    /// The token that calls must carry.
    pub token: Option<String>,
    /// The console, on every other address.
    pub console: Option<Arc<Console>>,
}

/// Requests larger than this are refused.
const MAX_BODY: usize = 1024 * 1024;

/// The routes.
pub fn routes(served: Served) -> Router {
    let mut router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics));
    if served.triggers.is_some() {
        router = router.route("/v1/scans", post(scans)).route("/v1/trims", post(trims));
    }
    if served.wishes.is_some() {
        router = router.route("/v1/protections", post(protections));
    }
    let console = served.console.clone();
    let router = router.layer(axum::extract::DefaultBodyLimit::max(MAX_BODY)).with_state(served);
    match console {
        Some(console) => router.merge(console::routes(console)),
        None => router,
    }
}

/// Listens; the address it got.
///
/// # Errors
/// When the address cannot be had.
pub async fn listen(address: SocketAddr) -> Result<(tokio::net::TcpListener, SocketAddr), Failure> {
    let failed = |e: std::io::Error| Failure::new(Class::Invalid, format!("listening on {address}: {e}"));
    let listener = tokio::net::TcpListener::bind(address).await.map_err(failed)?;
    let got = listener.local_addr().map_err(failed)?;
    Ok((listener, got))
}

/// Serves until `stop`, then finishes what was begun.
pub async fn serve(listener: tokio::net::TcpListener, served: Served, stop: CancellationToken) {
    let stopped = async move { stop.cancelled().await };
    let service = routes(served).into_make_service_with_connect_info::<SocketAddr>();
    if let Err(e) = axum::serve(listener, service).with_graceful_shutdown(stopped).await {
        tracing::warn!(error = %e, "the HTTP server ended");
    }
}

async fn ready(
    State(served): State<Served>,
    Query(query): Query<std::collections::BTreeMap<String, String>>,
) -> Response {
    let mut lines = Vec::new();
    let mut ready = true;
    for (name, result) in judge(&served.checks).await {
        ready &= result.is_ok();
        lines.push(match result {
            Ok(()) => format!("[+] {name} ok"),
            Err(why) => format!("[-] {name} failed: {why}"),
        });
    }
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let verbose = query.contains_key("verbose") || !ready;
    let text = if verbose { lines.join("\n") + "\n" } else { "ok\n".to_owned() };
    (status, text).into_response()
}

async fn metrics(State(served): State<Served>, headers: HeaderMap) -> Response {
    let accept = headers.get("accept").and_then(|value| value.to_str().ok()).unwrap_or_default();
    match Telemetry::page(&served.registry) {
        Ok(page) if openmetrics::wanted(accept) => {
            ([("content-type", openmetrics::CONTENT_TYPE)], openmetrics::page(&page)).into_response()
        }
        Ok(page) => ([("content-type", "text/plain; version=0.0.4")], page).into_response(),
        Err(e) => problem(StatusCode::INTERNAL_SERVER_ERROR, &e.to_string()),
    }
}

fn problem(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

fn refused(e: &Failure) -> Response {
    let status = match e {
        Failure::Failed { class: Class::Invalid, .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    problem(status, &e.to_string())
}

/// Whether a call carries the token, where one is set. Compared in a time that does not depend on where they differ.
fn allowed(served: &Served, headers: &HeaderMap) -> bool {
    let Some(token) = &served.token else { return true };
    let given = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let given = given.strip_prefix("Bearer ").unwrap_or_default();
    let same = given.bytes().zip(token.bytes()).fold(0, |acc, (a, b)| acc | (a ^ b));
    given.len() == token.len() && same == 0
}

async fn scans(State(served): State<Served>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(triggers) = served.triggers.as_ref().filter(|_| allowed(&served, &headers)) else {
        return problem(StatusCode::UNAUTHORIZED, "this call needs the token as a bearer");
    };
    let (scopes, trigger) = match scopes_of(&body) {
        Ok(found) => found,
        Err(e) => return refused(&e),
    };
    let mut ids = Vec::new();
    for scope in scopes {
        match triggers.scan(scope, trigger).await {
            Ok(id) => ids.push(id),
            Err(e) => return refused(&e),
        }
    }
    (StatusCode::ACCEPTED, Json(json!({ "scans": ids }))).into_response()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trim {
    topic: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Protect {
    subject: String,
    by: String,
    #[serde(default)]
    until: Option<jiff::Timestamp>,
    #[serde(default)]
    remove: bool,
}

async fn protections(State(served): State<Served>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(wishes) = served.wishes.as_ref().filter(|_| allowed(&served, &headers)) else {
        return problem(StatusCode::UNAUTHORIZED, "this call needs the token as a bearer");
    };
    let asked: Protect = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(e) => {
            let why =
                format!("expected {{\"subject\": \"persistent://…\", \"by\": \"who\", \"until\": \"RFC 3339\"}}: {e}");
            return problem(StatusCode::BAD_REQUEST, &why);
        }
    };
    let until_ms = asked.until.map(|until| until.as_millisecond());
    let wish = Protection { subject: asked.subject, by: asked.by, until_ms };
    match wishes.note(&wish, asked.remove).await {
        Ok(()) => (StatusCode::OK, Json(json!({ "protected": !asked.remove }))).into_response(),
        Err(e) => refused(&e),
    }
}

async fn trims(State(served): State<Served>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(triggers) = served.triggers.as_ref().filter(|_| allowed(&served, &headers)) else {
        return problem(StatusCode::UNAUTHORIZED, "this call needs the token as a bearer");
    };
    let trim: Trim = match serde_json::from_slice(&body) {
        Ok(trim) => trim,
        Err(e) => return problem(StatusCode::BAD_REQUEST, &format!("expected {{\"topic\": \"persistent://…\"}}: {e}")),
    };
    let scope = Scope { topic: Some(trim.topic), ..Scope::default() };
    match triggers.scan(scope, Trigger::Http).await {
        Ok(id) => (StatusCode::ACCEPTED, Json(json!({ "scan": id }))).into_response(),
        Err(e) => refused(&e),
    }
}
