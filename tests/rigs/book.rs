//! The documentation, as far as it can be run: commands and configurations.

use std::path::{Path, PathBuf};

/// A file of the documentation, by its path from the root of the repository.
///
/// # Panics
/// When it cannot be read.
pub fn read(file: &str) -> String {
    let path = root().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files of the documentation, by their paths from the root of the repository.
///
/// # Panics
/// When the folder cannot be read.
pub fn files() -> Vec<String> {
    let docs = std::fs::read_dir(root().join("docs")).expect("docs").flatten();
    let names = docs.map(|entry| format!("docs/{}", entry.file_name().to_string_lossy()));
    let mut files: Vec<String> = names.filter(|name| name.ends_with(".md")).collect();
    files.push("README.md".to_owned());
    files.sort();
    files
}

/// What stands in blocks of a language, each with the line that it begins at.
pub fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let (mut found, mut open) = (Vec::new(), None::<(usize, String, bool)>);
    for (number, line) in (1..).zip(text.lines()) {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (Some(_), Some(_)) => {
                let (at, block, wanted) = open.take().unwrap_or_default();
                if wanted {
                    found.push((at, block));
                }
            }
            (None, Some(of)) => open = Some((number, String::new(), of.trim() == language)),
            (Some((_, block, _)), None) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// The arguments of a line that has trimtab do something, if it is one: without comments, and without where its output goes.
pub fn trimtab(line: &str) -> Option<Vec<String>> {
    let line = line.split(" #").next().unwrap_or_default().split(" > ").next().unwrap_or_default().trim();
    let line = match line.strip_prefix("cargo run ") {
        Some(rest) => rest.split_once(" -p trimtab -- ")?.1,
        None => line.strip_prefix("trimtab ")?,
    };
    Some(line.split_whitespace().map(str::to_owned).collect())
}

/// The commands of a section of the quick start, each with what `fills` has for its placeholders.
///
/// # Panics
/// When there is no such section, or nothing in it.
pub fn quickstart(section: &str, fills: &[(&str, &str)]) -> Vec<Vec<String>> {
    let text = read("docs/quickstart.md");
    let (_, rest) = text.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
    let section = rest.split("\n## ").next().unwrap_or_default();
    let lines: Vec<String> =
        blocks(section, "sh").iter().flat_map(|(_, block)| block.lines()).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "nothing to run");
    let fill = |word: String| fills.iter().fold(word, |word, (from, to)| word.replace(from, to));
    let command = |line: &String| trimtab(line).unwrap_or_else(|| panic!("{line}: not a command of ours"));
    lines.iter().map(|line| command(line).into_iter().map(fill).collect()).collect()
}
