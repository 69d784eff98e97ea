//! What pages and the read API show, gathered once for both.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;
use trimtab_bus::DeadLetter;
use trimtab_events::{Event, PlanItem, Proposed, Reason};
use uuid::Uuid;

use super::Console;
use super::index::{Filter, Index, Item, Page, Part, Sum};
use super::record::{Act, File, Recovery};
use crate::journal::{Record, RecordKind};
use crate::scans::{Gate, Tally};
use crate::worker::Failure;

/// Items of one page of a list.
pub(super) const PAGE: usize = 100;
/// Namespaces that an overview names.
const NAMESPACES: usize = 40;
/// How far back scans are listed.
const SCANS_MS: i64 = 14 * 24 * 3600 * 1000;
/// Scans that are listed.
const SCANS: usize = 30;
/// Records of one story.
const STORY: usize = 200;
/// Dead letters that are listed.
const LETTERS: usize = 200;
/// How long their number is taken to be the same.
const DEAD_AGAIN: std::time::Duration = std::time::Duration::from_secs(5);
/// Log dirs that are listed.
const DIRS: usize = 200;

/// What a part of a plan comes to.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct SumView {
    /// What it is about: a namespace, a verdict or a rule.
    pub(super) name: String,
    /// Items.
    pub(super) items: u64,
    /// Ledgers that would go.
    pub(super) ledgers: u64,
    /// Bytes that would go, one replica.
    pub(super) bytes: i64,
    /// Bytes that cursors hold.
    pub(super) held_bytes: i64,
}

impl From<Sum> for SumView {
    fn from(sum: Sum) -> SumView {
        SumView { name: sum.name, items: sum.items, ledgers: sum.ledgers, bytes: sum.bytes, held_bytes: sum.held }
    }
}

/// The newest plan.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct PlanView {
    /// Its id: what its decisions are under when it is approved.
    pub(super) id: Uuid,
    /// The configured target.
    pub(super) target: String,
    /// Identity of the cluster.
    pub(super) cluster: String,
    /// What was looked at.
    pub(super) scope: String,
    /// The moment that ages count from, milliseconds since 1970.
    pub(super) now_ms: i64,
    /// Not to be approved after, milliseconds since 1970.
    pub(super) expires_ms: i64,
    /// Whether everything could be read.
    pub(super) complete: bool,
    /// What could not be read, the first of it.
    pub(super) problems: Vec<String>,
    /// Topics seen.
    pub(super) topics: u64,
    /// Bytes of all closed ledgers seen, one replica.
    pub(super) seen_bytes: u64,
    /// Kept because something about them could not be learned.
    pub(super) unknown: u64,
    /// What carrying out all of it would do.
    pub(super) total: SumView,
    /// The namespaces that would give back most.
    pub(super) namespaces: Vec<SumView>,
    /// By verdict.
    pub(super) verdicts: Vec<SumView>,
    /// What would be carried out, by the rule that spoke first.
    pub(super) reasons: Vec<SumView>,
}

/// How things are.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct Overview {
    /// The configured target.
    pub(super) target: String,
    /// The newest plan, once there is one.
    pub(super) plan: Option<PlanView>,
    /// How looking goes.
    pub(super) looking: LookingView,
    /// The journals of the record.
    pub(super) record: Vec<FileView>,
    /// The scan that leads, or led last.
    pub(super) scan: Option<ScanView>,
    /// What a person has to look at.
    pub(super) attention: Attention,
    /// The last acts.
    pub(super) acts: Vec<ActView>,
}

/// What a person has to look at.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(super) struct Attention {
    /// Scans that a limit or a person stopped.
    pub(super) stopped: u64,
    /// Subscribers announced to be acted on.
    pub(super) marked: u64,
    /// Events that were given up; absent where that could not be learned.
    pub(super) dead_letters: Option<u64>,
    /// Journals that cannot be believed.
    pub(super) damaged: u64,
}

/// How looking goes.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct LookingView {
    /// Whether this console looks by itself.
    pub(super) can_look: bool,
    /// Since when a look is under way, milliseconds since 1970.
    pub(super) since_ms: Option<i64>,
    /// Items found by it so far.
    pub(super) items: u64,
    /// Why the last one failed, if it did.
    pub(super) failed: Option<String>,
}

/// A journal of the record.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct FileView {
    /// Its name in the folder `audit`.
    pub(super) name: String,
    /// Whole records.
    pub(super) records: u64,
    /// Hash of the last one: keep it elsewhere, with their number.
    pub(super) head: String,
    /// What is wrong with it, if anything.
    pub(super) damaged: Option<String>,
}

impl From<File> for FileView {
    fn from(file: File) -> FileView {
        FileView { name: file.name, records: file.records, head: file.head, damaged: file.damaged }
    }
}

/// An act.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ActView {
    /// When it began, milliseconds since 1970.
    pub(super) begun_ms: i64,
    /// When the last of it was recorded, milliseconds since 1970.
    pub(super) at_ms: i64,
    /// What was acted on.
    pub(super) subject: String,
    /// The decision.
    pub(super) decision: String,
    /// Its scan, or the plan's id.
    pub(super) scan: String,
    /// What was to be done.
    pub(super) verdict: String,
    /// `under way`, `done`, `pending`, `skipped` or `failed`.
    pub(super) status: String,
    /// Ledgers that are gone.
    pub(super) ledgers: u64,
    /// Bytes that are gone, one replica.
    pub(super) bytes: i64,
    /// Bytes that were to go.
    pub(super) predicted_bytes: i64,
    /// Trace id; empty when nothing is traced.
    pub(super) trace_id: String,
    /// Where the trace can be looked at.
    pub(super) trace_link: Option<String>,
    /// Who did it.
    pub(super) executor: String,
    /// What a person should know first.
    pub(super) why: String,
}

/// A page of acts, the newest first.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ActsView {
    /// The acts.
    pub(super) acts: Vec<ActView>,
    /// `before` of the next page.
    pub(super) next: Option<String>,
}

/// An item of the plan in a list.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ItemView {
    /// Its number in the plan.
    pub(super) id: i64,
    /// Canonical name.
    pub(super) subject: String,
    /// Tenant and namespace, a region, or a stream.
    pub(super) namespace: String,
    /// `topic`, `log`, `subscriber` or `ledger`.
    pub(super) kind: String,
    /// What is to be done.
    pub(super) verdict: String,
    /// Whether it is carried out when the plan is approved.
    pub(super) acts: bool,
    /// The rule that spoke first.
    pub(super) reason: String,
    /// What it says.
    pub(super) says: String,
    /// Ledgers that would go.
    pub(super) ledgers: u64,
    /// Bytes that would go, one replica.
    pub(super) bytes: i64,
    /// Bytes that a cursor holds.
    pub(super) held_bytes: i64,
    /// That cursor; empty where there is none.
    pub(super) holder: String,
    /// Somebody left it out of the plan.
    pub(super) left_out: bool,
}

impl From<Item> for ItemView {
    fn from(item: Item) -> ItemView {
        let Item { id, subject, namespace, kind, verdict, acts, reason, says, ledgers, bytes, held, holder, left_out } =
            item;
        let held_bytes = held;
        ItemView {
            id,
            subject,
            namespace,
            kind,
            verdict,
            acts,
            reason,
            says,
            ledgers,
            bytes,
            held_bytes,
            holder,
            left_out,
        }
    }
}

/// A page of the plan's list, the largest first.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct CandidatesView {
    /// The plan.
    pub(super) plan: Uuid,
    /// What the whole list comes to; not counting its text.
    pub(super) total: SumView,
    /// The items.
    pub(super) items: Vec<ItemView>,
    /// `before` of the page before.
    pub(super) previous: Option<String>,
    /// `after` of the next page.
    pub(super) next: Option<String>,
}

/// An item of the plan with its evidence.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct CandidateView {
    /// The plan.
    pub(super) plan: Uuid,
    /// In short.
    pub(super) item: ItemView,
    /// As it is in the plan's file: every rule's inputs, and the decision.
    pub(super) full: PlanItem,
    /// Who asked to leave it alone, if anybody.
    pub(super) protected_by: Option<String>,
}

/// A scan or an approved plan, and whether its decisions may be carried out.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ScanView {
    /// Its id.
    pub(super) id: Uuid,
    /// `under way`, `open`, `stopped` or `confirmed`.
    pub(super) state: String,
    /// Why it is, or was, stopped.
    pub(super) stopped: Option<String>,
    /// Who confirmed or approved it.
    pub(super) by: Option<String>,
    /// Not everything could be read.
    pub(super) incomplete: bool,
    /// Shards read, and how many there are, while it is under way.
    pub(super) shards: Option<[u64; 2]>,
    /// What it proposes.
    pub(super) proposed: Proposed,
    /// Acts set aside for it.
    pub(super) used_acts: u64,
    /// Bytes set aside for it.
    pub(super) used_bytes: u64,
    /// Outcomes by status.
    pub(super) outcomes: BTreeMap<String, u64>,
    /// Bytes that are gone.
    pub(super) freed_bytes: i64,
}

/// Limits, and the scans that are held against them.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct LimitsView {
    /// Acts of one scan.
    pub(super) max_acts: u64,
    /// Bytes freed by one scan.
    pub(super) max_bytes: u64,
    /// Share of the topics and bytes seen.
    pub(super) max_share: f64,
    /// How much fewer topics than before may be seen.
    pub(super) max_shrink: f64,
    /// Scans and approved plans, the newest first.
    pub(super) scans: Vec<ScanView>,
}

/// Subscribers in their grace period, and wishes to be left alone.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct MarksView {
    /// Announced to be acted on.
    pub(super) marks: Vec<MarkView>,
    /// Wishes to be left alone.
    pub(super) protections: Vec<ProtectionView>,
}

/// A subscriber in its grace period.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct MarkView {
    /// The subscriber.
    pub(super) subject: String,
    /// When it was announced, milliseconds since 1970.
    pub(super) marked_ms: i64,
    /// Not acted on before, milliseconds since 1970, where the record tells.
    pub(super) not_before_ms: Option<i64>,
    /// What was said.
    pub(super) says: String,
    /// Bytes that would go.
    pub(super) bytes: i64,
    /// Who asked to leave it alone, if anybody.
    pub(super) protected_by: Option<String>,
}

/// A wish to be left alone.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct ProtectionView {
    /// What is protected.
    pub(super) subject: String,
    /// Who asked.
    pub(super) by: String,
    /// Until when, milliseconds since 1970; for ever when absent.
    pub(super) until_ms: Option<i64>,
}

/// An event that was given up.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct LetterView {
    /// What it is known by.
    pub(super) id: String,
    /// The role that gave it up.
    pub(super) role: String,
    /// What it was about.
    pub(super) subject: String,
    /// Why.
    pub(super) why: String,
    /// How often it was tried.
    pub(super) tries: u64,
    /// When, milliseconds since 1970.
    pub(super) at_ms: i64,
}

impl From<DeadLetter> for LetterView {
    fn from(letter: DeadLetter) -> LetterView {
        let DeadLetter { id, role, why, tries, at_ms, event } = letter;
        let subject = Event::from_bytes(event.as_bytes()).map_or_else(|_| "(no event)".to_owned(), |e| e.subject);
        LetterView { id, role, subject, why, tries, at_ms }
    }
}

/// The last recovery of a log dir.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct RecoveryView {
    /// The host.
    pub(super) host: String,
    /// The log dir.
    pub(super) log_dir: String,
    /// The run.
    pub(super) run: String,
    /// How it came out; empty while only partitions are recorded.
    pub(super) state: String,
    /// When that was recorded, milliseconds since 1970.
    pub(super) at_ms: i64,
    /// Segments verified.
    pub(super) segments: u64,
    /// Bytes that are gone from the logs, and kept aside.
    pub(super) cut_bytes: u64,
    /// Partitions that were not clean, by state.
    pub(super) partitions: BTreeMap<String, u64>,
    /// The first error or warning.
    pub(super) why: String,
}

impl From<Recovery> for RecoveryView {
    fn from(recovery: Recovery) -> RecoveryView {
        let Recovery { at_ms, run, host, log_dir, state, segments, cut_bytes, why, partitions, .. } = recovery;
        RecoveryView { host, log_dir, run, state, at_ms, segments, cut_bytes, partitions, why }
    }
}

/// One step of a story.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct Step {
    /// When, milliseconds since 1970.
    pub(super) at_ms: i64,
    /// `seen`, `decided`, `approved`, `confirmed`, `stopped`, `intended`, `called`, `verified`, `freed`, `announced`, `protected`,
    /// `noted`, `undone` or `recovered`.
    pub(super) step: String,
    /// In a sentence.
    pub(super) says: String,
    /// Names and values.
    pub(super) facts: Vec<Fact>,
    /// Every rule that spoke, with what it looked at.
    pub(super) reasons: Vec<Reason>,
    /// The journal that says so, and the number of the record in it.
    pub(super) record: String,
}

/// A name and a value.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct Fact {
    /// The name.
    pub(super) name: String,
    /// The value, for a person.
    pub(super) value: String,
}

/// The story of one subject, decision, scan or trace.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct StoryView {
    /// What was asked for.
    pub(super) about: String,
    /// What it says, in order of time.
    pub(super) steps: Vec<Step>,
    /// Only the last records are told: there are more.
    pub(super) cut: bool,
    /// Trace ids, the newest last.
    pub(super) traces: Vec<TraceView>,
    /// The item about it in the newest plan.
    pub(super) item: Option<ItemView>,
}

/// A trace.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(super) struct TraceView {
    /// 32 hexadecimal digits.
    pub(super) id: String,
    /// Where it can be looked at, if that is configured.
    pub(super) link: Option<String>,
}

impl Console {
    /// Runs what blocks. Few at once: pages must not take the disk and the processors from who acts.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let _turn = self.turns.acquire().await.map_err(|e| Failure::new(trimtab_targets::Class::Bug, e))?;
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|e| Failure::new(trimtab_targets::Class::Bug, e))?
    }

    pub(super) fn act_view(&self, act: Act) -> ActView {
        let trace_link = self.trace_link(&act.trace_id);
        let Act {
            begun_ms,
            at_ms,
            subject,
            decision,
            scan,
            verdict,
            status,
            ledgers,
            bytes,
            predicted,
            trace_id,
            executor,
            why,
            ..
        } = act;
        let predicted_bytes = predicted;
        ActView {
            begun_ms,
            at_ms,
            subject,
            decision,
            scan,
            verdict,
            status,
            ledgers,
            bytes,
            predicted_bytes,
            trace_id,
            trace_link,
            executor,
            why,
        }
    }

    fn trace_link(&self, trace_id: &str) -> Option<String> {
        let link = self.parts.trace_link.as_ref()?;
        // What is in the record came from outside: only what is a trace id goes into an address.
        let is = trace_id.len() == 32 && trace_id.bytes().all(|b| b.is_ascii_hexdigit());
        is.then(|| link.replace("{trace_id}", trace_id))
    }

    pub(super) fn looking(&self) -> LookingView {
        let state = self.looker.state();
        LookingView {
            can_look: self.looker.can_look(),
            since_ms: state.since_ms,
            items: state.items,
            failed: state.failed,
        }
    }

    pub(super) async fn plan_view(&self, index: Arc<Index>) -> Result<PlanView, Failure> {
        let sums = |sums: Vec<Sum>| sums.into_iter().map(SumView::from).collect();
        self.blocking(move || {
            let head = &index.head;
            Ok(PlanView {
                id: index.scan.id,
                target: head.target.clone(),
                cluster: head.cluster.clone(),
                scope: head.scope.to_string(),
                now_ms: head.now_ms,
                expires_ms: head.expires_ms,
                complete: head.complete,
                problems: head.problems.clone(),
                topics: head.totals.topics,
                seen_bytes: head.totals.bytes,
                unknown: head.totals.unknown,
                total: index.sum(&Filter { acts: Some(true), ..Filter::default() })?.into(),
                namespaces: sums(index.namespaces(NAMESPACES)?),
                verdicts: sums(index.by_verdict()?),
                reasons: sums(index.by_reason()?),
            })
        })
        .await
    }

    pub(super) async fn overview(&self) -> Result<Overview, Failure> {
        let plan = match self.looker.present() {
            Some(index) => Some(self.plan_view(index).await?),
            None => None,
        };
        let (gates, leader) = futures::future::try_join(self.gates(), self.leader()).await?;
        let record: Vec<FileView> = self.records.files().into_iter().map(FileView::from).collect();
        let attention = Attention {
            stopped: gates.iter().filter(|gate| gate.closed().is_some()).count() as u64,
            marked: self.parts.activity.marks().await?.len() as u64,
            dead_letters: self.dead_letters().await,
            damaged: record.iter().filter(|file| file.damaged.is_some()).count() as u64,
        };
        let acts = self.acts(None, 12).await?.acts;
        let target = self.parts.target.clone();
        Ok(Overview { target, plan, looking: self.looking(), record, scan: leader, attention, acts })
    }

    async fn dead_letters(&self) -> Option<u64> {
        let mut known = self.dead.lock().await;
        if let Some((at, count)) = *known
            && at.elapsed() < DEAD_AGAIN
        {
            return count;
        }
        let count = self.parts.bus.dead(LETTERS).await.ok().map(|dead| dead.len() as u64);
        *known = Some((tokio::time::Instant::now(), count));
        count
    }

    pub(super) async fn acts(&self, before: Option<(i64, i64)>, most: usize) -> Result<ActsView, Failure> {
        let records = self.records.clone();
        let mut found = self.blocking(move || records.acts(before, most + 1)).await?;
        let more = found.len() > most;
        found.truncate(most);
        let next = found.last().filter(|_| more).map(|act| format!("{}_{}", act.at_ms, act.id));
        Ok(ActsView { acts: found.into_iter().map(|act| self.act_view(act)).collect(), next })
    }

    pub(super) async fn candidates(
        &self,
        index: Arc<Index>,
        filter: Filter,
        part: Part,
    ) -> Result<CandidatesView, Failure> {
        self.blocking(move || {
            let Page { items, before, after } = index.page(&filter, part, PAGE)?;
            Ok(CandidatesView {
                plan: index.scan.id,
                total: index.sum(&filter)?.into(),
                items: items.into_iter().map(ItemView::from).collect(),
                previous: before.map(|mark| mark.to_string()),
                next: after.map(|mark| mark.to_string()),
            })
        })
        .await
    }

    pub(super) async fn candidate(&self, index: Arc<Index>, id: i64) -> Result<Option<CandidateView>, Failure> {
        let plan = index.scan.id;
        let Some((item, full)) = self.blocking(move || index.item(id)).await? else { return Ok(None) };
        let protected_by = self.protected_by(&item.subject).await?;
        Ok(Some(CandidateView { plan, item: item.into(), full, protected_by }))
    }

    async fn protected_by(&self, subject: &str) -> Result<Option<String>, Failure> {
        let wish = self.parts.activity.protects(subject, self.parts.clock.now_ms()).await?;
        Ok(wish.map(|wish| wish.by))
    }

    async fn gates(&self) -> Result<Vec<Gate>, Failure> {
        self.parts.scans.gates(self.parts.clock.now_ms() - SCANS_MS, SCANS).await
    }

    async fn leader(&self) -> Result<Option<ScanView>, Failure> {
        let Some(leader) = self.parts.scans.leader(&self.parts.target).await? else { return Ok(None) };
        let progress = if leader.ended { None } else { self.parts.scans.progress(leader.scan.id).await? };
        let shards = progress.as_ref().map(|progress| {
            let failed = progress.report.failed_shards.len() as u64 + progress.more_failed;
            [progress.report.shards + failed, u64::from(progress.shards)]
        });
        let gate = self.parts.scans.gate(leader.scan.id).await?;
        let mut view = match gate {
            Some(gate) => scan_view(&gate, (0, 0), &Tally::default()),
            None => ScanView {
                id: leader.scan.id,
                state: "open".to_owned(),
                stopped: None,
                by: None,
                incomplete: false,
                shards,
                proposed: progress.map(|progress| progress.report.proposed).unwrap_or_default(),
                used_acts: 0,
                used_bytes: 0,
                outcomes: BTreeMap::new(),
                freed_bytes: 0,
            },
        };
        if !leader.ended {
            "under way".clone_into(&mut view.state);
        }
        Ok(Some(view))
    }

    pub(super) async fn limits(&self) -> Result<LimitsView, Failure> {
        let mut scans = Vec::new();
        let leader = self.leader().await?.filter(|scan| scan.state == "under way");
        for gate in self.gates().await? {
            let id = gate.scan.id;
            let (budget, tally) =
                futures::future::try_join(self.parts.scans.budget(id), self.parts.scans.tally(id)).await?;
            scans.push(scan_view(&gate, (budget.acts, budget.bytes), &tally));
        }
        let caps = &self.parts.caps;
        Ok(LimitsView {
            max_acts: caps.max_acts,
            max_bytes: caps.max_bytes,
            max_share: caps.max_share,
            max_shrink: caps.max_shrink,
            scans: leader.into_iter().chain(scans).collect(),
        })
    }

    pub(super) async fn marks(&self) -> Result<MarksView, Failure> {
        let records = self.records.clone();
        let notices = self.blocking(move || records.last(RecordKind::Notice, 2_000)).await?;
        let mut protections = self.parts.activity.protections().await?;
        protections.sort_by(|a, b| a.subject.cmp(&b.subject));
        let now = self.parts.clock.now_ms();
        let mut marks = Vec::new();
        for mark in self.parts.activity.marks().await? {
            let notice = notices.iter().rev().find(|(record, _)| record.subject == mark.subject);
            let of = |name: &str| notice.map_or(&serde_json::Value::Null, |(record, _)| &record.body[name]);
            let log =
                trimtab_events::split_subscriber(&mark.subject).map(|(log, _)| log.to_owned()).unwrap_or_default();
            let wish = protections
                .iter()
                .filter(|wish| wish.until_ms.is_none_or(|until| now < until))
                .find(|wish| wish.subject == mark.subject || wish.subject == log);
            marks.push(MarkView {
                not_before_ms: of("not_before_ms").as_i64(),
                says: of("says").as_str().unwrap_or_default().to_owned(),
                bytes: of("bytes").as_i64().unwrap_or(0),
                protected_by: wish.map(|wish| wish.by.clone()),
                marked_ms: mark.marked_ms,
                subject: mark.subject,
            });
        }
        marks.sort_by_key(|mark| (mark.not_before_ms, mark.marked_ms));
        let protections = protections.into_iter().map(|wish| ProtectionView {
            subject: wish.subject,
            by: wish.by,
            until_ms: wish.until_ms,
        });
        Ok(MarksView { marks, protections: protections.collect() })
    }

    pub(super) async fn letters(&self) -> Result<Vec<LetterView>, Failure> {
        let mut letters: Vec<LetterView> =
            self.parts.bus.dead(LETTERS).await?.into_iter().map(LetterView::from).collect();
        letters.reverse();
        Ok(letters)
    }

    pub(super) async fn recoveries(&self) -> Result<Vec<RecoveryView>, Failure> {
        let records = self.records.clone();
        let found = self.blocking(move || records.recoveries(DIRS)).await?;
        Ok(found.into_iter().map(RecoveryView::from).collect())
    }

    pub(super) async fn story(&self, about: &str) -> Result<StoryView, Failure> {
        let (records, what, index) = (self.records.clone(), about.to_owned(), self.looker.present());
        let (found, cut, item) = self
            .blocking(move || {
                let mut found = records.story(&what, STORY + 1)?;
                let cut = found.len() > STORY;
                if cut {
                    found.remove(0);
                }
                // Who let it happen is recorded under the scan, or the plan, that decisions come from.
                let mut scans: Vec<String> =
                    found.iter().filter_map(|(record, _)| super::story::scan_of(record)).collect();
                scans.sort();
                scans.dedup();
                for scan in scans.iter().filter(|scan| **scan != what) {
                    let more = records.story(scan, 50)?;
                    let allowed = [RecordKind::Approve, RecordKind::Confirm, RecordKind::Stop];
                    found.extend(more.into_iter().filter(|(record, _)| allowed.contains(&record.kind)));
                }
                let item = match &index {
                    Some(index) => match index.about(&what)? {
                        Some(id) => index.item(id)?.map(|(item, _)| ItemView::from(item)),
                        None => None,
                    },
                    None => None,
                };
                Ok((found, cut, item))
            })
            .await?;
        let mut traces: Vec<TraceView> = Vec::new();
        let mut steps = Vec::new();
        for (record, file) in &found {
            let Record { trace_id, .. } = record;
            if !trace_id.is_empty() && traces.iter().all(|trace| trace.id != *trace_id) {
                traces.push(TraceView { id: trace_id.clone(), link: self.trace_link(trace_id) });
            }
            steps.extend(super::story::steps(record, file));
        }
        steps.sort_by_key(|step| step.at_ms);
        Ok(StoryView { about: about.to_owned(), steps, cut, traces, item })
    }
}

fn scan_view(gate: &Gate, used: (u64, u64), tally: &Tally) -> ScanView {
    let state = match (&gate.stopped, &gate.confirmed_by) {
        (Some(_), None) => "stopped",
        (Some(_), Some(_)) => "confirmed",
        (None, Some(_)) => "approved",
        (None, None) => "open",
    };
    ScanView {
        id: gate.scan.id,
        state: state.to_owned(),
        stopped: gate.stopped.clone(),
        by: gate.confirmed_by.clone(),
        incomplete: gate.incomplete,
        shards: None,
        proposed: gate.proposed,
        used_acts: used.0,
        used_bytes: used.1,
        outcomes: tally.statuses.clone(),
        freed_bytes: tally.bytes,
    }
}
