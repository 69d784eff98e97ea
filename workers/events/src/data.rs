//! The body of an event as the text that it came in.

use std::cell::RefCell;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A body as JSON, kept as it was written, so that a signature over it can be checked.
///
/// What came from outside is not looked at before [`Event::body`](crate::Event::body) reads it: looking only whether it is JSON takes
/// half as long as reading it.
#[derive(Clone)]
pub struct Data {
    text: Box<str>,
    /// It is known to be JSON.
    json: bool,
}

/// What is written keeps its room up to this size.
const KEPT: usize = 1024 * 1024;

thread_local! {
    /// Where bodies are written before their size is known: growing to it each time costs more than writing.
    static WRITING: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Data {
    /// Text that may or may not be JSON.
    pub(crate) fn came(text: &str) -> Data {
        Data { text: text.into(), json: false }
    }

    /// A body as JSON.
    pub(crate) fn of(body: &impl Serialize) -> serde_json::Result<Data> {
        let mut bytes = WRITING.take();
        bytes.clear();
        let written = serde_json::to_writer(&mut bytes, body)
            .and_then(|()| str::from_utf8(&bytes).map(Box::from).map_err(serde::ser::Error::custom));
        if bytes.capacity() <= KEPT {
            WRITING.set(bytes);
        }
        Ok(Data { text: written?, json: true })
    }

    /// The text.
    pub fn get(&self) -> &str {
        &self.text
    }

    /// The text, if it is JSON: what is passed on must be.
    pub(crate) fn json(&self) -> serde_json::Result<&str> {
        if self.json { Ok(&self.text) } else { serde_json::from_str::<&RawValue>(&self.text).map(RawValue::get) }
    }
}

impl From<Box<RawValue>> for Data {
    fn from(json: Box<RawValue>) -> Data {
        Data { text: json.into(), json: true }
    }
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.text).map_err(serde::ser::Error::custom)?.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Data, D::Error> {
        Box::<RawValue>::deserialize(from).map(Data::from)
    }
}
