//! When a topic is worth another look although nothing about it changes: the earliest moment at which time alone lets the rules answer
//! otherwise.

use trimtab_events::{Decision, Expire, LastLedger, LedgerCandidate, Loaded, Partition, Verdict};

use crate::decide::{Context, Policy, decide};
use crate::needs::{Needs, needs};
use crate::rules::exclude;
use crate::rules::retention::AfterLoad;

/// Moments that are tried out before the next one is taken as it is. What has more of them is looked at too early, never too late.
const TRIED: usize = 8;

/// The earliest moment after now, and not after `until_ms`, at which [`needs`] or [`decide`] may answer otherwise about the topic as it was
/// seen; none when time alone changes nothing until then. That a broker has it loaded is taken to end: nothing that can be followed says so.
///
/// Both compare the present with nothing but stored times, each with one of a few limits. So their answers can change at the sums of those
/// only, and it is at these that they are asked.
pub fn due(topic: &LedgerCandidate, policy: &Policy, context: &Context<'_>, until_ms: i64) -> Option<i64> {
    let mut moments = moments(topic, policy, context);
    moments.retain(|at| *at > context.now_ms && *at <= until_ms);
    if moments.is_empty() {
        return None;
    }
    moments.sort_unstable();
    moments.dedup();
    let unloaded;
    let topic = if topic.loaded == Loaded::Yes {
        unloaded = LedgerCandidate { loaded: Loaded::No, ..topic.clone() };
        &unloaded
    } else {
        topic
    };
    let now = answer(topic, policy, context);
    let differs = |at: i64| answer(topic, policy, &Context { now_ms: at, ..*context }) != now;
    moments.iter().enumerate().find(|(tried, at)| *tried >= TRIED || differs(**at)).map(|(_, at)| *at)
}

/// What of the answers is worth a look: what would be read, and what would be done. Why nothing is done is not.
#[derive(PartialEq)]
struct Answer {
    needs: Needs,
    act: Option<Acting>,
}

#[derive(PartialEq)]
struct Acting {
    verdict: Verdict,
    ledgers: Vec<i64>,
    offloaded_copies: Vec<i64>,
    expire: Vec<Expire>,
}

fn answer(topic: &LedgerCandidate, policy: &Policy, context: &Context<'_>) -> Answer {
    let Decision { verdict, ledgers, offloaded_copies, expire, .. } = decide(topic, policy, context);
    let act = verdict.acts().then_some(Acting { verdict, ledgers, offloaded_copies, expire });
    Answer { needs: needs(topic, policy, context), act }
}

/// Every moment at which a comparison with the present may turn.
fn moments(topic: &LedgerCandidate, policy: &Policy, context: &Context<'_>) -> Vec<i64> {
    let Ok((policies, list)) = exclude::readable(topic) else { return Vec::new() };
    let rule = policy.rule_for(context.target, &topic.subject, matches!(topic.partition, Partition::Of { .. }));
    let minutes = policies.retention.value.minutes;
    let ttl_s = policies.ttl_s.value.max(0);
    let retention_ms = (minutes >= 0).then(|| minutes.saturating_mul(60_000));
    // PIP-219 adds the two.
    let added_ms = retention_ms.map(|ms| ms.saturating_add(ttl_s.saturating_mul(1000)));
    let own = [Some(ttl_s), rule.and_then(|rule| rule.ttl_s), rule.and_then(|rule| rule.retention_s)];
    // Expiry of less than a second is one of a second.
    let own = own.into_iter().flatten().flat_map(|seconds| [seconds, seconds.max(1)]);
    let mut limits: Vec<i64> = own.map(|seconds| seconds.saturating_mul(1000)).collect();
    limits.extend([retention_ms, added_ms].into_iter().flatten());
    limits.sort_unstable();
    limits.dedup();
    let mut times: Vec<i64> = list.iter().map(|info| info.closed_ms).collect();
    // How young the list is says how young its last ledger is.
    times.push(topic.seen.modified_ms);
    if let LastLedger::Closed { closed_ms, .. } = topic.last {
        times.push(closed_ms);
    }
    let after = AfterLoad::of(list, &topic.last);
    times.extend(after.ledgers.iter().flat_map(|ledger| [ledger.closed_ms, ledger.really_closed_ms]).flatten());
    times.sort_unstable();
    times.dedup();
    // All limits are exceeded or not, but for a retention of 0, which a time has reached.
    let sums = times.iter().flat_map(|time| limits.iter().map(move |limit| time.checked_add(*limit)?.checked_add(1)));
    let offloaded = list.iter().filter_map(|info| info.offload).map(|offload| {
        let lag_ms = Some(policies.offload_deletion_lag_ms).filter(|lag| *lag >= 0)?;
        offload.offloaded_ms.checked_add(lag_ms)?.checked_add(1)
    });
    let protected = rule.and_then(|rule| rule.protect.as_ref()?.until_ms);
    sums.chain(offloaded).flatten().chain(times.iter().copied().filter(|_| minutes == 0)).chain(protected).collect()
}
