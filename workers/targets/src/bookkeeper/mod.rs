//! BookKeeper with its metadata in ZooKeeper: all ledgers, everything that may name one, and what is left over.

mod act;
mod dump;
mod inventory;
mod ledgers;
mod look;
mod marks;
mod metadata;
mod references;
mod referrers;
mod scan;
mod snapshot;
mod survey;
mod timeline;
mod tree;

pub use act::LedgerAct;
pub use dump::write;
pub use inventory::{ALL_LEDGERS, LedgerInventory, LedgerOptions, LedgerSnapshot};
pub(crate) use ledgers::{Layout, layout_of};
pub use look::look;
pub use marks::{Owned, owned};
pub use metadata::{LedgerMetadata, LedgerState, full_metadata, ledger_metadata};
pub use references::{hedwig_ranges, log_allocation, log_segment, schema_locator};
pub use referrers::Others;
pub use scan::{Surveyed, survey};
pub use snapshot::survey_snapshot;
pub use tree::{Named, Tree, Valued};
