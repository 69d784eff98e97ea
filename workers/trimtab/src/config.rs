//! What an operator sets: one TOML file, `TRIMTAB_…` variables over it, flags over both. Unknown keys are errors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trimtab_policy::{Action, AgeRule, OrphanRules, Policy, PolicyConfig, Protect, Rule, Trust};
use trimtab_targets::Mode;
use trimtab_targets::bookkeeper::Others;

use crate::sightings::KEPT;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the configuration cannot be used: {0}")]
pub struct ConfigError(pub String);

/// Everything.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether anything may be changed: `dry-run` (default) or `apply`.
    pub mode: RunMode,
    /// Where the record and the embedded state are kept. Default: `$XDG_STATE_HOME/trimtab`.
    pub state_dir: Option<PathBuf>,
    /// Scan again after this time; once when absent.
    #[serde(with = "humantime_serde")]
    pub every: Option<Duration>,
    /// Following changes between full scans.
    pub follow: FollowConfig,
    /// Which of the systems below this process works on. Another one has a process of its own.
    pub system: System,
    /// The Pulsar cluster.
    pub pulsar: PulsarConfig,
    /// The region of Hedwig.
    pub hedwig: HedwigConfig,
    /// The ledgers of the Pulsar cluster.
    pub bookkeeper: BookkeeperConfig,
    /// The accounts of NATS JetStream.
    pub jetstream: JetStreamConfig,
    /// Limits on operations and calls.
    pub limits: Limits,
    /// Limits on what one scan may have carried out.
    pub caps: Caps,
    /// Rules, first match wins.
    pub rules: Vec<RuleText>,
    /// Globs over `tenant/namespace/topic` that are never touched; naming any replaces the default.
    pub protect: Option<Vec<String>>,
    /// Which rule decides when a ledger is old enough: `broker` (default) or `pip219`.
    pub age_rule: AgeRule,
    /// How long a decision may be carried out. Default: 24 h.
    #[serde(with = "humantime_serde")]
    pub decision_valid: Option<Duration>,
    /// The bus over NATS. Without an address everything runs in one process.
    pub nats: NatsConfig,
    /// Keys that decisions and outcomes are signed with.
    pub keys: KeysConfig,
    /// The HTTP server.
    pub http: HttpConfig,
    /// The console: who may look, and who may act.
    pub console: ConsoleConfig,
    /// Traces.
    pub telemetry: TelemetryConfig,
    /// Who is told what will be acted on.
    pub notify: NotifyConfig,
}

/// Following changes between full scans, which `every` sets the time of: a day when it is absent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FollowConfig {
    /// Look only at what has changed or fallen due. To be set for all scanners of a target, or for none.
    pub enabled: bool,
    /// How long changes are collected before they are looked at.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

impl Default for FollowConfig {
    fn default() -> Self {
        FollowConfig { enabled: false, interval: Duration::from_secs(60) }
    }
}

/// Who is told what will be acted on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NotifyConfig {
    /// Address that each notice is posted to, as JSON.
    pub webhook: Option<String>,
    /// File with a token that is sent along as a bearer.
    pub token_file: Option<PathBuf>,
}

/// A system that can be worked on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Pulsar.
    #[default]
    Pulsar,
    /// Hedwig.
    Hedwig,
    /// The ledgers of the Pulsar cluster: those that nothing names.
    Bookkeeper,
    /// NATS JetStream.
    #[serde(rename = "jetstream")]
    JetStream,
}

impl System {
    /// The one that a canonical name is of.
    pub fn of_subject(subject: &str) -> Option<System> {
        match subject.split_once("://")?.0 {
            "persistent" => Some(System::Pulsar),
            "hedwig" => Some(System::Hedwig),
            "jetstream" => Some(System::JetStream),
            _ => None,
        }
    }
}

/// The ledgers of the Pulsar cluster. Where its metadata is, and the root of the ledgers in it, is in [`PulsarConfig`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BookkeeperConfig {
    /// Name of the target in events and records. Rules for the Pulsar cluster's name are heeded too.
    pub name: String,
    /// Ledgers younger than this may be in creation.
    #[serde(with = "humantime_serde")]
    pub min_age: Duration,
    /// How many scans must have seen a ledger unnamed and unchanged: 2 to 8.
    pub sightings: u32,
    /// How long after the first of them it may go.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Check that a topic does not exist by creating and deleting its node in the transaction that deletes a ledger. Whoever watches for
    /// new topics may see it for a moment. Otherwise ledgers of topics that do not exist are only reported.
    pub absent_topics: bool,
    /// The bookies' `gcWaitTime`: how long the data outlives its metadata at most.
    #[serde(with = "humantime_serde")]
    pub gc_wait: Duration,
    /// Roots of DistributedLog namespaces in the same BookKeeper.
    pub distributed_logs: Vec<String>,
    /// `zk_prefix` of a Hedwig in the same BookKeeper.
    pub hedwig: String,
}

impl Default for BookkeeperConfig {
    fn default() -> Self {
        let (rules, others) = (OrphanRules::default(), Others::default());
        let seconds = |s: i64| Duration::from_secs(s.unsigned_abs());
        BookkeeperConfig {
            name: "bookkeeper".to_owned(),
            min_age: seconds(rules.min_age_s),
            sightings: rules.sightings,
            grace: seconds(rules.grace_s),
            absent_topics: rules.absent_topics,
            gc_wait: seconds(rules.gc_wait_s),
            distributed_logs: others.distributed_logs,
            hedwig: others.hedwig,
        }
    }
}

/// A region of Hedwig.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HedwigConfig {
    /// Name of the target in events, records and rules.
    pub name: String,
    /// `zk://host:port,host:port/chroot`.
    pub metadata: Option<String>,
    /// File with `user:password` for ZooKeeper's digest scheme.
    pub zk_digest_file: Option<PathBuf>,
    /// File with `user:password` for SASL DIGEST-MD5 to ZooKeeper.
    pub zk_sasl_file: Option<PathBuf>,
    /// PEM certificate authorities for TLS to ZooKeeper; switches TLS on.
    pub zk_ca_file: Option<PathBuf>,
    /// PEM client certificate for ZooKeeper.
    pub zk_cert_file: Option<PathBuf>,
    /// PEM key of that certificate.
    pub zk_key_file: Option<PathBuf>,
    /// The hubs' `zk_prefix`.
    pub prefix: String,
    /// The hubs' `region`.
    pub region: String,
    /// The hubs' `consume_interval`: a CONSUME over fewer messages is written down by none of them.
    pub consume_interval: u64,
    /// Subscribers of other regions' hubs (`__` and the region's name) whose region is gone for good. All others are never touched.
    pub gone_regions: Vec<String>,
    /// Hubs announce addresses that may not be reachable from here: `host:port` or `host` as announced, and what to use instead.
    pub addresses: BTreeMap<String, String>,
    /// Use the hubs' TLS ports, and trust the certificates of this PEM file, or what its authorities signed.
    pub ca_file: Option<PathBuf>,
    /// Use the hubs' TLS ports and trust whoever answers, as Hedwig's own clients do.
    pub trust_anyone: bool,
    /// How long a topic must have had its owner, or none, before anything is attached.
    #[serde(with = "humantime_serde")]
    pub settle: Duration,
    /// Attachments started per second on each hub.
    pub attach_rate: f64,
}

impl Default for HedwigConfig {
    fn default() -> Self {
        HedwigConfig {
            name: "hedwig".to_owned(),
            metadata: None,
            zk_digest_file: None,
            zk_sasl_file: None,
            zk_ca_file: None,
            zk_cert_file: None,
            zk_key_file: None,
            prefix: "/hedwig".to_owned(),
            region: "standalone".to_owned(),
            consume_interval: 50,
            gone_regions: Vec::new(),
            addresses: BTreeMap::new(),
            ca_file: None,
            trust_anyone: false,
            settle: Duration::from_secs(60),
            attach_rate: 5.0,
        }
    }
}

/// Files with what ZooKeeper wants to see, and with whom we trust to be it.
#[derive(Debug, Clone, Copy)]
pub struct ZkAccess<'a> {
    /// `user:password` for the digest scheme.
    pub digest: Option<&'a Path>,
    /// `user:password` for SASL DIGEST-MD5.
    pub sasl: Option<&'a Path>,
    /// PEM certificate authorities.
    pub ca: Option<&'a Path>,
    /// PEM client certificate.
    pub cert: Option<&'a Path>,
    /// PEM key of that certificate.
    pub key: Option<&'a Path>,
}

impl HedwigConfig {
    /// The files for ZooKeeper.
    pub fn zk(&self) -> ZkAccess<'_> {
        ZkAccess {
            digest: self.zk_digest_file.as_deref(),
            sasl: self.zk_sasl_file.as_deref(),
            ca: self.zk_ca_file.as_deref(),
            cert: self.zk_cert_file.as_deref(),
            key: self.zk_key_file.as_deref(),
        }
    }
}

impl PulsarConfig {
    /// The files for ZooKeeper.
    pub fn zk(&self) -> ZkAccess<'_> {
        ZkAccess {
            digest: self.zk_digest_file.as_deref(),
            sasl: self.zk_sasl_file.as_deref(),
            ca: self.zk_ca_file.as_deref(),
            cert: self.zk_cert_file.as_deref(),
            key: self.zk_key_file.as_deref(),
        }
    }
}

/// Whether anything may be changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunMode {
    /// Only look.
    #[default]
    DryRun,
    /// Act.
    Apply,
}

impl From<RunMode> for Mode {
    fn from(mode: RunMode) -> Mode {
        match mode {
            RunMode::DryRun => Mode::DryRun,
            RunMode::Apply => Mode::Apply,
        }
    }
}

/// The Pulsar cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PulsarConfig {
    /// Name of the target in events, records and rules.
    pub name: String,
    /// `zk://host:port,host:port/chroot`.
    pub metadata: Option<String>,
    /// File with `user:password` for ZooKeeper's digest scheme.
    pub zk_digest_file: Option<PathBuf>,
    /// File with `user:password` for SASL DIGEST-MD5 to ZooKeeper.
    pub zk_sasl_file: Option<PathBuf>,
    /// PEM certificate authorities for TLS to ZooKeeper; switches TLS on.
    pub zk_ca_file: Option<PathBuf>,
    /// PEM client certificate for ZooKeeper.
    pub zk_cert_file: Option<PathBuf>,
    /// PEM key of that certificate.
    pub zk_key_file: Option<PathBuf>,
    /// Web addresses of brokers, `http(s)://host:port`.
    pub admin: Vec<String>,
    /// Addresses of brokers or of a proxy for the binary protocol, `pulsar(+ssl)://host:port`; needed to act on subscribers where the
    /// addresses that brokers register cannot be reached from here.
    pub service: Vec<String>,
    /// Further `host:port` that brokers may redirect to. Those registered in the metadata always count.
    pub allowed_hosts: Vec<String>,
    /// File with the token for brokers.
    pub token_file: Option<PathBuf>,
    /// PEM certificate authorities for https to brokers.
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate for brokers.
    pub cert_file: Option<PathBuf>,
    /// PEM key of that certificate.
    pub key_file: Option<PathBuf>,
    /// The brokers' `defaultRetentionTimeInMinutes`.
    pub default_retention_minutes: i64,
    /// The brokers' `defaultRetentionSizeInMB`.
    pub default_retention_mib: i64,
    /// The brokers' `ttlDurationDefaultInSeconds`.
    pub default_ttl_s: i64,
    /// The brokers' `managedLedgerOffloadDeletionLagMs`.
    pub default_offload_deletion_lag_ms: i64,
    /// The brokers' `subscriptionExpirationTimeMinutes`.
    pub default_subscription_expiration_minutes: i64,
    /// The brokers' `replicatorPrefix`.
    pub replicator_prefix: String,
    /// The brokers' `additionalSystemCursorNames`.
    pub system_cursors: Vec<String>,
    /// Root of BookKeeper's ledgers in the metadata.
    pub ledgers_root: String,
    /// File with the policies that topics set for themselves; taken to be complete.
    pub topic_policies_file: Option<PathBuf>,
    /// Ask brokers for those policies, and where subscriptions of loaded topics stand. The first question can load the topics of a bundle;
    /// the evidence is recorded first.
    pub ask_brokers: bool,
}

impl Default for PulsarConfig {
    fn default() -> Self {
        PulsarConfig {
            name: "pulsar".to_owned(),
            metadata: None,
            zk_digest_file: None,
            zk_sasl_file: None,
            zk_ca_file: None,
            zk_cert_file: None,
            zk_key_file: None,
            admin: Vec::new(),
            service: Vec::new(),
            allowed_hosts: Vec::new(),
            token_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            default_retention_minutes: 0,
            default_retention_mib: 0,
            default_ttl_s: 0,
            default_offload_deletion_lag_ms: 4 * 3600 * 1000,
            default_subscription_expiration_minutes: 0,
            replicator_prefix: "pulsar.repl".to_owned(),
            system_cursors: Vec::new(),
            ledgers_root: "/ledgers".to_owned(),
            topic_policies_file: None,
            ask_brokers: false,
        }
    }
}

/// The accounts of NATS JetStream.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JetStreamConfig {
    /// Name of the target in events, records and rules.
    pub name: String,
    /// Addresses of servers, `nats://host:port` or `tls://host:port`, joined by commas.
    pub url: Option<String>,
    /// The JetStream domain, for streams of servers behind a leaf node.
    pub domain: Option<String>,
    /// PEM certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate.
    pub cert_file: Option<PathBuf>,
    /// PEM key of that certificate.
    pub key_file: Option<PathBuf>,
    /// Who we are in each account. Without any: nobody, in the account that the servers put nobody into.
    pub accounts: Vec<JetStreamAccount>,
    /// How long a consumer is held and watched before it is acted on, at most 8 s.
    #[serde(with = "humantime_serde")]
    pub probe: Duration,
}

impl Default for JetStreamConfig {
    fn default() -> Self {
        JetStreamConfig {
            name: "jetstream".to_owned(),
            url: None,
            domain: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            accounts: Vec::new(),
            probe: Duration::from_secs(3),
        }
    }
}

/// Who we are in an account.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JetStreamAccount {
    /// What the account is called in names of streams. Without it, what the servers call it, which needs leave to ask them.
    pub name: Option<String>,
    /// User name.
    pub user: Option<String>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
    /// File with the seed of an nkey.
    pub nkey_file: Option<PathBuf>,
    /// Credentials file (JWT).
    pub creds_file: Option<PathBuf>,
    /// Prefix of this client's inboxes.
    pub inbox_prefix: Option<String>,
}

/// Limits on operations and calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Metadata operations per second, over all workers of a cluster together; 0 is no limit.
    pub metadata_rate: f64,
    /// ZooKeeper sessions of each scanner.
    pub sessions: usize,
    /// Requests in flight for each session.
    pub window: usize,
    /// Calls started per second for each broker, over all executors of a cluster together; 0 is no limit.
    pub broker_rate: f64,
    /// Calls in flight for each broker, over all executors of a cluster together. At least one is.
    pub broker_concurrency: usize,
    /// How long one call to a broker may take.
    #[serde(with = "humantime_serde")]
    pub broker_timeout: Duration,
    /// How long the metadata may take to show an act before it counts as pending.
    #[serde(with = "humantime_serde")]
    pub settle: Duration,
    /// Acts that one executor carries out at once.
    pub acts_at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            metadata_rate: 200.0,
            sessions: 2,
            window: 100,
            broker_rate: 20.0,
            broker_concurrency: 4,
            broker_timeout: Duration::from_secs(60),
            settle: Duration::from_secs(30),
            acts_at_once: 8,
        }
    }
}

/// Limits on what one scan may have carried out. Crossing one stops the executors before the first act.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Caps {
    /// Acts.
    pub max_acts: u64,
    /// Bytes freed, one replica.
    pub max_bytes: u64,
    /// Share of the topics, and of the bytes, that were seen: 0 to 1. Does not apply to a scan of one topic.
    pub max_share: f64,
    /// How much fewer topics than in the last scan of the same scope may be seen: 0 to 1.
    pub max_shrink: f64,
    /// How far the target's clock may be from ours: ahead, as its newest node tells; behind, as a subscriber's node tells that was
    /// written since the last scan saw it.
    #[serde(with = "humantime_serde")]
    pub max_clock_skew: Duration,
}

impl Default for Caps {
    fn default() -> Self {
        let max_clock_skew = Duration::from_secs(300);
        Caps { max_acts: 1_000, max_bytes: 1 << 40, max_share: 0.5, max_shrink: 0.2, max_clock_skew }
    }
}

/// A rule as it is written.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleText {
    /// Name in reasons.
    pub name: String,
    /// Globs over `tenant/namespace/topic`; `*` stays within a part, `**` does not.
    #[serde(rename = "match")]
    pub topics: Vec<String>,
    /// Only this target.
    pub target: Option<String>,
    /// `reclaim` (default: trim topics, consume for stale subscribers), `delete` (trim topics, delete stale subscribers), `report` or
    /// `keep`.
    pub action: Action,
    /// Opt-out: who asked for it, and until when (RFC 3339).
    pub protect: Option<ProtectText>,
    /// Keep ledgers at least this long after closing.
    #[serde(with = "humantime_serde")]
    pub retention: Option<Duration>,
    /// Keep at least so much of a topic (`10GiB`).
    pub size: Option<String>,
    /// Expire messages older than this.
    #[serde(with = "humantime_serde")]
    pub ttl: Option<Duration>,
    /// Let `ttl` expire what the target itself would keep.
    #[serde(rename = "override")]
    pub overrides: bool,
    /// Leave topics and subscribers alone that would give back less (`10MiB`).
    pub min_reclaim: Option<String>,
    /// Globs over names of subscriptions: the rule is about these subscribers of the topics it matches, and not about the topics.
    pub subscription: Vec<String>,
    /// A subscriber of which nothing has changed for longer is stale. Without it, and without an expiration in the target's own
    /// policies, nobody is.
    #[serde(with = "humantime_serde")]
    pub stale_after: Option<Duration>,
    /// How many scans must have seen it unchanged. Default: 3.
    pub sightings: Option<u32>,
    /// What idleness is judged by: `history` (default), what our own scans saw; or `field`, the times that the system stores, which lie.
    pub trust: Trust,
    /// How long a stale subscriber is left alone after it was announced. Default: 24 h; `0s` acts without announcing.
    #[serde(with = "humantime_serde")]
    pub grace: Option<Duration>,
    /// Allow acts on subscribers that their owner carries out whether the subscriber is back or not: all acts on JetStream's consumers.
    /// Without it they are only reported.
    pub allow_unguarded: bool,
}

/// An opt-out as it is written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProtectText {
    /// Who asked.
    pub by: String,
    /// Until when, RFC 3339.
    #[serde(default)]
    pub until: Option<jiff::Timestamp>,
}

/// The bus over NATS.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatsConfig {
    /// Addresses, `nats://host:port`; or `spawn` to start a server for this process alone.
    pub url: Option<String>,
    /// User name.
    pub user: Option<String>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
    /// File with the seed of an nkey.
    pub nkey_file: Option<PathBuf>,
    /// Credentials file (JWT).
    pub creds_file: Option<PathBuf>,
    /// PEM certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate.
    pub cert_file: Option<PathBuf>,
    /// PEM key of that certificate.
    pub key_file: Option<PathBuf>,
    /// Prefix of this client's inboxes.
    pub inbox_prefix: Option<String>,
    /// Replicas of streams that are made.
    pub replicas: usize,
    /// Make streams and consumers that do not exist; otherwise only check them.
    pub create: bool,
}

impl Default for NatsConfig {
    fn default() -> Self {
        NatsConfig {
            url: None,
            user: None,
            password_file: None,
            nkey_file: None,
            creds_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            inbox_prefix: None,
            replicas: 1,
            create: true,
        }
    }
}

/// Keys.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KeysConfig {
    /// File with this process's seed (`trimtab keys new`). Needed by deciders and executors over NATS.
    pub seed_file: Option<PathBuf>,
    /// Public keys of the deciders that executors obey.
    pub trusted_deciders: Vec<String>,
    /// Public keys of the executors whose outcomes are recorded.
    pub trusted_executors: Vec<String>,
}

/// The HTTP server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpConfig {
    /// Address to listen on, `127.0.0.1:8222`. No server when absent.
    pub listen: Option<std::net::SocketAddr>,
    /// File with a token that `POST` requests must carry as a bearer. Needed for any other address than loopback.
    pub token_file: Option<PathBuf>,
}

/// The console, on the HTTP server's address.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsoleConfig {
    /// File with who may log in, one a line: name, role (`viewer` or `operator`), and `sha256:` with the hash of their token, as
    /// `trimtab console token` prints it.
    pub tokens_file: Option<PathBuf>,
    /// Header in which a reverse proxy says who asks. It is believed only from `trusted_proxies`.
    pub identity_header: Option<String>,
    /// Addresses (`10.0.0.7`, `10.0.0.0/24`) of proxies whose `identity_header` is believed.
    pub trusted_proxies: Vec<String>,
    /// Names in that header that may act. Everybody else may look.
    pub operators: Vec<String>,
    /// Names under which the console may be called, besides IP addresses and localhost.
    pub hosts: Vec<String>,
    /// People reach it by https, through a proxy: cookies are sent back over https only.
    pub behind_tls: bool,
}

impl ConsoleConfig {
    /// Whether people have to say who they are.
    pub fn asks_who(&self) -> bool {
        self.tokens_file.is_some() || self.identity_header.is_some()
    }
}

/// Traces.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Base address of an OTLP receiver over HTTP, `http://host:4318`. `OTEL_EXPORTER_OTLP_ENDPOINT` is understood too.
    pub otlp_endpoint: Option<String>,
    /// Where a trace can be looked at; `{trace_id}` is replaced.
    pub trace_link: Option<String>,
}

impl Config {
    /// Reads a file, if one is given, and the environment over it.
    ///
    /// # Errors
    /// Names the key and where it was set.
    pub fn load(file: Option<&Path>) -> Result<Config, ConfigError> {
        let mut sources = config::Config::builder();
        if let Some(file) = file {
            sources = sources.add_source(config::File::from(file).format(config::FileFormat::Toml));
        }
        let lists = [
            "pulsar.admin",
            "pulsar.service",
            "pulsar.allowed_hosts",
            "pulsar.system_cursors",
            "keys.trusted_deciders",
            "keys.trusted_executors",
        ];
        let mut environment = config::Environment::with_prefix("TRIMTAB")
            .prefix_separator("_")
            .separator("__")
            .try_parsing(true)
            .list_separator(",");
        for key in lists {
            environment = environment.with_list_parse_key(key);
        }
        // `TRIMTAB_CONFIG` names the file itself, `TRIMTAB_TEST_…` and the like are not settings.
        let own: BTreeMap<String, String> = std::env::vars()
            .filter(|(name, _)| {
                name.strip_prefix("TRIMTAB_").is_some_and(|rest| rest.contains("__") || is_top_level(rest))
            })
            .collect();
        let environment = environment.source(Some(own.into_iter().collect()));
        let built = sources.add_source(environment).build().map_err(|e| ConfigError(e.to_string()))?;
        let mut config: Config = built.try_deserialize().map_err(|e| ConfigError(e.to_string()))?;
        // An empty variable is a list with nothing in it, not with one empty name.
        for list in [
            &mut config.keys.trusted_deciders,
            &mut config.keys.trusted_executors,
            &mut config.pulsar.admin,
            &mut config.pulsar.service,
        ] {
            list.retain(|entry| !entry.is_empty());
        }
        config.check()?;
        Ok(config)
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        let share = |name: &str, value: f64| {
            let why = || ConfigError(format!("caps.{name} is {value}; it is a share, from 0 to 1"));
            if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(why()) }
        };
        share("max_share", self.caps.max_share)?;
        share("max_shrink", self.caps.max_shrink)?;
        let names = [
            ("pulsar", &self.pulsar.name),
            ("hedwig", &self.hedwig.name),
            ("bookkeeper", &self.bookkeeper.name),
            ("jetstream", &self.jetstream.name),
        ];
        for (system, name) in names {
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
                return Err(ConfigError(format!("{system}.name is {name:?}; use lower-case letters, digits and -")));
            }
        }
        // The scans of the two would take each other's leases and requests.
        if self.bookkeeper.name == self.pulsar.name {
            return Err(ConfigError(format!(
                "bookkeeper.name is {:?}, as pulsar.name is; they must differ",
                self.pulsar.name
            )));
        }
        if !(2..=KEPT as u32).contains(&self.bookkeeper.sightings) {
            let why = format!("bookkeeper.sightings is {}; it is a number from 2 to {KEPT}", self.bookkeeper.sightings);
            return Err(ConfigError(why));
        }
        if self.jetstream.probe > Duration::from_secs(8) || self.jetstream.probe < Duration::from_secs(2) {
            let probe = self.jetstream.probe;
            return Err(ConfigError(format!("jetstream.probe is {probe:?}; it must be from 2 s to 8 s")));
        }
        if self.follow.enabled && self.system != System::Pulsar {
            let why = "follow.enabled is for Pulsar: only its metadata in ZooKeeper tells what changes. Leave it out, and set every";
            return Err(ConfigError(why.to_owned()));
        }
        if self.follow.interval < Duration::from_millis(100) || self.follow.interval > Duration::from_secs(3600) {
            let interval = self.follow.interval;
            return Err(ConfigError(format!("follow.interval is {interval:?}; it must be from 100 ms to 1 h")));
        }
        if let Some(listen) = self.http.listen.filter(|listen| !listen.ip().is_loopback())
            && self.http.token_file.is_none()
            && !self.console.asks_who()
        {
            let why =
                format!("http.listen is {listen}, which others can reach: set http.token_file, or listen on 127.0.0.1");
            return Err(ConfigError(why));
        }
        crate::console::Access::check(&self.console).map_err(ConfigError)?;
        if let Some(webhook) = &self.notify.webhook {
            crate::notify::Notify::new(webhook, None).map_err(ConfigError)?;
        }
        self.policy().map(|_| ())
    }

    /// The policy, with the hash that names it.
    ///
    /// # Errors
    /// When a rule is not valid.
    pub fn policy(&self) -> Result<Policy, ConfigError> {
        let mut rules =
            self.rules.iter().enumerate().map(|(index, rule)| rule.compiled(index)).collect::<Result<Vec<_>, _>>()?;
        if self.system == System::Bookkeeper {
            // What is said of the cluster's topics is said of their ledgers.
            for rule in rules.iter_mut().filter(|rule| rule.target.as_ref() == Some(&self.pulsar.name)) {
                rule.target = Some(self.bookkeeper.name.clone());
            }
        }
        let default = PolicyConfig::default();
        let config = PolicyConfig {
            rules,
            age_rule: self.age_rule,
            protect: self.protect.clone().unwrap_or(default.protect),
            valid_s: self.decision_valid.map_or(default.valid_s, whole_seconds),
            orphans: OrphanRules {
                min_age_s: whole_seconds(self.bookkeeper.min_age),
                sightings: self.bookkeeper.sightings,
                grace_s: whole_seconds(self.bookkeeper.grace),
                absent_topics: self.bookkeeper.absent_topics,
                gc_wait_s: whole_seconds(self.bookkeeper.gc_wait),
            },
        };
        let text = serde_json::to_string(&config).map_err(|e| ConfigError(e.to_string()))?;
        let hash = trimtab_events::key_of("policy", &text);
        Policy::new(config, hash).map_err(|e| ConfigError(e.to_string()))
    }

    /// The time between two full scans where changes are followed.
    pub fn follow_every(&self) -> Duration {
        self.every.unwrap_or(Duration::from_secs(24 * 3600))
    }

    /// Name of the target in events, records and rules.
    pub fn target(&self) -> &str {
        match self.system {
            System::Pulsar => &self.pulsar.name,
            System::Hedwig => &self.hedwig.name,
            System::Bookkeeper => &self.bookkeeper.name,
            System::JetStream => &self.jetstream.name,
        }
    }

    /// Name of the cluster that the target is a part of: what shares its metadata store's limit, and the wishes about its topics.
    pub fn cluster(&self) -> &str {
        match self.system {
            System::Pulsar | System::Bookkeeper => &self.pulsar.name,
            System::Hedwig => &self.hedwig.name,
            System::JetStream => &self.jetstream.name,
        }
    }

    /// Where the record and the embedded state are kept.
    ///
    /// # Errors
    /// When no folder is set and none can be guessed.
    pub fn state_dir(&self) -> Result<PathBuf, ConfigError> {
        let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        self.state_dir
            .clone()
            .or_else(|| from("STATE_DIRECTORY"))
            .or_else(|| from("XDG_STATE_HOME").map(|dir| dir.join("trimtab")))
            .or_else(|| from("HOME").map(|dir| dir.join(".local/state/trimtab")))
            .ok_or_else(|| ConfigError("no folder for the record is known: set state_dir (or --state-dir)".to_owned()))
    }
}

fn whole_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

fn is_top_level(rest: &str) -> bool {
    ["MODE", "SYSTEM", "STATE_DIR", "EVERY", "AGE_RULE", "DECISION_VALID"].contains(&rest)
}

impl RuleText {
    fn compiled(&self, index: usize) -> Result<Rule, ConfigError> {
        let seconds = |d: Option<Duration>| d.map(whole_seconds);
        let name = if self.name.is_empty() { format!("rules[{index}]") } else { self.name.clone() };
        let bytes = |field: &str, text: &Option<String>| {
            let parse =
                |text: &String| parse_bytes(text).map_err(|why| ConfigError(format!("rule {name}: {field}: {why}")));
            text.as_ref().map(parse).transpose()
        };
        Ok(Rule {
            topics: self.topics.clone(),
            target: self.target.clone(),
            action: self.action,
            protect: self.protect.as_ref().map(|protect| Protect {
                by: protect.by.clone(),
                until_ms: protect.until.map(|until| until.as_millisecond()),
            }),
            retention_s: seconds(self.retention),
            retention_bytes: bytes("size", &self.size)?,
            ttl_s: seconds(self.ttl),
            overrides: self.overrides,
            min_reclaim_bytes: bytes("min_reclaim", &self.min_reclaim)?.unwrap_or(0),
            subscriptions: self.subscription.clone(),
            stale_after_s: seconds(self.stale_after),
            sightings: self.sightings,
            trust: self.trust,
            grace_s: seconds(self.grace),
            allow_unguarded: self.allow_unguarded,
            name,
        })
    }
}

/// Reads an amount of bytes: `512`, `10MiB`, `1.5 GB`.
///
/// # Errors
/// When it is none.
pub fn parse_bytes(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is not an amount of bytes such as 10MiB"))?;
    let factor = match unit.trim() {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        other => return Err(format!("{other:?} is not a unit of bytes; use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")),
    };
    let bytes = number * factor;
    if bytes < 9e18 { Ok(bytes as i64) } else { Err(format!("{text:?} is too much")) }
}

/// An amount of bytes for a person.
pub fn show_bytes(bytes: i64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// A secret from a file, without the line end.
///
/// # Errors
/// When the file cannot be read.
pub fn secret(path: &Path) -> Result<String, ConfigError> {
    let text = std::fs::read_to_string(path);
    text.map(|text| text.trim_end().to_owned())
        .map_err(|e| ConfigError(format!("{} cannot be read: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        Config::load(Some(file.path()))
    }

    #[test]
    fn an_empty_file_is_the_default() {
        let config = load("").unwrap();
        assert_eq!((config.mode, config.limits.metadata_rate, config.caps.max_acts), (RunMode::DryRun, 200.0, 1000));
    }

    #[test]
    fn a_full_rule() {
        let config = load(
            r#"
            [[rules]]
            name = "orders"
            match = ["acme/orders/*"]
            retention = "30d"
            size = "10GiB"
            ttl = "0s"
            override = true
            min_reclaim = "1 MB"
            protect = { by = "ops", until = "2027-01-01T00:00:00Z" }
            "#,
        )
        .unwrap();
        let rule = config.rules[0].compiled(0).unwrap();
        assert_eq!((rule.retention_s, rule.retention_bytes, rule.ttl_s), (Some(2_592_000), Some(10 << 30), Some(0)));
        assert_eq!((rule.min_reclaim_bytes, rule.overrides), (1_000_000, true));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("metadta_rate = 1", "metadta_rate"),
            ("[limits]\nmetadata_rate = \"x\"", "metadata_rate"),
            ("[[rules]]\nsize = \"10 XB\"", "XB"),
            ("[[rules]]\nmatch = [\"[\"]", "glob"),
            ("[caps]\nmax_share = 2.0", "max_share"),
            ("[http]\nlisten = \"0.0.0.0:1\"", "token_file"),
            ("[pulsar]\nname = \"A b\"", "pulsar.name"),
            ("[jetstream]\nname = \"\"", "jetstream.name"),
            ("[jetstream]\nprobe = \"1s\"", "jetstream.probe"),
            ("[follow]\ninterval = \"0s\"", "follow.interval"),
            ("system = \"hedwig\"\n[follow]\nenabled = true", "follow.enabled"),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn amounts() {
        assert_eq!(parse_bytes("1.5 GiB"), Ok(1_610_612_736));
        assert_eq!(parse_bytes("512"), Ok(512));
        assert!(parse_bytes("-1").is_err() && parse_bytes("x").is_err() && parse_bytes("99999999999TB").is_err());
        assert_eq!(show_bytes(1536), "1.5 KiB");
    }

    #[test]
    fn a_policy_is_named_by_what_it_says() {
        let hash = |text: &str| load(text).unwrap().policy().unwrap().hash().to_owned();
        assert_eq!(hash(""), hash("[limits]\nmetadata_rate = 1.0"));
        assert_ne!(hash(""), hash("[[rules]]\nttl = \"1d\""));
    }
}
