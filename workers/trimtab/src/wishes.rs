//! Wishes to be left alone.

use std::sync::Arc;

use trimtab_events::{OrphanCandidate, Protection, split_subscriber};
use trimtab_targets::Class;
use trimtab_targets::pulsar::TopicName;

use crate::activity::Activity;
use crate::journal::{Entry, Journal, RecordKind};
use crate::worker::Failure;

/// Notes wishes to be left alone, in the record and in the store.
#[derive(Clone)]
pub struct Wishes {
    activity: Activity,
    journal: Arc<Journal>,
}

impl Wishes {
    /// Notes them here.
    pub fn new(activity: Activity, journal: Arc<Journal>) -> Wishes {
        Wishes { activity, journal }
    }

    /// Notes a wish, or takes it back. It is in the record before it counts.
    ///
    /// # Errors
    /// When it names nobody or nothing, when there is nothing to take back, or when the record or the store cannot be written.
    pub async fn note(&self, wish: &Protection, remove: bool) -> Result<(), Failure> {
        let invalid = |why: &str| Err(Failure::new(Class::Invalid, format!("protecting {:?}: {why}", wish.subject)));
        if wish.by.trim().is_empty() {
            return invalid("say who asks for it");
        }
        if !wish.subject.contains("://") {
            return invalid(
                "it is not a name as plans and records have it, such as persistent://tenant/namespace/topic",
            );
        }
        if wish.subject.contains("?subscription=") && split_subscriber(&wish.subject).is_none() {
            return invalid("the subscription's name is not percent-encoded as plans and records have it");
        }
        let entry = Entry {
            kind: RecordKind::Protect,
            id: self.activity.name(&wish.subject),
            subject: wish.subject.clone(),
            trace_id: String::new(),
            body: serde_json::json!({ "by": wish.by, "until_ms": wish.until_ms, "remove": remove }),
        };
        self.journal.write(entry).await?;
        match remove {
            false => self.activity.protect(wish).await,
            true if self.activity.unprotect(&wish.subject).await? => Ok(()),
            true => invalid("nobody has asked to leave it alone"),
        }
    }
}

/// The names under which somebody may have asked to leave a ledger alone: its topic, the partitioned topic, itself.
pub(crate) fn wishes_about(ledger: &OrphanCandidate) -> Vec<String> {
    let topic = ledger.owner().map(|owner| owner.topic.clone());
    let base = topic.as_deref().and_then(TopicName::of_subject).map(|name| name.base_subject());
    topic.into_iter().chain(base).chain([ledger.subject.clone()]).collect()
}
