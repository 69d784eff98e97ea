//! Tables and totals for a person.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use trimtab_events::{Kept, PlanItem, ScanReport, SurveyReport, Verdict, subscriber_subject};

use crate::config::show_bytes;
use crate::plan::group_of_item;
use crate::scans::Tally;

/// A table without frames.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    for index in right {
        if let Some(column) = table.column_mut(*index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Prints a table without blanks at the ends of lines.
pub(crate) fn print(table: &Table) {
    for line in table.lines() {
        println!("{}", line.trim_end());
    }
}

/// What a plan has for one namespace.
#[derive(Debug, Default)]
pub(crate) struct Group {
    verdicts: BTreeMap<Verdict, u64>,
    ledgers: u64,
    bytes: i64,
    held: i64,
}

/// Sums up items by namespace, and by who holds most.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<String, Group>,
    /// Bytes held, by whom; the largest ones.
    holders: Vec<(i64, String)>,
}

/// Holders that a plan for a person names.
const HOLDERS: usize = 10;

impl Groups {
    pub(crate) fn add(&mut self, item: &PlanItem) {
        self.note_holder(item);
        let group = self.groups.entry(group_of_item(item).to_owned()).or_default();
        *group.verdicts.entry(item.verdict).or_default() += 1;
        if item.verdict.acts() {
            group.ledgers += item.ledgers.len() as u64;
            group.bytes = group.bytes.saturating_add(item.bytes);
        }
        group.held = group.held.saturating_add(item.holder.as_ref().map_or(0, |holder| holder.bytes));
    }

    /// A topic that is held back names who holds it; a subscriber's item is about one that does.
    fn note_holder(&mut self, item: &PlanItem) {
        let (bytes, who) = match &item.holder {
            Some(holder) => (holder.bytes, subscriber_subject(&item.subject, &holder.cursor)),
            None if item.verdict.on_subscriber() => (item.bytes, item.subject.clone()),
            None => return,
        };
        let at = self.holders.partition_point(|(more, _)| *more >= bytes);
        if bytes > 0 && at < HOLDERS && self.holders.iter().all(|(_, other)| *other != who) {
            self.holders.insert(at, (bytes, who));
            self.holders.truncate(HOLDERS);
        }
    }

    /// Prints the namespaces that have something, the largest first.
    pub(crate) fn print(&self) {
        let mut rows: Vec<(&String, &Group)> = self.groups.iter().collect();
        rows.sort_by(|a, b| (b.1.bytes, b.1.held, a.0).cmp(&(a.1.bytes, a.1.held, b.0)));
        let mut table = table(
            &["NAMESPACE", "ACT", "BLOCKED", "REPORT", "LEDGERS", "RECLAIMABLE", "HELD BY CURSORS"],
            &[1, 2, 3, 4, 5, 6],
        );
        for (name, group) in rows {
            let count = |of: &dyn Fn(Verdict) -> bool| -> u64 {
                group.verdicts.iter().filter(|(verdict, _)| of(**verdict)).map(|(_, n)| *n).sum()
            };
            table.add_row([
                name.clone(),
                count(&Verdict::acts).to_string(),
                count(&|v| v == Verdict::Blocked).to_string(),
                count(&|v| v == Verdict::Report).to_string(),
                group.ledgers.to_string(),
                show_bytes(group.bytes),
                show_bytes(group.held),
            ]);
        }
        print(&table);
        if !self.holders.is_empty() {
            println!("\nHeld most by:");
            for (bytes, who) in &self.holders {
                println!("  {:>10}  {who}", show_bytes(*bytes));
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }
}

/// The totals of a scan or a plan.
pub(crate) fn totals(report: &ScanReport) -> String {
    let verdicts: Vec<String> = report.verdicts.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
    let (seen, what) = match &report.survey {
        Some(survey) => (survey.lonely, "ledgers that nothing names"),
        None => (report.topics, "topics"),
    };
    let mut text = format!("{seen} {what}");
    if !verdicts.is_empty() {
        text += &format!(": {}", verdicts.join(", "));
    } else if seen == 0 {
        text += ": none";
    }
    if !report.subscribers.is_empty() {
        let judged: Vec<String> = report.subscribers.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
        text += &format!("\n{} subscribers: {}", report.subscribers.values().sum::<u64>(), judged.join(", "));
    }
    let proposed = report.proposed;
    let bytes = i64::try_from(proposed.bytes).unwrap_or(i64::MAX);
    let ledgers = if proposed.ledgers > 0 { format!("{} ledgers, ", proposed.ledgers) } else { String::new() };
    text += &format!("\n{} acts would free {ledgers}{} (one replica)", proposed.acts, show_bytes(bytes));
    if report.unknown > 0 {
        text += &format!("\n{} of them are kept because something about them could not be learned", report.unknown);
    }
    text
}

/// What a survey of all ledgers found: what a plain set difference would have deleted and why ours keeps it, and names of what is not there.
pub(crate) fn survey(survey: &SurveyReport, orphans: u64) -> String {
    let comparison = &survey.comparison;
    let shown = |kept: &Kept| {
        let ids: Vec<String> = kept.examples.iter().map(i64::to_string).collect();
        let more = if kept.ledgers > ids.len() as u64 { ", …" } else { "" };
        format!("{}{more}", ids.join(", "))
    };
    let mut text = format!(
        "{} ledgers; no topic lists {} of them, and that is what a plain difference of the two lists would delete. Of these",
        survey.ledgers, comparison.naive
    );
    for (kind, kept) in &comparison.named {
        text += &format!("\n  {:>9} are named by something else ({kind}): {}", kept.ledgers, shown(kept));
    }
    for (rule, kept) in &comparison.kept {
        text += &format!("\n  {:>9} are kept ({rule}): {}", kept.ledgers, shown(kept));
    }
    text += &format!("\n  {orphans:>9} may go");
    if survey.missing > 0 {
        text += &format!("\n{} names of ledgers that do not exist (reported, never mended):", survey.missing);
        for missing in survey.missing_examples.iter().take(10) {
            text += &format!("\n  ledger {} is named by {} ({})", missing.ledger, missing.by, missing.kind);
        }
    }
    if survey.namespaces_missing > 0 {
        let some: Vec<&str> = survey.namespaces_missing_examples.iter().take(10).map(String::as_str).collect();
        text += &format!("\n{} namespaces have topics and no policies: {}", survey.namespaces_missing, some.join(", "));
    }
    if survey.strays > 0 {
        let some: Vec<&str> = survey.stray_examples.iter().take(5).map(String::as_str).collect();
        text += &format!("\n{} nodes among the ledgers are none: {}", survey.strays, some.join(", "));
    }
    text
}

/// What went.
pub(crate) fn gone(ledgers: u64, bytes: i64) -> String {
    match (ledgers, show_bytes(bytes)) {
        (0, given_back) if bytes > 0 => format!("{given_back} given back (one replica)"),
        (ledgers, bytes) => format!("{ledgers} ledgers are gone, {bytes} (one replica)"),
    }
}

/// What came of a scan's decisions.
pub(crate) fn tally(tally: &Tally) -> String {
    let statuses: Vec<String> = tally.statuses.iter().map(|(status, n)| format!("{n} {status}")).collect();
    let statuses = if statuses.is_empty() { "nothing was to be done".to_owned() } else { statuses.join(", ") };
    let mut text = format!("{statuses}; {}", gone(tally.ledgers, tally.bytes));
    if tally.announced > 0 {
        text += &format!("\n{} stale subscribers were announced", tally.announced);
    }
    for problem in &tally.problems {
        text += &format!("\n  {problem}");
    }
    text
}
