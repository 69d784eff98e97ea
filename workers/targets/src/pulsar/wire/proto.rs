//! The commands, as `PulsarApi.proto` of Pulsar 4.2 numbers them. Fields that nothing here sends or looks at are left out.

use prost::{Enumeration, Message};

/// A message's id. Numbers are a Java `long` on the other side: -1 travels as the largest `u64`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MessageIdData {
    /// Ledger.
    #[prost(uint64, required, tag = "1")]
    pub ledger_id: u64,
    /// Entry in it.
    #[prost(uint64, required, tag = "2")]
    pub entry_id: u64,
    /// Number of the partition, -1 for none.
    #[prost(int32, optional, tag = "3", default = "-1")]
    pub partition: Option<i32>,
    /// Number of the message in its batch, -1 for all.
    #[prost(int32, optional, tag = "4", default = "-1")]
    pub batch_index: Option<i32>,
}

/// A name and a value.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyValue {
    /// Name.
    #[prost(string, required, tag = "1")]
    pub key: String,
    /// Value.
    #[prost(string, required, tag = "2")]
    pub value: String,
}

/// Opens a connection.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandConnect {
    /// Who we are.
    #[prost(string, required, tag = "1")]
    pub client_version: String,
    /// The credentials.
    #[prost(bytes = "vec", optional, tag = "3")]
    pub auth_data: Option<Vec<u8>>,
    /// The protocol's version that we speak.
    #[prost(int32, optional, tag = "4")]
    pub protocol_version: Option<i32>,
    /// What the credentials are: `token`.
    #[prost(string, optional, tag = "5")]
    pub auth_method_name: Option<String>,
    /// For a proxy: the broker to go on to, `host:port`.
    #[prost(string, optional, tag = "6")]
    pub proxy_to_broker_url: Option<String>,
}

/// The connection is open.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandConnected {
    /// Who answers.
    #[prost(string, required, tag = "1")]
    pub server_version: String,
    /// The protocol's version that both speak.
    #[prost(int32, optional, tag = "2")]
    pub protocol_version: Option<i32>,
    /// The longest message that may be sent.
    #[prost(int32, optional, tag = "3")]
    pub max_message_size: Option<i32>,
    /// What the broker can do besides; of no concern here.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub feature_flags: Option<Vec<u8>>,
}

/// How the consumers of a subscription share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum SubType {
    /// One, and no other.
    Exclusive = 0,
    /// Each message to one of them.
    Shared = 1,
    /// One at a time.
    Failover = 2,
    /// Each key to one of them.
    KeyShared = 3,
}

/// Connects a consumer to a subscription.
#[derive(Clone, PartialEq, Message)]
pub struct CommandSubscribe {
    /// Full name of the topic.
    #[prost(string, required, tag = "1")]
    pub topic: String,
    /// Plain name of the subscription.
    #[prost(string, required, tag = "2")]
    pub subscription: String,
    /// See [`SubType`].
    #[prost(enumeration = "SubType", required, tag = "3")]
    pub sub_type: i32,
    /// The consumer's number on this connection.
    #[prost(uint64, required, tag = "4")]
    pub consumer_id: u64,
    /// Number of the request.
    #[prost(uint64, required, tag = "5")]
    pub request_id: u64,
    /// The consumer's name, as statistics show it.
    #[prost(string, optional, tag = "6")]
    pub consumer_name: Option<String>,
    /// The subscription has a durable cursor. True when absent.
    #[prost(bool, optional, tag = "8")]
    pub durable: Option<bool>,
    /// What statistics show with the consumer.
    #[prost(message, repeated, tag = "10")]
    pub metadata: Vec<KeyValue>,
    /// Where a subscription begins that this creates: 0 at the end (also when absent), 1 at the beginning.
    #[prost(int32, optional, tag = "13")]
    pub initial_position: Option<i32>,
    /// A topic that does not exist is created, if the broker allows it. True when absent.
    #[prost(bool, optional, tag = "15")]
    pub force_topic_creation: Option<bool>,
    /// Properties of a subscription that this creates; of no effect on one that exists.
    #[prost(message, repeated, tag = "18")]
    pub subscription_properties: Vec<KeyValue>,
}

/// Asks who owns a topic.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandLookupTopic {
    /// Full name of the topic.
    #[prost(string, required, tag = "1")]
    pub topic: String,
    /// Number of the request.
    #[prost(uint64, required, tag = "2")]
    pub request_id: u64,
    /// The asked broker is to take the topic itself: as a redirect says.
    #[prost(bool, optional, tag = "3")]
    pub authoritative: Option<bool>,
}

/// Who owns a topic, or who else is to be asked.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandLookupTopicResponse {
    /// Address of that broker.
    #[prost(string, optional, tag = "1")]
    pub broker_service_url: Option<String>,
    /// The same by TLS.
    #[prost(string, optional, tag = "2")]
    pub broker_service_url_tls: Option<String>,
    /// 0 asks to ask that broker, 1 to connect to it, 2 is a failure.
    #[prost(int32, optional, tag = "3")]
    pub response: Option<i32>,
    /// Number of the request.
    #[prost(uint64, required, tag = "4")]
    pub request_id: u64,
    /// For [`CommandLookupTopic::authoritative`] of the next question.
    #[prost(bool, optional, tag = "5")]
    pub authoritative: Option<bool>,
    /// See [`ServerError`].
    #[prost(int32, optional, tag = "6")]
    pub error: Option<i32>,
    /// What is wrong.
    #[prost(string, optional, tag = "7")]
    pub message: Option<String>,
    /// The broker is to be reached through the address that was asked: a proxy.
    #[prost(bool, optional, tag = "8")]
    pub proxy_through_service_url: Option<bool>,
}

/// How an acknowledgement is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum AckType {
    /// These messages.
    Individual = 0,
    /// Everything up to and including this one.
    Cumulative = 1,
}

/// Acknowledges.
#[derive(Clone, PartialEq, Message)]
pub struct CommandAck {
    /// The consumer's number.
    #[prost(uint64, required, tag = "1")]
    pub consumer_id: u64,
    /// See [`AckType`].
    #[prost(enumeration = "AckType", required, tag = "2")]
    pub ack_type: i32,
    /// Which; one for [`AckType::Cumulative`].
    #[prost(message, repeated, tag = "3")]
    pub message_id: Vec<MessageIdData>,
    /// Number of the request; without one there is no answer.
    #[prost(uint64, optional, tag = "8")]
    pub request_id: Option<u64>,
}

/// An acknowledgement was taken note of: neither stored yet, nor necessarily heeded.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandAckResponse {
    /// The consumer's number.
    #[prost(uint64, required, tag = "1")]
    pub consumer_id: u64,
    /// See [`ServerError`].
    #[prost(int32, optional, tag = "4")]
    pub error: Option<i32>,
    /// What is wrong.
    #[prost(string, optional, tag = "5")]
    pub message: Option<String>,
    /// Number of the request.
    #[prost(uint64, optional, tag = "6")]
    pub request_id: Option<u64>,
}

/// Deletes the subscription of a consumer.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandUnsubscribe {
    /// The consumer's number.
    #[prost(uint64, required, tag = "1")]
    pub consumer_id: u64,
    /// Number of the request.
    #[prost(uint64, required, tag = "2")]
    pub request_id: u64,
}

/// It is done.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandSuccess {
    /// Number of the request.
    #[prost(uint64, required, tag = "1")]
    pub request_id: u64,
}

/// It is not done.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandError {
    /// Number of the request; -1 is about the connection.
    #[prost(uint64, required, tag = "1")]
    pub request_id: u64,
    /// See [`ServerError`].
    #[prost(int32, required, tag = "2")]
    pub error: i32,
    /// What is wrong.
    #[prost(string, required, tag = "3")]
    pub message: String,
}

/// Disconnects a consumer; from a broker: it was disconnected.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandCloseConsumer {
    /// The consumer's number.
    #[prost(uint64, required, tag = "1")]
    pub consumer_id: u64,
    /// Number of the request.
    #[prost(uint64, required, tag = "2")]
    pub request_id: u64,
}

/// Are you there?
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CommandPing {}

/// Yes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CommandPong {}

/// Puts a subscription to a message: what is delivered next. Disconnects the consumer.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandSeek {
    /// The consumer's number.
    #[prost(uint64, required, tag = "1")]
    pub consumer_id: u64,
    /// Number of the request.
    #[prost(uint64, required, tag = "2")]
    pub request_id: u64,
    /// Where to.
    #[prost(message, optional, tag = "3")]
    pub message_id: Option<MessageIdData>,
}

/// Asks for the last message of a consumer's topic.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandGetLastMessageId {
    /// The consumer's number.
    #[prost(uint64, required, tag = "1")]
    pub consumer_id: u64,
    /// Number of the request.
    #[prost(uint64, required, tag = "2")]
    pub request_id: u64,
}

/// The last message, and how far the subscription is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandGetLastMessageIdResponse {
    /// The last one that can be delivered now: before the first open transaction. -1:-1 when there is none.
    #[prost(message, required, tag = "1")]
    pub last_message_id: MessageIdData,
    /// Number of the request.
    #[prost(uint64, required, tag = "2")]
    pub request_id: u64,
    /// Everything up to and including this is acknowledged. Not from old brokers.
    #[prost(message, optional, tag = "3")]
    pub consumer_mark_delete_position: Option<MessageIdData>,
}

/// The topic went to another cluster, and its consumer was disconnected.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CommandTopicMigrated {
    /// The consumer's number.
    #[prost(uint64, required, tag = "1")]
    pub resource_id: u64,
}

/// What a [`BaseCommand`] is. Others than these are not asked for, and passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum CommandType {
    /// [`CommandConnect`].
    Connect = 2,
    /// [`CommandConnected`].
    Connected = 3,
    /// [`CommandSubscribe`].
    Subscribe = 4,
    /// A message, which nobody here has asked for.
    Message = 9,
    /// [`CommandAck`].
    Ack = 10,
    /// [`CommandUnsubscribe`].
    Unsubscribe = 12,
    /// [`CommandSuccess`].
    Success = 13,
    /// [`CommandError`].
    Error = 14,
    /// [`CommandCloseConsumer`].
    CloseConsumer = 16,
    /// [`CommandPing`].
    Ping = 18,
    /// [`CommandPong`].
    Pong = 19,
    /// [`CommandLookupTopic`].
    Lookup = 23,
    /// [`CommandLookupTopicResponse`].
    LookupResponse = 24,
    /// [`CommandSeek`].
    Seek = 28,
    /// [`CommandGetLastMessageId`].
    GetLastMessageId = 29,
    /// [`CommandGetLastMessageIdResponse`].
    GetLastMessageIdResponse = 30,
    /// A further step of authentication, which tokens do not have.
    AuthChallenge = 36,
    /// [`CommandAckResponse`].
    AckResponse = 38,
    /// [`CommandTopicMigrated`].
    TopicMigrated = 68,
}

/// One command.
#[derive(Clone, PartialEq, Message)]
pub struct BaseCommand {
    /// See [`CommandType`]: which of the others is set.
    #[prost(int32, required, tag = "1")]
    pub kind: i32,
    /// [`CommandType::Connect`].
    #[prost(message, optional, tag = "2")]
    pub connect: Option<CommandConnect>,
    /// [`CommandType::Connected`].
    #[prost(message, optional, tag = "3")]
    pub connected: Option<CommandConnected>,
    /// [`CommandType::Subscribe`].
    #[prost(message, optional, tag = "4")]
    pub subscribe: Option<CommandSubscribe>,
    /// [`CommandType::Ack`].
    #[prost(message, optional, tag = "10")]
    pub ack: Option<CommandAck>,
    /// [`CommandType::Unsubscribe`].
    #[prost(message, optional, tag = "12")]
    pub unsubscribe: Option<CommandUnsubscribe>,
    /// [`CommandType::Success`].
    #[prost(message, optional, tag = "13")]
    pub success: Option<CommandSuccess>,
    /// [`CommandType::Error`].
    #[prost(message, optional, tag = "14")]
    pub error: Option<CommandError>,
    /// [`CommandType::CloseConsumer`].
    #[prost(message, optional, tag = "16")]
    pub close_consumer: Option<CommandCloseConsumer>,
    /// [`CommandType::Ping`].
    #[prost(message, optional, tag = "18")]
    pub ping: Option<CommandPing>,
    /// [`CommandType::Pong`].
    #[prost(message, optional, tag = "19")]
    pub pong: Option<CommandPong>,
    /// [`CommandType::Lookup`].
    #[prost(message, optional, tag = "23")]
    pub lookup: Option<CommandLookupTopic>,
    /// [`CommandType::LookupResponse`].
    #[prost(message, optional, tag = "24")]
    pub lookup_response: Option<CommandLookupTopicResponse>,
    /// [`CommandType::Seek`].
    #[prost(message, optional, tag = "28")]
    pub seek: Option<CommandSeek>,
    /// [`CommandType::GetLastMessageId`].
    #[prost(message, optional, tag = "29")]
    pub get_last_message_id: Option<CommandGetLastMessageId>,
    /// [`CommandType::GetLastMessageIdResponse`].
    #[prost(message, optional, tag = "30")]
    pub last_message_id: Option<CommandGetLastMessageIdResponse>,
    /// [`CommandType::AckResponse`].
    #[prost(message, optional, tag = "38")]
    pub ack_response: Option<CommandAckResponse>,
    /// [`CommandType::TopicMigrated`].
    #[prost(message, optional, tag = "68")]
    pub topic_migrated: Option<CommandTopicMigrated>,
}

impl BaseCommand {
    /// What it is; none for a kind that nothing here knows.
    pub fn command_type(&self) -> Option<CommandType> {
        CommandType::try_from(self.kind).ok()
    }
}

/// Each command by itself, as the one that a [`BaseCommand`] carries.
macro_rules! carried {
    ($($field:ident: $kind:ident, $body:ty;)*) => {
        $(impl From<$body> for BaseCommand {
            fn from(body: $body) -> BaseCommand {
                BaseCommand { kind: CommandType::$kind as i32, $field: Some(body), ..BaseCommand::default() }
            }
        })*
    };
}

carried! {
    connect: Connect, CommandConnect;
    connected: Connected, CommandConnected;
    subscribe: Subscribe, CommandSubscribe;
    ack: Ack, CommandAck;
    unsubscribe: Unsubscribe, CommandUnsubscribe;
    success: Success, CommandSuccess;
    error: Error, CommandError;
    close_consumer: CloseConsumer, CommandCloseConsumer;
    ping: Ping, CommandPing;
    pong: Pong, CommandPong;
    lookup: Lookup, CommandLookupTopic;
    lookup_response: LookupResponse, CommandLookupTopicResponse;
    seek: Seek, CommandSeek;
    get_last_message_id: GetLastMessageId, CommandGetLastMessageId;
    last_message_id: GetLastMessageIdResponse, CommandGetLastMessageIdResponse;
    ack_response: AckResponse, CommandAckResponse;
    topic_migrated: TopicMigrated, CommandTopicMigrated;
}

/// Why a broker refuses, as far as it makes a difference here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ServerError {
    /// Anything.
    Unknown = 0,
    /// The metadata store, or a request about a consumer that is not connected.
    Metadata = 1,
    /// The storage.
    Persistence = 2,
    /// Credentials.
    Authentication = 3,
    /// Rights.
    Authorization = 4,
    /// Another consumer is connected.
    ConsumerBusy = 5,
    /// Not now, or not here: look the topic up again.
    ServiceNotReady = 6,
    /// The client is too old.
    UnsupportedVersion = 10,
    /// No such topic.
    TopicNotFound = 11,
    /// No such subscription.
    SubscriptionNotFound = 12,
    /// No such consumer.
    ConsumerNotFound = 13,
    /// Too many at once.
    TooManyRequests = 14,
    /// A reserved name, among others.
    ProducerBusy = 16,
    /// Not a name of a topic.
    InvalidTopicName = 17,
    /// Against the settings of the broker, namespace or topic.
    NotAllowed = 22,
}
