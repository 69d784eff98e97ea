//! Free ports that stay ours.
//!
//! Asking the kernel for port 0 and letting go of it again loses the port to whoever asks next, and a rig needs its
//! ports known beforehand and free again at each restart. So ports come from a range below the kernel's ephemeral one, and
//! each is held by a lock on a file for as long as its [`Port`] lives, across all test processes of this machine.

use std::fs::{File, TryLockError};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

const FIRST: u16 = 21_000;
const COUNT: u16 = 10_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback TCP port that no other rig takes while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Takes a port on which nothing listens now.
    pub fn take() -> Result<Self> {
        let folder = std::env::temp_dir().join("trimtab-test-ports");
        std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        // Processes start at different places, so that they seldom try the same locks.
        let start = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.subsec_nanos()) ^ std::process::id();
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let offset = (start.wrapping_add(u32::from(step)) % u32::from(COUNT)) as u16;
            let number = FIRST + offset;
            let path = folder.join(number.to_string());
            let lock = File::options()
                .create(true)
                .append(true)
                .open(&path)
                .with_context(|| format!("opening {}", path.display()))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(e)) => {
                    return Err(e).with_context(|| format!("locking {}", path.display()));
                }
            }
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        bail!("no free port between {FIRST} and {}", FIRST + COUNT)
    }

    /// The number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}
