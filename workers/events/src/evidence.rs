//! What was seen, in three values.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The text of evidence that was not read yet, or not at all because it could not change the decision.
pub const NOT_READ: &str = "not read";

/// Why the policies that topics set for themselves are not known: a broker has the namespace's `__change_events` open. All of it that
/// is closed is empty, and what may be in the open ledger only the broker knows. It heeds that itself when it is asked to trim; it
/// does not when it is asked to expire messages.
pub const CHANGE_EVENTS_OPEN: &str = "a broker has the namespace's __change_events topic open, so what was set since then is not in the \
     metadata; give --topic-policies FILE or --ask-brokers";

/// Something that a reader looked for.
///
/// `Unknown` always keeps: an error, a partial listing, a value that could not be decoded or was not read is `Unknown`,
/// never `Absent`. `Absent` is said only when a complete read shows that the thing is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", content = "value", rename_all = "snake_case", deny_unknown_fields)]
pub enum Evidence<T> {
    /// It is there, and this is it.
    Present(T),
    /// A complete read shows that it is not there.
    Absent,
    /// It could not be learned; the text says why.
    Unknown(String),
}

impl<T> Evidence<T> {
    /// The value, if it was seen.
    pub fn present(&self) -> Option<&T> {
        match self {
            Evidence::Present(value) => Some(value),
            Evidence::Absent | Evidence::Unknown(_) => None,
        }
    }

    /// Evidence that was not read, see [`NOT_READ`].
    pub fn not_read() -> Evidence<T> {
        Evidence::Unknown(NOT_READ.to_owned())
    }

    /// Whether it was not read, see [`NOT_READ`].
    pub fn is_not_read(&self) -> bool {
        self.unknown() == Some(NOT_READ)
    }

    /// Why nothing is known, if so.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            Evidence::Unknown(why) => Some(why),
            Evidence::Present(_) | Evidence::Absent => None,
        }
    }
}
