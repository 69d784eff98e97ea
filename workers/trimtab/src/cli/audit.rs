//! `audit`: the record, read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context as _;
use trimtab_bus::Role;

use super::args::{AuditArgs, AuditCommand, AuditFile, AuditListArgs, AuditShowArgs, AuditVerifyArgs};
use super::table::{print, table};
use super::{Context, Exit, Usage, roles};
use crate::clock::timestamp;
use crate::config::show_bytes;
use crate::journal::{self, Record, RecordKind};

/// `audit`
pub(crate) async fn audit(context: &Context, args: AuditArgs) -> anyhow::Result<Exit> {
    match args.command {
        AuditCommand::Run(role) => roles::run(context, *role, Role::Audit).await,
        AuditCommand::List(list) => self::list(context, &list),
        AuditCommand::Show(show) => self::show(context, &show),
        AuditCommand::Verify(verify) => self::verify(context, &verify),
    }
}

pub(crate) fn files(context: &Context, file: &AuditFile) -> anyhow::Result<Vec<PathBuf>> {
    if let Some(file) = &file.file {
        return Ok(vec![file.clone()]);
    }
    let folder = context.global.config()?.state_dir()?.join("audit");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("reading the records in {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    files.sort();
    if files.is_empty() {
        anyhow::bail!(Usage(format!("there are no records in {}", folder.display())));
    }
    Ok(files)
}

/// One act, from the records about it.
#[derive(Default)]
struct Act {
    at_ms: i64,
    subject: String,
    verdict: String,
    status: String,
    freed: u64,
    bytes: i64,
    trace_id: String,
    executor: String,
}

fn list(context: &Context, args: &AuditListArgs) -> anyhow::Result<Exit> {
    let mut acts: BTreeMap<(i64, String), Act> = BTreeMap::new();
    let mut begun: BTreeMap<String, i64> = BTreeMap::new();
    for file in files(context, &args.file)? {
        journal::read(&file, |record| {
            let scan = match record.kind {
                RecordKind::Intent => &record.body["decision"]["scan"]["id"],
                RecordKind::Outcome => &record.body["scan"]["id"],
                // Partition by partition: the subject makes the difference.
                RecordKind::Recovery => &record.body["lane"],
                _ => return,
            };
            if args.subject.as_ref().is_some_and(|text| !record.subject.contains(text.as_str())) {
                return;
            }
            let mut id = format!("{} {}", record.id, scan.as_str().unwrap_or_default());
            if record.kind == RecordKind::Recovery {
                id.push_str(&record.subject);
            }
            let first = *begun.entry(id.clone()).or_insert(record.at_ms);
            add(acts.entry((first, id)).or_default(), &record);
        })?;
    }
    if context.json() {
        for ((_, id), act) in &acts {
            let (decision, scan) = id.split_once(' ').unwrap_or((id, ""));
            let line = serde_json::json!({
                "decision": decision, "scan": scan, "at_ms": act.at_ms, "subject": act.subject, "verdict": act.verdict,
                "status": act.status, "freed": act.freed, "freed_bytes": act.bytes, "trace_id": act.trace_id,
                "executor": act.executor,
            });
            println!("{line}");
        }
        return Ok(Exit::Done);
    }
    let mut rows = table(&["WHEN", "STATUS", "VERDICT", "LEDGERS", "BYTES", "TOPIC", "DECISION"], &[3, 4]);
    for ((_, id), act) in &acts {
        let decision = id.split_once(' ').map_or(id.as_str(), |(decision, _)| decision).to_owned();
        let when = timestamp(act.at_ms).strftime("%Y-%m-%d %H:%M:%SZ").to_string();
        let (freed, bytes) = (act.freed.to_string(), show_bytes(act.bytes));
        rows.add_row([when, act.status.clone(), act.verdict.clone(), freed, bytes, act.subject.clone(), decision]);
    }
    print(&rows);
    Ok(Exit::Done)
}

fn add(act: &mut Act, record: &Record) {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    act.subject.clone_from(&record.subject);
    act.at_ms = record.at_ms;
    if !record.trace_id.is_empty() {
        act.trace_id.clone_from(&record.trace_id);
    }
    if record.kind == RecordKind::Outcome {
        act.verdict = text(&record.body["verdict"]);
        act.status = text(&record.body["status"]);
        act.executor = text(&record.body["executor"]);
        act.freed = record.body["freed"].as_array().map_or(0, |freed| freed.len() as u64);
        act.bytes = record.body["freed_bytes"].as_i64().unwrap_or(0);
    } else if record.kind == RecordKind::Recovery {
        "recover".clone_into(&mut act.verdict);
        act.status = text(&record.body["state"]);
        act.executor = text(&record.body["finisher"]);
        act.freed = record.body["segments"].as_u64().unwrap_or(0);
        act.bytes = record.body["cut_bytes"].as_i64().unwrap_or(0);
    } else if act.status.is_empty() {
        act.verdict = text(&record.body["decision"]["verdict"]);
        "under way".clone_into(&mut act.status);
    }
}

fn show(context: &Context, args: &AuditShowArgs) -> anyhow::Result<Exit> {
    let mut found = Vec::new();
    for file in files(context, &args.file)? {
        journal::read(&file, |record| {
            let what = &args.what;
            if record.id == *what || record.subject == *what || (!what.is_empty() && record.trace_id == *what) {
                found.push(record);
            }
        })?;
    }
    if found.is_empty() {
        anyhow::bail!(Usage(format!(
            "nothing is recorded of {:?} (a decision's or scan's id, a topic, or a trace id)",
            args.what
        )));
    }
    found.sort_by_key(|record| (record.at_ms, record.seq));
    for record in &found {
        if context.json() {
            println!("{}", serde_json::to_string(record)?);
        } else {
            tell(record, context.global.config()?.telemetry.trace_link.as_deref());
        }
    }
    Ok(Exit::Done)
}

/// One record for a person.
fn tell(record: &Record, trace_link: Option<&str>) {
    let body = &record.body;
    let kind =
        serde_json::to_value(record.kind).ok().and_then(|kind| kind.as_str().map(str::to_owned)).unwrap_or_default();
    println!("{}  {kind:<8} {} {}", timestamp(record.at_ms), record.subject, record.id);
    let decision = if record.kind == RecordKind::Intent { &body["decision"] } else { body };
    let line = |name: &str, value: &serde_json::Value| {
        if !value.is_null() {
            println!("    {name:<10} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
    };
    match record.kind {
        RecordKind::Intent => {
            line("verdict", &decision["verdict"]);
            line("ledgers", &decision["ledgers"]);
            line("bytes", &decision["bytes"]);
            line("before", &body["before"]["ledgers"]);
        }
        RecordKind::Outcome => {
            for name in
                ["verdict", "status", "predicted", "freed", "predicted_bytes", "freed_bytes", "unloaded", "executor"]
            {
                line(name, &body[name]);
            }
            line("after", &body["after"]["ledgers"]);
        }
        RecordKind::Recovery => {
            let names = [
                "state",
                "host",
                "segments",
                "log_start",
                "log_end",
                "cut_bytes",
                "cuts",
                "cut_folder",
                "warnings",
                "errors",
                "finisher",
            ];
            for name in names {
                line(name, &body[name]);
            }
        }
        _ => line("says", body),
    }
    for reason in decision["reasons"].as_array().into_iter().flatten() {
        println!(
            "    {:<10} {}",
            reason["rule"].as_str().unwrap_or_default(),
            reason["says"].as_str().unwrap_or_default()
        );
        if let Some(inputs) = reason["inputs"].as_object().filter(|inputs| !inputs.is_empty()) {
            let inputs: Vec<String> =
                inputs.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default())).collect();
            println!("    {:<10} {}", "", inputs.join(" "));
        }
    }
    if !record.trace_id.is_empty() {
        let link = trace_link.map(|link| link.replace("{trace_id}", &record.trace_id));
        println!("    {:<10} {}", "trace", link.as_deref().unwrap_or(&record.trace_id));
    }
}

fn verify(context: &Context, args: &AuditVerifyArgs) -> anyhow::Result<Exit> {
    let since = args.since.as_deref().map(|text| {
        let pair = text.split_once(':').and_then(|(records, head)| Some((records.parse::<u64>().ok()?, head)));
        pair.ok_or_else(|| Usage("--since is RECORDS:HEAD, as `audit verify` prints it".to_owned()))
    });
    let since = since.transpose()?;
    let mut exit = Exit::Done;
    for file in files(context, &args.file)? {
        match journal::verify(&file, since) {
            Ok(chain) if context.json() => {
                println!(
                    "{}",
                    serde_json::json!({ "file": file, "ok": true, "records": chain.records, "head": chain.head, "torn": chain.torn })
                );
            }
            Ok(chain) => {
                let torn = if chain.torn { ", with a record at its end that was cut by a crash" } else { "" };
                println!("{}: whole{torn}; keep this elsewhere: {}:{}", file.display(), chain.records, chain.head);
            }
            Err(e) => {
                exit = Exit::Failed;
                if context.json() {
                    println!("{}", serde_json::json!({ "file": file, "ok": false, "why": e.to_string() }));
                } else {
                    println!("{e}");
                }
            }
        }
    }
    Ok(exit)
}
