//! Hedwig: the formats against what real hubs wrote and sent.

#[path = "hedwig/wire.rs"]
mod wire;
