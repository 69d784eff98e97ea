//! What a scan read, and the difference between the ledgers that exist and those that something names.
//!
//! Ids, names and owners go to a temporary SQLite database and come back sorted, so memory is its cache, whatever the cluster's size.
//! What grows in memory is one entry for each namespace and each range of ids that could not be read.

use std::collections::BTreeMap;

use base64::Engine;
use rusqlite::{Connection, OptionalExtension, params};
use trimtab_events::{
    Ceiling, Comparison, Evidence, Guard, GuardKind, LedgerContent, LedgerReference, Marks, Missing, NamespaceState,
    OrphanCandidate, OwnedKind, ReferenceKind, Seen, SurveyReport, TargetClock, Unread, ledger_subject,
};

use super::ledgers::Layout;
use super::marks::{self, Owned};
use super::metadata::{LedgerMetadata, full_metadata};
use super::references;
use super::timeline::{Order, Timeline};
use crate::error::{Class, Result, TargetError};
use crate::pulsar::metadata::{cursor_references, topic_references};
use crate::zk::Stat;

/// Examples kept of each finding.
const EXAMPLES: usize = 100;
/// Namespaces that are named as not read completely; the report has to fit into an event.
const INCOMPLETE: usize = 500;
/// Ids from here on are handed out in another way.
const LONG_FROM: i64 = i32::MAX as i64;
/// Ledgers of one folder.
const FOLDER: i64 = 10_000;
const DAY_MS: i64 = 24 * 3600 * 1000;
/// What is younger may be in creation, and says nothing about who creates it.
const SETTLED_MS: i64 = 10 * 60 * 1000;
/// Young ledgers with marks of Pulsar that nothing here names: more than so many, and more than this share of the ledgers of a day,
/// are another cluster's.
const STRANGERS: i64 = 10;
const STRANGERS_SHARE: f64 = 0.05;

fn failed(e: rusqlite::Error) -> TargetError {
    let why = format!("{e}; is there room in the folder for temporary files?");
    TargetError::new(Class::Transient, "sorting what was read of BookKeeper", why)
}

/// A namespace's part of the survey.
#[derive(Debug, Clone, Default)]
struct Shard {
    /// Present when it has policies.
    state: Option<Evidence<NamespaceState>>,
    /// Why it was not read completely, if so.
    problem: Option<String>,
    topics: u64,
}

/// A survey in progress.
pub(crate) struct Survey {
    db: Connection,
    root: String,
    layout: Layout,
    shards: BTreeMap<String, Shard>,
    /// Why nothing can be decided, if so.
    broken: Option<String>,
    /// Why it is not known which namespaces have policies, if so.
    policies_unknown: Option<String>,
    handed_out: Evidence<i64>,
    highest_named: Option<i64>,
    unread: Vec<Unread>,
    timeline: Timeline,
    order: Order,
    report: SurveyReport,
}

impl Survey {
    /// A survey with nothing in it. Times later than `now_ms` are not believed.
    pub(crate) fn new(root: &str, now_ms: i64) -> Result<Survey> {
        // An empty name is a temporary database: on disk where it does not fit the cache, removed when it is closed.
        let db = Connection::open("").map_err(failed)?;
        db.execute_batch(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-4096; PRAGMA temp_store=FILE;
             CREATE TABLE ledger(id INTEGER);
             CREATE TABLE owner(row INTEGER PRIMARY KEY, path TEXT, version INTEGER, created INTEGER, modified INTEGER,
                 modified_ms INTEGER, hides INTEGER);
             CREATE TABLE reference(id INTEGER, kind INTEGER, owner INTEGER);
             CREATE TABLE lonely(id INTEGER PRIMARY KEY);
             CREATE TABLE missing(path TEXT, id INTEGER, kind INTEGER, known INTEGER);
             CREATE TABLE detail(id INTEGER, value BLOB, version INTEGER, created INTEGER, modified INTEGER, created_ms INTEGER,
                 modified_ms INTEGER, marked INTEGER, why TEXT);
             BEGIN;",
        )
        .map_err(failed)?;
        Ok(Survey {
            db,
            root: root.to_owned(),
            layout: Layout::default(),
            shards: BTreeMap::new(),
            broken: None,
            policies_unknown: None,
            handed_out: Evidence::not_read(),
            highest_named: None,
            unread: Vec::new(),
            timeline: Timeline::new(now_ms),
            order: Order::default(),
            report: SurveyReport::default(),
        })
    }

    pub(crate) fn set_layout(&mut self, layout: Layout) {
        self.layout = layout;
    }

    /// Where a ledger of this id is looked for.
    pub(crate) fn path_of(&self, id: i64) -> String {
        self.layout.path(&self.root, id)
    }

    /// The first id that had not been handed out before anything else was read.
    pub(crate) fn set_handed_out(&mut self, handed_out: Evidence<i64>) {
        self.handed_out = handed_out;
    }

    /// Something that leaves everything undecided.
    pub(crate) fn set_broken(&mut self, why: impl Into<String>) {
        self.broken.get_or_insert(why.into());
    }

    pub(crate) fn note(&mut self, stat: &Stat) {
        self.timeline.note(stat.created_zxid, stat.created_ms);
        self.timeline.note(stat.modified_zxid, stat.modified_ms);
    }

    // ---- ledgers

    /// Ledgers that exist.
    pub(crate) fn ledgers(&mut self, ids: &[i64]) -> Result<()> {
        let mut insert = self.db.prepare_cached("INSERT INTO ledger VALUES(?)").map_err(failed)?;
        for id in ids {
            insert.execute(params![id]).map_err(failed)?;
        }
        self.report.ledgers += ids.len() as u64;
        Ok(())
    }

    /// A range of ids of which it is not known which exist.
    pub(crate) fn unread(&mut self, unread: Unread) {
        self.unread.push(unread);
    }

    /// A node below BookKeeper's root that is no ledger, or a ledger where nobody looks for it.
    pub(crate) fn stray(&mut self, path: &str) {
        self.report.strays += 1;
        if self.report.stray_examples.len() < EXAMPLES {
            self.report.stray_examples.push(path.to_owned());
        }
    }

    // ---- what names them

    fn shard(&mut self, name: &str) -> &mut Shard {
        if !self.shards.contains_key(name) {
            self.shards.insert(name.to_owned(), Shard::default());
        }
        self.shards.entry(name.to_owned()).or_default()
    }

    /// A namespace that could not be read completely.
    pub(crate) fn incomplete(&mut self, shard: &str, why: impl Into<String>) {
        self.shard(shard).problem.get_or_insert(why.into());
    }

    /// What is known of a namespace's policies.
    pub(crate) fn namespace(&mut self, shard: &str, state: Evidence<NamespaceState>) {
        self.shard(shard).state = Some(state);
    }

    /// Not all namespaces' policies could be listed.
    pub(crate) fn policies_unknown(&mut self, why: impl Into<String>) {
        self.policies_unknown.get_or_insert(why.into());
    }

    fn owner(&mut self, path: &str, stat: &Stat, hides: bool) -> Result<i64> {
        self.note(stat);
        let mut insert = self
            .db
            .prepare_cached(
                "INSERT INTO owner(path, version, created, modified, modified_ms, hides) VALUES(?, ?, ?, ?, ?, ?)",
            )
            .map_err(failed)?;
        let (created, modified) = (stat.created_zxid, stat.modified_zxid);
        insert.insert(params![path, stat.version, created, modified, stat.modified_ms, hides]).map_err(failed)
    }

    fn refer(&mut self, id: i64, kind: ReferenceKind, owner: i64) -> Result<()> {
        self.highest_named = self.highest_named.max(Some(id));
        *self.report.references.entry(kind.name().to_owned()).or_default() += 1;
        let mut insert = self.db.prepare_cached("INSERT INTO reference VALUES(?, ?, ?)").map_err(failed)?;
        insert.execute(params![id, number_of(kind), owner]).map_err(failed)?;
        Ok(())
    }

    /// A topic. A value that cannot be decoded leaves its namespace incomplete.
    pub(crate) fn topic(&mut self, shard: &str, path: &str, value: &[u8], stat: &Stat) -> Result<()> {
        let owner = self.owner(path, stat, false)?;
        // Names from before Pulsar 2.0 have no namespace of that name.
        let legacy = !path[..path.rfind('/').unwrap_or(0)].ends_with(&format!("{shard}/persistent"));
        self.shard(shard).topics += u64::from(!legacy);
        self.report.topics += 1;
        match topic_references(value) {
            // Nodes are made without a value, and get one with the first list.
            Ok(_) if value.is_empty() && stat.version > 0 => {
                self.incomplete(shard, format!("{path} was written and has no value"));
            }
            Ok(listed) => {
                for (id, tiered) in listed {
                    self.refer(id, if tiered { ReferenceKind::Tiered } else { ReferenceKind::Topic }, owner)?;
                }
            }
            Err(e) => self.incomplete(shard, format!("{path} could not be decoded: {e}")),
        }
        Ok(())
    }

    /// A cursor.
    pub(crate) fn cursor(&mut self, shard: &str, path: &str, value: &[u8], stat: &Stat) -> Result<()> {
        let found = match cursor_references(value) {
            Ok(found) => found,
            Err(e) => {
                self.owner(path, stat, true)?;
                self.incomplete(shard, format!("{path} could not be decoded: {e}"));
                return Ok(());
            }
        };
        let owner = self.owner(path, stat, found.positions.is_some())?;
        let all = (found.positions.iter().map(|id| (id, ReferenceKind::Cursor)))
            .chain(found.compacted.iter().map(|id| (id, ReferenceKind::Compacted)))
            .chain(found.buckets.iter().map(|id| (id, ReferenceKind::DelayedBucket)));
        for (id, kind) in all {
            self.refer(*id, kind, owner)?;
        }
        Ok(())
    }

    /// A schema's locator.
    pub(crate) fn schema(&mut self, shard: &str, path: &str, value: &[u8], stat: &Stat) -> Result<()> {
        let owner = self.owner(path, stat, false)?;
        match references::schema_locator(value) {
            Ok(ids) => ids.into_iter().try_for_each(|id| self.refer(id, ReferenceKind::Schema, owner)),
            Err(e) => {
                self.incomplete(shard, format!("{path} could not be decoded: {e}"));
                Ok(())
            }
        }
    }

    /// A node of a DistributedLog that names a ledger, or of Hedwig.
    pub(crate) fn other(&mut self, kind: ReferenceKind, path: &str, ids: &[i64], stat: &Stat) -> Result<()> {
        let owner = self.owner(path, stat, false)?;
        ids.iter().try_for_each(|id| self.refer(*id, kind, owner))
    }

    // ---- the difference

    /// Finds the ledgers that nothing names, and the names of ledgers that do not exist.
    pub(crate) fn difference(&mut self) -> Result<()> {
        self.unread.sort_by_key(|unread| unread.from);
        self.order = self.timeline.ended();
        let mut ledgers = self.db.prepare("SELECT id FROM ledger ORDER BY id").map_err(failed)?;
        let mut named = self.db.prepare("SELECT id, kind, owner FROM reference ORDER BY id").map_err(failed)?;
        let mut lonely = self.db.prepare("INSERT OR IGNORE INTO lonely VALUES(?)").map_err(failed)?;
        let mut missing =
            self.db.prepare("INSERT INTO missing SELECT path, ?, ?, ? FROM owner WHERE row = ?").map_err(failed)?;
        let mut ledgers = ledgers.query([]).map_err(failed)?;
        let mut named = named.query([]).map_err(failed)?;
        let mut next_ledger = || -> Result<Option<i64>> {
            ledgers.next().map_err(failed)?.map(|row| row.get(0).map_err(failed)).transpose()
        };
        let mut next_name = || -> Result<Option<(i64, u8, i64)>> {
            let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
            named.next().map_err(failed)?.map(|row| read(row).map_err(failed)).transpose()
        };
        let mut gone = |id: i64, kind: u8, owner: i64| -> Result<()> {
            let known = !self.unread.iter().any(|unread| unread.from <= id && id <= unread.to);
            missing.execute(params![id, kind, known, owner]).map(drop).map_err(failed)
        };
        let tiered = number_of(ReferenceKind::Tiered);
        // Ids that were handed out after the ledgers were listed are not missing.
        let handed_out = self.handed_out.present().copied().unwrap_or(0);
        let wanted = |id: i64, kind: u8| kind != tiered && (id < handed_out || id >= LONG_FROM);
        let mut name = next_name()?;
        while let Some(id) = next_ledger()? {
            while let Some((at, kind, owner)) = name.filter(|(at, ..)| *at < id) {
                if wanted(at, kind) {
                    gone(at, kind, owner)?;
                }
                name = next_name()?;
            }
            let mut kinds = 0_u32;
            while let Some((_, kind, _)) = name.filter(|(at, ..)| *at == id) {
                kinds |= 1 << kind;
                name = next_name()?;
            }
            if kinds == 0 {
                self.report.lonely += 1;
                lonely.execute(params![id]).map_err(failed)?;
            }
            compare(&mut self.report.comparison, id, kinds);
        }
        while let Some((at, kind, owner)) = name {
            if wanted(at, kind) {
                gone(at, kind, owner)?;
            }
            name = next_name()?;
        }
        Ok(())
    }

    /// Up to `limit` of the ledgers that nothing names, from behind `after` on, in order.
    pub(crate) fn lonely(&self, after: i64, limit: usize) -> Result<Vec<i64>> {
        let mut select =
            self.db.prepare_cached("SELECT id FROM lonely WHERE id > ? ORDER BY id LIMIT ?").map_err(failed)?;
        let rows = select.query_map(params![after, limit as i64], |row| row.get(0)).map_err(failed)?;
        rows.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    /// Whether nothing names a ledger.
    pub(crate) fn is_lonely(&self, id: i64) -> Result<bool> {
        let mut select = self.db.prepare_cached("SELECT 1 FROM lonely WHERE id = ?").map_err(failed)?;
        select.exists(params![id]).map_err(failed)
    }

    /// What names a ledger.
    pub(crate) fn names_of(&self, id: i64) -> Result<Vec<LedgerReference>> {
        let select = "SELECT kind, path FROM reference JOIN owner ON owner.row = reference.owner WHERE id = ?";
        let mut select = self.db.prepare(select).map_err(failed)?;
        let row = |row: &rusqlite::Row<'_>| Ok(LedgerReference { kind: kind_of(row.get(0)?), by: row.get(1)? });
        let rows = select.query_map(params![id], row).map_err(failed)?;
        rows.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    /// Names of ledgers that seem not to exist: paths and ids, to be looked for once more.
    pub(crate) fn missing(&self, after: i64, limit: usize) -> Result<Vec<i64>> {
        let select = "SELECT DISTINCT id FROM missing WHERE known AND id > ? ORDER BY id LIMIT ?";
        let mut select = self.db.prepare_cached(select).map_err(failed)?;
        let rows = select.query_map(params![after, limit as i64], |row| row.get(0)).map_err(failed)?;
        rows.collect::<rusqlite::Result<_>>().map_err(failed)
    }

    /// A ledger that seemed missing is there, or nobody knows: what else the listing of its folder left out is not known either.
    pub(crate) fn not_missing(&mut self, id: i64, why: &str) -> Result<()> {
        let from = id - id % FOLDER;
        let unread = Unread { from, to: from + FOLDER - 1, why: why.to_owned() };
        let update = "UPDATE missing SET known = 0 WHERE id BETWEEN ? AND ?";
        self.db.execute(update, params![unread.from, unread.to]).map_err(failed)?;
        self.unread.push(unread);
        Ok(())
    }

    /// A ledger that nothing names, read. An error is kept beside it: it stays unknown.
    pub(crate) fn detail(&mut self, id: i64, read: std::result::Result<(&[u8], Stat), String>) -> Result<()> {
        let ((value, stat), why) = match read {
            Ok(read) => (read, None),
            Err(why) => ((&[][..], Stat::default()), Some(why)),
        };
        let marked = owned_by(value).is_some();
        let mut insert =
            self.db.prepare_cached("INSERT INTO detail VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)").map_err(failed)?;
        insert
            .execute(params![
                id,
                value,
                stat.version,
                stat.created_zxid,
                stat.modified_zxid,
                stat.created_ms,
                stat.modified_ms,
                marked,
                why
            ])
            .map(drop)
            .map_err(failed)
    }

    // ---- candidates

    /// Ledgers with marks of Pulsar that were made within a day and that nothing here names, against all that were made since the
    /// first of them: in a BookKeeper of one cluster that is next to nothing.
    fn strangers(&self) -> Result<Option<String>> {
        let newest = self.timeline.newest_ms();
        let select =
            "SELECT count(*), min(id) FROM detail WHERE marked AND max(created_ms, modified_ms) BETWEEN ? AND ?";
        let span = params![newest - DAY_MS, newest - SETTLED_MS];
        let (young, first): (i64, Option<i64>) =
            self.db.query_row(select, span, |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
        let since = "SELECT count(*) FROM ledger WHERE id >= ?";
        let since: i64 = self.db.query_row(since, params![first.unwrap_or(0)], |row| row.get(0)).map_err(failed)?;
        let strange = young > STRANGERS && young as f64 > since as f64 * STRANGERS_SHARE;
        Ok(strange.then(|| {
            format!(
                "{young} of the {since} ledgers of the last day have marks of Pulsar and are named by nothing here: another \
                 cluster seems to keep its ledgers in this BookKeeper"
            )
        }))
    }

    /// Hands over everything that nothing names, in order of id, until no more is wanted.
    pub(crate) fn candidates(&mut self, each: &mut dyn FnMut(OrphanCandidate) -> bool) -> Result<()> {
        self.db
            .execute_batch("CREATE INDEX owner_path ON owner(path); CREATE INDEX missing_path ON missing(path);")
            .map_err(failed)?;
        if let Some(why) = self.strangers()? {
            self.set_broken(why);
        }
        self.finish()?;
        let select =
            "SELECT id, value, version, created, modified, created_ms, modified_ms, why FROM detail ORDER BY id";
        let mut select = self.db.prepare(select).map_err(failed)?;
        let mut rows = select.query([]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let candidate = self.candidate(row)?;
            if !each(candidate) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn candidate(&self, row: &rusqlite::Row<'_>) -> Result<OrphanCandidate> {
        let of = |index: usize| row.get::<_, i64>(index).map_err(failed);
        let value = row.get_ref(1).and_then(|value| Ok(value.as_blob()?)).map_err(failed)?;
        let id = of(0)?;
        let seen = Seen {
            version: i32::try_from(of(2)?).unwrap_or(-1),
            created_zxid: of(3)?,
            modified_zxid: of(4)?,
            modified_ms: of(6)?,
        };
        let why: Option<String> = row.get(7).map_err(failed)?;
        let (content, marks, owned) = judged(value, why);
        let guards = owned.as_ref().map_or(Ok(Vec::new()), |owned| self.guards(owned))?;
        Ok(OrphanCandidate {
            subject: ledger_subject(id),
            ledger: id,
            path: self.path_of(id),
            seen,
            created_ms: of(5)?,
            metadata: base64::engine::general_purpose::STANDARD.encode(value),
            content,
            references: self.references(owned.as_ref())?,
            namespace: self.namespace_of(owned.as_ref()),
            missing: self.missing_of(owned.as_ref())?,
            marks,
            guards,
            ceiling: Ceiling {
                handed_out: if id < LONG_FROM { self.handed_out.clone() } else { Evidence::Absent },
                highest_named: self.highest_named.map_or(Evidence::Absent, Evidence::Present),
            },
            clock: TargetClock {
                newest_ms: self.timeline.newest_ms(),
                written_after_ms: self.order.written_after_ms(seen.modified_zxid),
            },
            sightings: Vec::new(),
        })
    }

    /// Why what may name a ledger of this owner was not read completely, if so.
    fn problem(&self, owned: &Owned) -> Option<&str> {
        let shard = || self.shards.get(&shard_of(&owned.managed_ledger))?.problem.as_deref();
        self.broken.as_deref().or_else(shard)
    }

    fn references(&self, owned: Option<&Owned>) -> Result<Evidence<Vec<LedgerReference>>> {
        let unknown = |why: &str| Ok(Evidence::Unknown(why.to_owned()));
        let Some(owned) = owned else {
            return self.broken.as_deref().map_or(Ok(Evidence::Absent), unknown);
        };
        if let Some(why) = self.problem(owned) {
            return unknown(why);
        }
        if matches!(owned.owner.kind, OwnedKind::Compacted | OwnedKind::DelayedBucket)
            && let Some((_, path)) = owned.nodes.iter().find(|(kind, _)| *kind == GuardKind::Cursor)
            && self.seen(path)?.is_some_and(|(_, hides)| hides)
        {
            return unknown(
                "its cursor keeps its newest properties in a cursor ledger, which was not read; they are in its node once the \
                 topic is closed",
            );
        }
        Ok(Evidence::Absent)
    }

    /// What was last read of a node, and whether it keeps something elsewhere.
    fn seen(&self, path: &str) -> Result<Option<(Seen, bool)>> {
        let select =
            "SELECT version, created, modified, modified_ms, hides FROM owner WHERE path = ? ORDER BY row DESC LIMIT 1";
        let mut select = self.db.prepare_cached(select).map_err(failed)?;
        let row = |row: &rusqlite::Row<'_>| {
            let (version, created_zxid, modified_zxid, modified_ms) =
                (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            Ok((Seen { version, created_zxid, modified_zxid, modified_ms }, row.get(4)?))
        };
        select.query_row(params![path], row).optional().map_err(failed)
    }

    fn guards(&self, owned: &Owned) -> Result<Vec<Guard>> {
        let mut guards = Vec::new();
        for (kind, path) in &owned.nodes {
            let node = match (self.seen(path)?, self.problem(owned)) {
                (Some((seen, _)), _) => Evidence::Present(seen),
                (None, Some(why)) => Evidence::Unknown(why.to_owned()),
                (None, None) => Evidence::Absent,
            };
            let absent = node == Evidence::Absent;
            guards.push(Guard { kind: *kind, path: path.clone(), node });
            if absent {
                // Nothing is below what is not there.
                break;
            }
        }
        Ok(guards)
    }

    fn namespace_of(&self, owned: Option<&Owned>) -> Evidence<NamespaceState> {
        let Some(owned) = owned else { return Evidence::Absent };
        match self.shards.get(&owned.owner.namespace).and_then(|shard| shard.state.clone()) {
            Some(state) => state,
            None => self.policies_unknown.clone().map_or(Evidence::Absent, Evidence::Unknown),
        }
    }

    fn missing_of(&self, owned: Option<&Owned>) -> Result<Evidence<Vec<i64>>> {
        let Some((_, path)) = owned.and_then(|owned| owned.nodes.first()) else { return Ok(Evidence::Absent) };
        let select = "SELECT id, known FROM missing WHERE path = ?1 OR (path > ?1 || '/' AND path < ?1 || '0') ORDER BY id LIMIT 20";
        let mut select = self.db.prepare_cached(select).map_err(failed)?;
        let rows = select.query_map(params![path], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
        let all: Vec<(i64, bool)> = rows.collect::<rusqlite::Result<_>>().map_err(failed)?;
        if let Some((id, _)) = all.iter().find(|(_, known)| !known) {
            return Ok(Evidence::Unknown(format!("whether ledger {id} exists could not be read")));
        }
        let mut ids: Vec<i64> = all.into_iter().map(|(id, _)| id).collect();
        ids.dedup();
        Ok(if ids.is_empty() { Evidence::Absent } else { Evidence::Present(ids) })
    }

    // ---- the report

    fn finish(&mut self) -> Result<()> {
        self.report.broken = self.broken.clone();
        self.report.unread = self.unread.iter().take(EXAMPLES).cloned().collect();
        let problems = self.shards.iter().filter_map(|(name, shard)| Some((name.clone(), shard.problem.clone()?)));
        self.report.incomplete = problems.take(INCOMPLETE).collect();
        let without = |shard: &&String| {
            let shard = &self.shards[*shard];
            shard.topics > 0 && shard.state.is_none() && self.policies_unknown.is_none()
        };
        self.report.stray_examples.sort_unstable();
        self.report.namespaces_missing = self.shards.keys().filter(without).count() as u64;
        self.report.namespaces_missing_examples = self.shards.keys().filter(without).take(EXAMPLES).cloned().collect();
        let count = "SELECT count(*) FROM missing WHERE known";
        self.report.missing = self.db.query_row(count, [], |row| row.get::<_, i64>(0)).map_err(failed)?.unsigned_abs();
        let select = "SELECT path, id, kind FROM missing WHERE known ORDER BY id, path LIMIT ?";
        let mut select = self.db.prepare(select).map_err(failed)?;
        let row = |row: &rusqlite::Row<'_>| {
            Ok(Missing { by: row.get(0)?, ledger: row.get(1)?, kind: kind_of(row.get(2)?).name().to_owned() })
        };
        let rows = select.query_map(params![EXAMPLES as i64], row).map_err(failed)?;
        self.report.missing_examples = rows.collect::<rusqlite::Result<_>>().map_err(failed)?;
        Ok(())
    }

    pub(crate) fn into_report(self) -> SurveyReport {
        self.report
    }
}

/// The owner that a ledger's value names, if it does.
pub(super) fn owned_by(value: &[u8]) -> Option<Owned> {
    full_metadata(value).ok().and_then(|ledger| marks::owned(&ledger).ok())
}

/// What a ledger's value says, or why it could not be read.
fn judged(value: &[u8], why: Option<String>) -> (Evidence<LedgerContent>, Marks, Option<Owned>) {
    let decoded = match why {
        Some(why) => Err(why),
        None => full_metadata(value).map_err(|e| e.to_string()),
    };
    let ledger: LedgerMetadata = match decoded {
        Ok(ledger) => ledger,
        Err(why) => return (Evidence::Unknown(why.clone()), Marks::Unknown { why }, None),
    };
    match marks::owned(&ledger) {
        Ok(owned) => (Evidence::Present(ledger.content), Marks::Pulsar(owned.owner.clone()), Some(owned)),
        Err(marks) => (Evidence::Present(ledger.content), marks, None),
    }
}

/// The first two parts of a path below `/managed-ledgers/`: what is read, and is complete or not, as a whole.
pub(crate) fn shard_of(managed_ledger: &str) -> String {
    let end = managed_ledger.match_indices('/').nth(1).map_or(managed_ledger.len(), |(at, _)| at);
    managed_ledger[..end].to_owned()
}

fn number_of(kind: ReferenceKind) -> u8 {
    ReferenceKind::ALL.iter().position(|known| *known == kind).and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
}

fn kind_of(number: u8) -> ReferenceKind {
    ReferenceKind::ALL.get(usize::from(number)).copied().unwrap_or(ReferenceKind::Topic)
}

/// Counts one ledger with the kinds of what names it.
fn compare(comparison: &mut Comparison, id: i64, kinds: u32) {
    let listed = 1 << number_of(ReferenceKind::Topic) | 1 << number_of(ReferenceKind::Tiered);
    if kinds & listed != 0 {
        return;
    }
    comparison.naive += 1;
    let Some(kind) = (0..8).find(|kind| kinds & (1 << kind) != 0) else { return };
    comparison.named.entry(kind_of(kind).name().to_owned()).or_default().add(id);
}
