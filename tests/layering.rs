//! Dependencies point one way, and some things stay in one place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Normal and build dependencies of each of our crates, without what only tests use.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec().unwrap();
    let of = |package: &cargo_metadata::Package| {
        let used = package.dependencies.iter().filter(|dependency| dependency.kind != DependencyKind::Development);
        (package.name.to_string(), used.map(|dependency| dependency.name.clone()).collect())
    };
    metadata.packages.iter().map(of).collect()
}

#[test]
fn crates_depend_on_those_below_them_only() {
    let all = dependencies();
    let allowed: [(&str, &[&str]); 6] = [
        ("trimtab", &["trimtab-bus", "trimtab-events", "trimtab-policy", "trimtab-recovery", "trimtab-targets"]),
        ("trimtab-targets", &["trimtab-events"]),
        ("trimtab-bus", &["trimtab-events"]),
        ("trimtab-policy", &["trimtab-events"]),
        ("trimtab-recovery", &[]),
        ("trimtab-events", &[]),
    ];
    const OF_TESTS: [&str; 5] =
        ["trimtab-tests", "trimtab-bench", "trimtab-bench-recovery", "trimtab-model", "trimtab-simulation"];
    let ours: BTreeSet<&str> = all.keys().map(String::as_str).filter(|name| !OF_TESTS.contains(name)).collect();
    assert_eq!(ours, allowed.iter().map(|(name, _)| *name).collect(), "a crate that this test does not know");
    for (name, allowed) in allowed {
        let below: Vec<&str> = all[name].iter().map(String::as_str).filter(|other| all.contains_key(*other)).collect();
        assert_eq!(below, allowed, "{name}");
    }
}

#[test]
fn policy_uses_nothing_that_could_do_io() {
    let policy = &dependencies()["trimtab-policy"];
    assert_eq!(policy.iter().map(String::as_str).collect::<Vec<_>>(), ["globset", "serde", "trimtab-events"]);
}

/// Every Rust file of the workers, with its path below `workers/`.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("workers")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let name = path.strip_prefix(root().join("workers")).unwrap().to_str().unwrap().replace('\\', "/");
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 30, "the sources are not where they were: {found:?}");
    found
}

/// Text without its comments: what is forbidden may be spoken of.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// `backoff` is a given, but nobody maintains it: one file uses it, so that one file has to change.
#[test]
fn only_the_retries_of_the_workers_name_backoff() {
    let users = dependencies().into_iter().filter(|(_, used)| used.contains("backoff")).map(|(name, _)| name);
    assert_eq!(users.collect::<Vec<_>>(), ["trimtab"]);
    let named = sources().into_iter().filter(|(_, text)| code(text).contains("backoff::")).map(|(name, _)| name);
    let elsewhere: Vec<String> = named.filter(|name| name != "trimtab/src/retry.rs").collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}

/// A worker that knows which target it works on is a target in the wrong place.
#[test]
fn no_worker_knows_a_target_by_name() {
    let targets = ["pulsar", "hedwig", "kafka", "bookkeeper", "Pulsar", "Hedwig", "Kafka", "BookKeeper"];
    let workers = sources().into_iter().filter(|(name, _)| name.starts_with("trimtab/src/workers/"));
    for (name, text) in workers {
        let code = code(text.split("#[cfg(test)]").next().unwrap_or_default());
        let named = code.lines().find(|line| targets.iter().any(|target| line.contains(target)));
        assert_eq!(named, None, "{name}");
    }
}
