//! Parts of a test that share one rig and happen at once, each on things of its own.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

/// A part and what it is called.
pub type Part<'a> = (String, Box<dyn FnOnce() + Send + 'a>);

/// Does all parts at once, each in a thread of its own, says how long each took, and panics like the first that failed, once all have
/// ended.
pub fn side_by_side(parts: Vec<Part<'_>>) {
    let start = Instant::now();
    let failed = std::thread::scope(|scope| {
        let begun: Vec<_> = parts
            .into_iter()
            .map(|(name, part)| {
                scope.spawn(move || {
                    let ended = catch_unwind(AssertUnwindSafe(part));
                    let how = if ended.is_ok() { "ok" } else { "FAILED" };
                    println!("{:6.1} s  {name}: {how}", start.elapsed().as_secs_f32());
                    ended.err()
                })
            })
            .collect();
        begun.into_iter().filter_map(|thread| thread.join().unwrap_or_else(Some)).collect::<Vec<_>>()
    });
    if let Some(first) = failed.into_iter().next() {
        resume_unwind(first);
    }
}
