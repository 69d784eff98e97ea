//! Records as steps of a story: seen, decided, intended, called, verified, freed.

use serde_json::Value;
use trimtab_events::Reason;

use super::views::{Fact, Step};
use crate::clock::timestamp;
use crate::config::show_bytes;
use crate::journal::{Record, RecordKind};

/// The scan, or the plan, that a record's decision comes from.
pub(super) fn scan_of(record: &Record) -> Option<String> {
    let scan = match record.kind {
        RecordKind::Intent => &record.body["decision"]["scan"]["id"],
        RecordKind::Outcome => &record.body["scan"]["id"],
        _ => return None,
    };
    scan.as_str().map(str::to_owned)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn reasons(of: &Value) -> Vec<Reason> {
    serde_json::from_value(of["reasons"].clone()).unwrap_or_default()
}

fn fact(name: &str, value: impl Into<String>) -> Fact {
    Fact { name: name.to_owned(), value: value.into() }
}

/// Facts of an object's fields that are there.
fn facts(of: &Value, names: &[(&str, &str)]) -> Vec<Fact> {
    let shown = |field: &str, value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(_) if field.ends_with("bytes") => show_bytes(value.as_i64().unwrap_or(0)),
        Value::Number(_) if field.ends_with("_ms") => timestamp(value.as_i64().unwrap_or(0)).to_string(),
        Value::Array(all) => list(all),
        other => other.to_string(),
    };
    let there = names.iter().filter(|(field, _)| match &of[field] {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        _ => true,
    });
    there.map(|(field, name)| fact(name, shown(field, &of[field]))).collect()
}

/// A list for a person: not all of a long one.
fn list(all: &[Value]) -> String {
    const SHOWN: usize = 40;
    let some: Vec<String> =
        all.iter().take(SHOWN).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).collect();
    let more = if all.len() > SHOWN { format!(" and {} more", all.len() - SHOWN) } else { String::new() };
    some.join(", ") + &more
}

/// How many ledgers, and which.
fn ledgers(of: &Value) -> String {
    match of.as_array().map(Vec::as_slice) {
        None | Some([]) => "no ledgers".to_owned(),
        Some(all) => format!("{} {}: {}", all.len(), if all.len() == 1 { "ledger" } else { "ledgers" }, list(all)),
    }
}

fn state(of: &Value) -> String {
    if of.is_null() {
        return "not read".to_owned();
    }
    format!("{}, {}", ledgers(&of["ledgers"]), show_bytes(of["bytes"].as_i64().unwrap_or(0)))
}

/// The steps that a record tells of.
pub(super) fn steps(record: &Record, file: &str) -> Vec<Step> {
    let Record { seq, at_ms, kind, body, id, .. } = record;
    let step = |at_ms: i64, step: &str, says: String, facts: Vec<Fact>, reasons: Vec<Reason>| Step {
        at_ms,
        step: step.to_owned(),
        says,
        facts,
        reasons,
        record: format!("{file}, record {seq}"),
    };
    match kind {
        RecordKind::Intent => {
            let decision = &body["decision"];
            let decided_ms = decision["decided_ms"].as_i64().unwrap_or(*at_ms);
            let seen = facts(&body["evidence"], &[("kind", "kind"), ("class", "class"), ("subject", "name")]);
            let mut seen_facts = vec![fact("before", state(&body["before"]))];
            seen_facts.extend(facts(
                &decision["seen"],
                &[("version", "version of the metadata"), ("modified_ms", "last written")],
            ));
            seen_facts.extend(seen);
            let decided = facts(
                decision,
                &[
                    ("id", "decision"),
                    ("policy", "policy"),
                    ("bytes", "would free"),
                    ("not_before_ms", "not before"),
                    ("expires_ms", "not after"),
                ],
            );
            vec![
                step(decided_ms, "seen", "its metadata was read".to_owned(), seen_facts, Vec::new()),
                step(
                    decided_ms,
                    "decided",
                    format!("{}: {}", text(&decision["verdict"]), ledgers(&decision["ledgers"])),
                    decided,
                    reasons(decision),
                ),
                step(
                    *at_ms,
                    "intended",
                    "read again, decided again with the same result, and written down before any call".to_owned(),
                    facts(&decision["scan"], &[("id", "scan or plan")]),
                    Vec::new(),
                ),
            ]
        }
        RecordKind::Outcome => {
            let calls: Vec<Reason> = reasons(body);
            let status = text(&body["status"]);
            let acted = status != "skipped";
            let mut all = Vec::new();
            if acted {
                let called = facts(body, &[("executor", "executor"), ("unloaded", "closed again")]);
                let says = format!("{} was called for", text(&body["verdict"]));
                all.push(step(body["started_ms"].as_i64().unwrap_or(*at_ms), "called", says, called, Vec::new()));
            }
            let ended_ms = body["ended_ms"].as_i64().unwrap_or(*at_ms);
            let shown = vec![fact("before", state(&body["before"])), fact("after", state(&body["after"]))];
            let says = match status {
                "done" => "done: read once more, and the metadata shows it",
                "pending" => "accepted; the metadata does not show it yet",
                "skipped" => "not carried out",
                _ => "failed",
            };
            all.push(step(ended_ms, "verified", says.to_owned(), shown, calls));
            if acted {
                let bytes = |name: &str| show_bytes(body[name].as_i64().unwrap_or(0));
                let says = format!("{} of {} that were predicted", bytes("freed_bytes"), bytes("predicted_bytes"));
                let gone = vec![fact("gone", ledgers(&body["freed"])), fact("predicted", ledgers(&body["predicted"]))];
                all.push(step(ended_ms, "freed", says, gone, Vec::new()));
            }
            all
        }
        RecordKind::Approve => {
            let says = format!("{} approved the plan", text(&body["by"]));
            let more = [
                ("digest", "digest of what was shown"),
                ("acts", "acts"),
                ("bytes", "would free, bytes"),
                ("confirmed", "although"),
                ("policy", "policy"),
            ];
            vec![step(*at_ms, "approved", says, facts(body, &more), Vec::new())]
        }
        RecordKind::Confirm => vec![step(
            *at_ms,
            "confirmed",
            format!("{} confirmed what a limit had stopped", text(&body["by"])),
            vec![fact("scan", id.clone())],
            Vec::new(),
        )],
        RecordKind::Stop => vec![step(
            *at_ms,
            "stopped",
            format!("{} stopped it: nothing more of it begins", text(&body["by"])),
            vec![fact("scan", id.clone())],
            Vec::new(),
        )],
        RecordKind::Protect => {
            let wants =
                if body["remove"] == true { "took back the wish to leave it alone" } else { "asked to leave it alone" };
            let says = format!("{} {wants}", text(&body["by"]));
            vec![step(*at_ms, "protected", says, facts(body, &[("until_ms", "until")]), Vec::new())]
        }
        RecordKind::Notice => {
            let more =
                [("announced", "announced"), ("not_before_ms", "not acted on before"), ("bytes", "would free, bytes")];
            vec![step(*at_ms, "announced", text(&body["says"]).to_owned(), facts(body, &more), Vec::new())]
        }
        RecordKind::Undo | RecordKind::Undone => {
            let says = if *kind == RecordKind::Undo { "is about to be taken back" } else { "was taken back" };
            vec![step(*at_ms, "undone", says.to_owned(), facts(body, &[("by", "by"), ("says", "says")]), Vec::new())]
        }
        RecordKind::Recovery => {
            let more = [
                ("host", "host"),
                ("log_dir", "log dir"),
                ("folder", "partition"),
                ("segments", "segments verified"),
                ("cut_bytes", "cut, bytes"),
                ("cut_folder", "kept in"),
                ("warnings", "warnings"),
                ("errors", "errors"),
            ];
            vec![step(*at_ms, "recovered", text(&body["state"]).to_owned(), facts(body, &more), Vec::new())]
        }
        RecordKind::Scan => {
            let more = [("target", "target"), ("complete", "complete"), ("topics", "topics"), ("stopped", "stopped")];
            vec![step(*at_ms, "noted", "a scan came to its end".to_owned(), facts(body, &more), Vec::new())]
        }
        RecordKind::Letter => {
            let says = format!("{}: {} an event that was given up", text(&body["by"]), text(&body["what"]));
            vec![step(*at_ms, "noted", says, vec![fact("number", id.clone())], Vec::new())]
        }
        RecordKind::Evidence => {
            vec![step(*at_ms, "noted", "evidence that a call may erase".to_owned(), Vec::new(), Vec::new())]
        }
        RecordKind::Note => vec![step(*at_ms, "noted", text(&body["says"]).to_owned(), Vec::new(), Vec::new())],
    }
}
