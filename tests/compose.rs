//! The compose file that people try trimtab with, judged by Compose itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use trimtab_tests::cache;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docker-compose.yml")
}

fn compose(file: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(cache::docker_compose().unwrap());
    command.arg("-f").arg(file).args(args).env_remove("COMPOSE_PROFILES").output().unwrap()
}

fn services() -> Vec<(String, Value)> {
    // A reference to a service behind a profile is looked at only when the profile is on.
    let out = compose(&file(), &["--profile", "*", "config", "--format", "json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    all["services"].as_object().unwrap().iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

#[test]
#[ignore = "needs python3 with pip"]
fn compose_accepts_the_file_under_every_profile() {
    for profiles in [&[][..], &["*"], &["roles"], &["pulsar"], &["jaeger"]] {
        let mut args: Vec<&str> = profiles.iter().flat_map(|p| ["--profile", p]).collect();
        args.extend(["config", "--quiet"]);
        let out = compose(&file(), &args);
        assert!(out.status.success(), "{profiles:?}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(out.stderr.is_empty(), "{profiles:?}: {}", String::from_utf8_lossy(&out.stderr));
    }
    let out = compose(&file(), &["config", "--services"]);
    let mut started: Vec<_> = std::str::from_utf8(&out.stdout).unwrap().lines().collect();
    started.sort_unstable();
    assert_eq!(started, ["nats", "trimtab"], "what runs without a profile");
}

#[test]
#[ignore = "needs python3 with pip"]
fn compose_refuses_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("docker-compose.yml");
    for wrong in [
        "services: { a: { image: a, no-such-key: 1 } }",
        "services: { a: { image: a, depends_on: [b] } }",
        "services: { a: { image: a, profiles: [p], depends_on: [b] } }",
    ] {
        std::fs::write(&broken, wrong).unwrap();
        let out = compose(&broken, &["--profile", "*", "config", "--quiet"]);
        assert!(!out.status.success(), "{wrong}");
    }
}

#[test]
#[ignore = "needs python3 with pip"]
fn services_are_pinned_and_watched_and_open_to_nobody_else() {
    for (name, service) in services() {
        let image = service["image"].as_str().unwrap();
        if image == "trimtab" {
            assert_eq!(service["build"]["dockerfile"], "Containerfile", "{name}");
            assert_eq!(service["read_only"], true, "{name}");
        } else {
            let (_, tag) = image.rsplit_once(':').unwrap_or_else(|| panic!("{name} has no tag"));
            assert!(tag.starts_with(|c: char| c.is_ascii_digit()), "{name}: {image}");
        }
        // one runs to its end, the other has nothing to ask with
        if !["pulsar-init", "jaeger"].contains(&name.as_str()) {
            assert!(service["healthcheck"]["test"].is_array(), "{name} has no health check");
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert_eq!(port["host_ip"], "127.0.0.1", "{name}: {port}");
        }
        for (on, how) in service["depends_on"].as_object().into_iter().flatten() {
            assert_ne!(how["condition"], "service_started", "{name} does not wait until {on} is ready");
        }
    }
}

#[test]
fn nats_flushes_every_write_and_trimtab_starts_dry() {
    let text = std::fs::read_to_string(file()).unwrap();
    assert!(text.contains("sync_interval: always"));
    assert!(text.contains("TRIMTAB_MODE: ${TRIMTAB_MODE:-plan}"));
    assert!(!text.contains("password"), "no secrets in the file");
}
