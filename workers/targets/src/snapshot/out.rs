//! Writes snapshot files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use base64::Engine;
use serde_json::json;

use crate::error::{Class, Result, TargetError};

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotTotals {
    /// Lines.
    pub lines: u64,
    /// Namespaces.
    pub shards: u64,
    /// Topics.
    pub topics: u64,
}

/// A file that is compressed by what its name ends in.
enum Out {
    Plain(BufWriter<File>),
    Gzip(Box<flate2::write::GzEncoder<BufWriter<File>>>),
    /// One frame for each block.
    Zstd(BufWriter<File>, Vec<u8>),
}

/// Bytes of one frame, before compression.
const FRAME: usize = 4 * 1024 * 1024;

impl Out {
    fn create(path: &Path) -> std::io::Result<Out> {
        let file = BufWriter::with_capacity(256 * 1024, File::create(path)?);
        Ok(match path.extension().and_then(|ext| ext.to_str()) {
            Some("gz") => Out::Gzip(Box::new(flate2::write::GzEncoder::new(file, flate2::Compression::default()))),
            Some("zst") => Out::Zstd(file, Vec::with_capacity(FRAME)),
            _ => Out::Plain(file),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Out::Plain(file) => file.write_all(bytes),
            Out::Gzip(file) => file.write_all(bytes),
            Out::Zstd(file, frame) => {
                frame.extend_from_slice(bytes);
                if frame.len() >= FRAME { end_frame(file, frame) } else { Ok(()) }
            }
        }
    }

    fn finish(self) -> std::io::Result<()> {
        let file = match self {
            Out::Plain(file) => file,
            Out::Gzip(file) => file.finish()?,
            Out::Zstd(mut file, mut frame) => {
                end_frame(&mut file, &mut frame)?;
                file
            }
        };
        file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
    }
}

fn end_frame(file: &mut BufWriter<File>, frame: &mut Vec<u8>) -> std::io::Result<()> {
    let compressed = ruzstd::encoding::compress_to_vec(frame.as_slice(), ruzstd::encoding::CompressionLevel::Fastest);
    frame.clear();
    file.write_all(&compressed)
}

pub(crate) struct Sink {
    out: Out,
    path: String,
    pub(crate) totals: SnapshotTotals,
}

impl Sink {
    fn create(path: &Path) -> std::io::Result<Sink> {
        Ok(Sink { out: Out::create(path)?, path: path.display().to_string(), totals: SnapshotTotals::default() })
    }

    pub(crate) fn line(&mut self, mut value: serde_json::Value, more: serde_json::Value) -> Result<()> {
        if let (Some(all), serde_json::Value::Object(more)) = (value.as_object_mut(), more) {
            all.extend(more);
        }
        let mut text = value.to_string();
        text.push('\n');
        self.totals.lines += 1;
        self.out.write(text.as_bytes()).map_err(|e| self.failed(&e))
    }

    fn failed(&self, e: &std::io::Error) -> TargetError {
        TargetError::new(Class::Transient, format!("writing snapshot {}", self.path), e)
    }
}

pub(crate) fn node(path: &str, value: &[u8], stat: &zookeeper_client::Stat) -> serde_json::Value {
    json!({
        "path": path,
        "data": base64::engine::general_purpose::STANDARD.encode(value),
        "czxid": stat.czxid, "mzxid": stat.mzxid, "ctime": stat.ctime, "mtime": stat.mtime,
        "version": stat.version, "cversion": stat.cversion,
        "ephemeralOwner": stat.ephemeral_owner, "numChildren": stat.num_children,
    })
}

/// Fills a file with what `write` puts into it. The file is complete, or the call fails; it is written under another name and renamed at
/// the end.
///
/// # Errors
/// Those of `write`, and when the file cannot be written.
pub(crate) async fn to_file(path: &Path, write: impl AsyncFnOnce(&mut Sink) -> Result<()>) -> Result<SnapshotTotals> {
    let failed =
        |e: std::io::Error| TargetError::new(Class::Invalid, format!("writing snapshot {}", path.display()), e);
    let name = path.file_name().ok_or_else(|| failed(std::io::Error::other("it has no file name")))?.to_string_lossy();
    // The ending decides the compression, so it stays at the end.
    let partial = path.with_file_name(format!(".partial-{name}"));
    let mut sink = Sink::create(&partial).map_err(failed)?;
    let written = write(&mut sink).await;
    let totals = sink.totals;
    match written.and_then(|()| sink.out.finish().map_err(failed)) {
        Ok(()) => std::fs::rename(&partial, path).map_err(failed).map(|()| totals),
        Err(e) => {
            let _ = std::fs::remove_file(&partial);
            Err(e)
        }
    }
}
