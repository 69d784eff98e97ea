//! Events that are given up: into `TT_DLQ` as the bytes they were, with the why in headers, so that they can be looked at
//! with `nats stream get` and published again as they are.

use std::time::Duration;

use async_nats::header::HeaderMap;
use async_nats::jetstream::stream::{Info, RawMessage};
use async_nats::jetstream::{AckKind, Message};
use base64::Engine as _;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use trimtab_events::Event;

use super::Glance;
use super::connect::{Empty, Link, chain};
use super::packed;
use super::publish::{Flow, store};
use super::pull::Taken;
use super::streams::{ADVISORIES, DEAD, JANITOR, stream_of};
use crate::names::{is_token, letter_text, worn_out};
use crate::{BusError, DeadLetter, Result, Role};

/// Longest reason that is kept.
const WHY_BYTES: usize = 4 * 1024;
/// Left for headers when bytes are so many that they would not fit into a message with them.
const HEADER_BYTES: usize = 8 * 1024;
/// A worker that cannot store a dead letter leaves the event where it is; it need not wait long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Messages that are read at once.
const READS: usize = 32;
/// Advisories one pass of the janitor handles.
const ADVISORIES_A_PASS: usize = 1_000;
/// The code of "no message found".
const MESSAGE_ABSENT: u64 = 10_037;

/// Where dead letters go.
pub(super) struct Letters {
    link: Link,
    flow: Flow,
}

/// What is told about an event beside its bytes.
struct About<'a> {
    role: &'a str,
    why: &'a str,
    tries: u64,
    /// The same for the same message, so that a repeat adds nothing.
    id: String,
}

impl Letters {
    pub(super) fn new(link: &Link) -> Letters {
        Letters { link: link.clone(), flow: Flow::new(64) }
    }

    /// The connection.
    pub(super) fn client(&self) -> &async_nats::Client {
        &self.link.client
    }

    async fn write(&self, about: About<'_>, bytes: &Bytes) -> Result<()> {
        tracing::error!(role = about.role, tries = about.tries, why = about.why, "event given up");
        let target = Event::from_bytes(bytes).ok().map(|event| event.target);
        let target = target.as_deref().filter(|target| is_token(target)).unwrap_or("unknown");
        let subject = format!("trimtab.dlq.{}.{target}", about.role);
        let room = self.link.client.max_payload().saturating_sub(HEADER_BYTES);
        let mut why = one_line(about.why);
        let mut payload = bytes.clone();
        if payload.len() > room {
            why.push_str(&format!(" (only the first {room} of {} bytes are kept)", payload.len()));
            payload.truncate(room);
        }
        let at_ms = crate::wall_clock_ms().to_string();
        let headers = || {
            let mut headers = HeaderMap::new();
            headers.insert("Content-Type", "application/cloudevents+json");
            headers.insert(async_nats::header::NATS_MESSAGE_ID, about.id.as_str());
            headers.insert("Trimtab-Role", about.role);
            headers.insert("Trimtab-Why", why.as_str());
            headers.insert("Trimtab-Tries", about.tries.to_string());
            headers.insert("Trimtab-At-Ms", at_ms.as_str());
            headers
        };
        store(&self.link, &self.flow, DEAD, &subject, headers, payload, PATIENCE).await.map(drop)
    }

    /// The newest `limit` letters, newest last.
    pub(super) async fn read(&self, limit: usize) -> Result<Vec<DeadLetter>> {
        let what = "read dead letters";
        let info = self.link.api::<Info>(what, &format!("STREAM.INFO.{DEAD}"), &Empty {}).await?;
        let state = info.map_err(|e| BusError::Refused { what: what.to_owned(), why: e.to_string() })?.state;
        let mut letters: Vec<DeadLetter> = stream::iter((state.first_sequence.max(1)..=state.last_sequence).rev())
            .map(|sequence| self.link.raw_message(what, DEAD, sequence))
            .buffered(READS)
            .try_filter_map(|found| async move { Ok(found.as_ref().map(letter_of)) })
            .take(limit)
            .try_collect()
            .await?;
        letters.reverse();
        Ok(letters)
    }

    /// How many there are, and what time the servers have.
    pub(super) async fn glance(&self) -> Result<Glance> {
        #[derive(serde::Deserialize)]
        struct State {
            messages: u64,
        }
        #[derive(serde::Deserialize)]
        struct Told {
            state: State,
            ts: Option<jiff::Timestamp>,
        }
        let what = "look at the dead letters";
        let told = self.link.api::<Told>(what, &format!("STREAM.INFO.{DEAD}"), &Empty {}).await?;
        let told = told.map_err(|e| BusError::Refused { what: what.to_owned(), why: e.to_string() })?;
        Ok(Glance { dead: told.state.messages, clock: told.ts.and_then(|ts| ts.try_into().ok()) })
    }

    /// The letter of this id, which is its place in the stream.
    pub(super) async fn one(&self, id: &str) -> Result<Option<DeadLetter>> {
        let Ok(sequence) = id.parse() else { return Ok(None) };
        let found = self.link.raw_message(&format!("read dead letter {id}"), DEAD, sequence).await?;
        Ok(found.as_ref().map(letter_of))
    }

    /// Takes a letter away.
    pub(super) async fn forget(&self, id: &str) -> Result<bool> {
        if self.one(id).await?.is_none() {
            return Ok(false);
        }
        let what = format!("delete dead letter {id}");
        let request = serde_json::json!({ "seq": id.parse::<u64>().unwrap_or_default(), "no_erase": true });
        let answer = self.link.api::<serde_json::Value>(&what, &format!("STREAM.MSG.DELETE.{DEAD}"), &request).await?;
        answer.map(|_| true).map_err(|e| BusError::Refused { what, why: e.to_string() })
    }
}

/// Headers have one line each.
fn one_line(text: &str) -> String {
    let mut line: String = text.split(['\r', '\n']).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    let mut end = line.len().min(WHY_BYTES);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.truncate(end);
    line
}

/// A message as it is stored.
pub(crate) struct Stored {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Vec<u8>,
    pub(crate) sequence: u64,
}

impl Stored {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

#[derive(serde::Deserialize)]
struct RawAnswer {
    message: RawMessage,
}

impl Link {
    /// Reads from the stream's leader, unlike a direct get, which may be answered by a copy that lags behind.
    pub(crate) async fn get_message(
        &self,
        what: &str,
        stream: &str,
        which: &serde_json::Value,
    ) -> Result<Option<Stored>> {
        match self.api::<RawAnswer>(what, &format!("STREAM.MSG.GET.{stream}"), which).await? {
            Ok(answer) => {
                stored(answer.message).map(Some).map_err(|why| BusError::Refused { what: what.to_owned(), why })
            }
            Err(error) if error.error_code().0 == MESSAGE_ABSENT => Ok(None),
            Err(error) => Err(BusError::Refused { what: what.to_owned(), why: error.to_string() }),
        }
    }

    async fn raw_message(&self, what: &str, stream: &str, sequence: u64) -> Result<Option<Stored>> {
        self.get_message(what, stream, &serde_json::json!({ "seq": sequence })).await
    }
}

fn stored(message: RawMessage) -> std::result::Result<Stored, String> {
    let decode = |text: &str| {
        let decoded = base64::engine::general_purpose::STANDARD.decode(text);
        decoded.map_err(|e| format!("message {} cannot be read: {e}", message.sequence))
    };
    let headers = decode(message.headers.as_deref().unwrap_or_default())?;
    let headers = String::from_utf8_lossy(&headers)
        .split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .collect();
    Ok(Stored { headers, payload: decode(&message.payload)?, sequence: message.sequence })
}

fn letter_of(stored: &Stored) -> DeadLetter {
    let text = |name| stored.header(name).unwrap_or_default().to_owned();
    DeadLetter {
        id: stored.sequence.to_string(),
        role: text("Trimtab-Role"),
        why: text("Trimtab-Why"),
        tries: text("Trimtab-Tries").parse().unwrap_or(0),
        at_ms: text("Trimtab-At-Ms").parse().unwrap_or(0),
        event: letter_text(&stored.payload),
    }
}

/// Stores the letter first and takes the message away then: in between it may be given up twice, never lost.
pub(super) async fn give_up(letters: &Letters, role: Role, taken: &Taken, tries: u64, why: String) -> Result<()> {
    let what = format!("give up an event of {}", stream_of(role));
    let id = letter_id(stream_of(role), taken.sequence);
    let bytes = as_it_was(super::encoding_of(&taken.message), &taken.message.payload);
    letters.write(About { role: role.name(), why: &why, tries, id }, &bytes).await?;
    let message = Message { message: taken.message.clone(), context: letters.link.context.clone() };
    message
        .double_ack_with(AckKind::Term)
        .await
        .map_err(|e| BusError::Unavailable { what, why: format!("the letter is stored; the event comes back: {e}") })
}

/// What people read is not packed. What claims to be and is not stays as it came.
fn as_it_was(encoding: Option<&str>, payload: &Bytes) -> Bytes {
    match encoding {
        Some(_) => packed::unpack(encoding, payload, Bytes::copy_from_slice).unwrap_or_else(|_| payload.clone()),
        None => payload.clone(),
    }
}

fn letter_id(stream: &str, sequence: u64) -> String {
    format!("{stream}-{sequence}")
}

/// What the server says when it gives a message up.
#[derive(serde::Deserialize)]
struct Advisory {
    stream: String,
    stream_seq: u64,
    deliveries: u64,
}

/// Buries what the server stopped delivering because nobody ever settled it: workers that die of an event before they can
/// give it up leave it lying in its stream, with its key blocked. The number of letters written.
pub(super) async fn janitor_pass(letters: &Letters) -> Result<u64> {
    let link = &letters.link;
    let what = format!("read {ADVISORIES}");
    let unavailable = |why: String| BusError::Unavailable { what: what.clone(), why };
    let consumer = link
        .context
        .get_consumer_from_stream::<async_nats::jetstream::consumer::pull::Config, _, _>(JANITOR, ADVISORIES)
        .await
        .map_err(|e| unavailable(chain(&e)))?;
    let mut batch =
        consumer.fetch().max_messages(ADVISORIES_A_PASS).messages().await.map_err(|e| unavailable(chain(&e)))?;
    let mut buried = 0;
    while let Some(message) = batch.next().await {
        let message = message.map_err(|e| unavailable(e.to_string()))?;
        match serde_json::from_slice::<Advisory>(&message.payload) {
            Ok(advisory) => buried += u64::from(bury(letters, &advisory).await?),
            Err(error) => tracing::error!(%error, "an advisory cannot be read; passed over"),
        }
        message.double_ack().await.map_err(|e| unavailable(e.to_string()))?;
    }
    Ok(buried)
}

async fn bury(letters: &Letters, advisory: &Advisory) -> Result<bool> {
    let Advisory { stream, stream_seq, deliveries } = advisory;
    // The advisory names a stream to delete from; only ours, and not the record of outcomes, are touched.
    let Some(role) = Role::ALL.into_iter().find(|role| stream_of(*role) == stream) else {
        return Ok(false);
    };
    let what = format!("bury message {stream_seq} of {stream}");
    let Some(stored) = letters.link.raw_message(&what, stream, *stream_seq).await? else {
        // Settled late, or buried by an earlier pass that was cut off.
        return Ok(false);
    };
    let id = letter_id(stream, *stream_seq);
    let about = About { role: role.name(), why: &worn_out(*deliveries), tries: *deliveries, id };
    let bytes = as_it_was(stored.header(packed::ENCODING), &Bytes::copy_from_slice(&stored.payload));
    letters.write(about, &bytes).await?;
    if role != Role::Audit {
        let request = serde_json::json!({ "seq": stream_seq, "no_erase": true });
        let answer =
            letters.link.api::<serde_json::Value>(&what, &format!("STREAM.MSG.DELETE.{stream}"), &request).await?;
        if let Err(error) = answer {
            // Settled in between is as good.
            tracing::warn!(%error, stream, stream_seq, "a message given up could not be deleted");
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_fit_into_a_header() {
        assert_eq!(one_line("a\r\nb\n\nc"), "a b c");
        let long = one_line(&"\u{e9}".repeat(5_000));
        assert!(long.len() <= WHY_BYTES && long.ends_with('\u{e9}'));
    }
}
