//! Applies the rules to candidates. Signs what is to be carried out; what is not leaves no event.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use opentelemetry::KeyValue;
use tracing::{Instrument, info_span};
use trimtab_bus::{Published, Role};
use trimtab_events::{Body, Event, LedgerCandidate, LedgerPage, Trace};
use trimtab_policy::{Context, Policy, decide};
use trimtab_targets::Class;

use super::source;
use crate::clock::{Clock, timestamp};
use crate::metrics::Metrics;
use crate::sign::Signer;
use crate::telemetry;
use crate::worker::{Failure, Out, Worker};

/// The decider.
pub struct Decider {
    policy: Policy,
    signer: Signer,
    clock: Clock,
    source: String,
    metrics: Arc<Metrics>,
}

impl Decider {
    /// A decider by this policy, signing with this key.
    pub fn new(policy: Policy, signer: Signer, clock: Clock, instance: &str, metrics: Arc<Metrics>) -> Decider {
        Decider { policy, signer, clock, source: source("decider", instance), metrics }
    }

    async fn decide(&self, target: &str, page: &LedgerPage, topic: &LedgerCandidate, out: &Out) -> Result<(), Failure> {
        let context = Context { scan: page.scan, target, now_ms: self.clock.now_ms() };
        let decision = decide(topic, &self.policy, &context);
        self.metrics.decisions.add(1, &[KeyValue::new("verdict", decision.verdict.name())]);
        let span = tracing::Span::current();
        span.record("trimtab.verdict", decision.verdict.name());
        if !decision.verdict.acts() {
            return Ok(());
        }
        let now = timestamp(context.now_ms);
        let id = decision.id.to_string();
        let mut event = Event::new(id, &self.source, target, now, telemetry::trace_of(&span), decision)?;
        self.signer.sign(&mut event).map_err(|e| Failure::new(Class::Bug, e))?;
        if out.emit(&event).await? == Published::Outstanding {
            tracing::debug!(subject = topic.subject, "an act on it is outstanding already");
        }
        Ok(())
    }
}

impl Worker for Decider {
    fn role(&self) -> Role {
        Role::Decider
    }

    fn handle<'a>(&'a self, event: &'a Event, body: Body, out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            let Body::LedgerPage(page) = body else {
                return Err(Failure::new(Class::Invalid, "a decider takes pages of candidates only"));
            };
            let decided = page.candidates.iter().enumerate().map(|(index, topic)| {
                let span = info_span!(
                    "decide",
                    otel.name = "decide candidate.ledger",
                    trimtab.subject = topic.subject,
                    trimtab.verdict = tracing::field::Empty,
                    trimtab.scan = %page.scan.id,
                );
                let parent = page.traces.get(index).filter(|text| !text.is_empty()).cloned();
                telemetry::follow(&span, &Trace { parent, state: None });
                self.decide(&event.target, &page, topic, out).instrument(span)
            });
            futures::future::try_join_all(decided).await.map(|_| ())
        }
        .boxed()
    }
}
