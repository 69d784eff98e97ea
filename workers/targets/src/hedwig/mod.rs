//! Hedwig with its metadata in ZooKeeper: reads the metadata directly; acts by attaching to a subscriber that is offline, and moving
//! its pointer.
//!
//! Formats and protocol: Hedwig 4.3.2, the last release.

mod act;
pub mod client;
mod effect;
mod inventory;
pub mod proto;
mod scope;
mod snapshot;
mod tls;
mod topic;
pub mod wire;
pub mod znodes;

pub use act::{ActOptions, Collection, HedwigAct, Move, Outcome, Visit, collection};
pub use client::{AttachError, Attached, Ending, First, HubOptions, Hubs};
pub use inventory::{HedwigInventory, Release};
pub use snapshot::HedwigSnapshot;
pub use tls::Trust;
pub use topic::{Ledgers, Owner, Settings, Topic, TopicSubscriber};
pub use znodes::HubAddress;

#[cfg(test)]
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
