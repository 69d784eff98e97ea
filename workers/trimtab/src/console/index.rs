//! A plan, indexed: totals at once, and lists whose pages cost the same wherever they are. One SQLite file for each plan, which is a cache of
//! the plan's own file and may be thrown away.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags, OptionalExtension, params, params_from_iter};
use sha2::{Digest, Sha256};
use trimtab_events::{Decision, Plan, PlanItem, Proposed, ScanRef, Verdict};
use trimtab_targets::Class;

use crate::journal::hex;
use crate::plan::group_of_item;
use crate::worker::Failure;

const TABLES: &str = "
    PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;
    CREATE TABLE plan (head TEXT NOT NULL, scan TEXT NOT NULL);
    CREATE TABLE items (
        id INTEGER PRIMARY KEY, subject TEXT NOT NULL, namespace TEXT NOT NULL, kind TEXT NOT NULL, verdict TEXT NOT NULL,
        acts INTEGER NOT NULL, reason TEXT NOT NULL, says TEXT NOT NULL, ledgers INTEGER NOT NULL, bytes INTEGER NOT NULL,
        held INTEGER NOT NULL, holder TEXT NOT NULL, hash BLOB,
        -- What lists go by: the largest first.
        sink INTEGER NOT NULL
    );
    CREATE TABLE bodies (id INTEGER PRIMARY KEY, json TEXT NOT NULL);
    CREATE TABLE left_out (id INTEGER PRIMARY KEY, who TEXT NOT NULL);
";

const INDEXES: &str = "
    CREATE INDEX by_size ON items (sink, id);
    CREATE INDEX by_acts ON items (acts, sink, id);
    CREATE INDEX by_namespace ON items (namespace, sink, id);
    CREATE INDEX by_verdict ON items (verdict, sink, id);
    CREATE INDEX by_reason ON items (reason, sink, id);
    CREATE INDEX by_subject ON items (subject);
    CREATE TABLE groups AS
        SELECT namespace, verdict, acts, reason, count(*) AS items, sum(ledgers) AS ledgers, sum(bytes) AS bytes, sum(held) AS held
        FROM items GROUP BY namespace, verdict, acts, reason;
    CREATE TABLE namespaces AS
        SELECT namespace, sum(items * acts) AS items, sum(ledgers * acts) AS ledgers, sum(bytes * acts) AS bytes, sum(held) AS held
        FROM groups GROUP BY namespace;
    CREATE INDEX largest ON namespaces (bytes DESC, namespace);
    PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
";

/// Columns of an [`Item`], in its order.
const COLUMNS: &str = "items.id, subject, namespace, kind, verdict, acts, reason, says, ledgers, bytes, held, holder, \
                       left_out.id IS NOT NULL";

/// Connections that are kept for the next page.
const KEPT: usize = 8;

/// What is listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter {
    /// Only this namespace.
    pub(super) namespace: Option<String>,
    /// Only this verdict.
    pub(super) verdict: Option<String>,
    /// Only what this rule spoke first about.
    pub(super) reason: Option<String>,
    /// Only names that contain this. Reads the list from where the page begins until it is full.
    pub(super) text: Option<String>,
    /// Only what is carried out, or only what is not.
    pub(super) acts: Option<bool>,
}

/// A place in a list: an item's size, negated, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    sink: i64,
    id: i64,
}

impl Mark {
    /// From an address.
    pub(super) fn parse(text: &str) -> Option<Mark> {
        let (sink, id) = text.split_once('_')?;
        Some(Mark { sink: sink.parse().ok()?, id: id.parse().ok()? })
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}_{}", self.sink, self.id)
    }
}

/// Which part of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Part {
    /// The first.
    #[default]
    First,
    /// What follows a place.
    After(Mark),
    /// What comes before a place.
    Before(Mark),
    /// The last.
    Last,
}

/// An item of a plan, without its evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    /// Its number in the plan, from 1.
    pub(super) id: i64,
    /// Canonical name.
    pub(super) subject: String,
    /// Tenant and namespace, a region, or a stream.
    pub(super) namespace: String,
    /// `topic`, `subscriber`, `ledger` or `log`.
    pub(super) kind: String,
    /// What is to be done.
    pub(super) verdict: String,
    /// Whether applying the plan carries it out.
    pub(super) acts: bool,
    /// The rule that spoke first.
    pub(super) reason: String,
    /// What it says.
    pub(super) says: String,
    /// Ledgers that go.
    pub(super) ledgers: u64,
    /// Bytes that go, one replica.
    pub(super) bytes: i64,
    /// Bytes that a cursor holds.
    pub(super) held: i64,
    /// That cursor; empty where there is none.
    pub(super) holder: String,
    /// Somebody left it out of the plan.
    pub(super) left_out: bool,
}

/// A page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// The items.
    pub(super) items: Vec<Item>,
    /// Where the page before ends.
    pub(super) before: Option<Mark>,
    /// Where the next one begins.
    pub(super) after: Option<Mark>,
}

/// What a part of a plan comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sum {
    /// What it is about; empty for all.
    pub(super) name: String,
    /// Items.
    pub(super) items: u64,
    /// Ledgers that go.
    pub(super) ledgers: u64,
    /// Bytes that go.
    pub(super) bytes: i64,
    /// Bytes that cursors hold.
    pub(super) held: i64,
}

/// What a person would approve: everything that acts but for what was left out, named by a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selection {
    /// SHA-256 over the plan's id and every decision in it, hexadecimal.
    pub(super) digest: String,
    /// What it comes to.
    pub(super) proposed: Proposed,
    /// Announcements of stale subscribers, which are no acts.
    pub(super) marks: u64,
    /// Items left out.
    pub(super) left_out: u64,
    /// The numbers of the items in it.
    pub(super) ids: Vec<i64>,
}

/// A plan, indexed.
pub(super) struct Index {
    path: PathBuf,
    /// The plan but for its items.
    pub(super) head: Plan,
    /// What its decisions are under.
    pub(super) scan: ScanRef,
    /// The plan's own file, for `trimtab apply`.
    pub(super) file: PathBuf,
    pool: Mutex<Vec<Connection>>,
}

fn failed(e: impl std::fmt::Display) -> Failure {
    Failure::new(Class::Transient, format!("the index of the plan: {e}"))
}

impl Index {
    /// Makes the index of a plan from its items, each a line of JSON. Blocks.
    ///
    /// # Errors
    /// When it cannot be written, or a line is no item.
    pub(super) fn build(
        path: &Path,
        file: PathBuf,
        head: Plan,
        scan: ScanRef,
        lines: impl Iterator<Item = std::io::Result<String>>,
    ) -> Result<Index, Failure> {
        let _ = std::fs::remove_file(path);
        let mut db = Connection::open(path).map_err(failed)?;
        db.execute_batch(TABLES).map_err(failed)?;
        let all = db.transaction().map_err(failed)?;
        let text = serde_json::to_string(&head).map_err(failed)?;
        all.execute("INSERT INTO plan VALUES (?1, ?2)", params![text, scan.id.to_string()]).map_err(failed)?;
        {
            let mut row = all
                .prepare("INSERT INTO items VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)")
                .map_err(failed)?;
            let mut body = all.prepare("INSERT INTO bodies VALUES (?1, ?2)").map_err(failed)?;
            for (id, line) in (1_i64..).zip(lines) {
                let line = line.map_err(failed)?;
                let item: PlanItem = serde_json::from_str(&line).map_err(failed)?;
                let hash = item.decision.as_ref().map(hash_of).transpose()?;
                let (held, holder) =
                    item.holder.as_ref().map_or((0, ""), |holder| (holder.bytes, holder.cursor.as_str()));
                let acts = item.decision.is_some();
                let first = item.reasons.first();
                let size = if acts { item.bytes } else { held };
                row.execute(params![
                    id,
                    item.subject,
                    group_of_item(&item),
                    item.kind,
                    item.verdict.name(),
                    acts,
                    first.map_or("", |reason| reason.rule.as_ref()),
                    first.map_or("", |reason| reason.says.as_str()),
                    item.ledgers.len() as i64,
                    if acts { item.bytes } else { 0 },
                    held,
                    holder,
                    hash,
                    size.saturating_neg(),
                ])
                .map_err(failed)?;
                body.execute(params![id, line]).map_err(failed)?;
            }
        }
        all.commit().map_err(failed)?;
        db.execute_batch(INDEXES).map_err(failed)?;
        Ok(Index { path: path.to_owned(), head, scan, file, pool: Mutex::new(vec![db]) })
    }

    /// Removes an index's files. The plan's own file stays.
    pub(super) fn remove(path: &Path) {
        for end in ["", "-wal", "-shm"] {
            let mut name = path.as_os_str().to_owned();
            name.push(end);
            let _ = std::fs::remove_file(name);
        }
    }

    fn with<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Failure>) -> Result<T, Failure> {
        let pool = || self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pool().pop();
        let db = match kept {
            Some(db) => db,
            None => {
                let db = Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
                db.busy_timeout(std::time::Duration::from_secs(5)).map_err(failed)?;
                // The same for every size of plan.
                db.execute_batch("PRAGMA cache_size = -2048; PRAGMA mmap_size = 0;").map_err(failed)?;
                db
            }
        };
        let result = work(&db);
        let mut pool = pool();
        if pool.len() < KEPT {
            pool.push(db);
        }
        result
    }

    /// A page of the list, the largest first, of at most `most` items. Costs the same wherever it is.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn page(&self, filter: &Filter, part: Part, most: usize) -> Result<Page, Failure> {
        let (mut wanted, mut values) = filter.sql();
        let back = matches!(part, Part::Before(_) | Part::Last);
        if let Part::After(mark) | Part::Before(mark) = part {
            wanted.push(format!("(sink, items.id) {} (?, ?)", if back { "<" } else { ">" }));
            values.extend([mark.sink.into(), mark.id.into()]);
        }
        let order = if back { "sink DESC, items.id DESC" } else { "sink, items.id" };
        let of = if wanted.is_empty() { String::new() } else { format!("WHERE {}", wanted.join(" AND ")) };
        let sql = format!(
            "SELECT {COLUMNS}, sink FROM items LEFT JOIN left_out ON left_out.id = items.id {of} ORDER BY {order} LIMIT {}",
            most + 1
        );
        let mut rows: Vec<(Item, Mark)> = self.with(|db| {
            let mut query = db.prepare_cached(&sql).map_err(failed)?;
            let rows = query
                .query_map(params_from_iter(values), |row| {
                    let item = item_of(row)?;
                    let mark = Mark { sink: row.get(13)?, id: item.id };
                    Ok((item, mark))
                })
                .map_err(failed)?;
            rows.collect::<Result<_, _>>().map_err(failed)
        })?;
        let more = rows.len() > most;
        rows.truncate(most);
        if back {
            rows.reverse();
        }
        let first = rows.first().map(|(_, mark)| *mark);
        let last = rows.last().map(|(_, mark)| *mark);
        let (before, after) = match part {
            Part::First => (None, last.filter(|_| more)),
            Part::After(mark) => (first.or(Some(mark)), last.filter(|_| more)),
            Part::Before(mark) => (first.filter(|_| more), last.or(Some(mark))),
            Part::Last => (first.filter(|_| more), None),
        };
        Ok(Page { items: rows.into_iter().map(|(item, _)| item).collect(), before, after })
    }

    /// One item, with everything that was read of it.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn item(&self, id: i64) -> Result<Option<(Item, PlanItem)>, Failure> {
        let sql = format!(
            "SELECT {COLUMNS}, json FROM items JOIN bodies USING (id) LEFT JOIN left_out ON left_out.id = items.id WHERE items.id = ?1"
        );
        let found = self.with(|db| {
            let mut query = db.prepare_cached(&sql).map_err(failed)?;
            query.query_row([id], |row| Ok((item_of(row)?, row.get::<_, String>(13)?))).optional().map_err(failed)
        })?;
        let Some((item, json)) = found else { return Ok(None) };
        Ok(Some((item, serde_json::from_str(&json).map_err(failed)?)))
    }

    /// Numbers of the items about a subject.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn about(&self, subject: &str) -> Result<Option<i64>, Failure> {
        self.with(|db| {
            let mut query = db.prepare_cached("SELECT id FROM items WHERE subject = ?1 LIMIT 1").map_err(failed)?;
            query.query_row([subject], |row| row.get(0)).optional().map_err(failed)
        })
    }

    fn sums(&self, sql: &str, values: Vec<rusqlite::types::Value>) -> Result<Vec<Sum>, Failure> {
        self.with(|db| {
            let mut query = db.prepare_cached(sql).map_err(failed)?;
            let rows = query
                .query_map(params_from_iter(values), |row| {
                    let count = |n: i64| u64::try_from(n).unwrap_or(0);
                    Ok(Sum {
                        name: row.get(0)?,
                        items: count(row.get(1)?),
                        ledgers: count(row.get(2)?),
                        bytes: row.get(3)?,
                        held: row.get(4)?,
                    })
                })
                .map_err(failed)?;
            rows.collect::<Result<_, _>>().map_err(failed)
        })
    }

    /// What the items that a filter lets through come to, but for its text.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn sum(&self, filter: &Filter) -> Result<Sum, Failure> {
        let (wanted, values) = Filter { text: None, ..filter.clone() }.sql();
        let of = if wanted.is_empty() { String::new() } else { format!("WHERE {}", wanted.join(" AND ")) };
        let sql = format!(
            "SELECT '', coalesce(sum(items), 0), coalesce(sum(ledgers * acts), 0), coalesce(sum(bytes), 0), coalesce(sum(held), 0) \
             FROM groups {of}"
        );
        Ok(self.sums(&sql, values)?.into_iter().next().unwrap_or_default())
    }

    /// The namespaces that would give back most, or of which most is held, at most `limit`.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn namespaces(&self, limit: usize) -> Result<Vec<Sum>, Failure> {
        let sql =
            "SELECT namespace, items, ledgers, bytes, held FROM namespaces ORDER BY bytes DESC, namespace LIMIT ?1";
        self.sums(sql, vec![i64::try_from(limit).unwrap_or(i64::MAX).into()])
    }

    /// Sums by `verdict` or by `reason` (which speak of what acts only).
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn by_verdict(&self) -> Result<Vec<Sum>, Failure> {
        let sql = "SELECT verdict, sum(items), sum(ledgers * acts), sum(bytes), sum(held) FROM groups GROUP BY verdict \
                   ORDER BY 4 DESC, 5 DESC, 1";
        self.sums(sql, Vec::new())
    }

    /// Sums of what acts, by the rule that spoke first.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn by_reason(&self) -> Result<Vec<Sum>, Failure> {
        let sql = "SELECT reason, sum(items), sum(ledgers), sum(bytes), sum(held) FROM groups WHERE acts GROUP BY reason \
                   ORDER BY 4 DESC, 1 LIMIT 30";
        self.sums(sql, Vec::new())
    }

    /// Leaves items out of the plan, or takes them in again. Items that do not act have no place in it.
    ///
    /// # Errors
    /// When the index cannot be written.
    pub(super) fn choose(&self, shown: &[i64], ticked: &[i64], who: &str) -> Result<(), Failure> {
        self.with(|db| {
            let all = db.unchecked_transaction().map_err(failed)?;
            for id in shown {
                let sql = match ticked.contains(id) {
                    true => "DELETE FROM left_out WHERE id = ?1 AND ?2 <> ''",
                    false => "INSERT OR IGNORE INTO left_out SELECT id, ?2 FROM items WHERE id = ?1 AND acts",
                };
                all.execute(sql, params![id, who]).map_err(failed)?;
            }
            all.commit().map_err(failed)
        })
    }

    /// What would be approved now.
    ///
    /// # Errors
    /// When the index cannot be read.
    pub(super) fn selection(&self) -> Result<Selection, Failure> {
        self.with(|db| {
            // One moment for all of it.
            let all = db.unchecked_transaction().map_err(failed)?;
            let mut digest = Sha256::new_with_prefix(b"trimtab plan\0");
            digest.update(self.scan.id.as_bytes());
            let (mut proposed, mut marks, mut ids) = (Proposed::default(), 0, Vec::new());
            let sql = "SELECT id, hash, verdict, ledgers, bytes FROM items WHERE acts AND id NOT IN (SELECT id FROM left_out) ORDER BY id";
            let mut query = all.prepare_cached(sql).map_err(failed)?;
            let mut rows = query.query([]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                let id: i64 = row.get(0).map_err(failed)?;
                let hash: Vec<u8> = row.get(1).map_err(failed)?;
                digest.update(id.to_be_bytes());
                digest.update(&hash);
                ids.push(id);
                if row.get_ref(2).map_err(failed)?.as_str().map_err(failed)? == Verdict::Mark.name() {
                    marks += 1;
                    continue;
                }
                let count = |at: usize| row.get::<_, i64>(at).map(|n| u64::try_from(n).unwrap_or(0)).map_err(failed);
                proposed = proposed.and(Proposed { acts: 1, ledgers: count(3)?, bytes: count(4)? });
            }
            let left_out: i64 = all.query_row("SELECT count(*) FROM left_out", [], |row| row.get(0)).map_err(failed)?;
            let left_out = u64::try_from(left_out).unwrap_or(0);
            Ok(Selection { digest: hex(&digest.finalize()), proposed, marks, left_out, ids })
        })
    }

    /// One decision of the plan, as it was hashed.
    ///
    /// # Errors
    /// When there is none, or it is not what was hashed.
    pub(super) fn decision(&self, id: i64) -> Result<Decision, Failure> {
        let (hash, json): (Vec<u8>, String) = self.with(|db| {
            let mut query = db
                .prepare_cached("SELECT hash, json FROM items JOIN bodies USING (id) WHERE items.id = ?1 AND acts")
                .map_err(failed)?;
            query.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)
        })?;
        let item: PlanItem = serde_json::from_str(&json).map_err(failed)?;
        let decision = item.decision.ok_or_else(|| failed("an item that acts has no decision"))?;
        match hash_of(&decision)?.as_slice() == hash {
            true => Ok(decision),
            false => {
                Err(Failure::new(Class::Invalid, format!("item {id} of the plan is not what it was when it was made")))
            }
        }
    }
}

fn hash_of(decision: &Decision) -> Result<[u8; 32], Failure> {
    Ok(Sha256::digest(serde_json::to_vec(decision).map_err(failed)?).into())
}

fn item_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Item> {
    Ok(Item {
        id: row.get(0)?,
        subject: row.get(1)?,
        namespace: row.get(2)?,
        kind: row.get(3)?,
        verdict: row.get(4)?,
        acts: row.get(5)?,
        reason: row.get(6)?,
        says: row.get(7)?,
        ledgers: u64::try_from(row.get::<_, i64>(8)?).unwrap_or(0),
        bytes: row.get(9)?,
        held: row.get(10)?,
        holder: row.get(11)?,
        left_out: row.get(12)?,
    })
}

impl Drop for Index {
    fn drop(&mut self) {
        Index::remove(&self.path);
    }
}

impl Filter {
    /// Conditions, and their values in order.
    fn sql(&self) -> (Vec<String>, Vec<rusqlite::types::Value>) {
        let mut wanted = Vec::new();
        let mut values: Vec<rusqlite::types::Value> = Vec::new();
        // The narrowest that has an index of its own leads; with a `+` the others are only looked at.
        let columns = [("namespace", &self.namespace), ("reason", &self.reason), ("verdict", &self.verdict)];
        for (column, value) in columns {
            if let Some(value) = value {
                let plus = if wanted.is_empty() { "" } else { "+" };
                wanted.push(format!("{plus}{column} = ?"));
                values.push(value.clone().into());
            }
        }
        if let Some(acts) = self.acts {
            wanted.push(format!("{}acts = ?", if wanted.is_empty() { "" } else { "+" }));
            values.push(i64::from(acts).into());
        }
        if let Some(text) = self.text.as_ref().filter(|text| !text.is_empty()) {
            wanted.push("instr(subject, ?) > 0".to_owned());
            values.push(text.clone().into());
        }
        (wanted, values)
    }
}
