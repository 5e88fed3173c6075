//! Messages of rtnetlink, which tells a host's interfaces, addresses, routes and neighbours: their
//! attributes, and the numbers and IP addresses in them.
//!
//! Users parse only the parts that they need. A decoder for whole messages could fail on a newer
//! kernel. Principal functions: [`attributes`], which parses, and [`push`], which builds.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Kind of the message that refuses a request, or acknowledges it with the number 0.
pub const ERROR: u16 = 2;
/// Kind of the message that ends an answer.
pub const DONE: u16 = 3;
/// Length of the header of a message.
pub const HEADER: usize = 16;

/// Length of the header of an attribute.
const ATTRIBUTE: usize = 4;
/// The bits of an attribute's type that are its number. The others say that it contains attributes,
/// and its byte order.
const NUMBER: u16 = 0x3fff;

/// The attributes after the first `fixed` bytes of a message: each number with its value. Malformed
/// bytes end the list.
pub fn attributes(message: &[u8], fixed: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = message.get(fixed..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, number) = (usize::from(half(rest, 0)?), half(rest, 2)?);
        let value = rest.get(ATTRIBUTE..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((number & NUMBER, value))
    })
}

/// Appends an attribute to a message. The value has at most 65531 bytes.
pub fn push(message: &mut Vec<u8>, number: u16, value: &[u8]) {
    message.extend(((ATTRIBUTE + value.len()) as u16).to_ne_bytes());
    message.extend(number.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The 32 bits at this place.
#[must_use]
pub fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The 16 bits at this place.
#[must_use]
pub fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The errno in the content of an [`ERROR`] message; 0 for an acknowledgement.
#[must_use]
pub fn errno(message: &[u8]) -> i32 {
    word(message, 0).unwrap_or_default().cast_signed().saturating_neg()
}

/// The IP address in the value of an attribute.
#[must_use]
pub fn ip(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes).into()),
        16 => value.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes).into()),
        _ => None,
    }
}

/// The value of an attribute with an IP address.
#[must_use]
pub fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_parsed_as_they_are_built_and_end_where_they_are_malformed() {
        let mut message = vec![7; 12];
        push(&mut message, 5, &[10, 1, 0, 9]);
        push(&mut message, 0x8000 | 3, b"a");
        push(&mut message, 4, &7_u32.to_ne_bytes());
        assert_eq!(message.len(), 12 + 3 * 8);
        let found: Vec<_> = attributes(&message, 12).collect();
        assert_eq!(found, [(5, &[10, 1, 0, 9][..]), (3, b"a"), (4, &7_u32.to_ne_bytes())]);
        assert_eq!((ip(found[0].1), word(found[2].1, 0)), (Some([10, 1, 0, 9].into()), Some(7)));
        for cut in 0..message.len() {
            assert!(attributes(&message[..cut], 12).count() < 3 && attributes(&message[..cut], cut + 1).count() == 0);
        }
        assert_eq!(attributes(&[0; 64], 0).count(), 0, "an attribute without a length");
        assert_eq!((half(&[1], 0), word(&[0; 4], 1), word(&[], usize::MAX)), (None, None, None));
    }

    #[test]
    fn an_address_has_4_or_16_bytes_and_an_error_is_negative() {
        for text in ["10.0.0.1", "fd00::1"] {
            let address: IpAddr = text.parse().expect(text);
            assert_eq!(ip(&octets(address)), Some(address));
        }
        assert_eq!(ip(&[0; 5]), None);
        assert_eq!(
            (errno(&(-19_i32).to_ne_bytes()), errno(&[0; 4]), errno(&i32::MIN.to_ne_bytes())),
            (19, 0, i32::MAX)
        );
    }
}
