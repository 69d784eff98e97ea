//! A console over a captured Pulsar, in this process: its plans are real, its bus and store are those of one process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trimtab::activity::Activity;
use trimtab::clock::Clock;
use trimtab::config::{Caps, Config, ConsoleConfig};
use trimtab::console::{Access, Console, ConsoleParts, Hands};
use trimtab::http::{Served, listen, serve};
use trimtab::journal::{self, Journal, Record, RecordKind};
use trimtab::plan::Planner;
use trimtab::scans::Scans;
use trimtab_bus::{BusOptions, InProcess, SqliteStore};
use trimtab_events::Scope;
use trimtab_targets::pulsar::snapshot::Snapshot;
use trimtab_targets::pulsar::{Settings, topic_policies_file};

/// When the captured cluster was.
pub(crate) const NOW_MS: i64 = 1_795_986_124_974;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/pulsar").join(name)
}

/// A console that is served, and everything behind it.
pub(crate) struct Ground {
    pub(crate) bus: Arc<InProcess>,
    pub(crate) scans: Scans,
    pub(crate) activity: Activity,
    pub(crate) journal: Arc<Journal>,
    pub(crate) tasks: TaskTracker,
    pub(crate) base: String,
    client: reqwest::Client,
    stop: CancellationToken,
    folder: tempfile::TempDir,
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// What the first form of the page carries.
    pub(crate) fn field(&self, name: &str) -> String {
        let after = self
            .body
            .split(&format!("name=\"{name}\" value=\""))
            .nth(1)
            .unwrap_or_else(|| panic!("no {name}: {}", self.body));
        after.split('"').next().unwrap().to_owned()
    }
}

impl Ground {
    pub(crate) async fn start() -> Ground {
        Ground::with(ConsoleConfig::default(), Caps { max_share: 1.0, ..Caps::default() }, |_| {
            Hands::None("this console only looks".to_owned())
        })
        .await
    }

    pub(crate) async fn with(
        config: ConsoleConfig,
        caps: Caps,
        hands: impl FnOnce(&Arc<InProcess>) -> Hands,
    ) -> Ground {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(data("topic-policies.json")).unwrap();
        let settings =
            Settings { topic_policies: Some(Arc::new(topic_policies_file(&text).unwrap())), ..Settings::default() };
        let snapshot = Snapshot::open(&data("metadata-small.jsonl.gz"), settings).unwrap();
        let store = Arc::new(SqliteStore::open(folder.path().join("state.db")).unwrap());
        let bus = Arc::new(InProcess::new(BusOptions::default()));
        let audit = folder.path().join("audit");
        let clock = Clock::fixed(NOW_MS);
        let journal = Arc::new(Journal::open(&audit.join("console.jsonl"), clock.clone()).unwrap());
        let planner = Planner {
            inventory: Arc::new(snapshot),
            policy: Config::default().policy().unwrap(),
            target: "pulsar".to_owned(),
            cluster: "pulsar".to_owned(),
            orphans: false,
            store: None,
            remember: false,
            valid: None,
        };
        let (listener, got) = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (scans, activity) = (Scans::new(store.clone()), Activity::new(store, "pulsar"));
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let parts = ConsoleParts {
            target: "pulsar".to_owned(),
            planner: Some(planner),
            scope: Scope::default(),
            now_ms: Some(NOW_MS),
            every: None,
            folder: folder.path().join("console"),
            audit,
            scans: scans.clone(),
            activity: activity.clone(),
            bus: bus.clone(),
            journal: journal.clone(),
            hands: hands(&bus),
            caps,
            trace_link: Some("https://traces.example/{trace_id}".to_owned()),
            access: Access::new(&config, got, clock.clone()).unwrap(),
            clock,
            stop: stop.clone(),
            tasks: tasks.clone(),
        };
        let console = Console::start(parts).unwrap();
        let registry = trimtab::telemetry::start("test", &Config::default().telemetry);
        let registry = registry.map(|telemetry| telemetry.registry()).unwrap_or_default();
        let served =
            Served { registry, checks: Vec::new(), triggers: None, wishes: None, token: None, console: Some(console) };
        tokio::spawn(serve(listener, served, stop.clone()));
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Ground { bus, scans, activity, journal, tasks, base: format!("http://{got}"), client, stop, folder }
    }

    async fn send(&self, request: reqwest::RequestBuilder, headers: &[(&str, &str)]) -> Answer {
        let all = headers.iter().map(|(name, value)| (HeaderName::try_from(*name).unwrap(), value.parse().unwrap()));
        let response = request.headers(all.collect()).send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Answer { status, headers, body: response.text().await.unwrap() }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.send(self.client.get(format!("{}{path}", self.base)), headers).await
    }

    pub(crate) async fn post_with(&self, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> Answer {
        let encoded = |text: &str| -> String {
            text.bytes()
                .map(|b| if b.is_ascii_alphanumeric() { char::from(b).to_string() } else { format!("%{b:02X}") })
                .collect()
        };
        let body: Vec<String> =
            fields.iter().map(|(name, value)| format!("{}={}", encoded(name), encoded(value))).collect();
        let request = self.client.post(format!("{}{path}", self.base)).body(body.join("&"));
        let form = [("content-type", "application/x-www-form-urlencoded")];
        self.send(request, &[&form, headers].concat()).await
    }

    /// As a page's form does it: with what this session's forms carry.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let form = self.get("/marks").await.field("form");
        self.post_with(path, &[&[("form", form.as_str())], fields].concat(), &[("sec-fetch-site", "same-origin")]).await
    }

    /// The plan, once there is one.
    pub(crate) async fn plan(&self) -> Value {
        self.until("/api/v1/plan", |answer| answer.status == 200).await.json()
    }

    /// Asks until the answer is as wanted.
    pub(crate) async fn until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Answer {
        for _ in 0..600 {
            let answer = self.get(path).await;
            if wanted(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{path} is never as wanted: {:?}", self.get(path).await);
    }

    /// What is recorded.
    pub(crate) fn recorded(&self) -> Vec<Record> {
        let mut all = Vec::new();
        journal::read(&self.folder.path().join("audit/console.jsonl"), |record| all.push(record)).unwrap();
        all
    }

    /// Changes a byte of what is recorded, as somebody would who wants to be not found out, and adds a record.
    pub(crate) fn forge(&self) {
        let path = self.folder.path().join("audit/forged.jsonl");
        let text = std::fs::read_to_string(self.folder.path().join("audit/console.jsonl")).unwrap();
        std::fs::write(path, text.replacen("\"freed_bytes\":7", "\"freed_bytes\":8", 1)).unwrap();
    }

    pub(crate) fn kinds(&self) -> Vec<RecordKind> {
        self.recorded().into_iter().map(|record| record.kind).collect()
    }
}
