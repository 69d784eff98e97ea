//! Many workers, any of which may die, on a real nats-server and a real ZooKeeper, against brokers that are only played: limits that all
//! keep together, scanners that are paused, queues that are full, servers that are killed. The oracle is the test's own: which ledgers
//! were due.

#[path = "workers/crew.rs"]
mod crew;
#[path = "workers/fire.rs"]
mod fire;
#[path = "faults/ground.rs"]
#[allow(dead_code, reason = "the tests of faults use the rest")]
mod ground;
#[path = "workers/limits.rs"]
mod limits;
#[path = "workers/paused.rs"]
mod paused;
#[path = "workers/pressure.rs"]
mod pressure;
