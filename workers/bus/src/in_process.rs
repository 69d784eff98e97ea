//! The bus inside one process: bounded queues, no durability. Whatever is in it when the process dies is found again by
//! the next scan.
//!
//! [`queue`] holds the rules of one queue without waiting for anything; this file waits, wakes and tells the time. There is
//! no task in the background: whoever publishes, takes or looks first brings the queue up to date, and whoever waits wakes
//! itself when the next thing falls due.

mod queue;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::time::Instant;
use trimtab_events::{Event, MAX_EVENT_BYTES};

use crate::names::{self, event_of, letter, letter_text, read_event, worn_out};
use crate::{Bus, BusError, BusOptions, DeadLetter, Delivery, Published, Result, Role, Settle};
use queue::{GivenUp, Offer, Offered, Payload, Queue};

/// Dead letters that are kept, the newest ones.
const DEAD_LETTERS: usize = 10_000;
/// Lane of bytes that are no event: they name none.
const RAW_LANE: &str = "t";
/// Bytes of dead letters that are kept.
const DEAD_BYTES: usize = 64 * 1024 * 1024;

/// The bus inside one process.
pub struct InProcess {
    shared: Arc<Shared>,
}

struct Shared {
    options: BusOptions,
    lanes: [Arc<Lane>; 4],
    /// Queues of laned roles, made when they are first named.
    laned: Mutex<HashMap<(Role, String), Arc<Lane>>>,
    letters: Mutex<Letters>,
    closed: AtomicBool,
}

/// One role's queue and those who wait for it.
struct Lane {
    role: Role,
    queue: Mutex<Queue>,
    /// Takers: an event came, or there is room for one more outstanding.
    work: Notify,
    /// Publishers: an event left.
    room: Notify,
}

#[derive(Default)]
struct Letters {
    kept: VecDeque<DeadLetter>,
    bytes: usize,
    last_id: u64,
}

impl Letters {
    fn push(&mut self, letter: DeadLetter) {
        self.bytes += letter.event.len();
        self.last_id += 1;
        self.kept.push_back(DeadLetter { id: self.last_id.to_string(), ..letter });
        while self.kept.len() > DEAD_LETTERS || (self.bytes > DEAD_BYTES && self.kept.len() > 1) {
            if let Some(oldest) = self.kept.pop_front() {
                self.bytes -= oldest.event.len();
            }
        }
    }

    fn find(&self, id: &str) -> Option<&DeadLetter> {
        self.kept.iter().find(|letter| letter.id == id)
    }

    fn remove(&mut self, id: &str) -> Option<DeadLetter> {
        let at = self.kept.iter().position(|letter| letter.id == id)?;
        let letter = self.kept.remove(at)?;
        self.bytes -= letter.event.len();
        Some(letter)
    }
}

// Nothing that holds one of these locks can panic half-way through a change, so a poisoned one is still in order.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InProcess {
    /// An empty bus.
    pub fn new(options: BusOptions) -> InProcess {
        let lanes = Role::ALL.map(|role| Arc::new(Lane::new(role, &options)));
        let (laned, letters, closed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        InProcess { shared: Arc::new(Shared { options, lanes, laned, letters, closed }) }
    }

    /// Queues bytes for `role` that need not be an event, as anyone with access to a NATS server could: for tests of what
    /// becomes of them. Waits for room as [`Bus::publish`] does.
    ///
    /// # Errors
    /// [`BusError::Full`], as [`Bus::publish`].
    pub async fn publish_bytes(&self, role: Role, bytes: Vec<u8>) -> Result<()> {
        let size = bytes.len() as u64;
        let offer = Offer { payload: Payload::Bytes(bytes.into()), key: None, id: None, bytes: size };
        self.shared.publish(&self.shared.lane(role, RAW_LANE), offer).await.map(drop)
    }
}

impl Shared {
    /// The queue of a role; `lane` counts for laned ones only.
    fn lane(&self, role: Role, lane: &str) -> Arc<Lane> {
        match role {
            Role::Scanner => Arc::clone(&self.lanes[0]),
            Role::Decider => Arc::clone(&self.lanes[1]),
            Role::Executor => Arc::clone(&self.lanes[2]),
            Role::Audit => Arc::clone(&self.lanes[3]),
            Role::Recovery | Role::Finisher => Arc::clone(
                lock(&self.laned)
                    .entry((role, lane.to_owned()))
                    .or_insert_with(|| Arc::new(Lane::new(role, &self.options))),
            ),
        }
    }

    fn each_lane(&self) -> Vec<Arc<Lane>> {
        self.lanes.iter().chain(lock(&self.laned).values()).cloned().collect()
    }

    /// Locks the queue after bringing it up to `now`.
    fn current<'a>(&self, lane: &'a Lane, now: Instant) -> MutexGuard<'a, Queue> {
        let mut queue = lock(&lane.queue);
        let worn = queue.sweep(now);
        for given_up in worn {
            let why = worn_out(given_up.tries);
            self.bury(lane, given_up, why);
            lane.room.notify_one();
        }
        queue
    }

    fn bury(&self, lane: &Lane, given_up: GivenUp, why: String) {
        let role = lane.role.name();
        tracing::error!(role, tries = given_up.tries, why, "event given up");
        let event = match &given_up.payload {
            Payload::Event(event) => {
                event.to_bytes().map(|bytes| letter_text(&bytes)).unwrap_or_else(|e| e.to_string())
            }
            Payload::Bytes(bytes) => letter_text(bytes),
        };
        lock(&self.letters).push(letter(role, why, given_up.tries, event));
    }

    async fn publish(&self, lane: &Lane, mut offer: Offer) -> Result<Published> {
        let deadline = Instant::now() + self.options.full_wait;
        loop {
            // Registered before looking, so that room made in between is not missed.
            let mut room = std::pin::pin!(lane.room.notified());
            room.as_mut().enable();
            let now = Instant::now();
            let due = {
                let mut queue = self.current(lane, now);
                match queue.offer(offer, now) {
                    Offered::Is(published) => {
                        lane.work.notify_one();
                        if queue.has_room() {
                            lane.room.notify_one();
                        }
                        return Ok(published);
                    }
                    Offered::Full(back) => offer = back,
                }
                queue.next_due()
            };
            if now >= deadline {
                // Whatever woke this one is for the next.
                lane.room.notify_one();
                return Err(BusError::Full { queue: lane.role.name().to_owned() });
            }
            let until = due.map_or(deadline, |due| due.min(deadline));
            tokio::select! {
                biased;
                () = room => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    async fn take(self: &Arc<Self>, lane: Arc<Lane>) -> Result<Delivery> {
        loop {
            let mut work = std::pin::pin!(lane.work.notified());
            work.as_mut().enable();
            if self.closed.load(Ordering::Acquire) {
                return Err(BusError::Closed);
            }
            let due = {
                let now = Instant::now();
                let mut queue = self.current(&lane, now);
                let due_before = queue.next_due();
                if let Some(taken) = queue.take(now) {
                    if queue.is_ready() {
                        lane.work.notify_one();
                    }
                    if queue.next_due() != due_before {
                        lane.due_changed();
                    }
                    drop(queue);
                    let event = match taken.payload {
                        Payload::Event(event) => Ok(*event),
                        Payload::Bytes(bytes) => read_event(&bytes),
                    };
                    let (number, tries) = (taken.number, taken.tries);
                    let held = Held { shared: Arc::clone(self), lane: Arc::clone(&lane), number, tries };
                    return Ok(Delivery { event, tries: taken.tries, settle: Box::new(held) });
                }
                queue.next_due()
            };
            match due {
                Some(due) => tokio::select! {
                    biased;
                    () = work => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => work.await,
            }
        }
    }
}

impl Lane {
    fn new(role: Role, options: &BusOptions) -> Lane {
        Lane { role, queue: Mutex::new(Queue::new(role, options)), work: Notify::new(), room: Notify::new() }
    }

    /// Those who sleep until something falls due must reckon anew.
    fn due_changed(&self) {
        self.work.notify_waiters();
        self.room.notify_waiters();
    }
}

impl Bus for InProcess {
    fn publish<'a>(&'a self, event: &'a Event) -> BoxFuture<'a, Result<Published>> {
        Box::pin(async move {
            let (role, offer) = offer_of(event)?;
            self.shared.publish(&self.shared.lane(role, &event.target), offer).await
        })
    }

    fn take(&self, role: Role) -> BoxFuture<'_, Result<Delivery>> {
        Box::pin(async move {
            names::shared(role)?;
            self.shared.take(self.shared.lane(role, RAW_LANE)).await
        })
    }

    fn take_lane<'a>(&'a self, role: Role, lane: &'a str) -> BoxFuture<'a, Result<Delivery>> {
        Box::pin(async move {
            names::lane(role, lane)?;
            self.shared.take(self.shared.lane(role, lane)).await
        })
    }

    fn depth(&self, role: Role) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let of_role = |lane: &Arc<Lane>| lane.role == role;
            let lanes = self.shared.each_lane().into_iter().filter(of_role);
            Ok(lanes.map(|lane| self.shared.current(&lane, Instant::now()).depth()).sum())
        })
    }

    fn dead(&self, limit: usize) -> BoxFuture<'_, Result<Vec<DeadLetter>>> {
        Box::pin(async move {
            for lane in self.shared.each_lane() {
                drop(self.shared.current(&lane, Instant::now()));
            }
            let letters = lock(&self.shared.letters);
            let skip = letters.kept.len().saturating_sub(limit);
            Ok(letters.kept.iter().skip(skip).cloned().collect())
        })
    }

    fn letter<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<DeadLetter>>> {
        Box::pin(async move { Ok(lock(&self.shared.letters).find(id).cloned()) })
    }

    fn retry<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Published>>> {
        Box::pin(async move {
            let Some(letter) = lock(&self.shared.letters).find(id).cloned() else { return Ok(None) };
            let event = event_of(&letter)?;
            let (role, offer) = offer_of(&event)?;
            let offer = Offer { id: offer.id.map(|_| format!("retry-{id}")), ..offer };
            let published = self.shared.publish(&self.shared.lane(role, &event.target), offer).await?;
            if published != Published::Outstanding {
                lock(&self.shared.letters).remove(id);
            }
            Ok(Some(published))
        })
    }

    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move { Ok(lock(&self.shared.letters).remove(id).is_some()) })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.closed.store(true, Ordering::Release);
            for lane in self.shared.each_lane() {
                lane.work.notify_waiters();
            }
        })
    }
}

/// Whose queue an event goes to, and what is offered to it.
fn offer_of(event: &Event) -> Result<(Role, Offer)> {
    let role = names::role_of(event)?;
    let bytes = size_of(event)?;
    // As over NATS: a decision is held back by its key while one is outstanding, and by nothing afterwards.
    let (key, id) = match role {
        Role::Executor | Role::Recovery => (Some(event.key.clone()), None),
        _ => (None, Some(event.id.clone())),
    };
    Ok((role, Offer { payload: Payload::Event(Box::new(event.clone())), key, id, bytes }))
}

/// The event's size as JSON, or a bound of it where that is far from the limit: writing every event only to measure it
/// would cost more than the rest of the bus.
fn size_of(event: &Event) -> Result<u64> {
    const ATTRIBUTES: usize = 1024;
    let text = [
        &*event.id,
        &event.source,
        &event.kind,
        &event.subject,
        &event.target,
        &event.action,
        &event.key,
        &event.dataschema,
        &event.datacontenttype,
    ];
    let optional = [&event.traceparent, &event.tracestate, &event.signer, &event.signature, &event.proof];
    let optional = optional.iter().filter_map(|t| t.as_ref()).map(String::len).sum::<usize>();
    let bound = event.data.get().len() + text.iter().map(|t| t.len()).sum::<usize>() + optional + ATTRIBUTES;
    if bound < MAX_EVENT_BYTES / 2 {
        return Ok(bound as u64);
    }
    let bytes = event.to_bytes().map_err(|e| BusError::Unfit { id: event.id.clone(), why: e.to_string() })?;
    Ok(bytes.len() as u64)
}

/// A delivery in somebody's hands. Dropping it does nothing: the event comes back after the acknowledgement time.
struct Held {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
    number: u64,
    tries: u64,
}

impl Settle for Held {
    fn done(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let lane = &self.lane;
            let gone = self.shared.current(lane, Instant::now()).remove(self.number);
            if gone.is_some() {
                lane.room.notify_one();
                lane.work.notify_one();
            }
            Ok(())
        })
    }

    fn again(self: Box<Self>, after: Duration) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let lane = &self.lane;
            let now = Instant::now();
            let mut queue = self.shared.current(lane, now);
            let due_before = queue.next_due();
            queue.hold_until(self.number, self.tries, now + after);
            if queue.next_due() != due_before {
                lane.due_changed();
            }
            Ok(())
        })
    }

    fn dead(self: Box<Self>, why: String) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let lane = &self.lane;
            let gone = self.shared.current(lane, Instant::now()).remove(self.number);
            if let Some(given_up) = gone {
                self.shared.bury(lane, given_up, why);
                lane.room.notify_one();
                lane.work.notify_one();
            }
            Ok(())
        })
    }

    fn working(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let lane = &self.lane;
            let now = Instant::now();
            let mut queue = self.shared.current(lane, now);
            queue.hold_until(self.number, self.tries, now + self.shared.options.ack_wait);
            Ok(())
        })
    }
}
