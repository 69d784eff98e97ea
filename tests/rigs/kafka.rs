//! One Kafka broker (KRaft, broker and controller in one process) on loopback, a client that takes commands, and Kafka's
//! own log loader as a judge of recovered log dirs.
//!
//! ```no_run
//! # use trimtab_tests::kafka::KafkaRig;
//! # fn main() -> anyhow::Result<()> {
//! let mut rig = KafkaRig::builder().start()?;
//! let mut client = rig.client()?;
//! client.run("create t 1")?;
//! client.run("fill t 1 none 1000000 500 8192 1")?;
//! rig.kill9()?;
//! // rig.log_dir() is unclean now
//! # Ok(()) }
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::cache;
use crate::java::JavaClient;
use crate::ports::Port;
use crate::process::{Process, Spec};

const POM: &str = include_str!("java/kafka/pom.xml");
const LOGGING: &str = include_str!("java/kafka/log4j2.properties");
const SOURCES: [(&str, &str); 2] = [
    ("KafkaLoader.java", include_str!("java/kafka/KafkaLoader.java")),
    ("KafkaClient.java", include_str!("java/kafka/KafkaClient.java")),
];
/// 16 bytes in URL-safe base64.
const CLUSTER_ID: &str = "dHJpbXRhYi1rYWZrYS1yaQ";

/// The class path of broker, client and judge, our classes in front.
fn classpath() -> Result<String> {
    let kafka = cache::maven_classpath("kafka", POM)?;
    let ours = cache::java_jar("kafka-rig", &SOURCES, &kafka, "")?;
    Ok(format!("{}:{kafka}", ours.display()))
}

fn java(name: &str, folder: &Path, heap_mb: u32, class: &str, args: &[String]) -> Result<Spec> {
    let logging = folder.join("log4j2.properties");
    fs::write(&logging, LOGGING).with_context(|| format!("writing {}", logging.display()))?;
    let level = if class == "kafka.Kafka" { "INFO" } else { "WARN" };
    let mut all = vec![
        format!("-Xmx{heap_mb}m"),
        "-XX:+UseSerialGC".to_owned(),
        "-XX:-UsePerfData".to_owned(),
        "-Djava.net.preferIPv4Stack=true".to_owned(),
        format!("-Dlog4j2.configurationFile={}", logging.display()),
        format!("-Drig.level={level}"),
        "-cp".to_owned(),
        classpath()?,
        class.to_owned(),
    ];
    all.extend_from_slice(args);
    Ok(Spec {
        name: name.to_owned(),
        program: "java".into(),
        args: all,
        env: Vec::new(),
        folder: folder.to_path_buf(),
        log: folder.join(format!("{name}.log")),
    })
}

/// What a [`KafkaRig`] is to be like.
#[derive(Debug)]
pub struct Builder {
    settings: Vec<String>,
    heap_mb: u32,
    log_dirs: Option<Vec<PathBuf>>,
    ports: Option<(Port, Port)>,
    folder: Option<PathBuf>,
}

impl Builder {
    /// A line of server.properties.
    pub fn setting(mut self, line: &str) -> Self {
        self.settings.push(line.to_owned());
        self
    }

    /// Megabytes of heap; 512 by default.
    pub fn heap_mb(mut self, heap_mb: u32) -> Self {
        self.heap_mb = heap_mb;
        self
    }

    /// Uses (and if need be formats) these log dirs.
    pub fn log_dirs(mut self, dirs: &[&Path]) -> Self {
        self.log_dirs = Some(dirs.iter().map(|dir| dir.to_path_buf()).collect());
        self
    }

    /// Keeps everything below this folder instead of a temporary one.
    pub fn folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_path_buf());
        self
    }

    /// Uses the ports of a rig that is gone, so that its clients find this one.
    pub fn ports(mut self, ports: (Port, Port)) -> Self {
        self.ports = Some(ports);
        self
    }

    /// Starts the broker and waits until it serves.
    pub fn start(self) -> Result<KafkaRig> {
        let temporary = TempDir::new().context("creating the rig's folder")?;
        let folder = self.folder.unwrap_or_else(|| temporary.path().to_path_buf());
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let log_dirs = self.log_dirs.unwrap_or_else(|| vec![folder.join("logs")]);
        let ports = match self.ports {
            Some(ports) => ports,
            None => (Port::take()?, Port::take()?),
        };
        let properties = folder.join("server.properties");
        fs::write(&properties, server_properties(&log_dirs, &ports, &self.settings))?;
        let mut rig = KafkaRig {
            folder,
            properties,
            log_dirs,
            ports,
            heap_mb: self.heap_mb,
            process: None,
            _temporary: temporary,
        };
        rig.start()?;
        Ok(rig)
    }
}

fn server_properties(log_dirs: &[PathBuf], ports: &(Port, Port), more: &[String]) -> String {
    let (client, controller) = (ports.0.number(), ports.1.number());
    let dirs: Vec<String> = log_dirs.iter().map(|dir| dir.display().to_string()).collect();
    let mut lines = vec![
        "process.roles=broker,controller".to_owned(),
        "node.id=1".to_owned(),
        format!("controller.quorum.voters=1@127.0.0.1:{controller}"),
        format!("listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}"),
        format!("advertised.listeners=PLAINTEXT://127.0.0.1:{client}"),
        "controller.listener.names=CONTROLLER".to_owned(),
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
        format!("log.dirs={}", dirs.join(",")),
    ];
    // One replica of everything, small internal topics, nothing that changes files while a test looks at them, and no
    // recovery point but that of a clean stop, so that everything since counts as unflushed.
    let small = "offsets.topic.replication.factor=1 offsets.topic.num.partitions=2 transaction.state.log.replication.factor=1 \
                 transaction.state.log.min.isr=1 transaction.state.log.num.partitions=2 \
                 share.coordinator.state.topic.replication.factor=1 share.coordinator.state.topic.min.isr=1 \
                 group.initial.rebalance.delay.ms=0 num.network.threads=2 num.io.threads=4 \
                 log.cleaner.dedupe.buffer.size=4194304 auto.create.topics.enable=false \
                 log.retention.check.interval.ms=86400000 log.cleaner.backoff.ms=86400000 \
                 log.flush.offset.checkpoint.interval.ms=86400000 log.flush.start.offset.checkpoint.interval.ms=86400000 \
                 log.initial.task.delay.ms=86400000";
    lines.extend(small.split_whitespace().map(str::to_owned));
    lines.extend_from_slice(more);
    lines.join("\n") + "\n"
}

/// A broker and its log dirs.
#[derive(Debug)]
pub struct KafkaRig {
    folder: PathBuf,
    properties: PathBuf,
    log_dirs: Vec<PathBuf>,
    ports: (Port, Port),
    heap_mb: u32,
    process: Option<Process>,
    _temporary: TempDir,
}

impl KafkaRig {
    /// A new rig's settings.
    pub fn builder() -> Builder {
        Builder { settings: Vec::new(), heap_mb: 512, log_dirs: None, ports: None, folder: None }
    }

    /// Starts the broker (again) and waits until it serves.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the broker runs already");
        if !self.log_dirs[0].join("meta.properties").exists() {
            self.format()?;
        }
        let log = self.log();
        if log.exists() {
            fs::rename(&log, self.folder.join(format!("broker-{}.log", crate::now_ms())))?;
        }
        let args = [self.properties.display().to_string()];
        let spec = java("broker", &self.folder, self.heap_mb, "kafka.Kafka", &args)?;
        let mut process = Process::start(&spec)?;
        process.wait_until(Duration::from_secs(120), || {
            fs::read_to_string(&log).is_ok_and(|text| text.contains("Kafka Server started"))
        })?;
        self.process = Some(process);
        Ok(())
    }

    fn format(&self) -> Result<()> {
        let args = ["format", "--cluster-id", CLUSTER_ID, "--config"].map(str::to_owned);
        let mut args = args.to_vec();
        args.push(self.properties.display().to_string());
        let spec = java("format", &self.folder, 128, "kafka.tools.StorageTool", &args)?;
        let mut command = Command::new(&spec.program);
        command.args(&spec.args).current_dir(&spec.folder);
        cache::run(&mut command, "install a JDK, 17 or newer").context("formatting the log dirs")?;
        Ok(())
    }

    /// The broker's log since its last start.
    pub fn log(&self) -> PathBuf {
        self.folder.join("broker.log")
    }

    /// The text of that log.
    pub fn log_text(&self) -> Result<String> {
        let log = self.log();
        fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))
    }

    /// The first log dir.
    pub fn log_dir(&self) -> &Path {
        &self.log_dirs[0]
    }

    /// All log dirs.
    pub fn log_dirs(&self) -> &[PathBuf] {
        &self.log_dirs
    }

    /// The broker's server.properties.
    pub fn properties(&self) -> &Path {
        &self.properties
    }

    /// The broker's process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// A client of this broker.
    pub fn client(&self) -> Result<JavaClient> {
        let address = format!("127.0.0.1:{}", self.ports.0.number());
        JavaClient::start(&java("client", &self.folder, 384, "KafkaClient", &[address])?)
    }

    /// Kills the broker without warning.
    pub fn kill9(&mut self) -> Result<()> {
        match self.process.take() {
            Some(mut process) => process.kill9(),
            None => bail!("the broker does not run"),
        }
    }

    /// Stops the broker cleanly.
    pub fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the broker does not run")?;
        process.stop()?;
        Ok(())
    }
}

/// Kafka's own loader in a process that serves many loads.
#[derive(Debug)]
pub struct Loader {
    java: JavaClient,
    _folder: TempDir,
}

/// What the loader said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// A broker starts: wall and CPU time of the loading.
    Well {
        /// Wall time in milliseconds.
        ms: u64,
        /// CPU time of the process in milliseconds.
        cpu_ms: u64,
    },
    /// A broker does not start, or takes the dir offline, and why.
    Not(String),
}

/// How the loader is to load.
#[derive(Clone, Debug)]
pub struct Load<'a> {
    /// The log dirs.
    pub dirs: Vec<&'a Path>,
    /// Recovery threads.
    pub threads: usize,
    /// The clock.
    pub now_ms: i64,
    /// Broker-wide topic settings, `key:value`.
    pub defaults: Vec<String>,
    /// Topic settings, `name:key:value`.
    pub topics: Vec<String>,
}

impl Loader {
    /// Starts it.
    pub fn start() -> Result<Self> {
        let folder = TempDir::new().context("creating the loader's folder")?;
        let java = JavaClient::start(&java("loader", folder.path(), 512, "KafkaLoader", &[])?)?;
        Ok(Self { java, _folder: folder })
    }

    /// Loads log dirs and closes them as a clean stop does.
    pub fn load(&mut self, load: &Load<'_>) -> Result<Loaded> {
        let mut command = format!("load threads={} now={}", load.threads, load.now_ms);
        for dir in &load.dirs {
            command += &format!(" dir={}", dir.display());
        }
        for setting in &load.defaults {
            command += &format!(" default={setting}");
        }
        for setting in &load.topics {
            command += &format!(" topic={setting}");
        }
        let answer = self.java.run(&command)?;
        let number = |key: &str| answer.split_whitespace().find_map(|w| w.strip_prefix(key)?.parse().ok());
        if answer.starts_with("loaded") {
            Ok(Loaded::Well { ms: number("ms=").unwrap_or(0), cpu_ms: number("cpu=").unwrap_or(0) })
        } else {
            Ok(Loaded::Not(answer))
        }
    }
}

/// Copies a folder, holes in files kept.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.args(["-a", "--sparse=always"]).arg(from).arg(to);
    cache::run(&mut command, "install coreutils").map(|_| ())
}

/// What makes an unclean log dir: a name for the cache, settings of the broker, and the rounds of commands for the client.
/// Each round but the last ends with a clean stop, the last with `kill -9`.
#[derive(Clone, Debug)]
pub struct Mess<'a> {
    /// Name in the cache.
    pub name: &'a str,
    /// Lines of server.properties.
    pub settings: &'a [&'a str],
    /// Commands of [`KafkaRig::client`].
    pub rounds: Vec<Vec<String>>,
    /// Megabytes of heap.
    pub heap_mb: u32,
}

/// The log dir that a [`Mess`] leaves, made once and kept in the cache; and the time when it was made.
pub fn mess(mess: &Mess<'_>) -> Result<(PathBuf, i64)> {
    let commands: Vec<&str> = mess.rounds.iter().flatten().map(String::as_str).collect();
    let texts = [POM, SOURCES[1].1, include_str!("kafka.rs")];
    let key = cache::key(texts.into_iter().chain(mess.settings.iter().copied()).chain(commands));
    let folder = cache::entry(
        &format!("kafka/{}-{key}", mess.name),
        |folder| folder.join("made").is_file(),
        |folder| make_mess(mess, folder),
    )?;
    let made = fs::read_to_string(folder.join("made"))?.trim().parse().context("reading when it was made")?;
    Ok((folder.join("logs"), made))
}

fn make_mess(mess: &Mess<'_>, folder: &Path) -> Result<()> {
    let started = Instant::now();
    let mut builder = KafkaRig::builder().heap_mb(mess.heap_mb);
    for line in mess.settings {
        builder = builder.setting(line);
    }
    let mut rig = builder.start()?;
    for (i, round) in mess.rounds.iter().enumerate() {
        let mut client = rig.client()?;
        client.run_all(round.iter().map(String::as_str)).context("filling the broker")?;
        // The client goes without closing anything, so that open transactions stay open.
        drop(client);
        if i + 1 < mess.rounds.len() {
            rig.stop()?;
            rig.start()?;
        }
    }
    rig.kill9()?;
    copy(rig.log_dir(), &folder.join("logs"))?;
    fs::write(folder.join("made"), crate::now_ms().to_string())?;
    eprintln!("rig: made Kafka mess {} in {} s", mess.name, started.elapsed().as_secs());
    Ok(())
}
