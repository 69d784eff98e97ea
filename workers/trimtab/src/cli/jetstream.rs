//! Wiring of JetStream as a target: one connection for each account, and one more for each act.

use std::sync::Arc;

use anyhow::Context as _;
use futures::future::FutureExt;
use trimtab_bus::{Connection, NatsOptions, Tls};
use trimtab_targets::Pace;
use trimtab_targets::jetstream::{Account, AgesOut, Dial, JetStreamAct, JetStreamInventory, Times, Wire};

use super::Usage;
use super::runtime::nats::Login;
use super::runtime::{Live, instance};
use crate::config::{Config, JetStreamAccount};

/// Connects to all configured accounts.
pub(super) async fn live(config: &Config) -> anyhow::Result<Live> {
    let url = config.jetstream.url.as_deref().ok_or_else(|| {
        Usage(
            "no servers are known: give --from nats://host:port, or set jetstream.url in the configuration".to_owned(),
        )
    })?;
    let pace = Arc::new(Pace::new(config.limits.metadata_rate).map_err(|e| Usage(e.to_string()))?);
    let nobody = [JetStreamAccount::default()];
    let configured = if config.jetstream.accounts.is_empty() { &nobody } else { config.jetstream.accounts.as_slice() };
    let mut accounts = Vec::new();
    for account in configured {
        let options = options(config, url, account)?;
        let shared = Connection::open(&options).await?;
        let brief = NatsOptions { brief: true, ..options };
        let dial: Dial = Arc::new(move || {
            let brief = brief.clone();
            async move { Connection::open(&brief).await.map(wire).map_err(|e| e.to_string()) }.boxed()
        });
        let domain = config.jetstream.domain.as_deref();
        let opened = Account::open(wire(shared), dial, account.name.clone(), domain).await;
        accounts.push(opened.with_context(|| format!("reaching an account at {url}"))?);
    }
    let (policy, target) = (config.policy()?, config.target().to_owned());
    let ages_out: AgesOut = Arc::new(move |log| policy.ages_out(&target, log));
    let inventory = JetStreamInventory::new(accounts, pace.clone()).map_err(|e| Usage(e.to_string()))?;
    let inventory = Arc::new(inventory.with_ages(ages_out));
    let times = Times { probe: config.jetstream.probe, ..Times::default() };
    let act = Arc::new(JetStreamAct::new(inventory.clone(), times));
    Ok(Live { inventory, act, pace, calls: Vec::new() })
}

fn wire(connection: Connection) -> Wire {
    let client = connection.client.clone();
    Wire { client, refusal: Arc::new(move |subject, since| connection.refusal(subject, since)) }
}

fn options(config: &Config, url: &str, account: &JetStreamAccount) -> anyhow::Result<NatsOptions> {
    let jetstream = &config.jetstream;
    let login = Login {
        user: account.user.as_deref(),
        password_file: account.password_file.as_deref(),
        nkey_file: account.nkey_file.as_deref(),
        creds_file: account.creds_file.as_deref(),
    };
    Ok(NatsOptions {
        servers: url.split(',').map(|url| url.trim().to_owned()).collect(),
        credentials: login.credentials("jetstream.accounts")?,
        tls: Tls {
            ca: jetstream.ca_file.clone(),
            cert: jetstream.cert_file.clone(),
            key: jetstream.key_file.clone(),
            required: jetstream.ca_file.is_some() || jetstream.cert_file.is_some(),
        },
        inbox_prefix: account.inbox_prefix.clone(),
        name: format!("trimtab-{}", instance()),
        ..NatsOptions::default()
    })
}
