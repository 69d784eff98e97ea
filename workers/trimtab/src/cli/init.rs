//! `config init`: asks a few questions and writes a configuration file that says what each line is for.

use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal as _, Write as _};
use std::path::Path;

use anyhow::Context as _;
use trimtab_targets::Connection;

use super::args::InitArgs;
use super::{Exit, Usage, broker_conf};
use crate::config::{Config, System};

/// How often a person may answer wrongly. A program that answers gets no second try.
const TRIES: usize = 5;

/// Whoever answers.
struct Asker<'a> {
    answers: &'a mut dyn BufRead,
    /// Somebody is there who can answer again.
    person: bool,
    /// Take what is proposed, and ask nobody.
    defaults: bool,
}

impl Asker<'_> {
    /// Asks until the answer is one. An empty line takes what is proposed.
    fn ask<T>(
        &mut self,
        question: &str,
        proposed: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> anyhow::Result<T> {
        let tries = if self.person { TRIES } else { 1 };
        let mut last = String::new();
        for _ in 0..tries {
            let shown = if proposed.is_empty() { "none" } else { proposed };
            let mut answer = String::new();
            if !self.defaults {
                eprint!("{question} [{shown}] ");
                if self.answers.read_line(&mut answer).context("reading an answer")? == 0 {
                    anyhow::bail!(Usage(format!(
                        "the answers ended before {question:?}; nothing was written. --defaults asks nothing"
                    )));
                }
            }
            let answer = match answer.trim() {
                "" => proposed,
                "none" => "",
                given => given,
            };
            match read(answer) {
                Ok(value) => return Ok(value),
                Err(why) if self.person => eprintln!("  {why}"),
                Err(why) => last = why,
            }
        }
        anyhow::bail!(Usage(format!("{question:?} was not answered: {last}; nothing was written")))
    }

    fn yes(&mut self, question: &str, proposed: bool) -> anyhow::Result<bool> {
        self.ask(question, if proposed { "yes" } else { "no" }, |answer| match answer {
            "y" | "yes" => Ok(true),
            "n" | "no" => Ok(false),
            other => Err(format!("{other:?} is neither yes nor no")),
        })
    }

    /// An answer that may be left out.
    fn maybe(&mut self, question: &str, read: impl Fn(&str) -> Result<(), String>) -> anyhow::Result<Option<String>> {
        self.ask(question, "", |answer| match answer {
            "" => Ok(None),
            given => read(given).map(|()| Some(given.to_owned())),
        })
    }
}

fn duration(text: &str) -> Result<(), String> {
    humantime::parse_duration(text).map(drop).map_err(|e| format!("{e}; expected a time such as 90d, 24h or 30min"))
}

fn file(text: &str) -> Result<(), String> {
    std::fs::File::open(text).map(drop).map_err(|e| format!("{text} cannot be read: {e}"))
}

fn zk(text: &str) -> Result<(), String> {
    Connection::parse(text).map(drop).map_err(|e| e.to_string())
}

fn web(text: &str) -> Result<(), String> {
    let fits = |url: reqwest::Url| matches!(url.scheme(), "http" | "https") && url.host_str().is_some();
    match reqwest::Url::parse(text).is_ok_and(fits) {
        true => Ok(()),
        false => Err(format!("{text:?} is not an address; expected http://host:port or https://host:port")),
    }
}

fn nats(text: &str) -> Result<(), String> {
    let fits = |url: &str| ["nats://", "tls://"].iter().any(|scheme| url.trim().starts_with(scheme));
    match text.split(',').all(fits) {
        true => Ok(()),
        false => Err(format!("{text:?} is not an address; expected nats://host:port or tls://host:port")),
    }
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    // As JSON has it, which leaves one control character as it is that TOML wants escaped.
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// `config init`
pub(crate) fn init(args: &InitArgs) -> anyhow::Result<Exit> {
    if args.file.exists() {
        anyhow::bail!(Usage(format!("{} exists; it is left as it is. Give another name", args.file.display())));
    }
    let mut stdin = std::io::stdin().lock();
    let person = std::io::stdin().is_terminal();
    let text = written(&mut Asker { answers: &mut stdin, person, defaults: args.defaults })?;
    save(&args.file, &text)?;
    let file = args.file.display();
    println!("{file} is written. Next:");
    println!("  trimtab doctor --config {file}      # is everything there, and does it let us in?");
    println!("  trimtab plan --config {file}        # what would be reclaimed, and why; reads only");
    Ok(Exit::Done)
}

/// Writes it whole or not at all, once it is known to be a configuration.
fn save(path: &Path, text: &str) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = || format!("writing {}", path.display());
    let mut new = tempfile::Builder::new().suffix(".toml").tempfile_in(folder).with_context(failed)?;
    new.write_all(text.as_bytes()).with_context(failed)?;
    Config::load(Some(new.path()))?;
    new.as_file().sync_all().with_context(failed)?;
    new.persist_noclobber(path).with_context(failed)?;
    Ok(())
}

fn written(asker: &mut Asker<'_>) -> anyhow::Result<String> {
    let mut out = String::from(
        "# trimtab. Every key and its default: `trimtab config check`. TRIMTAB_… variables and flags go before this file.\n\n",
    );
    let system =
        asker.ask("Which system: pulsar, bookkeeper (its orphan ledgers), hedwig or jetstream?", "pulsar", |text| {
            serde_json::from_value::<System>(text.into()).map_err(|_| format!("{text:?} is none of these"))
        })?;
    writeln!(out, "# Which of the systems below this process works on.")?;
    writeln!(out, "system = {}\n", serde_json::to_string(&system)?)?;
    let apply = asker.yes("May anything be changed? Without it trimtab only looks", false)?;
    writeln!(out, "# dry-run only looks; apply acts, within [caps].")?;
    writeln!(out, "mode = \"{}\"\n", if apply { "apply" } else { "dry-run" })?;
    let every = asker.ask("Look again after which time?", "1h", |text| duration(text).map(|()| text.to_owned()))?;
    writeln!(out, "# `trimtab run` and scanners look again after this time.")?;
    writeln!(out, "every = {}\n", quoted(&every))?;
    match asker.maybe("Folder for the record and the state?", |_| Ok(()))? {
        Some(folder) => writeln!(
            out,
            "# The record of every act, and what is remembered between scans.\nstate_dir = {}\n",
            quoted(&folder)
        )?,
        None => writeln!(
            out,
            "# The record of every act is kept in $XDG_STATE_HOME/trimtab, or here:\n# state_dir = \"/var/lib/trimtab\"\n"
        )?,
    }
    // Tables come after the keys that are in none.
    match system {
        System::Pulsar | System::Bookkeeper => pulsar(asker, &mut out)?,
        System::Hedwig => hedwig(asker, &mut out)?,
        System::JetStream => jetstream(asker, &mut out)?,
    }
    bus(asker, &mut out)?;
    limits(asker, &mut out)?;
    rules(asker, system, &mut out)?;
    Ok(out)
}

fn pulsar(asker: &mut Asker<'_>, out: &mut String) -> anyhow::Result<()> {
    let conf = asker.maybe("A broker's configuration file (broker.conf), for its defaults?", |path| {
        broker_conf::apply(&mut Config::default(), Path::new(path)).map_err(|e| e.to_string())
    })?;
    let mut known = Config::default();
    if let Some(conf) = &conf {
        broker_conf::apply(&mut known, Path::new(conf))?;
    }
    let proposed = known.pulsar.metadata.clone().unwrap_or_else(|| "zk://127.0.0.1:2181".to_owned());
    let metadata = asker.ask("Where is the metadata, zk://host:port,host:port/chroot?", &proposed, |text| {
        zk(text).map(|()| text.to_owned())
    })?;
    let digest = asker.maybe("A file with user:password for ZooKeeper's digest scheme?", file)?;
    let admin =
        asker.maybe("A broker's web address? Those that are registered in the metadata are used without one", web)?;
    let token = asker.maybe("A file with the token for brokers?", file)?;
    writeln!(out, "[pulsar]\n# The brokers' metadataStoreUrl, chroot included. It is only read.")?;
    writeln!(out, "metadata = {}", quoted(&metadata))?;
    optional(out, "zk_digest_file", digest.as_deref(), "`user:password` for ZooKeeper", "/etc/trimtab/zk")?;
    writeln!(out, "# Brokers that are asked to trim; without any, those registered in the metadata.")?;
    match admin {
        Some(admin) => writeln!(out, "admin = [{}]", quoted(&admin))?,
        None => writeln!(out, "# admin = [\"https://broker:8443\"]")?,
    }
    optional(
        out,
        "token_file",
        token.as_deref(),
        "The token of a tenant's admin or a superuser",
        "/etc/trimtab/token",
    )?;
    let pulsar = &known.pulsar;
    writeln!(out, "# What the brokers' own configuration says. `trimtab doctor` compares it with theirs.")?;
    writeln!(out, "default_retention_minutes = {}", pulsar.default_retention_minutes)?;
    writeln!(out, "default_retention_mib = {}", pulsar.default_retention_mib)?;
    writeln!(out, "default_ttl_s = {}", pulsar.default_ttl_s)?;
    writeln!(out, "default_offload_deletion_lag_ms = {}", pulsar.default_offload_deletion_lag_ms)?;
    writeln!(out, "default_subscription_expiration_minutes = {}", pulsar.default_subscription_expiration_minutes)?;
    writeln!(out, "replicator_prefix = {}", quoted(&pulsar.replicator_prefix))?;
    writeln!(out, "system_cursors = {}\n", serde_json::to_string(&pulsar.system_cursors)?)?;
    Ok(())
}

fn hedwig(asker: &mut Asker<'_>, out: &mut String) -> anyhow::Result<()> {
    let metadata = asker.ask("Where is the metadata, zk://host:port,host:port?", "zk://127.0.0.1:2181", |text| {
        let text = text.strip_prefix("hedwig+").unwrap_or(text);
        zk(text).map(|()| text.to_owned())
    })?;
    let prefix = asker.ask("The hubs' zk_prefix?", "/hedwig", |text| Ok(text.to_owned()))?;
    let region = asker.ask("The hubs' region?", "standalone", |text| Ok(text.to_owned()))?;
    let digest = asker.maybe("A file with user:password for ZooKeeper's digest scheme?", file)?;
    writeln!(out, "[hedwig]\n# The hubs' ZooKeeper. It is only read.\nmetadata = {}", quoted(&metadata))?;
    writeln!(out, "# As the hubs are set: zk_prefix, region, and consume_interval.")?;
    writeln!(out, "prefix = {}\nregion = {}\nconsume_interval = 50", quoted(&prefix), quoted(&region))?;
    optional(out, "zk_digest_file", digest.as_deref(), "`user:password` for ZooKeeper", "/etc/trimtab/zk")?;
    writeln!(out, "# Hubs announce addresses; where these cannot be reached from here, what to use instead.")?;
    writeln!(out, "# addresses = {{ \"10.0.0.7\" = \"hub-7.example\" }}\n")?;
    Ok(())
}

fn jetstream(asker: &mut Asker<'_>, out: &mut String) -> anyhow::Result<()> {
    let url = asker.ask("Where are the servers, nats://host:port?", "nats://127.0.0.1:4222", |text| {
        nats(text).map(|()| text.to_owned())
    })?;
    let creds = asker.maybe("A credentials file (JWT) of the account?", file)?;
    writeln!(out, "[jetstream]\n# Servers, joined by commas.\nurl = {}\n", quoted(&url))?;
    writeln!(out, "# Who we are in each account: creds_file, nkey_file, or user with password_file.")?;
    match creds {
        Some(creds) => writeln!(out, "[[jetstream.accounts]]\ncreds_file = {}\n", quoted(&creds))?,
        None => writeln!(out, "# [[jetstream.accounts]]\n# creds_file = \"/etc/trimtab/account.creds\"\n")?,
    }
    Ok(())
}

fn bus(asker: &mut Asker<'_>, out: &mut String) -> anyhow::Result<()> {
    let url = asker
        .maybe("Workers in several processes, over NATS: nats://host:port? All in one process without it", nats)?;
    writeln!(out, "[nats]\n# The bus between workers. Without an address everything runs in one process.")?;
    match url {
        Some(url) => writeln!(
            out,
            "url = {}\n# Each role its own user: see docs/security.md.\n# nkey_file = \"/etc/trimtab/role.nk\"\n",
            quoted(&url)
        )?,
        None => writeln!(out, "# url = \"nats://127.0.0.1:4222\"\n")?,
    }
    writeln!(out, "[http]\n# Health, metrics and webhooks. Any other address than loopback needs token_file.")?;
    writeln!(out, "# listen = \"127.0.0.1:8222\"\n")?;
    Ok(())
}

fn limits(asker: &mut Asker<'_>, out: &mut String) -> anyhow::Result<()> {
    let Config { limits, caps, .. } = Config::default();
    let acts = asker.ask(
        "The most acts of one scan? More stop it until a person confirms",
        &caps.max_acts.to_string(),
        |text| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number")),
    )?;
    writeln!(
        out,
        "[limits]\n# Metadata operations a second, over all workers together.\nmetadata_rate = {:?}\n",
        limits.metadata_rate
    )?;
    writeln!(
        out,
        "[caps]\n# A scan that proposes more than this is stopped before its first act, until `trimtab confirm`."
    )?;
    writeln!(out, "max_acts = {acts}\n# Bytes, one replica.\nmax_bytes = {}", caps.max_bytes)?;
    writeln!(out, "# Share of the topics and bytes that were seen.\nmax_share = {:?}", caps.max_share)?;
    writeln!(
        out,
        "# How much fewer topics than the last scan saw there may be.\nmax_shrink = {:?}\n",
        caps.max_shrink
    )?;
    Ok(())
}

fn rules(asker: &mut Asker<'_>, system: System, out: &mut String) -> anyhow::Result<()> {
    writeln!(
        out,
        "# Rules, the first match counts. They can only make trimtab keep more than the system's own policies do, except where a"
    )?;
    writeln!(
        out,
        "# rule says otherwise by name. Somebody's wish to be left alone:\n# [[rules]]\n# match = [\"acme/audit/**\"]"
    )?;
    writeln!(out, "# protect = {{ by = \"legal\", until = \"2030-01-01T00:00:00Z\" }}\n")?;
    if system == System::Bookkeeper {
        return Ok(());
    }
    let stale =
        asker.maybe("After how long without any change is a subscriber stale? Without it nobody is", duration)?;
    writeln!(
        out,
        "# Subscribers of which nothing changes for so long are announced, and moved on once `grace` is over."
    )?;
    let unguarded = if system == System::JetStream {
        "allow_unguarded = false   # without it they are only reported: docs/jetstream.md says why\n"
    } else {
        ""
    };
    let (off, after) = stale.map_or(("# ", "90d".to_owned()), |stale| ("", stale));
    let after = quoted(&after);
    let rule = format!(
        "[[rules]]\nmatch = [\"**\"]\nsubscription = [\"**\"]\nstale_after = {after}\ngrace = \"24h\"\n{unguarded}"
    );
    for line in rule.lines() {
        writeln!(out, "{off}{line}")?;
    }
    Ok(())
}

/// A line, or how it would look.
fn optional(out: &mut String, key: &str, value: Option<&str>, says: &str, example: &str) -> std::fmt::Result {
    writeln!(out, "# {says}.")?;
    match value {
        Some(value) => writeln!(out, "{key} = {}", quoted(value)),
        None => writeln!(out, "# {key} = {}", quoted(example)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(answers: &str) -> anyhow::Result<Config> {
        let mut answers = answers.as_bytes();
        let text = written(&mut Asker { answers: &mut answers, person: false, defaults: false })?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("trimtab.toml");
        save(&file, &text)?;
        assert_eq!(std::fs::read_to_string(&file)?, text);
        Ok(Config::load(Some(&file))?)
    }

    #[test]
    fn what_is_written_is_what_was_answered() {
        let folder = tempfile::tempdir().unwrap();
        let (conf, odd) = (folder.path().join("broker.conf"), folder.path().join("a \"quoted\" \\ name\u{7f}"));
        std::fs::write(&conf, "metadataStoreUrl=zk:zk1:2181/x\ndefaultRetentionTimeInMinutes=7\n").unwrap();
        std::fs::write(&odd, "secret").unwrap();
        let (conf, odd) = (conf.display(), odd.display());
        let answers =
            format!("pulsar\nyes\n30min\n/var/lib/t\n{conf}\n\n\nhttps://b:8443\n{odd}\nnats://n:4222\n12\n90d\n");
        let config = answered(&answers).unwrap();
        assert_eq!(config.pulsar.metadata.as_deref(), Some("zk://zk1:2181/x"));
        assert_eq!((config.pulsar.default_retention_minutes, config.caps.max_acts), (7, 12));
        assert_eq!(config.pulsar.token_file.unwrap().display().to_string(), odd.to_string());
        assert_eq!((config.mode, config.nats.url.as_deref()), (crate::config::RunMode::Apply, Some("nats://n:4222")));
        assert_eq!(config.rules[0].stale_after, Some(std::time::Duration::from_secs(90 * 86_400)));
    }

    #[test]
    fn what_is_proposed_changes_nothing_of_the_defaults() {
        for system in ["pulsar", "bookkeeper", "hedwig", "jetstream"] {
            let mut config = answered(&format!("{system}\n{}", "\n".repeat(20))).unwrap();
            assert_eq!(config.every.take(), Some(std::time::Duration::from_secs(3600)));
            config.system = System::default();
            (config.pulsar.metadata, config.hedwig.metadata, config.jetstream.url) = (None, None, None);
            let json = |config: &Config| serde_json::to_value(config).unwrap();
            assert_eq!(json(&config), json(&Config::default()), "{system}");
        }
    }

    #[test]
    fn a_wrong_answer_writes_nothing() {
        for (answers, says) in [
            ("rabbitmq\n", "none of these"),
            ("pulsar\nperhaps\n", "neither yes nor no"),
            ("pulsar\nno\nsoon\n", "expected a time"),
            ("pulsar\nno\n1h\n\n/does/not/exist\n", "cannot be read"),
            ("pulsar\nno\n1h\n\n\nlocalhost\n", "zk://"),
            ("jetstream\nno\n1h\n\nhttp://x\n", "nats://"),
            ("pulsar\n", "ended before"),
        ] {
            let error = format!("{:#}", answered(answers).unwrap_err());
            assert!(error.contains(says) && error.contains("nothing was written"), "{answers:?}: {error}");
        }
    }
}
