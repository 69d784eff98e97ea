//! What the recovery tests share: copies, comparisons, batches made by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use trimtab_recovery::{CutPolicy, Options, Outcome, Properties, RunReport, Settings, Stop, recover};

use crate::reference::crc32c;

/// Options for one log dir.
pub fn options(dir: &Path, now_ms: i64) -> Options {
    Options {
        dirs: vec![dir.to_path_buf()],
        optional_dirs: Vec::new(),
        metadata_dir: None,
        settings: Settings::new(Properties::default()),
        threads: 2,
        check: false,
        now_ms: Some(now_ms),
        cut: CutPolicy::Beside,
        repair_checkpoints: false,
        truncate_overflow: false,
    }
}

/// Runs a recovery to its end.
pub fn run(options: &Options) -> RunReport {
    recover(options, &Stop::default(), &|_| ()).expect("usable options")
}

/// Verifies segments as always until `good` are done; then time runs out before anything more is read.
pub struct OutOfTime {
    good: AtomicUsize,
    deadline: Instant,
}

impl trimtab_recovery::Verifier for OutOfTime {
    fn verify(
        &self,
        job: &trimtab_recovery::SegmentJob,
        spool: &dyn trimtab_recovery::Spool,
        control: &trimtab_recovery::Control,
    ) -> trimtab_recovery::Result<trimtab_recovery::SegmentReport> {
        if self.good.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            std::thread::sleep(self.deadline.saturating_duration_since(Instant::now()));
        }
        trimtab_recovery::verify_segment(job, spool, control)
    }
}

/// Runs a recovery whose limit is reached once `good` segments are verified.
pub fn run_out_of_time(options: &Options, good: usize) -> RunReport {
    let deadline = Instant::now() + Duration::from_secs(3);
    let verifier = OutOfTime { good: AtomicUsize::new(good), deadline };
    trimtab_recovery::recover_with(options, &Stop::at(Some(deadline)), &|_| (), &verifier).expect("usable options")
}

/// Runs a recovery that must succeed.
pub fn run_well(options: &Options) -> RunReport {
    let report = run(options);
    assert_eq!(report.outcome, Outcome::Recovered, "{:#?}", report.errors);
    report
}

/// When the fixture's broker was killed.
pub const FIXTURE_NOW: i64 = 1_795_984_174_072;

/// The log dir of a real broker that was killed.
pub fn fixture() -> (tempfile::TempDir, PathBuf) {
    let top = tempfile::tempdir().expect("a folder");
    unpack("unclean-small.tar.zst", top.path());
    let dir = top.path().join("unclean-small");
    (top, dir)
}

/// Unpacks a fixture into `to`.
pub fn unpack(name: &str, to: &Path) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/kafka").join(name);
    let status = Command::new("tar").arg("--zstd").arg("-xSf").arg(&archive).arg("-C").arg(to).status();
    assert!(status.expect("tar and zstd are installed").success(), "{}", archive.display());
}

/// Content of all files below a log dir, by path. Lines of the top checkpoints are sorted, since they have no order;
/// locks, what waits for deletion and the KRaft metadata are left out.
pub fn content(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "__cluster_metadata-0" {
            out.insert(format!("{name}/"), Vec::new());
            for entry in fs::read_dir(&path).expect("a folder") {
                let path = entry.expect("an entry").path();
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.is_file() && !file.ends_with(".deleted") {
                    out.insert(format!("{name}/{file}"), fs::read(&path).expect("readable"));
                }
            }
        } else if path.is_file() && name != ".lock" {
            let mut bytes = fs::read(&path).expect("readable");
            if name.ends_with("-checkpoint") {
                let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
                lines.sort_unstable();
                bytes = lines.join(&b'\n');
            }
            out.insert(name, bytes);
        }
    }
    out
}

/// What differs between two log dirs, one line a file.
pub fn differences(a: &Path, b: &Path) -> Vec<String> {
    let (a, b) = (content(a), content(b));
    let mut out = Vec::new();
    for name in a.keys().chain(b.keys().filter(|name| !a.contains_key(*name))) {
        match (a.get(name), b.get(name)) {
            (Some(x), Some(y)) if x == y => {}
            (Some(x), Some(y)) => out.push(format!("{name} differs: {} and {} bytes", x.len(), y.len())),
            (Some(_), None) => out.push(format!("{name} is only in the first")),
            _ => out.push(format!("{name} is only in the second")),
        }
    }
    out
}

/// A batch of magic 2.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    pub base: i64,
    pub records: i32,
    pub producer: Option<(i64, i16, i32)>,
    pub transactional: bool,
    pub leader_epoch: i32,
    pub timestamp: i64,
    pub payload: usize,
    /// Abort or commit, instead of data.
    pub marker: Option<bool>,
}

impl Batch {
    pub fn bytes(&self) -> Vec<u8> {
        let (id, epoch, sequence) = self.producer.unwrap_or((-1, -1, -1));
        let mut attributes = 0;
        if self.transactional {
            attributes |= 0x10;
        }
        let mut body = vec![7; self.payload];
        if let Some(abort) = self.marker {
            attributes |= 0x30;
            body = vec![34, 0, 0, 0, 8, 0, 0, 0, u8::from(!abort), 12, 0, 0, 0, 0, 0, 3, 0];
            body[0] = ((body.len() - 1) * 2) as u8;
        }
        let mut checked = vec![0, attributes];
        checked.extend((self.records - 1).to_be_bytes());
        checked.extend(self.timestamp.to_be_bytes());
        checked.extend(self.timestamp.to_be_bytes());
        checked.extend(id.to_be_bytes());
        checked.extend(epoch.to_be_bytes());
        checked.extend(sequence.to_be_bytes());
        checked.extend(self.records.to_be_bytes());
        checked.extend(body);
        let mut out = self.base.to_be_bytes().to_vec();
        out.extend((9 + checked.len() as i32).to_be_bytes());
        out.extend(self.leader_epoch.to_be_bytes());
        out.push(2);
        out.extend(crc32c(&checked).to_be_bytes());
        out.extend(checked);
        out
    }
}

/// A log dir with large segments, cheap to make: one batch of 64 KiB over and over, its offset (which no checksum covers)
/// changed.
pub fn large_log_dir(top: &Path, topic: &str, partitions: usize, segments: usize, megabytes: usize) {
    use std::io::Write;
    let batch = Batch {
        base: 0,
        records: 10,
        producer: None,
        transactional: false,
        leader_epoch: 0,
        timestamp: 1_000_000,
        payload: (1 << 16) - 61,
        marker: None,
    };
    let bytes = batch.bytes();
    fs::write(top.join("meta.properties"), "version=1\nnode.id=1\ncluster.id=c\ndirectory.id=d\n").expect("written");
    for partition in 0..partitions {
        let folder = top.join(format!("{topic}-{partition}"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("partition.metadata"), "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ").expect("written");
        let mut offset = 0_i64;
        for _ in 0..segments {
            for suffix in ["index", "timeindex"] {
                fs::write(folder.join(format!("{offset:020}.{suffix}")), b"").expect("written");
            }
            let mut log = fs::File::create(folder.join(format!("{offset:020}.log"))).expect("made");
            for _ in 0..megabytes * 16 {
                log.write_all(&offset.to_be_bytes()).expect("written");
                log.write_all(&bytes[8..]).expect("written");
                offset += 10;
            }
        }
    }
}

/// A log dir that a broker has formatted, with one partition `t-0` of these segments. Indexes are there and empty.
pub fn log_dir(top: &Path, segments: &[(i64, Vec<u8>)]) {
    let partition = top.join("t-0");
    fs::create_dir_all(&partition).expect("a folder");
    fs::write(top.join("meta.properties"), "version=1\nnode.id=1\ncluster.id=c\n").expect("written");
    fs::write(partition.join("partition.metadata"), "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ").expect("written");
    for (base, bytes) in segments {
        fs::write(partition.join(format!("{base:020}.log")), bytes).expect("written");
        fs::write(partition.join(format!("{base:020}.index")), b"").expect("written");
        fs::write(partition.join(format!("{base:020}.timeindex")), b"").expect("written");
    }
}
