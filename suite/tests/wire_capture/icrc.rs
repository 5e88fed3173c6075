//! Computes the ICRC of a frame from the standard alone, without code of softhca. The ICRC is the
//! CRC of Ethernet, computed bit by bit. It covers eight bytes of ones, then the IP and UDP headers
//! with their variant fields set to ones, then the packet (IBA annex A17, section 6).

use std::path::Path;

/// The frames of a pcap file that tcpdump wrote. All frames must be RoCEv2.
pub(crate) fn frames(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).expect("the capture");
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

/// The correct last four bytes of the frame.
pub(crate) fn of(frame: &[u8]) -> [u8; 4] {
    let mut bytes = frame[14..frame.len() - 4].to_vec();
    let udp = if bytes[0] >> 4 == 4 {
        for variant in [1, 8, 10, 11] {
            bytes[variant] = 0xff; // Type of service, time to live, checksum.
        }
        20
    } else {
        bytes[0] |= 0x0f;
        for variant in [1, 2, 3, 7] {
            bytes[variant] = 0xff; // Traffic class, flow label, hop limit.
        }
        40
    };
    for variant in [udp + 6, udp + 7, udp + 8 + 4] {
        bytes[variant] = 0xff; // UDP checksum, and the BTH's byte of congestion marks.
    }
    let mut register = u32::MAX;
    for byte in [0xff; 8].into_iter().chain(bytes) {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = if register & 1 == 1 { register >> 1 ^ 0xedb8_8320 } else { register >> 1 };
        }
    }
    (!register).to_le_bytes()
}
