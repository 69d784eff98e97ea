//! A short run of every fuzz target on the stable compiler: kept seeds, mutated. The long runs, which are guided by coverage, are those
//! of `cargo fuzz` (`docs/benchmarks-recovery.md`); this one is here so that no change breaks a target or what it promises unseen.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

// The targets name the crate that `cargo fuzz` links; here it is this one, and a target is a function.
extern crate self as libfuzzer_sys;

#[path = "../fuzz/fuzz_targets/event.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod event;
#[path = "../fuzz/fuzz_targets/hedwig_frames.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod hedwig_frames;
#[path = "../fuzz/fuzz_targets/hedwig_znodes.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod hedwig_znodes;
#[path = "../fuzz/fuzz_targets/jetstream_answers.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod jetstream_answers;
#[path = "../fuzz/fuzz_targets/ledger_references.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod ledger_references;
#[path = "../fuzz/fuzz_targets/pulsar_metadata.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod pulsar_metadata;
#[path = "../fuzz/fuzz_targets/pulsar_wire.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod pulsar_wire;
#[path = "../fuzz/fuzz_targets/recovery_log_dir.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod recovery_log_dir;
#[path = "../fuzz/fuzz_targets/recovery_segment.rs"]
#[expect(unused_attributes, reason = "`no_main` is for the linker of a fuzz target")]
mod recovery_segment;

// Behind the targets, so that they come to it by the name that they use.
#[macro_export]
macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:block) => {
        pub(crate) fn target($data: &[u8]) $body
    };
}

/// Longer inputs cost time and find nothing that shorter ones do not.
const LONGEST: usize = 16 * 1024;

/// One change of an input.
#[derive(Debug, Clone)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    /// A number of four bytes, as lengths and counts are.
    Number(Index, u32),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Cut(Index),
    /// Goes on as another seed does.
    Splice(Index, Index, Index),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<Index>;
    let number = prop_oneof![Just(0), Just(1), Just(u32::MAX), Just(1 << 31), Just(i32::MAX as u32), any::<u32>()];
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        (at(), number).prop_map(|(at, number)| Change::Number(at, number)),
        (at(), vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), 1..64_usize).prop_map(|(at, count)| Change::Remove(at, count)),
        (at(), 1..256_usize).prop_map(|(at, count)| Change::Repeat(at, count)),
        at().prop_map(Change::Cut),
        (at(), at(), at()).prop_map(|(at, seed, from)| Change::Splice(at, seed, from)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change, seeds: &[Vec<u8>]) {
    let end = bytes.len();
    let place = |at: &Index| at.index(end + 1);
    match change {
        Change::Set(at, byte) => {
            if let Some(old) = bytes.get_mut(place(at)) {
                *old = *byte;
            }
        }
        Change::Flip(at, bit) => {
            if let Some(old) = bytes.get_mut(place(at)) {
                *old ^= 1 << bit;
            }
        }
        Change::Number(at, number) => {
            if let Some(old) = bytes[place(at)..].first_chunk_mut() {
                *old = number.to_be_bytes();
            }
        }
        Change::Insert(at, new) => drop(bytes.splice(place(at)..place(at), new.iter().copied())),
        Change::Remove(at, count) => drop(bytes.drain(place(at)..(place(at) + count).min(end))),
        Change::Repeat(at, count) => bytes.extend_from_within(place(at)..(place(at) + count).min(end)),
        Change::Cut(at) => bytes.truncate(place(at)),
        Change::Splice(at, seed, from) => {
            let other = seed.get(seeds);
            bytes.truncate(place(at));
            bytes.extend_from_slice(&other[from.index(other.len() + 1)..]);
        }
    }
    bytes.truncate(LONGEST);
}

/// Every seed as it is, then `cases` changed ones.
fn run(seeds: &[Vec<u8>], cases: u32, target: fn(&[u8])) {
    assert!(!seeds.is_empty());
    for seed in seeds {
        target(&seed[..seed.len().min(LONGEST)]);
    }
    let input = (any::<Index>(), vec(change(), 1..6));
    // The same inputs each time, unless told otherwise: what another finds is for who looks for it.
    let number: u64 = std::env::var("FUZZ_SEED").map_or(0, |text| text.parse().unwrap());
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let cases = cases * std::env::var("FUZZ_TIMES").map_or(1, |text| text.parse().unwrap());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
        .run(&input, |(seed, changes)| {
            let mut bytes = seed.get(seeds).clone();
            for change in &changes {
                apply(&mut bytes, change, seeds);
            }
            target(&bytes);
            Ok(())
        })
        .unwrap();
}

fn kept(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Values of a real cluster's nodes.
fn values(fixture: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(fixture);
    let mut text = String::new();
    let file = fs::File::open(path).unwrap();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(file), &mut text).unwrap();
    let value = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        STANDARD.decode(line["data"].as_str().unwrap_or_default()).unwrap()
    };
    text.lines().map(value).filter(|value| !value.is_empty()).collect()
}

/// Folders that the targets make by themselves.
struct Folder(&'static str);

impl Drop for Folder {
    fn drop(&mut self) {
        let memory = PathBuf::from("/dev/shm");
        let top = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let _ = fs::remove_dir_all(top.join(format!("{}-{}", self.0, std::process::id())));
    }
}

#[test]
fn events() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/examples");
    let folders = fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    run(&seeds, 10_000, event::target);
}

#[test]
fn segments() {
    let _folder = Folder("trimtab-fuzz");
    run(&kept("recovery_segment"), 15_000, recovery_segment::target);
}

#[test]
fn log_dirs() {
    let _folder = Folder("trimtab-fuzz-dir");
    run(&kept("recovery_log_dir"), 4_000, recovery_log_dir::target);
}

#[test]
fn frames_of_hubs() {
    run(&kept("hedwig_frames"), 40_000, hedwig_frames::target);
}

#[test]
fn nodes_of_hubs() {
    run(&kept("hedwig_znodes"), 40_000, hedwig_znodes::target);
}

#[test]
fn answers_of_nats_servers() {
    run(&kept("jetstream_answers"), 3_000, jetstream_answers::target);
}

#[test]
fn nodes_of_pulsar() {
    let all = values("pulsar/metadata-small.jsonl.gz");
    // The first byte says where the list ends and the cursor begins.
    let seeds = all.into_iter().map(|value| [&[u8::try_from(value.len()).unwrap_or(u8::MAX)], &value[..]].concat());
    run(&seeds.collect::<Vec<_>>(), 40_000, pulsar_metadata::target);
}

#[test]
fn names_of_ledgers() {
    let mut seeds = values("pulsar/metadata-small.jsonl.gz");
    // What the captured cluster does not have: a segment of a DistributedLog, what its allocator set aside, ledgers of older formats.
    seeds.extend([&b"4294967298;17;1;20;1;1;3;0"[..], b"17"].map(<[u8]>::to_vec));
    let marks = "customMetadata {\n  key: \"application\"\n  value: \"pulsar\"\n}\n";
    seeds.extend(
        [
            format!("2\nquorumSize: 1\nlength: 7\nlastEntryId: 0\nstate: CLOSED\nsegment {{\n  firstEntryId: 0\n}}\nctime: 7\n{marks}"),
            "1\n1\n1\n7\n0\t127.0.0.1:3181\n9\tCLOSED".to_owned(),
        ]
        .map(|text| format!("BookieMetadataFormatVersion\t{text}").into_bytes()),
    );
    // Marks alone.
    for more in [
        "component=managed-ledger\npulsar/managed-ledger=t/n/persistent/x+y\npulsar/cursor=a b/c",
        "component=managed-ledger\npulsar/managed-ledger=p/c/n/persistent/x",
        "component=schema\npulsar/schemaId=t/n/x",
        "component=compacted-ledger\npulsar/compactedTopic=persistent://t/n/x y\npulsar/compactedTo=1",
        "component=delayed-index-bucket\npulsar/delayedIndexBucketKey=k\npulsar/delayedIndexTopic=persistent://t/n/x\n\
         pulsar/delayedIndexCursor=s",
    ] {
        seeds.push(format!("application=pulsar\n{more}").into_bytes());
    }
    seeds.extend(kept("hedwig_znodes"));
    run(&seeds, 40_000, ledger_references::target);
}

#[test]
fn frames_of_brokers() {
    // The first byte says that the lengths are to be mended. A ping; a success; an error with a text; a message with 3 bytes behind.
    let commands: [&[u8]; 4] = [
        b"\x00________\x08\x12\x92\x01\x00",
        b"\x00________\x08\x0d\x6a\x02\x08\x07",
        b"\x00________\x08\x0e\x72\x09\x08\x07\x10\x01\x1a\x03why",
        b"\x02________\x08\x09\x4a\x08\x08\x01\x12\x04\x08\x05\x10\x06abc",
    ];
    run(&commands.map(<[u8]>::to_vec), 40_000, pulsar_wire::target);
}
