//! A Hedwig region on loopback: ZooKeeper, one bookie, two hubs, each a JVM of its own; and if asked for a hub of another region.
//!
//! ```no_run
//! # use trimtab_tests::hedwig::{HedwigRig, Part};
//! # fn main() -> anyhow::Result<()> {
//! let mut rig = HedwigRig::builder().start()?;
//! let mut hands = rig.hands()?;
//! // Subscribers first: a hub that comes by while a topic has none never collects that topic's ledgers, until it is restarted.
//! hands.prepare("t", &["idle"])?;
//! hands.run("publish t 250")?;
//! rig.kill9(Part::Hub1)?;
//! # Ok(()) }
//! ```
//!
//! What differs from a usual hub: twenty messages a ledger, collection every second, no rebalancing, sessions of 6 s. Any setting
//! can be overridden. Hubs have no way to stop in good order: SIGTERM loses what they hold in memory just as SIGKILL does, and their
//! nodes stay until the session ends.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::cache;
use crate::java::{JavaClient, Shift, clock_agent, flags, self_signed, word};
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::pulsar::four_letters;

const POM: &str = include_str!("java/hedwig/pom.xml");
const OURS: [(&str, &str); 2] = [
    ("HedwigHands.java", include_str!("java/hedwig/HedwigHands.java")),
    ("NothingFilter.java", include_str!("java/hedwig/NothingFilter.java")),
];

/// The region's name.
pub const REGION: &str = "rig";
/// Where the region's topics are.
pub const TOPICS: &str = "/hedwig/rig/topics";

/// One of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The metadata store.
    ZooKeeper,
    /// The storage node.
    Bookie,
    /// The first hub.
    Hub1,
    /// The second hub.
    Hub2,
    /// The hub of region `remote`.
    Remote,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::ZooKeeper => "zookeeper",
            Self::Bookie => "bookie",
            Self::Hub1 => "hub1",
            Self::Hub2 => "hub2",
            Self::Remote => "remote",
        }
    }
}

/// What a [`HedwigRig`] is to be like.
#[derive(Debug, Clone)]
pub struct Builder {
    parts: Vec<Part>,
    settings: BTreeMap<String, String>,
    clock: Shift,
    tls: bool,
}

impl Builder {
    /// A hub setting, over the rig's own.
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.insert(key.into(), value.into());
        self
    }

    /// Starts a hub of another region as well; the regions know each other.
    pub fn remote(mut self) -> Self {
        self.parts.push(Part::Remote);
        self
    }

    /// Starts ZooKeeper alone.
    pub fn only_zookeeper(mut self) -> Self {
        self.parts = vec![Part::ZooKeeper];
        self
    }

    /// ZooKeeper's clock, which is the one that times of nodes come from.
    pub fn clock(mut self, shift: Shift) -> Self {
        self.clock = shift;
        self
    }

    /// Hubs serve TLS, too; [`HedwigRig::certificate`] is theirs.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Boots it and waits until everything answers.
    pub fn start(self) -> Result<HedwigRig> {
        HedwigRig::boot(self)
    }
}

#[derive(Debug)]
struct Ports {
    zookeeper: Port,
    bookie: Port,
    /// For each hub: plain, TLS.
    hubs: BTreeMap<Part, [Port; 2]>,
}

/// A running region. Dropping it kills every process and removes its folder.
#[derive(Debug)]
pub struct HedwigRig {
    // the processes go before their folder and ports do
    processes: BTreeMap<Part, Process>,
    parts: Vec<Part>,
    settings: BTreeMap<String, String>,
    clock: Shift,
    certificate: Option<String>,
    classpath: String,
    agent: PathBuf,
    ports: Ports,
    folder: TempDir,
}

/// Hedwig and our own classes.
fn classpath() -> Result<String> {
    let hedwig = cache::maven_classpath("hedwig", POM)?;
    let ours = cache::java_jar("hedwig-rig", &OURS, &hedwig, "")?;
    Ok(format!("{}:{hedwig}", ours.display()))
}

/// Fetches and compiles what a [`HedwigRig`] needs, without booting one.
pub fn install() -> Result<()> {
    clock_agent(&classpath()?).map(drop)
}

impl HedwigRig {
    /// A rig of ZooKeeper, bookie and two hubs, unless told otherwise.
    pub fn builder() -> Builder {
        Builder {
            parts: vec![Part::ZooKeeper, Part::Bookie, Part::Hub1, Part::Hub2],
            settings: BTreeMap::new(),
            clock: Shift::NONE,
            tls: false,
        }
    }

    fn boot(builder: Builder) -> Result<Self> {
        let classpath = classpath()?;
        let agent = clock_agent(&classpath)?;
        let folder =
            tempfile::Builder::new().prefix("trimtab-hedwig-").tempdir().context("creating the rig's folder")?;
        for name in ["zookeeper", "bookie", "log", "tmp"] {
            fs::create_dir_all(folder.path().join(name))?;
        }
        let hub = |part| Ok::<_, anyhow::Error>((part, [Port::take()?, Port::take()?]));
        let hubs = [Part::Hub1, Part::Hub2, Part::Remote].map(hub).into_iter().collect::<Result<_>>()?;
        let store = folder.path().join("keystore.p12");
        let mut rig = Self {
            processes: BTreeMap::new(),
            parts: builder.parts.clone(),
            settings: builder.settings,
            clock: builder.clock,
            certificate: builder.tls.then(|| self_signed(&store)).transpose()?,
            classpath,
            agent,
            ports: Ports { zookeeper: Port::take()?, bookie: Port::take()?, hubs },
            folder,
        };
        rig.write_shared_files()?;
        for part in builder.parts {
            rig.start(part)?;
        }
        Ok(rig)
    }

    // ---- addresses

    /// The rig's folder, gone when the rig is.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// ZooKeeper's `host:port`.
    pub fn zk(&self) -> String {
        self.ports.zookeeper.address()
    }

    /// A hub's address as it announces it, `host:port:sslport`.
    pub fn hub(&self, part: Part) -> String {
        let [plain, tls] = &self.ports.hubs[&part];
        format!("{}:{}", plain.address(), tls.number())
    }

    /// A hub's `host:port`.
    pub fn hub_plain(&self, part: Part) -> String {
        self.ports.hubs[&part][0].address()
    }

    /// The hubs' certificate (PEM); needs [`Builder::tls`].
    pub fn certificate(&self) -> &str {
        self.certificate.as_deref().unwrap_or_default()
    }

    // ---- processes

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    fn write_shared_files(&self) -> Result<()> {
        // Hub and bookie announce whatever this machine's own name resolves to.
        let name = rustix::system::uname();
        let name = name.nodename().to_string_lossy().into_owned();
        self.write("hosts", &format!("127.0.0.1 localhost\n127.0.0.1 {name}\n"))?;
        self.write(
            "log4j.properties",
            "log4j.rootLogger=${rig.level},out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n\
             log4j.appender.out.target=System.err\nlog4j.appender.out.layout=org.apache.log4j.PatternLayout\n\
             log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %-5p %c{1} - %m%n\n",
        )
    }

    fn java(&self, name: &str, heap_mb: u32, main: &str, args: &[String]) -> Spec {
        let folder = self.folder.path();
        let clock = if name == Part::ZooKeeper.name() { self.clock } else { Shift::NONE };
        let mut all = flags(heap_mb, clock, &self.agent);
        let file = |name: &str| folder.join(name).display().to_string();
        let hub = name.starts_with("hub") || name == Part::Remote.name();
        all.push(format!("-Djdk.net.hosts.file={}", file("hosts")));
        all.push(format!("-Dlog4j.configuration=file:{}", file("log4j.properties")));
        all.push(format!("-Drig.level={}", if hub { "INFO" } else { "WARN" }));
        all.push(format!("-Djava.io.tmpdir={}", file("tmp")));
        // A rig is thrown away; what matters is that a test does not wait for the disk.
        all.push("-Dzookeeper.forceSync=no".into());
        all.extend(["-cp".into(), self.classpath.clone(), main.into()]);
        all.extend_from_slice(args);
        Spec {
            name: name.into(),
            program: "java".into(),
            args: all,
            env: vec![],
            folder: folder.into(),
            log: folder.join(format!("log/{name}.log")),
        }
    }

    fn zookeeper_config(&self) -> String {
        format!(
            "tickTime=1000\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\nmaxClientCnxns=0\n",
            self.folder.path().join("zookeeper").display(),
            self.ports.zookeeper.number(),
        )
    }

    fn bookie_config(&self) -> String {
        let folder = self.folder.path().join("bookie");
        format!(
            "bookiePort={}\nallowLoopback=true\nzkServers={}\nzkTimeout=10000\njournalDirectory={}\n\
             ledgerDirectories={}\nlogSizeLimit=1048576\njournalMaxSizeMB=8\njournalMaxBackups=1\njournalPreAllocSizeMB=1\n\
             gcWaitTime=3000\nminorCompactionInterval=10\nmajorCompactionInterval=20\nflushInterval=500\npageLimit=256\n\
             skipListSizeLimit=8388608\ndiskUsageThreshold=0.999\ndiskUsageWarnThreshold=0.99\ndiskUsageLwmThreshold=0.99\n",
            self.ports.bookie.number(),
            self.zk(),
            folder.join("journal").display(),
            folder.join("ledgers").display(),
        )
    }

    fn hub_config(&self, part: Part) -> String {
        let [plain, tls] = &self.ports.hubs[&part];
        let (region, other) = if part == Part::Remote { ("remote", Part::Hub1) } else { (REGION, Part::Remote) };
        let both = self.parts.contains(&Part::Remote);
        let mut all: BTreeMap<&str, String> = BTreeMap::from([
            ("zk_host", self.zk()),
            ("zk_timeout", "6000".into()),
            ("server_port", plain.number().to_string()),
            ("ssl_server_port", tls.number().to_string()),
            ("ssl_enabled", self.certificate.is_some().to_string()),
            ("region", region.into()),
            ("regions", if both { self.hub(other) } else { String::new() }),
            ("max_entries_per_ledger", "20".into()),
            ("messages_consumed_thread_run_interval", "1000".into()),
            ("rebalance_interval_sec", "0".into()),
            ("bk_ensemble_size", "1".into()),
            ("bk_write_quorum_size", "1".into()),
            ("bk_ack_quorum_size", "1".into()),
            ("num_readahead_cache_threads", "1".into()),
            ("num_delivery_threads", "1".into()),
        ]);
        if self.certificate.is_some() {
            all.insert("cert_path", self.folder.path().join("keystore.p12").display().to_string());
            all.insert("password", "rig-password".into());
        }
        all.extend(self.settings.iter().map(|(key, value)| (key.as_str(), value.clone())));
        all.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
    }

    /// BookKeeper's metadata, once.
    fn format(&self) -> Result<()> {
        let mark = self.folder.path().join("formatted");
        if mark.exists() {
            return Ok(());
        }
        let args = ["-conf", "bookie.conf", "metaformat", "-nonInteractive"].map(str::to_owned);
        let spec = self.java("format", 64, "org.apache.bookkeeper.bookie.BookieShell", &args);
        let mut command = Command::new(&spec.program);
        command.args(&spec.args).current_dir(&spec.folder);
        cache::run(&mut command, "install a JDK, 17 or newer").context("formatting BookKeeper's metadata")?;
        fs::write(mark, "").context("noting that BookKeeper's metadata is formatted")
    }

    /// Starts a part that does not run and waits until it answers.
    pub fn start(&mut self, part: Part) -> Result<()> {
        if let Some(process) = self.processes.get_mut(&part)
            && process.runs()
        {
            bail!("{} runs already", part.name());
        }
        let name = part.name();
        let (heap_mb, main, args, address) = match part {
            Part::ZooKeeper => {
                self.write("zookeeper.cfg", &self.zookeeper_config())?;
                let main = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
                (128, main, vec!["zookeeper.cfg".to_owned()], self.zk())
            }
            Part::Bookie => {
                self.write("bookie.conf", &self.bookie_config())?;
                self.format()?;
                let main = "org.apache.bookkeeper.proto.BookieServer";
                (160, main, vec!["--conf".to_owned(), "bookie.conf".to_owned()], self.ports.bookie.address())
            }
            Part::Hub1 | Part::Hub2 | Part::Remote => {
                let file = format!("{name}.conf");
                self.write(&file, &self.hub_config(part))?;
                (160, "org.apache.hedwig.server.netty.PubSubServer", vec![file], self.hub_plain(part))
            }
        };
        let mut process = Process::start(&self.java(name, heap_mb, main, &args))?;
        process.wait_until(Duration::from_secs(90), || match part {
            Part::ZooKeeper => four_letters(&address, "srvr").is_ok_and(|said| said.contains("Zxid")),
            _ => TcpStream::connect(&address).is_ok(),
        })?;
        self.processes.insert(part, process);
        Ok(())
    }

    /// Stops a part; nothing happens when it does not run.
    pub fn stop(&mut self, part: Part) -> Result<()> {
        if let Some(mut process) = self.processes.remove(&part) {
            process.stop()?;
        }
        Ok(())
    }

    /// Kills a part without warning.
    pub fn kill9(&mut self, part: Part) -> Result<()> {
        self.process(part)?.kill9()?;
        self.processes.remove(&part);
        Ok(())
    }

    /// Stops a part and starts it again.
    pub fn restart(&mut self, part: Part) -> Result<()> {
        self.stop(part)?;
        self.start(part)
    }

    /// The process of a part that was started, to freeze, thaw or watch it.
    pub fn process(&mut self, part: Part) -> Result<&mut Process> {
        self.processes.get_mut(&part).with_context(|| format!("{} does not run", part.name()))
    }

    /// Stops everything, sets ZooKeeper's clock, and starts everything again: what is written from now on is of another day.
    pub fn move_clock(&mut self, shift: Shift) -> Result<()> {
        let parts: Vec<Part> = self.processes.keys().copied().collect();
        parts.iter().rev().try_for_each(|part| self.stop(*part))?;
        self.clock = shift;
        parts.into_iter().try_for_each(|part| self.start(part))
    }

    /// A hub setting for whatever hub is started from now on.
    pub fn set(&mut self, key: &str, value: &str) {
        self.settings.insert(key.into(), value.into());
    }

    // ---- talking to it

    /// Hedwig's own client in a process that does what it is told, going to the first hub first.
    pub fn hands(&self) -> Result<Hands> {
        self.hands_at(Part::Hub1)
    }

    /// The same, going to another hub first.
    pub fn hands_at(&self, part: Part) -> Result<Hands> {
        let args = [self.hub(part), self.zk()];
        Ok(Hands(JavaClient::start(&self.java(&format!("client-{}", part.name()), 128, "HedwigHands", &args))?))
    }

    /// ZooKeeper's last transaction id: the same before and after means that nobody wrote anything.
    pub fn zk_last_zxid(&self) -> Result<u64> {
        let said = four_letters(&self.zk(), "srvr")?;
        let zxid = said.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).context("srvr names no zxid")?;
        u64::from_str_radix(zxid.trim(), 16).context("the zxid is no number")
    }

    /// Whether a hub's log has a text since its first start.
    pub fn log_has(&self, part: Part, text: &str) -> bool {
        let log = self.folder.path().join(format!("log/{}.log", part.name()));
        fs::read_to_string(log).is_ok_and(|log| log.contains(text))
    }
}

/// Hedwig's own client; the commands are described in `java/hedwig/HedwigHands.java`.
#[derive(Debug)]
pub struct Hands(JavaClient);

/// A topic as Hedwig's own classes decode it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Ledger, first message, last message.
    pub ledgers: Vec<(i64, Option<u64>, Option<u64>)>,
    /// By name: pointer, version, time of the last write in milliseconds.
    pub subscribers: BTreeMap<String, (u64, i32, i64)>,
}

impl Shown {
    /// The end of the last closed ledger, 0 without one.
    pub fn last_closed(&self) -> u64 {
        self.ledgers.iter().filter_map(|(_, _, end)| *end).max().unwrap_or(0)
    }

    /// Ids of the ledgers.
    pub fn ids(&self) -> Vec<i64> {
        self.ledgers.iter().map(|(id, ..)| *id).collect()
    }
}

impl Hands {
    /// Does one command and returns what it had to tell.
    pub fn run(&mut self, command: &str) -> Result<String> {
        self.0.run(command)
    }

    /// Does several commands, one after the other.
    pub fn run_all<'a>(&mut self, commands: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>> {
        self.0.run_all(commands)
    }

    /// Subscribers at 0 of a topic that no hub has taken yet.
    pub fn prepare(&mut self, topic: &str, subscribers: &[&str]) -> Result<()> {
        let names: Vec<String> = subscribers.iter().map(|name| word(name)).collect();
        self.run(&format!("prepare {TOPICS} {} {}", word(topic), names.join(" "))).map(drop)
    }

    /// What an online subscriber has heard, once it is as wanted.
    pub fn heard(&mut self, name: &str, within: Duration, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let start = Instant::now();
        loop {
            let heard = self.run(&format!("heard {name}"))?;
            if wanted(&heard) {
                return Ok(heard);
            }
            ensure!(start.elapsed() < within, "{name} has heard only {heard} after {} s", within.as_secs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The process, to freeze or kill it.
    pub fn process(&mut self) -> &mut Process {
        self.0.process()
    }

    /// A topic's metadata.
    pub fn show(&mut self, topic: &str) -> Result<Shown> {
        self.show_at(TOPICS, topic)
    }

    /// A topic's metadata in another region.
    pub fn show_at(&mut self, root: &str, topic: &str) -> Result<Shown> {
        let told = self.run(&format!("show {root} {}", word(topic)))?;
        let part = |name: &str| {
            let found = told.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            found.map(|list| list.split(',').filter(|item| !item.is_empty()).collect::<Vec<_>>()).unwrap_or_default()
        };
        let number = |text: &str| (text != "-").then(|| text.parse()).transpose().context("not a number");
        let mut shown = Shown { ledgers: Vec::new(), subscribers: BTreeMap::new() };
        for ledger in part("ledgers") {
            let [id, start, end] = ledger.split(':').collect::<Vec<_>>()[..] else { bail!("not a ledger: {ledger}") };
            shown.ledgers.push((id.parse()?, number(start)?, number(end)?));
        }
        for sub in part("subs") {
            let [name, pointer, version, mtime] = sub.split(':').collect::<Vec<_>>()[..] else {
                bail!("not a subscriber: {sub}")
            };
            shown.subscribers.insert(name.to_owned(), (pointer.parse()?, version.parse()?, mtime.parse()?));
        }
        Ok(shown)
    }

    /// Ledgers that BookKeeper has.
    pub fn bookkeeper_ledgers(&mut self) -> Result<Vec<i64>> {
        let told = self.run("ls /ledgers")?;
        Ok(told.split(' ').filter_map(|name| name.strip_prefix('L')?.parse().ok()).collect())
    }

    /// Waits until a topic's metadata is as wanted.
    pub fn wait_for(&mut self, topic: &str, within: Duration, wanted: impl Fn(&Shown) -> bool) -> Result<Shown> {
        let start = Instant::now();
        loop {
            let shown = self.show(topic)?;
            if wanted(&shown) {
                return Ok(shown);
            }
            ensure!(start.elapsed() < within, "{topic} is not as wanted after {} s: {shown:?}", within.as_secs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
