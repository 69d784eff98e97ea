//! Keeps what recovery takes out of a log.
//!
//! A broker drops the bytes it cuts and the segments behind them. Here they go to a folder that no broker looks at, with a
//! list, and are flushed before anything is cut: by default `LOGDIR.trimtab-cut/RUN/` beside the log dir.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::Serialize;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::reader::{BatchReader, Step};

/// The list's name.
const LIST: &str = "cut-list.jsonl";
const COPY: usize = 1024 * 1024;

/// Where cut data goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CutPolicy {
    /// Beside the log dir; it must be on the same file system.
    #[default]
    Beside,
    /// Below this folder, which may be on another file system.
    Into(PathBuf),
    /// Nowhere: cut data is lost, as it is with a broker.
    Discard,
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    partition: &'a str,
    segment: i64,
    what: &'static str,
    why: &'a str,
    file: String,
    source: &'a Path,
    from_byte: u64,
    bytes: u64,
    #[serde(flatten)]
    held: Held,
}

/// What the bytes held, as far as batches can be followed by their length fields.
#[derive(Debug, Default, Serialize)]
struct Held {
    batches: u64,
    intact_batches: u64,
    records: u64,
    first_offset: Option<i64>,
    last_offset: Option<i64>,
}

/// The side folder of one log dir, made when it is first needed.
#[derive(Debug)]
pub(crate) struct Aside {
    policy: CutPolicy,
    log_dir: PathBuf,
    run: String,
    list: Mutex<Option<(PathBuf, File)>>,
}

impl Aside {
    pub(crate) fn new(policy: &CutPolicy, log_dir: &Path, run: &str) -> Self {
        Self { policy: policy.clone(), log_dir: log_dir.to_path_buf(), run: run.to_owned(), list: Mutex::new(None) }
    }

    /// The folder in use, if anything was put there.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        let list = self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        list.as_ref().map(|entry| entry.0.clone())
    }

    /// Copies bytes `from..` of a log, flushed, with an entry in the list.
    pub(crate) fn keep_tail(&self, partition: &str, base: i64, log: &Path, from: u64, why: &str) -> Result<()> {
        if self.policy == CutPolicy::Discard {
            return Ok(());
        }
        let name = format!("{partition}/{base:020}.log.from-{from}");
        self.with_list(|root, list| {
            let source = File::open(log).map_err(Error::io("open segment", log))?;
            let size = source.metadata().map_err(Error::io("look at", log))?.len();
            copy(&source, log, from, size, &root.join(&name))?;
            let held = describe(&source, log, from, size)?;
            let entry = Entry {
                partition,
                segment: base,
                what: "tail",
                why,
                file: name.clone(),
                source: log,
                from_byte: from,
                bytes: size - from,
                held,
            };
            note(list, root, &entry)
        })
    }

    /// Moves a whole log out of its partition, flushed, with an entry in the list; without a side folder it is deleted.
    pub(crate) fn keep_segment(&self, partition: &str, base: i64, log: &Path, why: &str) -> Result<()> {
        if self.policy == CutPolicy::Discard {
            return remove(log);
        }
        let name = format!("{partition}/{base:020}.log");
        self.with_list(|root, list| {
            let source = File::open(log).map_err(Error::io("open segment", log))?;
            let size = source.metadata().map_err(Error::io("look at", log))?.len();
            let target = root.join(&name);
            let held = describe(&source, log, 0, size)?;
            let entry = Entry {
                partition,
                segment: base,
                what: "segment",
                why,
                file: name.clone(),
                source: log,
                from_byte: 0,
                bytes: size,
                held,
            };
            if device(root)? == device(log)? {
                source.sync_all().map_err(Error::io("flush segment", log))?;
                make_parent(&target)?;
                note(list, root, &entry)?;
                std::fs::rename(log, &target).map_err(Error::io("move aside", log))?;
                return sync_folder(target.parent().unwrap_or(root));
            }
            copy(&source, log, 0, size, &target)?;
            note(list, root, &entry)?;
            remove(log)
        })
    }

    fn with_list(&self, act: impl FnOnce(&Path, &mut File) -> Result<()>) -> Result<()> {
        let mut list = self.list.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if list.is_none() {
            *list = Some(self.create()?);
        }
        match list.as_mut() {
            Some((root, file)) => act(root, file),
            None => Ok(()),
        }
    }

    fn create(&self) -> Result<(PathBuf, File)> {
        let name = self.log_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let root = match &self.policy {
            CutPolicy::Into(folder) => folder.join(name).join(&self.run),
            _ => self.beside(&name)?.join(&self.run),
        };
        std::fs::create_dir_all(&root).map_err(Error::io("create the folder for cut data", &root))?;
        let path = root.join(LIST);
        let file = File::create(&path).map_err(Error::io("create the list of cut data", &path))?;
        let mut above = Some(root.as_path());
        for _ in 0..3 {
            let Some(folder) = above else { break };
            sync_folder(folder)?;
            above = folder.parent();
        }
        Ok((root, file))
    }

    fn beside(&self, name: &str) -> Result<PathBuf> {
        let canonical = std::fs::canonicalize(&self.log_dir).map_err(Error::io("resolve", &self.log_dir))?;
        let missing = || {
            Error::refused(
                &self.log_dir,
                "data must be cut from it, and beside it there is no folder on the same file system to keep that data",
                "give --cut-dir DIR, or --discard to drop the data",
            )
        };
        let parent = canonical.parent().ok_or_else(missing)?;
        if device(parent)? != device(&canonical)? {
            return Err(missing());
        }
        Ok(parent.join(format!("{name}.trimtab-cut")))
    }
}

fn device(path: &Path) -> Result<u64> {
    Ok(std::fs::metadata(path).map_err(Error::io("look at", path))?.dev())
}

fn make_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    if !parent.exists() {
        std::fs::create_dir_all(parent).map_err(Error::io("create folder", parent))?;
        sync_folder(parent.parent().unwrap_or(parent))?;
    }
    Ok(())
}

/// Flushes a folder's entries.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let folder = File::open(path).map_err(Error::io("open folder", path))?;
    folder.sync_all().map_err(Error::io("flush folder", path))
}

/// Deletes a file that may be gone already.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(Error::io("delete", path)),
    }
}

fn copy(source: &File, path: &Path, mut from: u64, end: u64, target: &Path) -> Result<()> {
    make_parent(target)?;
    let mut out = File::create(target).map_err(Error::io("create the copy of cut data", target))?;
    let mut buffer = vec![0; COPY.min(usize::try_from(end - from).unwrap_or(COPY)).max(1)];
    while from < end {
        let n = usize::try_from(end - from).unwrap_or(COPY).min(buffer.len());
        source.read_exact_at(&mut buffer[..n], from).map_err(Error::io("read segment", path))?;
        out.write_all(&buffer[..n]).map_err(Error::io("write the copy of cut data", target))?;
        from += n as u64;
    }
    out.sync_all().map_err(Error::io("flush the copy of cut data", target))?;
    sync_folder(target.parent().unwrap_or(target))
}

fn note(list: &mut File, root: &Path, entry: &Entry<'_>) -> Result<()> {
    let path = root.join(LIST);
    let mut line = serde_json::to_vec(entry).map_err(|error| Error::io("describe cut data in", &path)(error.into()))?;
    line.push(b'\n');
    list.write_all(&line).map_err(Error::io("write the list of cut data", &path))?;
    list.sync_all().map_err(Error::io("flush the list of cut data", &path))
}

fn describe(file: &File, path: &Path, from: u64, size: u64) -> Result<Held> {
    // The limit of the run does not apply any more: what was decided is carried out.
    let control = Control::default();
    let mut reader = BatchReader::new(file, from, size, false, &control);
    let mut held = Held::default();
    loop {
        let at = reader.position();
        let step = reader.step().map_err(Error::io("read segment", path))?;
        let Step::Batch(header) = step else {
            return Ok(held);
        };
        held.batches += 1;
        if reader.checksum_fits(at, &header).map_err(Error::io("read segment", path))? {
            held.intact_batches += 1;
            held.records += u64::try_from(header.records).unwrap_or(0);
            held.first_offset = Some(held.first_offset.unwrap_or(header.base_offset));
            held.last_offset = Some(header.last_offset());
        }
    }
}
