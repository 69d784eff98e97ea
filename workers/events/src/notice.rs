//! `notice`: something an owner should hear of before, or after, it happens to what is theirs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Announced {
    /// It will be acted on after its grace period, unless it shows a sign of life.
    Marked,
    /// It showed a sign of life: the mark is gone.
    Cleared,
}

impl Announced {
    /// The name used in events and subjects.
    pub fn name(self) -> &'static str {
        match self {
            Announced::Marked => "marked",
            Announced::Cleared => "cleared",
        }
    }
}

/// An announcement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// The scan that led to it.
    pub scan: Uuid,
    /// The configured target.
    pub target: String,
    /// What it is about.
    pub subject: String,
    /// What is announced.
    pub announced: Announced,
    /// Why, for a person.
    pub says: String,
    /// When it was announced, milliseconds since 1970.
    pub at_ms: i64,
    /// Not to be acted on before, milliseconds since 1970; absent when the mark was cleared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before_ms: Option<i64>,
    /// Bytes that acting would give back, one replica.
    pub bytes: i64,
    /// Trace id, 32 hexadecimal digits; empty when nothing is traced.
    pub trace_id: String,
}
