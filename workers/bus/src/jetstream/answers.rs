//! The servers' answers to publishes: one subscription for all of a connection, and a table of who waits.
//!
//! The client has such a table too. Its way to publish and wait makes a name of its own for each answer, sets two timers and reads
//! the answer twice; a decision costs more in that than in being decided.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Client, Message, StatusCode, Subscriber};
use futures::StreamExt;
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::connect::ApiError;

/// What came of one publish.
#[derive(Debug)]
pub(super) enum Answer {
    /// Stored.
    Stored {
        /// Its sequence.
        sequence: u64,
        /// It was stored before.
        duplicate: bool,
    },
    /// An error of the servers.
    Refused(ApiError),
    /// No stream takes this subject.
    NoStream,
    /// Something came that is no answer to a publish.
    Other(String),
    /// Nothing came in time.
    Late,
}

#[derive(Deserialize)]
struct Said {
    seq: Option<u64>,
    #[serde(default)]
    duplicate: bool,
    error: Option<ApiError>,
}

fn read(message: &Message) -> Answer {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Answer::NoStream;
    }
    match serde_json::from_slice(&message.payload) {
        Ok(Said { error: Some(error), .. }) => Answer::Refused(error),
        Ok(Said { seq: Some(sequence), duplicate, error: None }) => Answer::Stored { sequence, duplicate },
        Ok(Said { seq: None, error: None, .. }) => Answer::Other("the answer names no sequence".to_owned()),
        Err(e) => Answer::Other(format!("the answer cannot be read: {e}")),
    }
}

struct Waiting {
    since: Instant,
    /// None when it was answered.
    to: Option<oneshot::Sender<Answer>>,
}

/// Who waits, in the order of asking; the first has the number `first`. Those at the front that were answered are removed.
#[derive(Default)]
struct Table {
    first: u64,
    waiting: VecDeque<Waiting>,
}

impl Table {
    fn add(&mut self, to: oneshot::Sender<Answer>) -> u64 {
        self.waiting.push_back(Waiting { since: Instant::now(), to: Some(to) });
        self.first + self.waiting.len() as u64 - 1
    }

    fn take(&mut self, number: u64) -> Option<oneshot::Sender<Answer>> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let to = self.waiting.get_mut(at)?.to.take();
        self.trim();
        to
    }

    fn trim(&mut self) {
        while self.waiting.front().is_some_and(|waiting| waiting.to.is_none()) {
            self.waiting.pop_front();
            self.first += 1;
        }
    }

    /// Tells those who have waited too long.
    fn give_up_before(&mut self, since: Instant) {
        for waiting in self.waiting.iter_mut().take_while(|waiting| waiting.since < since) {
            if let Some(to) = waiting.to.take() {
                let _ = to.send(Answer::Late);
            }
        }
        self.trim();
    }
}

/// Where answers come to.
pub(super) struct Answers {
    inbox: String,
    table: Arc<Mutex<Table>>,
    task: AbortHandle,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn locked(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // Nothing panics while it holds this.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answers {
    /// Subscribes. Who waits longer than `patience` is told so, up to a quarter later.
    pub(super) async fn start(client: &Client, patience: Duration) -> Result<Answers, async_nats::SubscribeError> {
        let inbox = client.new_inbox();
        let subscription = client.subscribe(format!("{inbox}.*")).await?;
        let table = Arc::default();
        let task = tokio::spawn(hand_out(subscription, Arc::clone(&table), inbox.len() + 1, patience)).abort_handle();
        Ok(Answers { inbox, table, task })
    }

    /// A subject for one answer, and where it will be.
    pub(super) fn expect(&self) -> (String, oneshot::Receiver<Answer>) {
        let (to, answer) = oneshot::channel();
        let number = locked(&self.table).add(to);
        (format!("{}.{number}", self.inbox), answer)
    }
}

async fn hand_out(mut answers: Subscriber, table: Arc<Mutex<Table>>, prefix: usize, patience: Duration) {
    let mut looks = interval(patience / 4);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            message = answers.next() => {
                // The subscription lives as long as the client.
                let Some(message) = message else { return };
                let number = message.subject.get(prefix..).and_then(|number| number.parse().ok());
                if let Some(to) = number.and_then(|number| locked(&table).take(number)) {
                    let _ = to.send(read(&message));
                }
            }
            _ = looks.tick() => {
                if let Some(since) = Instant::now().checked_sub(patience) {
                    locked(&table).give_up_before(since);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn everyone_gets_the_own_answer_whatever_the_order() {
        let mut table = Table::default();
        let mut expect = || {
            let (to, answer) = oneshot::channel();
            (table.add(to), answer)
        };
        let (mut first, mut second, mut third) = (expect(), expect(), expect());
        let stored = |sequence| Answer::Stored { sequence, duplicate: false };
        let taken = |answer: &mut oneshot::Receiver<Answer>| match answer.try_recv() {
            Ok(Answer::Stored { sequence, .. }) => Some(sequence),
            _ => None,
        };
        table.take(second.0).expect("waits").send(stored(2)).expect("waits");
        assert!(table.take(second.0).is_none() && table.take(17).is_none());
        assert_eq!((taken(&mut first.1), taken(&mut second.1)), (None, Some(2)));
        table.take(first.0).expect("waits").send(stored(1)).expect("waits");
        assert_eq!((taken(&mut first.1), table.waiting.len()), (Some(1), 1));

        tokio::time::advance(Duration::from_secs(2)).await;
        let (to, mut late) = oneshot::channel();
        let number = table.add(to);
        assert!(number > third.0);
        table.give_up_before(Instant::now() - Duration::from_secs(1));
        assert!(matches!(third.1.try_recv(), Ok(Answer::Late)));
        assert!(late.try_recv().is_err() && table.take(third.0).is_none());
        table.take(number).expect("still waits").send(stored(4)).expect("waits");
        assert_eq!((taken(&mut late), table.waiting.len()), (Some(4), 0));
    }

    #[test]
    fn only_what_says_that_it_is_stored_is_stored() {
        let read = |text: &'static str| {
            let payload = text.into();
            let length = text.len();
            let (reply, headers, status, description) = (None, None, None, None);
            read(&Message { subject: "x".into(), reply, payload, headers, status, description, length })
        };
        let stored = read(r#"{"stream":"S","domain":"d","seq":7}"#);
        assert!(matches!(stored, Answer::Stored { sequence: 7, duplicate: false }));
        let twice = read(r#"{"stream":"S","seq":7,"duplicate":true}"#);
        assert!(matches!(twice, Answer::Stored { sequence: 7, duplicate: true }));
        let full = read(r#"{"error":{"code":503,"err_code":10077,"description":"full"},"stream":"S","seq":0}"#);
        assert!(matches!(full, Answer::Refused(error) if error.error_code().0 == 10_077));
        for none in ["", "{}", "[]", r#"{"stream":"S"}"#, r#"{"seq":-1}"#, "+OK"] {
            assert!(matches!(read(none), Answer::Other(_)), "{none}");
        }
    }
}
