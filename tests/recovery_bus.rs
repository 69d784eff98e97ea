//! Recovery over the bus: workers come, die, lie or never were there, and the log dir comes out as one process leaves it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use trimtab::clock::Clock;
use trimtab::metrics::{Metrics, RecoveryMetrics};
use trimtab::recovery::{LogDirLane, OverBus, OverOptions, Segments, build};
use trimtab::sign::{Signer, Trusted};
use trimtab::worker::{self, LoopOptions, Out, Worker};
use trimtab::workers::{RecoveryParts, RecoveryWorker};
use trimtab_bus::{Bus, BusOptions, InProcess, Role};
use trimtab_events::{Body, Event, RecoveryReport, RecoverySegment, RecoveryWork, SegmentFound, SideFile, Trace};
use trimtab_recovery::{Control, Options, Outcome, RunReport, SegmentReport, Stop, recover_with};

#[path = "recovery/reference.rs"]
#[expect(dead_code, reason = "only the checksum is needed here")]
mod reference;
#[path = "recovery/support.rs"]
#[expect(dead_code, reason = "what the other tests need")]
mod support;

use support::{Batch, FIXTURE_NOW, differences, fixture, large_log_dir, log_dir, options, run_well};
use trimtab_tests::nats::NatsRig;
use trimtab_tests::ports::Port;
use trimtab_tests::process::Process;
use trimtab_tests::trimtab as binary;

/// Segments of the fixture that are verified.
const SEGMENTS: u64 = 72;
/// Segments of [`Ground::small`].
const FEW: u64 = 6;

/// Everything goes over the bus, and nobody is waited for long.
fn all_over_the_bus() -> OverOptions {
    OverOptions { min_bytes: 0, silence: Duration::from_secs(20), ..OverOptions::default() }
}

/// A log dir to be recovered with workers, and its twin as one process leaves it.
struct Ground {
    _top: tempfile::TempDir,
    dir: PathBuf,
    twin: PathBuf,
    at: LogDirLane,
    bus: Arc<InProcess>,
    stop: CancellationToken,
}

impl Ground {
    /// The fixture, after `damage`.
    fn fixture(damage: impl Fn(&Path)) -> Ground {
        let (top, dir) = fixture();
        damage(&dir);
        Ground::of(top, dir)
    }

    /// One partition of a few segments, with transactions.
    fn small() -> Ground {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("data");
        let batch = |i: i64| Batch {
            base: i,
            records: 1,
            producer: Some((1000 + i % 3, 0, i as i32 / 3)),
            transactional: true,
            leader_epoch: i as i32 / 50,
            timestamp: 1_000_000 + i,
            payload: 500,
            marker: None,
        };
        let segment = |n: i64| (n * 40, (n * 40..n * 40 + 40).flat_map(|i| batch(i).bytes()).collect());
        log_dir(&dir, &(0..FEW as i64).map(segment).collect::<Vec<_>>());
        Ground::of(top, dir)
    }

    fn of(top: tempfile::TempDir, dir: PathBuf) -> Ground {
        let twin = dir.with_file_name("twin");
        trimtab_tests::kafka::copy(&dir, &twin).unwrap();
        run_well(&options(&twin, FIXTURE_NOW));
        let at = LogDirLane::of(&dir, "host", None).unwrap().unwrap();
        let bus = Arc::new(InProcess::new(BusOptions::default()));
        Ground { _top: top, dir, twin, at, bus, stop: CancellationToken::new() }
    }

    /// Starts a worker; its key.
    fn worker(&self, at: &LogDirLane) -> String {
        let signer = Signer::ephemeral();
        let key = signer.public_key();
        let parts = RecoveryParts {
            signer,
            at_once: Semaphore::new(2),
            clock: Clock::system(),
            instance: format!("worker-{}", &key[..8]),
            metrics: Arc::new(RecoveryMetrics::new()),
        };
        let worker = Arc::new(RecoveryWorker::new(at.clone(), Arc::new(parts)));
        let loop_options = LoopOptions { at_once: 2, ..LoopOptions::default() };
        let bus: Arc<dyn Bus> = self.bus.clone();
        tokio::spawn(worker::run(worker, bus, loop_options, Arc::new(Metrics::new()), self.stop.clone()));
        key
    }

    /// Recovers with `here` threads of this process, believing these keys: the report, and how many segments workers verified.
    async fn recover(
        &self,
        here: usize,
        trusted: impl IntoIterator<Item = String>,
        over: OverOptions,
    ) -> (RunReport, u64) {
        let over = OverBus {
            bus: self.bus.clone(),
            runtime: tokio::runtime::Handle::current(),
            lanes: vec![self.at.clone()],
            trusted: Trusted::new(trusted).unwrap(),
            instance: "finisher".to_owned(),
            clock: Clock::system(),
            options: over,
        };
        let segments = Arc::new(Segments::new(here, Some(over), Arc::new(RecoveryMetrics::new())));
        let listening = tokio::spawn(segments.clone().listen(self.stop.clone()));
        let options = Options { threads: here.max(1), ..options(&self.dir, FIXTURE_NOW) };
        let verifier = segments.clone();
        let run = move || recover_with(&options, &Stop::default(), &|_| (), verifier.as_ref()).unwrap();
        let report = tokio::task::spawn_blocking(run).await.unwrap();
        self.stop.cancel();
        listening.await.unwrap();
        (report, segments.elsewhere())
    }

    fn came_out_the_same(&self) {
        assert_eq!(differences(&self.twin, &self.dir), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_leave_what_one_process_leaves() {
    let ground = Ground::fixture(|_| ());
    let keys = [ground.worker(&ground.at), ground.worker(&ground.at)];
    // Nothing is verified by this process itself.
    let (report, elsewhere) = ground.recover(0, keys, all_over_the_bus()).await;
    assert_eq!((report.outcome, elsewhere), (Outcome::Recovered, SEGMENTS), "{:?}", report.errors);
    ground.came_out_the_same();
    let left = fs::read_dir(&ground.at.side).unwrap().count();
    assert_eq!(left as u64, SEGMENTS, "a side file for each, beside the log dir");
    ground.at.clean();
    assert!(!ground.at.side.exists());
}

/// Small segments stay here.
#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_large_enough_goes_over_the_bus() {
    let ground = Ground::fixture(|_| ());
    let keys = [ground.worker(&ground.at)];
    let over = OverOptions { min_bytes: 15_001, ..all_over_the_bus() };
    let (report, elsewhere) = ground.recover(0, keys, over).await;
    assert_eq!(report.outcome, Outcome::Recovered);
    assert!(elsewhere > 0 && elsewhere < SEGMENTS, "{elsewhere}");
    let side_files = fs::read_dir(&ground.at.side).unwrap().count();
    assert_eq!(side_files as u64, elsewhere);
    ground.came_out_the_same();
}

/// Threads of this process and workers share the work.
#[tokio::test(flavor = "multi_thread")]
async fn threads_here_and_workers_share_the_work() {
    // Who is quicker depends on the machine, so there are several tries.
    for _ in 0..20 {
        let ground = Ground::fixture(|_| ());
        let keys = [ground.worker(&ground.at), ground.worker(&ground.at)];
        let (report, elsewhere) = ground.recover(1, keys, all_over_the_bus()).await;
        assert_eq!(report.outcome, Outcome::Recovered);
        ground.came_out_the_same();
        if elsewhere > 0 && elsewhere < SEGMENTS {
            return;
        }
    }
    panic!("the work was never shared");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_workers_everything_is_done_here() {
    let ground = Ground::fixture(|_| ());
    let (report, elsewhere) = ground.recover(2, [], all_over_the_bus()).await;
    assert_eq!((report.outcome, elsewhere, report.threads), (Outcome::Recovered, 0, 2));
    ground.came_out_the_same();
    // What is still on offer is void for who comes later, and is not even begun.
    let on_offer = ground.bus.depth(Role::Recovery).await.unwrap();
    assert!(on_offer <= OverOptions::default().ahead as u64 * 24, "{on_offer}");
}

/// A worker that is not of this log dir's lane gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn workers_of_another_host_get_nothing() {
    let ground = Ground::fixture(|_| ());
    let other = LogDirLane::of(&ground.dir, "another host", None).unwrap().unwrap();
    let keys = [ground.worker(&other)];
    let (report, elsewhere) = ground.recover(1, keys, all_over_the_bus()).await;
    assert_eq!((report.outcome, elsewhere), (Outcome::Recovered, 0));
    ground.came_out_the_same();
}

/// Damages one segment in the middle: a batch no longer fits its checksum.
fn flip(dir: &Path) {
    let log = dir.join("lab-plain-0-0/00000000000000000217.log");
    let mut bytes = fs::read(&log).unwrap();
    bytes[12_000] ^= 4;
    fs::write(&log, bytes).unwrap();
}

/// Nothing is cut on a worker's word, true as it may be.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_segment_is_read_by_who_cuts_it() {
    let ground = Ground::fixture(flip);
    let keys = [ground.worker(&ground.at)];
    let (report, elsewhere) = ground.recover(0, keys, all_over_the_bus()).await;
    assert_eq!((report.outcome, elsewhere), (Outcome::Recovered, SEGMENTS - 1), "{:?}", report.errors);
    let cut: Vec<_> = report.dirs[0].partitions.iter().flat_map(|p| &p.cuts).collect();
    assert!(cut.len() == 1 && cut[0].segment == 217, "{cut:?}");
    ground.came_out_the_same();
}

/// A worker that does to each of its reports what a test wants.
struct Liar<F> {
    at: LogDirLane,
    signer: Signer,
    lie: F,
}

/// What a liar has in hand.
struct InHand<'a> {
    at: &'a LogDirLane,
    job: &'a RecoverySegment,
    report: RecoveryReport,
    found: SegmentReport,
}

impl InHand<'_> {
    /// Puts another side file in place of the true one, named with its true hash.
    fn side_file(&mut self, images: &[u8], report: &SegmentReport) {
        let mut bytes = images.to_vec();
        let json = serde_json::to_vec(report).unwrap();
        bytes.extend_from_slice(&json);
        bytes.extend_from_slice(&(json.len() as u32).to_be_bytes());
        bytes.extend_from_slice(b"ttrcvs01");
        let path = format!("{}-lie.images", self.job.id);
        fs::write(self.at.side.join(&path), &bytes).unwrap();
        let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        self.report.images = Some(SideFile { path, bytes: bytes.len() as u64, sha256 });
    }

    /// The true side file, whole.
    fn bytes(&self) -> Vec<u8> {
        fs::read(self.at.side.join(&self.report.images.as_ref().unwrap().path)).unwrap()
    }
}

impl<F: Fn(&mut InHand<'_>, &Signer) -> Option<Signer> + Send + Sync + 'static> Worker for Liar<F> {
    fn role(&self) -> Role {
        Role::Recovery
    }

    fn lane(&self) -> Option<&str> {
        Some(&self.at.lane)
    }

    fn handle<'a>(
        &'a self,
        _event: &'a Event,
        body: Body,
        out: &'a Out,
    ) -> futures::future::BoxFuture<'a, Result<(), worker::Failure>> {
        Box::pin(async move {
            let Body::RecoverySegment(job) = body else { panic!("{body:?}") };
            let control = Control::new(&Stop::default());
            let (found, images) = build(&self.at, &job, "true", &control).unwrap();
            let report = RecoveryReport {
                job: job.id,
                lane: job.lane.clone(),
                worker: "liar".to_owned(),
                state: RecoveryWork::Verified,
                bytes: control.bytes(),
                seen: Some(job.seen),
                found: Some(SegmentFound {
                    whole: true,
                    valid_bytes: found.valid_bytes,
                    next_offset: found.next_offset,
                    batches: found.batches,
                    records: found.records,
                }),
                images: Some(images),
                why: None,
            };
            let mut hand = InHand { at: &self.at, job: &job, report, found };
            let other = (self.lie)(&mut hand, &self.signer);
            let report = hand.report;
            let lane = report.lane.clone();
            let now = jiff::Timestamp::now();
            let id = uuid::Uuid::now_v7().to_string();
            let mut event = Event::new(id, "/trimtab/recovery/liar", &lane, now, Trace::default(), report)?;
            other.as_ref().unwrap_or(&self.signer).sign(&mut event).unwrap();
            out.emit(&event).await.map(|_| ())
        })
    }
}

/// Runs with a liar whose key is trusted; how many of its reports were used.
async fn with_liar(
    lie: impl Fn(&mut InHand<'_>, &Signer) -> Option<Signer> + Send + Sync + 'static,
    over: OverOptions,
) -> u64 {
    let ground = Ground::small();
    let signer = Signer::ephemeral();
    let key = signer.public_key();
    let liar = Arc::new(Liar { at: ground.at.clone(), signer, lie });
    let bus: Arc<dyn Bus> = ground.bus.clone();
    let options = LoopOptions { at_once: 4, ..LoopOptions::default() };
    tokio::spawn(worker::run(liar, bus, options, Arc::new(Metrics::new()), ground.stop.clone()));
    let (report, elsewhere) = ground.recover(0, [key], over).await;
    assert_eq!(report.outcome, Outcome::Recovered, "{:?}", report.errors);
    ground.came_out_the_same();
    elsewhere
}

#[tokio::test(flavor = "multi_thread")]
async fn the_liar_of_these_tests_is_believed_while_it_tells_the_truth() {
    assert_eq!(with_liar(|_, _| None, all_over_the_bus()).await, FEW);
    // The same by the way that makes side files by hand.
    let by_hand = |hand: &mut InHand<'_>, _: &Signer| {
        let (bytes, found) = (hand.bytes(), hand.found.clone());
        hand.side_file(&bytes, &found);
        None
    };
    assert_eq!(with_liar(by_hand, all_over_the_bus()).await, FEW);
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_that_do_not_fit_are_refused() {
    type Lie = fn(&mut InHand<'_>);
    let lies: &[(&str, Lie)] = &[
        ("it failed", |hand| {
            hand.report.state = RecoveryWork::Failed;
            hand.report.why = Some("no such disk".to_owned());
        }),
        ("another inode", |hand| hand.report.seen.as_mut().unwrap().inode += 1),
        ("another size", |hand| hand.report.seen.as_mut().unwrap().size -= 1),
        ("another time", |hand| hand.report.seen.as_mut().unwrap().modified_ns += 1),
        ("no file was seen", |hand| hand.report.seen = None),
        ("no side file", |hand| hand.report.images = None),
        ("another hash", |hand| hand.report.images.as_mut().unwrap().sha256 = "0".repeat(64)),
        ("another size of the side file", |hand| hand.report.images.as_mut().unwrap().bytes += 1),
        ("a side file that is not there", |hand| hand.report.images.as_mut().unwrap().path = "x.images".to_owned()),
        ("a side file elsewhere", |hand| {
            let images = hand.report.images.as_mut().unwrap();
            fs::copy(hand.at.side.join(&images.path), hand.at.side.join("../x.images")).unwrap();
            images.path = "../x.images".to_owned();
        }),
        ("a link to a side file", |hand| {
            let images = hand.report.images.as_mut().unwrap();
            let link = format!("{}-link.images", hand.job.id);
            let _ = fs::remove_file(hand.at.side.join(&link));
            std::os::unix::fs::symlink(&images.path, hand.at.side.join(&link)).unwrap();
            images.path = link;
        }),
        ("a side file that changed since", |hand| {
            let path = hand.at.side.join(&hand.report.images.as_ref().unwrap().path);
            let mut bytes = fs::read(&path).unwrap();
            bytes[0] ^= 1;
            fs::write(path, bytes).unwrap();
        }),
        ("a side file that is none", |hand| {
            let bytes = b"nothing of the kind, but long enough".to_vec();
            let path = format!("{}-none.images", hand.job.id);
            fs::write(hand.at.side.join(&path), &bytes).unwrap();
            let sha256 = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            hand.report.images = Some(SideFile { path, bytes: bytes.len() as u64, sha256 });
        }),
        ("damage where there is none", |hand| {
            let (bytes, mut found) = (hand.bytes(), hand.found.clone());
            found.end = trimtab_recovery::ScanEnd::Torn;
            found.valid_bytes = 0;
            hand.side_file(&bytes, &found);
        }),
        ("refused where nothing is wrong", |hand| {
            let (bytes, mut found) = (hand.bytes(), hand.found.clone());
            found.end = trimtab_recovery::ScanEnd::Refused { position: 0, why: "no".into(), hint: "no".into() };
            hand.side_file(&bytes, &found);
        }),
        ("whole, and bytes missing", |hand| {
            let (bytes, mut found) = (hand.bytes(), hand.found.clone());
            found.valid_bytes -= 1;
            hand.side_file(&bytes, &found);
        }),
        ("another segment", |hand| {
            let (bytes, mut found) = (hand.bytes(), hand.found.clone());
            found.base_offset += 1;
            hand.side_file(&bytes, &found);
        }),
        ("another file inside", |hand| {
            let (bytes, mut found) = (hand.bytes(), hand.found.clone());
            found.identity.inode += 1;
            hand.side_file(&bytes, &found);
        }),
        ("images that are not there", |hand| {
            let (bytes, mut found) = (hand.bytes(), hand.found.clone());
            let place = (bytes.len() as u64 + 10_000, 8);
            found.offset_index = trimtab_recovery::Image { length: 8, crc: 0, parts: vec![place] };
            hand.side_file(&bytes, &found);
        }),
        ("an index out of order", |hand| {
            let mut bytes = hand.bytes();
            let mut found = hand.found.clone();
            let at = bytes.len() as u64;
            let entries: Vec<u8> = [5_u32, 900, 4, 800].iter().flat_map(|n| n.to_be_bytes()).collect();
            let crc = crc32c(&entries);
            bytes.extend_from_slice(&entries);
            found.offset_index = trimtab_recovery::Image { length: 16, crc, parts: vec![(at, 16)] };
            hand.side_file(&bytes, &found);
        }),
        ("an index that points behind the segment", |hand| {
            let mut bytes = hand.bytes();
            let mut found = hand.found.clone();
            let at = bytes.len() as u64;
            let entries: Vec<u8> = [1_u32, u32::MAX].iter().flat_map(|n| n.to_be_bytes()).collect();
            let crc = crc32c(&entries);
            bytes.extend_from_slice(&entries);
            found.offset_index = trimtab_recovery::Image { length: 8, crc, parts: vec![(at, 8)] };
            hand.side_file(&bytes, &found);
        }),
        ("images longer than their parts", |hand| {
            let (bytes, mut found) = (hand.bytes(), hand.found.clone());
            found.producers.parts = vec![(0, 43); 50];
            hand.side_file(&bytes, &found);
        }),
    ];
    for (what, lie) in lies {
        let lie = *lie;
        let tell = move |hand: &mut InHand<'_>, _: &Signer| {
            lie(hand);
            None
        };
        assert_eq!(with_liar(tell, all_over_the_bus()).await, 0, "{what}");
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    reference::crc32c(bytes)
}

/// Whoever is not trusted is not heard at all: the segment waits as if nothing had been said, and is verified here in the end.
#[tokio::test(flavor = "multi_thread")]
async fn reports_of_others_and_about_other_jobs_are_passed_over() {
    let over = OverOptions { silence: Duration::from_millis(200), slots: 80, ahead: 80, ..all_over_the_bus() };
    let other_key = |_: &mut InHand<'_>, _: &Signer| Some(Signer::ephemeral());
    assert_eq!(with_liar(other_key, over.clone()).await, 0);
    let other_job = |hand: &mut InHand<'_>, _: &Signer| {
        hand.report.job = uuid::Uuid::now_v7();
        None
    };
    assert_eq!(with_liar(other_job, over).await, 0);
}

/// It says once that it is at work, and is not heard again.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_falls_silent_is_given_up() {
    let over = OverOptions { silence: Duration::from_millis(300), slots: 80, ahead: 80, ..all_over_the_bus() };
    let silent = |hand: &mut InHand<'_>, _: &Signer| {
        hand.report.state = RecoveryWork::Working;
        None
    };
    assert_eq!(with_liar(silent, over).await, 0);
}

/// Nobody takes the first offers before they are void; who comes then gets them again, and all that follows.
#[tokio::test(flavor = "multi_thread")]
async fn offers_that_became_void_are_made_again() {
    let ground = Ground::small();
    let signer = Signer::ephemeral();
    let parts = |signer| RecoveryParts {
        signer,
        at_once: Semaphore::new(1),
        clock: Clock::system(),
        instance: "late".to_owned(),
        metrics: Arc::new(RecoveryMetrics::new()),
    };
    let key = signer.public_key();
    let late = Arc::new(RecoveryWorker::new(ground.at.clone(), Arc::new(parts(signer))));
    let (bus, stop): (Arc<dyn Bus>, _) = (ground.bus.clone(), ground.stop.clone());
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        worker::run(late, bus, LoopOptions { at_once: 1, ..LoopOptions::default() }, Arc::new(Metrics::new()), stop)
            .await;
    });
    let over = OverOptions { ahead: 2, valid: Duration::from_millis(700), ..all_over_the_bus() };
    let (report, elsewhere) = ground.recover(0, [key], over).await;
    assert_eq!((report.outcome, elsewhere), (Outcome::Recovered, FEW), "{:?}", report.errors);
    ground.came_out_the_same();
}

/// What a worker is asked to read must be a segment of its log dir in the state that was meant, and wanted still.
#[tokio::test(flavor = "multi_thread")]
async fn workers_read_only_what_they_may() {
    let ground = Ground::small();
    let key = ground.worker(&ground.at);
    let path = ground.dir.join("t-0/00000000000000000040.log");
    let identity = trimtab_recovery::FileIdentity::read(&path).unwrap();
    let seen = trimtab_events::FileSeen {
        inode: identity.inode,
        size: identity.size,
        modified_ns: i64::try_from(identity.modified_ns).unwrap(),
    };
    let now_ms = Clock::system().now_ms();
    let good = RecoverySegment {
        id: uuid::Uuid::nil(),
        lane: ground.at.lane.clone(),
        folder: "t-0".to_owned(),
        file: "00000000000000000040.log".to_owned(),
        base_offset: 40,
        index_interval_bytes: 4096,
        segment_index_bytes: 10_485_760,
        seen,
        void_after_ms: now_ms + 60_000,
    };
    fs::write(ground.dir.parent().unwrap().join("00000000000000000000.log"), b"secret").unwrap();
    let other_time = trimtab_events::FileSeen { modified_ns: seen.modified_ns + 1, ..seen };
    let cases: [(&str, RecoverySegment, RecoveryWork); 6] = [
        ("good", good.clone(), RecoveryWork::Verified),
        (
            "void",
            RecoverySegment { void_after_ms: now_ms - 1, index_interval_bytes: 1, ..good.clone() },
            RecoveryWork::Void,
        ),
        ("another state", RecoverySegment { seen: other_time, ..good.clone() }, RecoveryWork::Failed),
        ("gone", RecoverySegment { folder: "t-9".into(), ..good.clone() }, RecoveryWork::Failed),
        (
            "outside",
            RecoverySegment {
                folder: "..".into(),
                file: "00000000000000000000.log".into(),
                base_offset: 0,
                ..good.clone()
            },
            RecoveryWork::Failed,
        ),
        ("no segment", RecoverySegment { file: "partition.metadata".into(), ..good.clone() }, RecoveryWork::Failed),
    ];
    for (what, mut job, says) in cases {
        job.id = job.id_of();
        let (id, lane, now) = (job.id, job.lane.clone(), jiff::Timestamp::now());
        let event = Event::new(id.to_string(), "/trimtab/test", &lane, now, Trace::default(), job).unwrap();
        ground.bus.publish(&event).await.unwrap();
        let trusted = Trusted::new([key.clone()]).unwrap();
        let said = loop {
            let taken =
                tokio::time::timeout(Duration::from_secs(20), ground.bus.take_lane(Role::Finisher, &lane)).await;
            let taken = taken.expect("in time").unwrap();
            let event = taken.event.as_ref().unwrap();
            trusted.check(event).unwrap();
            let Body::RecoveryReport(report) = event.body().unwrap() else { panic!("{event:?}") };
            taken.settle.done().await.unwrap();
            assert_eq!(report.job, id);
            if report.state != RecoveryWork::Working {
                assert_eq!(report.images.is_some(), report.state == RecoveryWork::Verified);
                break report.state;
            }
        };
        assert_eq!(said, says, "{what}");
    }
    // One whose id is not that of what it names is no job at all.
    let event =
        Event::new("x", "/trimtab/test", &good.lane.clone(), jiff::Timestamp::now(), Trace::default(), good).unwrap();
    ground.bus.publish(&event).await.unwrap();
    for _ in 0..100 {
        if !ground.bus.dead(1).await.unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(ground.bus.dead(1).await.unwrap()[0].why.contains("its id is not"));
    ground.stop.cancel();
    let beside: Vec<_> = fs::read_dir(&ground.at.side).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(beside.len(), 1, "{beside:?}");
}

/// A log dir that takes a while, over a real server, with processes.
struct Processes {
    _top: tempfile::TempDir,
    dir: PathBuf,
    twin: PathBuf,
    nats: NatsRig,
    keys: Vec<(String, String)>,
    folders: Vec<PathBuf>,
}

const PARTITIONS: usize = 8;

impl Processes {
    fn new() -> Processes {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("data");
        fs::create_dir(&dir).unwrap();
        large_log_dir(&dir, "t", PARTITIONS, 2, 20);
        let twin = top.path().join("twin");
        trimtab_tests::kafka::copy(&dir, &twin).unwrap();
        run_well(&options(&twin, FIXTURE_NOW));
        let folders: Vec<PathBuf> = ["finisher", "one", "two", "audit"].map(|name| top.path().join(name)).into();
        let keys = folders.iter().map(|folder| {
            fs::create_dir(folder).unwrap();
            let file = folder.join("seed").display().to_string();
            let public = binary::run(folder, &["keys", "new", &file]).exits(0).out.trim().to_owned();
            (file, public)
        });
        let keys = keys.collect();
        Processes { dir, twin, nats: NatsRig::single().unwrap(), keys, folders, _top: top }
    }

    fn worker(&self, number: usize, env: &[(&str, &str)]) -> Process {
        let dir = self.dir.display().to_string();
        let url = self.nats.url();
        let args = ["recovery", &dir, "--nats", &url, "--seed-file", &self.keys[number].0, "--threads", "1"];
        let mut process = binary::start("worker", &self.folders[number], &args, env).unwrap();
        let log = process.log().to_owned();
        let runs = || fs::read_to_string(&log).unwrap_or_default().contains("\"running\"");
        process.wait_until(Duration::from_secs(20), runs).unwrap();
        process
    }

    fn recover(&self, more: &[&str], env: &[(&str, &str)]) -> binary::Running {
        let (dir, url) = (self.dir.display().to_string(), self.nats.url());
        let (seed, one, two) = (&self.keys[0].0, &self.keys[1].1, &self.keys[2].1);
        let args = ["recover", &dir, "--threads", "1", "--now", "2026-11-29T00:00:00Z", "--nats", &url];
        let trust = ["--seed-file", seed, "--trust-worker", one, "--trust-worker", two];
        binary::begin(&self.folders[0], &[&args[..], &trust, more].concat(), env)
    }

    /// Segments that the server keeps for workers.
    fn offers(&self) -> u64 {
        let page = format!("{}/jsz?streams=true", self.nats.monitor(0));
        let page = trimtab_tests::http::once("GET", &page, None, None, Duration::from_secs(5)).unwrap().body;
        let page: serde_json::Value = serde_json::from_str(&page).unwrap();
        let streams = page["account_details"].as_array().into_iter().flatten();
        let mut streams = streams.flat_map(|account| account["stream_detail"].as_array().into_iter().flatten());
        streams
            .find(|stream| stream["name"] == "TT_JOB")
            .map_or(0, |stream| stream["state"]["messages"].as_u64().unwrap())
    }

    /// Waits until process `pid` has begun a segment.
    fn wait_for_work(&self, pid: u32) {
        let side = self.dir.with_file_name("data.trimtab-images");
        let begun = || {
            let lanes = fs::read_dir(&side).into_iter().flatten().flatten();
            let mut files = lanes.flat_map(|lane| fs::read_dir(lane.path()).into_iter().flatten().flatten());
            let unfinished = format!("-{pid}-");
            files.any(|f| {
                let name = f.file_name().to_string_lossy().into_owned();
                name.ends_with(".part") && name.contains(&unfinished)
            })
        };
        let started = std::time::Instant::now();
        while !begun() {
            assert!(started.elapsed() < Duration::from_secs(60), "process {pid} begins nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn came_out_the_same(&self) {
        assert_eq!(differences(&self.twin, &self.dir), Vec::<String>::new());
        assert!(!self.dir.with_file_name("data.trimtab-images").exists(), "nothing is left beside the log dir");
    }
}

/// Segments that workers verified, as `recover` says.
fn by_workers(ended: &binary::Ended) -> usize {
    let line = ended.out.lines().find(|line| line.ends_with("segments were verified by workers"));
    line.and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{ended:?}"))
}

#[test]
#[ignore = "needs nats-server"]
fn over_nats_with_two_workers_one_killed_in_the_middle() {
    let ground = Processes::new();
    let spans = trimtab_tests::otlp::Receiver::start().unwrap();
    let otlp = [("OTEL_EXPORTER_OTLP_ENDPOINT", spans.url())];
    let env: Vec<(&str, &str)> = otlp.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let url = ground.nats.url();
    let audit_args = ["audit", "run", "--nats", &url, "--trust-executor", &ground.keys[0].1, "--name", "one"];
    let mut audit = binary::start("audit", &ground.folders[3], &audit_args, &[]).unwrap();
    let mut first = ground.worker(1, &env);
    let mut second = ground.worker(2, &env);
    let http = Port::take().unwrap();
    let address = http.address();
    let running = ground.recover(&["--http", &address], &env);
    ground.wait_for_work(first.pid());
    first.kill9().unwrap();
    // While it goes on, it tells how far it is.
    let metrics = format!("http://{address}/metrics");
    let page = || trimtab_tests::http::once("GET", &metrics, None, None, Duration::from_secs(2)).unwrap().body;
    let names = ["done_bytes", "size_bytes", "segments_done", "partitions_all", "rate_bytes_per_second"];
    let told = |page: &str| names.iter().all(|name| page.contains(&format!("trimtab_recovery_{name}{{log_dir=")));
    let mut last = page();
    for _ in 0..40 {
        if told(&last) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        last = page();
    }
    assert!(told(&last), "{last}");
    let ended = running.wait().exits(0);
    assert!(by_workers(&ended) >= 1, "{ended:?}");
    ground.came_out_the_same();

    // The record has every partition and the log dir.
    let state = &ground.folders[3];
    let recoveries = || {
        let listed = binary::run(state, &["audit", "list", "--output", "json"]);
        let lines = listed.out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line["verdict"] == "recover").collect::<Vec<_>>()
    };
    audit.wait_until(Duration::from_secs(20), || recoveries().len() == PARTITIONS + 1).unwrap();
    let all = recoveries();
    assert!(all.iter().all(|line| line["status"] == "recovered"), "{all:#?}");
    assert!(audit.stop().unwrap().success());
    assert!(second.stop().unwrap().success());

    // One trace for each partition, over all processes.
    let mut elsewhere = 0;
    for recovery in all.iter().filter(|line| line["subject"].as_str().unwrap().contains("/t-")) {
        let trace = spans.trace(recovery["trace_id"].as_str().unwrap());
        let names: Vec<&str> = trace.iter().map(|span| span.name.as_str()).collect();
        for name in ["recover partition", "verify segment", "fold", "repair"] {
            assert!(names.contains(&name), "{recovery}: {names:?}");
        }
        assert_eq!(names.iter().filter(|name| **name == "recover partition").count(), 1);
        let read: Vec<_> = trace.iter().filter(|span| span.name == "read segment").collect();
        assert!(read.iter().all(|span| span.role == "recovery"));
        elsewhere += read.len();
    }
    assert!(elsewhere >= by_workers(&ended) - 1, "{elsewhere}");
}

#[test]
#[ignore = "needs nats-server"]
fn workers_join_in_the_middle_and_leave_in_order() {
    let ground = Processes::new();
    let mut running = ground.recover(&[], &[]);
    // It has begun without any, and offers segments. However quick the disk is, there is time for a worker to come.
    while ground.offers() == 0 {
        assert!(running.runs(), "{:?}", running.wait());
        std::thread::sleep(Duration::from_millis(1));
    }
    running.freeze();
    let mut worker = ground.worker(1, &[]);
    ground.wait_for_work(worker.pid());
    // Told to stop, a worker finishes what it has in hand.
    assert!(worker.stop().unwrap().success());
    running.thaw();
    let ended = running.wait().exits(0);
    assert!(by_workers(&ended) >= 1, "{ended:?}");
    ground.came_out_the_same();
}

#[test]
#[ignore = "needs nats-server"]
fn nats_dies_in_the_middle_and_everything_is_done_here() {
    let mut ground = Processes::new();
    let worker = ground.worker(1, &[]);
    let running = ground.recover(&[], &[]);
    ground.wait_for_work(worker.pid());
    ground.nats.kill9(0).unwrap();
    let ended = running.wait().exits(0);
    assert!(ended.err.contains("what came of the recovery was not told to the audit"), "{ended:?}");
    assert_eq!(differences(&ground.twin, &ground.dir), Vec::<String>::new());
}

#[test]
#[ignore = "needs nats-server"]
fn without_nats_a_broker_is_recovered_all_the_same() {
    let mut ground = Processes::new();
    ground.nats.kill9(0).unwrap();
    let ended = ground.recover(&[], &[]).wait().exits(0);
    assert!(ended.err.contains("recovering without workers"), "{ended:?}");
    ground.came_out_the_same();
}
