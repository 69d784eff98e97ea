//! Chance that can be had again.

use std::time::Duration;

use crate::now_ms;

/// Numbers from a seed that is printed, so that a failure can be had again: `TRIMTAB_SEED` sets it.
#[derive(Debug)]
pub struct Dice(u64);

impl Default for Dice {
    fn default() -> Dice {
        Dice::new()
    }
}

impl Dice {
    /// With the seed of the environment, or one that is new each time.
    pub fn new() -> Dice {
        let seed = std::env::var("TRIMTAB_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| now_ms().unsigned_abs());
        eprintln!("seed {seed} (TRIMTAB_SEED)");
        Dice(seed)
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Sleeps for less than so many milliseconds.
    pub fn sleep(&mut self, up_to_ms: u64) {
        self.sleep_from(0, up_to_ms);
    }

    /// Sleeps for so many milliseconds at least, and less than so many.
    pub fn sleep_from(&mut self, from_ms: u64, up_to_ms: u64) {
        std::thread::sleep(Duration::from_millis(from_ms + self.below(up_to_ms - from_ms)));
    }
}
