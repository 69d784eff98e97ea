//! Carries out decisions through the owning broker: expire, trim, wait until the metadata shows it, close the topic again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use trimtab_events::{Candidate, Decision, Loaded, Verdict};

use super::admin::Admin;
use super::inventory::PulsarInventory;
use super::metadata::managed_ledger_info;
use super::names::TopicName;
use crate::error::{Class, Result, TargetError};
use crate::{Act, Effect, Permit, Record};

/// Times of an act.
#[derive(Debug, Clone)]
pub struct ActOptions {
    /// How long the metadata may take to show the effect before it counts as pending.
    pub settle: Duration,
    /// How long to wait between two looks at the metadata, at first; doubled up to a second.
    pub look_every: Duration,
}

impl Default for ActOptions {
    fn default() -> Self {
        ActOptions { settle: Duration::from_secs(30), look_every: Duration::from_millis(50) }
    }
}

/// Acts on Pulsar.
pub struct PulsarAct {
    admin: Arc<Admin>,
    inventory: Arc<PulsarInventory>,
    options: ActOptions,
}

impl PulsarAct {
    /// Acts through `admin`, looking at the metadata through `inventory`.
    pub fn new(admin: Arc<Admin>, inventory: Arc<PulsarInventory>, options: ActOptions) -> PulsarAct {
        PulsarAct { admin, inventory, options }
    }

    /// The topic's name, once the brokers that may own it are known.
    async fn reachable(&self, decision: &Decision) -> Result<TopicName> {
        let name = TopicName::of_subject(&decision.subject).ok_or_else(|| {
            TargetError::new(Class::Invalid, format!("acting on {:?}", decision.subject), "it is not a topic's name")
        })?;
        let brokers = self.inventory.brokers().await?;
        self.admin.allow(&brokers).await;
        Ok(name)
    }

    /// Ids that the topic's list has now; none when the topic is gone.
    async fn listed(&self, name: &TopicName) -> Result<Option<Vec<i64>>> {
        let Some((value, _)) = self.inventory.zk().get(&name.path()).await? else { return Ok(None) };
        let list = managed_ledger_info(&value)
            .map_err(|e| TargetError::new(Class::Invalid, format!("reading {} again", name.subject()), e))?;
        Ok(Some(list.ledgers.iter().map(|info| info.id).collect()))
    }

    /// Whether everything that was to go has gone.
    async fn shows(&self, name: &TopicName, decision: &Decision) -> Result<bool> {
        let listed = self.listed(name).await?.unwrap_or_default();
        Ok(!decision.ledgers.iter().any(|id| listed.contains(id)))
    }

    /// Trims, and looks until the metadata shows it. After an expiry the trim is asked for again: expiring is asynchronous, and
    /// a trim before its end frees nothing.
    async fn trim(&self, name: &TopicName, decision: &Decision, effect: &mut Effect) -> Result<()> {
        let deadline = tokio::time::Instant::now() + self.options.settle;
        let mut wait = self.options.look_every;
        self.admin.trim(name).await?;
        loop {
            if self.shows(name, decision).await? {
                return Ok(());
            }
            if tokio::time::Instant::now() + wait > deadline {
                effect.pending = true;
                effect.notes.push(format!("the metadata does not show it after {} s", self.options.settle.as_secs()));
                return Ok(());
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(1));
            if decision.verdict == Verdict::ExpireThenTrim && !self.shows(name, decision).await? {
                self.admin.trim(name).await?;
            }
        }
    }

    async fn expire(&self, name: &TopicName, decision: &Decision, effect: &mut Effect) -> Result<()> {
        for expire in &decision.expire {
            match self.admin.expire(name, &expire.subscription, expire.ttl_s).await {
                Ok(true) => {}
                Ok(false) => {
                    effect.notes.push(format!("nothing to expire for {:?}, or it is running", expire.subscription))
                }
                Err(e) if e.class() == Class::Gone => {
                    effect.notes.push(format!("subscription {:?} is gone", expire.subscription));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Closes the topic again, unless somebody uses it by now.
    async fn close(&self, name: &TopicName, effect: &mut Effect) {
        let closed = async {
            let connected = self.admin.connected(name).await?;
            if connected.producers + connected.consumers > 0 {
                let (producers, consumers) = (connected.producers, connected.consumers);
                effect.notes.push(format!("left open: {producers} producers and {consumers} consumers are connected"));
                return Ok(false);
            }
            self.admin.unload(name).await?;
            Ok::<_, TargetError>(true)
        };
        match closed.await {
            Ok(unloaded) => effect.unloaded = unloaded,
            // What was to be freed is freed; a topic that stays open is no reason to call the act failed.
            Err(e) => effect.notes.push(format!("the topic was not closed again: {e}")),
        }
    }
}

/// Whether a broker had the topic loaded.
fn loaded(seen: &Candidate) -> &Loaded {
    seen.topic().map_or(&Loaded::No, |topic| &topic.loaded)
}

impl Act for PulsarAct {
    fn act<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        _record: &'a dyn Record,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            if decision.verdict.on_subscriber() {
                let what = format!("carrying out {} on {}", decision.verdict, decision.subject);
                return Err(TargetError::new(Class::Invalid, what, "subscribers are only reported"));
            }
            let name = self.reachable(decision).await?;
            let mut effect = Effect::default();
            let done = async {
                if decision.verdict == Verdict::ExpireThenTrim {
                    self.expire(&name, decision, &mut effect).await?;
                }
                self.trim(&name, decision, &mut effect).await
            };
            let done = done.await;
            // Also after a failed call: it may have loaded the topic, and a loaded topic without subscriptions is deleted whole
            // by the broker after a minute. Unless the broker did not know the topic: asking would create it.
            let visited = !matches!(&done, Err(e) if e.class() != Class::Transient);
            if visited && *loaded(seen) != Loaded::Yes {
                self.close(&name, &mut effect).await;
            }
            done.map(|()| effect)
        }
        .boxed()
    }

    fn tidy<'a>(
        &'a self,
        decision: &'a Decision,
        seen: &'a Candidate,
        _permit: &'a Permit,
    ) -> BoxFuture<'a, Result<Effect>> {
        async move {
            let mut effect = Effect::default();
            // A closed last ledger: nobody has it loaded, and asking about it would load it.
            if *loaded(seen) != Loaded::No {
                let name = self.reachable(decision).await?;
                self.close(&name, &mut effect).await;
            }
            Ok(effect)
        }
        .boxed()
    }
}
