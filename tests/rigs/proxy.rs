//! A TCP proxy that can cut, stall and watch the connections of one target.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// What a proxy does with the bytes it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Pass,
    Stall,
    Cut,
    Closing,
}

/// Sees what a client sends over one connection, in order. It must not block.
pub trait Tap: Send {
    /// The next bytes from the client.
    fn client_sent(&mut self, bytes: &[u8]);

    /// Whether what was seen last may go on to the target. If not, nothing of the client does any more: it waits for an answer that never
    /// comes.
    fn passes(&self) -> bool {
        true
    }

    /// What the target gets to hear in place of a client that is gone.
    fn last_words(&mut self) -> Option<Vec<u8>> {
        None
    }
}

impl<F: FnMut(&[u8]) + Send> Tap for F {
    fn client_sent(&mut self, bytes: &[u8]) {
        self(bytes);
    }
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// Both ends of each live connection, by number.
    open: Vec<(u64, TcpStream, TcpStream)>,
    accepted: u64,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, mode: Mode) {
        self.lock().mode = mode;
        self.changed.notify_all();
    }

    fn close_all(&self) {
        for (_, a, b) in self.lock().open.drain(..) {
            a.shutdown(Shutdown::Both).ok();
            b.shutdown(Shutdown::Both).ok();
        }
    }

    /// Waits until bytes may pass; false when the connection is to end instead.
    fn may_pass(&self) -> bool {
        let state =
            self.changed.wait_while(self.lock(), |s| s.mode == Mode::Stall).unwrap_or_else(PoisonError::into_inner);
        state.mode == Mode::Pass
    }
}

/// A listening port of its own whose connections go to a target. Dropping it closes them all.
#[derive(Debug)]
pub struct Proxy {
    address: String,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on a free port of loopback in front of `target` (`host:port`); `tap` is asked for once a connection.
    pub fn start<T: Tap + 'static>(target: &str, tap: impl Fn() -> T + Send + 'static) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("opening the proxy's port")?;
        let address = listener.local_addr()?.to_string();
        let shared = Arc::new(Shared {
            state: Mutex::new(State { mode: Mode::Pass, open: Vec::new(), accepted: 0 }),
            changed: Condvar::new(),
        });
        let (target, inside) = (target.to_owned(), Arc::clone(&shared));
        std::thread::spawn(move || accept(&listener, &target, &inside, tap));
        Ok(Self { address, shared })
    }

    /// The proxy's own `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Closes all connections and refuses new ones (they are accepted and closed at once) until [`Proxy::resume`].
    pub fn cut(&self) {
        self.shared.set(Mode::Cut);
        self.shared.close_all();
    }

    /// Closes all connections once; new ones are welcome.
    pub fn drop_connections(&self) {
        self.shared.close_all();
    }

    /// From now on nothing passes in either direction, and nothing is closed: the other end looks half dead. New
    /// connections are accepted and get no answer. After [`Proxy::resume`] the bytes held back go on.
    pub fn stall(&self) {
        self.shared.set(Mode::Stall);
    }

    /// Back to passing everything on.
    pub fn resume(&self) {
        self.shared.set(Mode::Pass);
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// How many connections are open now.
    pub fn open(&self) -> usize {
        self.shared.lock().open.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.set(Mode::Closing);
        self.shared.close_all();
        // wakes the thread that accepts
        TcpStream::connect(&self.address).ok();
    }
}

fn accept<T: Tap + 'static>(listener: &TcpListener, target: &str, shared: &Arc<Shared>, tap: impl Fn() -> T) {
    while let Ok((client, _)) = listener.accept() {
        let number = {
            let mut state = shared.lock();
            match state.mode {
                Mode::Closing => return,
                Mode::Cut => continue,
                Mode::Pass | Mode::Stall => {}
            }
            state.accepted += 1;
            state.accepted
        };
        // A target that is down looks to the client like a connection that ends at once.
        let Ok(server) = TcpStream::connect(target) else {
            continue;
        };
        if let Err(e) = serve(number, client, server, shared, tap()) {
            eprintln!("proxy to {target}: {e:#}");
        }
    }
}

fn serve(
    number: u64,
    client: TcpStream,
    server: TcpStream,
    shared: &Arc<Shared>,
    tap: impl Tap + 'static,
) -> Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    // A pump must notice that its other half has gone even while nothing is sent.
    server.set_write_timeout(Some(Duration::from_secs(30)))?;
    {
        let mut state = shared.lock();
        state.open.push((number, client.try_clone()?, server.try_clone()?));
        // cut() may have come between accepting and this line
        if matches!(state.mode, Mode::Cut | Mode::Closing) {
            client.shutdown(Shutdown::Both).ok();
            server.shutdown(Shutdown::Both).ok();
        }
    }
    let (back_from, back_to) = (server.try_clone()?, client.try_clone()?);
    let there = Arc::clone(shared);
    let back = Arc::clone(shared);
    std::thread::spawn(move || pump(number, client, server, &there, tap));
    std::thread::spawn(move || pump(number, back_from, back_to, &back, |_: &[u8]| {}));
    Ok(())
}

fn pump(number: u64, mut from: TcpStream, mut to: TcpStream, shared: &Shared, mut tap: impl Tap) {
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut passes = true;
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        let bytes = &buffer[..n];
        if !shared.may_pass() {
            break;
        }
        // Recorded before it is sent: whoever saw an answer finds the request on record.
        if passes {
            tap.client_sent(bytes);
            passes = tap.passes();
        }
        if passes && to.write_all(bytes).is_err() {
            break;
        }
    }
    if let Some(words) = tap.last_words()
        && to.write_all(&words).is_ok()
    {
        // Until it was heard: the target hangs up then.
        to.shutdown(Shutdown::Write).ok();
        std::io::copy(&mut to, &mut std::io::sink()).ok();
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
    shared.lock().open.retain(|(n, _, _)| *n != number);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each byte with the same byte.
    fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    let (mut from, mut to) = (stream.try_clone().unwrap(), stream);
                    std::io::copy(&mut from, &mut to).ok();
                });
            }
        });
        address
    }

    fn client(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        stream
    }

    fn ask(stream: &mut TcpStream) -> std::io::Result<u8> {
        let mut answer = [0];
        stream.write_all(b"x")?;
        stream.read_exact(&mut answer)?;
        Ok(answer[0])
    }

    #[test]
    fn a_stalled_proxy_answers_late_and_a_cut_one_never() {
        let seen = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&seen);
        let proxy = Proxy::start(&echo(), move || {
            let counted = Arc::clone(&counted);
            move |bytes: &[u8]| *counted.lock().unwrap() += bytes.len()
        })
        .unwrap();
        let mut old = client(&proxy);
        assert_eq!(ask(&mut old).unwrap(), b'x');

        proxy.stall();
        assert!(ask(&mut old).is_err(), "no answer while stalled");
        let mut new = client(&proxy);
        assert!(ask(&mut new).is_err());
        proxy.resume();
        let mut late = [0];
        old.read_exact(&mut late).unwrap();
        new.read_exact(&mut late).unwrap();

        proxy.cut();
        assert!(ask(&mut old).is_err());
        assert!(ask(&mut client(&proxy)).is_err());
        proxy.resume();
        assert_eq!(ask(&mut client(&proxy)).unwrap(), b'x');
        assert_eq!(*seen.lock().unwrap(), 4);
    }
}
