//! Wiring: from a configuration to a target, a bus, a store and a record.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use futures::future::{BoxFuture, FutureExt};
use tracing::warn;
use trimtab_bus::{Bus, BusOptions, InProcess, SqliteStore, Store};
use trimtab_events::{LedgerCandidate, Retention};
use trimtab_targets::bookkeeper::{LedgerAct, LedgerInventory, LedgerOptions, Others};
use trimtab_targets::hedwig::{self, HedwigAct, HedwigInventory, HubOptions, Hubs, Trust};
use trimtab_targets::pulsar::wire::TlsOptions;
use trimtab_targets::pulsar::{
    ActOptions, Admin, AdminOptions, AskBrokers, Binary, BinaryOptions, PulsarAct, PulsarInventory, Settings,
    ToldCursor, TopicName, TopicPolicies, topic_policies_file,
};
use trimtab_targets::{Act, Class, Connection, Inventory, Pace, TargetError, Tls, Zk, ZkOptions};

use super::Usage;
use crate::clock::Clock;
use crate::config::{Config, System, ZkAccess, secret};
use crate::journal::{Entry, Journal, RecordKind};
use crate::share::{Limited, Paced};

/// A live target, whatever system it is.
pub(crate) struct Live {
    pub(crate) inventory: Arc<dyn Inventory>,
    pub(crate) act: Arc<dyn Act>,
    /// Of metadata operations.
    pub(crate) pace: Arc<Pace>,
    /// Of calls to brokers or hubs, by what they are.
    pub(crate) calls: Vec<(&'static str, Arc<dyn Limited>)>,
}

/// Connects to the configured target. `journal` is where evidence goes before brokers are asked for anything.
pub(crate) async fn live(config: &Config, journal: Option<Arc<Journal>>) -> anyhow::Result<Live> {
    match config.system {
        System::Pulsar => {
            let Pulsar { inventory, admin, pace } = pulsar(config, journal).await?;
            let binary = Arc::new(Binary::new(binary_options(config)?)?);
            let options = ActOptions { settle: config.limits.settle, ..ActOptions::default() };
            let calls: Vec<(_, Arc<dyn Limited>)> = vec![("calls", admin.calls().clone())];
            let act = Arc::new(PulsarAct::new(admin, binary, inventory.clone(), options));
            Ok(Live { inventory, act, pace, calls })
        }
        System::Hedwig => hedwig_region(config).await,
        System::Bookkeeper => ledgers(config).await,
        #[cfg(feature = "nats")]
        System::JetStream => super::jetstream::live(config).await,
        #[cfg(not(feature = "nats"))]
        System::JetStream => {
            anyhow::bail!(Usage("this build cannot reach NATS; build it with the feature nats".to_owned()))
        }
    }
}

async fn ledgers(config: &Config) -> anyhow::Result<Live> {
    let (inventory, pace) = ledger_inventory(config).await?;
    let act = Arc::new(LedgerAct::new(inventory.clone()));
    Ok(Live { inventory, act, pace, calls: Vec::new() })
}

/// Connects to the metadata of the configured Pulsar cluster's ledgers.
pub(crate) async fn ledger_inventory(config: &Config) -> anyhow::Result<(Arc<LedgerInventory>, Arc<Pace>)> {
    let address = config.pulsar.metadata.as_deref();
    let (zk, pace) = reader(config, address, config.pulsar.zk(), "pulsar").await?;
    // The look before an act goes through sessions of its own, under the same limit.
    let again = connect(config, address, config.pulsar.zk(), "pulsar", pace.clone()).await?;
    Ok((Arc::new(LedgerInventory::new(zk, again, ledger_options(config))), pace))
}

/// Where the ledgers are, and what else may name them.
pub(crate) fn ledger_options(config: &Config) -> LedgerOptions {
    let bookkeeper = &config.bookkeeper;
    let others = Others { distributed_logs: bookkeeper.distributed_logs.clone(), hedwig: bookkeeper.hedwig.clone() };
    LedgerOptions { root: config.pulsar.ledgers_root.clone(), others }
}

/// Connects to the configured region of Hedwig.
async fn hedwig_region(config: &Config) -> anyhow::Result<Live> {
    let region = &config.hedwig;
    let (zk, pace) = reader(config, region.metadata.as_deref(), region.zk(), "hedwig").await?;
    let inventory = Arc::new(HedwigInventory::new(zk, hedwig_settings(config)));
    let tls = match (&region.ca_file, region.trust_anyone) {
        (Some(_), true) => anyhow::bail!(Usage("hedwig.ca_file and hedwig.trust_anyone exclude each other".to_owned())),
        (Some(file), false) => {
            Some(Trust::Certificates(std::fs::read(file).with_context(|| format!("reading {}", file.display()))?))
        }
        (None, true) => Some(Trust::Anything),
        (None, false) => None,
    };
    let hubs = Hubs::new(HubOptions { addresses: region.addresses.clone(), tls, ..HubOptions::default() })?;
    let options = hedwig::ActOptions {
        settle: region.settle,
        attach_rate: region.attach_rate,
        shown_within: config.limits.settle,
        ..hedwig::ActOptions::default()
    };
    let limit = options.acquire_rate;
    let act = Arc::new(HedwigAct::new(hubs, inventory.clone(), options)?);
    let (attaches, acquires) = act.limits();
    let acquires = Arc::new(Paced { pace: acquires.clone(), limit });
    let calls: Vec<(_, Arc<dyn Limited>)> = vec![("attaches", attaches.clone()), ("acquires", acquires)];
    Ok(Live { inventory, act, pace, calls })
}

/// Where the region is, and what its hubs are set to.
pub(crate) fn hedwig_settings(config: &Config) -> hedwig::Settings {
    let region = &config.hedwig;
    hedwig::Settings {
        prefix: region.prefix.clone(),
        region: region.region.clone(),
        consume_interval: region.consume_interval,
        gone_regions: region.gone_regions.iter().cloned().collect(),
    }
}

/// A reader of a system's ZooKeeper, with its part of the limit.
async fn reader(
    config: &Config,
    address: Option<&str>,
    access: ZkAccess<'_>,
    system: &str,
) -> anyhow::Result<(Zk, Arc<Pace>)> {
    let pace = Arc::new(Pace::new(config.limits.metadata_rate).map_err(|e| Usage(e.to_string()))?);
    Ok((connect(config, address, access, system, pace.clone()).await?, pace))
}

async fn connect(
    config: &Config,
    address: Option<&str>,
    access: ZkAccess<'_>,
    system: &str,
    pace: Arc<Pace>,
) -> anyhow::Result<Zk> {
    let address = address.ok_or_else(|| {
        let scheme = if system == "pulsar" { "zk" } else { "hedwig+zk" };
        Usage(format!(
            "no metadata address is known: give --from {scheme}://host:port, or set {system}.metadata in the configuration"
        ))
    })?;
    let mut connection = Connection::parse(address).map_err(|e| Usage(e.to_string()))?;
    secure(&mut connection, access)?;
    let options = ZkOptions { sessions: config.limits.sessions, window: config.limits.window, ..ZkOptions::default() };
    Ok(Zk::connect(connection, options, pace).await?)
}

/// A Pulsar cluster.
pub(crate) struct Pulsar {
    pub(crate) inventory: Arc<PulsarInventory>,
    admin: Arc<Admin>,
    pace: Arc<Pace>,
}

/// Connects to the configured Pulsar cluster.
pub(crate) async fn pulsar(config: &Config, journal: Option<Arc<Journal>>) -> anyhow::Result<Pulsar> {
    let (zk, pace) = reader(config, config.pulsar.metadata.as_deref(), config.pulsar.zk(), "pulsar").await?;
    let admin = Arc::new(Admin::new(admin_options(config)?)?);
    let ask = match (config.pulsar.ask_brokers, journal) {
        (true, Some(journal)) => Some(Arc::new(Asking { admin: admin.clone(), journal }) as Arc<dyn AskBrokers>),
        (true, None) => anyhow::bail!(Usage("--ask-brokers needs a record to keep the evidence in".to_owned())),
        (false, _) => None,
    };
    let inventory = Arc::new(PulsarInventory::new(zk, settings(config)?, ask));
    Ok(Pulsar { inventory, admin, pace })
}

fn secure(connection: &mut Connection, access: ZkAccess<'_>) -> anyhow::Result<()> {
    let pair = |file: &Path| {
        let text = secret(file)?;
        let pair = text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()));
        pair.ok_or_else(|| anyhow::Error::new(Usage(format!("{} does not hold user:password", file.display()))))
    };
    let digest = access.digest.map(pair).transpose()?;
    connection.digest = digest.map(|(user, password)| format!("{user}:{password}"));
    connection.sasl = access.sasl.map(pair).transpose()?;
    let identity = match (access.cert, access.key) {
        (Some(cert), Some(key)) => Some((secret(cert)?, secret(key)?)),
        (None, None) => None,
        _ => anyhow::bail!(Usage("zk_cert_file and zk_key_file go together".to_owned())),
    };
    connection.tls = match (access.ca, identity) {
        (Some(ca), identity) => Some(Tls { ca: secret(ca)?, identity }),
        (None, None) => None,
        (None, Some(_)) => anyhow::bail!(Usage(
            "zk_cert_file needs zk_ca_file: the certificate authority that ZooKeeper's own certificate is signed by"
                .to_owned()
        )),
    };
    Ok(())
}

/// What only a broker's configuration says, as configured.
pub(crate) fn settings(config: &Config) -> anyhow::Result<Settings> {
    let pulsar = &config.pulsar;
    let topic_policies = match &pulsar.topic_policies_file {
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            let known = topic_policies_file(&text).map_err(|why| Usage(format!("{}: {why}", file.display())))?;
            Some(Arc::new(known))
        }
        None => None,
    };
    Ok(Settings {
        default_retention: Retention { minutes: pulsar.default_retention_minutes, mib: pulsar.default_retention_mib },
        default_ttl_s: pulsar.default_ttl_s,
        default_offload_deletion_lag_ms: pulsar.default_offload_deletion_lag_ms,
        default_subscription_expiration_minutes: pulsar.default_subscription_expiration_minutes,
        replicator_prefix: pulsar.replicator_prefix.clone(),
        system_cursors: pulsar.system_cursors.clone(),
        ledgers_root: pulsar.ledgers_root.clone(),
        topic_policies,
    })
}

/// The authorities that brokers' certificates may come from besides the system's, and who we are.
fn certificates(config: &Config) -> anyhow::Result<TlsOptions> {
    let pulsar = &config.pulsar;
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("reading {}", path.display()));
    let identity_pem = match (&pulsar.cert_file, &pulsar.key_file) {
        (Some(cert), Some(key)) => Some([read(cert)?, read(key)?].concat()),
        (None, None) => None,
        _ => anyhow::bail!(Usage("cert_file and key_file go together".to_owned())),
    };
    Ok(TlsOptions { ca_pem: pulsar.ca_file.as_deref().map(read).transpose()?, identity_pem })
}

/// The binary protocol goes to the same brokers, with the same credentials, by TLS wherever the admin API does.
fn binary_options(config: &Config) -> anyhow::Result<BinaryOptions> {
    let pulsar = &config.pulsar;
    Ok(BinaryOptions {
        urls: pulsar.service.clone(),
        allowed_hosts: pulsar.allowed_hosts.clone(),
        tls: pulsar.admin.iter().any(|url| url.starts_with("https:")),
        token: pulsar.token_file.as_deref().map(secret).transpose()?,
        certificates: certificates(config)?,
        request_timeout: config.limits.broker_timeout,
        ..BinaryOptions::default()
    })
}

fn admin_options(config: &Config) -> anyhow::Result<AdminOptions> {
    let pulsar = &config.pulsar;
    let TlsOptions { ca_pem, identity_pem } = certificates(config)?;
    Ok(AdminOptions {
        urls: pulsar.admin.clone(),
        allowed_hosts: pulsar.allowed_hosts.clone(),
        token: pulsar.token_file.as_deref().map(secret).transpose()?,
        ca_pem,
        identity_pem,
        timeout: config.limits.broker_timeout,
        concurrency: config.limits.broker_concurrency,
        rate: config.limits.broker_rate,
        ..AdminOptions::default()
    })
}

/// Asks brokers for topic policies, and where subscriptions stand, after the evidence was recorded.
struct Asking {
    admin: Arc<Admin>,
    journal: Arc<Journal>,
}

impl AskBrokers for Asking {
    fn topic_policies<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<TopicPolicies, TargetError>> {
        self.admin.topic_policies(name).boxed()
    }

    fn standing<'a>(&'a self, name: &'a TopicName) -> BoxFuture<'a, Result<HashMap<String, ToldCursor>, TargetError>> {
        self.admin.standing(name).boxed()
    }

    fn record<'a>(&'a self, evidence: &'a [LedgerCandidate]) -> BoxFuture<'a, Result<(), TargetError>> {
        async move {
            let written = evidence.iter().map(|topic| {
                let body = serde_json::to_value(topic).unwrap_or_default();
                self.write(&topic.subject, body, "recording the evidence before asking a broker")
            });
            futures::future::try_join_all(written).await.map(|_| ())
        }
        .boxed()
    }

    fn loaded<'a>(&'a self, namespace: &'a str, topics: &'a [String]) -> BoxFuture<'a, Result<(), TargetError>> {
        let shown = topics.iter().take(20).map(String::as_str).collect::<Vec<_>>().join(", ");
        warn!(
            namespace,
            topics = topics.len(),
            shown,
            "asking for topic policies made a broker take bundles of this namespace: it loads these topics, trims them itself, and \
             their cursors' times are those of now; how they were before is in the record"
        );
        let body = serde_json::json!({ "loaded_by_asking": topics });
        self.write(namespace, body, "recording what asking a broker has loaded").boxed()
    }
}

impl Asking {
    async fn write(&self, subject: &str, body: serde_json::Value, what: &str) -> Result<(), TargetError> {
        let entry = Entry {
            kind: RecordKind::Evidence,
            id: String::new(),
            subject: subject.to_owned(),
            trace_id: String::new(),
            body,
        };
        let written = self.journal.write(entry).await;
        written.map(|_| ()).map_err(|e| TargetError::new(Class::Transient, what, e))
    }
}

/// The record of a role in the state folder.
pub(crate) fn journal(config: &Config, name: &str, clock: Clock) -> anyhow::Result<Arc<Journal>> {
    let path = config.state_dir()?.join("audit").join(format!("{name}.jsonl"));
    Ok(Arc::new(Journal::open(&path, clock)?))
}

/// A name for this process in records: host and process id.
pub(crate) fn instance() -> String {
    format!("{}-{}", host(), std::process::id())
}

/// The host's name.
pub(crate) fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if host.trim().is_empty() { "host".to_owned() } else { host.trim().to_owned() }
}

/// A bus and a store, and whatever keeps them going.
pub(crate) struct Wires {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) store: Arc<dyn Store>,
    #[cfg(feature = "nats")]
    pub(crate) nats: Option<Arc<trimtab_bus::JetStream>>,
    #[cfg(feature = "nats")]
    _server: Option<super::spawn::Spawned>,
}

/// The queues' numbers. Deliveries are not tries: an event that has to wait for a scan's end is given back without fault, so the
/// bus gives up only what crashed its worker very often.
fn bus_options(config: &Config) -> BusOptions {
    let most = config.caps.max_acts.saturating_add(10_000);
    BusOptions { max_deliver: 1_000, queue_events: most, ..BusOptions::default() }
}

/// Opens the configured bus and store.
pub(crate) async fn wires(config: &Config, instance: &str) -> anyhow::Result<Wires> {
    let Some(url) = &config.nats.url else {
        let folder = config.state_dir()?;
        std::fs::create_dir_all(&folder).with_context(|| format!("making the state folder {}", folder.display()))?;
        return Ok(Wires {
            bus: Arc::new(InProcess::new(bus_options(config))),
            store: Arc::new(SqliteStore::open(folder.join("state.db"))?),
            #[cfg(feature = "nats")]
            nats: None,
            #[cfg(feature = "nats")]
            _server: None,
        });
    };
    #[cfg(feature = "nats")]
    return nats::wires(config, url, instance).await;
    #[cfg(not(feature = "nats"))]
    {
        let _ = instance;
        anyhow::bail!(Usage(format!("this build cannot reach {url}; build it with the feature nats")));
    }
}

#[cfg(feature = "nats")]
pub(crate) use nats::definition_options as nats_options;

#[cfg(feature = "nats")]
pub(super) mod nats {
    //! The bus over NATS.

    use std::path::Path;

    use trimtab_bus::{Credentials, JetStream, NatsOptions, Tls};

    use super::super::spawn::Spawned;
    use super::{Arc, Config, Usage, Wires, bus_options, secret};

    pub(super) async fn wires(config: &Config, url: &str, instance: &str) -> anyhow::Result<Wires> {
        let (server, url) = match url {
            "spawn" => {
                let server = Spawned::start(&config.state_dir()?.join("nats")).await?;
                let url = server.url().to_owned();
                (Some(server), url)
            }
            url => (None, url.to_owned()),
        };
        let nats = Arc::new(JetStream::connect(options(config, &url, instance)?).await?);
        Ok(Wires { bus: nats.clone(), store: Arc::new(nats.store()), nats: Some(nats), _server: server })
    }

    /// What streams are to be like, where no server is asked.
    pub(crate) fn definition_options(config: &Config) -> anyhow::Result<NatsOptions> {
        options(config, "", "")
    }

    /// The ways to say who we are, of which one is used.
    pub(in crate::cli) struct Login<'a> {
        pub(in crate::cli) user: Option<&'a str>,
        pub(in crate::cli) password_file: Option<&'a Path>,
        pub(in crate::cli) nkey_file: Option<&'a Path>,
        pub(in crate::cli) creds_file: Option<&'a Path>,
    }

    impl Login<'_> {
        /// What they come to; `key` is where they are in the configuration.
        pub(in crate::cli) fn credentials(&self, key: &str) -> anyhow::Result<Credentials> {
            Ok(match (self.user, self.password_file, self.nkey_file, self.creds_file) {
                (Some(user), Some(file), None, None) => {
                    Credentials::UserPassword { user: user.to_owned(), password: secret(file)? }
                }
                (None, None, Some(file), None) => Credentials::NkeySeedFile(file.to_owned()),
                (None, None, None, Some(file)) => Credentials::CredsFile(file.to_owned()),
                (None, None, None, None) => Credentials::None,
                _ => anyhow::bail!(Usage(format!(
                    "give one of {key}.user with {key}.password_file, {key}.nkey_file, {key}.creds_file"
                ))),
            })
        }
    }

    fn options(config: &Config, url: &str, instance: &str) -> anyhow::Result<NatsOptions> {
        let nats = &config.nats;
        let login = Login {
            user: nats.user.as_deref(),
            password_file: nats.password_file.as_deref(),
            nkey_file: nats.nkey_file.as_deref(),
            creds_file: nats.creds_file.as_deref(),
        };
        let credentials = login.credentials("nats")?;
        Ok(NatsOptions {
            servers: url.split(',').map(|url| url.trim().to_owned()).collect(),
            credentials,
            tls: Tls {
                ca: nats.ca_file.clone(),
                cert: nats.cert_file.clone(),
                key: nats.key_file.clone(),
                required: nats.ca_file.is_some() || nats.cert_file.is_some(),
            },
            inbox_prefix: nats.inbox_prefix.clone(),
            name: format!("trimtab-{instance}"),
            replicas: nats.replicas,
            bus: bus_options(config),
            create: nats.create,
            ..NatsOptions::default()
        })
    }
}
