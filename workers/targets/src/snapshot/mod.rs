//! Metadata in files: what the snapshots of all systems have in common. JSON Lines, one node a line, plain, gzip or zstd.
//!
//! Fields of a line: `path`, `data` (base64), `czxid`, `mzxid`, `ctime`, `mtime`, `version`, `cversion`, `ephemeralOwner`,
//! `numChildren`; others are ignored. The first line of a file in *scan order* is the root node with `"order":"scan-1"`, its last the
//! root node with `"end"` and the number of lines.

mod lines;
mod out;

use futures::stream::{self, BoxStream, StreamExt};

pub use self::lines::Header;
pub(crate) use self::lines::{Line, Lines, Node, header, invalid, parse_line};
pub use self::out::SnapshotTotals;
pub(crate) use self::out::{Sink, node, to_file};
use crate::Item;
use crate::error::Result;

/// Takes items in batches; false when no more are wanted.
pub(crate) type Batches<'a> = &'a mut dyn FnMut(Vec<Item>) -> bool;

/// What `read` hands over, read on a thread of its own.
pub(crate) fn items(read: impl FnOnce(Batches<'_>) -> Result<()> + Send + 'static) -> BoxStream<'static, Result<Item>> {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Vec<Item>>>(8);
    tokio::task::spawn_blocking(move || {
        if let Err(e) = read(&mut |batch| sender.blocking_send(Ok(batch)).is_ok()) {
            let _ = sender.blocking_send(Err(e));
        }
    });
    let batches = stream::unfold(receiver, |mut receiver| async { receiver.recv().await.map(|got| (got, receiver)) });
    batches
        .flat_map(|got| match got {
            Ok(items) => stream::iter(items.into_iter().map(Ok)).left_stream(),
            Err(e) => stream::once(futures::future::ready(Err(e))).right_stream(),
        })
        .boxed()
}
