//! A nats-server for one process of trimtab alone (`--nats spawn`): on a free port of loopback, writing through to the disk, and gone
//! when its process is gone, however that ends.
//!
//! A shell stands in between, with a pipe from us as its standard input. The pipe closes when we end, by SIGKILL too, and then the
//! shell ends the server. All of them share a lock on the folder as their standard output, so that no second server is started on a
//! store that somebody still writes.

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};

/// How long it may take to start, and one before it to end.
const START: Duration = Duration::from_secs(10);
/// How long it may take to stop.
const STOP: Duration = Duration::from_secs(10);
/// What a shell answers for a program that it does not find.
const NOT_FOUND: i32 = 127;

/// Runs the server until it ends or the other end of standard input is closed. What runs behind an `&` has no standard input unless
/// it is given one.
const WATCH: &str = r#"
nats-server -c "$1" </dev/null &
server=$!
exec 3<&0
{ cat <&3 >/dev/null; kill "$server" 2>/dev/null; } &
exec 3<&- </dev/null
wait "$server"
"#;

/// A server for this process alone.
pub(super) struct Spawned {
    shell: Child,
    /// As long as this is open, the server runs.
    leash: Option<ChildStdin>,
    url: String,
}

impl Spawned {
    /// Starts it, with its store below this folder.
    ///
    /// # Errors
    /// When there is no nats-server, another one uses the folder, or it does not start.
    pub(super) async fn start(folder: &Path) -> anyhow::Result<Spawned> {
        let ports = folder.join("ports");
        std::fs::create_dir_all(&ports).with_context(|| format!("making {}", ports.display()))?;
        let lock = locked(folder).await?;
        for old in std::fs::read_dir(&ports)?.flatten() {
            let _ = std::fs::remove_file(old.path());
        }
        let log = folder.join("server.log");
        let text = format!(
            "listen: \"127.0.0.1:-1\"\nports_file_dir: {ports:?}\nlog_file: {log:?}\n\
             jetstream {{ store_dir: {:?}, sync_interval: always }}\n",
            folder.join("store"),
        );
        let conf = folder.join("server.conf");
        std::fs::write(&conf, text).with_context(|| format!("writing {}", conf.display()))?;
        let errors = File::create(folder.join("server.err")).context("making the file of the server's errors")?;
        let mut shell = Command::new("sh")
            .args(["-c", WATCH, "trimtab-nats"])
            .arg(&conf)
            .stdin(Stdio::piped())
            .stdout(lock)
            .stderr(errors)
            // Ctrl-C is for us: we finish what was begun, and need the server for that.
            .process_group(0)
            .spawn()
            .context("starting a shell for nats-server")?;
        let leash = shell.stdin.take();
        let mut spawned = Spawned { shell, leash, url: String::new() };
        let started = tokio::time::Instant::now();
        while started.elapsed() < START {
            if let Some(status) = spawned.shell.try_wait()? {
                anyhow::ensure!(
                    status.code() != Some(NOT_FOUND),
                    "--nats spawn needs a nats-server on the PATH, and there is none: install one, or give the address of one that runs"
                );
                let tail = tail_of(&log).or_else(|| tail_of(&folder.join("server.err"))).unwrap_or_default();
                anyhow::bail!("nats-server ended at once ({status}): {tail}; {} has the rest", log.display());
            }
            if let Some(url) = port_file(&ports) {
                spawned.url = url;
                return Ok(spawned);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::bail!("nats-server did not say its port within {} s; see {}", START.as_secs(), log.display())
    }

    /// Its address.
    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

/// The lock of a folder: this process, the shell and the server hold it together.
async fn locked(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join("lock");
    let open = OpenOptions::new().create(true).append(true).open(&path);
    let file = open.with_context(|| format!("opening {}", path.display()))?;
    let started = tokio::time::Instant::now();
    // The server of a process that was killed needs a moment to end.
    while let Err(e) = file.try_lock() {
        anyhow::ensure!(
            started.elapsed() < START,
            "the NATS server in {} is in use ({e}): another trimtab uses this state folder; stop that one, or give this one another \
             --state-dir",
            folder.display()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(file)
}

fn port_file(folder: &PathBuf) -> Option<String> {
    let file = std::fs::read_dir(folder).ok()?.flatten().next()?;
    let value: serde_json::Value = serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok()?;
    value["nats"][0].as_str().map(str::to_owned)
}

/// The last line of a file that says something.
fn tail_of(path: &Path) -> Option<String> {
    let text = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned)
}

impl Drop for Spawned {
    fn drop(&mut self) {
        drop(self.leash.take());
        let started = std::time::Instant::now();
        while started.elapsed() < STOP {
            if !matches!(self.shell.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(group) = i32::try_from(self.shell.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.shell.wait();
    }
}
