//! A proxy in front of ZooKeeper that records every request: what it was, where, when.
//!
//! It serves three kinds of test: that a limit on metadata operations holds in every second and over all clients together
//! (several proxies may share one [`Record`]), that a dry run writes nothing, and that a client survives a server that
//! went away or no longer answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::proxy::{Proxy, Tap};

/// The kinds of request; numbers as in ZooKeeper's protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are those of the protocol")]
pub enum Op {
    Connect,
    Create,
    Delete,
    Exists,
    GetData,
    SetData,
    GetAcl,
    SetAcl,
    GetChildren,
    Sync,
    Ping,
    GetChildren2,
    Check,
    Multi,
    Create2,
    Reconfig,
    RemoveWatches,
    CreateContainer,
    CreateTtl,
    MultiRead,
    Auth,
    SetWatches,
    AddWatch,
    CloseSession,
    /// A number that is not in this list. Counts as a write, since nobody can say that it is none.
    Other(i32),
}

impl Op {
    pub(crate) fn from_number(number: i32) -> Self {
        match number {
            1 => Self::Create,
            2 => Self::Delete,
            3 => Self::Exists,
            4 => Self::GetData,
            5 => Self::SetData,
            6 => Self::GetAcl,
            7 => Self::SetAcl,
            8 => Self::GetChildren,
            9 => Self::Sync,
            11 => Self::Ping,
            12 => Self::GetChildren2,
            13 => Self::Check,
            14 => Self::Multi,
            15 => Self::Create2,
            16 => Self::Reconfig,
            17 | 18 => Self::RemoveWatches,
            19 => Self::CreateContainer,
            21 => Self::CreateTtl,
            22 => Self::MultiRead,
            100 => Self::Auth,
            101 | 105 => Self::SetWatches,
            106 => Self::AddWatch,
            -11 => Self::CloseSession,
            // who am I, ephemerals, number of all children, ephemerals of a session: reads
            103 | 104 | 107 => Self::Exists,
            other => Self::Other(other),
        }
    }

    /// Whether it changes what others see.
    pub fn writes(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::Delete
                | Self::SetData
                | Self::SetAcl
                | Self::Multi
                | Self::Create2
                | Self::Reconfig
                | Self::CreateContainer
                | Self::CreateTtl
                | Self::Other(_)
        )
    }

    /// Whether it belongs to keeping the session and not to any work.
    pub fn housekeeping(self) -> bool {
        matches!(self, Self::Connect | Self::Ping | Self::Auth | Self::SetWatches | Self::CloseSession)
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// When the proxy had read it, since the record began.
    pub at: Duration,
    /// What it is.
    pub op: Op,
    /// How many operations it holds: 1, or the number of parts of a batch.
    pub weight: u64,
    /// The path it names, if any; of a batch the paths of all parts.
    pub paths: Vec<String>,
}

/// What one or several proxies saw.
#[derive(Debug, Clone)]
pub struct Record {
    start: Instant,
    requests: Arc<Mutex<Vec<Request>>>,
    held: Arc<Mutex<Held>>,
    buries: Arc<AtomicBool>,
}

/// A request to be held back, and whether it came.
#[derive(Debug, Default)]
struct Held {
    wanted: Option<(Op, String)>,
    came: bool,
}

impl Default for Record {
    fn default() -> Self {
        Self { start: Instant::now(), requests: Arc::default(), held: Arc::default(), buries: Arc::default() }
    }
}

impl Record {
    /// Holds back the next request of this kind about this path, alone or in a batch, and everything that its connection sends after it: as
    /// if the client had died just before.
    pub fn hold(&self, op: Op, path: &str) {
        *self.held() = Held { wanted: Some((op, path.to_owned())), came: false };
    }

    /// Whether the request to be held back came.
    pub fn holds(&self) -> bool {
        self.held().came
    }

    /// Whether the session of a client that goes ends at once, and not when its time is up.
    pub fn bury(&self, yes: bool) {
        self.buries.store(yes, Ordering::Relaxed);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the request to be held back; it is no longer wanted then.
    fn catches(&self, parts: &[(Op, String)]) -> bool {
        let mut held = self.held();
        let caught =
            held.wanted.as_ref().is_some_and(|(wanted, at)| parts.iter().any(|(op, path)| op == wanted && path == at));
        if caught {
            *held = Held { wanted: None, came: true };
        }
        caught
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All requests so far, in order of time.
    pub fn requests(&self) -> Vec<Request> {
        let mut all = self.lock().clone();
        all.sort_by_key(|r| r.at);
        all
    }

    /// Forgets the requests so far; times go on from the same beginning.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// How often each kind came. Batches count once here.
    pub fn counts(&self) -> BTreeMap<Op, u64> {
        let mut counts = BTreeMap::new();
        for request in self.lock().iter() {
            *counts.entry(request.op).or_default() += 1;
        }
        counts
    }

    /// The requests that may have changed something.
    pub fn writes(&self) -> Vec<Request> {
        let mut all = self.requests();
        all.retain(|r| r.op.writes());
        all
    }

    /// Operations without housekeeping, each part of a batch counted.
    pub fn operations(&self) -> u64 {
        self.worked().iter().map(|(_, weight)| weight).sum()
    }

    /// The most operations within any window of this length, wherever it begins.
    pub fn peak(&self, window: Duration) -> u64 {
        let worked = self.worked();
        let (mut first, mut inside, mut peak) = (0, 0, 0);
        for (at, weight) in &worked {
            inside += weight;
            while worked[first].0 + window <= *at {
                inside -= worked[first].1;
                first += 1;
            }
            peak = peak.max(inside);
        }
        peak
    }

    /// Operations by kind for each step of time (100 ms, say) from the beginning of the record on.
    pub fn series(&self, step: Duration) -> Vec<BTreeMap<Op, u64>> {
        let mut series: Vec<BTreeMap<Op, u64>> = Vec::new();
        for request in self.requests() {
            let index = (request.at.as_micros() / step.as_micros().max(1)) as usize;
            if series.len() <= index {
                series.resize_with(index + 1, BTreeMap::new);
            }
            *series[index].entry(request.op).or_default() += request.weight;
        }
        series
    }

    fn worked(&self) -> Vec<(Duration, u64)> {
        self.requests().iter().filter(|r| !r.op.housekeeping()).map(|r| (r.at, r.weight)).collect()
    }
}

/// The proxy.
#[derive(Debug)]
pub struct ZkProxy {
    proxy: Proxy,
    record: Record,
}

impl ZkProxy {
    /// In front of the ZooKeeper at `host:port`, with a record of its own.
    pub fn start(target: &str) -> Result<Self> {
        Self::with_record(target, &Record::default())
    }

    /// The same, writing into a record that others write into, too.
    pub fn with_record(target: &str, record: &Record) -> Result<Self> {
        let inside = record.clone();
        Ok(Self { proxy: Proxy::start(target, move || Frames::new(inside.clone()))?, record: record.clone() })
    }

    /// `host:port` to connect to instead of ZooKeeper's.
    pub fn address(&self) -> &str {
        self.proxy.address()
    }

    /// What was seen.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The proxy as such: [`Proxy::cut`], [`Proxy::stall`], [`Proxy::resume`].
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }
}

/// Cuts what a client sends into requests. A frame is a length of four bytes and as many bytes; the first frame of a
/// connection is the request for a session, each other begins with a number of its own and the kind.
struct Frames {
    record: Record,
    buffer: Vec<u8>,
    greeted: bool,
    /// A four-letter command instead of a session: there are no frames.
    plain: bool,
    /// A request was held back.
    stuck: bool,
    /// What was passed on ends with a whole request.
    whole: bool,
}

impl Frames {
    fn new(record: Record) -> Self {
        Self { record, buffer: Vec::new(), greeted: false, plain: false, stuck: false, whole: false }
    }

    fn note(&mut self, op: Op, body: &[u8]) {
        let mut reader = Jute(body);
        let (weight, parts) = match op {
            Op::Multi | Op::MultiRead => {
                let parts = reader.batch();
                (parts.len() as u64, parts)
            }
            op if op.housekeeping() => (1, vec![]),
            _ => (1, reader.string().map(|path| (op, path)).into_iter().collect()),
        };
        self.stuck |= self.record.catches(&parts);
        let paths = parts.into_iter().map(|(_, path)| path).collect();
        let at = self.record.start.elapsed();
        self.record.lock().push(Request { at, op, weight, paths });
    }
}

impl Tap for Frames {
    fn client_sent(&mut self, bytes: &[u8]) {
        if self.plain {
            return;
        }
        let whole = self.buffer.is_empty();
        self.buffer.extend_from_slice(bytes);
        if !self.greeted && self.buffer.iter().take(4).all(u8::is_ascii_lowercase) {
            self.plain = true;
            return;
        }
        let buffer = std::mem::take(&mut self.buffer);
        let mut rest = buffer.as_slice();
        while let Some((head, tail)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*head) as usize;
            let Some((frame, tail)) = tail.split_at_checked(length) else {
                break;
            };
            rest = tail;
            if !self.greeted {
                self.greeted = true;
                self.note(Op::Connect, &[]);
                continue;
            }
            let mut reader = Jute(frame);
            if let (Some(_), Some(kind)) = (reader.int(), reader.int()) {
                self.note(Op::from_number(kind), reader.0);
            }
        }
        self.buffer = rest.to_vec();
        self.whole = if self.stuck { whole } else { self.buffer.is_empty() };
    }

    fn passes(&self) -> bool {
        !self.stuck
    }

    /// The end of its session.
    fn last_words(&mut self) -> Option<Vec<u8>> {
        let buried = self.record.buries.load(Ordering::Relaxed) && self.greeted && self.whole;
        buried.then(|| [8, i32::MAX, -11].map(i32::to_be_bytes).concat())
    }
}

/// ZooKeeper's encoding: big-endian numbers, texts and byte strings with their length in front.
pub(crate) struct Jute<'a>(pub(crate) &'a [u8]);

impl Jute<'_> {
    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    pub(crate) fn int(&mut self) -> Option<i32> {
        let (head, tail) = self.0.split_first_chunk::<4>()?;
        self.0 = tail;
        Some(i32::from_be_bytes(*head))
    }

    fn bytes(&mut self) -> Option<&[u8]> {
        match self.int()? {
            -1 => Some(&[]),
            n => self.take(usize::try_from(n).ok()?),
        }
    }

    pub(crate) fn string(&mut self) -> Option<String> {
        self.bytes().map(|b| String::from_utf8_lossy(b).into_owned())
    }

    /// The parts of a batch, with their paths. Each part has a kind, a flag that says "that was all", and an unused number.
    fn batch(&mut self) -> Vec<(Op, String)> {
        let mut parts = Vec::new();
        while let (Some(kind), Some(end), Some(_)) = (self.int(), self.take(1).map(|b| b[0] != 0), self.int()) {
            if end {
                break;
            }
            let Some(path) = self.string() else { break };
            let op = Op::from_number(kind);
            parts.push((op, path));
            if self.skip_part(op).is_none() {
                break;
            }
        }
        parts
    }

    fn skip_part(&mut self, op: Op) -> Option<()> {
        match op {
            Op::Create | Op::Create2 | Op::CreateContainer | Op::CreateTtl => {
                self.bytes()?;
                for _ in 0..self.int()? {
                    self.int()?;
                    self.bytes()?;
                    self.bytes()?;
                }
                self.int()?;
                if op == Op::CreateTtl {
                    self.take(8)?;
                }
            }
            Op::Delete | Op::Check => {
                self.int()?;
            }
            Op::SetData => {
                self.bytes()?;
                self.int()?;
            }
            // parts of a batch of reads: a flag for the watch
            Op::GetData | Op::GetChildren | Op::Exists => {
                self.take(1)?;
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        [&(body.len() as u32).to_be_bytes()[..], &body].concat()
    }

    fn int(n: i32) -> Vec<u8> {
        n.to_be_bytes().to_vec()
    }

    fn text(s: &str) -> Vec<u8> {
        [int(s.len() as i32), s.as_bytes().to_vec()].concat()
    }

    #[test]
    fn requests_are_told_apart_however_the_bytes_arrive() {
        let mut sent = frame(&[&[0; 44]]);
        sent.extend(frame(&[&int(1), &int(4), &text("/a"), &[0]]));
        sent.extend(frame(&[&int(-2), &int(11)]));
        sent.extend(frame(&[
            &int(2),
            &int(14),
            &[&int(13)[..], &[0], &int(-1), &text("/x"), &int(3)].concat(),
            &[&int(2)[..], &[0], &int(-1), &text("/y"), &int(3)].concat(),
            &[&int(1)[..], &[0], &int(-1), &text("/z"), &text("data"), &int(1)].concat(),
            &[&int(31)[..], &text("world"), &text("anyone"), &int(0)].concat(),
            &[&int(-1)[..], &[1], &int(-1)].concat(),
        ]));
        for step in [1, 7, sent.len()] {
            let record = Record::default();
            let mut frames = Frames::new(record.clone());
            sent.chunks(step).for_each(|c| frames.client_sent(c));
            let seen: Vec<_> = record.requests().into_iter().map(|r| (r.op, r.weight, r.paths.join(","))).collect();
            assert_eq!(
                seen,
                [
                    (Op::Connect, 1, String::new()),
                    (Op::GetData, 1, "/a".into()),
                    (Op::Ping, 1, String::new()),
                    (Op::Multi, 3, "/x,/y,/z".into()),
                ]
            );
            assert_eq!((record.operations(), record.writes().len()), (4, 1));
        }
    }

    #[test]
    fn four_letter_commands_are_no_requests() {
        let record = Record::default();
        let mut frames = Frames::new(record.clone());
        for byte in b"mntr" {
            frames.client_sent(&[*byte]);
        }
        assert!(record.requests().is_empty());
    }

    #[test]
    fn the_peak_is_found_wherever_it_lies() {
        let record = Record::default();
        for (ms, weight) in [(0, 1), (900, 8), (1100, 2), (1899, 1), (1900, 5)] {
            record.lock().push(Request { at: Duration::from_millis(ms), op: Op::GetData, weight, paths: vec![] });
        }
        assert_eq!(record.peak(Duration::from_secs(1)), 11);
        assert_eq!(record.series(Duration::from_millis(100)).len(), 20);
    }
}
