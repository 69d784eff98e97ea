//! Answers of the JetStream interface, as far as they are needed. What a newer server adds is passed over; what it says differently is not
//! known, and one consumer that cannot be read leaves the others of its page readable.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use trimtab_events::{
    DeliverPolicy, Evidence, JetStreamConsumer, JetStreamStream, Seen, StreamOwner, StreamRetention, Subscriber,
    SubscriberClass,
};

/// The label that keeps a stream or a consumer.
const KEEP: &str = "trimtab.keep";
/// What a stored message takes beside its payload at most: its head, and a subject, which servers allow 4 KiB of control line for.
const MESSAGE_OVERHEAD: u64 = 30 + 4_096;
/// Where servers keep notes of their own in labels.
const SERVERS_OWN: &str = "_nats.";

/// Why a request was refused.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ApiError {
    pub(super) code: i64,
    #[serde(default)]
    pub(super) err_code: i64,
    #[serde(default)]
    pub(super) description: String,
}

/// What any answer may be instead.
#[derive(Debug, Deserialize)]
pub(super) struct Head {
    #[serde(default)]
    pub(super) error: Option<ApiError>,
}

/// `STREAM.NAMES`
#[derive(Debug, Deserialize)]
pub(super) struct NamesPage {
    #[serde(default)]
    pub(super) total: usize,
    #[serde(default)]
    pub(super) streams: Option<Vec<String>>,
}

/// `CONSUMER.LIST`: pages of whole descriptions, by name.
#[derive(Debug, Deserialize)]
pub(super) struct ListPage<'a> {
    #[serde(default)]
    pub(super) total: usize,
    #[serde(default)]
    pub(super) limit: usize,
    #[serde(borrow, default)]
    pub(super) consumers: Option<Vec<&'a RawValue>>,
    /// Consumers whose servers did not answer.
    #[serde(default)]
    pub(super) missing: Option<Vec<String>>,
}

/// `STREAM.INFO`
#[derive(Debug, Deserialize)]
pub(super) struct StreamInfo {
    config: StreamConfig,
    created: String,
    state: StreamState,
    #[serde(default)]
    mirror: Option<IgnoredAny>,
    #[serde(default)]
    ts: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StreamConfig {
    name: String,
    #[serde(default)]
    subjects: Option<Vec<String>>,
    #[serde(default)]
    retention: String,
    #[serde(default)]
    mirror: Option<IgnoredAny>,
    #[serde(default)]
    sources: Option<Vec<IgnoredAny>>,
    #[serde(default)]
    sealed: bool,
    #[serde(default)]
    deny_purge: bool,
    #[serde(default)]
    max_msg_size: i64,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct StreamState {
    messages: u64,
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
    #[serde(default)]
    first_ts: Option<String>,
    #[serde(default)]
    last_ts: Option<String>,
}

/// `STREAM.MSG.GET`
#[derive(Debug, Deserialize)]
pub(super) struct Found {
    pub(super) message: FoundMessage,
}

/// A message, apart from what is in it.
#[derive(Debug, Deserialize)]
pub(super) struct FoundMessage {
    pub(super) seq: u64,
}

/// What a look at one age needs of a stream.
pub(super) struct Ages {
    /// What the servers' clock said, nanoseconds since 1970.
    pub(super) read_ns: i64,
    /// When its first and its last message came.
    pub(super) first_ns: i64,
    pub(super) last_ns: i64,
}

impl StreamInfo {
    /// When it was read, and when its messages came; none where it does not say, or has none.
    pub(super) fn ages(&self) -> Option<Ages> {
        let moment = |text: &Option<String>| text.as_deref().and_then(nanoseconds);
        (self.state.messages > 0).then_some(())?;
        Some(Ages {
            read_ns: moment(&self.ts)?,
            first_ns: moment(&self.state.first_ts)?,
            last_ns: moment(&self.state.last_ts)?,
        })
    }

    /// Without consumers. None when the answer does not say when it was made.
    pub(super) fn read(self, can_reset: bool, max_payload: u64) -> Option<JetStreamStream> {
        let StreamInfo { config, created, state, mirror, ts } = self;
        let begins = |with: &str| config.subjects.iter().flatten().any(|subject| subject.starts_with(with));
        let owner = if config.name.starts_with('$') || begins("$") {
            StreamOwner::System
        } else if begins("trimtab.") {
            StreamOwner::Trimtab
        } else {
            StreamOwner::User
        };
        Some(JetStreamStream {
            created_ns: nanoseconds(&created)?,
            read_ms: ts.as_deref().and_then(nanoseconds).map_or(0, |ns| ns / 1_000_000),
            retention: match config.retention.as_str() {
                "limits" => StreamRetention::Limits,
                "interest" => StreamRetention::Interest,
                "workqueue" => StreamRetention::WorkQueue,
                _ => StreamRetention::Unknown,
            },
            owner,
            keep: label(config.metadata.as_ref()),
            first: state.first_seq,
            last: state.last_seq,
            messages: state.messages,
            bytes: state.bytes,
            sealed: config.sealed,
            deny_purge: config.deny_purge,
            mirror: mirror.is_some() || config.mirror.is_some(),
            sources: u32::try_from(config.sources.map_or(0, |sources| sources.len())).unwrap_or(u32::MAX),
            can_reset,
            consumers: Vec::new(),
            rest: Vec::new(),
            // With its subject, its headers and what the store adds, as the servers count it.
            largest: u64::try_from(config.max_msg_size).ok().filter(|size| *size > 0).unwrap_or(max_payload)
                + MESSAGE_OVERHEAD,
            aged: None,
            until: None,
        })
    }
}

/// `CONSUMER.INFO`, and each entry of `CONSUMER.LIST`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ConsumerInfo {
    /// Empty for one whose servers are all away; its name is among the missing then.
    #[serde(default)]
    pub(super) name: String,
    created: String,
    pub(super) config: Map<String, Value>,
    #[serde(default)]
    delivered: Sequence,
    #[serde(default)]
    ack_floor: Sequence,
    #[serde(default)]
    num_ack_pending: i64,
    #[serde(default)]
    num_waiting: i64,
    #[serde(default)]
    num_pending: u64,
    #[serde(default)]
    push_bound: bool,
    #[serde(default)]
    pub(super) paused: bool,
    #[serde(default)]
    ts: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Sequence {
    #[serde(default)]
    consumer_seq: u64,
    #[serde(default)]
    stream_seq: u64,
    #[serde(default)]
    last_active: Option<String>,
}

impl ConsumerInfo {
    fn text(&self, key: &str) -> &str {
        self.config.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    fn is(&self, key: &str) -> bool {
        self.config.get(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn metadata(&self) -> Option<&Map<String, Value>> {
        self.config.get("metadata").and_then(Value::as_object)
    }

    /// When it was made, as its servers write it.
    pub(super) fn created(&self) -> &str {
        &self.created
    }

    /// When it was made.
    fn created_ns(&self) -> Option<i64> {
        nanoseconds(&self.created)
    }

    /// What the servers' clock says.
    pub(super) fn read_ns(&self) -> Option<i64> {
        self.ts.as_deref().and_then(nanoseconds)
    }

    /// The end of a pause, as its configuration has it.
    pub(super) fn pause_until(&self) -> Option<i64> {
        Some(self.text("pause_until")).filter(|text| !text.is_empty()).and_then(nanoseconds)
    }

    /// Where it stands.
    pub(super) fn floor(&self) -> u64 {
        self.ack_floor.stream_seq
    }

    /// What taking an act back needs of it.
    pub(super) fn evidence(&self) -> Value {
        json!({
            "name": self.name, "created": self.created, "config": self.config,
            "delivered": self.delivered.stream_seq, "floor": self.ack_floor.stream_seq,
        })
    }

    /// Whether somebody can be seen using it.
    pub(super) fn used(&self) -> bool {
        self.num_waiting > 0 || self.push_bound
    }

    /// Belongs to a mirror or a source, in this account or another one, rather than to a user.
    fn belongs_to_a_stream(&self) -> bool {
        let named = ["JS_MIRROR_", "JS_SOURCE_"].iter().any(|prefix| self.name.starts_with(prefix));
        let noted = self.metadata().is_some_and(|labels| {
            labels.keys().any(|key| key.starts_with("_nats.mirror.") || key.starts_with("_nats.src."))
        });
        let used = self.is("direct") || self.is("sourcing") || self.text("ack_policy") == "flow_control";
        named || noted || used || self.text("deliver_subject").starts_with("$JS.")
    }

    /// A digest of everything that changes when somebody takes messages, or changes what it is. A pause is none of that, nor is what
    /// servers note for themselves.
    pub(super) fn progress(&self) -> String {
        let mut config = self.config.clone();
        config.remove("pause_until");
        if let Some(Value::Object(labels)) = config.get_mut("metadata") {
            labels.retain(|key, _| !key.starts_with(SERVERS_OWN));
            if labels.is_empty() {
                config.remove("metadata");
            }
        }
        let (delivered, floor) = (&self.delivered, &self.ack_floor);
        let numbers = [delivered.consumer_seq, delivered.stream_seq, floor.consumer_seq, floor.stream_seq];
        let hash = Sha256::new()
            .chain_update(&self.created)
            .chain_update([0])
            .chain_update(Value::Object(config).to_string())
            .chain_update(numbers.map(u64::to_be_bytes).as_flattened())
            .finalize();
        hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Why it cannot be judged, or it.
    pub(super) fn read(&self) -> Result<(Subscriber, JetStreamConsumer), String> {
        let created_ns = self.created_ns().ok_or("it does not say when it was made")?;
        let read_ms = self.read_ns().unwrap_or(0) / 1_000_000;
        let milliseconds = |text: &Option<String>| text.as_deref().and_then(nanoseconds).map(|ns| ns / 1_000_000);
        let last_active_ms = milliseconds(&self.delivered.last_active).max(milliseconds(&self.ack_floor.last_active));
        let filters = match (self.text("filter_subject"), self.config.get("filter_subjects").and_then(Value::as_array))
        {
            ("", None) => Vec::new(),
            ("", Some(several)) => several.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            (one, _) => vec![one.to_owned()],
        };
        let threshold = self.config.get("inactive_threshold").and_then(Value::as_i64).filter(|ns| *ns > 0);
        let consumer = JetStreamConsumer {
            created_ns,
            floor: self.ack_floor.stream_seq,
            delivered: self.delivered.stream_seq,
            pending: self.num_pending,
            ack_pending: self.num_ack_pending.unsigned_abs(),
            waiting: self.num_waiting.unsigned_abs(),
            push_bound: self.push_bound,
            paused_until_ms: self.paused.then(|| self.pause_until().map_or(i64::MAX, |ns| ns / 1_000_000)),
            inactive_threshold_ms: threshold.map(|ns| ns / 1_000_000),
            deliver: match self.text("deliver_policy") {
                "all" => DeliverPolicy::All,
                "by_start_sequence" => DeliverPolicy::ByStartSequence,
                "by_start_time" => DeliverPolicy::ByStartTime,
                "new" => DeliverPolicy::New,
                "last" => DeliverPolicy::Last,
                "last_per_subject" => DeliverPolicy::LastPerSubject,
                _ => DeliverPolicy::Unknown,
            },
            filters,
            last_active_ms,
            keep: label(self.metadata()),
        };
        let class = if self.belongs_to_a_stream() { SubscriberClass::System } else { SubscriberClass::User };
        let used = u32::try_from(consumer.waiting).unwrap_or(u32::MAX).saturating_add(u32::from(self.push_bound));
        let subscriber = Subscriber {
            name: self.name.clone(),
            class,
            // JetStream has no transactions: what tells versions apart is when it was made and how far it is.
            seen: Seen {
                version: 0,
                created_zxid: created_ns,
                modified_zxid: i64::try_from(consumer.floor).unwrap_or(i64::MAX),
                modified_ms: read_ms,
            },
            progress: Evidence::Present(self.progress()),
            stored_ms: last_active_ms.unwrap_or(0),
            alive_ms: last_active_ms.unwrap_or(0),
            connected: match used {
                0 => Evidence::Unknown("nobody waits at this moment, which proves nothing".to_owned()),
                some => Evidence::Present(some),
            },
            history: None,
            mark: None,
            protected: None,
            expiration_s: None,
        };
        Ok((subscriber, consumer))
    }
}

/// A consumer of which nothing but its name is known.
pub(super) fn unknown(name: &str, why: impl Into<String>) -> (Subscriber, Evidence<JetStreamConsumer>) {
    let why = why.into();
    let subscriber = Subscriber {
        name: name.to_owned(),
        class: SubscriberClass::User,
        seen: Seen { version: 0, created_zxid: 0, modified_zxid: 0, modified_ms: 0 },
        progress: Evidence::Unknown(why.clone()),
        stored_ms: 0,
        alive_ms: 0,
        connected: Evidence::Unknown(why.clone()),
        history: None,
        mark: None,
        protected: None,
        expiration_s: None,
    };
    (subscriber, Evidence::Unknown(why))
}

/// The value of the label, whatever it says: somebody put it there.
fn label(labels: Option<&Map<String, Value>>) -> Option<String> {
    let value = labels?.get(KEEP)?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Nanoseconds since 1970 of a time as Go writes it; none for Go's zero time, or what is no time.
pub(super) fn nanoseconds(text: &str) -> Option<i64> {
    let at: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(at.as_nanosecond()).ok().filter(|ns| *ns > 0)
}

/// A time as the servers read it.
pub(super) fn timestamp(nanoseconds: i64) -> Option<String> {
    jiff::Timestamp::from_nanosecond(i128::from(nanoseconds)).ok().map(|at| at.to_string())
}
