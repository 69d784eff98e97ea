//! Hedwig: the formats against what real hubs wrote and sent, the inventory, and acts on real hubs.

#[path = "hedwig/acts.rs"]
mod acts;
#[path = "hedwig/fixture.rs"]
mod fixture;
#[path = "hedwig/hubs.rs"]
mod hubs;
#[path = "hedwig/region.rs"]
mod region;
#[path = "hedwig/steps.rs"]
mod steps;
#[path = "hedwig/story.rs"]
mod story;
#[path = "hedwig/together.rs"]
mod together;
#[path = "hedwig/wire.rs"]
mod wire;
