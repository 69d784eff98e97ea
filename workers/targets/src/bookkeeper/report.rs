//! What a survey found besides candidates.

use std::collections::BTreeMap;

/// What a survey of all ledgers found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SurveyReport {
    /// Ledgers that exist.
    pub ledgers: u64,
    /// Topics read.
    pub topics: u64,
    /// Names of ledgers, by kind.
    pub references: BTreeMap<String, u64>,
    /// Ledgers that nothing names.
    pub lonely: u64,
    /// Why nothing can be decided, if so.
    pub broken: Option<String>,
    /// Namespaces that were not read completely, with the reason: nothing of them is a candidate.
    pub incomplete: BTreeMap<String, String>,
    /// Ranges of ids of which it is not known which exist.
    pub unread: Vec<Unread>,
    /// Nodes below BookKeeper's root that are no ledgers, or ledgers where nobody looks for them.
    pub strays: u64,
    /// Some of them.
    pub stray_examples: Vec<String>,
    /// Names of ledgers that do not exist.
    pub missing: u64,
    /// Some of them.
    pub missing_examples: Vec<Missing>,
    /// Namespaces that have topics and no policies.
    pub namespaces_missing: Vec<String>,
    /// What a set difference against the topics' lists would have deleted.
    pub comparison: Comparison,
}

/// A range of ids of which it is not known which exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// First id.
    pub from: i64,
    /// Last id.
    pub to: i64,
    /// Why.
    pub why: String,
}

/// The name of a ledger that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Path of the node that names it.
    pub by: String,
    /// The ledger.
    pub ledger: i64,
    /// How it is named.
    pub kind: String,
}

/// What a set difference of all ledgers against those that topics list would have deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Ledgers that no topic lists.
    pub naive: u64,
    /// Those of them that something else names, by kind.
    pub named: BTreeMap<String, Kept>,
}

/// Ledgers that are kept for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// How many.
    pub ledgers: u64,
    /// The first few.
    pub examples: Vec<i64>,
}
