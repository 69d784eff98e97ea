//! Somebody who is told things by webhook, and may refuse them for a while.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use serde_json::Value;

#[derive(Debug, Default)]
struct State {
    refuse: usize,
    refused: Vec<Value>,
    taken: Vec<Value>,
    tokens: Vec<String>,
}

/// A receiver of webhooks.
#[derive(Debug)]
pub struct Webhook {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Webhook {
    /// Listens on a free port. The first so many calls are answered with 503.
    ///
    /// # Errors
    /// When there is no port.
    pub fn start(refuse: usize) -> Result<Webhook> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening for webhooks")?;
        let address = listener.local_addr()?.to_string();
        let state = Arc::new(Mutex::new(State { refuse, ..State::default() }));
        let kept = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                let kept = kept.clone();
                std::thread::spawn(move || while take(&stream, &kept).is_ok_and(|more| more) {});
            }
        });
        Ok(Webhook { address, state })
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}/told", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it took, in order.
    pub fn taken(&self) -> Vec<Value> {
        self.state().taken.clone()
    }

    /// What it refused, in order.
    pub fn refused(&self) -> Vec<Value> {
        self.state().refused.clone()
    }

    /// The bearer tokens that came.
    pub fn tokens(&self) -> Vec<String> {
        self.state().tokens.clone()
    }
}

/// Takes one request of a connection; false at its end.
fn take(stream: &TcpStream, kept: &Mutex<State>) -> Result<bool> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut line, mut token) = (0, String::new(), None);
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if lower.starts_with("authorization: bearer ") {
            token = Some(line["authorization: bearer ".len()..].trim().to_owned());
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let told: Value = serde_json::from_slice(&body)?;
    let answer = {
        let mut state = kept.lock().unwrap_or_else(PoisonError::into_inner);
        state.tokens.extend(token);
        if state.refuse > 0 {
            state.refuse -= 1;
            state.refused.push(told);
            "503 Service Unavailable"
        } else {
            state.taken.push(told);
            "200 OK"
        }
    };
    let mut stream = stream;
    stream.write_all(format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n").as_bytes())?;
    Ok(true)
}
