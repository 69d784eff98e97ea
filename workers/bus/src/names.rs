//! Which names and values a store takes, checked the same way by both implementations.

use base64::Engine as _;

use trimtab_events::Event;

use crate::{BusError, DeadLetter, Malformed, Result, Role};

/// No document is larger.
pub const MAX_VALUE_BYTES: usize = 512 * 1024;

/// Longest bucket name and longest key: both become part of a subject.
const MAX_NAME_BYTES: usize = 512;

fn plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn refused(what: String, why: &str) -> BusError {
    BusError::Refused { what, why: why.to_owned() }
}

/// Whether it may be a token of a subject.
pub(crate) fn is_token(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(plain)
}

/// A bucket is of `[A-Za-z0-9_-]`.
pub(crate) fn bucket(bucket: &str) -> Result<()> {
    if bucket == "lease" {
        return Err(refused("use bucket lease".to_owned(), "it is that of the leases; give the bucket another name"));
    }
    if !is_token(bucket) {
        return Err(refused(
            format!("use bucket {bucket:?}"),
            "a bucket's name has 1 to 512 of the characters A-Z a-z 0-9 _ -",
        ));
    }
    Ok(())
}

/// A key is of the same characters, and `.` and `/` between non-empty parts.
pub(crate) fn key(bucket: &str, key: &str) -> Result<()> {
    let whole = !key.is_empty() && key.len() <= MAX_NAME_BYTES;
    if !whole || !key.split(['.', '/']).all(|part| !part.is_empty() && part.bytes().all(plain)) {
        return Err(refused(
            format!("use key {key:?} of bucket {bucket}"),
            "a key has 1 to 512 characters, in non-empty parts of A-Z a-z 0-9 _ - with '.' or '/' between them",
        ));
    }
    Ok(())
}

/// A prefix may end anywhere inside a key.
pub(crate) fn prefix(bucket: &str, prefix: &str) -> Result<()> {
    if prefix.len() > MAX_NAME_BYTES || !prefix.bytes().all(|b| plain(b) || b == b'.' || b == b'/') {
        return Err(refused(
            format!("list keys of bucket {bucket} with prefix {prefix:?}"),
            "a prefix has at most 512 of the characters A-Z a-z 0-9 _ - . /",
        ));
    }
    Ok(())
}

/// A value has a limit.
pub(crate) fn value(bucket: &str, key: &str, value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE_BYTES {
        let why = format!("the value has {} bytes, more than a document may have ({MAX_VALUE_BYTES})", value.len());
        return Err(BusError::Refused { what: format!("write document {bucket}/{key}"), why });
    }
    Ok(())
}

/// A lease's name is a key; whoever holds it has a name, too.
pub(crate) fn lease(name: &str, holder: &str) -> Result<()> {
    key("lease", name)?;
    if holder.is_empty() || holder.len() > MAX_NAME_BYTES {
        return Err(refused(format!("take lease {name}"), "a holder's name has 1 to 512 bytes"));
    }
    Ok(())
}

/// Whether a role has lanes must agree with how it is asked.
pub(crate) fn shared(role: Role) -> Result<()> {
    if Role::LANED.contains(&role) {
        return Err(refused(format!("take for {}", role.name()), "its events are taken lane by lane"));
    }
    Ok(())
}

/// A lane is a token, of a role that has lanes.
pub(crate) fn lane(role: Role, lane: &str) -> Result<()> {
    if !Role::LANED.contains(&role) || !is_token(lane) {
        return Err(refused(
            format!("take for {} of lane {lane:?}", role.name()),
            "the role has no lanes, or the lane is not 1 to 512 of the characters A-Z a-z 0-9 _ -",
        ));
    }
    Ok(())
}

/// The role whose queue an event goes to, if every part of it that becomes part of a subject is fit for that.
pub(crate) fn role_of(event: &Event) -> Result<Role> {
    let unfit = |why| BusError::Unfit { id: event.id.clone(), why };
    let role = Role::of(event).ok_or_else(|| {
        unfit(format!("type {:?} belongs to no queue; known are those of trimtab_events", event.kind))
    })?;
    for (name, value) in [("target", &event.target), ("action", &event.action), ("key", &event.key)] {
        if !is_token(value) {
            let why = format!("its {name} {value:?} is not 1 to 512 of the characters A-Z a-z 0-9 _ -");
            return Err(unfit(why));
        }
    }
    // Ids become headers and are remembered.
    if event.id.is_empty() || event.id.len() > MAX_NAME_BYTES || !event.id.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(unfit("its id is not 1 to 512 printable ASCII characters without spaces".to_owned()));
    }
    Ok(role)
}

/// What a dead letter shows of bytes that may or may not be an event: themselves, or base64.
pub(crate) fn letter_text(bytes: &[u8]) -> String {
    // Reading the envelope alone would not show that the rest is no JSON.
    let is_event = Event::from_bytes(bytes).is_ok() && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok();
    match std::str::from_utf8(bytes) {
        Ok(text) if is_event => text.to_owned(),
        _ => base64::engine::general_purpose::STANDARD.encode(bytes),
    }
}

/// Reads bytes as an event, or says why they are none.
pub(crate) fn read_event(bytes: &[u8]) -> std::result::Result<Event, Malformed> {
    Event::from_bytes(bytes).map_err(|e| Malformed { bytes: bytes.to_vec(), why: e.to_string() })
}

/// Why the bus itself gave an event up.
pub(crate) fn worn_out(tries: u64) -> String {
    format!(
        "delivered {tries} times without being settled: its workers die or take longer than the acknowledgement time"
    )
}

/// What a letter holds, if it is an event.
pub(crate) fn event_of(letter: &DeadLetter) -> Result<Event> {
    Event::from_bytes(letter.event.as_bytes()).map_err(|e| BusError::Unfit {
        id: format!("of dead letter {}", letter.id),
        why: format!("what was given up is no event: {e}"),
    })
}

/// The letter about an event given up now. Its id is given by who keeps it.
pub(crate) fn letter(role: &str, why: String, tries: u64, event: String) -> DeadLetter {
    DeadLetter { id: String::new(), role: role.to_owned(), why, tries, at_ms: crate::wall_clock_ms(), event }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parts_with_separators_between_them() {
        for good in ["a", "a.b", "a/b", "a-b_c/d.e/0", "A"] {
            assert!(key("b", good).is_ok(), "{good}");
        }
        for bad in ["", "/", "a/", "/a", "a//b", "a..b", "a b", "a*", "a>", "ä", "a\0", "a=b", "a\n"] {
            assert!(key("b", bad).is_err(), "{bad}");
        }
        assert!(key("b", &"a".repeat(513)).is_err());
        assert!(
            bucket("a.b").is_err()
                && bucket("").is_err()
                && bucket("a/b").is_err()
                && bucket("lease").is_err()
                && bucket("a-b_1").is_ok()
        );
        assert!(prefix("b", "a/").is_ok() && prefix("b", "").is_ok() && prefix("b", ">").is_err());
    }
}
