//! Where results live between the scan that makes them and the repair that uses them.
//!
//! An index of a large segment, or the transactions in it, may be larger than the memory that a thread may use. A
//! [`Writer`] keeps a small part and hands the rest to a [`Spool`]; what remains in memory is an [`Image`], a list of
//! places. The spool of a recovery is its journal, so that the same bytes also serve a run that is resumed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// How much a writer keeps before it hands a part to the spool.
const PART: usize = 256 * 1024;
/// How much a reader takes from the spool at once.
const READ: usize = 64 * 1024;

/// Append-only storage for parts of images.
pub trait Spool: Sync {
    /// Appends the parts one behind another and returns where the first byte lies.
    ///
    /// # Errors
    /// When the parts cannot be written.
    fn append(&self, parts: &[&[u8]]) -> Result<u64>;

    /// Reads exactly `into.len()` bytes from `at`.
    ///
    /// # Errors
    /// When they cannot be read, or were never written.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;

    /// The file behind the spool, for messages.
    fn path(&self) -> &Path;
}

/// Bytes that lie in a spool: total length, CRC-32C, and the places of the parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// Length in bytes.
    pub length: u64,
    /// CRC-32C of the content.
    pub crc: u32,
    /// Position and length of each part, in order.
    pub parts: Vec<(u64, u64)>,
}

impl Image {
    /// Calls `take` with the content, part by part, and checks it against the checksum at the end.
    ///
    /// # Errors
    /// When the spool cannot be read or holds something else; errors of `take`.
    pub fn read(&self, spool: &dyn Spool, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut crc = 0;
        let mut buffer = vec![0; READ.min(usize::try_from(self.length).unwrap_or(READ))];
        for &(mut at, length) in &self.parts {
            let end = at.saturating_add(length);
            while at < end {
                let n = usize::try_from(end - at).unwrap_or(READ).min(buffer.len());
                if n == 0 {
                    return Err(Error::Spool { path: spool.path().to_path_buf(), why: "parts beyond the length" });
                }
                spool.read(at, &mut buffer[..n])?;
                crc = crc32c::crc32c_append(crc, &buffer[..n]);
                take(&buffer[..n])?;
                at += n as u64;
            }
        }
        if crc != self.crc {
            return Err(Error::Spool { path: spool.path().to_path_buf(), why: "checksum" });
        }
        Ok(())
    }

    /// Copies the content into another spool, checked against the checksum.
    ///
    /// # Errors
    /// When either spool fails, or the content is not what was written.
    pub fn copy(&self, from: &dyn Spool, to: &dyn Spool) -> Result<Self> {
        let mut writer = Writer::default();
        self.read(from, |part| writer.push(part, to))?;
        let [image] = Writer::finish([writer], to)?;
        Ok(image)
    }

    /// Calls `take` with each entry of `N` bytes.
    pub(crate) fn entries<const N: usize>(
        &self,
        spool: &dyn Spool,
        mut take: impl FnMut(&[u8; N]) -> Result<()>,
    ) -> Result<()> {
        let mut entry = [0_u8; N];
        let mut have = 0;
        self.read(spool, |mut part| {
            while !part.is_empty() {
                let n = part.len().min(N - have);
                entry[have..have + n].copy_from_slice(&part[..n]);
                have += n;
                part = &part[n..];
                if have == N {
                    take(&entry)?;
                    have = 0;
                }
            }
            Ok(())
        })?;
        if have == 0 { Ok(()) } else { Err(Error::Spool { path: spool.path().to_path_buf(), why: "half an entry" }) }
    }
}

/// Builds an [`Image`] in a bounded amount of memory.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    image: Image,
    buffer: Vec<u8>,
}

impl Writer {
    pub(crate) fn push(&mut self, bytes: &[u8], spool: &dyn Spool) -> Result<()> {
        if self.buffer.len() + bytes.len() > PART && !self.buffer.is_empty() {
            let at = spool.append(&[&self.buffer])?;
            self.flushed(at);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn flushed(&mut self, at: u64) {
        let length = self.buffer.len() as u64;
        self.image.crc = crc32c::crc32c_append(self.image.crc, &self.buffer);
        self.image.length += length;
        self.image.parts.push((at, length));
        self.buffer.clear();
    }

    /// Writes what is left of all `writers` with one append and returns their images.
    pub(crate) fn finish<const N: usize>(mut writers: [Self; N], spool: &dyn Spool) -> Result<[Image; N]> {
        let rest: Vec<&[u8]> = writers.iter().map(|w| w.buffer.as_slice()).filter(|b| !b.is_empty()).collect();
        let mut at = if rest.is_empty() { 0 } else { spool.append(&rest)? };
        for writer in &mut writers {
            let length = writer.buffer.len() as u64;
            if length > 0 {
                writer.flushed(at);
                at += length;
            }
        }
        Ok(writers.map(|w| w.image))
    }
}

/// A spool in a file of its own: for `--check` (an unnamed temporary file) and for workers that hand on side files.
#[derive(Debug)]
pub struct FileSpool {
    file: File,
    path: PathBuf,
    end: Mutex<u64>,
}

impl FileSpool {
    /// Creates (or empties) the file `path`.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.map_err(Error::io("create", path))?;
        Ok(Self { file, path: path.to_path_buf(), end: Mutex::new(0) })
    }

    /// Opens a side file that another process wrote, for reading its images.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let end = file.metadata().map_err(Error::io("look at", path))?.len();
        Ok(Self { file, path: path.to_path_buf(), end: Mutex::new(end) })
    }

    /// A file without a name in the system's folder for temporary files; it is gone when the spool is dropped.
    ///
    /// # Errors
    /// When no temporary file can be made.
    pub fn unnamed() -> Result<Self> {
        let folder = std::env::temp_dir();
        for attempt in 0..16 {
            let path = folder.join(format!("trimtab-recovery-{}-{attempt}", std::process::id()));
            let file = match File::options().read(true).write(true).create_new(true).open(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(Error::io("create a temporary file", &path))?,
            };
            std::fs::remove_file(&path).map_err(Error::io("remove the name of", &path))?;
            return Ok(Self { file, path, end: Mutex::new(0) });
        }
        Err(Error::setting(
            format!("temporary folder {}", folder.display()),
            "too many leftovers named trimtab-recovery-*; remove them",
        ))
    }
}

impl Spool for FileSpool {
    fn append(&self, parts: &[&[u8]]) -> Result<u64> {
        let mut end = self.end.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let start = *end;
        let mut at = start;
        for part in parts {
            self.file.write_all_at(part, at).map_err(Error::io("write intermediate results to", &self.path))?;
            at += part.len() as u64;
        }
        *end = at;
        Ok(start)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, at).map_err(Error::io("read intermediate results from", &self.path))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_larger_than_a_part_read_back() {
        let spool = FileSpool::unnamed().expect("a temporary file");
        let mut writers = [Writer::default(), Writer::default()];
        for i in 0..100_000_u64 {
            writers[0].push(&i.to_be_bytes(), &spool).expect("written");
        }
        writers[1].push(b"small", &spool).expect("written");
        let [large, small] = Writer::finish(writers, &spool).expect("written");
        assert_eq!((large.length, small.length), (800_000, 5));
        let mut next = 0_u64;
        large
            .entries::<8>(&spool, |entry| {
                assert_eq!(u64::from_be_bytes(*entry), next);
                next += 1;
                Ok(())
            })
            .expect("read");
        assert_eq!(next, 100_000);
        let wrong = Image { crc: 1, ..small };
        assert!(wrong.read(&spool, |_| Ok(())).is_err());
    }
}
