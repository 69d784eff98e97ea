//! Each user of the shipped configuration against every operation, on a real server: its own pass, every other is refused.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use trimtab_tests::nats::ROLES;

use crate::shipped::Shipped;

/// What is published or listened to, and who may.
struct Operation {
    subject: String,
    who: BTreeSet<&'static str>,
}

fn op(all: &mut Vec<Operation>, subject: impl Into<String>, who: &[&'static str]) {
    all.push(Operation { subject: subject.into(), who: who.iter().copied().collect() });
}

/// Queues: whose consumer reads which stream.
const QUEUES: [(&str, &str, &str); 6] = [
    ("scanner", "TT_REQ", "scanner"),
    ("decider", "TT_CAND", "decider"),
    ("executor", "TT_DEC", "executor"),
    ("audit", "TT_RES", "audit"),
    ("recover", "TT_REP", "finisher-lane"),
    ("recovery", "TT_JOB", "recovery-lane"),
];

const STREAMS: [&str; 16] = [
    "TT_REQ",
    "TT_CAND",
    "TT_DEC",
    "TT_RES",
    "TT_REP",
    "TT_JOB",
    "TT_DLQ",
    "TT_ADV",
    "KV_tt_lease",
    "KV_tt_scans",
    "KV_tt_limits",
    "KV_tt_history",
    "KV_tt_marks",
    "KV_tt_own",
    "KV_tt_protected",
    "KV_tt_sightings",
];

/// Every family of subjects there is, as the parts of docs/security.md have them.
fn publishes() -> Vec<Operation> {
    let mut all = Vec::new();
    // Events.
    op(&mut all, "trimtab.req.t", &["scanner", "operator"]);
    op(&mut all, "trimtab.cand.t.ledger.0", &["scanner", "operator"]);
    op(&mut all, "trimtab.dec.t.trim.0.k", &["decider", "operator"]);
    for status in ["done", "pending", "marked"] {
        op(&mut all, format!("trimtab.res.t.{status}"), &["executor", "operator"]);
    }
    for status in ["skipped", "failed"] {
        op(&mut all, format!("trimtab.res.t.{status}"), &["executor", "recover", "operator"]);
    }
    for said in ["report", "cleared"] {
        op(&mut all, format!("trimtab.res.t.{said}"), &["scanner", "operator"]);
    }
    op(&mut all, "trimtab.res.lane.recovered", &["recover", "operator"]);
    op(&mut all, "trimtab.job.lane.0.k", &["recover", "operator"]);
    op(&mut all, "trimtab.rep.lane.verified", &["recovery", "operator"]);
    op(&mut all, "trimtab.scan.request", &["operator"]);
    for (role, stage) in [
        ("scanner", "scanner"),
        ("decider", "decider"),
        ("executor", "executor"),
        ("audit", "audit"),
        ("recover", "finisher"),
        ("recovery", "recovery"),
    ] {
        op(&mut all, format!("trimtab.dlq.{stage}.t"), &[role, "admin"]);
    }
    // Answers to somebody else, and what nobody has a use for.
    for subject in
        ["_INBOX.x.1", "_INBOX_executor.x.1", "trimtab", "trimtab.x", "a", "$SYS.REQ.SERVER.PING", "$JS.FC.x"]
    {
        op(&mut all, subject, &[]);
    }
    for verb in ["PING", "INFO", "STATS"] {
        op(&mut all, format!("$SRV.{verb}"), &["operator", "observer"]);
    }
    op(&mut all, "trimtab.status.executor", &["operator", "observer"]);
    // Documents.
    for (key, who) in [
        ("lease.scan=t", &["scanner"][..]),
        ("scans.leader.t", &["scanner"]),
        ("scans.progress.x", &["scanner"]),
        ("scans.shards.x.1.0", &["scanner"]),
        ("scans.gate.x", &["scanner", "operator"]),
        ("scans.last.x", &["scanner"]),
        ("scans.due.x", &["scanner"]),
        ("scans.revisit.x", &["scanner", "executor"]),
        ("scans.budget.x", &["executor"]),
        ("scans.tally.x.0", &["audit"]),
        ("scans.other", &[]),
        ("limits.t", &["scanner", "executor"]),
        ("history.t.x", &["scanner"]),
        ("sightings.t.x", &["scanner"]),
        ("marks.t.x", &["scanner", "executor"]),
        ("own.t.x", &["scanner", "executor"]),
        ("protected.t.x", &["executor", "operator"]),
        ("other.x", &[]),
    ] {
        op(&mut all, format!("$KV.tt_{key}"), who);
    }
    // Queues.
    for (role, stream, consumer) in QUEUES {
        op(&mut all, format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"), &[role, "admin"]);
        op(&mut all, format!("$JS.ACK.{stream}.{consumer}.1.1.1.1.1"), &[role]);
        op(&mut all, format!("$JS.ACK._.x.{stream}.{consumer}.1.1.1.1.1"), &[role]);
        op(&mut all, format!("$JS.API.CONSUMER.INFO.{stream}.{consumer}"), &[role, "admin", "operator", "observer"]);
        let lane = consumer.ends_with("-lane");
        let subject = format!("trimtab.{}.lane.>", stream.trim_start_matches("TT_").to_lowercase());
        let makes: &[&str] = if lane { &[role, "admin"] } else { &["admin"] };
        op(&mut all, format!("$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{subject}"), makes);
        for call in ["DURABLE.CREATE", "DELETE", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN"] {
            op(&mut all, format!("$JS.API.CONSUMER.{call}.{stream}.{consumer}"), &["admin"]);
        }
        op(&mut all, format!("$JS.API.CONSUMER.CREATE.{stream}.x"), &["admin"]);
        op(&mut all, format!("$JS.API.CONSUMER.CREATE.{stream}"), &["admin"]);
    }
    op(&mut all, "$JS.API.CONSUMER.MSG.NEXT.TT_ADV.janitor", &["admin"]);
    op(&mut all, "$JS.ACK.TT_ADV.janitor.1.1.1.1.1", &["admin"]);
    // Streams.
    for stream in STREAMS {
        for call in ["CREATE", "UPDATE", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN"] {
            op(&mut all, format!("$JS.API.STREAM.{call}.{stream}"), &["admin"]);
        }
        let takes: &[&str] = if stream == "TT_DLQ" { &["admin", "operator"] } else { &["admin"] };
        op(&mut all, format!("$JS.API.STREAM.MSG.DELETE.{stream}"), takes);
        // A read by this way is answered raw, to any subject: nobody has it.
        op(&mut all, format!("$JS.API.DIRECT.GET.{stream}"), &["admin"]);
        op(&mut all, format!("$JS.API.DIRECT.GET.{stream}.x"), &["admin"]);
        let (mut reads, mut looks) = (vec!["admin"], vec!["admin", "observer"]);
        let also: (&[&str], &[&str]) = match stream {
            "TT_DLQ" => (&["operator"], &["operator"]),
            "TT_REP" => (&[], &["recover"]),
            "TT_JOB" => (&[], &["recovery"]),
            "KV_tt_scans" => (&["scanner", "executor", "audit", "operator"], &["scanner", "operator"]),
            "KV_tt_marks" => (&["scanner", "executor", "operator"], &["scanner", "operator"]),
            "KV_tt_protected" => (&["scanner", "executor", "operator"], &["scanner", "operator"]),
            "KV_tt_own" => (&["scanner", "executor"], &["scanner"]),
            "KV_tt_history" | "KV_tt_sightings" => (&["scanner"], &["scanner"]),
            "KV_tt_limits" => (&["scanner", "executor"], &[]),
            "KV_tt_lease" => (&["scanner"], &[]),
            _ => (&[], &[]),
        };
        reads.extend(also.0);
        looks.extend(also.1);
        op(&mut all, format!("$JS.API.STREAM.MSG.GET.{stream}"), &reads);
        op(&mut all, format!("$JS.API.STREAM.INFO.{stream}"), &looks);
    }
    for call in ["INFO", "STREAM.NAMES", "STREAM.LIST", "CONSUMER.NAMES.TT_DEC", "CONSUMER.LIST.TT_DEC"] {
        op(&mut all, format!("$JS.API.{call}"), &["admin", "observer"]);
    }
    for call in [
        "SERVER.REMOVE",
        "META.LEADER.STEPDOWN",
        "ACCOUNT.PURGE.TRIMTAB",
        "STREAM.CREATE.SRC",
        "STREAM.TEMPLATE.CREATE.x",
    ] {
        op(&mut all, format!("$JS.API.{call}"), &["admin"]);
    }
    all
}

/// What may be listened to. Nobody hears events, documents, acknowledgements, or the answers to another.
fn subscriptions() -> Vec<Operation> {
    let mut all = Vec::new();
    for role in ROLES {
        op(&mut all, format!("_INBOX_{role}.x.*"), &[role]);
    }
    let works = ["scanner", "decider", "executor", "audit", "recovery"];
    op(&mut all, "$SRV.PING", &works);
    op(&mut all, "$SRV.INFO.trimtab-decider.x", &works);
    for role in works {
        op(&mut all, format!("trimtab.status.{role}"), &[role]);
    }
    op(&mut all, "trimtab.scan.request", &["scanner"]);
    op(&mut all, "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>", &["observer"]);
    for subject in [
        ">",
        "_INBOX.>",
        "*.>",
        "trimtab.>",
        "trimtab.req.*",
        "trimtab.cand.>",
        "trimtab.dec.>",
        "trimtab.res.>",
        "trimtab.job.>",
        "trimtab.rep.>",
        "trimtab.dlq.>",
        "$KV.>",
        "$JS.>",
        "$JS.API.>",
        "$JS.ACK.>",
        "$SYS.>",
        "x",
    ] {
        op(&mut all, subject, &[]);
    }
    all
}

/// A connection that says each word of the protocol itself, so that the server's refusals are heard in order.
struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    fn open(shipped: &Shipped, role: &str) -> Wire {
        let address = shipped.rig.url().trim_start_matches("nats://").to_owned();
        let mut stream = BufReader::new(TcpStream::connect(address).expect("connected"));
        stream.get_ref().set_read_timeout(Some(crate::PATIENCE)).expect("set");
        let mut line = String::new();
        let _ = stream.read_line(&mut line).expect("read");
        let info: Value = serde_json::from_str(line.strip_prefix("INFO ").expect("INFO")).expect("JSON");
        let seed = std::fs::read_to_string(shipped.seed(role)).expect("a seed");
        let pair = KeyPair::from_seed(seed.trim()).expect("a key");
        let signature = pair.sign(info["nonce"].as_str().expect("a nonce").as_bytes()).expect("signed");
        let hello = json!({
            "verbose": false, "pedantic": false, "lang": "test", "version": "1", "protocol": 1, "headers": true, "no_responders": true,
            "nkey": pair.public_key(), "sig": URL_SAFE_NO_PAD.encode(signature),
        });
        let mut wire = Wire { stream };
        wire.say(&format!("CONNECT {hello}\r\n"));
        assert_eq!(wire.refused(), Vec::<String>::new(), "{role} gets in");
        wire
    }

    fn say(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).expect("sent");
    }

    /// What was refused since the last time: the server answers in the order in which it was asked.
    fn refused(&mut self) -> Vec<String> {
        self.say("PING\r\n");
        let mut refused = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.stream.read_line(&mut line).expect("read") > 0, "the server hung up: {refused:?}");
            match line.trim_end() {
                "PONG" => return refused,
                "PING" => self.say("PONG\r\n"),
                line if line.starts_with("-ERR") => refused.push(line.to_owned()),
                _ => {}
            }
        }
    }
}

#[test]
#[ignore = "needs nats-server"]
fn each_user_may_do_what_its_role_needs_and_nothing_else() {
    // No streams yet, so that nothing that is allowed has an effect.
    let shipped = Shipped::new();
    let (publishes, subscriptions) = (publishes(), subscriptions());
    let mut wrong = Vec::new();
    let mut checked = 0;
    for role in ROLES {
        let mut wire = Wire::open(&shipped, role);
        for (operations, verb) in [(&publishes, "Publish"), (&subscriptions, "Subscription")] {
            let asked: String = operations
                .iter()
                .enumerate()
                .map(|(number, Operation { subject, .. })| match verb {
                    "Publish" => format!("PUB {subject} 0\r\n\r\n"),
                    _ => format!("SUB {subject} {number}\r\n"),
                })
                .collect();
            wire.say(&asked);
            let refused = wire.refused();
            let line = |subject: &str| format!("-ERR 'Permissions Violation for {verb} to \"{subject}\"'");
            let wanted: Vec<String> = operations
                .iter()
                .filter(|Operation { who, .. }| !who.contains(role))
                .map(|Operation { subject, .. }| line(subject))
                .collect();
            let (is, should): (BTreeSet<&String>, BTreeSet<&String>) =
                (refused.iter().collect(), wanted.iter().collect());
            wrong.extend(should.difference(&is).map(|line| format!("{role} is not refused: {line}")));
            wrong.extend(is.difference(&should).map(|line| format!("{role} is refused: {line}")));
            checked += operations.len();
        }
    }
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
    println!("{checked} pairs of a user and an operation");
}

/// Nobody without a key, and nobody with another one.
#[test]
#[ignore = "needs nats-server"]
fn strangers_are_not_let_in() {
    let shipped = Shipped::new();
    let url = shipped.rig.url();
    let refused = trimtab_tests::trimtab::run(shipped.state.path(), &["nats", "check", "--nats", &url]).exits(1);
    assert!(refused.err.to_lowercase().contains("authorization"), "{refused:?}");
    let (file, _) = crate::shipped::new_key(shipped.state.path(), "stranger");
    let args = ["nats", "check", "--nats", &url];
    let env = [("TRIMTAB_NATS__NKEY_FILE", file.as_str())];
    let refused = trimtab_tests::trimtab::begin(shipped.state.path(), &args, &env).wait().exits(1);
    assert!(refused.err.to_lowercase().contains("authorization"), "{refused:?}");
}
