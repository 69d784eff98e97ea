//! Finds the broker that owns a topic, over the binary protocol: redirects are followed to known brokers only, credentials and all,
//! and never from TLS to anything else.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::ClientConfig;
use tokio::sync::Mutex;

use super::wire::{BrokerAddress, Connection, ConnectionOptions, Owner, ServerError, TlsOptions, WireError};
use crate::error::{Class, Result, TargetError};

/// How brokers are reached over the binary protocol.
#[derive(Clone)]
pub struct BinaryOptions {
    /// Addresses of brokers or of a proxy, `pulsar://host:port` or `pulsar+ssl://host:port`. Look-ups start at the first that
    /// answers; at the brokers that are registered in the metadata when there are none.
    pub urls: Vec<String>,
    /// Further `host:port` that look-ups may lead to.
    pub allowed_hosts: Vec<String>,
    /// Of the registered brokers' addresses, those by TLS are used.
    pub tls: bool,
    /// Token.
    pub token: Option<String>,
    /// Whom to trust, and who we are, by TLS.
    pub certificates: TlsOptions,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long one request may take. Loading a topic can wait for replication clusters that are down.
    pub request_timeout: Duration,
}

impl Default for BinaryOptions {
    fn default() -> Self {
        BinaryOptions {
            urls: Vec::new(),
            allowed_hosts: Vec::new(),
            tls: false,
            token: None,
            certificates: TlsOptions::default(),
            connect_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(60),
        }
    }
}

impl std::fmt::Debug for BinaryOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BinaryOptions")
            .field("urls", &self.urls)
            .field("tls", &self.tls)
            .field("token", &self.token.is_some())
            .finish_non_exhaustive()
    }
}

/// Redirects that one look-up follows.
const MAX_REDIRECTS: usize = 5;

/// Host, in lower case, and port.
type Host = (String, u16);

/// Makes connections to the brokers that own topics.
pub struct Binary {
    options: BinaryOptions,
    urls: Vec<BrokerAddress>,
    configured: Vec<Host>,
    registered: Mutex<Vec<BrokerAddress>>,
    /// Made when TLS is first wanted: the system's authorities are of no concern before.
    client: OnceLock<std::result::Result<Arc<ClientConfig>, String>>,
}

/// Why there is no connection to an owner.
enum Lost {
    Wire(WireError),
    Refused(String),
}

impl From<WireError> for Lost {
    fn from(e: WireError) -> Lost {
        Lost::Wire(e)
    }
}

impl Binary {
    /// From its options.
    ///
    /// # Errors
    /// When an address or a certificate is not valid.
    pub fn new(options: BinaryOptions) -> Result<Binary> {
        let invalid = |what: String, why: String| TargetError::new(Class::Invalid, what, why);
        let parse = |url: &String| {
            BrokerAddress::parse(url).map_err(|why| invalid(format!("reading the broker address {url:?}"), why))
        };
        let urls: Vec<BrokerAddress> = options.urls.iter().map(parse).collect::<Result<_>>()?;
        let mut configured: Vec<Host> = urls.iter().map(host_of).collect();
        for host in &options.allowed_hosts {
            let address = BrokerAddress::parse(&format!("pulsar://{host}")).ok().filter(|_| host.contains(':'));
            let what = || format!("reading the allowed host {host:?}");
            configured.push(host_of(&address.ok_or_else(|| invalid(what(), "expected host:port".to_owned()))?));
        }
        let binary = Binary { options, urls, configured, registered: Mutex::default(), client: OnceLock::new() };
        if binary.options.tls || binary.urls.iter().any(|url| url.tls) {
            binary.client().map_err(|why| invalid("setting up TLS to brokers".to_owned(), why))?;
        }
        Ok(binary)
    }

    /// Addresses where look-ups may start: those that are configured, or else those that are registered.
    pub(super) fn starts(&self, registered: &[String]) -> Vec<String> {
        if !self.options.urls.is_empty() {
            return self.options.urls.clone();
        }
        let tls = |address: &&String| BrokerAddress::parse(address).is_ok_and(|parsed| parsed.tls == self.options.tls);
        registered.iter().filter(tls).cloned().collect()
    }

    /// Whether a broker lets us in.
    pub(super) async fn greet(&self, address: &str) -> Result<()> {
        let what = || format!("connecting to {address}");
        let parsed = BrokerAddress::parse(address).map_err(|why| TargetError::new(Class::Invalid, what(), why))?;
        self.open(&parsed, None).await.map(drop).map_err(|e| wire_error(what(), &e))
    }

    /// Lets look-ups lead to these addresses too, and start there when no address is configured: the brokers registered in the
    /// metadata.
    pub async fn allow(&self, addresses: &[String]) {
        let known = addresses.iter().filter_map(|address| BrokerAddress::parse(address).ok());
        *self.registered.lock().await = known.collect();
    }

    fn client(&self) -> std::result::Result<Arc<ClientConfig>, String> {
        self.client.get_or_init(|| self.options.certificates.client()).clone()
    }

    async fn open(&self, address: &BrokerAddress, proxied: Option<&str>) -> std::result::Result<Connection, WireError> {
        let tls = match address.tls {
            true => Some(self.client().map_err(|why| WireError::Connect(address.to_string(), why))?),
            false => None,
        };
        let options = ConnectionOptions {
            token: self.options.token.clone(),
            tls,
            connect_timeout: self.options.connect_timeout,
            request_timeout: self.options.request_timeout,
        };
        Connection::open(address, proxied, &options).await
    }

    /// A connection to the broker that owns a topic. To be called only when some broker owns it already, or the one that takes it
    /// may load every topic of its bundle.
    ///
    /// # Errors
    /// When no broker answers, credentials are refused, or the look-up leads to a broker that is not known.
    pub async fn owner(&self, topic: &str) -> Result<Connection> {
        let what = format!("finding the owner of {topic}");
        let registered = self.registered.lock().await.clone();
        let tls = self.options.tls;
        let starts: Vec<&BrokerAddress> = match self.urls.is_empty() {
            true => registered.iter().filter(|address| address.tls == tls).collect(),
            false => self.urls.iter().collect(),
        };
        let mut lost = None;
        for start in starts {
            match self.owner_from(start, topic, &registered).await {
                Ok(connection) => return Ok(connection),
                Err(Lost::Refused(why)) => return Err(TargetError::new(Class::Refused, what, why)),
                Err(Lost::Wire(e @ WireError::Connect(..))) => lost = Some(e),
                Err(Lost::Wire(e)) => return Err(wire_error(what, &e)),
            }
        }
        match lost {
            Some(e) => Err(wire_error(what, &e)),
            None => {
                let kind = if tls { "an address by TLS" } else { "a plain address" };
                let why = format!(
                    "no broker is registered in the metadata with {kind} of the binary protocol; is one running? Else give its \
                     address, pulsar://host:port or pulsar+ssl://host:port"
                );
                Err(TargetError::new(Class::Invalid, what, why))
            }
        }
    }

    async fn owner_from(
        &self,
        start: &BrokerAddress,
        topic: &str,
        registered: &[BrokerAddress],
    ) -> std::result::Result<Connection, Lost> {
        let mut at = start.clone();
        let mut connection = self.open(&at, None).await?;
        let mut authoritative = false;
        for _ in 0..=MAX_REDIRECTS {
            let owner = connection.look_up(topic, authoritative).await?;
            let next = next_address(&at, &owner)?;
            if !self.configured.contains(&host_of(&next)) && !registered.iter().any(|r| host_of(r) == host_of(&next)) {
                return Err(Lost::Refused(format!(
                    "{at} names {next}, which is not a known broker; nothing was sent there. If it is one, add it to \
                     allowed_hosts"
                )));
            }
            if owner.connect && owner.through_proxy {
                let (host, port) = host_of(&next);
                return Ok(self.open(&at, Some(&format!("{host}:{port}"))).await?);
            }
            if next != at {
                drop(connection);
                connection = self.open(&next, None).await.map_err(|e| match e {
                    // Not that of the start: to begin elsewhere would lead here again.
                    WireError::Connect(whom, why) => WireError::Ended(format!("no connection to {whom}: {why}")),
                    other => other,
                })?;
            }
            if owner.connect {
                return Ok(connection);
            }
            authoritative = owner.authoritative;
            at = next;
        }
        Err(Lost::Wire(WireError::Ended(format!(
            "more than {MAX_REDIRECTS} redirects: the brokers do not agree who owns it"
        ))))
    }
}

/// Where an answer to a look-up leads: to TLS if that is where it came from, and else to what there is.
fn next_address(at: &BrokerAddress, owner: &Owner) -> std::result::Result<BrokerAddress, Lost> {
    let named = if at.tls { owner.tls.as_ref() } else { owner.plain.as_ref().or(owner.tls.as_ref()) };
    let Some(named) = named else {
        let why = if at.tls { "names no broker by TLS" } else { "names no broker" };
        return Err(Lost::Refused(format!("{at} {why}; nothing was sent to another")));
    };
    let address = BrokerAddress::parse(named)
        .map_err(|why| Lost::Wire(WireError::Garbage(format!("{at} names the broker {named:?}: {why}"))))?;
    match at.tls && !address.tls {
        true => {
            Err(Lost::Refused(format!("{at} names {address}, which is not by TLS any more; nothing was sent there")))
        }
        false => Ok(address),
    }
}

fn host_of(address: &BrokerAddress) -> Host {
    (address.host.clone(), address.port)
}

/// What a caller should know of an error of the protocol.
pub(super) fn wire_error(what: impl Into<String>, error: &WireError) -> TargetError {
    let (class, advice) = match error {
        WireError::Refused(refusal) => match refusal.error() {
            Some(ServerError::Authentication | ServerError::Authorization) => {
                (Class::Refused, "; check the token and that its role may consume from this topic")
            }
            Some(ServerError::TopicNotFound | ServerError::SubscriptionNotFound) => (Class::Gone, ""),
            Some(ServerError::NotAllowed | ServerError::ProducerBusy | ServerError::UnsupportedVersion) => {
                (Class::Refused, "")
            }
            Some(ServerError::InvalidTopicName) => (Class::Invalid, ""),
            _ => (Class::Transient, ""),
        },
        _ => (Class::Transient, ""),
    };
    TargetError::new(class, what, format!("{error}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> BrokerAddress {
        BrokerAddress::parse(text).unwrap()
    }

    fn owner(plain: Option<&str>, tls: Option<&str>) -> Owner {
        let (plain, tls) = (plain.map(str::to_owned), tls.map(str::to_owned));
        Owner { plain, tls, connect: true, authoritative: false, through_proxy: false }
    }

    #[test]
    fn a_look_up_keeps_to_tls() {
        let next = |at: &str, owner: &Owner| next_address(&address(at), owner).ok().map(|a| a.to_string());
        let both = owner(Some("pulsar://b:1"), Some("pulsar+ssl://b:2"));
        assert_eq!(next("pulsar://a:1", &both).as_deref(), Some("pulsar://b:1"));
        assert_eq!(next("pulsar+ssl://a:2", &both).as_deref(), Some("pulsar+ssl://b:2"));
        assert_eq!(next("pulsar://a:1", &owner(None, Some("pulsar+ssl://b:2"))).as_deref(), Some("pulsar+ssl://b:2"));
        // Not by TLS any more, whatever it is called.
        assert_eq!(next("pulsar+ssl://a:2", &owner(Some("pulsar://b:1"), None)), None);
        assert_eq!(next("pulsar+ssl://a:2", &owner(None, Some("pulsar://b:1"))), None);
        assert_eq!(next("pulsar://a:1", &owner(Some("http://b:1"), None)), None);
        assert_eq!(next("pulsar://a:1", &owner(None, None)), None);
    }

    #[test]
    fn options_that_are_not_valid_are_said_to_be_so() {
        let with = |urls: &[&str], hosts: &[&str]| {
            let own = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
            Binary::new(BinaryOptions { urls: own(urls), allowed_hosts: own(hosts), ..BinaryOptions::default() })
        };
        assert!(with(&["pulsar://a:1"], &["b:2"]).is_ok());
        for (urls, hosts) in [(&["a:1"][..], &[][..]), (&["http://a:1"], &[]), (&[], &["b"]), (&[], &["b:x"])] {
            assert_eq!(with(urls, hosts).err().map(|e| e.class()), Some(Class::Invalid), "{urls:?} {hosts:?}");
        }
    }
}
