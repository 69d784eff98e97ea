//! One account: requests to its JetStream interface, and the lists that come in pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, Request, RequestErrorKind};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use trimtab_events::{Aged, Evidence, JetStreamConsumer, JetStreamStream, Subscriber};

use super::names::is_token;
use super::wire::{self, Ages, ConsumerInfo, Found, Head, ListPage, NamesPage, StreamInfo};
use crate::error::{Class, Result, TargetError};
use crate::pace::Pace;

/// How long one request may take. The servers themselves wait 4 s for each other when they make a list.
const TIMEOUT: Duration = Duration::from_secs(6);
/// How long reading is tried again: an election of leaders takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(12);
/// How often we look whether a request was refused that is not answered.
const LOOK: Duration = Duration::from_millis(20);
/// How many times a list is taken up again that changes while it is read.
const LIST_TRIES: u32 = 100;
/// Pages that are asked for at once.
const AHEAD: usize = 4;

/// Says why the servers refused a request to this subject since then, if they did: they tell it apart from the request, which is never
/// answered.
pub type Refusal = Arc<dyn Fn(&str, Instant) -> Option<String> + Send + Sync>;

/// A connection.
#[derive(Clone)]
pub struct Wire {
    /// The client.
    pub client: Client,
    /// What was refused on it.
    pub refusal: Refusal,
}

/// Makes a connection for one act. It must not come back for ever when it is lost: what an act asked for must not be asked for at some
/// later time, see `act.rs`.
pub type Dial = Arc<dyn Fn() -> BoxFuture<'static, std::result::Result<Wire, String>> + Send + Sync>;

/// An account and its streams.
#[derive(Clone)]
pub struct Account {
    name: String,
    prefix: Arc<str>,
    wire: Wire,
    dial: Dial,
}

/// A consumer of a list.
pub(super) type Listed = (Subscriber, Evidence<JetStreamConsumer>);

impl Account {
    /// An account that is reached in these ways. Without a name it is called what the servers call it. `domain` is the JetStream domain,
    /// for those that are not in the servers' own.
    ///
    /// # Errors
    /// When the servers do not say what it is called.
    pub async fn open(wire: Wire, dial: Dial, name: Option<String>, domain: Option<&str>) -> Result<Account> {
        let prefix = domain.map_or("$JS.API".to_owned(), |domain| format!("$JS.{domain}.API")).into();
        let account = Account { name: name.clone().unwrap_or_default(), prefix, wire, dial };
        let Some(_) = name else {
            let what = "asking NATS what the account is called";
            let told = account.calls().raw("$SYS.REQ.USER.INFO", &Value::Null).await.map_err(|e| {
                let why = format!("{}; give it a name in the configuration (jetstream.accounts)", e.why);
                TargetError::new(e.class, what, why)
            })?;
            let told: Value = serde_json::from_slice(&told).map_err(|e| TargetError::new(Class::Invalid, what, e))?;
            let name = told["data"]["account"].as_str().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| TargetError::new(Class::Invalid, what, "the answer does not name it"))?;
            return Ok(Account { name: name.to_owned(), ..account });
        };
        Ok(account)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the connection that all share stands.
    pub(super) fn connected(&self) -> bool {
        self.wire.client.connection_state() == async_nats::connection::State::Connected
    }

    /// What tells the cluster apart from others.
    pub(super) fn cluster(&self) -> String {
        let info = self.wire.client.server_info();
        info.cluster.or(info.domain).filter(|name| !name.is_empty()).unwrap_or_else(|| "single server".to_owned())
    }

    /// Requests over the connection that all share.
    pub(super) fn calls(&self) -> Calls<'_> {
        Calls { wire: &self.wire, prefix: &self.prefix }
    }

    /// A connection for one act.
    pub(super) async fn dial(&self) -> Result<(Wire, Arc<str>)> {
        let wire =
            (self.dial)().await.map_err(|e| TargetError::new(Class::Transient, "connecting to NATS for an act", e))?;
        Ok((wire, self.prefix.clone()))
    }

    /// Reads; tries again what fails for a reason that passes.
    async fn read(&self, pace: &Pace, tail: &str, body: &Value) -> Result<Bytes> {
        let begun = Instant::now();
        let mut wait = Duration::from_millis(50);
        loop {
            pace.one().await;
            match self.calls().once(tail, body).await {
                Err(e) if e.class == Class::Transient && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(1));
                }
                other => return other,
            }
        }
    }

    /// Names of all streams, in order.
    pub(super) async fn streams(&self, pace: &Pace) -> Result<Vec<String>> {
        let mut names = std::collections::BTreeSet::new();
        let mut offset = 0;
        loop {
            let answer = self.read(pace, "STREAM.NAMES", &json!({ "offset": offset })).await?;
            let page: NamesPage = parsed("STREAM.NAMES", &answer)?;
            let streams = page.streams.unwrap_or_default();
            let count = streams.len();
            names.extend(streams);
            offset += count;
            if count == 0 || offset >= page.total {
                return Ok(names.into_iter().collect());
            }
        }
    }

    /// A stream with all its consumers; none if there is no such stream. The stream is read before its consumers: whoever has passed its
    /// end then has passed it.
    ///
    /// `age_s` asks where the messages end that are older.
    pub(super) async fn stream(
        &self,
        pace: &Pace,
        stream: &str,
        age_s: Option<i64>,
    ) -> Result<Option<(JetStreamStream, Vec<Listed>)>> {
        let Some((mut info, ages)) = self.stream_info(pace, stream).await? else { return Ok(None) };
        if let (Some(age_s), Some(ages)) = (age_s, ages) {
            info.aged = self.aged(pace, stream, &info, age_s, &ages).await?;
        }
        match self.consumers(pace, stream).await {
            Ok(consumers) => Ok(Some((info, consumers))),
            Err(e) if e.class == Class::Gone => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A stream by itself.
    async fn stream_info(&self, pace: &Pace, stream: &str) -> Result<Option<(JetStreamStream, Option<Ages>)>> {
        let tail = format!("STREAM.INFO.{}", checked(stream)?);
        match self.read(pace, &tail, &Value::Null).await {
            Ok(answer) => self.described(&tail, &answer).map(Some),
            Err(e) if e.class == Class::Gone => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn described(&self, tail: &str, answer: &[u8]) -> Result<(JetStreamStream, Option<Ages>)> {
        let info: StreamInfo = parsed(tail, answer)?;
        let ages = info.ages();
        let client = &self.wire.client;
        let largest = u64::try_from(client.server_info().max_payload).unwrap_or(u64::MAX / 2);
        let stream = info.read(client.is_server_compatible(2, 14, 0), largest);
        let why = "the answer does not say when the stream was made";
        Ok((stream.ok_or_else(|| TargetError::new(Class::Invalid, asking(tail), why))?, ages))
    }

    /// Where the messages end that are older than this, by the servers' clock; none where that cannot be told.
    async fn aged(
        &self,
        pace: &Pace,
        stream: &str,
        info: &JetStreamStream,
        age_s: i64,
        ages: &Ages,
    ) -> Result<Option<Aged>> {
        let at = |first_younger: u64| Some(Aged { age_s, first_younger });
        let Some(since_ns) = age_s.checked_mul(1_000_000_000).and_then(|age| ages.read_ns.checked_sub(age)) else {
            return Ok(at(info.first));
        };
        if ages.first_ns >= since_ns {
            return Ok(at(info.first));
        }
        if ages.last_ns < since_ns {
            return Ok(at(info.last + 1));
        }
        let tail = format!("STREAM.MSG.GET.{}", checked(stream)?);
        let Some(since) = wire::timestamp(since_ns) else { return Ok(None) };
        match self.read(pace, &tail, &json!({ "start_time": since })).await {
            Ok(answer) => Ok(at(parsed::<Found>(&tail, &answer)?.message.seq)),
            // Messages that go while one of them is looked for.
            Err(e) if e.class == Class::Gone => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// All consumers of a stream, by name. Pages are cut by number, and consumers come and go meanwhile: each page must begin with the last
    /// name of the one before, or it is read again from further in front. By name, nobody is then missed or counted twice.
    pub(super) async fn consumers(&self, pace: &Pace, stream: &str) -> Result<Vec<Listed>> {
        let tail = format!("CONSUMER.LIST.{}", checked(stream)?);
        let read = async |offset: usize| {
            let answer = self.read(pace, &tail, &json!({ "offset": offset })).await?;
            let page: ListPage<'_> = parsed(&tail, &answer)?;
            Ok::<_, TargetError>((offset, page.total, page.limit.max(2), listed(&tail, page)?))
        };
        let mut all: BTreeMap<String, Listed> = BTreeMap::new();
        let mut last: Option<String> = None;
        let (mut next, mut tries) = (0_usize, 0);
        let (mut end, mut stride) = (1, 1);
        while next < end {
            // While one page is taken apart the servers make the next one.
            let mut pages = stream::iter((next..end).step_by(stride)).map(&read).buffered(AHEAD);
            while let Some(page) = pages.next().await {
                let (offset, total, limit, listed) = page?;
                let first = listed.first().map(|(subscriber, _)| subscriber.name.as_str());
                if offset > 0 && total > 0 && first.is_none_or(|first| last.as_deref().is_some_and(|last| first > last))
                {
                    tries += 1;
                    if tries > LIST_TRIES {
                        return Err(TargetError::new(Class::Transient, asking(&tail), "the list kept changing"));
                    }
                    next = offset.saturating_sub(limit / 4 + 1);
                    break;
                }
                last = listed.last().map(|(subscriber, _)| subscriber.name.clone()).max(last);
                all.extend(listed.into_iter().map(|listed| (listed.0.name.clone(), listed)));
                // The last entry of a page is the first one of the next.
                (stride, end) = (limit - 1, total.saturating_sub(1));
                next = if offset + limit >= total { end } else { offset + stride };
                if offset == 0 {
                    break;
                }
            }
        }
        Ok(all.into_values().collect())
    }
}

/// What two answers come to, of `STREAM.INFO` and of `CONSUMER.LIST` with all consumers on one page.
///
/// # Errors
/// When one of them is something else.
pub(super) fn answers(stream: &[u8], consumers: &[u8]) -> Result<(JetStreamStream, Vec<Listed>)> {
    let info: StreamInfo = parsed("STREAM.INFO", stream)?;
    let why = "the answer does not say when the stream was made";
    let stream =
        info.read(true, 1 << 20).ok_or_else(|| TargetError::new(Class::Invalid, asking("STREAM.INFO"), why))?;
    Ok((stream, listed("CONSUMER.LIST", parsed("CONSUMER.LIST", consumers)?)?))
}

/// Those of a page that are there, and those of which only the name is, by name.
fn listed(tail: &str, page: ListPage<'_>) -> Result<Vec<Listed>> {
    let mut listed: Vec<Listed> = Vec::new();
    for one in page.consumers.unwrap_or_default() {
        let read = serde_json::from_str::<ConsumerInfo>(one.get()).map_err(|e| e.to_string());
        let (name, read) = match read {
            Ok(info) if info.name.is_empty() => continue,
            Ok(info) => (info.name.clone(), info.read()),
            Err(why) => (name_of(tail, one.get())?, Err(why)),
        };
        listed.push(match read {
            Ok((subscriber, consumer)) => (subscriber, Evidence::Present(consumer)),
            Err(why) => wire::unknown(&name, why),
        });
    }
    let missing = page.missing.unwrap_or_default();
    listed.extend(missing.iter().map(|name| wire::unknown(name, "none of its servers answers")));
    listed.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
    Ok(listed)
}

/// The name of a consumer of which nothing else could be read.
fn name_of(tail: &str, text: &str) -> Result<String> {
    let value: Value = serde_json::from_str(text).map_err(|e| TargetError::new(Class::Invalid, asking(tail), e))?;
    let name = value["name"].as_str().filter(|name| !name.is_empty());
    let lost = || TargetError::new(Class::Invalid, asking(tail), "one of the consumers has no name");
    name.map(str::to_owned).ok_or_else(lost)
}

/// Requests over one connection, each made once.
#[derive(Clone, Copy)]
pub(super) struct Calls<'a> {
    pub(super) wire: &'a Wire,
    pub(super) prefix: &'a str,
}

impl Calls<'_> {
    /// One request to the JetStream interface; its answer, unless that is an error.
    pub(super) async fn once(&self, tail: &str, body: &Value) -> Result<Bytes> {
        let answer = self.raw(&format!("{}.{tail}", self.prefix), body).await?;
        // Lists are long: they are not gone through for an error that is not there.
        if memchr::memmem::find(&answer, b"\"error\"").is_none() {
            return Ok(answer);
        }
        let head: Head = parsed(tail, &answer)?;
        match head.error {
            None => Ok(answer),
            Some(e) => {
                let class = match e.code {
                    404 => Class::Gone,
                    503 => Class::Transient,
                    _ => Class::Refused,
                };
                let why = format!("{} (code {}, error {})", e.description, e.code, e.err_code);
                Err(TargetError::new(class, asking(tail), why))
            }
        }
    }

    /// The same, read.
    pub(super) async fn ask<T: DeserializeOwned>(&self, tail: &str, body: &Value) -> Result<T> {
        parsed(tail, &self.once(tail, body).await?)
    }

    async fn raw(&self, subject: &str, body: &Value) -> Result<Bytes> {
        let begun = Instant::now();
        let payload = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::new().payload(payload).timeout(Some(TIMEOUT));
        let answer = self.wire.client.send_request(subject.to_owned(), request);
        tokio::pin!(answer);
        let error = loop {
            tokio::select! {
                answer = &mut answer => match answer {
                    Ok(message) => return Ok(message.payload),
                    Err(e) => break e,
                },
                () = tokio::time::sleep(LOOK) => {
                    if let Some(why) = (self.wire.refusal)(subject, begun) {
                        return Err(TargetError::new(Class::Refused, asking(subject), why));
                    }
                }
            }
        };
        let why = match error.kind() {
            RequestErrorKind::TimedOut => format!("no answer within {} s", TIMEOUT.as_secs()),
            RequestErrorKind::NoResponders => {
                "nobody answers: is JetStream enabled on the servers, for this account?".to_owned()
            }
            _ => error.to_string(),
        };
        Err(TargetError::new(Class::Transient, asking(subject), why))
    }
}

fn asking(tail: &str) -> String {
    format!("asking NATS for {tail}")
}

fn parsed<'a, T: serde::Deserialize<'a>>(tail: &str, answer: &'a [u8]) -> Result<T> {
    serde_json::from_slice(answer)
        .map_err(|e| TargetError::new(Class::Invalid, asking(tail), format!("the answer cannot be read: {e}")))
}

/// A name that cannot lead anywhere else than to itself.
pub(super) fn checked(name: &str) -> Result<&str> {
    let why = "it is no name of a stream or consumer";
    if is_token(name) { Ok(name) } else { Err(TargetError::new(Class::Invalid, format!("naming {name:?}"), why)) }
}
