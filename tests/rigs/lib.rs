//! Rigs: the real systems, booted on loopback for a test and stopped when it ends.
//!
//! A rig takes free ports and a temporary folder, waits by asking the system whether it is ready, and stops everything it
//! started when it is dropped, or, should the test die first, when the watcher in [`process`] notices. Everything here is
//! synchronous, so plain and async tests use it alike (wrap slow calls in `spawn_blocking` where that matters).
//!
//! What has to be fetched or built once (class paths, `nats-server`, compiled helpers, the finished mess) lives in the
//! cache folder of [`cache`], outside the tree. A missing tool is an error that names it, never a skipped test.

pub mod book;
pub mod browser;
pub mod cache;
pub mod dice;
pub mod formats;
pub mod frame_proxy;
pub mod hedwig;
pub mod http;
pub mod jaeger;
pub mod java;
pub mod kafka;
pub mod mess;
pub mod nats;
pub mod otlp;
pub mod ports;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod pulsar;
pub mod roles;
pub mod together;
pub mod trimtab;
pub mod webhook;
pub mod zk_liar;
pub mod zk_proxy;
pub mod zookeeper;

/// Now, in milliseconds since 1970.
pub fn now_ms() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |t| i64::try_from(t.as_millis()).unwrap_or(i64::MAX))
}
