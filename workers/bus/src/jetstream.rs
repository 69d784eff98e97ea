//! The bus over NATS JetStream: one stream per kind of event, one durable consumer per role.
//!
//! | stream | subjects | consumer |
//! | --- | --- | --- |
//! | `TT_REQ` | `trimtab.req.<target>` | `scanner` |
//! | `TT_CAND` | `trimtab.cand.<target>.<kind>.<shard>` | `decider` |
//! | `TT_DEC` | `trimtab.dec.<target>.<action>.<shard>.<key>` | `executor` |
//! | `TT_RES` | `trimtab.res.<target>.<outcome>` | `audit` |
//! | `TT_JOB` | `trimtab.job.<lane>.<shard>.<key>` | `recovery-<lane>`, made by who takes |
//! | `TT_REP` | `trimtab.rep.<lane>.<state>` | `finisher-<lane>`, made by who takes |
//! | `TT_DLQ` | `trimtab.dlq.<role>.<target>` | none |
//! | `TT_ADV` | the server's advisories about those consumers | `janitor` |
//!
//! [`connect`](self) reaches the servers, `streams` knows what must be there, `publish` stores, `answers` says whether it did,
//! `pull` gets, `packed` makes pages small, `letters` keeps what is given up.

mod answers;
mod connect;
mod letters;
mod packed;
mod publish;
mod pull;
mod streams;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_nats::header::HeaderName;
use async_nats::jetstream::{AckKind, consumer, stream};
use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use trimtab_events::Event;

use crate::names::{self, event_of, read_event, role_of, shared};
use crate::{Bus, BusError, DeadLetter, Delivery, Malformed, Published, Result, Role, Settle};
use connect::Empty;
use letters::Letters;
use publish::{Flow, headers_of, store, subject_of};
use pull::{Puller, Taken};
use streams::stream_of;

pub use connect::{Connection, Credentials, NatsOptions, Tls};
pub(crate) use connect::{Link, chain, jitter};
pub(crate) use letters::Stored;
pub(crate) use publish::Attempt;
pub use streams::Definition;
pub(crate) use streams::ensure_stream;

/// The bus over NATS JetStream.
pub struct JetStream {
    link: Link,
    options: NatsOptions,
    flows: [Flow; 6],
    pullers: [OnceLock<Puller>; 4],
    /// Those of lanes, made when they are first asked for.
    laned: Mutex<HashMap<(Role, String), Arc<Puller>>>,
    letters: Arc<Letters>,
    closed: std::sync::atomic::AtomicBool,
}

/// What the servers say of the dead letters, and of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glance {
    /// Dead letters.
    pub dead: u64,
    /// What the clock of the server that answered says. Servers before 2.10 do not tell.
    pub clock: Option<std::time::SystemTime>,
}

fn index(role: Role) -> usize {
    match role {
        Role::Scanner => 0,
        Role::Decider => 1,
        Role::Executor => 2,
        Role::Audit => 3,
        Role::Recovery => 4,
        Role::Finisher => 5,
    }
}

impl JetStream {
    /// Connects, and sets the streams up if the options say so ([`JetStream::setup`]).
    ///
    /// # Errors
    /// [`BusError::Unavailable`] when no server answers, [`BusError::Refused`] when the servers or the set-up refuse.
    pub async fn connect(options: NatsOptions) -> Result<JetStream> {
        let link = Link::connect(&options).await?;
        let bus = JetStream {
            flows: std::array::from_fn(|_| Flow::new(options.window)),
            pullers: std::array::from_fn(|_| OnceLock::new()),
            laned: Mutex::default(),
            letters: Arc::new(Letters::new(&link)),
            closed: false.into(),
            link,
            options,
        };
        if bus.options.create {
            bus.setup().await?;
        }
        Ok(bus)
    }

    /// Creates the streams and consumers that are missing. Nothing that exists is changed.
    ///
    /// # Errors
    /// [`BusError::Refused`] when one exists and is not as the options say, naming each difference.
    pub async fn setup(&self) -> Result<()> {
        streams::setup(&self.link, &self.options).await
    }

    /// What [`JetStream::setup`] and [`crate::KvStore::setup`] make, for somebody else to make it: streams first.
    ///
    /// # Errors
    /// [`BusError::Refused`] when the options are such that the servers would refuse it.
    pub fn definitions(options: &NatsOptions, buckets: &[&str]) -> Result<Vec<Definition>> {
        streams::definitions(options, buckets)
    }

    /// Checks that all streams and consumers are there and keep the promises of this bus. Limits (sizes, ages, copies) may
    /// differ from the options and are only logged: they are the owner's.
    ///
    /// # Errors
    /// [`BusError::Refused`], naming each difference.
    pub async fn verify(&self) -> Result<()> {
        streams::verify(&self.link, &self.options).await
    }

    /// [`JetStream::verify`] for the consumer of one role, with the rights that its workers have anyway.
    ///
    /// # Errors
    /// [`BusError::Refused`], naming each difference.
    pub async fn verify_role(&self, role: Role) -> Result<()> {
        streams::verify_role(&self.link, &self.options, role).await
    }

    /// Moves to the dead letters what the server stopped delivering because nobody ever settled it. To be called now and
    /// then by one process with the right to read and delete messages; it does no harm if two do. The number moved.
    ///
    /// # Errors
    /// When the streams cannot be read; what was not moved is moved by a later call.
    pub async fn janitor_pass(&self) -> Result<u64> {
        letters::janitor_pass(&self.letters).await
    }

    /// What the servers say of the dead letters, and of the time.
    ///
    /// # Errors
    /// When they do not answer, or refuse.
    pub async fn glance(&self) -> Result<Glance> {
        self.letters.glance().await
    }

    /// Waits until all that was settled has left this process. To be called before it ends.
    ///
    /// # Errors
    /// When the connection is gone; what was settled may then be delivered again.
    pub async fn flush(&self) -> Result<()> {
        let flushed = tokio::time::timeout(Duration::from_secs(5), self.link.client.flush()).await;
        let why = match flushed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(e)) => chain(&e),
            Err(_) => "not within 5 s".to_owned(),
        };
        Err(BusError::Unavailable { what: "send what was settled".to_owned(), why })
    }

    /// The connection itself, for requests that are no events.
    pub fn client(&self) -> async_nats::Client {
        self.link.client.clone()
    }

    /// The store over the same connection.
    pub fn store(&self) -> crate::KvStore {
        crate::KvStore::over(self.link.clone(), self.options.replicas, self.options.create)
    }

    fn puller(&self, role: Role) -> &Puller {
        self.pullers[index(role)].get_or_init(|| Puller::new(&self.link, role, None, &self.options.bus, &self.letters))
    }

    async fn puller_of_lane(&self, role: Role, lane: &str) -> Result<Arc<Puller>> {
        let laned = || self.laned.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (role, lane.to_owned());
        if let Some(puller) = laned().get(&key) {
            return Ok(Arc::clone(puller));
        }
        streams::ensure_lane(&self.link, &self.options.bus, role, lane).await?;
        let make = || Arc::new(Puller::new(&self.link, role, Some(lane), &self.options.bus, &self.letters));
        Ok(Arc::clone(laned().entry(key).or_insert_with(make)))
    }

    /// `id`: what de-duplication knows it by, if not by its own.
    async fn publish(&self, event: &Event, id: Option<&str>) -> Result<Published> {
        let (role, subject, payload, headers) = message_of(event, id)?;
        let (flow, patience) = (&self.flows[index(role)], self.options.bus.full_wait);
        store(&self.link, flow, stream_of(role), &subject, headers, payload, patience).await
    }

    /// As many as the windows have places for are sent before the first answer is waited for. The others, and what does not go well
    /// at the first try, are published each by itself.
    async fn publish_all(&self, events: &[Event]) -> Vec<Result<Published>> {
        let mut sent = Vec::with_capacity(events.len());
        for (at, event) in events.iter().enumerate() {
            if let Ok((role, subject, payload, headers)) = message_of(event, None)
                && let flow = &self.flows[index(role)]
                && let Some(permit) = flow.try_enter()
            {
                let trying = self.link.send(&subject, headers(), payload).await;
                sent.push((at, flow, permit, subject, trying));
            }
        }
        let mut told = vec![None; events.len()];
        for (at, flow, permit, subject, trying) in sent {
            let attempt = self.link.answered(&subject, trying).await;
            told[at] = flow.leave(permit, &attempt);
        }
        if let Some(told) = told.iter().copied().collect::<Option<Vec<_>>>() {
            return told.into_iter().map(Ok).collect();
        }
        // Only now, when no place is held: who holds some and waits for more may wait for ever.
        let rest = told.into_iter().zip(events).map(|(told, event)| async move {
            match told {
                Some(published) => Ok(published),
                None => self.publish(event, None).await,
            }
        });
        join_all(rest).await
    }

    fn open(&self) -> Result<()> {
        if self.closed.load(std::sync::atomic::Ordering::Acquire) { Err(BusError::Closed) } else { Ok(()) }
    }

    async fn take(&self, role: Role) -> Result<Delivery> {
        shared(role)?;
        self.open()?;
        Ok(self.delivery(role, self.puller(role).next().await?))
    }

    async fn take_lane(&self, role: Role, lane: &str) -> Result<Delivery> {
        names::lane(role, lane)?;
        self.open()?;
        let puller = self.puller_of_lane(role, lane).await?;
        Ok(self.delivery(role, puller.next().await?))
    }

    fn delivery(&self, role: Role, taken: Taken) -> Delivery {
        // From here on nothing waits, so a dropped future cannot lose it.
        let (tries, message) = (taken.delivered, &taken.message);
        let event = match message.headers.as_ref().and_then(|headers| headers.get(async_nats::header::NATS_STREAM)) {
            // The servers answer a read to any subject the reader names: whoever may read may so place a message where he
            // may not publish. Such answers carry this header.
            Some(stream) => Err(Malformed {
                bytes: message.payload.to_vec(),
                why: format!(
                    "it is a copy out of stream {stream}, placed here by a read: nobody published it as an event"
                ),
            }),
            None => packed::unpack(encoding_of(message), &message.payload, read_event)
                .unwrap_or_else(|why| Err(Malformed { bytes: message.payload.to_vec(), why })),
        };
        let settle = Held { taken, role, letters: Arc::clone(&self.letters) };
        Delivery { event, tries, settle: Box::new(settle) }
    }

    async fn depth(&self, role: Role) -> Result<u64> {
        let what = format!("ask for the depth of {}", stream_of(role));
        if Role::LANED.contains(&role) {
            let subject = format!("STREAM.INFO.{}", stream_of(role));
            let info = self.link.api::<stream::Info>(&what, &subject, &Empty {}).await?;
            return info.map(|info| info.state.messages).map_err(|e| BusError::Refused { what, why: e.to_string() });
        }
        let subject = format!("CONSUMER.INFO.{}.{}", stream_of(role), role.name());
        let info = self.link.api::<consumer::Info>(&what, &subject, &Empty {}).await?;
        let info = info.map_err(|e| BusError::Refused { what, why: e.to_string() })?;
        Ok(info.num_pending + info.num_ack_pending as u64)
    }
}

impl Bus for JetStream {
    fn publish<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Result<Published>> {
        Box::pin(self.publish(event, None))
    }

    fn publish_all<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Vec<Result<Published>>> {
        Box::pin(self.publish_all(events))
    }

    fn take(&self, role: Role) -> BoxFuture<'_, Result<Delivery>> {
        Box::pin(self.take(role))
    }

    fn take_lane<'a>(&'a self, role: Role, lane: &'a str) -> BoxFuture<'a, Result<Delivery>> {
        Box::pin(self.take_lane(role, lane))
    }

    fn depth(&self, role: Role) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.depth(role))
    }

    fn dead(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>>> {
        Box::pin(self.letters.read(limit))
    }

    fn letter<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<DeadLetter>>> {
        Box::pin(self.letters.one(id))
    }

    fn retry<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Published>>> {
        Box::pin(async move {
            let Some(letter) = self.letters.one(id).await? else { return Ok(None) };
            let event = event_of(&letter)?;
            // Stored first, then taken away: what comes between may store it twice, and loses nothing.
            let published = self.publish(&event, Some(&format!("retry-{id}"))).await?;
            if published != Published::Outstanding {
                self.letters.forget(id).await?;
            }
            Ok(Some(published))
        })
    }

    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.letters.forget(id))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.closed.store(true, std::sync::atomic::Ordering::Release);
            let laned: Vec<_> = self.laned.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
            let pullers = self.pullers.iter().filter_map(OnceLock::get).chain(laned.iter().map(AsRef::as_ref));
            join_all(pullers.map(Puller::close)).await;
        })
    }
}

/// Whose event it is, its subject, its bytes, and what makes its headers.
fn message_of(event: &Event, id: Option<&str>) -> Result<(Role, String, Bytes, impl Fn() -> HeaderMap)> {
    let role = role_of(event)?;
    let unfit = |e: trimtab_events::Invalid| BusError::Unfit { id: event.id.clone(), why: e.to_string() };
    let (payload, encoding) = packed::pack(role, event).map_err(unfit)?;
    let shard = event.shard();
    let subject = subject_of(role, event, shard);
    Ok((role, subject, payload, move || headers_of(role, event, id, shard, encoding)))
}

/// How a message says that it is encoded.
fn encoding_of(message: &async_nats::Message) -> Option<&str> {
    const NAME: HeaderName = HeaderName::from_static(packed::ENCODING);
    message.headers.as_ref()?.get(NAME).map(HeaderValue::as_str)
}

/// A delivery in somebody's hands. Dropping it does nothing: the server delivers it again after the acknowledgement time.
struct Held {
    taken: Taken,
    role: Role,
    letters: Arc<Letters>,
}

impl Held {
    async fn answer(&self, kind: AckKind) -> Result<()> {
        pull::settle(self.letters.client(), &self.taken.message, kind).await.map_err(|e| BusError::Unavailable {
            what: format!("settle an event of {}", stream_of(self.role)),
            why: e.to_string(),
        })
    }
}

impl Settle for Held {
    fn done(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        // Not confirmed by the server: if it is lost the event comes again and is found to be done.
        Box::pin(async move { self.answer(AckKind::Ack).await })
    }

    fn again(self: Box<Self>, after: Duration) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { self.answer(AckKind::Nak(Some(after).filter(|after| !after.is_zero()))).await })
    }

    fn dead(self: Box<Self>, why: String) -> BoxFuture<'static, Result<()>> {
        Box::pin(
            async move { letters::give_up(&self.letters, self.role, &self.taken, self.taken.delivered, why).await },
        )
    }

    fn working(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.answer(AckKind::Progress))
    }
}
