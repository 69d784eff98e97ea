//! A proxy in front of ZooKeeper that can answer single requests itself, wrongly: with an error, with a part of a listing, or not
//! at all.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

use crate::zk_proxy::{Jute, Op};

/// One request, housekeeping left out.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its number over all connections, from 0.
    pub number: u64,
    /// What it is.
    pub op: Op,
    /// The path it names; empty for batches.
    pub path: String,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// The connection ends before the server has seen it.
    CutBefore,
    /// The server answers, and the connection ends before the client has seen that.
    CutAfter,
    /// Nobody ever answers it.
    Silent,
    /// It is answered with this error code and goes no further.
    Error(i32),
    /// Of the names of a listing, only the first few. With the true count, or with one that fits.
    Names {
        /// How many.
        first: usize,
        /// Whether the node's own count of its children tells the truth.
        true_count: bool,
    },
}

/// Decides about each request.
type Decide = dyn Fn(&Call) -> Option<Lie> + Send + Sync;

/// The proxy. Its connections end with it.
pub struct ZkLiar {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    decide: Box<Decide>,
    calls: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ZkLiar {
    /// In front of the ZooKeeper at `host:port`.
    pub fn start(target: &str, decide: impl Fn(&Call) -> Option<Lie> + Send + Sync + 'static) -> Result<ZkLiar> {
        let listener = TcpListener::bind("127.0.0.1:0").context("opening the proxy's port")?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(Shared { decide: Box::new(decide), calls: AtomicU64::new(0), open: Mutex::default() });
        let (target, inside) = (target.to_owned(), Arc::downgrade(&shared));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Some(shared) = inside.upgrade() else { return };
                let Ok(server) = TcpStream::connect(&target) else { continue };
                serve(client, server, shared).ok();
            }
        });
        Ok(ZkLiar { address, shared })
    }

    /// `host:port` to connect to instead of ZooKeeper's.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Requests so far.
    pub fn calls(&self) -> u64 {
        self.shared.calls.load(Ordering::SeqCst)
    }
}

impl Drop for ZkLiar {
    fn drop(&mut self) {
        for stream in lock(&self.shared.open).drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

/// What is to become of the answers of one connection.
#[derive(Default)]
struct Lies {
    of: HashMap<i32, Lie>,
    /// The last transaction that the server told of.
    zxid: i64,
}

fn serve(client: TcpStream, server: TcpStream, shared: Arc<Shared>) -> Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    lock(&shared.open).extend([client.try_clone()?, server.try_clone()?]);
    let lies = Arc::new(Mutex::new(Lies::default()));
    // Two threads answer the client: the server's answers and our own must not mix.
    let to_client = Arc::new(Mutex::new(client.try_clone()?));
    let back = (server.try_clone()?, to_client.clone(), lies.clone());
    std::thread::spawn(move || {
        let (mut server, client, lies) = back;
        let _ = answers(&mut server, &client, &lies);
        server.shutdown(Shutdown::Both).ok();
        lock(&client).shutdown(Shutdown::Both).ok();
    });
    std::thread::spawn(move || {
        let (mut client, mut server) = (client, server);
        let _ = requests(&mut client, &mut server, &to_client, &lies, &shared);
        client.shutdown(Shutdown::Both).ok();
        server.shutdown(Shutdown::Both).ok();
    });
    Ok(())
}

fn frame(from: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    let mut body = vec![0; u32::from_be_bytes(head) as usize];
    from.read_exact(&mut body)?;
    Ok(body)
}

fn send(to: &mut TcpStream, body: &[u8]) -> std::io::Result<()> {
    let size = u32::try_from(body.len()).map_err(std::io::Error::other)?;
    to.write_all(&[&size.to_be_bytes()[..], body].concat())
}

fn requests(
    client: &mut TcpStream,
    server: &mut TcpStream,
    to_client: &Mutex<TcpStream>,
    lies: &Mutex<Lies>,
    shared: &Shared,
) -> std::io::Result<()> {
    // The request for a session has no number.
    send(server, &frame(client)?)?;
    loop {
        let body = frame(client)?;
        let mut reader = Jute(&body);
        let (Some(xid), Some(kind)) = (reader.int(), reader.int()) else { return Ok(()) };
        let op = Op::from_number(kind);
        if op.housekeeping() {
            send(server, &body)?;
            continue;
        }
        let path = if matches!(op, Op::Multi | Op::MultiRead) { None } else { reader.string() };
        let number = shared.calls.fetch_add(1, Ordering::SeqCst);
        let lie = (shared.decide)(&Call { number, op, path: path.unwrap_or_default() });
        match lie {
            Some(Lie::CutBefore) => return Ok(()),
            Some(Lie::Silent) => {}
            Some(Lie::Error(code)) => {
                let zxid = lock(lies).zxid;
                let answer = [&xid.to_be_bytes()[..], &zxid.to_be_bytes(), &code.to_be_bytes()].concat();
                send(&mut lock(to_client), &answer)?;
            }
            Some(lie) => {
                lock(lies).of.insert(xid, lie);
                send(server, &body)?;
            }
            None => send(server, &body)?,
        }
    }
}

fn answers(server: &mut TcpStream, client: &Mutex<TcpStream>, lies: &Mutex<Lies>) -> std::io::Result<()> {
    let greeting = frame(server)?;
    send(&mut lock(client), &greeting)?;
    loop {
        let mut body = frame(server)?;
        let mut reader = Jute(&body);
        let (Some(xid), Some(high), Some(low)) = (reader.int(), reader.int(), reader.int()) else { return Ok(()) };
        let lie = {
            let mut lies = lock(lies);
            let zxid = i64::from(high) << 32 | i64::from(low.cast_unsigned());
            lies.zxid = lies.zxid.max(zxid);
            lies.of.remove(&xid)
        };
        match lie {
            Some(Lie::CutAfter) => return Ok(()),
            Some(Lie::Names { first, true_count }) => body = fewer(&body, first, true_count).unwrap_or(body),
            _ => {}
        }
        send(&mut lock(client), &body)?;
    }
}

/// A listing with only its first names. Behind the names is the node's stat; its count of children stands 12 bytes before its end.
fn fewer(body: &[u8], first: usize, true_count: bool) -> Option<Vec<u8>> {
    let (head, rest) = body.split_at_checked(16)?;
    let mut reader = Jute(rest);
    let mut names = Vec::new();
    for _ in 0..reader.int()? {
        names.push(reader.string()?);
    }
    let mut stat = reader.0.to_vec();
    names.truncate(first);
    let count = i32::try_from(names.len()).ok()?;
    if !true_count {
        let at = stat.len().checked_sub(12)?;
        stat[at..at + 4].copy_from_slice(&count.to_be_bytes());
    }
    let mut all = [head, &count.to_be_bytes()].concat();
    for name in names {
        all.extend_from_slice(&i32::try_from(name.len()).ok()?.to_be_bytes());
        all.extend_from_slice(name.as_bytes());
    }
    all.extend_from_slice(&stat);
    Some(all)
}
