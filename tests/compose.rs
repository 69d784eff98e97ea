//! The compose file that people try trimtab with, judged by Compose itself; and the manifests for Kubernetes.

#[path = "compose/kubernetes.rs"]
mod kubernetes;
#[path = "compose/systemd.rs"]
mod systemd;

use std::collections::BTreeMap;
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
    for profiles in [&[][..], &["*"], &["roles"], &["pulsar"], &["kafka"], &["hedwig"], &["jaeger"]] {
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
            if image.starts_with("trimtab-hedwig:") {
                let context = service["build"]["context"].as_str().unwrap();
                assert!(Path::new(context).join("Containerfile").exists(), "{name}: {context}");
            }
            let (_, tag) = image.rsplit_once(':').unwrap_or_else(|| panic!("{name} has no tag"));
            assert!(tag.starts_with(|c: char| c.is_ascii_digit()), "{name}: {image}");
        }
        // three run to their end, the other has nothing to ask with
        if !["pulsar-init", "kafka-volume", "kafka-recover", "jaeger"].contains(&name.as_str()) {
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

/// What the file has Kafka and the recovery before it read.
fn kafka_properties() -> String {
    let out = compose(&file(), &["--profile", "*", "config", "--format", "json"]);
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    all["configs"]["kafka"]["content"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "needs python3 with pip"]
fn kafka_starts_after_its_log_dirs_are_recovered_and_never_without() {
    let all: BTreeMap<String, Value> = services().into_iter().collect();
    let (volume, recover, kafka) = (&all["kafka-volume"], &all["kafka-recover"], &all["kafka"]);
    let ended = "service_completed_successfully";
    assert_eq!(kafka["depends_on"].as_object().unwrap().len(), 1);
    assert_eq!(kafka["depends_on"]["kafka-recover"]["condition"], ended);
    assert_eq!(recover["depends_on"].as_object().unwrap().len(), 1, "it waits for nothing that may be down");
    assert_eq!(recover["depends_on"]["kafka-volume"]["condition"], ended);
    // A restart policy would start the broker past the recovery.
    for service in [volume, recover, kafka] {
        assert_eq!(service["restart"], "no");
    }
    assert_eq!((&recover["image"], &recover["user"]), (&"trimtab".into(), &"1000:1000".into()));
    let mount = |service: &Value| service["volumes"][0].clone();
    assert_eq!(mount(recover), mount(kafka), "the same volume in the same place");
    assert_eq!(mount(volume), mount(kafka));
    // Both read the same properties.
    let config = |service: &Value| service["configs"][0]["source"].clone();
    assert_eq!((config(recover), config(kafka)), ("kafka".into(), "kafka".into()));
    let at = recover["configs"][0]["target"].as_str().unwrap();
    let command: Vec<&str> = recover["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert!(command.windows(2).any(|pair| pair == ["--properties", at]), "{command:?}");
    // The log dir lies below the mount point: beside it there is room for what is cut.
    let properties = kafka_properties();
    let dirs = trimtab_recovery::Properties::parse(&properties).log_dirs();
    let target = mount(kafka)["target"].as_str().unwrap().to_owned();
    assert!(!dirs.is_empty() && dirs.iter().all(|dir| dir.parent() == Some(Path::new(&target))), "{dirs:?}");
    // A volume that no broker has used yet is no reason not to start one.
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("server.properties");
    std::fs::write(&own, properties.replace(&target, &folder.path().display().to_string())).unwrap();
    let mut words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    for word in words.iter_mut().filter(|word| *word == at) {
        *word = own.display().to_string();
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = trimtab_tests::trimtab::run(folder.path(), &words).exits(0);
    assert!(ended.out.contains("nothing to do"), "{ended:?}");
}

/// A real broker with the file's settings, killed, recovered with the file's command, and started again.
#[test]
#[ignore = "needs Kafka, python3 with pip"]
fn a_broker_with_the_settings_of_the_file_is_recovered_before_its_start() {
    use trimtab_tests::kafka::KafkaRig;
    let properties = kafka_properties();
    let mut builder = KafkaRig::builder();
    // All but the addresses and folders, which are the rig's here.
    let own = ["listener", "advertised", "controller.", "inter.broker", "log.dirs", "#"];
    for line in properties.lines().filter(|line| !own.iter().any(|prefix| line.starts_with(prefix))) {
        builder = builder.setting(line);
    }
    let mut rig = builder.start().unwrap();
    let mut client = rig.client().unwrap();
    client.run("create t 2").unwrap();
    client.run("fill t 2 none 1000000 500 8192 1").unwrap();
    rig.kill9().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("server.properties");
    let dir = rig.log_dir().display().to_string();
    std::fs::write(&own, properties.replace("/var/lib/kafka/data/logs", &dir)).unwrap();
    let own = own.display().to_string();
    let ended = trimtab_tests::trimtab::run(folder.path(), &["recover", "--properties", &own]).exits(0);
    assert!(ended.out.contains(&format!("{dir}: recovered")), "{ended:?}");
    rig.start().unwrap();
    let log = std::fs::read_to_string(rig.log()).unwrap();
    assert!(log.contains("Skipping recovery of "), "{log}");
}

/// What the hubs of the file run is what the tests run, each part waits for what it needs, and trimtab looks at that region.
#[test]
#[ignore = "needs python3 with pip"]
fn the_hedwig_region_is_the_one_that_trimtab_looks_at() {
    let all: BTreeMap<String, Value> = services().into_iter().collect();
    let folder = file().with_file_name("deploy");
    let version = |pom: &str| {
        let text = std::fs::read_to_string(pom).unwrap();
        assert!(text.contains("<artifactId>hedwig-server</artifactId>"), "{pom}");
        text.contains("4.3.2")
    };
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("rigs/java/hedwig/pom.xml");
    assert!(version(folder.join("hedwig/pom.xml").to_str().unwrap()) && version(rig.to_str().unwrap()));
    for (name, needs) in [
        ("hedwig-bookie", "hedwig-zookeeper"),
        ("hedwig-hub1", "hedwig-bookie"),
        ("hedwig-hub2", "hedwig-bookie"),
        ("trimtab-hedwig", "hedwig-hub1"),
        ("trimtab-hedwig", "hedwig-hub2"),
    ] {
        assert_eq!(all[name]["depends_on"][needs]["condition"], "service_healthy", "{name}");
        assert_eq!(all[name]["profiles"], serde_json::json!(["hedwig"]), "{name}");
    }
    let config = trimtab::config::Config::load(Some(&folder.join("compose/hedwig.toml"))).unwrap();
    let hub = &all["hedwig-hub1"]["environment"];
    assert_eq!(hub["REGION"].as_str(), Some(config.hedwig.region.as_str()));
    assert_eq!(Some(format!("zk://{}", hub["ZOOKEEPER"].as_str().unwrap())), config.hedwig.metadata);
    let start = folder.join("hedwig/start");
    let checked = Command::new("sh").arg("-n").arg(&start).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    for part in ["zookeeper", "bookie", "hub"] {
        assert!(all.values().any(|service| service["command"] == serde_json::json!([part])), "{part}");
    }
}

#[test]
fn nats_flushes_every_write_and_trimtab_starts_dry() {
    let text = std::fs::read_to_string(file()).unwrap();
    assert!(text.contains("sync_interval: always"));
    assert!(text.contains("TRIMTAB_MODE: ${TRIMTAB_MODE:-dry-run}"));
    let mut said = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    assert!(said.all(|line| !line.contains("password")), "no secrets in the file");
}

#[test]
fn trimtab_takes_the_file_that_it_is_given_there() {
    let file = file().with_file_name("deploy").join("compose/trimtab.toml");
    let config = trimtab::config::Config::load(Some(&file)).unwrap();
    assert_eq!(config.mode, trimtab::config::RunMode::DryRun);
    assert!(config.nats.url.is_some() && config.pulsar.metadata.is_some());
}
