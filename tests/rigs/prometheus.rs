//! A real Prometheus, and its `promtool`.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::cache;
use crate::http::{Reply, once, percent_encoded};
use crate::ports::Port;
use crate::process::{Process, Spec};

/// A server that scrapes every second and keeps its data in a folder of its own.
#[derive(Debug)]
pub struct Prometheus {
    port: Port,
    _process: Process,
    _folder: TempDir,
}

impl Prometheus {
    /// Scrapes an address, as this job, with these rules. It can be asked when this returns.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(job: &str, address: &str, rules: &Path) -> Result<Prometheus> {
        let folder = tempfile::tempdir().context("making a folder for Prometheus")?;
        let port = Port::take()?;
        let config = serde_json::json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [rules],
            "scrape_configs": [{ "job_name": job, "static_configs": [{ "targets": [address] }] }],
        });
        // JSON is YAML.
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string())?;
        let mut process = Process::start(&Spec {
            name: "prometheus".to_owned(),
            program: cache::prometheus()?.join("prometheus"),
            args: vec![
                format!("--config.file={}", file.display()),
                format!("--storage.tsdb.path={}", folder.path().join("data").display()),
                format!("--web.listen-address={}", port.address()),
                "--enable-feature=exemplar-storage".to_owned(),
            ],
            env: Vec::new(),
            folder: folder.path().to_owned(),
            log: folder.path().join("prometheus.log"),
        })?;
        let ready = format!("http://{}/-/ready", port.address());
        process.wait_until(Duration::from_secs(60), || {
            once("GET", &ready, None, None, Duration::from_secs(2)).is_ok_and(|reply| reply.status == 200)
        })?;
        Ok(Prometheus { port, _process: process, _folder: folder })
    }

    /// Asks its interface: a path below `/api/v1/`, and parameters.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn api(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Reply> {
        let query: Vec<String> =
            parameters.iter().map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
        let url = format!("http://{}/api/v1/{path}?{}", self.port.address(), query.join("&"));
        once("GET", &url, None, None, Duration::from_secs(20))
    }

    /// What an expression gives now: labels and values.
    ///
    /// # Errors
    /// When it is not understood, or is none that gives a list.
    pub fn query(&self, expression: &str) -> Result<Vec<(Value, f64)>> {
        let answer = self.api("query", &[("query", expression)])?.json()?;
        ensure!(answer["status"] == "success", "{expression}: {answer}");
        let list = answer["data"]["result"].as_array().with_context(|| format!("{expression}: {answer}"))?;
        let sample = |of: &Value| {
            let value = of["value"][1].as_str()?.parse().ok()?;
            Some((of["metric"].clone(), value))
        };
        list.iter().map(|of| sample(of).with_context(|| format!("{expression}: {of}"))).collect()
    }

    /// The only value that an expression gives now, if there is one.
    ///
    /// # Errors
    /// When it is not understood, or there are several.
    pub fn value(&self, expression: &str) -> Result<Option<f64>> {
        let all = self.query(expression)?;
        ensure!(all.len() <= 1, "{expression}: {all:?}");
        Ok(all.first().map(|(_, value)| *value))
    }
}

/// Runs `promtool` in a folder; what it said, and whether it was content.
///
/// # Errors
/// When it cannot be run.
pub fn promtool(folder: &Path, args: &[&str], input: &str) -> Result<(bool, String)> {
    let mut command = Command::new(cache::prometheus()?.join("promtool"));
    command.args(args).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("starting promtool")?;
    child.stdin.take().context("promtool's input")?.write_all(input.as_bytes())?;
    let out = child.wait_with_output()?;
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    Ok((out.status.success(), said))
}
