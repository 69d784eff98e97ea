//! Recovery against Kafka: its own loader as the judge of every kind of damage, and real brokers started on the result.
//!
//! Needs a JDK, Maven and its repository; the mess is made once and kept in the tests' cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use trimtab_recovery::{CutPolicy, Options, Outcome};
use trimtab_tests::kafka::{KafkaRig, Load, Loaded, Loader, Mess, copy, mess};

#[path = "recovery/damage.rs"]
#[expect(dead_code, reason = "what the other tests need")]
mod damage;
#[path = "recovery/reference.rs"]
#[expect(dead_code, reason = "only the checksum is needed here")]
mod reference;
#[path = "recovery/support.rs"]
#[expect(dead_code, reason = "what the other tests need")]
mod support;

use damage::{Case, Dir, Expect};
use support::{differences, options, run, run_out_of_time, run_well};

const DAY_MS: i64 = 86_400_000;
/// The topic whose setting must be learnt from the metadata; Kafka's loader is told.
const DISORDER: &str = "disorder:index.interval.bytes:1024";

/// Every kind of data, in segments of 24 KB; one round that ends cleanly, one that does not.
fn everything() -> (PathBuf, i64) {
    let kinds = ["gzip", "snappy", "lz4", "zstd", "headers", "keyed"];
    let mut first = vec!["create plain 2 internal.segment.bytes=24576".to_owned()];
    first.push("create idem 2 internal.segment.bytes=24576".to_owned());
    first.push("create txn 2 internal.segment.bytes=24576".to_owned());
    first.push("create lat 1 internal.segment.bytes=24576 message.timestamp.type=LogAppendTime".to_owned());
    first.push("create disorder 1 internal.segment.bytes=24576 index.interval.bytes=1024".to_owned());
    for kind in kinds {
        first.push(format!("create {kind} 1 internal.segment.bytes=24576"));
    }
    let mut rounds = vec![first, Vec::new()];
    for (i, round) in rounds.iter_mut().enumerate() {
        round.push(format!("fill plain 2 none 140000 400 4096 {i}"));
        round.push(format!("fill idem 2 idempotent 140000 400 4096 {i}"));
        round.push(format!("transactions txn 2 160000 400 4096 {i} {}", i == 1));
        round.push(format!("fill lat 1 none 60000 400 4096 {i}"));
        round.push(format!("fill disorder 1 disorder 60000 400 4096 {i}"));
        for kind in kinds {
            round.push(format!("fill {kind} 1 {kind} 60000 400 4096 {i}"));
        }
    }
    mess(&Mess { name: "everything", settings: &[], rounds, heap_mb: 512 }).unwrap()
}

fn load<'a>(dir: &'a Path, now_ms: i64) -> Load<'a> {
    Load { dirs: vec![dir], threads: 1, now_ms, defaults: Vec::new(), topics: vec![DISORDER.to_owned()] }
}

/// Does the damage to two copies, has Kafka recover one and us the other, and compares.
fn judge(loader: &mut Loader, source: &Path, now_ms: i64, case: &Case) -> Result<(), String> {
    let (name, expect, settings, act) = case;
    let top = tempfile::tempdir().unwrap();
    let (theirs, ours) = (top.path().join("theirs"), top.path().join("ours"));
    copy(source, &theirs).unwrap();
    act(&Dir::mess(&theirs));
    copy(&theirs, &ours).unwrap();
    let mut load = load(&theirs, now_ms);
    load.defaults = settings.iter().map(|setting| setting.replace('=', ":")).collect();
    let verdict = loader.load(&load).unwrap();
    let mut options = Options { cut: CutPolicy::Discard, ..options(&ours, now_ms) };
    for setting in *settings {
        options.settings.add_default(setting).unwrap();
    }
    let report = run(&options);
    let fail =
        |what: &str| Err(format!("{name}: {what}; Kafka: {verdict:?}; we: {:?} {:?}", report.outcome, report.errors));
    let started = matches!(verdict, Loaded::Well { .. });
    match expect {
        Expect::Refuse if started || report.outcome != Outcome::Refused => fail("both should refuse"),
        Expect::OnlyWe if report.outcome != Outcome::Refused => fail("we should refuse"),
        Expect::Clean if report.outcome != Outcome::NothingToDo => fail("there is nothing to do"),
        Expect::Refuse | Expect::OnlyWe => {
            if ours.join(".kafka_cleanshutdown").exists() {
                fail("a marker in a refused dir")
            } else {
                Ok(())
            }
        }
        Expect::Clean => Ok(()),
        Expect::Same | Expect::SameBut(_) => {
            if !started || report.outcome != Outcome::Recovered {
                return fail("both should recover");
            }
            let but: &[&str] = if let Expect::SameBut(but) = expect { but } else { &[] };
            let mut different = differences(&theirs, &ours);
            different.retain(|line| !but.iter().any(|part| line.contains(part)));
            if different.is_empty() { Ok(()) } else { fail(&different.join(", ")) }
        }
    }
}

fn judge_all(cases: &[Case], clock_shift_ms: i64) {
    let (source, made) = everything();
    let mut loader = Loader::start().unwrap();
    let failed: Vec<String> =
        cases.iter().filter_map(|case| judge(&mut loader, &source, made + clock_shift_ms, case).err()).collect();
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

#[test]
#[ignore = "needs Kafka"]
fn damaged_logs_come_out_as_from_kafka() {
    judge_all(damage::LOGS, 0);
}

#[test]
#[ignore = "needs Kafka"]
fn damaged_indexes_and_snapshots_come_out_as_from_kafka() {
    judge_all(damage::INDEXES, 0);
}

#[test]
#[ignore = "needs Kafka"]
fn k03_checkpoints_leftovers_and_names_come_out_as_from_kafka() {
    judge_all(damage::OTHERS, 0);
}

#[test]
#[ignore = "needs Kafka"]
fn idle_producers_expire_as_in_kafka() {
    // Nobody, some (the first round is a few seconds older than the second), everybody.
    for shift in [-3_600_000, DAY_MS - 4_000, DAY_MS - 2_000, DAY_MS + 3_600_000] {
        judge_all(&damage::INDEXES[..8], shift);
    }
}

/// A small generator of random numbers, printed with each failure.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n.max(1)
    }
}

/// One to three random acts of damage on random files of random partitions.
fn random_damage(dir: &Path, seed: u64) -> String {
    let mut random = Random(seed);
    let mut told = Vec::new();
    for _ in 0..=random.below(3) {
        let folders: Vec<PathBuf> =
            ["plain-0", "idem-0", "txn-0", "txn-1", "disorder-0"].iter().map(|name| dir.join(name)).collect();
        let folder = &folders[random.below(folders.len() as u64) as usize];
        let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with('0'));
        files.sort();
        let file = &files[random.below(files.len() as u64) as usize];
        let size = fs::metadata(file).unwrap().len().min(100_000);
        let kind = random.below(8);
        told.push(format!("{kind} on {}", file.display()));
        match kind {
            0 => fs::remove_file(file).unwrap(),
            1 => damage::cut(file, random.below(size)),
            2 | 3 if size > 0 => damage::flip(file, random.below(size)),
            4 if size > 0 => damage::poke(file, random.below(size), &[0; 64][..(1 + random.below(63)) as usize]),
            5 => fs::write(dir.join("recovery-point-offset-checkpoint"), "").unwrap(),
            // Offsets and epochs are not under the checksum: the interesting places.
            _ if file.extension().is_some_and(|e| e == "log") => {
                let all = damage::batches(file);
                if !all.is_empty() {
                    let batch = all[random.below(all.len() as u64) as usize];
                    let moved = batch.2 + random.below(60) as i64 - 30;
                    damage::poke(file, batch.0, &moved.to_be_bytes());
                }
            }
            _ => fs::write(file, vec![0xA5; random.below(200) as usize]).unwrap(),
        }
    }
    told.join(", ")
}

/// Rounds of random damage: TRIMTAB_DAMAGE_ROUNDS, 60 by default; the first seed is TRIMTAB_DAMAGE_SEED.
#[test]
#[ignore = "needs Kafka"]
fn random_damage_comes_out_as_from_kafka() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (source, made) = everything();
    let mut loader = Loader::start().unwrap();
    let first = number("TRIMTAB_DAMAGE_SEED", 1);
    let mut failed = Vec::new();
    let mut refused = 0;
    for seed in first..first + number("TRIMTAB_DAMAGE_ROUNDS", 60) {
        let top = tempfile::tempdir().unwrap();
        let (theirs, ours) = (top.path().join("theirs"), top.path().join("ours"));
        copy(&source, &theirs).unwrap();
        let told = random_damage(&theirs, seed * 7_919);
        copy(&theirs, &ours).unwrap();
        let verdict = loader.load(&load(&theirs, made)).unwrap();
        let report = run(&Options { cut: CutPolicy::Discard, ..options(&ours, made) });
        let outcome = match (&verdict, report.outcome) {
            (Loaded::Not(_), Outcome::Refused) => {
                refused += 1;
                continue;
            }
            (Loaded::Well { .. }, Outcome::Recovered) => differences(&theirs, &ours).join("; "),
            _ => format!("Kafka {verdict:?}, we {:?} {:?}", report.outcome, report.errors),
        };
        if !outcome.is_empty() {
            failed.push(format!("seed {seed} ({told}): {outcome}"));
        }
    }
    eprintln!("{refused} rounds were refused by both");
    assert!(failed.is_empty(), "{} rounds:\n{}", failed.len(), failed.join("\n"));
}

/// A log dir whose producers a real broker still knows: made now, by this test.
fn killed(builder: trimtab_tests::kafka::Builder) -> KafkaRig {
    let mut rig = builder.start().unwrap();
    let mut client = rig.client().unwrap();
    for command in [
        "create plain 2 internal.segment.bytes=24576",
        "create txn 2 internal.segment.bytes=24576",
        "fill plain 2 idempotent 140000 400 4096 1",
        "transactions txn 2 160000 400 4096 1 true",
    ] {
        client.run(command).unwrap();
    }
    drop(client);
    rig.kill9().unwrap();
    rig
}

fn recovered_lines(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|line| line.contains("Recovering unflushed segment") && !line.contains("__cluster_metadata"))
        .collect()
}

#[test]
#[ignore = "needs Kafka"]
fn a_real_broker_starts_clean_and_differs_in_nothing_from_its_twin() {
    let mut rig = killed(KafkaRig::builder());
    let twin = tempfile::tempdir().unwrap();
    let twin_logs = twin.path().join("logs");
    copy(rig.log_dir(), &twin_logs).unwrap();
    run_well(&options(rig.log_dir(), trimtab_tests::now_ms()));
    rig.start().unwrap();
    let log = rig.log_text().unwrap();
    assert!(log.contains("Skipping recovery of"), "{log}");
    assert_eq!(recovered_lines(&log), Vec::<&str>::new());
    rig.stop().unwrap();
    let mut other = KafkaRig::builder().log_dirs(&[&twin_logs]).folder(twin.path()).start().unwrap();
    assert!(!recovered_lines(&other.log_text().unwrap()).is_empty(), "the twin recovers by itself");
    other.stop().unwrap();
    let mut different = differences(rig.log_dir(), &twin_logs);
    different.retain(|line| !line.starts_with(".kafka_cleanshutdown "));
    assert_eq!(different, Vec::<String>::new());
}

/// What a limit leaves in the middle, Kafka itself brings to the same end.
#[test]
#[ignore = "needs Kafka"]
fn what_a_limit_leaves_is_recovered_by_kafka() {
    let (source, now_ms) = everything();
    let top = tempfile::tempdir().unwrap();
    let (ours, theirs) = (top.path().join("ours"), top.path().join("theirs"));
    let mut loader = Loader::start().unwrap();
    for good in [5, 40] {
        for dir in [&ours, &theirs] {
            fs::remove_dir_all(dir).ok();
            copy(&source, dir).unwrap();
            let damaged = dir.join("plain-0");
            let logs = fs::read_dir(&damaged).unwrap().map(|e| e.unwrap().path());
            let log = logs.filter(|p| p.extension().is_some_and(|e| e == "log")).max().unwrap();
            let size = fs::metadata(&log).unwrap().len();
            fs::File::options().write(true).open(&log).unwrap().set_len(size - 7).unwrap();
        }
        let report = run_out_of_time(&options(&ours, now_ms), good);
        assert_eq!(report.outcome, Outcome::Stopped);
        assert!(!ours.join(".kafka_cleanshutdown").exists());
        for dir in [&ours, &theirs] {
            assert!(matches!(loader.load(&load(dir, now_ms)).unwrap(), Loaded::Well { .. }));
        }
        fs::remove_file(ours.join(".trimtab-recovery.journal")).unwrap();
        assert_eq!(differences(&theirs, &ours), Vec::<String>::new(), "after {good} segments");
    }
}

#[test]
#[ignore = "needs Kafka"]
fn an_open_transaction_continues_and_every_record_is_read_back() {
    let mut rig = KafkaRig::builder().start().unwrap();
    let mut client = rig.client().unwrap();
    for command in [
        "create t 2 internal.segment.bytes=24576",
        "fill t 2 none 120000 400 4096 1",
        "begin one",
        "send one t 0 50",
        "begin two",
        "send two t 1 50",
    ] {
        client.run(command).unwrap();
    }
    let before = client.run("read t uncommitted").unwrap();
    rig.kill9().unwrap();
    run_well(&options(rig.log_dir(), trimtab_tests::now_ms()));
    rig.start().unwrap();
    assert!(rig.log_text().unwrap().contains("Skipping recovery of"));
    assert_eq!(client.run("read t uncommitted").unwrap(), before);
    // The same producers, in the middle of their transactions.
    client.run("send one t 0 7").unwrap();
    client.run("commit one").unwrap();
    client.run("abort two").unwrap();
    let count = |text: &str| text.split(' ').next().unwrap().parse::<u64>().unwrap();
    let (all, committed) = (client.run("read t uncommitted").unwrap(), client.run("read t committed").unwrap());
    assert_eq!(count(&all), count(&before) + 7);
    assert_eq!(count(&committed), count(&before) + 7 - 50, "the aborted fifty are not shown");
}

#[test]
#[ignore = "needs Kafka"]
fn killed_in_the_middle_of_load_nothing_is_recovered_twice() {
    let mut rig = KafkaRig::builder().start().unwrap();
    let mut client = rig.client().unwrap();
    client.run("create load 3 internal.segment.bytes=262144").unwrap();
    for partition in 0..3 {
        client.run(&format!("stream load {partition} 60")).unwrap();
    }
    std::thread::sleep(Duration::from_secs(4));
    rig.kill9().unwrap();
    drop(client);
    let copied = tempfile::tempdir().unwrap();
    let theirs = copied.path().join("logs");
    copy(rig.log_dir(), &theirs).unwrap();
    let now = trimtab_tests::now_ms();
    run_well(&options(rig.log_dir(), now));
    Loader::start().unwrap().load(&Load { topics: Vec::new(), ..load(&theirs, now) }).unwrap();
    assert_eq!(differences(&theirs, rig.log_dir()), Vec::<String>::new());
    rig.start().unwrap();
    assert_eq!(recovered_lines(&rig.log_text().unwrap()), Vec::<&str>::new());
    let read = rig.client().unwrap().run("read load uncommitted").unwrap();
    assert!(!read.starts_with("0 "), "{read}");
}

#[test]
#[ignore = "needs Kafka"]
fn a_running_broker_is_respected_and_kept_out() {
    let mut rig = killed(KafkaRig::builder());
    rig.start().unwrap();
    for check in [false, true] {
        let report = run(&Options { check, ..options(rig.log_dir(), 0) });
        assert_eq!(report.outcome, Outcome::Refused);
        let pid = rig.pid().unwrap().to_string();
        assert!(report.errors[0].contains(&format!("process {pid}")), "{:?}", report.errors);
    }
    rig.kill9().unwrap();
    // While somebody holds the lock a broker ends by itself.
    let lock = fs::File::options().write(true).open(rig.log_dir().join(".lock")).unwrap();
    rustix_lock(&lock);
    assert!(rig.start().is_err());
    assert!(rig.log_text().unwrap().contains("Failed to acquire lock"));
}

fn rustix_lock(file: &fs::File) {
    rustix::fs::fcntl_lock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
}
