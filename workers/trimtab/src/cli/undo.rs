//! `undo`: takes an act back, from its record.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use trimtab_events::{Decision, Outcome, Status};
use trimtab_targets::{Class, Mode, Permit, Record, TargetError, Undo};
use uuid::Uuid;

use super::args::UndoArgs;
use super::{Context, Exit, Usage, audit, runtime};
use crate::clock::Clock;
use crate::config::System;
use crate::journal::{self, Entry, Journal, RecordKind};

/// `undo`
pub(crate) async fn undo(context: &Context, args: UndoArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.source.apply(&mut config)?;
    let (undo, outcome) = recorded(&audit::files(context, &args.file)?, args.decision)?;
    // The record says what it is about.
    if undo.decision.target == config.bookkeeper.name && config.system == System::Pulsar {
        config.system = System::Bookkeeper;
    }
    if undo.decision.target != config.target() {
        let why = format!("the act was on {:?}, the configuration is for {:?}", undo.decision.target, config.target());
        anyhow::bail!(Usage(why));
    }
    if !matches!(outcome.status, Status::Done | Status::Pending) {
        println!("Nothing to take back: the act ended as {}.", outcome.status.name());
        return Ok(Exit::Done);
    }
    let journal = runtime::journal(&config, "undo", Clock::system())?;
    let live = runtime::live(&config, Some(journal.clone())).await?;
    // Naming the act is the switch.
    let Some(permit) = Permit::for_mode(Mode::Apply) else { anyhow::bail!("an undo is an act") };
    let note = Note { journal, decision: undo.decision.clone() };
    note.write(
        RecordKind::Undo,
        serde_json::json!({ "by": args.by, "decision": undo.decision, "before": undo.before }),
    )
    .await?;
    let taken_back = live.act.undo(&undo, &note, &permit).await;
    let body = match &taken_back {
        Ok(effect) => serde_json::json!({
            "done": effect.skipped.is_none(), "pending": effect.pending, "notes": effect.notes,
            "skipped": effect.skipped.as_ref().map(|skipped| &skipped.says),
        }),
        Err(e) => serde_json::json!({ "done": false, "error": e.to_string() }),
    };
    note.write(RecordKind::Undone, body.clone()).await?;
    let effect = taken_back?;
    if context.json() {
        println!("{body}");
    } else {
        match &effect.skipped {
            Some(skipped) => println!("Not taken back: {}", skipped.says),
            None if effect.pending => println!("Taken back; the metadata does not show it yet."),
            None => println!("Taken back: {} of {}.", undo.decision.verdict, undo.decision.subject),
        }
        for note in &effect.notes {
            println!("  {note}");
        }
    }
    Ok(if effect.skipped.is_some() { Exit::Partial } else { Exit::Done })
}

/// What the records say of the last act of a decision.
fn recorded(files: &[PathBuf], decision: Uuid) -> anyhow::Result<(Undo, Outcome)> {
    let id = decision.to_string();
    let (mut undo, mut outcome): (Option<Undo>, Option<Outcome>) = (None, None);
    for file in files {
        journal::read(file, |record| {
            if record.id != id {
                return;
            }
            match record.kind {
                RecordKind::Intent => {
                    let decision = serde_json::from_value::<Decision>(record.body["decision"].clone());
                    let before = serde_json::from_value(record.body["before"].clone()).ok();
                    let evidence = vec![record.body["evidence"].clone()];
                    undo = decision.ok().map(|decision| Undo { decision, before, after: None, evidence });
                    outcome = None;
                }
                RecordKind::Evidence => {
                    if let Some(undo) = &mut undo {
                        undo.evidence.push(record.body["evidence"].clone());
                    }
                }
                RecordKind::Outcome => outcome = serde_json::from_value::<Outcome>(record.body).ok(),
                _ => {}
            }
        })?;
    }
    let Some(mut undo) = undo else {
        anyhow::bail!(Usage(format!("no record of an act of decision {id}; `trimtab audit list` shows them")));
    };
    let Some(outcome) = outcome else {
        anyhow::bail!(Usage(format!(
            "the record has no outcome of {id}: start its executor once, it judges what was begun"
        )));
    };
    undo.after.clone_from(&outcome.after);
    Ok((undo, outcome))
}

/// What goes into the record about it.
struct Note {
    journal: Arc<Journal>,
    decision: Decision,
}

impl Note {
    async fn write(&self, kind: RecordKind, body: serde_json::Value) -> anyhow::Result<()> {
        let entry = Entry {
            kind,
            id: self.decision.id.to_string(),
            subject: self.decision.subject.clone(),
            trace_id: String::new(),
            body,
        };
        self.journal.write(entry).await?;
        Ok(())
    }
}

impl Record for Note {
    fn record(&self, evidence: serde_json::Value) -> BoxFuture<'_, Result<(), TargetError>> {
        async move {
            let body = serde_json::json!({ "scan": self.decision.scan, "evidence": evidence });
            let what = format!("recording what was seen of {}", self.decision.subject);
            self.write(RecordKind::Evidence, body).await.map_err(|e| TargetError::new(Class::Transient, what, e))
        }
        .boxed()
    }
}
