//! The console: what it shows, who may do what on it, and that what is approved is what is handed over.

#[path = "console/access.rs"]
mod access;
#[path = "console/answers.rs"]
mod answers;
#[path = "console/approval.rs"]
mod approval;
#[path = "console/browser.rs"]
mod browser;
#[path = "console/ground.rs"]
mod ground;
