//! `doctor`: whether everything that is configured is there, lets us in, and keeps our time, and what to do if not. Reads, and changes
//! nothing but that the state folder is made: the one file that it writes there it takes away again.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use trimtab_targets::{Finding, Grade};

use super::args::DoctorArgs;
use super::{Context, Exit, runtime};
use crate::config::{Config, RunMode, System, show_bytes};
use crate::journal;
use crate::sign::{Signer, Trusted};

/// Less room than this is soon full.
const LITTLE_ROOM: u64 = 1 << 30;

/// What was looked at belongs to one of these.
struct Section {
    name: String,
    found: Vec<Finding>,
}

/// `doctor`
pub(crate) async fn doctor(context: &Context, args: DoctorArgs) -> anyhow::Result<Exit> {
    let mut config = context.global.config()?;
    args.source.apply(&mut config)?;
    args.bus.apply(&mut config);
    let mut sections = vec![Section { name: "this host".to_owned(), found: here(&config) }];
    for system in configured(&config) {
        let name = Config { system, ..config.clone() }.target().to_owned();
        sections.push(Section { name, found: target(&config, system).await });
    }
    if sections.len() == 1 {
        let found = Finding::bad(
            "configuration",
            "it names no system to work on",
            "give --from zk://host:port (or hedwig+zk://…, nats://…), or write a configuration with `trimtab config init FILE`",
        );
        sections.push(Section { name: "targets".to_owned(), found: vec![found] });
    }
    if let Some(url) = config.nats.url.as_deref().filter(|url| *url != "spawn") {
        sections.push(Section { name: format!("bus at {url}"), found: bus(&config).await });
    }
    let worst = sections.iter().flat_map(|section| &section.found).map(|found| found.grade).max();
    for section in &sections {
        tell(context, section)?;
    }
    Ok(if worst == Some(Grade::Bad) { Exit::Failed } else { Exit::Done })
}

/// The systems that the configuration says something about: the one to work on, and others whose address it has.
fn configured(config: &Config) -> Vec<System> {
    // Both are read from the same address: it is that of the one to work on.
    let of_the_cluster = if config.system == System::Bookkeeper { System::Bookkeeper } else { System::Pulsar };
    let addresses = [
        (of_the_cluster, &config.pulsar.metadata),
        (System::Hedwig, &config.hedwig.metadata),
        (System::JetStream, &config.jetstream.url),
    ];
    addresses.into_iter().filter(|(_, address)| address.is_some()).map(|(system, _)| system).collect()
}

fn tell(context: &Context, section: &Section) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if context.json() {
        for found in &section.found {
            let mut line = serde_json::to_value(found)?;
            line["of"] = section.name.as_str().into();
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    writeln!(out, "{}", section.name)?;
    for found in &section.found {
        let sign = match found.grade {
            Grade::Good => "[ok]",
            Grade::Doubtful => "[look]",
            Grade::Bad => "[BAD]",
        };
        writeln!(out, "  {sign:<6} {}: {}", found.what, found.says)?;
        if let Some(advice) = &found.advice {
            writeln!(out, "         -> {advice}")?;
        }
    }
    Ok(())
}

/// A target: can it be read, and can its owners be called.
async fn target(config: &Config, system: System) -> Vec<Finding> {
    // Nothing is asked of brokers about topics here, so no evidence need be kept.
    let mut config = Config { system, ..config.clone() };
    config.pulsar.ask_brokers = false;
    let live = match runtime::live(&config, None).await {
        Ok(live) => live,
        Err(e) => {
            let advice = "nothing can be planned before this works: check the address, the network and the credentials";
            return vec![Finding::bad("connection", format!("{e:#}"), advice)];
        }
    };
    let mut found = vec![match live.inventory.identity().await {
        Ok(identity) => Finding::good("identity", identity),
        Err(e) => {
            Finding::bad("identity", e.to_string(), "plans name the cluster that they are for; without it none is made")
        }
    }];
    found.extend(live.inventory.examine().await);
    found.extend(live.act.examine().await);
    found
}

#[cfg(feature = "nats")]
async fn bus(config: &Config) -> Vec<Finding> {
    let mut config = config.clone();
    config.nats.create = false;
    let wires = match runtime::wires(&config, &runtime::instance()).await {
        Ok(wires) => wires,
        Err(e) => {
            let advice =
                "see whether the server is up, the address is right and the credentials are those of this role";
            return vec![Finding::bad("connection", format!("{e:#}"), advice)];
        }
    };
    let Some(nats) = wires.nats else { return Vec::new() };
    let mut found = vec![match nats.verify().await {
        Ok(()) => Finding::good("streams and consumers", "as they must be"),
        Err(e) => Finding::bad(
            "streams and consumers",
            e.to_string(),
            "make what is missing with `trimtab nats setup` as a user who may; what differs must be mended by hand. A role's own user may \
             not be let look at all of them: then ask as another",
        ),
    }];
    match nats.glance().await {
        Ok(glance) => {
            found.push(match glance.dead {
                0 => Finding::good("dead letters", "none"),
                dead => Finding::doubtful(
                    "dead letters",
                    format!("{dead} events were given up"),
                    "see why with `trimtab dead list`, then `dead retry` or `dead drop`",
                ),
            });
            found.extend(glance.clock.map(|there| trimtab_targets::clock("clock of the server", there)));
        }
        Err(e) => found.push(Finding::doubtful("dead letters", e.to_string(), "this user may not be let look at them")),
    }
    found
}

#[cfg(not(feature = "nats"))]
async fn bus(_config: &Config) -> Vec<Finding> {
    vec![Finding::bad("connection", "this build cannot reach NATS", "build it with the feature nats")]
}

/// What is on this host: the state folder, the records in it, keys and other secrets.
fn here(config: &Config) -> Vec<Finding> {
    let mut found = vec![match config.mode {
        RunMode::DryRun => Finding::good("mode", "dry-run: nothing is changed"),
        RunMode::Apply => Finding::good("mode", "apply: acts are carried out, within the limits"),
    }];
    match config.state_dir() {
        Ok(folder) => found.extend(state(&folder)),
        Err(e) => found.push(Finding::bad("state folder", e.to_string(), "the record and the limits are kept there")),
    }
    for (name, file) in secrets(config) {
        found.push(secret_file(name, file));
    }
    if let Some(file) = &config.keys.seed_file {
        found.push(match Signer::from_file(file) {
            Ok(signer) => Finding::good("signing key", signer.public_key()),
            Err(e) => Finding::bad("signing key", e.to_string(), "make one with `trimtab keys new FILE`"),
        });
    }
    for (name, keys) in [
        ("keys.trusted_deciders", &config.keys.trusted_deciders),
        ("keys.trusted_executors", &config.keys.trusted_executors),
    ] {
        if let Err(e) = Trusted::new(keys.iter().cloned()) {
            found.push(Finding::bad(name, e.to_string(), "give public keys as `trimtab keys public FILE` prints them"));
        }
    }
    found
}

fn state(folder: &Path) -> Vec<Finding> {
    let name = format!("state folder {}", folder.display());
    let writable = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder)).map(drop);
    if let Err(e) = writable {
        let advice = "give this user the right to write there, or another folder (state_dir): nothing is called without a record";
        return vec![Finding::bad(name, e.to_string(), advice)];
    }
    let mut found = vec![match rustix::fs::statvfs(folder) {
        Ok(room) => {
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            let says = format!("{} free", show_bytes(i64::try_from(free).unwrap_or(i64::MAX)));
            match free {
                ..LITTLE_ROOM => Finding::doubtful(
                    name,
                    says,
                    "make room: where the record cannot be written nothing is carried out",
                ),
                _ => Finding::good(name, says),
            }
        }
        Err(e) => Finding::doubtful(name, e.to_string(), "how much room there is is not known"),
    }];
    let records = std::fs::read_dir(folder.join("audit")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut records: Vec<_> = records.filter(|path| path.extension().is_some_and(|e| e == "jsonl")).collect();
    records.sort();
    for path in records {
        let name = format!("record {}", path.display());
        found.push(match journal::verify(&path, None) {
            Ok(chain) => Finding::good(name, format!("{} entries, the chain is whole", chain.records)),
            Err(e) => Finding::bad(
                name,
                e.to_string(),
                "somebody changed it, or the disk did: keep a copy, and see what `trimtab audit verify` says of it",
            ),
        });
    }
    found
}

/// Files with secrets, by where the configuration names them.
fn secrets(config: &Config) -> Vec<(&'static str, &Path)> {
    let named = [
        ("pulsar.token_file", &config.pulsar.token_file),
        ("pulsar.key_file", &config.pulsar.key_file),
        ("pulsar.zk_digest_file", &config.pulsar.zk_digest_file),
        ("pulsar.zk_sasl_file", &config.pulsar.zk_sasl_file),
        ("pulsar.zk_key_file", &config.pulsar.zk_key_file),
        ("hedwig.zk_digest_file", &config.hedwig.zk_digest_file),
        ("hedwig.zk_sasl_file", &config.hedwig.zk_sasl_file),
        ("hedwig.zk_key_file", &config.hedwig.zk_key_file),
        ("nats.password_file", &config.nats.password_file),
        ("nats.nkey_file", &config.nats.nkey_file),
        ("nats.creds_file", &config.nats.creds_file),
        ("nats.key_file", &config.nats.key_file),
        ("jetstream.key_file", &config.jetstream.key_file),
        ("keys.seed_file", &config.keys.seed_file),
        ("http.token_file", &config.http.token_file),
        ("notify.token_file", &config.notify.token_file),
    ];
    let accounts = config.jetstream.accounts.iter().flat_map(|account| {
        [
            ("jetstream.accounts.password_file", &account.password_file),
            ("jetstream.accounts.nkey_file", &account.nkey_file),
            ("jetstream.accounts.creds_file", &account.creds_file),
        ]
    });
    named.into_iter().chain(accounts).filter_map(|(name, file)| Some((name, file.as_deref()?))).collect()
}

fn secret_file(name: &str, file: &Path) -> Finding {
    let what = format!("{name} {}", file.display());
    let opened = std::fs::File::open(file).and_then(|file| file.metadata());
    match opened {
        Ok(of) if of.mode() & 0o004 != 0 => {
            Finding::doubtful(what, "everybody on this host can read it", format!("chmod 600 {}", file.display()))
        }
        Ok(of) if of.len() == 0 => Finding::bad(what, "it is empty", "put the secret into it"),
        Ok(_) => Finding::good(what, "can be read"),
        Err(e) => Finding::bad(what, e.to_string(), "give this user the right to read it, or another file"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn grades(found: &[Finding]) -> Vec<Grade> {
        found.iter().map(|found| found.grade).collect()
    }

    #[test]
    fn a_record_that_was_changed_and_a_folder_that_is_none_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let records = folder.path().join("audit");
        std::fs::create_dir(&records).unwrap();
        assert_eq!(state(folder.path()).len(), 1);
        std::fs::write(records.join("other.jsonl"), "{\"seq\":1}\n").unwrap();
        let found = state(folder.path());
        assert_eq!(found[1].grade, Grade::Bad, "{found:?}");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(grades(&state(&file)), [Grade::Bad]);
    }

    #[test]
    fn secrets_that_others_can_read_that_are_empty_or_missing_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        assert_eq!(secret_file("http.token_file", &file).grade, Grade::Bad);
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(secret_file("http.token_file", &file).grade, Grade::Bad);
        std::fs::write(&file, "secret").unwrap();
        assert_eq!(secret_file("http.token_file", &file).grade, Grade::Good);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let found = secret_file("http.token_file", &file);
        assert_eq!(found.grade, Grade::Doubtful);
        assert!(!found.says.contains("secret"));
    }

    #[test]
    fn every_file_with_a_secret_is_looked_at() {
        // Whoever adds such a key adds it to the list.
        let text = serde_json::to_string(&Config::default()).unwrap();
        let named = |word: &str| text.matches(&format!("{word}\":")).count();
        // `key_file` is in `nkey_file`, too.
        let keys = ["token_file", "password_file", "key_file", "creds_file", "seed_file", "digest_file", "sasl_file"];
        let configured: usize = keys.iter().map(|word| named(word)).sum();
        let mut config = Config::default();
        let some = || Some(std::path::PathBuf::from("/x"));
        let (pulsar, hedwig, nats) = (&mut config.pulsar, &mut config.hedwig, &mut config.nats);
        (pulsar.token_file, pulsar.key_file, pulsar.zk_digest_file) = (some(), some(), some());
        (pulsar.zk_sasl_file, pulsar.zk_key_file) = (some(), some());
        (hedwig.zk_digest_file, hedwig.zk_sasl_file, hedwig.zk_key_file) = (some(), some(), some());
        (nats.password_file, nats.nkey_file, nats.creds_file, nats.key_file) = (some(), some(), some(), some());
        (config.jetstream.key_file, config.keys.seed_file) = (some(), some());
        (config.http.token_file, config.notify.token_file) = (some(), some());
        assert_eq!(secrets(&config).len(), configured);
    }
}
