//! What `trimtab recover` prints, on which stream, and how it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, fcntl_lock};
use trimtab_recovery::{DirState, Outcome, PartitionState, RunReport};
use trimtab_tests::book::quickstart;
use trimtab_tests::trimtab::{Ended, begin, run};

#[path = "recovery/reference.rs"]
#[expect(dead_code, reason = "only the checksum is needed here")]
mod reference;
#[path = "recovery/support.rs"]
#[expect(dead_code, reason = "what the other tests need")]
mod support;

use support::{content, fixture, large_log_dir};

/// When the fixture's broker was killed.
const NOW: &str = "2026-11-29T20:29:34.072Z";

/// Runs `recover` on `dir`, which is called DIR in what comes back; times are called TIME.
fn recover(dir: &Path, more: &[&str]) -> Ended {
    let state = tempfile::tempdir().unwrap();
    let name = dir.display().to_string();
    let mut ended = run(state.path(), &[&["recover", &name, "--now", NOW, "--threads", "2"][..], more].concat());
    if more.contains(&"json") {
        return ended;
    }
    for text in [&mut ended.out, &mut ended.err] {
        *text = without_times(&text.replace(&name, "DIR"));
    }
    ended
}

/// `(0.3 s, 2 threads)` depends on the machine, and so does what the folder for cut data is called.
fn without_times(text: &str) -> String {
    let line = |line: &str| match (line.rfind(" ("), line.ends_with(" threads)")) {
        (Some(at), true) => format!("{} (TIME)", &line[..at]),
        _ => match line.split_once(".trimtab-cut/") {
            Some((before, _)) => format!("{before}.trimtab-cut/RUN"),
            None => line.to_owned(),
        },
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_quick_start_can_be_typed() {
    let ((_top, dir), state) = (fixture(), tempfile::tempdir().unwrap());
    let dir = dir.display().to_string();
    for command in quickstart("Kafka", &[("LOG_DIR", &dir)]) {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        let _ = run(state.path(), &args).exits(0);
    }
}

fn report(ended: &Ended) -> RunReport {
    serde_json::from_str(&ended.out).unwrap_or_else(|e| panic!("{e}: {ended:?}"))
}

/// Cuts the last batch of a log short.
fn tear(dir: &Path, log: &str) {
    let path = dir.join(log);
    let size = fs::metadata(&path).unwrap().len();
    fs::File::options().write(true).open(path).unwrap().set_len(size - 7).unwrap();
}

fn flip(dir: &Path, log: &str, at: usize) {
    let path = dir.join(log);
    let mut bytes = fs::read(&path).unwrap();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[test]
fn recovered_and_then_nothing_to_do() {
    let (_top, dir) = fixture();
    let ended = recover(&dir, &[]).exits(0);
    assert_eq!(
        ended.out,
        "DIR: recovered\n  24 partitions, 72 unflushed segments, 1.36 MiB read, 0 verified earlier, 0 B cut\n\
         recovered (TIME)"
    );
    assert_eq!(ended.err, "");
    let ended = recover(&dir, &[]).exits(0);
    assert_eq!(ended.out, "DIR: clean, nothing to do\nnothing to do (TIME)");
    let ended = recover(&dir, &["--output", "json"]).exits(0);
    assert_eq!(report(&ended).outcome, Outcome::NothingToDo);
}

#[test]
fn what_is_cut_is_told() {
    let (_top, dir) = fixture();
    flip(&dir, "lab-plain-0-0/00000000000000000217.log", 12_000);
    let check = recover(&dir, &["--check"]).exits(0);
    let ended = recover(&dir, &[]).exits(0);
    let cut = "  lab-plain-0-0: segment 217 cut at byte 11591, 11.35 KiB from offset 244 on (a checksum that does not fit at byte 11591)";
    for out in [&check.out, &ended.out] {
        assert!(out.lines().any(|line| line == cut), "{out}");
        let gone = "  lab-plain-0-0: segment 268 taken out, ";
        assert!(
            out.lines().any(|line| line.starts_with(gone) && line.ends_with("(segment 217 before it was cut)")),
            "{out}"
        );
    }
    assert!(check.out.starts_with("DIR: would be recovered\n"), "{}", check.out);
    assert!(check.out.ends_with("check only: recovery would succeed (TIME)"), "{}", check.out);
    assert!(!check.out.contains("trimtab-cut"), "{}", check.out);
    assert!(ended.out.contains("\n  what was cut is in ") && ended.out.contains(".trimtab-cut/RUN\n"), "{}", ended.out);
}

#[test]
fn the_whole_report_as_json() {
    let (_top, dir) = fixture();
    flip(&dir, "lab-plain-0-0/00000000000000000217.log", 12_000);
    let ended = recover(&dir, &["--output", "json"]).exits(0);
    let value: serde_json::Value = ended.json();
    for key in ["outcome", "check", "dirs", "threads", "now_ms", "duration_ms", "errors"] {
        assert!(!value[key].is_null(), "{key}: {value}");
    }
    assert_eq!((&value["outcome"], &value["now_ms"]), (&"recovered".into(), &1_795_984_174_072_u64.into()));
    assert_eq!(value["dirs"][0]["state"], "recovered");
    let report = report(&ended);
    assert_eq!((report.threads, report.dirs.len(), report.dirs[0].partitions.len()), (2, 1, 24));
    let partition = report.dirs[0].partitions.iter().find(|p| p.folder == "lab-plain-0-0").unwrap();
    assert_eq!((partition.cuts[0].segment, partition.state), (217, PartitionState::Recovered));
    assert!(report.dirs[0].cut_folder.as_ref().unwrap().join("cut-list.jsonl").is_file());
}

#[test]
fn check_finds_the_same_and_writes_nothing() {
    let (_top, dir) = fixture();
    let before = content(&dir);
    let ended = recover(&dir, &["--check", "--output", "json"]).exits(0);
    let found = report(&ended);
    assert_eq!((found.outcome, found.check, found.dirs[0].state), (Outcome::Recovered, true, DirState::WouldRecover));
    assert!(content(&dir) == before);
}

#[test]
fn a_failure_names_every_segment_and_exits_with_1() {
    let (_top, dir) = fixture();
    // Links to themselves: they cannot be read, by root neither.
    for (folder, log) in [("lab-plain-0-0", "00000000000000000217"), ("lab-gzip-1-1", "00000000000000000000")] {
        let path = dir.join(folder).join(format!("{log}.log"));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
    }
    let ended = recover(&dir, &[]).exits(1);
    assert!(ended.out.starts_with("DIR: failed, no clean-shutdown marker\n"), "{}", ended.out);
    assert!(ended.out.ends_with("log recovery failed (TIME)"), "{}", ended.out);
    assert!(ended.err.starts_with("log recovery failed:\n"), "{}", ended.err);
    for folder in ["lab-plain-0-0", "lab-gzip-1-1"] {
        assert!(ended.err.contains(&format!("  DIR/{folder}: could not look at DIR/{folder}/")), "{}", ended.err);
    }
    assert_eq!(ended.err.lines().count(), 3, "{}", ended.err);
    assert!(!dir.join(".kafka_cleanshutdown").exists());
}

#[test]
fn wrong_usage_exits_with_2_and_touches_nothing() {
    let (_top, dir) = fixture();
    let before = content(&dir);
    let properties = dir.with_file_name("server.properties");
    fs::write(&properties, "node.id=1\n").unwrap();
    let properties = properties.display().to_string();
    let bad_threads = dir.with_file_name("threads.properties");
    fs::write(&bad_threads, format!("log.dirs={}\nlog.recovery.threads=none\n", dir.display())).unwrap();
    let bad_threads = bad_threads.display().to_string();
    let name = dir.display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&[], "<DIR>"),
        (&["--properties", &properties], "names no log.dirs"),
        (&["--properties", "/no/such/file"], "/no/such/file"),
        (&["--properties", &bad_threads], "log.recovery.threads=none"),
        (&[&name, "--topic", "x"], "cannot use"),
        (&[&name, "--default", "no.such.key=1"], "cannot use"),
        (&[&name, "--threads", "0"], "--threads"),
        (&[&name, "--max-interval", "soon"], "--max-interval"),
        (&[&name, "--now", "yesterday"], "--now"),
        (&[&name, "--cut-dir", "/tmp", "--discard"], "--discard"),
        (&[&name, "--nats", "nats://127.0.0.1:1"], "--trust-worker"),
        (&[&name, "--trust-worker", "UA"], "--nats"),
        (&[&name, "--nats", "nats://127.0.0.1:1", "--trust-worker", "UA"], "a finisher signs what it emits"),
        (&["/no/such/dir"], "/no/such/dir"),
    ];
    let state = tempfile::tempdir().unwrap();
    for (args, says) in cases {
        let ended = run(state.path(), &[&["recover"], *args].concat()).exits(2);
        assert!(ended.err.contains(says), "{args:?}: {}", ended.err);
        assert_eq!(ended.out, "", "{args:?}");
    }
    assert!(content(&dir) == before);
}

#[test]
fn a_refusal_says_what_to_do_and_exits_with_4() {
    let (_top, dir) = fixture();
    fs::write(dir.join("recovery-point-offset-checkpoint"), [0; 20]).unwrap();
    let ended = recover(&dir, &[]).exits(4);
    assert_eq!(ended.out, "DIR: refused, no clean-shutdown marker\nlog recovery refused a part (TIME)");
    assert!(
        ended.err.starts_with("log recovery refused a part:\n  DIR: refused DIR/recovery-point-offset-checkpoint: ")
    );
    assert!(ended.err.contains("--repair-checkpoints"), "{}", ended.err);
    let ended = recover(&dir, &["--repair-checkpoints"]).exits(0);
    assert!(ended.out.contains("  recovery-point-offset-checkpoint is unreadable ("), "{}", ended.out);
}

#[test]
fn a_log_dir_in_use_is_refused_with_the_holder() {
    let (_top, dir) = fixture();
    let lock = fs::File::options().write(true).open(dir.join(".lock")).unwrap();
    fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    for more in [&[][..], &["--check"]] {
        let ended = recover(&dir, more).exits(4);
        let says = format!("log dir DIR is in use by process {}: stop that broker", std::process::id());
        assert!(ended.err.contains(&says), "{}", ended.err);
    }
    drop(lock);
    let _ = recover(&dir, &[]).exits(0);
}

/// Sizes and names from `server.properties`, limit included; flags win.
#[test]
fn properties_are_read_and_flags_win() {
    let (top, dir) = fixture();
    let properties = top.path().join("server.properties");
    let text = format!(
        "node.id=1\nlog.dirs={}, {}\nnum.recovery.threads.per.data.dir=3\nlog.recovery.max.interval.ms=1\n",
        dir.display(),
        top.path().join("never-used").display(),
    );
    fs::write(&properties, text).unwrap();
    let name = properties.display().to_string();
    let state = tempfile::tempdir().unwrap();
    let args = ["recover", "--properties", &name, "--now", NOW, "--output", "json"];
    let stopped = report(&run(state.path(), &args).exits(3));
    assert_eq!((stopped.threads, stopped.outcome, stopped.dirs.len()), (3, Outcome::Stopped, 2));
    let args = [&args[..], &["--max-interval", "10m", "--threads", "1"]].concat();
    let done = report(&run(state.path(), &args).exits(0));
    assert_eq!((done.threads, done.outcome), (1, Outcome::Recovered));
    assert_eq!(done.dirs.iter().filter(|dir| dir.state == DirState::Clean).count(), 1, "the one never used");
}

/// A log dir that takes a while to recover.
fn large() -> (tempfile::TempDir, PathBuf) {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("data");
    fs::create_dir(&dir).unwrap();
    large_log_dir(&dir, "t", 6, 4, 12);
    (top, dir)
}

#[test]
fn a_limit_in_the_middle_exits_with_3_and_the_next_run_goes_on() {
    let (_top, dir) = large();
    tear(&dir, "t-0/00000000000000005760.log");
    let mut limit = 20;
    let mut stopped = 0;
    let last = loop {
        let interval = format!("{limit}ms");
        let ended = recover(&dir, &["--max-interval", &interval]);
        if ended.code == 0 {
            break ended;
        }
        let ended = ended.exits(3);
        stopped += 1;
        assert!(ended.out.starts_with("DIR: not finished, no clean-shutdown marker\n"), "{}", ended.out);
        assert!(ended.out.ends_with("log recovery stopped before it was finished (TIME)"), "{}", ended.out);
        assert!(ended.err.contains("the time limit was reached; not verified yet: segments "), "{}", ended.err);
        assert!(ended.err.contains("run again, finished segments are not read twice"), "{}", ended.err);
        assert!(!dir.join(".kafka_cleanshutdown").exists());
        limit *= 2;
    };
    assert!(stopped > 0);
    let counted = last.out.lines().nth(1).unwrap();
    assert!(!counted.contains(", 0 verified earlier,"), "{counted}");
    assert!(last.out.contains("  t-0: segment 5760 cut at byte "), "{}", last.out);
    assert!(dir.join(".kafka_cleanshutdown").exists());
}

/// Waits until some segments are verified.
fn wait_until_begun(dir: &Path) {
    let journal = dir.join(".trimtab-recovery.journal");
    let started = std::time::Instant::now();
    while !fs::metadata(&journal).is_ok_and(|m| m.len() > 2_000) {
        assert!(started.elapsed() < Duration::from_secs(20), "nothing begins");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_signal_in_the_middle_exits_with_3() {
    let (_top, dir) = large();
    let state = tempfile::tempdir().unwrap();
    let name = dir.display().to_string();
    let running = begin(state.path(), &["recover", &name, "--threads", "1"], &[]);
    wait_until_begun(&dir);
    running.stop();
    let ended = running.wait().exits(3);
    assert!(ended.err.contains("it was asked to stop; not verified yet: segments "), "{}", ended.err);
    assert!(!dir.join(".kafka_cleanshutdown").exists());
    let ended = recover(&dir, &[]).exits(0);
    assert!(!ended.out.contains(" 0 verified earlier"), "{}", ended.out);
}

/// Plain lines when piped: bytes, segments, partitions, rate and what is left, for each log dir.
#[test]
fn progress_is_told_line_by_line_when_piped() {
    let (top, dir) = large();
    let more = top.path().join("more");
    fs::create_dir(&more).unwrap();
    large_log_dir(&more, "u", 4, 4, 12);
    let state = tempfile::tempdir().unwrap();
    let names = [dir.display().to_string(), more.display().to_string()];
    let running = begin(state.path(), &["recover", &names[0], &names[1], "--threads", "1"], &[]);
    wait_until_begun(&dir);
    // However quick the disk is, this takes long enough to be told of.
    running.freeze();
    std::thread::sleep(Duration::from_millis(1_500));
    running.thaw();
    let ended = running.wait().exits(0);
    for name in &names {
        let of_dir = format!("{name}: ");
        let lines: Vec<&str> = ended.err.lines().filter_map(|line| line.strip_prefix(&of_dir)).collect();
        assert!(!lines.is_empty(), "{}", ended.err);
        for line in lines {
            let parts: Vec<&str> = line.split(", ").collect();
            assert_eq!(parts.len(), 5, "{line}");
            assert!(parts[0].contains(" of ") && parts[1].ends_with(" segments"), "{line}");
            assert!(parts[2].ends_with(" partitions") && parts[3].ends_with("/s"), "{line}");
            assert!(parts[4].ends_with(" left") || parts[4] == "remaining time not known yet", "{line}");
        }
    }
    assert!(!ended.err.contains('\r') && !ended.err.contains('\u{1b}'), "{:?}", ended.err);
}
