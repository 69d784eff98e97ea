//! The lines of a snapshot file, decompressed on a thread of their own.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

use base64::Engine;
use serde::Deserialize;

use crate::error::{Class, Result, TargetError};
use crate::zk::Stat;

pub(crate) fn invalid(path: &Path, why: impl std::fmt::Display) -> TargetError {
    TargetError::new(Class::Invalid, format!("reading snapshot {}", path.display()), why)
}

/// Bytes handed over at once by the decompressing thread. A line may be longer.
const BLOCK: usize = 256 * 1024;
/// No line is longer: 64 MiB of value in base64, and the rest.
const MAX_LINE: usize = 96 * 1024 * 1024;

/// One line.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line<'a> {
    #[serde(borrow)]
    pub(crate) path: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) data: Cow<'a, str>,
    czxid: i64,
    mzxid: i64,
    #[serde(default)]
    pzxid: i64,
    #[serde(default)]
    ctime: i64,
    mtime: i64,
    version: i32,
    #[serde(default)]
    cversion: i32,
    ephemeral_owner: i64,
    num_children: u64,
    #[serde(default, borrow)]
    order: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    source: Option<Cow<'a, str>>,
    #[serde(default, rename = "taken_ms")]
    taken_ms: Option<i64>,
    #[serde(default)]
    end: Option<u64>,
}

/// One node.
#[derive(Debug)]
pub(crate) struct Node<'a> {
    pub(crate) path: &'a str,
    pub(crate) value: &'a [u8],
    pub(crate) stat: Stat,
}

impl Line<'_> {
    /// Puts its value into `value` and tells its stat.
    pub(crate) fn decoded(&self, value: &mut Vec<u8>) -> std::result::Result<Stat, String> {
        value.clear();
        base64::engine::general_purpose::STANDARD
            .decode_vec(self.data.as_bytes(), value)
            .map_err(|e| format!("data of {} is not base64: {e}", self.path))?;
        Ok(self.stat())
    }

    /// Its stat.
    pub(crate) fn stat(&self) -> Stat {
        Stat {
            created_zxid: self.czxid,
            modified_zxid: self.mzxid,
            children_zxid: self.pzxid,
            created_ms: self.ctime,
            modified_ms: self.mtime,
            version: self.version,
            children: self.num_children,
            children_version: self.cversion,
            ephemeral: self.ephemeral_owner != 0,
        }
    }
}

/// What the first line of a file says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// The file is in scan order.
    pub scan_order: bool,
    /// What it was taken from.
    pub source: Option<String>,
    /// When it was taken, milliseconds since 1970.
    pub taken_ms: Option<i64>,
}

impl Header {
    /// What identifies the cluster that a file is of.
    pub(crate) fn identity(&self, file: &Path) -> String {
        match &self.source {
            Some(source) => format!("snapshot of {source}"),
            None => format!("snapshot {}", file.display()),
        }
    }
}

pub(crate) fn header(path: &Path) -> Result<Header> {
    let mut reader = BufReader::new(decompressed(path)?);
    let mut first = Vec::new();
    let read = reader.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut first);
    read.map_err(|e| invalid(path, format!("line 1: {e}")))?;
    let line: Line<'_> = parse(&first).map_err(|why| invalid(path, format!("line 1: {why}")))?;
    if let Some(order) = line.order.as_deref().filter(|order| *order != "scan-1") {
        return Err(invalid(path, format!("its order {order:?} is not known to this version")));
    }
    Ok(Header { scan_order: line.order.is_some(), source: line.source.map(Cow::into_owned), taken_ms: line.taken_ms })
}

fn parse(bytes: &[u8]) -> std::result::Result<Line<'_>, String> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err("it is empty".to_owned());
    }
    let no_node = |e: &dyn std::fmt::Display| format!("it is not a node (a JSON object with path, data and stat): {e}");
    // Checked as a whole: checking each string for itself takes longer.
    let text = std::str::from_utf8(bytes).map_err(|e| no_node(&e))?;
    serde_json::from_str(text).map_err(|e| no_node(&e))
}

/// The file's bytes, decompressed by what its first bytes say.
fn decompressed(path: &Path) -> Result<Box<dyn Read + Send>> {
    let open = |e: io::Error| TargetError::new(Class::Invalid, format!("opening snapshot {}", path.display()), e);
    let mut file = BufReader::with_capacity(BLOCK, File::open(path).map_err(open)?);
    let magic = file.fill_buf().map_err(open)?;
    Ok(if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(file))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(ZstdFrames { source: Some(file), frame: None })
    } else {
        Box::new(file)
    })
}

/// All frames of a zstd file, one after the other.
struct ZstdFrames<R: BufRead> {
    source: Option<R>,
    frame: Option<ruzstd::decoding::StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
                self.source = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(mut source) = self.source.take() else { return Ok(0) };
            if source.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let frame = ruzstd::decoding::StreamingDecoder::new(source);
            self.frame = Some(frame.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.to_string()))?);
        }
    }
}

/// The lines of a file, one after the other.
pub(crate) struct Lines {
    path: PathBuf,
    blocks: Receiver<io::Result<Vec<u8>>>,
    block: Vec<u8>,
    at: usize,
    /// The present line within the block; none when it began in an earlier one and is in `joined`.
    inside: Option<Range<usize>>,
    joined: Vec<u8>,
    path_of_node: String,
    value: Vec<u8>,
    number: u64,
    ended: bool,
    end: Option<u64>,
}

impl Lines {
    pub(crate) fn open(path: &Path) -> Result<Lines> {
        let mut bytes = decompressed(path)?;
        let (sender, blocks) = sync_channel(4);
        std::thread::spawn(move || {
            loop {
                let mut block = Vec::with_capacity(BLOCK);
                let read = bytes.by_ref().take(BLOCK as u64).read_to_end(&mut block);
                let last = matches!(read, Ok(0) | Err(_));
                // The part before an error still counts, so that the error can name its line.
                if !block.is_empty() && sender.send(Ok(block)).is_err() {
                    return;
                }
                if let Err(e) = read {
                    let _ = sender.send(Err(e));
                }
                if last {
                    return;
                }
            }
        });
        Ok(Lines {
            path: path.to_owned(),
            blocks,
            block: Vec::new(),
            at: 0,
            inside: None,
            joined: Vec::new(),
            path_of_node: String::new(),
            value: Vec::new(),
            number: 0,
            ended: false,
            end: None,
        })
    }

    /// An error that names the present line.
    pub(crate) fn error(&self, why: impl std::fmt::Display) -> TargetError {
        invalid(&self.path, format!("line {}: {why}", self.number))
    }

    /// The next line as a node; none at the end of the file.
    pub(crate) fn next_node(&mut self) -> Result<Option<Node<'_>>> {
        if !self.next_line()? {
            return Ok(None);
        }
        if self.end.is_some() {
            return Err(self.error("there is more after the line that ends the snapshot"));
        }
        let mut value = std::mem::take(&mut self.value);
        let mut path = std::mem::take(&mut self.path_of_node);
        let line = parse(self.bytes()).map_err(|why| self.error(why))?;
        let stat = line.decoded(&mut value).map_err(|why| self.error(why))?;
        path.clear();
        path.push_str(&line.path);
        self.end = line.end;
        (self.value, self.path_of_node) = (value, path);
        Ok(Some(Node { path: &self.path_of_node, value: &self.value, stat }))
    }

    /// The bytes of the next line; false at the end.
    pub(crate) fn next_line(&mut self) -> Result<bool> {
        self.inside = None;
        self.joined.clear();
        loop {
            if self.at == self.block.len() && !self.next_block()? {
                if self.joined.is_empty() {
                    return Ok(false);
                }
                self.number += 1;
                return Err(self.error("the file ends inside it: the file was cut"));
            }
            let from = self.at;
            let end = memchr::memchr(b'\n', &self.block[from..]).map(|length| from + length);
            self.at = end.map_or(self.block.len(), |end| end + 1);
            let part = from..end.unwrap_or(self.block.len());
            if end.is_some() && self.joined.is_empty() {
                self.inside = Some(part);
            } else {
                self.joined.extend_from_slice(&self.block[part]);
            }
            if end.is_some() {
                self.number += 1;
                return Ok(true);
            }
            if self.joined.len() > MAX_LINE {
                self.number += 1;
                return Err(self.error(format!("it is longer than {MAX_LINE} bytes")));
            }
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.inside.clone().map_or(&self.joined, |inside| &self.block[inside])
    }

    fn next_block(&mut self) -> Result<bool> {
        if self.ended {
            return Ok(false);
        }
        match self.blocks.recv() {
            Ok(Ok(block)) => {
                (self.block, self.at) = (block, 0);
                Ok(true)
            }
            Ok(Err(e)) => {
                self.number += 1;
                Err(self.error(format!("{e}: the file is cut or damaged from here on")))
            }
            Err(_) => {
                self.ended = true;
                Ok(false)
            }
        }
    }

    /// Checks that a file in scan order ended where it should.
    pub(crate) fn finish(&self) -> Result<()> {
        match self.end {
            Some(lines) if lines == self.number => Ok(()),
            Some(lines) => {
                Err(self.error(format!("the snapshot says it has {lines} lines, the file has {}", self.number)))
            }
            None => Err(self.error("the snapshot ends here without its closing line: the file was cut; take it again")),
        }
    }
}

pub(crate) fn parse_line(bytes: &[u8]) -> std::result::Result<Line<'_>, String> {
    parse(bytes)
}
