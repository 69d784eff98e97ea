//! The broker's lock on a log dir.
//!
//! A running broker holds a POSIX record lock on `LOGDIR/.lock` (`flock(2)` is another kind and proves nothing). Record
//! locks belong to the process: closing any descriptor of the file drops them, so nothing else in this crate opens it.
//! Locks do not cross hosts.

use std::fs::{File, Metadata};
use std::path::Path;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::error::{Error, Result};

const LOCK: &str = ".lock";

/// Holds the lock until it is dropped. The file stays: a broker that starts uses it again.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Takes the lock, or says which process holds it. `like` gives owner and mode of a new lock file.
    pub(crate) fn take(dir: &Path, like: Option<&Metadata>) -> Result<Self> {
        let path = dir.join(LOCK);
        let is_new = !path.exists();
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(Error::io("open the lock", &path))?;
        if let (true, Some(like)) = (is_new, like) {
            crate::repair::give(&file, &path, like)?;
        }
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(Errno::AGAIN | Errno::ACCESS) => Err(in_use(dir, holder(&file).unwrap_or(0))),
            Err(error) => Err(Error::io("lock", &path)(error.into())),
        }
    }

    /// Asks whether somebody holds the lock, without taking it or creating the file.
    pub(crate) fn probe(dir: &Path) -> Result<()> {
        let path = dir.join(LOCK);
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(Error::io("open the lock", &path))?,
        };
        match holder(&file) {
            Some(pid) => Err(in_use(dir, pid)),
            None => Ok(()),
        }
    }
}

fn in_use(dir: &Path, pid: i32) -> Error {
    Error::InUse { dir: dir.to_path_buf(), pid }
}

/// The process that holds a lock on `file`, 0 when the kernel does not name one.
fn holder(file: &File) -> Option<i32> {
    let lock = fcntl_getlk(file, &Flock::from(FlockType::WriteLock)).ok()??;
    Some(lock.pid.map_or(0, |pid| pid.as_raw_nonzero().get()))
}
