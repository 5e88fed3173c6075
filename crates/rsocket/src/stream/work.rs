//! The purpose of a work request, as the 64 bits that come back with its completion. The principal
//! type is [`Work`].

use crate::message::Control;

/// The purpose of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A receive.
    Receive {
        /// The number of its buffer, if it has one.
        word: u32,
    },
    /// A message with data.
    Data {
        /// The bytes of the message that are in the send ring.
        ring: u32,
    },
    /// A write into a mapped buffer.
    Direct {
        /// The bytes of the message that are in the send ring.
        ring: u32,
    },
    /// A new entry of the peer's I/O map.
    Map,
    /// A grant of credits.
    Credits,
    /// A message about the connection.
    Control(Control),
    /// A write whose message follows as a SEND. The SEND is the work that is counted.
    Written,
}

const RECEIVE: u64 = 1;
const DATA: u64 = 2;
const DIRECT: u64 = 3;
const MAP: u64 = 4;
const CREDITS: u64 = 5;
const CONTROL: u64 = 6;
const WRITTEN: u64 = 7;

impl Work {
    /// The number for the work request.
    #[must_use]
    pub fn id(self) -> u64 {
        let (kind, rest) = match self {
            Self::Receive { word } => (RECEIVE, word),
            Self::Data { ring } => (DATA, ring),
            Self::Direct { ring } => (DIRECT, ring),
            Self::Map => (MAP, 0),
            Self::Written => (WRITTEN, 0),
            Self::Credits => (CREDITS, 0),
            Self::Control(Control::Disconnect) => (CONTROL, 0),
            Self::Control(Control::Keepalive) => (CONTROL, 1),
            Self::Control(Control::Shutdown) => (CONTROL, 2),
            Self::Control(Control::Unknown(other)) => (CONTROL, other.max(3)),
        };
        kind << 32 | u64::from(rest)
    }

    /// The work for a number; `None` if the number is not from [`Work::id`].
    #[must_use]
    pub fn of(id: u64) -> Option<Self> {
        let ring = u32::try_from(id & 0xFFFF_FFFF).ok()?;
        Some(match id >> 32 {
            RECEIVE => Self::Receive { word: ring },
            DATA => Self::Data { ring },
            DIRECT => Self::Direct { ring },
            MAP => Self::Map,
            WRITTEN => Self::Written,
            CREDITS => Self::Credits,
            CONTROL => Self::Control(match ring {
                0 => Control::Disconnect,
                1 => Control::Keepalive,
                2 => Control::Shutdown,
                other => Control::Unknown(other),
            }),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_for_each_and_back() {
        let all = [
            Work::Receive { word: 0 },
            Work::Receive { word: 391 },
            Work::Written,
            Work::Data { ring: 0 },
            Work::Data { ring: u32::MAX },
            Work::Direct { ring: 77 },
            Work::Map,
            Work::Credits,
            Work::Control(Control::Disconnect),
            Work::Control(Control::Keepalive),
            Work::Control(Control::Shutdown),
        ];
        for work in all {
            assert_eq!(Work::of(work.id()), Some(work));
        }
        assert_eq!(Work::of(0), None);
    }
}
