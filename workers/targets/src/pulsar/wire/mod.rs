//! Pulsar's binary protocol, as much of it as attaching to a subscription needs: connect, find the owner, subscribe, acknowledge
//! up to a position, ask where the subscription stands, seek, unsubscribe, close. Messages are neither asked for nor taken.
//!
//! Sources: `PulsarApi.proto` of Pulsar 4.2 and bytes recorded from its broker. No client crate serves: the one there is builds only
//! with `protoc`, and its consumers ask for messages as soon as they are connected.

mod address;
mod connection;
mod frame;
mod proto;
#[cfg(test)]
mod recorded;
mod tls;

pub use address::BrokerAddress;
pub use connection::{
    Attach, Attachment, Connection, ConnectionOptions, Disturbance, LastMessage, Owner, Refusal, WireError,
};
pub use frame::{Frame, FrameError, MAX_FRAME, encode};
pub use proto::*;
pub use tls::TlsOptions;
