//! Processes that a rig starts, watches, hurts and stops.
//!
//! Every process gets a process group of its own and writes into a log file. It is stopped when its [`Process`] is
//! dropped. For the case that the test process itself is killed there is one watcher per test process: a small shell that
//! is told each group and holds the reading end of a pipe whose writing end only the test process has. When the pipe
//! closes, the watcher kills every group it still knows. (A parent-death signal would not do: it fires when the *thread*
//! that started the child ends, and a rig outlives the thread of the test that happened to start it first.)

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};

/// How a process is started; kept, so that it can be started again.
#[derive(Debug, Clone)]
pub struct Spec {
    /// What it is called in messages.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// The folder it runs in.
    pub folder: PathBuf,
    /// Where standard output and standard error go (appended).
    pub log: PathBuf,
}

/// A running (or ended) process of a rig.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Child,
    group: Pid,
    ended: Option<ExitStatus>,
    grace: Duration,
}

impl Process {
    /// Starts a process with no standard input.
    pub fn start(spec: &Spec) -> Result<Self> {
        let log = open_log(&spec.log)?;
        let err = log.try_clone().context("duplicating the log's handle")?;
        let mut command = command(spec);
        command.stdin(Stdio::null()).stdout(log).stderr(err);
        Self::spawn(command, spec)
    }

    /// Starts a process whose standard input and output are pipes; only standard error goes into the log.
    pub fn start_piped(spec: &Spec) -> Result<Self> {
        let log = open_log(&spec.log)?;
        let mut command = command(spec);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        Self::spawn(command, spec)
    }

    fn spawn(mut command: Command, spec: &Spec) -> Result<Self> {
        let mut watcher = Watcher::get()?;
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {} ({})", spec.name, spec.program.display()))?;
        watcher.add(child.id())?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("the pid is out of range")?;
        Ok(Self {
            name: spec.name.clone(),
            log: spec.log.clone(),
            child,
            group,
            ended: None,
            grace: Duration::from_secs(20),
        })
    }

    /// The process id, which is the id of its group as well.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Takes the pipes of [`Process::start_piped`].
    pub fn take_pipes(&mut self) -> Result<(ChildStdin, std::process::ChildStdout)> {
        let stdin = self.child.stdin.take().context("standard input is taken")?;
        let stdout = self.child.stdout.take().context("standard output is taken")?;
        Ok((stdin, stdout))
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        self.poll().is_none()
    }

    fn poll(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.note_end(status);
        }
        self.ended
    }

    fn note_end(&mut self, status: ExitStatus) {
        self.ended = Some(status);
        if let Ok(mut watcher) = Watcher::get() {
            watcher.forget(self.child.id());
        }
    }

    /// Asks `ready` again and again until it says yes; fails with the end of the log when the time is over or the
    /// process ended.
    pub fn wait_until(&mut self, within: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            if ready() {
                return Ok(());
            }
            if let Some(status) = self.poll() {
                bail!("{} ended ({status}) before it was ready; {}", self.name, self.tail());
            }
            if start.elapsed() > within {
                bail!("{} is not ready after {} s; {}", self.name, within.as_secs(), self.tail());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The last lines of the log, introduced by its name.
    pub fn tail(&self) -> String {
        tail(&self.log, 30)
    }

    /// Sends a signal to the whole group.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        ensure!(self.poll().is_none(), "{} has ended", self.name);
        kill_process_group(self.group, signal).with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    /// Freezes it (SIGSTOP): its connections stay open, and nothing answers.
    pub fn freeze(&mut self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it run on (SIGCONT).
    pub fn thaw(&mut self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills it without warning, as a power failure would as far as the process can tell.
    pub fn kill9(&mut self) -> Result<()> {
        if self.poll().is_none() {
            self.signal(Signal::KILL)?;
            let status = self.child.wait().context("waiting for a killed process")?;
            self.note_end(status);
        }
        Ok(())
    }

    /// Asks it to end (SIGTERM), waits, and kills it when it does not.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.poll() {
            return Ok(status);
        }
        self.signal(Signal::TERM)?;
        // A frozen process takes no SIGTERM.
        self.signal(Signal::CONT).ok();
        let start = Instant::now();
        while start.elapsed() < self.grace {
            if let Some(status) = self.poll() {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill9()?;
        Ok(self.ended.unwrap_or_else(|| ExitStatus::from_raw(9)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing in a rig is worth waiting for once the rig goes.
        if let Err(e) = self.kill9() {
            eprintln!("rig: {} could not be killed: {e:#}", self.name);
        }
    }
}

fn command(spec: &Spec) -> Command {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).envs(spec.env.iter().map(|(k, v)| (k, v))).current_dir(&spec.folder);
    command
}

fn open_log(path: &Path) -> Result<File> {
    File::options().create(true).append(true).open(path).with_context(|| format!("opening the log {}", path.display()))
}

/// The last `lines` lines of a file, introduced by its name; says so when it cannot be read.
pub fn tail(path: &Path, lines: usize) -> String {
    let Ok(file) = File::open(path) else {
        return format!("no log at {}", path.display());
    };
    let mut last = VecDeque::with_capacity(lines + 1);
    for line in BufReader::new(file).split(b'\n').map_while(Result::ok) {
        last.push_back(String::from_utf8_lossy(&line).into_owned());
        if last.len() > lines {
            last.pop_front();
        }
    }
    format!("end of {}:\n{}", path.display(), Vec::from(last).join("\n"))
}

/// The shell that outlives us. Lines `+GROUP` and `-GROUP` tell it whom to kill when we are gone.
#[derive(Debug)]
struct Watcher {
    pipe: ChildStdin,
    _shell: Child,
}

const WATCH: &str = r#"
known=' '
while read -r line; do
  case $line in
    +*) known="$known${line#+} " ;;
    -*) gone=${line#-}; before=${known%%" $gone "*}; after=${known#*" $gone "}
        [ "$before" = "$known" ] || known="$before $after" ;;
  esac
done
for group in $known; do kill -KILL "-$group" 2>/dev/null; done
"#;

static WATCHER: LazyLock<Mutex<Option<Watcher>>> = LazyLock::new(|| Mutex::new(None));

struct WatcherGuard(MutexGuard<'static, Option<Watcher>>);

impl Watcher {
    fn get() -> Result<WatcherGuard> {
        let mut slot = WATCHER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if slot.is_none() {
            let mut shell = Command::new("sh")
                .args(["-c", WATCH, "trimtab-test-watcher"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                // its own group: an interrupt from the terminal must not take it with us
                .process_group(0)
                .spawn()
                .context("starting sh, which cleans up should this process be killed")?;
            let pipe = shell.stdin.take().context("the watcher has no pipe")?;
            *slot = Some(Watcher { pipe, _shell: shell });
        }
        Ok(WatcherGuard(slot))
    }
}

impl WatcherGuard {
    fn tell(&mut self, line: &str) -> Result<()> {
        let watcher = self.0.as_mut().context("the watcher is gone")?;
        watcher.pipe.write_all(line.as_bytes()).context("writing to the watcher")
    }

    fn add(&mut self, group: u32) -> Result<()> {
        self.tell(&format!("+{group}\n"))
    }

    fn forget(&mut self, group: u32) {
        // At worst it kills a group that no longer exists.
        self.tell(&format!("-{group}\n")).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watcher_script_kills_only_what_it_still_knows() {
        let start = |seconds: &str| Command::new("sleep").arg(seconds).process_group(0).spawn().unwrap();
        let (mut known, mut forgotten) = (start("600"), start("601"));
        let mut shell = Command::new("sh").args(["-c", WATCH]).stdin(Stdio::piped()).spawn().unwrap();
        let lines = format!("+{}\n+{}\n-{}\n-424242\n", known.id(), forgotten.id(), forgotten.id());
        let mut pipe = shell.stdin.take().unwrap();
        pipe.write_all(lines.as_bytes()).unwrap();
        assert!(known.try_wait().unwrap().is_none());
        drop(pipe);
        shell.wait().unwrap();
        assert_eq!(known.wait().unwrap().signal(), Some(9));
        assert!(forgotten.try_wait().unwrap().is_none());
        forgotten.kill().unwrap();
        forgotten.wait().unwrap();
    }

    #[test]
    fn a_process_that_ends_early_shows_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut p = Process::start(&Spec {
            name: "fragile".into(),
            program: "sh".into(),
            args: vec!["-c".into(), "echo some reason; exit 3".into()],
            env: vec![],
            folder: folder.path().into(),
            log: folder.path().join("log"),
        })
        .unwrap();
        let e = p.wait_until(Duration::from_secs(10), || false).unwrap_err().to_string();
        assert!(e.contains("some reason") && e.contains("fragile"), "{e}");
    }
}
