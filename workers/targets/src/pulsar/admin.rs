//! The brokers' admin REST API: redirects followed by hand with the credentials kept, only to brokers that are known; calls
//! paced and bounded for each broker, slower when it slows.
//!
//! Source: Pulsar 4.2's `PersistentTopics` resource, as captured from a real broker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{Instrument, field, info_span};
use trimtab_events::{Position, Retention, Told};

use super::examine::Greeting;
use super::metadata::Hole;
use super::names::{TopicName, decode, encode, percent};
use super::policies::TopicPolicies;
use crate::error::{Class, Result, TargetError};
use crate::{Calls, CallsTo};

/// How brokers are reached.
#[derive(Clone)]
pub struct AdminOptions {
    /// Web addresses of brokers, `http(s)://host:port`. Calls start at the first that answers; redirects go only to these and
    /// to brokers registered in the metadata.
    pub urls: Vec<String>,
    /// Further `host:port` that redirects may go to.
    pub allowed_hosts: Vec<String>,
    /// Token, sent as a bearer.
    pub token: Option<String>,
    /// PEM certificate authorities for https.
    pub ca_pem: Option<Vec<u8>>,
    /// PEM client certificate and key for https.
    pub identity_pem: Option<Vec<u8>>,
    /// How long one call may take. Loading a topic can wait for replication clusters that are down.
    pub timeout: Duration,
    /// Calls in flight for each broker. At least one is.
    pub concurrency: usize,
    /// Calls started per second for each broker; 0 is no limit.
    pub rate: f64,
    /// A call that takes longer makes the next ones to that broker wait.
    pub slow: Duration,
}

impl Default for AdminOptions {
    fn default() -> Self {
        AdminOptions {
            urls: Vec::new(),
            allowed_hosts: Vec::new(),
            token: None,
            ca_pem: None,
            identity_pem: None,
            timeout: Duration::from_secs(60),
            concurrency: 4,
            rate: 20.0,
            slow: Duration::from_secs(5),
        }
    }
}

impl std::fmt::Debug for AdminOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminOptions")
            .field("urls", &self.urls)
            .field("token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

/// Redirects that one call follows. Two are normal: to the leader, and on to the owner.
const MAX_REDIRECTS: usize = 5;
/// The longest a broker that keeps being slow or refusing is left alone between two calls.
const MAX_BACK_OFF: Duration = Duration::from_secs(30);

struct Broker {
    calls: Arc<CallsTo>,
    back_off: Mutex<BackOff>,
}

#[derive(Default)]
struct BackOff {
    delay: Duration,
    until: Option<Instant>,
}

/// A client of the admin API.
pub struct Admin {
    http: reqwest::Client,
    options: AdminOptions,
    urls: Vec<Url>,
    allowed: Mutex<Vec<(String, u16)>>,
    registered: Mutex<Vec<Url>>,
    calls: Arc<Calls>,
    brokers: Mutex<HashMap<String, Arc<Broker>>>,
}

/// What a topic's statistics say of who is connected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Connected {
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    pub(crate) subscriptions: HashMap<String, SubscriptionStats>,
    /// Transactions that are open on the topic. Not from old brokers.
    pub(crate) open_transactions: Option<i64>,
}

/// A subscription, as its broker has it in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionStats {
    /// Who is connected.
    #[serde(default)]
    pub consumers: Vec<ConnectedConsumer>,
    /// It is kept in step with other clusters, as some versions call it.
    #[serde(default)]
    replicated: bool,
    /// The same, as others call it. Some say both.
    #[serde(default)]
    is_replicated: bool,
    /// When something was last delivered, milliseconds since 1970. 0 after the topic was loaded: not known, which is not never.
    #[serde(default)]
    pub last_consumed_timestamp: i64,
    /// When something was last acknowledged, likewise.
    #[serde(default)]
    pub last_acked_timestamp: i64,
    /// When a consumer last asked for messages, likewise.
    #[serde(default)]
    pub last_consumed_flow_timestamp: i64,
}

impl SubscriptionStats {
    /// It is kept in step with other clusters.
    pub fn replicated(&self) -> bool {
        self.replicated || self.is_replicated
    }
}

/// Where a subscription stands, as its broker has it in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldCursor {
    /// Everything up to and including this is acknowledged.
    pub mark_delete: Position,
    /// What is acknowledged beyond it.
    pub holes: Vec<Hole>,
    /// Who uses it, and when somebody last did.
    pub told: Told,
}

/// `12:3`.
fn position(text: &str) -> Option<Position> {
    let (ledger, entry) = text.trim().split_once(':')?;
    Some(Position { ledger: ledger.parse().ok()?, entry: entry.parse().ok()? })
}

/// `[(12:3..12:5],(13:-1..13:0]]`, without the first and with the last of each run. Some versions write other dots.
fn runs(text: &str) -> Option<Vec<Hole>> {
    let mut rest = text.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut holes = Vec::new();
    while !rest.is_empty() {
        let (run, more) = rest.strip_prefix('(')?.split_once(']')?;
        let (after, last) = run.split_once("..").or_else(|| run.split_once('\u{2025}'))?;
        holes.push(Hole { after: position(after)?, last: position(last)? });
        rest = more.trim_start_matches([',', ' ']);
    }
    Some(holes)
}

/// A consumer, as statistics show it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConnectedConsumer {
    /// Its name.
    #[serde(default)]
    pub consumer_name: String,
    /// Where it connects from.
    #[serde(default)]
    pub address: String,
    /// Since when.
    #[serde(default)]
    pub connected_since: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStats {
    ongoing_txn_count: Option<i64>,
    #[serde(default)]
    publishers: Vec<serde_json::Value>,
    #[serde(default)]
    subscriptions: HashMap<String, SubscriptionStats>,
}

/// What part of a message an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Of which message.
    pub(crate) uuid: String,
    /// The how manieth, from 0.
    pub(crate) id: u32,
    /// Of how many.
    pub(crate) of: u32,
}

/// The answer to a call that reached a broker.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Why a call has no answer.
struct Unanswered {
    error: TargetError,
    /// No connection was made: nobody can have carried it out.
    unsent: bool,
}

impl From<TargetError> for Unanswered {
    fn from(error: TargetError) -> Unanswered {
        Unanswered { error, unsent: false }
    }
}

type Answered<T> = std::result::Result<T, Unanswered>;

impl Admin {
    /// A client.
    ///
    /// # Errors
    /// When an address, a certificate or a key is not valid.
    pub fn new(options: AdminOptions) -> Result<Admin> {
        let invalid = |what: &str, why: String| TargetError::new(Class::Invalid, what.to_owned(), why);
        let parse = |url: &String| {
            let parsed =
                Url::parse(url).map_err(|e| invalid(&format!("reading the broker address {url:?}"), e.to_string()))?;
            match (parsed.scheme(), parsed.host_str()) {
                ("http" | "https", Some(_)) => Ok(parsed),
                _ => {
                    Err(invalid(&format!("reading the broker address {url:?}"), "expected http(s)://host:port".into()))
                }
            }
        };
        let urls: Vec<Url> = options.urls.iter().map(parse).collect::<Result<_>>()?;
        let mut http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(options.timeout);
        if let Some(pem) = &options.ca_pem {
            let certs = reqwest::Certificate::from_pem_bundle(pem);
            for cert in
                certs.map_err(|e| invalid("reading the certificate authorities of the brokers", e.to_string()))?
            {
                http = http.add_root_certificate(cert);
            }
        }
        if let Some(pem) = &options.identity_pem {
            let identity = reqwest::Identity::from_pem(pem);
            http = http
                .identity(identity.map_err(|e| invalid("reading the client certificate for brokers", e.to_string()))?);
        }
        let http = http.build().map_err(|e| invalid("making an HTTP client", e.to_string()))?;
        let mut allowed: Vec<(String, u16)> = urls.iter().filter_map(host_of).collect();
        for host in &options.allowed_hosts {
            let url = Url::parse(&format!("https://{host}")).ok();
            let pair = url.as_ref().and_then(host_of).filter(|_| host.contains(':'));
            allowed.push(
                pair.ok_or_else(|| {
                    invalid(&format!("reading the allowed host {host:?}"), "expected host:port".into())
                })?,
            );
        }
        let calls = Calls::new(options.rate, Some(options.concurrency));
        let calls = calls.map_err(|e| invalid("reading the rate of calls to brokers", e.to_string()))?;
        Ok(Admin {
            http,
            options,
            urls,
            allowed: Mutex::new(allowed),
            registered: Mutex::default(),
            calls: Arc::new(calls),
            brokers: Mutex::default(),
        })
    }

    /// The limits on its calls, of which a part may be lent.
    pub fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    /// Lets redirects go to these web addresses too: the brokers registered in the metadata. Calls start there when no address
    /// is configured.
    pub async fn allow(&self, web_urls: &[String]) {
        let urls: Vec<Url> = web_urls.iter().filter_map(|url| Url::parse(url).ok()).collect();
        let mut allowed = self.allowed.lock().await;
        for pair in urls.iter().filter_map(host_of) {
            if !allowed.contains(&pair) {
                allowed.push(pair);
            }
        }
        *self.registered.lock().await = urls;
    }

    async fn broker(&self, url: &Url) -> Result<Arc<Broker>> {
        let key = host_of(url).map(|(host, port)| format!("{host}:{port}")).unwrap_or_default();
        let mut brokers = self.brokers.lock().await;
        if let Some(broker) = brokers.get(&key) {
            return Ok(broker.clone());
        }
        let calls = self.calls.to(&key).map_err(|e| TargetError::new(Class::Bug, format!("calling {key}"), e))?;
        let broker = Arc::new(Broker { calls, back_off: Mutex::default() });
        brokers.insert(key, broker.clone());
        Ok(broker)
    }

    /// One request to one broker: in its turn, and none while it is left alone.
    async fn send(&self, method: &Method, url: &Url, what: &str) -> Answered<(Answer, Option<Url>)> {
        let broker = self.broker(url).await?;
        let _slot = broker.calls.slot().await;
        let until = broker.back_off.lock().await.until;
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
        broker.calls.pace.one().await;
        let started = Instant::now();
        let span = info_span!(
            "call",
            otel.name = %method,
            otel.kind = "client",
            otel.status_code = field::Empty,
            http.request.method = %method,
            http.response.status_code = field::Empty,
            server.address = url.host_str(),
            server.port = url.port_or_known_default().map(i64::from),
            url.path = url.path(),
        );
        let sent = self.send_once(method, url, what).instrument(span.clone()).await;
        if let Ok((answer, _)) = &sent {
            span.record("http.response.status_code", i64::from(answer.status.as_u16()));
        }
        if !sent.as_ref().is_ok_and(|(answer, _)| answer.status.as_u16() < 400) {
            span.record("otel.status_code", "ERROR");
        }
        let bad = match &sent {
            Ok((answer, _)) => answer.status.is_server_error() || answer.status == StatusCode::TOO_MANY_REQUESTS,
            Err(_) => true,
        };
        broker.back_off.lock().await.note(bad || started.elapsed() > self.options.slow);
        sent
    }

    async fn send_once(&self, method: &Method, url: &Url, what: &str) -> Answered<(Answer, Option<Url>)> {
        let mut request = self.http.request(method.clone(), url.clone());
        if let Some(token) = &self.options.token {
            request = request.bearer_auth(token);
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            request = request.header("content-type", "application/json").body("");
        }
        let failed = |e: reqwest::Error| {
            let why = if e.is_timeout() {
                format!(
                    "no answer within {} s; whether it was carried out is not known",
                    self.options.timeout.as_secs()
                )
            } else {
                chain(&e)
            };
            Unanswered { error: TargetError::new(Class::Transient, what.to_owned(), why), unsent: e.is_connect() }
        };
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        let location = response.headers().get("location").and_then(|value| value.to_str().ok());
        let to = location.map(|location| url.join(location)).transpose();
        let to = to.map_err(|e| {
            TargetError::new(Class::Transient, what.to_owned(), format!("a redirect to no address: {e}"))
        })?;
        let headers = response.headers().clone();
        let body = response.bytes().await.map_err(failed)?.to_vec();
        Ok((Answer { status, headers, body }, to.filter(|_| status.is_redirection())))
    }

    /// One call, followed to the broker that answers it.
    async fn call(&self, method: Method, path: &str, what: &str) -> Result<Answer> {
        let mut urls = self.urls.clone();
        if urls.is_empty() {
            urls.clone_from(&*self.registered.lock().await);
        }
        if urls.is_empty() {
            let why = "no broker is registered in the metadata; is one running? Else give its address with --admin";
            return Err(TargetError::new(Class::Invalid, what.to_owned(), why));
        }
        let first = urls.remove(0);
        let mut tried = self.call_from(&first, &method, path, what).await;
        for other in urls {
            // Another broker is asked only when nothing was sent: an unanswered call may have been carried out.
            match &tried {
                Err(e) if e.unsent => tried = self.call_from(&other, &method, path, what).await,
                _ => break,
            }
        }
        tried.map_err(|e| e.error)
    }

    async fn call_from(&self, base: &Url, method: &Method, path: &str, what: &str) -> Answered<Answer> {
        let mut url =
            base.join(&format!("/admin/v2/{path}")).map_err(|e| TargetError::new(Class::Bug, what.to_owned(), e))?;
        for _ in 0..=MAX_REDIRECTS {
            let (answer, redirect) = self.send(method, &url, what).await?;
            let Some(to) = redirect else { return Ok(answer) };
            if !may_follow(&url, &to, &self.allowed.lock().await) {
                let why = format!(
                    "{url} redirects to {}, which is not a known broker (or not https any more); nothing was sent there. If it \
                     is one, add it to allowed_hosts",
                    to.origin().ascii_serialization()
                );
                return Err(TargetError::new(Class::Refused, what.to_owned(), why).into());
            }
            url = to;
        }
        let why = format!("more than {MAX_REDIRECTS} redirects: the brokers do not agree who owns it");
        Err(TargetError::new(Class::Transient, what.to_owned(), why).into())
    }

    fn judge(&self, answer: &Answer, what: &str) -> Result<()> {
        let status = answer.status;
        if status.is_success() {
            return Ok(());
        }
        let says = reason_of(&answer.body);
        let (class, advice) = match status.as_u16() {
            401 | 403 => (
                Class::Refused,
                "; check the token and that its role may do this: trimming wants a tenant's admin or a superuser",
            ),
            404 => (Class::Gone, ""),
            405 | 409 => (Class::Refused, ""),
            400 | 406 | 422 => (Class::Invalid, ""),
            _ => (Class::Transient, ""),
        };
        Err(TargetError::new(class, what.to_owned(), format!("the broker answers {status}: {says}{advice}")))
    }

    async fn checked(&self, method: Method, path: &str, what: String) -> Result<Answer> {
        let answer = self.call(method, path, &what).await?;
        self.judge(&answer, &what)?;
        Ok(answer)
    }

    /// Has the owner trim a topic. Loads it.
    pub(crate) async fn trim(&self, name: &TopicName) -> Result<()> {
        let path = format!("{}/trim", name.admin_path());
        self.checked(Method::POST, &path, format!("trimming {}", name.subject())).await.map(|_| ())
    }

    /// Has the owner expire messages of a subscription. False when there is nothing to expire, or an expiry is running.
    pub(crate) async fn expire(&self, name: &TopicName, subscription: &str, ttl_s: i64) -> Result<bool> {
        let path = format!("{}/subscription/{}/expireMessages/{ttl_s}", name.admin_path(), percent(subscription));
        let what = format!("expiring messages of {subscription:?} on {} older than {ttl_s} s", name.subject());
        let answer = self.call(Method::POST, &path, &what).await?;
        if answer.status == StatusCode::CONFLICT {
            return Ok(false);
        }
        self.judge(&answer, &what).map(|()| true)
    }

    /// Closes a topic. Loads it first when it is not loaded, so it is called only right after a visit.
    pub(crate) async fn unload(&self, name: &TopicName) -> Result<()> {
        let path = format!("{}/unload", name.admin_path());
        self.checked(Method::PUT, &path, format!("closing {}", name.subject())).await.map(|_| ())
    }

    /// Who is connected to a topic. Loads it when it is not loaded, so it is called only right after a visit.
    pub(crate) async fn connected(&self, name: &TopicName) -> Result<Connected> {
        let what = format!("reading the statistics of {}", name.subject());
        let answer = self.checked(Method::GET, &format!("{}/stats", name.admin_path()), what.clone()).await?;
        let raw: RawStats =
            serde_json::from_slice(&answer.body).map_err(|e| TargetError::new(Class::Transient, what, e))?;
        let consumers = raw.subscriptions.values().map(|subscription| subscription.consumers.len()).sum();
        Ok(Connected {
            producers: raw.publishers.len(),
            consumers,
            subscriptions: raw.subscriptions,
            open_transactions: raw.ongoing_txn_count,
        })
    }

    /// Where the subscriptions of a topic stand in its broker's memory, by their plain names. Loads the topic when it is not loaded.
    ///
    /// # Errors
    /// When the broker does not answer or the answer is not understood.
    pub async fn standing(&self, name: &TopicName) -> Result<HashMap<String, ToldCursor>> {
        #[derive(Deserialize)]
        struct Raw {
            cursors: HashMap<String, RawCursor>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct RawCursor {
            mark_delete_position: String,
            individually_deleted_messages: String,
        }
        let what = format!("asking where the subscriptions of {} stand", name.subject());
        // First who is there: whoever connects after that shows in the position, or at the attach.
        let connected = self.connected(name).await?;
        let answer = self.checked(Method::GET, &format!("{}/internalStats", name.admin_path()), what.clone()).await?;
        let raw: Raw =
            serde_json::from_slice(&answer.body).map_err(|e| TargetError::new(Class::Transient, what.clone(), e))?;
        let odd = |text: &str| TargetError::new(Class::Transient, what.clone(), format!("{text:?} is not understood"));
        let mut told = HashMap::new();
        for (encoded, cursor) in raw.cursors {
            let plain = decode(&encoded).unwrap_or(encoded);
            let Some(stats) = connected.subscriptions.get(&plain) else { continue };
            let at = &cursor.mark_delete_position;
            let mark_delete = position(at).ok_or_else(|| odd(at))?;
            let holes = runs(&cursor.individually_deleted_messages);
            let holes = holes.ok_or_else(|| odd(&cursor.individually_deleted_messages))?;
            let times = [stats.last_consumed_timestamp, stats.last_acked_timestamp, stats.last_consumed_flow_timestamp];
            let told_of = Told {
                consumers: u32::try_from(stats.consumers.len()).unwrap_or(u32::MAX),
                active_ms: times.into_iter().max().unwrap_or(0).max(0),
            };
            told.insert(plain, ToldCursor { mark_delete, holes, told: told_of });
        }
        Ok(told)
    }

    /// Whether a cursor has acknowledgements that wait for a new cursor ledger: those are lost when the topic is closed before it is
    /// made. False when the topic has no such cursor. Loads the topic when it is not loaded.
    pub(crate) async fn cursor_switches(&self, name: &TopicName, subscription: &str) -> Result<bool> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(default)]
            cursors: HashMap<String, RawCursor>,
        }
        #[derive(Deserialize)]
        struct RawCursor {
            state: Option<String>,
        }
        let what = format!("asking how the cursor {subscription:?} of {} is stored", name.subject());
        let answer = self.checked(Method::GET, &format!("{}/internalStats", name.admin_path()), what.clone()).await?;
        let raw: Raw = serde_json::from_slice(&answer.body).map_err(|e| TargetError::new(Class::Transient, what, e))?;
        let cursor = raw.cursors.get(&encode(subscription)).or_else(|| raw.cursors.get(subscription));
        Ok(cursor.and_then(|cursor| cursor.state.as_deref()) == Some("SwitchingLedger"))
    }

    /// What part of a message in chunks an entry is; none when it is a message, or several, by itself. Only its headers are asked
    /// for, not what is in it.
    pub(crate) async fn chunk(&self, name: &TopicName, entry: Position) -> Result<Option<Chunk>> {
        let path = format!("{}/ledger/{}/entry/{}", name.admin_path(), entry.ledger, entry.entry);
        let what = format!("looking at the entry {entry} of {}", name.subject());
        let answer = self.checked(Method::HEAD, &path, what.clone()).await?;
        let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| header(name).map(str::parse::<u32>).transpose();
        let odd =
            |e| TargetError::new(Class::Transient, what.clone(), format!("its part of a message is not a number: {e}"));
        let (id, of) =
            (number("x-pulsar-chunk-id").map_err(odd)?, number("x-pulsar-num-chunks-from-msg").map_err(odd)?);
        Ok(match (header("x-pulsar-uuid"), id, of) {
            (Some(uuid), Some(id), Some(of)) if of > 1 => Some(Chunk { uuid: uuid.to_owned(), id, of }),
            _ => None,
        })
    }

    /// Closes a topic again after a visit, unless somebody uses it by now. Whether it was closed, and why not.
    pub(crate) async fn close(&self, name: &TopicName) -> (bool, Option<String>) {
        let closed = async {
            let connected = self.connected(name).await?;
            if connected.producers + connected.consumers > 0 {
                let Connected { producers, consumers, .. } = connected;
                return Ok(Some(format!("left open: {producers} producers and {consumers} consumers are connected")));
            }
            self.unload(name).await?;
            Ok::<_, TargetError>(None)
        };
        match closed.await {
            Ok(why_not) => (why_not.is_none(), why_not),
            // A topic that stays open is no reason to call what was done there failed.
            Err(e) => (false, Some(format!("the topic was not closed again: {e}"))),
        }
    }

    /// What a topic sets for itself. Can load the topics of a bundle, see the module documentation of [`crate::pulsar`].
    ///
    /// # Errors
    /// When the broker does not answer or the answer is not understood.
    pub async fn topic_policies(&self, name: &TopicName) -> Result<TopicPolicies> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Raw {
            retention_time_in_minutes: i64,
            #[serde(rename = "retentionSizeInMB")]
            retention_size_in_mb: i64,
        }
        let base = format!("persistent/{}/{}", name.namespace, percent(name.base()));
        let retention: Option<Raw> = self.optional(&format!("{base}/retention"), name).await?;
        let ttl_s: Option<i64> = self.optional(&format!("{base}/messageTTL"), name).await?;
        let retention =
            retention.map(|raw| Retention { minutes: raw.retention_time_in_minutes, mib: raw.retention_size_in_mb });
        Ok(TopicPolicies { retention, ttl_s, ..TopicPolicies::default() })
    }

    async fn optional<T: serde::de::DeserializeOwned>(&self, path: &str, name: &TopicName) -> Result<Option<T>> {
        let what = format!("asking for the policies of {}", name.base_subject());
        let answer = self.checked(Method::GET, path, what.clone()).await?;
        if answer.body.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        serde_json::from_slice(&answer.body).map_err(|e| TargetError::new(Class::Transient, what, e))
    }

    /// The addresses that are configured.
    pub(super) fn configured(&self) -> Vec<String> {
        self.options.urls.clone()
    }

    /// What one broker says of its settings and its clock. Needs a superuser; has no side effects.
    pub(super) async fn greet(&self, url: &str) -> Result<Greeting> {
        let what = format!("asking {url} for its settings");
        let base = Url::parse(url).map_err(|e| TargetError::new(Class::Invalid, what.clone(), e))?;
        let asked = self.call_from(&base, &Method::GET, "brokers/configuration/runtime", &what).await;
        let answer = asked.map_err(|e| e.error)?;
        self.judge(&answer, &what)?;
        let settings = serde_json::from_slice(&answer.body).map_err(|e| TargetError::new(Class::Invalid, what, e))?;
        let date = answer.headers.get("date").and_then(|value| value.to_str().ok());
        let clock = date.and_then(|date| httpdate::parse_http_date(date).ok());
        Ok(Greeting { settings, clock })
    }
}

impl BackOff {
    /// Doubles the wait after a slow or refused call, halves it after a good one.
    fn note(&mut self, bad: bool) {
        self.delay = if bad {
            (self.delay * 2).clamp(Duration::from_millis(100), MAX_BACK_OFF)
        } else if self.delay < Duration::from_millis(50) {
            Duration::ZERO
        } else {
            self.delay / 2
        };
        self.until = (!self.delay.is_zero()).then(|| Instant::now() + self.delay);
    }
}

/// Whether a redirect may be followed, credentials and all: to a known broker, and never from https to anything else.
fn may_follow(from: &Url, to: &Url, allowed: &[(String, u16)]) -> bool {
    let safe = match (from.scheme(), to.scheme()) {
        (_, "https") => true,
        (from, to) => from == "http" && to == "http",
    };
    safe && host_of(to).is_some_and(|pair| allowed.contains(&pair))
}

fn host_of(url: &Url) -> Option<(String, u16)> {
    Some((url.host_str()?.to_ascii_lowercase(), url.port_or_known_default()?))
}

/// The reason in a broker's answer, short and on one line.
fn reason_of(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Raw {
        reason: String,
    }
    let text = match serde_json::from_slice::<Raw>(body) {
        Ok(raw) => raw.reason,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(300).collect()
}

fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(next) = source {
        text.push_str(": ");
        text.push_str(&next.to_string());
        source = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_brokers_write_of_a_cursor_is_understood() {
        let at = |ledger, entry| Position { ledger, entry };
        assert_eq!(position("12:-1"), Some(at(12, -1)));
        assert_eq!(position("12"), None);
        let two = [Hole { after: at(12, 3), last: at(12, 5) }, Hole { after: at(13, -1), last: at(13, 0) }];
        for text in ["[(12:3..12:5],(13:-1..13:0]]", "[(12:3\u{2025}12:5], (13:-1\u{2025}13:0]]"] {
            assert_eq!(runs(text).as_deref(), Some(&two[..]), "{text}");
        }
        assert_eq!(runs("[]"), Some(Vec::new()));
        for odd in ["", "[", "[(12:3..12:5]", "[[12:3..12:5]]", "[(12:3]]", "[(a:3..12:5]]", "[x]"] {
            assert_eq!(runs(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_redirect_keeps_to_known_brokers_and_to_https() {
        let url = |text: &str| Url::parse(text).unwrap();
        let allowed: Vec<_> = ["http://a:8080", "https://a:8443", "http://b", "https://c"]
            .iter()
            .filter_map(|u| host_of(&url(u)))
            .collect();
        for (from, to, may) in [
            ("http://a:8080/x", "http://b/x", true),
            ("http://a:8080/x", "http://B:80/x", true),
            ("http://a:8080/x", "https://c/x", true),
            ("https://a:8443/x", "https://c:443/x", true),
            // not https any more, to whichever port
            ("https://a:8443/x", "http://a:8080/x", false),
            ("https://a:8443/x", "http://a:8443/x", false),
            // not known: another host, another port, a name that only looks alike
            ("http://a:8080/x", "http://d/x", false),
            ("http://a:8080/x", "http://a/x", false),
            ("http://a:8080/x", "http://a:8080@d/x", false),
            ("http://a:8080/x", "http://a:8080.d/x", false),
            ("http://a:8080/x", "ftp://a:8080/x", false),
        ] {
            let Ok(to) = Url::parse(to) else { continue };
            assert_eq!(may_follow(&url(from), &to, &allowed), may, "{from} -> {to}");
        }
    }
}
