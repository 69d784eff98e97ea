//! The streams and consumers: what they must be, making them, and saying in what they differ.
//!
//! Nothing that exists is altered: somebody else may own it, and a changed limit may drop what is inside.

use std::fmt::Debug;
use std::time::Duration;

use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, IntoConsumerConfig as _, pull};
use async_nats::jetstream::stream::{Compression, Config, DiscardPolicy, Info, RetentionPolicy, StorageType};
use trimtab_events::MAX_EVENT_BYTES;

use super::connect::{ApiError, Empty, Link, NatsOptions};
use crate::{BusError, BusOptions, Result, Role, kv};

/// Deliveries beyond `max_deliver` before the server stops by itself. Up to then whoever gets the event next gives it up
/// in order; beyond it only the janitor sees it.
pub(super) const SPARE_DELIVERIES: u64 = 3;
/// Dead letters, and copies of what nobody settled.
pub(super) const DEAD: &str = "TT_DLQ";
/// The server's own notes about events it gave up.
pub(super) const ADVISORIES: &str = "TT_ADV";
/// The janitor's consumer of [`ADVISORIES`].
pub(super) const JANITOR: &str = "janitor";

/// An event and its headers.
const MAX_MESSAGE_BYTES: i32 = (MAX_EVENT_BYTES + 64 * 1024) as i32;
const MIB: i64 = 1024 * 1024;
/// The code of "stream not found" and of "consumer not found".
const STREAM_ABSENT: u64 = 10_059;
const CONSUMER_ABSENT: u64 = 10_014;

/// The stream a role's events wait in.
pub(super) fn stream_of(role: Role) -> &'static str {
    match role {
        Role::Scanner => "TT_REQ",
        Role::Decider => "TT_CAND",
        Role::Executor => "TT_DEC",
        Role::Audit => "TT_RES",
        Role::Recovery => "TT_JOB",
        Role::Finisher => "TT_REP",
    }
}

/// How long segments and what is said of them are kept: whoever wanted them is long gone then.
const LANED_AGE: Duration = Duration::from_secs(3600);
/// A lane's consumer goes when nobody has asked for so long: log dirs come and go.
const LANE_IDLE: Duration = Duration::from_secs(3600);

/// The name of a lane's consumer.
pub(super) fn lane_consumer(role: Role, lane: &str) -> String {
    format!("{}-{lane}", role.name())
}

/// Every stream, as it must be.
pub(super) fn streams(options: &NatsOptions) -> Vec<Config> {
    let bus = &options.bus;
    let queue = |role: Role, subjects: &str, bytes: i64| Config {
        name: stream_of(role).to_owned(),
        subjects: vec![subjects.to_owned()],
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::New,
        max_messages: i64::try_from(bus.queue_events.max(1)).unwrap_or(i64::MAX),
        max_bytes: bytes,
        max_messages_per_subject: -1,
        max_age: options.waiting_age,
        // The server refuses a window longer than the age.
        duplicate_window: bus.duplicate_window.min(options.waiting_age),
        max_message_size: MAX_MESSAGE_BYTES,
        storage: StorageType::File,
        num_replicas: options.replicas,
        // Pages come packed, and the rest is gone before a server's block of it would be rewritten.
        compression: None,
        ..Config::default()
    };
    let laned = |role: Role, subjects: &str, bytes: i64| Config {
        max_age: options.waiting_age.min(LANED_AGE),
        duplicate_window: bus.duplicate_window.min(options.waiting_age).min(LANED_AGE),
        ..queue(role, subjects, bytes)
    };
    let queue_bytes = i64::try_from(bus.queue_bytes.max(MAX_MESSAGE_BYTES as u64 * 2)).unwrap_or(i64::MAX);
    let kept = |name: &str, subjects: Vec<String>, bytes: i64, age: Duration| Config {
        name: name.to_owned(),
        subjects,
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::Old,
        max_messages: -1,
        max_bytes: bytes,
        max_messages_per_subject: -1,
        max_age: age,
        duplicate_window: bus.duplicate_window.min(age),
        storage: StorageType::File,
        num_replicas: options.replicas,
        compression: Some(Compression::S2),
        ..Config::default()
    };
    let advisories = Role::ALL
        .map(|role| format!("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{}.{}", stream_of(role), role.name()))
        .to_vec();
    vec![
        queue(Role::Scanner, "trimtab.req.*", queue_bytes.min(64 * MIB)),
        queue(Role::Decider, "trimtab.cand.*.*.*", queue_bytes),
        Config {
            // At most one outstanding act per resource, without a time window; see also `publish::keyed_headers`.
            max_messages_per_subject: 1,
            discard_new_per_subject: true,
            ..queue(Role::Executor, "trimtab.dec.*.*.*.*", queue_bytes)
        },
        Config {
            max_message_size: MAX_MESSAGE_BYTES,
            ..kept(stream_of(Role::Audit), vec!["trimtab.res.*.*".to_owned()], 1024 * MIB, options.results_age)
        },
        kept(DEAD, vec!["trimtab.dlq.*.*".to_owned()], 256 * MIB, options.dead_age),
        kept(ADVISORIES, advisories, 16 * MIB, options.dead_age),
        Config {
            // A segment that is wanted already is not wanted twice.
            max_messages_per_subject: 1,
            discard_new_per_subject: true,
            ..laned(Role::Recovery, "trimtab.job.*.*.*", queue_bytes.min(64 * MIB))
        },
        laned(Role::Finisher, "trimtab.rep.*.*", queue_bytes.min(64 * MIB)),
    ]
}

/// Every consumer with the stream it reads, as it must be.
pub(super) fn consumers(options: &NatsOptions) -> Vec<(&'static str, pull::Config)> {
    let bus = &options.bus;
    let mut all: Vec<_> =
        Role::ALL.iter().map(|role| (stream_of(*role), durable_of_role(*role, role.name().to_owned(), bus))).collect();
    all.push((ADVISORIES, durable(JANITOR.to_owned(), Duration::from_secs(60), -1, 100)));
    all
}

/// A stream or a consumer, as `nats stream add --config` and `nats consumer add --config` read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The stream.
    pub stream: String,
    /// The consumer, if it is one.
    pub consumer: Option<String>,
    /// What it must be, in the server's own words.
    pub config: serde_json::Value,
}

/// Everything that must be there, streams first.
pub(super) fn definitions(options: &NatsOptions, buckets: &[&str]) -> Result<Vec<Definition>> {
    check(options)?;
    let json = |what: &str, config: serde_json::Result<serde_json::Value>| {
        config.map_err(|e| BusError::Refused { what: format!("describe {what}"), why: e.to_string() })
    };
    let buckets = buckets.iter().chain([&kv::LEASES]).map(|bucket| kv::config(bucket, options.replicas));
    let mut all = Vec::new();
    for stream in streams(options).into_iter().chain(buckets) {
        let config = json(&stream.name, serde_json::to_value(&stream))?;
        all.push(Definition { stream: stream.name, consumer: None, config });
    }
    for (stream, consumer) in consumers(options) {
        let config = json(stream, serde_json::to_value(consumer.clone().into_consumer_config()))?;
        all.push(Definition { stream: stream.to_owned(), consumer: consumer.durable_name, config });
    }
    Ok(all)
}

fn durable(name: String, ack_wait: Duration, max_deliver: i64, max_ack_pending: i64) -> pull::Config {
    pull::Config {
        durable_name: Some(name),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait,
        max_deliver,
        max_ack_pending,
        ..pull::Config::default()
    }
}

fn durable_of_role(role: Role, name: String, bus: &BusOptions) -> pull::Config {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let tries = signed(bus.max_deliver.max(1).saturating_add(SPARE_DELIVERIES));
    durable(name, bus.ack_wait, tries, signed(bus.outstanding(role)))
}

/// Makes sure that a lane's consumer is there. Whoever takes from a lane makes it: nobody can know all log dirs beforehand.
pub(super) async fn ensure_lane(link: &Link, bus: &BusOptions, role: Role, lane: &str) -> Result<()> {
    let subject = match role {
        Role::Finisher => format!("trimtab.rep.{lane}.*"),
        _ => format!("trimtab.job.{lane}.*.*"),
    };
    let wanted = pull::Config {
        filter_subject: subject,
        inactive_threshold: LANE_IDLE,
        ..durable_of_role(role, lane_consumer(role, lane), bus)
    };
    ensure_consumer(link, stream_of(role), &wanted, true, false).await
}

/// Differences found, those that change what is promised and those that only change when it gets full or old.
#[derive(Default)]
struct Differences {
    grave: Vec<String>,
    slight: Vec<String>,
}

impl Differences {
    fn add<T: PartialEq + Debug>(list: &mut Vec<String>, field: &str, is: T, wanted: T) {
        if is != wanted {
            list.push(format!("{field} is {is:?}, wanted {wanted:?}"));
        }
    }

    fn of_stream(is: &Config, wanted: &Config) -> Differences {
        let mut found = Differences::default();
        let grave = &mut found.grave;
        Self::add(grave, "subjects", sorted(&is.subjects), sorted(&wanted.subjects));
        Self::add(grave, "retention", is.retention, wanted.retention);
        Self::add(grave, "discard", is.discard, wanted.discard);
        Self::add(
            grave,
            "max_msgs_per_subject",
            limit(is.max_messages_per_subject),
            limit(wanted.max_messages_per_subject),
        );
        Self::add(grave, "discard_new_per_subject", is.discard_new_per_subject, wanted.discard_new_per_subject);
        Self::add(grave, "storage", is.storage, wanted.storage);
        Self::add(grave, "no_ack", is.no_ack, wanted.no_ack);
        Self::add(grave, "sealed", is.sealed, wanted.sealed);
        Self::add(grave, "allow_rollup_hdrs", is.allow_rollup, wanted.allow_rollup);
        Self::add(grave, "allow_msg_ttl", is.allow_message_ttl, wanted.allow_message_ttl);
        Self::add(grave, "subject_delete_marker_ttl", is.subject_delete_marker_ttl.unwrap_or_default(), Duration::ZERO);
        Self::add(grave, "mirror", is.mirror.is_some(), false);
        Self::add(grave, "sources", is.sources.as_ref().is_some_and(|sources| !sources.is_empty()), false);
        Self::add(grave, "subject_transform", is.subject_transform.is_some(), false);
        if wanted.max_message_size > 0 && is.max_message_size > 0 && is.max_message_size < wanted.max_message_size {
            Self::add(grave, "max_msg_size", is.max_message_size, wanted.max_message_size);
        }
        let slight = &mut found.slight;
        Self::add(slight, "max_msgs", limit(is.max_messages), limit(wanted.max_messages));
        Self::add(slight, "max_bytes", limit(is.max_bytes), limit(wanted.max_bytes));
        Self::add(slight, "max_age", is.max_age, wanted.max_age);
        Self::add(slight, "duplicate_window", is.duplicate_window, wanted.duplicate_window);
        Self::add(slight, "num_replicas", is.num_replicas, wanted.num_replicas);
        found
    }

    fn of_consumer(is: &consumer::Config, wanted: &pull::Config) -> Differences {
        let mut found = Differences::default();
        let grave = &mut found.grave;
        Self::add(grave, "deliver_subject", is.deliver_subject.as_deref(), None);
        Self::add(grave, "deliver_policy", is.deliver_policy, wanted.deliver_policy);
        Self::add(grave, "ack_policy", is.ack_policy, wanted.ack_policy);
        Self::add(grave, "ack_wait", is.ack_wait, wanted.ack_wait);
        Self::add(grave, "backoff", &is.backoff, &wanted.backoff);
        Self::add(grave, "filter_subject", &is.filter_subject, &wanted.filter_subject);
        Self::add(grave, "filter_subjects", &is.filter_subjects, &wanted.filter_subjects);
        Self::add(grave, "headers_only", is.headers_only, wanted.headers_only);
        Self::add(grave, "inactive_threshold", is.inactive_threshold, wanted.inactive_threshold);
        if wanted.max_deliver > 0 && is.max_deliver > 0 && is.max_deliver < wanted.max_deliver {
            // With fewer the server leaves the event lying before a worker can give it up.
            Self::add(grave, "max_deliver", is.max_deliver, wanted.max_deliver);
        } else {
            Self::add(&mut found.slight, "max_deliver", limit(is.max_deliver), limit(wanted.max_deliver));
        }
        Self::add(&mut found.slight, "max_ack_pending", limit(is.max_ack_pending), limit(wanted.max_ack_pending));
        found
    }

    /// Refuses grave ones, and slight ones too when `strict`; logs what it lets pass.
    fn judge(self, what: &str, strict: bool, remedy: &str) -> Result<()> {
        let Differences { mut grave, slight } = self;
        if strict {
            grave.extend(slight);
        } else if !slight.is_empty() {
            tracing::warn!(differences = slight.join("; "), "{what} is not as configured here");
        }
        if grave.is_empty() {
            return Ok(());
        }
        Err(BusError::Refused { what: format!("use {what}"), why: format!("{}; {remedy}", grave.join("; ")) })
    }
}

/// The servers say "no limit" as 0 or as -1.
fn limit(number: i64) -> i64 {
    if number <= 0 { -1 } else { number }
}

fn sorted(subjects: &[String]) -> Vec<String> {
    let mut subjects = subjects.to_vec();
    subjects.sort();
    subjects
}

fn refused(what: String, error: &ApiError) -> BusError {
    BusError::Refused { what, why: error.to_string() }
}

async fn look(link: &Link, name: &str) -> Result<std::result::Result<Info, ApiError>> {
    link.api::<Info>(&format!("look at stream {name}"), &format!("STREAM.INFO.{name}"), &Empty {}).await
}

/// Makes sure that a stream is there and as wanted.
pub(crate) async fn ensure_stream(link: &Link, wanted: &Config, create: bool, strict: bool) -> Result<()> {
    let name = &wanted.name;
    let info = match look(link, name).await? {
        Ok(info) => info,
        Err(error) if error.error_code().0 == STREAM_ABSENT && create => {
            let what = format!("create stream {name}");
            match link.api::<Info>(&what, &format!("STREAM.CREATE.{name}"), wanted).await? {
                Ok(info) => info,
                // Another worker may have made it at this moment: look once more, and say what failed if it did not.
                Err(error) => look(link, name).await?.map_err(|_| refused(what, &error))?,
            }
        }
        Err(error) if error.error_code().0 == STREAM_ABSENT => {
            let why = "it does not exist; run once with the right to create it (create = true), or make it yourself";
            return Err(BusError::Refused { what: format!("use stream {name}"), why: why.to_owned() });
        }
        Err(error) => return Err(refused(format!("look at stream {name}"), &error)),
    };
    let remedy = format!("nothing was changed: change the options here, or the stream with `nats stream edit {name}`");
    Differences::of_stream(&info.config, wanted).judge(&format!("stream {name}"), strict, &remedy)
}

async fn ensure_consumer(link: &Link, stream: &str, wanted: &pull::Config, create: bool, strict: bool) -> Result<()> {
    let name = wanted.durable_name.as_deref().unwrap_or_default();
    let whose = format!("consumer {name} of stream {stream}");
    let look = format!("look at {whose}");
    let answer = link.api::<consumer::Info>(&look, &format!("CONSUMER.INFO.{stream}.{name}"), &Empty {}).await?;
    let info = match answer {
        Ok(info) => info,
        Err(error) if error.error_code().0 == CONSUMER_ABSENT && create => {
            let made = link.context.create_consumer_strict_on_stream(wanted.clone(), stream).await;
            match made {
                Ok(consumer) => consumer.cached_info().clone(),
                // Another worker may have made it meanwhile: look once more, and say what failed if it did not.
                Err(e) => match link.api(&look, &format!("CONSUMER.INFO.{stream}.{name}"), &Empty {}).await? {
                    Ok(info) => info,
                    Err(_) => return Err(BusError::Refused { what: format!("create {whose}"), why: e.to_string() }),
                },
            }
        }
        Err(error) => {
            let why = format!("{error}; run once with the right to create it (create = true), or make it yourself");
            return Err(BusError::Refused { what: format!("use {whose}"), why });
        }
    };
    let remedy = format!("nothing was changed: change the options here, or `nats consumer edit {stream} {name}`");
    Differences::of_consumer(&info.config, wanted).judge(&whose, strict, &remedy)
}

/// Creates what is missing; any difference of what is there is an error.
pub(super) async fn setup(link: &Link, options: &NatsOptions) -> Result<()> {
    check(options)?;
    each(link, options, true, true).await
}

/// Looks only; differences that break a promise are an error, others are logged.
pub(super) async fn verify(link: &Link, options: &NatsOptions) -> Result<()> {
    check(options)?;
    each(link, options, false, false).await
}

async fn each(link: &Link, options: &NatsOptions, create: bool, strict: bool) -> Result<()> {
    for stream in streams(options) {
        ensure_stream(link, &stream, create, strict).await?;
    }
    for (stream, consumer) in consumers(options) {
        ensure_consumer(link, stream, &consumer, create, strict).await?;
    }
    Ok(())
}

/// Looks at one role's consumer only, with the rights that a worker of this role has anyway.
pub(super) async fn verify_role(link: &Link, options: &NatsOptions, role: Role) -> Result<()> {
    check(options)?;
    for (stream, consumer) in consumers(options) {
        if stream == stream_of(role) {
            ensure_consumer(link, stream, &consumer, false, false).await?;
        }
    }
    Ok(())
}

/// Options that the servers would refuse or take for "no limit".
fn check(options: &NatsOptions) -> Result<()> {
    let refuse = |why: &str| Err(BusError::Refused { what: "set up the streams".to_owned(), why: why.to_owned() });
    if ![1, 3, 5].contains(&options.replicas) {
        return refuse("replicas must be 1, 3 or 5");
    }
    let short = Duration::from_millis(100);
    if options.bus.ack_wait < short || options.bus.duplicate_window < short {
        return refuse("ack_wait and duplicate_window must be at least 100 ms");
    }
    if [options.waiting_age, options.results_age, options.dead_age].iter().any(|age| *age < short) {
        return refuse("waiting_age, results_age and dead_age must be at least 100 ms: nothing is kept for ever");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_has_limits() {
        for stream in streams(&NatsOptions::default()) {
            assert!(stream.max_bytes > 0 && stream.max_age > Duration::ZERO, "{}", stream.name);
            assert!(stream.duplicate_window <= stream.max_age, "{}", stream.name);
            assert!(!stream.allow_direct, "{}: reads would be answered to any subject", stream.name);
            assert!(stream.retention != RetentionPolicy::WorkQueue || stream.max_messages > 0, "{}", stream.name);
        }
    }

    #[test]
    fn differences_are_named() {
        let wanted = streams(&NatsOptions::default()).remove(2);
        let same = Differences::of_stream(&wanted, &wanted);
        assert!(same.judge("stream", true, "").is_ok());
        let is = Config { discard: DiscardPolicy::Old, max_messages: 7, ..wanted.clone() };
        let text =
            Differences::of_stream(&is, &wanted).judge("stream x", true, "do y").expect_err("differs").to_string();
        assert!(
            text.contains("discard is Old, wanted New") && text.contains("max_msgs is 7") && text.ends_with("do y")
        );
        let is = Config { max_messages: 7, ..wanted.clone() };
        assert!(
            Differences::of_stream(&is, &wanted).judge("stream x", false, "").is_ok(),
            "a limit is the owner's choice"
        );
    }
}
