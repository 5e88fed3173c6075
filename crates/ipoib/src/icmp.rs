//! Errors that the host gets for packets that it cannot send. RFC 792, RFC 1191, RFC 4443.
//! Principal function: [`answer`].

use std::net::IpAddr;

use crate::checksum;
use crate::ip::{Packet, may_be_answered};

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// It is longer than this MTU of its path.
    TooBig(usize),
    /// Its next hop does not answer.
    Unreachable,
}

/// The most bytes of the refused packet in an error: an error of IPv4 then has 576 bytes, one of
/// IPv6 1280.
const QUOTED: [usize; 2] = [576 - 28, 1280 - 48];

/// The packet with the error that answers `packet`. It comes from the packet's destination, because
/// a host refuses packets from its own addresses. `None` if no error may answer it.
pub(crate) fn answer(packet: &[u8], error: Error) -> Option<Vec<u8>> {
    let Packet { source, destination } = Packet::parse(packet)?;
    if destination.is_multicast() || source.is_unspecified() || source.is_multicast() || !may_be_answered(packet) {
        return None;
    }
    match (destination, source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let quoted = &packet[..packet.len().min(QUOTED[0])];
            let mut answer = vec![0; 28];
            answer[0] = 0x45;
            answer[2..4].copy_from_slice(&((28 + quoted.len()) as u16).to_be_bytes());
            (answer[8], answer[9]) = (64, 1);
            answer[12..16].copy_from_slice(&from.octets());
            answer[16..20].copy_from_slice(&to.octets());
            let sum = checksum::of(&answer[..20]);
            answer[10..12].copy_from_slice(&sum.to_be_bytes());
            answer[20] = 3;
            answer[21] = 1;
            if let Error::TooBig(mtu) = error {
                answer[21] = 4;
                answer[26..28].copy_from_slice(&u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes());
            }
            answer.extend(quoted);
            let sum = checksum::of(&answer[20..]);
            answer[22..24].copy_from_slice(&sum.to_be_bytes());
            Some(answer)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let quoted = &packet[..packet.len().min(QUOTED[1])];
            let mut answer = vec![0; 48];
            answer[0] = 0x60;
            answer[4..6].copy_from_slice(&((8 + quoted.len()) as u16).to_be_bytes());
            (answer[6], answer[7]) = (checksum::ICMPV6, 64);
            answer[8..24].copy_from_slice(&from.octets());
            answer[24..40].copy_from_slice(&to.octets());
            (answer[40], answer[41]) = (1, 3);
            if let Error::TooBig(mtu) = error {
                (answer[40], answer[41]) = (2, 0);
                answer[44..48].copy_from_slice(&(mtu as u32).to_be_bytes());
            }
            answer.extend(quoted);
            let sum = checksum::of_icmpv6(from, to, &answer[40..]);
            answer[42..44].copy_from_slice(&sum.to_be_bytes());
            Some(answer)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, answer};
    use crate::checksum;

    fn packet(protocol: u8, first: u8) -> Vec<u8> {
        let mut packet = vec![0; 3000];
        (packet[0], packet[9], packet[20]) = (0x45, protocol, first);
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet
    }

    #[test]
    fn a_packet_that_is_too_long_is_answered_with_the_mtu() {
        let error = answer(&packet(17, 0), Error::TooBig(2044)).expect("an answer");
        assert_eq!((error.len(), &error[20..22], &error[26..28]), (576, &[3, 4][..], &2044_u16.to_be_bytes()[..]));
        assert_eq!(error[12..20], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!((checksum::of(&error[..20]), checksum::of(&error[20..])), (0, 0));
        let mut six = vec![0; 3000];
        six[0] = 0x60;
        (six[23], six[39]) = (1, 2);
        let error = answer(&six, Error::TooBig(2044)).expect("an answer");
        assert_eq!((error.len(), error[40], &error[44..48]), (1280, 2, &2044_u32.to_be_bytes()[..]));
        let (from, to) = (std::net::Ipv6Addr::from(2), std::net::Ipv6Addr::from(1));
        assert_eq!(checksum::of_icmpv6(from, to, &error[40..]), 0);
    }

    #[test]
    fn errors_groups_and_fragments_are_not_answered() {
        assert!(answer(&packet(1, 8), Error::Unreachable).is_some(), "an echo request");
        assert_eq!(answer(&packet(1, 3), Error::Unreachable), None, "an error");
        let mut fragment = packet(17, 0);
        fragment[7] = 1;
        assert_eq!(answer(&fragment, Error::Unreachable), None);
        let mut group = packet(17, 0);
        group[16] = 239;
        assert_eq!(answer(&group, Error::Unreachable), None);
        assert_eq!(answer(&[0x45, 0], Error::Unreachable), None);
    }
}
