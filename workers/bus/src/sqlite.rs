//! The store in one SQLite file, for everything in one process. `sqlite3 FILE 'select * from documents'` shows it.
//!
//! One process at a time: SQLite would let two write in turn, but leases and counters of two processes that do not know of
//! each other are a mistake in the set-up, and it is told as one.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::{BusError, Document, Expect, Lease, Result, Store, names};

/// `trim` in ASCII: marks the file as ours.
const APPLICATION_ID: i32 = 0x7472_696d;
/// Version of the tables.
const LAYOUT: i32 = 2;
/// The first one had documents without row ids.
const FIRST_LAYOUT: i32 = 1;

// With row ids, and the value last: values are large, and neither a search for a key nor a look at a revision may read any.
const DOCUMENTS: &str = "
    CREATE TABLE documents (
        bucket TEXT NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (bucket, key)
    );
";

const OTHER_TABLES: &str = "
    -- The last revision outlives the document that had it: a revision must never come twice.
    CREATE TABLE revisions (bucket TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE leases (
        name TEXT PRIMARY KEY, holder TEXT NOT NULL, fence INTEGER NOT NULL, revision INTEGER NOT NULL,
        expires_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
";

/// Under this name the leases count in `revisions`; no bucket may be called so.
const LEASES: &str = ".leases";

/// Milliseconds since 1970 by the system's clock.
pub fn wall_clock_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// The store in one SQLite file.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    connection: Mutex<Connection>,
    clock: fn() -> i64,
    /// Locked as long as it is open; the system frees it when the process dies, however it dies.
    _lock: File,
}

impl SqliteStore {
    /// Opens the file, or makes it. Blocks for a moment.
    ///
    /// # Errors
    /// [`BusError::Refused`], saying what to do, when another process has it, when it is not a store of ours or a newer
    /// one, when it is damaged, or when it cannot be read and written.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteStore> {
        SqliteStore::open_with_clock(path, wall_clock_ms)
    }

    /// The same with another clock for leases, in milliseconds since 1970.
    ///
    /// # Errors
    /// As [`SqliteStore::open`].
    pub fn open_with_clock(path: impl AsRef<Path>, clock: fn() -> i64) -> Result<SqliteStore> {
        let path = path.as_ref().to_path_buf();
        let lock = lock_beside(&path)?;
        let connection = prepare(&path).map_err(|e| unusable(&path, &e))?;
        Ok(SqliteStore { inner: Arc::new(Inner { path, connection: Mutex::new(connection), clock, _lock: lock }) })
    }

    /// Runs `work` in one transaction on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        what: String,
        work: impl FnOnce(&Transaction<'_>, i64) -> rusqlite::Result<Result<T>> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        let task = tokio::task::spawn_blocking(move || {
            // A panic inside rolls the transaction back, so the connection stays usable.
            let mut connection = inner.connection.lock().unwrap_or_else(PoisonError::into_inner);
            let now_ms = (inner.clock)();
            let outcome =
                connection.transaction_with_behavior(TransactionBehavior::Immediate).and_then(|transaction| {
                    let answer = work(&transaction, now_ms)?;
                    // Refusals changed nothing; committing them would cost a write to the disk.
                    if answer.is_ok() {
                        transaction.commit()?;
                    }
                    Ok(answer)
                });
            outcome.unwrap_or_else(|e| Err(failed(what, &inner.path, &e)))
        });
        task.await.unwrap_or_else(|e| {
            Err(BusError::Unavailable { what: "use the store".to_owned(), why: format!("its thread ended: {e}") })
        })
    }
}

fn lock_beside(path: &Path) -> Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock_path = PathBuf::from(name);
    let what = || format!("open store {}", path.display());
    let file = OpenOptions::new().create(true).append(true).open(&lock_path).map_err(|e| BusError::Refused {
        what: what(),
        why: format!("cannot open {}: {e}; its folder must exist and be writable", lock_path.display()),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(BusError::Refused {
            what: what(),
            why: format!(
                "another process uses it (it holds {}); stop that one, or give this one another file",
                lock_path.display()
            ),
        }),
        Err(TryLockError::Error(e)) => Err(BusError::Refused {
            what: what(),
            why: format!("cannot lock {}: {e}; use a file system that has locks", lock_path.display()),
        }),
    }
}

fn prepare(path: &Path) -> std::result::Result<Connection, Unusable> {
    let mut connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (application, layout) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    match (application, layout, tables) {
        (APPLICATION_ID, FIRST_LAYOUT | LAYOUT, _) => {}
        (APPLICATION_ID, newer, _) => return Err(Unusable::Layout(newer)),
        (0, 0, 0) => {}
        _ => return Err(Unusable::Foreign),
    }
    // WAL: readers from outside (sqlite3) and our writer do not wait for each other. FULL: a write is on the disk when it
    // is answered, in WAL mode too.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    if tables == 0 {
        // In one transaction, so that a crash leaves either an empty file or a whole store.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(DOCUMENTS)?;
        transaction.execute_batch(OTHER_TABLES)?;
        transaction.pragma_update(None, "user_version", LAYOUT)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.commit()?;
        return Ok(connection);
    }
    let check: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if check != "ok" {
        return Err(Unusable::Damaged(check));
    }
    if layout == FIRST_LAYOUT {
        renew(&mut connection)?;
    }
    // Nobody else can have the file open: whoever held a lease is gone, however long it says that it lasts. Fencing numbers go on.
    connection.execute("DELETE FROM leases", [])?;
    Ok(connection)
}

/// Brings the documents of the first layout into the present one, or leaves the file as it is.
fn renew(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch("ALTER TABLE documents RENAME TO before")?;
    transaction.execute_batch(DOCUMENTS)?;
    transaction.execute_batch("INSERT INTO documents SELECT bucket, key, revision, value FROM before")?;
    transaction.execute_batch("DROP TABLE before")?;
    transaction.pragma_update(None, "user_version", LAYOUT)?;
    transaction.commit()
}

enum Unusable {
    Foreign,
    Layout(i32),
    Damaged(String),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Unusable {
    fn from(error: rusqlite::Error) -> Self {
        Unusable::Sqlite(error)
    }
}

/// What is lost with the file, in one place, because three messages end with it.
const WITHOUT_IT: &str = "move it away to begin with an empty one: the next scan starts from the beginning, nothing else is \
                          lost but what was noted about postponed work";

fn unusable(path: &Path, error: &Unusable) -> BusError {
    let why = match error {
        Unusable::Foreign => "it is a SQLite database of another program; give another file".to_owned(),
        Unusable::Layout(newer) => {
            format!(
                "its tables have version {newer}, this program knows {LAYOUT}; use the newer program, or {WITHOUT_IT}"
            )
        }
        Unusable::Damaged(why) => format!("it is damaged ({why}); {WITHOUT_IT}"),
        Unusable::Sqlite(e) => match e.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => "it is not a SQLite database; give another file".to_owned(),
            Some(ErrorCode::DatabaseCorrupt) => format!("it is damaged ({e}); {WITHOUT_IT}"),
            _ => format!("{e}; the file and its folder must be readable and writable"),
        },
    };
    BusError::Refused { what: format!("open store {}", path.display()), why }
}

fn failed(what: String, path: &Path, error: &rusqlite::Error) -> BusError {
    let what = format!("{what} in {}", path.display());
    match error.sqlite_error_code() {
        Some(
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::SystemIoFailure | ErrorCode::DiskFull,
        ) => BusError::Unavailable { what, why: error.to_string() },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            BusError::Refused { what, why: format!("the file is damaged ({error}); stop, then {WITHOUT_IT}") }
        }
        _ => BusError::Refused { what, why: error.to_string() },
    }
}

fn next_revision(transaction: &Transaction<'_>, bucket: &str) -> rusqlite::Result<i64> {
    transaction
        .prepare_cached(
            "INSERT INTO revisions VALUES (?1, 1) ON CONFLICT (bucket) DO UPDATE SET last = last + 1 RETURNING last",
        )?
        .query_row([bucket], |row| row.get(0))
}

fn revision_of(transaction: &Transaction<'_>, bucket: &str, key: &str) -> rusqlite::Result<Option<u64>> {
    transaction
        .prepare_cached("SELECT revision FROM documents WHERE bucket = ?1 AND key = ?2")?
        .query_row([bucket, key], |row| row.get::<_, i64>(0))
        .optional()
        .map(|found| found.map(i64::cast_unsigned))
}

fn is_as_expected(found: Option<u64>, expect: Expect) -> bool {
    match expect {
        Expect::Anything => true,
        Expect::Absent => found.is_none(),
        Expect::Revision(revision) => found == Some(revision),
    }
}

fn conflict(bucket: &str, key: &str) -> BusError {
    BusError::Conflict { bucket: bucket.to_owned(), key: key.to_owned() }
}

fn document(row: &rusqlite::Row<'_>) -> rusqlite::Result<Document> {
    Ok(Document { key: row.get(0)?, value: row.get(1)?, revision: row.get::<_, i64>(2)?.cast_unsigned() })
}

impl Store for SqliteStore {
    fn get<'a>(&'a self, bucket: &'a str, key: &'a str) -> BoxFuture<'a, Result<Option<Document>>> {
        Box::pin(async move {
            names::bucket(bucket)?;
            names::key(bucket, key)?;
            let (b, k) = (bucket.to_owned(), key.to_owned());
            self.run(format!("read document {bucket}/{key}"), move |transaction, _| {
                transaction
                    .prepare_cached("SELECT key, value, revision FROM documents WHERE bucket = ?1 AND key = ?2")?
                    .query_row([b, k], document)
                    .optional()
                    .map(Ok)
            })
            .await
        })
    }

    fn put<'a>(&'a self, bucket: &'a str, key: &'a str, value: &'a [u8], expect: Expect) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            names::bucket(bucket)?;
            names::key(bucket, key)?;
            names::value(bucket, key, value)?;
            let (b, k, v) = (bucket.to_owned(), key.to_owned(), value.to_vec());
            self.run(format!("write document {bucket}/{key}"), move |transaction, _| {
                if !is_as_expected(revision_of(transaction, &b, &k)?, expect) {
                    return Ok(Err(conflict(&b, &k)));
                }
                let revision = next_revision(transaction, &b)?;
                transaction
                    .prepare_cached(
                        "INSERT INTO documents VALUES (?1, ?2, ?3, ?4)
                         ON CONFLICT (bucket, key) DO UPDATE SET revision = ?3, value = ?4",
                    )?
                    .execute(params![b, k, revision, v])?;
                Ok(Ok(revision.cast_unsigned()))
            })
            .await
        })
    }

    fn delete<'a>(&'a self, bucket: &'a str, key: &'a str, expect: Expect) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            names::bucket(bucket)?;
            names::key(bucket, key)?;
            let (b, k) = (bucket.to_owned(), key.to_owned());
            self.run(format!("delete document {bucket}/{key}"), move |transaction, _| {
                if !is_as_expected(revision_of(transaction, &b, &k)?, expect) {
                    return Ok(Err(conflict(&b, &k)));
                }
                transaction
                    .prepare_cached("DELETE FROM documents WHERE bucket = ?1 AND key = ?2")?
                    .execute([b, k])
                    .map(|_| Ok(()))
            })
            .await
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
            let (b, p, a) = (bucket.to_owned(), prefix.to_owned(), after.unwrap_or_default().to_owned());
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            self.run(format!("list documents of {bucket} with prefix {prefix:?}"), move |transaction, _| {
                // '~' sorts after every character a key may have, so this is the range of the prefix, and uses the index.
                let end = format!("{p}~");
                transaction
                    .prepare_cached(
                        "SELECT key, value, revision FROM documents
                         WHERE bucket = ?1 AND key >= ?2 AND key < ?3 AND key > ?4 ORDER BY key LIMIT ?5",
                    )?
                    .query_map(params![b, p, end, a, limit], document)?
                    .collect::<rusqlite::Result<Vec<_>>>()
                    .map(Ok)
            })
            .await
        })
    }

    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, ttl: Duration) -> BoxFuture<'a, Result<Option<Lease>>> {
        Box::pin(async move {
            names::lease(name, holder)?;
            let (n, h) = (name.to_owned(), holder.to_owned());
            self.run(format!("take lease {name}"), move |transaction, now_ms| {
                let expires_ms: Option<i64> = transaction
                    .query_row("SELECT expires_ms FROM leases WHERE name = ?1", [&n], |row| row.get(0))
                    .optional()?;
                if expires_ms.is_some_and(|expires_ms| expires_ms > now_ms) {
                    return Ok(Ok(None));
                }
                let fence = next_revision(transaction, LEASES)?;
                transaction.execute(
                    "INSERT OR REPLACE INTO leases VALUES (?1, ?2, ?3, ?3, ?4)",
                    params![n, h, fence, end_of(now_ms, ttl)],
                )?;
                let fence = fence.cast_unsigned();
                Ok(Ok(Some(Lease { name: n, fence, revision: fence, ttl })))
            })
            .await
        })
    }

    fn renew<'a>(&'a self, lease: &'a mut Lease, holder: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            names::lease(&lease.name, holder)?;
            let (mine, h) = (lease.clone(), holder.to_owned());
            lease.revision = self
                .run(format!("renew lease {}", lease.name), move |transaction, now_ms| {
                    let revision = next_revision(transaction, LEASES)?;
                    // An expired one is lost even if nobody took it yet: whoever looks now may believe it is free.
                    let renewed = transaction.execute(
                        "UPDATE leases SET revision = ?1, expires_ms = ?2
                         WHERE name = ?3 AND holder = ?4 AND fence = ?5 AND revision = ?6 AND expires_ms > ?7",
                        params![
                            revision,
                            end_of(now_ms, mine.ttl),
                            mine.name,
                            h,
                            mine.fence.cast_signed(),
                            mine.revision.cast_signed(),
                            now_ms
                        ],
                    )?;
                    Ok(if renewed == 1 { Ok(revision.cast_unsigned()) } else { Err(conflict("lease", &mine.name)) })
                })
                .await?;
            Ok(())
        })
    }

    fn release(&self, lease: Lease) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.run(format!("release lease {}", lease.name), move |transaction, _| {
                transaction.execute(
                    "DELETE FROM leases WHERE name = ?1 AND fence = ?2 AND revision = ?3",
                    params![lease.name, lease.fence.cast_signed(), lease.revision.cast_signed()],
                )?;
                Ok(Ok(()))
            })
            .await
        })
    }
}

fn end_of(now_ms: i64, ttl: Duration) -> i64 {
    now_ms.saturating_add(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    fn why(result: Result<SqliteStore>) -> String {
        result.err().expect("refused").to_string()
    }

    #[test]
    fn a_second_opener_is_told_which_file_and_what_to_do() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("state.db");
        let first = SqliteStore::open(&path).expect("new");
        let text = why(SqliteStore::open(&path));
        assert!(text.contains("state.db") && text.contains("another process uses it"), "{text}");
        drop(first);
        SqliteStore::open(&path).expect("free again");
    }

    #[test]
    fn files_that_are_no_store_are_left_alone() {
        let folder = tempfile::tempdir().expect("folder");
        let text = folder.path().join("notes.txt");
        std::fs::write(&text, "not a database, but long enough to have a header of one hundred bytes ".repeat(20))
            .expect("written");
        let before = std::fs::read(&text).expect("read");
        assert!(why(SqliteStore::open(&text)).contains("not a SQLite database"));
        assert_eq!(std::fs::read(&text).expect("read"), before);

        let foreign = folder.path().join("foreign.db");
        Connection::open(&foreign).expect("open").execute_batch("CREATE TABLE t (x)").expect("table");
        assert!(why(SqliteStore::open(&foreign)).contains("another program"));

        let newer = folder.path().join("newer.db");
        drop(SqliteStore::open(&newer).expect("new"));
        Connection::open(&newer).expect("open").pragma_update(None, "user_version", 99).expect("set");
        assert!(why(SqliteStore::open(&newer)).contains("version 99"));

        assert!(why(SqliteStore::open(folder.path().join("absent/state.db"))).contains("folder"));
        assert!(why(SqliteStore::open(folder.path())).contains("open store"));
    }

    #[tokio::test]
    async fn documents_of_the_first_layout_are_found_with_their_revisions() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("state.db");
        let first = "
            CREATE TABLE documents (
                bucket TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, revision INTEGER NOT NULL,
                PRIMARY KEY (bucket, key)
            ) WITHOUT ROWID;
            INSERT INTO documents VALUES ('b', 'k', x'010203', 7), ('b', 'l', x'', 9);
            INSERT INTO revisions VALUES ('b', 9);
        ";
        let connection = Connection::open(&path).expect("open");
        connection.execute_batch(OTHER_TABLES).expect("tables");
        connection.execute_batch(first).expect("tables");
        connection.pragma_update(None, "user_version", FIRST_LAYOUT).expect("set");
        connection.pragma_update(None, "application_id", APPLICATION_ID).expect("set");
        drop(connection);
        for _ in 0..2 {
            let store = SqliteStore::open(&path).expect("brought up to date");
            let document = store.get("b", "k").await.expect("read").expect("there");
            assert_eq!((document.value, document.revision), (vec![1, 2, 3], 7));
            assert_eq!(store.list("b", "", None, 9).await.expect("listed").len(), 2);
        }
        let store = SqliteStore::open(&path).expect("open");
        assert_eq!(store.put("b", "k", b"x", Expect::Revision(7)).await.expect("written"), 10);
    }

    #[tokio::test]
    async fn a_damaged_file_is_told_and_never_a_panic() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("state.db");
        let store = SqliteStore::open(&path).expect("new");
        for n in 0..200 {
            store.put("b", &format!("key-{n}"), &[b'x'; 2000], Expect::Anything).await.expect("written");
        }
        drop(store);
        let whole = std::fs::read(&path).expect("read");
        assert!(whole.len() > 100_000, "closing moves the log into the file");
        let mut found = 0;
        for at in (0..whole.len()).step_by(whole.len() / 40) {
            let mut bytes = whole.clone();
            let end = (at + 3000).min(bytes.len());
            bytes[at..end].fill(0xA5);
            std::fs::write(&path, bytes).expect("written");
            for extra in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(folder.path().join(format!("state.db{extra}")));
            }
            found += usize::from(SqliteStore::open(&path).is_err());
        }
        assert!(found > 20, "only {found} of 40 damages were found");
    }

    #[tokio::test]
    async fn documents_and_revisions_outlive_the_process() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("state.db");
        let store = SqliteStore::open(&path).expect("new");
        let first = store.put("b", "k", b"1", Expect::Absent).await.expect("written");
        store.delete("b", "k", Expect::Revision(first)).await.expect("gone");
        drop(store);
        let store = SqliteStore::open(&path).expect("again");
        assert!(store.put("b", "k", b"2", Expect::Absent).await.expect("written") > first);
    }

    #[tokio::test]
    async fn leases_end_by_the_given_clock() {
        static NOW_MS: AtomicI64 = AtomicI64::new(1_000);
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("state.db");
        let store = SqliteStore::open_with_clock(&path, || NOW_MS.load(Ordering::Relaxed)).expect("new");
        let ttl = Duration::from_secs(30);
        let mut first = store.acquire("scan/x", "a", ttl).await.expect("works").expect("free");
        NOW_MS.fetch_add(29_999, Ordering::Relaxed);
        assert_eq!(store.acquire("scan/x", "b", ttl).await.expect("works"), None);
        store.renew(&mut first, "a").await.expect("still mine");
        NOW_MS.fetch_add(30_000, Ordering::Relaxed);
        assert!(
            matches!(store.renew(&mut first, "a").await, Err(BusError::Conflict { .. })),
            "it ended at this moment"
        );
        let second = store.acquire("scan/x", "b", ttl).await.expect("works").expect("free");
        assert!(second.fence > first.fence);
        store.release(first).await.expect("nothing happens");
        assert_eq!(store.acquire("scan/x", "a", ttl).await.expect("works"), None, "b has it");
        store.release(second.clone()).await.expect("given up");
        let third = store.acquire("scan/x", "a", ttl).await.expect("works").expect("free");
        assert!(third.fence > second.fence);
        // A process that died with a lease does not keep the next one waiting, wherever the clock stands by then.
        drop(store);
        NOW_MS.fetch_sub(86_400_000, Ordering::Relaxed);
        let store = SqliteStore::open_with_clock(&path, || NOW_MS.load(Ordering::Relaxed)).expect("opens");
        let fourth = store.acquire("scan/x", "b", ttl).await.expect("works").expect("free");
        assert!(fourth.fence > third.fence);
    }
}
