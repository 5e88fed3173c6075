//! Tests of the copy that folds bytes into an ICRC or CRC32C: it copies, its CRC is correct, and a
//! hole in the source returns a fault.

use super::super::{Side, copy_folding, install};
use super::{PAGE, Pages};
use iwarp::fpdu::Sender;
use wire::bth;
use wire::icrc::{Envelope, Folding, Width};

const HEAD: [u8; bth::LEN] = [7, 0, 0xff, 0xff, 0x55, 0, 1, 2, 0x80, 3, 4, 5];

fn envelope(v4: bool) -> Envelope {
    let gid = |last| if v4 { std::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets() } else { [last; 16] };
    Envelope::new(&gid(1), &gid(2), 0xc123)
}

#[test]
fn it_copies_and_comes_to_the_same_icrc() {
    install().unwrap();
    let (source, destination) = (Pages::new(4), Pages::new(4));
    source.fill(0, 4 * PAGE, |at| (at.wrapping_mul(2_654_435_761) >> 7) as u8);
    for len in [256, 512, 1024, 2048, 4096] {
        for (from, to, v4, id) in [(0, 64, true, 0), (1, 12, true, 0xfffe), (63, 77, false, 0), (4000, 12, true, 5)] {
            let measured = envelope(v4).of_length(bth::LEN + len);
            for width in Width::all() {
                let mut folding = Folding::of_width(width);
                measured.begin(&mut folding, id, &HEAD);
                destination.fill(0, 4 * PAGE, |_| 255);
                // SAFETY: both are the test's own mappings, without references.
                unsafe { copy_folding(destination.at(to), source.at(from), len, &mut folding) }.unwrap();
                let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 7) as u8;
                assert!(destination.holds(to, len, |at| byte(at - to + from)), "{len} {from} {to}");
                assert!(
                    destination.holds(0, to, |_| 255) && destination.holds(to + len, 64, |_| 255),
                    "{len} {from} {to}"
                );
                let packet: Vec<u8> = HEAD.into_iter().chain((from..from + len).map(byte)).collect();
                assert_eq!(folding.icrc(), envelope(v4).icrc(id, &packet), "{len} {from} {width:?}");
            }
        }
    }
}

#[test]
fn it_comes_to_the_same_crc32c() {
    install().unwrap();
    let (source, destination) = (Pages::new(4), Pages::new(4));
    let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 9) as u8;
    source.fill(0, 4 * PAGE, byte);
    let rest = [9; 70];
    for (head, len, from, left) in [(16, 256, 0, 0), (16, 1024, 5, 3), (20, 1280, 77, 70), (100, 8704, 4090, 33)] {
        let head: Vec<u8> = (0..head).map(|at| byte(at + 3)).collect();
        let all: Vec<u8> = head.iter().copied().chain((from..from + len).map(byte)).chain([9; 70]).collect();
        for width in Width::all() {
            let mut folding = Folding::of_crc32c(width);
            // Twice: nothing of the first use may be left.
            for _ in 0..2 {
                folding.begin_crc32c(&head);
                // SAFETY: both are the test's own mappings, without references.
                unsafe { copy_folding(destination.at(20), source.at(from), len, &mut folding) }.unwrap();
                let expected = wire::crc32c::of(&all[..head.len() + len + left]);
                assert_eq!(folding.crc32c(&rest[..left]), expected, "{len} {left} {width:?}");
            }
        }
    }
}

#[test]
fn fpdus_whose_payload_is_folded_are_the_same() {
    install().unwrap();
    let payload: Vec<u8> = (0..9000_usize).map(|at| (at.wrapping_mul(2_654_435_761) >> 5) as u8).collect();
    let mut sender = Sender::new(true, false);
    for (len, header) in [(1023, 14), (1024, 14), (1025, 18), (1280, 18), (1446, 14), (8942, 18)] {
        let mut frame = |folds: bool| {
            let (mut out, mut folded) = (vec![0; sender.room(header + len)], false);
            let done = sender.frame(&mut out, &[0x41; 18][..header], len, |offset, piece, folding| {
                let (from, size) = (&payload[offset..offset + piece.len()], piece.len());
                piece.copy_from_slice(from);
                let Some(folding) = folding.filter(|_| folds) else { return Ok::<_, ()>(false) };
                piece.fill(0);
                // SAFETY: two slices of this length.
                unsafe { copy_folding(piece.as_mut_ptr(), from.as_ptr(), size, folding) }.unwrap();
                folded = true;
                Ok(true)
            });
            out.truncate(done.unwrap());
            (out, folded)
        };
        let (plain, folded) = (frame(false).0, frame(true));
        assert_eq!(folded.1, len >= 1024 && Width::all().next().is_some(), "{len}");
        assert_eq!(folded.0, plain, "{len}");
    }
}

#[test]
fn only_whole_strides_are_folded() {
    for len in [0, 4, 128, 1020, 1028] {
        assert!(!envelope(true).of_length(bth::LEN + len).is_foldable(), "{len}");
    }
    assert!(!envelope(true).of_length(4).is_foldable());
    assert!(envelope(true).of_length(bth::LEN + 256).is_foldable());
}

#[test]
fn a_hole_on_either_side_is_found() {
    install().unwrap();
    let (holed, whole) = (Pages::new(3), Pages::new(3));
    holed.protect(1, libc::PROT_NONE);
    let measured = envelope(true).of_length(bth::LEN + 1024);
    for beyond in (1..=1024).step_by(97) {
        let start = PAGE + beyond - 1024;
        for (side, width) in Width::all().flat_map(|width| [(Side::Read, width), (Side::Write, width)]) {
            let mut folding = Folding::of_width(width);
            measured.begin(&mut folding, 0, &HEAD);
            let (to, from) = match side {
                Side::Read => (whole.at(12), holed.at(start)),
                Side::Write => (holed.at(start), whole.at(3)),
            };
            // SAFETY: the test's own mappings; the hole is the point.
            let fault = unsafe { copy_folding(to, from, 1024, &mut folding) }.expect_err("a hole");
            assert_eq!(fault.side, side, "{beyond}");
            assert!((holed.address(PAGE)..holed.address(2 * PAGE)).contains(&fault.address), "{beyond}: {fault:?}");
        }
    }
}
