//! `simulate`: runs seeds, and says what came of them.
//!
//!     simulate                 the seeds from 0 to 999
//!     simulate FROM COUNT      so many seeds from there
//!     simulate SEED            one, with everything that happened

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use trimtab_simulation::{Fault, Ran, run};

fn main() -> ExitCode {
    let numbers: Option<Vec<u64>> = std::env::args().skip(1).map(|arg| arg.parse().ok()).collect();
    match numbers.as_deref() {
        Some([seed]) => {
            let ran = run(*seed);
            print!("{}", ran.log);
            println!(
                "{} acts, {} moved, {} lives, {} promises broken",
                ran.acts,
                ran.moved,
                ran.lives,
                ran.wrong.len()
            );
            if ran.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Some([]) => many(0, 1000),
        Some([from, count]) => many(*from, *count),
        _ => {
            eprintln!("usage: simulate [SEED | FROM COUNT]");
            ExitCode::from(2)
        }
    }
}

fn many(from: u64, count: u64) -> ExitCode {
    let next = AtomicU64::new(from);
    let begun = std::time::Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut all = Sum::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= from + count {
                return all;
            }
            all.add(seed, run(seed));
        }
    };
    let all = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let sums = running.into_iter().map(|thread| thread.join().expect("no panic outside a run"));
        sums.reduce(Sum::merge).unwrap_or_default()
    });
    all.print(count, begun.elapsed());
    if all.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[derive(Default)]
struct Sum {
    broken: BTreeMap<u64, String>,
    reached: BTreeMap<(String, Fault), u64>,
    made: BTreeMap<String, u64>,
    acts: u64,
    moved: u64,
    lives: u64,
    log: u64,
}

impl Sum {
    fn add(&mut self, seed: u64, ran: Ran) {
        self.broken.extend(ran.wrong.into_iter().next().map(|first| (seed, first)));
        ran.reached.into_iter().for_each(|(point, times)| *self.reached.entry(point).or_default() += times);
        ran.made.into_iter().for_each(|(call, times)| *self.made.entry(call).or_default() += times);
        self.acts += ran.acts;
        self.moved += ran.moved;
        self.lives += ran.lives;
        self.log += ran.log.len() as u64;
    }

    fn merge(mut self, other: Sum) -> Sum {
        self.broken.extend(other.broken);
        other.reached.into_iter().for_each(|(point, times)| *self.reached.entry(point).or_default() += times);
        other.made.into_iter().for_each(|(call, times)| *self.made.entry(call).or_default() += times);
        self.acts += other.acts;
        self.moved += other.moved;
        self.lives += other.lives;
        self.log += other.log;
        self
    }

    fn print(&self, count: u64, took: std::time::Duration) {
        let points = self.made.len() * Fault::ALL.len();
        println!(
            "{count} seeds in {:.1} s: {} calls, {} faults at {} of {points} points, {} acts, {} subscribers moved, {} lives of processes",
            took.as_secs_f64(),
            self.made.values().sum::<u64>(),
            self.reached.values().sum::<u64>(),
            self.reached.len(),
            self.acts,
            self.moved,
            self.lives
        );
        if std::env::var_os("CALLS").is_some() {
            let mut made: Vec<_> = self.made.iter().collect();
            made.sort_by_key(|(_, times)| std::cmp::Reverse(**times));
            made.iter().for_each(|(call, times)| println!("{times:>10} {call}"));
        }
        for (seed, first) in self.broken.iter().take(20) {
            println!("seed {seed}: {first}");
        }
        println!("{} of {count} seeds broke a promise", self.broken.len());
    }
}
