//! Roles as processes of their own over NATS: as many of each as wanted, each of which can be killed, paused and started again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

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
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The NATS servers.
    pub nats: String,
    /// The metadata, `zk://…`.
    pub from: String,
    /// Where brokers are asked, if the metadata does not say it.
    pub admin: Option<String>,
    /// File with policies of topics.
    pub policies: Option<String>,
    /// Where traces go.
    pub otlp: Option<String>,
    /// File with settings.
    pub config: Option<String>,
}

/// A worker: its role, and its name among those of its role.
pub type Name = (Role, &'static str);

/// Longer than anything takes on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Waits until something is so.
///
/// # Panics
/// When it is not so for long.
pub fn until(what: &str, mut yes: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !yes() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(25));
    }
}

/// Workers with their keys, each with a state folder of its own; each can be killed and started again.
#[derive(Debug)]
pub struct Crew {
    state: PathBuf,
    settings: Settings,
    keys: BTreeMap<Role, (String, String)>,
    workers: BTreeMap<Name, Process>,
}

impl Crew {
    /// Nobody yet. The streams are made, and the keys.
    ///
    /// # Panics
    /// When they cannot be.
    pub fn new(state: &Path, settings: Settings) -> Crew {
        std::fs::create_dir_all(state).unwrap();
        let keys = [Role::Decider, Role::Executor].map(|role| {
            let file = state.join(format!("{}.seed", role.name())).display().to_string();
            let public = run(state, &["keys", "new", &file]).exits(0).out.trim().to_owned();
            (role, (file, public))
        });
        let crew = Crew { state: state.to_owned(), settings, keys: keys.into(), workers: BTreeMap::new() };
        let _ = run(state, &crew.with_nats(&["nats", "setup"])).exits(0);
        crew
    }

    /// One of each role, started: takers of what others emit first.
    pub fn of_each(state: &Path, settings: Settings) -> Crew {
        let mut crew = Crew::new(state, settings);
        Role::ALL.into_iter().for_each(|role| crew.start((role, "one")));
        crew
    }

    fn with_nats<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        let config = self.settings.config.iter().flat_map(|file| ["--config", file.as_str()]);
        args.iter().copied().chain(["--nats", &self.settings.nats]).chain(config).collect()
    }

    /// A worker's state folder.
    pub fn folder(&self, (role, name): Name) -> PathBuf {
        self.state.join(format!("{}-{name}", role.name()))
    }

    /// Starts a worker (again), with the folder and the key it has.
    pub fn start(&mut self, worker: Name) {
        self.start_with(worker, &[]);
    }

    /// The same, with more arguments.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start_with(&mut self, worker: Name, more: &[&str]) {
        let ((role, name), settings) = (worker, &self.settings);
        let (decider, decider_public) = &self.keys[&Role::Decider];
        let (executor, executor_public) = &self.keys[&Role::Executor];
        let mut args: Vec<&str> = match role {
            Role::Audit => vec!["audit", "run", "--trust-executor", executor_public],
            Role::Decider => vec!["decider", "--seed-file", decider],
            Role::Executor => vec!["executor", "--apply", "--seed-file", executor, "--trust-decider", decider_public],
            Role::Scanner => vec!["scanner", "--max-share", "1"],
        };
        args = self.with_nats(&args);
        args.extend(["--name", name]);
        if matches!(role, Role::Executor | Role::Scanner) {
            args.extend(["--from", &settings.from]);
            args.extend(settings.policies.iter().flat_map(|file| ["--topic-policies", file.as_str()]));
        }
        if role == Role::Executor {
            args.extend(settings.admin.iter().flat_map(|url| ["--admin", url.as_str()]));
        }
        args.extend(more);
        let env: Vec<(&str, &str)> =
            settings.otlp.iter().map(|url| ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())).collect();
        let folder = self.folder(worker);
        std::fs::create_dir_all(&folder).unwrap();
        let process = start(role.name(), &folder, &args, &env).unwrap();
        self.workers.insert(worker, process);
    }

    /// The process of a worker.
    ///
    /// # Panics
    /// When it was never started.
    pub fn worker(&mut self, worker: Name) -> &mut Process {
        self.workers.get_mut(&worker).expect("a worker that was started")
    }

    /// The log of a worker, of all its lives.
    pub fn log(&self, worker: Name) -> String {
        std::fs::read_to_string(self.folder(worker).join(format!("{}.log", worker.0.name()))).unwrap_or_default()
    }

    /// Waits until a worker says that it runs, in its n-th life.
    pub fn runs(&self, worker: Name, life: usize) {
        until(&format!("{worker:?} runs"), || self.log(worker).matches("running").count() >= life);
    }

    /// Asks for a scan of everything; its id.
    ///
    /// # Panics
    /// When it cannot be asked for.
    pub fn scan(&self) -> String {
        let asked = run(&self.state, &self.with_nats(&["scan", "--output", "json"])).exits(0);
        asked.json()["scan"].as_str().unwrap().to_owned()
    }

    /// Asks for a scan and waits for its end; its gate.
    pub fn scan_and_wait(&self) -> Value {
        run(&self.state, &self.with_nats(&["scan", "--output", "json", "--wait"])).exits(0).json()
    }

    /// What a worker has recorded.
    pub fn records(&self, worker: Name) -> Vec<Value> {
        let (role, name) = worker;
        let file = self.folder(worker).join(format!("audit/{}-{name}.jsonl", role.name()));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        // The last line may be half written while its writer runs.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The acts that workers have recorded as begun (`intent`), or ended (`outcome`): by decision and scan, in order.
    ///
    /// # Panics
    /// When a record is not what it should be.
    pub fn acts(&self, kind: &str, workers: &[Name]) -> Vec<(String, Value)> {
        let key = |record: Value| {
            let body = &record["body"];
            let (decision, scan) = match kind {
                "intent" => (&body["decision"]["id"], &body["decision"]["scan"]["id"]),
                _ => (&body["decision"], &body["scan"]["id"]),
            };
            (format!("{}/{}", decision.as_str().unwrap(), scan.as_str().unwrap()), record)
        };
        let all = workers.iter().flat_map(|worker| self.records(*worker));
        all.filter(|record| record["kind"] == kind).map(key).collect()
    }

    /// Acts that were begun and have not ended.
    pub fn open(&self, executors: &[Name]) -> BTreeSet<String> {
        let keys =
            |kind: &str| -> BTreeSet<String> { self.acts(kind, executors).into_iter().map(|(key, _)| key).collect() };
        let ended = keys("outcome");
        keys("intent").difference(&ended).cloned().collect()
    }

    /// Checks what executors have recorded: each act was begun once and ended once at most.
    ///
    /// # Panics
    /// When one was not.
    pub fn begun_once(&self, executors: &[Name]) {
        let intents: Vec<String> = self.acts("intent", executors).into_iter().map(|(key, _)| key).collect();
        let once: BTreeSet<&String> = intents.iter().collect();
        assert_eq!(once.len(), intents.len(), "an act was begun twice");
        let outcomes = self.acts("outcome", executors);
        let ended: Vec<&String> = outcomes.iter().map(|(key, _)| key).filter(|key| once.contains(key)).collect();
        assert_eq!(ended.iter().collect::<BTreeSet<_>>().len(), ended.len(), "two outcomes of one act");
    }

    /// Checks that no ledger was counted as freed by two outcomes; how many were. Where servers lost what was outstanding, two executors may
    /// be at the same topic at the same moment: each sees it go, and each says so.
    ///
    /// # Panics
    /// When one was.
    pub fn freed_once(&self, executors: &[Name]) -> usize {
        let mut freed: BTreeMap<i64, (String, i64, i64)> = BTreeMap::new();
        for (_, outcome) in self.acts("outcome", executors) {
            let body = &outcome["body"];
            let (began, ended) = (body["started_ms"].as_i64().unwrap(), body["ended_ms"].as_i64().unwrap());
            let act = (body["executor"].as_str().unwrap().to_owned(), began, ended);
            for ledger in body["freed"].as_array().unwrap() {
                let Some(other) = freed.insert(ledger.as_i64().unwrap(), act.clone()) else { continue };
                let together = other.0 != act.0 && other.1 <= act.2 && act.1 <= other.2;
                assert!(together, "ledger {ledger} was counted as freed twice: {other:?} and {act:?}");
            }
        }
        freed.len()
    }

    /// Both, of executors none of which died.
    pub fn acted_once(&self, executors: &[Name]) {
        self.begun_once(executors);
        self.freed_once(executors);
    }
}
