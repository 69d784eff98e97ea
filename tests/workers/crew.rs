//! Roles as processes of their own: as many of each as wanted, each of which can be killed, paused and started again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::process::Process;
use trimtab_tests::roles::Role;
use trimtab_tests::trimtab::{run, start};

use crate::ground::{Ground, LEDGERS};

/// Longer than anything here takes on the slowest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// Waits until something is so.
pub(crate) fn until(what: &str, mut yes: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !yes() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(25));
    }
}

/// A worker: its role, and its name among those of its role.
pub(crate) type Name = (Role, &'static str);

pub(crate) struct Crew {
    state: PathBuf,
    nats: String,
    from: String,
    admin: String,
    config: String,
    keys: BTreeMap<Role, (String, String)>,
    workers: BTreeMap<Name, Process>,
}

impl Crew {
    /// Nobody yet, on this state folder, with these servers and settings.
    pub(crate) fn new(state: PathBuf, nats: &str, from: &str, admin: &str, config: &str) -> Crew {
        let keys = [Role::Decider, Role::Executor].map(|role| {
            let file = state.join(format!("{}.seed", role.name())).display().to_string();
            let public = run(&state, &["keys", "new", &file]).exits(0).out.trim().to_owned();
            (role, (file, public))
        });
        let [nats, from, admin, config] = [nats, from, admin, config].map(str::to_owned);
        let _ = run(&state, &["nats", "setup", "--nats", &nats, "--config", &config]).exits(0);
        Crew { state, nats, from, admin, config, keys: keys.into(), workers: BTreeMap::new() }
    }

    pub(crate) fn folder(&self, (role, name): Name) -> PathBuf {
        self.state.join(format!("{}-{name}", role.name()))
    }

    /// Starts a worker (again), with the folder it has.
    pub(crate) fn start(&mut self, worker: Name) {
        self.start_with(worker, &[]);
    }

    /// The same, with more arguments.
    pub(crate) fn start_with(&mut self, worker: Name, more: &[&str]) {
        let (role, name) = worker;
        let (decider, decider_public) = &self.keys[&Role::Decider];
        let (executor, executor_public) = &self.keys[&Role::Executor];
        let mut args: Vec<&str> = match role {
            Role::Audit => vec!["audit", "run", "--trust-executor", executor_public],
            Role::Decider => vec!["decider", "--seed-file", decider],
            Role::Executor => vec!["executor", "--apply", "--seed-file", executor, "--trust-decider", decider_public],
            Role::Scanner => vec!["scanner", "--max-share", "1"],
        };
        if matches!(role, Role::Executor | Role::Scanner) {
            args.extend(["--from", &self.from]);
        }
        if role == Role::Executor {
            args.extend(["--admin", &self.admin]);
        }
        args.extend(["--nats", &self.nats, "--name", name, "--config", &self.config]);
        args.extend(more);
        let folder = self.folder(worker);
        std::fs::create_dir_all(&folder).unwrap();
        let process = start(role.name(), &folder, &args, &[]).unwrap();
        self.workers.insert(worker, process);
    }

    pub(crate) fn worker(&mut self, worker: Name) -> &mut Process {
        self.workers.get_mut(&worker).expect("a worker that was started")
    }

    /// The log of a worker, of all its lives.
    pub(crate) fn log(&self, worker: Name) -> String {
        std::fs::read_to_string(self.folder(worker).join(format!("{}.log", worker.0.name()))).unwrap_or_default()
    }

    /// Waits until a worker says that it runs, in its n-th life.
    pub(crate) fn runs(&self, worker: Name, life: usize) {
        until(&format!("{worker:?} runs"), || self.log(worker).matches("running").count() >= life);
    }

    /// Asks for a scan of everything; its id.
    pub(crate) fn scan(&self) -> String {
        let asked = run(&self.state, &["scan", "--nats", &self.nats, "--config", &self.config, "--output", "json"]);
        asked.exits(0).json()["scan"].as_str().unwrap().to_owned()
    }

    /// Asks for a scan and waits for its end; its gate.
    pub(crate) fn scan_and_wait(&self) -> Value {
        let args = ["scan", "--nats", &self.nats, "--config", &self.config, "--output", "json", "--wait"];
        run(&self.state, &args).exits(0).json()
    }

    /// What a worker has recorded.
    pub(crate) fn records(&self, worker: Name) -> Vec<Value> {
        let (role, name) = worker;
        let file = self.folder(worker).join(format!("audit/{}-{name}.jsonl", role.name()));
        let text = std::fs::read_to_string(file).unwrap_or_default();
        // The last line may be half written while its writer runs.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The acts that executors have begun, or ended: by decision and scan, in order.
    pub(crate) fn acts(&self, kind: &str, executors: &[Name]) -> Vec<(String, Value)> {
        let key = |record: Value| {
            let body = &record["body"];
            let (decision, scan) = match kind {
                "intent" => (&body["decision"]["id"], &body["decision"]["scan"]["id"]),
                _ => (&body["decision"], &body["scan"]["id"]),
            };
            (format!("{}/{}", decision.as_str().unwrap(), scan.as_str().unwrap()), record)
        };
        let all = executors.iter().flat_map(|worker| self.records(*worker));
        all.filter(|record| record["kind"] == kind).map(key).collect()
    }

    /// Checks what executors have recorded: each act was begun once and ended once at most.
    pub(crate) fn begun_once(&self, executors: &[Name]) {
        let intents: Vec<String> = self.acts("intent", executors).into_iter().map(|(key, _)| key).collect();
        let once: BTreeSet<&String> = intents.iter().collect();
        assert_eq!(once.len(), intents.len(), "an act was begun twice");
        let outcomes = self.acts("outcome", executors);
        let ended: Vec<&String> = outcomes.iter().map(|(key, _)| key).filter(|key| once.contains(key)).collect();
        assert_eq!(ended.iter().collect::<BTreeSet<_>>().len(), ended.len(), "two outcomes of one act");
    }

    /// Checks that no ledger was counted as freed by two outcomes; how many were. Where servers lost what was outstanding, two executors may
    /// be at the same topic at the same moment: each sees it go, and each says so.
    pub(crate) fn freed_once(&self, executors: &[Name]) -> usize {
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
    pub(crate) fn acted_once(&self, executors: &[Name]) {
        self.begun_once(executors);
        self.freed_once(executors);
    }
}

/// Of each eight topics, one is blocked by its cursor and one is young, as the rig's filler makes them: how many ledgers a topic is to keep
/// in the end.
pub(crate) fn to_keep(number: usize) -> usize {
    if matches!(number % 8, 5 | 6) { LEDGERS } else { 1 }
}

/// Topics that have another number of ledgers than they are to have in the end; none of them may have fewer.
pub(crate) fn still_due(ground: &Ground, topics: usize) -> usize {
    let mut due = 0;
    for number in 0..topics {
        let (has, keeps) = (ground.ids(number).len(), to_keep(number));
        assert!(has >= keeps, "topic {number} has {has} ledgers, and was to keep {keeps}");
        due += usize::from(has > keeps);
    }
    due
}
