//! The calls that change something, each made once and never repeated: over a connection that is given up when it is lost, so that
//! nothing that was asked for is asked for again at some later time.

use std::sync::Arc;

use async_nats::Subscriber;
use futures::future::FutureExt;
use futures::stream::StreamExt;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};
use trimtab_events::JetStreamStream;

use super::account::{Account, Calls, Listed, Wire, checked};
use super::names::StreamName;
use super::wire::{self, ConsumerInfo};
use crate::error::{Class, Result, TargetError};
use crate::pace::Pace;

/// A stream, and a connection of our own to it.
pub(super) struct Hands<'a> {
    pub(super) account: &'a Account,
    pub(super) pace: &'a Pace,
    stream: &'a str,
    wire: Wire,
    prefix: Arc<str>,
}

/// What clients of a consumer say to its servers, as far as we may listen: requests for messages and acknowledgements. It tells of those
/// who ask for an instant only, which no look at the consumer shows. Nothing heard proves nothing: without leave to listen, and from
/// other accounts, nothing comes.
pub(super) struct Signs {
    pulls: Vec<Subscriber>,
    acks: Vec<Subscriber>,
}

impl Signs {
    /// What was heard since it was last asked.
    pub(super) fn heard(&mut self) -> Option<&'static str> {
        let came = |from: &mut Vec<Subscriber>| {
            from.iter_mut().map(|one| std::iter::from_fn(|| one.next().now_or_never().flatten()).count()).sum::<usize>()
                > 0
        };
        let (pulled, acknowledged) = (came(&mut self.pulls), came(&mut self.acks));
        if pulled { Some("asks it for messages") } else { acknowledged.then_some("acknowledges messages of it") }
    }
}

/// `CONSUMER.PAUSE`
#[derive(Deserialize)]
struct Paused {
    #[serde(default)]
    paused: bool,
}

impl<'a> Hands<'a> {
    pub(super) async fn open(account: &'a Account, pace: &'a Pace, name: &'a StreamName) -> Result<Hands<'a>> {
        let (wire, prefix) = account.dial().await?;
        Ok(Hands { account, pace, stream: checked(&name.stream)?, wire, prefix })
    }

    fn calls(&self) -> Calls<'_> {
        Calls { wire: &self.wire, prefix: &self.prefix }
    }

    fn tail(&self, what: &str, consumer: &str) -> Result<String> {
        Ok(format!("{what}.{}.{}", self.stream, checked(consumer)?))
    }

    /// Begins to listen for clients of a consumer, in each way that they may spell what they say.
    pub(super) async fn listen(&self, consumer: &str) -> Result<Signs> {
        let one = format!("{}.{}", self.stream, checked(consumer)?);
        let listen = async |subjects: [String; 2]| {
            let mut heard = Vec::new();
            for subject in subjects {
                let what = format!("listening to {subject}");
                let subscriber = self.wire.client.subscribe(subject).await;
                heard.push(subscriber.map_err(|e| TargetError::new(Class::Transient, what, e))?);
            }
            Ok::<_, TargetError>(heard)
        };
        // With and without the JetStream domain.
        let pulls = ["$JS.API", "$JS.*.API"].map(|api| format!("{api}.CONSUMER.MSG.NEXT.{one}"));
        // As they were, and with domain and account before the stream.
        let acks = ["$JS.ACK", "$JS.ACK.*.*"].map(|ack| format!("{ack}.{one}.>"));
        Ok(Signs { pulls: listen(pulls).await?, acks: listen(acks).await? })
    }

    /// A consumer, as it is now; none if there is none.
    pub(super) async fn info(&self, consumer: &str) -> Result<Option<ConsumerInfo>> {
        match self.calls().ask::<ConsumerInfo>(&self.tail("CONSUMER.INFO", consumer)?, &Value::Null).await {
            Ok(info) => Ok(Some(info)),
            Err(e) if e.class == Class::Gone => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The stream, as it is now.
    pub(super) async fn stream_info(&self) -> Result<JetStreamStream> {
        let tail = format!("STREAM.INFO.{}", self.stream);
        let answer = self.calls().once(&tail, &Value::Null).await?;
        self.account.described(&tail, &answer).map(|(stream, _)| stream)
    }

    /// All consumers.
    pub(super) async fn consumers(&self) -> Result<Vec<Listed>> {
        self.account.consumers(self.pace, self.stream).await
    }

    /// Pauses a consumer until a moment of its servers' clock, nanoseconds since 1970.
    pub(super) async fn pause(&self, consumer: &str, until_ns: i64) -> Result<()> {
        let tail = self.tail("CONSUMER.PAUSE", consumer)?;
        let lost = || TargetError::new(Class::Bug, format!("pausing {consumer}"), "the end is no moment");
        let until = wire::timestamp(until_ns).ok_or_else(lost)?;
        let answer: Paused = self.calls().ask(&tail, &json!({ "pause_until": until })).await?;
        let late = || {
            TargetError::new(Class::Transient, format!("pausing {consumer}"), "it is not paused: the end has passed")
        };
        if answer.paused { Ok(()) } else { Err(late()) }
    }

    /// Ends a pause, if it is still the one that ends at this moment: another one is somebody's wish.
    pub(super) async fn resume(&self, consumer: &str, until_ns: i64) -> Result<()> {
        let Some(info) = self.info(consumer).await? else { return Ok(()) };
        if info.pause_until() != Some(until_ns) {
            return Ok(());
        }
        self.calls().once(&self.tail("CONSUMER.PAUSE", consumer)?, &json!({})).await.map(drop)
    }

    /// Moves a consumer, so that the next message it is sent is this one or a later one. Its servers do not look who uses it.
    pub(super) async fn reset(&self, consumer: &str, next: u64) -> Result<()> {
        self.calls().once(&self.tail("CONSUMER.RESET", consumer)?, &json!({ "seq": next })).await.map(drop)
    }

    /// Deletes a consumer. Its servers do not look who uses it.
    pub(super) async fn delete(&self, consumer: &str) -> Result<()> {
        self.calls().once(&self.tail("CONSUMER.DELETE", consumer)?, &Value::Null).await.map(drop)
    }

    /// Removes all messages before this one, for everybody.
    pub(super) async fn purge(&self, before: u64) -> Result<()> {
        self.calls().once(&format!("STREAM.PURGE.{}", self.stream), &json!({ "seq": before })).await.map(drop)
    }

    /// Makes a consumer that does not exist.
    pub(super) async fn create(&self, consumer: &str, config: &Map<String, Value>) -> Result<()> {
        let body = json!({ "stream_name": self.stream, "config": config, "action": "create" });
        self.calls().ask::<IgnoredAny>(&self.tail("CONSUMER.CREATE", consumer)?, &body).await.map(drop)
    }
}
