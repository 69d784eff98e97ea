//! All ledgers that BookKeeper's metadata has, in every layout, by what is there: a missing level is no end.
//!
//! Layouts: `FlatLedgerManager` (`L` and ten digits), `HierarchicalLedgerManager` (2-4-4 digits, from 2147483647 on 3-4-4-4-4),
//! `LongHierarchicalLedgerManager` (3-4-4-4-4) of BookKeeper 4.17. BookKeeper itself deletes folders that became empty.

use futures::stream::{self, StreamExt};
use trimtab_events::Unread;

use super::survey::Survey;
use super::tree::Tree;
use crate::error::{Class, Result, TargetError};
use crate::pulsar::{ledger_id, ledger_path};

/// Ids from here on are kept in the long form.
const LONG_FROM: i64 = i32::MAX as i64;
/// Tries of one listing.
const TRIES: u32 = 3;
/// Nodes beside the ledgers.
const BESIDE: [&str; 7] = ["available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "idgen", "idgen-long"];

/// How BookKeeper lays out its ledgers; hierarchical where neither is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) flat: bool,
    pub(crate) long: bool,
}

impl Layout {
    /// Where a ledger's node is.
    pub(crate) fn path(self, root: &str, id: i64) -> String {
        ledger_path(root, self.flat, self.long, id)
    }
}

/// What a name below BookKeeper's root is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Not about ledgers.
    Beside,
    /// A ledger.
    Ledger(i64),
    /// A folder.
    Folder,
    /// Anything else.
    Stray,
}

/// What a path below BookKeeper's root is; `relative` has no slash in front.
pub(crate) fn entry(relative: &str, layout: Layout) -> Entry {
    let first = relative.split('/').next().unwrap_or_default();
    if BESIDE.contains(&first) || first.starts_with("ID-") {
        return Entry::Beside;
    }
    if let Some(id) = ledger_id(relative) {
        let long = relative.len() > "00/0000/L0000".len();
        let flat = !relative.contains('/');
        // Elsewhere nobody looks for it: not BookKeeper, not its bookies.
        let found = flat == layout.flat && (flat || long == (layout.long || id >= LONG_FROM));
        return if found { Entry::Ledger(id) } else { Entry::Stray };
    }
    let widths: &[usize] = if first.len() == 3 { &[3, 4, 4, 4] } else { &[2, 4] };
    let mut parts = relative.split('/').zip(widths);
    let digits = parts.all(|(part, width)| part.len() == *width && part.bytes().all(|byte| byte.is_ascii_digit()));
    if digits && relative.split('/').count() <= widths.len() { Entry::Folder } else { Entry::Stray }
}

/// The ids that a folder may have, first and last.
pub(crate) fn range_of(relative: &str) -> (i64, i64) {
    let digits: String = relative.split('/').collect();
    let width = if relative.split('/').next().is_some_and(|first| first.len() == 3) { 19 } else { 10 };
    let with = |fill: char| {
        let all: String = digits.chars().chain(std::iter::repeat(fill)).take(width).collect();
        all.parse().unwrap_or(i64::MAX)
    };
    (with('0'), with('9'))
}

/// The depth of folders whose children are ledgers.
fn leaf_depth(relative: &str) -> usize {
    if relative.split('/').next().is_some_and(|first| first.len() == 3) { 4 } else { 2 }
}

/// How BookKeeper lays out its ledgers, from the value of its `LAYOUT` node. Pulsar's own metadata driver writes no such node and
/// uses the hierarchical layout.
///
/// # Errors
/// When the layout is not known.
pub(crate) fn layout_of(value: Option<&[u8]>) -> std::result::Result<Layout, String> {
    let Some(value) = value else { return Ok(Layout::default()) };
    let text = String::from_utf8_lossy(value);
    let factory = text.lines().nth(1).and_then(|line| line.rsplit_once(':')).map_or("", |(factory, _)| factory);
    match factory.rsplit('.').next().unwrap_or_default() {
        "FlatLedgerManagerFactory" => Ok(Layout { flat: true, long: false }),
        "HierarchicalLedgerManagerFactory" | "LegacyHierarchicalLedgerManagerFactory" => Ok(Layout::default()),
        "LongHierarchicalLedgerManagerFactory" => Ok(Layout { flat: false, long: true }),
        other => Err(format!("BookKeeper's ledger layout {other:?} is not known")),
    }
}

/// The number of ids handed out, from the stat of the node whose sequential children hand them out: as many as it ever had
/// children. The count of their changes is twice that, less those that are there, and wraps around beyond 31 bits.
pub(crate) fn handed_out(children_version: i32, children: u64) -> i64 {
    (i64::from(children_version.cast_unsigned()) + children.cast_signed()) / 2
}

/// Lists all ledgers.
///
/// # Errors
/// When the root cannot be listed, or its layout is not known.
pub(super) async fn list(tree: &dyn Tree, root: &str, layout: Layout, survey: &mut Survey) -> Result<()> {
    let Some(names) = listed(tree, root).await? else {
        let why = "there is no such node; set ledgers_root to the root of BookKeeper's ledgers";
        return Err(TargetError::new(Class::Invalid, format!("listing {root}"), why));
    };
    let mut folders: Vec<String> = sorted_out(root, "", names, layout, survey)?;
    // Down to the level above the ledgers one folder after the other, then the lowest ones side by side.
    while let Some(folder) = folders.pop() {
        let depth = folder.split('/').count();
        match listed(tree, &format!("{root}/{folder}")).await {
            Ok(Some(names)) if depth + 1 == leaf_depth(&folder) => {
                let lowest = sorted_out(root, &folder, names, layout, survey)?;
                lowest_level(tree, root, lowest, layout, survey).await?;
            }
            Ok(Some(names)) => folders.extend(sorted_out(root, &folder, names, layout, survey)?),
            failed => not_listed(&folder, failed, survey),
        }
    }
    Ok(())
}

async fn lowest_level(
    tree: &dyn Tree,
    root: &str,
    folders: Vec<String>,
    layout: Layout,
    survey: &mut Survey,
) -> Result<()> {
    // A listing has up to 10,000 names: a few at once keep memory flat.
    let window = tree.window().clamp(1, 8);
    let list = |folder: String| async move {
        let names = listed(tree, &format!("{root}/{folder}")).await;
        (folder, names)
    };
    let mut listings = stream::iter(folders).map(list).buffered(window);
    while let Some((folder, names)) = listings.next().await {
        match names {
            Ok(Some(names)) => {
                sorted_out(root, &folder, names, layout, survey)?;
            }
            failed => not_listed(&folder, failed, survey),
        }
    }
    Ok(())
}

/// Takes the ledgers among a folder's children, and tells the folders.
fn sorted_out(
    root: &str,
    folder: &str,
    names: Vec<String>,
    layout: Layout,
    survey: &mut Survey,
) -> Result<Vec<String>> {
    let (mut ids, mut folders) = (Vec::new(), Vec::new());
    for name in names {
        let relative = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        match entry(&relative, layout) {
            Entry::Beside => {}
            Entry::Ledger(id) => ids.push(id),
            Entry::Folder => folders.push(relative),
            Entry::Stray => survey.stray(&format!("{root}/{relative}")),
        }
    }
    survey.ledgers(&ids)?;
    Ok(folders)
}

fn not_listed(folder: &str, failed: Result<Option<Vec<String>>>, survey: &mut Survey) {
    let (from, to) = range_of(folder);
    let why = match failed {
        Err(e) => e.to_string(),
        Ok(_) => format!("folder {folder} vanished while it was listed"),
    };
    survey.unread(Unread { from, to, why });
}

/// The names of a node's children. A listing that met a lost session is made again: it may be older than what was seen before.
async fn listed(tree: &dyn Tree, path: &str) -> Result<Option<Vec<String>>> {
    for tries in 1.. {
        let generation = tree.generation();
        let last = tries == TRIES;
        match tree.children(path).await {
            Ok(names) if tree.generation() == generation => return Ok(names.map(|(names, _)| names)),
            Ok(_) if last => break,
            Err(e) if last || e.class() != Class::Transient => return Err(e),
            Ok(_) => tree.sync().await?,
            Err(_) => {}
        }
    }
    Err(TargetError::new(Class::Transient, format!("listing {path}"), "sessions keep being lost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIERARCHICAL: Layout = Layout { flat: false, long: false };
    const LONG: Layout = Layout { flat: false, long: true };
    const FLAT: Layout = Layout { flat: true, long: false };

    #[test]
    fn entries_in_all_layouts() {
        assert_eq!(entry("00/0000/L1234", HIERARCHICAL), Entry::Ledger(1234));
        assert_eq!(entry("000/0000/0021/4748/L3647", HIERARCHICAL), Entry::Ledger(2_147_483_647));
        assert_eq!(entry("000/0000/0000/0000/L1234", LONG), Entry::Ledger(1234));
        assert_eq!(entry("L0000001234", FLAT), Entry::Ledger(1234));
        for (path, layout) in [
            ("L0000001234", HIERARCHICAL),
            ("00/0000/L1234", LONG),
            ("00/0000/L1234", FLAT),
            ("000/0000/0000/0000/L1234", HIERARCHICAL),
            ("21/4748/L3647", HIERARCHICAL),
            ("00/0000/L12", HIERARCHICAL),
            ("00/0000/x", HIERARCHICAL),
            ("0/0000", HIERARCHICAL),
            ("00/0000/0000", HIERARCHICAL),
            ("mine", HIERARCHICAL),
        ] {
            assert_eq!(entry(path, layout), Entry::Stray, "{path}");
        }
        for folder in ["00", "00/0000", "000", "000/0000/0042", "000/0000/0042/0003"] {
            assert_eq!(entry(folder, HIERARCHICAL), Entry::Folder, "{folder}");
        }
        for beside in
            ["available", "available/readonly", "idgen/ID-0000000001", "ID-1", "underreplication/ledgers/0000"]
        {
            assert_eq!(entry(beside, HIERARCHICAL), Entry::Beside, "{beside}");
        }
    }

    #[test]
    fn ranges_of_folders() {
        assert_eq!(range_of("00"), (0, 99_999_999));
        assert_eq!(range_of("00/0003"), (30_000, 39_999));
        assert_eq!(range_of("000/0000/0042/0003"), (4_200_030_000, 4_200_039_999));
        assert_eq!(range_of("999").1, i64::MAX);
    }

    #[test]
    fn ids_handed_out() {
        assert_eq!(handed_out(1688, 0), 844);
        assert_eq!(handed_out(1, 1), 1);
        // 1,500,000,000 ids: twice that does not fit 31 bits.
        assert_eq!(handed_out((3_000_000_000_u32).cast_signed(), 0), 1_500_000_000);
    }
}
