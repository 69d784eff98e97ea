//! The hub's protocol: frames, what is sent, and what comes back.
//!
//! A frame is a length of four bytes, big-endian, and one message. There is no hello and no login; a frame that a hub cannot read
//! makes it close the connection without a word. Source: Hedwig 4.3.2's `PubSubProtocol.proto` and its Netty pipeline.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

use super::proto::{self, PubSubRequest, PubSubResponse, SubscriptionPreferences};
use super::znodes::{HubAddress, MessageId, local};

/// The one version of the protocol.
pub const VERSION: i32 = 1;

/// The largest frame that is read. Hubs take 1,258,291 bytes unless told otherwise, and what they deliver is a little larger than what
/// they took; Java's client reads up to 2 MiB.
pub const MAX_FRAME: usize = 2 * 1024 * 1024;

/// Types of requests.
pub mod op {
    /// Publish a message.
    pub const PUBLISH: i32 = 0;
    /// Attach, or create and attach.
    pub const SUBSCRIBE: i32 = 1;
    /// Move the pointer. No answer.
    pub const CONSUME: i32 = 2;
    /// Delete the subscriber.
    pub const UNSUBSCRIBE: i32 = 3;
    /// End the attachment.
    pub const CLOSE_SUBSCRIPTION: i32 = 6;
}

/// Values of `createOrAttach`.
pub mod attach {
    /// Must not exist yet.
    pub const CREATE: i32 = 0;
    /// Must exist.
    pub const ATTACH: i32 = 1;
    /// Either.
    pub const CREATE_OR_ATTACH: i32 = 2;
}

/// Bytes that are no frame of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// A length beyond the limit.
    #[error("a frame says it has {length} bytes, more than {limit}{}", tls_hint(*.length))]
    Oversized {
        /// What the frame says.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame that holds no response.
    #[error("a frame of {length} bytes is no response of a hub: {why}")]
    NoResponse {
        /// Bytes of the frame.
        length: usize,
        /// What is wrong.
        why: String,
    },
    /// Another version of the protocol.
    #[error("the other side speaks version {0} of the protocol, and 1 is the only one known")]
    Version(i32),
}

/// The first bytes of a TLS alert or handshake, taken as a length.
fn tls_hint(length: usize) -> &'static str {
    match length >> 8 {
        0x0015_0300..=0x0015_0304 | 0x0016_0300..=0x0016_0304 => "; these bytes are TLS: is this the hub's TLS port?",
        0x0048_5454 => "; these bytes are HTTP: is this a hub at all?",
        _ => "",
    }
}

/// Takes the next whole frame off what was received; none while it is not complete. What is incomplete is never longer than the
/// limit, so memory stays within it.
///
/// # Errors
/// When its length is beyond `limit`.
pub fn take_frame(received: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, Garbled> {
    let Some(length) = received.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > limit {
        return Err(Garbled::Oversized { length, limit });
    }
    if received.len() - 4 < length {
        received.reserve(length + 4 - received.len());
        return Ok(None);
    }
    received.advance(4);
    Ok(Some(received.split_to(length).freeze()))
}

/// Appends a request as a frame.
pub fn put_frame(request: &PubSubRequest, out: &mut Vec<u8>) {
    let length = request.encoded_len();
    // No request of ours comes near four gigabytes; one that did would be refused by the hub for its length.
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    out.reserve(length);
    // Writing to a Vec cannot run out of room.
    let _ = request.encode(out);
}

/// What a request is about: the transaction, the topic, the subscriber.
#[derive(Debug, Clone, Copy)]
pub struct About<'a> {
    /// Comes back in the answer; never 0.
    pub txn: u64,
    /// The topic.
    pub topic: &'a str,
    /// The subscriber.
    pub subscriber: &'a str,
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl About<'_> {
    fn request(self, kind: i32) -> PubSubRequest {
        PubSubRequest {
            protocol_version: Some(VERSION),
            r#type: Some(kind),
            txn_id: Some(self.txn),
            topic: Some(bytes(self.topic)),
            ..PubSubRequest::default()
        }
    }

    fn subscriber(self) -> Option<proto::SubscriberRequest> {
        Some(proto::SubscriberRequest { subscriber_id: Some(bytes(self.subscriber)) })
    }

    /// SUBSCRIBE that attaches and never creates: the mode is written out, since a missing one would mean "or create". Nothing else
    /// is asked for: preferences would be stored, and force would throw off whoever is attached. After a redirect the hubs tried
    /// so far are named and the hub is told to claim the topic; two hubs could otherwise send a client back and forth.
    pub fn attach(self, tried: &[HubAddress]) -> PubSubRequest {
        PubSubRequest {
            tried_servers: tried.iter().map(|hub| bytes(&hub.plain())).collect(),
            should_claim: (!tried.is_empty()).then_some(true),
            subscribe: Some(proto::SubscribeRequest {
                subscriber_id: Some(bytes(self.subscriber)),
                create_or_attach: Some(attach::ATTACH),
                ..proto::SubscribeRequest::default()
            }),
            ..self.request(op::SUBSCRIBE)
        }
    }

    /// CONSUME up to and including a message.
    pub fn consume(self, to: &MessageId) -> PubSubRequest {
        PubSubRequest {
            consume: Some(proto::ConsumeRequest {
                subscriber_id: Some(bytes(self.subscriber)),
                msg_id: Some(to.raw().clone()),
            }),
            ..self.request(op::CONSUME)
        }
    }

    /// CLOSESUBSCRIPTION.
    pub fn close_subscription(self) -> PubSubRequest {
        PubSubRequest { close_subscription: self.subscriber(), ..self.request(op::CLOSE_SUBSCRIPTION) }
    }
}

/// What a hub says to a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(pub i32);

impl Status {
    /// Done.
    pub const SUCCESS: Status = Status(0);
    /// A body is missing, or the type is not for hubs.
    pub const MALFORMED_REQUEST: Status = Status(401);
    /// Only with metadata in a table store.
    pub const NO_SUCH_TOPIC: Status = Status(402);
    /// It was to be created, and exists.
    pub const CLIENT_ALREADY_SUBSCRIBED: Status = Status(403);
    /// It does not exist.
    pub const CLIENT_NOT_SUBSCRIBED: Status = Status(404);
    /// Another connection serves this subscriber: it is online.
    pub const TOPIC_BUSY: Status = Status(406);
    /// Another hub owns the topic. The message is its address; an empty one means that the hub has lost the topic it owns.
    pub const NOT_RESPONSIBLE_FOR_TOPIC: Status = Status(501);
    /// The hub lost ZooKeeper or its bookies.
    pub const SERVICE_DOWN: Status = Status(502);
    /// The subscriber's filter cannot be loaded.
    pub const INVALID_MESSAGE_FILTER: Status = Status(504);

    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "SUCCESS",
            401 => "MALFORMED_REQUEST",
            402 => "NO_SUCH_TOPIC",
            403 => "CLIENT_ALREADY_SUBSCRIBED",
            404 => "CLIENT_NOT_SUBSCRIBED",
            405 => "COULD_NOT_CONNECT",
            406 => "TOPIC_BUSY",
            407 => "RESUBSCRIBE_EXCEPTION",
            501 => "NOT_RESPONSIBLE_FOR_TOPIC",
            502 => "SERVICE_DOWN",
            503 => "UNCERTAIN_STATE",
            504 => "INVALID_MESSAGE_FILTER",
            520 => "BAD_VERSION",
            521 => "NO_TOPIC_PERSISTENCE_INFO",
            522 => "TOPIC_PERSISTENCE_INFO_EXISTS",
            523 => "NO_SUBSCRIPTION_STATE",
            524 => "SUBSCRIPTION_STATE_EXISTS",
            525 => "NO_TOPIC_OWNER_INFO",
            526 => "TOPIC_OWNER_INFO_EXISTS",
            600 => "UNEXPECTED_CONDITION",
            700 => "COMPOSITE",
            _ => "a status that is not known",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Something that happened to a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The hub gave the topic up: nobody is attached any more, though the connection stays open.
    TopicMoved,
    /// Somebody else attached by force.
    ForcedClosed,
    /// Another.
    Unknown(i32),
}

/// What came from a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    /// The answer to a request.
    Answer {
        /// The request.
        txn: u64,
        /// What the hub says.
        status: Status,
        /// With words.
        said: String,
        /// The subscription's preferences, with the answer to SUBSCRIBE.
        preferences: Option<SubscriptionPreferences>,
        /// Where the message stands, with the answer to PUBLISH.
        published: Option<u64>,
    },
    /// A delivered message: its number.
    Delivery(u64),
    /// Something happened to the subscription.
    Event(Event),
}

/// Reads a frame's content.
///
/// # Errors
/// When it is not a response, or one that makes no sense.
pub fn incoming(frame: &Bytes) -> Result<Incoming, Garbled> {
    let odd = |why: String| Garbled::NoResponse { length: frame.len(), why };
    let response = PubSubResponse::decode(frame.clone()).map_err(|e| odd(e.to_string()))?;
    match response.protocol_version {
        Some(VERSION) => {}
        Some(other) => return Err(Garbled::Version(other)),
        None => return Err(odd("it has no version".to_owned())),
    }
    let status = Status(response.status_code.ok_or_else(|| odd("it has no status".to_owned()))?);
    let txn = response.txn_id.ok_or_else(|| odd("it has no transaction".to_owned()))?;
    let body = response.response_body.unwrap_or_default();
    let number = |seq: &proto::MessageSeqId| local(seq).map_err(|e| odd(e.to_string()));
    if let Some(message) = response.message {
        let seq = message.msg_id.ok_or_else(|| odd("a delivered message has no id".to_owned()))?;
        return match number(&seq)? {
            0 => Err(odd("a delivered message has the id 0".to_owned())),
            id => Ok(Incoming::Delivery(id)),
        };
    }
    if let Some(event) = body.event {
        return Ok(Incoming::Event(match event.event {
            Some(1) => Event::TopicMoved,
            Some(2) => Event::ForcedClosed,
            other => Event::Unknown(other.unwrap_or(0)),
        }));
    }
    if txn == 0 {
        return Err(odd("it answers no request, and is neither a message nor an event".to_owned()));
    }
    let published = body.publish.and_then(|publish| publish.published_msg_id);
    Ok(Incoming::Answer {
        txn,
        status,
        said: response.status_msg.unwrap_or_default(),
        preferences: body.subscribe.and_then(|subscribe| subscribe.preferences),
        published: published.as_ref().map(number).transpose()?,
    })
}
