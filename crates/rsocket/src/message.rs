//! The 32 bits that travel as immediate data. The upper three bits are the kind of message. The
//! principal type is [`Message`]. (`docs/rsocket`, "Message Format".)
//!
//! iWARP has no immediate data. There, an RDMA WRITE has no message, and a SEND of four bytes
//! follows it: the message in the byte order of the sender's memory.

use crate::target::Order;
use crate::violation::Violation;

/// The longest transfer that one message can announce.
pub const MAX_LENGTH: u32 = 0x1FFF_FFFF;

/// The number of bytes of a message that travels as a SEND.
pub const SIZE: usize = 4;

/// The meaning of one RDMA WRITE with immediate data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// This many bytes have been written to the next place in the receive ring.
    Data(u32),
    /// The receiver may send messages up to this number, and its list of buffers may have changed.
    Credits(u16),
    /// An entry of the I/O map has been written.
    IomapUpdated(u16),
    /// A message about the connection.
    Control(Control),
}

/// The kinds of control messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Nothing more will be sent or received.
    Disconnect,
    /// The connection is alive. (It travels as an RDMA WRITE of zero bytes, so a peer never sees
    /// it.)
    Keepalive,
    /// Nothing more will be sent.
    Shutdown,
    /// A control message of a later version.
    Unknown(u32),
}

const DATA: u32 = 0;
const CREDITS: u32 = 4;
const IOMAP: u32 = 6;
const CONTROL: u32 = 7;

impl Message {
    /// Parses the immediate data (in host order).
    ///
    /// # Errors
    /// [`Violation::Reserved`].
    pub fn parse(immediate: u32) -> Result<Self, Violation> {
        let rest = immediate & MAX_LENGTH;
        let low = u16::try_from(rest & 0xFFFF).unwrap_or_default();
        match immediate >> 29 {
            DATA => Ok(Self::Data(rest)),
            CREDITS => Ok(Self::Credits(low)),
            IOMAP => Ok(Self::IomapUpdated(low)),
            CONTROL => Ok(Self::Control(match rest {
                0 => Control::Disconnect,
                1 => Control::Keepalive,
                2 => Control::Shutdown,
                other => Control::Unknown(other),
            })),
            _ => Err(Violation::Reserved(immediate)),
        }
    }

    /// The 32 bits in the bytes of a SEND, whose sender's memory has this byte order.
    ///
    /// # Errors
    /// [`Violation::Length`] if `length`, the length of the SEND, is not that of a message.
    pub fn of_send(bytes: [u8; SIZE], length: u32, order: Order) -> Result<u32, Violation> {
        if usize::try_from(length) == Ok(SIZE) { Ok(order.u32(bytes)) } else { Err(Violation::Length(length)) }
    }

    /// The bytes of a SEND from this machine.
    #[must_use]
    pub fn to_send(self) -> [u8; SIZE] {
        Order::NATIVE.of_u32(self.emit())
    }

    /// Encodes the immediate data.
    #[must_use]
    pub fn emit(self) -> u32 {
        let (kind, rest) = match self {
            Self::Data(length) => (DATA, length),
            Self::Credits(number) => (CREDITS, number.into()),
            Self::IomapUpdated(index) => (IOMAP, index.into()),
            Self::Control(Control::Disconnect) => (CONTROL, 0),
            Self::Control(Control::Keepalive) => (CONTROL, 1),
            Self::Control(Control::Shutdown) => (CONTROL, 2),
            Self::Control(Control::Unknown(other)) => (CONTROL, other),
        };
        kind << 29 | rest & MAX_LENGTH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_has_its_bits() {
        let table = [
            (0x0000_1000, Message::Data(4096)),
            (0x8000_0180, Message::Credits(384)),
            (0xC000_0003, Message::IomapUpdated(3)),
            (0xE000_0000, Message::Control(Control::Disconnect)),
            (0xE000_0001, Message::Control(Control::Keepalive)),
            (0xE000_0002, Message::Control(Control::Shutdown)),
            (0xE000_0009, Message::Control(Control::Unknown(9))),
        ];
        for (bits, message) in table {
            assert_eq!(Message::parse(bits), Ok(message));
            assert_eq!(message.emit(), bits);
        }
    }

    #[test]
    fn reserved_kinds_are_violations() {
        for kind in [1_u32, 2, 3, 5] {
            assert_eq!(Message::parse(kind << 29 | 7), Err(Violation::Reserved(kind << 29 | 7)));
        }
    }

    #[test]
    fn a_send_has_the_byte_order_of_its_sender() {
        let bytes = [0x80, 0x01, 0x00, 0x80];
        assert_eq!(Message::of_send(bytes, 4, Order::Little), Ok(0x8000_0180));
        assert_eq!(Message::of_send(bytes, 4, Order::Big), Ok(0x8001_0080));
        for length in [0, 3, 5] {
            assert_eq!(Message::of_send(bytes, length, Order::Little), Err(Violation::Length(length)));
        }
        let sent = Message::Credits(384).to_send();
        assert_eq!(Message::of_send(sent, 4, Order::NATIVE), Ok(0x8000_0180));
    }

    #[test]
    fn a_credit_number_beyond_sixteen_bits_wraps() {
        // rdma-core adds the queue's size to a 16-bit number without wrapping it.
        assert_eq!(Message::parse(0x8001_0005), Ok(Message::Credits(5)));
    }
}
