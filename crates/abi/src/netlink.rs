//! Messages of NETLINK_RDMA, with which `rdma` and other programs ask a kernel for its devices,
//! links and objects: this module parses requests and builds answers. Numbers and layouts are those
//! of `include/uapi/rdma/rdma_netlink.h` and `linux/netlink.h`.
//!
//! The agent decides the content of an answer. Principal types: [`Request`], which is checked, and
//! [`Writer`].

use crate::errno::Errno;

/// Name of the node in the run directory: a socket that stands for a socket of NETLINK_RDMA.
pub const NODE: &str = "rdma_netlink";

/// Maximum length of an answer's message: the smallest buffer with which programs read netlink.
pub const ANSWER_MAX: usize = 3584;

/// Flags of a message.
pub mod flag {
    /// The message is a request.
    pub const REQUEST: u16 = 1;
    /// More messages of the same answer follow, up to one of kind DONE.
    pub const MULTI: u16 = 2;
    /// Success is to be acknowledged, too.
    pub const ACK: u16 = 4;
    /// All objects are requested: either bit.
    pub const DUMP: u16 = 0x300;
    /// Of an error, only the header of the request is repeated.
    pub const CAPPED: u16 = 0x100;
}

/// Kinds of messages that are no commands.
mod kind {
    pub(super) const ERROR: u16 = 2;
    pub(super) const DONE: u16 = 3;
    /// Lower kinds are for netlink itself.
    pub(super) const MIN: u16 = 16;
}

/// The client of NETLINK_RDMA whose commands these are.
const NLDEV: u16 = 5;
const HEADER_LEN: usize = 16;
const ATTRIBUTE_LEN: usize = 4;
/// The bits of an attribute's type that are its number.
const ATTRIBUTE_MASK: u16 = 0x3fff;

/// Commands.
#[allow(missing_docs, reason = "the names are the header's")]
pub mod command {
    pub const GET: u16 = 1;
    pub const SET: u16 = 2;
    pub const NEWLINK: u16 = 3;
    pub const DELLINK: u16 = 4;
    pub const PORT_GET: u16 = 5;
    pub const SYS_GET: u16 = 6;
    pub const SYS_SET: u16 = 7;
    pub const RES_GET: u16 = 9;
    pub const RES_QP_GET: u16 = 10;
    pub const RES_CM_ID_GET: u16 = 11;
    pub const RES_CQ_GET: u16 = 12;
    pub const RES_MR_GET: u16 = 13;
    pub const RES_PD_GET: u16 = 14;
    pub const STAT_SET: u16 = 16;
    pub const STAT_GET: u16 = 17;
    pub const STAT_DEL: u16 = 18;
    pub const RES_CTX_GET: u16 = 22;
    pub const RES_SRQ_GET: u16 = 23;
    /// The last one that the header knows.
    pub const LAST: u16 = 24;
}

/// Attributes.
#[allow(missing_docs, reason = "the names are the header's")]
pub mod attribute {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const CAP_FLAGS: u16 = 4;
    pub const FW_VERSION: u16 = 5;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const SUBNET_PREFIX: u16 = 8;
    pub const LID: u16 = 9;
    pub const SM_LID: u16 = 10;
    pub const LMC: u16 = 11;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY: u16 = 16;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const RES_QP: u16 = 19;
    pub const RES_LQPN: u16 = 21;
    pub const RES_RQPN: u16 = 22;
    pub const RES_RQ_PSN: u16 = 23;
    pub const RES_SQ_PSN: u16 = 24;
    pub const RES_PATH_MIG_STATE: u16 = 25;
    pub const RES_TYPE: u16 = 26;
    pub const RES_STATE: u16 = 27;
    pub const RES_PID: u16 = 28;
    pub const RES_CM_ID: u16 = 30;
    pub const RES_PS: u16 = 32;
    pub const RES_SRC_ADDR: u16 = 33;
    pub const RES_DST_ADDR: u16 = 34;
    pub const RES_CQ: u16 = 35;
    pub const RES_CQE: u16 = 37;
    pub const RES_USECNT: u16 = 38;
    pub const RES_MR: u16 = 40;
    pub const RES_RKEY: u16 = 42;
    pub const RES_LKEY: u16 = 43;
    pub const RES_IOVA: u16 = 44;
    pub const RES_MRLEN: u16 = 45;
    pub const RES_PD: u16 = 46;
    pub const NDEV_INDEX: u16 = 50;
    pub const NDEV_NAME: u16 = 51;
    pub const RES_PDN: u16 = 60;
    pub const RES_CQN: u16 = 61;
    pub const RES_MRN: u16 = 62;
    pub const RES_CM_IDN: u16 = 63;
    pub const RES_CTXN: u16 = 64;
    pub const NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const STAT_HWCOUNTERS: u16 = 80;
    pub const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub const DEV_DIM: u16 = 84;
    pub const RES_CTX: u16 = 86;
    pub const RES_SRQ: u16 = 88;
    pub const RES_SRQN: u16 = 90;
    pub const COPY_ON_FORK: u16 = 93;
}

/// The header of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the message, with this header.
    pub len: u32,
    /// The kind of message.
    pub kind: u16,
    /// See [`flag`].
    pub flags: u16,
    /// Assigns an answer to its request.
    pub sequence: u32,
    /// The sender's number.
    pub port: u32,
}

/// A request, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The device's index.
    pub device: Option<u32>,
    /// The port of the device.
    pub port: Option<u32>,
    /// The name of a device.
    pub name: Option<Vec<u8>>,
    /// The number of an object of the kind that the command is about.
    pub object: Option<u32>,
}

/// The messages in one datagram: each header with its payload. Malformed bytes end the list.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (Header, &[u8])> {
    std::iter::from_fn(move || {
        let header = Header::parse(bytes)?;
        let len = header.len as usize;
        let body = bytes.get(HEADER_LEN..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((header, body))
    })
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (len, rest) = bytes.split_first_chunk::<4>()?;
        let (kind, rest) = rest.split_first_chunk::<2>()?;
        let (flags, rest) = rest.split_first_chunk::<2>()?;
        let (sequence, rest) = rest.split_first_chunk::<4>()?;
        let (port, _) = rest.split_first_chunk::<4>()?;
        Some(Self {
            len: u32::from_ne_bytes(*len),
            kind: u16::from_ne_bytes(*kind),
            flags: u16::from_ne_bytes(*flags),
            sequence: u32::from_ne_bytes(*sequence),
            port: u32::from_ne_bytes(*port),
        })
    }

    fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&self.len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.port.to_ne_bytes());
        bytes
    }

    /// Whether the sender expects an answer.
    pub fn wants_answer(&self) -> bool {
        self.flags & flag::REQUEST != 0 && (self.kind >= kind::MIN || self.flags & flag::ACK != 0)
    }

    /// Whether the message is for netlink itself, so that there is nothing to do.
    pub fn is_control(&self) -> bool {
        self.kind < kind::MIN
    }

    /// The command; EINVAL for another client's.
    pub fn command(&self) -> Result<u16, Errno> {
        let command = self.kind & 0x3ff;
        if self.kind >> 10 == NLDEV && (1..=command::LAST).contains(&command) {
            Ok(command)
        } else {
            Err(Errno::EINVAL)
        }
    }

    /// Whether all objects are requested.
    pub fn is_dump(&self) -> bool {
        self.flags & flag::DUMP != 0
    }
}

impl Request {
    /// The attributes of a request; `object` is the attribute that names an object.
    ///
    /// # Errors
    /// EINVAL when the attributes are malformed.
    pub fn parse(mut bytes: &[u8], object: Option<u16>) -> Result<Self, Errno> {
        let mut request = Self::default();
        while bytes.len() >= ATTRIBUTE_LEN {
            let len = usize::from(u16::from_ne_bytes([bytes[0], bytes[1]]));
            let number = u16::from_ne_bytes([bytes[2], bytes[3]]) & ATTRIBUTE_MASK;
            let value = bytes.get(ATTRIBUTE_LEN..len).ok_or(Errno::EINVAL)?;
            let word = || value.first_chunk().map(|word| u32::from_ne_bytes(*word)).ok_or(Errno::EINVAL);
            match number {
                attribute::DEV_INDEX => request.device = Some(word()?),
                attribute::PORT_INDEX => request.port = Some(word()?),
                attribute::DEV_NAME => request.name = value.split(|byte| *byte == 0).next().map(<[u8]>::to_vec),
                _ if object == Some(number) => request.object = Some(word()?),
                _ => {}
            }
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(request)
    }
}

/// Builds the messages of an answer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    message: usize,
}

/// A nested attribute that is not complete.
#[derive(Debug)]
#[must_use]
pub struct Nest(usize);

impl Writer {
    /// Begins a message that answers `to`.
    pub fn begin(&mut self, to: &Header, flags: u16) {
        self.start(to, to.kind, flags);
    }

    fn start(&mut self, to: &Header, kind: u16, flags: u16) {
        self.message = self.bytes.len();
        self.bytes.extend(Header { len: 0, kind, flags, ..*to }.emit());
        self.seal();
    }

    /// An answer's last message.
    pub fn done(&mut self, to: &Header) {
        self.start(to, kind::DONE, flag::MULTI);
        self.raw(&0_u32.to_ne_bytes());
    }

    /// Adds the result of a request: 0 for success, or an errno.
    pub fn result(&mut self, to: &Header, errno: i32) {
        self.start(to, kind::ERROR, flag::CAPPED);
        self.raw(&(-errno).to_ne_bytes());
        self.raw(&to.emit());
    }

    /// An attribute.
    pub fn bytes(&mut self, number: u16, value: &[u8]) {
        let len = u16::try_from(ATTRIBUTE_LEN + value.len()).unwrap_or(u16::MAX);
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(number.to_ne_bytes());
        self.raw(&value[..usize::from(len) - ATTRIBUTE_LEN]);
    }

    /// An attribute of one byte.
    pub fn byte(&mut self, number: u16, value: u8) {
        self.bytes(number, &[value]);
    }

    /// An attribute of 32 bits.
    pub fn word(&mut self, number: u16, value: u32) {
        self.bytes(number, &value.to_ne_bytes());
    }

    /// An attribute of 64 bits.
    pub fn long(&mut self, number: u16, value: u64) {
        self.bytes(number, &value.to_ne_bytes());
    }

    /// An attribute with a text.
    pub fn text(&mut self, number: u16, value: &str) {
        self.bytes(number, &[value.as_bytes(), &[0]].concat());
    }

    /// Begins an attribute that contains others.
    pub fn nest(&mut self, number: u16) -> Nest {
        let nest = Nest(self.bytes.len());
        self.bytes(number, &[]);
        nest
    }

    /// Ends an attribute that contains others.
    pub fn end(&mut self, Nest(at): Nest) {
        let len = u16::try_from(self.bytes.len() - at).unwrap_or(u16::MAX);
        self.bytes[at..at + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// The number of bytes written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no bytes are written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The finished bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.seal();
    }

    /// Writes the current length into the message's header.
    fn seal(&mut self) {
        let len = u32::try_from(self.bytes.len() - self.message).unwrap_or(u32::MAX);
        self.bytes[self.message..self.message + 4].copy_from_slice(&len.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { len: 24, kind: 5 << 10 | 5, flags: 5, sequence: 7, port: 9 };

    /// PORT_GET of device 3, as `rdma link show` asks on a little-endian machine.
    const ASKED: [u8; 24] = [24, 0, 0, 0, 5, 0x14, 5, 0, 7, 0, 0, 0, 9, 0, 0, 0, 8, 0, 1, 0, 3, 0, 0, 0];

    #[test]
    fn a_request_is_parsed() {
        let found: Vec<_> = messages(&ASKED).collect();
        assert_eq!(found, [(HEADER, &ASKED[16..])]);
        assert_eq!((HEADER.command(), HEADER.is_dump(), HEADER.wants_answer()), (Ok(command::PORT_GET), false, true));
        let request = Request::parse(found[0].1, None).expect("well formed");
        assert_eq!(request, Request { device: Some(3), ..Request::default() });
        assert_eq!(messages(&[ASKED, ASKED].concat()).count(), 2);
    }

    #[test]
    fn malformed_netlink_messages_end_the_list_or_return_einval() {
        for len in [0_u32, 15, 25, u32::MAX] {
            let mut bytes = ASKED;
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{len}");
        }
        for end in 0..16 {
            assert_eq!(messages(&ASKED[..end]).count(), 0);
        }
        for attributes in [&[0, 0, 1, 0][..], &[3, 0, 1, 0], &[9, 0, 1, 0, 1, 2, 3, 4], &[7, 0, 1, 0, 1, 2, 3, 0]] {
            assert_eq!(Request::parse(attributes, None), Err(Errno::EINVAL), "{attributes:?}");
        }
        for kind in [16, 4 << 10 | 1, 5 << 10, 5 << 10 | 25, u16::MAX] {
            assert_eq!(Header { kind, ..HEADER }.command(), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn an_answer_has_lengths_and_padding() {
        let mut writer = Writer::default();
        writer.begin(&HEADER, flag::MULTI);
        let nest = writer.nest(attribute::RES_PD);
        writer.text(attribute::DEV_NAME, "rxe0");
        writer.byte(attribute::LMC, 1);
        writer.end(nest);
        let expected = [
            &[40, 0, 0, 0, 5, 0x14, 2, 0, 7, 0, 0, 0, 9, 0, 0, 0][..],
            &[24, 0, 46, 0, 9, 0, 2, 0, b'r', b'x', b'e', b'0', 0, 0, 0, 0],
            &[5, 0, 11, 0, 1, 0, 0, 0],
        ]
        .concat();
        assert_eq!(writer.as_bytes(), expected);
        writer.clear();
        writer.result(&HEADER, 19);
        let refused = [&[36, 0, 0, 0, 2, 0, 0, 1, 7, 0, 0, 0, 9, 0, 0, 0, 0xed, 0xff, 0xff, 0xff][..], &ASKED[..16]];
        assert_eq!(writer.as_bytes(), refused.concat());
    }

    #[test]
    fn only_a_request_that_is_a_command_or_asks_for_it_is_answered() {
        let command = HEADER.kind;
        for (kind, flags, wants, control) in [
            (command, flag::REQUEST, true, false),
            (command, flag::MULTI, false, false),
            (command, 0, false, false),
            (kind::MIN, flag::REQUEST, true, false),
            (kind::MIN - 1, flag::REQUEST, false, true),
            (kind::MIN - 1, flag::REQUEST | flag::ACK, true, true),
            (kind::MIN - 1, flag::ACK, false, true),
        ] {
            let header = Header { kind, flags, ..HEADER };
            assert_eq!((header.wants_answer(), header.is_control()), (wants, control), "{header:?}");
        }
        for (flags, is_dump) in [(0x100, true), (0x200, true), (flag::DUMP, true), (5, false)] {
            assert_eq!(Header { flags, ..HEADER }.is_dump(), is_dump);
        }
    }

    #[test]
    fn a_request_names_a_device_a_port_and_an_object() {
        let mut writer = Writer::default();
        assert!(writer.is_empty());
        writer.begin(&HEADER, 0);
        writer.word(attribute::PORT_INDEX, 2);
        writer.text(attribute::DEV_NAME, "rxe0");
        writer.word(attribute::RES_PD, 5);
        writer.word(attribute::DEV_INDEX, 3);
        let attributes = &writer.as_bytes()[HEADER_LEN..];
        let request = Request { device: Some(3), port: Some(2), name: Some(b"rxe0".to_vec()), ..Request::default() };
        assert_eq!(Request::parse(attributes, None), Ok(request.clone()));
        let named = Request { object: Some(5), ..request };
        assert_eq!(Request::parse(attributes, Some(attribute::RES_PD)), Ok(named));
        assert_eq!((writer.len(), writer.is_empty()), (HEADER_LEN + 8 + 12 + 8 + 8, false));
    }

    #[test]
    fn each_message_of_an_answer_has_its_own_length() {
        let mut writer = Writer::default();
        for _ in 0..2 {
            writer.begin(&HEADER, flag::MULTI);
            writer.long(attribute::LMC, 0x0102_0304_0506_0708);
        }
        writer.done(&HEADER);
        let found: Vec<_> = messages(writer.as_bytes()).collect();
        let value = [&[12, 0, 11, 0][..], &0x0102_0304_0506_0708_u64.to_ne_bytes()].concat();
        assert_eq!([found[0].1, found[1].1, found[2].1], [&value[..], &value, &[0; 4]]);
        assert_eq!(
            found.iter().map(|(header, _)| header.kind).collect::<Vec<_>>(),
            [HEADER.kind, HEADER.kind, kind::DONE]
        );
        assert!(found.iter().all(|(header, _)| header.flags == flag::MULTI && header.sequence == HEADER.sequence));
    }
}
