//! Gives back the storage that log and ledger based messaging systems never reclaim by themselves.
//!
//! This crate wires the parts together: the [`worker`] loop that every role runs in, the roles in [`workers`], configuration,
//! telemetry, the [`journal`], and the command line in [`cli`]. It decides nothing: rules are in `trimtab-policy`, what a
//! system can do is in `trimtab-targets`.

pub mod activity;
pub mod apply;
pub mod cli;
pub mod clock;
pub mod config;
pub mod console;
mod due;
pub mod follow;
pub mod http;
pub mod journal;
pub mod metrics;
#[cfg(feature = "nats")]
pub mod micro;
pub mod notify;
pub mod once;
pub mod openmetrics;
pub mod plan;
pub mod recovery;
pub mod retry;
pub mod scans;
pub mod share;
mod sightings;
pub mod sign;
mod systemd;
pub mod telemetry;
pub mod triggers;
mod watched;
pub mod wishes;
pub mod worker;
pub mod workers;
