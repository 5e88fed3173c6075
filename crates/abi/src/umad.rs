//! The node of user MADs, `umad`: the agent's part of `/dev/infiniband/umadN` and `issmN`. Records
//! and numbers of the files themselves are those of Linux's `rdma/ib_user_mad.h`, byte for byte.
//!
//! ```text
//!   open     connection: FileRequest (OPEN_MADS) ──▶  ◀── FileReply + key
//!              the connection is the file: each message to the program is one UserMad + datagram
//!   ioctl    another connection: FileRequest (IOCTL, key) + argument ──▶  ◀── FileReply + argument
//!   write    another connection: FileRequest (WRITE, key) + UserMad + datagram ──▶  ◀── FileReply
//!   write    the file itself: UserMad + datagram ──▶  and no answer, unless it fails
//! ```
//! Packets are those of a `SOCK_SEQPACKET` socket. A message that is longer than [`PIECE`] is
//! several packets. A call has its own connection, so that its reply does not wait behind
//! datagrams. The *key* of a file is random and known to its opener only. A call counts for the
//! file's opener; with an unknown key it fails with EIO. After the reply, the agent closes the
//! connection of a call. A file ends when its connection is closed, and so does the wait for one.
//! [`client`] has what all clients share.

pub mod client;

use crate::layout::Record;

/// Name of the node in the run directory.
pub const NODE: &str = "umad";
/// The content of `/sys/class/infiniband_mad/abi_version`.
pub const ABI_VERSION: u32 = 5;
/// The registrations of one file: their ids are 0 to 31.
pub const AGENTS_MAX: usize = 32;
/// The length of a datagram without RMPP. A program may write one that lacks zeros at its end.
pub const DATAGRAM: usize = 256;
/// The longest message with RMPP that a program may write or gets, without its header.
pub const MESSAGE_MAX: usize = 16 << 20;
/// The longest packet. All packets of a message but the last one are this long.
pub const PIECE: usize = 128 << 10;
/// The length of [`UserMad`], both ways, before ENABLE_PKEY succeeds, unless the first registration
/// is by REGISTER_AGENT2: without `pkey_index` and what follows.
pub const SHORT_HEADER: usize = 56;

record! {
    /// Begins each connection to the node.
    pub struct FileRequest[32] {
        /// See `kind`.
        0 => kind: u32,
        /// To open: the number of the file, as in `umad0`. IOCTL: the request, see `ioctl`. WRITE:
        /// the bytes that follow this request, with those of further packets.
        4 => number: u32,
        /// To open: 1 to fail and not to wait (O_NONBLOCK), otherwise 0.
        8 => nonblocking: u32,
        /// 0.
        12 => reserved: u32,
        /// The key of the file that the call is for; 0 to open.
        16 => key: [u8; 16],
    }

    /// The answer. To OPEN_MADS, the 16 bytes of the file's key follow. To IOCTL, the changed
    /// argument follows.
    pub struct FileReply[8] {
        /// 0, or a negative errno.
        0 => status: i32,
        /// How long the headers of the file's messages are; 0 for `issmN`.
        4 => value: u32,
    }

    /// Follows the argument in the answer to REGISTER_AGENT and REGISTER_AGENT2 with EINVAL, if
    /// another client serves a method. Clients that do not know it leave it out.
    pub struct Holder[16] {
        /// The process that has opened the file of that client.
        0 => pid: u32,
        /// Its user.
        4 => uid: u32,
        /// The method.
        8 => method: u32,
        /// 0.
        12 => reserved: u32,
    }

    /// `struct ib_user_mad_hdr`: begins what a program reads and writes. The datagram follows.
    pub struct UserMad[64] {
        /// The registration that sends or receives, as REGISTER_AGENT returned it.
        0 => id: u32,
        /// Read: 0; or an errno if the program's datagram, whose common header of 24 bytes
        /// follows, was not sent; ETIMEDOUT if it got no answer.
        4 => status: u32,
        /// Write: how long to wait for the answer, in milliseconds; 0 waits for none.
        8 => timeout_ms: u32,
        /// Write: how often to send again.
        12 => retries: u32,
        /// Read: the length of the header and the datagram.
        16 => length: u32,
        /// The other QP, network byte order.
        20 => qpn: u32,
        /// Its Q_Key, network byte order.
        24 => qkey: u32,
        /// The other LID, network byte order.
        28 => lid: u16,
        /// Service level.
        30 => sl: u8,
        /// The lower bits of the own LID.
        31 => path_bits: u8,
        /// 1 if the fields of the GRH are valid.
        32 => grh_present: u8,
        /// Index of the own GID.
        33 => gid_index: u8,
        /// Hop limit of the GRH.
        34 => hop_limit: u8,
        /// Traffic class of the GRH.
        35 => traffic_class: u8,
        /// The other GID.
        36 => gid: [u8; 16],
        /// Flow label of the GRH, network byte order.
        52 => flow_label: u32,
        /// Index of the P_Key.
        56 => pkey_index: u16,
        /// 0.
        58 => reserved: [u8; 6],
    }

    /// `struct ib_user_mad_reg_req`, the argument of REGISTER_AGENT.
    pub struct RegisterAgent[28] {
        /// Result: the registration's id.
        0 => id: u32,
        /// The methods that it serves, as a mask of 128 bits.
        4 => method_mask: [u32; 4],
        /// 0 or 1.
        20 => qpn: u8,
        /// Class; 0 only sends.
        21 => mgmt_class: u8,
        /// Version of the class.
        22 => mgmt_class_version: u8,
        /// The vendor of a class with an OUI, network byte order.
        23 => oui: [u8; 3],
        /// 1 if the agent speaks RMPP for it.
        26 => rmpp_version: u8,
        /// 0.
        27 => padding: u8,
    }

    /// `struct ib_user_mad_reg_req2`, the argument of REGISTER_AGENT2.
    pub struct RegisterAgent2[40] {
        /// Result: the registration's id.
        0 => id: u32,
        /// 0 or 1.
        4 => qpn: u32,
        /// Class; 0 only sends.
        8 => mgmt_class: u8,
        /// Version of the class.
        9 => mgmt_class_version: u8,
        /// 0.
        10 => reserved: u16,
        /// See `agent_flag`. If there are unknown ones: EINVAL, and the known ones come back.
        12 => flags: u32,
        /// The methods that it serves, as a mask of 128 bits.
        16 => method_mask: [u64; 2],
        /// The vendor of a class with an OUI, the lower 24 bits.
        32 => oui: u32,
        /// 1 if the agent speaks RMPP for it.
        36 => rmpp_version: u8,
        /// 0.
        37 => reserved2: [u8; 3],
    }
}

constants! {
    /// `FileRequest::kind`.
    pub mod kind: u32 {
        /// Opens `umadN`.
        OPEN_MADS = 1,
        /// Opens `issmN`: the port says that a subnet manager runs there, until the file is closed.
        OPEN_MANAGER = 2,
        /// Calls ioctl on a file.
        IOCTL = 3,
        /// Writes to a file.
        WRITE = 4,
        /// Asks how long the headers of a file's messages are.
        HEADER = 5,
    }

    /// The ioctl requests of `umadN`.
    pub mod ioctl: u32 {
        /// Registers; the argument is `RegisterAgent`.
        REGISTER_AGENT = 0xc01c_1b01,
        /// Ends a registration; the argument is its id, 32 bits.
        UNREGISTER_AGENT = 0x4004_1b02,
        /// Headers have a P_Key index from now on; no argument. EINVAL after the first
        /// registration.
        ENABLE_PKEY = 0x0000_1b03,
        /// Registers; the argument is `RegisterAgent2`.
        REGISTER_AGENT2 = 0xc028_1b04,
    }

    /// `RegisterAgent2::flags`.
    pub mod agent_flag: u32 {
        /// The program itself speaks RMPP.
        USER_RMPP = 1,
    }
}

/// The length of an ioctl request's argument; `None` if the request is unknown.
#[must_use]
pub const fn argument(request: u32) -> Option<usize> {
    match request {
        ioctl::REGISTER_AGENT => Some(size_of::<RegisterAgent>()),
        ioctl::UNREGISTER_AGENT => Some(size_of::<u32>()),
        ioctl::ENABLE_PKEY => Some(0),
        ioctl::REGISTER_AGENT2 => Some(size_of::<RegisterAgent2>()),
        _ => None,
    }
}

/// The request at the beginning of a message, and what follows.
#[must_use]
pub fn parse(message: &[u8]) -> Option<(FileRequest, &[u8])> {
    Some((FileRequest::read(message)?, &message[size_of::<FileRequest>()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_length_of_their_arguments() {
        for (name, value) in ioctl::ALL.iter().map(|constant| (constant.name, constant.value)) {
            let length = argument(value as u32).expect(name);
            assert_eq!(length, (value >> 16 & 0x3fff) as usize, "{name}: the kernel's numbers contain the length");
        }
        assert_eq!(argument(0), None);
    }

    #[test]
    fn a_message_begins_with_its_request() {
        let request = FileRequest { kind: kind::WRITE, key: [7; 16], ..FileRequest::default() };
        let message = [request.bytes(), b"rest"].concat();
        assert_eq!(parse(&message), Some((request, &b"rest"[..])));
        assert_eq!(parse(&message[..31]), None);
    }
}
