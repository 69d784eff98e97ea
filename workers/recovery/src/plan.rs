//! Plans one partition: which leftovers go, which segments there are, which must be verified. Reads only.
//!
//! Steps 1 to 3 of the broker's loading (temporary files, unfinished swaps, orphaned and missing indexes) are decided here
//! on names; what is on disk changes only in `repair`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::batch::be;
use crate::checkpoint::{self, Epochs};
use crate::config::TopicSettings;
use crate::control::Control;
use crate::discover::PartitionFolder;
use crate::error::{Error, Result};
use crate::producers::ABORTED_ENTRY;
use crate::repair::TEMPORARY;
use crate::replay::{OffsetIndex, TrustedSegment};
use crate::segment::SegmentJob;

pub(crate) const EPOCHS_FILE: &str = "leader-epoch-checkpoint";
const METADATA_FILE: &str = "partition.metadata";

/// Why a segment is recovered while it is loaded, whether it is flushed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EarlyReason {
    /// It has no offset index.
    NoOffsetIndex,
    /// Its transaction index names an offset below its base offset.
    BadTransactionIndex,
}

/// The offset index of a planned segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlannedIndex {
    Missing,
    File(String),
    /// A swapped-in segment without index gets a preallocated one of zeros.
    Zeros,
}

/// A segment as it will be after leftovers are dealt with.
#[derive(Clone, Debug)]
pub(crate) struct PlannedSegment {
    pub(crate) base: i64,
    /// Present name of the log, which may still end in `.swap`.
    pub(crate) log: String,
    pub(crate) size: u64,
    pub(crate) index: PlannedIndex,
    pub(crate) has_time_index: bool,
    pub(crate) has_transaction_index: bool,
    pub(crate) early: Option<EarlyReason>,
    /// Verified in any case: early, or not below the recovery point.
    pub(crate) verify: bool,
}

/// What will be done to one partition, as far as names tell.
#[derive(Clone, Debug)]
pub struct PartitionPlan {
    /// The folder.
    pub path: PathBuf,
    /// Its name, topic, number and kind.
    pub folder: PartitionFolder,
    /// What its segments are recovered with.
    pub settings: TopicSettings,
    /// Up to where it is known to be flushed.
    pub recovery_point: i64,
    /// Where the checkpoint says that it begins.
    pub log_start: i64,
    /// Files that go first, in this order.
    pub(crate) leftovers: Vec<String>,
    /// Files that finished swap files replace.
    pub(crate) superseded: Vec<String>,
    /// Swap files and their final names; logs first.
    pub(crate) renames: Vec<(String, String)>,
    /// Index files without a log.
    pub(crate) orphans: Vec<String>,
    pub(crate) segments: Vec<PlannedSegment>,
    pub(crate) snapshots: BTreeMap<i64, String>,
    pub(crate) epochs: Epochs,
    pub(crate) has_epochs_file: bool,
    /// What the operator should know.
    pub warnings: Vec<String>,
}

/// What planning one partition needs to know of its surroundings.
pub(crate) struct PlanInput<'a> {
    pub(crate) log_dir: &'a Path,
    pub(crate) folder: &'a PartitionFolder,
    pub(crate) settings: TopicSettings,
    pub(crate) recovery_point: i64,
    pub(crate) log_start: i64,
    pub(crate) repair_checkpoints: bool,
}

impl PartitionPlan {
    /// The segments to verify, in offset order.
    #[must_use]
    pub fn jobs(&self) -> Vec<SegmentJob> {
        self.segments.iter().filter(|segment| segment.verify).map(|segment| self.job(segment)).collect()
    }

    fn job(&self, segment: &PlannedSegment) -> SegmentJob {
        SegmentJob {
            path: self.path.join(&segment.log),
            base_offset: segment.base,
            index_interval_bytes: self.settings.index_interval_bytes,
            segment_index_bytes: self.settings.segment_index_bytes,
        }
    }

    /// Makes the plan.
    pub(crate) fn make(input: &PlanInput<'_>, control: &Control) -> Result<Self> {
        let path = input.log_dir.join(&input.folder.name);
        let mut files = list_files(&path)?;
        let mut plan = Self {
            path,
            folder: input.folder.clone(),
            settings: input.settings,
            recovery_point: input.recovery_point,
            log_start: input.log_start,
            leftovers: Vec::new(),
            superseded: Vec::new(),
            renames: Vec::new(),
            orphans: Vec::new(),
            segments: Vec::new(),
            snapshots: BTreeMap::new(),
            epochs: Epochs::default(),
            has_epochs_file: files.contains(EPOCHS_FILE),
            warnings: Vec::new(),
        };
        plan.check_metadata()?;
        plan.temporary_files(&mut files)?;
        let swapped = plan.unfinished_swap(&mut files, control)?;
        plan.load_epochs(input.repair_checkpoints)?;
        plan.load_segments(&files, &swapped)?;
        Ok(plan)
    }

    fn refuse(&self, name: &str, why: impl Into<String>, hint: &str) -> Error {
        Error::refused(&self.path.join(name), why, hint)
    }

    /// A broker renames a partition without this file away and fails on one that does not parse. We cannot know the
    /// topic id, so we only tell.
    fn check_metadata(&mut self) -> Result<()> {
        let Some(bytes) = checkpoint::read_if_there(&self.path.join(METADATA_FILE))? else {
            self.warnings
                .push(format!("{METADATA_FILE} is missing: the broker will take this partition for a stray one"));
            return Ok(());
        };
        let text = String::from_utf8_lossy(&bytes);
        let mut lines = text.lines();
        let version = lines.next().and_then(|line| line.strip_prefix("version:")).map(str::trim);
        let id = lines.next().and_then(|line| line.strip_prefix("topic_id:")).map(str::trim);
        if version != Some("0") || id.is_none_or(|id| id.len() != 22) {
            return Err(self.refuse(
                METADATA_FILE,
                "not of the form `version: 0`, `topic_id: …`, and a broker does not start on it",
                "restore it from another replica of the topic; it is the same for all of them",
            ));
        }
        Ok(())
    }

    /// Step 1: `.deleted` files go, swap files at or behind the first `.cleaned` file, then the `.cleaned` files.
    fn temporary_files(&mut self, files: &mut BTreeSet<String>) -> Result<()> {
        let mut cleaned = Vec::new();
        let mut lowest = i64::MAX;
        for name in files.iter() {
            if name.ends_with(TEMPORARY) || (name.ends_with(".deleted") && !name.ends_with(".checkpoint.deleted")) {
                self.leftovers.push(name.clone());
            } else if name.ends_with(".cleaned") {
                lowest = lowest.min(self.leading_number(name)?);
                cleaned.push(name.clone());
            }
        }
        for name in files.iter().filter(|name| name.ends_with(".swap")) {
            if self.leading_number(name)? >= lowest {
                self.leftovers.push(name.clone());
            }
        }
        self.leftovers.append(&mut cleaned);
        for name in &self.leftovers {
            files.remove(name);
        }
        Ok(())
    }

    /// Step 2: finished swap files replace what lies between the first and the last offset in them. Returns the base
    /// offsets of the swapped segments.
    fn unfinished_swap(&mut self, files: &mut BTreeSet<String>, control: &Control) -> Result<BTreeSet<i64>> {
        let swaps: Vec<String> = files.iter().filter(|name| name.ends_with(".swap")).cloned().collect();
        let (mut low, mut high) = (i64::MAX, i64::MIN);
        let mut swapped = BTreeSet::new();
        for name in swaps.iter().filter(|name| name.ends_with(".log.swap")) {
            let base = self.leading_number(name)?;
            let index = format!("{base:020}.index.swap");
            let segment = TrustedSegment {
                path: self.path.join(name),
                base,
                size: self.size_of(name)?,
                index: if files.contains(&index) {
                    OffsetIndex::File(self.path.join(&index))
                } else {
                    OffsetIndex::Empty
                },
            };
            low = low.min(base);
            high = high.max(segment.next_offset(control)?);
            swapped.insert(base);
        }
        let between = |name: &str| {
            let number = name.split_once('.').and_then(|parts| parts.0.parse::<i64>().ok());
            !name.ends_with(".swap") && number.is_some_and(|n| n >= low && n < high)
        };
        self.superseded = files.iter().filter(|name| between(name)).cloned().collect();
        for name in &self.superseded {
            files.remove(name);
        }
        // The log first: once it has its name, a run that is repeated finds no swap and deletes nothing more.
        let (logs, others): (Vec<_>, Vec<_>) = swaps.into_iter().partition(|name| name.ends_with(".log.swap"));
        for name in logs.into_iter().chain(others) {
            let target = name.trim_end_matches(".swap").to_owned();
            files.remove(&name);
            files.insert(target.clone());
            self.renames.push((name, target));
        }
        Ok(swapped)
    }

    fn load_epochs(&mut self, repair: bool) -> Result<()> {
        let bytes = checkpoint::read_if_there(&self.path.join(EPOCHS_FILE))?.unwrap_or_default();
        match Epochs::parse(&bytes) {
            Ok(epochs) => self.epochs = epochs,
            Err(why) if repair => {
                self.warnings.push(format!("{EPOCHS_FILE} is unreadable ({why}); treated as empty"));
                self.epochs.clear();
            }
            Err(why) => {
                return Err(self.refuse(
                    EPOCHS_FILE,
                    format!("an unreadable checkpoint ({why}), which takes the log dir offline in a broker"),
                    "--repair-checkpoints treats it as empty and refills it from the scanned segments",
                ));
            }
        }
        Ok(())
    }

    /// Step 3: logs in ascending order; indexes without a log are orphans.
    fn load_segments(&mut self, files: &BTreeSet<String>, swapped: &BTreeSet<i64>) -> Result<()> {
        for name in files {
            let Some((_, suffix)) = name.rsplit_once('.') else {
                continue;
            };
            match suffix {
                "log" => {
                    let segment = self.planned(self.exact_number(name)?, files, swapped)?;
                    self.segments.push(segment);
                }
                "index" | "timeindex" | "txnindex" => {
                    let base = self.exact_number(name)?;
                    if !files.contains(&format!("{base:020}.log")) {
                        self.orphans.push(name.clone());
                    }
                }
                "snapshot" => {
                    self.snapshots.insert(self.exact_number(name)?, name.clone());
                }
                _ => {}
            }
        }
        let first = self.segments.iter().rposition(|segment| segment.base <= self.recovery_point).unwrap_or(0);
        for (i, segment) in self.segments.iter_mut().enumerate() {
            segment.verify = i >= first || segment.early.is_some();
        }
        Ok(())
    }

    /// The first segment that counts as unflushed: the one that holds the recovery point, or the first of all.
    pub(crate) fn first_unflushed(&self) -> i64 {
        let holds = self.segments.iter().rfind(|segment| segment.base <= self.recovery_point);
        holds.or(self.segments.first()).map_or(i64::MAX, |segment| segment.base)
    }

    fn planned(&self, base: i64, files: &BTreeSet<String>, swapped: &BTreeSet<i64>) -> Result<PlannedSegment> {
        let name = |suffix: &str| format!("{base:020}.{suffix}");
        let log = self.present_name(&name("log"));
        let index = if files.contains(&name("index")) {
            PlannedIndex::File(self.present_name(&name("index")))
        } else if swapped.contains(&base) {
            PlannedIndex::Zeros
        } else {
            PlannedIndex::Missing
        };
        let has_transaction_index = files.contains(&name("txnindex"));
        let early = if index == PlannedIndex::Missing {
            Some(EarlyReason::NoOffsetIndex)
        } else if has_transaction_index && self.transaction_index_is_bad(&self.present_name(&name("txnindex")), base)? {
            Some(EarlyReason::BadTransactionIndex)
        } else {
            None
        };
        Ok(PlannedSegment {
            base,
            size: self.size_of(&log)?,
            log,
            index,
            has_time_index: files.contains(&name("timeindex")),
            has_transaction_index,
            early,
            verify: false,
        })
    }

    /// The name a file has now, before swap files are renamed.
    pub(crate) fn present_name(&self, name: &str) -> String {
        self.renames.iter().find(|pair| pair.1 == name).map_or_else(|| name.to_owned(), |pair| pair.0.clone())
    }

    fn size_of(&self, name: &str) -> Result<u64> {
        let path = self.path.join(name);
        Ok(std::fs::metadata(&path).map_err(Error::io("look at", &path))?.len())
    }

    /// Whether an entry lies below the segment. Entries are read in order, up to the first such one; a version other
    /// than 0 before it is refused. A partial entry at the end is ignored.
    fn transaction_index_is_bad(&self, name: &str, base: i64) -> Result<bool> {
        let path = self.path.join(name);
        let file = File::open(&path).map_err(Error::io("open transaction index", &path))?;
        let mut file = std::io::BufReader::new(file);
        let mut entry = [0; ABORTED_ENTRY];
        loop {
            match file.read_exact(&mut entry) {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(false);
                }
                other => other.map_err(Error::io("read transaction index", &path))?,
            }
            let version = be!(i16, entry, 0);
            if version != 0 {
                return Err(self.refuse(
                    name,
                    format!("an aborted transaction of version {version}, on which a broker does not start"),
                    "move the transaction index away: below the recovery point its aborted transactions are then \
                     forgotten by readers, otherwise it is rebuilt",
                ));
            }
            if be!(i64, entry, 18) < base {
                return Ok(true);
            }
        }
    }

    /// The number before the first dot, as temporary files carry it.
    fn leading_number(&self, name: &str) -> Result<i64> {
        let number = name.split_once('.').and_then(|parts| parts.0.parse().ok());
        number.ok_or_else(|| self.foreign(name))
    }

    /// The offset of a name that must be exactly 20 digits and one suffix. A broker takes other spellings of a number
    /// for the same segment and then opens (and creates) the file with 20 digits instead.
    fn exact_number(&self, name: &str) -> Result<i64> {
        let stem = name.rsplit_once('.').map_or(name, |parts| parts.0);
        let digits = stem.len() == 20 && stem.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| stem.parse().ok()).flatten().ok_or_else(|| self.foreign(name))
    }

    fn foreign(&self, name: &str) -> Error {
        self.refuse(
            name,
            "a name that ends like a segment's and does not begin with its offset in 20 digits, on which a broker does not start",
            "move the file out of the partition's folder",
        )
    }
}

fn list_files(path: &Path) -> Result<BTreeSet<String>> {
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(path).map_err(Error::io("list partition", path))? {
        let entry = entry.map_err(Error::io("list partition", path))?;
        let at = entry.path();
        let kind = entry.file_type().map_err(Error::io("look at", &at))?;
        let is_file = if kind.is_symlink() {
            match std::fs::metadata(&at) {
                // A link to nothing is no file, for the broker neither.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
                other => other.map_err(Error::io("look at", &at))?.is_file(),
            }
        } else {
            kind.is_file()
        };
        if is_file {
            // A name that is not UTF-8 cannot be one of ours or of the broker's.
            files.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(files)
}
