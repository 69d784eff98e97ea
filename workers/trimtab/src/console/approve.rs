//! Approving a plan: exactly what was shown is handed to the same code that `trimtab apply` and executors run. Nothing is called from here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Form, State as Extracted};
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, response::IntoResponse};
use futures::StreamExt;
use tracing::{Instrument, Span, info, info_span, warn};
use trimtab_bus::Published;
use trimtab_events::{Event, Proposed};
use trimtab_targets::Class;
use uuid::Uuid;

use super::access::Who;
use super::doing::{Fields, goto};
use super::index::{Index, Selection};
use super::{Console, Refusal};
use crate::apply::carry_out;
use crate::clock::timestamp;
use crate::config::Caps;
use crate::journal::{Entry, RecordKind};
use crate::plan::stopped;
use crate::scans::Gate;
use crate::sign::Signer;
use crate::telemetry;
use crate::worker::{Failure, Out};
use crate::workers::{Executor, source};

/// What carries out an approved plan.
pub enum Hands {
    /// Nothing: why, and what can be done instead.
    None(String),
    /// This process's own executor.
    Executor {
        /// The executor.
        executor: Arc<Executor>,
        /// Where outcomes go.
        out: Out,
        /// Acts at once.
        at_once: usize,
    },
    /// Executors elsewhere, which obey what this key signed.
    Signed {
        /// The key.
        signer: Box<Signer>,
        /// Where decisions go.
        out: Out,
        /// Name of this process.
        instance: String,
    },
}

/// Decisions signed and sent together.
const TOGETHER: usize = 64;

/// How an approved plan goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Approved {
    /// The plan.
    pub(super) plan: Uuid,
    /// Who approved it.
    pub(super) by: String,
    /// Decisions in it.
    pub(super) all: u64,
    /// Those carried out or handed on, by what came of it.
    pub(super) came: BTreeMap<String, u64>,
    /// It came to its end.
    pub(super) ended: bool,
}

/// The last approved plan.
#[derive(Default)]
pub(super) struct State(Mutex<Option<Approved>>);

impl State {
    pub(super) fn last(&self) -> Option<Approved> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, plan: Uuid, by: impl FnOnce(&mut Approved)) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_mut().filter(|last| last.plan == plan) {
            by(last);
        }
    }
}

/// What stands in the way of carrying a selection out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Obstacles {
    /// It cannot be approved.
    pub(super) never: Option<String>,
    /// A limit that a person may confirm.
    pub(super) limit: Option<String>,
}

impl Console {
    /// What stands in the way of approving this now.
    pub(super) async fn obstacles(&self, index: &Index, selection: &Selection) -> Result<Obstacles, Failure> {
        let (head, caps) = (&index.head, &self.parts.caps);
        let never = |why: String| Ok(Obstacles { never: Some(why), limit: None });
        if let Hands::None(why) = &self.parts.hands {
            return never(why.clone());
        }
        if selection.proposed.acts + selection.marks == 0 {
            return never("there is nothing in it to carry out".to_owned());
        }
        if self.parts.clock.now_ms() > head.expires_ms {
            return never(format!("the plan expired at {}; look again", timestamp(head.expires_ms)));
        }
        if let Some(gate) = self.parts.scans.gate(index.scan.id).await? {
            let by = gate.confirmed_by.unwrap_or_else(|| "somebody".to_owned());
            return never(format!("{by} approved this plan already; look again to make another"));
        }
        // Executors keep these two whatever a person says.
        let bounds = Caps { max_share: 1.0, ..*caps };
        if let Some(why) = stopped(head, selection.proposed, index.scan, &bounds) {
            return never(format!("{why}; or leave some of it out"));
        }
        if let Hands::Signed { .. } = &self.parts.hands {
            let leader = self.parts.scans.leader(&self.parts.target).await?;
            let Some(leader) = leader.filter(|leader| leader.ended) else {
                return never(
                    "executors take nothing while a scan goes on, or before there was one; wait for its end".to_owned(),
                );
            };
            if let Some(why) = self.parts.scans.gate(leader.scan.id).await?.as_ref().and_then(Gate::closed) {
                return never(format!("executors take nothing, since the last scan is stopped: {why}"));
            }
        }
        Ok(Obstacles { never: None, limit: stopped(head, selection.proposed, index.scan, caps) })
    }
}

/// Approves what was shown.
pub(super) async fn approve(
    Extracted(console): Extracted<Arc<Console>>,
    Extension(who): Extension<Who>,
    Form(fields): Form<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let fields = Fields::own(&console, &who, fields)?;
    let (plan, digest) = (fields.one("plan")?.to_owned(), fields.one("digest")?.to_owned());
    let confirmed = fields.some("although") == Some("yes");
    let gone = |says: &str| Refusal::new(StatusCode::CONFLICT, says);
    let index = console.looker.present().filter(|index| index.scan.id.to_string() == plan);
    let Some(index) = index else {
        return Err(gone("there is a newer plan than the one that was shown; look at that one. Nothing was done"));
    };
    let of = index.clone();
    let selection = console.blocking(move || of.selection()).await?;
    if selection.digest != digest {
        return Err(gone(
            "the plan, or what was left out of it, is not what was shown any more; look at it again. Nothing was done",
        ));
    }
    let obstacles = console.obstacles(&index, &selection).await?;
    if let Some(why) = obstacles.never {
        return Err(gone(&format!("{why}. Nothing was done")));
    }
    if let Some(why) = obstacles.limit.as_ref().filter(|_| !confirmed) {
        return Err(gone(&format!(
            "a limit stops it before the first act: {why}. Confirm that as well, or leave some of it out"
        )));
    }
    if let Some(identity) = console.looker.identity().await?
        && index.head.cluster != identity
    {
        let cluster = &index.head.cluster;
        return Err(gone(&format!("the plan is for the cluster {cluster:?}, this is {identity:?}. Nothing was done")));
    }
    let entry = Entry {
        kind: RecordKind::Approve,
        id: plan,
        subject: String::new(),
        trace_id: telemetry::trace_id(&Span::current()),
        body: serde_json::json!({
            "by": who.name, "target": console.parts.target, "cluster": index.head.cluster, "policy": index.head.policy,
            "digest": digest, "acts": selection.proposed.acts, "ledgers": selection.proposed.ledgers, "bytes": selection.proposed.bytes,
            "marks": selection.marks, "left_out": selection.left_out, "confirmed": obstacles.limit,
        }),
    };
    // In the record first; of two at the same moment one gets no further than that.
    console.parts.journal.write(entry).await.map_err(Failure::from)?;
    let gate = Gate {
        scan: index.scan,
        proposed: selection.proposed,
        stopped: obstacles.limit,
        confirmed_by: Some(who.name.clone()),
        incomplete: !index.head.complete,
    };
    console.parts.scans.approve(&gate).await?;
    let approved = Approved {
        plan: index.scan.id,
        by: who.name.clone(),
        all: selection.ids.len() as u64,
        came: BTreeMap::new(),
        ended: false,
    };
    *console.approving.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(approved);
    info!(plan = %index.scan.id, by = who.name, acts = selection.proposed.acts, "a plan was approved");
    let span =
        info_span!("approved", otel.name = "approved plan", trimtab.scan = %index.scan.id, trimtab.by = who.name);
    let work = console.clone();
    console.parts.tasks.spawn(
        async move {
            let plan = index.scan.id;
            work.carry_out(&index, selection.ids).await;
            work.approving.change(plan, |approved| approved.ended = true);
        }
        .instrument(span),
    );
    Ok(goto("/acts?done=approved").into_response())
}

impl Console {
    /// Hands over the decisions with these numbers.
    async fn carry_out(&self, index: &Arc<Index>, ids: Vec<i64>) {
        match &self.parts.hands {
            Hands::None(_) => {}
            Hands::Executor { executor, out, at_once } => {
                let each = |id| self.carry_out_one(index, id, executor, out);
                futures::stream::iter(ids).for_each_concurrent((*at_once).max(1), each).await;
            }
            Hands::Signed { signer, out, instance } => {
                let source = source("console", instance);
                for some in ids.chunks(TOGETHER) {
                    let sent = self.send(index, some, signer, &source, out).await;
                    if let Err(e) = sent {
                        warn!(error = %e, "decisions of an approved plan could not be handed on");
                        self.came(index, "not sent", some.len() as u64);
                    }
                }
            }
        }
    }

    fn came(&self, index: &Index, what: &str, count: u64) {
        self.approving.change(index.scan.id, |approved| *approved.came.entry(what.to_owned()).or_default() += count);
    }

    async fn decision(&self, index: &Arc<Index>, id: i64) -> Result<trimtab_events::Decision, Failure> {
        let index = index.clone();
        self.blocking(move || index.decision(id)).await
    }

    async fn carry_out_one(&self, index: &Arc<Index>, id: i64, executor: &Executor, out: &Out) {
        if self.parts.stop.is_cancelled() {
            return self.came(index, "not begun", 1);
        }
        let carried = async {
            // Somebody may have stopped it meanwhile.
            match self.parts.scans.gate(index.scan.id).await? {
                Some(gate) if gate.closed().is_none() => {}
                _ => return Ok("not begun"),
            }
            let decision = self.decision(index, id).await?;
            let span = info_span!("decision", otel.name = "approved decision", trimtab.subject = decision.subject);
            carry_out(executor, &decision, out).instrument(span).await.map(|outcome| outcome.status.name())
        };
        match carried.await {
            Ok(came) => self.came(index, came, 1),
            Err(e) => {
                let e: Failure = e;
                warn!(error = %e, "a decision of an approved plan failed before it was carried out");
                self.came(index, "failed", 1);
            }
        }
    }

    async fn send(
        &self,
        index: &Arc<Index>,
        ids: &[i64],
        signer: &Signer,
        source: &str,
        out: &Out,
    ) -> Result<(), Failure> {
        let mut events = Vec::with_capacity(ids.len());
        for id in ids {
            let decision = self.decision(index, *id).await?;
            let (trace, now) = (telemetry::trace_of(&Span::current()), timestamp(self.parts.clock.now_ms()));
            events.push(Event::new(decision.id.to_string(), source, &self.parts.target, now, trace, decision)?);
        }
        signer.sign_all(&mut events).map_err(|e| Failure::new(Class::Bug, e))?;
        for published in out.emit_all(&events).await? {
            self.came(index, if published == Published::Outstanding { "another outstanding" } else { "handed on" }, 1);
        }
        Ok(())
    }
}

/// What somebody would approve, for a page.
pub(super) fn totals(proposed: Proposed) -> (u64, u64, i64) {
    (proposed.acts, proposed.ledgers, i64::try_from(proposed.bytes).unwrap_or(i64::MAX))
}
