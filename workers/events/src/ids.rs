//! Deterministic identifiers.

use sha2::{Digest, Sha256};
use uuid::Uuid;

/// How many shards keys are spread over. Fixed for ever: it is part of subjects and of stored state, so it never follows
/// the number of workers.
pub const SHARDS: u32 = 64;

/// The name space of all our version 5 ids.
const NAMESPACE: Uuid = Uuid::from_u128(0x7472_696d_7461_6200_8000_6c65_6467_6572);

fn v5(parts: &[&str]) -> Uuid {
    // 0x1f cannot occur in any part, so no two lists of parts give the same text.
    Uuid::new_v5(&NAMESPACE, parts.join("\u{1f}").as_bytes())
}

/// The id of a decision: the same resource in the same metadata version under the same policy with the same verdict has
/// the same id, so a redelivery or a second scanner adds nothing.
pub fn decision_id(target: &str, subject: &str, seen: &crate::Seen, policy: &str, verdict: crate::Verdict) -> Uuid {
    let version = format!("{}.{}.{}", seen.created_zxid, seen.modified_zxid, seen.version);
    v5(&["decision", target, subject, &version, policy, verdict.name()])
}

/// The id of an event that is not a decision: its kind and whatever makes it unique.
pub fn event_id(kind: &str, parts: &[&str]) -> Uuid {
    let mut all = vec![kind];
    all.extend_from_slice(parts);
    v5(&all)
}

/// A name of fixed length for a resource, usable as a token of a subject: 32 hexadecimal digits of SHA-256 over the target
/// and the resource's canonical name.
pub fn key_of(target: &str, subject: &str) -> String {
    digits_of(target, subject).map(char::from).iter().collect()
}

/// The digits of [`key_of`].
pub(crate) fn digits_of(target: &str, subject: &str) -> [u8; 32] {
    let hash = Sha256::new().chain_update(target).chain_update([0]).chain_update(subject).finalize();
    std::array::from_fn(|at| {
        let byte = hash[at / 2];
        b"0123456789abcdef"[usize::from(if at % 2 == 0 { byte >> 4 } else { byte & 15 })]
    })
}

/// The shard of a key made by [`key_of`], or of any other text.
pub fn shard_of(key: &str) -> u32 {
    let hash = Sha256::digest(key);
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]) % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_fixed_in_length_and_differ_by_target() {
        let a = key_of("a", "persistent://t/n/x");
        assert_eq!(a.len(), 32);
        let hash = Sha256::digest(b"a\0persistent://t/n/x");
        assert_eq!(a, hash[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        assert_ne!(a, key_of("b", "persistent://t/n/x"));
        assert!(shard_of(&a) < SHARDS);
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(event_id("k", &["ab", "c"]), event_id("k", &["a", "bc"]));
    }
}
