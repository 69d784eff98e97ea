//! The envelope: CloudEvents 1.0 attributes around one [`Body`], in structured JSON mode.

use std::borrow::Cow;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::de::{Deserializer, Error, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::ids::digits_of;
use crate::{
    Data, Decision, LedgerPage, Notice, OrphanPage, Outcome, RecoveryOutcome, RecoveryReport, RecoverySegment,
    ScanReport, ScanRequest, ScanShard, SubscriberPage, key_of, shard_of,
};

/// No event is larger. Larger things go to files or further pages.
pub const MAX_EVENT_BYTES: usize = 512 * 1024;

/// Why bytes are not an event of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid(pub String);

impl std::fmt::Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// W3C trace context of the span that made the event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// `traceparent`, when there is one.
    pub parent: Option<String>,
    /// `tracestate`, when there is one.
    pub state: Option<String>,
}

/// An event. Its data stays as the bytes that came, so that a signature over them can be checked; [`Event::body`] reads
/// them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Always `1.0`.
    #[serde(deserialize_with = "constant")]
    pub specversion: Cow<'static, str>,
    /// Deterministic for decisions and pages, see [`crate::ids`](crate::decision_id).
    pub id: String,
    /// `/trimtab/<role>/<instance>`.
    pub source: String,
    /// One of the types of [`Body`].
    #[serde(rename = "type", deserialize_with = "constant")]
    pub kind: Cow<'static, str>,
    /// `<target>/<canonical resource>`, or the shard for pages.
    pub subject: String,
    /// When it was made, RFC 3339.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub time: Timestamp,
    /// Always `application/json`.
    #[serde(deserialize_with = "constant")]
    pub datacontenttype: Cow<'static, str>,
    /// Path of the schema in `schemas/`.
    #[serde(deserialize_with = "constant")]
    pub dataschema: Cow<'static, str>,
    /// Configured target.
    pub target: String,
    /// Verdict of a decision, status of an outcome, kind of a candidate.
    pub action: String,
    /// See [`key_of`].
    pub key: String,
    /// W3C trace context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// W3C trace state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
    /// Public key (nkey) of whoever signed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// Ed25519 signature, base64: over [`Event::signed_bytes`], or, with a `proof`, over the root that it leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// Of an event that was signed together with others: the way from the hash of [`Event::signed_bytes`] to the root of the
    /// tree of their hashes (SHA-256, as in RFC 6962, section 2.1), base64. Of each partner on the way one byte, 0 when it is the
    /// left one and 1 when it is the right one, and its hash. The text `trimtab events v1 ` is signed before the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proof: Option<String>,
    /// The body, as JSON.
    #[schemars(with = "serde_json::Value")]
    pub data: Data,
}

const SPECVERSION: &str = "1.0";
const CONTENT_TYPE: &str = "application/json";

/// Reads a text that is one of a few; those are not made anew for each event.
fn constant<'de, D: Deserializer<'de>>(from: D) -> Result<Cow<'static, str>, D::Error> {
    struct Text;

    impl Visitor<'_> for Text {
        type Value = Cow<'static, str>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a string")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            let mut known = [SPECVERSION, CONTENT_TYPE].into_iter().chain(Body::NAMES.iter().flatten().copied());
            Ok(known.find(|known| *known == text).map_or_else(|| Cow::Owned(text.to_owned()), Cow::Borrowed))
        }
    }

    from.deserialize_str(Text)
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $name:ident($of:ty) = $kind:literal, $file:literal;)+) => {
        /// What an event may hold.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Body { $($(#[$doc])* $name($of),)+ }

        impl Body {
            /// Every type with the file name of its schema.
            pub const KINDS: &'static [(&'static str, &'static str)] = &[$(($kind, $file),)+];

            /// The type and the path of the schema of each.
            const NAMES: &'static [[&'static str; 2]] = &[$([$kind, concat!("schemas/", $file)],)+];

            fn names(&self) -> [&'static str; 2] {
                match self { $(Body::$name(_) => [$kind, concat!("schemas/", $file)],)+ }
            }

            fn json(&self) -> serde_json::Result<Data> {
                match self { $(Body::$name(body) => Data::of(body),)+ }
            }

            fn parse(kind: &str, data: &str) -> Result<Body, Invalid> {
                match kind {
                    $($kind => serde_json::from_str(data)
                        .map(Body::$name)
                        .map_err(|e| Invalid(format!("data does not fit {}: {e}", $file))),)+
                    other => Err(Invalid(format!("type {other:?} is not one of ours"))),
                }
            }

            /// The JSON Schema of each type.
            pub(crate) fn schemas(generator: &schemars::generate::SchemaSettings) -> Vec<(&'static str, schemars::Schema)> {
                vec![$(($file, generator.clone().into_generator().into_root_schema_for::<$of>()),)+]
            }
        }

        $(impl From<$of> for Body {
            fn from(body: $of) -> Self { Body::$name(body) }
        })+
    };
}

bodies! {
    /// Candidates: topics whose ledgers may be reclaimed.
    LedgerPage(LedgerPage) = "dev.trimtab.candidate.ledger.v1", "candidate.ledger.v1.json";
    /// Candidates: logs with subscribers that look abandoned.
    SubscriberPage(SubscriberPage) = "dev.trimtab.candidate.subscriber.v1", "candidate.subscriber.v1.json";
    /// Ledgers that nothing seems to name.
    OrphanPage(OrphanPage) = "dev.trimtab.candidate.orphan.v1", "candidate.orphan.v1.json";
    /// What is to be done about one resource.
    Decision(Decision) = "dev.trimtab.decision.v1", "decision.v1.json";
    /// What came of it.
    Outcome(Outcome) = "dev.trimtab.outcome.v1", "outcome.v1.json";
    /// Something an owner should hear of.
    Notice(Notice) = "dev.trimtab.notice.v1", "notice.v1.json";
    /// Scan this now.
    ScanRequest(ScanRequest) = "dev.trimtab.scan.request.v1", "scan.request.v1.json";
    /// Read this shard of a scan.
    ScanShard(ScanShard) = "dev.trimtab.scan.shard.v1", "scan.shard.v1.json";
    /// What came of a scan.
    ScanReport(ScanReport) = "dev.trimtab.scan.report.v1", "scan.report.v1.json";
    /// Verify this segment.
    RecoverySegment(RecoverySegment) = "dev.trimtab.recovery.segment.v1", "recovery.segment.v1.json";
    /// What a worker says about it.
    RecoveryReport(RecoveryReport) = "dev.trimtab.recovery.report.v1", "recovery.report.v1.json";
    /// What became of a partition or log dir.
    RecoveryOutcome(RecoveryOutcome) = "dev.trimtab.recovery.outcome.v1", "recovery.outcome.v1.json";
}

impl Body {
    /// (target, subject, action). What the key is made of is the target and the subject.
    fn address(&self) -> (&str, Cow<'_, str>, &str) {
        match self {
            Body::LedgerPage(page) => ("", (&page.shard).into(), "ledger"),
            Body::SubscriberPage(page) => ("", (&page.shard).into(), "subscriber"),
            Body::OrphanPage(page) => ("", (&page.shard).into(), "orphan"),
            Body::Decision(d) => (&d.target, (&d.subject).into(), d.verdict.name()),
            Body::Outcome(o) => (&o.target, (&o.subject).into(), o.status.name()),
            Body::Notice(n) => (&n.target, (&n.subject).into(), n.announced.name()),
            Body::ScanRequest(r) => (&r.target, r.id.to_string().into(), "request"),
            Body::ScanShard(s) => (&s.target, format!("{}/{}", s.scan.id, s.index).into(), "shard"),
            Body::ScanReport(r) => (&r.target, r.scan.id.to_string().into(), "report"),
            // With its id: another state of the same file must not wait until nobody wants the old one any more.
            Body::RecoverySegment(s) => (&s.lane, format!("{}/{} {}", s.folder, s.file, s.id).into(), "segment"),
            Body::RecoveryReport(r) => (&r.lane, r.job.to_string().into(), r.state.name()),
            Body::RecoveryOutcome(o) => {
                let folder = o.folder.as_deref().unwrap_or_default();
                (&o.lane, format!("{}/{folder}", o.run).into(), o.state.name())
            }
        }
    }
}

impl Event {
    /// Wraps `body`. `target` is needed for pages only, which do not name one; the others must agree with it.
    ///
    /// # Errors
    /// When the event would be larger than [`MAX_EVENT_BYTES`].
    pub fn new(
        id: impl Into<String>,
        source: &str,
        target: &str,
        time: Timestamp,
        trace: Trace,
        body: impl Into<Body>,
    ) -> Result<Event, Invalid> {
        let body = body.into();
        let [kind, schema] = body.names();
        let (_, subject, action) = body.address();
        let data = body.json().map_err(|e| Invalid(format!("cannot write {kind}: {e}")))?;
        if data.get().len() > MAX_EVENT_BYTES - 4096 {
            let length = data.get().len();
            return Err(Invalid(format!(
                "{kind} for {subject} has {length} bytes, more than an event may have ({MAX_EVENT_BYTES})"
            )));
        }
        Ok(Event {
            specversion: SPECVERSION.into(),
            id: id.into(),
            source: source.to_owned(),
            kind: kind.into(),
            key: key_of(target, &subject),
            subject: [target, "/", &subject].concat(),
            time,
            datacontenttype: CONTENT_TYPE.into(),
            dataschema: schema.into(),
            target: target.to_owned(),
            action: action.to_owned(),
            traceparent: trace.parent,
            tracestate: trace.state,
            signer: None,
            signature: None,
            proof: None,
            data,
        })
    }

    /// Reads the body and checks that the attributes agree with it: queues route by the attributes, so an event whose
    /// attributes say something else than its data is refused.
    ///
    /// # Errors
    /// When the type is unknown, the data does not fit it, or an attribute disagrees with the data.
    pub fn body(&self) -> Result<Body, Invalid> {
        if self.specversion != SPECVERSION {
            return Err(Invalid(format!("specversion {:?} is not 1.0", self.specversion)));
        }
        let body = Body::parse(&self.kind, self.data.get())?;
        let (target, subject, action) = body.address();
        if !target.is_empty() && target != self.target {
            return Err(Invalid(format!("attribute target is {:?}, the data says {target:?}", self.target)));
        }
        if self.action != action {
            return Err(Invalid(format!("attribute action is {:?}, the data says {action:?}", self.action)));
        }
        let named = self.subject.strip_prefix(&self.target).and_then(|rest| rest.strip_prefix('/'));
        if named != Some(&*subject) || self.key.as_bytes() != digits_of(&self.target, &subject) {
            return Err(Invalid(format!("attributes subject and key do not belong to {subject:?}")));
        }
        Ok(body)
    }

    /// The shard of its key.
    pub fn shard(&self) -> u32 {
        shard_of(&self.key)
    }

    /// The trace context it carries.
    pub fn trace(&self) -> Trace {
        Trace { parent: self.traceparent.clone(), state: self.tracestate.clone() }
    }

    /// What a signature covers: every attribute that routes or identifies, and the data, each with its length before it.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.data.get().len() + 512);
        self.feed_signed(|part| bytes.extend_from_slice(part));
        bytes
    }

    /// Hands out [`Event::signed_bytes`] piece by piece.
    pub fn feed_signed(&self, mut to: impl FnMut(&[u8])) {
        let parts = [
            &*self.id,
            &self.source,
            &self.kind,
            &self.subject,
            &self.target,
            &self.action,
            &self.key,
            self.data.get(),
        ];
        for part in parts {
            to(&(part.len() as u64).to_be_bytes());
            to(part.as_bytes());
        }
    }

    /// As JSON.
    ///
    /// # Errors
    /// When the event is larger than [`MAX_EVENT_BYTES`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, Invalid> {
        let mut bytes = Vec::with_capacity(self.data.get().len() + 1024);
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    /// [`Event::to_bytes`] to the end of what is there.
    ///
    /// # Errors
    /// When the event is larger than [`MAX_EVENT_BYTES`].
    pub fn write(&self, to: &mut Vec<u8>) -> Result<(), Invalid> {
        let before = to.len();
        self.write_json(to).map_err(|e| Invalid(format!("cannot write event {}: {e}", self.id)))?;
        let length = to.len() - before;
        if length > MAX_EVENT_BYTES {
            return Err(Invalid(format!("event {} has {length} bytes, more than {MAX_EVENT_BYTES}", self.id)));
        }
        Ok(())
    }

    /// Writes the attributes, and behind them the data as it is: it need not be gone through again.
    fn write_json(&self, to: &mut Vec<u8>) -> serde_json::Result<()> {
        let data = self.data.json()?;
        let mut attributes = serde_json::Serializer::new(&mut *to);
        self.attributes(&mut Serializer::serialize_map(&mut attributes, None)?)?;
        for part in [&b",\"data\":"[..], data.as_bytes(), b"}"] {
            to.extend_from_slice(part);
        }
        Ok(())
    }

    /// Everything but the data.
    fn attributes<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("specversion", &self.specversion)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("source", &self.source)?;
        map.serialize_entry("type", &self.kind)?;
        map.serialize_entry("subject", &self.subject)?;
        map.serialize_entry("time", &self.time)?;
        map.serialize_entry("datacontenttype", &self.datacontenttype)?;
        map.serialize_entry("dataschema", &self.dataschema)?;
        map.serialize_entry("target", &self.target)?;
        map.serialize_entry("action", &self.action)?;
        map.serialize_entry("key", &self.key)?;
        let given = [
            ("traceparent", &self.traceparent),
            ("tracestate", &self.tracestate),
            ("signer", &self.signer),
            ("signature", &self.signature),
            ("proof", &self.proof),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                map.serialize_entry(name, value)?;
            }
        }
        Ok(())
    }

    /// From JSON. Only the envelope is read; [`Event::body`] reads the rest, and finds out whether it is JSON at all.
    ///
    /// # Errors
    /// When it is too large or not an envelope.
    pub fn from_bytes(bytes: &[u8]) -> Result<Event, Invalid> {
        if bytes.len() > MAX_EVENT_BYTES {
            return Err(Invalid(format!("{} bytes, more than an event may have ({MAX_EVENT_BYTES})", bytes.len())));
        }
        let invalid = |e: &dyn std::fmt::Display| Invalid(format!("not an event: {e}"));
        let text = std::str::from_utf8(bytes).map_err(|e| invalid(&e))?;
        match Event::with_data_at_its_end(text) {
            Some(event) => Ok(event),
            None => serde_json::from_str(text).map_err(|e| invalid(&e)),
        }
    }

    /// Reads an event that is written as ours are, its data last, without looking through the data. None if it is not.
    ///
    /// Inside a text a quotation mark is escaped, and all attributes are texts: the first `,"data":` of an event is that of the
    /// envelope or comes after it, and an event that ends with two braces ends with its data. Whatever else may be written so is
    /// no JSON, which [`Event::body`] finds.
    fn with_data_at_its_end(text: &str) -> Option<Event> {
        const DATA: &str = ",\"data\":";
        let at = text.find(DATA)?;
        let data = text[at + DATA.len()..].strip_suffix('}').filter(|data| data.ends_with('}'))?;
        let attributes = [&text[..at], DATA, "0}"].concat();
        let mut event: Event = serde_json::from_str(&attributes).ok()?;
        event.data = Data::came(data);
        Some(event)
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        self.attributes(&mut map)?;
        map.serialize_entry("data", &self.data)?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ScanRequest, Scope, Trigger};

    fn request() -> Event {
        let id = uuid::Uuid::from_u128(7);
        let body = ScanRequest { id, target: "pulsar".into(), scope: Scope::default(), trigger: Trigger::Cli };
        Event::new(id.to_string(), "/trimtab/cli/x", "pulsar", Timestamp::UNIX_EPOCH, Trace::default(), body)
            .expect("small")
    }

    #[test]
    fn an_event_survives_the_way_through_bytes() {
        let event = request();
        let back = Event::from_bytes(&event.to_bytes().expect("small")).expect("ours");
        assert_eq!(back.body(), event.body());
        assert_eq!(back.signed_bytes(), event.signed_bytes());
    }

    #[test]
    fn both_ways_to_write_it_give_the_same() {
        let mut event = request();
        for fill in [0, 1] {
            if fill == 1 {
                let text = || Some("a \"text\"\n".to_owned());
                (event.traceparent, event.tracestate) = (text(), text());
                (event.signer, event.signature, event.proof) = (text(), text(), text());
            }
            let bytes = event.to_bytes().expect("small");
            assert_eq!(serde_json::to_vec(&event).expect("JSON"), bytes);
            let back: Event = serde_json::from_slice(&bytes).expect("an event");
            assert_eq!(back.to_bytes().expect("small"), bytes);
        }
    }

    #[test]
    fn what_came_and_is_no_json_is_not_passed_on() {
        let text = String::from_utf8(request().to_bytes().expect("small")).expect("utf-8");
        let broken = text.replace("\"data\":{", "\"data\":{\"");
        let event = Event::from_bytes(broken.as_bytes()).expect("the envelope is fine");
        assert!(event.to_bytes().is_err() && serde_json::to_vec(&event).is_err());
    }

    #[test]
    fn attributes_that_disagree_with_the_data_are_refused() {
        for change in [
            |e: &mut Event| e.target = "other".into(),
            |e: &mut Event| e.action = "trim".into(),
            |e: &mut Event| e.subject = "pulsar/x".into(),
            |e: &mut Event| e.key = "0".repeat(32),
            |e: &mut Event| e.kind = "dev.trimtab.decision.v1".into(),
            |e: &mut Event| e.specversion = "0.3".into(),
        ] {
            let mut event = request();
            change(&mut event);
            assert!(event.body().is_err(), "{event:?}");
        }
    }

    #[test]
    fn unknown_attributes_and_fields_are_refused() {
        let text = String::from_utf8(request().to_bytes().expect("small")).expect("utf-8");
        let extra = text.replacen('{', "{\"extra\":1,", 1);
        assert!(Event::from_bytes(extra.as_bytes()).is_err());
        let extra = text.replacen("\"data\":{", "\"data\":{\"extra\":1,", 1);
        assert!(Event::from_bytes(extra.as_bytes()).expect("the envelope is fine").body().is_err());
    }

    /// What the whole way of reading says: the body, if both envelope and body can be read.
    fn in_order(text: &str) -> Option<Body> {
        serde_json::from_str::<Event>(text).ok()?.body().ok()
    }

    fn as_it_comes(text: &str) -> Option<Body> {
        Event::from_bytes(text.as_bytes()).ok()?.body().ok()
    }

    #[test]
    fn where_the_data_stands_makes_no_difference() {
        let mut event = request();
        event.source = "/trimtab/,\"data\":{}}/x".to_owned();
        event.tracestate = Some("a=1".to_owned());
        let ours = String::from_utf8(event.to_bytes().expect("small")).expect("utf-8");
        let data = event.data.get().to_owned();
        let head = ours.strip_suffix(&format!(",\"data\":{data}}}")).expect("data is last");
        let spread = serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(&ours).expect("JSON"));
        let others = [
            format!("{{\"data\":{data},{}}}", &head[1..]),
            format!("{head}, \"data\" : {data} }}\n"),
            format!("{},\"data\":{data},\"tracestate\":\"a=1\"}}", head.replacen(",\"tracestate\":\"a=1\"", "", 1)),
            spread.expect("JSON"),
            ours,
        ];
        for text in others {
            assert_eq!(as_it_comes(&text), event.body().ok(), "{text}");
            assert_eq!(in_order(&text), event.body().ok(), "{text}");
        }
    }

    #[test]
    fn nothing_is_read_that_the_whole_way_would_refuse() {
        let text = String::from_utf8(request().to_bytes().expect("small")).expect("utf-8");
        let end = text.strip_suffix('}').expect("an object");
        for more in [",\"data\":{}}", ",\"key\":\"x\"}", ",\"extra\":{}}", "}}", "}", "", "{}", ",", "]}", " x}"] {
            let text = format!("{end}{more}");
            assert_eq!(as_it_comes(&text), in_order(&text), "{text}");
        }
        for (at, _) in text.char_indices() {
            for with in ["", "\"", "}", "{", ",\"data\":", "\\", "0"] {
                let text = [&text[..at], with, &text[at + 1..]].concat();
                assert_eq!(as_it_comes(&text), in_order(&text), "{text}");
            }
        }
    }
}
