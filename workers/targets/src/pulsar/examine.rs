//! What a cluster says of itself before it is scanned: whether its metadata is there and may be read, and whether its brokers can be
//! reached, let us ask them, keep our time, and are set as the configuration says. Reads; no call loads a topic.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use super::act::PulsarAct;
use super::assemble::Settings;
use super::inventory::PulsarInventory;
use crate::finding::{Finding, ZK_RIGHTS, clock};

/// Brokers that are asked. What one says of its settings the others mostly say too.
const ASKED: usize = 20;

/// What to do where a broker says no.
const BROKER_RIGHTS: &str =
    "give a token of a superuser (token_file); with less, trims may still be allowed, which only the first one tells";

/// What the brokers' settings are called there and here, and what they are here.
fn settings_here(settings: &Settings) -> [(&'static str, &'static str, String); 7] {
    let number = |value: i64| value.to_string();
    [
        ("defaultRetentionTimeInMinutes", "default_retention_minutes", number(settings.default_retention.minutes)),
        ("defaultRetentionSizeInMB", "default_retention_mib", number(settings.default_retention.mib)),
        ("ttlDurationDefaultInSeconds", "default_ttl_s", number(settings.default_ttl_s)),
        (
            "managedLedgerOffloadDeletionLagMs",
            "default_offload_deletion_lag_ms",
            number(settings.default_offload_deletion_lag_ms),
        ),
        (
            "subscriptionExpirationTimeMinutes",
            "default_subscription_expiration_minutes",
            number(settings.default_subscription_expiration_minutes),
        ),
        ("replicatorPrefix", "replicator_prefix", settings.replicator_prefix.clone()),
        ("additionalSystemCursorNames", "system_cursors", sorted(&settings.system_cursors.join(","))),
    ]
}

/// Names of a set, as brokers write one: `[a, b]` or `a,b`.
fn sorted(text: &str) -> String {
    let inside = text.trim().trim_start_matches('[').trim_end_matches(']');
    let mut names: Vec<&str> = inside.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.join(",")
}

/// Where a broker is set otherwise than the configuration says. A setting that it does not know is no difference.
fn differences(broker: &str, told: &HashMap<String, String>, settings: &Settings) -> Vec<Finding> {
    let mut found = Vec::new();
    for (there, here, value) in settings_here(settings) {
        let Some(said) = told.get(there) else { continue };
        let said = if here == "system_cursors" { sorted(said) } else { said.trim().to_owned() };
        if said != value {
            found.push(Finding::bad(
                format!("settings of {broker}"),
                format!("{there} is {said:?} there, and pulsar.{here} is {value:?} here"),
                format!("set pulsar.{here} to what the brokers have, or give their configuration with --broker-conf: what is proposed \
                         depends on it"),
            ));
        }
    }
    found
}

impl PulsarInventory {
    pub(super) async fn examined(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for (path, what) in [("/managed-ledgers", "tenants with topics"), ("/admin/policies", "tenants with policies")]
        {
            let name = format!("metadata, {path}");
            found.push(match self.zk().children(path).await {
                Ok(Some(children)) => Finding::good(name, format!("{} {what}", children.len())),
                Ok(None) => Finding::bad(
                    name,
                    format!("there is no {path} at {}", self.zk().servers()),
                    "check the address and its chroot: it is what the brokers have as metadataStoreUrl (or zookeeperServers)",
                ),
                Err(e) => Finding::failed(name, &e, ZK_RIGHTS),
            });
        }
        found.push(match self.layout().await {
            Ok(Ok(_)) => Finding::good("metadata, ledgers", format!("below {}", self.settings().ledgers_root)),
            Ok(Err(why)) => Finding::bad(
                "metadata, ledgers",
                why,
                "without it the size and age of each topic's last ledger stay unknown, and the topic keeps them",
            ),
            Err(e) => Finding::failed("metadata, ledgers", &e, ZK_RIGHTS),
        });
        found
    }
}

impl PulsarAct {
    pub(super) async fn examined(&self) -> Vec<Finding> {
        let registered = match self.inventory.brokers().await {
            Ok(brokers) => brokers,
            Err(e) => return vec![Finding::failed("brokers", &e, ZK_RIGHTS)],
        };
        let mut found = Vec::new();
        if let Err(e) = self.allow_registered().await {
            return vec![Finding::failed("brokers", &e, ZK_RIGHTS)];
        }
        found.push(match registered.web.len() {
            0 => Finding::bad(
                "brokers",
                "none is registered in the metadata",
                "planning works without brokers; to act, start one, or check the address's chroot",
            ),
            _ => Finding::good("brokers", format!("registered at {}", registered.web.join(", "))),
        });
        // Most brokers are registered under two addresses. Where TLS is meant, nothing is said without it.
        let mut web = self.admin.configured();
        let tls = |url: &String| url.starts_with("https:");
        let secure = web.iter().any(tls) || registered.web.iter().all(tls);
        let told = registered.web.iter().filter(|url| tls(url) == secure);
        let further: Vec<String> = told.filter(|url| !web.contains(url)).cloned().collect();
        web.extend(further);
        for url in web.iter().take(ASKED) {
            let name = format!("broker {url}");
            match self.admin.greet(url).await {
                Ok(greeting) => {
                    found.push(Finding::good(&name, "answers, and lets us ask for its settings"));
                    if let Some(there) = greeting.clock {
                        // It is told in whole seconds.
                        found.push(clock(format!("clock of {url}"), there + Duration::from_millis(500)));
                    }
                    found.extend(differences(url, &greeting.settings, self.inventory.settings()));
                }
                Err(e) => found.push(Finding::failed(name, &e, BROKER_RIGHTS)),
            }
        }
        if web.len() > ASKED {
            let says = format!("{} of {} were asked", ASKED, web.len());
            found.push(Finding::good("further brokers", says));
        }
        found.extend(self.doors(&registered.binary).await);
        found
    }

    /// Whether the binary protocol lets us in, which acts on subscribers need.
    async fn doors(&self, registered: &[String]) -> Vec<Finding> {
        let addresses = self.binary.starts(registered);
        if addresses.is_empty() && !registered.is_empty() {
            return vec![Finding::doubtful(
                "binary protocol",
                "no broker is registered with an address of it that is by TLS as the web addresses are, or plain as they are",
                "trims work without it; to act on subscribers, give its addresses (pulsar.service)",
            )];
        }
        let mut found = Vec::new();
        for address in addresses.iter().take(ASKED) {
            let name = format!("broker {address}");
            found.push(match self.binary.greet(address).await {
                Ok(()) => Finding::good(name, "lets us in"),
                Err(e) => Finding::doubtful(
                    name,
                    e.to_string(),
                    "trims work without it; to act on subscribers, give addresses that can be reached from here (pulsar.service) and a \
                     token that is let in",
                ),
            });
        }
        found
    }
}

/// A broker's answer to the question for its settings.
pub(super) struct Greeting {
    pub(super) settings: HashMap<String, String>,
    /// What its clock says, without the fraction of a second.
    pub(super) clock: Option<SystemTime>,
}
