//! A real Jaeger: its receiver, its store in memory and its query service.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::cache;
use crate::http::{once, percent_encoded};
use crate::ports::Port;
use crate::process::{Process, Spec};

/// A server.
#[derive(Debug)]
pub struct Jaeger {
    otlp: Port,
    query: Port,
    _process: Process,
    _folder: TempDir,
}

/// A span, as Jaeger tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Its id, hexadecimal.
    pub id: String,
    /// Its parent's id; empty for the first of a trace.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// `trimtab.role` of the process that made it.
    pub role: String,
    /// Its attributes as JSON.
    pub attributes: Value,
}

impl Jaeger {
    /// Starts one, if it is in the cache or `TRIMTAB_TEST_JAEGER` asks to build it.
    ///
    /// # Errors
    /// When it cannot be built or does not start.
    pub fn start() -> Result<Option<Jaeger>> {
        let Some(program) = cache::jaeger()? else { return Ok(None) };
        let folder = tempfile::tempdir().context("making a folder for Jaeger")?;
        let (otlp, query) = (Port::take()?, Port::take()?);
        let mut process = Process::start(&Spec {
            name: "jaeger".to_owned(),
            program,
            args: vec![otlp.address(), query.address()],
            env: Vec::new(),
            folder: folder.path().to_owned(),
            log: folder.path().join("jaeger.log"),
        })?;
        let services = format!("http://{}/api/services", query.address());
        process.wait_until(Duration::from_secs(60), || {
            once("GET", &services, None, None, Duration::from_secs(2)).is_ok_and(|reply| reply.status == 200)
        })?;
        Ok(Some(Jaeger { otlp, query, _process: process, _folder: folder }))
    }

    /// Its base address for OTLP over HTTP.
    pub fn otlp(&self) -> String {
        format!("http://{}", self.otlp.address())
    }

    fn ask(&self, path: &str) -> Result<Value> {
        let url = format!("http://{}/api/{path}", self.query.address());
        let answer = once("GET", &url, None, None, Duration::from_secs(20))?.ok()?.json()?;
        ensure!(answer["errors"].as_array().is_none_or(Vec::is_empty), "{path}: {answer}");
        Ok(answer["data"].clone())
    }

    /// Ids of the traces of a service that have a span with this attribute.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn find(&self, service: &str, attribute: &str, value: &str) -> Result<Vec<String>> {
        let tags = percent_encoded(&serde_json::json!({ attribute: value }).to_string());
        let found = self.ask(&format!("traces?service={service}&tags={tags}&lookback=1h&limit=20"))?;
        let ids = found.as_array().into_iter().flatten().filter_map(|trace| trace["traceID"].as_str());
        Ok(ids.map(str::to_owned).collect())
    }

    /// The spans of a trace.
    ///
    /// # Errors
    /// When it does not answer, or there is no such trace.
    pub fn trace(&self, id: &str) -> Result<Vec<Told>> {
        let found = self.ask(&format!("traces/{id}"))?;
        let trace = &found[0];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let tag = |tags: &Value, key: &str| {
            let mut tags = tags.as_array().into_iter().flatten();
            tags.find(|tag| tag["key"] == key).map(|tag| text(&tag["value"])).unwrap_or_default()
        };
        let spans = trace["spans"].as_array().with_context(|| format!("trace {id}: {found}"))?;
        let told = spans.iter().map(|span| {
            let process = &trace["processes"][text(&span["processID"])];
            let mut references = span["references"].as_array().into_iter().flatten();
            let parent = references.find(|of| of["refType"] == "CHILD_OF" && of["traceID"] == span["traceID"]);
            Told {
                id: text(&span["spanID"]),
                parent: parent.map(|of| text(&of["spanID"])).unwrap_or_default(),
                name: text(&span["operationName"]),
                role: tag(&process["tags"], "trimtab.role"),
                attributes: span["tags"].clone(),
            }
        });
        Ok(told.collect())
    }
}
