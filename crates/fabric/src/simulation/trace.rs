//! The observable events of a simulation, and their digest. Principal types: [`Seen`], [`Trace`].

use std::time::Duration;

/// What happens to a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives in order and undamaged.
    Good,
    /// It never arrives.
    Lost,
    /// It arrives twice.
    Twice,
    /// It is late, and later packets may arrive first.
    Late,
    /// It arrives with a wrong bit.
    Damaged,
}

/// An observable event.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A host sent a packet to another host (multicast: one event for each receiver).
    Sent {
        /// The sending host.
        from: usize,
        /// The receiving host.
        to: usize,
        /// What happens to the packet.
        fate: Fate,
        /// The packet from its BTH to its ICRC.
        bytes: &'a [u8],
    },
    /// A host's port has a packet for the InfiniBand subnet.
    Injected {
        /// The sending host.
        from: usize,
        /// The LID that it is for.
        dlid: u16,
        /// The service level.
        sl: u8,
        /// Whether the port has taken it: it is up, has a lane for the service level, and has room.
        sent: bool,
        /// The packet from its BTH to its ICRC.
        bytes: &'a [u8],
    },
    /// Packets arrived at a host.
    Came {
        /// The receiving host.
        to: usize,
        /// Length of each packet except the last.
        segment: usize,
        /// The packets, one after the other.
        bytes: &'a [u8],
    },
    /// Bytes of a TCP connection arrived.
    Stream {
        /// The connection's position in the order of joining.
        stream: usize,
        /// The end that has sent them: 0 or 1.
        from: usize,
        /// The bytes; none are the end of this direction.
        bytes: &'a [u8],
    },
    /// The reset of a TCP connection arrived.
    StreamReset {
        /// The connection's position in the order of joining.
        stream: usize,
        /// The end that has reset it: 0 or 1.
        from: usize,
    },
    /// An engine ran.
    Turn {
        /// The engine's position in the order of opening.
        program: usize,
        /// Whether it had work.
        worked: bool,
    },
    /// A host's connection manager ran.
    Managed {
        /// The host of the connection manager.
        host: usize,
    },
    /// An alarm's time has come.
    Alarm(u64),
    /// A note of a program: [`super::Simulation::note`].
    Noted(&'a [u64]),
}

type Watcher = Box<dyn FnMut(Duration, &Seen<'_>) + Send>;

/// The digest of all events.
pub(super) struct Trace {
    digest: u64,
    watcher: Option<Watcher>,
}

impl Trace {
    pub(super) fn new() -> Self {
        Self { digest: 0xcbf2_9ce4_8422_2325, watcher: None }
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn watch(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
    }

    pub(super) fn add(&mut self, now: u64, seen: &Seen<'_>) {
        self.word(now);
        match *seen {
            Seen::Sent { from, to, fate, bytes } => {
                self.word(1 << 56 | (from as u64) << 32 | (to as u64) << 8 | fate as u64);
                self.bytes(bytes);
            }
            Seen::Injected { from, dlid, sl, sent, bytes } => {
                self.word(7 << 56 | (from as u64) << 32 | u64::from(dlid) << 8 | u64::from(sl) << 4 | u64::from(sent));
                self.bytes(bytes);
            }
            Seen::Came { to, segment, bytes } => {
                self.word(2 << 56 | (to as u64) << 32 | segment as u64);
                self.bytes(bytes);
            }
            Seen::Stream { stream, from, bytes } => {
                self.word(8 << 56 | (stream as u64) << 32 | from as u64);
                self.bytes(bytes);
            }
            Seen::StreamReset { stream, from } => self.word(9 << 56 | (stream as u64) << 32 | from as u64),
            Seen::Turn { program, worked } => self.word(3 << 56 | (program as u64) << 8 | u64::from(worked)),
            Seen::Managed { host } => self.word(6 << 56 | host as u64),
            Seen::Alarm(token) => {
                self.word(4 << 56);
                self.word(token);
            }
            Seen::Noted(words) => {
                self.word(5 << 56 | words.len() as u64);
                words.iter().for_each(|word| self.word(*word));
            }
        }
        if let Some(watcher) = &mut self.watcher {
            watcher(Duration::from_nanos(now), seen);
        }
    }

    fn word(&mut self, word: u64) {
        self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }
}
