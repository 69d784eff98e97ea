//! `demo`: the fault, the plan, the act and the record, on a nats-server of its own. It runs the same commands that an operator would, and
//! shows them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use async_nats::jetstream::{self, consumer, stream};
use futures::StreamExt;

use super::spawn::Spawned;
use super::{Context, Exit};
use crate::config::show_bytes;

const STREAM: &str = "ORDERS";
/// Takes everything.
const ACTIVE: &str = "billing";
/// Took a few, and nobody came back for it.
const ABANDONED: &str = "old-report";
const MESSAGES: usize = 2_000;
const TAKEN: usize = 20;
/// Bytes of each message.
const SIZE: usize = 1_000;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1_600);

const RULES: &str = r#"[[rules]]
name = "abandoned"
match = ["*/ORDERS"]
stale_after = "1s"       # in earnest: "14d"
sightings = 3            # by so many looks of our own
grace = "0s"             # in earnest leave it out: it is announced, and left alone for another day
allow_unguarded = true   # JetStream moves a consumer without looking who uses it; trimtab looks, docs/jetstream.md says how far that goes

[caps]
max_share = 1.0          # here it is nearly everything; in earnest half of what was seen stops a run
"#;

/// `demo`
pub(crate) async fn demo(context: &Context) -> anyhow::Result<Exit> {
    let _ = context;
    let folder = tempfile::Builder::new().prefix("trimtab-demo-").tempdir().context("making a folder")?;
    let server = Spawned::start(&folder.path().join("nats")).await?;
    let url = server.url().to_owned();
    say(&format!("nats-server at {url}, with its files in {}", folder.path().display()));
    let fault = Fault::make(&url).await?;
    let held = fault.held().await?;
    say(&format!(
        "an interest stream, {STREAM}, of {MESSAGES} messages. Consumer {ACTIVE} has taken all of them. {ABANDONED} took {TAKEN}, and \
         nobody came back for it: the stream holds {held}, and every message to come"
    ));
    let rules = folder.path().join("trimtab.toml");
    std::fs::write(&rules, RULES).with_context(|| format!("writing {}", rules.display()))?;
    say(&format!("the rules, {}:\n\n{RULES}", rules.display()));
    say("it is seen idle by looks of our own, not by what a field says");
    let trimtab = Trimtab { folder: folder.path(), program: std::env::current_exe().context("finding this program")? };
    let source = ["--from", &url, "--config", "trimtab.toml"];
    for _ in 0..2 {
        trimtab.run(&[&["plan", "--remember"][..], &source].concat())?;
        tokio::time::sleep(PAUSE).await;
    }
    trimtab.run(&[&["plan", "--remember", "--explain", "-o", "plan.json"][..], &source].concat())?;
    say(
        "exactly that is carried out, after a last look: the consumer is paused, watched for some seconds, moved, and let go",
    );
    trimtab.run(&[&["apply", "plan.json"][..], &source].concat())?;
    let left = fault.held().await?;
    say(&format!("the stream held {held}, and holds {left}. The record:"));
    trimtab.run(&["audit", "list"])?;
    trimtab.run(&["audit", "show", &format!("jetstream://$G/{STREAM}?subscription={ABANDONED}")])?;
    trimtab.run(&["audit", "verify"])?;
    let got = fault.goes_on().await?;
    say(&format!(
        "{ABANDONED} is still there, and goes on behind what was given up: of 3 new messages it gets {got}.\n\n\
         Your own servers: trimtab plan --from nats://HOST:4222 (reads only); docs/jetstream.md says more"
    ));
    ensure!(got == 3 && left.messages == 0, "that is not what should have come of it");
    Ok(Exit::Done)
}

fn say(what: &str) {
    println!("\n# {what}\n");
}

/// What the demonstration is about.
struct Fault {
    context: jetstream::Context,
}

/// What a stream holds.
struct Held {
    messages: u64,
    bytes: u64,
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} messages, {}", self.messages, show_bytes(i64::try_from(self.bytes).unwrap_or(i64::MAX)))
    }
}

impl Fault {
    async fn make(url: &str) -> anyhow::Result<Fault> {
        let context = jetstream::new(async_nats::connect(url).await.context("connecting to the server")?);
        let config = stream::Config {
            name: STREAM.to_owned(),
            subjects: vec!["orders.>".to_owned()],
            retention: stream::RetentionPolicy::Interest,
            ..stream::Config::default()
        };
        context.create_stream(config).await.context("making the stream")?;
        let fault = Fault { context };
        for name in [ACTIVE, ABANDONED] {
            let config =
                consumer::pull::Config { durable_name: Some(name.to_owned()), ..consumer::pull::Config::default() };
            fault.context.create_consumer_on_stream(config, STREAM).await.context("making a consumer")?;
        }
        fault.publish(MESSAGES).await?;
        ensure!(fault.take(ACTIVE, MESSAGES).await? == MESSAGES, "{ACTIVE} did not get everything");
        ensure!(fault.take(ABANDONED, TAKEN).await? == TAKEN, "{ABANDONED} did not get anything");
        Ok(fault)
    }

    async fn publish(&self, messages: usize) -> anyhow::Result<()> {
        let mut acks = Vec::new();
        for number in 0..messages {
            acks.push(self.context.publish(format!("orders.{}", number % 7), vec![b'.'; SIZE].into()).await?);
            if acks.len() == 256 || number + 1 == messages {
                for ack in acks.drain(..) {
                    ack.await.context("publishing")?;
                }
            }
        }
        Ok(())
    }

    /// Takes so many messages, or what comes within a moment.
    async fn take(&self, name: &str, most: usize) -> anyhow::Result<usize> {
        let consumer: consumer::PullConsumer =
            self.context.get_consumer_from_stream(name, STREAM).await.context("finding a consumer")?;
        let batch = consumer.batch().max_messages(most).expires(Duration::from_secs(2)).messages();
        let mut batch = batch.await.context("asking for messages")?;
        let mut taken = 0;
        while let Some(message) = batch.next().await {
            let message = message.map_err(|e| anyhow::anyhow!("taking messages: {e}"))?;
            message.double_ack().await.map_err(|e| anyhow::anyhow!("acknowledging: {e}"))?;
            taken += 1;
        }
        Ok(taken)
    }

    async fn held(&self) -> anyhow::Result<Held> {
        let state = self.context.get_stream(STREAM).await.context("looking at the stream")?.cached_info().state.clone();
        Ok(Held { messages: state.messages, bytes: state.bytes })
    }

    async fn goes_on(&self) -> anyhow::Result<usize> {
        self.publish(3).await?;
        self.take(ABANDONED, 10).await
    }
}

/// This program, as an operator runs it.
struct Trimtab<'a> {
    folder: &'a Path,
    program: PathBuf,
}

impl Trimtab<'_> {
    fn run(&self, args: &[&str]) -> anyhow::Result<()> {
        let quoted =
            args.iter().map(|arg| if arg.contains(['?', '$']) { format!("'{arg}'") } else { (*arg).to_owned() });
        println!("$ trimtab {}", quoted.collect::<Vec<_>>().join(" "));
        let mut command = Command::new(&self.program);
        command.args(args).arg("--state-dir").arg(self.folder.join("state"));
        let status = command.current_dir(self.folder).stdin(Stdio::null()).status().context("running trimtab")?;
        println!();
        match status.success() {
            true => Ok(()),
            false => bail!("trimtab {} ended with {status}", args.join(" ")),
        }
    }
}
