//! Orphan ledgers: the captured tree, read from a snapshot and live, and what errors and lies in either make of it.

#[path = "orphans/captured.rs"]
mod captured;
#[path = "orphans/cases.rs"]
mod cases;
#[path = "orphans/fake.rs"]
mod fake;
#[path = "orphans/faults.rs"]
mod faults;
#[path = "orphans/look.rs"]
mod look;
#[path = "orphans/properties.rs"]
mod properties;
#[path = "orphans/real.rs"]
mod real;
#[path = "orphans/roles.rs"]
mod roles;
#[path = "orphans/world.rs"]
mod world;
