//! The clock, as a value: rules and records take their time from here, so that tests can set it.

use std::sync::Arc;

/// Milliseconds since 1970, from wherever the maker decided.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> i64 + Send + Sync>);

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Clock {
        Clock(Arc::new(|| jiff::Timestamp::now().as_millisecond()))
    }

    /// A clock that always shows this moment.
    pub fn fixed(now_ms: i64) -> Clock {
        Clock(Arc::new(move || now_ms))
    }

    /// A clock that asks `now`.
    pub fn from_fn(now: impl Fn() -> i64 + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        (self.0)()
    }

    /// The same as a time stamp.
    pub fn now(&self) -> jiff::Timestamp {
        timestamp(self.now_ms())
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({})", self.now_ms())
    }
}

/// A time stamp; the epoch where the number is out of range.
pub fn timestamp(ms: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_millisecond(ms).unwrap_or_default()
}

/// A duration for a person: the two largest units.
pub fn ago(ms: i64) -> String {
    let seconds = (ms / 1000).max(0);
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let Some(first) = units.iter().position(|(size, _)| seconds >= *size) else { return "0 s".to_owned() };
    let (size, name) = units[first];
    let rest = units.get(first + 1).map(|(small, name)| (seconds % size / small, name)).filter(|(n, _)| *n > 0);
    match rest {
        Some((n, small)) if first < 2 => format!("{} {name} {n} {small}", seconds / size),
        _ => format!("{} {name}", seconds / size),
    }
}
