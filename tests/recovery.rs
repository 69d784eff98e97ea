//! Recovery of Kafka log dirs. Tests here need nothing but a file system; those against Kafka itself are in
//! `recovery_kafka.rs`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use trimtab_recovery::{CutPolicy, DirState, Options, Outcome, PartitionState, Stop, recover};

#[path = "recovery/damage.rs"]
#[expect(dead_code, reason = "what the tests against Kafka need")]
mod damage;
#[path = "recovery/reference.rs"]
mod reference;
#[path = "recovery/support.rs"]
#[expect(dead_code, reason = "what the other tests need")]
mod support;

use support::{Batch, FIXTURE_NOW, content, differences, fixture, log_dir, options, run, run_out_of_time, run_well};

#[test]
fn the_fixture_comes_out_as_kafka_leaves_it() {
    let (_top, dir) = fixture();
    let report = run_well(&options(&dir, FIXTURE_NOW));
    assert_eq!(report.dirs[0].partitions.len(), 24);
    let sums = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kafka/unclean-small.sha256");
    let mut expected = BTreeMap::new();
    for line in fs::read_to_string(sums).unwrap().lines() {
        let (sum, name) = line.split_once("  ").unwrap();
        expected.insert(name.trim_start_matches("./").to_owned(), sum.to_owned());
    }
    let mut found = BTreeMap::new();
    for (name, bytes) in content(&dir) {
        if !name.ends_with('/') && name != "recovery-point-offset-checkpoint" {
            use sha2::Digest;
            drop(bytes);
            let sum = sha2::Sha256::digest(fs::read(dir.join(&name)).unwrap());
            found.insert(name, sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        }
    }
    expected.retain(|name, _| !name.starts_with("__cluster_metadata-0/") && name != ".lock");
    for name in expected.keys().chain(found.keys()) {
        assert_eq!(found.get(name), expected.get(name), "{name}");
    }
    let text = fs::read_to_string(dir.join("recovery-point-offset-checkpoint")).unwrap();
    let mut lines: Vec<&str> = text.lines().skip(2).collect();
    lines.sort_unstable();
    let offsets = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kafka/unclean-small.offsets");
    assert_eq!(lines, fs::read_to_string(offsets).unwrap().lines().collect::<Vec<_>>());
    assert_eq!(run(&options(&dir, FIXTURE_NOW)).outcome, Outcome::NothingToDo);
}

#[test]
fn the_result_does_not_depend_on_the_number_of_threads() {
    let (_top, dir) = fixture();
    let mut first: Option<std::path::PathBuf> = None;
    for threads in [1, 2, 8] {
        let copy = dir.with_file_name(format!("threads-{threads}"));
        trimtab_tests::kafka::copy(&dir, &copy).unwrap();
        run_well(&Options { threads, ..options(&copy, FIXTURE_NOW) });
        if let Some(first) = &first {
            assert_eq!(differences(first, &copy), Vec::<String>::new());
        }
        first.get_or_insert(copy);
    }
}

/// A worker as another process would be one: jobs and reports as JSON, images in a side file.
struct Elsewhere(std::path::PathBuf, AtomicUsize);

impl trimtab_recovery::Verifier for Elsewhere {
    fn verify(
        &self,
        job: &trimtab_recovery::SegmentJob,
        spool: &dyn trimtab_recovery::Spool,
        control: &trimtab_recovery::Control,
    ) -> trimtab_recovery::Result<trimtab_recovery::SegmentReport> {
        use trimtab_recovery::{Control, FileSpool, verify_segment};
        let job = serde_json::from_str(&serde_json::to_string(job).unwrap()).unwrap();
        let path = self.0.join(self.1.fetch_add(1, Ordering::Relaxed).to_string());
        let report = verify_segment(&job, &FileSpool::create(&path)?, &Control::new(&Stop::default()))?;
        let report: trimtab_recovery::SegmentReport =
            serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        control.count(report.identity.size);
        report.import(&FileSpool::open(&path)?, spool)
    }
}

#[test]
fn segments_may_be_verified_elsewhere() {
    let (_top, dir) = fixture();
    let other = dir.with_file_name("other");
    trimtab_tests::kafka::copy(&dir, &other).unwrap();
    run_well(&options(&dir, FIXTURE_NOW));
    let side = tempfile::tempdir().unwrap();
    let elsewhere = Elsewhere(side.path().to_path_buf(), AtomicUsize::new(0));
    let report = trimtab_recovery::recover_with(&options(&other, FIXTURE_NOW), &Stop::default(), &|_| (), &elsewhere);
    assert_eq!(report.unwrap().outcome, Outcome::Recovered);
    assert_eq!(elsewhere.1.load(Ordering::Relaxed), 72);
    assert_eq!(differences(&dir, &other), Vec::<String>::new());
}

#[test]
fn check_changes_nothing_and_tells_the_same() {
    let (_top, dir) = fixture();
    let log = dir.join("lab-plain-0-0/00000000000000000402.log");
    let size = fs::metadata(&log).map_or(0, |m| m.len());
    let active = fs::read_dir(dir.join("lab-plain-0-0")).unwrap().map(|e| e.unwrap().path());
    let last = active.filter(|p| p.extension().is_some_and(|e| e == "log")).max().unwrap();
    let torn = fs::metadata(&last).unwrap().len() - 10;
    fs::File::options().write(true).open(&last).unwrap().set_len(torn).unwrap();
    let before = content(&dir);
    let names = |dir: &Path| fs::read_dir(dir).unwrap().count();
    let count = names(&dir);
    let check = run(&Options { check: true, ..options(&dir, FIXTURE_NOW) });
    assert_eq!((check.outcome, check.dirs[0].state), (Outcome::Recovered, DirState::WouldRecover));
    assert!(content(&dir) == before && names(&dir) == count, "check wrote something");
    let real = run_well(&options(&dir, FIXTURE_NOW));
    for (a, b) in check.dirs[0].partitions.iter().zip(&real.dirs[0].partitions) {
        assert_eq!((a.log_end, &a.cuts, &a.removed, a.producers), (b.log_end, &b.cuts, &b.removed, b.producers));
    }
    assert!(real.dirs[0].partitions.iter().any(|p| p.cuts.len() == 1), "{size}");
}

fn simple(base: i64, batches: i64) -> Vec<u8> {
    let batch = |i| Batch {
        base: base + i,
        records: 1,
        producer: None,
        transactional: false,
        leader_epoch: 0,
        timestamp: 1_000 + base + i,
        payload: 900,
        marker: None,
    };
    (0..batches).flat_map(|i| batch(i).bytes()).collect()
}

/// Five segments of ten batches.
fn five() -> Vec<(i64, Vec<u8>)> {
    (0..5).map(|i| (i * 10, simple(i * 10, 10))).collect()
}

#[test]
fn k12_what_is_cut_is_kept_with_a_list() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("logs");
    let mut segments = five();
    let size = segments[2].1.len();
    segments[2].1[size / 2 + 100] ^= 1;
    log_dir(&dir, &segments);
    let report = run_well(&options(&dir, 0));
    let partition = &report.dirs[0].partitions[0];
    assert_eq!(partition.log_end, 25);
    assert_eq!((partition.cuts[0].segment, partition.cuts[0].next_offset), (20, 25));
    assert_eq!(partition.removed.iter().map(|gone| gone.segment).collect::<Vec<_>>(), [30, 40]);
    let kept = report.dirs[0].cut_folder.clone().unwrap();
    assert!(kept.starts_with(top.path().canonicalize().unwrap().join("logs.trimtab-cut")), "{kept:?}");
    let at = partition.cuts[0].at_byte as usize;
    assert_eq!(fs::read(kept.join(format!("t-0/{:020}.log.from-{at}", 20))).unwrap(), segments[2].1[at..]);
    assert_eq!(fs::read(kept.join(format!("t-0/{:020}.log", 30))).unwrap(), segments[3].1);
    assert_eq!(fs::read(kept.join(format!("t-0/{:020}.log", 40))).unwrap(), segments[4].1);
    let list = fs::read_to_string(kept.join("cut-list.jsonl")).unwrap();
    let entries: Vec<serde_json::Value> = list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), 3);
    assert_eq!((&entries[0]["batches"], &entries[0]["intact_batches"]), (&5.into(), &4.into()));
    assert_eq!((&entries[1]["first_offset"], &entries[1]["last_offset"]), (&30.into(), &39.into()));
}

#[test]
fn what_is_cut_goes_where_it_is_told() {
    for policy in ["into", "discard"] {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("logs");
        let mut segments = five();
        segments[3].1.truncate(500);
        log_dir(&dir, &segments);
        let elsewhere = top.path().join("elsewhere");
        let cut = if policy == "into" { CutPolicy::Into(elsewhere.clone()) } else { CutPolicy::Discard };
        let report = run_well(&Options { cut, ..options(&dir, 0) });
        assert_eq!(report.dirs[0].partitions[0].log_end, 30);
        assert_eq!(report.dirs[0].cut_folder.is_some(), policy == "into");
        assert_eq!(elsewhere.exists(), policy == "into");
        assert!(!top.path().join("logs.trimtab-cut").exists());
    }
}

#[test]
fn k01_every_failure_is_listed_and_no_marker_is_written() {
    let top = tempfile::tempdir().unwrap();
    let (good, bad) = (top.path().join("good"), top.path().join("bad"));
    log_dir(&good, &five());
    log_dir(&bad, &five());
    for i in 1..200 {
        trimtab_tests::kafka::copy(&bad.join("t-0"), &bad.join(format!("t-{i}"))).unwrap();
    }
    fs::rename(good.join("t-0"), good.join("u-0")).unwrap();
    for broken in [3, 77, 150] {
        fs::write(bad.join(format!("t-{broken}/leader-epoch-checkpoint")), [0; 9]).unwrap();
    }
    let mut both = options(&bad, 0);
    both.dirs.push(good.clone());
    let report = run(&both);
    assert_eq!(report.outcome, Outcome::Refused);
    assert_eq!(report.errors.len(), 3, "{:#?}", report.errors);
    for broken in ["t-3:", "t-77:", "t-150:"] {
        assert!(report.errors.iter().any(|error| error.contains(broken)), "{broken} {:#?}", report.errors);
    }
    assert!(!bad.join(".kafka_cleanshutdown").exists() && !bad.join("recovery-point-offset-checkpoint").exists());
    assert!(good.join(".kafka_cleanshutdown").exists());
    let repaired = run_well(&Options { repair_checkpoints: true, ..options(&bad, 0) });
    let resumed = repaired.dirs[0].partitions.iter().filter(|partition| partition.resumed).count();
    assert_eq!(resumed, 197, "the others were finished by the first run");
    assert!(bad.join(".kafka_cleanshutdown").exists());
}

#[test]
fn k09_an_unreadable_partition_fails_the_run() {
    let top = tempfile::tempdir().unwrap();
    log_dir(top.path(), &five());
    fs::create_dir(top.path().join("v-0")).unwrap();
    // A link to itself: looking at it fails, also for root.
    let log = top.path().join("v-0/00000000000000000000.log");
    std::os::unix::fs::symlink(&log, &log).unwrap();
    let report = run(&options(top.path(), 0));
    assert_eq!(report.outcome, Outcome::Failed, "{:#?}", report.errors);
    assert!(!top.path().join(".kafka_cleanshutdown").exists());
    let stray = top.path().join("w-0.0123456789abcdef0123456789abcdef-delete");
    fs::create_dir(&stray).unwrap();
    fs::write(stray.join("00000000000000000000.log"), b"whatever").unwrap();
    fs::remove_dir_all(top.path().join("v-0")).unwrap();
    let report = run_well(&options(top.path(), 0));
    assert_eq!(report.dirs[0].partitions[1].state, PartitionState::Skipped);
    assert_eq!(fs::read(stray.join("00000000000000000000.log")).unwrap(), b"whatever");
}

#[test]
fn k07_preallocated_indexes_are_trimmed() {
    let top = tempfile::tempdir().unwrap();
    log_dir(top.path(), &five());
    for suffix in ["index", "timeindex"] {
        let path = top.path().join(format!("t-0/00000000000000000040.{suffix}"));
        fs::File::create(&path).unwrap().set_len(10_485_756).unwrap();
    }
    run_well(&options(top.path(), 0));
    assert_eq!(fs::metadata(top.path().join("t-0/00000000000000000040.index")).unwrap().len(), 8);
    assert_eq!(fs::metadata(top.path().join("t-0/00000000000000000040.timeindex")).unwrap().len(), 24);
}

#[test]
fn k06_progress_is_told_and_a_limit_ends_the_run() {
    let top = tempfile::tempdir().unwrap();
    log_dir(top.path(), &five());
    let told = AtomicUsize::new(0);
    let report = recover(&options(top.path(), 0), &Stop::default(), &|progress| {
        told.fetch_add(1, Ordering::Relaxed);
        assert_eq!(progress.len(), 1);
        assert!(progress[0].bytes.0 <= progress[0].bytes.1);
    });
    assert_eq!(report.unwrap().outcome, Outcome::Recovered);
    assert!(told.load(Ordering::Relaxed) >= 1);
    fs::remove_file(top.path().join(".kafka_cleanshutdown")).unwrap();
    let now = Instant::now();
    let report = recover(&options(top.path(), 0), &Stop::at(Some(now)), &|_| ()).unwrap();
    assert_eq!(report.outcome, Outcome::Stopped);
    assert!(report.errors.iter().any(|error| error.contains("t-0") && error.contains("time limit")), "{report:#?}");
    assert!(!top.path().join(".kafka_cleanshutdown").exists());
    let later = Stop::at(Some(Instant::now() + Duration::from_secs(600)));
    assert_eq!(recover(&options(top.path(), 0), &later, &|_| ()).unwrap().outcome, Outcome::Recovered);
}

#[test]
fn a_limit_in_the_middle_names_what_remains_and_loses_nothing() {
    let (_top, dir) = fixture();
    let log = dir.join("lab-plain-0-0/00000000000000000217.log");
    let mut bytes = fs::read(&log).unwrap();
    bytes[12_000] ^= 4;
    fs::write(&log, bytes).unwrap();
    let undisturbed = dir.with_file_name("undisturbed");
    trimtab_tests::kafka::copy(&dir, &undisturbed).unwrap();
    run_well(&options(&undisturbed, FIXTURE_NOW));
    let top_files = |dir: &Path| content(dir).into_iter().filter(|entry| !entry.0.contains('/')).collect::<Vec<_>>();
    let before = top_files(&dir);
    for good in [20, 17] {
        let report = run_out_of_time(&options(&dir, FIXTURE_NOW), good);
        assert_eq!((report.outcome, report.dirs[0].state), (Outcome::Stopped, DirState::Unfinished));
        let of = |state| report.dirs[0].partitions.iter().filter(|p| p.state == state).collect::<Vec<_>>();
        let (done, left) = (of(PartitionState::Recovered), of(PartitionState::Unfinished));
        assert!(!done.is_empty() && done.len() + left.len() == 24, "{} and {}", done.len(), left.len());
        // Every partition that is left is named once, with the segments that were not verified.
        assert_eq!(report.errors.len(), left.len(), "{:#?}", report.errors);
        for partition in left {
            let error = report.errors.iter().find(|e| e.contains(&format!("/{}: ", partition.folder))).unwrap();
            assert!(error.contains("the time limit was reached"), "{error}");
            assert!(partition.unverified.iter().all(|base| error.contains(&base.to_string())), "{error}");
            assert!(!partition.unverified.is_empty());
        }
        // Not a byte of what a broker goes by was changed.
        let mut after = top_files(&dir);
        after.retain(|entry| entry.0 != ".trimtab-recovery.journal");
        assert!(after == before, "{:?}", after.iter().map(|entry| &entry.0).collect::<Vec<_>>());
    }
    let report = run_well(&options(&dir, FIXTURE_NOW));
    let resumed = report.dirs[0].partitions.iter().filter(|p| p.resumed).count();
    assert!(resumed > 0 && report.dirs[0].segments_remembered > 0);
    assert_eq!(differences(&undisturbed, &dir), Vec::<String>::new());
}

#[test]
fn a_second_run_reads_nothing_that_the_first_has_verified() {
    let top = tempfile::tempdir().unwrap();
    log_dir(top.path(), &five());
    trimtab_tests::kafka::copy(&top.path().join("t-0"), &top.path().join("t-1")).unwrap();
    // One refused partition: the dir gets no marker, and the journal stays.
    fs::write(top.path().join("t-1/leader-epoch-checkpoint"), b"?").unwrap();
    assert_eq!(run(&options(top.path(), 7)).outcome, Outcome::Refused);
    fs::remove_file(top.path().join("t-1/leader-epoch-checkpoint")).unwrap();
    // Touch one segment of the finished partition: it, and only it, is read again.
    let log = top.path().join("t-0/00000000000000000020.log");
    let bytes = fs::read(&log).unwrap();
    fs::write(&log, &bytes).unwrap();
    let report = run_well(&options(top.path(), 7));
    assert_eq!(report.dirs[0].segments_remembered, 4);
    assert!(!top.path().join(".trimtab-recovery.journal").exists());
}

#[test]
fn foreign_and_unknown_dirs_are_refused() {
    let top = tempfile::tempdir().unwrap();
    log_dir(top.path(), &five());
    fs::write(top.path().join("meta.properties"), "version=7\n").unwrap();
    let report = run(&options(top.path(), 0));
    assert_eq!(report.outcome, Outcome::Refused);
    assert!(report.errors[0].contains("format version 7"), "{:?}", report.errors);
    fs::remove_file(top.path().join("meta.properties")).unwrap();
    assert_eq!(run(&options(top.path(), 0)).outcome, Outcome::Refused);
    let empty = tempfile::tempdir().unwrap();
    let report = run(&options(empty.path(), 0));
    assert_eq!(report.outcome, Outcome::NothingToDo);
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0, "it belongs to no broker yet");
}

#[test]
fn an_offset_that_does_not_fit_is_cut_on_request() {
    let top = tempfile::tempdir().unwrap();
    let mut segments = five();
    let third = simple(20, 1).len() * 3;
    segments[2].1[third..third + 8].copy_from_slice(&(1_i64 << 40).to_be_bytes());
    log_dir(top.path(), &segments);
    assert_eq!(run(&options(top.path(), 0)).outcome, Outcome::Refused);
    let report = run_well(&Options { truncate_overflow: true, ..options(top.path(), 0) });
    assert_eq!(report.dirs[0].partitions[0].log_end, 23);
}

/// Names a log dir to the child process of the kill test.
const CHILD: &str = "TRIMTAB_RECOVERY_CHILD";

/// Not a test: what the kill test starts and kills.
#[test]
#[ignore = "started by killed_at_any_moment_the_next_run_comes_to_the_same_end"]
fn child() {
    if let Some(dir) = std::env::var_os(CHILD) {
        run(&options(Path::new(&dir), FIXTURE_NOW));
    }
}

/// Kinds of damage whose repair takes several steps that depend on each other.
const MANY_STEPS: [&[&str]; 7] = [
    &["bit flip in a payload", "no offset index, flushed, transactional"],
    &["unflushed segment without index and torn", "no snapshot, transactional"],
    &["a finished swap", "bit flip in the first unflushed segment of a transactional partition"],
    &["a finished swap without indexes", "no offset index and no snapshot anywhere, transactional"],
    &["log start beyond the end", "transaction index that names an offset below its segment"],
    &["offsets go back at an index entry", "all snapshots flipped"],
    &["a swap behind a cleaned segment", "no offset index, flushed, and a bit flip", "an epoch beyond the end"],
];

/// Rounds for each set of damage: TRIMTAB_KILL_ROUNDS, 6 by default.
#[test]
fn killed_at_any_moment_the_next_run_comes_to_the_same_end() {
    let rounds = std::env::var("TRIMTAB_KILL_ROUNDS").ok().and_then(|v| v.parse().ok()).unwrap_or(6_u32);
    let (_top, source) = fixture();
    let all: Vec<&damage::Case> = [damage::LOGS, damage::INDEXES, damage::OTHERS].into_iter().flatten().collect();
    let mut state = 12_345_u64;
    let mut killed = 0;
    for names in MANY_STEPS {
        let damaged = source.with_file_name("damaged");
        fs::remove_dir_all(&damaged).ok();
        trimtab_tests::kafka::copy(&source, &damaged).unwrap();
        for name in names {
            all.iter().find(|case| case.0 == *name).unwrap().3(&damage::Dir::fixture(&damaged));
        }
        let undisturbed = source.with_file_name("undisturbed");
        fs::remove_dir_all(&undisturbed).ok();
        trimtab_tests::kafka::copy(&damaged, &undisturbed).unwrap();
        let started = Instant::now();
        run_well(&options(&undisturbed, FIXTURE_NOW));
        let usual = started.elapsed().as_micros() as u64 + 20_000;
        for round in 0..rounds {
            let copy = source.with_file_name("killed");
            fs::remove_dir_all(&copy).ok();
            trimtab_tests::kafka::copy(&damaged, &copy).unwrap();
            for _ in 0..3 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "child", "--ignored"])
                    .env(CHILD, &copy)
                    .stdout(std::process::Stdio::null())
                    .spawn()
                    .unwrap();
                std::thread::sleep(Duration::from_micros((state >> 33) % usual));
                killed += u32::from(child.try_wait().unwrap().is_none());
                child.kill().unwrap();
                child.wait().unwrap();
            }
            let report = run(&options(&copy, FIXTURE_NOW));
            assert!(matches!(report.outcome, Outcome::Recovered | Outcome::NothingToDo), "{:?}", report.errors);
            // A journal is left when the process dies between the marker and its removal.
            fs::remove_file(copy.join(".trimtab-recovery.journal")).ok();
            assert_eq!(differences(&undisturbed, &copy), Vec::<String>::new(), "{names:?}, round {round}");
        }
    }
    eprintln!("{killed} runs were killed before their end");
    assert!(killed > 0);
}

/// One step of a random history.
#[derive(Clone, Debug)]
struct Step {
    producer: usize,
    records: i32,
    transactional: bool,
    end: Option<bool>,
    jitter: i64,
    payload: usize,
    roll: bool,
    new_epoch: bool,
    rises: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let flags = (prop::bool::weighted(0.4), prop::option::weighted(0.3, any::<bool>()), prop::bool::weighted(0.12));
    let more = (prop::bool::weighted(0.05), prop::bool::weighted(0.04));
    (0..7_usize, 1..5_i32, flags, -500..500_i64, 10..900_usize, more).prop_map(
        |(producer, records, (transactional, end, roll), jitter, payload, (new_epoch, rises))| Step {
            producer,
            records,
            transactional,
            end,
            jitter,
            payload,
            roll,
            new_epoch,
            rises,
        },
    )
}

/// Ids that share buckets of a Java map, and one producer without id.
const IDS: [i64; 7] = [-1, 1, 17, 33, 4_294_967_297, 2000, 3000];

/// Writes a history as segments. Mostly legal; a batch outside a transaction may come while one is open.
fn history(steps: &[Step]) -> Vec<(i64, Vec<u8>)> {
    let mut segments = vec![(0, Vec::new())];
    let (mut offset, mut leader_epoch) = (0_i64, 0);
    let mut open = [false; 7];
    let mut epochs = [0_i16; 7];
    let mut sequences = [0_i32; 7];
    for (i, step) in steps.iter().enumerate() {
        if step.roll && !segments.last().unwrap().1.is_empty() {
            segments.push((offset, Vec::new()));
        }
        let p = step.producer;
        if step.new_epoch {
            epochs[p] += 1;
            sequences[p] = 0;
        }
        if step.rises {
            leader_epoch += 2;
        }
        let has_id = p > 0;
        let marker = step.end.filter(|_| has_id);
        let illegal = i % 97 == 96;
        let transactional = has_id && (step.transactional || (open[p] && !illegal));
        let batch = Batch {
            base: offset,
            records: if marker.is_some() { 1 } else { step.records },
            producer: has_id.then(|| (IDS[p], epochs[p], if marker.is_some() { -1 } else { sequences[p] })),
            transactional,
            leader_epoch,
            timestamp: 1_000_000 + i as i64 * 10 + step.jitter,
            payload: step.payload,
            marker,
        };
        open[p] = marker.is_none() && (open[p] || transactional);
        sequences[p] += step.records;
        offset += i64::from(batch.records);
        segments.last_mut().unwrap().1.extend(batch.bytes());
    }
    segments
}

/// (segment, place, kind): places and segments wrap around.
type Damage = (usize, usize, u8);

fn damage(segments: &mut [(i64, Vec<u8>)], (segment, place, kind): Damage) {
    let count = segments.len();
    let bytes = &mut segments[segment % count].1;
    if bytes.is_empty() {
        return;
    }
    let at = place % bytes.len();
    match kind % 5 {
        0 => bytes[at] ^= 1 << (place % 8),
        1 => bytes.truncate(at),
        2 => {
            let end = bytes.len().min(at + 300);
            bytes[at..end].fill(0);
        }
        3 => bytes.extend(vec![0; place % 3000]),
        _ => {
            let end = bytes.len().min(at + 9);
            for byte in &mut bytes[at..end] {
                *byte = byte.wrapping_mul(31).wrapping_add(7);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_damage_is_cut_where_the_slow_reference_cuts(
        steps in prop::collection::vec(step(), 1..120),
        damages in prop::collection::vec((any::<usize>(), any::<usize>(), any::<u8>()), 0..3),
        interval in prop::sample::select(vec![0_u64, 500, 4096]),
        threads in 1..4_usize,
    ) {
        let mut segments = history(&steps);
        for one in damages {
            damage(&mut segments, one);
        }
        // In memory if possible: each case flushes its file system.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let top = tempfile::tempdir_in(folder).unwrap();
        log_dir(top.path(), &segments);
        let expected = reference::recover(&segments, interval);
        let mut options = Options { threads, cut: CutPolicy::Discard, ..options(top.path(), 2_000_000) };
        options.settings.add_default(&format!("index.interval.bytes={interval}")).unwrap();
        let report = run(&options);
        let Some(files) = expected.files else {
            prop_assert_eq!(report.outcome, Outcome::Refused);
            return Ok(());
        };
        if expected.contiguous {
            prop_assert_eq!(report.outcome, Outcome::Recovered, "{:?}", report.errors);
        } else if report.outcome == Outcome::Refused {
            // Offsets that do not join make a broker replay segments, which the reference does not imitate.
            return Ok(());
        }
        prop_assert_eq!(report.dirs[0].partitions[0].log_end, expected.end);
        let mut found = content(top.path());
        found.retain(|name, _| name.starts_with("t-0/0") && (expected.contiguous || !name.ends_with(".snapshot")));
        let mut wanted: BTreeMap<_, _> = files.into_iter().map(|(name, bytes)| (format!("t-0/{name}"), bytes)).collect();
        wanted.retain(|name, _| expected.contiguous || !name.ends_with(".snapshot"));
        if !expected.contiguous {
            found.retain(|name, _| !name.ends_with(".txnindex"));
            wanted.retain(|name, _| !name.ends_with(".txnindex"));
        }
        prop_assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
        for (name, bytes) in wanted {
            prop_assert!(found[&name] == bytes, "{} differs: {} and {} bytes", name, found[&name].len(), bytes.len());
        }
    }
}
