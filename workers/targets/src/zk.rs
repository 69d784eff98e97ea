//! Reads from ZooKeeper: several sessions, each request paced, counted and bounded in time. What writes is in
//! `zk_writes.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::RwLock;
use trimtab_events::Seen;
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
    /// Certificate authorities. The system's do not count: a ZooKeeper has a private one.
    pub ca: String,
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stat {
    /// Transaction that made it.
    pub created_zxid: i64,
    /// Transaction that last wrote it.
    pub modified_zxid: i64,
    /// The last transaction that made or deleted a child.
    pub children_zxid: i64,
    /// When it was made, milliseconds since 1970.
    pub created_ms: i64,
    /// When it was last written, milliseconds since 1970.
    pub modified_ms: i64,
    /// How often it was written.
    pub version: i32,
    /// Twice the children that it ever had, less those that it has.
    pub children_version: i32,
    /// Number of its children.
    pub children: u64,
    /// It goes with the session that made it.
    pub ephemeral: bool,
}

impl Stat {
    /// The part that travels with candidates.
    pub(crate) fn seen(self) -> Seen {
        let Stat { version, created_zxid, modified_zxid, modified_ms, .. } = self;
        Seen { version, created_zxid, modified_zxid, modified_ms }
    }

    /// Whether its children are those of another look at it.
    pub(crate) fn same_children(&self, other: &Stat) -> bool {
        let of = |stat: &Stat| (stat.created_zxid, stat.children_version, stat.children_zxid, stat.children);
        of(self) == of(other)
    }
}

struct Session {
    client: RwLock<Option<zk::Client>>,
}

/// A reader with its sessions.
pub struct Zk {
    connection: Connection,
    pub(crate) options: ZkOptions,
    pace: Arc<Pace>,
    sessions: Vec<Session>,
    next: AtomicUsize,
    committed: Mutex<Committed>,
    opened: AtomicU64,
}

/// Up to which transaction we had seen at some moments: what was committed by then. Tells how old something is at least without comparing
/// clocks of two machines.
#[derive(Debug, Default)]
struct Committed {
    /// Growing in both.
    moments: VecDeque<(Instant, i64)>,
    /// The latest, not yet among them.
    latest: Option<(Instant, i64)>,
}

/// Between two moments that are remembered.
const MOMENT: Duration = Duration::from_secs(1);
/// Moments that are remembered: a quarter of an hour.
const MOMENTS: usize = 900;

impl Committed {
    fn note(&mut self, now: Instant, zxid: i64) {
        if self.latest.is_some_and(|(_, seen)| seen >= zxid) {
            return;
        }
        self.latest = Some((now, zxid));
        if self.moments.back().is_none_or(|(last, _)| now.duration_since(*last) >= MOMENT) {
            self.moments.push_back((now, zxid));
        }
        if self.moments.len() > MOMENTS {
            self.moments.pop_front();
        }
    }

    fn before(&self, now: Instant, zxid: i64, age: Duration) -> bool {
        let mut all = self.moments.iter().chain(&self.latest);
        all.any(|(at, seen)| *seen >= zxid && now.duration_since(*at) >= age)
    }
}

impl Zk {
    /// Opens the first session; the others follow when they are needed.
    ///
    /// # Errors
    /// When no server answers in time or credentials are refused.
    pub async fn connect(connection: Connection, options: ZkOptions, pace: Arc<Pace>) -> Result<Zk> {
        let sessions = (0..options.sessions.max(1)).map(|_| Session { client: RwLock::new(None) }).collect();
        let (next, opened) = (AtomicUsize::new(0), AtomicU64::new(0));
        let this = Zk { connection, options, pace, sessions, next, committed: Mutex::default(), opened };
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

    /// A session of its own.
    pub(crate) async fn open(&self) -> Result<zk::Client> {
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
                // The client tries every server again and again, and does not say what was wrong with each.
                let hint = match self.connection.tls {
                    Some(_) => {
                        " over TLS: is it the port with TLS, is the server's certificate of the authority in zk_ca_file, and does it \
                         ask for a certificate of ours (zk_cert_file)?"
                    }
                    None => "",
                };
                Err(TargetError::new(Class::Transient, what(), format!("no server answered within {seconds} s{hint}")))
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
                let pem = |what: &str, e: zk::Error| format!("{what} cannot be used: {e}");
                let options = zk::TlsOptions::new().with_pem_ca(&_tls.ca);
                let mut options = options.map_err(|e| pem("the certificate authority", e))?;
                if let Some((cert, key)) = &_tls.identity {
                    let own = options.with_pem_identity(cert, key);
                    options = own.map_err(|e| pem("the client certificate or its key", e))?;
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

    /// Whether a session is connected at present. Asks nothing.
    pub(crate) async fn reachable(&self) -> Result<()> {
        for session in &self.sessions {
            // One that is being opened is none yet.
            let client = session.client.try_read().ok().and_then(|client| client.as_ref().map(zk::Client::state));
            if matches!(client, Some(zk::SessionState::SyncConnected | zk::SessionState::ConnectedReadOnly)) {
                return Ok(());
            }
        }
        let what = format!("reaching ZooKeeper at {}", self.servers());
        Err(TargetError::new(Class::Transient, what, "no session is connected; the sessions are being opened anew"))
    }

    pub(crate) async fn session(&self, index: usize) -> Result<zk::Client> {
        let slot = &self.sessions[index % self.sessions.len()];
        if let Some(client) = slot.client.read().await.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let mut slot = slot.client.write().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.state().is_terminated()) {
            return Ok(client.clone());
        }
        let client = self.open().await?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        *slot = Some(client.clone());
        Ok(client)
    }

    pub(crate) async fn request<T, F>(
        &self,
        what: &'static str,
        path: &str,
        call: impl Fn(zk::Client) -> F,
    ) -> Result<Option<T>>
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
        Ok(self.get_full(path).await?.map(|(value, stat)| (value, self.noted(&stat))))
    }

    /// A node's value as of now: what the leader has, whichever server we are connected to. Two requests, for the places where an
    /// old value would be worse than none.
    pub(crate) async fn get_synced(&self, path: &str) -> Result<Option<(Vec<u8>, Stat)>> {
        let got = self.request("reading", path, |client| async move {
            // Requests of one session are answered in order.
            client.sync(path).await?;
            client.get_data(path).await
        });
        self.pace.one().await;
        Ok(got.await?.map(|(value, stat)| (value, self.noted(&stat))))
    }

    /// The names of a node's children; none when there is no such node. Fails when the listing does not agree with its own
    /// count.
    pub(crate) async fn children(&self, path: &str) -> Result<Option<Vec<String>>> {
        Ok(self.children_stat(path).await?.map(|(names, _)| names))
    }

    /// The same, with the node's stat.
    pub(crate) async fn children_stat(&self, path: &str) -> Result<Option<(Vec<String>, Stat)>> {
        let Some((mut names, stat)) = self.request("listing", path, |client| client.get_children(path)).await? else {
            return Ok(None);
        };
        if usize::try_from(stat.num_children) != Ok(names.len()) {
            let why = format!("the answer has {} names and says {}: a partial listing", names.len(), stat.num_children);
            return Err(TargetError::new(Class::Transient, format!("listing {path} in ZooKeeper"), why));
        }
        names.sort_unstable();
        Ok(Some((names, self.noted(&stat))))
    }

    /// Names of a node's children, by a listing that is not older than `seen`: sessions can be with different servers, and one that
    /// is behind does not know of the newest children.
    pub(crate) async fn children_since(&self, path: &str, seen: &Stat) -> Result<Option<Vec<String>>> {
        let Some((names, stat)) = self.children_stat(path).await? else { return Ok(None) };
        let older = stat.children_zxid < seen.children_zxid;
        if older || stat.children_zxid == seen.children_zxid && stat.children != seen.children {
            let why = format!(
                "the listing has {} names of transaction {:#x}, and {} of {:#x} were seen before: its server is behind",
                stat.children, stat.children_zxid, seen.children, seen.children_zxid
            );
            return Err(TargetError::new(Class::Transient, format!("listing {path} in ZooKeeper"), why));
        }
        Ok(Some(names))
    }

    /// A node's value with its full stat, for snapshots. Fails when the value does not agree with its own length.
    pub(crate) async fn get_full(&self, path: &str) -> Result<Option<(Vec<u8>, zk::Stat)>> {
        let got = self.request("reading", path, |client| client.get_data(path)).await?;
        match &got {
            Some((value, stat)) if usize::try_from(stat.data_length) != Ok(value.len()) => {
                let why = format!("the answer has {} bytes and says {}", value.len(), stat.data_length);
                Err(TargetError::new(Class::Transient, format!("reading {path} in ZooKeeper"), why))
            }
            _ => Ok(got),
        }
    }

    /// A node's stat; none when there is no such node.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>> {
        let got = self.request("looking at", path, |client| client.check_stat(path)).await?;
        Ok(got.flatten().map(|stat| self.noted(&stat)))
    }

    fn noted(&self, stat: &zk::Stat) -> Stat {
        let zxid = stat.czxid.max(stat.mzxid).max(stat.pzxid);
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).note(Instant::now(), zxid);
        stat_of(stat)
    }

    /// Whether we know that a transaction was committed at least so long ago. What was not seen to be is not.
    pub(crate) fn committed_before(&self, zxid: i64, age: Duration) -> bool {
        self.committed.lock().unwrap_or_else(PoisonError::into_inner).before(Instant::now(), zxid, age)
    }

    /// Sessions opened so far: changes when one is lost.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Brings the server of every session up to the present. Opens those that are not open.
    pub(crate) async fn sync_all(&self) -> Result<()> {
        let failed = |why: String| TargetError::new(Class::Transient, "bringing ZooKeeper up to the present", why);
        for index in 0..self.sessions.len() {
            let mut expired = false;
            loop {
                let client = self.session(index).await?;
                self.pace.one().await;
                match tokio::time::timeout(self.options.request_timeout, client.sync("/")).await {
                    // One that ended while nobody used it is opened anew.
                    Ok(Err(zk::Error::SessionExpired)) if !expired => expired = true,
                    Ok(result) => break result.map_err(|e| failed(e.to_string()))?,
                    Err(_) => {
                        return Err(failed(format!("no answer within {} s", self.options.request_timeout.as_secs())));
                    }
                }
            }
        }
        Ok(())
    }
}

fn stat_of(stat: &zk::Stat) -> Stat {
    Stat {
        created_zxid: stat.czxid,
        modified_zxid: stat.mzxid,
        children_zxid: stat.pzxid,
        created_ms: stat.ctime,
        modified_ms: stat.mtime,
        version: stat.version,
        children_version: stat.cversion,
        children: u64::try_from(stat.num_children).unwrap_or(0),
        ephemeral: stat.ephemeral_owner != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_committed_grows_old() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut committed = Committed::default();
        let at = |seconds: u32| start + second * seconds;
        assert!(!committed.before(at(100), 1, Duration::ZERO));
        committed.note(at(0), 10);
        committed.note(at(0) + second / 2, 20);
        assert!(committed.before(at(5), 10, second * 5) && !committed.before(at(5), 10, second * 6));
        // seen later than the moment that is remembered, and never dated back to it
        assert!(committed.before(at(5), 20, second * 4) && !committed.before(at(5), 20, second * 5));
        // an older one does not bring it forward
        committed.note(at(9), 15);
        assert!(committed.before(at(10), 20, second * 9));
        for moment in 1..5000 {
            committed.note(at(10 + moment), 20 + i64::from(moment));
        }
        assert!(committed.moments.len() <= MOMENTS);
        assert!(committed.before(at(5010), 4990, second * 30) && !committed.before(at(5010), 4991, second * 30));
    }

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
