//! What an operator can set. Rules are a list; the first that matches a topic wins as a whole.

use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Serialize};

/// Why a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyError(pub String);

impl std::fmt::Display for PolicyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PolicyError {}

/// Which rule decides when a ledger is old enough.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgeRule {
    /// What the broker itself will do: retention by time and size, cursors, TTL. Predicts exactly.
    #[default]
    Broker,
    /// PIP-219's own: age of the ledger over retention + TTL, sizes and cursors not looked at. For comparison: it visits
    /// topics that a cursor blocks, and misses what only size makes due.
    Pip219,
}

/// What may be done with topics that a rule matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Reclaim.
    #[default]
    Reclaim,
    /// Say what could be reclaimed, never act.
    Report,
    /// Keep.
    Keep,
}

/// An opt-out: who asked for it and until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protect {
    /// Who asked.
    pub by: String,
    /// Until when, milliseconds since 1970; for ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
}

/// One rule, with its values in base units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Name in reasons.
    pub name: String,
    /// Globs over `tenant/namespace/topic`; `*` stays within a part, `**` does not. A partition also matches by the name of
    /// its partitioned topic. Empty matches everything.
    #[serde(rename = "match")]
    pub topics: Vec<String>,
    /// Only this target.
    pub target: Option<String>,
    /// What may be done.
    pub action: Action,
    /// Opt-out.
    pub protect: Option<Protect>,
    /// Keep ledgers at least this long after closing, whatever the target's retention says.
    pub retention_s: Option<i64>,
    /// Keep at least so many bytes of a topic, whatever the target's retention says.
    pub retention_bytes: Option<i64>,
    /// Messages older than this are expired. Longer than the target's TTL: nothing younger is touched. Shorter, or where the
    /// target has none: only with `override`.
    pub ttl_s: Option<i64>,
    /// Let `ttl_s` expire what the target itself would keep.
    #[serde(rename = "override")]
    pub overrides: bool,
    /// Topics that would give back less are left alone.
    pub min_reclaim_bytes: i64,
}

/// A policy as an operator writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// The rules, first match wins.
    pub rules: Vec<Rule>,
    /// Which rule decides when a ledger is old enough.
    pub age_rule: AgeRule,
    /// Globs over `tenant/namespace/topic` that are never touched. The default protects functions' metadata, dead-letter
    /// and retry topics; naming any replaces the default.
    pub protect: Vec<String>,
    /// How long a decision may be carried out.
    pub valid_s: i64,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        PolicyConfig {
            rules: Vec::new(),
            age_rule: AgeRule::default(),
            protect: ["public/functions/**", "*/*/**-DLQ", "*/*/**-RETRY"].map(str::to_owned).to_vec(),
            valid_s: 24 * 3600,
        }
    }
}

/// Compiled globs that know their text.
#[derive(Debug, Clone)]
pub(crate) struct Globs(Vec<(String, GlobMatcher)>);

impl Globs {
    pub(crate) fn new(texts: &[String]) -> Result<Globs, PolicyError> {
        let compile = |text: &String| {
            let glob = GlobBuilder::new(text).literal_separator(true).build();
            glob.map(|glob| (text.clone(), glob.compile_matcher()))
                .map_err(|e| PolicyError(format!("glob {text:?} is not valid: {e}")))
        };
        texts.iter().map(compile).collect::<Result<_, _>>().map(Globs)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first glob that matches any of the names.
    pub(crate) fn find(&self, names: &[&str]) -> Option<&str> {
        self.0.iter().find(|(_, glob)| names.iter().any(|name| glob.is_match(name))).map(|(text, _)| text.as_str())
    }
}

/// A rule with its globs compiled.
#[derive(Debug, Clone)]
pub(crate) struct Compiled {
    pub(crate) rule: Rule,
    pub(crate) topics: Globs,
}

impl Compiled {
    pub(crate) fn new(index: usize, rule: &Rule) -> Result<Compiled, PolicyError> {
        let mut rule = rule.clone();
        if rule.name.is_empty() {
            rule.name = format!("rules[{index}]");
        }
        let negative = [("retention", rule.retention_s), ("retention_size", rule.retention_bytes), ("ttl", rule.ttl_s)];
        if let Some((field, _)) = negative.into_iter().find(|(_, value)| value.is_some_and(|v| v < 0)) {
            return Err(PolicyError(format!(
                "rule {}: {field} is negative; leave it out for \"no such limit\"",
                rule.name
            )));
        }
        let topics = Globs::new(&rule.topics).map_err(|e| PolicyError(format!("rule {}: {e}", rule.name)))?;
        Ok(Compiled { rule, topics })
    }
}

/// `tenant/namespace/topic` of a subject, and the same without `-partition-<n>`.
pub(crate) fn names_of(subject: &str, partition: bool) -> (&str, &str) {
    let name = subject.split_once("://").map_or(subject, |(_, rest)| rest);
    let base = if partition { name.rsplit_once("-partition-").map_or(name, |(base, _)| base) } else { name };
    (name, base)
}
