//! Headers of packets that the Linux kernel's Soft-RoCE driver sent (Debian 12, Linux 6.1): parsed,
//! displayed, and encoded again. Each row holds the bytes between the UDP header and the payload.

use softhca_wire::Headers;

/// (Headers as hex digits, their display.)
const PACKETS: &[(&str, &str)] = &[
    ("0000ffff0000002f00000200", "RC SEND first to QP 0x2f psn 512"),
    ("0100ffff0000004100000201", "RC SEND middle to QP 0x41 psn 513"),
    (
        "0c00ffff000000338000020000000000075a10400000240600000bb8",
        "RC RDMA READ request to QP 0x33 psn 512 ack-req, 3000 bytes at 0x75a1040 rkey 0x2406",
    ),
    ("0d00ffff00000033000002001f000001", "RC RDMA READ response first to QP 0x33 psn 512, ACK msn 1"),
    ("0e00ffff0000003300000201", "RC RDMA READ response middle to QP 0x33 psn 513"),
    ("0f00ffff00000033000002021f000001", "RC RDMA READ response last to QP 0x33 psn 514, ACK msn 1"),
    (
        "1300ffff0000003480000200000000003afc5040000025861122334455667788f4ede6dfd8d1cac3",
        "RC compare and swap to QP 0x34 psn 512 ack-req, at 0x3afc5040 rkey 0x2586 swap/add 0x1122334455667788 compare 0xf4ede6dfd8d1cac3",
    ),
    (
        "1200ffff00000034000002001f000001f4ede6dfd8d1cac3",
        "RC atomic acknowledge to QP 0x34 psn 512, ACK msn 1, was 0xf4ede6dfd8d1cac3",
    ),
    (
        "0b00ffff0000003280000200000000000c188010000023fb0000004055667788",
        "RC RDMA WRITE only with immediate to QP 0x32 psn 512 ack-req, 64 bytes at 0xc188010 rkey 0x23fb, immediate 0x55667788",
    ),
    ("1100ffff00000032000002001f000001", "RC acknowledge to QP 0x32 psn 512, ACK msn 1"),
    (
        "0600ffff0000003200000201000000000c188064000023fb00000bb8",
        "RC RDMA WRITE first to QP 0x32 psn 513, 3000 bytes at 0xc188064 rkey 0x23fb",
    ),
    ("1100ffff000000380000020162000001", "RC acknowledge to QP 0x38 psn 513, NAK remote access error msn 1"),
    (
        "1700ffff0000003c80000201080001bd",
        "RC SEND only with invalidate to QP 0x3c psn 513 ack-req, invalidates rkey 0x80001bd",
    ),
    ("6400ffff00000035000000001111111100000035", "UD SEND only to QP 0x35 psn 0, from QP 0x35 qkey 0x11111111"),
    (
        "6530ffff00000035000000011111111100000035cafef00d",
        "UD SEND only with immediate to QP 0x35 psn 1, from QP 0x35 qkey 0x11111111, immediate 0xcafef00d",
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits")).collect()
}

#[test]
fn packets_of_another_implementation() {
    for (hex, line) in PACKETS {
        let bytes = bytes(hex);
        let headers = Headers::parse(&bytes).expect("headers");
        assert_eq!(headers.to_string(), *line);
        assert_eq!(headers.len(), bytes.len(), "{line}");
        let mut out = vec![0xaa; bytes.len() + 1];
        assert_eq!(headers.emit(&mut out), Ok(bytes.len()));
        assert_eq!(out[..bytes.len()], bytes, "{line}");
        assert_eq!(out[bytes.len()], 0xaa, "not a byte too far");
    }
}

#[test]
fn cut_short_anywhere_is_an_error() {
    for (hex, line) in PACKETS {
        let bytes = bytes(hex);
        let headers = Headers::parse(&bytes).expect("headers");
        for len in 0..bytes.len() {
            assert!(Headers::parse(&bytes[..len]).is_err(), "{line} cut to {len}");
            assert!(headers.emit(&mut vec![0; len]).is_err(), "{line} into {len}");
        }
    }
}

#[test]
fn any_bytes_are_headers_that_come_back_or_an_error() {
    let mut state = 1u64;
    for _ in 0..200_000 {
        let bytes: Vec<u8> = (0..44)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        if let Ok(headers) = Headers::parse(&bytes) {
            let mut out = [0; 44];
            let len = headers.emit(&mut out).expect("room");
            assert_eq!(Headers::parse(&out[..len]), Ok(headers));
        }
    }
}
