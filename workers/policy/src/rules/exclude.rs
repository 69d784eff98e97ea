//! What is never looked at further: other people's topics, and everything about which something is not known.

use trimtab_events::{
    CHANGE_EVENTS_OPEN, Evidence, LedgerCandidate, LedgerInfo, Partition, Policies, Reason, TopicClass, Verdict,
};

/// The name of the rule that speaks when something could not be learned. Reports count by it.
pub const UNKNOWN: &str = "unknown";

/// A verdict that ends the matter, with its reason.
pub type Ruled = (Verdict, Reason);

pub(crate) fn reason(rule: &'static str, says: impl Into<String>) -> Reason {
    Reason { rule: rule.into(), says: says.into(), inputs: Default::default() }
}

/// Excludes what is not a readable user topic of a complete namespace, in the order in which a broker would refuse it.
///
/// # Errors
/// The verdict that ends the matter.
pub fn readable(topic: &LedgerCandidate) -> Result<(&Policies, &[LedgerInfo]), Ruled> {
    let skip = |rule: &'static str, says: String| Err((Verdict::Skip, reason(rule, says)));
    match topic.class {
        TopicClass::User => {}
        TopicClass::System => return skip("system-topic", "system topic: the broker keeps its own house here".into()),
        TopicClass::LegacyName => {
            return skip("legacy-name", "a name from before Pulsar 2.0: no current admin path reaches it".into());
        }
        TopicClass::UnknownName => return skip(UNKNOWN, "the form of its name is not recognised: kept".into()),
    }
    let policies = match &topic.policies {
        Evidence::Present(policies) if policies.deleted => {
            return skip("namespace-deleted", "its namespace is being deleted: left alone".into());
        }
        Evidence::Present(policies) => policies,
        Evidence::Absent => {
            return skip(
                "namespace-missing",
                "its namespace has no policies: a trim would answer with an error and delete by the broker's defaults, so no \
                 call is made"
                    .into(),
            );
        }
        Evidence::Unknown(why) => return skip(UNKNOWN, format!("the policies of its namespace are not known: {why}")),
    };
    stray(&topic.partition)?;
    if topic.shadow {
        return skip("shadow-topic", "a shadow topic: the ledgers it lists belong to its source".into());
    }
    // What may have been set since a broker opened the topic of policies, that broker heeds itself when it trims; see
    // `expires_unseen` for what it would not heed.
    if let Some(why) = policies.topic_level_unknown.as_ref().filter(|why| *why != CHANGE_EVENTS_OPEN) {
        return skip("topic-policies-unknown", format!("topic policies unknown: {why}"));
    }
    match &topic.ledgers {
        Evidence::Present(ledgers) if !in_order(ledgers) => {
            skip(UNKNOWN, "its list of ledgers is not in order of id, or has one twice".into())
        }
        Evidence::Present(ledgers) if !ledgers.is_empty() => Ok((policies, ledgers)),
        Evidence::Present(_) | Evidence::Absent => Err((Verdict::Nothing, reason("no-ledgers", "it has no ledgers"))),
        Evidence::Unknown(why) => skip(UNKNOWN, format!("its list of ledgers is not known: {why}")),
    }
}

fn in_order(ledgers: &[LedgerInfo]) -> bool {
    ledgers.first().is_none_or(|first| first.id >= 0) && ledgers.windows(2).all(|pair| pair[0].id < pair[1].id)
}

/// A partition that no broker loads.
fn stray(partition: &Partition) -> Result<(), Ruled> {
    let Partition::Of { index, count } = partition else { return Ok(()) };
    match count {
        Evidence::Present(count) if index < count => Ok(()),
        Evidence::Present(count) => Err((
            Verdict::Report,
            reason(
                "stray-partition",
                format!(
                    "partition {index} of a topic with {count} partitions: a broker refuses to load it (409), so it cannot be \
                     trimmed; create the missing partitions or delete this one"
                ),
            ),
        )),
        Evidence::Absent => Err((
            Verdict::Report,
            reason(
                "stray-partition",
                "its partitioned topic has no metadata: a broker refuses to load it (409), so it cannot be trimmed; create the \
                 partitioned topic again or delete the partition",
            ),
        )),
        // Read only where something could be done, see `needs`; `unread` refuses to act without it.
        Evidence::Unknown(_) if count.is_not_read() => Ok(()),
        Evidence::Unknown(why) => {
            Err((Verdict::Skip, reason(UNKNOWN, format!("how many partitions its topic has is not known: {why}"))))
        }
    }
}

/// Refuses to have messages expired where a topic may have set another TTL for itself that only its broker has seen: asked to
/// expire, the broker does not look at it.
///
/// # Errors
/// The verdict that ends the matter.
pub fn expires_unseen(verdict: Verdict, policies: &Policies) -> Result<(), Ruled> {
    match (verdict, &policies.topic_level_unknown) {
        (Verdict::ExpireThenTrim, Some(why)) => {
            Err((Verdict::Skip, reason("topic-policies-unknown", format!("topic policies unknown: {why}"))))
        }
        _ => Ok(()),
    }
}

/// Refuses to act on a partition whose number of partitions was never read.
///
/// # Errors
/// The verdict that ends the matter.
pub fn unread(partition: &Partition) -> Result<(), Ruled> {
    match partition {
        Partition::Of { count, .. } if count.is_not_read() => {
            Err((Verdict::Skip, reason(UNKNOWN, "how many partitions its topic has was not read")))
        }
        Partition::Of { .. } | Partition::None => Ok(()),
    }
}

/// A closed ledger whose entries the list does not give: loading the topic may drop it, and what it holds is not known. Of
/// the last one the list need not say anything while it does not say that it is closed: BookKeeper does.
pub fn unknown_entries(ledgers: &[LedgerInfo]) -> Option<i64> {
    let count = ledgers.len();
    let closed = ledgers.iter().enumerate().filter(|(i, info)| i + 1 < count || info.closed_ms > 0);
    closed.map(|(_, info)| info).find(|info| info.entries.is_none_or(|n| n < 0)).map(|info| info.id)
}
