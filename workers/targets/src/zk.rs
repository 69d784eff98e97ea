//! Reads from ZooKeeper: several sessions, each request paced, counted and bounded in time. Nothing here writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::RwLock;
use zookeeper_client as zk;

use crate::Pace;
use crate::error::{Class, Result, TargetError};

/// Where ZooKeeper is, and how to get in.
#[derive(Clone)]
pub struct Connection {
    /// `host:port,host:port/chroot`.
    pub servers: String,
    /// `user:password` for the digest scheme.
    pub digest: Option<String>,
    /// User and password for SASL DIGEST-MD5 (feature `zk-sasl`).
    pub sasl: Option<(String, String)>,
    /// TLS (feature `zk-tls`).
    pub tls: Option<Tls>,
}

/// PEM texts for TLS to ZooKeeper.
#[derive(Clone, Default)]
pub struct Tls {
    /// Certificate authorities; the system's when absent.
    pub ca: Option<String>,
    /// Client certificate and key.
    pub identity: Option<(String, String)>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl Connection {
    /// From an address, `zk://host:port,host:port/chroot` (`zk:host:port…` is understood too).
    ///
    /// # Errors
    /// When it is not such an address.
    pub fn parse(address: &str) -> Result<Connection> {
        let servers = address.strip_prefix("zk://").or_else(|| address.strip_prefix("zk:")).unwrap_or_default();
        let hosts = servers.split('/').next().unwrap_or_default();
        if hosts.is_empty()
            || hosts.split(',').any(|host| host.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()))
        {
            let why = "expected zk://host:port,host:port/chroot";
            return Err(TargetError::new(Class::Invalid, format!("reading the address {address:?}"), why));
        }
        let servers = servers.trim_end_matches('/').to_owned();
        Ok(Connection { servers, digest: None, sasl: None, tls: None })
    }
}

/// Numbers of the reader.
#[derive(Debug, Clone)]
pub struct ZkOptions {
    /// Sessions to open.
    pub sessions: usize,
    /// Requests in flight for each session.
    pub window: usize,
    /// How long one request may take.
    pub request_timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// The session timeout asked for.
    pub session_timeout: Duration,
}

impl Default for ZkOptions {
    fn default() -> Self {
        ZkOptions {
            sessions: 2,
            window: 100,
            request_timeout: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(15),
            session_timeout: Duration::from_secs(20),
        }
    }
}

/// The part of a node's stat that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) created_zxid: i64,
    pub(crate) modified_zxid: i64,
    pub(crate) modified_ms: i64,
    pub(crate) version: i32,
    pub(crate) children: u64,
    pub(crate) ephemeral: bool,
}

struct Session {
    client: RwLock<Option<zk::Client>>,
}

/// A reader with its sessions.
pub struct Zk {
    connection: Connection,
    options: ZkOptions,
    pace: Arc<Pace>,
    sessions: Vec<Session>,
    next: AtomicUsize,
}

impl Zk {
    /// Opens the first session; the others follow when they are needed.
    ///
    /// # Errors
    /// When no server answers in time or credentials are refused.
    pub async fn connect(connection: Connection, options: ZkOptions, pace: Arc<Pace>) -> Result<Zk> {
        let sessions = (0..options.sessions.max(1)).map(|_| Session { client: RwLock::new(None) }).collect();
        let this = Zk { connection, options, pace, sessions, next: AtomicUsize::new(0) };
        this.session(0).await?;
        Ok(this)
    }

    /// Requests that may usefully be in flight at once.
    pub fn window(&self) -> usize {
        self.options.window.max(1) * self.sessions.len()
    }

    /// The limit it keeps to.
    pub fn pace(&self) -> &Arc<Pace> {
        &self.pace
    }

    /// The servers, as given.
    pub fn servers(&self) -> &str {
        &self.connection.servers
    }

    async fn open(&self) -> Result<zk::Client> {
        let what = || format!("connecting to ZooKeeper at {}", self.connection.servers);
        let mut connector = zk::Client::connector()
            .with_connection_timeout(self.options.connect_timeout / 2)
            .with_session_timeout(self.options.session_timeout);
        if let Some(digest) = &self.connection.digest {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        connector = self.secure(connector).map_err(|why| TargetError::new(Class::Invalid, what(), why))?;
        let connecting = async {
            if self.connection.tls.is_some() {
                #[cfg(feature = "zk-tls")]
                return connector.secure_connect(&self.connection.servers).await;
            }
            connector.connect(&self.connection.servers).await
        };
        match tokio::time::timeout(self.options.connect_timeout, connecting).await {
            Ok(Ok(client)) => Ok(client),
            Ok(Err(e @ (zk::Error::AuthFailed | zk::Error::NoAuth))) => {
                Err(TargetError::new(Class::Refused, what(), format!("{e}; check the credentials")))
            }
            Ok(Err(e)) => {
                Err(TargetError::new(Class::Transient, what(), format!("{e}; is the address right and a server up?")))
            }
            Err(_) => {
                let seconds = self.options.connect_timeout.as_secs();
                Err(TargetError::new(Class::Transient, what(), format!("no server answered within {seconds} s")))
            }
        }
    }

    #[cfg_attr(
        not(any(feature = "zk-tls", feature = "zk-sasl")),
        expect(unused_mut, reason = "set by the features only")
    )]
    fn secure(&self, mut connector: zk::Connector) -> std::result::Result<zk::Connector, String> {
        if let Some(_tls) = &self.connection.tls {
            #[cfg(not(feature = "zk-tls"))]
            return Err("this build has no TLS for ZooKeeper; build it with the feature zk-tls".to_owned());
            #[cfg(feature = "zk-tls")]
            {
                let mut options = if _tls.ca.is_some() { zk::TlsOptions::no_ca() } else { zk::TlsOptions::default() };
                if let Some(ca) = &_tls.ca {
                    options = options.with_pem_ca_certs(ca).map_err(|e| e.to_string())?;
                }
                if let Some((cert, key)) = &_tls.identity {
                    options = options.with_pem_identity(cert, key).map_err(|e| e.to_string())?;
                }
                connector = connector.with_tls(options);
            }
        }
        if let Some((_user, _password)) = &self.connection.sasl {
            #[cfg(not(feature = "zk-sasl"))]
            return Err("this build has no SASL for ZooKeeper; build it with the feature zk-sasl".to_owned());
            #[cfg(feature = "zk-sasl")]
            {
                connector = connector.with_sasl(zk::SaslOptions::digest_md5(_user.clone(), _password.clone()));
            }
        }
        Ok(connector)
    }

    async fn session(&self, index: usize) -> Result<zk::Client> {
        let slot = &self.sessions[index % self.sessions.len()];
        if let Some(client) = slot.client.read().await.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let mut slot = slot.client.write().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let client = self.open().await?;
        *slot = Some(client.clone());
        Ok(client)
    }

    async fn request<T, F>(&self, what: &'static str, path: &str, call: impl Fn(zk::Client) -> F) -> Result<Option<T>>
    where
        F: Future<Output = std::result::Result<T, zk::Error>>,
    {
        let error = |class, why: String| Err(TargetError::new(class, format!("{what} {path} in ZooKeeper"), why));
        let mut expired = 0;
        let answer = loop {
            let client = self.session(self.next.fetch_add(1, Ordering::Relaxed)).await?;
            self.pace.one().await;
            match tokio::time::timeout(self.options.request_timeout, call(client)).await {
                // An outage ends every session at once, and the next request may meet any of them. Reading again is safe.
                Ok(Err(zk::Error::SessionExpired)) if expired < self.sessions.len() => expired += 1,
                answer => break answer,
            }
        };
        match answer {
            Ok(Ok(value)) => Ok(Some(value)),
            Ok(Err(zk::Error::NoNode)) => Ok(None),
            Ok(Err(e @ (zk::Error::NoAuth | zk::Error::AuthFailed))) => {
                error(Class::Refused, format!("{e}; give trimtab's user the right to read it"))
            }
            Ok(Err(e @ zk::Error::BadArguments(_))) => error(Class::Invalid, e.to_string()),
            Ok(Err(e)) => error(Class::Transient, e.to_string()),
            Err(_) => error(Class::Transient, format!("no answer within {} s", self.options.request_timeout.as_secs())),
        }
    }

    /// A node's value; none when there is no such node.
    pub(crate) async fn get(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>> {
        let got = self.request("reading", path, |client| client.get_data(path)).await?;
        Ok(got.map(|(value, stat)| (value, stat_of(&stat))))
    }

    /// The names of a node's children; none when there is no such node. Fails when the listing does not agree with its own
    /// count.
    pub(crate) async fn children(&self, path: &str) -> Result<Option<Vec<String>>> {
        let Some((mut names, stat)) = self.request("listing", path, |client| client.get_children(path)).await? else {
            return Ok(None);
        };
        if usize::try_from(stat.num_children) != Ok(names.len()) {
            let why = format!("the answer has {} names and says {}: a partial listing", names.len(), stat.num_children);
            return Err(TargetError::new(Class::Transient, format!("listing {path} in ZooKeeper"), why));
        }
        names.sort_unstable();
        Ok(Some(names))
    }

    /// A node's value with its full stat, for snapshots.
    pub(crate) async fn get_full(&self, path: &str) -> Result<Option<(Vec<u8>, zk::Stat)>> {
        self.request("reading", path, |client| client.get_data(path)).await
    }

    /// A node's stat; none when there is no such node.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>> {
        let got = self.request("looking at", path, |client| client.check_stat(path)).await?;
        Ok(got.flatten().map(|stat| stat_of(&stat)))
    }
}

fn stat_of(stat: &zk::Stat) -> Stat {
    Stat {
        created_zxid: stat.czxid,
        modified_zxid: stat.mzxid,
        modified_ms: stat.mtime,
        version: stat.version,
        children: u64::try_from(stat.num_children).unwrap_or(0),
        ephemeral: stat.ephemeral_owner != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["zk://a:2181", "zk://a:2181,b:2182/x/y", "zk:a:2181"] {
            assert!(Connection::parse(good).is_ok(), "{good}");
        }
        for bad in ["a:2181", "zk://", "zk://a", "zk://a:x", "http://a:1"] {
            assert!(Connection::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Connection::parse("zk://a:2181/c/").unwrap().servers, "a:2181/c");
    }
}
