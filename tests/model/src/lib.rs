//! A model of how decisions are carried out: scans, redelivery, crashes, leases, and what owners do meanwhile. For each kind of act every
//! order in which things can happen is tried, for small sizes: two executors, two decisions and an eager world.
//!
//! [`protocol`] is what all acts have in common: the bus, `workers/trimtab/src/workers/executor.rs` and its journal. The other modules are
//! the owners and what is called there; [`scans`] is the lease, the fencing number and the gate of a scan. Each says which code it
//! models, and `places` holds it to that: code that is not there any more, or not in that order, fails a test.
//!
//! Three kinds of tests: that the promises hold in all states; that each guard that is taken away breaks one; and what guards that are
//! often trusted (a lease, a fencing number, a second look) do not do. `docs/reliability.md` has the results.

#[cfg(test)]
mod attach;
#[cfg(test)]
mod close;
#[cfg(test)]
mod expire;
#[cfg(test)]
mod orphan;
#[cfg(test)]
mod places;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod reset;
#[cfg(test)]
mod scans;
#[cfg(test)]
mod trim;
