//! The store in NATS: a bucket is a stream `KV_tt_<bucket>` with one message per key, and readable by `nats kv`.
//!
//! Plain publishes and reads, not the client's KV calls: those drop the time to live on an update, and so a lease that is
//! renewed through them never ends.
//!
//! A key's `/` becomes the separator `.` of subjects, so that a listing by prefix is answered by the server, and its `.`
//! becomes `=`, which no key of ours has: `a/b.c` is `a.b=c` in `nats kv ls`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, sleep};

use crate::jetstream::{Attempt, Link, NatsOptions, Stored, ensure_stream, jitter};
use crate::{BusError, Document, Expect, Lease, Result, Store, names};

/// How long a write is repeated that failed for a reason that passes.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a write that lost a race with a mark of deletion is tried.
const RACES: usize = 8;
/// How long the mark of a deletion stays. It tells readers of `nats kv watch`; we need none.
const MARK_AGE: Duration = Duration::from_secs(3600);
/// The mark of a lease that was given up; a taker need not wait for its end.
const RELEASED_AGE: Duration = Duration::from_secs(1);
/// Documents that are read at once by a listing.
const READS: usize = 32;
/// Keys that one step of a listing keeps.
const STEP: usize = 1_000;
const BUCKET_BYTES: i64 = 512 * 1024 * 1024;
/// Marks one write, so that it is recognised after an answer that was lost.
const WRITE_ID: &str = "Trimtab-Write";
const OPERATION: &str = "KV-Operation";
const TTL: &str = "Nats-TTL";
/// The bucket of leases.
pub(crate) const LEASES: &str = "lease";

/// The store in NATS.
#[derive(Clone)]
pub struct KvStore {
    inner: Arc<Inner>,
}

struct Inner {
    link: Link,
    replicas: usize,
    create: bool,
    /// Buckets that were seen to exist.
    ready: Mutex<HashSet<String>>,
}

/// What became of a write.
enum Written {
    At(u64),
    NotAsExpected,
}

fn stream_of(bucket: &str) -> String {
    format!("KV_tt_{bucket}")
}

/// The subject of a key, whose characters were checked.
fn subject_of(bucket: &str, key: &str) -> String {
    let mut subject = format!("$KV.tt_{bucket}.");
    subject.extend(key.chars().map(|c| match c {
        '/' => '.',
        '.' => '=',
        other => other,
    }));
    subject
}

/// The key of a subject; none for keys that somebody else put there.
fn key_of(bucket: &str, subject: &str) -> Option<String> {
    let name = subject.strip_prefix("$KV.tt_")?.strip_prefix(bucket)?.strip_prefix('.')?;
    let key: String = name
        .chars()
        .map(|c| match c {
            '.' => '/',
            '=' => '.',
            other => other,
        })
        .collect();
    names::key(bucket, &key).is_ok().then_some(key)
}

/// The stream behind a bucket.
pub(crate) fn config(bucket: &str, replicas: usize) -> Config {
    Config {
        name: stream_of(bucket),
        subjects: vec![format!("$KV.tt_{bucket}.>")],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        max_messages: -1,
        max_bytes: BUCKET_BYTES,
        max_messages_per_subject: 1,
        storage: StorageType::File,
        num_replicas: replicas,
        allow_rollup: true,
        deny_delete: true,
        allow_message_ttl: true,
        duplicate_window: Duration::from_secs(120),
        // Revisions and fences are sequences of the stream. They begin at the time it was made: should it be lost and made
        // anew, they go on growing, and nobody takes an old one for a new one.
        first_sequence: Some(crate::wall_clock_ms().max(1).cast_unsigned()),
        ..Config::default()
    }
}

fn conflict(bucket: &str, key: &str) -> BusError {
    BusError::Conflict { bucket: bucket.to_owned(), key: key.to_owned() }
}

/// Servers count times to live in whole seconds; a part of one counts as one, so that no lease ends early.
fn ttl_text(ttl: Duration) -> String {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    format!("{}s", seconds.max(1))
}

/// A message that says that its key is gone.
fn is_mark(stored: &Stored) -> bool {
    matches!(stored.header(OPERATION), Some("DEL" | "PURGE")) || stored.header("Nats-Marker-Reason").is_some()
}

fn mark(age: Duration) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(OPERATION, "PURGE");
    headers.insert("Nats-Rollup", "sub");
    headers.insert(TTL, ttl_text(age));
    headers
}

impl KvStore {
    /// Connects. Buckets come into being when they are first used, if the options say so (`create`).
    ///
    /// # Errors
    /// As [`crate::JetStream::connect`].
    pub async fn connect(options: &NatsOptions) -> Result<KvStore> {
        let link = Link::connect(options).await?;
        Ok(KvStore::over(link, options.replicas, options.create))
    }

    pub(crate) fn over(link: Link, replicas: usize, create: bool) -> KvStore {
        KvStore { inner: Arc::new(Inner { link, replicas, create, ready: Mutex::default() }) }
    }

    /// Makes these buckets, and the one of leases: for the set-up of workers that may not create anything themselves.
    ///
    /// # Errors
    /// [`BusError::Refused`] when one exists and is not as it must be, naming each difference.
    pub async fn setup(&self, buckets: &[&str]) -> Result<()> {
        for bucket in buckets {
            names::bucket(bucket)?;
        }
        for bucket in buckets.iter().chain([&LEASES]) {
            ensure_stream(&self.inner.link, &config(bucket, self.inner.replicas), true, false).await?;
        }
        Ok(())
    }

    fn ready(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the bucket if it may. Without that right there is nothing to look at: the access itself tells.
    async fn prepare(&self, bucket: &str) -> Result<()> {
        if !self.inner.create || self.ready().contains(bucket) {
            return Ok(());
        }
        ensure_stream(&self.inner.link, &config(bucket, self.inner.replicas), true, false).await?;
        self.ready().insert(bucket.to_owned());
        Ok(())
    }

    async fn last(&self, bucket: &str, key: &str) -> Result<Option<Stored>> {
        self.prepare(bucket).await?;
        let which = serde_json::json!({ "last_by_subj": subject_of(bucket, key) });
        let what = format!("read document {bucket}/{key}");
        let found = self.inner.link.get_message(&what, &stream_of(bucket), &which).await;
        if found.is_err() {
            // Perhaps the bucket was lost: the next access looks, and makes it anew.
            self.ready().remove(bucket);
        }
        found
    }

    /// Writes if the key's last sequence is `expected`.
    async fn write(
        &self,
        bucket: &str,
        key: &str,
        headers: HeaderMap,
        value: Bytes,
        expected: Option<u64>,
    ) -> Result<Written> {
        self.prepare(bucket).await?;
        let what = || format!("write document {bucket}/{key}");
        let write_id = uuid::Uuid::now_v7().to_string();
        let mut headers = headers;
        headers.insert(WRITE_ID, write_id.as_str());
        if let Some(expected) = expected {
            headers.insert(async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
        }
        let subject = subject_of(bucket, key);
        let deadline = Instant::now() + PATIENCE;
        let mut delay = Duration::from_millis(50);
        let mut unsure = false;
        loop {
            match self.inner.link.attempt(&subject, headers.clone(), value.clone()).await {
                Attempt::Stored { sequence, .. } => return Ok(Written::At(sequence)),
                Attempt::NotAsExpected => {
                    // Perhaps it is our own write that is in the way: stored, and the answer lost.
                    let found = if unsure { self.last(bucket, key).await? } else { None };
                    let ours = found.filter(|found| found.header(WRITE_ID) == Some(write_id.as_str()));
                    return Ok(ours.map_or(Written::NotAsExpected, |found| Written::At(found.sequence)));
                }
                Attempt::Full => return Err(BusError::Full { queue: stream_of(bucket) }),
                Attempt::Never(why) => return Err(BusError::Refused { what: what(), why }),
                Attempt::Passing(why) => {
                    unsure = true;
                    if Instant::now() >= deadline {
                        self.ready().remove(bucket);
                        return Err(BusError::Unavailable { what: what(), why });
                    }
                    sleep(delay / 2 + jitter(delay / 2)).await;
                    delay = (delay * 2).min(Duration::from_secs(1));
                }
            }
        }
    }

    /// Writes where no document is: no message, or the mark of a deletion. None when there is a document.
    async fn create(&self, bucket: &str, key: &str, headers: HeaderMap, value: Bytes) -> Result<Option<u64>> {
        let mut expected = 0;
        for _ in 0..RACES {
            if let Written::At(revision) =
                self.write(bucket, key, headers.clone(), value.clone(), Some(expected)).await?
            {
                return Ok(Some(revision));
            }
            expected = match self.last(bucket, key).await? {
                None => 0,
                Some(found) if is_mark(&found) => found.sequence,
                Some(_) => return Ok(None),
            };
        }
        Ok(None)
    }

    async fn remove(&self, bucket: &str, key: &str, expect: Expect) -> Result<()> {
        for _ in 0..RACES {
            let found = self.last(bucket, key).await?.filter(|found| !is_mark(found));
            let sequence = match (found.map(|found| found.sequence), expect) {
                (None, Expect::Revision(_)) | (Some(_), Expect::Absent) => return Err(conflict(bucket, key)),
                (None, _) => return Ok(()),
                (Some(found), Expect::Revision(wanted)) if found != wanted => return Err(conflict(bucket, key)),
                (Some(found), _) => found,
            };
            match self.write(bucket, key, mark(MARK_AGE), Bytes::new(), Some(sequence)).await? {
                Written::At(_) => return Ok(()),
                Written::NotAsExpected if expect == Expect::Anything => {}
                Written::NotAsExpected => return Err(conflict(bucket, key)),
            }
        }
        Err(BusError::Unavailable {
            what: format!("delete document {bucket}/{key}"),
            why: format!("others wrote it {RACES} times meanwhile"),
        })
    }

    /// The first keys after `after` with this prefix, at most `most`, deleted ones included. The server tells all keys
    /// under the prefix in no order, so this takes time with their number; memory only with `most`.
    async fn keys(&self, bucket: &str, prefix: &str, after: Option<&str>, most: usize) -> Result<BTreeSet<String>> {
        let whole_parts = prefix.rfind('/').map_or("", |end| &prefix[..=end]);
        let filter = subject_of(bucket, whole_parts) + ">";
        let what = format!("list documents of {bucket} with prefix {prefix:?}");
        let mut keys = BTreeSet::new();
        let mut offset = 0;
        loop {
            let request = serde_json::json!({ "subjects_filter": filter, "offset": offset });
            let subject = format!("STREAM.INFO.{}", stream_of(bucket));
            let page = self.inner.link.api::<SubjectsPage>(&what, &subject, &request).await?;
            let page = page.map_err(|e| BusError::Refused { what: what.clone(), why: e.to_string() })?;
            let subjects = page.state.subjects.unwrap_or_default();
            if subjects.is_empty() {
                return Ok(keys);
            }
            offset += subjects.len();
            for key in subjects.keys().filter_map(|subject| key_of(bucket, subject)) {
                if key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after) {
                    keys.insert(key);
                    if keys.len() > most {
                        keys.pop_last();
                    }
                }
            }
            if offset >= page.total {
                return Ok(keys);
            }
        }
    }

    async fn find(&self, bucket: &str, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Document>> {
        self.prepare(bucket).await?;
        let mut after = after.map(str::to_owned);
        let mut documents = Vec::new();
        while documents.len() < limit {
            let most = (limit - documents.len()).saturating_add(READS).min(STEP);
            let keys = self.keys(bucket, prefix, after.as_deref(), most).await?;
            let was_last = keys.len() < most;
            after = keys.last().cloned().or(after);
            let found: Vec<Option<Document>> = stream::iter(keys)
                .map(|key| async move { self.document(bucket, key).await })
                .buffered(READS)
                .try_collect()
                .await?;
            documents.extend(found.into_iter().flatten());
            if was_last {
                break;
            }
        }
        documents.truncate(limit);
        Ok(documents)
    }

    async fn document(&self, bucket: &str, key: String) -> Result<Option<Document>> {
        let found = self.last(bucket, &key).await?.filter(|found| !is_mark(found));
        Ok(found.map(|found| Document { key, value: found.payload, revision: found.sequence }))
    }
}

#[derive(serde::Deserialize)]
struct SubjectsPage {
    #[serde(default)]
    total: usize,
    state: Subjects,
}

#[derive(serde::Deserialize)]
struct Subjects {
    subjects: Option<HashMap<String, u64>>,
}

impl Store for KvStore {
    fn get<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        Box::pin(async move {
            names::bucket(bucket)?;
            names::key(bucket, key)?;
            self.document(bucket, key.to_owned()).await
        })
    }

    fn put<'a>(&'a self, bucket: &'a str, key: &'a str, value: &'a [u8], expect: Expect) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            names::bucket(bucket)?;
            names::key(bucket, key)?;
            names::value(bucket, key, value)?;
            let value = Bytes::copy_from_slice(value);
            let expected = match expect {
                Expect::Absent => {
                    let made = self.create(bucket, key, HeaderMap::new(), value).await?;
                    return made.ok_or_else(|| conflict(bucket, key));
                }
                Expect::Anything => None,
                Expect::Revision(revision) => Some(revision),
            };
            match self.write(bucket, key, HeaderMap::new(), value, expected).await? {
                Written::At(revision) => Ok(revision),
                Written::NotAsExpected => Err(conflict(bucket, key)),
            }
        })
    }

    fn delete<'a>(&'a self, bucket: &'a str, key: &'a str, expect: Expect) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            names::bucket(bucket)?;
            names::key(bucket, key)?;
            self.remove(bucket, key, expect).await
        })
    }

    fn list<'a>(
        &'a self,
        bucket: &'a str,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Document>>> {
        Box::pin(async move {
            names::bucket(bucket)?;
            names::prefix(bucket, prefix)?;
            self.find(bucket, prefix, after, limit).await
        })
    }

    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, ttl: Duration) -> BoxFuture<'a, Result<Option<Lease>>> {
        Box::pin(async move {
            names::lease(name, holder)?;
            let granted = self.create(LEASES, name, lasting(ttl), Bytes::copy_from_slice(holder.as_bytes())).await?;
            Ok(granted.map(|fence| Lease { name: name.to_owned(), fence, revision: fence, ttl }))
        })
    }

    fn renew<'a>(&'a self, lease: &'a mut Lease, holder: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            names::lease(&lease.name, holder)?;
            let value = Bytes::copy_from_slice(holder.as_bytes());
            match self.write(LEASES, &lease.name, lasting(lease.ttl), value, Some(lease.revision)).await? {
                Written::At(revision) => {
                    lease.revision = revision;
                    Ok(())
                }
                Written::NotAsExpected => Err(conflict(LEASES, &lease.name)),
            }
        })
    }

    fn release(&self, lease: Lease) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            names::key(LEASES, &lease.name)?;
            // Not as expected: it was lost, and whoever has it keeps it.
            self.write(LEASES, &lease.name, mark(RELEASED_AGE), Bytes::new(), Some(lease.revision)).await.map(drop)
        })
    }
}

fn lasting(ttl: Duration) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(TTL, ttl_text(ttl));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_subjects_are_one_to_one() {
        for key in ["a", "a/b", "a.b", "a/b.c-d_e/F.0"] {
            assert_eq!(key_of("b", &subject_of("b", key)).as_deref(), Some(key));
        }
        assert_eq!(subject_of("b", "a/b.c"), "$KV.tt_b.a.b=c");
        assert_eq!(key_of("b", "$KV.tt_other.a"), None);
        assert_eq!(key_of("b", "$KV.tt_b.a b"), None);
    }

    #[test]
    fn times_to_live_are_never_shortened() {
        assert_eq!(ttl_text(Duration::ZERO), "1s");
        assert_eq!(ttl_text(Duration::from_millis(2_001)), "3s");
        assert_eq!(ttl_text(Duration::from_secs(60)), "60s");
    }
}
