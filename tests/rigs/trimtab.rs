//! The `trimtab` binary itself: run to its end, or as a role that goes on.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{Process, Spec};

/// The binary, built from this tree.
///
/// # Panics
/// When it cannot be built.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| build().expect("building trimtab"))
}

fn build() -> Result<PathBuf> {
    // Tests are in target/<profile>/deps, the binary is beside that folder.
    let test = std::env::current_exe().context("finding this test")?;
    let profile = test.parent().and_then(Path::parent).context("finding the folder of builds")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // As the tests were built, so that all but the last step is there already: with one of them, or its dependencies would have fewer
    // features.
    let built = if profile.file_name().is_some_and(|name| name == "release") { "release" } else { "test" };
    cargo.args([
        "build",
        "--quiet",
        "--locked",
        "--workspace",
        "--bin",
        "trimtab",
        "--test",
        "docs",
        "--profile",
        built,
    ]);
    if cfg!(feature = "zk-tls") {
        cargo.args(["--features", "zk-tls"]);
    }
    // What cargo tells this test about its package is no business of a build: with it, build scripts that look at it run again,
    // here and in the next build elsewhere.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"].iter().any(|of| text.starts_with(of)) {
            cargo.env_remove(&name);
        }
    }
    let status = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "cargo build --bin trimtab: {status}");
    Ok(profile.join("trimtab"))
}

/// What a run to the end gave.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error: logs and messages.
    pub err: String,
}

impl Ended {
    /// Standard output as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Checks the exit code.
    ///
    /// # Panics
    /// When it is another one.
    #[must_use]
    pub fn exits(self, code: i32) -> Ended {
        assert_eq!(self.code, code, "{}\n{}", self.out, self.err);
        self
    }
}

/// Runs it to its end. `state` is its state folder.
///
/// # Panics
/// When it cannot be started.
pub fn run(state: &Path, args: &[&str]) -> Ended {
    begin(state, args, &[]).wait()
}

/// A run that goes on while the test does something to it.
#[derive(Debug)]
pub struct Running {
    child: Child,
}

/// Begins a run; [`Running::wait`] gives what [`run`] gives.
///
/// # Panics
/// When it cannot be started.
pub fn begin(state: &Path, args: &[&str], env: &[(&str, &str)]) -> Running {
    let mut command = Command::new(binary());
    command.args(args).arg("--state-dir").arg(state).stdin(Stdio::null()).env("NO_COLOR", "1");
    command.envs(env.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running { child: command.spawn().expect("starting trimtab") }
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended yet.
    ///
    /// # Panics
    /// When the system does not say.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("looking at trimtab").is_none()
    }

    /// Asks it to stop (SIGTERM).
    ///
    /// # Panics
    /// When it cannot be asked.
    pub fn stop(&self) {
        self.signal(Signal::TERM);
    }

    /// Freezes it (SIGSTOP) until [`Running::thaw`].
    ///
    /// # Panics
    /// When it cannot be frozen.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    ///
    /// # Panics
    /// When it cannot be thawed.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("signalling trimtab");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When its output cannot be read.
    pub fn wait(self) -> Ended {
        let output = self.child.wait_with_output().expect("waiting for trimtab");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ended { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// Starts it as a process that goes on, logging to `<state>/<name>.log`.
///
/// # Errors
/// When it cannot be started.
pub fn start(name: &str, state: &Path, args: &[&str], env: &[(&str, &str)]) -> Result<Process> {
    let mut all: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    all.extend(["--state-dir".to_owned(), state.display().to_string()]);
    Process::start(&Spec {
        name: name.to_owned(),
        program: binary().to_owned(),
        args: all,
        env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        folder: state.to_owned(),
        log: state.join(format!("{name}.log")),
    })
}
