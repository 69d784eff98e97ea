//! One scan and everything that comes of it, in this process: asked for, waited for, judged. Decides nothing about topics; it
//! says how a run ended.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;
use trimtab_bus::{Bus, Role};
use trimtab_events::{Scope, Trigger};
use trimtab_targets::Class;
use uuid::Uuid;

use crate::scans::{Gate, Scans, Tally};
use crate::triggers::Triggers;
use crate::worker::Failure;

/// How often it is looked at how far things are.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// For how long looks may fail, one after the other, before the run ends over it. What the workers have begun goes on meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is needed to see one scan through.
pub struct Once {
    /// Where what is under way is counted.
    pub bus: Arc<dyn Bus>,
    /// Gates and tallies.
    pub scans: Scans,
    /// Asks for the scan.
    pub triggers: Triggers,
    /// Ends the waiting.
    pub stop: CancellationToken,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub enum Ran {
    /// Stopped before the scan's end: nothing of it is carried out.
    Interrupted,
    /// A limit stopped it before the first act.
    Stopped {
        /// The scan.
        scan: Uuid,
        /// Which limit, and what to do.
        why: String,
    },
    /// Everything that was decided has come to its end, or the run was stopped before.
    Through {
        /// The scan.
        scan: Uuid,
        /// What it proposed.
        gate: Gate,
        /// What came of it.
        tally: Tally,
    },
}

/// In one word, for the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// All of it is done, or there was nothing to do.
    Done,
    /// All of it failed.
    Failed,
    /// A limit stopped it before the first act.
    Stopped,
    /// Some of it is not done, or not everything could be read.
    Partial,
}

impl Ran {
    /// How it ended, in one word.
    pub fn judgement(&self) -> Judgement {
        let (gate, tally) = match self {
            Ran::Interrupted => return Judgement::Partial,
            Ran::Stopped { .. } => return Judgement::Stopped,
            Ran::Through { gate, tally, .. } => (gate, tally),
        };
        let of = |status: &str| tally.statuses.get(status).copied().unwrap_or(0);
        let all = tally.outcomes();
        match (of("done"), of("failed")) {
            // Given up or not reached before the process was stopped: nobody may take that for a success.
            _ if all < gate.proposed.acts => Judgement::Partial,
            (done, 0) if done == all && !gate.incomplete => Judgement::Done,
            (0, failed) if failed > 0 && failed == all => Judgement::Failed,
            _ => Judgement::Partial,
        }
    }
}

impl Once {
    /// Asks for a scan of this scope and waits until nothing that comes of it is under way any more.
    ///
    /// # Errors
    /// When the scan could not be asked for or made, or how far it is could not be seen for a minute.
    pub async fn run(&self, scope: Scope) -> Result<Ran, Failure> {
        let scan = self.triggers.scan(scope, Trigger::Cli).await?;
        let Some(gate) = self.ended(scan).await? else { return Ok(Ran::Interrupted) };
        if let Some(why) = gate.closed() {
            // Its decisions stay where they are; that it was stopped goes into the record.
            self.settled(&[Role::Scanner, Role::Audit]).await?;
            return Ok(Ran::Stopped { scan, why: why.to_owned() });
        }
        self.settled(&[Role::Scanner, Role::Decider, Role::Executor, Role::Audit]).await?;
        let tally = self.patiently(|| self.scans.tally(scan)).await?;
        Ok(Ran::Through { scan, gate, tally })
    }

    /// Waits for a scan's end; none when the wait was stopped before.
    ///
    /// # Errors
    /// When the scan was given up, with the reason, or its end could not be seen for a minute.
    pub async fn ended(&self, scan: Uuid) -> Result<Option<Gate>, Failure> {
        loop {
            if let Some(gate) = self.patiently(|| self.scans.gate(scan)).await? {
                return Ok(Some(gate));
            }
            let dead = self.patiently(|| async { Ok(self.bus.dead(1000).await?) }).await?;
            // A shard that was given up is emitted again.
            let about = |role: &str, event: &str| {
                role == Role::Scanner.name() && event.contains("scan.request") && event.contains(&scan.to_string())
            };
            if let Some(letter) = dead.iter().find(|letter| about(&letter.role, &letter.event)) {
                return Err(Failure::new(Class::Refused, format!("the scan could not be made: {}", letter.why)));
            }
            tokio::select! {
                () = self.stop.cancelled() => return Ok(None),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Waits until nothing is on its way to these any more, or the wait is stopped.
    async fn settled(&self, roles: &[Role]) -> Result<(), Failure> {
        let mut quiet = 0;
        while quiet < 3 {
            let depth = self.patiently(|| self.depth(roles)).await?;
            quiet = if depth == 0 { quiet + 1 } else { 0 };
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
        Ok(())
    }

    async fn depth(&self, roles: &[Role]) -> Result<u64, Failure> {
        let mut depth = 0;
        for role in roles {
            depth += self.bus.depth(*role).await?;
        }
        Ok(depth)
    }

    /// Looks, and again while that fails for a reason that may pass: an act that is under way must not be cut off because a look
    /// at it failed once.
    async fn patiently<T, F: Future<Output = Result<T, Failure>>>(&self, look: impl Fn() -> F) -> Result<T, Failure> {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            match look().await {
                Err(e @ Failure::Failed { class: Class::Transient, .. }) if tokio::time::Instant::now() < until => {
                    warn!(error = %e, "how far the run is could not be seen; looking again");
                    tokio::time::sleep(LOOK_EVERY * 5).await;
                }
                result => return result,
            }
        }
    }
}
