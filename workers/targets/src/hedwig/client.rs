//! A client of the hub's protocol that can do one thing: attach to a subscriber that exists and is offline, see where the hub stands
//! with it, and either move its pointer and let go in one write, or let go.
//!
//! A hub checks no connection: whoever sends CONSUME or CLOSESUBSCRIPTION moves or cuts off a subscriber that is online elsewhere. So
//! both exist only on [`Attached`], which is made from a SUCCESS on its own connection, and which each of its ends takes by value.
//! UNSUBSCRIBE, CREATE, preferences and force do not exist here at all.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::tls::{self, Trust};
use super::wire::{self, About, Event, Garbled, Incoming, MAX_FRAME, Status};
use super::znodes::{HubAddress, MessageId};
use crate::error::{Class, Result, TargetError};

/// Redirects that are followed. One is normal, two happen while a topic moves.
const MAX_REDIRECTS: usize = 3;
/// How long what has arrived is read before the write that cannot be taken back, in search of a reason not to send it. A hub that goes on
/// delivering would be read for ever; what it says after that is judged by the answer to the close.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// Without anything arriving for so long, everything that had arrived was read.
const QUIET: Duration = Duration::from_millis(1);

const SUBSCRIBE: u64 = 1;
const CONSUME: u64 = 2;
const CLOSE: u64 = 3;

/// How hubs are reached.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// How long connecting may take, TLS included.
    pub connect_timeout: Duration,
    /// How long attaching may take, all redirects included. A hub that has to take the topic first recovers a ledger.
    pub attach_timeout: Duration,
    /// How long anything may stay attached. Its subscriber is locked out meanwhile.
    pub hold: Duration,
    /// The largest frame that is read, in bytes.
    pub max_frame: usize,
    /// Hubs announce numbers of hosts that may not be reachable from here: `host:port` or `host` as announced, and what to use instead.
    pub addresses: BTreeMap<String, String>,
    /// TLS, on the hubs' TLS ports.
    pub tls: Option<Trust>,
}

impl Default for HubOptions {
    fn default() -> Self {
        HubOptions {
            connect_timeout: Duration::from_secs(5),
            attach_timeout: Duration::from_secs(30),
            hold: Duration::from_secs(10),
            max_frame: MAX_FRAME,
            addresses: BTreeMap::new(),
            tls: None,
        }
    }
}

/// Why attaching did not succeed. Nothing but SUBSCRIBE was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Another connection serves this subscriber.
    #[error("the subscriber is online: hub {hub} says {said:?}")]
    Online {
        /// Who says so.
        hub: String,
        /// In its words.
        said: String,
    },
    /// There is no such subscriber, and none was made.
    #[error("there is no such subscriber any more: hub {hub} says {said:?}")]
    Gone {
        /// Who says so.
        hub: String,
        /// In its words.
        said: String,
    },
    /// The hub owns the topic and does not serve it: its persistence layer has dropped it. Nobody can publish or subscribe until
    /// the topic is released or the hub is restarted.
    #[error("hub {hub} owns the topic and has lost it: nobody can publish or subscribe until that hub is restarted")]
    Wedged {
        /// Which.
        hub: String,
    },
    /// Who was to be the topic's owner names another hub: the topic has just moved.
    #[error("hub {hub} does not own the topic any more, {to} does")]
    Moved {
        /// Which.
        hub: String,
        /// The owner, by its word.
        to: String,
    },
    /// Hubs name each other, or too many of them.
    #[error("hubs send each other's clients round and round: {}", .tried.join(" to "))]
    Redirected {
        /// The hubs, in order; the last one was not asked.
        tried: Vec<String>,
    },
    /// No connection, or none that lasted until an answer.
    #[error("hub {hub} cannot be reached: {why}")]
    Unreachable {
        /// Which.
        hub: String,
        /// Why.
        why: String,
    },
    /// Any other answer.
    #[error("hub {hub} answers {status}: {said:?}")]
    Answered {
        /// Which.
        hub: String,
        /// What.
        status: Status,
        /// In its words.
        said: String,
    },
    /// What came back is not this protocol.
    #[error("hub {hub}: {why}")]
    Garbled {
        /// Which.
        hub: String,
        /// What it was.
        why: String,
    },
}

impl AttachError {
    /// What a caller should do about it, where it is not an answer to act on.
    pub fn class(&self) -> Class {
        match self {
            AttachError::Online { .. } | AttachError::Wedged { .. } => Class::Refused,
            AttachError::Gone { .. } => Class::Gone,
            AttachError::Answered { status, .. } => match *status {
                Status::MALFORMED_REQUEST | Status::CLIENT_ALREADY_SUBSCRIBED => Class::Bug,
                Status::NO_SUCH_TOPIC | Status::INVALID_MESSAGE_FILTER => Class::Refused,
                _ => Class::Transient,
            },
            AttachError::Garbled { .. } => Class::Invalid,
            AttachError::Moved { .. } | AttachError::Redirected { .. } | AttachError::Unreachable { .. } => {
                Class::Transient
            }
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Why nothing more comes from a connection.
#[derive(Debug)]
enum Broken {
    Closed,
    Io(io::Error),
    Garbled(Garbled),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Closed => f.write_str("the hub closed the connection"),
            Broken::Io(e) => write!(f, "the connection failed: {e}"),
            Broken::Garbled(e) => write!(f, "{e}"),
        }
    }
}

struct Connection {
    stream: Box<dyn Stream>,
    received: BytesMut,
    limit: usize,
}

impl Connection {
    /// The next thing that comes. Nothing is lost when it is not waited for to the end.
    async fn next(&mut self) -> std::result::Result<Incoming, Broken> {
        loop {
            if let Some(frame) = wire::take_frame(&mut self.received, self.limit).map_err(Broken::Garbled)? {
                return wire::incoming(&frame).map_err(Broken::Garbled);
            }
            self.received.reserve(16 * 1024);
            if self.stream.read_buf(&mut self.received).await.map_err(Broken::Io)? == 0 {
                return Err(Broken::Closed);
            }
        }
    }

    /// Writes all of it at once.
    async fn send(&mut self, frames: &[u8]) -> io::Result<()> {
        self.stream.write_all(frames).await?;
        self.stream.flush().await
    }

    /// Closes the connection, which ends what is attached to it. Waits for nothing.
    async fn end(mut self) {
        // It goes anyway when it is dropped; this is for TLS, and for hubs that would take a reset for an error.
        let _ = timeout(Duration::from_millis(100), self.stream.shutdown()).await;
    }
}

/// A client of a region's hubs.
pub struct Hubs {
    options: HubOptions,
    tls: Option<TlsConnector>,
}

impl Hubs {
    /// A client. Nothing is connected before it is needed.
    ///
    /// # Errors
    /// When the certificates to trust cannot be used.
    pub fn new(options: HubOptions) -> Result<Hubs> {
        let tls = options.tls.as_ref().map(tls::config).transpose()?;
        Ok(Hubs { tls: tls.map(|config| TlsConnector::from(Arc::new(config))), options })
    }

    /// How hubs are reached.
    pub fn options(&self) -> &HubOptions {
        &self.options
    }

    /// Attaches to a subscriber that exists, at the topic's owner and nowhere else: a topic that has just moved is one whose online
    /// subscribers have not come back yet.
    ///
    /// # Errors
    /// As [`Hubs::attach`], and when the hub does not own the topic.
    pub async fn attach_at_owner(
        &self,
        owner: &HubAddress,
        topic: &str,
        subscriber: &str,
    ) -> std::result::Result<Attached, AttachError> {
        self.attach_within(owner, topic, subscriber, 0).await
    }

    /// Attaches to a subscriber that exists, beginning at a hub and following redirects to the topic's owner.
    ///
    /// # Errors
    /// When it is online, gone, or the hubs do not say. It was not attached then; if an answer did not come in time it may have been
    /// for as long as the hub took to see the connection go.
    pub async fn attach(
        &self,
        first: &HubAddress,
        topic: &str,
        subscriber: &str,
    ) -> std::result::Result<Attached, AttachError> {
        self.attach_within(first, topic, subscriber, MAX_REDIRECTS).await
    }

    async fn attach_within(
        &self,
        first: &HubAddress,
        topic: &str,
        subscriber: &str,
        redirects: usize,
    ) -> std::result::Result<Attached, AttachError> {
        let deadline = Instant::now() + self.options.attach_timeout;
        let mut tried: Vec<HubAddress> = Vec::new();
        let mut hub = first.clone();
        loop {
            let about = About { txn: SUBSCRIBE, topic, subscriber };
            let asked = self.subscribe(&hub, about, &tried);
            let asked = timeout_at(deadline, asked).await.unwrap_or_else(|_| {
                let why = format!("no answer within {} s", self.options.attach_timeout.as_secs_f32());
                Err(AttachError::Unreachable { hub: hub.to_string(), why })
            });
            match asked? {
                Asked::Attached(connection, preferences) => {
                    let now = Instant::now();
                    return Ok(Attached {
                        connection,
                        hub,
                        topic: topic.to_owned(),
                        subscriber: subscriber.to_owned(),
                        filter: preferences.and_then(|preferences| preferences.message_filter),
                        since: now,
                        deadline: now + self.options.hold,
                    });
                }
                Asked::Elsewhere(next) if redirects == 0 => {
                    return Err(AttachError::Moved { hub: hub.to_string(), to: next.to_string() });
                }
                Asked::Elsewhere(next) => {
                    tried.push(hub);
                    let again = tried.iter().any(|hub| hub.plain() == next.plain());
                    if again || tried.len() > redirects {
                        let tried = tried.iter().chain([&next]).map(HubAddress::plain).collect();
                        return Err(AttachError::Redirected { tried });
                    }
                    hub = next;
                }
            }
        }
    }

    /// Asks one hub on a connection of its own.
    async fn subscribe(
        &self,
        hub: &HubAddress,
        about: About<'_>,
        tried: &[HubAddress],
    ) -> std::result::Result<Asked, AttachError> {
        let name = || hub.to_string();
        let unreachable = |why: String| AttachError::Unreachable { hub: name(), why };
        let stream = match timeout(self.options.connect_timeout, self.connect(hub)).await {
            Ok(stream) => stream.map_err(unreachable)?,
            Err(_) => {
                let seconds = self.options.connect_timeout.as_secs_f32();
                return Err(unreachable(format!("no connection within {seconds} s")));
            }
        };
        let mut connection = Connection { stream, received: BytesMut::new(), limit: self.options.max_frame };
        let mut frame = Vec::new();
        wire::put_frame(&about.attach(tried), &mut frame);
        connection.send(&frame).await.map_err(|e| unreachable(format!("the connection failed: {e}")))?;
        let (status, said, preferences) = match connection.next().await {
            Ok(Incoming::Answer { txn, status, said, preferences, .. }) if txn == about.txn => {
                (status, said, preferences)
            }
            Ok(other) => {
                let why = format!("the first thing it sends is {other:?}, not the answer to what it was asked");
                return Err(AttachError::Garbled { hub: name(), why });
            }
            Err(Broken::Garbled(why)) => return Err(AttachError::Garbled { hub: name(), why: why.to_string() }),
            Err(broken) => return Err(unreachable(format!("{broken} before it answered"))),
        };
        match status {
            Status::SUCCESS => Ok(Asked::Attached(connection, preferences)),
            Status::TOPIC_BUSY => Err(AttachError::Online { hub: name(), said }),
            Status::CLIENT_NOT_SUBSCRIBED => Err(AttachError::Gone { hub: name(), said }),
            Status::NOT_RESPONSIBLE_FOR_TOPIC if said.trim().is_empty() => Err(AttachError::Wedged { hub: name() }),
            Status::NOT_RESPONSIBLE_FOR_TOPIC => match said.trim().parse() {
                Ok(next) => Ok(Asked::Elsewhere(next)),
                Err(e) => Err(AttachError::Garbled { hub: name(), why: format!("it sends us elsewhere: {e}") }),
            },
            status => Err(AttachError::Answered { hub: name(), status, said }),
        }
    }

    /// Whether a hub can be reached; why not, if not. Asks it nothing.
    pub(super) async fn listens(&self, hub: &HubAddress) -> std::result::Result<(), String> {
        match tokio::time::timeout(self.options.connect_timeout, self.connect(hub)).await {
            Ok(connected) => connected.map(drop),
            Err(_) => Err(format!("no answer within {} s", self.options.connect_timeout.as_secs())),
        }
    }

    async fn connect(&self, hub: &HubAddress) -> std::result::Result<Box<dyn Stream>, String> {
        let port = match &self.tls {
            None => hub.port,
            Some(_) => hub.tls_port.ok_or_else(|| format!("{hub} has no TLS port"))?,
        };
        let announced = format!("{}:{port}", hub.host);
        let addresses = &self.options.addresses;
        let address = match (addresses.get(&hub.plain()), addresses.get(&hub.host)) {
            (Some(address), _) => address.clone(),
            (None, Some(host)) => format!("{host}:{port}"),
            (None, None) => announced,
        };
        let failed = |e: io::Error| format!("{e} at {address}");
        let tcp = TcpStream::connect(&address).await.map_err(failed)?;
        // The two frames that end an attachment are one small write, and must not wait for more.
        tcp.set_nodelay(true).map_err(failed)?;
        let Some(connector) = &self.tls else { return Ok(Box::new(tcp)) };
        let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host).trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(|e| format!("{address} is no name for TLS: {e}"))?;
        let secured = connector.connect(name, tcp).await;
        Ok(Box::new(secured.map_err(|e| {
            format!("TLS with {address}: {e}; is that its TLS port, and its certificate among those that are trusted?")
        })?))
    }
}

enum Asked {
    Attached(Connection, Option<super::proto::SubscriptionPreferences>),
    Elsewhere(HubAddress),
}

/// A subscriber that is ours: the hub said SUCCESS on this very connection. Its subscriber is locked out meanwhile, so this is held for as
/// short as can be. Dropping it closes the connection, which ends it.
pub struct Attached {
    connection: Connection,
    hub: HubAddress,
    topic: String,
    subscriber: String,
    filter: Option<String>,
    since: Instant,
    deadline: Instant,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Attached { hub, topic, subscriber, .. } = self;
        f.debug_struct("Attached").field("hub", hub).field("topic", topic).field("subscriber", subscriber).finish()
    }
}

/// The first thing that a hub sends to who attached.
#[derive(Debug)]
pub enum First {
    /// A message. The hub stands right before it.
    Delivered(Attached, u64),
    /// Nothing, so far.
    Silent(Attached),
    /// The attachment is over: the topic moved, the connection went, or what came made no sense. Nothing was sent.
    Lost(String),
}

/// How the write that consumes and closes ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The hub answered the close, so it had taken the CONSUME before.
    Closed,
    /// Nothing was sent: the attachment was over before.
    Lost(String),
    /// The hub refused the CONSUME.
    Refused(String),
    /// It may have been carried out or not, by this hub or after the topic had moved.
    Uncertain(String),
}

impl Attached {
    /// The topic's owner.
    pub fn hub(&self) -> &HubAddress {
        &self.hub
    }

    /// The Java class that picks what is delivered, if there is one: then nothing may be delivered, whatever there is.
    pub fn filter(&self) -> Option<&str> {
        self.filter.as_deref()
    }

    /// How long it has been attached.
    pub fn held(&self) -> Duration {
        self.since.elapsed()
    }

    fn about(&self, txn: u64) -> About<'_> {
        About { txn, topic: &self.topic, subscriber: &self.subscriber }
    }

    /// Waits for the first message, at most this long.
    pub async fn first(mut self, within: Duration) -> First {
        let deadline = self.deadline.min(Instant::now() + within);
        match timeout_at(deadline, self.connection.next()).await {
            Err(_) => First::Silent(self),
            Ok(Ok(Incoming::Delivery(id))) => First::Delivered(self, id),
            Ok(other) => First::Lost(unexpected(other)),
        }
    }

    /// Reads what has arrived. Says why the attachment is over, if it is.
    async fn last_look(&mut self) -> std::result::Result<(), String> {
        let until = Instant::now() + LAST_LOOK;
        while Instant::now() < until {
            match timeout(QUIET, self.connection.next()).await {
                Err(_) => return Ok(()),
                Ok(Ok(Incoming::Delivery(_))) => {}
                Ok(other) => return Err(unexpected(other)),
            }
        }
        Ok(())
    }

    /// Consumes up to and including `to` and closes the attachment, in one write, and waits for the answer to the close.
    pub async fn consume_and_close(mut self, to: &MessageId) -> Ending {
        if Instant::now() >= self.deadline {
            return Ending::Lost("it was attached for too long".to_owned());
        }
        if let Err(why) = self.last_look().await {
            return Ending::Lost(why);
        }
        let mut frames = Vec::new();
        wire::put_frame(&self.about(CONSUME).consume(to), &mut frames);
        wire::put_frame(&self.about(CLOSE).close_subscription(), &mut frames);
        match timeout_at(self.deadline, self.connection.send(&frames)).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Ending::Uncertain(format!("the connection failed in the middle of the request: {e}")),
            Err(_) => return Ending::Uncertain("the hub did not take the request in time".to_owned()),
        }
        let ending = timeout_at(self.deadline, self.closing()).await;
        self.connection.end().await;
        ending.unwrap_or_else(|_| Ending::Uncertain("the hub did not answer the close in time".to_owned()))
    }

    /// Throws deliveries away until the close is answered: a reader that stops can wedge the topic for everybody.
    async fn closing(&mut self) -> Ending {
        let mut moved = None;
        loop {
            match self.connection.next().await {
                Ok(Incoming::Delivery(_)) => {}
                Ok(Incoming::Event(event)) => moved = Some(event),
                Ok(Incoming::Answer { txn: CONSUME, status, said, .. }) => {
                    return Ending::Refused(format!("{status} {said:?} to the CONSUME"));
                }
                Ok(Incoming::Answer { txn: CLOSE, status, said, .. }) => {
                    return match (status, moved) {
                        (Status::SUCCESS, None) => Ending::Closed,
                        // After it gave the topic up the same hub may take it back, and answers as if somebody were attached.
                        (Status::SUCCESS, Some(event)) => {
                            Ending::Uncertain(format!("{} before it answered", told(event)))
                        }
                        (status, _) => Ending::Uncertain(format!("{status} {said:?} to the CLOSESUBSCRIPTION")),
                    };
                }
                other => return Ending::Uncertain(unexpected(other)),
            }
        }
    }

    /// Lets go without having done anything, by closing the connection: unlike a request this cannot cut off somebody else, should the
    /// topic have moved meanwhile.
    pub async fn detach(self) {
        self.connection.end().await;
    }
}

fn told(event: Event) -> String {
    match event {
        Event::TopicMoved => "the hub gave the topic up".to_owned(),
        Event::ForcedClosed => "somebody else attached by force".to_owned(),
        Event::Unknown(number) => format!("the hub told of event {number}, which is not known"),
    }
}

fn unexpected(got: std::result::Result<Incoming, Broken>) -> String {
    match got {
        Ok(Incoming::Event(event)) => told(event),
        Ok(other) => format!("the hub sends {other:?}, which nobody asked for"),
        Err(broken) => broken.to_string(),
    }
}

impl From<AttachError> for TargetError {
    fn from(error: AttachError) -> TargetError {
        TargetError::new(error.class(), "attaching to a subscriber", error)
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
