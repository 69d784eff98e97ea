//! A proxy for protocols of frames with a length of four bytes in front (Hedwig's, ZooKeeper's), which shows every frame to a hook before
//! it goes on. A hook may take its time, do something to either side meanwhile, and decide what becomes of the frame.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result};

/// A frame on its way.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Number of the connection, from 0.
    pub connection: u64,
    /// From the client, or to it.
    pub from_client: bool,
    /// Number among the frames of its direction on its connection, from 0.
    pub number: u64,
    /// Its content, without the length.
    pub body: &'a [u8],
}

/// What becomes of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Pass,
    /// It is lost.
    Drop,
    /// These bytes go on in its place; no length is put in front of them.
    Replace(Vec<u8>),
    /// It is lost, and the connection is closed.
    Close,
    /// It goes on, and then the connection is closed.
    PassAndClose,
}

type Hook = Arc<dyn Fn(Frame<'_>) -> Fate + Send + Sync>;

/// A listening port of its own whose connections go to a target. Frames that arrive together go on together.
#[derive(Debug)]
pub struct FrameProxy {
    address: String,
    closing: Arc<AtomicBool>,
}

impl FrameProxy {
    /// Listens on a free port of loopback in front of `target` (`host:port`).
    pub fn start(target: &str, hook: impl Fn(Frame<'_>) -> Fate + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("opening the proxy's port")?;
        let address = listener.local_addr()?.to_string();
        let closing = Arc::new(AtomicBool::new(false));
        let (target, hook, ends) = (target.to_owned(), Arc::new(hook) as Hook, closing.clone());
        std::thread::spawn(move || {
            let connections = AtomicU64::new(0);
            for client in listener.incoming().map_while(std::result::Result::ok) {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                // A target that is down looks to the client like a connection that ends at once.
                let Ok(server) = TcpStream::connect(&target) else { continue };
                serve(connections.fetch_add(1, Ordering::Relaxed), &client, &server, &hook).ok();
            }
        });
        Ok(Self { address, closing })
    }

    /// The proxy's own `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for FrameProxy {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // wakes the thread that accepts
        TcpStream::connect(&self.address).ok();
    }
}

fn serve(connection: u64, client: &TcpStream, server: &TcpStream, hook: &Hook) -> Result<()> {
    for (from, to, from_client) in [(client, server, true), (server, client, false)] {
        from.set_nodelay(true)?;
        let (from, to, hook) = (from.try_clone()?, to.try_clone()?, hook.clone());
        std::thread::spawn(move || pump(connection, from, to, from_client, &hook));
    }
    Ok(())
}

fn pump(connection: u64, mut from: TcpStream, mut to: TcpStream, from_client: bool, hook: &Hook) {
    let (mut buffer, mut received, mut number) = (vec![0_u8; 64 * 1024], Vec::new(), 0);
    'all: while let Ok(n @ 1..) = from.read(&mut buffer) {
        received.extend_from_slice(&buffer[..n]);
        let (mut out, mut ends) = (Vec::new(), false);
        while !ends && let Some(length) = received.first_chunk::<4>() {
            let whole = u32::from_be_bytes(*length) as usize + 4;
            if received.len() < whole {
                break;
            }
            let frame: Vec<u8> = received.drain(..whole).collect();
            let fate = hook(Frame { connection, from_client, number, body: &frame[4..] });
            number += 1;
            ends = matches!(fate, Fate::Close | Fate::PassAndClose);
            match fate {
                Fate::Pass | Fate::PassAndClose => out.extend_from_slice(&frame),
                Fate::Replace(bytes) => out.extend_from_slice(&bytes),
                Fate::Drop | Fate::Close => {}
            }
        }
        if to.write_all(&out).is_err() || ends {
            break 'all;
        }
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_shown_changed_and_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::io::copy(&mut stream.try_clone().unwrap(), &mut &stream).ok();
            }
        });
        let proxy = FrameProxy::start(&target, |frame| match (frame.from_client, frame.body) {
            (true, b"lost") => Fate::Drop,
            (true, b"end") => Fate::PassAndClose,
            (false, b"a") => Fate::Replace(b"\0\0\0\x01b".to_vec()),
            _ => Fate::Pass,
        })
        .unwrap();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        stream.write_all(b"\0\0\0\x04lost\0\0\0\x01a\0\0\0").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"\0\0\0\x01b");
        stream.write_all(b"\x03end").unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty() || rest == b"\0\0\0\x03end");
    }
}
