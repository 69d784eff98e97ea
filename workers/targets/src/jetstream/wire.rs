//! Answers of the JetStream interface, as far as they are needed. What a newer server adds is passed over; what it says differently is not
//! known, and one consumer that cannot be read leaves the others of its page readable.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};
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
    metadata: Option<BTreeMap<String, Box<RawValue>>>,
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
            keep: label(config.metadata.unwrap_or_default().get(KEEP).map(AsRef::as_ref)),
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
    /// As it came: there may be thousands of these, of which a part is looked at once.
    config: Box<RawValue>,
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

/// A consumer's configuration: its fields, and each one's text.
struct Config<'a>(Vec<(&'a str, &'a RawValue)>);

impl<'de> Deserialize<'de> for Config<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Config<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a consumer's configuration")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Config<'de>, A::Error> {
                let mut fields = Vec::with_capacity(24);
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                // One that is there twice has no meaning; the order has none either.
                fields.sort_unstable_by_key(|(key, _): &(&str, _)| *key);
                match fields.windows(2).find(|two| two[0].0 == two[1].0) {
                    Some(two) => Err(serde::de::Error::custom(format!("{:?} is there twice", two[0].0))),
                    None => Ok(Config(fields)),
                }
            }
        }
        from.deserialize_map(Fields)
    }
}

impl<'a> Config<'a> {
    fn raw(&self, key: &str) -> Option<&'a str> {
        let place = self.0.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.0[place].1.get()).filter(|text| *text != "null")
    }

    /// One of its fields, if it is there.
    fn get<T: Deserialize<'a>>(&self, key: &str) -> Result<Option<T>, String> {
        let read = |text| serde_json::from_str(text).map_err(|e| format!("its {key} cannot be read: {e}"));
        self.raw(key).map(read).transpose()
    }

    fn text(&self, key: &str) -> Result<Cow<'a, str>, String> {
        let plain = self.raw(key).unwrap_or("\"\"").strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match plain.filter(|text| !text.contains(['\\', '"'])) {
            Some(text) => Ok(Cow::Borrowed(text)),
            None => Ok(Cow::Owned(self.get(key)?.unwrap_or_default())),
        }
    }

    fn is(&self, key: &str) -> Result<bool, String> {
        Ok(self.get(key)?.unwrap_or(false))
    }

    fn labels(&self) -> Result<BTreeMap<String, &'a RawValue>, String> {
        Ok(self.get("metadata")?.unwrap_or_default())
    }

    /// Belongs to a mirror or a source, in this account or another one, rather than to a user.
    fn is_of_a_stream(&self, name: &str, labels: &BTreeMap<String, &RawValue>) -> Result<bool, String> {
        let named = ["JS_MIRROR_", "JS_SRC_"].iter().any(|prefix| name.starts_with(prefix));
        let noted = labels.keys().any(|key| key.starts_with("_nats.mirror.") || key.starts_with("_nats.src."));
        let used = self.is("direct")? || self.is("sourcing")? || self.text("ack_policy")? == "flow_control";
        Ok(named || noted || used || self.text("deliver_subject")?.starts_with("$JS."))
    }
}

impl ConsumerInfo {
    fn config(&self) -> Result<Config<'_>, String> {
        serde_json::from_str(self.config.get()).map_err(|e| format!("its configuration cannot be read: {e}"))
    }

    /// When it was made, as its servers write it.
    pub(super) fn created(&self) -> &str {
        &self.created
    }

    /// What the servers' clock says.
    pub(super) fn read_ns(&self) -> Option<i64> {
        self.ts.as_deref().and_then(nanoseconds)
    }

    /// The end of a pause, as its configuration has it.
    pub(super) fn pause_until(&self) -> Option<i64> {
        nanoseconds(&self.config().ok()?.text("pause_until").ok()?)
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

    /// A digest of everything that changes when somebody takes or acknowledges messages, in order or not, or changes what it is. A pause is
    /// none of that, nor is what servers note for themselves. None when its configuration cannot be read.
    pub(super) fn progress(&self) -> Option<String> {
        let config = self.config().ok()?;
        Some(self.digest(&config, &config.labels().ok()?))
    }

    fn digest(&self, config: &Config<'_>, labels: &BTreeMap<String, &RawValue>) -> String {
        let mut hash = Sha256::new();
        let mut add = |parts: [&str; 2]| {
            for part in parts {
                hash.update(part.len().to_be_bytes());
                hash.update(part);
            }
        };
        add([&self.created, ""]);
        for (key, value) in config.0.iter().filter(|(key, _)| !["pause_until", "metadata"].contains(key)) {
            add([key, value.get()]);
        }
        add(["metadata", ""]);
        for (key, value) in labels.iter().filter(|(key, _)| !key.starts_with(SERVERS_OWN)) {
            add([key, value.get()]);
        }
        let (delivered, floor) = (&self.delivered, &self.ack_floor);
        for number in [delivered.consumer_seq, delivered.stream_seq, floor.consumer_seq, floor.stream_seq] {
            hash.update(number.to_be_bytes());
        }
        hash.update(self.num_ack_pending.to_be_bytes());
        let hash = hash.finalize();
        let first = hash.first_chunk().map_or(0, |first| u64::from_be_bytes(*first));
        format!("{first:016x}")
    }

    /// Why it cannot be judged, or it.
    pub(super) fn read(&self) -> Result<(Subscriber, JetStreamConsumer), String> {
        let config = self.config()?;
        let labels = config.labels()?;
        let created_ns = nanoseconds(&self.created).ok_or("it does not say when it was made")?;
        let read_ms = self.read_ns().unwrap_or(0) / 1_000_000;
        let milliseconds = |text: &Option<String>| text.as_deref().and_then(nanoseconds).map(|ns| ns / 1_000_000);
        let last_active_ms = milliseconds(&self.delivered.last_active).max(milliseconds(&self.ack_floor.last_active));
        let mut filters: Vec<String> = config.get("filter_subjects")?.unwrap_or_default();
        filters.extend(Some(config.text("filter_subject")?).filter(|one| !one.is_empty()).map(Cow::into_owned));
        let threshold = config.get("inactive_threshold")?.filter(|ns: &i64| *ns > 0);
        let paused_until_ms = || nanoseconds(&config.text("pause_until").ok()?).map(|ns| ns / 1_000_000);
        let consumer = JetStreamConsumer {
            created_ns,
            floor: self.ack_floor.stream_seq,
            delivered: self.delivered.stream_seq,
            pending: self.num_pending,
            ack_pending: self.num_ack_pending.unsigned_abs(),
            waiting: self.num_waiting.unsigned_abs(),
            push_bound: self.push_bound,
            paused_until_ms: self.paused.then(|| paused_until_ms().unwrap_or(i64::MAX)),
            inactive_threshold_ms: threshold.map(|ns| ns / 1_000_000),
            deliver: match config.text("deliver_policy")?.as_ref() {
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
            keep: label(labels.get(KEEP).copied()),
        };
        let of_a_stream = config.is_of_a_stream(&self.name, &labels)?;
        let used = u32::try_from(consumer.waiting).unwrap_or(u32::MAX).saturating_add(u32::from(self.push_bound));
        let subscriber = Subscriber {
            name: self.name.clone(),
            class: if of_a_stream { SubscriberClass::System } else { SubscriberClass::User },
            // JetStream has no transactions: what tells versions apart is when it was made and how far it is.
            seen: Seen {
                version: 0,
                created_zxid: created_ns,
                modified_zxid: i64::try_from(consumer.floor).unwrap_or(i64::MAX),
                modified_ms: read_ms,
            },
            progress: Evidence::Present(self.digest(&config, &labels)),
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
            stood: None,
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
        stood: None,
    };
    (subscriber, Evidence::Unknown(why))
}

/// What the label says, whatever it is: somebody put it there.
fn label(value: Option<&RawValue>) -> Option<String> {
    let text = value?.get();
    Some(serde_json::from_str(text).unwrap_or_else(|_| text.to_owned()))
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
