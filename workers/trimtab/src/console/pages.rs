//! The pages. Everything that comes from outside is escaped by the templates, here and nowhere else.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::access::{Grade, Who};
use super::api::{ActsQuery, ListQuery, StoryQuery};
use super::approve::{Obstacles, totals};
use super::treemap::{Area, squarified};
use super::views::{ActView, FileView, ItemView, LookingView, Overview, PAGE, PlanView, ScanView, Step, SumView};
use super::{Console, Refusal};
use crate::clock::{ago, timestamp};
use crate::config::show_bytes;
use crate::journal::hex;

type Answer = Result<Markup, Refusal>;
type Here = State<Arc<Console>>;

const CSS: &str = include_str!("assets/console.css");
const JS: &str = include_str!("assets/console.js");

/// Addresses of the style and the script: named by what is in them, so browsers keep them for ever.
pub(super) struct Assets {
    css: String,
    js: String,
}

impl Assets {
    pub(super) fn new() -> Assets {
        let name = |text: &str, end: &str| format!("/static/{}.{end}", &hex(&Sha256::digest(text))[..16]);
        Assets { css: name(CSS, "css"), js: name(JS, "js") }
    }
}

pub(super) async fn asset(State(console): Here, Path(name): Path<String>) -> Result<Response, Refusal> {
    let path = format!("/static/{name}");
    let (kind, text) = match path {
        path if path == console.assets.css => ("text/css; charset=utf-8", CSS),
        path if path == console.assets.js => ("text/javascript; charset=utf-8", JS),
        _ => return Err(Refusal::absent("such file")),
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
    Ok((headers, text).into_response())
}

/// The pages that everything is reached from.
const PAGES: [(&str, &str); 7] = [
    ("/", "Overview"),
    ("/plan", "Plan"),
    ("/acts", "Acts"),
    ("/limits", "Limits"),
    ("/marks", "Grace"),
    ("/dead", "Dead letters"),
    ("/recovery", "Recovery"),
];

/// What a page says of what was just done: only these, whatever an address says.
fn done(code: Option<&str>) -> Option<&'static str> {
    Some(match code? {
        "looking" => "Looking again. The page shows the new plan once it is there; load it again.",
        "approved" => "Approved. What comes of it appears here.",
        "confirmed" => "Confirmed: its decisions may be carried out.",
        "stopped" => "Stopped: nothing more of it begins. What is under way comes to its end.",
        "protected" => "It is left alone from now on.",
        "unprotected" => "The rules judge it again.",
        "retried" => "It waits in its queue again.",
        "dropped" => "It is gone. The next scan finds again what it was about.",
        _ => return None,
    })
}

impl Console {
    fn page(&self, who: Option<&Who>, path: &str, title: &str, said: Option<&str>, body: Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (title) " · trimtab " (self.parts.target) }
                    link rel="stylesheet" href=(self.assets.css);
                    script src=(self.assets.js) defer {}
                }
                body {
                    a class="skip" href="#main" { "To the content" }
                    header class="top" {
                        div {
                            a class="brand" href="/" { "trimtab " span { (self.parts.target) } }
                            @if let Some(who) = who {
                                nav aria-label="Pages" {
                                    ul {
                                        @for (to, name) in PAGES {
                                            li { a href=(to) aria-current=[(to == path).then_some("page")] { (name) } }
                                        }
                                    }
                                }
                                div class="who" {
                                    span { (who.name) ", " (who.grade.name()) }
                                    @if self.parts.access.has_login() {
                                        form method="post" action="/logout" { (self.form(who)) button { "Log out" } }
                                    }
                                }
                            }
                        }
                    }
                    main id="main" {
                        @if let Some(says) = done(said) { p class="note good" role="status" { (says) } }
                        (body)
                    }
                    footer { "trimtab " (env!("CARGO_PKG_VERSION")) }
                }
            }
        }
    }

    /// What makes a form one of this session's.
    fn form(&self, who: &Who) -> Markup {
        html! { input type="hidden" name="form" value=(self.parts.access.form_token(who)); }
    }

    /// A form that is one button.
    fn button(&self, who: &Who, action: &str, fields: &[(&str, &str)], label: &str, asks: Option<&str>) -> Markup {
        html! {
            @if who.grade == Grade::Operator {
                form method="post" action=(action) data-confirm=[asks] {
                    (self.form(who))
                    @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
                    button class=[asks.map(|_| "danger")] { (label) }
                }
            }
        }
    }
}

pub(super) fn refused(console: &Console, who: Option<&Who>, refusal: &Refusal) -> Response {
    let reason = refusal.status.canonical_reason().unwrap_or("Refused");
    let body = html! {
        h1 { (reason) }
        p class="note bad" role="alert" { (refusal.says) }
        p { a href="/" { "To the overview" } }
    };
    (refusal.status, console.page(who, "", reason, None, body)).into_response()
}

// Parts of pages.

fn bytes(n: i64) -> String {
    show_bytes(n)
}

fn unsigned(n: u64) -> String {
    bytes(i64::try_from(n).unwrap_or(i64::MAX))
}

fn when(ms: i64) -> Markup {
    let at = timestamp(ms);
    html! { time datetime=(at) { (at.strftime("%Y-%m-%d %H:%M:%SZ")) } }
}

fn count(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Text in an address.
fn escaped(text: &str) -> String {
    use std::fmt::Write;
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
        out
    })
}

fn story_of(about: &str) -> String {
    format!("/story?about={}", escaped(about))
}

fn tag(status: &str) -> Markup {
    let class = match status {
        "done" | "open" | "approved" | "confirmed" | "recovered" | "clean" | "handed on" => "tag good",
        "failed" | "stopped" | "refused" | "not sent" => "tag bad",
        "skipped" | "pending" | "blocked" | "report" | "unfinished" | "not begun" => "tag warn",
        _ => "tag act",
    };
    html! { span class=(class) { (status) } }
}

/// Bars as long as their bytes.
fn bars(sums: &[SumView], link: impl Fn(&SumView) -> String, of: impl Fn(&SumView) -> i64) -> Markup {
    let most = sums.iter().map(&of).max().unwrap_or(0).max(1);
    html! {
        ul class="bars" {
            @for sum in sums {
                @let width = 1000.0 * of(sum).max(0) as f64 / most as f64;
                li {
                    div class="label" {
                        a href=(link(sum)) { @if sum.name.is_empty() { "(no reason given)" } @else { (sum.name) } }
                        span { (bytes(of(sum))) " · " (count(sum.items, "item", "items")) }
                    }
                    svg class="bar" viewBox="0 0 1000 1" preserveAspectRatio="none" aria-hidden="true" {
                        rect width=(format!("{width:.1}")) height="1" {}
                    }
                }
            }
        }
    }
}

/// Namespaces as areas.
fn treemap(sums: &[SumView]) -> Markup {
    const WIDTH: f64 = 1200.0;
    const HEIGHT: f64 = 380.0;
    let shown: Vec<&SumView> = sums.iter().filter(|sum| sum.bytes > 0).collect();
    let sizes: Vec<f64> = shown.iter().map(|sum| sum.bytes as f64).collect();
    let areas = squarified(&sizes, Area { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT });
    // What fits at this size of letters.
    let fitting = |text: &str, width: f64, letter: f64| -> String {
        let room = ((width - 16.0) / letter).max(0.0) as usize;
        match text.chars().count() {
            n if n <= room => text.to_owned(),
            _ if room < 4 => String::new(),
            _ => text.chars().take(room - 1).chain(['…']).collect(),
        }
    };
    html! {
        svg class="treemap wide" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="group" aria-label="Reclaimable bytes by namespace" {
            @for (index, (sum, area)) in shown.iter().zip(&areas).enumerate() {
                @let says = format!("{}: {} in {}", sum.name, bytes(sum.bytes), count(sum.items, "item", "items"));
                a href=(format!("/plan?acts=true&namespace={}", escaped(&sum.name))) {
                    title { (says) }
                    rect class=(format!("t{}", index % 8)) x=(format!("{:.1}", area.x)) y=(format!("{:.1}", area.y))
                        width=(format!("{:.1}", area.width)) height=(format!("{:.1}", area.height)) {}
                    @if area.height > 26.0 {
                        text x=(format!("{:.1}", area.x + 9.0)) y=(format!("{:.1}", area.y + 21.0)) { (fitting(&sum.name, area.width, 8.6)) }
                    }
                    @if area.height > 46.0 {
                        text class="size" x=(format!("{:.1}", area.x + 9.0)) y=(format!("{:.1}", area.y + 39.0)) {
                            (fitting(&bytes(sum.bytes), area.width, 7.4))
                        }
                    }
                }
            }
        }
    }
}

/// What an act's row is known by on a page.
pub(super) fn row_id(act: &ActView) -> String {
    let mark = Sha256::digest(format!("{}/{}", act.decision, act.scan));
    format!("act-{}", &hex(&mark)[..16])
}

/// An act in the table of acts.
pub(super) fn act_row(act: &ActView) -> Markup {
    html! {
        tr id=(row_id(act)) {
            td class="when" data-label="When" { (when(act.at_ms)) }
            td data-label="Status" { (tag(&act.status)) }
            td data-label="What" { (act.verdict) }
            td class="n" data-label="Freed" {
                @if act.status == "under way" { span class="quiet" { (bytes(act.predicted_bytes)) " to go" } } @else { (bytes(act.bytes)) }
            }
            td class="name" data-label="On" {
                a href=(story_of(&act.subject)) { (act.subject) }
                @if act.status != "done" && !act.why.is_empty() { div class="quiet small" { (act.why) } }
            }
        }
    }
}

fn acts_table(acts: &[ActView], most: usize, live: bool) -> Markup {
    html! {
        @if live { p class="quiet small" role="status" data-said { "Load the page again to see what is new." } }
        div class="scroll" {
            table class="stack" {
                thead { tr { th { "When" } th { "Status" } th { "What" } th class="n" { "Freed" } th { "On" } } }
                tbody data-live=[live.then_some(most)] {
                    @for act in acts { (act_row(act)) }
                    @if acts.is_empty() { tr data-nothing { td colspan="5" class="quiet" { "Nothing was carried out yet." } } }
                }
            }
        }
    }
}

fn looking(console: &Console, who: &Who, looking: &LookingView) -> Markup {
    html! {
        @if let Some(since) = looking.since_ms {
            p class="note" role="status" {
                "Looking since " (when(since)) ": " (count(looking.items, "item", "items")) " so far. It keeps within the cluster's limit of metadata operations."
            }
        }
        @if let Some(why) = &looking.failed { p class="note bad" role="alert" { "The last look failed: " (why) } }
        @if looking.can_look && looking.since_ms.is_none() { (console.button(who, "/look", &[], "Look again", None)) }
    }
}

fn record_note(files: &[FileView]) -> Markup {
    let damaged: Vec<&FileView> = files.iter().filter(|file| file.damaged.is_some()).collect();
    let records: u64 = files.iter().map(|file| file.records).sum();
    html! {
        @for file in &damaged {
            p class="note bad" role="alert" {
                "The record cannot be believed: " (file.name) ": " (file.damaged.as_deref().unwrap_or_default())
            }
        }
        @if damaged.is_empty() && !files.is_empty() {
            p class="quiet small" { "The record is whole: " (count(records, "record", "records")) " in " (count(files.len() as u64, "journal", "journals")) "." }
        }
    }
}

// Pages.

pub(super) async fn overview(
    State(console): Here,
    Extension(who): Extension<Who>,
    Query(query): Query<ListQuery>,
) -> Answer {
    let Overview { plan, looking: look, record, scan, attention, acts, .. } = console.overview().await?;
    let body = html! {
        div class="row spread" { h1 { "What would be freed" } (looking(&console, &who, &look)) }
        @if attention.stopped > 0 {
            p class="note warn" { (count(attention.stopped, "scan is", "scans are")) " stopped. " a href="/limits" { "See why, and confirm" } }
        }
        @if attention.dead_letters.is_some_and(|n| n > 0) {
            p class="note warn" {
                (count(attention.dead_letters.unwrap_or(0), "event was", "events were")) " given up. " a href="/dead" { "See why, and put back" }
            }
        }
        @if attention.marked > 0 {
            p class="note" { (count(attention.marked, "subscriber is", "subscribers are")) " in the grace period. " a href="/marks" { "See which, and protect" } }
        }
        @match &plan {
            Some(plan) => (plan_summary(plan)),
            None if look.since_ms.is_some() => p class="card" { "The first plan is being made." },
            None if look.can_look => p class="card" { "There is no plan yet." },
            None => p class="card" { "This console makes no plans: it was not told what to read (see --from)." },
        }
        section class="card" {
            div class="row spread" { h2 { "What happens" } a href="/acts" { "All acts" } }
            (acts_table(&acts, 12, true))
        }
        @if let Some(scan) = &scan {
            p class="quiet small" {
                "Scan " a href=(story_of(&scan.id.to_string())) { code { (scan.id) } } " is " (scan.state)
                @if let Some([read, all]) = scan.shards { ", " (read) " of " (all) " shards read" } "."
            }
        }
        (record_note(&record))
    };
    Ok(console.page(Some(&who), "/", "What would be freed", query.done.as_deref(), body))
}

fn plan_summary(plan: &PlanView) -> Markup {
    let held: Vec<SumView> = {
        let mut held: Vec<SumView> = plan.namespaces.iter().filter(|sum| sum.held_bytes > 0).cloned().collect();
        held.sort_by_key(|sum| std::cmp::Reverse(sum.held_bytes));
        held.truncate(8);
        held
    };
    let largest: Vec<SumView> = plan.namespaces.iter().filter(|sum| sum.bytes > 0).take(12).cloned().collect();
    let acting: Vec<SumView> = plan.reasons.iter().filter(|sum| sum.items > 0).cloned().collect();
    html! {
        section class="card" {
            div class="row spread" {
                div {
                    p class="big" { (bytes(plan.total.bytes)) }
                    p class="quiet" {
                        "in " (count(plan.total.ledgers, "ledger", "ledgers")) ", by " (count(plan.total.items, "act", "acts"))
                        "; of " (unsigned(plan.seen_bytes)) " in " (count(plan.topics, "topic", "topics")) " seen (one replica)"
                    }
                }
                a class="button main" href="/plan?acts=true" { "Review and approve" }
            }
            @if !plan.complete {
                p class="note warn" { "Not everything could be read, and what could not be read is kept: " (plan.problems.join("; ")) }
            }
            @if plan.unknown > 0 {
                p class="quiet small" { (count(plan.unknown, "of them is", "of them are")) " kept because something about them could not be learned." }
            }
            (treemap(&plan.namespaces))
            div class="narrow" { (bars(&largest, |sum| format!("/plan?acts=true&namespace={}", escaped(&sum.name)), |sum| sum.bytes)) }
            p class="quiet small" { "As seen at " (when(plan.now_ms)) " of " code { (plan.cluster) } ", " (plan.scope) "." }
        }
        div class="grid" {
            section class="card" {
                h2 { "Why it may go" }
                @if acting.is_empty() { p class="quiet" { "Nothing may go." } }
                (bars(&acting, |sum| format!("/plan?acts=true&reason={}", escaped(&sum.name)), |sum| sum.bytes))
            }
            section class="card" {
                h2 { "What would be done" }
                @let verdicts: Vec<SumView> = plan.verdicts.iter().filter(|sum| sum.bytes > 0 || sum.held_bytes == 0).cloned().collect();
                (bars(&verdicts, |sum| format!("/plan?verdict={}", escaped(&sum.name)), |sum| sum.bytes))
            }
            @if !held.is_empty() {
                section class="card" {
                    h2 { "Held back by cursors" }
                    (bars(&held, |sum| format!("/plan?acts=false&namespace={}", escaped(&sum.name)), |sum| sum.held_bytes))
                }
            }
        }
    }
}

/// An address of the list with another place in it.
fn list_at(query: &ListQuery, place: Option<(&str, &str)>) -> String {
    let fields = [
        ("acts", &query.acts),
        ("namespace", &query.namespace),
        ("verdict", &query.verdict),
        ("reason", &query.reason),
        ("text", &query.text),
    ];
    let mut parts: Vec<String> = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_deref().filter(|value| !value.is_empty())?)))
        .map(|(name, value)| format!("{name}={}", escaped(value)))
        .collect();
    parts.extend(place.map(|(name, value)| format!("{name}={}", escaped(value))));
    if parts.is_empty() { "/plan".to_owned() } else { format!("/plan?{}", parts.join("&")) }
}

pub(super) async fn plan(
    State(console): Here,
    Extension(who): Extension<Who>,
    Query(query): Query<ListQuery>,
) -> Answer {
    let Some(index) = console.looker.present() else {
        let body = html! { h1 { "Plan" } p class="card" { "There is no plan yet." } (looking(&console, &who, &console.looking())) };
        return Ok(console.page(Some(&who), "/plan", "Plan", query.done.as_deref(), body));
    };
    let verdicts = {
        let index = index.clone();
        console.blocking(move || index.by_verdict()).await?
    };
    let plan_id = index.scan.id.to_string();
    let list = console.candidates(index, query.filter()?, query.part()?).await?;
    let operator = who.grade == Grade::Operator;
    let next = list.next.as_deref().map(|next| list_at(&query, Some(("after", next))));
    let here = match (query.after.as_deref(), query.before.as_deref(), query.last.is_some()) {
        (Some(after), ..) => list_at(&query, Some(("after", after))),
        (_, Some(before), _) => list_at(&query, Some(("before", before))),
        (.., true) => list_at(&query, Some(("last", "1"))),
        _ => list_at(&query, None),
    };
    let acting = list.items.iter().any(|item| item.acts) && operator;
    let table = html! {
        div class="scroll" {
            table class="stack" {
                thead {
                    tr {
                        @if acting { th { "In" } }
                        th { "Name" } th { "What" } th class="n" { "Frees" } th class="n" { "Held" } th { "Why" }
                    }
                }
                tbody {
                    @for item in &list.items { (item_row(item, acting)) }
                    @if list.items.is_empty() { tr { td colspan="6" class="quiet" { "Nothing here." } } }
                }
            }
        }
    };
    let body = html! {
        div class="row spread" {
            h1 { "Plan" }
            a class="button main" href="/plan/approve" { "Sum up and approve" }
        }
        form method="get" action="/plan" class="card row" role="search" aria-label="Filter" {
            label class="field" { "Name contains" input type="search" name="text" value=[query.text.as_deref()]; }
            label class="field" { "Namespace" input name="namespace" value=[query.namespace.as_deref()]; }
            label class="field" {
                "What"
                select name="verdict" {
                    option value="" { "everything" }
                    @for sum in &verdicts { option value=(sum.name) selected[query.verdict.as_deref() == Some(&sum.name)] { (sum.name) } }
                }
            }
            label class="field" {
                "Carried out"
                select name="acts" {
                    @for (value, name) in [("", "either"), ("true", "yes"), ("false", "no")] {
                        option value=(value) selected[query.acts.as_deref().unwrap_or_default() == value] { (name) }
                    }
                }
            }
            @if let Some(reason) = query.reason.as_deref().filter(|reason| !reason.is_empty()) {
                label class="field" { "Reason" input name="reason" value=(reason); }
            }
            button { "Show" }
            @if here != "/plan" { a href="/plan" { "Everything" } }
        }
        section class="card" {
            p class="quiet" {
                (count(list.total.items, "item", "items")) ", "
                (bytes(list.total.bytes)) " would go"
                @if list.total.held_bytes > 0 { ", " (bytes(list.total.held_bytes)) " held by cursors" }
                @if query.text.as_deref().is_some_and(|text| !text.is_empty()) { "; of these, the ones whose name contains the text" }
                ". The largest first."
            }
            @if acting {
                form method="post" action="/plan/choose" {
                    (console.form(&who))
                    input type="hidden" name="plan" value=(plan_id);
                    (table)
                    p class="quiet small" { "What is not ticked is left out of the plan, for everybody who looks at it." }
                    div class="row" data-ticks {
                        button name="back" value=(here) { "Keep these ticks" }
                        @if let Some(next) = &next { button class="main" name="back" value=(next) { "Keep, and next page" } }
                    }
                }
            } @else { (table) }
            nav class="pager" aria-label="Pages of the list" {
                @if list.previous.is_some() { a class="button" href=(list_at(&query, None)) { "First" } }
                @if let Some(previous) = &list.previous { a class="button" rel="prev" href=(list_at(&query, Some(("before", previous)))) { "Previous" } }
                @if let Some(next) = &next { a class="button" rel="next" href=(next) { "Next" } }
                @if list.next.is_some() { a class="button" href=(list_at(&query, Some(("last", "1")))) { "Last" } }
            }
        }
    };
    Ok(console.page(Some(&who), "/plan", "Plan", query.done.as_deref(), body))
}

fn item_row(item: &ItemView, acting: bool) -> Markup {
    html! {
        tr {
            @if acting {
                td data-label="In" {
                    @if item.acts {
                        input type="hidden" name="shown" value=(item.id);
                        input type="checkbox" name="ticked" value=(item.id) checked[!item.left_out] aria-label=(format!("{} is in the plan", item.subject));
                    }
                }
            }
            td class="name" data-label="Name" {
                a href=(format!("/plan/item/{}", item.id)) { (item.subject) }
                @if item.left_out { " " span class="tag warn" { "left out" } }
            }
            td data-label="What" { (tag(&item.verdict)) }
            td class="n" data-label="Frees" {
                @if item.acts { (bytes(item.bytes)) @if item.ledgers > 0 { " in " (item.ledgers) } } @else { "–" }
            }
            td class="n" data-label="Held" { @if item.held_bytes > 0 { (bytes(item.held_bytes)) } @else { "–" } }
            td data-label="Why" { @if !item.reason.is_empty() { strong { (item.reason) } ": " } (item.says) }
        }
    }
}

fn reasons(all: &[trimtab_events::Reason]) -> Markup {
    html! {
        @if !all.is_empty() {
            ul class="reasons" {
                @for reason in all {
                    li {
                        strong { (reason.rule) } ": " (reason.says)
                        @if !reason.inputs.is_empty() {
                            div class="quiet small" {
                                @for (name, value) in &reason.inputs { code { (name) "=" (value) } " " }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn protect_form(console: &Console, who: &Who, subject: &str) -> Markup {
    html! {
        @if who.grade == Grade::Operator {
            form method="post" action="/protect" class="row" {
                (console.form(who))
                input type="hidden" name="subject" value=(subject);
                label class="field" { "Leave it alone until (empty: for ever)" input type="date" name="until"; }
                button { "Protect" }
            }
        }
    }
}

pub(super) async fn item(State(console): Here, Extension(who): Extension<Who>, Path(id): Path<i64>) -> Answer {
    let index = console.looker.present().ok_or_else(|| Refusal::absent("plan yet"))?;
    let now_ms = index.head.now_ms;
    let found = console.candidate(index, id).await?.ok_or_else(|| Refusal::absent("such item in the newest plan"))?;
    let full = &found.full;
    let decision = serde_json::to_string_pretty(&full.decision).unwrap_or_default();
    let body = html! {
        p { a href="/plan" { "Plan" } " · " a href=(list_at(&ListQuery { namespace: Some(found.item.namespace.clone()), ..ListQuery::default() }, None)) { (found.item.namespace) } }
        h1 { (found.item.subject) }
        @if let Some(by) = &found.protected_by { p class="note good" { (by) " asked to leave it alone; executors do." } }
        section class="card" {
            div class="row spread" {
                h2 { (tag(&found.item.verdict)) " " @if found.item.acts { "frees " (bytes(found.item.bytes)) } }
                a class="button" href=(story_of(&found.item.subject)) { "Its story" }
            }
            dl class="facts" {
                dt { "Kind" } dd { (found.item.kind) }
                @if !full.ledgers.is_empty() {
                    dt { "Ledgers that go" }
                    dd { (full.ledgers.iter().take(200).map(i64::to_string).collect::<Vec<_>>().join(", ")) @if full.ledgers.len() > 200 { " …" } }
                }
                @if let Some(holder) = &full.holder {
                    dt { "Held by" } dd { "cursor " strong { (holder.cursor) } " at " (holder.position) ": " (bytes(holder.bytes)) ", since " (when(holder.since_ms)) " (" (ago(now_ms - holder.since_ms)) " ago)" }
                }
                @if let Some(decision) = &full.decision {
                    dt { "Not before" } dd { (when(decision.not_before_ms)) }
                    dt { "Not after" } dd { (when(decision.expires_ms)) }
                    @if let Some(consume) = &decision.consume {
                        dt { "Consumes" } dd { "subscription " strong { (consume.subscription) } " from " (consume.from) " up to and including " (consume.to) ": at most " (consume.messages) " messages" }
                    }
                    dt { "Read in version" } dd { (decision.seen.version) ", written " (when(decision.seen.modified_ms)) }
                    dt { "Policy" } dd { code { (decision.policy) } }
                }
            }
        }
        section class="card" { h2 { "Every rule that spoke" } (reasons(&full.reasons)) }
        section class="card" { h2 { "Leave it alone" } (protect_form(&console, &who, &found.item.subject))
            @if who.grade < Grade::Operator { p class="quiet" { "That needs the role operator." } } }
        @if full.decision.is_some() {
            details class="card" { summary { "The decision as it would be carried out" } pre tabindex="0" { (decision) } }
        }
    };
    Ok(console.page(Some(&who), "/plan", &found.item.subject, None, body))
}

/// What an approval page is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Nothing {}

pub(super) async fn approve(State(console): Here, Extension(who): Extension<Who>, Query(_): Query<Nothing>) -> Answer {
    let index = console.looker.present().ok_or_else(|| Refusal::absent("plan yet"))?;
    let of = index.clone();
    let selection = console.blocking(move || of.selection()).await?;
    let Obstacles { never, limit } = console.obstacles(&index, &selection).await?;
    let (acts, ledgers, freed) = totals(selection.proposed);
    let id = index.scan.id.to_string();
    let body = html! {
        p { a href="/plan?acts=true" { "Plan" } }
        h1 { "Approve this plan" }
        section class="card" {
            p class="big" { (bytes(freed)) }
            p class="quiet" {
                "in " (count(ledgers, "ledger", "ledgers")) ", by " (count(acts, "act", "acts"))
                @if selection.marks > 0 { "; " (count(selection.marks, "stale subscriber", "stale subscribers")) " announced" }
                @if selection.left_out > 0 { "; " (count(selection.left_out, "item", "items")) " left out" }
            }
            dl class="facts" {
                dt { "Cluster" } dd { code { (index.head.cluster) } }
                dt { "Looked at" } dd { (index.head.scope) ", ages count from " (when(index.head.now_ms)) }
                dt { "To be approved before" } dd { (when(index.head.expires_ms)) }
                dt { "Policy" } dd { code { (index.head.policy) } }
                dt { "Plan" } dd { code { (id) } }
                dt { "Digest" } dd { code { (selection.digest) } }
                dt { "Its file" } dd { code { (index.file.display()) } }
            }
            @if !index.head.complete { p class="note warn" { "Not everything could be read: " (index.head.problems.join("; ")) } }
            p {
                "Exactly these decisions are carried out, each only while it is still true: everything is read and decided again right before its act, "
                "and what somebody asked to leave alone is left alone. Who approved is in the record before the first call."
            }
            @if let Some(why) = &never {
                p class="note warn" { (why) }
            } @else if who.grade < Grade::Operator {
                p class="note" { "To approve it needs the role operator; you are a viewer." }
            } @else {
                form method="post" action="/plan/approve" data-confirm=(format!("Carry out {} that free {}?", count(acts, "act", "acts"), bytes(freed))) {
                    (console.form(&who))
                    input type="hidden" name="plan" value=(id);
                    input type="hidden" name="digest" value=(selection.digest);
                    @if let Some(why) = &limit {
                        p class="note warn" { "A limit would stop this before the first act: " (why) }
                        p { label class="row" { input type="checkbox" name="although" value="yes" required; "Carry it out although it crosses the limit" } }
                    }
                    button class="main" { "Approve as " (who.name) }
                }
            }
        }
    };
    Ok(console.page(Some(&who), "/plan", "Approve this plan", None, body))
}

pub(super) async fn story(
    State(console): Here,
    Extension(who): Extension<Who>,
    Query(query): Query<StoryQuery>,
) -> Answer {
    let story = console.story(&query.about).await?;
    let body = html! {
        h1 { (story.about) }
        @if let Some(item) = &story.item {
            p class="note" { "In the newest plan: " (tag(&item.verdict)) " " a href=(format!("/plan/item/{}", item.id)) { "why" } }
        }
        @if !story.traces.is_empty() {
            section class="card" {
                h2 { "Traces" }
                @for trace in &story.traces {
                    p { code { (trace.id) } @if let Some(link) = &trace.link { " " a href=(link) rel="noreferrer" { "Look at it" } } }
                }
            }
        }
        @if story.cut { p class="note" { "Only the newest is told here; `trimtab audit show` tells all." } }
        @if story.steps.is_empty() { p class="card" { "Nothing is recorded about it." } }
        ol class="story" { @for step in &story.steps { (step_item(step)) } }
        @if story.about.contains("://") {
            section class="card" { h2 { "Leave it alone" } (protect_form(&console, &who, &story.about)) }
        }
    };
    Ok(console.page(Some(&who), "", "Story", query.done.as_deref(), body))
}

fn step_item(step: &Step) -> Markup {
    html! {
        li {
            h2 { (step.step) }
            p class="quiet small" { (when(step.at_ms)) " · " (step.record) }
            p { (step.says) }
            @if !step.facts.is_empty() {
                dl class="facts" { @for fact in &step.facts { dt { (fact.name) } dd { (fact.value) } } }
            }
            (reasons(&step.reasons))
        }
    }
}

pub(super) async fn acts(
    State(console): Here,
    Extension(who): Extension<Who>,
    Query(query): Query<ActsPage>,
) -> Answer {
    let before = ActsQuery { before: query.before.clone() }.before()?;
    let found = console.acts(before, PAGE).await?;
    let first = before.is_none();
    let body = html! {
        h1 { "Acts" }
        @if let Some(approved) = console.approving.last() {
            section class="card" {
                h2 { "The plan that " (approved.by) " approved" }
                p {
                    (approved.came.values().sum::<u64>()) " of " (count(approved.all, "decision", "decisions")) ": "
                    @for (what, n) in &approved.came { (n) " " (tag(what)) " " }
                    @if approved.ended { "It came to its end." } @else { "It goes on." }
                }
                p { a href=(story_of(&approved.plan.to_string())) { "Who approved what" } " · " a href="/limits" { "Stop it" } }
            }
        }
        section class="card" { (acts_table(&found.acts, PAGE, first)) }
        nav class="pager" aria-label="Pages of the list" {
            @if !first { a class="button" href="/acts" { "Newest" } }
            @if let Some(next) = &found.next { a class="button" rel="next" href=(format!("/acts?before={}", escaped(next))) { "Older" } }
        }
        (record_note(&console.records.files().into_iter().map(FileView::from).collect::<Vec<_>>()))
    };
    Ok(console.page(Some(&who), "/acts", "Acts", query.done.as_deref(), body))
}

/// Which acts, and what was just done.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ActsPage {
    before: Option<String>,
    done: Option<String>,
}

/// What was just done.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Just {
    done: Option<String>,
}

pub(super) async fn limits(State(console): Here, Extension(who): Extension<Who>, Query(query): Query<Just>) -> Answer {
    let limits = console.limits().await?;
    let body = html! {
        h1 { "Limits" }
        section class="card" {
            h2 { "What one scan, or one approved plan, may do" }
            dl class="facts" {
                dt { "Acts" } dd { (limits.max_acts) }
                dt { "Bytes" } dd { (unsigned(limits.max_bytes)) }
                dt { "Share of what was seen" } dd { (format!("{:.0} %", limits.max_share * 100.0)) }
                dt { "Fewer topics than before" } dd { (format!("{:.0} %", limits.max_shrink * 100.0)) }
            }
        }
        @if limits.scans.is_empty() { p class="card" { "No scan has proposed anything lately." } }
        @for scan in &limits.scans { (scan_card(&console, &who, scan)) }
    };
    Ok(console.page(Some(&who), "/limits", "Limits", query.done.as_deref(), body))
}

fn scan_card(console: &Console, who: &Who, scan: &ScanView) -> Markup {
    let id = scan.id.to_string();
    let (acts, ledgers, freed) = totals(scan.proposed);
    let begun = scan.id.get_timestamp().map(|at| {
        let (seconds, nanos) = at.to_unix();
        i64::try_from(seconds).unwrap_or(0) * 1000 + i64::from(nanos / 1_000_000)
    });
    html! {
        section class="card" {
            div class="row spread" {
                h2 { (tag(&scan.state)) " " @if let Some(begun) = begun { (when(begun)) } }
                a href=(story_of(&id)) { code { (id) } }
            }
            @if let Some(why) = &scan.stopped { p class="note warn" { (why) } }
            dl class="facts" {
                @if let Some([read, all]) = scan.shards { dt { "Read" } dd { (read) " of " (all) " shards" } }
                dt { "Proposes" } dd { (count(acts, "act", "acts")) ", " (count(ledgers, "ledger", "ledgers")) ", " (bytes(freed)) }
                dt { "Set aside" } dd { (count(scan.used_acts, "act", "acts")) ", " (unsigned(scan.used_bytes)) }
                @if !scan.outcomes.is_empty() {
                    dt { "Came of it" } dd { @for (status, n) in &scan.outcomes { (n) " " (tag(status)) " " } (bytes(scan.freed_bytes)) " freed" }
                }
                @if let Some(by) = &scan.by { dt { @if scan.state == "approved" { "Approved by" } @else { "Confirmed by" } } dd { (by) } }
                @if scan.incomplete { dt { "Incomplete" } dd { "not everything could be read" } }
            }
            div class="row" {
                @if scan.state == "stopped" {
                    (console.button(who, "/scans/confirm", &[("id", &id), ("why", scan.stopped.as_deref().unwrap_or_default())],
                        "Confirm: let it be carried out", Some("Let its decisions be carried out although it was stopped?")))
                } @else if scan.state != "under way" {
                    (console.button(who, "/scans/stop", &[("id", &id)], "Stop it", Some("Let nothing more of it begin?")))
                }
            }
        }
    }
}

pub(super) async fn marks(State(console): Here, Extension(who): Extension<Who>, Query(query): Query<Just>) -> Answer {
    let found = console.marks().await?;
    let now = console.parts.clock.now_ms();
    let body = html! {
        h1 { "Grace and protection" }
        section class="card" {
            h2 { "Announced to be acted on" }
            @if found.marks.is_empty() { p class="quiet" { "Nobody is in the grace period." } }
            @else {
                div class="scroll" { table class="stack" {
                    thead { tr { th { "Subscriber" } th { "Announced" } th { "Not before" } th class="n" { "Frees" } th { "Leave it alone" } } }
                    tbody {
                        @for mark in &found.marks {
                            tr {
                                td class="name" data-label="Subscriber" { a href=(story_of(&mark.subject)) { (mark.subject) } div class="quiet small" { (mark.says) } }
                                td class="when" data-label="Announced" { (when(mark.marked_ms)) }
                                td class="when" data-label="Not before" {
                                    @if let Some(at) = mark.not_before_ms {
                                        (when(at)) br; @if at > now { "in " (ago(at - now)) } @else { "over" }
                                    } @else { "not told in this record" }
                                }
                                td class="n" data-label="Frees" { (bytes(mark.bytes)) }
                                td data-label="Leave it alone" {
                                    @if let Some(by) = &mark.protected_by { "left alone: " (by) } @else { (protect_form(&console, &who, &mark.subject)) }
                                }
                            }
                        }
                    }
                } }
            }
        }
        section class="card" {
            h2 { "Left alone" }
            @if found.protections.is_empty() { p class="quiet" { "Nobody asked for anything to be left alone." } }
            @else {
                div class="scroll" { table class="stack" {
                    thead { tr { th { "What" } th { "Who asked" } th { "Until" } th { "Change it" } } }
                    tbody {
                        @for wish in &found.protections {
                            tr {
                                td class="name" data-label="What" { a href=(story_of(&wish.subject)) { (wish.subject) } }
                                td data-label="Who asked" { (wish.by) }
                                td class="when" data-label="Until" {
                                    @if let Some(until) = wish.until_ms { (when(until)) @if until <= now { " (over)" } } @else { "for ever" }
                                }
                                td { (console.button(&who, "/protect", &[("subject", &wish.subject), ("remove", "yes")], "Take back", Some("Let the rules judge it again?"))) }
                            }
                        }
                    }
                } }
            }
        }
        @if who.grade == Grade::Operator {
            section class="card" {
                h2 { "Leave something else alone" }
                form method="post" action="/protect" class="row" {
                    (console.form(&who))
                    label class="field" { "Name, as plans have it" input name="subject" required placeholder="persistent://tenant/namespace/topic" size="44"; }
                    label class="field" { "Until (empty: for ever)" input type="date" name="until"; }
                    button { "Protect" }
                }
            }
        }
    };
    Ok(console.page(Some(&who), "/marks", "Grace and protection", query.done.as_deref(), body))
}

pub(super) async fn dead(State(console): Here, Extension(who): Extension<Who>, Query(query): Query<Just>) -> Answer {
    let letters = console.letters().await?;
    let body = html! {
        h1 { "Dead letters" }
        section class="card" {
            @if letters.is_empty() { p class="quiet" { "Nothing was given up." } }
            @else {
                div class="scroll" { table class="stack" {
                    thead { tr { th { "When" } th { "Role" } th class="n" { "Tries" } th { "About" } th { "Change it" } } }
                    tbody {
                        @for letter in &letters {
                            tr {
                                td class="when" data-label="When" { (when(letter.at_ms)) }
                                td data-label="Role" { (letter.role) }
                                td class="n" data-label="Tries" { (letter.tries) }
                                td class="name" data-label="About" { (letter.subject) div class="quiet small" { (letter.why) } }
                                td { div class="row" {
                                    (console.button(&who, "/dead/retry", &[("id", &letter.id)], "Put back", None))
                                    (console.button(&who, "/dead/drop", &[("id", &letter.id)], "Take away", Some("Take it away for good? The next scan finds again what it was about.")))
                                } }
                            }
                        }
                    }
                } }
            }
        }
    };
    Ok(console.page(Some(&who), "/dead", "Dead letters", query.done.as_deref(), body))
}

pub(super) async fn recovery(State(console): Here, Extension(who): Extension<Who>, Query(_): Query<Nothing>) -> Answer {
    let dirs = console.recoveries().await?;
    let body = html! {
        h1 { "Recovery" }
        section class="card" {
            h2 { "Log dirs, by their last run" }
            @if dirs.is_empty() { p class="quiet" { "No recovery is in this record. `trimtab recover --nats` reports to the audit, and that is where it shows." } }
            @else {
                div class="scroll" { table class="stack" {
                    thead { tr { th { "When" } th { "State" } th { "Log dir" } th class="n" { "Segments" } th class="n" { "Cut" } th { "Partitions that were not clean" } } }
                    tbody {
                        @for dir in &dirs {
                            tr {
                                td class="when" data-label="When" { (when(dir.at_ms)) }
                                td data-label="State" { @if dir.state.is_empty() { (tag("under way")) } @else { (tag(&dir.state)) } }
                                td class="name" data-label="Log dir" {
                                    (dir.host) " " a href=(story_of(&dir.run)) { (dir.log_dir) }
                                    @if !dir.why.is_empty() { div class="quiet small" { (dir.why) } }
                                }
                                td class="n" data-label="Segments" { (dir.segments) }
                                td class="n" data-label="Cut" { (unsigned(dir.cut_bytes)) }
                                td data-label="Partitions" {
                                    @if dir.partitions.is_empty() { "none" }
                                    @for (state, n) in &dir.partitions { (n) " " (tag(state)) " " }
                                }
                            }
                        }
                    }
                } }
            }
        }
    };
    Ok(console.page(Some(&who), "/recovery", "Recovery", None, body))
}

pub(super) async fn login(State(console): Here) -> Answer {
    Ok(log_in(&console, false))
}

pub(super) fn log_in(console: &Console, failed: bool) -> Markup {
    let body = html! {
        h1 { "Log in" }
        section class="card" {
            @if failed { p class="note bad" role="alert" { "Nobody has this token." } }
            @if console.parts.access.has_login() {
                form method="post" action="/login" class="row" {
                    label class="field" { "Your token" input type="password" name="token" required autocomplete="current-password" autofocus; }
                    button class="main" { "Log in" }
                }
            } @else { p { "Nobody logs in here. " a href="/" { "To the overview" } } }
        }
    };
    console.page(None, "/login", "Log in", None, body)
}
