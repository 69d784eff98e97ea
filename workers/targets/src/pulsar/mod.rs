//! Pulsar with its metadata in ZooKeeper: reads the metadata directly, never a broker (almost every call to a broker loads
//! topics); acts through the owning broker's REST API.
//!
//! Formats: `MLDataFormats.proto` and `DataFormats.proto` of Pulsar and BookKeeper, the layout of Pulsar 4.2's metadata.

mod act;
mod admin;
mod assemble;
mod attach;
mod backlog;
mod changes;
mod examine;
mod inventory;
pub(crate) mod metadata;
pub(crate) mod names;
mod policies;
mod scope;
pub mod snapshot;
mod subscribers;
pub mod subscriptions;
mod visit;
pub mod wire;

pub use crate::bookkeeper::ledger_metadata;
pub use act::{ActOptions, PulsarAct};
pub use admin::{Admin, AdminOptions, ConnectedConsumer, SubscriptionStats, ToldCursor};
pub use assemble::Settings;
pub use attach::{Binary, BinaryOptions};
pub use backlog::{Backlog, Place, Row};
pub(crate) use inventory::cluster_identity;
pub use inventory::{AskBrokers, CursorNode, PulsarInventory};
pub use metadata::{
    CursorInfo, Hole, ManagedLedger, cursor_info, cursor_references, managed_ledger_info, topic_references,
};
pub use names::{TopicName, ledger_id, ledger_path};
pub use policies::{TopicLevel, TopicPolicies, topic_policies_file};
pub(crate) use scope::ScopeFilter;
pub use scope::check_scope;
