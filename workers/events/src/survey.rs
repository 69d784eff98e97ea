//! What a survey of all ledgers found besides candidates: names of ledgers that do not exist, namespaces that are gone, and what a plain set
//! difference would have deleted.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a survey of all ledgers found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SurveyReport {
    /// Ledgers that exist.
    pub ledgers: u64,
    /// Topics read.
    pub topics: u64,
    /// Names of ledgers, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub references: BTreeMap<String, u64>,
    /// Ledgers that nothing names.
    pub lonely: u64,
    /// Why nothing can be decided, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Namespaces that were not read completely, with the reason: nothing of them is a candidate.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub incomplete: BTreeMap<String, String>,
    /// Ranges of ids of which it is not known which exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<Unread>,
    /// Nodes below BookKeeper's root that are no ledgers, or ledgers where nobody looks for them.
    pub strays: u64,
    /// Some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stray_examples: Vec<String>,
    /// Names of ledgers that do not exist.
    pub missing: u64,
    /// Some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing_examples: Vec<Missing>,
    /// Namespaces that have topics and no policies.
    pub namespaces_missing: u64,
    /// Some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces_missing_examples: Vec<String>,
    /// What a set difference against the topics' lists would have deleted.
    pub comparison: Comparison,
}

/// A range of ids of which it is not known which exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unread {
    /// First id.
    pub from: i64,
    /// Last id.
    pub to: i64,
    /// Why.
    pub why: String,
}

/// The name of a ledger that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Missing {
    /// Path of the node that names it.
    pub by: String,
    /// The ledger.
    pub ledger: i64,
    /// How it is named.
    pub kind: String,
}

/// What a set difference of all ledgers against those that topics list would have deleted, and why those that are kept are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Ledgers that no topic lists.
    pub naive: u64,
    /// Those of them that something else names, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub named: BTreeMap<String, Kept>,
    /// Those of them that nothing names and that are kept nevertheless, by the rule that keeps them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kept: BTreeMap<String, Kept>,
}

impl Comparison {
    /// Counts a ledger that nothing names and that is kept.
    pub fn keep(&mut self, rule: &str, ledger: i64) {
        match self.kept.get_mut(rule) {
            Some(kept) => kept.add(ledger),
            None => self.kept.entry(rule.to_owned()).or_default().add(ledger),
        }
    }
}

impl Kept {
    /// One more.
    pub fn add(&mut self, ledger: i64) {
        self.ledgers += 1;
        if self.examples.len() < 5 {
            self.examples.push(ledger);
        }
    }
}

/// Ledgers that are kept for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// How many.
    pub ledgers: u64,
    /// The first few.
    pub examples: Vec<i64>,
}
