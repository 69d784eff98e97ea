//! The store in memory, on the runtime's clock: for tests that run thousands of workers' lives on a clock that does not wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, ready};
use tokio::time::Instant;

use crate::{BusError, Document, Expect, Lease, Result, Store, names};

/// The store in memory. Every call is done at once.
#[derive(Default)]
pub struct MemoryStore(Mutex<State>);

#[derive(Default)]
struct State {
    buckets: BTreeMap<String, Bucket>,
    leases: BTreeMap<String, Held>,
    fence: u64,
}

#[derive(Default)]
struct Bucket {
    documents: BTreeMap<String, (Vec<u8>, u64)>,
    revision: u64,
}

struct Held {
    holder: String,
    lease: Lease,
    until: Instant,
}

fn conflict(bucket: &str, key: &str) -> BusError {
    BusError::Conflict { bucket: bucket.to_owned(), key: key.to_owned() }
}

impl MemoryStore {
    // Nothing that holds this lock can panic half-way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a lease end before its time, as a store that lost it would.
    pub fn lose_lease(&self, name: &str) {
        self.lock().leases.remove(name);
    }

    fn read(&self, bucket: &str, key: &str) -> Result<Option<Document>> {
        names::bucket(bucket)?;
        names::key(bucket, key)?;
        let state = self.lock();
        let found = state.buckets.get(bucket).and_then(|bucket| bucket.documents.get(key));
        Ok(found.map(|(value, revision)| Document { key: key.to_owned(), value: value.clone(), revision: *revision }))
    }

    /// Writes or, without a value, removes.
    fn write(&self, bucket: &str, key: &str, value: Option<&[u8]>, expect: Expect) -> Result<u64> {
        names::bucket(bucket)?;
        names::key(bucket, key)?;
        if let Some(value) = value {
            names::value(bucket, key, value)?;
        }
        let mut state = self.lock();
        let there = state.buckets.entry(bucket.to_owned()).or_default();
        let found = there.documents.get(key).map(|(_, revision)| *revision);
        let as_expected = match expect {
            Expect::Anything => true,
            Expect::Absent => found.is_none(),
            Expect::Revision(revision) => found == Some(revision),
        };
        if !as_expected {
            return Err(conflict(bucket, key));
        }
        there.revision += 1;
        match value {
            Some(value) => drop(there.documents.insert(key.to_owned(), (value.to_vec(), there.revision))),
            None => drop(there.documents.remove(key)),
        }
        Ok(there.revision)
    }

    fn page(&self, bucket: &str, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Document>> {
        names::bucket(bucket)?;
        names::prefix(bucket, prefix)?;
        let state = self.lock();
        let Some(there) = state.buckets.get(bucket) else { return Ok(Vec::new()) };
        let of_prefix = there.documents.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let later = of_prefix.filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
        let document = |(key, (value, revision)): (&String, &(Vec<u8>, u64))| Document {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        };
        Ok(later.take(limit).map(document).collect())
    }

    fn take(&self, name: &str, holder: &str, ttl: Duration) -> Result<Option<Lease>> {
        names::lease(name, holder)?;
        let mut state = self.lock();
        let now = Instant::now();
        if state.leases.get(name).is_some_and(|held| held.until > now) {
            return Ok(None);
        }
        state.fence += 1;
        let lease = Lease { name: name.to_owned(), fence: state.fence, revision: state.fence, ttl };
        let held = Held { holder: holder.to_owned(), lease: lease.clone(), until: now + ttl };
        state.leases.insert(name.to_owned(), held);
        Ok(Some(lease))
    }

    fn prolong(&self, lease: &mut Lease, holder: &str) -> Result<()> {
        names::lease(&lease.name, holder)?;
        let mut state = self.lock();
        let now = Instant::now();
        let revision = state.fence + 1;
        let held = state.leases.get_mut(&lease.name);
        // An expired one is lost even if nobody took it yet: whoever looks now may believe it is free.
        let Some(held) = held.filter(|held| held.holder == holder && held.lease == *lease && held.until > now) else {
            return Err(conflict("lease", &lease.name));
        };
        lease.revision = revision;
        (held.lease, held.until) = (lease.clone(), now + lease.ttl);
        state.fence = revision;
        Ok(())
    }
}

impl Store for MemoryStore {
    fn get<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        ready(self.read(bucket, key)).boxed()
    }

    fn put<'a>(&'a self, bucket: &'a str, key: &'a str, value: &'a [u8], expect: Expect) -> BoxFuture<'a, Result<u64>> {
        async move { self.write(bucket, key, Some(value), expect) }.boxed()
    }

    fn delete<'a>(&'a self, bucket: &'a str, key: &'a str, expect: Expect) -> BoxFuture<'a, Result<()>> {
        async move { self.write(bucket, key, None, expect).map(drop) }.boxed()
    }

    fn list<'a>(
        &'a self,
        bucket: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Document>>> {
        async move { self.page(bucket, prefix, after, limit) }.boxed()
    }

    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, ttl: Duration) -> BoxFuture<'a, Result<Option<Lease>>> {
        async move { self.take(name, holder, ttl) }.boxed()
    }

    fn renew<'a>(&'a self, lease: &'a mut Lease, holder: &'a str) -> BoxFuture<'a, Result<()>> {
        async move { self.prolong(lease, holder) }.boxed()
    }

    fn release(&self, lease: Lease) -> BoxFuture<'_, Result<()>> {
        async move {
            let mut state = self.lock();
            if state.leases.get(&lease.name).is_some_and(|held| held.lease == lease) {
                state.leases.remove(&lease.name);
            }
            Ok(())
        }
        .boxed()
    }
}
