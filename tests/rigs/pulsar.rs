//! A Pulsar cluster on loopback: ZooKeeper, one bookie, one or two brokers, each a JVM of its own.
//!
//! ```no_run
//! # use trimtab_tests::pulsar::{Part, PulsarRig};
//! # fn main() -> anyhow::Result<()> {
//! let mut rig = PulsarRig::builder().start()?;
//! rig.rest("PUT", "tenants/acme", Some(r#"{"allowedClusters":["rig"]}"#))?.ok()?;
//! rig.kill9(Part::Broker)?;
//! rig.start(Part::Broker)?;
//! # Ok(()) }
//! ```
//!
//! What differs from a usual broker: ten entries a ledger and no minimum age for rolling over, trimming every 10 s,
//! message expiry every minute, backlog quota every 20 s, cursor ledgers of 50 entries, inactive topics stay, delayed
//! messages in tiny buckets, transactions on. Any setting can be overridden. The bookie has a name instead of an address
//! (`rig-bookie`), so the state on disk does not care about ports.

mod config;
mod install;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::cache;
use crate::http::{self, Reply};
use crate::java::{CLOCK, JavaClient, Shift, clock_agent};
use crate::ports::Port;
use crate::process::Process;

pub(crate) const POM: &str = include_str!("java/pulsar/pom.xml");
const OFFLOADER: (&str, &str) = ("DiskOffloader.java", include_str!("java/pulsar/DiskOffloader.java"));
const CLIENT: [(&str, &str); 2] = [
    ("RigClient.java", include_str!("java/pulsar/RigClient.java")),
    ("Filler.java", include_str!("java/pulsar/Filler.java")),
];

const OWNERS: (&str, &str) = ("Owners.java", include_str!("java/pulsar/Owners.java"));

/// Everything that the state of a rig on disk depends on; the key of saved states.
pub(crate) const SOURCES: [&str; 6] =
    [POM, CLOCK.1, OFFLOADER.1, CLIENT[0].1, CLIENT[1].1, include_str!("pulsar/config.rs")];

/// The cluster's name.
pub const CLUSTER: &str = "rig";
/// The role that may do everything.
pub const SUPERUSER: &str = "admin";

/// One of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The metadata store.
    ZooKeeper,
    /// The storage node.
    Bookie,
    /// The first broker.
    Broker,
    /// The second broker.
    Broker2,
}

impl Part {
    const ALL: [Self; 4] = [Self::ZooKeeper, Self::Bookie, Self::Broker, Self::Broker2];

    fn name(self) -> &'static str {
        match self {
            Self::ZooKeeper => "zookeeper",
            Self::Bookie => "bookie",
            Self::Broker => "broker",
            Self::Broker2 => "broker2",
        }
    }
}

/// What a [`PulsarRig`] is to be like.
#[derive(Debug, Clone)]
pub struct Builder {
    parts: Vec<Part>,
    settings: BTreeMap<String, String>,
    bookie_settings: BTreeMap<String, String>,
    clock: Shift,
    tokens: bool,
    tls: bool,
    heaps: BTreeMap<Part, u32>,
    state: Option<PathBuf>,
}

impl Builder {
    /// Starts a second broker as well.
    pub fn two_brokers(mut self) -> Self {
        self.parts = Part::ALL.to_vec();
        self
    }

    /// Starts only these parts; the others can follow with [`PulsarRig::start`].
    pub fn only(mut self, parts: &[Part]) -> Self {
        self.parts = parts.to_vec();
        self
    }

    /// Starts ZooKeeper alone: metadata without anybody who would act on it, for scans of many topics.
    pub fn null_metadata(self) -> Self {
        self.only(&[Part::ZooKeeper])
    }

    /// A broker setting, over the rig's own.
    pub fn setting(mut self, key: &str, value: &str) -> Self {
        self.settings.insert(key.into(), value.into());
        self
    }

    /// A setting of the bookie, over the rig's own.
    pub fn bookie_setting(mut self, key: &str, value: &str) -> Self {
        self.bookie_settings.insert(key.into(), value.into());
        self
    }

    /// The clock of the processes.
    pub fn clock(mut self, shift: Shift) -> Self {
        self.clock = shift;
        self
    }

    /// Brokers ask for tokens; [`PulsarRig::token`] makes them.
    pub fn tokens(mut self) -> Self {
        self.tokens = true;
        self
    }

    /// Brokers serve their admin API by TLS, too ([`PulsarRig::web_tls`], [`PulsarRig::ca`]).
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// The heap of a part in megabytes, where the usual one (256, brokers 512) is too small: a ZooKeeper with 100,000
    /// topics wants a gigabyte.
    pub fn heap_mb(mut self, part: Part, megabytes: u32) -> Self {
        self.heaps.insert(part, megabytes);
        self
    }

    /// Begins with the state that [`PulsarRig::save`] packed.
    pub fn restore(mut self, archive: &Path) -> Self {
        self.state = Some(archive.into());
        self
    }

    /// Boots it and waits until everything answers.
    pub fn start(self) -> Result<PulsarRig> {
        PulsarRig::boot(self)
    }
}

#[derive(Debug)]
struct Ports {
    zookeeper: Port,
    bookie: Port,
    bookie_http: Port,
    /// For each broker: binary, web, web by TLS.
    brokers: [[Port; 3]; 2],
}

/// A running cluster. Dropping it kills every process and removes its folder.
#[derive(Debug)]
pub struct PulsarRig {
    // the processes go before their folder and ports do
    processes: BTreeMap<Part, Process>,
    settings: BTreeMap<String, String>,
    bookie_settings: BTreeMap<String, String>,
    clock: Shift,
    secret: Option<String>,
    tls: bool,
    heaps: BTreeMap<Part, u32>,
    classpath: String,
    agent: PathBuf,
    ports: Ports,
    folder: TempDir,
}

impl PulsarRig {
    /// A rig of ZooKeeper, bookie and one broker, without authentication, unless told otherwise.
    pub fn builder() -> Builder {
        Builder {
            parts: vec![Part::ZooKeeper, Part::Bookie, Part::Broker],
            settings: BTreeMap::new(),
            bookie_settings: BTreeMap::new(),
            clock: Shift::NONE,
            tokens: false,
            tls: false,
            heaps: BTreeMap::new(),
            state: None,
        }
    }

    fn boot(builder: Builder) -> Result<Self> {
        let classpath = cache::maven_classpath("pulsar", POM)?;
        let agent = clock_agent(&classpath)?;
        let folder =
            tempfile::Builder::new().prefix("trimtab-pulsar-").tempdir().context("creating the rig's folder")?;
        for name in ["zookeeper", "bookie/journal", "bookie/ledgers", "nar", "offload", "log", "tmp"] {
            fs::create_dir_all(folder.path().join(name))?;
        }
        if let Some(archive) = &builder.state {
            let mut tar = Command::new("tar");
            tar.arg("-xzf").arg(archive).arg("-C").arg(folder.path());
            cache::run(&mut tar, "install tar and gzip").context("unpacking a saved state")?;
        }
        let broker = || Ok::<_, anyhow::Error>([Port::take()?, Port::take()?, Port::take()?]);
        let secret = builder.tokens.then(|| {
            // Not to keep anybody out: the rig lives on loopback for as long as a test runs.
            format!("{:x}", Sha256::digest(folder.path().to_string_lossy().as_bytes()))
        });
        let mut rig = Self {
            processes: BTreeMap::new(),
            settings: builder.settings,
            bookie_settings: builder.bookie_settings,
            clock: builder.clock,
            secret,
            tls: builder.tls,
            heaps: builder.heaps,
            classpath,
            agent,
            ports: Ports {
                zookeeper: Port::take()?,
                bookie: Port::take()?,
                bookie_http: Port::take()?,
                brokers: [broker()?, broker()?],
            },
            folder,
        };
        rig.prepare()?;
        for part in Part::ALL {
            if builder.parts.contains(&part) {
                rig.start(part)?;
            }
        }
        if builder.state.is_some() && builder.parts.contains(&Part::Broker) {
            rig.announce_cluster()?;
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

    /// The first broker's admin address, `http://host:port`.
    pub fn web(&self) -> String {
        format!("http://{}", self.ports.brokers[0][1].address())
    }

    /// The second broker's admin address.
    pub fn web2(&self) -> String {
        format!("http://{}", self.ports.brokers[1][1].address())
    }

    /// The first broker's admin address by TLS; needs [`Builder::tls`].
    pub fn web_tls(&self) -> String {
        format!("https://{}", self.ports.brokers[0][2].address())
    }

    /// The certificate (PEM) that the TLS address is to be trusted by; needs [`Builder::tls`].
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("certificate.pem")
    }

    /// The first broker's binary address, `pulsar://host:port`.
    pub fn service(&self) -> String {
        format!("pulsar://{}", self.ports.brokers[0][0].address())
    }

    /// The second broker's binary address.
    pub fn service2(&self) -> String {
        format!("pulsar://{}", self.ports.brokers[1][0].address())
    }

    /// The bookie's HTTP address.
    pub fn bookie_http(&self) -> String {
        format!("http://{}", self.ports.bookie_http.address())
    }

    // ---- processes

    /// Starts a part that does not run and waits until it answers.
    pub fn start(&mut self, part: Part) -> Result<()> {
        if let Some(process) = self.processes.get_mut(&part)
            && process.runs()
        {
            bail!("{} runs already", part.name());
        }
        let (heap_mb, main, args, within) = match part {
            Part::ZooKeeper => {
                self.write("zookeeper.cfg", &self.zookeeper_config())?;
                let main = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
                (256, main, vec!["zookeeper.cfg".to_owned()], 60)
            }
            Part::Bookie => {
                self.set_up_cluster()?;
                let own = self.bookie_config();
                let set =
                    |line: &&str| line.split_once('=').is_some_and(|(key, _)| self.bookie_settings.contains_key(key));
                let kept = own.lines().filter(|line| !set(line)).map(str::to_owned);
                let lines: Vec<String> =
                    kept.chain(self.bookie_settings.iter().map(|(key, value)| format!("{key}={value}"))).collect();
                self.write("bookie.conf", &lines.join("\n"))?;
                let main = "org.apache.bookkeeper.server.Main";
                (256, main, vec!["--conf".into(), "bookie.conf".into()], 90)
            }
            Part::Broker | Part::Broker2 => {
                let file = format!("{}.conf", part.name());
                self.write(&file, &self.broker_config(part)?)?;
                let main = "org.apache.pulsar.PulsarBrokerStarter";
                (512, main, vec!["-c".into(), file], 180)
            }
        };
        let heap_mb = self.heaps.get(&part).copied().unwrap_or(heap_mb);
        let mut process = Process::start(&self.java(part.name(), heap_mb, main, &args)?)?;
        let ready: Box<dyn Fn() -> bool> = match part {
            Part::ZooKeeper => {
                let address = self.zk();
                // "ruok" says yes before requests are served
                Box::new(move || four_letters(&address, "srvr").is_ok_and(|s| s.contains("Zxid")))
            }
            Part::Bookie => {
                let url = format!("{}/heartbeat", self.bookie_http());
                Box::new(move || answers_ok(&url, None))
            }
            Part::Broker | Part::Broker2 => {
                let web = if part == Part::Broker { self.web() } else { self.web2() };
                let token = self.secret.as_ref().map(|_| self.token(SUPERUSER)).transpose()?;
                let url = format!("{web}/admin/v2/brokers/ready");
                Box::new(move || answers_ok(&url, token.as_deref()))
            }
        };
        process.wait_until(Duration::from_secs(within), ready)?;
        self.processes.insert(part, process);
        Ok(())
    }

    /// Stops a part in good order; nothing happens when it does not run.
    pub fn stop(&mut self, part: Part) -> Result<()> {
        if let Some(mut process) = self.processes.remove(&part) {
            process.stop()?;
        }
        Ok(())
    }

    /// Stops whatever runs, in the order in which the parts need each other.
    pub fn stop_all(&mut self) -> Result<()> {
        Part::ALL.iter().rev().try_for_each(|part| self.stop(*part))
    }

    /// Kills a part without warning.
    pub fn kill9(&mut self, part: Part) -> Result<()> {
        self.process(part)?.kill9()?;
        self.processes.remove(&part);
        Ok(())
    }

    /// Stops a part in good order and starts it again.
    pub fn restart(&mut self, part: Part) -> Result<()> {
        self.stop(part)?;
        self.start(part)
    }

    /// The process of a part that was started, to freeze, thaw or watch it.
    pub fn process(&mut self, part: Part) -> Result<&mut Process> {
        self.processes.get_mut(&part).with_context(|| format!("{} does not run", part.name()))
    }

    /// The clock of whatever is started from now on.
    pub fn set_clock(&mut self, shift: Shift) {
        self.clock = shift;
    }

    /// A broker setting for whatever broker is started from now on.
    pub fn set(&mut self, key: &str, value: &str) {
        self.settings.insert(key.into(), value.into());
    }

    // ---- talking to it

    /// A call of the first broker's admin API: `path` is what follows `/admin/v2/`. Redirects are followed.
    pub fn rest(&self, method: &str, path: &str, json: Option<&str>) -> Result<Reply> {
        let token = self.secret.as_ref().map(|_| self.token(SUPERUSER)).transpose()?;
        let url = format!("{}/admin/v2/{path}", self.web());
        http::request(method, &url, token.as_deref(), json)
    }

    /// The same as [`PulsarRig::rest`], as a role of one's choice (with [`Builder::tokens`]).
    pub fn rest_as(&self, role: &str, method: &str, path: &str, json: Option<&str>) -> Result<Reply> {
        let url = format!("{}/admin/v2/{path}", self.web());
        http::request(method, &url, Some(&self.token(role)?), json)
    }

    /// A client process that does what it is told; see [`JavaClient::run`].
    pub fn client(&self) -> Result<JavaClient> {
        self.client_through(&self.zk())
    }

    /// The same, with its ZooKeeper connection going to another address, a proxy's say.
    pub fn client_through(&self, zk: &str) -> Result<JavaClient> {
        self.java_client("RigClient", client_jar(&self.classpath)?, zk)
    }

    /// A client process that does what owners of ledgers do, described in `java/pulsar/Owners.java`. Without tokens.
    pub fn owners(&self) -> Result<JavaClient> {
        let jar = cache::java_jar("rig-owners", &[OWNERS], &self.classpath, "")?;
        self.java_client("Owners", jar, &self.zk())
    }

    fn java_client(&self, main: &str, jar: PathBuf, zk: &str) -> Result<JavaClient> {
        let mut args = vec![self.service(), zk.to_owned()];
        if self.secret.is_some() {
            args.push(self.token(SUPERUSER)?);
        }
        let mut spec = self.java("client", 256, main, &args)?;
        let cp =
            spec.args.iter_mut().find(|arg| **arg == self.classpath).context("no class path among the arguments")?;
        *cp = format!("{}:{}", self.classpath, jar.display());
        JavaClient::start(&spec)
    }

    /// ZooKeeper's own figures (`mntr`): `zk_packets_received`, `zk_znode_count` and so on.
    pub fn zk_figures(&self) -> Result<BTreeMap<String, String>> {
        Ok(four_letters(&self.zk(), "mntr")?
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(k, v)| (k.to_owned(), v.trim().to_owned()))
            .collect())
    }

    /// ZooKeeper's last transaction id: the same before and after means that nobody wrote anything.
    pub fn zk_last_zxid(&self) -> Result<u64> {
        let said = four_letters(&self.zk(), "srvr")?;
        let zxid = said.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).context("srvr names no zxid")?;
        u64::from_str_radix(zxid.trim(), 16).context("the zxid is no number")
    }

    /// Packs the state on disk of a stopped rig into a file for [`Builder::restore`].
    pub fn save(&mut self, archive: &Path) -> Result<()> {
        ensure!(self.processes.values_mut().all(|p| !p.runs()), "stop everything before saving the state");
        let mut tar = Command::new("tar");
        tar.arg("-czf").arg(archive).arg("-C").arg(self.folder.path());
        tar.args(["zookeeper", "bookie", "offload", "cluster-made"]);
        cache::run(&mut tar, "install tar and gzip").context("packing the state")?;
        Ok(())
    }
}

/// Fetches and compiles what a [`PulsarRig`] needs, without booting one.
pub fn install() -> Result<()> {
    let classpath = cache::maven_classpath("pulsar", POM)?;
    clock_agent(&classpath)?;
    install::offloader(&classpath)?;
    cache::java_jar("rig-owners", &[OWNERS], &classpath, "")?;
    client_jar(&classpath).map(drop)
}

pub(crate) fn client_jar(classpath: &str) -> Result<PathBuf> {
    cache::java_jar("rig-client", &CLIENT, classpath, "")
}

fn answers_ok(url: &str, token: Option<&str>) -> bool {
    http::once("GET", url, token, None, Duration::from_secs(3)).is_ok_and(|r| r.status == 200)
}

/// One of ZooKeeper's four-letter commands.
pub fn four_letters(address: &str, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(command.as_bytes())?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}
