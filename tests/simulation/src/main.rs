//! `simulate`: runs seeds, and says what came of them.
//!
//!     simulate                 the seeds from 0 to 999
//!     simulate FROM COUNT      so many seeds from there
//!     simulate SEED            one, with everything that happened
//!     simulate mutants [TEXT]  whether each change of `mutants.rs` (whose description has TEXT) is noticed: built below target/mutants,
//!                              about a minute each

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};

use trimtab_simulation::mutants::{MUTANTS, Mutant};
use trimtab_simulation::{Fault, Ran, each, run};

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|arg| arg == "mutants") {
        return mutants(&std::env::args().nth(2).unwrap_or_default());
    }
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
            eprintln!("usage: simulate [SEED | FROM COUNT | mutants [TEXT]]");
            ExitCode::from(2)
        }
    }
}

fn many(from: u64, count: u64) -> ExitCode {
    let begun = std::time::Instant::now();
    let all = Mutex::new(Sum::default());
    each(from..from + count, |seed, ran| all.lock().unwrap_or_else(PoisonError::into_inner).add(seed, ran));
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.print(count, begun.elapsed());
    if all.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Seeds that a mutant is run with before it counts as unnoticed.
const MUTANT_SEEDS: u64 = 3000;

/// Builds the workers with one change after the other, in a copy of the tree, and runs seeds until a promise is broken.
fn mutants(text: &str) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (tree, build) = (root.join("target/mutants/tree"), root.join("target/mutants/build"));
    if let Err(e) = copy(&root, &tree) {
        eprintln!("copying the tree to {}: {e}", tree.display());
        return ExitCode::FAILURE;
    }
    let mut unnoticed = 0;
    let tried: Vec<&Mutant> = MUTANTS.iter().filter(|mutant| mutant.does.contains(text)).collect();
    for mutant in &tried {
        let (begun, found) = (std::time::Instant::now(), notice(mutant, &root, &tree, &build));
        let took = begun.elapsed().as_secs();
        match &found {
            Ok(Some((seeds, first))) => {
                println!("noticed within {seeds} seeds ({took} s): {}\n    {first}", mutant.does)
            }
            Ok(None) => println!("NOT NOTICED by {MUTANT_SEEDS} seeds ({took} s): {}", mutant.does),
            Err(e) => println!("CANNOT BE TRIED: {}: {e}", mutant.does),
        }
        unnoticed += u32::from(!matches!(found, Ok(Some(_))));
    }
    println!("{} of {} noticed", tried.len() as u32 - unnoticed, tried.len());
    if unnoticed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Copies what belongs to the project, and touches only what differs.
fn copy(root: &Path, tree: &Path) -> std::io::Result<()> {
    let listed = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output()?;
    for file in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|file| !file.is_empty()) {
        let (from, to) = (std::fs::read(root.join(file))?, tree.join(file));
        if std::fs::read(&to).ok().as_ref() != Some(&from) {
            std::fs::create_dir_all(to.parent().unwrap_or(tree))?;
            std::fs::write(&to, from)?;
        }
    }
    Ok(())
}

/// After how many seeds a mutant was noticed, and by what.
fn notice(mutant: &Mutant, root: &Path, tree: &Path, build: &Path) -> Result<Option<(u64, String)>, String> {
    copy(root, tree).map_err(|e| e.to_string())?;
    mutant.apply(tree)?;
    let manifest = tree.join("Cargo.toml");
    let cargo = Command::new("cargo")
        .args([
            "build",
            "--quiet",
            "--locked",
            "-p",
            "trimtab-simulation",
            "--profile",
            "test",
            "--bin",
            "simulate",
            "--manifest-path",
        ])
        .arg(manifest)
        .arg("--target-dir")
        .arg(build)
        // A change may leave something unused.
        .env("RUSTFLAGS", "--cap-lints=warn")
        .status();
    if !cargo.map_err(|e| format!("cargo: {e}"))?.success() {
        return Err("it does not compile".to_owned());
    }
    for from in (0..MUTANT_SEEDS).step_by(100) {
        let run = Command::new(build.join("debug/simulate")).args([from.to_string(), "100".to_owned()]).output();
        let run = run.map_err(|e| e.to_string())?;
        if !run.status.success() {
            let text = String::from_utf8_lossy(&run.stdout).into_owned();
            let first = text.lines().find(|line| line.starts_with("seed ")).unwrap_or("it ended in another way");
            return Ok(Some((from + 100, first.to_owned())));
        }
    }
    Ok(None)
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
        for (seed, first) in self.broken.iter().take(20) {
            println!("seed {seed}: {first}");
        }
        println!("{} of {count} seeds broke a promise", self.broken.len());
    }
}
