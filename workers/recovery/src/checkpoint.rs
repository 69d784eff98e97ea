//! The text checkpoints of a log dir and of a partition, and the leader epochs.
//!
//! Format: line 1 the version `0`, line 2 the number of entries, then one entry a line, fields separated by white space.
//! A file without any line, or with the version only, means "no entries"; everything else that does not parse is an
//! error, as it is for a broker.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use crate::error::{Error, Result};

/// A checkpoint above this size is not read: a hundred million lines would be needed to reach it.
const LIMIT_BYTES: u64 = 1 << 30;

/// Topic and partition number, as checkpoints name them.
pub(crate) type TopicPartition = (String, i32);

/// Splits a checkpoint into the fields of its entries. `Err` says what is wrong.
pub(crate) fn parse(text: &[u8], fields: usize) -> std::result::Result<Vec<Vec<&str>>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "not UTF-8".to_owned())?;
    let mut lines = split_lines(text).into_iter();
    let Some(version) = lines.next() else {
        return Ok(Vec::new());
    };
    if version.parse() != Ok(0_i32) {
        return Err(format!("version {} instead of 0", printable(version)));
    }
    let Some(count) = lines.next() else {
        return Ok(Vec::new());
    };
    let count: i32 = count.parse().map_err(|_| format!("{} is no number of entries", printable(count)))?;
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split_ascii_whitespace().collect()).collect();
    for (i, row) in rows.iter().enumerate() {
        if row.len() != fields {
            return Err(format!("line {} has {} fields instead of {fields}", i + 3, row.len()));
        }
    }
    if usize::try_from(count) != Ok(rows.len()) {
        return Err(format!("{} entries instead of the {count} announced", rows.len()));
    }
    Ok(rows)
}

/// Lines as Java's reader sees them: ended by `\n`, `\r\n` or `\r`, the last one maybe by nothing.
fn split_lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(['\n', '\r']).unwrap_or(rest.len());
        lines.push(&rest[..end]);
        let tail = &rest[end..];
        rest = tail.strip_prefix("\r\n").or_else(|| tail.strip_prefix(['\n', '\r'])).unwrap_or("");
    }
    lines
}

fn printable(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    format!("{short:?}")
}

/// Reads a checkpoint of the top folder: (topic, partition) to offset. No file is no entries.
///
/// The inner result is what is wrong with the content; the outer one is the disk.
pub(crate) fn read_offsets(path: &Path) -> Result<std::result::Result<BTreeMap<TopicPartition, i64>, String>> {
    let Some(bytes) = read_if_there(path)? else {
        return Ok(Ok(BTreeMap::new()));
    };
    Ok(parse_offsets(&bytes))
}

fn parse_offsets(bytes: &[u8]) -> std::result::Result<BTreeMap<TopicPartition, i64>, String> {
    let mut out = BTreeMap::new();
    for row in parse(bytes, 3)? {
        let partition = row[1].parse().map_err(|_| format!("{} is no partition", printable(row[1])))?;
        let offset = row[2].parse().map_err(|_| format!("{} is no offset", printable(row[2])))?;
        out.insert((row[0].to_owned(), partition), offset);
    }
    Ok(out)
}

/// The text of a checkpoint of the top folder.
pub(crate) fn format_offsets(offsets: &BTreeMap<TopicPartition, i64>) -> String {
    let mut out = format!("0\n{}\n", offsets.len());
    for ((topic, partition), offset) in offsets {
        let _ = writeln!(out, "{topic} {partition} {offset}");
    }
    out
}

/// The content of a small file, `None` when there is none.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > LIMIT_BYTES => Err(Error::refused(
            path,
            format!("{} bytes are no checkpoint", metadata.len()),
            "remove or restore the file",
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => match std::fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some).map_err(Error::io("read", path)),
        },
    }
}

/// The leader epochs of a partition: (epoch, start offset), both ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epochs {
    pub(crate) entries: Vec<(i32, i64)>,
    /// Something changed since they were read, so the file must be written.
    pub(crate) dirty: bool,
}

impl Epochs {
    /// Reads `leader-epoch-checkpoint`; each line is applied like an assignment, as the broker does.
    pub(crate) fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let mut epochs = Self::default();
        for row in parse(bytes, 2)? {
            let epoch = row[0].parse().map_err(|_| format!("{} is no epoch", printable(row[0])))?;
            let start = row[1].parse().map_err(|_| format!("{} is no offset", printable(row[1])))?;
            epochs.assign(epoch, start);
        }
        epochs.dirty = false;
        Ok(epochs)
    }

    /// A batch of `epoch` at `offset` was seen; only a rise above the last entry counts.
    pub(crate) fn observe(&mut self, epoch: i32, offset: i64) {
        if epoch >= 0 && self.entries.last().is_none_or(|last| epoch > last.0) {
            self.assign(epoch, offset);
        }
    }

    fn assign(&mut self, epoch: i32, start: i64) {
        if self.entries.last().is_some_and(|last| epoch == last.0 && start >= last.1) {
            return;
        }
        while self.entries.last().is_some_and(|last| last.0 >= epoch || last.1 >= start) {
            self.entries.pop();
        }
        self.entries.push((epoch, start));
        self.dirty = true;
    }

    /// Drops entries that start at or behind the log end.
    pub(crate) fn cut_end(&mut self, end: i64) {
        while self.entries.last().is_some_and(|last| last.1 >= end) {
            self.entries.pop();
            self.dirty = true;
        }
    }

    /// Collapses entries at or before the log start into one that starts there.
    pub(crate) fn cut_start(&mut self, start: i64) {
        let below = self.entries.iter().take_while(|entry| entry.1 <= start).count();
        let Some(last) = below.checked_sub(1).and_then(|i| self.entries.get(i)).copied() else {
            return;
        };
        if below > 1 || last.1 != start {
            self.entries.splice(..below, [(last.0, start)]);
            self.dirty = true;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.dirty = true;
    }

    pub(crate) fn format(&self) -> String {
        let mut out = format!("0\n{}\n", self.entries.len());
        for (epoch, start) in &self.entries {
            let _ = writeln!(out, "{epoch} {start}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_files_and_versions_alone_are_no_entries() {
        for text in ["", "0", "0\n"] {
            assert_eq!(parse(text.as_bytes(), 2), Ok(Vec::new()), "{text:?}");
        }
        assert_eq!(parse(b"0\n1\na  1\t2\n", 3).map(|rows| rows.len()), Ok(1));
    }

    #[test]
    fn everything_else_is_an_error() {
        for text in [
            "\0\0\0",
            "\n",
            "1\n0\n",
            "0\nx\n",
            "0\n2\n1 2\n",
            "0\n1\n1\n",
            "0\n1\n1 2 3\n",
            "0\n-1\n",
            "0\n1\n1 2\n\n",
        ] {
            assert!(parse(text.as_bytes(), 2).is_err(), "{text:?}");
        }
        assert!(parse(&[0xFF, 0xFE], 2).is_err());
        assert!(parse_offsets(b"0\n1\nt x 3\n").is_err());
    }

    #[test]
    fn epochs_follow_the_brokers_rules() {
        let mut epochs = Epochs::parse(b"0\n2\n0 0\n2 287\n").expect("valid");
        epochs.observe(2, 300);
        assert!(!epochs.dirty);
        epochs.observe(5, 100);
        assert_eq!(epochs.entries, [(0, 0), (5, 100)]);
        epochs.cut_start(100);
        assert_eq!(epochs.entries, [(5, 100)]);
        epochs.cut_end(100);
        assert_eq!(epochs.format(), "0\n0\n");
    }
}
