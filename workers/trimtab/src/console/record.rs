//! The record, indexed: what became of each act, the story of each subject, and whether the chains are whole. The journals of the state folder
//! are read from their first record on at each start and followed from then on; the index is a cache that is thrown away with the process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use trimtab_targets::Class;

use crate::journal::{self, Place, Record, RecordKind, Tail};
use crate::worker::Failure;

/// How often the journals are looked at.
const EVERY: Duration = Duration::from_millis(400);
/// Records of one journal that are read at once.
const AT_ONCE: u64 = 2_000;
/// Acts that whoever watches may be behind before some are left out for them.
const BEHIND: usize = 256;

const TABLES: &str = "
    PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -4096;
    CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
    CREATE TABLE records (
        id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, ref TEXT NOT NULL, scan TEXT NOT NULL, subject TEXT NOT NULL,
        trace TEXT NOT NULL, file INTEGER NOT NULL, seq INTEGER NOT NULL, at INTEGER NOT NULL, length INTEGER NOT NULL, body TEXT
    );
    CREATE INDEX by_subject ON records (subject, at_ms, id);
    CREATE INDEX by_ref ON records (ref, at_ms, id);
    CREATE INDEX by_trace ON records (trace, at_ms, id) WHERE trace <> '';
    CREATE INDEX by_kind ON records (kind, at_ms, id);
    CREATE TABLE acts (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, begun_ms INTEGER NOT NULL, at_ms INTEGER NOT NULL, subject TEXT NOT NULL,
        decision TEXT NOT NULL, scan TEXT NOT NULL, verdict TEXT NOT NULL, status TEXT NOT NULL, ledgers INTEGER NOT NULL,
        bytes INTEGER NOT NULL, predicted INTEGER NOT NULL, trace TEXT NOT NULL, executor TEXT NOT NULL, why TEXT NOT NULL
    );
    CREATE INDEX newest ON acts (at_ms, id);
    CREATE TABLE outcomes (key TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE recoveries (
        key TEXT PRIMARY KEY, at_ms INTEGER NOT NULL, run TEXT NOT NULL, host TEXT NOT NULL, log_dir TEXT NOT NULL, folder TEXT NOT NULL,
        state TEXT NOT NULL, segments INTEGER NOT NULL, cut_bytes INTEGER NOT NULL, why TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX by_dir ON recoveries (host, log_dir, run);
";

/// One act, as far as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Act {
    /// Its number here: not the same after the next start.
    pub(super) id: i64,
    /// When its intent was recorded, milliseconds since 1970.
    pub(super) begun_ms: i64,
    /// When the last of it was recorded.
    pub(super) at_ms: i64,
    /// What was acted on.
    pub(super) subject: String,
    /// The decision.
    pub(super) decision: String,
    /// Its scan, or the plan's id.
    pub(super) scan: String,
    /// What was to be done.
    pub(super) verdict: String,
    /// `under way`, or how it ended.
    pub(super) status: String,
    /// Ledgers that are gone.
    pub(super) ledgers: u64,
    /// Bytes that are gone.
    pub(super) bytes: i64,
    /// Bytes that were to go.
    pub(super) predicted: i64,
    /// Trace id; may be empty.
    pub(super) trace_id: String,
    /// Who did it.
    pub(super) executor: String,
    /// The first reason of the outcome.
    pub(super) why: String,
}

/// How a journal is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct File {
    /// Its name.
    pub(super) name: String,
    /// Records in it that are whole.
    pub(super) records: u64,
    /// Hash of the last one.
    pub(super) head: String,
    /// What is wrong with it, if anything.
    pub(super) damaged: Option<String>,
}

/// What came of a log dir, or of a partition in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recovery {
    /// When it was recorded, milliseconds since 1970.
    pub(super) at_ms: i64,
    /// The run.
    pub(super) run: String,
    /// The host.
    pub(super) host: String,
    /// The log dir.
    pub(super) log_dir: String,
    /// The partition's folder; empty for the log dir itself.
    pub(super) folder: String,
    /// How it came out.
    pub(super) state: String,
    /// Segments verified.
    pub(super) segments: u64,
    /// Bytes that are gone from the logs.
    pub(super) cut_bytes: u64,
    /// The first error or warning.
    pub(super) why: String,
    /// Partitions of a log dir by state.
    pub(super) partitions: BTreeMap<String, u64>,
}

struct Followed {
    id: i64,
    tail: Tail,
    length: u64,
    state: File,
}

struct Inner {
    db: Connection,
    files: BTreeMap<PathBuf, Followed>,
}

/// The record, indexed.
pub(super) struct Records {
    folder: PathBuf,
    inner: Mutex<Inner>,
    /// Acts as they are recorded.
    live: broadcast::Sender<Arc<Act>>,
}

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::new(Class::Transient, format!("the index of the record: {e}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

impl Records {
    /// An index at `path` of the journals in `folder`. Nothing is read yet.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn open(path: &Path, folder: PathBuf) -> Result<Records, Failure> {
        let _ = std::fs::remove_file(path);
        let db = Connection::open(path).map_err(failed)?;
        db.execute_batch(TABLES).map_err(failed)?;
        let inner = Mutex::new(Inner { db, files: BTreeMap::new() });
        Ok(Records { folder, inner, live: broadcast::channel(BEHIND).0 })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // What a panic left half done is a cache.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acts from now on.
    pub(super) fn watch(&self) -> broadcast::Receiver<Arc<Act>> {
        self.live.subscribe()
    }

    /// Follows the journals until `stop`.
    pub(super) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut told = false;
        loop {
            let records = self.clone();
            let read = tokio::task::spawn_blocking(move || records.catch_up()).await;
            match read {
                // Much is new: a page in between, and on.
                Ok(Ok(true)) => continue,
                Ok(Ok(false)) => told = false,
                Ok(Err(e)) if !told => {
                    warn!(error = %e, "the console cannot follow the record");
                    told = true;
                }
                _ => {}
            }
            tokio::select! { biased; () = stop.cancelled() => return, () = tokio::time::sleep(EVERY) => {} }
        }
    }

    /// Reads what is new; whether there is more.
    ///
    /// # Errors
    /// When the folder cannot be read, or the index not be written.
    pub(super) fn catch_up(&self) -> Result<bool, Failure> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(failed(format!("{}: {e}", self.folder.display()))),
        };
        let mut more = false;
        for path in
            entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        {
            let mut inner = self.inner();
            if !inner.files.contains_key(&path) {
                let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
                inner
                    .db
                    .execute("INSERT OR IGNORE INTO files (path) VALUES (?1)", [path.to_string_lossy()])
                    .map_err(failed)?;
                let id = inner.db.last_insert_rowid();
                let state = File { name, records: 0, head: String::new(), damaged: None };
                inner.files.insert(path.clone(), Followed { id, tail: Tail::new(&path), length: 0, state });
            }
            more |= self.read(&mut inner, &path)?;
        }
        Ok(more)
    }

    fn read(&self, inner: &mut Inner, path: &Path) -> Result<bool, Failure> {
        let Inner { db, files } = inner;
        let Some(file) = files.get_mut(path) else { return Ok(false) };
        let length = std::fs::metadata(path).map_or(0, |meta| meta.len());
        // One that was found damaged is not read any further: nothing after that can be believed.
        if file.state.damaged.is_some() || (length == file.length && file.state.records > 0) {
            return Ok(false);
        }
        let all = db.transaction().map_err(failed)?;
        let (mut acts, mut wrong) = (Vec::new(), None);
        let before = file.state.records;
        let read = file.tail.read(AT_ONCE, |record, place| match add(&all, file.id, &record, Some(place)) {
            Ok(act) => acts.extend(act),
            Err(e) => wrong = Some(e),
        });
        all.commit().map_err(failed)?;
        if let Some(e) = wrong {
            return Err(e);
        }
        match read {
            Ok(chain) => {
                let more = chain.records - before == AT_ONCE;
                (file.state.records, file.state.head) = (chain.records, chain.head);
                file.length = if more { 0 } else { length };
                for act in acts {
                    let _ = self.live.send(Arc::new(act));
                }
                Ok(more)
            }
            Err(e) => {
                warn!(error = %e, "the record cannot be believed");
                file.state.damaged = Some(e.to_string());
                Ok(false)
            }
        }
    }

    /// Adds what came over the bus, where no journal of it is here.
    ///
    /// # Errors
    /// When the index cannot be written.
    pub(super) fn add_heard(&self, record: &Record) -> Result<(), Failure> {
        let inner = self.inner();
        if let Some(act) = add(&inner.db, 0, record, None)? {
            let _ = self.live.send(Arc::new(act));
        }
        Ok(())
    }

    /// The journals.
    pub(super) fn files(&self) -> Vec<File> {
        self.inner().files.values().map(|file| file.state.clone()).collect()
    }

    /// Acts, the newest first, at most `limit`; before a place, where one is given.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn acts(&self, before: Option<(i64, i64)>, limit: usize) -> Result<Vec<Act>, Failure> {
        let inner = self.inner();
        let (at, id) = before.unwrap_or((i64::MAX, i64::MAX));
        let sql = format!("SELECT {ACT} FROM acts WHERE (at_ms, id) < (?1, ?2) ORDER BY at_ms DESC, id DESC LIMIT ?3");
        let mut query = inner.db.prepare_cached(&sql).map_err(failed)?;
        let rows = query.query_map(params![at, id, limit as i64], act_of).map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)
    }

    /// Records about a subject, an id or a trace, in order of time, the last `limit`.
    ///
    /// # Errors
    /// When the index or a journal cannot be read.
    pub(super) fn story(&self, what: &str, limit: usize) -> Result<Vec<(Record, String)>, Failure> {
        self.found(
            "SELECT id FROM (
                SELECT id, at_ms FROM records WHERE subject = ?1 UNION SELECT id, at_ms FROM records WHERE ref = ?1
                UNION SELECT id, at_ms FROM records WHERE trace = ?1 AND trace <> ''
             ) ORDER BY at_ms DESC, id DESC LIMIT ?2",
            what,
            limit,
        )
    }

    /// The last records of a kind.
    ///
    /// # Errors
    /// When the index or a journal cannot be read.
    pub(super) fn last(&self, kind: RecordKind, limit: usize) -> Result<Vec<(Record, String)>, Failure> {
        self.found(
            "SELECT id FROM records WHERE kind = ?1 ORDER BY at_ms DESC, id DESC LIMIT ?2",
            &name_of(kind),
            limit,
        )
    }

    fn found(&self, sql: &str, what: &str, limit: usize) -> Result<Vec<(Record, String)>, Failure> {
        type Row = (Option<String>, i64, i64, String, Option<String>);
        let rows: Vec<Row> = {
            let inner = self.inner();
            let sql = format!(
                "SELECT files.path, records.at, records.length, records.kind || ' ' || records.seq, records.body FROM ({sql}) AS found \
                 JOIN records ON records.id = found.id LEFT JOIN files ON files.id = records.file ORDER BY records.at_ms, records.id"
            );
            let mut query = inner.db.prepare_cached(&sql).map_err(failed)?;
            let rows = query
                .query_map(params![what, limit as i64], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
                })
                .map_err(failed)?;
            rows.collect::<Result<_, _>>().map_err(failed)?
        };
        // The journals are read without keeping others from the index.
        let mut all = Vec::new();
        for (path, at, length, _, body) in rows {
            let record = match (&path, body) {
                (_, Some(body)) => serde_json::from_str(&body).map_err(failed)?,
                (Some(path), None) => {
                    let number = |n: i64| u64::try_from(n).unwrap_or(0);
                    journal::read_at(Path::new(path), Place { at: number(at), length: number(length) })?
                }
                (None, None) => continue,
            };
            let name = path
                .as_deref()
                .and_then(|path| Path::new(path).file_name())
                .map(|name| name.to_string_lossy().into_owned());
            all.push((record, name.unwrap_or_else(|| "heard over the bus".to_owned())));
        }
        Ok(all)
    }

    /// What came of log dirs, the last run of each, with their partitions counted.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn recoveries(&self, limit: usize) -> Result<Vec<Recovery>, Failure> {
        let inner = self.inner();
        let mut query = inner
            .db
            .prepare_cached(
                "SELECT max(at_ms), run, host, log_dir, '', '', 0, 0, '' FROM recoveries GROUP BY host, log_dir, run ORDER BY 1 DESC LIMIT ?1",
            )
            .map_err(failed)?;
        let rows = query.query_map([limit as i64], recovery_of).map_err(failed)?;
        let mut all: Vec<Recovery> = rows.collect::<Result<_, _>>().map_err(failed)?;
        let mut parts = inner
            .db
            .prepare_cached(
                "SELECT at_ms, run, host, log_dir, folder, state, segments, cut_bytes, why FROM recoveries \
                 WHERE host = ?1 AND log_dir = ?2 AND run = ?3",
            )
            .map_err(failed)?;
        for dir in &mut all {
            let rows = parts.query_map(params![dir.host, dir.log_dir, dir.run], recovery_of).map_err(failed)?;
            for part in rows {
                let part = part.map_err(failed)?;
                if part.folder.is_empty() {
                    (dir.state, dir.segments, dir.cut_bytes, dir.why) =
                        (part.state, part.segments, part.cut_bytes, part.why);
                } else {
                    *dir.partitions.entry(part.state).or_default() += 1;
                }
            }
        }
        Ok(all)
    }
}

const ACT: &str =
    "id, begun_ms, at_ms, subject, decision, scan, verdict, status, ledgers, bytes, predicted, trace, executor, why";

fn act_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Act> {
    Ok(Act {
        id: row.get(0)?,
        begun_ms: row.get(1)?,
        at_ms: row.get(2)?,
        subject: row.get(3)?,
        decision: row.get(4)?,
        scan: row.get(5)?,
        verdict: row.get(6)?,
        status: row.get(7)?,
        ledgers: u64::try_from(row.get::<_, i64>(8)?).unwrap_or(0),
        bytes: row.get(9)?,
        predicted: row.get(10)?,
        trace_id: row.get(11)?,
        executor: row.get(12)?,
        why: row.get(13)?,
    })
}

fn recovery_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Recovery> {
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    Ok(Recovery {
        at_ms: row.get(0)?,
        run: row.get(1)?,
        host: row.get(2)?,
        log_dir: row.get(3)?,
        folder: row.get(4)?,
        state: row.get(5)?,
        segments: number(row.get(6)?),
        cut_bytes: number(row.get(7)?),
        why: row.get(8)?,
        partitions: BTreeMap::new(),
    })
}

/// The name of a kind in the record.
pub(super) fn name_of(kind: RecordKind) -> String {
    serde_json::to_value(kind).ok().and_then(|kind| kind.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Adds a record; the act that it changes, if it does.
fn add(db: &Connection, file: i64, record: &Record, place: Option<Place>) -> Result<Option<Act>, Failure> {
    let body = &record.body;
    let scan = match record.kind {
        RecordKind::Intent => text(&body["decision"]["scan"]["id"]),
        RecordKind::Outcome | RecordKind::Evidence => text(&body["scan"]["id"]),
        _ => "",
    };
    if record.kind == RecordKind::Outcome {
        // The executor's own record and that of the audit hold the same one.
        if db.execute("INSERT OR IGNORE INTO outcomes VALUES (?1)", [journal::key_of_outcome(body)]).map_err(failed)?
            == 0
        {
            return Ok(None);
        }
    }
    let kept = match place {
        Some(_) => None,
        None => Some(serde_json::to_string(record).map_err(failed)?),
    };
    let (at, length) = place.map_or((0, 0), |place| (place.at as i64, place.length as i64));
    let row = params![
        record.at_ms,
        name_of(record.kind),
        record.id,
        scan,
        record.subject,
        record.trace_id,
        file,
        record.seq as i64,
        at,
        length,
        kept
    ];
    let sql = "INSERT INTO records (at_ms, kind, ref, scan, subject, trace, file, seq, at, length, body) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)";
    db.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
    match record.kind {
        RecordKind::Intent => {
            let decision = &body["decision"];
            let row = params![
                format!("{}/{scan}", record.id),
                record.at_ms,
                record.subject,
                record.id,
                scan,
                text(&decision["verdict"]),
                decision["bytes"].as_i64().unwrap_or(0),
                record.trace_id,
            ];
            let sql = "INSERT INTO acts (key, begun_ms, at_ms, subject, decision, scan, verdict, status, ledgers, bytes, predicted, trace, executor, why) \
                       VALUES (?1, ?2, ?2, ?3, ?4, ?5, ?6, 'under way', 0, 0, ?7, ?8, '', '') ON CONFLICT (key) DO NOTHING";
            db.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
        }
        RecordKind::Outcome => {
            let row = params![
                format!("{}/{scan}", record.id),
                record.at_ms,
                record.subject,
                record.id,
                scan,
                text(&body["verdict"]),
                text(&body["status"]),
                body["freed"].as_array().map_or(0, |freed| freed.len() as i64),
                body["freed_bytes"].as_i64().unwrap_or(0),
                body["predicted_bytes"].as_i64().unwrap_or(0),
                record.trace_id,
                text(&body["executor"]),
                text(&body["reasons"][0]["says"]),
                body["started_ms"].as_i64().unwrap_or(record.at_ms),
            ];
            let sql = "INSERT INTO acts (key, begun_ms, at_ms, subject, decision, scan, verdict, status, ledgers, bytes, predicted, trace, executor, why) \
                       VALUES (?1, ?14, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT (key) DO UPDATE SET \
                       at_ms = excluded.at_ms, status = excluded.status, ledgers = excluded.ledgers, bytes = excluded.bytes, \
                       executor = excluded.executor, why = excluded.why, trace = max(trace, excluded.trace)";
            db.prepare_cached(sql).and_then(|mut insert| insert.execute(row)).map_err(failed)?;
        }
        RecordKind::Recovery => {
            let why = body["errors"].as_array().into_iter().chain(body["warnings"].as_array()).flatten().next();
            let row = params![
                journal::key_of_recovery(body),
                record.at_ms,
                text(&body["run"]),
                text(&body["host"]),
                text(&body["log_dir"]),
                text(&body["folder"]),
                text(&body["state"]),
                body["segments"].as_i64().unwrap_or(0),
                body["cut_bytes"].as_i64().unwrap_or(0),
                why.map_or("", text),
            ];
            db.execute("INSERT OR REPLACE INTO recoveries VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)", row)
                .map_err(failed)?;
            return Ok(None);
        }
        _ => return Ok(None),
    }
    let mut query = db.prepare_cached(&format!("SELECT {ACT} FROM acts WHERE key = ?1")).map_err(failed)?;
    query.query_row([format!("{}/{scan}", record.id)], act_of).optional().map_err(failed)
}
