//! Why a target did not answer as hoped.

/// What a caller should do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Try again later.
    Transient,
    /// The target says no: credentials, permissions, a conflict. A person must change something.
    Refused,
    /// What it is about does not exist any more.
    Gone,
    /// What was read or given is not valid.
    Invalid,
    /// Ours.
    Bug,
}

/// Why a target did not answer as hoped: what was attempted, on what, why it failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}: {why}")]
pub struct TargetError {
    /// What was attempted, on what.
    pub what: String,
    /// Why it failed, and what to do where that is known.
    pub why: String,
    /// What a caller should do.
    pub class: Class,
}

impl TargetError {
    /// An error of this class.
    pub fn new(class: Class, what: impl Into<String>, why: impl std::fmt::Display) -> TargetError {
        TargetError { what: what.into(), why: why.to_string(), class }
    }

    /// What a caller should do.
    pub fn class(&self) -> Class {
        self.class
    }
}

/// Why a stored value could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Undecodable(pub String);

impl Undecodable {
    pub(crate) fn new(why: impl std::fmt::Display) -> Undecodable {
        Undecodable(why.to_string())
    }
}

/// Result with a [`TargetError`].
pub(crate) type Result<T> = std::result::Result<T, TargetError>;
