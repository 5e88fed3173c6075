//! The commands of the connection manager's node, `rdma_cm`: those of Linux's `rdma_user_cm.h`,
//! byte for byte.
//!
//! One connection to the node is one event channel, like one open of `/dev/infiniband/rdma_cm`. It
//! begins with [`crate::open`] and uses the envelopes of [`crate::envelope`]. An envelope contains
//! a [`ManagerHeader`] and one of the commands of [`ROWS`], which [`admit`] checks. The answer to
//! the opening carries one descriptor, the *event socket*. This is the client's end of a stream
//! socket, to which the agent writes one byte for each event that it queues. GET_EVENT never waits.
//! A client that has received an event takes one byte from the event socket. For a client that
//! opens with `open::flag::TOLD` the event socket carries the events themselves, see
//! [`event_message`]. Records are in [`id`], [`address`] and [`connection`], addresses as values in
//! [`sockaddr`].

use crate::errno::Errno;
use crate::layout::Record;

pub mod address;
pub mod connection;
pub mod id;
mod rows;
pub mod sockaddr;

pub use rows::{ROWS, Row};

/// Name of the node in the run directory.
pub const NODE: &str = "rdma_cm";
/// The content of `/sys/class/misc/rdma_cm/abi_version`.
pub const ABI_VERSION: u32 = 4;
/// Room for private data in the records; a message has less room (see `connection::ConnParam`).
pub const PRIVATE_DATA_MAX: usize = 256;
/// Most bytes of a sentence that follow an event.
pub const SENTENCE_MAX: usize = 512;

record! {
    /// Begins each command of this node.
    pub struct ManagerHeader[8] {
        /// Number of the command.
        0 => command: u32,
        /// Length of the data after this header, bytes.
        4 => in_len: u16,
        /// Room for the answer, bytes.
        6 => out_len: u16,
    }
}

constants! {
    /// `ManagerHeader::command`.
    pub mod command: u32 {
        /// Creates an id.
        CREATE_ID = 0,
        /// Ends an id.
        DESTROY_ID = 1,
        /// Binds an id to an IP address.
        BIND_IP = 2,
        /// Resolves an IP address.
        RESOLVE_IP = 3,
        /// Resolves the route to the resolved address.
        RESOLVE_ROUTE = 4,
        /// Returns addresses and paths.
        QUERY_ROUTE = 5,
        /// Asks the peer for a connection.
        CONNECT = 6,
        /// Waits for requests.
        LISTEN = 7,
        /// Accepts a request, or a reply.
        ACCEPT = 8,
        /// Rejects a request, or a reply.
        REJECT = 9,
        /// Ends a connection.
        DISCONNECT = 10,
        /// Returns the attributes for a QP's next state.
        INIT_QP_ATTR = 11,
        /// Returns the next event.
        GET_EVENT = 12,
        /// Not implemented, as in Linux.
        GET_OPTION = 13,
        /// Sets an option.
        SET_OPTION = 14,
        /// Reports an event of the QP.
        NOTIFY = 15,
        /// Joins a group by an IP address.
        JOIN_IP_MCAST = 16,
        /// Leaves a group.
        LEAVE_MCAST = 17,
        /// Moves an id to this channel.
        MIGRATE_ID = 18,
        /// Returns addresses, paths or GIDs.
        QUERY = 19,
        /// Binds an id to an address of any family.
        BIND = 20,
        /// Resolves an address of any family.
        RESOLVE_ADDR = 21,
        /// Joins a group by an address of any family.
        JOIN_MCAST = 22,
        /// Not implemented: there is no subnet administrator to ask.
        RESOLVE_IB_SERVICE = 23,
        /// Adds an event of the caller to the channel.
        WRITE_CM_EVENT = 24,
        /// softhca's own: returns the number by which MIGRATE_ID names this channel.
        CHANNEL = 192,
        /// softhca's own: makes MODIFY_QP of one QP succeed without effect, or ends this.
        FREEZE_QP = 193,
        /// softhca's own: GET_EVENT, with the answers to the next queries about the event's id.
        NEXT_EVENT = 194,
        /// softhca's own: connection requests that the event socket has delivered no longer wait.
        TAKEN = 195,
        /// softhca's own: makes the event socket send messages.
        WAKE = 196,
        /// softhca's own: ends an id and creates another.
        RENEW_ID = 197,
    }

    /// A one-byte message of the event socket of a channel that was opened with `open::flag::TOLD`.
    /// A longer message is an event: a `NextEventAnswer`, and possibly a sentence in UTF-8. The
    /// agent has removed this event from the channel. A client that destroys or migrates the
    /// event's id must look for it among the received messages.
    pub mod event_message: u8 {
        /// There is an event, which NEXT_EVENT returns.
        ASK = 1,
        /// WAKE has requested this message.
        WOKEN = 2,
    }

    /// Port spaces: `CreateId::ps`.
    pub mod port_space: u16 {
        /// IPoIB: datagrams that join IPoIB's groups.
        IPOIB = 0x0002,
        /// Connections.
        TCP = 0x0106,
        /// Datagrams.
        UDP = 0x0111,
        /// Service ids, used unchanged.
        IB = 0x013f,
    }
}

/// Builds a command: header, body and what follows it, with room for `out_len` bytes of answer.
#[must_use]
pub fn build<T: Record>(command: u32, body: &T, tail: &[u8], out_len: usize) -> Vec<u8> {
    let len = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
    let header = ManagerHeader { command, in_len: len(size_of::<T>() + tail.len()), out_len: len(out_len) };
    [header.bytes(), body.bytes(), tail].concat()
}

/// A command whose header has been checked.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    /// What the table says about it.
    pub row: &'static Row,
    /// The bytes after the header.
    input: &'a [u8],
    /// Room for the answer, bytes.
    pub room: usize,
}

/// Checks a command's header: length, number, body, room for the answer.
///
/// # Errors
/// EINVAL for a malformed or unknown command, ENOSYS for one that is not implemented, ENOSPC when
/// the room is too small.
pub fn admit(bytes: &[u8]) -> Result<Command<'_>, Errno> {
    let header = ManagerHeader::read(bytes).ok_or(Errno::EINVAL)?;
    let row = ROWS.iter().find(|row| row.number == header.command).ok_or(Errno::EINVAL)?;
    let input = bytes[size_of::<ManagerHeader>()..].get(..usize::from(header.in_len)).ok_or(Errno::EINVAL)?;
    if row.test.is_none() {
        return Err(Errno::ENOSYS);
    }
    if input.len() < row.request_min {
        return Err(Errno::EINVAL);
    }
    let room = usize::from(header.out_len);
    if room < row.answer_min {
        return Err(Errno::ENOSPC);
    }
    Ok(Command { row, input, room })
}

impl<'a> Command<'a> {
    /// The number: see `command`.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.row.number
    }

    /// The body, continued with zeros where an older layout ends earlier.
    #[must_use]
    pub fn body<T: Record>(&self) -> T {
        T::read_zero_extended(self.input)
    }

    /// The bytes after the body.
    #[must_use]
    pub fn tail<T: Record>(&self) -> &'a [u8] {
        self.input.get(size_of::<T>()..).unwrap_or_default()
    }

    /// An answer, cut to the room.
    #[must_use]
    pub fn answer<T: Record>(&self, answer: &T) -> Vec<u8> {
        let bytes = answer.bytes();
        bytes[..bytes.len().min(self.room)].to_vec()
    }
}

/// All records of this node, for the documentation and its tests.
pub(crate) const PARTS: &[crate::layout::Layout] = &[
    sockaddr::SockaddrIn::LAYOUT,
    sockaddr::SockaddrIn6::LAYOUT,
    sockaddr::SockaddrIb::LAYOUT,
    address::PathRec::LAYOUT,
    address::PathRecData::LAYOUT,
    connection::ConnParam::LAYOUT,
    connection::UdParam::LAYOUT,
    connection::Ece::LAYOUT,
];

#[cfg(test)]
mod tests;
