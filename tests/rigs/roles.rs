//! The four roles as processes of their own over NATS, with their keys; each can be killed and started again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::Process;
use crate::trimtab::{run, start};

/// One of the roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads the target.
    Scanner,
    /// Decides.
    Decider,
    /// Acts.
    Executor,
    /// Records.
    Audit,
}

impl Role {
    /// All of them, takers of what others emit first.
    pub const ALL: [Role; 4] = [Role::Audit, Role::Decider, Role::Executor, Role::Scanner];

    /// Its name, which is also that of its folder below the state folder.
    pub fn name(self) -> &'static str {
        match self {
            Role::Scanner => "scanner",
            Role::Decider => "decider",
            Role::Executor => "executor",
            Role::Audit => "audit",
        }
    }
}

/// What all roles are told.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The NATS servers.
    pub nats: String,
    /// The metadata, `zk://…`.
    pub from: String,
    /// File with policies of topics.
    pub policies: Option<String>,
    /// Where traces go.
    pub otlp: Option<String>,
    /// File with settings.
    pub config: Option<String>,
}

/// The roles, running.
#[derive(Debug)]
pub struct Roles {
    state: PathBuf,
    settings: Settings,
    keys: BTreeMap<Role, (String, String)>,
    processes: BTreeMap<Role, Process>,
}

impl Roles {
    /// Makes their keys and starts all four, each with a state folder of its own below `state`.
    pub fn start(state: &Path, settings: Settings) -> Result<Roles> {
        let keys = [Role::Decider, Role::Executor].map(|role| {
            let file = state.join(format!("{}.seed", role.name())).display().to_string();
            let public = run(state, &["keys", "new", &file]).exits(0).out.trim().to_owned();
            (role, (file, public))
        });
        let mut roles = Roles { state: state.to_owned(), settings, keys: keys.into(), processes: BTreeMap::new() };
        for role in Role::ALL {
            roles.restart(role)?;
        }
        Ok(roles)
    }

    /// A role's state folder.
    pub fn folder(&self, role: Role) -> PathBuf {
        self.state.join(role.name())
    }

    /// The process of a role.
    ///
    /// # Panics
    /// When it was never started.
    pub fn process(&mut self, role: Role) -> &mut Process {
        self.processes.get_mut(&role).expect("a role that was started")
    }

    /// Starts a role (again), with the same name, key and folder as before.
    pub fn restart(&mut self, role: Role) -> Result<()> {
        let settings = &self.settings;
        let key = |role: Role| self.keys.get(&role).context("a role's keys");
        let (decider, decider_public) = key(Role::Decider)?;
        let (executor, executor_public) = key(Role::Executor)?;
        let mut args: Vec<&str> = match role {
            Role::Audit => vec!["audit", "run", "--trust-executor", executor_public],
            Role::Decider => vec!["decider", "--seed-file", decider],
            Role::Executor => vec!["executor", "--apply", "--seed-file", executor, "--trust-decider", decider_public],
            Role::Scanner => vec!["scanner", "--max-share", "1"],
        };
        args.extend(["--nats", &settings.nats, "--name", "one"]);
        args.extend(settings.config.iter().flat_map(|file| ["--config", file.as_str()]));
        if matches!(role, Role::Executor | Role::Scanner) {
            args.extend(["--from", &settings.from]);
            args.extend(settings.policies.iter().flat_map(|file| ["--topic-policies", file.as_str()]));
        }
        let env: Vec<(&str, &str)> =
            settings.otlp.iter().map(|url| ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())).collect();
        let folder = self.folder(role);
        std::fs::create_dir_all(&folder)?;
        let process = start(role.name(), &folder, &args, &env)?;
        self.processes.insert(role, process);
        Ok(())
    }
}
