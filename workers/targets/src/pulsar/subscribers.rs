//! From topics to their subscriptions. A partitioned topic's subscription is judged as a whole: idle on three partitions and live on one
//! is live.

use std::collections::BTreeMap;

use trimtab_events::{
    Candidate, Cursor, CursorKind, Evidence, LedgerCandidate, Log, Partition, Policies, Subscriber,
    SubscriberCandidate, SubscriberClass,
};

use super::names::TopicName;

/// How far a stored time of activity may be from a closing time that the load of the topic wrote to be explained by it.
const LOAD_WITHIN_MS: i64 = 2_000;

/// Collects the partitions of a topic before their subscriptions are judged. Partitions come in the order of their numbers.
pub(crate) struct Grouper {
    groups: BTreeMap<String, Vec<LedgerCandidate>>,
    /// All partitions of a topic come, or none.
    whole: bool,
}

impl Grouper {
    pub(crate) fn new(whole: bool) -> Grouper {
        Grouper { groups: BTreeMap::new(), whole }
    }

    /// Takes a topic; the candidates of those that are complete by now.
    pub(crate) fn push(&mut self, topic: LedgerCandidate) -> Vec<Candidate> {
        let base = base_of(&topic);
        // A group is over once something comes that is not among its partitions.
        let over: Vec<String> = self
            .groups
            .keys()
            .filter(|key| !topic.subject.starts_with(&format!("{key}-partition-")))
            .cloned()
            .collect();
        let mut done: Vec<Candidate> = over
            .iter()
            .filter_map(|key| self.groups.remove(key))
            .flat_map(|group| candidates(&group, self.whole))
            .collect();
        if matches!(topic.partition, Partition::None) {
            done.extend(candidates(&[topic], true));
        } else {
            self.groups.entry(base).or_default().push(topic);
        }
        done
    }

    /// The candidates of what is left.
    pub(crate) fn finish(&mut self) -> Vec<Candidate> {
        let groups = std::mem::take(&mut self.groups).into_values();
        groups.flat_map(|group| candidates(&group, self.whole)).collect()
    }
}

fn base_of(topic: &LedgerCandidate) -> String {
    TopicName::of_subject(&topic.subject).map_or_else(|| topic.subject.clone(), |name| name.base_subject())
}

/// The candidates of a topic, or of all partitions of a partitioned topic that exist: one for each, with every subscription seen over
/// all of them. Where the group may lack some (`whole` is not set), nothing is known of its subscriptions' activity unless all are there.
pub(crate) fn candidates(group: &[LedgerCandidate], whole: bool) -> Vec<Candidate> {
    let count = group.iter().find_map(|part| match &part.partition {
        Partition::Of { count, .. } => count.present().map(|count| *count as usize),
        Partition::None => None,
    });
    let lacks = !whole && count.is_none_or(|count| group.len() < count);
    let with_any = group.iter().filter(|topic| topic.cursors.present().is_some_and(|cursors| !cursors.is_empty()));
    with_any.map(|topic| Candidate::Subscriber(Box::new(subscribers_of(topic, group, lacks)))).collect()
}

/// The subscribers of a topic that is one of a group.
pub(crate) fn subscribers_of(topic: &LedgerCandidate, group: &[LedgerCandidate], lacks: bool) -> SubscriberCandidate {
    let cursors = topic.cursors.present().map_or(&[][..], Vec::as_slice);
    let subscribers = cursors.iter().map(|cursor| subscriber(group, topic, cursor, lacks)).collect();
    let log = Log::Pulsar(Box::new(without_details(topic.clone())));
    SubscriberCandidate { subject: topic.subject.clone(), log, subscribers }
}

/// A topic as it travels when only its ledgers matter.
pub(crate) fn without_details(mut topic: LedgerCandidate) -> LedgerCandidate {
    if let Evidence::Present(cursors) = &mut topic.cursors {
        cursors.iter_mut().for_each(|cursor| cursor.detail = None);
    }
    topic
}

fn subscriber(group: &[LedgerCandidate], topic: &LedgerCandidate, own: &Cursor, lacks: bool) -> Subscriber {
    let parts: Vec<(&LedgerCandidate, Option<&Cursor>)> = group
        .iter()
        .map(|part| {
            let cursors = part.cursors.present().map_or(&[][..], Vec::as_slice);
            (part, cursors.iter().find(|cursor| cursor.name == own.name))
        })
        .collect();
    let detail = own.detail.as_ref();
    let replicated =
        parts.iter().filter_map(|(_, cursor)| cursor.and_then(|c| c.detail.as_ref())).any(|d| d.replicated);
    let class = match own.kind {
        CursorKind::Subscription if replicated => SubscriberClass::Replicated,
        CursorKind::Subscription => SubscriberClass::User,
        _ => SubscriberClass::System,
    };
    let cursors = || parts.iter().filter_map(|(part, cursor)| Some((*part, (*cursor)?)));
    let expiration = topic.policies.present().and_then(|policies: &Policies| policies.subscription_expiration_minutes);
    Subscriber {
        name: own.name.clone(),
        class,
        seen: detail.map_or(topic.seen, |detail| detail.seen),
        progress: match lacks {
            true => Evidence::Unknown("only some of the topic's partitions were looked at".to_owned()),
            false => progress(&parts),
        },
        stored_ms: cursors().map(|(_, cursor)| stored(cursor)).max().unwrap_or(0),
        alive_ms: cursors().map(|(part, cursor)| alive(part, cursor)).max().unwrap_or(0),
        connected: connected(&parts),
        history: None,
        mark: None,
        protected: None,
        stood: None,
        expiration_s: expiration.map(|setting| setting.value.saturating_mul(60)),
    }
}

/// What the nodes say of when it was last used. A fresh time does not mean that somebody used it.
fn stored(cursor: &Cursor) -> i64 {
    match cursor.detail.as_ref().map(|detail| detail.idle_since_ms) {
        Some(idle_since_ms) if idle_since_ms > 0 => idle_since_ms,
        _ => cursor.modified_ms.max(cursor.last_active_ms),
    }
}

/// The stored time of last activity, unless it is that of a load: a load makes every cursor of the topic active, and writes its own
/// time as the closing time of the ledger that was the last one.
fn alive(topic: &LedgerCandidate, cursor: &Cursor) -> i64 {
    let told = cursor.detail.as_ref().and_then(|detail| detail.told).map_or(0, |told| told.active_ms);
    let at = cursor.last_active_ms;
    let ledgers = topic.ledgers.present().map_or(&[][..], Vec::as_slice);
    let load = |closed_ms: i64| closed_ms > 0 && (at - closed_ms).abs() <= LOAD_WITHIN_MS;
    if ledgers.iter().any(|info| load(info.closed_ms)) { told } else { at.max(told) }
}

/// The consumers that brokers told of. None of them is no proof where only some of the partitions' brokers were asked.
fn connected(parts: &[(&LedgerCandidate, Option<&Cursor>)]) -> Evidence<u32> {
    let told = |cursor: &Cursor| cursor.detail.as_ref().and_then(|detail| detail.told).map(|told| told.consumers);
    let told: Vec<Option<u32>> = parts.iter().filter_map(|(_, cursor)| cursor.map(told)).collect();
    match told.iter().flatten().fold(0_u32, |sum, count| sum.saturating_add(*count)) {
        0 if told.is_empty() || told.contains(&None) => Evidence::not_read(),
        sum => Evidence::Present(sum),
    }
}

fn progress(parts: &[(&LedgerCandidate, Option<&Cursor>)]) -> Evidence<String> {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for (part, cursor) in parts {
        match &part.cursors {
            Evidence::Unknown(why) => {
                return Evidence::Unknown(format!("the cursors of {} are not known: {why}", part.subject));
            }
            Evidence::Present(_) | Evidence::Absent => {}
        }
        let Some(cursor) = cursor else { continue };
        if let Some(why) = cursor.mark_delete.unknown() {
            return Evidence::Unknown(format!("its position in {} is not known: {why}", part.subject));
        }
        if cursor.lower_bound {
            return Evidence::Unknown(format!(
                "where it stands in {} is in a cursor ledger, which only the topic's broker reads; --ask-brokers asks it",
                part.subject
            ));
        }
        let Some(detail) = &cursor.detail else { return Evidence::not_read() };
        hash.update(part.subject.as_bytes());
        hash.update([0]);
        hash.update(detail.progress.as_bytes());
        // Whoever is connected uses it, though it may not move; once it goes, that is what it was last seen to do.
        if detail.told.is_some_and(|told| told.consumers > 0) {
            hash.update([1]);
        }
    }
    Evidence::Present(hash.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect())
}
