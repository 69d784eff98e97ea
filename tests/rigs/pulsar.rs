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

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::cache;
use crate::http::{self, Reply};
use crate::java::{JavaClient, Shift, flags};
use crate::ports::Port;
use crate::process::{Process, Spec};

const POM: &str = include_str!("java/pulsar/pom.xml");
const CLOCK: (&str, &str) = ("ShiftedClock.java", include_str!("java/pulsar/ShiftedClock.java"));
const OFFLOADER: (&str, &str) = ("DiskOffloader.java", include_str!("java/pulsar/DiskOffloader.java"));
const CLIENT: [(&str, &str); 2] = [
    ("RigClient.java", include_str!("java/pulsar/RigClient.java")),
    ("Filler.java", include_str!("java/pulsar/Filler.java")),
];

/// Everything that the state of a rig on disk depends on; the key of saved states.
pub(crate) const SOURCES: [&str; 6] = [POM, CLOCK.1, OFFLOADER.1, CLIENT[0].1, CLIENT[1].1, include_str!("pulsar.rs")];

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
    clock: Shift,
    tokens: bool,
    tls: bool,
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
    clock: Shift,
    secret: Option<String>,
    tls: bool,
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
            clock: Shift::NONE,
            tokens: false,
            tls: false,
            state: None,
        }
    }

    fn boot(builder: Builder) -> Result<Self> {
        let classpath = cache::maven_classpath("pulsar", POM)?;
        let agent = cache::java_jar(
            "shifted-clock",
            &[CLOCK],
            &classpath,
            "Premain-Class: ShiftedClock\nCan-Retransform-Classes: true\n",
        )?;
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
            clock: builder.clock,
            secret,
            tls: builder.tls,
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
                self.write("bookie.conf", &self.bookie_config())?;
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

    /// A token for a role: [`SUPERUSER`] may do everything, any other name nothing until it is granted something.
    pub fn token(&self, role: &str) -> Result<String> {
        let secret = self.secret.as_ref().context("this rig asks for no tokens")?;
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let claims = serde_json::json!({ "sub": role }).to_string();
        let signed = format!("{}.{}", encode(br#"{"alg":"HS256"}"#), encode(claims.as_bytes()));
        let mac = hmac_sha256(secret.as_bytes(), signed.as_bytes());
        Ok(format!("{signed}.{}", encode(&mac)))
    }

    /// A client process that does what it is told; see [`JavaClient::run`].
    pub fn client(&self) -> Result<JavaClient> {
        self.client_through(&self.zk())
    }

    /// The same, with its ZooKeeper connection going to another address, a proxy's say.
    pub fn client_through(&self, zk: &str) -> Result<JavaClient> {
        let jar = cache::java_jar("rig-client", &CLIENT, &self.classpath, "")?;
        let mut args = vec![self.service(), zk.to_owned()];
        if self.secret.is_some() {
            args.push(self.token(SUPERUSER)?);
        }
        let mut spec = self.java("client", 256, "RigClient", &args)?;
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

    // ---- the inside

    /// The cluster's own record names ports; after a restore they are others.
    fn announce_cluster(&self) -> Result<()> {
        let json = serde_json::json!({ "serviceUrl": self.web(), "brokerServiceUrl": self.service() });
        self.rest("POST", &format!("clusters/{CLUSTER}"), Some(&json.to_string()))?
            .ok()
            .context("telling the cluster its new addresses")?;
        Ok(())
    }

    fn prepare(&self) -> Result<()> {
        self.write(
            "log4j2.xml",
            r#"<Configuration status="WARN">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="${sys:rig.level:-info}"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"#,
        )?;
        if let Some(secret) = &self.secret {
            self.write("token.secret", secret)?;
        }
        let offloader = cache::java_jar("disk-offloader", &[OFFLOADER], &self.classpath, "")?;
        let folder = self.folder.path();
        let tree = folder.join("nar-tree");
        for name in ["META-INF/services", "META-INF/bundled-dependencies"] {
            fs::create_dir_all(tree.join(name))?;
        }
        fs::create_dir_all(folder.join("offloaders"))?;
        fs::copy(offloader, tree.join("META-INF/bundled-dependencies/disk-offloader.jar"))?;
        fs::write(
            tree.join("META-INF/services/pulsar-offloader.yaml"),
            "name: disk\ndescription: one file a ledger\noffloaderFactoryClass: DiskOffloader\n",
        )?;
        let mut jar = Command::new("jar");
        jar.arg("cf").arg(folder.join("offloaders/disk.nar")).arg("-C").arg(&tree).arg(".");
        cache::run(&mut jar, "install a JDK, 17 or newer").context("packing the offloader")?;
        if self.tls {
            self.make_certificate()?;
        }
        Ok(())
    }

    fn make_certificate(&self) -> Result<()> {
        let store = self.folder.path().join("keystore.p12");
        let keytool = |args: &[&str]| {
            let mut keytool = Command::new("keytool");
            keytool.args(args).args(["-alias", "broker", "-storetype", "PKCS12"]);
            keytool.args(["-storepass", "rig-password", "-keystore"]).arg(&store);
            cache::run(&mut keytool, "install a JDK, 17 or newer").context("making a certificate")
        };
        keytool(&[
            "-genkeypair",
            "-keyalg",
            "EC",
            "-groupname",
            "secp256r1",
            "-validity",
            "3650",
            "-dname",
            "CN=localhost",
            "-ext",
            "SAN=ip:127.0.0.1,dns:localhost",
        ])?;
        let pem = keytool(&["-exportcert", "-rfc"])?;
        self.write("certificate.pem", &pem)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    fn java(&self, name: &str, heap_mb: u32, main: &str, args: &[String]) -> Result<Spec> {
        let folder = self.folder.path();
        let mut all = flags(heap_mb, self.clock, &self.agent);
        for side in ["bookie", "client"] {
            let class = format!(
                "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata{}{}Driver",
                side[..1].to_uppercase(),
                &side[1..]
            );
            all.push(format!("-Dbookkeeper.metadata.{side}.drivers={class}"));
        }
        all.push(format!("-Dlog4j2.configurationFile={}", folder.join("log4j2.xml").display()));
        all.push(format!("-Djava.io.tmpdir={}", folder.join("tmp").display()));
        all.push(format!("-Drig.offload={}", folder.join("offload").display()));
        // A rig is thrown away; what matters is that a test does not wait for the disk.
        all.push("-Dzookeeper.forceSync=no".into());
        all.push("-Dzookeeper.admin.enableServer=false".into());
        if name == "client" || name == "set-up" {
            all.push("-Drig.level=warn".into());
        }
        all.extend(["-cp".into(), self.classpath.clone(), main.into()]);
        all.extend(args.iter().cloned());
        Ok(Spec {
            name: name.into(),
            program: "java".into(),
            args: all,
            env: vec![],
            folder: folder.into(),
            log: folder.join(format!("log/{name}.log")),
        })
    }

    fn set_up_cluster(&self) -> Result<()> {
        let mark = self.folder.path().join("cluster-made");
        if mark.exists() {
            return Ok(());
        }
        let store = format!("zk:{}", self.zk());
        let args = [
            "--cluster",
            CLUSTER,
            "--metadata-store",
            &store,
            "--configuration-metadata-store",
            &store,
            "--web-service-url",
            &self.web(),
            "--broker-service-url",
            &self.service(),
            "--initial-num-transaction-coordinators",
            "2",
        ];
        let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
        let spec = self.java("set-up", 128, "org.apache.pulsar.PulsarClusterMetadataSetup", &args)?;
        let mut command = Command::new(&spec.program);
        command.args(&spec.args).current_dir(&spec.folder);
        cache::run(&mut command, "install a JDK, 17 or newer").context("setting the cluster up")?;
        fs::write(mark, "").context("noting that the cluster is set up")
    }

    fn zookeeper_config(&self) -> String {
        format!(
            "tickTime=1000\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n\
             minSessionTimeout=2000\nmaxSessionTimeout=60000\nautopurge.purgeInterval=0\n",
            self.folder.path().join("zookeeper").display(),
            self.ports.zookeeper.number(),
        )
    }

    fn bookie_config(&self) -> String {
        format!(
            "bookieId=rig-bookie\nbookiePort={}\nlisteningInterface=lo\nallowLoopback=true\n\
             advertisedAddress=127.0.0.1\njournalDirectory=bookie/journal\n\
             ledgerDirectories=bookie/ledgers\nmetadataServiceUri=metadata-store:zk:{}\n\
             httpServerEnabled=true\nhttpServerPort={}\nhttpServerHost=127.0.0.1\n{}",
            self.ports.bookie.number(),
            self.zk(),
            self.ports.bookie_http.number(),
            BOOKIE_SETTINGS.replace(' ', "\n"),
        )
    }

    fn broker_config(&self, part: Part) -> Result<String> {
        let [binary, web, web_tls] = match part {
            Part::Broker2 => &self.ports.brokers[1],
            _ => &self.ports.brokers[0],
        };
        let folder = self.folder.path();
        let store = format!("zk:{}", self.zk());
        let mut all: BTreeMap<String, String> = BROKER_SETTINGS
            .split_whitespace()
            .filter_map(|setting| setting.split_once('='))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        let mut set = |key: &str, value: String| all.insert(key.to_owned(), value);
        set("clusterName", CLUSTER.into());
        set("metadataStoreUrl", store.clone());
        set("configurationMetadataStoreUrl", store);
        set("brokerServicePort", binary.number().to_string());
        set("webServicePort", web.number().to_string());
        set("offloadersDirectory", folder.join("offloaders").display().to_string());
        set("narExtractionDirectory", folder.join("nar").display().to_string());
        if self.tls {
            set("webServicePortTls", web_tls.number().to_string());
            set("tlsEnabledWithKeyStore", "true".into());
            set("tlsKeyStoreType", "PKCS12".into());
            set("tlsKeyStore", folder.join("keystore.p12").display().to_string());
            set("tlsKeyStorePassword", "rig-password".into());
        }
        if self.secret.is_some() {
            let file = folder.join("token.secret").display().to_string();
            let provider = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken";
            let plugin = "org.apache.pulsar.client.impl.auth.AuthenticationToken";
            set("authenticationEnabled", "true".into());
            set("authorizationEnabled", "true".into());
            set("authenticationProviders", provider.into());
            set("tokenSecretKey", format!("file://{file}"));
            set("superUserRoles", SUPERUSER.into());
            set("brokerClientAuthenticationPlugin", plugin.into());
            set("brokerClientAuthenticationParameters", format!("token:{}", self.token(SUPERUSER)?));
        }
        all.extend(self.settings.clone());
        Ok(all.iter().map(|(k, v)| format!("{k}={v}\n")).collect())
    }
}

const BOOKIE_SETTINGS: &str = "\
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage \
dbStorage_writeCacheMaxSizeMb=16 dbStorage_readAheadCacheMaxSizeMb=8 \
dbStorage_rocksDB_blockCacheSize=8388608 dbStorage_rocksDB_writeBufferSizeMB=4 \
journalPreAllocSizeMB=4 journalMaxSizeMB=64 journalSyncData=false \
entryLogFilePreallocationEnabled=false logSizeLimit=67108864 flushInterval=1000 gcWaitTime=5000 \
minorCompactionInterval=0 majorCompactionInterval=0 \
diskUsageThreshold=0.99 diskUsageWarnThreshold=0.99 isForceGCAllowWhenNoSpace=true \
autoRecoveryDaemonEnabled=false numReadWorkerThreads=2 numHighPriorityWorkerThreads=1 \
serverNumIOThreads=2 httpServerClass=org.apache.bookkeeper.http.vertx.VertxHttpServer ";

const BROKER_SETTINGS: &str = "
bindAddress=127.0.0.1 advertisedAddress=127.0.0.1
managedLedgerDefaultEnsembleSize=1 managedLedgerDefaultWriteQuorum=1 managedLedgerDefaultAckQuorum=1
managedLedgerMaxEntriesPerLedger=10 managedLedgerMinLedgerRolloverTimeMinutes=0
managedLedgerCursorMaxEntriesPerLedger=50 managedLedgerCursorPositionFlushSeconds=2
retentionCheckIntervalInSeconds=10 messageExpiryCheckIntervalInMinutes=1
backlogQuotaCheckIntervalInSeconds=20
brokerDeleteInactiveTopicsEnabled=false
brokerDeduplicationEntriesInterval=20 brokerServiceCompactionMonitorIntervalInSeconds=3600
defaultNumberOfNamespaceBundles=4
loadBalancerSheddingEnabled=false loadBalancerAutoBundleSplitEnabled=false
forceDeleteNamespaceAllowed=true forceDeleteTenantAllowed=true
transactionCoordinatorEnabled=true systemTopicEnabled=true topicLevelPoliciesEnabled=true
functionsWorkerEnabled=false webSocketServiceEnabled=false
managedLedgerOffloadDriver=filesystem managedLedgerOffloadDeletionLagMs=14400000
managedLedgerOffloadThresholdInSeconds=-1 managedLedgerOffloadAutoTriggerSizeThresholdBytes=-1
delayedDeliveryTrackerFactoryClassName=org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory
delayedDeliveryMinIndexCountPerBucket=5 delayedDeliveryMaxIndexesPerBucketSnapshotSegment=5
delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds=1
numIOThreads=2 numHttpServerThreads=16 numOrderedExecutorThreads=2 managedLedgerNumSchedulerThreads=2
bookkeeperClientNumIoThreads=2 bookkeeperClientNumWorkerThreads=2 bookkeeperNumberOfChannelsPerBookie=1
managedLedgerCacheSizeMB=16
";

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

fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|b| b ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|b| b ^ 0x5c)).chain_update(inner).finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mac_is_that_of_rfc_4231() {
        let mac = hmac_sha256(b"Jefe", b"what do ya want for nothing?");
        let hex: String = mac.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }
}
