//! What can go wrong, in words an operator can act on.

use std::io;
use std::path::{Path, PathBuf};

/// Any error of this crate. The text says what was attempted, on what, why it failed and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file or folder.
    #[error("could not {action} {}: {reason}; check the disk, the mount and the permissions, then run again", path.display())]
    Io {
        /// What was attempted, as a verb phrase ("read", "rename to its place").
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The answer of the operating system. Part of the text, so that it is not told again as a source.
        reason: io::Error,
    },
    /// A broker would not start on this either, or starting it would lose data without a word.
    #[error("refused {}: {why}; {hint}", path.display())]
    Refused {
        /// The file or folder that is refused.
        path: PathBuf,
        /// What was found.
        why: String,
        /// What the operator can do.
        hint: String,
    },
    /// Another process (a broker, or a second recovery) holds the log dir.
    #[error("log dir {} is in use by process {pid}: stop that broker (or wait for that recovery) first", dir.display())]
    InUse {
        /// The log dir.
        dir: PathBuf,
        /// The process that holds the lock, as the kernel names it; 0 when it lives in another pid namespace.
        pid: i32,
    },
    /// A setting or flag cannot be used.
    #[error("cannot use {what}: {why}")]
    Setting {
        /// The flag, file or key.
        what: String,
        /// Why it is not usable, and what would be.
        why: String,
    },
    /// The overall time limit was reached, or the caller asked to stop.
    #[error("stopped before it was finished: {0}; run again, finished segments are not read twice")]
    Stopped(&'static str),
    /// Segments of a partition were not verified when the run had to stop.
    #[error(
        "stopped because {why}; not verified yet: segments {segments}; run again, finished segments are not read twice"
    )]
    Unfinished {
        /// Why the run had to stop.
        why: &'static str,
        /// Base offsets of what remains.
        segments: String,
    },
    /// A stored intermediate result does not read back as it was written.
    #[error("the intermediate result in {} does not read back ({why}); remove that file and run again", path.display())]
    Spool {
        /// The file that holds intermediate results.
        path: PathBuf,
        /// What did not fit.
        why: &'static str,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps an operating-system error with what was attempted on which path.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |reason| Self::Io { action, path, reason }
    }

    /// A refusal of `path`: what was found and what to do about it.
    pub(crate) fn refused(path: &Path, why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Refused { path: path.to_path_buf(), why: why.into(), hint: hint.into() }
    }

    /// A flag, key or file that cannot be used.
    pub(crate) fn setting(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Setting { what: what.into(), why: why.into() }
    }

    /// Whether this is a refusal (the data needs a decision), as opposed to a failure that may pass.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::InUse { .. })
    }
}
