//! What acts on topics have in common: trim, and look until the metadata shows it.

use std::time::Duration;

use tokio::time::Instant;

use super::act::ActOptions;
use super::admin::Admin;
use super::inventory::PulsarInventory;
use super::metadata::managed_ledger_info;
use super::names::TopicName;
use crate::error::{Class, Result, TargetError};

/// Whether none of these ledgers is in the topic's list any more.
async fn gone(inventory: &PulsarInventory, name: &TopicName, ledgers: &[i64]) -> Result<bool> {
    let Some((value, _)) = inventory.zk().get(&name.path()).await? else { return Ok(true) };
    let list = managed_ledger_info(&value)
        .map_err(|e| TargetError::new(Class::Invalid, format!("reading {} again", name.subject()), e))?;
    Ok(!list.ledgers.iter().any(|info| ledgers.contains(&info.id)))
}

/// Trims, and looks until the metadata shows that these ledgers are gone; false when the time allowed for that is over. `again`:
/// the trim is asked for each time it does not, since what is to make it possible may not be finished.
pub(super) async fn trim(
    admin: &Admin,
    inventory: &PulsarInventory,
    times: &ActOptions,
    name: &TopicName,
    ledgers: &[i64],
    again: bool,
) -> Result<bool> {
    let deadline = Instant::now() + times.settle;
    let mut wait = times.look_every;
    admin.trim(name).await?;
    loop {
        if gone(inventory, name, ledgers).await? {
            return Ok(true);
        }
        if Instant::now() + wait > deadline {
            return Ok(false);
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(1));
        if again && !gone(inventory, name, ledgers).await? {
            admin.trim(name).await?;
        }
    }
}
