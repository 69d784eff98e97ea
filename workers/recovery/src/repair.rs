//! Carries out what the fold decided. The only code that writes into a partition's folder.
//!
//! **Order matters.** A run may be killed between any two steps, and the next run (or a broker) must come to the same
//! end. So a thing whose presence makes recovery do something is removed only after that something is done: later
//! segments go first, then come snapshots, then the cut that made the segments later ones, then indexes.
//!
//! Two kinds of files cannot be ordered: leader epochs (a stale entry hides newer epochs while it is there) and indexes
//! whose absence caused a flushed segment to be scanned (which may have added epochs). They are prepared under temporary
//! names and returned as [`Repaired::pending`]; the journal remembers the list before they take their names, and a run that
//! finds such a list finishes it.
//!
//! **Flushing.** Nothing that the next recovery builds again is flushed here: one flush of the file system follows for
//! all partitions. Files that a later recovery would trust (epochs, indexes of flushed segments) are flushed before they
//! take their names.

use std::fs::{File, Metadata, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use crate::aside::{Aside, remove, sync_folder};
use crate::change::{Content, PartitionChange, SegmentChange};
use crate::error::{Error, Result};
use crate::plan::{EPOCHS_FILE, PartitionPlan, PlannedIndex};
use crate::spool::{Image, Spool};

/// Ends the names of files that are not finished; a broker ignores such names.
pub(crate) const TEMPORARY: &str = ".trimtab-tmp";

/// What was done, and what is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// Files whose content changed or that are new.
    pub(crate) files: u64,
    /// Temporary and final names of files that must take their names together.
    pub(crate) pending: Vec<(String, String)>,
}

/// How a file is put in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// At once; what a later recovery builds again needs no flush of its own.
    Now,
    /// At once, flushed: a later recovery would trust it.
    Flushed,
    /// Flushed, and renamed later, together with others.
    Pending,
}

struct Repair<'a> {
    plan: &'a PartitionPlan,
    /// Owner and mode for new files.
    like: Metadata,
    done: Repaired,
}

/// Carries out `change`.
///
/// # Errors
/// When the operating system refuses a step, or cut data cannot be kept. The folder is then still recoverable.
pub(crate) fn apply(plan: &PartitionPlan, change: &PartitionChange<'_>, aside: &Aside) -> Result<Repaired> {
    let log = plan.segments.first().map(|segment| plan.path.join(&segment.log));
    let model = log.as_deref().unwrap_or(&plan.path);
    let like = std::fs::metadata(model).map_err(Error::io("look at", model))?;
    let mut repair = Repair { plan, like, done: Repaired::default() };
    repair.leftovers()?;
    // When all segments go, the epochs go first: without segments nothing would tell that they must.
    let all_gone = change.segments.is_empty();
    if let (Some(text), true) = (&change.epochs, all_gone) {
        repair.put_bytes(EPOCHS_FILE, text.as_bytes(), How::Flushed)?;
    }
    repair.keep_and_remove(change, aside)?;
    repair.snapshots(change)?;
    if let Some(base) = change.fresh {
        for suffix in ["log", "index", "timeindex"] {
            repair.put_bytes(&format!("{base:020}.{suffix}"), &[], How::Now)?;
        }
    }
    for segment in &change.segments {
        repair.cut(segment)?;
    }
    for segment in &change.segments {
        repair.indexes(segment)?;
    }
    if let (Some(text), false) = (&change.epochs, all_gone) {
        repair.put_bytes(EPOCHS_FILE, text.as_bytes(), How::Pending)?;
    }
    Ok(repair.done)
}

/// Gives pending files their names. A file that is not there has its name already.
pub(crate) fn finish_pending(folder: &Path, pending: &[(String, String)]) -> Result<()> {
    for (temporary, name) in pending {
        match std::fs::rename(folder.join(temporary), folder.join(name)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => other.map_err(Error::io("rename to its place", &folder.join(temporary)))?,
        }
    }
    Ok(())
}

impl Repair<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.plan.path.join(name)
    }

    /// Temporary files, unfinished swaps, orphaned indexes.
    fn leftovers(&mut self) -> Result<()> {
        let plan = self.plan;
        for name in plan.leftovers.iter().chain(&plan.superseded) {
            remove(&self.path(name))?;
        }
        for name in &plan.orphans {
            // An orphan out of a swap still has its swap name.
            remove(&self.path(&plan.present_name(name)))?;
        }
        for segment in plan.segments.iter().filter(|segment| segment.index == PlannedIndex::Zeros) {
            // Before the log takes its name: a run that is repeated must find an index, as this one pretends.
            let size = plan.settings.segment_index_bytes / 8 * 8;
            self.put_zeros(&format!("{:020}.index.swap", segment.base), u64::try_from(size).unwrap_or(0))?;
            let [from, to] = ["index.swap", "index"].map(|suffix| self.path(&format!("{:020}.{suffix}", segment.base)));
            let log = self.path(&segment.log);
            let target = self.path(&format!("{:020}.log", segment.base));
            rename(&log, &target)?;
            rename(&from, &to)?;
        }
        for (from, to) in &plan.renames {
            let (from, to) = (self.path(from), self.path(to));
            if from.exists() {
                rename(&from, &to)?;
            }
        }
        if !plan.superseded.is_empty() || !plan.renames.is_empty() {
            sync_folder(&plan.path)?;
        }
        Ok(())
    }

    /// Keeps what will be cut, then removes the segments behind the cut. They go first: as long as the damage is there,
    /// a repeated run removes them again, but once it is cut nothing tells that they must go.
    fn keep_and_remove(&mut self, change: &PartitionChange<'_>, aside: &Aside) -> Result<()> {
        let name = &self.plan.folder.name;
        for segment in &change.segments {
            if let Some(cut) = &segment.cut {
                let log = self.path(&format!("{:020}.log", segment.base));
                aside.keep_tail(name, segment.base, &log, cut.size_after, &cut.why)?;
            }
        }
        for gone in &change.removed {
            aside.keep_segment(name, gone.base, &self.path(&format!("{:020}.log", gone.base)), &gone.why)?;
            for suffix in ["index", "timeindex", "txnindex"] {
                remove(&self.path(&format!("{:020}.{suffix}", gone.base)))?;
            }
        }
        if !change.removed.is_empty() {
            sync_folder(&self.plan.path)?;
        }
        Ok(())
    }

    fn snapshots(&mut self, change: &PartitionChange<'_>) -> Result<()> {
        for name in &change.delete_snapshots {
            let replaced = change.write_snapshots.keys().any(|offset| format!("{offset:020}.snapshot") == **name);
            if !replaced {
                remove(&self.path(name))?;
            }
        }
        for (offset, image) in &change.write_snapshots {
            self.put(&format!("{offset:020}.snapshot"), image, change.spool, How::Now)?;
        }
        Ok(())
    }

    fn cut(&mut self, segment: &SegmentChange<'_>) -> Result<()> {
        let Some(cut) = &segment.cut else {
            return Ok(());
        };
        let path = self.path(&format!("{:020}.log", segment.base));
        let file = File::options().write(true).open(&path).map_err(Error::io("open segment", &path))?;
        let size = file.metadata().map_err(Error::io("look at", &path))?.len();
        if size < cut.size_before {
            return Err(Error::refused(
                &path,
                "it became shorter while it was recovered",
                "stop whatever writes to it",
            ));
        }
        self.done.files += 1;
        file.set_len(cut.size_after).map_err(Error::io("cut segment", &path))
    }

    fn indexes(&mut self, segment: &SegmentChange<'_>) -> Result<()> {
        let how = match (segment.early, segment.verified) {
            (true, _) => How::Pending,
            (false, true) => How::Now,
            (false, false) => How::Flushed,
        };
        let files = [
            ("timeindex", &segment.time_index),
            ("txnindex", &segment.transaction_index),
            ("index", &segment.offset_index),
        ];
        for (suffix, content) in files {
            let name = format!("{:020}.{suffix}", segment.base);
            match content {
                None => {}
                Some(Content::Empty) => self.put_bytes(&name, &[], how)?,
                Some(Content::Image(image, spool)) => self.put(&name, image, *spool, how)?,
            }
        }
        Ok(())
    }

    /// Makes `name` hold the image. A file that holds it already stays, a longer one that begins with it (an index that
    /// was preallocated) is shortened, any other is replaced by rename.
    fn put(&mut self, name: &str, image: &Image, spool: &dyn Spool, how: How) -> Result<()> {
        let path = self.path(name);
        let old = match File::options().read(true).write(true).open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            other => Some(other.map_err(Error::io("open", &path))?),
        };
        if let Some(old) = &old {
            let size = old.metadata().map_err(Error::io("look at", &path))?.len();
            let may_trim = how != How::Pending || size == image.length;
            if size >= image.length && may_trim && begins_with(old, &path, image, spool)? {
                if size > image.length {
                    self.done.files += 1;
                    old.set_len(image.length).map_err(Error::io("trim", &path))?;
                }
                return Ok(());
            }
        }
        let (temporary, file) = self.create(name, old.as_ref())?;
        let mut at = 0;
        image.read(spool, |part| {
            file.write_all_at(part, at).map_err(Error::io("write", &temporary))?;
            at += part.len() as u64;
            Ok(())
        })?;
        self.finish(&file, &temporary, &path, how)
    }

    fn put_bytes(&mut self, name: &str, bytes: &[u8], how: How) -> Result<()> {
        let path = self.path(name);
        if std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() == bytes.len() as u64)
            && std::fs::read(&path).is_ok_and(|old| old == bytes)
        {
            return Ok(());
        }
        let (temporary, file) = self.create(name, None)?;
        file.write_all_at(bytes, 0).map_err(Error::io("write", &temporary))?;
        self.finish(&file, &temporary, &path, how)
    }

    fn put_zeros(&mut self, name: &str, size: u64) -> Result<()> {
        let (temporary, file) = self.create(name, None)?;
        file.set_len(size).map_err(Error::io("size", &temporary))?;
        let path = self.path(name);
        self.finish(&file, &temporary, &path, How::Now)
    }

    /// A new file beside `name`, with owner and mode of the file it replaces, or of the partition's segments: the
    /// broker must be able to write what we leave, also when we run as root.
    fn create(&self, name: &str, old: Option<&File>) -> Result<(PathBuf, File)> {
        let path = self.path(&format!("{name}{TEMPORARY}"));
        let file = File::create(&path).map_err(Error::io("create", &path))?;
        let old = old.and_then(|file| file.metadata().ok());
        give(&file, &path, old.as_ref().unwrap_or(&self.like))?;
        Ok((path, file))
    }

    fn finish(&mut self, file: &File, temporary: &Path, path: &Path, how: How) -> Result<()> {
        self.done.files += 1;
        if how != How::Now {
            file.sync_all().map_err(Error::io("flush", temporary))?;
        }
        if how == How::Pending {
            let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.done.pending.push((name(temporary), name(path)));
            return Ok(());
        }
        rename(temporary, path)
    }
}

/// Gives `file` owner and mode of another file (of a folder: the mode without execution).
pub(crate) fn give(file: &File, path: &Path, like: &Metadata) -> Result<()> {
    let now = file.metadata().map_err(Error::io("look at", path))?;
    if (now.uid(), now.gid()) != (like.uid(), like.gid()) {
        fchown(file, Some(like.uid()), Some(like.gid())).map_err(Error::io("set the owner of", path))?;
    }
    let mode = like.permissions().mode() & 0o666;
    if now.permissions().mode() & 0o777 != mode {
        file.set_permissions(Permissions::from_mode(mode)).map_err(Error::io("set the mode of", path))?;
    }
    Ok(())
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(Error::io("rename to its place", from))
}

fn begins_with(file: &File, path: &Path, image: &Image, spool: &dyn Spool) -> Result<bool> {
    let mut at = 0;
    let mut same = true;
    let mut buffer = Vec::new();
    image.read(spool, |part| {
        if same {
            buffer.resize(part.len(), 0);
            file.read_exact_at(&mut buffer, at).map_err(Error::io("read", path))?;
            same = buffer == part;
            at += part.len() as u64;
        }
        Ok(())
    })?;
    Ok(same)
}
