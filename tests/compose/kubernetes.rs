//! The manifests for Kubernetes, held without a cluster: against schemas of their kinds, against each other, and against the program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use trimtab_tests::http::once;
use trimtab_tests::trimtab::{begin, run};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// All documents, each with its file.
static ALL: LazyLock<Vec<(String, Value)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(root().join("deploy/kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.ends_with(".yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            all.push((name.clone(), Value::deserialize(document).unwrap_or_else(|e| panic!("{name}: {e}"))));
        }
    }
    assert!(all.len() > 20, "{}", all.len());
    all
});

fn of_kind(kind: &str) -> impl Iterator<Item = &'static Value> {
    let kind = kind.to_owned();
    ALL.iter().map(|(_, document)| document).filter(move |document| document["kind"] == kind.as_str())
}

fn named(kind: &str, name: &str) -> &'static Value {
    of_kind(kind).find(|one| one["metadata"]["name"] == name).unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What runs pods: its name, and what a pod is.
fn pods() -> Vec<(&'static str, &'static Value)> {
    let kinds = ["Deployment", "StatefulSet", "Job"];
    let all = kinds.iter().flat_map(|kind| of_kind(kind));
    all.map(|one| (text(&one["metadata"]["name"]), &one["spec"]["template"])).collect()
}

/// Those of trimtab: the role that it is, and the pod.
fn roles() -> Vec<(&'static str, &'static Value)> {
    let ours = |pod: &Value| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "trimtab";
    let role = |pod: &'static Value| text(&pod["metadata"]["labels"]["app.kubernetes.io/component"]);
    pods().into_iter().filter(|(_, pod)| ours(pod)).map(|(_, pod)| (role(pod), pod)).collect()
}

fn container(pod: &Value) -> &Value {
    let [container] = list(&pod["spec"]["containers"]) else { panic!("one container") };
    container
}

#[test]
fn each_document_fits_the_schema_of_its_kind() {
    let schema: Value = serde_json::from_str(&read("tests/data/kubernetes.schema.json")).unwrap();
    let kinds: BTreeMap<&str, String> = schema["$defs"]
        .as_object()
        .unwrap()
        .iter()
        .filter_map(|(name, def)| Some((def["properties"]["kind"]["const"].as_str()?, name.clone())))
        .collect();
    let check = |document: &Value| -> Vec<String> {
        let def = kinds.get(text(&document["kind"])).unwrap_or_else(|| panic!("no schema of {}", document["kind"]));
        // By itself, so that what is wrong is named.
        let mut schema = schema.clone();
        schema.as_object_mut().unwrap().remove("oneOf");
        schema["$ref"] = format!("#/$defs/{def}").into();
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        validator.iter_errors(document).map(|e| format!("{}: {e}", e.instance_path())).collect()
    };
    let mut names = BTreeSet::new();
    for (file, document) in ALL.iter() {
        let name = text(&document["metadata"]["name"]);
        assert_eq!(check(document), Vec::<String>::new(), "{file}, {name}");
        assert!(names.insert((text(&document["kind"]), name)), "{file}: {name} is there twice");
        if document["kind"] != "Namespace" {
            assert_eq!(document["metadata"]["namespace"], "trimtab", "{file}, {name}");
        }
    }
    // They can be broken.
    for (pointer, value) in [
        ("/spec/template/spec/containers/0/livenessProbe/httpGet/path", Value::from("livez")),
        ("/spec/template/spec/containers/0/securityContext/readOnlyRootFilesystem", Value::from(false)),
        ("/spec/template/spec/containers/0/env/0/name", Value::from("a-b")),
        ("/spec/template/spec/terminationGracePeriodSeconds", Value::from("40s")),
        ("/spec/replicas", Value::from("1")),
        ("/apiVersion", Value::from("apps/v1beta1")),
    ] {
        let mut broken = named("Deployment", "trimtab-decider").clone();
        *broken.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        assert!(!check(&broken).is_empty(), "{pointer}");
    }
}

#[test]
fn every_name_that_is_mentioned_exists() {
    // Made by the command that nats.yaml names.
    assert!(read("deploy/kubernetes/nats.yaml").contains("create configmap nats-config --from-file=deploy/nats"));
    assert!(read("docs/operating.md").contains("create configmap nats-config --from-file=deploy/nats"));
    for (name, pod) in pods() {
        let container = container(pod);
        let mut volumes: BTreeSet<&str> = list(&pod["spec"]["volumes"]).iter().map(|v| text(&v["name"])).collect();
        let owner = of_kind("StatefulSet").find(|one| one["metadata"]["name"] == name);
        if let Some(owner) = owner {
            volumes.extend(list(&owner["spec"]["volumeClaimTemplates"]).iter().map(|v| text(&v["metadata"]["name"])));
            let service = named("Service", text(&owner["spec"]["serviceName"]));
            assert_eq!(service["spec"]["selector"], pod["metadata"]["labels"], "{name}");
        }
        let mounted: BTreeSet<&str> = list(&container["volumeMounts"]).iter().map(|m| text(&m["name"])).collect();
        assert_eq!(mounted, volumes, "{name}");
        let mut files = BTreeSet::new();
        for volume in list(&pod["spec"]["volumes"]) {
            let mount = list(&container["volumeMounts"]).iter().find(|m| m["name"] == volume["name"]).unwrap();
            let keys = match (volume["configMap"]["name"].as_str(), volume["secret"]["secretName"].as_str()) {
                (Some("nats-config"), _) => continue,
                (Some(map), _) => &named("ConfigMap", map)["data"],
                (_, Some(secret)) => &named("Secret", secret)["stringData"],
                _ => continue,
            };
            files.extend(keys.as_object().unwrap().keys().map(|key| format!("{}/{key}", text(&mount["mountPath"]))));
        }
        for env in list(&container["env"]) {
            let from = &env["valueFrom"]["configMapKeyRef"];
            if let Some(map) = from["name"].as_str() {
                assert!(named("ConfigMap", map)["data"][text(&from["key"])].is_string(), "{name}: {env}");
            }
            // Files that are named are mounted.
            if let Some(file) = env["value"].as_str().filter(|v| v.starts_with("/run/") || v.starts_with("/etc/")) {
                assert!(files.contains(file), "{name}: {file} is none of {files:?}");
            }
        }
        for from in list(&container["envFrom"]) {
            let _ = named("ConfigMap", text(&from["configMapRef"]["name"]));
        }
        for probe in
            ["startupProbe", "livenessProbe", "readinessProbe"].map(|probe| &container[probe]["httpGet"]["port"])
        {
            let known = list(&container["ports"]).iter().any(|port| port["name"] == *probe);
            assert!(known || probe.is_null(), "{name}: {probe}");
        }
    }
    for object in of_kind("ScaledObject") {
        let target = &object["spec"]["scaleTargetRef"];
        let _ = named(text(&target["kind"]), text(&target["name"]));
    }
    for secret in of_kind("Secret") {
        for (key, value) in secret["stringData"].as_object().unwrap() {
            assert!(text(value).starts_with("REPLACE-"), "{key} of {} is no placeholder", secret["metadata"]["name"]);
        }
    }
    for policy in of_kind("NetworkPolicy") {
        let label = &policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"];
        assert!(
            label.is_null()
                || pods().iter().any(|(_, pod)| pod["metadata"]["labels"]["app.kubernetes.io/name"] == *label)
        );
        for value in list(&policy["spec"]["podSelector"]["matchExpressions"]).iter().flat_map(|e| list(&e["values"])) {
            assert!(roles().iter().any(|(role, _)| *role == text(value)), "{value}");
        }
    }
    let port = named("Service", "nats")["spec"]["ports"][0]["port"].as_u64().unwrap();
    assert!(config().contains(&format!("nats://nats.trimtab.svc:{port}")));
}

fn config() -> &'static str {
    text(&named("ConfigMap", "trimtab")["data"]["trimtab.toml"])
}

/// Every argument, every key of the configuration and every variable of the environment is one that the program knows.
#[test]
fn the_program_takes_what_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trimtab.toml").display().to_string();
    std::fs::write(&file, config()).unwrap();
    assert_eq!(roles().len(), 5);
    for (role, pod) in roles() {
        let container = container(pod);
        let args: Vec<&str> = std::iter::once("trimtab").chain(list(&container["args"]).iter().map(text)).collect();
        if let Err(e) = trimtab::cli::command().try_get_matches_from(&args) {
            panic!("{role}: {args:?}: {e}");
        }
        let is = ["scanner", "decider", "executor", "audit"].contains(&role);
        assert!(if is { args[1] == role } else { args[1..] == ["nats", "setup"] }, "{args:?}");
        let env: BTreeMap<&str, &str> = list(&container["env"])
            .iter()
            .map(|env| (text(&env["name"]), env["value"].as_str().unwrap_or("UXPLACEHOLDER")))
            .filter(|(name, _)| !["POD_NAME", "TRIMTAB_CONFIG"].contains(name))
            .collect();
        let env: Vec<(&str, &str)> = env.into_iter().chain([("TRIMTAB_CONFIG", file.as_str())]).collect();
        let shown = begin(folder.path(), &["config", "check"], &env).wait().exits(0).json();
        assert_eq!(shown["nats"]["nkey_file"], "/run/secrets/trimtab/nats.nkey", "{role}");
        assert_eq!(shown["nats"]["inbox_prefix"], format!("_INBOX_{role}"), "the user of the role has this one");
        assert_eq!((&shown["nats"]["create"], &shown["mode"]), (&false.into(), &"dry-run".into()), "{role}");
        let signs = shown["keys"]["seed_file"].is_string();
        assert_eq!(signs, ["decider", "executor"].contains(&role), "{role}");
        assert_eq!(!list(&shown["keys"]["trusted_deciders"]).is_empty(), role == "executor", "{role}");
        assert_eq!(!list(&shown["keys"]["trusted_executors"]).is_empty(), role == "audit", "{role}");
        // Executors alone hold what lets brokers be called.
        assert_eq!(shown["pulsar"]["token_file"].is_string(), role == "executor", "{role}");
        let own = format!("trimtab-{role}");
        for volume in list(&pod["spec"]["volumes"]) {
            let secret = volume["secret"]["secretName"].as_str();
            assert!(secret.is_none_or(|secret| secret == own || secret == "trimtab-http"), "{role} has {secret:?}");
        }
        // Longer than the program takes to end.
        let help = run(folder.path(), &["--help"]).out;
        let within: u64 = help.split("within ").nth(1).unwrap().split(" s").next().unwrap().parse().unwrap();
        let grace = pod["spec"]["terminationGracePeriodSeconds"].as_u64();
        assert!(!is || grace.is_some_and(|grace| grace > within), "{role}: {grace:?}, it takes {within} s");
    }
    let secrets = named("Secret", "trimtab-executor")["stringData"].as_object().unwrap();
    assert!(secrets.contains_key("broker.token"));
    let others = of_kind("Secret").filter(|one| one["metadata"]["name"] != "trimtab-executor");
    assert!(others.into_iter().all(|one| one["stringData"]["broker.token"].is_null()));
    // And the servers what they are given.
    let users = read("deploy/nats/pipeline.conf");
    let wanted: BTreeSet<&str> = users.lines().filter_map(|line| line.trim().strip_prefix("nkey: $")).collect();
    let keys = named("ConfigMap", "trimtab-public-keys")["data"].as_object().unwrap();
    assert_eq!(keys.keys().map(String::as_str).collect::<BTreeSet<_>>(), wanted);
    let store = list(&container(pods().into_iter().find(|(name, _)| *name == "nats").unwrap().1)["env"])[0].clone();
    assert!(read("deploy/nats/nats-server.conf").contains(&format!("store_dir: ${}", text(&store["name"]))));
}

/// How many events one process may have at once: those it handles, and those that it has asked for ahead (`ahead` in the bus).
fn at_once(role: &str) -> u64 {
    let acts = config().lines().find_map(|line| line.strip_prefix("acts_at_once = ")).unwrap().parse().unwrap();
    match role {
        "scanner" => 4,
        "decider" => 16 + 32,
        "executor" => acts,
        "audit" => 16 + 256,
        _ => panic!("{role}"),
    }
}

#[test]
fn scaling_looks_at_the_streams_and_consumers_that_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("definitions");
    let _ = run(folder.path(), &["nats", "setup", "--print", &out.display().to_string()]).exits(0);
    let account = read("deploy/nats/pipeline.conf");
    let account =
        account.lines().find_map(|line| line.strip_suffix(" {").filter(|name| !name.starts_with([' ', '#']))).unwrap();
    let mut scaled = BTreeSet::new();
    for object in of_kind("ScaledObject") {
        let [trigger] = list(&object["spec"]["triggers"]) else { panic!("one trigger") };
        let metadata = &trigger["metadata"];
        let (stream, consumer) = (text(&metadata["stream"]), text(&metadata["consumer"]));
        let file = out.join(format!("{stream}.{consumer}.json"));
        let definition: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(text(&object["metadata"]["name"]), format!("trimtab-{consumer}"));
        assert_eq!(object["spec"]["scaleTargetRef"]["name"], object["metadata"]["name"]);
        assert_eq!(metadata["account"], account);
        assert_eq!(metadata["natsServerMonitoringEndpoint"], "nats.trimtab.svc:8222");
        let most = object["spec"]["maxReplicaCount"].as_u64().unwrap();
        let pending = definition["max_ack_pending"].as_u64().unwrap();
        assert!(most * at_once(consumer) <= pending, "{consumer}: {most} x {} > {pending}", at_once(consumer));
        assert!(object["spec"]["minReplicaCount"].as_u64().unwrap() <= most);
        scaled.insert(consumer);
    }
    let stages = roles().into_iter().map(|(role, _)| role).filter(|role| *role != "admin").collect();
    assert_eq!(scaled, stages, "one for each stage");
}

/// The probes ask for what the program answers.
#[tokio::test]
async fn probes_ask_for_what_there_is() {
    let (listener, address) = trimtab::http::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let stop = CancellationToken::new();
    let served = trimtab::http::Served {
        console: None,
        registry: Default::default(),
        checks: Vec::new(),
        triggers: None,
        wishes: None,
        token: None,
    };
    let server = tokio::spawn(trimtab::http::serve(listener, served, stop.clone()));
    let mut asked = BTreeSet::new();
    for (role, pod) in roles().into_iter().filter(|(role, _)| *role != "admin") {
        let container = container(pod);
        for (probe, wanted) in [("startupProbe", "/livez"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")]
        {
            let path = text(&container[probe]["httpGet"]["path"]);
            assert_eq!(path, wanted, "{role}");
            asked.insert(path);
        }
        let port = list(&container["ports"])[0]["containerPort"].as_u64().unwrap();
        assert!(config().contains(&format!("listen = \"0.0.0.0:{port}\"")));
    }
    for path in asked {
        let url = format!("http://{address}{path}");
        let got =
            tokio::task::spawn_blocking(move || once("GET", &url, None, None, Duration::from_secs(10))).await.unwrap();
        assert_eq!(got.unwrap().status, 200, "{path}");
    }
    stop.cancel();
    server.await.unwrap();
}
