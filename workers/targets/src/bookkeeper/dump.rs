//! Writes a snapshot of everything that a survey reads, of a live cluster.
//!
//! Ledgers come first and what names them afterwards, as in a live scan: what changes meanwhile makes counts differ, which keeps, or is a
//! ledger that was not there yet.

use std::path::Path;

use futures::stream::{self, StreamExt};
use serde_json::json;

use super::inventory::LedgerInventory;
use super::snapshot::needed;
use crate::Inventory;
use crate::error::{Class, Result, TargetError};
use crate::snapshot::{Sink, SnapshotTotals, node, to_file};
use crate::zk::Zk;

/// Whose nodes tell the time.
const CLOCK: &str = "/loadbalance/brokers";

/// Writes a file for [`LedgerSnapshot`](super::LedgerSnapshot). It is complete, or the call fails. A node that goes away meanwhile is left
/// out, which the counts of its parent tell.
///
/// # Errors
/// When anything could not be read or written.
pub async fn write(inventory: &LedgerInventory, path: &Path, now_ms: i64) -> Result<SnapshotTotals> {
    to_file(path, async |sink| {
        let dump = Dump { zk: inventory.zk(), root: inventory.root(), trees: trees(inventory) };
        let gone =
            || TargetError::new(Class::Transient, "reading / in ZooKeeper", "the root of the chroot does not exist");
        dump.zk.sync_all().await?;
        let (value, stat) = dump.zk.get_full("/").await?.ok_or_else(gone)?;
        let header = json!({"source": inventory.identity().await?, "taken_ms": now_ms});
        sink.line(node("/", &value, &stat), header)?;
        let idgen = format!("{}/idgen", dump.root);
        if let Some((value, stat)) = dump.zk.get_full(&idgen).await? {
            sink.line(node(&idgen, &value, &stat), json!({}))?;
        }
        dump.below("/", true, sink).await?;
        dump.zk.sync_all().await?;
        dump.below("/", false, sink).await
    })
    .await
}

fn trees(inventory: &LedgerInventory) -> Vec<String> {
    let mut trees = needed(inventory.root(), inventory.others());
    trees.push(CLOCK.to_owned());
    trees
}

struct Dump<'a> {
    zk: &'a Zk,
    root: &'a str,
    trees: Vec<String>,
}

fn inside(path: &str, tree: &str) -> bool {
    path == tree || path.strip_prefix(tree).is_some_and(|rest| rest.starts_with('/'))
}

impl Dump<'_> {
    /// Whether the children of a node are wanted: it is in a tree, or above one.
    fn open(&self, path: &str) -> bool {
        self.trees.iter().any(|tree| inside(path, tree) || path == "/" || inside(tree, path))
    }

    /// Whether a node belongs to the ledgers, which go first, or to the rest. What is above them goes with them.
    fn ledgers(&self, path: &str) -> bool {
        inside(path, self.root) || inside(self.root, path)
    }

    /// Everything below a node: of the ledgers, or of the rest.
    async fn below(&self, top: &str, ledgers: bool, sink: &mut Sink) -> Result<()> {
        let mut open = vec![top.to_owned()];
        while let Some(path) = open.pop() {
            let names = self.zk.children(&path).await?.unwrap_or_default();
            let children = names.into_iter().map(|name| match path.as_str() {
                "/" => format!("/{name}"),
                path => format!("{path}/{name}"),
            });
            let idgen = format!("{}/idgen", self.root);
            let wanted: Vec<String> = children.filter(|child| *child != idgen).collect();
            let read = |child: String| async move {
                let got = self.zk.get_full(&child).await;
                (child, got)
            };
            let mut reads = stream::iter(wanted).map(read).buffered(self.zk.window());
            while let Some((child, got)) = reads.next().await {
                let Some((value, stat)) = got? else { continue };
                // Above the ledgers both rounds come by; each node is written by one of them.
                if self.ledgers(&child) == ledgers {
                    sink.line(node(&child, &value, &stat), json!({}))?;
                }
                let both = inside(self.root, &child) && child != self.root;
                if stat.num_children > 0 && self.open(&child) && (self.ledgers(&child) == ledgers || both) {
                    open.push(child);
                }
            }
        }
        Ok(())
    }
}
