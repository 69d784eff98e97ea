//! What a process shows of itself besides what it counts: how its queues are, whether its checks pass, whether a limit has stopped the
//! last scan. Looked at every now and then, with the same rights as the checks of readiness.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use trimtab_bus::{Bus, Role};

use crate::http::{Check, judge};
use crate::metrics;
use crate::scans::Scans;

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(15);

/// What is looked at.
pub(crate) struct Watched {
    /// Where the queues are.
    pub(crate) bus: Arc<dyn Bus>,
    /// Queues that this process may look at.
    pub(crate) queues: Vec<Role>,
    /// Where scans and limits are, of which target, where this process may look at it.
    pub(crate) scans: Option<(Scans, String)>,
    /// Whether it follows changes.
    pub(crate) follows: bool,
    /// Checks of readiness.
    pub(crate) checks: Vec<Check>,
}

impl Watched {
    /// Looks, again and again. What cannot be seen keeps its last value; that it cannot is what the checks show.
    pub(crate) async fn keep(self) {
        let (depth, check, stopped) = (metrics::QUEUE.level(), metrics::CHECK.level(), metrics::SCAN_STOPPED.level());
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for (name, found) in judge(&self.checks).await {
                check.set(f64::from(u8::from(found.is_ok())), &[name]);
            }
            for role in &self.queues {
                if let Ok(events) = self.bus.depth(*role).await {
                    depth.set(events as f64, &[role.name()]);
                }
            }
            if let Some((scans, target)) = &self.scans
                && let Ok(closed) = scans.stopped(target, self.follows).await
            {
                stopped.set(f64::from(u8::from(closed)), &[]);
            }
        }
    }
}
