//! Tables and totals for a person.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use trimtab_events::{PlanItem, ScanReport, Verdict};

use crate::config::show_bytes;
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

/// Sums up items by namespace.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<String, Group>);

impl Groups {
    pub(crate) fn add(&mut self, item: &PlanItem) {
        let name = item.subject.split_once("://").map_or(item.subject.as_str(), |(_, rest)| rest);
        let namespace = name.splitn(3, '/').take(2).collect::<Vec<_>>().join("/");
        let group = self.0.entry(namespace).or_default();
        *group.verdicts.entry(item.verdict).or_default() += 1;
        if item.verdict.acts() {
            group.ledgers += item.ledgers.len() as u64;
            group.bytes = group.bytes.saturating_add(item.bytes);
        }
        group.held = group.held.saturating_add(item.holder.as_ref().map_or(0, |holder| holder.bytes));
    }

    /// Prints the namespaces that have something, the largest first.
    pub(crate) fn print(&self) {
        let mut rows: Vec<(&String, &Group)> = self.0.iter().collect();
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
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The totals of a scan or a plan.
pub(crate) fn totals(report: &ScanReport) -> String {
    let verdicts: Vec<String> = report.verdicts.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
    let mut text = format!(
        "{} topics: {}",
        report.topics,
        if verdicts.is_empty() { "none".to_owned() } else { verdicts.join(", ") }
    );
    if !report.subscribers.is_empty() {
        let judged: Vec<String> = report.subscribers.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect();
        text += &format!("\n{} subscribers: {}", report.subscribers.values().sum::<u64>(), judged.join(", "));
    }
    let proposed = report.proposed;
    let bytes = i64::try_from(proposed.bytes).unwrap_or(i64::MAX);
    text += &format!(
        "\n{} acts would free {} ledgers, {} (one replica)",
        proposed.acts,
        proposed.ledgers,
        show_bytes(bytes)
    );
    if report.unknown > 0 {
        text += &format!(
            "\n{} topics and subscribers are kept because something about them could not be learned",
            report.unknown
        );
    }
    text
}

/// What came of a scan's decisions.
pub(crate) fn tally(tally: &Tally) -> String {
    let statuses: Vec<String> = tally.statuses.iter().map(|(status, n)| format!("{n} {status}")).collect();
    let statuses = if statuses.is_empty() { "nothing was to be done".to_owned() } else { statuses.join(", ") };
    let mut text = format!("{statuses}; {} ledgers are gone, {} (one replica)", tally.ledgers, show_bytes(tally.bytes));
    for problem in &tally.problems {
        text += &format!("\n  {problem}");
    }
    text
}
