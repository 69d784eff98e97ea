//! Any bytes as a segment: verification never panics and never claims a byte that is not there.
//!
//! Checksums are mended first, or hardly any batch would get past them.
#![no_main]

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trimtab_recovery::{Control, FileSpool, SegmentJob, Spool, Stop, verify_segment};

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let folder = folder.join(format!("trimtab-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
});

/// CRC-32C, as the batches of magic 2 carry it.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| (c >> 1) ^ (0x82F6_3B78 & (c & 1).wrapping_neg()))
    };
    !bytes.iter().fold(!0, step)
}

fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 61 <= bytes.len() {
        let length = u32::from_be_bytes([bytes[at + 8], bytes[at + 9], bytes[at + 10], bytes[at + 11]]) as usize;
        let Some(end) = at.checked_add(12).and_then(|n| n.checked_add(length)).filter(|end| *end <= bytes.len()) else {
            return;
        };
        if bytes[at + 16] == 2 && length >= 49 {
            let crc = crc32c(&bytes[at + 21..end]).to_be_bytes();
            bytes[at + 17..at + 21].copy_from_slice(&crc);
        }
        at = end;
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&flags, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    if flags & 1 == 0 {
        mend(&mut bytes);
    }
    let path = FOLDER.join("00000000000000000000.log");
    std::fs::write(&path, &bytes).expect("written");
    let spool = FileSpool::create(&FOLDER.join("spool")).expect("a spool");
    let job =
        SegmentJob { path, base_offset: 0, index_interval_bytes: i32::from(flags), segment_index_bytes: 10_485_760 };
    let report =
        verify_segment(&job, &spool, &Control::new(&Stop::default())).expect("damage is a result, not an error");
    assert!(report.valid_bytes <= bytes.len() as u64);
    let spooled = std::fs::metadata(spool.path()).expect("a spool").size();
    assert!(spooled <= 16 * bytes.len() as u64 + 1024, "{spooled} bytes of results for {}", bytes.len());
});
