//! A server with the configuration that trimtab ships, and a user for each role.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use trimtab_tests::nats::{NatsRig, ROLES};
use trimtab_tests::process::Process;
use trimtab_tests::trimtab::{Ended, begin, run, start};

/// The server, and the seeds of its users.
pub(crate) struct Shipped {
    pub(crate) rig: NatsRig,
    pub(crate) state: tempfile::TempDir,
    keys: BTreeMap<&'static str, (String, String)>,
}

impl Shipped {
    pub(crate) fn new() -> Shipped {
        let state = tempfile::tempdir().expect("a folder");
        let keys: BTreeMap<_, _> =
            ROLES.iter().map(|role| (*role, new_key(state.path(), &format!("{role}.nkey")))).collect();
        let public: Vec<(&str, &str)> = keys.iter().map(|(role, (_, public))| (*role, public.as_str())).collect();
        let rig = NatsRig::builder().shipped(&public).start().expect("nats-server with the shipped configuration");
        Shipped { rig, state, keys }
    }

    /// With the streams, consumers and buckets.
    pub(crate) fn set_up() -> Shipped {
        let shipped = Shipped::new();
        let _ = shipped.run("admin", &["nats", "setup"]).exits(0);
        shipped
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let folder = self.state.path().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    /// The file with a user's seed.
    pub(crate) fn seed(&self, role: &str) -> &str {
        &self.keys[role].0
    }

    /// What a process of a role is told about NATS, and all it is told.
    fn env(&self, role: &str) -> Vec<(&'static str, String)> {
        vec![
            ("TRIMTAB_NATS__URL", self.rig.url()),
            ("TRIMTAB_NATS__CREATE", "false".to_owned()),
            ("TRIMTAB_NATS__NKEY_FILE", self.seed(role).to_owned()),
            ("TRIMTAB_NATS__INBOX_PREFIX", format!("_INBOX_{role}")),
        ]
    }

    /// Runs a command to its end as this role's user.
    pub(crate) fn run(&self, role: &str, args: &[&str]) -> Ended {
        let env = self.env(role);
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        begin(&self.folder(role), args, &env).wait()
    }

    /// Starts a process of this role as its user, and waits until it runs.
    pub(crate) fn start(&self, role: &str, name: &str, args: &[&str]) -> Process {
        let env = self.env(role);
        let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let log = self.folder(name).join(format!("{name}.log"));
        // It is appended to, by one process after the other.
        let runs = || std::fs::read_to_string(&log).unwrap_or_default().matches("\"running\"").count();
        let before = runs();
        let mut process = start(name, &self.folder(name), args, &env).expect("started");
        process.wait_until(crate::PATIENCE, || runs() > before).expect("it runs");
        process
    }

    pub(crate) async fn client(&self, role: &str) -> async_nats::Client {
        let seed = std::fs::read_to_string(self.seed(role)).expect("a seed");
        let options = async_nats::ConnectOptions::with_nkey(seed.trim().to_owned());
        options.custom_inbox_prefix(format!("_INBOX_{role}")).connect(self.rig.url()).await.expect("connected")
    }
}

/// A new key: the file with its seed, and its public half.
pub(crate) fn new_key(folder: &Path, name: &str) -> (String, String) {
    let file = folder.join(name).display().to_string();
    let public = run(folder, &["keys", "new", &file]).exits(0).out.trim().to_owned();
    (file, public)
}
