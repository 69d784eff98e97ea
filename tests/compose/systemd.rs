//! `deploy/systemd`: units that start what there is, stop it no sooner than it needs, and may do little else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const UNITS: [&str; 3] = ["trimtab.service", "trimtab@.service", "trimtab-audit.service"];
/// Those that the template is for, as it says.
const ROLES: [&str; 3] = ["scanner", "decider", "executor"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd")
}

/// The settings of a unit's `[Service]`, each with the last value it is given.
fn service(unit: &str) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(folder().join(unit)).unwrap();
    let lines = text.lines().skip_while(|line| *line != "[Service]").skip(1).take_while(|line| !line.starts_with('['));
    let pairs = lines.filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn units_start_commands_that_there_are_and_give_them_time() {
    for unit in UNITS {
        let service = service(unit);
        let roles = if unit.contains('@') { &ROLES[..] } else { &[""] };
        for role in roles {
            let line = service["ExecStart"].replace("%i", role).replace("%H", "host");
            let args: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(args[0], "/usr/bin/trimtab");
            let parsed = trimtab::cli::command().try_get_matches_from(&args);
            assert!(parsed.is_ok(), "{unit} {role}: {:?}", parsed.err());
        }
        // What `--help` promises: within 30 s of being told to stop it has ended.
        let stop: u64 = service["TimeoutStopSec"].trim_end_matches('s').parse().unwrap();
        assert!(stop > 30, "{unit}");
        for (key, value) in [("Type", "notify"), ("DynamicUser", "yes"), ("RestartPreventExitStatus", "2 3")] {
            assert_eq!(service[key], value, "{unit}");
        }
    }
    let states: Vec<String> = UNITS.map(|unit| service(unit)["StateDirectory"].clone()).to_vec();
    assert!(states[1].ends_with("%i") && states[0] != states[2], "each has a folder of its own: {states:?}");
}

/// What systemd itself says of them, where it is installed: no unknown key, and an exposure of at most 2 of 10.
#[test]
fn systemd_takes_the_units_and_finds_them_hardly_exposed() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("left out: systemd-analyze is not installed");
        return;
    }
    let copies = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for unit in UNITS {
        let text = std::fs::read_to_string(folder().join(unit)).unwrap();
        // That the binary is not installed here is no fault of the unit.
        let text = text.replace("/usr/bin/trimtab", "/bin/true");
        let roles = if unit.contains('@') { &ROLES[..] } else { &[""] };
        for role in roles {
            let name = unit.replace('@', &format!("@{role}"));
            let file = copies.path().join(&name);
            std::fs::write(&file, &text).unwrap();
            let keys = folder().join(format!("{name}.d"));
            if keys.exists() {
                let to = copies.path().join(format!("{name}.d"));
                std::fs::create_dir(&to).unwrap();
                std::fs::copy(keys.join("keys.conf"), to.join("keys.conf")).unwrap();
            }
            files.push(file);
        }
    }
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&files).output().unwrap();
    let told = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && told.is_empty(), "{told}");
    for file in &files {
        let mut security = Command::new("systemd-analyze");
        let scored = security.args(["security", "--offline=true", "--threshold=20", "--no-pager"]).arg(file).output();
        let scored = scored.unwrap();
        let last = String::from_utf8_lossy(&scored.stdout).lines().rev().take(2).collect::<String>();
        assert!(scored.status.success(), "{}: {last}", file.display());
    }
}
