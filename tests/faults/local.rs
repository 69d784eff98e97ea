//! What goes wrong on the machine trimtab runs on: a full disk, a second instance, a mistyped configuration.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trimtab::clock::Clock;
use trimtab::journal::{Entry, Journal, RecordKind};
use trimtab_tests::trimtab::{begin, binary, run};

use crate::ground::{Ground, LEDGERS, Stage, Trims};

/// A record that is almost as large as a file may become: whatever comes next does not fit any more.
fn almost_full(path: &Path, limit: u64) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let journal = Journal::open(path, Clock::system()).unwrap();
    let note = |size: u64| Entry {
        kind: RecordKind::Note,
        id: String::new(),
        subject: String::new(),
        trace_id: String::new(),
        body: serde_json::json!({ "says": ".".repeat(usize::try_from(size).unwrap()) }),
    };
    runtime.block_on(async {
        // What one takes besides its text: the rest of its line.
        journal.write(note(0)).await.unwrap();
        let rest = std::fs::metadata(path).unwrap().len();
        journal.write(note(limit - 2 * rest - 300)).await.unwrap();
    });
    let size = std::fs::metadata(path).unwrap().len();
    assert!((limit - 310..limit).contains(&size), "{size} of {limit}");
}

/// Begins a run in which no file may become larger than `limit` KiB: writing beyond it fails, after as much as fits was written.
fn begin_limited(limit: u64, state: &Path, args: &[&str]) -> Child {
    let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" \"$@\"");
    let mut command = Command::new("bash");
    command.arg("-c").arg(script).arg(binary()).args(args).arg("--state-dir").arg(state);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child) -> (i32, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Nothing is done that cannot be recorded before: neither by `apply` nor by `run`. The record stays whole, and goes on once
/// there is room again.
#[test]
#[ignore = "needs ZooKeeper"]
fn a_full_disk_under_the_record_stops_every_act() {
    const KIB: u64 = 512;
    let ground = Ground::new("faults", 16);
    let stage = Stage::new();
    let broker = stage.broker(Trims::of(&ground));
    let (from, url) = (ground.from(), broker.url());
    let state = ground.state("full");
    let plan = ground.folder.path().join("plan.json").display().to_string();
    let _ = run(&state, &["plan", "--from", &from, "-o", &plan]).exits(0);
    let record = state.join("audit/executor.jsonl");
    almost_full(&record, KIB * 1024);
    let before = std::fs::read(&record).unwrap();

    let source = ["--from", &from, "--admin", &url, "--max-share", "1"];
    let (code, err) = ended(begin_limited(KIB, &state, &[&["apply", &plan], &source[..]].concat()));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("audit/executor.jsonl cannot be written"), "{err}");
    assert_eq!(std::fs::read(&record).unwrap(), before, "half a record stays nowhere");

    // A run waits for room, since it may come; told to stop, it says that not everything was done.
    let child = begin_limited(KIB, &state, &[&["run", "--apply"], &source[..]].concat());
    std::thread::sleep(Duration::from_secs(4));
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let (code, err) = ended(child);
    assert!([1, 4].contains(&code), "{code}: {err}");
    assert!(err.contains("nothing is carried out until the record can be written"), "{err}");
    assert_eq!(std::fs::read(&record).unwrap(), before);

    assert!(broker.requests().is_empty(), "{:?}", broker.requests());
    assert!((0..16).all(|number| ground.ids(number).len() == LEDGERS));

    // There is room again.
    let ended = run(&state, &[&["run", "--apply"], &source[..]].concat()).exits(0);
    assert!(ended.out.contains("ledgers are gone"), "{ended:?}");
    let _ = run(&state, &["audit", "verify"]).exits(0);
}

#[test]
#[ignore = "needs ZooKeeper"]
fn a_second_instance_on_the_same_state_is_told_so() {
    let ground = Ground::new("faults", 16);
    let stage = Stage::new();
    let broker = stage.broker(Trims::of(&ground));
    let (from, url) = (ground.from(), broker.url());
    let state = ground.state("shared");
    let source = ["--from", &from, "--admin", &url];
    let first = begin(&state, &[&["run", "--apply", "--every", "1h"], &source[..]].concat(), &[]);
    let lock = state.join("audit/executor.jsonl");
    for _ in 0..200 {
        if lock.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for command in [&["run", "--apply"][..], &["run", "--apply", "--every", "1h"]] {
        let second = run(&state, &[command, &source[..]].concat()).exits(1);
        assert!(second.err.contains("another") && second.err.contains("state"), "{second:?}");
    }
    // Looking is free.
    let _ = run(&state, &["plan", "--from", &from]).exits(0);
    first.stop();
    let _ = first.wait().exits(0);
    // What it held is free again.
    let third = run(&state, &[&["run", "--apply", "--max-share", "1"], &source[..]].concat()).exits(0);
    assert!(third.out.contains("ledgers are gone"), "{third:?}");
}

#[test]
fn mistyped_configurations_are_refused_before_anything_happens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trimtab.toml");
    for (text, named) in [
        ("metadta = \"zk://x:1\"", "metadta"),
        ("[caps]\nmax_act = 1", "max_act"),
        ("[[rules]]\nmtach = [\"**\"]", "mtach"),
        ("[[rules]]\nttl = \"7\"", "ttl"),
        ("[pulsar]\nzookeeper = \"x\"", "zookeeper"),
        ("[caps]\nmax_share = 50", "max_share"),
        ("mode = \"Apply\"", "Apply"),
        ("[[rules]\n", "trimtab.toml"),
    ] {
        std::fs::write(&file, text).unwrap();
        let config = file.display().to_string();
        for command in [
            &["run", "--apply", "--from", "zk://127.0.0.1:1"][..],
            &["plan", "--from", "zk://127.0.0.1:1"],
            &["config", "check"],
        ] {
            let ended = run(folder.path(), &[command, &["--config", &config]].concat()).exits(2);
            assert!(ended.err.contains(named), "{text:?}: {ended:?}");
        }
    }
    let ended = run(folder.path(), &["plan", "--config", "/nowhere/trimtab.toml"]).exits(2);
    assert!(ended.err.contains("/nowhere/trimtab.toml"), "{ended:?}");
    let folder = folder.path().display().to_string();
    assert!(!std::path::Path::new(&folder).join("audit").exists(), "nothing was begun");
}

/// a time to live typed as 0 makes everything due. The cap stops it, before the first act, with a code of its own.
#[test]
#[ignore = "needs ZooKeeper"]
fn a_rule_that_matches_everything_is_stopped_by_the_cap() {
    let ground = Ground::new("faults", 800);
    let stage = Stage::new();
    let broker = stage.broker(Trims::of(&ground));
    let (from, url) = (ground.from(), broker.url());
    let rule = "[[rules]]\nname = \"oops\"\nmatch = [\"**\"]\nretention = \"0s\"\nttl = \"0s\"\noverride = true\n";
    let config = ground.file("oops.toml", rule);
    let plan = |more: &[&str]| {
        let args = [&["plan", "--output", "json", "--metadata-rate", "0", "--from", &from][..], more].concat();
        run(ground.folder.path(), &args).exits(0).json()["totals"]["proposed"]["acts"].as_u64().unwrap()
    };
    let (without, with) = (plan(&[]), plan(&["--config", &config]));
    // Not all 800: what the brokers themselves keep by retention no rule gives away.
    assert_eq!((without, with), (600, 700));

    // By the defaults, and by a share that the rules of before would not have crossed.
    for (name, more) in
        [("default", &[][..]), ("share", &["--max-share", "0.8"]), ("acts", &["--max-share", "1", "--max-acts", "699"])]
    {
        let state = ground.state(name);
        let args = [
            &["run", "--apply", "--metadata-rate", "0", "--from", &from, "--admin", &url, "--config", &config][..],
            more,
        ];
        let ended = run(&state, &args.concat()).exits(3);
        assert!(ended.err.contains("stopped before the first act"), "{ended:?}");
        let record = std::fs::read_to_string(state.join("audit/executor.jsonl")).unwrap();
        let kinds: Vec<Value> =
            record.lines().map(|l| serde_json::from_str::<Value>(l).unwrap()["kind"].clone()).collect();
        assert_eq!(kinds, ["scan"], "the scan is recorded, and no act");
    }
    // Nor by way of a plan.
    let file = ground.folder.path().join("plan.json").display().to_string();
    let state = ground.state("plan");
    let _ = run(&state, &["plan", "--metadata-rate", "0", "--from", &from, "--config", &config, "-o", &file]).exits(0);
    let args = ["apply", &file, "--metadata-rate", "0", "--from", &from, "--admin", &url, "--config", &config];
    let ended = run(&state, &args).exits(3);
    assert!(ended.err.contains("stopped before the first act"), "{ended:?}");
    assert!(broker.requests().is_empty(), "{:?}", broker.requests());
}
