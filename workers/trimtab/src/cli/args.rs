//! The arguments.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, CommandFactory, Parser, Subcommand, ValueEnum};
use trimtab_events::Scope;

use super::Usage;
use super::broker_conf;
use super::recover::RecoverArgs;
use super::recovery::RecoveryArgs;
use crate::config::{Config, RunMode, System, parse_bytes};

/// Gives back the storage that log and ledger based messaging systems never reclaim by themselves.
#[derive(Debug, Parser)]
#[command(name = "trimtab", version, propagate_version = true, after_help = EXIT_CODES)]
pub struct Args {
    /// What every command understands.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done or nothing to do, 1 failed, 2 wrong arguments or configuration, \
3 stopped by a safety limit, 4 done in part, 5 there is something to reclaim (plan --detailed-exitcode).

At SIGTERM or SIGINT a role takes no more work, finishes what it has begun (for at most 25 s, a scanner for 1 s), hands back the rest, and \
ends with 0 within 30 s. What was cut off comes again. A second signal ends it at once, with 130.";

/// The definition, for completions and man pages.
pub fn command() -> clap::Command {
    Args::command()
}

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables for a person.
    #[default]
    Text,
    /// JSON for a program.
    Json,
}

/// What every command understands.
#[derive(Debug, ClapArgs)]
pub struct Global {
    /// Configuration file (TOML)
    #[arg(long, global = true, env = "TRIMTAB_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How results are printed
    #[arg(long, global = true, value_enum, default_value_t)]
    pub output: Output,
    /// Folder of the record and the embedded state
    #[arg(long, global = true, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// A broker's configuration: its defaults, and PIP-219's fullScanTrimLedgerInterval (seconds, as --every) and
    /// fullScanMaximumMetadataConcurrencyPerSecond (as --metadata-rate)
    #[arg(long, global = true, value_name = "FILE")]
    pub broker_conf: Option<PathBuf>,
}

impl Global {
    /// The configuration: file, environment, broker's configuration.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let mut config = Config::load(self.config.as_deref())?;
        if let Some(file) = &self.broker_conf {
            broker_conf::apply(&mut config, file)?;
        }
        if let Some(dir) = &self.state_dir {
            config.state_dir = Some(dir.clone());
        }
        Ok(config)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what would be reclaimed, and why; reads only
    Plan(PlanArgs),
    /// Carry out a saved plan: exactly its items, each only while it is still true
    Apply(ApplyArgs),
    /// Scan, decide and (with --apply) act, once or every so often, all in this process
    Run(RunArgs),
    /// Write the metadata that planning needs to a file
    Snapshot(SnapshotArgs),
    /// Recover the log dirs of a stopped Kafka broker, in parallel, before it starts again
    Recover(RecoverArgs),
    /// Ask running scanners for a scan, over NATS
    Scan(ScanArgs),
    /// Let a scan's decisions be carried out that a limit has stopped
    Confirm(ConfirmArgs),
    /// Leave a topic or a subscriber alone, whatever the rules say; or list and take back such wishes
    Protect(ProtectArgs),
    /// Take an act back, while what it needs for that exists
    Undo(UndoArgs),
    /// Run as a scanner over NATS
    Scanner(RoleArgs),
    /// Run as a decider over NATS
    Decider(RoleArgs),
    /// Run as an executor over NATS
    Executor(RoleArgs),
    /// Run as a worker that verifies segments of log dirs over NATS, for `recover`
    Recovery(RecoveryArgs),
    /// Serve a page that shows what would be freed and why, and on which plans are reviewed, approved and watched
    Console(Box<ConsoleArgs>),
    /// Look at the record, or (audit run) keep it over NATS
    Audit(AuditArgs),
    /// Ask a process on this host, by its HTTP server, whether it is alive; for containers without a shell
    Health(HealthArgs),
    /// Say of everything that is configured whether it is there, lets us in and keeps our time, and what to do if not; reads only
    Doctor(DoctorArgs),
    /// Write, check or explain the configuration
    Config(ConfigArgs),
    /// Make signing keys
    Keys(KeysArgs),
    /// Set up or check the streams
    Nats(NatsArgs),
    /// Look at events that were given up over NATS; put them back, or take them away
    Dead(DeadArgs),
    /// See it on a nats-server of its own: makes an abandoned consumer, plans, acts, and shows the record
    #[cfg(feature = "nats")]
    Demo,
    /// Write the schemas of all events
    Schemas(SchemasArgs),
    /// Print completions for a shell
    Completions(CompletionsArgs),
    /// Write man pages
    Man(ManArgs),
}

impl Command {
    /// The role, for traces and logs.
    pub(crate) fn role(&self) -> &'static str {
        match self {
            Command::Run(_) => "run",
            Command::Console(_) => "console",
            Command::Scanner(_) => "scanner",
            Command::Decider(_) => "decider",
            Command::Executor(_) => "executor",
            Command::Audit(_) => "audit",
            Command::Recover(_) => "recover",
            Command::Recovery(_) => "recovery",
            _ => "cli",
        }
    }
}

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Ledgers that topics keep for nobody, and stale subscribers
    Topic,
    /// Ledgers of BookKeeper that nothing names any more
    Orphan,
}

/// Where a target is read from and how fast.
#[derive(Debug, Default, ClapArgs)]
pub struct SourceArgs {
    /// Where the metadata is: zk://host:port,host:port/chroot for Pulsar, hedwig+zk://host:port for a region of Hedwig; or
    /// nats://host:port for the streams of NATS servers
    #[arg(long, value_name = "ADDRESS")]
    pub from: Option<String>,
    /// What is looked for: `topic` (default), or `orphan` for ledgers of a Pulsar cluster that nothing names
    #[arg(long, value_enum, value_name = "KIND")]
    pub kind: Option<Kind>,
    /// Policies that topics set for themselves: JSON, topic → {"retention": [minutes, MB], "ttl": seconds}; taken to be
    /// complete
    #[arg(long, value_name = "FILE")]
    pub topic_policies: Option<PathBuf>,
    /// Ask brokers for the policies of topics, and where subscriptions of loaded topics stand; the question can load topics, so the
    /// evidence is recorded first
    #[arg(long)]
    pub ask_brokers: bool,
    /// Metadata operations per second, over all scanners together; 0 is no limit
    #[arg(long, value_name = "N")]
    pub metadata_rate: Option<f64>,
    /// ZooKeeper sessions
    #[arg(long, value_name = "N")]
    pub sessions: Option<usize>,
    /// Web address of a broker, http(s)://host:port; may be repeated
    #[arg(long, value_name = "URL")]
    pub admin: Vec<String>,
    /// File with the token for brokers
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// PEM certificate authorities for https to brokers
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Further host:port that brokers may redirect to; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub allowed_host: Vec<String>,
}

impl SourceArgs {
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), Usage> {
        match self.from.as_deref().map(|from| (from, from.strip_prefix("hedwig+"))) {
            Some((_, Some(region))) => {
                config.system = System::Hedwig;
                config.hedwig.metadata = Some(region.to_owned());
            }
            Some((from, None)) if ["nats://", "tls://"].iter().any(|scheme| from.starts_with(scheme)) => {
                config.system = System::JetStream;
                config.jetstream.url = Some(from.to_owned());
            }
            Some((from, None)) => {
                if matches!(config.system, System::Hedwig | System::JetStream) {
                    config.system = System::Pulsar;
                }
                config.pulsar.metadata = Some(from.to_owned());
            }
            None => {}
        }
        match (self.kind, config.system) {
            (Some(Kind::Orphan), System::Pulsar) => config.system = System::Bookkeeper,
            (Some(Kind::Topic), System::Bookkeeper) => config.system = System::Pulsar,
            (Some(Kind::Orphan), System::Hedwig) => {
                return Err(Usage(
                    "orphan ledgers of Hedwig are not looked for; --kind orphan is about a Pulsar cluster".to_owned(),
                ));
            }
            (Some(Kind::Orphan), System::JetStream) => {
                return Err(Usage("NATS has no ledgers; --kind orphan is about a Pulsar cluster".to_owned()));
            }
            _ => {}
        }
        let pulsar = &mut config.pulsar;
        set(&mut pulsar.topic_policies_file, &self.topic_policies);
        set(&mut pulsar.token_file, &self.token_file);
        set(&mut pulsar.ca_file, &self.ca_file);
        pulsar.ask_brokers |= self.ask_brokers;
        if !self.admin.is_empty() {
            pulsar.admin.clone_from(&self.admin);
        }
        pulsar.allowed_hosts.extend(self.allowed_host.iter().cloned());
        config.limits.metadata_rate = self.metadata_rate.unwrap_or(config.limits.metadata_rate);
        config.limits.sessions = self.sessions.unwrap_or(config.limits.sessions);
        Ok(())
    }
}

fn set<T: Clone>(to: &mut Option<T>, from: &Option<T>) {
    if from.is_some() {
        to.clone_from(from);
    }
}

/// What part of a target is looked at.
#[derive(Debug, Default, ClapArgs)]
pub struct ScopeArgs {
    /// Only this tenant
    #[arg(long, value_name = "TENANT", conflicts_with_all = ["namespace", "topic"])]
    pub tenant: Option<String>,
    /// Only this namespace, tenant/namespace
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "topic")]
    pub namespace: Option<String>,
    /// Only this topic, persistent://tenant/namespace/topic
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// Only topics that match this glob over tenant/namespace/topic; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// No topics that match this glob; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
}

impl ScopeArgs {
    pub(crate) fn scope(&self) -> Scope {
        Scope {
            tenant: self.tenant.clone(),
            namespace: self.namespace.clone(),
            topic: self.topic.clone(),
            topics: Vec::new(),
            include: self.include.clone(),
            exclude: self.exclude.clone(),
        }
    }
}

/// Limits on what is carried out.
#[derive(Debug, Default, ClapArgs)]
pub struct CapArgs {
    /// Most acts of one scan
    #[arg(long, value_name = "N")]
    pub max_acts: Option<u64>,
    /// Most bytes freed by one scan (10GiB)
    #[arg(long, value_name = "BYTES")]
    pub max_bytes: Option<String>,
    /// Largest share of the topics and bytes seen, 0 to 1
    #[arg(long, value_name = "SHARE")]
    pub max_share: Option<f64>,
    /// How much fewer topics than in the last scan may be seen, 0 to 1
    #[arg(long, value_name = "SHARE")]
    pub max_shrink: Option<f64>,
}

impl CapArgs {
    pub(crate) fn apply(&self, config: &mut Config) -> anyhow::Result<()> {
        let caps = &mut config.caps;
        caps.max_acts = self.max_acts.unwrap_or(caps.max_acts);
        caps.max_share = self.max_share.unwrap_or(caps.max_share);
        caps.max_shrink = self.max_shrink.unwrap_or(caps.max_shrink);
        if let Some(text) = &self.max_bytes {
            let bytes = parse_bytes(text).map_err(|why| Usage(format!("--max-bytes: {why}")))?;
            caps.max_bytes = u64::try_from(bytes).unwrap_or(0);
        }
        Ok(config.check()?)
    }
}

/// A point in time, RFC 3339.
#[derive(Debug, Clone, Copy)]
pub struct Moment(pub i64);

impl std::str::FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        let parsed: Result<jiff::Timestamp, _> = text.parse();
        parsed
            .map(|at| Moment(at.as_millisecond()))
            .map_err(|e| format!("expected a time such as 2027-01-31T08:00:00Z: {e}"))
    }
}

/// Arguments of `plan`.
#[derive(Debug, ClapArgs)]
pub struct PlanArgs {
    /// Plan from a snapshot file instead of a live cluster
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    pub snapshot: Option<PathBuf>,
    /// Where it is read from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// What is looked at.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// The moment that ages count from (default: now; for a snapshot that says so, when it was taken)
    #[arg(long, value_name = "RFC3339")]
    pub now: Option<Moment>,
    /// Show kept topics as well, with their reasons; with a topic, only that one
    #[arg(long, value_name = "TOPIC", num_args = 0..=1, default_missing_value = "")]
    pub explain: Option<String>,
    /// Save the plan, for `apply`
    #[arg(short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Remember what is seen of subscribers and of ledgers that nothing names, so that later plans and runs know for how long nothing has changed
    #[arg(long)]
    pub remember: bool,
    /// Exit with 5 when there is something to reclaim
    #[arg(long)]
    pub detailed_exitcode: bool,
}

/// Arguments of `apply`.
#[derive(Debug, ClapArgs)]
pub struct ApplyArgs {
    /// The plan
    #[arg(value_name = "FILE")]
    pub plan: PathBuf,
    /// Where the target is.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Limits.
    #[command(flatten)]
    pub caps: CapArgs,
}

/// Arguments of `run`.
#[derive(Debug, ClapArgs)]
pub struct RunArgs {
    /// Act; without it, only look
    #[arg(long)]
    pub apply: bool,
    /// Again after this time (1h, 30min); once when absent
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub every: Option<Duration>,
    /// Between full scans (--every, 24h when absent) look only at what has changed or fallen due; with --apply
    #[arg(long)]
    pub follow: bool,
    /// Where the target is.
    #[command(flatten)]
    pub source: SourceArgs,
    /// What is looked at.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Limits.
    #[command(flatten)]
    pub caps: CapArgs,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

/// The bus and the server.
#[derive(Debug, Default, ClapArgs)]
pub struct BusArgs {
    /// Go over NATS: an address, or `spawn` to start a server for this process alone
    #[arg(long, global = true, value_name = "URL")]
    pub nats: Option<String>,
    /// Serve health, metrics and webhooks here (127.0.0.1:8222)
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub http: Option<SocketAddr>,
}

impl BusArgs {
    pub(crate) fn apply(&self, config: &mut Config) {
        set(&mut config.nats.url, &self.nats);
        set(&mut config.http.listen, &self.http);
    }
}

/// The configuration of whatever works on, as `run` and the roles do: where, over which bus, whether to act, how often.
fn working(
    global: &Global,
    source: &SourceArgs,
    bus: &BusArgs,
    apply: bool,
    every: Option<Duration>,
    follow: bool,
) -> anyhow::Result<Config> {
    let mut config = global.config()?;
    source.apply(&mut config)?;
    bus.apply(&mut config);
    if apply {
        config.mode = RunMode::Apply;
    }
    config.every = every.or(config.every);
    config.follow.enabled |= follow;
    Ok(config)
}

impl RunArgs {
    pub(crate) fn config(&self, global: &Global) -> anyhow::Result<Config> {
        let mut config = working(global, &self.source, &self.bus, self.apply, self.every, self.follow)?;
        self.caps.apply(&mut config)?;
        Ok(config)
    }
}

/// Arguments of `console`.
#[derive(Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ConsoleArgs {
    /// What else to do.
    #[command(subcommand)]
    pub command: Option<ConsoleCommand>,
    /// Carry out plans that are approved on it: in this process, or over NATS signed with --seed-file
    #[arg(long)]
    pub apply: bool,
    /// Look again after this time; otherwise at the start and when somebody asks
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub every: Option<Duration>,
    /// Plan from a snapshot file instead of a live cluster; nothing can be approved then
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "apply"])]
    pub snapshot: Option<PathBuf>,
    /// Over NATS: file with the seed of a key that executors obey as a decider's
    #[arg(long, value_name = "FILE")]
    pub seed_file: Option<PathBuf>,
    /// Over NATS: public key of an executor whose outcomes are shown; may be repeated
    #[arg(long, value_name = "KEY")]
    pub trust_executor: Vec<String>,
    /// Where the target is.
    #[command(flatten)]
    pub source: SourceArgs,
    /// What is looked at.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Limits.
    #[command(flatten)]
    pub caps: CapArgs,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

/// What else `console` can do.
#[derive(Debug, Subcommand)]
pub enum ConsoleCommand {
    /// Make a token for somebody: prints it, and the line for console.tokens_file
    Token {
        /// Their name; goes into the record
        name: String,
        /// viewer or operator
        #[arg(long, default_value = "viewer")]
        role: String,
    },
}

impl ConsoleArgs {
    pub(crate) fn config(&self, global: &Global) -> anyhow::Result<Config> {
        let mut config = working(global, &self.source, &self.bus, self.apply, self.every, false)?;
        set(&mut config.keys.seed_file, &self.seed_file);
        config.keys.trusted_executors.extend(self.trust_executor.iter().cloned());
        self.caps.apply(&mut config)?;
        Ok(config)
    }
}

/// Arguments of a role.
#[derive(Debug, ClapArgs)]
pub struct RoleArgs {
    /// Act (executors do not start without it)
    #[arg(long)]
    pub apply: bool,
    /// Scanners: scan again after this time
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub every: Option<Duration>,
    /// Scanners: between full scans (--every, 24h when absent) look only at what has changed or fallen due
    #[arg(long)]
    pub follow: bool,
    /// End, with exit code 0, once the queue of this role had nothing for so long: for workers that something starts when there is work
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub exit_when_idle: Option<Duration>,
    /// Name of this process in records (default: host and process id)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// File with this process's signing seed
    #[arg(long, value_name = "FILE")]
    pub seed_file: Option<PathBuf>,
    /// Public key of a decider to obey; may be repeated
    #[arg(long, value_name = "KEY")]
    pub trust_decider: Vec<String>,
    /// Public key of an executor whose outcomes are recorded; may be repeated
    #[arg(long, value_name = "KEY")]
    pub trust_executor: Vec<String>,
    /// Where the target is.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Limits.
    #[command(flatten)]
    pub caps: CapArgs,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

impl RoleArgs {
    pub(crate) fn config(&self, global: &Global) -> anyhow::Result<Config> {
        let mut config = working(global, &self.source, &self.bus, self.apply, self.every, self.follow)?;
        set(&mut config.keys.seed_file, &self.seed_file);
        config.keys.trusted_deciders.extend(self.trust_decider.iter().cloned());
        config.keys.trusted_executors.extend(self.trust_executor.iter().cloned());
        self.caps.apply(&mut config)?;
        Ok(config)
    }
}

/// Arguments of `snapshot`.
#[derive(Debug, ClapArgs)]
pub struct SnapshotArgs {
    /// Where it is read from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// What is looked at.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// The file; .gz and .zst are compressed
    #[arg(short = 'o', value_name = "FILE")]
    pub out: PathBuf,
}

/// Arguments of `scan`.
#[derive(Debug, ClapArgs)]
pub struct ScanArgs {
    /// What is looked at.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Wait for its end and print its report
    #[arg(long)]
    pub wait: bool,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

/// Arguments of `confirm`.
#[derive(Debug, ClapArgs)]
pub struct ConfirmArgs {
    /// The scan
    pub scan: uuid::Uuid,
    /// Who confirms it; goes into the record
    #[arg(long, value_name = "NAME")]
    pub by: String,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

/// Arguments of `protect`.
#[derive(Debug, ClapArgs)]
pub struct ProtectArgs {
    /// A topic (with all its subscribers), or one subscriber as plans and records name it: TOPIC?subscription=NAME
    #[arg(value_name = "SUBJECT", required_unless_present = "list")]
    pub subject: Option<String>,
    /// Who asks for it; goes into the record
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    pub by: Option<String>,
    /// Until when (default: until it is taken back)
    #[arg(long, value_name = "RFC3339", conflicts_with = "remove")]
    pub until: Option<Moment>,
    /// Take the wish back
    #[arg(long)]
    pub remove: bool,
    /// List the wishes, and what was announced to be acted on
    #[arg(long, conflicts_with_all = ["subject", "by", "remove"])]
    pub list: bool,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

/// Arguments of `undo`.
#[derive(Debug, ClapArgs)]
pub struct UndoArgs {
    /// The decision that was carried out, as `audit list` shows it
    #[arg(value_name = "ID")]
    pub decision: uuid::Uuid,
    /// Who takes it back; goes into the record
    #[arg(long, value_name = "NAME")]
    pub by: String,
    /// Where the target is.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Which record.
    #[command(flatten)]
    pub file: AuditFile,
}

/// Arguments of `audit`.
#[derive(Debug, ClapArgs)]
pub struct AuditArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: AuditCommand,
}

/// What `audit` can do.
#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// List acts and scans, newest last
    List(AuditListArgs),
    /// Show everything recorded of one decision, scan, topic or trace
    Show(AuditShowArgs),
    /// Check the chain of hashes
    Verify(AuditVerifyArgs),
    /// Run as the audit role over NATS
    Run(Box<RoleArgs>),
}

/// Which record is read.
#[derive(Debug, ClapArgs)]
pub struct AuditFile {
    /// A journal file (default: all in the state folder)
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Arguments of `audit list`.
#[derive(Debug, ClapArgs)]
pub struct AuditListArgs {
    /// Which record.
    #[command(flatten)]
    pub file: AuditFile,
    /// Only topics that contain this
    #[arg(long, value_name = "TEXT")]
    pub subject: Option<String>,
}

/// Arguments of `audit show`.
#[derive(Debug, ClapArgs)]
pub struct AuditShowArgs {
    /// A decision's or scan's id, a topic, or a trace id
    pub what: String,
    /// Which record.
    #[command(flatten)]
    pub file: AuditFile,
}

/// Arguments of `audit verify`.
#[derive(Debug, ClapArgs)]
pub struct AuditVerifyArgs {
    /// Which record.
    #[command(flatten)]
    pub file: AuditFile,
    /// RECORDS:HEAD as an earlier `audit verify` printed it: finds a tail that was cut since
    #[arg(long, value_name = "RECORDS:HEAD", requires = "file")]
    pub since: Option<String>,
}

/// Arguments of `config`.
#[derive(Debug, ClapArgs)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Arguments of `health`.
#[derive(Debug, ClapArgs)]
pub struct HealthArgs {
    /// Where it listens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8222")]
    pub http: SocketAddr,
    /// Whether it can take work, rather than whether it runs
    #[arg(long)]
    pub ready: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, ClapArgs)]
pub struct DoctorArgs {
    /// Where the target is.
    #[command(flatten)]
    pub source: SourceArgs,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

/// Arguments of `config init`.
#[derive(Debug, ClapArgs)]
pub struct InitArgs {
    /// The file; one that exists is left as it is
    #[arg(value_name = "FILE", default_value = "trimtab.toml")]
    pub file: PathBuf,
    /// Ask nothing, and take what would be proposed
    #[arg(long)]
    pub defaults: bool,
}

/// What `config` can do.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Ask a few questions and write a commented file
    Init(InitArgs),
    /// Check it and print the effective values
    Check,
    /// Say which rule applies to a topic
    Explain {
        /// The topic
        topic: String,
    },
}

/// Arguments of `keys`.
#[derive(Debug, ClapArgs)]
pub struct KeysArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What `keys` can do.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Write a new seed to a file that only its owner can read, and print its public key
    New {
        /// The file
        file: PathBuf,
    },
    /// Print the public key of a seed
    Public {
        /// The file
        file: PathBuf,
    },
}

/// Arguments of `nats`.
#[derive(Debug, ClapArgs)]
pub struct NatsArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: NatsCommand,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

/// What `nats` can do.
#[derive(Debug, Clone, Subcommand)]
pub enum NatsCommand {
    /// Make the streams, consumers and buckets that do not exist
    Setup {
        /// Make nothing, and ask no server: write the definitions into this folder, for `nats stream add --config` and `nats consumer add
        /// --config`, and print those commands
        #[arg(long, value_name = "DIR")]
        print: Option<PathBuf>,
    },
    /// Check them
    Check,
    /// Move to the dead letters what the servers stopped delivering because nobody ever settled it
    Bury {
        /// Again and again, at this distance, until stopped
        #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
        every: Option<Duration>,
    },
}

/// Arguments of `dead`.
#[derive(Debug, ClapArgs)]
pub struct DeadArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DeadCommand,
    /// The bus.
    #[command(flatten)]
    pub bus: BusArgs,
}

/// What can be done with events that were given up.
#[derive(Debug, Clone, Subcommand)]
pub enum DeadCommand {
    /// List them, the newest last
    List {
        /// The most
        #[arg(long, value_name = "NUMBER", default_value_t = 1000)]
        limit: usize,
    },
    /// Show one, and the event as it was
    Show {
        /// Its number, as `list` shows it
        id: String,
    },
    /// Put events back into their queues, once what made them fail is mended
    Retry {
        /// Their numbers
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Take them away for good. Nothing is lost by it that the next scan does not find again
    Drop {
        /// Their numbers
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

/// Arguments of `schemas`.
#[derive(Debug, ClapArgs)]
pub struct SchemasArgs {
    /// The folder
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Arguments of `completions`.
#[derive(Debug, ClapArgs)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, ClapArgs)]
pub struct ManArgs {
    /// The folder
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
