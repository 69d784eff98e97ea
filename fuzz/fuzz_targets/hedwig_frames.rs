//! Any bytes as what a hub sends, arriving in any pieces: reading never panics, holds no more than a frame, and does not depend on the
//! pieces.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use trimtab_targets::hedwig::wire::{Garbled, Incoming, incoming, take_frame};

const LIMIT: usize = 64 * 1024;

/// Everything that is read until something is wrong, and what is wrong.
fn read(pieces: &mut dyn Iterator<Item = &[u8]>) -> (Vec<Result<Incoming, Garbled>>, Option<Garbled>) {
    let (mut received, mut all) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        received.extend_from_slice(piece);
        loop {
            match take_frame(&mut received, LIMIT) {
                Ok(Some(frame)) => all.push(incoming(&frame)),
                Ok(None) => break,
                Err(e) => return (all, Some(e)),
            }
        }
        assert!(received.len() < LIMIT + 4 && received.capacity() <= 4 * (LIMIT + 4) + 2 * piece.len());
    }
    (all, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&size, rest)) = data.split_first() else { return };
    let whole = read(&mut [rest].into_iter());
    let pieces = read(&mut rest.chunks(usize::from(size).max(1)));
    assert_eq!(whole, pieces);
    // A frame's content by itself, so that not every input needs a length that fits.
    let _ = incoming(&Bytes::copy_from_slice(rest));
});
