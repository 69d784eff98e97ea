//! The record: an append-only file of JSON lines, each chained to the one before it by a hash, on disk before the caller goes
//! on. Kept outside the bus: what a bus forgets is not forgotten here.
//!
//! A line is a [`Record`] with `hash` last: the SHA-256 of the previous line's hash (32 bytes; zeros before the first) and of the
//! line up to `,"hash"`. Any changed, moved, repeated or missing line breaks the chain; only a cut tail does not, which is why
//! [`verify`] prints the head to be kept elsewhere and compares with one that was.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::metrics::{Counts, RECORD_FAILURES};

/// Why a record is not on disk.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the record {path} {what}: {why}")]
pub struct JournalError {
    path: String,
    what: &'static str,
    why: String,
}

/// What kind of thing is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordKind {
    /// An act is about to be carried out: the decision, and the state before.
    Intent,
    /// What came of it.
    Outcome,
    /// What came of a scan.
    Scan,
    /// An owner was told of something.
    Notice,
    /// A person asked for something to be left alone, or took that back.
    Protect,
    /// An act is about to be taken back.
    Undo,
    /// What came of that.
    Undone,
    /// What came of the recovery of a log dir or of a partition in it.
    Recovery,
    /// A person confirmed what a limit had stopped.
    Confirm,
    /// A person approved a plan: from here on its decisions may be carried out.
    Approve,
    /// A person stopped what was being carried out of a scan or an approved plan.
    Stop,
    /// A person had an event that was given up put back into its queue, or taken away for good.
    Letter,
    /// Evidence that a call may erase.
    Evidence,
    /// Something about this file itself.
    Note,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// From 0, without gaps.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub at_ms: i64,
    /// What it is.
    pub kind: RecordKind,
    /// What it is about: a decision's or a scan's id.
    pub id: String,
    /// The resource; empty where it is about none.
    pub subject: String,
    /// Trace id; empty when nothing is traced.
    pub trace_id: String,
    /// The thing itself.
    pub body: serde_json::Value,
}

/// A [`Record`] on its way to the file.
#[derive(Serialize)]
struct Line<'a> {
    seq: u64,
    at_ms: i64,
    kind: RecordKind,
    id: &'a str,
    subject: &'a str,
    trace_id: &'a str,
    body: &'a serde_json::Value,
}

/// What a caller hands over.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What it is.
    pub kind: RecordKind,
    /// What it is about.
    pub id: String,
    /// The resource.
    pub subject: String,
    /// Trace id.
    pub trace_id: String,
    /// The thing itself.
    pub body: serde_json::Value,
}

/// What a journal writes through: a seam, so that a test can have each single call fail.
pub trait Disk: Send {
    /// Appends all of it, or fails and may have appended a part.
    ///
    /// # Errors
    /// As the system says.
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()>;
    /// Returns when everything appended is on disk.
    ///
    /// # Errors
    /// As the system says.
    fn sync(&mut self) -> std::io::Result<()>;
    /// Removes everything after the first `length` bytes.
    ///
    /// # Errors
    /// As the system says.
    fn cut(&mut self, length: u64) -> std::io::Result<()>;
}

impl Disk for File {
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.sync_data()
    }

    fn cut(&mut self, length: u64) -> std::io::Result<()> {
        self.set_len(length)
    }
}

fn failed(path: &Path, what: &'static str, why: String) -> JournalError {
    JournalError { path: path.display().to_string(), what, why }
}

type Reply = oneshot::Sender<Result<u64, JournalError>>;

/// An open journal. Many tasks may write at once: whatever waits is written and synced together.
pub struct Journal {
    path: PathBuf,
    hands: Hands,
    pending: Arc<AtomicUsize>,
    failures: Counts,
}

/// Who writes.
enum Hands {
    /// A thread of its own: disks keep one waiting.
    Thread(mpsc::Sender<(Entry, Reply)>),
    /// Whoever hands a record over.
    Caller(Mutex<Writer>),
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal({})", self.path.display())
    }
}

/// Records written and synced together at most.
const GROUP: usize = 512;

impl Journal {
    /// Opens or creates `path`. One process at a time.
    ///
    /// # Errors
    /// When it cannot be opened, somebody else has it open, or its last record is damaged. A record that was cut by a crash is
    /// removed (its writer never got an answer) and noted.
    pub fn open(path: &Path, clock: Clock) -> Result<Journal, JournalError> {
        Journal::open_through(path, clock, |file| Box::new(file))
    }

    /// The same, writing in the turn of whoever hands a record over: for a disk that keeps nobody waiting, or where everything has to
    /// happen in one order.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_in_turn(
        path: &Path,
        clock: Clock,
        disk: impl FnOnce(File) -> Box<dyn Disk>,
    ) -> Result<Journal, JournalError> {
        let writer = Mutex::new(Writer::open(path, clock, disk)?);
        let failures = RECORD_FAILURES.counts();
        Ok(Journal { path: path.to_owned(), hands: Hands::Caller(writer), pending: Arc::default(), failures })
    }

    /// The same, writing through what `disk` makes of the file, which must keep it: closing it gives its lock back.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn open_through(
        path: &Path,
        clock: Clock,
        disk: impl FnOnce(File) -> Box<dyn Disk>,
    ) -> Result<Journal, JournalError> {
        let mut writer = Writer::open(path, clock, disk)?;
        let (sender, receiver) = mpsc::channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let left = pending.clone();
        let run = std::thread::Builder::new().name("journal".to_owned()).spawn(move || writer.run(&receiver, &left));
        run.map_err(|e| failed(path, "cannot be opened", e.to_string()))?;
        let failures = RECORD_FAILURES.counts();
        Ok(Journal { path: path.to_owned(), hands: Hands::Thread(sender), pending, failures })
    }

    /// Writes a record. When this returns its number, the record is on disk.
    ///
    /// # Errors
    /// When it is not: a full or failing disk. Then nothing of it is in the file, and what it was to precede must not happen.
    pub async fn write(&self, entry: Entry) -> Result<u64, JournalError> {
        let written = self.hand_over(entry).await;
        self.failures.add(u64::from(written.is_err()), &[]);
        written
    }

    async fn hand_over(&self, entry: Entry) -> Result<u64, JournalError> {
        let sender = match &self.hands {
            Hands::Thread(sender) => sender,
            Hands::Caller(writer) => {
                let written = writer.lock().unwrap_or_else(PoisonError::into_inner).append(&[entry]);
                return written.map_err(|why| failed(&self.path, "cannot be written", why));
            }
        };
        let (reply, answer) = oneshot::channel();
        let gone = || failed(&self.path, "cannot be written", "its writer has ended".to_owned());
        self.pending.fetch_add(1, Ordering::SeqCst);
        if sender.send((entry, reply)).is_err() {
            self.pending.fetch_sub(1, Ordering::SeqCst);
            return Err(gone());
        }
        answer.await.map_err(|_| gone())?
    }

    /// Records that were handed over and have no answer yet.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::SeqCst)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Where a journal goes on.
struct End {
    length: u64,
    seq: u64,
    head: [u8; 32],
    /// Bytes behind it that were removed.
    cut: u64,
}

/// Goes to the end of the last whole record and removes what is after it.
fn find_end(file: &mut File) -> Result<End, String> {
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let length = last_newline(file, size).map_err(|e| e.to_string())?;
    let mut end = End { length, seq: 0, head: [0; 32], cut: size - length };
    if length > 0 {
        let start = last_newline(file, length - 1).map_err(|e| e.to_string())?;
        file.seek(SeekFrom::Start(start)).map_err(|e| e.to_string())?;
        let mut line = Vec::new();
        (&*file).take(length - start).read_to_end(&mut line).map_err(|e| e.to_string())?;
        let (record, hash, _) = split(line.trim_ascii_end()).map_err(|why| {
            format!("its last record is damaged: {why}; run `trimtab audit verify`, and move the file away to begin a new one")
        })?;
        (end.seq, end.head) = (record.seq + 1, hash);
    }
    if end.cut > 0 {
        file.set_len(length).and_then(|()| file.sync_data()).map_err(|e| e.to_string())?;
    }
    Ok(end)
}

struct Writer {
    disk: Box<dyn Disk>,
    path: PathBuf,
    clock: Clock,
    length: u64,
    seq: u64,
    head: [u8; 32],
    /// A part of a record is behind `length` and could not be removed.
    torn: bool,
}

impl Writer {
    /// Goes on where a file ends, writing through what `disk` makes of it.
    fn open(path: &Path, clock: Clock, disk: impl FnOnce(File) -> Box<dyn Disk>) -> Result<Writer, JournalError> {
        let error = |what, why: String| failed(path, what, why);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| error("cannot be opened", e.to_string()))?;
        }
        let open = OpenOptions::new().create(true).read(true).append(true).open(path);
        let mut file = open.map_err(|e| error("cannot be opened", e.to_string()))?;
        file.try_lock().map_err(|e| {
            error(
                "is open elsewhere",
                format!("{e}; another trimtab uses it: stop that one, or give this one another --state-dir"),
            )
        })?;
        let End { length, seq, head, cut } = find_end(&mut file).map_err(|why| error("cannot be continued", why))?;
        let mut writer = Writer { disk: disk(file), path: path.to_owned(), clock, length, seq, head, torn: false };
        if cut > 0 {
            let says = format!("{cut} bytes of a record that was being written during a crash were removed");
            let note = Entry {
                kind: RecordKind::Note,
                id: String::new(),
                subject: String::new(),
                trace_id: String::new(),
                body: serde_json::json!({ "says": says }),
            };
            writer.append(&[note]).map_err(|why| error("cannot be written", why))?;
        }
        Ok(writer)
    }

    fn run(&mut self, receiver: &mpsc::Receiver<(Entry, Reply)>, pending: &AtomicUsize) {
        while let Ok(first) = receiver.recv() {
            let mut group = vec![first];
            while group.len() < GROUP
                && let Ok(next) = receiver.try_recv()
            {
                group.push(next);
            }
            let (entries, replies): (Vec<Entry>, Vec<Reply>) = group.into_iter().unzip();
            let written = self.append(&entries);
            for (index, reply) in replies.into_iter().enumerate() {
                let answer = written.as_ref().map(|first| first + index as u64);
                let answer = answer.map_err(|why| failed(&self.path, "cannot be written", why.clone()));
                let _ = reply.send(answer);
                pending.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Appends and syncs; the number of the first. On an error the file is as it was.
    fn append(&mut self, entries: &[Entry]) -> Result<u64, String> {
        let first = self.seq;
        let (mut head, mut bytes) = (self.head, Vec::new());
        for (seq, entry) in (first..).zip(entries) {
            let Entry { kind, id, subject, trace_id, body } = entry;
            let record = Line { seq, at_ms: self.clock.now_ms(), kind: *kind, id, subject, trace_id, body };
            let mut line = serde_json::to_vec(&record).map_err(|e| e.to_string())?;
            line.pop();
            head = hash(&head, &line);
            bytes.extend_from_slice(&line);
            bytes.extend_from_slice(format!(",\"hash\":\"{}\"}}\n", hex(&head)).as_bytes());
        }
        // Half a record must not stay: the next one would be glued to it.
        if self.torn {
            self.disk
                .cut(self.length)
                .map_err(|e| format!("{e}; a part of a record is at its end and must go first"))?;
            self.torn = false;
        }
        let written = self.disk.append(&bytes).and_then(|()| self.disk.sync());
        if let Err(e) = written {
            let undone = self.disk.cut(self.length);
            self.torn = undone.is_err();
            let undone = undone.err().map(|e| format!("; and what was written of it could not be removed: {e}"));
            return Err(format!("{e}{}", undone.unwrap_or_default()));
        }
        self.length += bytes.len() as u64;
        self.seq = first + entries.len() as u64;
        self.head = head;
        Ok(first)
    }
}

/// The place after the last newline before `end`; 0 when there is none.
fn last_newline(file: &mut File, end: u64) -> std::io::Result<u64> {
    let mut block = [0; 8192];
    let mut at = end;
    while at > 0 {
        let size = at.min(block.len() as u64);
        at -= size;
        let part = &mut block[..usize::try_from(size).unwrap_or(0)];
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(part)?;
        if let Some(found) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(at + found as u64 + 1);
        }
    }
    Ok(0)
}

fn hash(head: &[u8; 32], line: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(head).chain_update(line).finalize().into()
}

/// One outcome in records: the same decision may be judged by several executors, and again in a later scan.
pub(crate) fn key_of_outcome(body: &serde_json::Value) -> String {
    let part = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let parts = [&body["decision"], &body["scan"]["id"], &body["executor"], &body["started_ms"]];
    parts.map(part).join("/")
}

/// One partition or log dir of a run in records.
pub(crate) fn key_of_recovery(body: &serde_json::Value) -> String {
    let part = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    [part("run"), part("lane"), part("folder")].join("/")
}

/// Hexadecimal digits, lower case.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// A line's record, its hash, and the part that the hash covers.
fn split(line: &[u8]) -> Result<(Record, [u8; 32], &[u8]), String> {
    const TAIL: usize = ",\"hash\":\"\"}".len() + 64;
    let covered = line.len().checked_sub(TAIL).ok_or("it is too short")?;
    let (covered, tail) = line.split_at(covered);
    let digits = tail.strip_prefix(b",\"hash\":\"").and_then(|t| t.strip_suffix(b"\"}")).ok_or("it has no hash")?;
    let mut found = [0; 32];
    for (byte, pair) in found.iter_mut().zip(digits.chunks(2)) {
        // Lower case only: another spelling of the same number is a change too.
        let text = std::str::from_utf8(pair).map_err(|_| "its hash is not a number")?;
        let valid = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        *byte = u8::from_str_radix(text, 16).ok().filter(|_| valid).ok_or("its hash is not a number")?;
    }
    let mut json = covered.to_vec();
    json.push(b'}');
    let record = serde_json::from_slice(&json).map_err(|e| e.to_string())?;
    Ok((record, found, covered))
}

/// What a whole chain looks like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Chain {
    /// Records.
    pub records: u64,
    /// Hash of the last one, hexadecimal. Keep it elsewhere, with the number: a tail that is cut off later is found by it alone.
    pub head: String,
    /// A record without its end is at the end: its writer was stopped and never went on.
    pub torn: bool,
}

/// Reads a journal from the first record on, checks the chain, and hands each record over.
///
/// # Errors
/// The first record that does not fit, and how.
pub fn read(path: &Path, mut each: impl FnMut(Record)) -> Result<Chain, JournalError> {
    Tail::new(path).read(u64::MAX, |record, _| each(record))
}

/// Where a record is in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its first byte.
    pub at: u64,
    /// Its bytes, without the line's end.
    pub length: u64,
}

/// Reads a journal that may still grow, from the first record on, and checks the chain as it goes.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    at: u64,
    head: [u8; 32],
    seq: u64,
}

impl Tail {
    /// From the first record on.
    pub fn new(path: &Path) -> Tail {
        Tail { path: path.to_owned(), at: 0, head: [0; 32], seq: 0 }
    }

    /// Hands over what was written since, at most so many records, each with its place. The chain up to there.
    ///
    /// # Errors
    /// The first record that does not fit, and how; the next call finds the same.
    pub fn read(&mut self, most: u64, mut each: impl FnMut(Record, Place)) -> Result<Chain, JournalError> {
        let error = |what, why: String| failed(&self.path, what, why);
        let mut file = File::open(&self.path).map_err(|e| error("cannot be read", e.to_string()))?;
        let length = file.metadata().map_err(|e| error("cannot be read", e.to_string()))?.len();
        if length < self.at {
            return Err(error("is not the same", format!("it had {} bytes before, and has {length} by now", self.at)));
        }
        file.seek(SeekFrom::Start(self.at)).map_err(|e| error("cannot be read", e.to_string()))?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let (mut line, until) = (Vec::new(), self.seq.saturating_add(most));
        while self.seq < until {
            line.clear();
            let read = reader.read_until(b'\n', &mut line).map_err(|e| error("cannot be read", e.to_string()))?;
            if read == 0 || line.last() != Some(&b'\n') {
                return Ok(Chain { records: self.seq, head: hex(&self.head), torn: read > 0 });
            }
            line.pop();
            let seq = self.seq;
            let (record, says, covered) =
                split(&line).map_err(|why| error("is damaged", format!("record {seq}: {why}")))?;
            let is = hash(&self.head, covered);
            if record.seq != seq || is != says {
                let why = format!("record {seq}: it was changed, or records before it were changed, moved or removed");
                return Err(error("is damaged", why));
            }
            let place = Place { at: self.at, length: line.len() as u64 };
            (self.head, self.seq, self.at) = (is, seq + 1, self.at + read as u64);
            each(record, place);
        }
        Ok(Chain { records: self.seq, head: hex(&self.head), torn: false })
    }
}

/// Reads one record where a [`Tail`] found it.
///
/// # Errors
/// When there is none.
pub fn read_at(path: &Path, place: Place) -> Result<Record, JournalError> {
    let error = |why: String| failed(path, "cannot be read", why);
    let mut file = File::open(path).map_err(|e| error(e.to_string()))?;
    file.seek(SeekFrom::Start(place.at)).map_err(|e| error(e.to_string()))?;
    let mut line = Vec::new();
    file.take(place.length).read_to_end(&mut line).map_err(|e| error(e.to_string()))?;
    split(&line).map(|(record, ..)| record).map_err(error)
}

/// Checks a journal, and that its record number `records` − 1 had the hash `head` where an earlier head is given.
///
/// # Errors
/// The first record that does not fit, or that the earlier head is not in it: the tail was cut, or all of it was written anew.
pub fn verify(path: &Path, earlier: Option<(u64, &str)>) -> Result<Chain, JournalError> {
    let chain = read(path, |_| {})?;
    let Some((records, head)) = earlier else { return Ok(chain) };
    let was = head_at(path, records)?;
    if was.as_deref() == Some(head) {
        return Ok(chain);
    }
    let why = format!("it had {records} records with the head {head} before; that is not in it any more");
    Err(JournalError { path: path.display().to_string(), what: "is not the same", why })
}

fn head_at(path: &Path, records: u64) -> Result<Option<String>, JournalError> {
    let error = |e: std::io::Error| JournalError {
        path: path.display().to_string(),
        what: "cannot be read",
        why: e.to_string(),
    };
    if records == 0 {
        return Ok(Some(hex(&[0; 32])));
    }
    let reader = BufReader::new(File::open(path).map_err(error)?);
    let index = usize::try_from(records - 1).unwrap_or(usize::MAX);
    let line = reader.split(b'\n').nth(index).transpose().map_err(error)?;
    Ok(line.and_then(|line| split(&line).ok().map(|(_, hash, _)| hex(&hash))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: usize) -> Entry {
        Entry {
            kind: RecordKind::Intent,
            id: format!("id-{n}"),
            subject: "s".into(),
            trace_id: String::new(),
            body: serde_json::json!({ "n": n }),
        }
    }

    async fn filled(path: &Path, count: usize) {
        let journal = Journal::open(path, Clock::fixed(7)).unwrap();
        for n in 0..count {
            assert_eq!(journal.write(entry(n)).await.unwrap(), n as u64);
        }
    }

    async fn released(path: &Path) -> Journal {
        // The writer's thread ends, and gives the lock back, a moment after the last handle is dropped.
        for _ in 0..500 {
            if let Ok(journal) = Journal::open(path, Clock::fixed(8)) {
                return journal;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("the journal is still open");
    }

    #[tokio::test]
    async fn a_chain_is_continued_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j.jsonl");
        filled(&path, 3).await;
        let journal = released(&path).await;
        assert_eq!(journal.write(entry(3)).await.unwrap(), 3);
        assert!(Journal::open(&path, Clock::fixed(0)).unwrap_err().to_string().contains("open elsewhere"));
        let chain = verify(&path, None).unwrap();
        assert_eq!((chain.records, chain.torn), (4, false));
    }

    #[tokio::test]
    async fn a_torn_record_is_removed_and_noted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j.jsonl");
        filled(&path, 2).await;
        drop(released(&path).await);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"seq\":2,\"at").unwrap();
        assert!(verify(&path, None).unwrap().torn);
        drop(released(&path).await);
        let mut kinds = Vec::new();
        read(&path, |record| kinds.push(record.kind)).unwrap();
        assert_eq!(kinds, [RecordKind::Intent, RecordKind::Intent, RecordKind::Note]);
    }

    /// Writes half, and then can neither write nor cut so many times.
    struct Broken(File, usize);

    impl Disk for Broken {
        fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
            if self.1 == 0 {
                return self.0.write_all(bytes);
            }
            self.0.write_all(&bytes[..bytes.len() / 2])?;
            Err(std::io::Error::other("half of it"))
        }

        fn sync(&mut self) -> std::io::Result<()> {
            Ok(())
        }

        fn cut(&mut self, length: u64) -> std::io::Result<()> {
            if self.1 == 0 {
                return self.0.set_len(length);
            }
            self.1 -= 1;
            Err(std::io::Error::other("stuck"))
        }
    }

    #[tokio::test]
    async fn nothing_is_glued_to_half_a_record_that_cannot_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j.jsonl");
        let journal = Journal::open_through(&path, Clock::fixed(7), |file| Box::new(Broken(file, 2))).unwrap();
        for _ in 0..2 {
            assert!(journal.write(entry(0)).await.is_err());
        }
        assert_eq!(journal.write(entry(0)).await.unwrap(), 0);
        let chain = verify(&path, None).unwrap();
        assert_eq!((chain.records, chain.torn), (1, false));
    }

    #[tokio::test]
    async fn every_change_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j.jsonl");
        filled(&path, 8).await;
        let good = std::fs::read(&path).unwrap();
        let whole = verify(&path, None).unwrap();
        let damaged = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let read = verify(&path, Some((whole.records, &whole.head)));
            assert!(read.is_err(), "not found: {}", String::from_utf8_lossy(bytes));
        };
        for at in 0..good.len() {
            for bit in [1, 32] {
                let mut changed = good.clone();
                changed[at] ^= bit;
                damaged(&changed);
            }
        }
        let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
        for at in 0..lines.len() {
            damaged(&lines[..at].concat());
            let mut without = lines.clone();
            without.remove(at);
            damaged(&without.concat());
            let mut twice = lines.clone();
            twice.insert(at, lines[at]);
            damaged(&twice.concat());
            if at > 0 {
                let mut swapped = lines.clone();
                swapped.swap(at - 1, at);
                damaged(&swapped.concat());
            }
        }
        std::fs::write(&path, &good).unwrap();
        assert!(verify(&path, Some((whole.records, &whole.head))).is_ok());
        assert!(verify(&path, Some((3, &head_at(&path, 3).unwrap().unwrap()))).is_ok());
    }
}
