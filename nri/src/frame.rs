//! Framing: the multiplexer's frames (connection id, length) and, in them, ttrpc's messages. Pure.

use std::collections::VecDeque;

use crate::Error;

/// The multiplexed connection on which the runtime calls the plugin.
pub const PLUGIN: u32 = 1;
/// The multiplexed connection on which the plugin calls the runtime.
pub const RUNTIME: u32 = 2;

/// ttrpc's kind of message: a call.
pub const REQUEST: u8 = 1;
/// ttrpc's kind of message: its answer.
pub const RESPONSE: u8 = 2;

/// Connection id and length, 4 bytes each, big endian.
const FRAME_HEADER: usize = 8;
/// Length (4 bytes, big endian), stream (the same), kind, flags.
const HEADER: usize = 10;
/// Largest data of a message, as ttrpc has it.
const MAX_MESSAGE: usize = 4 << 20;
/// The runtime reads into a buffer of this size, and fails if a frame does not fit.
const MAX_OUT: usize = 4096;

/// One message of ttrpc.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// The multiplexed connection.
    pub connection: u32,
    /// The stream, one per call.
    pub stream: u32,
    /// What it is.
    pub kind: u8,
    /// Its data.
    pub data: Vec<u8>,
}

/// Takes what comes through the socket apart. Holds at most two messages that are not complete.
#[derive(Debug, Default)]
pub struct Demultiplexer {
    header: Vec<u8>,
    /// Whose bytes these are, and how many are still to come.
    frame: (u32, usize),
    plugin: Vec<u8>,
    runtime: Vec<u8>,
    ready: VecDeque<Message>,
}

impl Demultiplexer {
    /// Takes bytes, cut anywhere.
    ///
    /// # Errors
    /// If a frame or message is larger than the protocol allows; nothing can be read any more then.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let wanted = if self.frame.1 == 0 { FRAME_HEADER - self.header.len() } else { self.frame.1 };
            let (now, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if self.frame.1 == 0 {
                self.header(now)?;
            } else {
                self.frame.1 -= now.len();
                self.payload(now)?;
            }
        }
        Ok(())
    }

    /// The next complete message, in the order in which they were completed.
    pub fn next(&mut self) -> Option<Message> {
        self.ready.pop_front()
    }

    /// Whether everything that was begun is complete.
    pub fn is_between(&self) -> bool {
        let buffers = [&self.header, &self.plugin, &self.runtime];
        self.frame.1 == 0 && buffers.iter().all(|buffer| buffer.is_empty())
    }

    fn header(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.header.extend_from_slice(bytes);
        if self.header.len() < FRAME_HEADER {
            return Ok(());
        }
        let (connection, length) = (number(&self.header), number(&self.header[4..]) as usize);
        self.header.clear();
        if length > HEADER + MAX_MESSAGE {
            return Err(Error::Protocol("a frame that is too large"));
        }
        self.frame = (connection, length);
        Ok(())
    }

    /// Connections that nobody knows are for a newer plugin; what they carry is dropped.
    fn payload(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let connection = self.frame.0;
        let buffer = match connection {
            PLUGIN => &mut self.plugin,
            RUNTIME => &mut self.runtime,
            _ => return Ok(()),
        };
        buffer.extend_from_slice(bytes);
        while let Some((length, stream, kind)) = message_header(buffer)? {
            if buffer.len() < HEADER + length {
                break;
            }
            let data = buffer[HEADER..HEADER + length].to_vec();
            buffer.drain(..HEADER + length);
            self.ready.push_back(Message { connection, stream, kind, data });
        }
        if buffer.is_empty() {
            // One large message, the pods of a node, is no reason to keep its size.
            buffer.shrink_to(MAX_OUT);
        }
        Ok(())
    }
}

fn message_header(buffer: &[u8]) -> Result<Option<(usize, u32, u8)>, Error> {
    if buffer.len() < HEADER {
        return Ok(None);
    }
    let length = number(buffer) as usize;
    if length > MAX_MESSAGE {
        return Err(Error::Protocol("a message that is too large"));
    }
    Ok(Some((length, number(&buffer[4..]), buffer[8])))
}

/// The first four bytes, big endian.
fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The bytes of a message, in frames that the runtime can take.
pub fn encode(message: &Message) -> Vec<u8> {
    let length = u32::try_from(message.data.len()).unwrap_or(u32::MAX);
    let mut whole = Vec::with_capacity(HEADER + message.data.len());
    whole.extend_from_slice(&length.to_be_bytes());
    whole.extend_from_slice(&message.stream.to_be_bytes());
    whole.extend_from_slice(&[message.kind, 0]);
    whole.extend_from_slice(&message.data);
    let mut bytes = Vec::with_capacity(whole.len() + FRAME_HEADER);
    for part in whole.chunks(MAX_OUT) {
        let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&message.connection.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn message(connection: u32, data: Vec<u8>) -> Message {
        Message { connection, stream: 7, kind: REQUEST, data }
    }

    fn all(demultiplexer: &mut Demultiplexer) -> Vec<Message> {
        std::iter::from_fn(|| demultiplexer.next()).collect()
    }

    #[test]
    fn a_large_message_goes_out_in_frames_of_4096_bytes() {
        let bytes = encode(&message(PLUGIN, vec![9; 10_000]));
        let (mut rest, mut lengths) = (&bytes[..], Vec::new());
        while let Some((header, after)) = rest.split_first_chunk::<8>() {
            let length = u32::from_be_bytes([header[4], header[5], header[6], header[7]]) as usize;
            lengths.push(length);
            rest = &after[length..];
        }
        assert_eq!(lengths, [4096, 4096, 10_010 - 2 * 4096]);
    }

    #[test]
    fn what_is_larger_than_the_protocol_allows_is_refused_before_it_is_kept() {
        let mut demultiplexer = Demultiplexer::default();
        let frame = [0, 0, 0, 1, 0xff, 0, 0, 0];
        assert!(demultiplexer.feed(&frame).is_err());
        let mut demultiplexer = Demultiplexer::default();
        let message = [0, 0, 0, 1, 0, 0, 0, 10, 0, 0x50, 0, 0, 0, 0, 0, 1, 1, 0];
        assert!(demultiplexer.feed(&message).is_err());
    }

    #[test]
    fn other_connections_are_dropped() {
        let mut demultiplexer = Demultiplexer::default();
        demultiplexer.feed(&encode(&message(9, vec![1; 5000]))).unwrap();
        assert!(demultiplexer.next().is_none() && demultiplexer.is_between());
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut(
            sizes in vec((1_u32..=2, 0_usize..9000), 1..6), cut in 1_usize..5000
        ) {
            let sent: Vec<Message> =
                sizes.iter().map(|(connection, size)| message(*connection, vec![3; *size])).collect();
            let bytes: Vec<u8> = sent.iter().flat_map(encode).collect();
            let mut demultiplexer = Demultiplexer::default();
            for part in bytes.chunks(cut) {
                demultiplexer.feed(part).unwrap();
            }
            prop_assert_eq!(all(&mut demultiplexer), sent);
            prop_assert!(demultiplexer.is_between());
        }

        #[test]
        fn no_bytes_make_it_panic_or_grow(bytes in vec(any::<u8>(), 0..20_000), cut in 1_usize..300) {
            let mut demultiplexer = Demultiplexer::default();
            for part in bytes.chunks(cut) {
                if demultiplexer.feed(part).is_err() {
                    break;
                }
            }
            let kept = demultiplexer.plugin.len() + demultiplexer.runtime.len();
            prop_assert!(kept <= bytes.len());
        }
    }
}
