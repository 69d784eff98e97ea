//! What an operator can set. Rules are a list; the first that matches a topic wins as a whole.

use globset::{Candidate, GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};
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

/// What may be done with topics and subscribers that a rule matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Trim topics; consume for stale subscribers.
    #[default]
    #[serde(alias = "consume")]
    Reclaim,
    /// Trim topics; delete stale subscribers.
    Delete,
    /// Say what could be reclaimed, never act.
    Report,
    /// Keep.
    Keep,
}

/// What a subscriber's idleness is judged by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// What we saw in several scans.
    #[default]
    History,
    /// The times that the system stores, which lie in both directions. For the first run on an old cluster, under somebody's eyes.
    Field,
}

/// How many scans must have seen a stale subscriber, unless a rule says otherwise.
pub const SIGHTINGS: u32 = 3;
/// How long a marked subscriber is left alone, unless a rule says otherwise, seconds.
pub const GRACE_S: i64 = 24 * 3600;

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
    /// Let `ttl_s` expire, and `stale_after_s` consume, what the target itself would keep.
    #[serde(rename = "override")]
    pub overrides: bool,
    /// Topics and subscribers that would give back less are left alone.
    pub min_reclaim_bytes: i64,
    /// Globs over names of subscriptions: the rule is about these subscribers of the topics it matches, and not about the topics.
    #[serde(rename = "subscription")]
    pub subscriptions: Vec<String>,
    /// A subscriber of which nothing has changed for longer is stale. Longer than the target's own expiration: counts. Shorter: only
    /// with `override`. Without either nobody is stale.
    pub stale_after_s: Option<i64>,
    /// How many scans must have seen it unchanged, [`SIGHTINGS`] when absent.
    pub sightings: Option<u32>,
    /// What idleness is judged by.
    pub trust: Trust,
    /// How long between the announcement and the act, [`GRACE_S`] when absent; 0 acts without one.
    pub grace_s: Option<i64>,
    /// Allow acts on subscribers that their owner carries out whether the subscriber is back or not. All acts on JetStream's consumers
    /// are; without it they are only reported.
    pub allow_unguarded: bool,
}

/// What an operator can set about orphan ledgers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrphanRules {
    /// Younger ledgers may be in use by somebody who has not said so yet, seconds.
    pub min_age_s: i64,
    /// Scans that must have seen a ledger unchanged and unnamed, the present one counted. At least 2.
    pub sightings: u32,
    /// Time between the first of them and the present one, seconds.
    pub grace_s: i64,
    /// Whether a topic that does not exist may be checked for by creating and deleting its node in the transaction that deletes
    /// the ledger. Otherwise ledgers of such topics are only reported.
    pub absent_topics: bool,
    /// The bookies' `gcWaitTime`, seconds: how long the data outlives its metadata at most.
    pub gc_wait_s: i64,
}

impl Default for OrphanRules {
    fn default() -> Self {
        OrphanRules { min_age_s: 24 * 3600, sightings: 2, grace_s: 24 * 3600, absent_topics: false, gc_wait_s: 900 }
    }
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
    /// When a ledger that nothing names may go.
    pub orphans: OrphanRules,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        PolicyConfig {
            rules: Vec::new(),
            age_rule: AgeRule::default(),
            protect: ["public/functions/**", "*/*/**-DLQ", "*/*/**-RETRY"].map(str::to_owned).to_vec(),
            valid_s: 24 * 3600,
            orphans: OrphanRules::default(),
        }
    }
}

/// Compiled globs that know their text.
#[derive(Debug, Clone)]
pub(crate) struct Globs {
    /// All of them in one: most names match none, and this is quicker than asking each.
    any: GlobSet,
    each: Vec<(String, GlobMatcher)>,
}

impl Globs {
    pub(crate) fn new(texts: &[String]) -> Result<Globs, PolicyError> {
        let mut any = GlobSetBuilder::new();
        let mut each = Vec::new();
        for text in texts {
            let invalid = |e| PolicyError(format!("glob {text:?} is not valid: {e}"));
            let glob = GlobBuilder::new(text).literal_separator(true).build().map_err(invalid)?;
            each.push((text.clone(), glob.compile_matcher()));
            any.add(glob);
        }
        Ok(Globs {
            any: any.build().map_err(|e| PolicyError(format!("the globs {texts:?} are not valid: {e}")))?,
            each,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    /// The first glob that matches any of the names.
    pub(crate) fn find(&self, names: &[&str]) -> Option<&str> {
        // The name of a topic that is no partition is given twice.
        let new = |(index, name): &(usize, &&str)| !names[..*index].contains(name);
        let names = names.iter().enumerate().filter(new).map(|(_, name)| Candidate::new(name));
        let names: Vec<Candidate<'_>> = names.filter(|name| self.any.is_match_candidate(name)).collect();
        let matches = |(_, glob): &&(String, GlobMatcher)| names.iter().any(|name| glob.is_match_candidate(name));
        self.each.iter().find(matches).map(|(text, _)| text.as_str())
    }
}

/// A rule with its globs compiled.
#[derive(Debug, Clone)]
pub(crate) struct Compiled {
    pub(crate) rule: Rule,
    pub(crate) topics: Globs,
    pub(crate) subscriptions: Globs,
}

impl Compiled {
    pub(crate) fn new(index: usize, rule: &Rule) -> Result<Compiled, PolicyError> {
        let mut rule = rule.clone();
        if rule.name.is_empty() {
            rule.name = format!("rules[{index}]");
        }
        let negative = [
            ("retention", rule.retention_s),
            ("retention_size", rule.retention_bytes),
            ("ttl", rule.ttl_s),
            ("stale_after", rule.stale_after_s),
            ("grace", rule.grace_s),
        ];
        if let Some((field, _)) = negative.into_iter().find(|(_, value)| value.is_some_and(|v| v < 0)) {
            return Err(PolicyError(format!(
                "rule {}: {field} is negative; leave it out for \"no such limit\"",
                rule.name
            )));
        }
        if rule.stale_after_s == Some(0) {
            let why = "stale_after of 0 would take every subscriber for stale; leave it out for \"never\"";
            return Err(PolicyError(format!("rule {}: {why}", rule.name)));
        }
        let globs = |texts| Globs::new(texts).map_err(|e| PolicyError(format!("rule {}: {e}", rule.name)));
        let (topics, subscriptions) = (globs(&rule.topics)?, globs(&rule.subscriptions)?);
        Ok(Compiled { topics, subscriptions, rule })
    }

    /// Whether it is about a topic of any of these names. Its subscriptions are not looked at.
    pub(crate) fn matches(&self, target: &str, names: &[&str]) -> bool {
        self.rule.target.as_deref().is_none_or(|t| t == target)
            && (self.topics.is_empty() || self.topics.find(names).is_some())
    }
}

/// `tenant/namespace/topic` of a subject, and the same without `-partition-<n>`.
pub(crate) fn names_of(subject: &str, partition: bool) -> (&str, &str) {
    let name = subject.split_once("://").map_or(subject, |(_, rest)| rest);
    let base = if partition { name.rsplit_once("-partition-").map_or(name, |(base, _)| base) } else { name };
    (name, base)
}
