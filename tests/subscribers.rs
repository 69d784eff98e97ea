//! Who is stale, and what may be done about it: the rules over hand-made logs, and the history over many scans.

#[path = "subscribers/cases.rs"]
mod cases;
#[path = "subscribers/history.rs"]
mod history;
#[path = "subscribers/jetstream.rs"]
mod jetstream;
#[path = "subscribers/make.rs"]
mod make;
