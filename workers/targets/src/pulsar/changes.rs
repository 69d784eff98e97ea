//! What changes in a cluster's metadata, as ZooKeeper's persistent recursive watches tell it.
//!
//! Whatever interrupts the session ends them: a server does not tell what happened while no connection was there, not even when the client
//! sets its watches again (ZOOKEEPER-4698). Who goes on sets new ones, and reads everything after that.

use futures::future::{BoxFuture, FutureExt, select_all};
use zookeeper_client as zk;

use super::names::{self, TopicName};
use crate::error::{Class, Result, TargetError};
use crate::zk::Zk;
use crate::{Change, Changes};

/// Where topics, the policies of namespaces, and the policies that brokers may keep for topics are.
const ROOTS: [&str; 3] = ["/managed-ledgers", "/admin/policies", "/admin/topic-policies"];

/// Watches over the metadata, on a session of their own.
pub(super) struct Watches {
    /// Ends the session with the watches.
    _client: zk::Client,
    watchers: Vec<zk::PersistentWatcher>,
    over: bool,
}

impl Watches {
    /// Opens a session and sets the watches. Once this returns, nothing that changes is missed before [`Change::Missed`].
    pub(super) async fn set(zk: &Zk) -> Result<Watches> {
        let client = zk.open().await?;
        let mut watchers = Vec::with_capacity(ROOTS.len());
        for root in ROOTS {
            let what = || format!("setting a persistent recursive watch on {root} in ZooKeeper");
            let failed = |class, why: String| Err(TargetError::new(class, what(), why));
            zk.pace().one().await;
            let set = client.watch(root, zk::AddWatchMode::PersistentRecursive);
            match tokio::time::timeout(zk.options.request_timeout, set).await {
                Ok(Ok(watcher)) => watchers.push(watcher),
                Ok(Err(e @ (zk::Error::NoAuth | zk::Error::AuthFailed))) => {
                    return failed(Class::Refused, format!("{e}; give trimtab's user the right to read it"));
                }
                Ok(Err(zk::Error::Unimplemented)) => {
                    let why = "the server does not know such watches: ZooKeeper has them since 3.6";
                    return failed(Class::Refused, why.to_owned());
                }
                Ok(Err(e)) => return failed(Class::Transient, e.to_string()),
                Err(_) => {
                    let seconds = zk.options.request_timeout.as_secs();
                    return failed(Class::Transient, format!("no answer within {seconds} s"));
                }
            }
        }
        Ok(Watches { _client: client, watchers, over: false })
    }
}

impl Changes for Watches {
    fn next(&mut self) -> BoxFuture<'_, Change> {
        async move {
            while !self.over {
                let any = self.watchers.iter_mut().map(|watcher| watcher.changed().boxed());
                let (event, _, _) = select_all(any).await;
                if event.event_type == zk::EventType::Session {
                    self.over = true;
                    return Change::Missed(format!("the session with the watches is {:?}", event.session_state));
                }
                if let Some(change) = change_of(&event.path) {
                    return change;
                }
            }
            // A watcher must not be asked again after its session has ended.
            futures::future::pending().await
        }
        .boxed()
    }
}

/// What the change of a node means. None where nothing that is decided depends on it.
fn change_of(path: &str) -> Option<Change> {
    let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
    match parts.as_slice() {
        // A cursor below it is part of the topic. Names from before Pulsar 2.0 have one part more, and are only reported.
        ["managed-ledgers", tenant, namespace, "persistent", topic]
        | ["managed-ledgers", tenant, namespace, "persistent", topic, _] => {
            let name = TopicName::of_managed_ledger(&format!("{tenant}/{namespace}/persistent/{topic}"))?;
            (name.class == trimtab_events::TopicClass::User)
                .then(|| Change::Topic { shard: name.namespace.clone(), subject: name.subject() })
        }
        ["admin", "policies", tenant, namespace] => Some(Change::Shard(format!("{tenant}/{namespace}"))),
        ["admin", "topic-policies", "local" | "global", tenant, namespace, "persistent", topic] => {
            Some(match names::decode(topic) {
                // They are kept by the name that stands for all partitions.
                Some(local) => Change::Group {
                    shard: format!("{tenant}/{namespace}"),
                    subject: format!("persistent://{tenant}/{namespace}/{local}"),
                },
                None => Change::Shard(format!("{tenant}/{namespace}")),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_stands_for() {
        let topic = |subject: &str| Some(Change::Topic { shard: "t/n".to_owned(), subject: subject.to_owned() });
        for (path, change) in [
            ("/managed-ledgers/t/n/persistent/a+b%2Fc", topic("persistent://t/n/a b/c")),
            ("/managed-ledgers/t/n/persistent/p-partition-3/sub%2F1", topic("persistent://t/n/p-partition-3")),
            ("/managed-ledgers/t/n/persistent", None),
            ("/managed-ledgers", None),
            ("/managed-ledgers/t/n/persistent/__change_events", None),
            ("/managed-ledgers/t/c/n/persistent/old", None),
            ("/managed-ledgers/t/n/persistent/a%2bb", None),
            ("/admin/policies/t/n", Some(Change::Shard("t/n".to_owned()))),
            ("/admin/policies/t", None),
            (
                "/admin/topic-policies/local/t/n/persistent/a%2Fb",
                Some(Change::Group { shard: "t/n".to_owned(), subject: "persistent://t/n/a/b".to_owned() }),
            ),
            ("/admin/topic-policies/global/t/n/persistent/%", Some(Change::Shard("t/n".to_owned()))),
            ("", None),
            ("/", None),
        ] {
            assert_eq!(change_of(path), change, "{path}");
        }
    }
}
