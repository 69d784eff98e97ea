//! One limit of metadata operations over all scanners of a cluster together, without a bottleneck: each member holds a share, agreed
//! on in a small document. The shares never add up to more than the limit: a newcomer begins with what is left over (nothing, at
//! first) and gets its part once the others have made room. While some read, those that do not keep only a little, to begin with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::{debug, warn};
use trimtab_bus::{BusError, Expect, Store};
use trimtab_targets::{Class, Pace};

use crate::clock::Clock;
use crate::worker::Failure;

pub(crate) const BUCKET: &str = "limits";
/// How often a member says that it is still there.
const EVERY: Duration = Duration::from_secs(1);
/// After how long without a word a member counts as gone. Until then its share stays set aside, so that a paused process that
/// wakes up finds no second user of it.
const GONE_AFTER_MS: i64 = 10_000;
/// A member that could not speak for this long stops by itself: well before the others take its share.
const SILENT_AFTER: Duration = Duration::from_secs(6);

/// The part of the limit that a member keeps that reads nothing while others do.
const LITTLE: f64 = 0.01;

/// The agreed document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Agreement {
    members: BTreeMap<String, Member>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Member {
    share: f64,
    at_ms: i64,
    /// It reads, or waits to.
    #[serde(default = "reads")]
    reads: bool,
}

/// What is assumed of a member that does not say.
fn reads() -> bool {
    true
}

impl Agreement {
    /// What a member may use from now on.
    fn join(&mut self, member: &str, reads: bool, limit: f64, now_ms: i64) -> f64 {
        self.members.retain(|name, other| name == member || now_ms.saturating_sub(other.at_ms) < GONE_AFTER_MS);
        self.members.entry(member.to_owned()).or_insert(Member { share: 0.0, at_ms: now_ms, reads }).reads = reads;
        let others: f64 = self.members.iter().filter(|(name, _)| *name != member).map(|(_, other)| other.share).sum();
        let count = self.members.len() as f64;
        let readers = self.members.values().filter(|other| other.reads).count() as f64;
        let little = (limit * LITTLE).min(limit / 2.0 / count);
        let fair = match (readers > 0.0, reads) {
            (false, _) => limit / count,
            (true, true) => (limit - little * (count - readers)) / readers,
            (true, false) => little,
        };
        let share = fair.min((limit - others).max(0.0));
        self.members.insert(member.to_owned(), Member { share, at_ms: now_ms, reads });
        share
    }
}

/// A member's part of the limit. Gives it back when dropped by [`Share::leave`].
pub struct Share {
    store: Arc<dyn Store>,
    key: String,
    member: String,
    limit: f64,
    pace: Arc<Pace>,
    clock: Clock,
    /// Operations at the time of the last word.
    made: AtomicU64,
}

impl Share {
    /// A member of the limit of this target. Nothing may be read before [`Share::speak`] has given it a share.
    pub fn new(store: Arc<dyn Store>, target: &str, member: &str, limit: f64, pace: Arc<Pace>, clock: Clock) -> Share {
        Share { store, key: target.to_owned(), member: member.to_owned(), limit, made: pace.made().into(), pace, clock }
    }

    /// Says that this member is there, and sets its pace to its share.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn speak(&self) -> Result<f64, Failure> {
        let made = self.pace.made();
        let reads = self.made.swap(made, Ordering::Relaxed) != made || self.pace.awaited();
        for _ in 0..100 {
            let (mut agreement, expect) = self.agreement().await?;
            let share = agreement.join(&self.member, reads, self.limit, self.clock.now_ms());
            let value = serde_json::to_vec(&agreement).map_err(|e| Failure::new(Class::Bug, e))?;
            match self.store.put(BUCKET, &self.key, &value, expect).await {
                Ok(_) => {
                    // No share yet is not "no limit".
                    let rate = if share > 0.0 { share } else { 0.01 };
                    self.pace.set_if_changed(rate).map_err(|e| Failure::new(Class::Invalid, e))?;
                    return Ok(share);
                }
                Err(BusError::Conflict { .. }) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Failure::new(Class::Transient, "the document of shares kept changing"))
    }

    async fn agreement(&self) -> Result<(Agreement, Expect), Failure> {
        Ok(match self.store.get(BUCKET, &self.key).await? {
            Some(document) => {
                (serde_json::from_slice(&document.value).unwrap_or_default(), Expect::Revision(document.revision))
            }
            None => (Agreement::default(), Expect::Absent),
        })
    }

    /// Keeps speaking for as long as it is polled. A member that cannot be heard slows to almost nothing before the others take
    /// its share.
    pub async fn keep(&self) {
        let mut heard = tokio::time::Instant::now();
        loop {
            match self.speak().await {
                Ok(_) => heard = tokio::time::Instant::now(),
                Err(e) if heard.elapsed() > SILENT_AFTER => {
                    warn!(error = %e, "the shared limit cannot be agreed on; reading almost stops until it can");
                    let _ = self.pace.set_if_changed(0.01);
                }
                Err(e) => debug!(error = %e, "the shared limit could not be agreed on this time"),
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Gives the share back.
    ///
    /// # Errors
    /// When the store fails; the share is free again after ten seconds anyway.
    pub async fn leave(&self) -> Result<(), Failure> {
        let (mut agreement, expect) = self.agreement().await?;
        agreement.members.remove(&self.member);
        let value = serde_json::to_vec(&agreement).map_err(|e| Failure::new(Class::Bug, e))?;
        match self.store.put(BUCKET, &self.key, &value, expect).await {
            Ok(_) | Err(BusError::Conflict { .. }) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_add_up_to_more_than_the_limit() {
        let mut agreement = Agreement::default();
        let members = ["a", "b", "c", "d"];
        let mut state: u64 = 7;
        for step in 0..10_000_i64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let member = members[(state >> 33) as usize % members.len()];
            let share = agreement.join(member, state >> 62 > 0, 200.0, step * 400);
            let sum: f64 = agreement.members.values().map(|m| m.share).sum();
            assert!(sum <= 200.0 + 1e-9 && share >= 0.0, "{agreement:?}");
        }
        for _ in 0..3 {
            for member in members {
                agreement.join(member, true, 200.0, 10_000 * 400);
            }
        }
        assert!(agreement.members.values().all(|m| (m.share - 50.0).abs() < 1e-9), "{agreement:?}");
    }

    #[test]
    fn who_reads_has_what_the_idle_do_not_need() {
        let mut agreement = Agreement::default();
        let mut round = |a: bool, b: bool| {
            for _ in 0..2 {
                agreement.join("a", a, 200.0, 0);
                agreement.join("b", b, 200.0, 0);
            }
            (agreement.join("a", a, 200.0, 0), agreement.join("b", b, 200.0, 0))
        };
        assert_eq!(round(false, false), (100.0, 100.0));
        assert_eq!(round(true, false), (198.0, 2.0));
        assert_eq!(round(true, true), (100.0, 100.0));
        assert_eq!(round(false, true), (2.0, 198.0));
    }

    #[test]
    fn the_share_of_a_silent_member_is_kept_for_a_while() {
        let mut agreement = Agreement::default();
        assert_eq!(agreement.join("a", true, 200.0, 0), 200.0);
        assert_eq!(agreement.join("b", true, 200.0, GONE_AFTER_MS - 1), 0.0);
        assert_eq!(agreement.join("b", true, 200.0, GONE_AFTER_MS), 200.0);
    }
}
