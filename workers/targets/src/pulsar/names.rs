//! Names: one canonical form for every topic, and where its metadata lies. Unknown forms are recognised as such and kept.

use trimtab_events::TopicClass;

const PARTITION: &str = "-partition-";
const SYSTEM: [&str; 4] = [
    "__change_events",
    "__transaction_buffer_snapshot",
    "__transaction_buffer_snapshot_segments",
    "__transaction_buffer_snapshot_indexes",
];

/// A topic's name, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicName {
    /// `tenant/namespace` (`property/cluster/namespace` before Pulsar 2.0).
    pub namespace: String,
    /// Local name, decoded.
    pub local: String,
    /// Number of the partition.
    pub partition: Option<u32>,
    /// Whose topic it is.
    pub class: TopicClass,
}

impl TopicName {
    /// From the node's path below `/managed-ledgers/`: `tenant/namespace/persistent/encoded-name`.
    pub fn of_managed_ledger(path: &str) -> Option<TopicName> {
        let mut parts = [""; 5];
        let mut count = 0;
        for part in path.split('/') {
            *parts.get_mut(count)? = part;
            count += 1;
        }
        let parts = &parts[..count];
        let domain = parts.iter().position(|part| *part == "persistent")?;
        if !(domain == 2 || domain == 3) || parts.len() != domain + 2 || parts.iter().any(|part| part.is_empty()) {
            return None;
        }
        let encoded = parts[domain + 1];
        let namespace = path[..path.len() - encoded.len() - "/persistent/".len()].to_owned();
        if encoded.bytes().all(stays) {
            return Some(TopicName::of_parts(namespace, encoded.to_owned()));
        }
        // Two spellings of one name would be two topics to us and one to the broker.
        let Some(local) = decode(encoded).filter(|local| encode(local) == encoded) else {
            return Some(TopicName {
                namespace,
                local: encoded.to_owned(),
                partition: None,
                class: TopicClass::UnknownName,
            });
        };
        Some(TopicName::of_parts(namespace, local))
    }

    /// From a full name, `persistent://tenant/namespace/topic`, or the same without the domain.
    pub fn of_subject(subject: &str) -> Option<TopicName> {
        let rest = subject.strip_prefix("persistent://").or_else(|| (!subject.contains("://")).then_some(subject))?;
        let mut parts = rest.splitn(3, '/');
        let (tenant, namespace, local) = (parts.next()?, parts.next()?, parts.next()?);
        if tenant.is_empty() || namespace.is_empty() || local.is_empty() {
            return None;
        }
        Some(TopicName::of_parts(format!("{tenant}/{namespace}"), local.to_owned()))
    }

    fn of_parts(namespace: String, local: String) -> TopicName {
        let partition = partition_of(&local);
        let class = class_of(&namespace, &local, partition.is_some());
        TopicName { namespace, local, partition, class }
    }

    /// `persistent://tenant/namespace/topic`.
    pub fn subject(&self) -> String {
        format!("persistent://{}/{}", self.namespace, self.local)
    }

    /// The local name without `-partition-<n>`.
    pub fn base(&self) -> &str {
        match self.partition {
            Some(_) => self.local.rsplit_once(PARTITION).map_or(self.local.as_str(), |(base, _)| base),
            None => &self.local,
        }
    }

    /// `persistent://tenant/namespace/topic` without `-partition-<n>`: what topic policies are kept under.
    pub fn base_subject(&self) -> String {
        format!("persistent://{}/{}", self.namespace, self.base())
    }

    /// Another partition of the same topic.
    pub(crate) fn sibling(&self, index: u32) -> TopicName {
        TopicName::of_parts(self.namespace.clone(), format!("{}{PARTITION}{index}", self.base()))
    }

    /// Path of the managed ledger's node.
    pub fn path(&self) -> String {
        format!("/managed-ledgers/{}/persistent/{}", self.namespace, encode(&self.local))
    }

    /// Path of the partitioned topic's node.
    pub fn partitioned_path(&self) -> String {
        format!("/admin/partitioned-topics/{}/persistent/{}", self.namespace, encode(self.base()))
    }

    /// Path for the admin API, `persistent/tenant/namespace/topic`, percent-encoded.
    pub fn admin_path(&self) -> String {
        format!("persistent/{}/{}", self.namespace, percent(&self.local))
    }

    /// `tenant/namespace/topic`, what globs are matched against.
    pub fn plain(&self) -> String {
        format!("{}/{}", self.namespace, self.local)
    }

    /// The number that places the topic in a bundle: the CRC-32 (IEEE) of its full name.
    pub fn bundle_hash(&self) -> u32 {
        crc32fast::hash(self.subject().as_bytes())
    }
}

/// The partition number: digits without leading zeros after the last `-partition-`, with something before it.
fn partition_of(local: &str) -> Option<u32> {
    let (base, digits) = local.rsplit_once(PARTITION)?;
    let index: u32 = digits.parse().ok()?;
    (!base.is_empty() && index.to_string() == digits && i32::try_from(index).is_ok()).then_some(index)
}

fn class_of(namespace: &str, local: &str, partition: bool) -> TopicClass {
    let base = if partition { local.rsplit_once(PARTITION).map_or(local, |(base, _)| base) } else { local };
    if namespace == "pulsar" || namespace.starts_with("pulsar/") {
        TopicClass::System
    } else if namespace.matches('/').count() == 2 {
        TopicClass::LegacyName
    } else if SYSTEM.contains(&base) || base.ends_with("__transaction_pending_ack") || local.starts_with("__") {
        TopicClass::System
    } else {
        TopicClass::User
    }
}

/// Whether a byte stands for itself in an encoded name.
fn stays(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-*_".contains(&byte)
}

/// Java's `URLEncoder` in UTF-8: how names of topics and cursors stand in paths.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            byte if stays(byte) => out.push(char::from(byte)),
            b' ' => out.push('+'),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// The reverse of [`encode`]; none when it is not valid.
pub(crate) fn decode(text: &str) -> Option<String> {
    if !text.contains(['%', '+']) {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(rest.next())? * 16 + digit(rest.next())?;
                bytes.push(u8::try_from(value).ok()?);
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).ok()
}

/// Percent-encoding for a path segment of the admin API, where a literal `+` would be read as a blank.
pub(super) fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Ids from here on are kept in the long layout.
const LONG_FROM: i64 = i32::MAX as i64;

/// Path of a ledger below the root of BookKeeper's ledgers.
pub fn ledger_path(root: &str, flat: bool, long: bool, id: i64) -> String {
    if flat {
        return format!("{root}/L{id:010}");
    }
    if long || id >= LONG_FROM {
        let digits = format!("{id:019}");
        let (a, b, c, d, e) = (&digits[..3], &digits[3..7], &digits[7..11], &digits[11..15], &digits[15..]);
        return format!("{root}/{a}/{b}/{c}/{d}/L{e}");
    }
    let digits = format!("{id:010}");
    format!("{root}/{}/{}/L{}", &digits[..2], &digits[2..6], &digits[6..])
}

/// The id of a ledger from its path below the root, in any layout; none when it is not a ledger's.
pub fn ledger_id(relative: &str) -> Option<i64> {
    let mut widths = [0; 5];
    let (mut count, mut id) = (0, 0_i64);
    let mut parts = relative.split('/').peekable();
    while let Some(part) = parts.next() {
        let part = if parts.peek().is_none() { part.strip_prefix('L')? } else { part };
        if part.is_empty() {
            return None;
        }
        for byte in part.bytes() {
            let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
            id = id.checked_mul(10)?.checked_add(digit)?;
        }
        *widths.get_mut(count)? = part.len();
        count += 1;
    }
    matches!(widths[..count], [10] | [2, 4, 4] | [3, 4, 4, 4, 4]).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> TopicName {
        TopicName::of_managed_ledger(path).unwrap()
    }

    #[test]
    fn encoded_names_have_one_canonical_form() {
        assert_eq!(of("t/n/persistent/a+b").subject(), "persistent://t/n/a b");
        assert_eq!(of("t/n/persistent/a%2Bb").subject(), "persistent://t/n/a+b");
        assert_eq!(of("t/n/persistent/a%2Fb").subject(), "persistent://t/n/a/b");
        assert_eq!(of("t/n/persistent/per%2525cent").local, "per%25cent");
        for odd in ["a%2fb", "a%41", "a%", "a%zz", "%FF"] {
            assert_eq!(of(&format!("t/n/persistent/{odd}")).class, TopicClass::UnknownName, "{odd}");
        }
        for text in ["a b", "a+b", "ü", "名前", "x&y=z", "a/b", "*._-"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
            let subject = format!("persistent://t/n/{text}");
            assert_eq!(TopicName::of_subject(&subject).unwrap().subject(), subject);
        }
    }

    #[test]
    fn classes() {
        assert_eq!(of("p/c/n/persistent/t").class, TopicClass::LegacyName);
        assert_eq!(of("pulsar/lab/127.0.0.1:8080/persistent/healthcheck").class, TopicClass::System);
        assert_eq!(of("t/n/persistent/__change_events").class, TopicClass::System);
        assert_eq!(of("t/n/persistent/__change_events-partition-0").class, TopicClass::System);
        assert_eq!(of("t/n/persistent/x-s__transaction_pending_ack").class, TopicClass::System);
        assert_eq!(of("t/n/persistent/x").class, TopicClass::User);
        assert_eq!(TopicName::of_managed_ledger("t/n/persistent/x/cursor"), None);
        assert_eq!(TopicName::of_managed_ledger("t/n/other/x"), None);
    }

    #[test]
    fn partitions() {
        assert_eq!(of("t/n/persistent/p-partition-3").partition, Some(3));
        assert_eq!(of("t/n/persistent/p-partition-3").base(), "p");
        for plain in
            ["p-partition-03", "p-partition-", "p-partition--1", "-partition-1", "p-partition-1x", "a-partition-1-b"]
        {
            assert_eq!(of(&format!("t/n/persistent/{plain}")).partition, None, "{plain}");
        }
        assert_eq!(of("t/n/persistent/a-partition-1-partition-2").base(), "a-partition-1");
    }

    #[test]
    fn ledger_paths_in_all_layouts() {
        assert_eq!(ledger_path("/ledgers", false, false, 1234), "/ledgers/00/0000/L1234");
        assert_eq!(ledger_path("/ledgers", true, false, 1234), "/ledgers/L0000001234");
        assert_eq!(ledger_path("/ledgers", false, true, 1234), "/ledgers/000/0000/0000/0000/L1234");
        for id in [0, 1234, 2_147_483_646, 2_147_483_647, i64::MAX] {
            assert_eq!(ledger_id(ledger_path("/l", false, false, id).strip_prefix("/l/").unwrap()), Some(id));
        }
        for other in
            ["available", "LAYOUT", "idgen/ID-0000000001", "00/0000", "00/0000/L12", "L", "underreplication/locks"]
        {
            assert_eq!(ledger_id(other), None, "{other}");
        }
    }
}
