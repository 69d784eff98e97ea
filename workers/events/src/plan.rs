//! The plan: what `trimtab plan` prints and `trimtab apply` carries out. Not an event, but a document with a schema.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Decision, Holder, Proposed, Reason, Scope, SurveyReport, Verdict};

/// Version of the format. The minor number grows compatibly; readers refuse an unknown major one.
pub const PLAN_FORMAT: &str = "1.0";

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// See [`PLAN_FORMAT`].
    pub format_version: String,
    /// Version of trimtab that made it.
    pub made_by: String,
    /// The configured target.
    pub target: String,
    /// Identity of the cluster: what it was read from, and the transaction that made the root of its managed ledgers.
    pub cluster: String,
    /// What was looked at.
    pub scope: Scope,
    /// Hash of the policy.
    pub policy: String,
    /// The moment that ages count from, milliseconds since 1970.
    pub now_ms: i64,
    /// Not to be applied after, milliseconds since 1970.
    pub expires_ms: i64,
    /// Whether everything in the scope could be read.
    pub complete: bool,
    /// Totals.
    pub totals: PlanTotals,
    /// What could not be read, for a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// What a survey of all ledgers found, where the plan is about orphans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub survey: Option<SurveyReport>,
    /// The items, by subject.
    pub items: Vec<PlanItem>,
}

/// Totals of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanTotals {
    /// Topics seen.
    pub topics: u64,
    /// Bytes of all closed ledgers seen, one replica.
    pub bytes: u64,
    /// Topics by verdict.
    pub verdicts: std::collections::BTreeMap<String, u64>,
    /// Subscribers that were judged, by verdict.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub subscribers: std::collections::BTreeMap<String, u64>,
    /// Topics and subscribers about which something needed could not be learned.
    pub unknown: u64,
    /// What applying the plan would do.
    pub proposed: Proposed,
}

/// One item of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanItem {
    /// What the subject is: `topic`, `subscriber` or `ledger`.
    pub kind: String,
    /// Canonical name.
    pub subject: String,
    /// What is to be done.
    pub verdict: Verdict,
    /// Ledgers that go, in order.
    pub ledgers: Vec<i64>,
    /// Bytes of those ledgers, one replica.
    pub bytes: i64,
    /// The cursor that holds ledgers back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,
    /// Every rule that spoke.
    pub reasons: Vec<Reason>,
    /// The decision that `apply` carries out; only for items that act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}
