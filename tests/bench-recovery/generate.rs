//! Unclean log dirs of any size, written directly: formatted, never stopped, everything unflushed.
//!
//! Batches are valid and sized like a producer's. What a broker leaves beside them is there as well: indexes of rolled
//! segments (written by a first recovery), preallocated ones of the active segment, no recovery points.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

/// What a shape is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub partitions: usize,
    pub segments: usize,
    pub segment_bytes: usize,
    pub batch_bytes: usize,
    pub kind: Kind,
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Half of the partitions without producer ids, half with three idempotent producers.
    PlainAndIdempotent,
    /// Thirds: four producers with overlapping transactions, three idempotent ones, compressed batches without ids.
    Mixed,
}

struct Writer {
    out: BufWriter<File>,
    offset: i64,
    written: usize,
}

const RECORD_BYTES: usize = 1000;

impl Writer {
    fn batch(&mut self, producer: Option<(i64, i32)>, attributes: u8, payload: &[u8]) -> std::io::Result<()> {
        let records = if attributes & 0x20 != 0 { 1 } else { (payload.len() / RECORD_BYTES).max(1) as i32 };
        let timestamp = 1_795_984_000_000_i64 + self.offset / 10;
        let (id, sequence) = producer.unwrap_or((-1, -1));
        let mut head = [0_u8; 61];
        head[..8].copy_from_slice(&self.offset.to_be_bytes());
        head[8..12].copy_from_slice(&(49 + payload.len() as i32).to_be_bytes());
        head[16] = 2;
        head[22] = attributes;
        head[23..27].copy_from_slice(&(records - 1).to_be_bytes());
        head[27..35].copy_from_slice(&timestamp.to_be_bytes());
        head[35..43].copy_from_slice(&timestamp.to_be_bytes());
        head[43..51].copy_from_slice(&id.to_be_bytes());
        head[51..53].copy_from_slice(&if id < 0 { -1_i16 } else { 0 }.to_be_bytes());
        head[53..57].copy_from_slice(&sequence.to_be_bytes());
        head[57..61].copy_from_slice(&records.to_be_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[21..]), payload);
        head[17..21].copy_from_slice(&crc.to_be_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(payload)?;
        self.offset += i64::from(records);
        self.written += 61 + payload.len();
        Ok(())
    }

    fn marker(&mut self, id: i64, abort: bool) -> std::io::Result<()> {
        let record = [32, 0, 0, 0, 8, 0, 0, 0, u8::from(!abort), 12, 0, 0, 0, 0, 0, 1, 0];
        self.batch(Some((id, -1)), 0x30, &record)
    }
}

/// Writes a shape into the empty folder `top`.
pub fn generate(shape: &Shape, top: &Path) -> Result<()> {
    fs::write(
        top.join("meta.properties"),
        "version=1\nnode.id=1\ncluster.id=bench\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n",
    )?;
    let mut random = 1_u64;
    let mut payload = vec![0_u8; shape.batch_bytes];
    for byte in &mut payload {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (random >> 56) as u8;
    }
    for partition in 0..shape.partitions {
        let folder = top.join(format!("bench-{partition}"));
        fs::create_dir(&folder)?;
        fs::write(folder.join("partition.metadata"), "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")?;
        fs::write(folder.join("leader-epoch-checkpoint"), "0\n1\n0 0\n")?;
        let mut offset = 0;
        let mut step = partition;
        for segment in 0..shape.segments {
            let path = folder.join(format!("{offset:020}.log"));
            let out = BufWriter::with_capacity(1 << 20, File::create(&path).context("creating a segment")?);
            let mut writer = Writer { out, offset, written: 0 };
            while writer.written + shape.batch_bytes < shape.segment_bytes {
                write_one(shape, &mut writer, partition, step, &payload)?;
                step += 1;
            }
            writer.out.flush()?;
            let last = segment + 1 == shape.segments;
            for (suffix, size) in [("index", 10_485_760), ("timeindex", 10_485_756)] {
                let file = File::create(folder.join(format!("{offset:020}.{suffix}")))?;
                file.set_len(if last { size } else { 0 })?;
            }
            offset = writer.offset;
        }
    }
    Ok(())
}

fn write_one(shape: &Shape, writer: &mut Writer, partition: usize, step: usize, payload: &[u8]) -> std::io::Result<()> {
    let sequence = |every: usize| (step / every) as i32 & 0x00FF_FFFF;
    let idempotent = |writer: &mut Writer| writer.batch(Some((1000 + (step % 3) as i64, sequence(3))), 0, payload);
    match (shape.kind, partition % 2, partition % 3) {
        (Kind::PlainAndIdempotent, 0, _) => writer.batch(None, 0, payload),
        (Kind::PlainAndIdempotent, _, _) | (Kind::Mixed, _, 1) => idempotent(writer),
        // lz4; recovery never looks inside
        (Kind::Mixed, _, 2) => writer.batch(None, 3, payload),
        (Kind::Mixed, _, _) => {
            let id = (step % 4) as i64;
            writer.batch(Some((id, sequence(4))), 0x10, payload)?;
            // The first producer's transactions are long.
            let ends = (step / 4).is_multiple_of(if id == 0 { 9 } else { 2 });
            if ends { writer.marker(id, step % 8 < 4) } else { Ok(()) }
        }
    }
}
