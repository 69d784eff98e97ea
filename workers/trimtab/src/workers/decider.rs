//! Applies the rules to candidates. Signs what is to be carried out; what is not leaves no event.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use opentelemetry::KeyValue;
use tracing::{Instrument, info_span};
use trimtab_bus::{Published, Role};
use trimtab_events::{Body, Candidate, Event, Page, ScanRef, Trace};
use trimtab_policy::{Context, Policy, decide_any};
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

    /// Decides about one candidate.
    async fn decide(&self, target: &str, scan: ScanRef, candidate: &Candidate, out: &Out) -> Result<(), Failure> {
        let context = Context { scan, target, now_ms: self.clock.now_ms() };
        let span = tracing::Span::current();
        for decision in decide_any(candidate, &self.policy, &context) {
            self.metrics.decisions.add(1, &[KeyValue::new("verdict", decision.verdict.name())]);
            span.record("trimtab.verdict", decision.verdict.name());
            if !decision.verdict.acts() {
                continue;
            }
            let now = timestamp(context.now_ms);
            let (id, subject) = (decision.id.to_string(), decision.subject.clone());
            let mut event = Event::new(id, &self.source, target, now, telemetry::trace_of(&span), decision)?;
            self.signer.sign(&mut event).map_err(|e| Failure::new(Class::Bug, e))?;
            if out.emit(&event).await? == Published::Outstanding {
                tracing::debug!(subject, "an act on it is outstanding already");
            }
        }
        Ok(())
    }

    /// Decides about all candidates of a page.
    async fn page<C>(
        &self,
        target: &str,
        page: Page<C>,
        kind: fn(Box<C>) -> Candidate,
        out: &Out,
    ) -> Result<(), Failure> {
        let Page { scan, candidates, traces, .. } = page;
        let decided = candidates.into_iter().enumerate().map(|(index, candidate)| {
            let candidate = kind(Box::new(candidate));
            let span = info_span!(
                "decide",
                otel.name = format!("decide candidate.{}", candidate.kind()),
                trimtab.subject = candidate.subject(),
                trimtab.verdict = tracing::field::Empty,
                trimtab.scan = %scan.id,
            );
            let parent = traces.get(index).filter(|text| !text.is_empty()).cloned();
            telemetry::follow(&span, &Trace { parent, state: None });
            async move { self.decide(target, scan, &candidate, out).await }.instrument(span)
        });
        futures::future::try_join_all(decided).await.map(|_| ())
    }
}

impl Worker for Decider {
    fn role(&self) -> Role {
        Role::Decider
    }

    fn handle<'a>(&'a self, event: &'a Event, body: Body, out: &'a Out) -> BoxFuture<'a, Result<(), Failure>> {
        async move {
            match body {
                Body::LedgerPage(page) => self.page(&event.target, page, Candidate::Ledger, out).await,
                Body::SubscriberPage(page) => self.page(&event.target, page, Candidate::Subscriber, out).await,
                Body::OrphanPage(page) => self.page(&event.target, page, Candidate::Orphan, out).await,
                _ => Err(Failure::new(Class::Invalid, "a decider takes pages of candidates only")),
            }
        }
        .boxed()
    }
}
