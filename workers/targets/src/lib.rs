//! The systems trimtab works on. Each implements what it can of two small traits: [`Inventory`] reads, [`Act`] calls.
//!
//! Nothing here decides. What a target cannot do it does not implement.

pub mod bookkeeper;
mod error;
mod finding;
mod globs;
pub mod hedwig;
#[cfg(feature = "nats")]
pub mod jetstream;
mod pace;
pub mod pulsar;
pub mod snapshot;
mod traits;
mod zk;
mod zk_writes;

pub use error::{Class, TargetError, Undecodable};
pub use finding::{Finding, Grade, clock};
pub use pace::{Calls, CallsTo, Pace, PaceError, Slot};
pub use traits::{
    Act, Change, Changes, Effect, Inventory, Item, Mode, Permit, Reads, ReadsOf, Record, Shard, Skipped, Undo,
};
pub use zk::{Connection, Stat, Tls, Zk, ZkOptions};
