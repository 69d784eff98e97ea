//! Any bytes as the files of a log dir: checkpoints, epochs, indexes, snapshots, transaction indexes, metadata, journal.
//!
//! Input: sections of (kind, length, bytes). A recovery never panics; if it succeeds, a second one has nothing to do.
#![no_main]

use std::fs;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use trimtab_recovery::{CutPolicy, Options, Outcome, Properties, Settings, Stop, recover};

const NAMES: [&str; 16] = [
    "t-0/00000000000000000000.log",
    "t-0/00000000000000000005.log",
    "t-0/00000000000000000000.index",
    "t-0/00000000000000000005.index",
    "t-0/00000000000000000000.timeindex",
    "t-0/00000000000000000005.txnindex",
    "t-0/00000000000000000005.snapshot",
    "t-0/00000000000000000000.log.swap",
    "t-0/00000000000000000003.log.cleaned",
    "t-0/leader-epoch-checkpoint",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "__cluster_metadata-0/00000000000000000000.log",
    "__cluster_metadata-0/00000000000000000001-0000000001.checkpoint",
    ".trimtab-recovery.journal",
];

fn prepare(top: &Path, mut data: &[u8]) {
    let _ = fs::remove_dir_all(top);
    fs::create_dir_all(top.join("t-0")).expect("a folder");
    fs::create_dir_all(top.join("__cluster_metadata-0")).expect("a folder");
    fs::write(top.join("meta.properties"), "version=1\nnode.id=1\n").expect("written");
    fs::write(top.join("t-0/partition.metadata"), "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ").expect("written");
    while let [kind, high, low, rest @ ..] = data {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (section, more) = rest.split_at(length);
        fs::write(top.join(NAMES[usize::from(*kind) % NAMES.len()]), section).expect("written");
        data = more;
    }
}

fuzz_target!(|data: &[u8]| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let top = folder.join(format!("trimtab-fuzz-dir-{}", std::process::id()));
    prepare(&top, data);
    let options = Options {
        dirs: vec![top],
        optional_dirs: Vec::new(),
        metadata_dir: None,
        settings: Settings::new(Properties::parse(&String::from_utf8_lossy(data))),
        threads: 1,
        check: false,
        now_ms: Some(0),
        cut: CutPolicy::Discard,
        repair_checkpoints: data.len().is_multiple_of(2),
        truncate_overflow: data.len().is_multiple_of(3),
    };
    let Ok(report) = recover(&options, &Stop::default(), &|_| ()) else { return };
    if report.outcome == Outcome::Recovered {
        let again = recover(&options, &Stop::default(), &|_| ()).expect("the same options");
        assert_eq!(again.outcome, Outcome::NothingToDo);
    }
});
