//! Looks at a log dir: is it one, was it stopped cleanly, which partitions does it hold. Reads only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, TopicPartition};
use crate::config::Properties;
use crate::error::{Error, Result};
use crate::metadata::METADATA_FOLDER;

/// The file that says a log dir was stopped cleanly. Its existence alone decides.
pub(crate) const CLEAN_MARKER: &str = ".kafka_cleanshutdown";
pub(crate) const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
pub(crate) const LOG_STARTS: &str = "log-start-offset-checkpoint";
const HIGH_WATERMARKS: &str = "replication-offset-checkpoint";
const CLEANER_OFFSETS: &str = "cleaner-offset-checkpoint";
/// Not a partition: the cache of tiered storage.
const REMOTE_INDEX_CACHE: &str = "remote-log-index-cache";

/// What a partition folder is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FolderKind {
    /// A replica in service.
    Current,
    /// A replica that is being moved here from another log dir.
    Future,
    /// A replica that is not assigned to this broker; recovered, but in no checkpoint.
    Stray,
    /// Waiting to be deleted by the broker; left alone.
    Delete,
}

/// A partition folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionFolder {
    /// Folder name.
    pub name: String,
    /// Topic.
    pub topic: String,
    /// Partition number.
    pub partition: i32,
    /// What it is for.
    pub kind: FolderKind,
}

/// A log dir as it was found.
#[derive(Clone, Debug)]
pub struct LogDir {
    /// Its path.
    pub path: PathBuf,
    /// It was stopped cleanly: there is nothing to do.
    pub clean: bool,
    /// `node.id` (or `broker.id`) of `meta.properties`.
    pub node_id: String,
    /// Its partition folders, by name.
    pub folders: Vec<PartitionFolder>,
    /// Up to where each partition is known to be flushed.
    pub(crate) recovery_points: BTreeMap<TopicPartition, i64>,
    /// Where each partition begins, if above its first segment.
    pub(crate) log_starts: BTreeMap<TopicPartition, i64>,
    /// Unreadable checkpoints of the top folder that `--repair-checkpoints` will rewrite as empty.
    pub(crate) rewrite_empty: Vec<&'static str>,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

impl LogDir {
    /// Looks at a log dir. With `repair` unreadable checkpoints count as absent instead of being refused.
    ///
    /// # Errors
    /// When the folder cannot be read, or a broker would not start on it.
    pub fn open(path: &Path, repair: bool) -> Result<Self> {
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(path).map_err(Error::io("list log dir", path))? {
            let entry = entry.map_err(Error::io("list log dir", path))?;
            let at = entry.path();
            if !std::fs::metadata(&at).map_err(Error::io("look at", &at))?.is_dir() {
                continue;
            }
            folders.extend(folder(&at, &entry.file_name())?);
        }
        folders.sort_by(|a, b| a.name.cmp(&b.name));
        let node_id = format_version(path, folders.is_empty())?;
        let mut dir = Self {
            path: path.to_path_buf(),
            clean: path.join(CLEAN_MARKER).exists(),
            node_id,
            folders,
            recovery_points: BTreeMap::new(),
            log_starts: BTreeMap::new(),
            rewrite_empty: Vec::new(),
            warnings: Vec::new(),
        };
        if !dir.clean {
            dir.recovery_points = dir.offsets(RECOVERY_POINTS, repair)?;
            dir.log_starts = dir.offsets(LOG_STARTS, repair)?;
            dir.offsets(HIGH_WATERMARKS, repair)?;
            dir.offsets(CLEANER_OFFSETS, repair)?;
        }
        Ok(dir)
    }

    fn offsets(&mut self, name: &'static str, repair: bool) -> Result<BTreeMap<TopicPartition, i64>> {
        let path = self.path.join(name);
        match checkpoint::read_offsets(&path)? {
            Ok(offsets) => Ok(offsets),
            Err(why) if repair => {
                self.warnings.push(format!("{name} is unreadable ({why}); treated as absent"));
                // The two others are written in any case.
                if name == HIGH_WATERMARKS || name == CLEANER_OFFSETS {
                    self.rewrite_empty.push(name);
                }
                Ok(BTreeMap::new())
            }
            Err(why) => Err(Error::refused(
                &path,
                format!("an unreadable checkpoint ({why}), which takes the log dir offline in a broker"),
                "--repair-checkpoints treats it as absent",
            )),
        }
    }
}

/// A name for a log dir that stays when it is mounted elsewhere: its `directory.id`; for those of older brokers, which have
/// none, cluster, node and path. `None` when no broker has used it yet.
///
/// # Errors
/// When its `meta.properties` cannot be read.
pub fn log_dir_id(dir: &Path) -> Result<Option<String>> {
    let path = dir.join("meta.properties");
    if !path.exists() {
        return Ok(None);
    }
    let properties = Properties::read(&path)?;
    if let Some(id) = properties.get("directory.id").map(str::trim).filter(|id| !id.is_empty()) {
        return Ok(Some(id.to_owned()));
    }
    let real = std::fs::canonicalize(dir).map_err(Error::io("find log dir", dir))?;
    let node = properties.get("node.id").or_else(|| properties.get("broker.id")).unwrap_or_default();
    Ok(Some(format!("{}/{node}{}", properties.get("cluster.id").unwrap_or_default(), real.display())))
}

/// Checks `meta.properties` and returns the node id. A folder without it is fine only while it has no partitions: then
/// no broker has used it yet.
fn format_version(dir: &Path, empty: bool) -> Result<String> {
    let path = dir.join("meta.properties");
    if !path.exists() {
        if empty {
            return Ok(String::new());
        }
        return Err(Error::refused(&path, "no such file", "give a log dir of a broker (one of log.dirs)"));
    }
    let properties = Properties::read(&path)?;
    match properties.get("version").map(str::trim) {
        Some("0" | "1") => {}
        other => {
            let found = other.unwrap_or("none").to_owned();
            return Err(Error::refused(
                &path,
                format!("format version {found}, and only 0 and 1 are known"),
                "use a newer trimtab, or let the broker recover this log dir",
            ));
        }
    }
    Ok(properties.get("node.id").or_else(|| properties.get("broker.id")).unwrap_or_default().trim().to_owned())
}

fn folder(path: &Path, name: &std::ffi::OsStr) -> Result<Option<PartitionFolder>> {
    let foreign = || {
        Error::refused(
            path,
            "a folder whose name is not of the form TOPIC-PARTITION, on which a broker does not start",
            "move it out of the log dir (lost+found: use a sub-folder of the mount as log dir)",
        )
    };
    let name = name.to_str().ok_or_else(foreign)?;
    if name == REMOTE_INDEX_CACHE || name == METADATA_FOLDER {
        return Ok(None);
    }
    let suffixes = [("-delete", FolderKind::Delete), ("-stray", FolderKind::Stray), ("-future", FolderKind::Future)];
    let (stem, kind) = match suffixes.iter().find(|entry| name.ends_with(entry.0)) {
        // TOPIC-PARTITION.UNIQUE-suffix
        Some((_, kind)) => (name.rsplit_once('.').map(|parts| parts.0).ok_or_else(foreign)?, *kind),
        None => (name, FolderKind::Current),
    };
    let (topic, number) = stem.rsplit_once('-').ok_or_else(foreign)?;
    let partition = number.parse().map_err(|_| foreign())?;
    if topic.is_empty() {
        return Err(foreign());
    }
    Ok(Some(PartitionFolder { name: name.to_owned(), topic: topic.to_owned(), partition, kind }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> Option<(String, i32, FolderKind)> {
        let found = folder(Path::new(name), name.as_ref()).ok().flatten()?;
        Some((found.topic, found.partition, found.kind))
    }

    #[test]
    fn folder_names_are_read_as_the_broker_reads_them() {
        assert_eq!(parse("a.b-c-12"), Some(("a.b-c".into(), 12, FolderKind::Current)));
        assert_eq!(parse("a-1.0f-delete"), Some(("a".into(), 1, FolderKind::Delete)));
        assert_eq!(parse("a.b-1.0f-stray"), Some(("a.b".into(), 1, FolderKind::Stray)));
        assert_eq!(parse("a-1.0f-future"), Some(("a".into(), 1, FolderKind::Future)));
        for wrong in ["lost+found", "a", "a-x", "-1", "a-delete", "a-99999999999"] {
            assert!(folder(Path::new(wrong), wrong.as_ref()).is_err(), "{wrong}");
        }
        assert!(matches!(folder(Path::new("x"), METADATA_FOLDER.as_ref()), Ok(None)));
    }
}
