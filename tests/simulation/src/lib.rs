//! A simulation of whole clusters of workers, decided by a seed.
//!
//! The real scanner, decider, executor, audit, policy, leases and loop run in one process on a clock that leaps to whatever happens next,
//! against model targets. What goes wrong is drawn from the seed: calls that fail, arrive late or get no answer, processes that end at any
//! await or stand still, events that are lost, repeated, late or forged, leases and queues that are lost, clocks that differ and leap,
//! servers that lag behind, records that are cut. Meanwhile clients come and go, and people change their minds. After every step the
//! promises are held against what happens; at the end, everything that is due must have been done. The same seed is the same run.

pub mod cluster;
pub mod hubs;
pub mod mutants;
mod process;
mod run;
mod target;
mod users;
mod wires;
mod world;

pub use run::{Ran, each, run};
pub use world::Fault;
