//! Hedwig's protobuf messages, field by field.
//!
//! Source: `PubSubProtocol.proto` of Hedwig 4.3.2 (proto2). Whatever upstream calls required is optional here: whether it is there
//! is checked where a message is used, so that a message without it can be told from one that has zero.

use bytes::Bytes;
use prost::Message;

/// Position of a message within a topic.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MessageSeqId {
    /// Number within this region; counts from 1, without gaps.
    #[prost(uint64, optional, tag = "1")]
    pub local: Option<u64>,
    /// How far the messages of other regions had come.
    #[prost(message, repeated, tag = "2")]
    pub remote: Vec<RegionSpecificSeqId>,
}

/// A position in another region.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegionSpecificSeqId {
    /// The region's name.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub region: Option<Bytes>,
    /// The number there.
    #[prost(uint64, optional, tag = "2")]
    pub seq_id: Option<u64>,
}

/// Keys and values.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Map {
    /// The entries, in the order of the writer.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<MapEntry>,
}

/// An entry of a [`Map`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MapEntry {
    /// The key.
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    /// The value.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub value: Option<Bytes>,
}

/// The value of a topic's `ledgers` node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LedgerRanges {
    /// In the order of their messages; only the last one may be open.
    #[prost(message, repeated, tag = "1")]
    pub ranges: Vec<LedgerRange>,
}

/// The messages that one ledger holds.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct LedgerRange {
    /// The ledger.
    #[prost(uint64, optional, tag = "1")]
    pub ledger_id: Option<u64>,
    /// `endSeqIdIncluded`, a [`MessageSeqId`] in the very bytes of its writer, because they are sent back like this. Absent while the
    /// ledger is open.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub end_seq_id_included: Option<Bytes>,
    /// Absent in what releases before 4.2 wrote.
    #[prost(uint64, optional, tag = "3")]
    pub start_seq_id_included: Option<u64>,
}

/// The value of a subscriber's node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubscriptionData {
    /// Where it stands.
    #[prost(message, optional, tag = "1")]
    pub state: Option<SubscriptionState>,
    /// How it wants to be served.
    #[prost(message, optional, tag = "2")]
    pub preferences: Option<SubscriptionPreferences>,
}

/// Where a subscriber stands. Before 4.2 this was the whole value of its node.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubscriptionState {
    /// Consumed up to and including this.
    #[prost(message, optional, tag = "1")]
    pub msg_id: Option<MessageSeqId>,
    /// The bound, before it moved into the preferences.
    #[prost(uint32, optional, tag = "2")]
    pub message_bound: Option<u32>,
}

/// How a subscriber wants to be served.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubscriptionPreferences {
    /// For the filter.
    #[prost(message, optional, tag = "1")]
    pub options: Option<Map>,
    /// At most so many messages are kept for it; 0 is no bound.
    #[prost(uint32, optional, tag = "2")]
    pub message_bound: Option<u32>,
    /// A Java class that picks what is delivered.
    #[prost(string, optional, tag = "3")]
    pub message_filter: Option<String>,
    /// At most so many messages are delivered ahead of what is consumed.
    #[prost(uint32, optional, tag = "4")]
    pub message_window_size: Option<u32>,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PubSubMessage {
    /// Its body.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub body: Option<Bytes>,
    /// The region it was published in.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub src_region: Option<Bytes>,
    /// Its position.
    #[prost(message, optional, tag = "3")]
    pub msg_id: Option<MessageSeqId>,
    /// What filters look at.
    #[prost(message, optional, tag = "4")]
    pub header: Option<MessageHeader>,
}

/// A message's header.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MessageHeader {
    /// Properties.
    #[prost(message, optional, tag = "1")]
    pub properties: Option<Map>,
    /// A type.
    #[prost(string, optional, tag = "2")]
    pub message_type: Option<String>,
}

/// What a client sends.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PubSubRequest {
    /// Always 1.
    #[prost(int32, optional, tag = "1")]
    pub protocol_version: Option<i32>,
    /// One of `wire::op`.
    #[prost(int32, optional, tag = "2")]
    pub r#type: Option<i32>,
    /// Hubs that a redirected request has been to, as `ip:port`. Hubs do not look at it.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub tried_servers: Vec<Bytes>,
    /// Comes back in the answer. Never 0, which marks what a hub sends unasked.
    #[prost(uint64, optional, tag = "4")]
    pub txn_id: Option<u64>,
    /// The hub that gets it is to take the topic if nobody owns it.
    #[prost(bool, optional, tag = "5")]
    pub should_claim: Option<bool>,
    /// The topic.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub topic: Option<Bytes>,
    /// With PUBLISH.
    #[prost(message, optional, tag = "52")]
    pub publish: Option<PublishRequest>,
    /// With SUBSCRIBE.
    #[prost(message, optional, tag = "53")]
    pub subscribe: Option<SubscribeRequest>,
    /// With CONSUME.
    #[prost(message, optional, tag = "54")]
    pub consume: Option<ConsumeRequest>,
    /// With UNSUBSCRIBE.
    #[prost(message, optional, tag = "55")]
    pub unsubscribe: Option<SubscriberRequest>,
    /// With STOP_DELIVERY.
    #[prost(message, optional, tag = "56")]
    pub stop_delivery: Option<SubscriberRequest>,
    /// With START_DELIVERY.
    #[prost(message, optional, tag = "57")]
    pub start_delivery: Option<SubscriberRequest>,
    /// With CLOSESUBSCRIPTION.
    #[prost(message, optional, tag = "58")]
    pub close_subscription: Option<SubscriberRequest>,
}

/// The body of PUBLISH.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PublishRequest {
    /// What to publish.
    #[prost(message, optional, tag = "2")]
    pub msg: Option<PubSubMessage>,
}

/// The body of SUBSCRIBE.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubscribeRequest {
    /// The subscriber.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub subscriber_id: Option<Bytes>,
    /// 0 CREATE, 1 ATTACH, 2 CREATE_OR_ATTACH. **Absent means CREATE_OR_ATTACH.**
    #[prost(int32, optional, tag = "3")]
    pub create_or_attach: Option<i32>,
    /// Not looked at any more.
    #[prost(bool, optional, tag = "4")]
    pub synchronous: Option<bool>,
    /// The bound, before it moved into the preferences.
    #[prost(uint32, optional, tag = "5")]
    pub message_bound: Option<u32>,
    /// Stored when they differ from what is stored.
    #[prost(message, optional, tag = "6")]
    pub preferences: Option<SubscriptionPreferences>,
    /// Throws off whoever is attached.
    #[prost(bool, optional, tag = "7")]
    pub force_attach: Option<bool>,
}

/// The body of CONSUME.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ConsumeRequest {
    /// The subscriber.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub subscriber_id: Option<Bytes>,
    /// A [`MessageSeqId`] in the bytes of whoever wrote it first; everything up to and including it is consumed.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub msg_id: Option<Bytes>,
}

/// The body of requests that only name a subscriber.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubscriberRequest {
    /// The subscriber.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub subscriber_id: Option<Bytes>,
}

/// What a hub sends: the answer to a request, or with transaction 0 something unasked.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PubSubResponse {
    /// Always 1.
    #[prost(int32, optional, tag = "1")]
    pub protocol_version: Option<i32>,
    /// See `wire::Status`.
    #[prost(int32, optional, tag = "2")]
    pub status_code: Option<i32>,
    /// That of the request, or 0.
    #[prost(uint64, optional, tag = "3")]
    pub txn_id: Option<u64>,
    /// What a person is told; with NOT_RESPONSIBLE_FOR_TOPIC the owner's address.
    #[prost(string, optional, tag = "4")]
    pub status_msg: Option<String>,
    /// A delivered message.
    #[prost(message, optional, tag = "5")]
    pub message: Option<PubSubMessage>,
    /// The topic it is from.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub topic: Option<Bytes>,
    /// The subscriber it is for.
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub subscriber_id: Option<Bytes>,
    /// What an answer carries.
    #[prost(message, optional, tag = "8")]
    pub response_body: Option<ResponseBody>,
}

/// What an answer carries.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ResponseBody {
    /// To PUBLISH.
    #[prost(message, optional, tag = "1")]
    pub publish: Option<PublishResponse>,
    /// To SUBSCRIBE.
    #[prost(message, optional, tag = "2")]
    pub subscribe: Option<SubscribeResponse>,
    /// Not an answer: something happened to a subscription.
    #[prost(message, optional, tag = "3")]
    pub event: Option<SubscriptionEvent>,
}

/// The answer to PUBLISH.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct PublishResponse {
    /// Where the message stands.
    #[prost(message, optional, tag = "1")]
    pub published_msg_id: Option<MessageSeqId>,
}

/// The answer to SUBSCRIBE.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubscribeResponse {
    /// The preferences in force.
    #[prost(message, optional, tag = "2")]
    pub preferences: Option<SubscriptionPreferences>,
}

/// Something happened to a subscription.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SubscriptionEvent {
    /// 1 TOPIC_MOVED, 2 SUBSCRIPTION_FORCED_CLOSED.
    #[prost(int32, optional, tag = "1")]
    pub event: Option<i32>,
}
