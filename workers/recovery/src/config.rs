//! The settings that recovery depends on, and where they come from.
//!
//! For a topic the first of these that names a value wins: a flag for that topic, the topic's setting in the KRaft
//! metadata, a flag for all topics, the broker's dynamic setting and then the cluster's in the metadata, the broker's
//! `server.properties`, the built-in default. That is the broker's own order with flags put in front of their level.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::metadata::ClusterSettings;

const INDEX_INTERVAL: &str = "index.interval.bytes";
const SEGMENT_INDEX: &str = "segment.index.bytes";
const REMOTE_STORAGE: &str = "remote.storage.enable";
const REMOTE_SYSTEM: &str = "remote.log.storage.system.enable";
const PRODUCER_EXPIRATION: &str = "producer.id.expiration.ms";

/// The settings that matter, with the name of the broker-wide one.
const TOPIC_KEYS: [(&str, &str); 3] = [
    (INDEX_INTERVAL, "log.index.interval.bytes"),
    (SEGMENT_INDEX, "log.index.size.max.bytes"),
    (REMOTE_STORAGE, REMOTE_STORAGE),
];
const BROKER_KEYS: [&str; 2] = [REMOTE_SYSTEM, PRODUCER_EXPIRATION];

/// What a topic's segments are recovered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct TopicSettings {
    /// More bytes than this between two index entries.
    pub index_interval_bytes: i32,
    /// Capacity of an index.
    pub segment_index_bytes: i32,
    /// Old segments are in remote storage, so the log start does not follow the first local segment.
    pub remote_storage: bool,
}

/// A broker's `server.properties`.
#[derive(Clone, Debug, Default)]
pub struct Properties(HashMap<String, String>);

impl Properties {
    /// Reads the file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(Error::io("read broker properties", path))?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Reads Java's property format: `key=value`, `key: value` or `key value`, comments with `#` or `!`, a backslash
    /// at the end of a line continues it, the usual escapes.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut out = HashMap::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let mut logical = line.trim_start().to_owned();
            if logical.is_empty() || logical.starts_with(['#', '!']) {
                continue;
            }
            while logical.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1 {
                logical.pop();
                let Some(next) = lines.next() else { break };
                logical.push_str(next.trim_start());
            }
            let (key, value) = split_property(&logical);
            out.insert(key, value);
        }
        Self(out)
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// `log.dirs`, else `log.dir`; empty when neither is set.
    #[must_use]
    pub fn log_dirs(&self) -> Vec<PathBuf> {
        let list = self.get("log.dirs").or_else(|| self.get("log.dir")).unwrap_or_default();
        list.split(',').map(str::trim).filter(|dir| !dir.is_empty()).map(PathBuf::from).collect()
    }

    /// `metadata.log.dir`, if it is set.
    #[must_use]
    pub fn metadata_log_dir(&self) -> Option<PathBuf> {
        self.get("metadata.log.dir").map(PathBuf::from)
    }

    /// A whole number above zero; an error names the key.
    ///
    /// # Errors
    /// When the value is none.
    pub fn positive(&self, key: &str) -> Result<Option<u64>> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        match text.trim().parse() {
            Ok(0) | Err(_) => Err(Error::setting(format!("{key}={text}"), "not a whole number above zero")),
            Ok(n) => Ok(Some(n)),
        }
    }
}

fn split_property(line: &str) -> (String, String) {
    let mut key = String::new();
    let mut chars = line.char_indices().peekable();
    let mut rest = "";
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                if let Some((_, escaped)) = chars.next() {
                    key.push(unescape(escaped));
                }
            }
            '=' | ':' | ' ' | '\t' => {
                rest = &line[at..];
                break;
            }
            c => key.push(c),
        }
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
    let mut value = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => value.extend(chars.next().map(unescape)),
            c => value.push(c),
        }
    }
    (key, value)
}

fn unescape(c: char) -> char {
    match c {
        't' => '\t',
        'n' => '\n',
        'r' => '\r',
        c => c,
    }
}

/// Every source of settings, in one place.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    topics: BTreeMap<String, HashMap<String, String>>,
    defaults: HashMap<String, String>,
    properties: Properties,
    cluster: Option<ClusterSettings>,
}

impl Settings {
    /// With a broker's properties, or an empty set.
    #[must_use]
    pub fn new(properties: Properties) -> Self {
        Self { properties, ..Self::default() }
    }

    /// A setting of one topic, `NAME:key=value`.
    ///
    /// # Errors
    /// When the text has another form or recovery does not depend on the key.
    pub fn add_topic(&mut self, text: &str) -> Result<()> {
        let wrong = || Error::setting(format!("--topic {text}"), "not of the form NAME:key=value");
        let (name, pair) = text.split_once(':').ok_or_else(wrong)?;
        let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
        let key = TOPIC_KEYS.iter().find(|names| names.0 == key);
        let Some((key, _)) = key else {
            return Err(unknown_key(&format!("--topic {text}")));
        };
        check_value(key, value, &format!("--topic {text}"))?;
        self.topics.entry(name.to_owned()).or_default().insert((*key).to_owned(), value.to_owned());
        Ok(())
    }

    /// A setting for all topics or of the broker, `key=value`.
    ///
    /// # Errors
    /// When the text has another form or recovery does not depend on the key.
    pub fn add_default(&mut self, text: &str) -> Result<()> {
        let what = format!("--default {text}");
        let (key, value) = text.split_once('=').ok_or_else(|| Error::setting(&what, "not of the form key=value"))?;
        let topic_key = TOPIC_KEYS.iter().find(|names| names.0 == key || names.1 == key).map(|names| names.0);
        let broker_key = BROKER_KEYS.into_iter().find(|name| *name == key);
        let Some(key) = topic_key.or(broker_key) else {
            return Err(unknown_key(&what));
        };
        check_value(key, value, &what)?;
        self.defaults.insert(key.to_owned(), value.to_owned());
        Ok(())
    }

    /// The settings found in the KRaft metadata.
    pub(crate) fn set_cluster(&mut self, cluster: ClusterSettings) {
        self.cluster = Some(cluster);
    }

    /// Whether topic settings could be learnt from the metadata.
    #[must_use]
    pub fn knows_topics(&self) -> bool {
        self.cluster.is_some()
    }

    fn broker_value(&self, key: &str, broker_key: &str) -> Option<&str> {
        let flag = self.defaults.get(key).map(String::as_str);
        let dynamic = || self.cluster.as_ref().and_then(|cluster| cluster.broker(broker_key));
        flag.or_else(dynamic).or_else(|| self.properties.get(broker_key))
    }

    fn topic_value(&self, topic: &str, key: &str, broker_key: &str) -> Option<&str> {
        let flag = self.topics.get(topic).and_then(|settings| settings.get(key)).map(String::as_str);
        let metadata = || self.cluster.as_ref().and_then(|cluster| cluster.topic(topic, key));
        flag.or_else(metadata).or_else(|| self.broker_value(key, broker_key))
    }

    fn number<T: std::str::FromStr>(key: &str, value: Option<&str>, default: T) -> Result<T> {
        let Some(text) = value else {
            return Ok(default);
        };
        text.trim().parse().map_err(|_| Error::setting(format!("{key}={text}"), "not a whole number in range"))
    }

    /// What a topic is recovered with.
    ///
    /// # Errors
    /// When a source holds a value that is none.
    pub fn topic(&self, topic: &str) -> Result<TopicSettings> {
        let [interval, index, remote] = TOPIC_KEYS.map(|(key, broker_key)| self.topic_value(topic, key, broker_key));
        let system = self.broker_value(REMOTE_SYSTEM, REMOTE_SYSTEM).is_some_and(is_true);
        Ok(TopicSettings {
            index_interval_bytes: Self::number(INDEX_INTERVAL, interval, 4096)?,
            segment_index_bytes: Self::number(SEGMENT_INDEX, index, 10_485_760)?,
            remote_storage: system && remote.is_some_and(is_true),
        })
    }

    /// How long a producer without open transaction may be idle before it is dropped, in milliseconds.
    ///
    /// # Errors
    /// When a source holds a value that is none.
    pub fn producer_expiration_ms(&self) -> Result<i64> {
        let value = self.broker_value(PRODUCER_EXPIRATION, PRODUCER_EXPIRATION);
        Self::number(PRODUCER_EXPIRATION, value, 86_400_000)
    }
}

fn is_true(text: &str) -> bool {
    text.trim().eq_ignore_ascii_case("true")
}

fn unknown_key(what: &str) -> Error {
    let topic: Vec<&str> = TOPIC_KEYS.iter().map(|names| names.0).collect();
    let known = format!("{} (and for --default {})", topic.join(", "), BROKER_KEYS.join(", "));
    Error::setting(what, format!("recovery depends on these keys only: {known}"))
}

fn check_value(key: &str, value: &str, what: &str) -> Result<()> {
    let fits = match key {
        REMOTE_STORAGE | REMOTE_SYSTEM => value == "true" || value == "false",
        SEGMENT_INDEX => value.parse::<i32>().is_ok_and(|n| n >= 4),
        PRODUCER_EXPIRATION => value.parse::<i64>().is_ok_and(|n| n >= 1),
        _ => value.parse::<i32>().is_ok_and(|n| n >= 0),
    };
    if fits { Ok(()) } else { Err(Error::setting(what, "a broker would not accept this value")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read_as_java_does() {
        let text = "# c\n! c\nlog.dirs=/a, /b\\\n  ,/c\n key : v=1 \nspaced value\nback\\=slash=x\\ty\nempty=\n";
        let properties = Properties::parse(text);
        assert_eq!(properties.log_dirs(), ["/a", "/b", "/c"].map(PathBuf::from));
        assert_eq!(properties.get("key"), Some("v=1 "));
        assert_eq!(properties.get("spaced"), Some("value"));
        assert_eq!(properties.get("back=slash"), Some("x\ty"));
        assert_eq!(properties.get("empty"), Some(""));
        assert!(properties.positive("key").is_err());
        let _ = Properties::parse("\\");
        let _ = Properties::parse("=\n:\n \\");
    }

    #[test]
    fn the_nearest_source_wins() {
        let mut settings = Settings::new(Properties::parse("log.index.interval.bytes=1\nremote.storage.enable=true"));
        assert_eq!(settings.topic("t").map(|s| s.index_interval_bytes).ok(), Some(1));
        settings.add_default("index.interval.bytes=2").expect("known");
        settings.add_topic("t:index.interval.bytes=3").expect("known");
        let of = |name: &str| settings.topic(name).map(|s| s.index_interval_bytes).ok();
        assert_eq!((of("t"), of("u")), (Some(3), Some(2)));
        assert_eq!(settings.topic("t").map(|s| s.remote_storage).ok(), Some(false));
        assert!(settings.add_default("segment.bytes=1").is_err());
        assert!(settings.add_topic("t:index.interval.bytes=x").is_err());
    }
}
