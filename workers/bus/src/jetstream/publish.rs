//! Storing a message, whatever the servers are doing: what may be repeated is repeated, a full stream slows everyone down
//! who fills it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::header::HeaderName;
use async_nats::{HeaderMap, HeaderValue};
use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use trimtab_events::Event;

use super::answers::Answer;
use super::connect::{ApiError, Link, chain, jitter};
use crate::{BusError, Published, Result, Role};

/// "maximum messages exceeded", "maximum bytes exceeded" and "maximum messages per subject exceeded" share this code.
const STORE_FAILED: u64 = 10_077;
/// The subject has another last sequence than expected. The second code is that of a replicated stream that has the other
/// message under way.
const WRONG_SEQUENCE: [u64; 2] = [10_071, 10_164];

const FIRST_DELAY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_secs(2);
/// A full stream is asked again at least this often.
const LONGEST_GATE: Duration = Duration::from_millis(500);

/// How many publishes into one stream are under way. Their number grows by one with each success and is halved when the
/// stream is full; while it is full, all wait together instead of each asking for itself. (With a fixed window of 256 and
/// a slow reader, 10,000 events cost 14,651 refused publishes.)
pub(super) struct Flow {
    most: usize,
    permits: Semaphore,
    state: Mutex<FlowState>,
}

struct FlowState {
    limit: usize,
    closed_until: Option<Instant>,
    delay: Duration,
}

impl Flow {
    pub(super) fn new(most: usize) -> Flow {
        let most = most.clamp(1, 4_096);
        let state = FlowState { limit: most, closed_until: None, delay: FIRST_DELAY };
        Flow { most, permits: Semaphore::new(most), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, FlowState> {
        // Nothing panics while it holds this.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place; none when there is none before the deadline.
    async fn enter(&self, deadline: Instant) -> Option<SemaphorePermit<'_>> {
        loop {
            let closed_until = self.state().closed_until;
            if let Some(until) = closed_until.filter(|until| *until > Instant::now()) {
                sleep_until(until.min(deadline)).await;
                if until > deadline {
                    return None;
                }
            }
            // The semaphore is never closed. Without a timer as long as there is a place.
            let permit = match self.permits.try_acquire() {
                Ok(permit) => permit,
                Err(_) => timeout_at(deadline, self.permits.acquire()).await.ok()?.ok()?,
            };
            // The gate may have closed while this one waited for a place.
            if self.state().closed_until.is_none_or(|until| until <= Instant::now()) {
                return Some(permit);
            }
        }
    }

    /// A place, if there is one now.
    pub(super) fn try_enter(&self) -> Option<SemaphorePermit<'_>> {
        if self.state().closed_until.is_some_and(|until| until > Instant::now()) {
            return None;
        }
        self.permits.try_acquire().ok()
    }

    /// Gives the place of an attempt back. What it came to, if that settles the matter.
    pub(super) fn leave(&self, permit: SemaphorePermit<'_>, attempt: &Attempt) -> Option<Published> {
        drop(permit);
        match attempt {
            Attempt::Stored { duplicate, .. } => {
                self.succeeded();
                Some(if *duplicate { Published::Duplicate } else { Published::Stored })
            }
            Attempt::NotAsExpected => Some(Published::Outstanding),
            Attempt::Full => {
                self.is_full();
                None
            }
            Attempt::Passing(_) | Attempt::Never(_) => None,
        }
    }

    fn is_full(&self) {
        let now = Instant::now();
        let mut state = self.state();
        if state.closed_until.is_some_and(|until| until > now) {
            // The others of the same window are told the same; it counts once.
            return;
        }
        let take = state.limit - (state.limit / 2).max(1);
        state.limit -= self.permits.forget_permits(take);
        state.closed_until = Some(now + state.delay / 2 + jitter(state.delay / 2));
        state.delay = (state.delay * 2).min(LONGEST_GATE);
    }

    fn succeeded(&self) {
        let mut state = self.state();
        state.delay = FIRST_DELAY;
        if state.limit < self.most {
            state.limit += 1;
            self.permits.add_permits(1);
        }
    }
}

/// Where an event goes.
pub(super) fn subject_of(role: Role, event: &Event, shard: u32) -> String {
    let Event { target, action, key, .. } = event;
    match role {
        Role::Scanner => format!("trimtab.req.{target}"),
        Role::Decider => format!("trimtab.cand.{target}.{action}.{shard}"),
        Role::Executor => format!("trimtab.dec.{target}.{action}.{shard}.{key}"),
        Role::Audit => format!("trimtab.res.{target}.{action}"),
        Role::Recovery => format!("trimtab.job.{target}.{shard}.{key}"),
        Role::Finisher => format!("trimtab.rep.{target}.{action}"),
    }
}

/// The headers of an event. `id`: what de-duplication knows it by, if not by its own.
pub(super) fn headers_of(
    role: Role,
    event: &Event,
    id: Option<&str>,
    shard: u32,
    encoding: Option<&'static str>,
) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // Names that are known before cost nothing to make.
    headers.insert(const { HeaderName::from_static("Content-Type") }, "application/cloudevents+json");
    if let Some(encoding) = encoding {
        headers.insert(const { HeaderName::from_static(super::packed::ENCODING) }, encoding);
    }
    for (name, value) in [("traceparent", &event.traceparent), ("tracestate", &event.tracestate)] {
        // A value that is no header is still in the event.
        if let Some(value) = value.as_deref().and_then(|value| value.parse::<HeaderValue>().ok()) {
            headers.insert(name, value);
        }
    }
    if role == Role::Recovery {
        // The stream takes one of each key. No id: what was given up may be wanted again at once.
    } else if role == Role::Executor {
        // No message about this key whatever the verdict: the stream's limit of one per subject alone would let two
        // verdicts about one resource be outstanding. It remains as the second line.
        headers.insert(async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, "0");
        let any_verdict = format!("trimtab.dec.{}.*.{shard}.{}", event.target, event.key);
        headers.insert(const { HeaderName::from_static("Nats-Expected-Last-Subject-Sequence-Subject") }, any_verdict);
    } else {
        headers.insert(async_nats::header::NATS_MESSAGE_ID, id.unwrap_or(&event.id));
    }
    headers
}

/// What the servers said to one attempt.
pub(crate) enum Attempt {
    /// Stored under this sequence, now or before.
    Stored {
        /// Its sequence.
        sequence: u64,
        /// Stored before.
        duplicate: bool,
    },
    /// The subject is at another sequence.
    NotAsExpected,
    /// There is no room.
    Full,
    /// Something that passes.
    Passing(String),
    /// Something that does not pass.
    Never(String),
}

/// A message that was sent, or why it was not.
pub(crate) struct Trying {
    started: Instant,
    answer: std::result::Result<oneshot::Receiver<Answer>, Attempt>,
}

impl Link {
    /// Publishes once and waits for the answer.
    pub(crate) async fn attempt(&self, subject: &str, headers: HeaderMap, payload: Bytes) -> Attempt {
        let trying = self.send(subject, headers, payload).await;
        self.answered(subject, trying).await
    }

    /// Publishes once, without waiting for the answer.
    pub(super) async fn send(&self, subject: &str, headers: HeaderMap, payload: Bytes) -> Trying {
        let started = Instant::now();
        let (reply, mut answer) = self.answers.expect();
        let answer = tokio::select! {
            biased;
            sent = self.client.publish_with_reply_and_headers(subject.to_owned(), reply, headers, payload) => match sent {
                Ok(()) => Ok(answer),
                Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                    Err(Attempt::Never(format!("{}; raise max_payload of the servers to 1 MB", chain(&error))))
                }
                Err(error) => Err(Attempt::Passing(chain(&error))),
            },
            // Without a connection even sending may wait, longer than anybody wants to.
            _ = &mut answer => Err(Attempt::Passing("not sent in time".to_owned())),
        };
        Trying { started, answer }
    }

    /// Waits for the answer to what was sent.
    pub(super) async fn answered(&self, subject: &str, trying: Trying) -> Attempt {
        let Trying { started, answer } = trying;
        let answer = match answer {
            Ok(answer) => answer.await,
            Err(attempt) => return attempt,
        };
        match answer {
            Ok(Answer::Stored { sequence, duplicate }) => Attempt::Stored { sequence, duplicate },
            Ok(Answer::Refused(error)) => judge(&error),
            Ok(Answer::NoStream) => Attempt::Passing(format!(
                "no stream takes {subject}: it is missing (run the set-up), or its servers are electing a leader"
            )),
            Ok(Answer::Other(why)) => Attempt::Passing(why),
            Ok(Answer::Late) => match self.health.refusal(subject, started) {
                Some(why) => Attempt::Never(why),
                None => Attempt::Passing("not answered in time".to_owned()),
            },
            Err(_) => Attempt::Passing("the connection was closed".to_owned()),
        }
    }
}

fn judge(answer: &ApiError) -> Attempt {
    let (code, text) = (answer.error_code().0, answer.to_string());
    if WRONG_SEQUENCE.contains(&code) {
        Attempt::NotAsExpected
    } else if code == STORE_FAILED && text.contains("per subject exceeded") {
        // Already queued. A full stream, too, says so of a key that it has.
        Attempt::NotAsExpected
    } else if code == STORE_FAILED && text.contains("exceeded") {
        Attempt::Full
    } else if answer.code() == 503 {
        Attempt::Passing(text)
    } else {
        Attempt::Never(text)
    }
}

/// Stores one message; `NotAsExpected` counts as an answer. Gives up at the deadline.
pub(super) async fn store(
    link: &Link,
    flow: &Flow,
    what: &str,
    subject: &str,
    headers: impl Fn() -> HeaderMap,
    payload: Bytes,
    patience: Duration,
) -> Result<Published> {
    let deadline = Instant::now() + patience;
    let full = || BusError::Full { queue: what.to_owned() };
    let mut delay = FIRST_DELAY;
    let mut last: Option<String> = None;
    let mut failures = 0_u32;
    loop {
        let Some(permit) = flow.enter(deadline).await else {
            return Err(last.map_or_else(full, |why| unavailable(what, subject, why)));
        };
        let attempt = link.attempt(subject, headers(), payload.clone()).await;
        if let Some(published) = flow.leave(permit, &attempt) {
            return Ok(published);
        }
        match attempt {
            Attempt::Never(why) => {
                return Err(BusError::Refused { what: format!("publish to {what} ({subject})"), why });
            }
            Attempt::Stored { .. } | Attempt::NotAsExpected | Attempt::Full => last = None,
            Attempt::Passing(why) => {
                if Instant::now() >= deadline {
                    return Err(unavailable(what, subject, why));
                }
                failures += 1;
                if u32::is_power_of_two(failures) {
                    tracing::warn!(what, subject, why, failures, "publishing again");
                }
                last = Some(why);
                sleep(delay / 2 + jitter(delay / 2)).await;
                delay = (delay * 2).min(LONGEST_DELAY);
            }
        }
        if last.is_none() && Instant::now() >= deadline {
            return Err(full());
        }
    }
}

fn unavailable(what: &str, subject: &str, why: String) -> BusError {
    BusError::Unavailable { what: format!("publish to {what} ({subject})"), why }
}
