//! What is approved is what is handed over: exactly that, once, and with who approved it in the record.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use trimtab::config::{Caps, ConsoleConfig};
use trimtab::console::Hands;
use trimtab::journal::RecordKind;
use trimtab::scans::{Gate, Leader};
use trimtab::sign::{Signer, Trusted};
use trimtab::worker::Out;
use trimtab_bus::{Bus, InProcess, Role};
use trimtab_events::{Body, Decision, Proposed, ScanRef};
use uuid::Uuid;

use super::ground::{Ground, NOW_MS};

/// A console that signs for executors elsewhere, and whom they have to trust.
async fn signing(caps: Caps) -> (Ground, Trusted) {
    let signer = Signer::ephemeral();
    let trusted = Trusted::new([signer.public_key()]).unwrap();
    let hands = |bus: &Arc<InProcess>| {
        let (signer, out) = (Box::new(signer), Out::new(bus.clone() as Arc<dyn Bus>));
        Hands::Signed { signer, out, instance: "test".to_owned() }
    };
    (Ground::with(ConsoleConfig::default(), caps, hands).await, trusted)
}

async fn scanned(ground: &Ground) {
    let leader = Leader { scan: ScanRef { id: Uuid::now_v7(), fence: 1 }, ended: true, at_ms: NOW_MS };
    ground.scans.lead("pulsar", &leader).await.unwrap();
}

/// Decisions that were handed on.
async fn handed_on(ground: &Ground, trusted: &Trusted) -> Vec<Decision> {
    ground.tasks.close();
    ground.tasks.wait().await;
    let mut all = Vec::new();
    while ground.bus.depth(Role::Executor).await.unwrap() > 0 {
        let taken =
            tokio::time::timeout(Duration::from_secs(10), ground.bus.take(Role::Executor)).await.unwrap().unwrap();
        let event = taken.event.unwrap();
        trusted.check(&event).unwrap();
        let Body::Decision(decision) = event.body().unwrap() else { panic!("{event:?}") };
        all.push(decision);
        taken.settle.done().await.unwrap();
    }
    all
}

fn caps() -> Caps {
    Caps { max_share: 1.0, ..Caps::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_what_was_shown_is_handed_over_once() {
    let (ground, trusted) = signing(caps()).await;
    let plan = ground.plan().await;
    let id = plan["id"].as_str().unwrap();
    assert!(ground.get("/plan/approve").await.body.contains("executors take nothing"), "there was no scan yet");
    scanned(&ground).await;
    let list = ground.get("/api/v1/plan/items?acts=true").await.json();
    let items = list["items"].as_array().unwrap();
    let before = ground.get("/plan/approve").await;
    // Somebody leaves two out: what was shown before is not what would be approved.
    let ids: Vec<String> = items.iter().map(|item| item["id"].to_string()).collect();
    let (out, ticked) = ids.split_at(2);
    let mut fields = vec![("plan", id)];
    fields.extend(ids.iter().map(|id| ("shown", id.as_str())));
    fields.extend(ticked.iter().map(|id| ("ticked", id.as_str())));
    assert_eq!(ground.post("/plan/choose", &fields).await.status, 303);
    let digest = before.field("digest");
    let stale = ground.post("/plan/approve", &[("plan", id), ("digest", &digest)]).await;
    assert_eq!(stale.status, 409, "{stale:?}");
    let other = ground.post("/plan/approve", &[("plan", "other"), ("digest", &digest)]).await;
    assert_eq!(other.status, 409);
    assert_eq!((ground.kinds().len(), ground.bus.depth(Role::Executor).await.unwrap()), (0, 0));
    let shown = ground.get("/plan/approve").await;
    let digest = shown.field("digest");
    let approve = [("plan", id), ("digest", digest.as_str())];
    assert_eq!(ground.post("/plan/approve", &approve).await.header("location"), "/acts?done=approved");
    assert_eq!(ground.post("/plan/approve", &approve).await.status, 409, "twice is once");
    let gate = ground.scans.gate(id.parse().unwrap()).await.unwrap().unwrap();
    assert!(gate.closed().is_none() && gate.confirmed_by.is_some_and(|by| by.contains("on this machine")));
    let records = ground.recorded();
    assert_eq!(ground.kinds(), [RecordKind::Approve]);
    assert_eq!((records[0].id.as_str(), &records[0].body["digest"]), (id, &serde_json::json!(digest)));
    let handed = handed_on(&ground, &trusted).await;
    assert!(handed.iter().all(|decision| decision.scan.id.to_string() == id));
    let subjects: BTreeSet<String> = handed.iter().map(|decision| decision.subject.clone()).collect();
    let of = |some: &[String]| -> BTreeSet<String> {
        let is = |item: &&serde_json::Value| some.contains(&item["id"].to_string());
        items.iter().filter(is).map(|item| item["subject"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((subjects.len(), subjects), (handed.len(), of(ticked)));
    assert_eq!(of(out).len(), 2);
    assert!(ground.get("/plan/approve").await.body.contains("approved this plan already"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_has_to_be_confirmed_as_well() {
    let (ground, trusted) = signing(Caps { max_share: 0.01, ..Caps::default() }).await;
    let plan = ground.plan().await;
    scanned(&ground).await;
    let shown = ground.get("/plan/approve").await;
    assert!(shown.body.contains("max_share") && shown.body.contains("although"), "{shown:?}");
    let (id, digest) = (plan["id"].as_str().unwrap(), shown.field("digest"));
    let approve = [("plan", id), ("digest", digest.as_str())];
    assert_eq!(ground.post("/plan/approve", &approve).await.status, 409);
    assert_eq!(ground.kinds(), []);
    let although = [&approve[..], &[("although", "yes")]].concat();
    assert_eq!(ground.post("/plan/approve", &although).await.status, 303);
    assert!(ground.recorded()[0].body["confirmed"].as_str().unwrap().contains("max_share"));
    assert!(!handed_on(&ground, &trusted).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_executors_would_refuse_cannot_be_approved() {
    let (ground, _) = signing(Caps { max_acts: 3, ..caps() }).await;
    let plan = ground.plan().await;
    scanned(&ground).await;
    let shown = ground.get("/plan/approve").await;
    assert!(shown.body.contains("max_acts") && !shown.body.contains("name=\"digest\""), "{shown:?}");
    let approve = [("plan", plan["id"].as_str().unwrap()), ("digest", "x"), ("although", "yes")];
    assert_eq!(ground.post("/plan/approve", &approve).await.status, 409);
    assert_eq!(ground.bus.depth(Role::Executor).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_scan_is_confirmed_for_the_reason_that_was_read() {
    let ground = Ground::start().await;
    let scan = ScanRef { id: Uuid::now_v7(), fence: 1 };
    let proposed = Proposed { acts: 2, ledgers: 3, bytes: 4 };
    let gate = Gate { scan, proposed, stopped: Some("too many".to_owned()), confirmed_by: None, incomplete: false };
    ground.scans.approve(&gate).await.unwrap();
    let id = scan.id.to_string();
    let page = ground.get("/limits").await;
    assert!(page.body.contains("too many") && page.body.contains(&id), "{page:?}");
    let closed = async || ground.scans.gate(scan.id).await.unwrap().unwrap().closed().map(str::to_owned);
    assert_eq!(ground.post("/scans/confirm", &[("id", &id), ("why", "another")]).await.status, 409);
    assert!(closed().await.is_some());
    for _ in 0..2 {
        assert_eq!(ground.post("/scans/confirm", &[("id", &id), ("why", "too many")]).await.status, 303);
    }
    assert_eq!((closed().await, ground.kinds()), (None, vec![RecordKind::Confirm]));
    for _ in 0..2 {
        assert_eq!(ground.post("/scans/stop", &[("id", &id)]).await.status, 303);
    }
    assert!(closed().await.is_some_and(|why| why.contains("stopped it")));
    assert_eq!(ground.kinds(), [RecordKind::Confirm, RecordKind::Stop]);
    let both = ["confirmed what a limit had stopped", "nothing more of it begins"];
    ground.until(&format!("/story?about={id}"), |page| both.iter().all(|says| page.body.contains(says))).await;
}
