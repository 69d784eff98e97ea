//! The body of an event as the text that it came in.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A body as JSON, kept as it was written, so that a signature over it can be checked.
///
/// What came from outside is not looked at before [`Event::body`](crate::Event::body) reads it: looking only whether it is JSON takes
/// half as long as reading it.
#[derive(Clone)]
pub struct Data(Text);

#[derive(Clone)]
enum Text {
    Json(Box<RawValue>),
    Came(Box<str>),
}

impl Data {
    /// Text that may or may not be JSON.
    pub(crate) fn came(text: &str) -> Data {
        Data(Text::Came(text.into()))
    }

    /// The text.
    pub fn get(&self) -> &str {
        match &self.0 {
            Text::Json(json) => json.get(),
            Text::Came(text) => text,
        }
    }
}

impl From<Box<RawValue>> for Data {
    fn from(json: Box<RawValue>) -> Data {
        Data(Text::Json(json))
    }
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for Data {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Text::Json(json) => json.serialize(to),
            // What is passed on is JSON, whatever came.
            Text::Came(text) => {
                serde_json::from_str::<&RawValue>(text).map_err(serde::ser::Error::custom)?.serialize(to)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Data, D::Error> {
        Box::<RawValue>::deserialize(from).map(Data::from)
    }
}
