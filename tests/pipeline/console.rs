//! A plan that is approved on the console's page: exactly what was left in it is carried out, and the record says who let it.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use trimtab_tests::ports::Port;
use trimtab_tests::trimtab::start;

/// Has a console carry out one item of its plan, after everything else was unticked, page by page.
pub(crate) fn approve_one(state: &Path, from: &str, policies: &str, subject: &str) {
    let port = Port::take().unwrap();
    let (address, base) = (port.address(), format!("http://{}", port.address()));
    let args = ["console", "--apply", "--http", &address, "--from", from, "--topic-policies", policies];
    let mut console = start("console", state, &args, &[]).unwrap();
    // Fails only where somebody did it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::blocking::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(90);
    let get =
        |path: &str| client.get(format!("{base}{path}")).send().and_then(|answer| answer.error_for_status()?.text());
    let json = |path: &str| -> Value { serde_json::from_str(&get(path).unwrap()).unwrap() };
    while get("/api/v1/plan").is_err() {
        assert!(Instant::now() < deadline && console.runs(), "there is no plan");
        std::thread::sleep(Duration::from_millis(100));
    }
    let field = |page: &str, name: &str| -> String {
        let after =
            page.split(&format!("name=\"{name}\" value=\"")).nth(1).unwrap_or_else(|| panic!("no {name}: {page}"));
        after.split('"').next().unwrap().to_owned()
    };
    let post = |path: &str, fields: &[String]| {
        let form = "application/x-www-form-urlencoded";
        let call = client.post(format!("{base}{path}")).header("content-type", form).body(fields.join("&"));
        let answer = call.send().unwrap();
        let (status, body) = (answer.status().as_u16(), answer.text().unwrap());
        assert_eq!(status, 303, "{path}: {body}");
    };
    let mut place = String::new();
    loop {
        let list = json(&format!("/api/v1/plan/items?acts=true{place}"));
        let page = get("/plan?acts=true").unwrap();
        let mut fields =
            vec![format!("form={}", field(&page, "form")), format!("plan={}", list["plan"].as_str().unwrap())];
        for item in list["items"].as_array().unwrap() {
            fields.push(format!("shown={}", item["id"]));
            if item["subject"] == subject {
                fields.push(format!("ticked={}", item["id"]));
            }
        }
        post("/plan/choose", &fields);
        let Some(next) = list["next"].as_str() else { break };
        place = format!("&after={next}");
    }
    let page = get("/plan/approve").unwrap();
    assert!(page.contains("by 1 act"), "{page}");
    post("/plan/approve", &["form", "plan", "digest"].map(|name| format!("{name}={}", field(&page, name))));
    while json("/api/v1/acts")["acts"].as_array().unwrap().iter().all(|act| act["status"] != "done") {
        assert!(Instant::now() < deadline, "{}", get("/api/v1/acts").unwrap());
        std::thread::sleep(Duration::from_millis(100));
    }
    let acts = json("/api/v1/acts");
    assert_eq!(acts["acts"].as_array().unwrap().len(), 1, "{acts}");
    let encoded: String = subject.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let story = json(&format!("/api/v1/stories?about={encoded}"));
    let steps: Vec<&str> =
        story["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect();
    for step in ["seen", "decided", "approved", "intended", "called", "verified", "freed"] {
        assert!(steps.contains(&step), "{step}: {steps:?}");
    }
    assert!(console.stop().unwrap().success());
}
