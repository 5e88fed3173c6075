//! A peer that calls a listener, and then sends and reads FPDUs one by one, when the test wants it.
//! Principal type: [`Initiator`].

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use iwarp::ddp::{Header, Place, UNTAGGED_LEN};
use iwarp::fpdu::{Receiver, Sender};
use iwarp::rdmap::{AtomicRequest, Opcode, QUEUE_REQUEST, ReadRequest};
use iwarp::{Answer, Stag, Terms};

/// The peer, and the memory that the listener offers, if it is the suite's program `pressure`.
pub(super) struct Initiator {
    socket: TcpStream,
    sender: Sender,
    receiver: Receiver,
    /// What has been read and not taken.
    arrived: Vec<u8>,
    msn: u32,
    pub(super) address: u64,
    pub(super) stag: Stag,
}

/// A message of one segment.
pub(super) fn segment(opcode: Opcode, place: Place, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; UNTAGGED_LEN];
    let len = Header { last: true, rdmap: opcode.emit(), place }.emit(&mut header);
    [&header[..len], payload].concat()
}

/// The FPDU of a segment.
pub(super) fn framed(sender: &mut Sender, segment: &[u8]) -> Vec<u8> {
    let mut out = vec![0; sender.room(segment.len())];
    let len = sender.frame(&mut out, segment, 0, |_, _, _| Ok::<_, ()>(false)).expect("nothing is fetched");
    out.truncate(len);
    out
}

impl Initiator {
    /// Connects to a port of this host.
    pub(super) fn connect(port: u16) -> Self {
        Self::connect_on(port, Terms { ord: 16, ..Terms::default() })
    }

    /// Connects to a port of this host on these terms.
    pub(super) fn connect_on(port: u16, terms: Terms) -> Self {
        let markers = terms.markers;
        let mut initiator = iwarp::Initiator::new(terms, &[], Duration::MAX).expect("short");
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        socket.write_all(&initiator.poll_transmit().expect("the request")).expect("sent");
        let mut byte = [0];
        let private = loop {
            socket.read_exact(&mut byte).expect("the reply");
            match initiator.receive(&byte).expect("a valid reply") {
                (_, Some(Answer::Accepted(_, private))) => break private,
                (_, answer) => assert_eq!(answer, None),
            }
        };
        let address = private.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let stag = private.get(8..12).map_or(Stag(0), |key| Stag(u32::from_ne_bytes(key.try_into().expect("4 bytes"))));
        let (sender, receiver) = (Sender::new(true, false), Receiver::new(true, markers));
        Self { socket, sender, receiver, arrived: Vec::new(), msn: 0, address, stag }
    }

    /// Asks for bytes of the listener's memory.
    pub(super) fn read(&mut self, size: u32) {
        let request = ReadRequest { sink: Stag(1), sink_to: 0, size, source: self.stag, source_to: self.address };
        let mut payload = [0; ReadRequest::LEN];
        request.emit(&mut payload);
        self.request(Opcode::ReadRequest, &payload);
    }

    /// Asks for an atomic on the listener's first word.
    pub(super) fn atomic(&mut self, atomic: iwarp::rdmap::Atomic) {
        let mut payload = [0; AtomicRequest::LEN];
        AtomicRequest { id: 7, target: self.stag, target_to: self.address, atomic }.emit(&mut payload);
        self.request(Opcode::AtomicRequest, &payload);
    }

    /// Writes to the listener's memory.
    pub(super) fn write(&mut self, data: &[u8]) {
        self.write_at(0, data);
    }

    /// Writes to the listener's memory, so far behind its beginning.
    pub(super) fn write_at(&mut self, offset: u64, data: &[u8]) {
        self.send(&segment(Opcode::Write, Place::Tagged { stag: self.stag, to: self.address + offset }, data));
    }

    fn request(&mut self, opcode: Opcode, payload: &[u8]) {
        self.msn += 1;
        let place = Place::Untagged { invalidate: Stag(0), queue: QUEUE_REQUEST, msn: self.msn, offset: 0 };
        self.send(&segment(opcode, place, payload));
    }

    /// Sends a segment, whatever it contains.
    pub(super) fn send(&mut self, segment: &[u8]) {
        self.socket.write_all(&framed(&mut self.sender, segment)).expect("sent");
    }

    /// Whether the listener has closed its direction, and nothing is left to read.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.arrived.is_empty() && self.socket.read(&mut [0]).is_ok_and(|len| len == 0)
    }

    /// Reads the next segment: its header and its data.
    pub(super) fn next(&mut self) -> (Header, Vec<u8>) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let mut rest = &self.arrived[..];
            let before = rest.len();
            let segment = self.receiver.next(&mut rest).expect("a good FPDU");
            let found = segment.map(|segment| {
                let (header, data) = Header::parse(segment).expect("a header");
                (header, data.to_vec())
            });
            let taken = before - rest.len();
            self.arrived.drain(..taken);
            if let Some(found) = found {
                return found;
            }
            let len = self.socket.read(&mut buffer).expect("more bytes");
            assert!(len > 0, "the listener has closed");
            self.arrived.extend_from_slice(&buffer[..len]);
        }
    }
}
