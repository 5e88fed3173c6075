//! Reasons of failures, shared by two processes: the records behind a context page, which the
//! engine writes and the agent shows, and the sentences made from them.
//!
//! A record is the program's claim about itself. So the process that shows a sentence clips and
//! cleans it ([`clean`]). For dropped packets only numbers are stored, from which
//! [`DropRecord::sentence`] makes the sentence. The principal types are [`ReasonKind`] and
//! [`Cause`].

use std::fmt::Write;
use std::net::Ipv6Addr;

use crate::queue::REASON_LEN;

record! {
    /// A reason behind the context page; its sentence (UTF-8) follows.
    pub struct ReasonRecord[48] {
        /// Odd while the record is being written. It differs after each change.
        0 => version: u32,
        /// Its kind: 0 a refused call, 1 a completion with an error, 2 flushed requests, 3 dropped
        /// packets, 4 a change of an object, 5 an event that the program has received.
        4 => kind: u32,
        /// Time of the last occurrence, nanoseconds since 1970.
        8 => time: u64,
        /// The QP, 0 for none.
        16 => qpn: u32,
        /// How often it occurred in a row.
        20 => count: u32,
        /// The request's `wr_id`, if `has_wr_id` is 1.
        24 => wr_id: u64,
        /// 1: the reason is about one request.
        32 => has_wr_id: u32,
        /// The completion's status.
        36 => status: u32,
        /// Bytes of the sentence.
        40 => len: u32,
        /// 0.
        44 => reserved: u32,
    }

    /// Packets that were dropped for one cause, and the last of them.
    pub struct DropRecord[64] {
        /// A number of `Cause`, 0 for an empty place.
        0 => cause: u32,
        /// The local QP that did not accept them, 0 for none.
        4 => qpn: u32,
        /// Number of packets.
        8 => count: u64,
        /// Time of the last packet, nanoseconds since 1970.
        16 => time: u64,
        /// The packet's value.
        24 => got: u32,
        /// The expected value.
        28 => expected: u32,
        /// The address that the packet came from or went to, 0 on a lane.
        32 => address: [u8; 16],
        /// The QP that the packet claims to come from, if known.
        48 => src_qp: u32,
        /// The QP that the packet was for.
        52 => dest_qp: u32,
        /// The packet's PSN.
        56 => psn: u32,
        /// The packet's opcode.
        60 => opcode: u32,
    }
}

/// Bytes of the longest sentence behind a context page.
pub const SENTENCE_MAX: usize = REASON_LEN - size_of::<ReasonRecord>();

/// The kind of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum ReasonKind {
    /// A call was refused.
    Refused = 0,
    /// A request ended with an error of its own.
    Failed = 1,
    /// Requests were given back because their QP went to the error state.
    Flushed = 2,
    /// Packets were dropped.
    Dropped = 3,
    /// Something happened to an object.
    Noted = 4,
    /// Something happened that an event reports to the program: an asynchronous event, or an event
    /// of the connection manager.
    Event = 5,
}

impl ReasonKind {
    /// All of them, by number.
    pub const ALL: [Self; 6] = [Self::Refused, Self::Failed, Self::Flushed, Self::Dropped, Self::Noted, Self::Event];

    /// The word for it in files and in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Flushed => "flushed",
            Self::Dropped => "dropped",
            Self::Noted => "noted",
            Self::Event => "event",
        }
    }

    /// The kind with a number; an unknown number is only a note.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        Self::ALL.get(number as usize).copied().unwrap_or(Self::Noted)
    }

    /// The kind with a word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

macro_rules! causes {
    ($($number:literal $name:ident $word:literal, $meaning:literal;)+) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Cause {
            $(#[doc = $meaning] $name = $number,)+
        }

        impl Cause {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The word for it in JSON.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)+ }
            }
        }
    };
}

causes! {
    1 Short "short", "It is shorter than the headers and the ICRC.";
    2 Icrc "icrc", "Its ICRC is wrong.";
    3 Headers "headers", "Its headers are not valid.";
    4 Padding "padding", "Its payload is shorter than its pad count.";
    5 PKey "pkey", "Its P_Key does not match.";
    6 NoQp "no_qp", "No QP has its destination QP number.";
    7 State "state", "Its QP is in a state that does not receive.";
    8 SourceQp "source_qp", "Its source QP is not the peer of its QP.";
    9 SourceAddress "source_address", "Its source address is not that of the peer of its QP.";
    10 OwnAddress "own_address", "It came from outside with a source address of this agent.";
    11 QKey "qkey", "Its Q_Key does not match.";
    12 NoReceive "no_receive", "Its QP had no receive request.";
    13 Service "service", "Its transport service is not that of its QP.";
    14 Sequence "sequence", "Earlier packets are missing.";
    15 Order "order", "Its opcode does not follow from that of the packet before it.";
    16 Length "length", "Its length is wrong for its opcode, the path MTU or the receive buffer.";
    17 Rights "rights", "The QP's access flags do not allow it.";
    18 Dead "dead", "Its QP refused an earlier packet and processes no more.";
    19 Forgotten "forgotten", "It repeats a request that is no longer stored.";
    20 Probe "probe", "It is not a probe.";
    21 Device "device", "Its address belongs to another device.";
    22 Memory "memory", "The memory that it names cannot be accessed.";
    23 Nobody "nobody", "No program has the QP to which it was sent.";
    24 PortDown "port_down", "The port is down.";
    25 NoRoom "no_room", "There was no room for it.";
    26 Forged "forged", "It names a source QP that its sender does not own.";
    27 InError "in_error", "Its QP is in the error state.";
    28 Fault "fault", "A fault rule dropped it on arrival.";
    29 Port "port", "Its address belongs to another port.";
    30 NoPath "no_path", "The switches have no path to its LID.";
    31 LinkMtu "link_mtu", "It is longer than the MTU of a link on its path.";
}

impl Cause {
    /// The cause with a number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|cause| *cause as u32 == number)
    }

    /// Whether such drops are counted and not reported: a connection recovers by itself, or the
    /// drop follows from a failure that has been reported.
    #[must_use]
    pub const fn is_mended(self) -> bool {
        matches!(self, Self::Sequence | Self::Forgotten | Self::Dead | Self::InError)
    }

    /// What to do about it, if that is known.
    #[must_use]
    pub const fn advice(self) -> Option<&'static str> {
        Some(match self {
            Self::Icrc => "something on the path changes packets, or the sender is not a RoCEv2 adapter",
            Self::PKey => {
                "choose P_Key indexes of one partition on both sides; one of the two must be a full member (bit 15 is set)"
            }
            Self::NoQp => "the QP is destroyed, or the sender uses a wrong QPN: exchange the QPNs again",
            Self::InError => "see the QP's reason for the error state",
            Self::State => "move it to RTR before the peer sends",
            Self::SourceQp | Self::SourceAddress => "give both sides each other's QPN and GID in the change to RTR",
            Self::QKey => "set the same Q_Key on both sides",
            Self::NoReceive => "post receive requests before the peer sends, and more of them",
            Self::Length => {
                "set the same path_mtu on both sides, send datagrams of at most one MTU, and post receive buffers that are long enough, with 40 bytes for the GRH of a datagram"
            }
            Self::Port => "send to a GID of the port that the receiver's QP is on",
            Self::Rights => "add the right to the QP's qp_access_flags",
            Self::Memory => "check rkey, address and length, and the region's access flags",
            Self::Nobody => "the peer's QP is destroyed, or its QPN has changed",
            Self::Sequence => "a reliable connection retransmits them automatically",
            Self::NoPath => "`softhca subnet path` shows where packets to this LID end",
            Self::LinkMtu => {
                "use a path_mtu, and datagrams, no longer than that; `softhca subnet path` shows the MTU of a path"
            }
            Self::NoRoom => "poll more often, or send less at once",
            _ => return None,
        })
    }
}

impl DropRecord {
    /// The cause, if its number is known.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        Cause::of_number(self.cause)
    }

    /// The sentence about dropped packets: which, why, and what to do. It is made from numbers
    /// only.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { qpn, count, got, expected, src_qp, dest_qp, .. } = *self;
        let mut text = if qpn == 0 { String::new() } else { format!("QP {qpn:#x}: ") };
        let _ = match count {
            1 => write!(text, "a packet was dropped because "),
            count => write!(text, "{count} packets were dropped, the last one because "),
        };
        let cause = self.cause();
        let _ = match cause {
            None => write!(text, "its cause {} is unknown", self.cause),
            Some(Cause::Short) => write!(text, "it has {got} bytes, less than any packet"),
            Some(Cause::Icrc) => write!(text, "its ICRC does not fit"),
            Some(Cause::Headers) => {
                write!(text, "its headers are unknown (opcode {:#04x})", self.opcode)
            }
            Some(Cause::Padding) => write!(text, "it is shorter than its padding"),
            Some(Cause::PKey) => {
                write!(text, "its P_Key is {got:#06x}, which the QP's P_Key {expected:#06x} does not accept")
            }
            Some(Cause::NoQp) => write!(text, "no QP here has the number {dest_qp:#x}"),
            Some(Cause::State) => write!(text, "the QP is in state {} and does not receive", state(got)),
            Some(Cause::SourceQp) => write!(text, "it comes from QP {got:#x}, the QP is connected to QP {expected:#x}"),
            Some(Cause::SourceAddress) => write!(text, "it comes from another address than the QP's peer has"),
            Some(Cause::OwnAddress) => write!(text, "it came from outside with an address of this agent"),
            Some(Cause::QKey) => write!(text, "its Q_Key is {got:#x}, the QP has {expected:#x}"),
            Some(Cause::NoReceive) => write!(text, "no receive request was posted"),
            Some(Cause::Service) => write!(text, "its service is not that of the QP (opcode {:#04x})", self.opcode),
            Some(Cause::Sequence) => write!(text, "packet {got} arrived, expected {expected}"),
            Some(Cause::Order) => {
                write!(text, "it does not follow from the packet before it (opcode {:#04x})", self.opcode)
            }
            Some(Cause::Length) => write!(text, "its {got} bytes do not fit, there is room for {expected}"),
            Some(Cause::Rights) => {
                write!(text, "opcode {:#04x} is not allowed by the QP's access flags {expected:#x}", self.opcode)
            }
            Some(Cause::Dead) => write!(text, "the QP refused an earlier packet and no longer processes packets"),
            Some(Cause::Forgotten) => write!(text, "it is a duplicate of a request that is no longer stored"),
            Some(Cause::Probe) => write!(text, "it is not a probe"),
            Some(Cause::Device) => write!(text, "its address is that of device {got}, this is device {expected}"),
            Some(Cause::Port) => write!(text, "its address is not that of port {expected}, on which the QP is"),
            Some(Cause::Memory) => write!(text, "the memory that it names cannot be used (rkey {got:#x})"),
            Some(Cause::Nobody) => write!(text, "it was sent to QP {dest_qp:#x}, which no program has"),
            Some(Cause::PortDown) => write!(text, "the port is down"),
            Some(Cause::NoPath) => write!(text, "the switches have no path from this port to its LID"),
            Some(Cause::LinkMtu) => {
                write!(text, "its {got} bytes are more than the MTU {expected} of a link on its path")
            }
            Some(Cause::NoRoom) => write!(text, "there was no room for it"),
            Some(Cause::InError) => write!(text, "the QP is in the error state and does not receive"),
            Some(Cause::Fault) => write!(text, "of a fault: it was lost by rule {got}"),
            Some(Cause::Forged) => {
                write!(text, "it says that it comes from QP {src_qp:#x}, which its sender does not own")
            }
        };
        self.name_packet(&mut text);
        if let Some(advice) = cause.and_then(Cause::advice) {
            let _ = write!(text, "; {advice}");
        }
        text
    }

    /// Adds which packet it was.
    fn name_packet(&self, text: &mut String) {
        text.push_str(" (");
        if self.src_qp != 0 {
            let _ = write!(text, "QP {:#x} ", self.src_qp);
        }
        if self.address != [0; 16] {
            let address = Ipv6Addr::from(self.address);
            let to = if matches!(self.cause(), Some(Cause::Nobody | Cause::PortDown | Cause::NoPath | Cause::LinkMtu)) {
                "to "
            } else {
                "at "
            };
            let _ = match address.to_ipv4_mapped() {
                Some(v4) => write!(text, "{to}{v4}, "),
                None => write!(text, "{to}{address}, "),
            };
        }
        let _ = write!(text, "PSN {})", self.psn);
    }
}

/// The name of a QP's state.
fn state(number: u32) -> &'static str {
    u8::try_from(number).ok().and_then(crate::qp::state::name).unwrap_or("?")
}

/// A sentence that is safe to show: no character controls a terminal, and it has at most `most`
/// bytes.
#[must_use]
pub fn clean(sentence: &str, most: usize) -> String {
    let mut cleaned = String::with_capacity(sentence.len().min(most));
    for letter in sentence.chars() {
        // Besides control characters, also characters that change the direction of text or are
        // invisible.
        let hidden =
            matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        let letter = if letter.is_control() || hidden { '\u{fffd}' } else { letter };
        if cleaned.len() + letter.len_utf8() > most {
            break;
        }
        cleaned.push(letter);
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_sentence_of_its_own() {
        let mut seen = Vec::new();
        for &cause in Cause::ALL {
            let record =
                DropRecord { cause: cause as u32, qpn: 0x11, count: 3, dest_qp: 0x11, ..DropRecord::default() };
            let sentence = record.sentence();
            assert!(sentence.starts_with("QP 0x11: 3 packets were dropped") && sentence.len() > 60, "{sentence}");
            assert!(!seen.contains(&sentence), "{sentence}");
            assert_eq!(Cause::of_number(cause as u32), Some(cause));
            seen.push(sentence);
        }
        let words: std::collections::BTreeSet<_> = Cause::ALL.iter().map(|cause| cause.word()).collect();
        assert_eq!(words.len(), Cause::ALL.len());
    }

    #[test]
    fn every_drop_that_a_program_can_prevent_has_advice() {
        let without = Cause::ALL.iter().filter(|cause| cause.advice().is_none()).map(|cause| cause.word());
        let expected = [
            "short",
            "headers",
            "padding",
            "own_address",
            "service",
            "order",
            "dead",
            "forgotten",
            "probe",
            "device",
            "port_down",
            "forged",
            "fault",
        ];
        assert_eq!(without.collect::<Vec<_>>(), expected);
        let mended = Cause::ALL.iter().filter(|cause| cause.is_mended()).map(|cause| cause.word());
        assert_eq!(mended.collect::<Vec<_>>(), ["sequence", "dead", "forgotten", "in_error"]);
    }

    #[test]
    fn a_packet_for_a_qp_that_does_not_receive_names_the_state() {
        let record = DropRecord { cause: Cause::State as u32, qpn: 0x11, count: 1, got: 1, ..DropRecord::default() };
        assert!(record.sentence().contains("the QP is in state INIT and does not receive"), "{}", record.sentence());
        let unknown = DropRecord { got: 1000, ..record };
        assert!(unknown.sentence().contains("in state ? and"), "{}", unknown.sentence());
    }

    #[test]
    fn a_dropped_packet_is_described_with_its_numbers() {
        let record = DropRecord {
            cause: Cause::QKey as u32,
            qpn: 0x102,
            count: 1,
            got: 5,
            expected: 0x1111_1111,
            address: std::net::Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped().octets(),
            src_qp: 0x77,
            psn: 12,
            ..DropRecord::default()
        };
        assert_eq!(
            record.sentence(),
            "QP 0x102: a packet was dropped because its Q_Key is 0x5, the QP has 0x11111111 (QP 0x77 at 10.0.0.2, PSN 12); \
             set the same Q_Key on both sides"
        );
        assert!(DropRecord { cause: 999, ..record }.sentence().contains("cause 999"));
    }

    #[test]
    fn kinds_have_numbers_and_words() {
        for (number, kind) in ReasonKind::ALL.into_iter().enumerate() {
            assert_eq!(ReasonKind::of_number(number as u32), kind);
            assert_eq!(ReasonKind::of_word(kind.word()), Some(kind));
        }
        assert_eq!((ReasonKind::of_number(77), ReasonKind::of_word("")), (ReasonKind::Noted, None));
    }

    #[test]
    fn nothing_that_is_shown_commands_a_terminal() {
        assert_eq!(clean("a\x1b[31mb\n\u{202e}c\u{9b}", 100), "a\u{fffd}[31mb\u{fffd}\u{fffd}c\u{fffd}");
        assert_eq!([4, 5, 6].map(|most| clean("äöü", most)), ["äö", "äö", "äöü"]);
        assert_eq!([0, 1].map(|most| clean("a\u{2028}", most)), ["", "a"]);
    }
}
