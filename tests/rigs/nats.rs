//! NATS servers with JetStream on loopback: one node, or a cluster of three.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::cache;
use crate::http;
use crate::ports::Port;
use crate::process::{Process, Spec};

/// What a [`NatsRig`] is to be like.
#[derive(Debug, Clone)]
pub struct Builder {
    nodes: usize,
    sync_interval: String,
    extra: String,
    shipped: Vec<(String, String)>,
    disk_mib: Option<u64>,
}

/// The roles that the shipped configuration has a user for.
pub const ROLES: [&str; 9] =
    ["admin", "scanner", "decider", "executor", "audit", "recover", "recovery", "operator", "observer"];

impl Builder {
    /// One node with the configuration that trimtab ships, as it is, and the public keys of its users: of each of [`ROLES`].
    pub fn shipped(mut self, keys: &[(&str, &str)]) -> Self {
        self.shipped = keys
            .iter()
            .map(|(role, key)| (format!("TRIMTAB_{}_NKEY", role.to_uppercase()), (*key).to_owned()))
            .collect();
        self
    }

    /// Three nodes instead of one.
    pub fn cluster(mut self) -> Self {
        self.nodes = 3;
        self
    }

    /// How often JetStream flushes to disk: `always` (what the rig does unless told otherwise), or `2m`, the server's own
    /// habit.
    pub fn sync_interval(mut self, interval: &str) -> Self {
        self.sync_interval = interval.into();
        self
    }

    /// Text appended to the configuration of each node: accounts, users, permissions.
    pub fn extra_config(mut self, text: &str) -> Self {
        self.extra = text.into();
        self
    }

    /// The first node's store is on a file system of its own of so many MiB, which [`NatsRig::disk`] fills. Needs `unshare` and `nsenter`,
    /// and a kernel that lets this user have a namespace for mounts.
    pub fn disk(mut self, mib: u64) -> Self {
        self.disk_mib = Some(mib);
        self
    }

    /// Boots it and waits until every node says that it is healthy.
    pub fn start(self) -> Result<NatsRig> {
        NatsRig::boot(self)
    }
}

#[derive(Debug)]
struct Node {
    process: Option<Process>,
    client: Port,
    monitor: Port,
    route: Port,
}

/// Running NATS servers. Dropping it kills them and removes their stores.
#[derive(Debug)]
pub struct NatsRig {
    nodes: Vec<Node>,
    /// Keeps the first node's own file system.
    disk: Option<Process>,
    server: PathBuf,
    shipped: Vec<(String, String)>,
    folder: TempDir,
}

impl NatsRig {
    /// One node with a file store that syncs each write, open to everybody, unless told otherwise.
    pub fn builder() -> Builder {
        Builder { nodes: 1, sync_interval: "always".into(), extra: String::new(), shipped: vec![], disk_mib: None }
    }

    /// One node, ready.
    pub fn single() -> Result<Self> {
        Self::builder().start()
    }

    fn boot(builder: Builder) -> Result<Self> {
        let server = cache::nats_server()?;
        let folder = tempfile::Builder::new().prefix("trimtab-nats-").tempdir().context("creating the rig's folder")?;
        let mut nodes = Vec::new();
        for _ in 0..builder.nodes {
            nodes.push(Node { process: None, client: Port::take()?, monitor: Port::take()?, route: Port::take()? });
        }
        let mut rig = Self { nodes, disk: None, server, shipped: builder.shipped.clone(), folder };
        for index in 0..rig.nodes.len() {
            let text = rig.config(index, &builder);
            fs::create_dir_all(rig.node_folder(index))?;
            fs::write(rig.node_folder(index).join("nats.conf"), text).context("writing the server's configuration")?;
        }
        if let Some(mib) = builder.disk_mib {
            rig.mount(mib)?;
        }
        let all: Vec<usize> = (0..rig.nodes.len()).collect();
        rig.start_all(&all)?;
        Ok(rig)
    }

    /// Mounts a file system for the first node's store, where nobody but this process and that node sees it.
    fn mount(&mut self, mib: u64) -> Result<()> {
        let (folder, store) = (self.node_folder(0), self.store(0));
        fs::create_dir_all(&store)?;
        let script = format!("mount -t tmpfs -o size={mib}m none store && touch mounted && exec sleep 86400");
        let mut disk = Process::start(&Spec {
            name: "the disk of nats-server".to_owned(),
            program: "unshare".into(),
            args: ["--user", "--map-root-user", "--mount", "sh", "-c", &script].map(str::to_owned).to_vec(),
            env: Vec::new(),
            log: folder.join("disk.log"),
            folder: folder.clone(),
        })?;
        disk.wait_until(Duration::from_secs(20), || folder.join("mounted").exists())?;
        self.disk = Some(disk);
        Ok(())
    }

    /// The first node's own file system, as this process reaches it.
    pub fn disk(&self) -> Option<PathBuf> {
        let store = self.store(0);
        let inside = store.strip_prefix("/").ok()?;
        Some(PathBuf::from(format!("/proc/{}/root", self.disk.as_ref()?.pid())).join(inside))
    }

    fn config(&self, index: usize, builder: &Builder) -> String {
        let node = &self.nodes[index];
        let store = self.store(index);
        let mut text = format!(
            "server_name: \"node{index}\"\nlisten: \"{}\"\nhttp: \"{}\"\n\
             jetstream {{\n  store_dir: \"{}\"\n  max_mem: 256MB\n  max_file: 8GB\n  sync_interval: \"{}\"\n}}\n",
            node.client.address(),
            node.monitor.address(),
            store.display(),
            builder.sync_interval,
        );
        if self.nodes.len() > 1 {
            let routes: Vec<String> =
                self.nodes.iter().map(|n| format!("\"nats-route://{}\"", n.route.address())).collect();
            text += &format!(
                "cluster {{\n  name: rig\n  listen: \"{}\"\n  routes: [{}]\n}}\n",
                node.route.address(),
                routes.join(", ")
            );
        }
        text + &builder.extra + "\n"
    }

    /// What a node is started with: its configuration, or the shipped one with other addresses and another folder.
    fn args(&self, index: usize) -> Vec<String> {
        if self.shipped.is_empty() {
            return ["-c", "nats.conf"].map(str::to_owned).to_vec();
        }
        let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/nats/nats-server.conf");
        let node = &self.nodes[index];
        let ports = [node.client.number(), node.monitor.number()].map(|port| port.to_string());
        ["-c", shipped, "-a", "127.0.0.1", "-p", &ports[0], "-m", &ports[1]].map(str::to_owned).to_vec()
    }

    fn node_folder(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("node{index}"))
    }

    /// The folder that a node's JetStream keeps its files in.
    pub fn store(&self, index: usize) -> PathBuf {
        self.node_folder(index).join("store")
    }

    /// The rig's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The addresses of all nodes.
    pub fn urls(&self) -> Vec<String> {
        (0..self.nodes.len()).map(|i| self.node_url(i)).collect()
    }

    /// The addresses of all nodes, joined by commas, as command lines and configuration files want them.
    pub fn url(&self) -> String {
        self.urls().join(",")
    }

    /// The address of one node, `nats://host:port`.
    pub fn node_url(&self, index: usize) -> String {
        format!("nats://{}", self.nodes[index].client.address())
    }

    /// The address of the first node with a user and a password in it, for the `nats` command line. (The Rust client does not
    /// look for them there: it wants `ConnectOptions`.)
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("nats://{user}:{password}@{}", self.nodes[0].client.address())
    }

    /// The monitoring address of one node, `http://host:port`.
    pub fn monitor(&self, index: usize) -> String {
        format!("http://{}", self.nodes[index].monitor.address())
    }

    /// Starts one node that does not run, with the store it has.
    pub fn start(&mut self, index: usize) -> Result<()> {
        self.start_all(&[index])
    }

    /// Starts nodes together: those of a cluster are healthy only once most of them are there.
    fn start_all(&mut self, indexes: &[usize]) -> Result<()> {
        for &index in indexes {
            let folder = self.node_folder(index);
            let (mut program, mut args, mut env) = (self.server.clone(), self.args(index), self.shipped.clone());
            if let Some(disk) = self.disk.as_ref().filter(|_| index == 0) {
                let (pid, wd) = (disk.pid().to_string(), format!("--wd={}", folder.display()));
                let enter = ["--target", &pid, "--user", "--mount", "--preserve-credentials", &wd, "--"];
                let server = self.server.display().to_string();
                args = enter.map(str::to_owned).into_iter().chain([server]).chain(args).collect();
                program = "nsenter".into();
            }
            env.push(("TRIMTAB_NATS_STORE".to_owned(), format!("\"{}\"", self.store(index).display())));
            let node = &mut self.nodes[index];
            if node.process.as_mut().is_some_and(Process::runs) {
                bail!("node {index} runs already");
            }
            node.process = Some(Process::start(&Spec {
                name: format!("nats-server {index}"),
                program,
                args,
                env,
                log: folder.join("log"),
                folder,
            })?);
        }
        for &index in indexes {
            let url = format!("{}/healthz", self.monitor(index));
            self.process(index)?.wait_until(Duration::from_secs(40), || {
                http::once("GET", &url, None, None, Duration::from_secs(2)).is_ok_and(|reply| reply.status == 200)
            })?;
        }
        Ok(())
    }

    /// The process of a node, to freeze or thaw it.
    pub fn process(&mut self, index: usize) -> Result<&mut Process> {
        self.nodes.get_mut(index).and_then(|n| n.process.as_mut()).with_context(|| format!("node {index} does not run"))
    }

    /// Stops a node in good order.
    pub fn stop(&mut self, index: usize) -> Result<()> {
        self.process(index)?.stop()?;
        Ok(())
    }

    /// Kills a node without warning; its store stays as it is.
    pub fn kill9(&mut self, index: usize) -> Result<()> {
        self.process(index)?.kill9()
    }

    /// Stops a node in good order and starts it with the same store.
    pub fn restart(&mut self, index: usize) -> Result<()> {
        self.stop(index)?;
        self.start(index)
    }

    /// Removes the store of a node that does not run, as if its disk had been replaced.
    pub fn clean_store(&mut self, index: usize) -> Result<()> {
        ensure!(!self.process(index).is_ok_and(Process::runs), "node {index} still runs");
        let store = self.store(index);
        if store.exists() {
            fs::remove_dir_all(&store).with_context(|| format!("removing {}", store.display()))?;
        }
        Ok(())
    }
}
