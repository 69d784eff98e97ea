//! Any bytes from a broker: frames come off or are an error, never a panic, and what was decoded is the same command again.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use trimtab_targets::pulsar::wire::{Frame, MAX_FRAME, encode};

fuzz_target!(|data: &[u8]| {
    let Some((&flags, rest)) = data.split_first() else { return };
    let mut received = BytesMut::from(rest);
    // Lengths that fit, or hardly any frame would get past them.
    if flags & 1 == 0 && received.len() >= 8 {
        let length = u32::try_from(received.len()).expect("a short input");
        received[..4].copy_from_slice(&(length - 4).to_be_bytes());
        let command = u32::from(flags >> 1).min(length - 8);
        let command = if flags & 2 == 0 { length - 8 } else { command };
        received[4..8].copy_from_slice(&command.to_be_bytes());
    }
    loop {
        let before = received.len();
        match Frame::take(&mut received) {
            Ok(Some(frame)) => {
                assert!(received.len() + frame.rest.len() < before && before - received.len() <= MAX_FRAME + 4);
                let mut encoded = BytesMut::new();
                encode(&frame.command, &mut encoded).expect("it was a frame");
                let again = Frame::take(&mut encoded).expect("what we write can be read").expect("all of it");
                assert_eq!(again.command, frame.command);
                assert!(again.rest.is_empty() && encoded.is_empty());
            }
            Ok(None) | Err(_) => break,
        }
    }
});
