//! Applies the rules to candidates. Signs what is to be carried out; what is not leaves no event.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use tracing::{Span, info_span};
use trimtab_bus::{Published, Role};
use trimtab_events::{Body, Candidate, Event, Page, Trace, Verdict};
use trimtab_policy::{Context, Policy, act_on_any};
use trimtab_targets::Class;

use super::source;
use crate::clock::{Clock, timestamp};
use crate::metrics::Metrics;
use crate::sign::{Desk, SignError, Signer};
use crate::telemetry;
use crate::worker::{Failure, Out, Worker};

/// The decider.
pub struct Decider {
    policy: Policy,
    signer: Signer,
    desk: Desk,
    clock: Clock,
    source: String,
    metrics: Arc<Metrics>,
}

impl Decider {
    /// A decider by this policy, signing with this key.
    pub fn new(policy: Policy, signer: Signer, clock: Clock, instance: &str, metrics: Arc<Metrics>) -> Decider {
        Decider { policy, signer, desk: Desk::default(), clock, source: source("decider", instance), metrics }
    }

    /// What is to be carried out about one candidate.
    fn decide(
        &self,
        context: &Context<'_>,
        candidate: &Candidate,
        verdicts: &mut BTreeMap<Verdict, u64>,
    ) -> Result<Vec<Event>, Failure> {
        let span = Span::current();
        let mut acts = Vec::new();
        for decided in act_on_any(candidate, &self.policy, context) {
            let verdict = decided.as_ref().map_or_else(|verdict| *verdict, |decision| decision.verdict);
            *verdicts.entry(verdict).or_default() += 1;
            span.record("trimtab.verdict", verdict.name());
            if let Ok(decision) = decided {
                let (now, id) = (timestamp(context.now_ms), decision.id.to_string());
                let trace = telemetry::trace_of(&span);
                acts.push(Event::new(id, &self.source, context.target, now, trace, *decision)?);
            }
        }
        Ok(acts)
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
        let context = Context { scan, target, now_ms: self.clock.now_ms() };
        let (mut acts, mut spans, mut verdicts) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (index, candidate) in candidates.into_iter().enumerate() {
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
            let decided = span.in_scope(|| self.decide(&context, &candidate, &mut verdicts))?;
            if !decided.is_empty() {
                acts.extend(decided);
                // It ends when its decisions are stored.
                spans.push(span);
            }
        }
        for (verdict, count) in verdicts {
            self.metrics.decisions.add(count, &[verdict.name()]);
        }
        if acts.is_empty() {
            return Ok(());
        }
        let unsigned = |e: SignError| {
            let class = if e == SignError::Desk { Class::Transient } else { Class::Bug };
            Failure::new(class, e)
        };
        let acts = self.desk.sign(&self.signer, acts).await.map_err(unsigned)?;
        let emitted = out.emit_all(&acts).await?;
        for (event, _) in acts.iter().zip(emitted).filter(|(_, published)| *published == Published::Outstanding) {
            tracing::debug!(subject = event.subject, "an act on it is outstanding already");
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
