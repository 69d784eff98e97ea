//! How to reach the servers, and what is known about the connection.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::context::{RequestError, RequestErrorKind};
use async_nats::jetstream::response::Response;
use async_nats::{Client, Event as ClientEvent, ServerError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use super::answers::Answers;
use crate::{BusError, BusOptions, Result};

/// How long a request to the servers may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long requests are repeated that failed for a reason that passes: an election, a restart.
const REQUEST_PATIENCE: Duration = Duration::from_secs(15);
/// Refusals that are remembered, to explain the time-outs they cause.
const REFUSALS: usize = 64;

/// Who we are to the servers. Secrets are never shown.
#[derive(Clone, Default)]
pub enum Credentials {
    /// Nobody.
    #[default]
    None,
    /// A user with a password.
    UserPassword {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A token.
    Token(String),
    /// A file that holds the seed of an nkey.
    NkeySeedFile(PathBuf),
    /// A `.creds` file: a JWT and the seed of its nkey.
    CredsFile(PathBuf),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::None => f.write_str("None"),
            Credentials::UserPassword { user, .. } => write!(f, "UserPassword({user:?}, ***)"),
            Credentials::Token(_) => f.write_str("Token(***)"),
            Credentials::NkeySeedFile(path) => write!(f, "NkeySeedFile({path:?})"),
            Credentials::CredsFile(path) => write!(f, "CredsFile({path:?})"),
        }
    }
}

/// Transport security. With none of it set, TLS is used if the server or its address (`tls://`) asks for it.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// Certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate; needs `key`.
    pub cert: Option<PathBuf>,
    /// The key of our certificate.
    pub key: Option<PathBuf>,
    /// Never speak without TLS.
    pub required: bool,
}

/// How to reach NATS and what the streams are like.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    /// Addresses, `nats://host:4222`. More are learnt from the servers.
    pub servers: Vec<String>,
    /// Who we are.
    pub credentials: Credentials,
    /// Transport security.
    pub tls: Tls,
    /// Prefix of the subjects that answers come to; with permissions per role, each role has its own.
    pub inbox_prefix: Option<String>,
    /// Name of this client in the servers' lists.
    pub name: String,
    /// Do not come back for ever when the connection is lost: try each address once. What was asked for meanwhile is then not asked for
    /// at some later time.
    pub brief: bool,
    /// Copies of each stream: 1, 3 or 5.
    pub replicas: usize,
    /// Limits and times of the queues.
    pub bus: BusOptions,
    /// Create on connecting the streams, consumers and buckets that are missing. Needs the rights of an administrator.
    pub create: bool,
    /// How long what nobody took waits in the queues: two scan periods is a good value. A poisoned act frees its key after
    /// this time at the latest.
    pub waiting_age: Duration,
    /// How long outcomes and reports are kept.
    pub results_age: Duration,
    /// How long dead letters are kept.
    pub dead_age: Duration,
    /// Publishes under way at once, for each queue.
    pub window: usize,
}

impl Default for NatsOptions {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        NatsOptions {
            servers: vec!["nats://127.0.0.1:4222".to_owned()],
            credentials: Credentials::None,
            tls: Tls::default(),
            inbox_prefix: None,
            name: "trimtab".to_owned(),
            brief: false,
            replicas: 1,
            bus: BusOptions::default(),
            create: false,
            waiting_age: DAY * 2,
            results_age: DAY * 30,
            dead_age: DAY * 30,
            window: 1_024,
        }
    }
}

/// What happened to the connection, as far as it explains other things.
pub(crate) struct Health {
    /// Counts connections: whatever was asked of the servers before the last one is forgotten there.
    pub(crate) connections: watch::Sender<u64>,
    refusals: Mutex<VecDeque<(Instant, String)>>,
}

impl Health {
    fn new() -> Health {
        Health { connections: watch::Sender::new(0), refusals: Mutex::default() }
    }

    fn note(&self, event: &ClientEvent) {
        match event {
            ClientEvent::Connected => {
                tracing::info!("connected to NATS");
                self.connections.send_modify(|count| *count += 1);
            }
            ClientEvent::ServerError(error) => {
                tracing::error!(%error, "NATS refuses something");
                if let ServerError::Other(text) = error {
                    let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
                    refusals.push_back((Instant::now(), text.to_lowercase()));
                    if refusals.len() > REFUSALS {
                        refusals.pop_front();
                    }
                }
            }
            other => tracing::warn!(event = %other, "the connection to NATS changed"),
        }
    }

    /// A publish or request that permissions forbid looks like one that is never answered. The server tells the reason
    /// apart from it, naming the subject.
    pub(crate) fn refusal(&self, subject: &str, since: Instant) -> Option<String> {
        let subject = format!("\"{}\"", subject.to_lowercase());
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let found = refusals.iter().rev().find(|(at, text)| *at >= since && text.contains(&subject));
        found.map(|(_, text)| format!("{text}; give this user the permission, or use the user of another role"))
    }
}

/// A connection with what every part needs of it.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) context: jetstream::Context,
    pub(crate) health: Arc<Health>,
    pub(super) answers: Arc<Answers>,
}

/// A request that says nothing: some of the interface refuses `null`.
#[derive(Serialize)]
pub(crate) struct Empty {}

/// An answer of the servers that is an error.
pub(crate) type ApiError = jetstream::Error;

/// A connection for other uses than the bus's own.
#[derive(Clone)]
pub struct Connection {
    /// The client.
    pub client: Client,
    health: Arc<Health>,
}

impl Connection {
    /// Connects. Of the options those about streams are not looked at.
    ///
    /// # Errors
    /// When no server can be reached, or it does not let us in.
    pub async fn open(options: &NatsOptions) -> Result<Connection> {
        let what = format!("connect to NATS at {}", options.servers.join(", "));
        let health = Arc::new(Health::new());
        let noted = Arc::clone(&health);
        let connect = with_credentials(options, &what)
            .await?
            .event_callback(move |event| {
                noted.note(&event);
                async {}
            })
            .reconnect_delay_callback(reconnect_delay)
            .ping_interval(Duration::from_secs(10))
            .request_timeout(Some(REQUEST_TIMEOUT))
            // Subjects are made of checked names only, see `names::role_of`.
            .skip_subject_validation(true)
            .subscription_capacity(65_536)
            .max_reconnects(options.brief.then_some(options.servers.len()))
            .name(&options.name);
        let connect = with_tls(connect, options, &what)?;
        let connect = match &options.inbox_prefix {
            Some(prefix) => connect.custom_inbox_prefix(prefix),
            None => connect,
        };
        let addresses: Vec<async_nats::ServerAddr> = options
            .servers
            .iter()
            .map(|address| {
                address.parse().map_err(|e| BusError::Refused {
                    what: what.clone(),
                    why: format!("{address:?} is not an address: {e}; write nats://host:4222 or tls://host:4222"),
                })
            })
            .collect::<Result<_>>()?;
        let client = connect.connect(addresses).await.map_err(|e| connect_error(what.clone(), &e))?;
        // Times to live of leases, and the check of a key whatever the verdict, came with 2.11. An older server would take
        // the headers for somebody else's and promise nothing.
        if !client.is_server_compatible(2, 11, 0) {
            let version = client.server_info().version;
            let why = format!("the server has version {version}, at least 2.11 is needed");
            return Err(BusError::Refused { what, why });
        }
        Ok(Connection { client, health })
    }

    /// Why the servers refused to pass something on to this subject since then, if they did. They tell it apart from the request, which
    /// is simply never answered.
    pub fn refusal(&self, subject: &str, since: std::time::Instant) -> Option<String> {
        self.health.refusal(&subject.to_lowercase(), since.into())
    }
}

impl Link {
    pub(crate) async fn connect(options: &NatsOptions) -> Result<Link> {
        let Connection { client, health } = Connection::open(options).await?;
        let context = jetstream::context::ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(client.clone());
        let answers = Answers::start(&client, REQUEST_TIMEOUT).await;
        let what = "subscribe to the answers of the servers".to_owned();
        let answers = answers.map_err(|e| BusError::Refused { what, why: chain(&e) })?;
        Ok(Link { client, context, health, answers: Arc::new(answers) })
    }

    /// Asks the JetStream interface. Repeats what fails for a reason that passes.
    pub(crate) async fn api<T: DeserializeOwned>(
        &self,
        what: &str,
        subject: &str,
        request: &impl Serialize,
    ) -> Result<std::result::Result<T, ApiError>> {
        let started = Instant::now();
        let mut delay = Duration::from_millis(50);
        loop {
            let why = match self.context.request::<_, _, Response<T>>(subject.to_owned(), request).await {
                Ok(Response::Ok(answer)) => return Ok(Ok(answer)),
                Ok(Response::Err { error }) if error.code() != 503 => return Ok(Err(error)),
                Ok(Response::Err { error }) => error.to_string(),
                Err(e) => self.request_error(what, subject, started, &e)?,
            };
            if started.elapsed() > REQUEST_PATIENCE {
                return Err(BusError::Unavailable { what: what.to_owned(), why });
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(Duration::from_secs(2));
        }
    }

    fn request_error(&self, what: &str, subject: &str, started: Instant, error: &RequestError) -> Result<String> {
        match error.kind() {
            RequestErrorKind::TimedOut => match self.health.refusal(&format!("$js.api.{subject}"), started) {
                Some(why) => Err(BusError::Refused { what: what.to_owned(), why }),
                None => Ok(format!("no answer within {REQUEST_TIMEOUT:?}")),
            },
            RequestErrorKind::NoResponders => {
                Ok("nobody answers: is JetStream enabled on the server, for this account?".to_owned())
            }
            _ => Ok(chain(error)),
        }
    }
}

async fn with_credentials(options: &NatsOptions, what: &str) -> Result<async_nats::ConnectOptions> {
    let connect = async_nats::ConnectOptions::new();
    let unreadable = |path: &PathBuf, e: std::io::Error| BusError::Refused {
        what: what.to_owned(),
        why: format!("cannot use the credentials in {}: {e}", path.display()),
    };
    Ok(match &options.credentials {
        Credentials::None => connect,
        Credentials::UserPassword { user, password } => connect.user_and_password(user.clone(), password.clone()),
        Credentials::Token(token) => connect.token(token.clone()),
        Credentials::NkeySeedFile(path) => {
            let seed = tokio::fs::read_to_string(path).await.map_err(|e| unreadable(path, e))?;
            connect.nkey(seed.trim().to_owned())
        }
        Credentials::CredsFile(path) => connect.credentials_file(path).await.map_err(|e| unreadable(path, e))?,
    })
}

fn with_tls(
    mut connect: async_nats::ConnectOptions,
    options: &NatsOptions,
    what: &str,
) -> Result<async_nats::ConnectOptions> {
    let tls = &options.tls;
    for path in [&tls.ca, &tls.cert, &tls.key].into_iter().flatten() {
        // The client reports a missing file as an error of the connection, without its name.
        if let Err(e) = std::fs::File::open(path) {
            let why = format!("cannot read {}: {e}", path.display());
            return Err(BusError::Refused { what: what.to_owned(), why });
        }
    }
    if let Some(ca) = &tls.ca {
        connect = connect.add_root_certificates(ca.clone());
    }
    match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => connect = connect.add_client_certificate(cert.clone(), key.clone()),
        (None, None) => {}
        _ => {
            let why = "a client certificate needs both its file and the file of its key; only one is given".to_owned();
            return Err(BusError::Refused { what: what.to_owned(), why });
        }
    }
    Ok(connect.require_tls(tls.required))
}

fn connect_error(what: String, error: &async_nats::ConnectError) -> BusError {
    use async_nats::ConnectErrorKind as Kind;
    let why = chain(error);
    match error.kind() {
        Kind::Authentication | Kind::AuthorizationViolation => {
            BusError::Refused { what, why: format!("{why}; check user, password or key") }
        }
        Kind::Tls => BusError::Refused { what, why: format!("{why}; check the certificates on both sides") },
        Kind::ServerParse => BusError::Refused { what, why },
        _ => BusError::Unavailable { what, why },
    }
}

/// Many workers lose the same server at the same moment; they must not all come back in the same one.
fn reconnect_delay(attempt: usize) -> Duration {
    let most_ms = 100u64 << attempt.saturating_sub(1).min(5);
    let wait_ms = if attempt <= 1 { 0 } else { most_ms / 2 };
    Duration::from_millis(wait_ms) + jitter(Duration::from_millis(most_ms / 2))
}

/// Between nothing and `most`.
pub(crate) fn jitter(most: Duration) -> Duration {
    // The low bits of a version 7 id are random; a generator of our own would be another dependency for a spread of delays.
    let random = uuid::Uuid::now_v7().as_u128() as u32;
    most.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// An error with everything below it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        let more = error.to_string();
        // Most of the client's errors already show what is below them.
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        below = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let options = NatsOptions {
            credentials: Credentials::UserPassword { user: "u".into(), password: "hunter2".into() },
            ..NatsOptions::default()
        };
        assert!(!format!("{options:?}").contains("hunter2"));
        assert!(!format!("{:?}", Credentials::Token("hunter2".into())).contains("hunter2"));
    }

    #[test]
    fn reconnecting_backs_off_to_seconds() {
        assert!(reconnect_delay(1) <= Duration::from_millis(50));
        for attempt in 2..100 {
            assert!(reconnect_delay(attempt) <= Duration::from_millis(3_200));
        }
        assert!(reconnect_delay(50) >= Duration::from_millis(1_600));
    }
}
