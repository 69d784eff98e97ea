//! One kind of damage at a time, done to a copy of an unclean log dir.
//!
//! Partitions of the mess: `plain-0`, `idem-0`, `txn-0`; each has flushed segments (below the recovery point of a clean
//! stop) and at least three unflushed ones.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A log dir with landmarks: its path, and the partitions that damage is done to.
pub struct Dir {
    pub path: PathBuf,
    pub plain: &'static str,
    pub idem: &'static str,
    pub txn: &'static str,
}

pub const UNIQUE: &str = "0123456789abcdef0123456789abcdef";

impl Dir {
    /// A copy of the mess that the tests against Kafka make.
    pub fn mess(path: &Path) -> Self {
        Self { path: path.to_path_buf(), plain: "plain-0", idem: "idem-0", txn: "txn-0" }
    }

    /// A copy of the fixture.
    pub fn fixture(path: &Path) -> Self {
        Self { path: path.to_path_buf(), plain: "lab-plain-0-0", idem: "lab-idem-5-0", txn: "lab-txn-6-0" }
    }

    pub fn partition(&self, name: &str) -> Part {
        let text = fs::read_to_string(self.path.join("recovery-point-offset-checkpoint")).unwrap_or_default();
        let (topic, number) = name.rsplit_once('-').unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix(&format!("{topic} {number} "))?.parse().ok());
        Part { path: self.path.join(name), recovery_point: line.unwrap_or(0) }
    }

    pub fn plain(&self) -> Part {
        self.partition(self.plain)
    }

    pub fn txn(&self) -> Part {
        self.partition(self.txn)
    }

    fn top(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Sets or removes the plain partition's line in a checkpoint.
    fn line(&self, name: &str, offset: Option<i64>) {
        let (topic, number) = self.plain.rsplit_once('-').unwrap();
        let start = format!("{topic} {number} ");
        let text = fs::read_to_string(self.top(name)).unwrap_or_default();
        let mut lines: Vec<String> =
            text.lines().skip(2).filter(|l| !l.starts_with(&start)).map(str::to_owned).collect();
        lines.extend(offset.map(|offset| format!("{start}{offset}")));
        let text = format!("0\n{}\n{}\n", lines.len(), lines.join("\n"));
        fs::write(self.top(name), text).unwrap();
    }

    fn copy_plain_as(&self, name: &str) {
        trimtab_tests::kafka::copy(&self.plain().path, &self.top(name)).unwrap();
    }
}

/// A partition.
pub struct Part {
    pub path: PathBuf,
    pub recovery_point: i64,
}

impl Part {
    pub fn bases(&self) -> Vec<i64> {
        let mut bases: Vec<i64> = fs::read_dir(&self.path)
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".log")?.parse().ok())
            .collect();
        bases.sort_unstable();
        bases
    }

    pub fn unflushed(&self) -> Vec<i64> {
        let bases = self.bases();
        let first = bases.iter().rposition(|base| *base <= self.recovery_point).unwrap_or(0);
        bases[first..].to_vec()
    }

    pub fn flushed(&self) -> Vec<i64> {
        let unflushed = self.unflushed();
        self.bases().into_iter().filter(|base| !unflushed.contains(base)).collect()
    }

    pub fn file(&self, base: i64, suffix: &str) -> PathBuf {
        self.path.join(format!("{base:020}.{suffix}"))
    }

    pub fn last(&self) -> i64 {
        *self.bases().last().unwrap()
    }

    /// An unflushed segment with one behind it.
    pub fn middle(&self) -> i64 {
        let unflushed = self.unflushed();
        assert!(unflushed.len() >= 3, "{unflushed:?}");
        unflushed[unflushed.len() - 2]
    }

    pub fn snapshots(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(&self.path).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|e| e == "snapshot")).collect()
    }

    fn copy_as(&self, base: i64, suffix: &str) {
        for kind in ["log", "index", "timeindex"] {
            let from = self.file(base, kind);
            fs::copy(&from, format!("{}.{suffix}", from.display())).unwrap();
        }
    }
}

/// (position, size, base offset) of each batch.
pub fn batches(path: &Path) -> Vec<(u64, u64, i64)> {
    let bytes = fs::read(path).unwrap();
    let mut out = Vec::new();
    let mut at = 0;
    while at + 17 < bytes.len() {
        let base = i64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        let size = 12 + u32::from_be_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        out.push((at as u64, size as u64, base));
        at += size;
    }
    out
}

pub fn poke(path: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

pub fn flip(path: &Path, at: u64) {
    let byte = fs::read(path).unwrap()[at as usize];
    poke(path, at, &[byte ^ 1]);
}

pub fn cut(path: &Path, length: u64) {
    File::options().write(true).open(path).unwrap().set_len(length).unwrap();
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn append(path: &Path, bytes: &[u8]) {
    File::options().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn sparse(path: &Path, length: u64) {
    fs::write(path, b"").unwrap();
    cut(path, length);
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

/// The middle batch of a log.
fn half(path: &Path) -> (u64, u64, i64) {
    let all = batches(path);
    all[all.len() / 2]
}

/// What must come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The same bytes as from Kafka.
    Same,
    /// Both refuse.
    Refuse,
    /// The same bytes but for these names, which the text beside the case explains.
    SameBut(&'static [&'static str]),
    /// We refuse what this loader lets through; a whole broker does not start on it.
    OnlyWe,
    /// There is a marker: we leave everything alone.
    Clean,
}

/// A kind of damage: name, expectation, settings that both must be given, what it does.
pub type Case = (&'static str, Expect, &'static [&'static str], fn(&Dir));

use Expect::{Clean, OnlyWe, Refuse, Same, SameBut};

/// Damage to logs.
pub const LOGS: &[Case] = &[
    ("none", Same, &[], |_| {}),
    ("torn tail", Same, &[], |d| {
        let log = d.plain().file(d.plain().last(), "log");
        cut(&log, size(&log) - 100);
    }),
    ("torn tail, ten bytes of a header left", Same, &[], |d| {
        let log = d.plain().file(d.plain().last(), "log");
        cut(&log, batches(&log).last().unwrap().0 + 10);
    }),
    ("torn tail of a transactional partition", Same, &[], |d| {
        let log = d.txn().file(d.txn().last(), "log");
        cut(&log, size(&log) - 40);
    }),
    ("middle segment torn", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        cut(&log, half(&log).0 + 50);
    }),
    ("middle segment cut at a batch border", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        cut(&log, half(&log).0);
    }),
    ("zeros appended", Same, &[], |d| append(&d.plain().file(d.plain().last(), "log"), &[0; 8192])),
    ("zero tail", Same, &[], |d| {
        let log = d.plain().file(d.plain().last(), "log");
        poke(&log, size(&log).saturating_sub(4096), &vec![0; size(&log).min(4096) as usize]);
    }),
    ("zero block in the middle", Same, &[], |d| poke(&d.plain().file(d.plain().middle(), "log"), 9000, &[0; 4096])),
    ("whole segment zero", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        poke(&log, 0, &vec![0; size(&log) as usize]);
    }),
    ("bit flip in a payload", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        flip(&log, half(&log).0 + 200);
    }),
    ("bit flip in a flushed segment", Same, &[], |d| {
        let log = d.plain().file(d.plain().flushed()[0], "log");
        flip(&log, half(&log).0 + 200);
    }),
    ("bit flip in the first unflushed segment of a transactional partition", Same, &[], |d| {
        let log = d.txn().file(d.txn().unflushed()[0], "log");
        let all = batches(&log);
        flip(&log, all[all.len() - 2].0 + 70);
    }),
    ("length field off by one", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        flip(&log, half(&log).0 + 11);
    }),
    ("magic 3", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        poke(&log, half(&log).0 + 16, &[3]);
    }),
    ("magic 1", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        poke(&log, half(&log).0 + 16, &[1]);
    }),
    ("negative magic", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        poke(&log, half(&log).0 + 16, &[0x82]);
    }),
    ("leader epoch flipped upward", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        poke(&log, half(&log).0 + 12, &1_000_002_i32.to_be_bytes());
    }),
    ("an offset goes back where there is no index entry", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        let second = batches(&log)[1];
        poke(&log, second.0, &(second.2 - 1).to_be_bytes());
    }),
    ("offsets go back at an index entry", Same, &[], |d| {
        let base = d.plain().middle();
        let log = d.plain().file(base, "log");
        let all = batches(&log);
        for batch in &all[all.len() / 2..] {
            poke(&log, batch.0, &base.to_be_bytes());
        }
    }),
    ("all offsets are the base offset", Same, &["index.interval.bytes=100"], |d| {
        let base = d.plain().middle();
        let log = d.plain().file(base, "log");
        for batch in batches(&log) {
            poke(&log, batch.0, &base.to_be_bytes());
        }
    }),
    ("offsets go back in a segment without index", Refuse, &[], |d| {
        let base = d.plain().middle();
        let log = d.plain().file(base, "log");
        let all = batches(&log);
        for batch in &all[all.len() / 2..] {
            poke(&log, batch.0, &base.to_be_bytes());
        }
        remove(&d.plain().file(base, "index"));
    }),
    ("an offset jumps", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        poke(&log, half(&log).0, &(half(&log).2 + 1_000_000).to_be_bytes());
    }),
    ("an offset that does not fit", Refuse, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        poke(&log, half(&log).0, &(half(&log).2 + (1 << 33)).to_be_bytes());
    }),
    ("an offset below the segment", Refuse, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        poke(&log, half(&log).0, &1_i64.to_be_bytes());
    }),
    ("empty active segment", Same, &[], |d| fs::write(d.plain().file(d.plain().last(), "log"), b"").unwrap()),
    ("empty middle segment", Same, &[], |d| fs::write(d.plain().file(d.plain().middle(), "log"), b"").unwrap()),
    ("middle segment gone", Same, &[], |d| {
        let middle = d.plain().middle();
        for suffix in ["log", "index", "timeindex", "snapshot"] {
            fs::remove_file(d.plain().path.join(format!("{middle:020}.{suffix}"))).ok();
        }
    }),
    ("only the log of a middle segment gone", Same, &[], |d| remove(&d.plain().file(d.plain().middle(), "log"))),
    ("all segments gone", Same, &[], |d| {
        for entry in fs::read_dir(d.plain().path).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap().to_str().unwrap().starts_with('0') {
                remove(&path);
            }
        }
    }),
    ("unflushed segment without index and torn", Same, &[], |d| {
        let log = d.plain().file(d.plain().middle(), "log");
        cut(&log, half(&log).0 + 50);
        remove(&d.plain().file(d.plain().middle(), "index"));
    }),
];

/// Damage to indexes and snapshots.
pub const INDEXES: &[Case] = &[
    ("no offset index, unflushed", Same, &[], |d| remove(&d.plain().file(d.plain().middle(), "index"))),
    ("no offset index, flushed", Same, &[], |d| remove(&d.plain().file(d.plain().flushed()[0], "index"))),
    ("no offset index, flushed, and a bit flip", Same, &[], |d| {
        let base = d.plain().flushed()[0];
        let log = d.plain().file(base, "log");
        remove(&d.plain().file(base, "index"));
        flip(&log, half(&log).0 + 200);
    }),
    ("no offset index, flushed, transactional", Same, &[], |d| remove(&d.txn().file(d.txn().flushed()[0], "index"))),
    ("no offset index of the second flushed, transactional", Same, &[], |d| {
        remove(&d.txn().file(d.txn().flushed()[1], "index"));
    }),
    ("no offset index anywhere, transactional", Same, &[], |d| {
        for base in d.txn().bases() {
            remove(&d.txn().file(base, "index"));
        }
    }),
    ("no offset index and no snapshot anywhere, transactional", Same, &[], |d| {
        for base in d.txn().bases() {
            remove(&d.txn().file(base, "index"));
        }
        d.txn().snapshots().iter().for_each(|path| remove(path));
    }),
    ("no time index, unflushed", Same, &[], |d| remove(&d.plain().file(d.plain().middle(), "timeindex"))),
    ("no time index, flushed", Same, &[], |d| remove(&d.plain().file(d.plain().flushed()[0], "timeindex"))),
    ("no transaction index anywhere", Same, &[], |d| {
        for base in d.txn().bases() {
            fs::remove_file(d.txn().file(base, "txnindex")).ok();
        }
    }),
    ("offset index with three more bytes, unflushed", Same, &[], |d| {
        append(&d.plain().file(d.plain().middle(), "index"), b"abc");
    }),
    ("offset index with three more bytes, flushed", Same, &[], |d| {
        append(&d.plain().file(d.plain().flushed()[0], "index"), b"abc");
    }),
    ("indexes full of garbage, unflushed", Same, &[], |d| {
        for suffix in ["index", "timeindex"] {
            fs::write(d.plain().file(d.plain().middle(), suffix), [0xFF; 240]).unwrap();
        }
    }),
    ("offset index full of garbage, flushed", Same, &[], |d| {
        fs::write(d.plain().file(d.plain().flushed()[0], "index"), [0xFF; 64]).unwrap();
    }),
    ("garbage in flushed offset indexes while snapshots are gone", Same, &[], |d| {
        for base in d.txn().flushed() {
            fs::write(d.txn().file(base, "index"), [0x7F, 0, 0, 1, 0, 0, 1, 0]).unwrap();
        }
        d.txn().snapshots().iter().for_each(|path| remove(path));
    }),
    ("empty indexes of the active segment", Same, &[], |d| {
        for suffix in ["index", "timeindex"] {
            fs::write(d.plain().file(d.plain().last(), suffix), b"").unwrap();
        }
    }),
    ("preallocated indexes, unflushed", Same, &[], |d| {
        sparse(&d.plain().file(d.plain().middle(), "index"), 10_485_760);
        sparse(&d.plain().file(d.plain().middle(), "timeindex"), 10_485_756);
    }),
    ("preallocated indexes, flushed", Same, &[], |d| {
        sparse(&d.plain().file(d.plain().flushed()[0], "index"), 10_485_760);
        sparse(&d.plain().file(d.plain().flushed()[0], "timeindex"), 10_485_756);
    }),
    ("transaction index that names an offset below its segment", Same, &[], |d| {
        let entry: Vec<u8> = [0_u8, 0].into_iter().chain([1_u64; 4].into_iter().flat_map(u64::to_be_bytes)).collect();
        fs::write(d.txn().file(d.txn().flushed()[1], "txnindex"), entry).unwrap();
    }),
    ("transaction index of another version, flushed", Refuse, &[], |d| {
        fs::write(d.txn().file(d.txn().flushed()[1], "txnindex"), [0x77; 68]).unwrap();
    }),
    ("transaction index of another version, unflushed", Refuse, &[], |d| {
        fs::write(d.txn().file(d.txn().middle(), "txnindex"), [0x77; 68]).unwrap();
    }),
    ("transaction index of a negative version", Refuse, &[], |d| {
        fs::write(d.txn().file(d.txn().flushed()[1], "txnindex"), [0xFF; 34]).unwrap();
    }),
    ("transaction index with a part of an entry", Same, &[], |d| {
        let path = d.txn().file(d.txn().flushed()[0], "txnindex");
        fs::write(&path, [fs::read(&path).unwrap_or_default(), vec![0; 10]].concat()).unwrap();
    }),
    ("no snapshot, transactional", Same, &[], |d| d.txn().snapshots().iter().for_each(|path| remove(path))),
    ("no snapshot, transactional, and a torn batch", Same, &[], |d| {
        d.txn().snapshots().iter().for_each(|path| remove(path));
        let log = d.txn().file(d.txn().unflushed()[0], "log");
        cut(&log, size(&log) - 10);
    }),
    ("a torn batch in an idempotent partition", Same, &[], |d| {
        let part = d.partition(d.idem);
        let log = part.file(part.unflushed()[0], "log");
        cut(&log, size(&log) - 10);
    }),
    ("no snapshot, idempotent, and a torn batch", Same, &[], |d| {
        let part = d.partition(d.idem);
        part.snapshots().iter().for_each(|path| remove(path));
        let log = part.file(part.unflushed()[0], "log");
        cut(&log, size(&log) - 10);
    }),
    ("no snapshot, idempotent", Same, &[], |d| d.partition(d.idem).snapshots().iter().for_each(|path| remove(path))),
    ("no snapshot at the first unflushed segment", Same, &[], |d| {
        fs::remove_file(d.txn().file(d.txn().unflushed()[0], "snapshot")).ok();
    }),
    ("snapshot at the first unflushed segment flipped", Same, &[], |d| {
        flip(&d.txn().file(d.txn().unflushed()[0], "snapshot"), 8);
    }),
    ("snapshot at the first unflushed segment empty", Same, &[], |d| {
        fs::write(d.txn().file(d.txn().unflushed()[0], "snapshot"), b"").unwrap();
    }),
    ("all snapshots flipped", Same, &[], |d| d.txn().snapshots().iter().for_each(|path| flip(path, 3))),
    ("an index that is too small", Refuse, &["segment.index.bytes=32"], |_| {}),
    ("an index entry for each batch", Same, &["index.interval.bytes=0"], |_| {}),
    ("an index entry each 64 KiB", Same, &["index.interval.bytes=65536"], |_| {}),
];

/// Damage to checkpoints, leftovers, names.
pub const OTHERS: &[Case] = &[
    ("no recovery points", Same, &[], |d| remove(&d.top("recovery-point-offset-checkpoint"))),
    ("empty recovery points", Same, &[], |d| fs::write(d.top("recovery-point-offset-checkpoint"), b"").unwrap()),
    ("recovery points full of zeros", Refuse, &[], |d| {
        fs::write(d.top("recovery-point-offset-checkpoint"), [0; 99]).unwrap();
    }),
    ("half of the recovery points", Refuse, &[], |d| {
        let path = d.top("recovery-point-offset-checkpoint");
        cut(&path, size(&path) / 2);
    }),
    ("recovery point beyond the end", Same, &[], |d| d.line("recovery-point-offset-checkpoint", Some(99_999))),
    ("no recovery point for the partition", Same, &[], |d| d.line("recovery-point-offset-checkpoint", None)),
    ("garbage in the log starts", Refuse, &[], |d| fs::write(d.top("log-start-offset-checkpoint"), b"no\n").unwrap()),
    ("log start inside", Same, &[], |d| d.line("log-start-offset-checkpoint", Some(d.plain().bases()[1] + 5))),
    ("log start beyond the end", Same, &[], |d| d.line("log-start-offset-checkpoint", Some(99_999))),
    ("garbage in the high watermarks", OnlyWe, &[], |d| {
        fs::write(d.top("replication-offset-checkpoint"), b"garbage\n").unwrap();
    }),
    ("garbage in the cleaner offsets", OnlyWe, &[], |d| {
        fs::write(d.top("cleaner-offset-checkpoint"), b"garbage\n").unwrap();
    }),
    ("no epochs", Same, &[], |d| remove(&d.plain().path.join("leader-epoch-checkpoint"))),
    ("empty epochs", Same, &[], |d| fs::write(d.plain().path.join("leader-epoch-checkpoint"), b"").unwrap()),
    ("epochs full of zeros", Refuse, &[], |d| {
        fs::write(d.plain().path.join("leader-epoch-checkpoint"), [0; 14]).unwrap();
    }),
    ("an epoch beyond the end", Same, &[], |d| {
        fs::write(d.plain().path.join("leader-epoch-checkpoint"), b"0\n2\n0 0\n9 99999\n").unwrap();
    }),
    ("epochs out of order", Same, &[], |d| {
        fs::write(d.plain().path.join("leader-epoch-checkpoint"), b"0\n3\n5 0\n2 10\n7 5\n").unwrap();
    }),
    ("no partition.metadata", Same, &[], |d| remove(&d.plain().path.join("partition.metadata"))),
    ("empty partition.metadata", Refuse, &[], |d| fs::write(d.plain().path.join("partition.metadata"), b"").unwrap()),
    ("a deleted segment", Same, &[], |d| d.plain().copy_as(d.plain().bases()[0], "deleted")),
    ("a cleaned segment", Same, &[], |d| d.plain().copy_as(d.plain().bases()[0], "cleaned")),
    ("a finished swap", Same, &[], |d| {
        let (p, flushed) = (d.plain(), d.plain().flushed());
        let both =
            [fs::read(p.file(flushed[0], "log")).unwrap(), fs::read(p.file(flushed[1], "log")).unwrap()].concat();
        p.copy_as(flushed[0], "swap");
        fs::write(p.file(flushed[0], "log.swap"), both).unwrap();
    }),
    ("a finished swap without indexes", Same, &[], |d| {
        let (p, flushed) = (d.plain(), d.plain().flushed());
        let both =
            [fs::read(p.file(flushed[0], "log")).unwrap(), fs::read(p.file(flushed[1], "log")).unwrap()].concat();
        fs::write(p.file(flushed[0], "log.swap"), both).unwrap();
    }),
    ("a finished swap with a torn log", Same, &[], |d| {
        let (p, flushed) = (d.plain(), d.plain().flushed());
        p.copy_as(flushed[0], "swap");
        let log = p.file(flushed[0], "log.swap");
        cut(&log, size(&log) - 30);
    }),
    ("a finished swap with an impossible length", Refuse, &[], |d| {
        let (p, flushed) = (d.plain(), d.plain().flushed());
        p.copy_as(flushed[0], "swap");
        let log = p.file(flushed[0], "log.swap");
        poke(&log, batches(&log).last().unwrap().0 + 8, &[0, 0, 0, 1]);
    }),
    ("swapped indexes alone", Same, &[], |d| {
        let (p, flushed) = (d.plain(), d.plain().flushed());
        p.copy_as(flushed[0], "swap");
        fs::rename(p.file(flushed[0], "log.swap"), p.file(flushed[0], "log")).unwrap();
    }),
    ("a swap behind a cleaned segment", Same, &[], |d| {
        let p = d.plain();
        p.copy_as(p.bases()[1], "swap");
        p.copy_as(p.bases()[0], "cleaned");
    }),
    // The broker loads such a folder and then deletes it.
    ("a folder to be deleted", SameBut(&["-delete/"]), &[], |d| {
        d.copy_plain_as(&format!("{}.{UNIQUE}-delete", d.plain))
    }),
    // Kafka does not close stray logs, so their active indexes stay preallocated.
    ("a stray folder", SameBut(&["-stray/"]), &[], |d| d.copy_plain_as(&format!("plain-7.{UNIQUE}-stray"))),
    ("a future folder beside the current one", OnlyWe, &[], |d| {
        d.copy_plain_as(&format!("{}.{UNIQUE}-future", d.plain))
    }),
    ("a partition of an unknown topic", Same, &[], |d| d.copy_plain_as("ghost-0")),
    ("notes", Same, &[], |d| {
        fs::write(d.top("notes.txt"), b"x").unwrap();
        fs::write(d.plain().path.join("notes.txt"), b"x").unwrap();
    }),
    ("a log that is none", Refuse, &[], |d| fs::write(d.plain().path.join("backup.log"), b"x").unwrap()),
    ("a snapshot that is none", Refuse, &[], |d| fs::write(d.plain().path.join("backup.snapshot"), b"x").unwrap()),
    // Kafka writes a new temporary file over the old one and renames it.
    ("half-written checkpoints", SameBut(&["leader-epoch-checkpoint.tmp"]), &[], |d| {
        fs::write(d.plain().path.join("leader-epoch-checkpoint.tmp"), b"0\n").unwrap();
        fs::write(d.top("recovery-point-offset-checkpoint.tmp"), b"0\n2").unwrap();
    }),
    ("a foreign folder", Refuse, &[], |d| fs::create_dir(d.top("lost+found")).unwrap()),
    ("an empty marker", Clean, &[], |d| fs::write(d.top(".kafka_cleanshutdown"), b"").unwrap()),
];
