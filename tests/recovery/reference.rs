//! A slow reference: reads every byte of a partition in order, batch by batch, and keeps everything in memory.
//!
//! It shares no code with the engine; bits of CRC are computed one by one, producers live in an imitation of Java's hash
//! map. It covers partitions that are unflushed as a whole and have no snapshots, which is what random damage is tested on.

use std::collections::BTreeMap;

/// CRC-32C, bit by bit.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
        }
    }
    !crc
}

fn int(bytes: &[u8]) -> i64 {
    let negative = bytes[0] & 0x80 != 0;
    bytes.iter().fold(if negative { -1 } else { 0 }, |n: i64, byte| (n << 8) | i64::from(*byte))
}

/// Iterates as `java.util.HashMap` does.
#[derive(Clone)]
struct JavaMap {
    table: Vec<Vec<(i64, Producer)>>,
    count: usize,
}

impl JavaMap {
    fn new() -> Self {
        Self { table: vec![Vec::new(); 16], count: 0 }
    }

    fn bucket(&self, key: i64) -> usize {
        let hash = ((key as u64) ^ ((key as u64) >> 32)) as u32;
        (hash ^ (hash >> 16)) as usize % self.table.len()
    }

    fn entry(&mut self, key: i64) -> &mut Producer {
        let bucket = self.bucket(key);
        if !self.table[bucket].iter().any(|entry| entry.0 == key) {
            self.table[bucket].push((key, Producer::default()));
            self.count += 1;
            if self.count > self.table.len() * 3 / 4 {
                let twice = vec![Vec::new(); self.table.len() * 2];
                let old = std::mem::replace(&mut self.table, twice);
                for entry in old.into_iter().flatten() {
                    let bucket = self.bucket(entry.0);
                    self.table[bucket].push(entry);
                }
            }
        }
        let bucket = self.bucket(key);
        let slot = self.table[bucket].iter().position(|entry| entry.0 == key).unwrap();
        &mut self.table[bucket][slot].1
    }
}

#[derive(Clone)]
struct Producer {
    epoch: i64,
    coordinator: i64,
    timestamp: i64,
    open: i64,
    last: (i64, i64, i64),
}

impl Default for Producer {
    fn default() -> Self {
        Self { epoch: -1, coordinator: -1, timestamp: -1, open: -1, last: (-1, -1, 0) }
    }
}

/// What a partition must look like: content by file name; `None` when it is refused.
pub struct Expected {
    pub files: Option<BTreeMap<String, Vec<u8>>>,
    /// Offsets of neighbouring segments fit, so that snapshots are comparable.
    pub contiguous: bool,
    pub end: i64,
}

/// Recovers segments (base offset, bytes) in order.
pub fn recover(segments: &[(i64, Vec<u8>)], interval: u64) -> Expected {
    let mut files = BTreeMap::new();
    let mut producers = JavaMap::new();
    let mut open: BTreeMap<i64, i64> = BTreeMap::new();
    let mut contiguous = true;
    let mut end = 0;
    for (i, (base, bytes)) in segments.iter().enumerate() {
        contiguous &= i == 0 || end == *base;
        let mut segment = Segment::new(*base, interval);
        match segment.scan(bytes, &mut producers, &mut open) {
            Scan::Refused => return Expected { files: None, contiguous, end: 0 },
            Scan::Emptied(at, next) => {
                files.insert(format!("{base:020}.log"), bytes[..at].to_vec());
                files.insert(format!("{base:020}.index"), Vec::new());
                files.insert(format!("{base:020}.timeindex"), Vec::new());
                return Expected { files: Some(files), contiguous: false, end: next };
            }
            Scan::Done => {}
        }
        end = segment.next;
        files.insert(format!("{base:020}.log"), bytes[..segment.valid].to_vec());
        files.insert(format!("{base:020}.index"), segment.index());
        files.insert(format!("{base:020}.timeindex"), segment.times());
        if !segment.aborted.is_empty() {
            files.insert(format!("{base:020}.txnindex"), segment.aborted.clone());
        }
        if end > *base || i > 0 {
            files.insert(format!("{end:020}.snapshot"), snapshot(&producers));
        }
        if segment.valid < bytes.len() {
            break;
        }
    }
    if end == 0 {
        files.retain(|name, _| !name.ends_with(".snapshot"));
    }
    Expected { files: Some(files), contiguous, end }
}

enum Scan {
    Done,
    Emptied(usize, i64),
    Refused,
}

struct Segment {
    base: i64,
    interval: u64,
    valid: usize,
    next: i64,
    entries: Vec<(i64, usize)>,
    time_entries: Vec<(i64, i64)>,
    max: (i64, i64),
    aborted: Vec<u8>,
    last_aborted: i64,
    before_first_entry: i64,
}

impl Segment {
    fn new(base: i64, interval: u64) -> Self {
        Self {
            base,
            interval,
            valid: 0,
            next: base,
            entries: Vec::new(),
            time_entries: Vec::new(),
            max: (-1, base),
            aborted: Vec::new(),
            last_aborted: i64::MIN,
            before_first_entry: base,
        }
    }

    fn index(&self) -> Vec<u8> {
        let entry = |e: &(i64, usize)| [((e.0 - self.base) as u32).to_be_bytes(), (e.1 as u32).to_be_bytes()].concat();
        self.entries.iter().flat_map(entry).collect()
    }

    fn times(&self) -> Vec<u8> {
        let entry = |e: &(i64, i64)| [&e.0.to_be_bytes()[..], &((e.1 - self.base) as u32).to_be_bytes()].concat();
        self.time_entries.iter().flat_map(entry).collect()
    }

    /// False when the time index would go back.
    fn time(&mut self) -> bool {
        let last = self.time_entries.last().copied();
        if last.is_some_and(|last| self.max.1 < last.1) {
            return false;
        }
        if self.max.0 > last.map_or(-1, |last| last.0) {
            self.time_entries.push(self.max);
        }
        true
    }

    fn emptied(&self) -> Scan {
        match self.entries.first() {
            Some(entry) if entry.0 == self.base => Scan::Emptied(entry.1, self.before_first_entry),
            _ => Scan::Emptied(0, self.base),
        }
    }

    fn scan(&mut self, bytes: &[u8], producers: &mut JavaMap, open: &mut BTreeMap<i64, i64>) -> Scan {
        let mut at = 0;
        let mut indexed = 0;
        while at + 17 < bytes.len() {
            let length = int(&bytes[at + 8..at + 12]);
            if length < 14 {
                break;
            }
            let size = 12 + length as usize;
            if size > bytes.len() - at {
                break;
            }
            let batch = &bytes[at..at + size];
            // Synthetic segments hold magic 2 only; anything below fails its checksum.
            if (batch[16] as i8) < 2 || size < 61 || crc32c(&batch[21..]) != int(&batch[17..21]) as u32 {
                break;
            }
            let first = int(&batch[..8]);
            let last = first.wrapping_add(int(&batch[23..27]));
            if !(0..=i64::from(i32::MAX)).contains(&last.wrapping_sub(self.base)) {
                return Scan::Refused;
            }
            let max_timestamp = int(&batch[35..43]);
            if max_timestamp > self.max.0 {
                self.max = (max_timestamp, last);
            }
            if (at - indexed) as u64 > self.interval {
                if self.entries.last().is_some_and(|entry| last <= entry.0) {
                    return self.emptied();
                }
                if self.entries.is_empty() {
                    self.before_first_entry = self.next;
                }
                self.entries.push((last, at));
                if !self.time() {
                    return self.emptied();
                }
                indexed = at;
            }
            at += size;
            self.valid = at;
            self.next = last + 1;
            if !self.producer(batch, first, last, producers, open) {
                return Scan::Refused;
            }
        }
        self.valid = at;
        if self.time() { Scan::Done } else { self.emptied() }
    }

    /// False when a broker would not start.
    fn producer(
        &mut self,
        batch: &[u8],
        first: i64,
        last: i64,
        all: &mut JavaMap,
        open: &mut BTreeMap<i64, i64>,
    ) -> bool {
        let id = int(&batch[43..51]);
        if id < 0 {
            return true;
        }
        let (attributes, epoch, sequence) = (batch[22], int(&batch[51..53]), int(&batch[53..57]));
        let producer = all.entry(id);
        if producer.epoch != epoch {
            producer.last = (-1, -1, 0);
            producer.epoch = epoch;
        }
        if attributes & 0x20 == 0 {
            let last_sequence = if sequence == -1 { -1 } else { (sequence + last - first) % (1 << 31) };
            producer.last = (last_sequence, last, last - first);
            producer.timestamp = int(&batch[35..43]);
            let transactional = attributes & 0x10 != 0;
            if producer.open >= 0 && !transactional {
                return false;
            }
            if producer.open < 0 && transactional {
                producer.open = first;
                open.insert(first, id);
            }
            return true;
        }
        // The markers that the test writes: 61 bytes of header, then length, attributes, delta 0, offset delta 0, key
        // length 4 and key, value length 6 and value.
        let (kind, coordinator) = (int(&batch[68..70]), int(&batch[73..77]));
        producer.coordinator = coordinator;
        producer.timestamp = int(&batch[27..35]);
        let began = std::mem::replace(&mut producer.open, -1);
        if began < 0 {
            return true;
        }
        let other = open.iter().find(|entry| *entry.1 != id).map_or(first + 1, |entry| *entry.0);
        if open.remove(&began).is_none() {
            return false;
        }
        if kind == 0 {
            if self.last_aborted >= first {
                return false;
            }
            self.last_aborted = first;
            self.aborted.extend([0, 0]);
            self.aborted.extend([id, began, first, other].into_iter().flat_map(i64::to_be_bytes));
        }
        true
    }
}

fn snapshot(producers: &JavaMap) -> Vec<u8> {
    let mut body = (producers.count as u32).to_be_bytes().to_vec();
    for (id, p) in producers.table.iter().flatten() {
        body.extend(id.to_be_bytes());
        body.extend((p.epoch as i16).to_be_bytes());
        body.extend((p.last.0 as i32).to_be_bytes());
        body.extend(p.last.1.to_be_bytes());
        body.extend((p.last.2 as i32).to_be_bytes());
        body.extend(p.timestamp.to_be_bytes());
        body.extend((p.coordinator as i32).to_be_bytes());
        body.extend(p.open.to_be_bytes());
    }
    [&[0, 1][..], &crc32c(&body).to_be_bytes(), &body].concat()
}
