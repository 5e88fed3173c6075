//! What is seen of a simulation, and the number that it comes down to. Principal types: [`Seen`], [`Trace`].

use std::time::Duration;

/// What became of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It comes as it should.
    Good,
    /// It never comes.
    Lost,
    /// It comes twice.
    Twice,
    /// Others may overtake it.
    Late,
    /// It comes with a wrong bit.
    Damaged,
}

/// Something that happened.
#[derive(Debug)]
pub enum Seen<'a> {
    /// A host sent a packet to another (multicast: to each).
    Sent {
        /// Who.
        from: usize,
        /// To whom.
        to: usize,
        /// What becomes of it.
        fate: Fate,
        /// From its BTH to its ICRC.
        bytes: &'a [u8],
    },
    /// Packets came to a host.
    Came {
        /// To whom.
        to: usize,
        /// Bytes of each but the last.
        segment: usize,
        /// One behind the other.
        bytes: &'a [u8],
    },
    /// An engine had its turn.
    Turn {
        /// By the order of opening.
        program: usize,
        /// It had something to do.
        worked: bool,
    },
    /// A host's connection manager had its turn.
    Managed {
        /// Whose.
        host: usize,
    },
    /// An alarm's time came.
    Alarm(u64),
    /// What a program has seen: [`super::Simulation::note`].
    Noted(&'a [u64]),
}

type Watcher = Box<dyn FnMut(Duration, &Seen<'_>) + Send>;

/// Everything that was seen, as one number.
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
            Seen::Came { to, segment, bytes } => {
                self.word(2 << 56 | (to as u64) << 32 | segment as u64);
                self.bytes(bytes);
            }
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
