//! The rules of [`super::admit`], one by one and in their order, on literal bytes.

use super::*;
use crate::cq::{ExCreateCq, ExCreateCqAnswer};
use crate::device::{ExQueryDevice, ExQueryDeviceAnswer};
use crate::open::profile::{MAINLINE, OFED};
use crate::pd::{AllocPd, AllocPdAnswer};
use crate::qp::ExCreateQp;

const ALLOC_PD_BYTES: [u8; 16] = [3, 0, 0, 0, 4, 0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0];

fn refusal(bytes: &[u8]) -> Errno {
    admit(bytes, MAINLINE, true).expect_err("refused")
}

/// `ALLOC_PD_BYTES` with some bytes changed.
fn changed(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut command = ALLOC_PD_BYTES.to_vec();
    command[at..at + bytes.len()].copy_from_slice(bytes);
    command
}

#[test]
fn a_valid_legacy_command_is_parsed() {
    let command = admit(&ALLOC_PD_BYTES, MAINLINE, true).expect("good");
    assert_eq!((command.row.name, command.is_extended(), command.room()), ("ALLOC_PD", false, 12));
    assert_eq!(command.body::<AllocPd>(), Ok(AllocPd { response: 1 }));
    assert_eq!(legacy(ALLOC_PD, &AllocPd { response: 1 }, &[], 12), ALLOC_PD_BYTES);
}

#[test]
fn headers_are_checked_in_order() {
    for len in 0..8 {
        assert_eq!(refusal(&ALLOC_PD_BYTES[..len]), Errno::EINVAL, "{len} bytes");
    }
    for bit in 8..31 {
        assert_eq!(refusal(&changed(0, &(3u32 | 1 << bit).to_le_bytes())), Errno::EINVAL, "reserved bit {bit}");
    }
    assert_eq!(refusal(&changed(0, &[47])), Errno::EINVAL, "unknown number");
    assert_eq!(admit(&ALLOC_PD_BYTES, MAINLINE, false).expect_err("refused"), Errno::EINVAL, "before GET_CONTEXT");
    assert_eq!(refusal(&changed(0, &[0])), Errno::EINVAL, "second GET_CONTEXT");
    assert!(admit(&changed(0, &[0]), MAINLINE, false).is_ok(), "first GET_CONTEXT");
    assert_eq!(refusal(&changed(0, &[15, 0, 0, 0, 9])), Errno::ENOSYS, "not supported comes before lengths");
    assert_eq!(refusal(&changed(0, &[22])), Errno::ENOSYS);
    assert_eq!(refusal(&changed(4, &[5])), Errno::EINVAL, "in_words too large");
    assert_eq!(refusal(&changed(4, &[3])), Errno::EINVAL, "in_words too small");
    assert_eq!(refusal(&changed(4, &[2, 0, 0, 0])[..8]), Errno::EINVAL, "short body comes before little room");
    assert_eq!(refusal(&changed(6, &[0])), Errno::ENOSPC);
    assert!(admit(&changed(6, &[1]), MAINLINE, true).is_ok(), "room for the fixed part is enough");
}

#[test]
fn profiles_number_differently() {
    let number = |number| changed(0, &[number]);
    assert_eq!(admit(&number(41), OFED, true).expect_err("refused"), Errno::EOPNOTSUPP);
    assert_eq!(admit(&number(41), MAINLINE, true).expect_err("refused"), Errno::EINVAL);
    assert_eq!(rows::find(39, false, OFED).map(|row| row.name), Some("CLOSE_XRC_DOMAIN"));
    assert_eq!(rows::find(39, false, MAINLINE).map(|row| row.name), Some("CREATE_XSRQ"));
    assert!(rows::find(46, false, MAINLINE).is_some() && rows::find(46, false, OFED).is_some());
}

#[test]
fn a_legacy_tail_is_not_looked_at() {
    let bytes = legacy(ALLOC_PD, &AllocPd { response: 1 }, &[1; 8], 12);
    let command = admit(&bytes, MAINLINE, true).expect("the header is good");
    assert_eq!(command.body::<AllocPd>(), Ok(AllocPd { response: 1 }));
    assert_eq!(command.body_and_tail::<AllocPd>().map(|(_, tail)| tail.len()), Ok(8));
}

#[test]
fn extended_headers_are_checked() {
    let good = extended(EX_QUERY_DEVICE, &ExQueryDevice::default(), 304, 0);
    assert_eq!(good[..24], [1, 0, 0, 0x80, 1, 0, 38, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert!(admit(&good, MAINLINE, true).is_ok());
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        refusal(&bytes)
    };
    assert_eq!(refusal(&good[..23]), Errno::EINVAL, "no room for the second header");
    assert_eq!(with(4, 2), Errno::EINVAL, "in_words");
    assert_eq!(with(16, 1), Errno::EINVAL, "provider_in_words");
    assert_eq!(with(20, 1), Errno::EINVAL, "reserved");
    assert_eq!(with(8, 0), Errno::EINVAL, "room without response");
    assert_eq!(with(6, 22), Errno::ENOSPC, "less than 184 bytes");
    assert_eq!(with(6, 0), Errno::EINVAL, "response without room");
    assert_eq!(with(0, 2), Errno::EINVAL, "unknown extended number");
}

#[test]
fn extended_bodies_grow_and_shrink() {
    let mut long = extended(EX_CREATE_QP, &ExCreateQp::default(), 40, 0);
    long[4] += 1;
    long.extend_from_slice(&[0; 8]);
    assert!(admit(&long, MAINLINE, true).and_then(|command| command.body::<ExCreateQp>()).is_ok());
    *long.last_mut().expect("not empty") = 1;
    let command = admit(&long, MAINLINE, true).expect("the header is good");
    assert_eq!(command.body::<ExCreateQp>(), Err(Errno::EOPNOTSUPP));

    let body = ExCreateQp { create_flags: 7, source_qpn: 9, ..ExCreateQp::default() };
    let mut short = extended(EX_CREATE_QP, &body, 40, 0);
    short.truncate(short.len() - 8);
    short[4] -= 1;
    let command = admit(&short, MAINLINE, true).expect("the oldest layout");
    assert_eq!(command.body::<ExCreateQp>(), Ok(ExCreateQp { create_flags: 7, ..ExCreateQp::default() }));
    short.truncate(short.len() - 8);
    short[4] -= 1;
    assert_eq!(refusal(&short), Errno::EINVAL, "shorter than the oldest layout");
}

#[test]
fn replies_are_cut_to_the_room() {
    let answer = AllocPdAnswer { pd_handle: 0x1122_3344 };
    let reply = |out_len| {
        let bytes = legacy(ALLOC_PD, &AllocPd { response: 1 }, &[], out_len);
        admit(&bytes, MAINLINE, true).expect("good").reply(answer.bytes(), &[9; 8])
    };
    assert_eq!(reply(4), [0x44, 0x33, 0x22, 0x11]);
    assert_eq!(reply(8), [0x44, 0x33, 0x22, 0x11, 9, 9, 9, 9]);
    assert_eq!(reply(400).len(), 12);

    let bytes = extended(EX_CREATE_CQ, &ExCreateCq::default(), 24, 8);
    let command = admit(&bytes, MAINLINE, true).expect("good");
    assert_eq!(command.response_length::<ExCreateCqAnswer>(), 16);
    assert_eq!(command.reply(&[1; 16], &[2; 16]), [[1; 16].as_slice(), &[0; 8], &[2; 8]].concat());
    assert_eq!(command.reply(&[1; 16], &[]).len(), 16);

    let bytes = extended(EX_QUERY_DEVICE, &ExQueryDevice::default(), 184, 0);
    let command = admit(&bytes, MAINLINE, true).expect("good");
    assert_eq!(command.response_length::<ExQueryDeviceAnswer>(), 184);
    assert_eq!(command.reply(ExQueryDeviceAnswer::default().bytes(), &[]).len(), 184);
}

#[test]
fn any_bytes_are_admitted_or_refused() {
    let mut state = 0x5eed_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut admitted = 0;
    for _ in 0..200_000 {
        let len = usize::try_from(next() % 40).expect("small");
        let mut bytes: Vec<u8> = (0..len).map(|_| next().to_le_bytes()[0] % 8).collect();
        // Mostly plausible headers: otherwise next to nothing would get past the first checks.
        if len >= 8 && next() % 8 != 0 {
            bytes[1..4].copy_from_slice(&[0, 0, if next() % 2 == 0 { 0 } else { 0x80 }]);
            bytes[5] = 0;
            bytes[4] = if bytes[3] == 0 { len / 4 } else { len.saturating_sub(24) / 8 }.to_le_bytes()[0];
            bytes[0] = next().to_le_bytes()[0] % 60;
        }
        let profile = if next() % 2 == 0 { MAINLINE } else { OFED };
        if let Ok(command) = admit(&bytes, profile, next() % 4 != 0) {
            admitted += 1;
            assert!(command.room() >= command.row.answer_min);
            assert!(command.body_and_tail::<AllocPd>().is_ok_and(|(_, tail)| tail.len() <= len));
            let limit = command.room() + command.provider_room;
            assert!(command.reply(&[0; 64], &[0; 64]).len() <= limit);
        }
    }
    assert!(admitted > 1_000, "only {admitted} commands were admitted: the test does not reach far");
}

/// Only a command with room for an answer says where the answer goes.
#[test]
fn either_room_counts_and_both_count_together() {
    for (core, provider, response) in [(0, 0, 0), (184, 0, 1), (0, 8, 1), (184, 8, 1)] {
        let bytes = extended(EX_QUERY_DEVICE, &ExQueryDevice::default(), core, provider);
        assert_eq!(bytes[8..16], u64::to_le_bytes(response), "room for {core} and {provider} bytes");
        assert_eq!(bytes[18], (provider / 8) as u8);
    }
    let equal = extended(EX_QUERY_DEVICE, &ExQueryDevice::default(), 184, 184);
    assert!(admit(&equal, MAINLINE, true).is_ok_and(|command| command.room() == 184 && command.provider_room == 184));
}
