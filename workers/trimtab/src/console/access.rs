//! Who is there, and what they may do.
//!
//! On loopback without any setting, whoever reaches the port is the user that runs this process. Otherwise people log in with a token of their
//! own, or a reverse proxy says who they are. Nothing here is kept on disk: sessions end with the process.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use crate::clock::Clock;
use crate::config::{ConsoleConfig, secret};
use crate::journal::hex;

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Look.
    Viewer,
    /// Act: approve, confirm, protect, and so on.
    Operator,
}

impl Grade {
    /// Its name in the tokens' file and on pages.
    pub fn name(self) -> &'static str {
        match self {
            Grade::Viewer => "viewer",
            Grade::Operator => "operator",
        }
    }

    /// The one with this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn of_name(name: &str) -> Result<Grade, String> {
        [Grade::Viewer, Grade::Operator]
            .into_iter()
            .find(|grade| grade.name() == name)
            .ok_or_else(|| format!("{name:?} is no role; use viewer or operator"))
    }
}

/// Somebody.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Who {
    /// The name that goes into the record.
    pub(super) name: String,
    /// What they may do.
    pub(super) grade: Grade,
    /// The session's id, where there is one.
    session: Option<String>,
}

/// A token's owner. The token itself is not kept anywhere.
struct Named {
    name: String,
    grade: Grade,
    hash: [u8; 32],
}

/// A proxy that says who asks.
struct Proxy {
    header: HeaderName,
    from: Vec<Network>,
    operators: Vec<String>,
}

/// Addresses that begin with the same bits.
#[derive(Debug, Clone, Copy)]
struct Network {
    address: IpAddr,
    bits: u32,
}

struct Session {
    name: String,
    grade: Grade,
    until_ms: i64,
}

/// The door.
pub struct Access {
    /// Who everybody is, where nobody is asked.
    local: Option<String>,
    tokens: Vec<Named>,
    proxy: Option<Proxy>,
    hosts: Vec<String>,
    behind_tls: bool,
    /// Of this process: what forms carry is made from it.
    key: [u8; 32],
    clock: Clock,
    sessions: Mutex<HashMap<String, Session>>,
}

/// The cookie with the session's id.
const COOKIE: &str = "trimtab_session";
/// How long a session lasts.
const SESSION_MS: i64 = 12 * 3600 * 1000;
/// Sessions at once; the oldest goes.
const SESSIONS: usize = 1_000;
/// Bytes of the longest name that is believed.
const NAME: usize = 128;

impl Access {
    /// Checks the settings without reading any file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(config: &ConsoleConfig) -> Result<(), String> {
        Access::proxy(config).map(|_| ())
    }

    fn proxy(config: &ConsoleConfig) -> Result<Option<Proxy>, String> {
        let Some(header) = &config.identity_header else {
            return match config.trusted_proxies.is_empty() && config.operators.is_empty() {
                true => Ok(None),
                false => {
                    Err("console.trusted_proxies and console.operators go with console.identity_header".to_owned())
                }
            };
        };
        if config.trusted_proxies.is_empty() {
            let why = "console.identity_header would be believed from anybody: say in console.trusted_proxies which proxies set it";
            return Err(why.to_owned());
        }
        let header = HeaderName::try_from(header.as_str())
            .map_err(|_| format!("console.identity_header is {header:?}, which is not the name of a header"))?;
        let from = config.trusted_proxies.iter().map(|text| Network::parse(text)).collect::<Result<_, _>>()?;
        Ok(Some(Proxy { header, from, operators: config.operators.clone() }))
    }

    /// The door of a console that listens on `listen`.
    ///
    /// # Errors
    /// When others could reach it without saying who they are, and when a setting or file cannot be used.
    pub fn new(config: &ConsoleConfig, listen: SocketAddr, clock: Clock) -> Result<Access, String> {
        let proxy = Access::proxy(config)?;
        let tokens = match &config.tokens_file {
            Some(file) => parse_tokens(&secret(file).map_err(|e| e.to_string())?)
                .map_err(|why| format!("{}: {why}", file.display()))?,
            None => Vec::new(),
        };
        if !config.asks_who() && !listen.ip().is_loopback() {
            return Err(format!(
                "the console would be open to whoever reaches {listen}: set console.tokens_file (make a line with `trimtab console token`), \
                 or console.identity_header with console.trusted_proxies, or listen on 127.0.0.1"
            ));
        }
        let local = (!config.asks_who()).then(|| format!("{} (on this machine)", user()));
        let (key, sessions) = (random()?, Mutex::default());
        let hosts = config.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Ok(Access { local, tokens, proxy, hosts, behind_tls: config.behind_tls, key, clock, sessions })
    }

    /// Whether the console may be called by this name: with any other, a page of somebody else's could have a browser read ours.
    pub(super) fn known_host(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name),
        };
        name == "localhost" || name.parse::<IpAddr>().is_ok() || self.hosts.iter().any(|known| *known == name)
    }

    /// Whether people can log in with a token.
    pub(super) fn has_login(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Who asks, if anybody we know.
    pub(super) fn who(&self, peer: SocketAddr, headers: &HeaderMap) -> Option<Who> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(token) = text("authorization").and_then(|value| value.strip_prefix("Bearer ")) {
            return self.owner(token).map(|named| Who { name: named.name.clone(), grade: named.grade, session: None });
        }
        if let Some(id) = text("cookie").and_then(|cookies| cookie(cookies)) {
            let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = sessions.get(id).filter(|session| self.clock.now_ms() < session.until_ms) {
                let (name, grade) = (found.name.clone(), found.grade);
                return Some(Who { name, grade, session: Some(id.to_owned()) });
            }
        }
        if let Some(proxy) = &self.proxy
            && proxy.from.iter().any(|network| network.has(peer.ip()))
        {
            // Two of them: one may be the asker's own.
            let mut named = headers.get_all(&proxy.header).iter();
            let name = named.next().and_then(|value| value.to_str().ok()).map(str::trim).unwrap_or_default();
            if named.next().is_none() && !name.is_empty() && name.len() <= NAME && !name.contains(char::is_control) {
                let operator = proxy.operators.iter().any(|operator| operator == name);
                let grade = if operator { Grade::Operator } else { Grade::Viewer };
                return Some(Who { name: name.to_owned(), grade, session: None });
            }
        }
        self.local.clone().map(|name| Who { name, grade: Grade::Operator, session: None })
    }

    /// Whose token it is. All hashes are compared, each in a time that does not depend on where they differ.
    fn owner(&self, token: &str) -> Option<&Named> {
        let hash: [u8; 32] = Sha256::digest(token.trim()).into();
        let mut found = None;
        for named in &self.tokens {
            if same(&named.hash, &hash) {
                found = Some(named);
            }
        }
        found
    }

    /// Begins a session; the cookie to set. None when nobody has this token.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(super) fn log_in(&self, token: &str) -> Result<Option<String>, String> {
        let Some(named) = self.owner(token) else { return Ok(None) };
        let (id, now) = (hex(&random()?), self.clock.now_ms());
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| now < session.until_ms);
        if sessions.len() >= SESSIONS
            && let Some(oldest) = sessions.iter().min_by_key(|(_, session)| session.until_ms).map(|(id, _)| id.clone())
        {
            sessions.remove(&oldest);
        }
        let session = Session { name: named.name.clone(), grade: named.grade, until_ms: now + SESSION_MS };
        sessions.insert(id.clone(), session);
        let secure = if self.behind_tls { "; Secure" } else { "" };
        Ok(Some(format!("{COOKIE}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}", SESSION_MS / 1000)))
    }

    /// Ends somebody's session; the cookie to set.
    pub(super) fn log_out(&self, who: &Who) -> String {
        if let Some(id) = &who.session {
            self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        }
        format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
    }

    /// What somebody's forms carry, and nobody else can know.
    pub(super) fn form_token(&self, who: &Who) -> String {
        let about = Sha256::new()
            .chain_update(who.session.as_deref().unwrap_or_default())
            .chain_update([0])
            .chain_update(&who.name)
            .finalize();
        hex(&Sha256::new().chain_update(self.key).chain_update(about).finalize())
    }

    /// Whether a form is one of ours.
    pub(super) fn own_form(&self, who: &Who, token: &str) -> bool {
        same(self.form_token(who).as_bytes(), token.as_bytes())
    }
}

/// Whether the browser says that a call comes from a page of ours. Who says nothing is no browser, and has to carry what forms carry all
/// the same.
pub(super) fn same_origin(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(site) = text("sec-fetch-site") {
        return site == "same-origin";
    }
    let Some(origin) = text("origin") else { return true };
    let host = text("host").unwrap_or_default();
    origin.split_once("://").is_some_and(|(_, of)| !host.is_empty() && of.eq_ignore_ascii_case(host))
}

fn parse_tokens(text: &str) -> Result<Vec<Named>, String> {
    let mut all: Vec<Named> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |why: String| format!("line {}: {why}", index + 1);
        let [name, grade, hash] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err(wrong("expected a name, a role, and sha256: with the hash of the token".to_owned()));
        };
        let grade = Grade::of_name(grade).map_err(wrong)?;
        let hash = hash.strip_prefix("sha256:").and_then(unhex);
        let hash = hash.ok_or_else(|| wrong("the hash is not sha256: and 64 hexadecimal digits".to_owned()))?;
        if all.iter().any(|named| named.name == name && named.grade != grade) {
            return Err(wrong(format!("{name} has two roles")));
        }
        all.push(Named { name: name.to_owned(), grade, hash });
    }
    if all.is_empty() { Err("nobody is in it".to_owned()) } else { Ok(all) }
}

/// A new token, and what the file says of it.
///
/// # Errors
/// When the name is not usable, or the system has no random numbers.
pub fn new_token(name: &str, grade: Grade) -> Result<(String, String), String> {
    if name.is_empty() || name.len() > NAME || name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#')
    {
        return Err(format!("{name:?} is not a name for a person: no blanks and no #"));
    }
    let token = hex(&random()?);
    let line = format!("{name} {} sha256:{}", grade.name(), hex(&Sha256::digest(&token)));
    Ok((token, line))
}

impl Network {
    fn parse(text: &str) -> Result<Network, String> {
        let wrong = || {
            format!(
                "console.trusted_proxies has {text:?}, which is neither an address nor a network such as 10.0.0.0/24"
            )
        };
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        if bits > most { Err(wrong()) } else { Ok(Network { address, bits }) }
    }

    fn has(&self, other: IpAddr) -> bool {
        let agree = |a: u128, b: u128, width: u32| self.bits == 0 || (a ^ b) >> (width - self.bits) == 0;
        match (self.address, other.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => agree(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => agree(a.to_bits(), b.to_bits(), 128),
            _ => false,
        }
    }
}

fn cookie(cookies: &str) -> Option<&str> {
    cookies.split(';').filter_map(|pair| pair.trim().split_once('=')).find(|(name, _)| *name == COOKIE).map(|(_, v)| v)
}

/// Compared in a time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |acc, (a, b)| acc | (a ^ b)) == 0
}

fn random() -> Result<[u8; 32], String> {
    let mut bytes = [0; 32];
    let provider = rustls::crypto::ring::default_provider();
    provider.secure_random.fill(&mut bytes).map_err(|_| "the system has no random numbers".to_owned())?;
    Ok(bytes)
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// The user that runs this process.
fn user() -> String {
    let named = |name: &str| std::env::var(name).ok().filter(|user| !user.is_empty() && user.len() <= NAME);
    let uid = rustix::process::getuid().as_raw().to_string();
    let listed = || {
        let all = std::fs::read_to_string("/etc/passwd").ok()?;
        let line = all.lines().find(|line| line.split(':').nth(2) == Some(&uid))?;
        line.split(':').next().map(str::to_owned)
    };
    listed().or_else(|| named("USER")).unwrap_or_else(|| format!("uid {uid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8222);

    fn access(config: &ConsoleConfig) -> Access {
        Access::new(config, HERE, Clock::fixed(1_000)).unwrap()
    }

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn with_tokens() -> (Access, String, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (alice, first) = new_token("alice", Grade::Operator).unwrap();
        let (bob, second) = new_token("bob", Grade::Viewer).unwrap();
        std::fs::write(file.path(), format!("# people\n{first}\n\n{second} # looks\n")).unwrap();
        let config = ConsoleConfig { tokens_file: Some(file.path().to_owned()), ..ConsoleConfig::default() };
        (access(&config), alice, bob)
    }

    #[test]
    fn others_than_loopback_have_to_say_who_they_are() {
        let open = ConsoleConfig::default();
        assert!(access(&open).who(HERE, &HeaderMap::new()).is_some_and(|who| who.grade == Grade::Operator));
        let all: SocketAddr = "0.0.0.0:8222".parse().unwrap();
        assert!(Access::new(&open, all, Clock::fixed(0)).is_err_and(|why| why.contains("tokens_file")));
        let anybody = ConsoleConfig { identity_header: Some("x-user".into()), ..ConsoleConfig::default() };
        assert!(Access::new(&anybody, all, Clock::fixed(0)).is_err_and(|why| why.contains("trusted_proxies")));
        let (asks, ..) = with_tokens();
        assert_eq!(asks.who(HERE, &HeaderMap::new()), None);
    }

    #[test]
    fn a_token_is_its_owners_and_a_session_ends() {
        let (access, alice, bob) = with_tokens();
        let bearer = |token: &str| access.who(HERE, &headers(&[("authorization", &format!("Bearer {token}"))]));
        assert_eq!(bearer(&alice).map(|who| (who.name, who.grade)), Some(("alice".into(), Grade::Operator)));
        assert_eq!(bearer(&bob).map(|who| who.grade), Some(Grade::Viewer));
        for wrong in ["", "x", &alice[1..], &hex(&[0; 32])] {
            assert_eq!(bearer(wrong), None);
            assert_eq!(access.log_in(wrong).unwrap(), None);
        }
        let cookie = access.log_in(&bob).unwrap().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains(&bob));
        let sent = headers(&[("cookie", cookie.split(';').next().unwrap())]);
        let who = access.who(HERE, &sent).unwrap();
        assert_eq!(who.name, "bob");
        let token = access.form_token(&who);
        assert!(access.own_form(&who, &token) && !access.own_form(&who, &token[1..]));
        let other = access.who(HERE, &headers(&[("authorization", &format!("Bearer {bob}"))])).unwrap();
        assert!(!access.own_form(&other, &token), "a form's token is of one session");
        access.log_out(&who);
        assert_eq!(access.who(HERE, &sent), None);
    }

    #[test]
    fn a_header_is_believed_from_the_proxy_alone() {
        let config = ConsoleConfig {
            identity_header: Some("x-user".into()),
            trusted_proxies: vec!["10.1.0.0/16".into(), "fd00::1".into()],
            operators: vec!["alice".into()],
            ..ConsoleConfig::default()
        };
        let access = access(&config);
        let from = |peer: &str, name: &str| {
            access.who(SocketAddr::new(peer.parse().unwrap(), 1), &headers(&[("x-user", name)]))
        };
        assert_eq!(from("10.1.2.3", "alice").map(|who| who.grade), Some(Grade::Operator));
        assert_eq!(from("::ffff:10.1.2.3", "bob").map(|who| who.grade), Some(Grade::Viewer));
        assert_eq!(from("fd00::1", "bob").map(|who| who.grade), Some(Grade::Viewer));
        assert_eq!(from("10.2.0.1", "alice"), None);
        assert_eq!(from("127.0.0.1", "alice"), None);
        assert_eq!(from("10.1.2.3", " "), None);
        let mut twice = headers(&[("x-user", "bob")]);
        twice.append("x-user", "alice".parse().unwrap());
        assert_eq!(access.who("10.1.2.3:1".parse().unwrap(), &twice), None);
    }

    #[test]
    fn only_known_names_and_our_own_pages() {
        let access = access(&ConsoleConfig { hosts: vec!["Trimtab.example".into()], ..ConsoleConfig::default() });
        for host in
            ["localhost", "localhost:8222", "127.0.0.1:8222", "[::1]:8222", "trimtab.example:443", "TRIMTAB.example"]
        {
            assert!(access.known_host(host), "{host}");
        }
        for host in ["evil.example", "evil.example:8222", "", "localhost.evil.example", "127.0.0.1.evil.example"] {
            assert!(!access.known_host(host), "{host}");
        }
        let from = |all: &[(&'static str, &str)]| same_origin(&headers(all));
        assert!(from(&[("host", "a:1")]) && from(&[("host", "a:1"), ("origin", "http://a:1")]));
        assert!(!from(&[("host", "a:1"), ("origin", "http://b:1")]) && !from(&[("host", "a:1"), ("origin", "null")]));
        assert!(from(&[("sec-fetch-site", "same-origin")]));
        for site in ["cross-site", "same-site", "none"] {
            assert!(!from(&[("sec-fetch-site", site)]));
        }
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        let hash = "0".repeat(64);
        for (text, named) in [
            ("", "nobody"),
            ("alice operator", "line 1"),
            (&format!("\nalice boss sha256:{hash}"), "boss"),
            ("alice viewer sha256:12", "64"),
            (&format!("a viewer sha256:{hash}\na operator sha256:{hash}"), "two roles"),
        ] {
            assert!(parse_tokens(text).is_err_and(|why| why.contains(named)), "{text}");
        }
        assert!(new_token("a b", Grade::Viewer).is_err());
    }
}
