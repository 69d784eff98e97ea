//! The console: a page on which a team sees what would be freed and why, approves it, watches it happen and follows one act back.
//!
//! Pages are made here, whole, and read without any script; the one small script adds acts as they happen and questions before buttons.
//! What is shown comes from four places: plans that the console makes itself ([`look`], indexed by [`index`]), the record of the state
//! folder ([`record`]), the store's documents, and the bus's dead letters. [`views`] gathers it once for pages ([`pages`]) and for the read
//! API ([`api`]). What changes something is in [`doing`] and [`approve`], and goes the ways that the command line goes: there is no second
//! way of acting.

mod access;
mod api;
mod approve;
mod doing;
mod index;
mod live;
mod look;
mod pages;
mod record;
mod story;
mod treemap;
mod views;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trimtab_bus::Bus;
use trimtab_events::{Body, Event, Scope};
use trimtab_targets::Class;

pub use access::{Access, Grade, new_token};
pub use api::openapi;
pub use approve::Hands;

use crate::activity::Activity;
use crate::clock::Clock;
use crate::config::Caps;
use crate::journal::{Journal, Record, RecordKind};
use crate::plan::Planner;
use crate::scans::Scans;
use crate::worker::Failure;
use access::{Who, same_origin};
use look::Looker;
use pages::Assets;
use record::Records;

/// Pages that read the disk at once.
const TURNS: usize = 4;
/// Browsers that watch at once.
const WATCHERS: usize = 256;
/// Requests larger than this are refused.
const MAX_BODY: usize = 256 * 1024;

/// What a console is made of.
pub struct ConsoleParts {
    /// Name of the target.
    pub target: String,
    /// Makes plans; without it there are none.
    pub planner: Option<Planner>,
    /// What plans are about.
    pub scope: Scope,
    /// The moment that ages count from, where it is not the present.
    pub now_ms: Option<i64>,
    /// Plan again after this time.
    pub every: Option<Duration>,
    /// Where plans and indexes go.
    pub folder: PathBuf,
    /// Where the journals are.
    pub audit: PathBuf,
    /// Gates, budgets, progress.
    pub scans: Scans,
    /// Marks, and wishes to be left alone.
    pub activity: Activity,
    /// Dead letters.
    pub bus: Arc<dyn Bus>,
    /// Who did what goes here before it is done.
    pub journal: Arc<Journal>,
    /// What carries out an approved plan.
    pub hands: Hands,
    /// Limits on what is carried out of one plan.
    pub caps: Caps,
    /// Where a trace can be looked at; `{trace_id}` is replaced.
    pub trace_link: Option<String>,
    /// Who may look, and who may act.
    pub access: Access,
    /// The clock.
    pub clock: Clock,
    /// Ends what goes on behind the pages.
    pub stop: CancellationToken,
    /// What has to come to its end before the process may.
    pub tasks: TaskTracker,
}

/// A console.
pub struct Console {
    parts: ConsoleParts,
    looker: Arc<Looker>,
    records: Arc<Records>,
    approving: approve::State,
    assets: Assets,
    turns: Semaphore,
    watchers: Arc<Semaphore>,
    /// How many dead letters there were, and when that was asked: over NATS each of them is read.
    dead: tokio::sync::Mutex<Option<(tokio::time::Instant, Option<u64>)>>,
}

impl Console {
    /// Starts one: the record is followed and plans are made from now on.
    ///
    /// # Errors
    /// When its folder cannot be used.
    pub fn start(mut parts: ConsoleParts) -> Result<Arc<Console>, Failure> {
        let looker = Looker::new(
            parts.planner.take(),
            parts.scope.clone(),
            parts.now_ms,
            parts.folder.clone(),
            parts.clock.clone(),
        )?;
        let (looker, records) =
            (Arc::new(looker), Arc::new(Records::open(&parts.folder.join("record.index"), parts.audit.clone())?));
        let (every, stop) = (parts.every, parts.stop.clone());
        tokio::spawn(looker.clone().run(every, stop.clone()));
        tokio::spawn(records.clone().follow(stop));
        let console = Console {
            parts,
            looker,
            records,
            approving: approve::State::default(),
            assets: Assets::new(),
            turns: Semaphore::new(TURNS),
            watchers: Arc::new(Semaphore::new(WATCHERS)),
            dead: tokio::sync::Mutex::default(),
        };
        Ok(Arc::new(console))
    }

    /// Shows what came over the bus, beside what is in the journals here. Whoever calls has checked who signed it. Blocks.
    ///
    /// # Errors
    /// When the index cannot be written.
    pub fn heard(&self, event: &Event) -> Result<(), Failure> {
        let Ok(body) = event.body() else { return Ok(()) };
        let failed = |e: serde_json::Error| Failure::new(Class::Bug, e);
        let (kind, id, trace_id) = match &body {
            Body::Outcome(outcome) => (RecordKind::Outcome, outcome.decision.to_string(), outcome.trace_id.clone()),
            Body::Notice(notice) => (RecordKind::Notice, event.id.clone(), notice.trace_id.clone()),
            _ => return Ok(()),
        };
        let body: serde_json::Value = serde_json::from_str(event.data.get()).map_err(failed)?;
        let subject = body["subject"].as_str().unwrap_or_default().to_owned();
        let at_ms = body["ended_ms"].as_i64().or(body["at_ms"].as_i64()).unwrap_or(event.time.as_millisecond());
        self.records.add_heard(&Record { seq: 0, at_ms, kind, id, subject, trace_id, body })
    }
}

/// The console's routes: everything but health, metrics and webhooks.
pub fn routes(console: Arc<Console>) -> Router {
    let pages = Router::new()
        .route("/", get(pages::overview))
        .route("/plan", get(pages::plan))
        .route("/plan/item/{id}", get(pages::item))
        .route("/plan/choose", post(doing::choose))
        .route("/plan/approve", get(pages::approve).post(approve::approve))
        .route("/story", get(pages::story))
        .route("/acts", get(pages::acts))
        .route("/limits", get(pages::limits))
        .route("/marks", get(pages::marks))
        .route("/dead", get(pages::dead))
        .route("/recovery", get(pages::recovery))
        .route("/live", get(live::live))
        .route("/look", post(doing::look))
        .route("/scans/confirm", post(doing::confirm))
        .route("/scans/stop", post(doing::stop))
        .route("/protect", post(doing::protect))
        .route("/dead/retry", post(doing::retry))
        .route("/dead/drop", post(doing::forget))
        .route("/login", get(pages::login).post(doing::log_in))
        .route("/logout", post(doing::log_out))
        .route("/static/{name}", get(pages::asset));
    pages
        .merge(api::routes())
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(console.clone(), guard))
        .with_state(console)
}

/// What a page may load, and whom it may talk to: this server, and nothing inside the page itself.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
                      base-uri 'none'; frame-ancestors 'none'";

/// Why something is not answered.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    status: StatusCode,
    says: String,
}

impl Refusal {
    fn new(status: StatusCode, says: impl Into<String>) -> Refusal {
        Refusal { status, says: says.into() }
    }

    fn absent(what: &str) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, format!("there is no {what}"))
    }
}

impl From<Failure> for Refusal {
    fn from(e: Failure) -> Refusal {
        let status = match &e {
            Failure::Failed { class: Class::Invalid, .. } => StatusCode::BAD_REQUEST,
            Failure::Failed { class: Class::Gone, .. } => StatusCode::CONFLICT,
            Failure::Failed { class: Class::Refused, .. } => StatusCode::FORBIDDEN,
            Failure::Failed { class: Class::Bug, .. } => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refusal::new(status, e.to_string())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        // Told as a page or as JSON by the guard, who knows what was asked for.
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Everything passes here: by which name, from whom, what for; and what browsers are told about every answer.
async fn guard(
    State(console): State<Arc<Console>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    let api = path.starts_with("/api/");
    let who = console.parts.access.who(peer, request.headers());
    let refusal = console.refuses(&request, who.as_ref());
    let response = match refusal {
        Some(refusal) => refusal.into_response(),
        None => {
            if let Some(who) = who.clone() {
                request.extensions_mut().insert(who);
            }
            next.run(request).await
        }
    };
    let mut response = match response.extensions().get::<Refusal>() {
        Some(refusal) if api => api::refused(refusal),
        Some(refusal) if refusal.status == StatusCode::UNAUTHORIZED && console.parts.access.has_login() => {
            (StatusCode::SEE_OTHER, [(header::LOCATION, "/login")]).into_response()
        }
        Some(refusal) => pages::refused(&console, who.as_ref(), refusal),
        None => response,
    };
    let headers = response.headers_mut();
    let set = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
    ];
    for (name, value) in set {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-opener-policy", HeaderValue::from_static("same-origin"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

impl Console {
    /// Why a request goes no further, if so.
    fn refuses(&self, request: &Request, who: Option<&Who>) -> Option<Refusal> {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !self.parts.access.known_host(host) {
            let says = format!("the console is not called {host:?}: add the name to console.hosts");
            return Some(Refusal::new(StatusCode::MISDIRECTED_REQUEST, says));
        }
        let path = request.uri().path();
        let acting = ![Method::GET, Method::HEAD].contains(request.method());
        if acting && !same_origin(request.headers()) {
            return Some(Refusal::new(StatusCode::FORBIDDEN, "this did not come from a page of the console"));
        }
        if path == "/login" || path.starts_with("/static/") {
            return None;
        }
        let Some(who) = who else {
            let says = match self.parts.access.has_login() {
                true => "log in, or send a token as a bearer",
                false => "nobody is let in who does not come through the proxy that says who they are",
            };
            return Some(Refusal::new(StatusCode::UNAUTHORIZED, says));
        };
        if acting && path != "/logout" && who.grade < Grade::Operator {
            let says = format!("{} may look; this needs the role operator", who.name);
            return Some(Refusal::new(StatusCode::FORBIDDEN, says));
        }
        None
    }
}
