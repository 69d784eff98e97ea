//! Frames: a length (u32, big-endian, of everything after it), the length of the command, the command. What follows the command
//! in a frame (a message) is skipped: nothing here asks for messages.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

use super::proto::BaseCommand;

/// The longest frame that is read or written. Everything but messages is far below it; a broker's own limit is 5 MiB and a bit.
pub const MAX_FRAME: usize = 256 * 1024;

/// A frame that cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It says it is longer than [`MAX_FRAME`].
    #[error("a frame of {0} bytes, more than {MAX_FRAME}: is this a Pulsar broker's binary port?")]
    TooLong(usize),
    /// Its command does not fit into it.
    #[error("a frame of {frame} bytes with a command of {command}")]
    Lengths {
        /// Length of the frame.
        frame: usize,
        /// Length of the command in it.
        command: usize,
    },
    /// Its command could not be decoded.
    #[error("a command that cannot be decoded: {0}")]
    Command(String),
}

/// What was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// The command.
    pub command: BaseCommand,
    /// What stands after it.
    pub rest: Bytes,
}

impl Frame {
    /// Takes one frame off the front of what was received. None when it is not complete yet.
    ///
    /// # Errors
    /// When it is too long, or not a frame. The connection is of no use after that: where the next frame begins is not known.
    pub fn take(received: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let Some(length) = length_at(received, 0) else { return Ok(None) };
        if length > MAX_FRAME {
            return Err(FrameError::TooLong(length));
        }
        if length < 4 {
            return Err(FrameError::Lengths { frame: length, command: 0 });
        }
        let Some(command) = length_at(received, 4) else { return Ok(None) };
        if command > length - 4 {
            return Err(FrameError::Lengths { frame: length, command });
        }
        if received.len() < 4 + length {
            received.reserve(4 + length - received.len());
            return Ok(None);
        }
        received.advance(4);
        let mut frame = received.split_to(length).freeze();
        frame.advance(4);
        let bytes = frame.split_to(command);
        let command = BaseCommand::decode(bytes).map_err(|e| FrameError::Command(e.to_string()))?;
        Ok(Some(Frame { command, rest: frame }))
    }
}

fn length_at(received: &BytesMut, at: usize) -> Option<usize> {
    let bytes = received.get(at..at + 4)?;
    usize::try_from(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).ok()
}

/// Appends a command as a frame.
///
/// # Errors
/// When it is longer than [`MAX_FRAME`].
pub fn encode(command: &BaseCommand, into: &mut BytesMut) -> Result<(), FrameError> {
    let length = command.encoded_len();
    let (Ok(total), Ok(short)) = (u32::try_from(length + 4), u32::try_from(length)) else {
        return Err(FrameError::TooLong(length));
    };
    if length + 4 > MAX_FRAME {
        return Err(FrameError::TooLong(length + 4));
    }
    into.reserve(8 + length);
    into.put_u32(total);
    into.put_u32(short);
    command.encode(into).map_err(|e| FrameError::Command(e.to_string()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pulsar::wire::{CommandError, CommandPing, CommandPong};

    fn ping() -> BaseCommand {
        CommandPing {}.into()
    }

    fn pong() -> BaseCommand {
        CommandPong {}.into()
    }

    #[test]
    fn frames_come_off_one_by_one_however_they_arrive() {
        let mut sent = BytesMut::new();
        encode(&ping(), &mut sent).unwrap();
        encode(&pong(), &mut sent).unwrap();
        let mut received = BytesMut::new();
        let mut frames = Vec::new();
        for byte in &sent {
            received.put_u8(*byte);
            while let Some(frame) = Frame::take(&mut received).unwrap() {
                frames.push(frame.command);
            }
        }
        assert_eq!(frames, [ping(), pong()]);
        assert!(received.is_empty());
    }

    #[test]
    fn what_follows_a_command_is_set_apart() {
        let mut bytes = BytesMut::new();
        encode(&ping(), &mut bytes).unwrap();
        let length = u32::try_from(bytes.len() - 4 + 3).unwrap();
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(b"abc");
        let frame = Frame::take(&mut bytes).unwrap().unwrap();
        assert_eq!((frame.command, &frame.rest[..]), (ping(), &b"abc"[..]));
    }

    #[test]
    fn lengths_that_cannot_be_are_errors_at_once() {
        let take = |bytes: &[u8]| Frame::take(&mut BytesMut::from(bytes));
        assert_eq!(take(&[0, 0]), Ok(None));
        assert_eq!(take(&[0xff, 0xff, 0xff, 0xff]), Err(FrameError::TooLong(0xffff_ffff)));
        assert_eq!(take(b"HTTP/1.1 400 Bad Request"), Err(FrameError::TooLong(0x4854_5450)));
        assert_eq!(take(&[0, 0, 0, 3, 0, 0, 0]), Err(FrameError::Lengths { frame: 3, command: 0 }));
        assert_eq!(take(&[0, 0, 0, 8, 0, 0, 0, 5]), Err(FrameError::Lengths { frame: 8, command: 5 }));
        assert!(matches!(take(&[0, 0, 0, 6, 0, 0, 0, 2, 0xff, 0xff]), Err(FrameError::Command(_))));
        // No type at all.
        assert!(
            Frame::take(&mut BytesMut::from(&[0, 0, 0, 4, 0, 0, 0, 0][..]))
                .unwrap()
                .unwrap()
                .command
                .command_type()
                .is_none()
        );
        let error = CommandError { request_id: 1, error: 0, message: "x".repeat(MAX_FRAME) };
        assert!(encode(&error.into(), &mut BytesMut::new()).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_loop(bytes in proptest::collection::vec(any::<u8>(), 0..200), short in any::<bool>()) {
            let mut received = BytesMut::from(&bytes[..]);
            if short && received.len() >= 8 {
                received[..3].fill(0);
                received[4..7].fill(0);
            }
            loop {
                let before = received.len();
                match Frame::take(&mut received) {
                    Ok(Some(_)) => prop_assert!(received.len() < before),
                    Ok(None) | Err(_) => break,
                }
            }
        }
    }
}
