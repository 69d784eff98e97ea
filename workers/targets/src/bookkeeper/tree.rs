//! Reading a tree of nodes, whoever holds it.

use futures::future::{BoxFuture, FutureExt};

use crate::error::{Class, Result};
use crate::zk::{Stat, Zk};

/// A node's value with its stat.
pub type Valued = (Vec<u8>, Stat);
/// The names of a node's children, sorted, with its stat.
pub type Named = (Vec<String>, Stat);

/// A tree of nodes as ZooKeeper has it. `None` is said only when a server answered that there is no such node.
pub trait Tree: Send + Sync {
    /// A node's value.
    fn get<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Valued>>>;
    /// The names of a node's children. Fails when the listing does not agree with its own count.
    fn children<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Named>>>;
    /// A node's stat.
    fn stat<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Stat>>>;
    /// Brings every server that is read from up to the present.
    fn sync(&self) -> BoxFuture<'_, Result<()>>;
    /// Changes when a session is lost: what is read through another one may be older than what was read before.
    fn generation(&self) -> u64;
    /// Requests that may usefully be in flight at once.
    fn window(&self) -> usize;
    /// Requests made so far.
    fn operations(&self) -> u64;
}

/// Makes a request once more when it failed.
pub(super) async fn again<'a, T>(request: impl Fn() -> BoxFuture<'a, Result<T>>) -> Result<T> {
    match request().await {
        Err(e) if e.class() == Class::Transient => request().await,
        done => done,
    }
}

impl Tree for Zk {
    fn get<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Valued>>> {
        Zk::get(self, path).boxed()
    }

    fn children<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Named>>> {
        self.children_stat(path).boxed()
    }

    fn stat<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<Option<Stat>>> {
        Zk::stat(self, path).boxed()
    }

    fn sync(&self) -> BoxFuture<'_, Result<()>> {
        self.sync_all().boxed()
    }

    fn generation(&self) -> u64 {
        self.opened()
    }

    fn window(&self) -> usize {
        Zk::window(self)
    }

    fn operations(&self) -> u64 {
        self.pace().made()
    }
}
