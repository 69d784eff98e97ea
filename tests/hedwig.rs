//! Hedwig: the formats against what real hubs wrote and sent, the inventory, and acts on real hubs.

#[path = "hedwig/acts.rs"]
mod acts;
#[path = "hedwig/fixture.rs"]
mod fixture;
#[path = "hedwig/region.rs"]
mod region;
#[path = "hedwig/story.rs"]
mod story;
#[path = "hedwig/wire.rs"]
mod wire;
