//! Topic and broker settings out of a stopped node's KRaft metadata log, read only.
//!
//! Newest `OFFSET-EPOCH.checkpoint` (a snapshot), then the batches of all segments from OFFSET on. Each data record's
//! value is: frame version 1, record type and record version (unsigned varints), then fields in Kafka's flexible
//! encoding. Types used: 2 topic, 9 topic removed, 4 setting. Reading stops at the first batch that is torn or fails its
//! checksum; the last batches may never have been committed, which is good enough for settings.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::batch::{Cursor, V2_HEADER};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::reader::{BatchReader, Step};

/// The folder of the metadata log.
pub(crate) const METADATA_FOLDER: &str = "__cluster_metadata-0";
const BROKER_RESOURCE: i8 = 4;
const TOPIC_RESOURCE: i8 = 2;
/// The most that is read of the names and settings of a cluster. A batch of metadata is far smaller.
const BATCH_LIMIT: u64 = 64 << 20;

/// Settings by resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterSettings {
    node_id: String,
    settings: HashMap<(i8, String), HashMap<String, String>>,
    topics: HashMap<[u8; 16], String>,
}

impl ClusterSettings {
    /// The setting of a topic.
    pub(crate) fn topic(&self, topic: &str, key: &str) -> Option<&str> {
        self.get(TOPIC_RESOURCE, topic, key)
    }

    /// The dynamic setting of this node, else that of the cluster.
    pub(crate) fn broker(&self, key: &str) -> Option<&str> {
        self.get(BROKER_RESOURCE, &self.node_id, key).or_else(|| self.get(BROKER_RESOURCE, "", key))
    }

    fn get(&self, kind: i8, name: &str, key: &str) -> Option<&str> {
        self.settings.get(&(kind, name.to_owned()))?.get(key).map(String::as_str)
    }

    /// Reads the metadata folder; `node_id` says whose broker settings count.
    pub(crate) fn read(folder: &Path, node_id: &str) -> Result<Self> {
        let mut out = Self { node_id: node_id.to_owned(), ..Self::default() };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(Error::io("list", folder))? {
            let entry = entry.map_err(Error::io("list", folder))?;
            names.extend(entry.file_name().into_string().ok());
        }
        names.sort();
        let snapshot = names.iter().rfind(|name| is_snapshot(name));
        let start = snapshot.and_then(|name| name[..20].parse().ok()).unwrap_or(0);
        if let Some(name) = snapshot {
            out.read_file(&folder.join(name), i64::MIN)?;
        }
        for name in names.iter().filter(|name| is_segment(name)) {
            out.read_file(&folder.join(name), start)?;
        }
        Ok(out)
    }

    fn read_file(&mut self, path: &PathBuf, from_offset: i64) -> Result<()> {
        let file = File::open(path).map_err(Error::io("open metadata", path))?;
        let size = file.metadata().map_err(Error::io("look at", path))?.len();
        let control = Control::default();
        let mut reader = BatchReader::new(&file, 0, size, true, &control);
        while let Step::Batch(header) = reader.step().map_err(Error::io("read metadata", path))? {
            if header.is_control() || header.is_compressed() || header.size > BATCH_LIMIT {
                continue;
            }
            let mut bytes = vec![0; header.size as usize];
            let at = reader.position() - header.size;
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, at)
                .map_err(Error::io("read metadata", path))?;
            let body = bytes.get(V2_HEADER as usize..).unwrap_or_default();
            let mut cursor = Cursor { bytes: body, at: 0 };
            for _ in 0..header.records {
                let Some((delta, value)) = record(&mut cursor) else {
                    break;
                };
                if header.base_offset.saturating_add(i64::from(delta)) >= from_offset {
                    self.take(value);
                }
            }
        }
        Ok(())
    }

    /// Takes one metadata record; one that does not parse (an unknown frame or version) is passed over.
    fn take(&mut self, value: &[u8]) -> Option<()> {
        let mut cursor = Cursor { bytes: value, at: 0 };
        if cursor.uvarint()? != 1 {
            return None;
        }
        let kind = cursor.uvarint()?;
        cursor.uvarint()?;
        match kind {
            2 => {
                let name = string(&mut cursor)??;
                self.topics.insert(id(&mut cursor)?, name);
            }
            9 => {
                if let Some(name) = self.topics.remove(&id(&mut cursor)?) {
                    self.settings.remove(&(TOPIC_RESOURCE, name));
                }
            }
            4 => {
                let resource = i8::from_be_bytes([*cursor.take(1)?.first()?]);
                let name = string(&mut cursor)??;
                let key = string(&mut cursor)??;
                let settings = self.settings.entry((resource, name)).or_default();
                match string(&mut cursor)? {
                    Some(value) => settings.insert(key, value),
                    None => settings.remove(&key),
                };
            }
            _ => {}
        }
        Some(())
    }
}

fn is_segment(name: &str) -> bool {
    name.len() == 24 && name.ends_with(".log") && name.as_bytes()[..20].iter().all(u8::is_ascii_digit)
}

/// 20 digits, a dash, 10 digits, `.checkpoint`.
fn is_snapshot(name: &str) -> bool {
    let digits = |part: Option<&str>, n| part.is_some_and(|p| p.len() == n && p.bytes().all(|b| b.is_ascii_digit()));
    let Some(stem) = name.strip_suffix(".checkpoint") else {
        return false;
    };
    let mut parts = stem.split('-');
    digits(parts.next(), 20) && digits(parts.next(), 10) && parts.next().is_none()
}

fn record<'a>(cursor: &mut Cursor<'a>) -> Option<(i32, &'a [u8])> {
    let length = usize::try_from(cursor.varint()?).ok()?;
    let mut inner = Cursor { bytes: cursor.take(length)?, at: 0 };
    inner.take(1)?;
    inner.varlong()?;
    let delta = inner.varint()?;
    inner.nullable()?;
    Some((delta, inner.nullable()?.unwrap_or_default()))
}

/// A compact nullable string: unsigned varint of its length + 1, 0 for null.
fn string(cursor: &mut Cursor<'_>) -> Option<Option<String>> {
    match cursor.uvarint()?.checked_sub(1) {
        None => Some(None),
        Some(n) => Some(Some(String::from_utf8_lossy(cursor.take(n as usize)?).into_owned())),
    }
}

fn id(cursor: &mut Cursor<'_>) -> Option<[u8; 16]> {
    cursor.take(16)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_record_is_survived() {
        let mut settings = ClusterSettings::default();
        settings.take(&[1, 4, 0, 2, 2, b't', 2, b'k', 2, b'v', 0]);
        assert_eq!(settings.topic("t", "k"), Some("v"));
        settings.take(&[1, 4, 0, 2, 2, b't', 2, b'k', 0, 0]);
        assert_eq!(settings.topic("t", "k"), None);
        let mut state = 1_u64;
        for _ in 0..50_000 {
            let bytes: Vec<u8> = (0..state % 40)
                .map(|i| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i);
                    (state >> 57) as u8 % 20
                })
                .collect();
            state = state.wrapping_add(1);
            settings.take(&bytes);
        }
    }
}
