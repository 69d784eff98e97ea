//! A blocking HTTP/1.1 client for loopback: one request a connection, no TLS, redirects followed by hand.
//!
//! The blocking client of `reqwest` may not be used inside an async test, and a rig needs no more than this.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Header names in lower case, with values.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Reply {
    /// Fails unless the status is 2xx.
    pub fn ok(self) -> Result<Self> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        bail!("status {}: {}", self.status, self.body)
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.body).with_context(|| format!("not JSON: {}", self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }
}

/// One request, following up to five redirects with method and body kept.
pub fn request(method: &str, url: &str, token: Option<&str>, json: Option<&str>) -> Result<Reply> {
    let mut url = url.to_owned();
    for _ in 0..5 {
        let reply = once(method, &url, token, json, Duration::from_secs(90))?;
        match reply.header("location") {
            Some(next) if (301..=308).contains(&reply.status) => url = next.to_owned(),
            _ => return Ok(reply),
        }
    }
    bail!("too many redirects, the last to {url}")
}

/// One request without redirects.
pub fn once(method: &str, url: &str, token: Option<&str>, json: Option<&str>, timeout: Duration) -> Result<Reply> {
    let rest = url.strip_prefix("http://").with_context(|| format!("not a plain HTTP address: {url}"))?;
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let address: SocketAddr = host
        .replace("localhost", "127.0.0.1")
        .parse()
        .with_context(|| format!("not an address on loopback: {host}"))?;
    let mut stream = TcpStream::connect_timeout(&address, timeout.min(Duration::from_secs(5)))
        .with_context(|| format!("connecting to {host}"))?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    if let Some(token) = token {
        head += &format!("Authorization: Bearer {token}\r\n");
    }
    let body = json.unwrap_or("");
    if json.is_some() || matches!(method, "POST" | "PUT") {
        head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let mut raw = Vec::new();
    stream.read_to_end(&mut raw).with_context(|| format!("{method} {url}: reading the answer"))?;
    parse(&raw).with_context(|| format!("{method} {url}"))
}

/// Text as a value in the query of an address.
pub fn percent_encoded(text: &str) -> String {
    let encoded = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encoded).collect()
}

fn parse(raw: &[u8]) -> Result<Reply> {
    let end = raw.windows(4).position(|w| w == b"\r\n\r\n").context("the answer has no end of headers")?;
    let head = String::from_utf8_lossy(raw.get(..end).unwrap_or_default()).into_owned();
    let mut body = raw.get(end + 4..).unwrap_or_default().to_vec();
    let mut lines = head.split("\r\n");
    let status =
        lines.next().and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok()).context("no status line")?;
    let headers: Vec<_> =
        lines.filter_map(|l| l.split_once(':')).map(|(k, v)| (k.to_ascii_lowercase(), v.trim().to_owned())).collect();
    if headers.iter().any(|(k, v)| k == "transfer-encoding" && v.eq_ignore_ascii_case("chunked")) {
        body = unchunk(&body)?;
    }
    Ok(Reply { status, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

fn unchunk(mut raw: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let line = raw.windows(2).position(|w| w == b"\r\n").context("a chunk without a size")?;
        let size = std::str::from_utf8(&raw[..line])?
            .split(';')
            .next()
            .and_then(|s| usize::from_str_radix(s.trim(), 16).ok())
            .context("a chunk's size is no number")?;
        let from = line + 2;
        if size == 0 {
            return Ok(out);
        }
        out.extend_from_slice(raw.get(from..from + size).context("a chunk is cut off")?);
        raw = raw.get(from + size + 2..).context("a chunk has no end")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined() {
        let raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n";
        let reply = parse(raw).unwrap();
        assert_eq!((reply.status, reply.body.as_str()), (200, "abcde"));
    }

    #[test]
    fn cut_off_answers_are_errors() {
        for raw in [&b"HTTP/1.1 200 OK\r\n"[..], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"] {
            assert!(parse(raw).is_err());
        }
    }
}
