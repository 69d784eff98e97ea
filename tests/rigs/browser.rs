//! A real browser: headless Chromium, driven over the WebDriver protocol by its own driver.
//!
//! Chromium is one of the system's packages (Debian: `chromium` and `chromium-driver`); the checks of accessibility are axe-core, from npm.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64::Engine;
use serde_json::{Value, json};

use crate::cache;
use crate::ports::Port;
use crate::process::{Process, Spec};

/// The release of axe-core.
pub const AXE: &str = "4.14.1";
/// How long something may take to be as wanted.
const PATIENCE: Duration = Duration::from_secs(30);

/// The text of axe-core.
///
/// # Errors
/// When it cannot be fetched.
pub fn axe() -> Result<String> {
    let name = format!("npm/axe-core-{AXE}");
    let file = "package/axe.min.js";
    let entry = cache::entry(
        &name,
        |path| path.join(file).is_file(),
        |path| {
            let need = "Node.js with npm (brings axe-core)";
            cache::run(
                Command::new("npm").args(["pack", "--silent", &format!("axe-core@{AXE}")]).current_dir(path),
                need,
            )?;
            let packed = format!("axe-core-{AXE}.tgz");
            cache::run(Command::new("tar").args(["xzf", &packed]).current_dir(path), "tar")?;
            Ok(())
        },
    )?;
    std::fs::read_to_string(entry.join(file)).context("reading axe-core")
}

/// Chromium and its driver.
#[derive(Debug)]
pub struct Driver {
    base: String,
    client: reqwest::Client,
    _process: Process,
    _port: Port,
    folder: tempfile::TempDir,
}

/// What a session looks like.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Dark rather than light.
    pub dark: bool,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Without scripts of pages.
    pub no_script: bool,
}

/// One browser window.
#[derive(Debug)]
pub struct Session<'a> {
    driver: &'a Driver,
    id: String,
}

impl Driver {
    /// Starts the driver.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub async fn start() -> Result<Driver> {
        let folder = tempfile::tempdir().context("making a folder for the browser")?;
        let program = std::env::var_os("CHROMEDRIVER").map_or_else(|| PathBuf::from("chromedriver"), PathBuf::from);
        let port = Port::take()?;
        let spec = Spec {
            name: "chromedriver".to_owned(),
            program,
            args: vec![format!("--port={}", port.number())],
            env: Vec::new(),
            folder: folder.path().to_owned(),
            log: folder.path().join("chromedriver.log"),
        };
        let process =
            Process::start(&spec).context("starting chromedriver (Debian packages chromium and chromium-driver)")?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().timeout(Duration::from_secs(120)).build().context("making a client")?;
        let base = format!("http://{}", port.address());
        let driver = Driver { base, client, _process: process, _port: port, folder };
        let begun = Instant::now();
        while driver.client.get(format!("{}/status", driver.base)).send().await.is_err() {
            if begun.elapsed() > PATIENCE {
                bail!("chromedriver does not answer");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(driver)
    }

    /// A new window, of a browser that remembers nothing.
    ///
    /// # Errors
    /// When the browser does not start.
    pub async fn open(&self, look: Look) -> Result<Session<'_>> {
        let profile = tempfile::tempdir_in(self.folder.path()).context("making a profile")?.keep();
        let args = vec![
            "--headless".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--user-data-dir={}", profile.display()),
            format!("--window-size={},{}", look.width, look.height),
        ];
        let mut options = json!({"args": args});
        if look.no_script {
            options["prefs"] = json!({"profile.managed_default_content_settings.javascript": 2});
        }
        if let Some(binary) = std::env::var_os("CHROMIUM") {
            options["binary"] = json!(binary.to_string_lossy());
        }
        let wanted = json!({"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options, "unhandledPromptBehavior": "ignore"}}});
        let answer = self.call("POST", "/session", Some(wanted)).await?;
        let id = answer["sessionId"].as_str().context("a session has an id")?.to_owned();
        let session = Session { driver: self, id };
        let size =
            json!({"width": look.width, "height": look.height, "deviceScaleFactor": 1, "mobile": look.width < 600});
        session.devtools("Emulation.setDeviceMetricsOverride", size).await?;
        let scheme =
            json!({"features": [{"name": "prefers-color-scheme", "value": if look.dark { "dark" } else { "light" }}]});
        session.devtools("Emulation.setEmulatedMedia", scheme).await?;
        Ok(session)
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value> {
        let url = format!("{}{path}", self.base);
        let method = method.parse().context("a method")?;
        let mut request = self.client.request(method, &url);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.with_context(|| format!("calling {url}"))?;
        let status = response.status();
        let answer: Value = response.json().await.with_context(|| format!("reading the answer of {url}"))?;
        if !status.is_success() {
            bail!("{path}: {}: {}", answer["value"]["error"], answer["value"]["message"]);
        }
        Ok(answer["value"].clone())
    }
}

impl Session<'_> {
    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value> {
        self.driver.call(method, &format!("/session/{}{path}", self.id), body).await
    }

    async fn devtools(&self, name: &str, params: Value) -> Result<Value> {
        self.call("POST", "/goog/cdp/execute", Some(json!({"cmd": name, "params": params}))).await
    }

    /// Opens a page and waits until it is loaded.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub async fn go(&self, url: &str) -> Result<()> {
        self.call("POST", "/url", Some(json!({"url": url}))).await.map(|_| ())
    }

    /// What a script returns.
    ///
    /// # Errors
    /// When it fails.
    pub async fn run(&self, script: &str) -> Result<Value> {
        self.call("POST", "/execute/sync", Some(json!({"script": script, "args": []}))).await
    }

    /// What a script hands to its last argument.
    ///
    /// # Errors
    /// When it fails.
    pub async fn run_async(&self, script: &str) -> Result<Value> {
        self.call("POST", "/execute/async", Some(json!({"script": script, "args": []}))).await
    }

    /// The text of the whole page, as a person sees it.
    ///
    /// # Errors
    /// When there is none.
    pub async fn text(&self) -> Result<String> {
        let body = self.find("body").await?;
        let text = self.call("GET", &format!("/element/{body}/text"), None).await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    async fn find(&self, css: &str) -> Result<String> {
        let found = self.call("POST", "/element", Some(json!({"using": "css selector", "value": css}))).await?;
        let id = found.as_object().and_then(|object| object.values().next()).and_then(Value::as_str);
        id.map(str::to_owned).with_context(|| format!("no element {css}"))
    }

    /// Clicks, as a person does: what is hidden or covered cannot be.
    ///
    /// # Errors
    /// When there is nothing to click.
    pub async fn click(&self, css: &str) -> Result<()> {
        let element = self.find(css).await?;
        self.call("POST", &format!("/element/{element}/click"), Some(json!({}))).await.map(|_| ())
    }

    /// Types into a field.
    ///
    /// # Errors
    /// When there is none.
    pub async fn keys(&self, css: &str, text: &str) -> Result<()> {
        let element = self.find(css).await?;
        self.call("POST", &format!("/element/{element}/value"), Some(json!({"text": text}))).await.map(|_| ())
    }

    /// Answers a question that the page asks; what it said.
    ///
    /// # Errors
    /// When none is asked.
    pub async fn answer(&self, yes: bool) -> Result<String> {
        let says = self.call("GET", "/alert/text", None).await?;
        let path = if yes { "/alert/accept" } else { "/alert/dismiss" };
        self.call("POST", path, Some(json!({}))).await?;
        Ok(says.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the page says this.
    ///
    /// # Errors
    /// When it does not in half a minute.
    pub async fn says(&self, text: &str) -> Result<()> {
        let begun = Instant::now();
        loop {
            // Between two pages there is none.
            let shown = self.text().await.unwrap_or_default();
            if shown.contains(text) {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                bail!("the page does not say {text:?} but:\n{shown}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A picture of the window, PNG.
    ///
    /// # Errors
    /// When there is none.
    pub async fn picture(&self) -> Result<Vec<u8>> {
        let data = self.call("GET", "/screenshot", None).await?;
        base64::engine::general_purpose::STANDARD.decode(data.as_str().unwrap_or_default()).context("reading a picture")
    }

    /// What axe-core finds wrong with the page: rule and elements.
    ///
    /// # Errors
    /// When it cannot be run.
    pub async fn axe(&self, axe: &str) -> Result<Vec<String>> {
        self.run(axe).await?;
        let script = "const done = arguments[arguments.length - 1];
            axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}).then(
                (found) => done(found.violations.map((wrong) => wrong.id + ': ' + wrong.nodes.map((node) => node.target + ' ' + node.failureSummary).join('; '))),
                (why) => done(['failed: ' + why]))";
        let found = self.run_async(script).await?;
        Ok(found.as_array().into_iter().flatten().filter_map(|wrong| wrong.as_str().map(str::to_owned)).collect())
    }

    /// Closes the window.
    ///
    /// # Errors
    /// When it is gone already.
    pub async fn close(self) -> Result<()> {
        self.call("DELETE", "", None).await.map(|_| ())
    }
}
