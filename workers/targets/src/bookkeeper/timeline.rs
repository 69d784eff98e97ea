//! When things were written, by more than their own word: transactions are ordered, so what a later one wrote was written no earlier
//! than what an earlier one did.

use std::collections::BTreeMap;

/// Buckets of transactions; more are merged in pairs.
const BUCKETS: usize = 2048;

/// The newest times by ranges of transactions, in bounded memory.
#[derive(Debug, Clone)]
pub(crate) struct Timeline {
    /// Times behind it are not believed.
    now_ms: i64,
    /// A bucket holds transactions whose numbers agree but for so many bits.
    shift: u32,
    buckets: BTreeMap<i64, i64>,
}

impl Timeline {
    /// Believes nothing later than `now_ms`.
    pub(crate) fn new(now_ms: i64) -> Timeline {
        Timeline { now_ms, shift: 0, buckets: BTreeMap::new() }
    }

    /// Something was written by this transaction at this time.
    pub(crate) fn note(&mut self, zxid: i64, ms: i64) {
        if zxid <= 0 || ms <= 0 || ms > self.now_ms {
            return;
        }
        let known = self.buckets.entry(zxid >> self.shift).or_insert(ms);
        *known = ms.max(*known);
        while self.buckets.len() > BUCKETS {
            self.shift += 1;
            let mut merged = BTreeMap::new();
            for (bucket, ms) in &self.buckets {
                let known = merged.entry(bucket >> 1).or_insert(*ms);
                *known = (*ms).max(*known);
            }
            self.buckets = merged;
        }
    }

    /// The newest time of all, 0 when there is none.
    pub(crate) fn newest_ms(&self) -> i64 {
        self.buckets.values().copied().max().unwrap_or(0)
    }

    /// What is written is over: times can be looked up.
    pub(crate) fn ended(&self) -> Order {
        let mut newest = 0;
        let ascending = self.buckets.iter().map(|(bucket, ms)| {
            newest = newest.max(*ms);
            (*bucket, newest)
        });
        Order { shift: self.shift, newest: ascending.collect() }
    }
}

/// Looks up times by transaction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Order {
    shift: u32,
    /// Buckets with the newest time up to each.
    newest: Vec<(i64, i64)>,
}

impl Order {
    /// A time that what this transaction wrote cannot be older than; 0 when nothing earlier is known.
    pub(crate) fn written_after_ms(&self, zxid: i64) -> i64 {
        // The bucket of the transaction itself may hold later ones.
        let before = self.newest.partition_point(|(bucket, _)| *bucket < zxid >> self.shift);
        before.checked_sub(1).map_or(0, |index| self.newest[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_went_back_makes_nothing_old() {
        let mut line = Timeline::new(1_000);
        for (zxid, ms) in [(1, 100), (2, 200), (3, 5), (4, 300), (5, 2_000), (6, -1), (0, 999)] {
            line.note(zxid, ms);
        }
        let order = line.ended();
        assert_eq!(order.written_after_ms(3), 200);
        assert_eq!(order.written_after_ms(1), 0);
        assert_eq!(order.written_after_ms(99), 300);
        assert_eq!(line.newest_ms(), 300);
    }

    #[test]
    fn many_transactions_take_bounded_memory_and_never_too_new_a_time() {
        let mut line = Timeline::new(i64::MAX);
        let zxid = |i: i64| ((i % 7) << 32) | (i * 31 % 100_003);
        for i in 1..100_000 {
            line.note(zxid(i), zxid(i) + 5);
        }
        assert!(line.buckets.len() <= BUCKETS);
        let order = line.ended();
        for i in 1..1_000 {
            let after = order.written_after_ms(zxid(i));
            assert!(after < zxid(i) + 5, "{i}: {after}");
        }
    }
}
