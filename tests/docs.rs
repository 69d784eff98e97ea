//! What the documentation says can be typed and written: each command is one, with flags that it has; each configuration loads.

use clap::Command;
use trimtab_tests::book::{blocks, files, read, trimtab};

/// What stands for something of the reader's, where a command takes only some things.
const STANDS_FOR: [(&str, &str); 3] = [
    ("ID", "0197a1b2-0000-7000-8000-000000000000"),
    ("SCAN", "0197a1b2-0000-7000-8000-000000000000"),
    ("HOST", "host"),
];

fn fill(word: &str) -> String {
    match STANDS_FOR.iter().find(|(name, _)| *name == word) {
        Some((_, value)) => (*value).to_owned(),
        None => word.replace("HOST", "host"),
    }
}

#[test]
fn every_command_in_a_block_is_one() {
    let mut seen = 0;
    for file in files() {
        let text = read(&file);
        let fenced = ["sh", ""].into_iter().flat_map(|language| blocks(&text, language));
        let fenced: Vec<String> =
            fenced.flat_map(|(_, block)| block.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        let indented = text.lines().filter_map(|line| line.strip_prefix("    ")).map(str::to_owned);
        for line in fenced.into_iter().chain(indented) {
            let Some(args) = trimtab(&line) else { continue };
            let args = std::iter::once("trimtab".to_owned()).chain(args.iter().map(|word| fill(word)));
            if let Err(e) = trimtab::cli::command().try_get_matches_from(args) {
                let asked =
                    matches!(e.kind(), clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion);
                assert!(asked, "{file}: {line}\n{e}");
            }
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen} commands");
}

/// Text between single backticks, line by line.
fn inline(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.starts_with("    ")).flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[test]
fn every_command_that_is_mentioned_exists_and_has_its_flags() {
    let root = trimtab::cli::command();
    let mut seen = 0;
    for file in files() {
        for code in inline(&read(&file)) {
            let Some(rest) = code.strip_prefix("trimtab ") else { continue };
            let mut at: &Command = &root;
            let mut flags = Vec::new();
            let mut below = true;
            for word in rest.split_whitespace() {
                let flag = word.split('=').next().unwrap_or_default();
                // `list|show|retry` names several.
                let names: Vec<&str> = word.split('|').collect();
                let next = names.iter().map(|name| at.find_subcommand(name)).collect::<Option<Vec<_>>>();
                if flag.starts_with("--") {
                    flags.push(flag.trim_start_matches('-').trim_end_matches([',', '.']));
                } else if let Some(next) = next.filter(|_| below) {
                    at = next[0];
                } else {
                    assert!(!std::ptr::eq(at, &root) || word == "…", "{file}: `{code}`: there is no command {word:?}");
                    below = false;
                }
            }
            let known = |name: &str| {
                let mut all = at.get_arguments().chain(root.get_arguments());
                all.any(|arg| arg.get_long() == Some(name)) || ["help", "version"].contains(&name)
            };
            for flag in flags {
                assert!(known(flag), "{file}: `{code}`: there is no flag --{flag}");
            }
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen} mentions");
}

#[test]
fn every_configuration_loads() {
    // A webhook's client is made to look at its address.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trimtab.toml");
    let mut seen = 0;
    for file in files() {
        for (line, block) in blocks(&read(&file), "toml") {
            std::fs::write(&path, &block).unwrap();
            if let Err(e) = trimtab::config::Config::load(Some(&path)) {
                panic!("{file}, line {line}: {e}\n{block}");
            }
            seen += 1;
        }
    }
    assert!(seen > 12, "{seen} configurations");
}

#[test]
fn every_link_leads_to_a_file() {
    for file in files() {
        let text = read(&file);
        let folder = std::path::Path::new(&file).parent().unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = target.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder).join(target);
            assert!(path.exists(), "{file}: {target}");
        }
    }
}
