//! Java on loopback: flags for small JVMs, shifted clocks, and a client process that takes commands.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::cache;
use crate::process::{Process, Spec};

/// The source of the agent that shifts clocks.
pub(crate) const CLOCK: (&str, &str) = ("ShiftedClock.java", include_str!("java/ShiftedClock.java"));

/// An offset added to the wall clock of the JVMs that a rig starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shift {
    millis: i64,
}

impl Shift {
    /// The true time.
    pub const NONE: Self = Self { millis: 0 };

    /// This many days ago.
    pub const fn days_ago(days: i64) -> Self {
        Self { millis: -days * 86_400_000 }
    }

    /// Any offset in milliseconds; negative ones lie in the past.
    pub const fn millis(millis: i64) -> Self {
        Self { millis }
    }

    /// The offset in milliseconds.
    pub const fn as_millis(self) -> i64 {
        self.millis
    }
}

/// Flags of every JVM: quick to start, small, and with the packages open that BookKeeper and Netty reach into.
pub(crate) fn flags(heap_mb: u32, shift: Shift, agent: &Path) -> Vec<String> {
    let mut flags: Vec<String> = [
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-Xshare:auto",
        "-Xss512k",
        "-XX:MaxDirectMemorySize=256m",
        "-Djava.net.preferIPv4Stack=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.leakDetectionLevel=disabled",
        "-Dpulsar.allocator.exit_on_oom=false",
    ]
    .map(str::to_owned)
    .into();
    flags.push(format!("-Xmx{heap_mb}m"));
    for opened in [
        "java.base/java.lang",
        "java.base/java.nio",
        "java.base/java.util.zip",
        "java.base/jdk.internal.misc",
        "java.base/jdk.internal.platform",
        "java.base/sun.net",
        "java.management/sun.management",
        "jdk.management/com.sun.management.internal",
    ] {
        flags.push("--add-opens".into());
        flags.push(format!("{opened}=ALL-UNNAMED"));
    }
    if shift != Shift::NONE {
        flags.push(format!("-javaagent:{}={}", agent.display(), shift.millis));
    }
    flags
}

/// Makes a key store (PKCS12, password `rig-password`) with a certificate for loopback, and tells the certificate (PEM).
pub(crate) fn self_signed(store: &Path) -> Result<String> {
    let keytool = |args: &[&str]| {
        let mut keytool = Command::new("keytool");
        keytool.args(args).args(["-alias", "rig", "-storetype", "PKCS12"]);
        keytool.args(["-storepass", "rig-password", "-keystore"]).arg(store);
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
    keytool(&["-exportcert", "-rfc"])
}

/// The agent that [`flags`] names; `classpath` must have ASM.
pub(crate) fn clock_agent(classpath: &str) -> Result<PathBuf> {
    let manifest = "Premain-Class: ShiftedClock\nCan-Retransform-Classes: true\n";
    cache::java_jar("shifted-clock", &[CLOCK], classpath, manifest)
}

/// A word for a command line of [`JavaClient`]: whatever would end it or make it an option is percent-encoded.
pub fn word(text: &str) -> String {
    percent(text, b"-._~/:,#\"{}[]")
}

/// Percent-encodes everything but letters, digits, `-._~` (for one segment of an admin path).
pub fn segment(text: &str) -> String {
    percent(text, b"-._~")
}

fn percent(text: &str, keep: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || keep.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// A ledger in the list of a managed ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: i64,
    /// Its entries, if need be as BookKeeper knows them; -1 when BookKeeper does not know the ledger.
    pub entries: i64,
    /// Its bytes.
    pub bytes: i64,
    /// When it was closed, 0 if the list does not say.
    pub closed_ms: i64,
}

/// A process that reads commands from its standard input and answers each with one line.
#[derive(Debug)]
pub struct JavaClient {
    process: Process,
    stdin: ChildStdin,
    answers: Receiver<String>,
    timeout: Duration,
}

impl JavaClient {
    pub(crate) fn start(spec: &Spec) -> Result<Self> {
        let mut process = Process::start_piped(spec)?;
        let (stdin, stdout) = process.take_pipes()?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { process, stdin, answers, timeout: Duration::from_secs(180) })
    }

    /// Does one command and returns what it had to tell. The commands are described in `java/pulsar/RigClient.java`;
    /// words that may hold blanks, `=` or `%` must go through [`word`].
    pub fn run(&mut self, command: &str) -> Result<String> {
        let mut answers = self.run_all([command])?;
        answers.pop().context("no answer")
    }

    /// What is in a node of ZooKeeper.
    pub fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        let answer = self.run(&format!("get {}", word(path)))?;
        STANDARD.decode(answer.trim()).with_context(|| format!("`get {path}`: {answer:?}"))
    }

    /// Writes a node of ZooKeeper, which it makes where there is none.
    pub fn put(&mut self, path: &str, value: &[u8]) -> Result<()> {
        self.run(&format!("put {} {}", word(path), word(&STANDARD.encode(value)))).map(|_| ())
    }

    /// Does several commands, handed over at once, one after the other; fails at the first that failed.
    pub fn run_all<'a>(&mut self, commands: impl IntoIterator<Item = &'a str>) -> Result<Vec<String>> {
        let commands: Vec<&str> = commands.into_iter().collect();
        let mut lines = commands.join("\n");
        lines.push('\n');
        self.stdin
            .write_all(lines.as_bytes())
            .with_context(|| format!("the client is gone; {}", self.process.tail()))?;
        let mut told = Vec::with_capacity(commands.len());
        let mut failure = None;
        for command in commands {
            let answer = match self.answers.recv_timeout(self.timeout) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) => {
                    bail!("no answer to `{command}` within {} s; {}", self.timeout.as_secs(), self.process.tail())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("the client ended at `{command}`; {}", self.process.tail())
                }
            };
            match answer.strip_prefix("ok") {
                Some(rest) => told.push(rest.trim_start().to_owned()),
                None => {
                    failure.get_or_insert_with(|| format!("`{command}`: {answer}"));
                }
            }
        }
        match failure {
            None => Ok(told),
            Some(what) => bail!("{what}"),
        }
    }

    /// The ledgers that a managed ledger lists (path below `/managed-ledgers`), in the order of the list. Read from the
    /// metadata alone, so no broker loads anything.
    pub fn listed(&mut self, managed_ledger: &str) -> Result<Vec<Listed>> {
        let told = self.run(&format!("listed {}", word(managed_ledger)))?;
        told.split_whitespace()
            .map(|ledger| {
                let fields: Vec<i64> = ledger.split(':').map(str::parse).collect::<Result<_, _>>()?;
                let &[id, entries, bytes, closed_ms] = &fields[..] else { bail!("not a ledger: {ledger}") };
                Ok(Listed { id, entries, bytes, closed_ms })
            })
            .collect()
    }

    /// The process, to freeze or kill it.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_encoded() {
        assert_eq!(word("acme/a b+c=d%"), "acme/a%20b%2Bc%3Dd%25");
        assert_eq!(segment("a/b ü"), "a%2Fb%20%C3%BC");
    }
}
