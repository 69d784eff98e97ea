//! What goes wrong around trimtab: brokers that misbehave, a ZooKeeper that goes away, disks that are full, processes that are
//! killed, people who mistype. Each time: nothing is freed that was not to be, nothing is counted as freed that is not, and
//! whoever looks is told.

#[path = "faults/auth.rs"]
mod auth;
#[path = "faults/brokers.rs"]
mod brokers;
#[path = "faults/calls.rs"]
mod calls;
#[path = "faults/clocks.rs"]
mod clocks;
#[path = "faults/deaf.rs"]
mod deaf;
#[path = "faults/endings.rs"]
mod endings;
#[path = "faults/follow.rs"]
mod follow;
#[path = "faults/ground.rs"]
mod ground;
#[path = "faults/inside.rs"]
mod inside;
#[path = "faults/listings.rs"]
mod listings;
#[path = "faults/local.rs"]
mod local;
#[path = "faults/model.rs"]
mod model;
#[path = "faults/nth.rs"]
mod nth;
#[path = "faults/points.rs"]
mod points;
#[path = "faults/spawned.rs"]
mod spawned;
#[path = "faults/zookeeper.rs"]
mod zookeeper;
