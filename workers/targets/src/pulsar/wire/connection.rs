//! One connection to a broker, and the one consumer on it.
//!
//! A [`Connection`] can look topics up and attach; only what [`Connection::attach`] returns, an [`Attachment`], can acknowledge.
//! Dropping either closes the connection, which detaches: nothing has to be undone when a caller is cut off.
//!
//! A task of its own reads what the broker sends, so that the broker's probes are answered while the caller is busy: a broker
//! that gets no answer within 5 s lets the next exclusive consumer take our place.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use trimtab_events::Position;

use super::address::BrokerAddress;
use super::frame::{Frame, FrameError, encode};
use super::proto::*;

/// The version of the protocol that we say we speak: the first that answers acknowledgements is 17.
const PROTOCOL_VERSION: i32 = 19;
/// How long a broker may take to read a command.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of the one consumer.
const CONSUMER: u64 = 1;

/// Why a broker did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// There is no connection, so nothing was asked.
    #[error("no connection to {0}: {1}")]
    Connect(String, String),
    /// It said no.
    #[error("the broker answers {0}")]
    Refused(Refusal),
    /// It closed the connection, or broke it. Whether it did what it was asked last is not known.
    #[error("the connection ended: {0}")]
    Ended(String),
    /// No answer in time. Whether it did what it was asked is not known.
    #[error("no answer within {} s; whether it was carried out is not known", .0.as_secs())]
    NoAnswer(Duration),
    /// What it sent is not what the protocol says.
    #[error("{0}")]
    Garbage(String),
    /// Nothing was sent, since the attachment is not what it was any more.
    #[error("{0}; nothing was sent")]
    Disturbed(Disturbance),
}

/// What has happened to an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Disturbance {
    /// The topic was closed, or moved, or the connection is gone.
    #[error("the broker has disconnected us")]
    Disconnected,
    /// The broker has probed whether we are alive, which it does when another exclusive consumer wants to connect (and else once
    /// in half a minute).
    #[error("the broker probes whether we are alive, as for another consumer that wants to connect")]
    Probed,
}

impl From<FrameError> for WireError {
    fn from(e: FrameError) -> WireError {
        WireError::Garbage(e.to_string())
    }
}

/// A broker's no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// See [`ServerError`]; other numbers exist.
    pub code: i32,
    /// What it says.
    pub says: String,
}

impl Refusal {
    /// The reason, if it is one that makes a difference here.
    pub fn error(&self) -> Option<ServerError> {
        ServerError::try_from(self.code).ok()
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A broker's text can hold a stack trace.
        let says: String = self.says.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
        match self.error() {
            Some(error) => write!(f, "{error:?}: {says}"),
            None => write!(f, "error {}: {says}", self.code),
        }
    }
}

/// How a connection is made.
#[derive(Clone)]
pub struct ConnectionOptions {
    /// Token, if the broker asks for one.
    pub token: Option<String>,
    /// For `pulsar+ssl`.
    pub tls: Option<Arc<ClientConfig>>,
    /// How long connecting may take, TLS and greeting included.
    pub connect_timeout: Duration,
    /// How long one request may take.
    pub request_timeout: Duration,
}

impl std::fmt::Debug for ConnectionOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionOptions").field("token", &self.token.is_some()).finish_non_exhaustive()
    }
}

/// What the broker did of its own accord.
#[derive(Debug, Default)]
struct Signals {
    probes: AtomicU64,
    disconnected: AtomicBool,
}

type Answer = oneshot::Sender<Result<BaseCommand, WireError>>;

struct Request {
    id: u64,
    command: BaseCommand,
    /// Only if there were no more probes than this, and the consumer is still connected.
    guard: Option<u64>,
    answer: Answer,
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection without a consumer.
pub struct Connection {
    requests: mpsc::Sender<Request>,
    signals: Arc<Signals>,
    timeout: Duration,
    next: u64,
    /// What the broker says it is.
    server: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("server", &self.server).finish_non_exhaustive()
    }
}

/// The answer to a look-up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Address of the broker, plain and by TLS; absent where it has none.
    pub plain: Option<String>,
    /// The same by TLS.
    pub tls: Option<String>,
    /// This is the owner; else it is to be asked.
    pub connect: bool,
    /// To be passed on to the broker that is asked next.
    pub authoritative: bool,
    /// The asked address is a proxy, and the owner is to be reached through it.
    pub through_proxy: bool,
}

/// Where a topic ends, and how far an attached subscription is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastMessage {
    /// The last message that can be delivered: before the first open transaction. None when there is none.
    pub last: Option<Position>,
    /// Everything up to and including this is acknowledged, in the broker's memory at least. None from brokers that do not say.
    pub mark_delete: Option<Position>,
}

impl Connection {
    /// Connects to a broker; to the one that `proxied` names, if the address is that of a proxy.
    ///
    /// # Errors
    /// When there is no connection in time, or the broker does not accept the credentials.
    pub async fn open(
        address: &BrokerAddress,
        proxied: Option<&str>,
        options: &ConnectionOptions,
    ) -> Result<Connection, WireError> {
        match tokio::time::timeout(options.connect_timeout, Connection::connect(address, proxied, options)).await {
            Ok(connected) => connected,
            Err(_) => {
                let why = format!("nothing within {} s", options.connect_timeout.as_secs());
                Err(WireError::Connect(address.to_string(), why))
            }
        }
    }

    async fn connect(
        address: &BrokerAddress,
        proxied: Option<&str>,
        options: &ConnectionOptions,
    ) -> Result<Connection, WireError> {
        let failed = |why: String| WireError::Connect(address.to_string(), why);
        let tcp = TcpStream::connect((address.host.as_str(), address.port)).await;
        let tcp = tcp.map_err(|e| failed(e.to_string()))?;
        tcp.set_nodelay(true).map_err(|e| failed(e.to_string()))?;
        let stream: Box<dyn Stream> = if address.tls {
            let config = options.tls.clone().ok_or_else(|| failed("TLS is not set up".to_owned()))?;
            let name = ServerName::try_from(address.host.clone()).map_err(|e| failed(e.to_string()))?;
            let tls = tokio_rustls::TlsConnector::from(config).connect(name, tcp).await;
            Box::new(tls.map_err(|e| failed(format!("TLS: {e}")))?)
        } else {
            Box::new(tcp)
        };
        Connection::greet(stream, proxied, options).await
    }

    /// Says hello and waits for the answer, on a stream to a broker.
    pub(super) async fn greet(
        stream: Box<dyn Stream>,
        proxied: Option<&str>,
        options: &ConnectionOptions,
    ) -> Result<Connection, WireError> {
        let mut link = Link { stream, received: BytesMut::with_capacity(4096), sending: BytesMut::new() };
        let hello = CommandConnect {
            client_version: concat!("trimtab ", env!("CARGO_PKG_VERSION")).to_owned(),
            auth_data: options.token.as_ref().map(|token| token.clone().into_bytes()),
            protocol_version: Some(PROTOCOL_VERSION),
            auth_method_name: options.token.as_ref().map(|_| "token".to_owned()),
            proxy_to_broker_url: proxied.map(str::to_owned),
        };
        link.send(&hello.into()).await?;
        let command = link.receive().await?.command;
        let server = match (command.command_type(), command.connected, command.error) {
            (Some(CommandType::Connected), Some(connected), _) => connected.server_version,
            (Some(CommandType::Error), _, Some(error)) => return Err(WireError::Refused(refusal(error))),
            (Some(CommandType::AuthChallenge), ..) => return Err(WireError::Garbage(CHALLENGE.to_owned())),
            (kind, ..) => return Err(unexpected(kind, command.kind, "a greeting")),
        };
        let (requests, incoming) = mpsc::channel(8);
        let signals = Arc::new(Signals::default());
        tokio::spawn(serve(link, incoming, signals.clone()));
        Ok(Connection { requests, signals, timeout: options.request_timeout, next: 1, server })
    }

    /// How long one request may take from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// What the broker says it is.
    pub fn server(&self) -> &str {
        &self.server
    }

    async fn ask(
        &mut self,
        guard: Option<u64>,
        command: impl FnOnce(u64) -> BaseCommand,
    ) -> Result<BaseCommand, WireError> {
        let id = self.next;
        self.next += 1;
        let (answer, answered) = oneshot::channel();
        let request = Request { id, command: command(id), guard, answer };
        let gone = |_| WireError::Disturbed(Disturbance::Disconnected);
        self.requests.send(request).await.map_err(gone)?;
        match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(WireError::Ended("nothing serves it any more".to_owned())),
            Err(_) => Err(WireError::NoAnswer(self.timeout)),
        }
    }

    /// Like [`Connection::ask`], for requests that are answered by success alone.
    async fn ask_for_success(
        &mut self,
        guard: Option<u64>,
        command: impl FnOnce(u64) -> BaseCommand,
    ) -> Result<(), WireError> {
        let answer = self.ask(guard, command).await?;
        match answer.command_type() {
            Some(CommandType::Success) => Ok(()),
            kind => Err(unexpected(kind, answer.kind, "success")),
        }
    }

    /// Who owns a topic. With the default load manager a broker that takes the topic's bundle because of this loads every topic
    /// of it: ask only when somebody owns it.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn look_up(&mut self, topic: &str, authoritative: bool) -> Result<Owner, WireError> {
        let topic = topic.to_owned();
        let lookup = |request_id| CommandLookupTopic { topic, request_id, authoritative: Some(authoritative) }.into();
        let answer = self.ask(None, lookup).await?;
        let Some(found) = answer.lookup_response else {
            return Err(unexpected(answer.command_type(), answer.kind, "who owns the topic"));
        };
        match found.response {
            Some(response @ (0 | 1)) => Ok(Owner {
                plain: found.broker_service_url.filter(|url| !url.is_empty()),
                tls: found.broker_service_url_tls.filter(|url| !url.is_empty()),
                connect: response == 1,
                authoritative: found.authoritative.unwrap_or(false),
                through_proxy: found.proxy_through_service_url.unwrap_or(false),
            }),
            _ => {
                let (code, says) = (found.error.unwrap_or(0), found.message.unwrap_or_default());
                Err(WireError::Refused(Refusal { code, says }))
            }
        }
    }

    /// Attaches to a subscription, exclusively and without asking for messages. Refused while anybody is connected to it. Creates
    /// no topic; a subscription that does not exist is created by most brokers, at the end of the topic and with `properties`,
    /// which is how that can be told.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses: [`ServerError::ConsumerBusy`] when a consumer is connected.
    pub async fn attach(mut self, attach: Attach<'_>) -> Result<Attachment, WireError> {
        let pair = |(key, value): &(&str, &str)| KeyValue { key: (*key).to_owned(), value: (*value).to_owned() };
        let subscribe = |request_id| {
            BaseCommand::from(CommandSubscribe {
                topic: attach.topic.to_owned(),
                subscription: attach.subscription.to_owned(),
                sub_type: SubType::Exclusive as i32,
                consumer_id: CONSUMER,
                request_id,
                consumer_name: Some(attach.consumer.to_owned()),
                durable: Some(true),
                metadata: Vec::new(),
                initial_position: Some(0),
                force_topic_creation: Some(false),
                subscription_properties: attach.properties.iter().map(pair).collect(),
            })
        };
        // Taken before: a probe that comes right after the answer must not be missed.
        let probes = self.signals.probes.load(Ordering::Acquire);
        self.ask_for_success(None, subscribe).await?;
        Ok(Attachment { connection: self, probes })
    }
}

/// What to attach to.
#[derive(Debug, Clone, Copy)]
pub struct Attach<'a> {
    /// Full name of the topic.
    pub topic: &'a str,
    /// Plain name of the subscription.
    pub subscription: &'a str,
    /// What statistics show us as.
    pub consumer: &'a str,
    /// Properties of a subscription that this creates.
    pub properties: &'a [(&'a str, &'a str)],
}

/// Being the only consumer of a subscription.
#[derive(Debug)]
pub struct Attachment {
    connection: Connection,
    probes: u64,
}

impl Attachment {
    /// Why it is not what it was any more: the broker has disconnected it, or has probed it.
    pub fn disturbed(&self) -> Option<Disturbance> {
        disturbance(&self.connection.signals, self.probes)
    }

    /// Where the topic ends, and how far the subscription is.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn last_message(&mut self) -> Result<LastMessage, WireError> {
        let get = |request_id| CommandGetLastMessageId { consumer_id: CONSUMER, request_id }.into();
        let answer = self.connection.ask(None, get).await?;
        let Some(found) = answer.last_message_id else {
            return Err(unexpected(answer.command_type(), answer.kind, "the last message"));
        };
        let last = position(&found.last_message_id);
        Ok(LastMessage {
            last: (last.ledger >= 0 && last.entry >= 0).then_some(last),
            mark_delete: found.consumer_mark_delete_position.as_ref().map(position),
        })
    }

    /// Acknowledges everything up to and including this entry. An answer says only that the broker has heard: see
    /// [`Attachment::last_message`] for what it made of it.
    ///
    /// # Errors
    /// [`WireError::Disturbed`] when nothing was sent; else when the broker does not answer or refuses.
    pub async fn acknowledge(&mut self, up_to: Position) -> Result<(), WireError> {
        self.send_ack(AckType::Cumulative, &[up_to]).await
    }

    /// Acknowledges these entries, and no others.
    ///
    /// # Errors
    /// As [`Attachment::acknowledge`].
    pub async fn acknowledge_each(&mut self, entries: &[Position]) -> Result<(), WireError> {
        self.send_ack(AckType::Individual, entries).await
    }

    async fn send_ack(&mut self, how: AckType, entries: &[Position]) -> Result<(), WireError> {
        let message_id = entries.iter().map(message_id).collect();
        let ack = |request_id| {
            let request_id = Some(request_id);
            CommandAck { consumer_id: CONSUMER, ack_type: how as i32, message_id, request_id }.into()
        };
        let answer = self.connection.ask(Some(self.probes), ack).await?;
        let Some(response) = answer.ack_response else {
            return Err(unexpected(answer.command_type(), answer.kind, "an answer to an acknowledgement"));
        };
        match response.error {
            None => Ok(()),
            Some(code) => Err(WireError::Refused(Refusal { code, says: response.message.unwrap_or_default() })),
        }
    }

    /// Puts the subscription to this entry, as the next to deliver, and forgets what was acknowledged behind it. The broker
    /// takes the next entry there is when there is no such entry, and the end of the topic when there is none after it. It
    /// disconnects us.
    ///
    /// # Errors
    /// [`WireError::Disturbed`] when nothing was sent; else when the broker does not answer or refuses.
    pub async fn seek(&mut self, next: Position) -> Result<(), WireError> {
        let seek = |request_id| {
            let message_id = Some(message_id(&next));
            CommandSeek { consumer_id: CONSUMER, request_id, message_id }.into()
        };
        let probes = self.probes;
        self.connection.ask_for_success(Some(probes), seek).await
    }

    /// Deletes the subscription, and disconnects us.
    ///
    /// # Errors
    /// [`WireError::Disturbed`] when nothing was sent; else when the broker does not answer or refuses.
    pub async fn unsubscribe(&mut self) -> Result<(), WireError> {
        let unsubscribe = |request_id| CommandUnsubscribe { consumer_id: CONSUMER, request_id }.into();
        let probes = self.probes;
        self.connection.ask_for_success(Some(probes), unsubscribe).await
    }

    /// Detaches, and waits until the broker has done so. Merely dropping it does so too, a little later.
    ///
    /// # Errors
    /// When the broker does not answer, or refuses.
    pub async fn detach(mut self) -> Result<(), WireError> {
        let close = |request_id| CommandCloseConsumer { consumer_id: CONSUMER, request_id }.into();
        self.connection.ask_for_success(None, close).await
    }
}

fn position(id: &MessageIdData) -> Position {
    Position { ledger: id.ledger_id.cast_signed(), entry: id.entry_id.cast_signed() }
}

fn message_id(position: &Position) -> MessageIdData {
    let (ledger_id, entry_id) = (position.ledger.cast_unsigned(), position.entry.cast_unsigned());
    MessageIdData { ledger_id, entry_id, partition: None, batch_index: None }
}

fn refusal(error: CommandError) -> Refusal {
    Refusal { code: error.error, says: error.message }
}

const CHALLENGE: &str = "the broker asks for a further step of authentication, which tokens do not have";

fn unexpected(kind: Option<CommandType>, number: i32, wanted: &str) -> WireError {
    match kind {
        Some(kind) => WireError::Garbage(format!("{kind:?} came where {wanted} was expected")),
        None => WireError::Garbage(format!("command {number} came where {wanted} was expected")),
    }
}

fn disturbance(signals: &Signals, probes: u64) -> Option<Disturbance> {
    if signals.disconnected.load(Ordering::Acquire) {
        return Some(Disturbance::Disconnected);
    }
    (signals.probes.load(Ordering::Acquire) > probes).then_some(Disturbance::Probed)
}

/// The stream and its buffers.
struct Link {
    stream: Box<dyn Stream>,
    received: BytesMut,
    sending: BytesMut,
}

impl Link {
    async fn send(&mut self, command: &BaseCommand) -> Result<(), WireError> {
        self.sending.clear();
        encode(command, &mut self.sending)?;
        let written = async {
            self.stream.write_all(&self.sending).await?;
            self.stream.flush().await
        };
        match tokio::time::timeout(WRITE_TIMEOUT, written).await {
            Ok(written) => written.map_err(|e| WireError::Ended(e.to_string())),
            Err(_) => Err(WireError::Ended("the broker does not read".to_owned())),
        }
    }

    /// The next frame. Nothing is lost when it is not waited for to the end.
    async fn receive(&mut self) -> Result<Frame, WireError> {
        loop {
            if let Some(frame) = Frame::take(&mut self.received)? {
                return Ok(frame);
            }
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err(WireError::Ended("the broker closed it".to_owned())),
                Ok(_) => {}
                Err(e) => return Err(WireError::Ended(e.to_string())),
            }
        }
    }
}

/// Serves a connection until nobody wants it any more, or it breaks; whoever waits then hears why.
async fn serve(mut link: Link, mut requests: mpsc::Receiver<Request>, signals: Arc<Signals>) {
    let mut waiting = HashMap::new();
    let why = loop {
        tokio::select! {
            // What the broker has said so far counts before what is sent next.
            biased;
            frame = link.receive() => {
                let handled = match frame {
                    Ok(frame) => heard(frame.command, &mut waiting, &signals),
                    Err(e) => Err(e),
                };
                match handled {
                    Ok(None) => {}
                    Ok(Some(reply)) => if let Err(e) = link.send(&reply).await { break e },
                    Err(e) => break e,
                }
            }
            request = requests.recv() => {
                let Some(Request { id, command, guard, answer }) = request else { return };
                if let Some(why) = guard.and_then(|probes| disturbance(&signals, probes)) {
                    let _ = answer.send(Err(WireError::Disturbed(why)));
                    continue;
                }
                waiting.insert(id, answer);
                if let Err(e) = link.send(&command).await { break e }
            }
        }
    };
    signals.disconnected.store(true, Ordering::Release);
    for (_, answer) in waiting {
        let _ = answer.send(Err(why.clone()));
    }
    requests.close();
    while let Some(request) = requests.recv().await {
        let _ = request.answer.send(Err(WireError::Disturbed(Disturbance::Disconnected)));
    }
}

/// What a command from the broker means; a reply, if it wants one.
fn heard(
    command: BaseCommand,
    waiting: &mut HashMap<u64, Answer>,
    signals: &Signals,
) -> Result<Option<BaseCommand>, WireError> {
    let missing = || WireError::Garbage(format!("a command of type {} with nothing in it", command.kind));
    let id = match command.command_type() {
        Some(CommandType::Ping) => {
            signals.probes.fetch_add(1, Ordering::AcqRel);
            return Ok(Some(CommandPong {}.into()));
        }
        Some(CommandType::CloseConsumer | CommandType::TopicMigrated) => {
            signals.disconnected.store(true, Ordering::Release);
            return Ok(None);
        }
        Some(CommandType::Message) => {
            return Err(WireError::Garbage("the broker sends a message, which nobody asked for".to_owned()));
        }
        Some(CommandType::AuthChallenge) => return Err(WireError::Garbage(CHALLENGE.to_owned())),
        Some(CommandType::Error) => {
            let error = command.error.clone().ok_or_else(missing)?;
            let Some(answer) = waiting.remove(&error.request_id) else {
                // About no request of ours: about the connection.
                return Err(WireError::Refused(refusal(error)));
            };
            let _ = answer.send(Err(WireError::Refused(refusal(error))));
            return Ok(None);
        }
        Some(CommandType::Success) => command.success.as_ref().ok_or_else(missing)?.request_id,
        Some(CommandType::LookupResponse) => command.lookup_response.as_ref().ok_or_else(missing)?.request_id,
        Some(CommandType::GetLastMessageIdResponse) => command.last_message_id.as_ref().ok_or_else(missing)?.request_id,
        Some(CommandType::AckResponse) => {
            let Some(id) = command.ack_response.as_ref().ok_or_else(missing)?.request_id else { return Ok(None) };
            id
        }
        _ => return Ok(None),
    };
    if let Some(answer) = waiting.remove(&id) {
        let _ = answer.send(Ok(command));
    }
    Ok(None)
}
