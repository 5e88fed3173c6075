//! What each side of a connection posts, and the data that must arrive. Principal type: [`Work`].

use crate::common::Ram;
use crate::wire::Random;
use softhca_iwarp::rdmap::Atomic;
use softhca_iwarp::{Immediate, Operation, Request, Stag, Status};

/// Bytes of the region that one work request may access, and of each receive request.
pub(crate) const SLOT: usize = 2048;
/// Work requests of each side of a connection.
pub(crate) const WORKS: usize = 16;
const BASE: u64 = 0x7000_0000;

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendInvalidate,
    Write,
    WriteImmediate,
    Read,
    Atomic,
    Local,
}

/// What is wrong with a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    Nothing,
    /// The peer has no such region.
    Key,
    /// The program's own buffer is not there.
    Buffer,
    /// The message does not fit into the peer's receive request.
    Length,
}

/// A work request. `id` is unique among those of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) mistake: Mistake,
    connection: u32,
    slot: usize,
    len: usize,
    fence: bool,
}

/// The bytes of a work request, or of what it READs.
fn pattern(id: u64, len: usize) -> Vec<u8> {
    let id_bytes = id.to_be_bytes();
    (0..len).map(|at| id_bytes.get(at).copied().unwrap_or((id as usize * 31 + at * 7 + 1) as u8)).collect()
}

fn written(connection: u32) -> u32 {
    0x100 + connection
}

fn source(connection: u32) -> u32 {
    0x200 + connection
}

fn counter(connection: u32) -> u32 {
    0x300 + connection
}

fn invalidated(id: u64) -> u32 {
    0x10_0000 + id as u32
}

impl Work {
    /// A work request of the side, by chance.
    pub(crate) fn draw(connection: u32, slot: usize, may_err: bool, random: &mut Random) -> Work {
        let kinds = [
            Kind::Send,
            Kind::SendInvalidate,
            Kind::Write,
            Kind::Write,
            Kind::WriteImmediate,
            Kind::Read,
            Kind::Read,
            Kind::Atomic,
            Kind::Local,
        ];
        let kind = kinds[random.below(kinds.len() as u64) as usize];
        let mistake = match kind {
            _ if !may_err || !random.is_one_in(WORKS as u64) => Mistake::Nothing,
            Kind::Local => Mistake::Buffer,
            Kind::Atomic => Mistake::Key,
            Kind::Send | Kind::SendInvalidate => [Mistake::Buffer, Mistake::Length][random.below(2) as usize],
            _ => [Mistake::Key, Mistake::Buffer][random.below(2) as usize],
        };
        let len = match kind {
            Kind::Atomic => 8,
            Kind::Local => 0,
            _ if mistake == Mistake::Length => SLOT + 1,
            // The number of a SEND is its first 8 bytes.
            _ => 8 + random.below((SLOT - 8) as u64) as usize * random.below(2) as usize,
        };
        let id = u64::from(connection) * 1000 + slot as u64;
        Work { id, kind, mistake, connection, slot, len, fence: random.is_one_in(4) }
    }

    /// Whether it uses a receive request of the peer.
    pub(crate) fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Send | Kind::SendInvalidate | Kind::WriteImmediate)
    }

    /// Puts its data into the memory of both hosts.
    pub(crate) fn prepare(&self, own: &mut Ram, peer: &mut Ram) {
        let data = match self.kind {
            Kind::Read | Kind::Atomic => vec![0; self.len],
            _ => pattern(self.id, self.len),
        };
        if self.mistake != Mistake::Buffer {
            own.works.insert(self.id, data);
        }
        if self.kind == Kind::SendInvalidate {
            peer.expose(invalidated(self.id), 0, Vec::new());
        }
        let bytes = &mut peer.regions.get_mut(&Stag(source(self.connection))).expect("it is exposed").bytes;
        bytes[self.slot * SLOT..][..SLOT].copy_from_slice(&pattern(self.id, SLOT));
    }

    pub(crate) fn request(&self) -> Request {
        let key = |of: fn(u32) -> u32| Stag(if self.mistake == Mistake::Key { 0xbad } else { of(self.connection) });
        let at = BASE + (self.slot * SLOT) as u64;
        let immediate = Immediate { data: self.id.to_be_bytes(), solicited: false };
        let operation = match self.kind {
            Kind::Send => Operation::Send { invalidate: None, solicited: false },
            Kind::SendInvalidate => Operation::Send { invalidate: Some(Stag(invalidated(self.id))), solicited: true },
            Kind::Write => Operation::Write { stag: key(written), to: at, immediate: None },
            Kind::WriteImmediate => Operation::Write { stag: key(written), to: at, immediate: Some(immediate) },
            Kind::Read => Operation::Read { source: key(source), source_to: at, sink: Stag(9), sink_to: 0 },
            Kind::Atomic => {
                let atomic = Atomic::FetchAdd { add: 1, boundaries: 0 };
                Operation::Atomic { target: key(counter), target_to: BASE, atomic }
            }
            Kind::Local => Operation::Local,
        };
        let len = if self.kind == Kind::Atomic { 0 } else { self.len as u32 };
        Request { work: self.id, operation, len, fence: self.fence }
    }

    /// Whether the data of a WRITE or SEND with Invalidate has its effect at the peer.
    pub(crate) fn is_placed(&self, peer: &Ram) -> bool {
        match self.kind {
            Kind::Write | Kind::WriteImmediate => {
                let region = &peer.regions[&Stag(written(self.connection))].bytes;
                region[self.slot * SLOT..][..self.len] == pattern(self.id, self.len)
            }
            Kind::SendInvalidate => !peer.regions.contains_key(&Stag(invalidated(self.id))),
            _ => true,
        }
    }

    /// Whether a message has this data.
    pub(crate) fn has_data(&self, data: &[u8]) -> bool {
        data == pattern(self.id, self.len)
    }

    /// Whether a READ that has succeeded brought the right data.
    pub(crate) fn has_read(&self, own: &Ram) -> bool {
        self.kind != Kind::Read || own.works[&self.id] == pattern(self.id, self.len)
    }

    /// Whether it may end with this error.
    pub(crate) fn may_fail_with(&self, status: Status) -> bool {
        match status {
            Status::Flushed => true,
            Status::LocalProtection => self.mistake == Mistake::Buffer,
            Status::RemoteAccess => self.mistake == Mistake::Key,
            Status::MemoryManagement => self.mistake == Mistake::Buffer && self.kind == Kind::Local,
            _ => false,
        }
    }
}

/// Exposes the regions of a connection.
pub(crate) fn expose(ram: &mut Ram, connection: u32) {
    ram.expose(written(connection), BASE, vec![0; WORKS * SLOT]);
    ram.expose(source(connection), BASE, vec![0; WORKS * SLOT]);
    ram.expose(counter(connection), BASE, vec![0; 8]);
}

/// The value of the counter of a connection.
pub(crate) fn counted(ram: &Ram, connection: u32) -> u64 {
    let bytes = &ram.regions[&Stag(counter(connection))].bytes;
    u64::from_ne_bytes(bytes[..].try_into().expect("8 bytes"))
}
