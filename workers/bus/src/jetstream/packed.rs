//! Pages of candidates travel packed: they repeat themselves, and every byte is copied a dozen times on its way through a server.
//! A packed message has the header `Content-Encoding: snappy` and holds one block of that format, as in Prometheus' remote write.
//! Everything else, and every dead letter, stays readable with the tools of NATS. Readers take both.

use std::cell::RefCell;

use bytes::Bytes;
use trimtab_events::{Event, Invalid, MAX_EVENT_BYTES};

use crate::Role;

/// The header that names the encoding.
pub(super) const ENCODING: &str = "Content-Encoding";
/// The only encoding there is.
pub(super) const SNAPPY: &str = "snappy";
/// Below it there is little to win.
const PACK_FROM: usize = 4 * 1024;

/// What packing and unpacking need, kept: buffers of this size cost an allocator more than what is done in them. Each has at most
/// the size of the largest event or little more.
struct Desk {
    encoder: snap::raw::Encoder,
    text: Vec<u8>,
    packed: Vec<u8>,
}

thread_local! {
    static DESK: RefCell<Desk> =
        RefCell::new(Desk { encoder: snap::raw::Encoder::new(), text: Vec::new(), packed: Vec::new() });
}

/// The event as it travels, and how it is encoded if it is.
///
/// # Errors
/// When it is too large.
pub(super) fn pack(role: Role, event: &Event) -> Result<(Bytes, Option<&'static str>), Invalid> {
    DESK.with_borrow_mut(|Desk { encoder, text, packed }| {
        text.clear();
        event.write(text)?;
        if role == Role::Decider && text.len() >= PACK_FROM {
            let most = snap::raw::max_compress_len(text.len());
            if packed.len() < most {
                packed.resize(most, 0);
            }
            match encoder.compress(text, packed) {
                Ok(length) if length < text.len() => {
                    return Ok((Bytes::copy_from_slice(&packed[..length]), Some(SNAPPY)));
                }
                // What does not get smaller travels as it is.
                Ok(_) | Err(_) => {}
            }
        }
        Ok((Bytes::copy_from_slice(text), None))
    })
}

/// Hands the bytes as they were to `read`, or says why they cannot be had. They are never more than an event may have: what claims
/// to be more is not unpacked at all.
pub(super) fn unpack<T>(encoding: Option<&str>, payload: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<T, String> {
    match encoding {
        None => return Ok(read(payload)),
        Some(SNAPPY) => {}
        Some(other) => return Err(format!("its {ENCODING} is {other:?}, known is {SNAPPY}")),
    }
    let broken = |e: snap::Error| format!("its {ENCODING} is {SNAPPY}, and it cannot be unpacked: {e}");
    let length = snap::raw::decompress_len(payload).map_err(broken)?;
    if length > MAX_EVENT_BYTES {
        return Err(format!("unpacked it would have {length} bytes, more than an event may have ({MAX_EVENT_BYTES})"));
    }
    DESK.with_borrow_mut(|Desk { text, .. }| {
        if text.len() < length {
            text.resize(length, 0);
        }
        let length = snap::raw::Decoder::new().decompress(payload, text).map_err(broken)?;
        Ok(read(&text[..length]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::event;

    fn event_of(role: Role, data: &str) -> Event {
        let data = serde_json::value::RawValue::from_string(data.to_owned()).expect("JSON");
        Event { data: data.into(), ..event(role, "1", "x") }
    }

    #[test]
    fn what_was_packed_is_unpacked() {
        let data = format!("[{}{{}}]", r#"{"a candidate":1},"#.repeat(1_000));
        let page = event_of(Role::Decider, &data);
        let text = page.to_bytes().expect("small");
        let (packed, encoding) = pack(Role::Decider, &page).expect("small");
        assert!(packed.len() < text.len() / 10);
        assert_eq!(unpack(encoding, &packed, <[u8]>::to_vec), Ok(text));
        for (role, data) in [(Role::Executor, &*data), (Role::Decider, "{}")] {
            let event = event_of(role, data);
            let (same, encoding) = pack(role, &event).expect("small");
            assert_eq!((same.to_vec(), encoding), (event.to_bytes().expect("small"), None));
            assert_eq!(unpack(encoding, &same, <[u8]>::to_vec), Ok(same.to_vec()));
        }
    }

    #[test]
    fn what_cannot_be_unpacked_is_refused() {
        let packed = snap::raw::Encoder::new().compress_vec(&[7; 10_000]).expect("small");
        assert!(unpack(Some("gzip"), &packed, |_| ()).is_err());
        for end in 0..packed.len() {
            assert!(unpack(Some(SNAPPY), &packed[..end], |_| ()).is_err(), "cut at {end}");
        }
        let much = snap::raw::Encoder::new().compress_vec(&vec![7; MAX_EVENT_BYTES + 1]).expect("small");
        let why = unpack(Some(SNAPPY), &much, |_| ()).expect_err("too much");
        assert!(why.contains("more than an event may have"), "{why}");
        // What was there before does not show through.
        let short = snap::raw::Encoder::new().compress_vec(b"{}").expect("small");
        assert_eq!(unpack(Some(SNAPPY), &short, <[u8]>::to_vec), Ok(b"{}".to_vec()));
    }
}
