//! Getting messages: one task per role asks the servers for as many as there are takers (and a few more for roles that
//! are quick), and keeps what arrives until it is taken.
//!
//! The client's own streams ask ahead of need, so that messages age in this process while others are idle, and a dropped
//! request takes its message with it until the acknowledgement time is over. Here a message that arrives for a taker who
//! went away waits for the next one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::{Client, Message, StatusCode, Subscriber};
use futures::{FutureExt, StreamExt};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::connect::{Link, jitter};
use super::letters::{Letters, give_up};
use super::streams::{ensure_lane, lane_consumer, stream_of};
use crate::names::worn_out;
use crate::{BusError, BusOptions, Result, Role};

/// How long the servers remember what was asked for. What was forgotten by a leader that died is asked for again then.
const PULL_EXPIRES: Duration = Duration::from_secs(10);
/// A request is taken for lost this long after it should have ended.
const PULL_GRACE: Duration = Duration::from_secs(1);
/// A role that is quick goes on asking ahead this long after its last take.
const LIVELY: Duration = Duration::from_secs(1);
/// Between two attempts when the servers refuse to be asked.
const REFUSED_DELAY: Duration = Duration::from_millis(500);
/// How long it may take to give back what nobody took.
const CLOSING: Duration = Duration::from_secs(2);

/// Messages that are asked for ahead of need. A message ages from the moment it arrives here, so roles whose work may take
/// long ask for none.
fn ahead(role: Role) -> usize {
    match role {
        Role::Scanner | Role::Executor | Role::Recovery => 0,
        Role::Decider | Role::Finisher => 32,
        Role::Audit => 256,
    }
}

/// A message from a consumer.
pub(super) struct Taken {
    pub(super) message: Message,
    /// How often it was delivered, this time included.
    pub(super) delivered: u64,
    /// Where it is stored.
    pub(super) sequence: u64,
}

impl Taken {
    /// None when no consumer sent it. What is known of it is in the subject that settles it:
    /// `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.<its number>.<time>.<pending>`, see ADR-15.
    fn new(message: Message) -> Option<Taken> {
        let of_delivery = message.reply.as_deref()?.strip_prefix("$JS.ACK.")?;
        let skip = if of_delivery.split('.').count() > 7 { 4 } else { 2 };
        let mut numbers = of_delivery.split('.').skip(skip).map(|number| number.parse().ok());
        let (delivered, sequence) = (numbers.next()??, numbers.next()??);
        Some(Taken { message, delivered, sequence })
    }
}

/// Tells the servers what became of a message; they do not confirm it.
pub(super) async fn settle(
    client: &Client,
    message: &Message,
    kind: AckKind,
) -> std::result::Result<(), async_nats::PublishError> {
    match &message.reply {
        Some(to) => client.publish(to.clone(), kind.into()).await,
        None => Ok(()),
    }
}

/// A message that waits here.
struct Waiting {
    taken: Taken,
    arrived: Instant,
}

#[derive(Default)]
struct State {
    buffer: VecDeque<Waiting>,
    takers: usize,
    last_take: Option<Instant>,
    closed: bool,
}

struct Shared {
    client: Client,
    state: Mutex<State>,
    /// Takers: a message came.
    arrived: Notify,
    /// The task: somebody wants one.
    wanted: Notify,
    /// Whoever closes: the task has come to its end.
    ended: Notify,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds this.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The messages of one role.
pub(super) struct Puller {
    shared: Arc<Shared>,
    ack_wait: Duration,
    task: JoinHandle<()>,
}

impl Drop for Puller {
    fn drop(&mut self) {
        self.task.abort();
        // Others can have them at once.
        let buffer = std::mem::take(&mut self.shared.state().buffer);
        if !buffer.is_empty()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(give_back(Arc::clone(&self.shared), buffer));
        }
    }
}

async fn give_back(shared: Arc<Shared>, all: VecDeque<Waiting>) {
    for Waiting { taken, .. } in all {
        if let Err(error) = settle(&shared.client, &taken.message, AckKind::Nak(None)).await {
            tracing::debug!(%error, "could not give a message back; it comes back by itself");
        }
    }
}

/// Counts a taker for as long as it waits, however it ends.
struct Taker<'a>(&'a Shared);

impl<'a> Taker<'a> {
    fn new(shared: &'a Shared) -> Taker<'a> {
        shared.state().takers += 1;
        shared.wanted.notify_one();
        Taker(shared)
    }
}

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        self.0.state().takers -= 1;
    }
}

impl Puller {
    pub(super) fn new(
        link: &Link,
        role: Role,
        lane: Option<&str>,
        options: &BusOptions,
        letters: &Arc<Letters>,
    ) -> Puller {
        let shared = Arc::new(Shared {
            client: link.client.clone(),
            state: Mutex::default(),
            arrived: Notify::new(),
            wanted: Notify::new(),
            ended: Notify::new(),
        });
        let asker = Asker {
            link: link.clone(),
            role,
            lane: lane.map(str::to_owned),
            consumer: lane.map_or_else(|| role.name().to_owned(), |lane| lane_consumer(role, lane)),
            options: options.clone(),
            ack_wait: options.ack_wait,
            max_deliver: options.max_deliver.max(1),
            letters: Arc::clone(letters),
            shared: Arc::clone(&shared),
            asked: 0,
            asked_until: Instant::now(),
            not_before: Instant::now(),
            refusals: 0,
            refused: false,
        };
        let task = tokio::spawn(asker.run());
        Puller { shared, ack_wait: options.ack_wait, task }
    }

    /// The next message. Nothing is lost when the future is dropped: it takes the message in its last step.
    pub(super) async fn next(&self) -> Result<Taken> {
        let mut taker = None;
        loop {
            let mut arrived = std::pin::pin!(self.shared.arrived.notified());
            arrived.as_mut().enable();
            let found = {
                let mut state = self.shared.state();
                if state.closed {
                    return Err(BusError::Closed);
                }
                let found = state.buffer.pop_front();
                if found.is_some() {
                    state.last_take = Some(Instant::now());
                }
                found
            };
            match found {
                // The server has handed it to another by now.
                Some(waiting) if waiting.arrived.elapsed() >= self.ack_wait => {}
                Some(waiting) => {
                    if waiting.arrived.elapsed() > self.ack_wait / 4 {
                        // Whoever takes it may rely on most of the time. If this is lost it comes twice, as it may.
                        let (shared, message) = (Arc::clone(&self.shared), waiting.taken.message.clone());
                        tokio::spawn(async move { settle(&shared.client, &message, AckKind::Progress).await.is_ok() });
                    }
                    return Ok(waiting.taken);
                }
                None => {
                    taker.get_or_insert_with(|| Taker::new(&self.shared));
                    arrived.await;
                }
            }
        }
    }

    /// Asks for nothing any more, and gives back what nobody took. The task does that: only once the servers know that this process waits
    /// for nothing, or they would send it here again, which counts as a try each time.
    pub(super) async fn close(&self) {
        self.shared.state().closed = true;
        self.shared.arrived.notify_waiters();
        self.shared.wanted.notify_one();
        // Who does not come to its end in time leaves them to come back by themselves.
        let _ = timeout(CLOSING, self.shared.ended.notified()).await;
    }
}

/// The task of one role.
struct Asker {
    link: Link,
    role: Role,
    lane: Option<String>,
    consumer: String,
    options: BusOptions,
    ack_wait: Duration,
    max_deliver: u64,
    letters: Arc<Letters>,
    shared: Arc<Shared>,
    /// Messages asked for that have not come, and until when they may.
    asked: usize,
    asked_until: Instant,
    /// After a refusal: when to ask again, and how many there were without a message between them.
    not_before: Instant,
    refusals: u32,
    /// The last answer was a refusal.
    refused: bool,
}

impl Asker {
    async fn run(mut self) {
        let mut connections = self.link.health.connections.subscribe();
        while !self.shared.state().closed {
            let inbox = self.link.client.new_inbox();
            match self.link.client.subscribe(inbox.clone()).await {
                Ok(mut subscription) => {
                    self.asked = 0;
                    self.life(&inbox, &mut subscription, &mut connections).await;
                    // Tells the servers that nobody waits for what was asked, so that they keep it for others.
                    let _ = subscription.unsubscribe().await;
                    while let Some(message) = subscription.next().await {
                        self.received(message);
                    }
                }
                Err(error) => {
                    tracing::warn!(role = self.role.name(), %error, "cannot subscribe; trying again");
                    sleep(REFUSED_DELAY).await;
                }
            }
        }
        let buffer = std::mem::take(&mut self.shared.state().buffer);
        give_back(Arc::clone(&self.shared), buffer).await;
        self.shared.ended.notify_one();
    }

    /// As long as the subscription lives. No message ends it, whatever it says.
    async fn life(
        &mut self,
        inbox: &str,
        subscription: &mut Subscriber,
        connections: &mut tokio::sync::watch::Receiver<u64>,
    ) {
        loop {
            if self.shared.state().closed {
                return;
            }
            let next_look = self.ask(inbox).await;
            tokio::select! {
                message = subscription.next() => match message {
                    Some(message) => {
                        self.received(message);
                        // What has come with it costs a look at the clock and the wishes only once.
                        while let Some(Some(message)) = subscription.next().now_or_never() {
                            self.received(message);
                        }
                    }
                    None => return,
                },
                () = self.shared.wanted.notified() => {}
                Ok(()) = connections.changed() => {
                    // The servers forgot what was asked before.
                    self.asked = 0;
                }
                () = sleep_until(next_look) => {}
            }
            self.return_aged().await;
        }
    }

    /// Asks for what is wanted; when to look again at the latest.
    async fn ask(&mut self, inbox: &str) -> Instant {
        let now = Instant::now();
        if now >= self.asked_until {
            self.asked = 0;
        }
        let (wanted, buffered) = {
            let state = self.shared.state();
            let lively = state.takers > 0 || state.last_take.is_some_and(|last| now.duration_since(last) < LIVELY);
            (if lively { state.takers.max(ahead(self.role)) } else { 0 }, state.buffer.len())
        };
        let missing = wanted.saturating_sub(self.asked + buffered);
        // In halves: asking for each single one would cost the servers more than the messages do.
        if missing == 0 || missing * 2 < wanted || now < self.not_before {
            let idle = if buffered > 0 { now + self.ack_wait / 8 } else { now + PULL_EXPIRES };
            return if now < self.not_before {
                self.not_before
            } else {
                idle.min(self.asked_until.max(now + PULL_GRACE))
            };
        }
        // A lane's consumer goes when nobody could ask for long, and with a stream that is made anew.
        if let Some(lane) = self.lane.as_deref().filter(|_| self.refused) {
            match ensure_lane(&self.link, &self.options, self.role, lane).await {
                Ok(()) => self.refused = false,
                Err(error) => {
                    tracing::warn!(role = self.role.name(), lane, %error, "cannot make the lane's consumer; trying again");
                    self.not_before = Instant::now() + REFUSED_DELAY;
                    return self.not_before;
                }
            }
        }
        let request = format!(r#"{{"batch":{missing},"expires":{}}}"#, PULL_EXPIRES.as_nanos());
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", stream_of(self.role), self.consumer);
        match self.link.client.publish_with_reply(subject, inbox.to_owned(), request.into()).await {
            Ok(()) => {
                self.asked += missing;
                self.asked_until = now + PULL_EXPIRES + PULL_GRACE;
                self.asked_until
            }
            Err(error) => {
                tracing::warn!(role = self.role.name(), %error, "cannot ask for messages; trying again");
                self.not_before = now + REFUSED_DELAY;
                self.not_before
            }
        }
    }

    fn received(&mut self, message: async_nats::Message) {
        if let Some(status) = message.status
            && (status != StatusCode::OK || message.reply.is_none())
        {
            self.status(status, &message);
            return;
        }
        self.asked = self.asked.saturating_sub(1);
        self.refusals = 0;
        let Some(taken) = Taken::new(message) else {
            // Somebody published to our inbox. There is nothing to settle.
            tracing::error!(role = self.role.name(), "a message came that no consumer sent; ignored");
            return;
        };
        if taken.delivered > self.max_deliver {
            let (letters, role, tries) = (Arc::clone(&self.letters), self.role, taken.delivered - 1);
            tokio::spawn(async move {
                if let Err(error) = give_up(&letters, role, &taken, tries, worn_out(tries)).await {
                    tracing::error!(role = role.name(), %error, "cannot give an event up; it comes back");
                }
            });
            return;
        }
        self.shared.state().buffer.push_back(Waiting { taken, arrived: Instant::now() });
        self.shared.arrived.notify_one();
    }

    /// A request ended without having got all it asked for.
    fn status(&mut self, status: StatusCode, message: &async_nats::Message) {
        let pending = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get("Nats-Pending-Messages"))
            .and_then(|value| value.as_str().parse::<usize>().ok());
        match status.as_u16() {
            100 => return,
            // Its time is over, or there is nothing: as always.
            404 | 408 => {}
            other => {
                let (role, text) = (self.role.name(), message.description.as_deref().unwrap_or_default());
                self.refusals = self.refusals.saturating_add(1);
                self.refused = true;
                // A consumer that is missing is told again and again; not every time in the log.
                if self.refusals.is_power_of_two() {
                    let refusals = self.refusals;
                    tracing::warn!(
                        role,
                        status = other,
                        text,
                        refusals,
                        "the servers hand out no events; trying again"
                    );
                }
                self.not_before = Instant::now() + REFUSED_DELAY / 2 + jitter(REFUSED_DELAY);
                self.asked = 0;
                return;
            }
        }
        self.asked = pending.map_or(0, |pending| self.asked.saturating_sub(pending));
    }

    /// What nobody took for long goes to other processes. It counts as a try, which is why it is only then.
    async fn return_aged(&self) {
        let mut aged = VecDeque::new();
        {
            let mut state = self.shared.state();
            if state.takers == 0 {
                while state.buffer.front().is_some_and(|waiting| waiting.arrived.elapsed() > self.ack_wait / 2) {
                    aged.extend(state.buffer.pop_front());
                }
            }
        }
        if !aged.is_empty() {
            give_back(Arc::clone(&self.shared), aged).await;
        }
    }
}
