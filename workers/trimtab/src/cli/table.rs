//! Tables and totals for a person.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use trimtab_events::{PlanItem, ScanReport, Verdict, subscriber_subject};

use crate::config::show_bytes;
use crate::plan::group_of;
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
        let group = self.groups.entry(group_of(&item.subject).to_owned()).or_default();
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
    if tally.announced > 0 {
        text += &format!("\n{} stale subscribers were announced", tally.announced);
    }
    for problem in &tally.problems {
        text += &format!("\n  {problem}");
    }
    text
}
