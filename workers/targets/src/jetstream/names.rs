//! Names: `jetstream://account/stream`, each part percent-encoded where it has to be.

/// A stream of an account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamName {
    /// The account, as the configuration or the servers name it.
    pub account: String,
    /// The stream.
    pub stream: String,
}

const SCHEME: &str = "jetstream://";

impl StreamName {
    /// Of these.
    pub fn new(account: impl Into<String>, stream: impl Into<String>) -> StreamName {
        StreamName { account: account.into(), stream: stream.into() }
    }

    /// The canonical name.
    pub fn subject(&self) -> String {
        format!("{SCHEME}{}", self.plain())
    }

    /// `account/stream`, as shards and globs have it.
    pub fn plain(&self) -> String {
        format!("{}/{}", encoded(&self.account), encoded(&self.stream))
    }

    /// The stream of a canonical name, or none if it is another thing's, or not written in the one way that it is.
    pub fn of_subject(subject: &str) -> Option<StreamName> {
        StreamName::of_plain(subject.strip_prefix(SCHEME)?)
    }

    /// The same of `account/stream`.
    pub fn of_plain(plain: &str) -> Option<StreamName> {
        let (account, stream) = plain.split_once('/')?;
        let name = StreamName { account: decoded(account)?, stream: decoded(stream)? };
        (is_token(&name.stream) && !name.account.is_empty() && name.plain() == plain).then_some(name)
    }
}

/// Whether it can be the name of a stream or of a consumer: one token of a subject, so that no name leads to another one's.
pub(super) fn is_token(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['.', '*', '>', '/', '\\'])
        && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn encoded(part: &str) -> String {
    let mut text = String::with_capacity(part.len());
    for c in part.chars() {
        match c {
            '/' | '%' | '?' | '#' => text.push_str(&format!("%{:02X}", u32::from(c))),
            c if c.is_ascii_whitespace() || c.is_ascii_control() => text.push_str(&format!("%{:02X}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

fn decoded(part: &str) -> Option<String> {
    let mut text = String::with_capacity(part.len());
    let mut rest = part;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let code = u8::from_str_radix(after.get(..2)?, 16).ok().filter(u8::is_ascii)?;
        text.push(char::from(code));
        rest = &after[2..];
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_has_one_name() {
        for (account, stream, plain) in [
            ("$G", "ORDERS", "$G/ORDERS"),
            ("a/b", "x?y#z%", "a%2Fb/x%3Fy%23z%25"),
            ("my account", "ü", "my%20account/ü"),
        ] {
            let name = StreamName::new(account, stream);
            assert_eq!(name.plain(), plain);
            assert_eq!(StreamName::of_subject(&name.subject()), Some(name));
        }
        for other in [
            "persistent://a/b",
            "jetstream://a",
            "jetstream:///b",
            "jetstream://a/",
            "jetstream://a/b/c",
            "jetstream://a/b.c",
            "jetstream://a/b>",
            "jetstream://a/b c",
            "jetstream://a/%62",
            "jetstream://a/%2",
            "jetstream://a/%ZZ",
            "jetstream://a/%+1",
            "jetstream://a/%C3%BC",
            "jetstream://a/%ü",
        ] {
            assert_eq!(StreamName::of_subject(other), None, "{other}");
        }
    }
}
