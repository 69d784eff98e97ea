//! Brings everything to the disk before the recovery points and the marker say that it is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::aside::sync_folder;
use crate::error::{Error, Result};

/// Since this version `syncfs` reports that writing back failed.
const RELIABLE_SYNCFS: (u32, u32) = (5, 8);

/// Flushes a log dir and its partition folders, wherever they are mounted.
///
/// One `syncfs` per file system instead of one `fsync` per file: the file system commits once instead of thousands of
/// times. On kernels where `syncfs` hides errors every file is flushed by itself.
pub(crate) fn flush(dir: &Path, partitions: &[PathBuf]) -> Result<()> {
    if !syncfs_tells_errors() {
        return flush_each(dir, partitions);
    }
    let mut devices = BTreeMap::new();
    for path in std::iter::once(dir).chain(partitions.iter().map(PathBuf::as_path)) {
        let device = std::fs::metadata(path).map_err(Error::io("look at", path))?.dev();
        devices.entry(device).or_insert(path);
    }
    for path in devices.into_values() {
        let folder = File::open(path).map_err(Error::io("open folder", path))?;
        rustix::fs::syncfs(&folder).map_err(|error| Error::io("flush the file system of", path)(error.into()))?;
    }
    Ok(())
}

fn flush_each(dir: &Path, partitions: &[PathBuf]) -> Result<()> {
    for folder in partitions {
        for entry in std::fs::read_dir(folder).map_err(Error::io("list partition", folder))? {
            let path = entry.map_err(Error::io("list partition", folder))?.path();
            if path.is_file() {
                let file = File::open(&path).map_err(Error::io("open", &path))?;
                file.sync_all().map_err(Error::io("flush", &path))?;
            }
        }
        sync_folder(folder)?;
    }
    sync_folder(dir)
}

fn syncfs_tells_errors() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    version(&release).is_some_and(|version| version >= RELIABLE_SYNCFS)
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version("5.10.0-28-amd64\n"), Some((5, 10)));
        assert_eq!(version("6.1"), Some((6, 1)));
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn each_file_can_be_flushed_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("f"), b"x").expect("written");
        flush_each(dir.path(), &[dir.path().to_path_buf()]).expect("flushed");
        flush(dir.path(), &[]).expect("flushed");
    }
}
