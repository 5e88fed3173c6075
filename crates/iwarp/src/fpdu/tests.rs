//! Literal FPDUs, and random segments over random cuts of the stream.

use super::*;
use proptest::prelude::*;

/// "hello" as the first SEND of a stream, as siw accepts it.
const HELLO: [u8; 32] = *b"\x00\x17\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0hello\0\0\0\xb9\x90\xb1\x0c";
/// An empty WRITE, the ready-to-receive message.
const EMPTY: [u8; 20] = *b"\x00\x0e\xc1\x40\0\0\0\x01\0\0\0\0\0\0\0\0\xeb\xd3\x4c\x5f";

fn frame(sender: &mut Sender, segment: &[u8], header: usize) -> Vec<u8> {
    let (header, payload) = segment.split_at(header.min(segment.len()));
    let mut out = vec![0xaa; sender.room(segment.len())];
    let done = sender.frame(&mut out, header, payload.len(), |offset, piece, _| {
        piece.copy_from_slice(&payload[offset..offset + piece.len()]);
        Ok::<_, ()>(false)
    });
    out.truncate(done.unwrap());
    out
}

/// All segments of a stream that arrives in pieces of these sizes.
fn receive(receiver: &mut Receiver, stream: &[u8], cuts: &[usize]) -> Result<Vec<Vec<u8>>, Reason> {
    let (mut segments, mut rest, mut cuts) = (Vec::new(), stream, cuts.iter().cycle());
    while !rest.is_empty() {
        let (mut piece, later) = rest.split_at((*cuts.next().unwrap()).clamp(1, rest.len()));
        rest = later;
        while let Some(segment) = receiver.next(&mut piece)? {
            segments.push(segment.to_vec());
        }
        assert!(piece.is_empty());
    }
    Ok(segments)
}

#[test]
fn known_crcs() {
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    let vectors = [
        (&b"123456789"[..], 0xe306_9283),
        (&[0; 32], 0x8a91_36aa),
        (&[0xff; 32], 0x62a8_ab43),
        (&up, 0x46dd_794e),
        (&down, 0x113f_db5c),
    ];
    for (bytes, crc) in vectors {
        assert_eq!(crc32c::of(bytes), crc, "{bytes:x?}");
    }
}

#[test]
fn iw_padding_makes_literal_fpdus_a_multiple_of_4() {
    for literal in [&HELLO[..], &EMPTY] {
        let segment = &literal[2..2 + usize::from(literal[1])];
        assert_eq!(frame(&mut Sender::new(true, false), segment, 14), literal);
        for cut in 1..=literal.len() {
            assert_eq!(receive(&mut Receiver::new(true, false), literal, &[cut]), Ok(vec![segment.to_vec()]));
        }
    }
}

#[test]
fn iw_crc_agreed_otherwise_the_field_is_zero_and_not_checked() {
    let mut fpdu = frame(&mut Sender::new(false, false), &HELLO[2..25], 18);
    assert_eq!((&fpdu[..28], &fpdu[28..]), (&HELLO[..28], &[0; 4][..]));
    fpdu[30] = 7;
    assert_eq!(receive(&mut Receiver::new(false, false), &fpdu, &[99]), Ok(vec![HELLO[2..25].to_vec()]));
}

#[test]
fn iw_padding_may_have_any_value() {
    let mut fpdu = frame(&mut Sender::new(false, false), &HELLO[2..25], 18);
    fpdu[26] = 7;
    assert!(receive(&mut Receiver::new(false, false), &fpdu, &[99]).is_ok());
}

#[test]
fn iw_crc_finds_each_flipped_bit_behind_the_length() {
    for bit in 16..8 * HELLO.len() {
        let mut fpdu = HELLO;
        fpdu[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(receive(&mut Receiver::new(true, false), &fpdu, &[7]), Err(Reason::MpaCrc), "{bit}");
    }
}

#[test]
fn a_cut_fpdu_is_noticed() {
    let mut receiver = Receiver::new(true, false);
    assert!(receiver.is_between());
    receive(&mut receiver, &HELLO[..12], &[5]).unwrap();
    assert!(!receiver.is_between());
    receive(&mut receiver, &HELLO[12..], &[5]).unwrap();
    assert!(receiver.is_between());
}

#[test]
fn the_bytes_that_complete_an_fpdu_are_known() {
    let mut receiver = Receiver::new(true, false);
    assert_eq!(receiver.missing(), Some(0));
    for (piece, missing) in [(&HELLO[..1], 1), (&HELLO[1..2], 30), (&HELLO[2..31], 1), (&HELLO[31..], 0)] {
        receive(&mut receiver, piece, &[32]).expect("the CRC is right");
        assert_eq!(receiver.missing(), Some(missing));
    }
    assert_eq!(Receiver::new(true, true).missing(), None);
}

#[test]
fn mulpdu_follows_the_rfc() {
    assert_eq!((mulpdu(1448, false), mulpdu(1448, true)), (1442, 1430));
    assert_eq!((mulpdu(1461, false), mulpdu(536, false)), (1454, 530));
    assert_eq!((mulpdu(100, false), mulpdu(100_000, true)), (128, 64768));
}

#[test]
fn iw_markers_stand_at_every_512th_byte_and_point_back() {
    let mut sender = Sender::new(false, true);
    let first = frame(&mut sender, &[0xbb; 498], 14);
    // The marker at 0 belongs to the FPDU behind it. 4 + 2 + 498 + 4 bytes end at 508.
    assert_eq!((first.len(), &first[..6]), (508, &[0, 0, 0, 0, 1, 0xf2][..]));
    let second = frame(&mut sender, &[0xcc; 598], 14);
    // The FPDU starts at 508, and the marker stands 4 bytes behind its start.
    assert_eq!((second.len(), &second[2..10]), (612, &[0xcc, 0xcc, 0, 0, 0, 4, 0xcc, 0xcc][..]));
    assert_eq!(second[..2], [2, 0x56]);
    let stream = [first, second].concat();
    let segments = receive(&mut Receiver::new(false, true), &stream, &[100]).unwrap();
    assert_eq!(segments, [vec![0xbb; 498], vec![0xcc; 598]]);
}

#[test]
fn iw_markers_before_the_crc_are_covered() {
    let mut sender = Sender::new(true, true);
    // Marker, length and 506 bytes of segment end at 512, where the next marker stands.
    let fpdu = frame(&mut sender, &[0xbb; 506], 14);
    assert_eq!((fpdu.len(), &fpdu[512..516]), (520, &[0, 0, 1, 0xfc][..]));
    assert_eq!(crc32c::of(&fpdu[..516]).to_le_bytes(), fpdu[516..]);
    assert_eq!(receive(&mut Receiver::new(true, true), &fpdu, &[3]).unwrap(), [vec![0xbb; 506]]);
}

#[test]
fn iw_markers_that_are_wrong_end_the_stream() {
    let mut stream = frame(&mut Sender::new(true, true), &[0xbb; 700], 14);
    stream[515] ^= 4;
    assert_eq!(receive(&mut Receiver::new(true, true), &stream, &[99]), Err(Reason::MpaMarker));
    stream[515] ^= 4;
    stream[3] ^= 1;
    assert_eq!(receive(&mut Receiver::new(false, true), &stream, &[99]), Err(Reason::MpaMarker));
}

#[test]
fn a_failed_fetch_sends_nothing() {
    let (mut one, mut two) = (Sender::new(true, true), Sender::new(true, true));
    let mut out = [0; 4096];
    assert_eq!(one.frame(&mut out, &[1; 14], 1000, |_, _, _| Err("gone")), Err("gone"));
    assert_eq!(frame(&mut one, &[1; 700], 14), frame(&mut two, &[1; 700], 14));
}

proptest! {
    #[test]
    fn segments_survive_any_cuts(
        segments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..1500), 1..12),
        cuts in prop::collection::vec(1_usize..900, 1..20),
        crc: bool,
        markers: bool,
    ) {
        let mut sender = Sender::new(crc, markers);
        let stream: Vec<u8> = segments.iter().flat_map(|segment| frame(&mut sender, segment, 14)).collect();
        prop_assert_eq!(stream.len() % 4, 0);
        prop_assert_eq!(receive(&mut Receiver::new(crc, markers), &stream, &cuts), Ok(segments));
    }

    #[test]
    fn any_bytes_are_taken_without_a_panic(
        stream in prop::collection::vec(any::<u8>(), 0..3000),
        cuts in prop::collection::vec(1_usize..900, 1..20),
        crc: bool,
        markers: bool,
    ) {
        let _ = receive(&mut Receiver::new(crc, markers), &stream, &cuts);
    }
}
