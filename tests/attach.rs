//! Acts on subscriptions of a real Pulsar: what is acknowledged is exactly what was decided on, and nobody who is connected, or comes
//! back at any moment, loses anything.

#[path = "attach/boundaries.rs"]
mod boundaries;
#[path = "attach/client.rs"]
mod client;
#[path = "attach/ground.rs"]
mod ground;
#[path = "attach/online.rs"]
mod online;
#[path = "attach/reach.rs"]
mod reach;
#[path = "attach/story.rs"]
mod story;
#[path = "attach/together.rs"]
mod together;
#[path = "attach/told.rs"]
mod told;
#[path = "attach/undo.rs"]
mod undo;
