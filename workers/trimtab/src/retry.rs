//! When to try again. The only file that knows the `backoff` crate, which is unmaintained (RUSTSEC-2025-0012): it is used as a
//! source of delays and nothing else.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff;

/// Delays of a retried call: doubling from `first` to `most`, each varied by up to a share.
#[derive(Debug, Clone, Copy)]
pub struct Delays {
    /// The first delay.
    pub first: Duration,
    /// The longest delay.
    pub most: Duration,
    /// By how much each is varied at most, so that those who failed together do not come back together: 0 to 1.
    pub vary: f64,
}

impl Default for Delays {
    fn default() -> Self {
        Delays { first: Duration::from_millis(500), most: Duration::from_secs(60), vary: 0.5 }
    }
}

impl Delays {
    /// The delay after this many tries.
    pub fn after(self, tries: u64) -> Duration {
        let mut backoff = ExponentialBackoff {
            current_interval: self.first,
            initial_interval: self.first,
            randomization_factor: self.vary,
            multiplier: 2.0,
            max_interval: self.most,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        let mut delay = self.first;
        for _ in 0..tries.clamp(1, 32) {
            delay = backoff.next_backoff().unwrap_or(self.most);
        }
        delay.min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_and_stay_within_bounds() {
        let delays = Delays::default();
        assert!(delays.after(1) >= Duration::from_millis(250) && delays.after(1) <= Duration::from_millis(750));
        assert!(delays.after(6) > delays.after(1));
        for tries in [0, 1, 20, u64::MAX] {
            assert!(delays.after(tries) <= delays.most, "{tries}");
        }
    }
}
