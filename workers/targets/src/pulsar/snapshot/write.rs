//! Writes a snapshot of a live cluster, in scan order, at the reader's limited rate.

use std::path::Path;

use futures::stream::{self, StreamExt, TryStreamExt};
use serde_json::json;
use trimtab_events::Scope;

use crate::Inventory;
use crate::error::{Class, Result, TargetError};
use crate::pulsar::inventory::PulsarInventory;
use crate::pulsar::metadata::managed_ledger_info;
use crate::pulsar::names::TopicName;
use crate::pulsar::scope::ScopeFilter;
use crate::snapshot::{Sink, SnapshotTotals, node, to_file};

/// Writes everything that planning needs of a scope to a file. The file is complete, or the call fails; it is written under
/// another name and renamed at the end.
///
/// # Errors
/// When anything could not be read or written. A node that goes away meanwhile is left out.
pub async fn write(inventory: &PulsarInventory, scope: &Scope, path: &Path, now_ms: i64) -> Result<SnapshotTotals> {
    to_file(path, async |sink| write_all(inventory, scope, sink, now_ms).await).await
}

async fn write_all(inventory: &PulsarInventory, scope: &Scope, sink: &mut Sink, now_ms: i64) -> Result<()> {
    let zk = inventory.zk();
    let filter = ScopeFilter::new(scope)?;
    let gone = || TargetError::new(Class::Transient, "reading / in ZooKeeper", "the root of the chroot does not exist");
    let (value, stat) = zk.get_full("/").await?.ok_or_else(gone)?;
    let root = node("/", &value, &stat);
    let header = json!({"order": "scan-1", "source": inventory.identity().await?, "taken_ms": now_ms});
    sink.line(root.clone(), header)?;
    for path in inventory.ledger_roots() {
        one(inventory, sink, &path).await?;
    }
    for path in
        ["/admin/policies", "/admin/partitioned-topics", "/managed-ledgers", "/namespace", "/loadbalance/extension"]
    {
        one(inventory, sink, path).await?;
    }
    for shard in inventory.shards(scope).await? {
        sink.totals.shards += 1;
        namespace(inventory, sink, &shard, &filter).await?;
    }
    let lines = sink.totals.lines + 1;
    sink.line(root, json!({"end": lines}))
}

async fn one(inventory: &PulsarInventory, sink: &mut Sink, path: &str) -> Result<bool> {
    match inventory.zk().get_full(path).await? {
        Some((value, stat)) => sink.line(node(path, &value, &stat), json!({})).map(|()| true),
        None => Ok(false),
    }
}

async fn children(inventory: &PulsarInventory, sink: &mut Sink, path: &str) -> Result<()> {
    for name in inventory.zk().children(path).await?.unwrap_or_default() {
        one(inventory, sink, &format!("{path}/{name}")).await?;
    }
    Ok(())
}

async fn namespace(inventory: &PulsarInventory, sink: &mut Sink, shard: &str, filter: &ScopeFilter) -> Result<()> {
    let zk = inventory.zk();
    let root = format!("/managed-ledgers/{shard}/persistent");
    let Some(topics) = zk.children(&root).await? else {
        // Names from before Pulsar 2.0.
        for namespace in zk.children(&format!("/managed-ledgers/{shard}")).await?.unwrap_or_default() {
            let below = format!("/managed-ledgers/{shard}/{namespace}/persistent");
            let topics = zk.children(&below).await?.unwrap_or_default();
            let paths = topics.into_iter().map(|topic| format!("{shard}/{namespace}/persistent/{topic}")).collect();
            topics_of(inventory, sink, shard, paths, &[], filter).await?;
        }
        return Ok(());
    };
    if filter.whole_namespaces() {
        one(inventory, sink, &root).await?;
    }
    one(inventory, sink, &format!("/admin/policies/{shard}")).await?;
    one(inventory, sink, &format!("/admin/local-policies/{shard}")).await?;
    // The locks stand before the ledgers they are compared with. A bundle that is taken in between makes its topics look
    // left over instead of loaded; whoever acts looks again.
    let locks = format!("/namespace/{shard}");
    one(inventory, sink, &locks).await?;
    children(inventory, sink, &locks).await?;
    for kind in ["global", "local"] {
        children(inventory, sink, &format!("/admin/topic-policies/{kind}/{shard}/persistent")).await?;
    }
    let partitioned = zk.children(&format!("/admin/partitioned-topics/{shard}/persistent")).await?.unwrap_or_default();
    let paths = topics.into_iter().map(|topic| format!("{shard}/persistent/{topic}")).collect();
    topics_of(inventory, sink, shard, paths, &partitioned, filter).await
}

/// A topic's lines, in order: its last ledger, itself, its cursors.
async fn topic(inventory: &PulsarInventory, path: &str) -> Result<Vec<serde_json::Value>> {
    let full = format!("/managed-ledgers/{path}");
    let Some((value, stat)) = inventory.zk().get_full(&full).await? else { return Ok(Vec::new()) };
    let mut lines = Vec::new();
    if let Some(info) = managed_ledger_info(&value).ok().and_then(|list| list.ledgers.last().cloned())
        && let Some(path) = inventory.ledger_node(info.id).await?
        && let Some((value, stat)) = inventory.zk().get_full(&path).await?
    {
        lines.push(node(&path, &value, &stat));
    }
    let has_cursors = stat.num_children > 0;
    lines.push(node(&full, &value, &stat));
    if has_cursors {
        let names = inventory.zk().children(&full).await?.unwrap_or_default();
        let read = |name: String| {
            let path = format!("{full}/{name}");
            async move {
                Ok::<_, TargetError>(inventory.zk().get_full(&path).await?.map(|(v, stat)| node(&path, &v, &stat)))
            }
        };
        let cursors: Vec<Option<serde_json::Value>> = stream::iter(names).map(read).buffered(16).try_collect().await?;
        lines.extend(cursors.into_iter().flatten());
    }
    Ok(lines)
}

async fn topics_of(
    inventory: &PulsarInventory,
    sink: &mut Sink,
    shard: &str,
    paths: Vec<String>,
    partitioned: &[String],
    filter: &ScopeFilter,
) -> Result<()> {
    let wanted = |(base, path): &(String, String)| {
        // What tells whether topic policies are known always comes along.
        base.starts_with('a') || TopicName::of_managed_ledger(path).is_none_or(|name| filter.topic(&name))
    };
    let mut keyed: Vec<(String, String)> =
        paths.into_iter().map(|path| (super::sort::base_order(&path), path)).filter(wanted).collect();
    keyed.sort_unstable();
    let mut last_base = "";
    let window = inventory.zk().window();
    for chunk in keyed.chunks(window.saturating_mul(4).max(1)) {
        let read =
            chunk.iter().map(|(base, path)| async move { Ok::<_, TargetError>((base, topic(inventory, path).await?)) });
        let all: Vec<(&String, Vec<serde_json::Value>)> = stream::iter(read).buffered(window).try_collect().await?;
        for (base, lines) in all {
            if base != last_base && partitioned.binary_search_by(|name| name.as_str().cmp(&base[1..])).is_ok() {
                one(inventory, sink, &format!("/admin/partitioned-topics/{shard}/persistent/{}", &base[1..])).await?;
            }
            last_base = base;
            sink.totals.topics += u64::from(!lines.is_empty());
            for line in lines {
                sink.line(line, json!({}))?;
            }
        }
    }
    Ok(())
}
