//! Messages in chunks: one message over several entries, others' between them. An end that lies inside one is moved before its first
//! chunk: a consumer that comes back later would not get a message of which half is acknowledged.
//!
//! Looked at are the entry at the end and the one after it. A message whose chunks lie around both, with other messages between
//! them, is not noticed.

use trimtab_events::Position;

use super::hold::{Going, Held};
use super::outcome::{Skip, Subscriber};
use super::{Subscriptions, TargetError};
use crate::pulsar::admin::Chunk;

/// Entries that are looked at to find where a message begins.
const LOOK_BACK: usize = 200;

impl Subscriptions {
    /// The last entry up to and including `up_to` after which no message goes on; and if that is another, why.
    pub(super) async fn whole_messages(
        &self,
        subscriber: &Subscriber,
        held: &Held,
        up_to: Position,
    ) -> Going<(Position, Option<String>)> {
        let row = held.row.row();
        let mut reads = 0;
        let mut end = up_to;
        while let Some(message) = self.cut(subscriber, held, end).await? {
            let mut at = end;
            end = loop {
                if at <= held.standing.mark_delete {
                    // Its first chunk is acknowledged already: it is not cut by us.
                    return Ok((end, moved(up_to, end)));
                }
                reads += 1;
                if reads > LOOK_BACK {
                    let why = format!(
                        "{up_to} lies inside a message in chunks, whose first one is not among the {LOOK_BACK} entries before it"
                    );
                    return Err(Skip::NoSuchEntry(why).into());
                }
                let before = row.before(at);
                let first = self.chunk(subscriber, at).await?.is_some_and(|c| c.uuid == message && c.id == 0);
                match before {
                    Some(before) if first => break before,
                    Some(before) => at = before,
                    // The very first entry there is.
                    None => break held.standing.mark_delete,
                }
            };
            if end <= held.standing.mark_delete {
                break;
            }
        }
        Ok((end, moved(up_to, end)))
    }

    /// The message that would be cut in two by ending here.
    async fn cut(&self, subscriber: &Subscriber, held: &Held, end: Position) -> Going<Option<String>> {
        if let Some(chunk) = self.chunk(subscriber, end).await? {
            return Ok((chunk.id + 1 < chunk.of).then_some(chunk.uuid));
        }
        let next = held.row.row().after(end).filter(|next| held.standing.last.is_some_and(|last| *next <= last));
        let Some(next) = next else { return Ok(None) };
        let chunk = self.chunk(subscriber, next).await?;
        Ok(chunk.filter(|chunk| chunk.id > 0).map(|chunk| chunk.uuid))
    }

    async fn chunk(&self, subscriber: &Subscriber, entry: Position) -> Result<Option<Chunk>, TargetError> {
        self.admin.chunk(&subscriber.topic, entry).await
    }
}

fn moved(up_to: Position, end: Position) -> Option<String> {
    (end != up_to).then(|| format!("{up_to} lies inside a message in chunks: acknowledged up to {end}, before it"))
}
