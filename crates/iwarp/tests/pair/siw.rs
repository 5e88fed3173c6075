//! The work-arounds for Linux siw: what is held back, what is sent in addition, and what is
//! understood.

use super::*;

#[test]
fn a_first_fpdu_is_held_back_towards_siw() {
    let config = Config { quirks: Quirks::SIW, ..Config::default() };
    let (one, two) = pair_with(4, None, config);
    for (mut side, nudge) in [(one, Some(Quirks::SIW.nudge)), (two, None)] {
        post(&mut side, 1, write(0), b"x");
        let mut out = vec![0; side.stream.room()];
        let hold = Quirks::SIW.hold_first_fpdu;
        assert_eq!(side.stream.poll_timeout(), Some(hold));
        let early = hold - Duration::from_nanos(1);
        assert_eq!(side.stream.poll_transmit(early, &mut out, &mut side.ram), Transmit::Nothing);
        assert_eq!(side.stream.poll_transmit(hold, &mut out, &mut side.ram), Transmit::Bytes(24));
        assert_eq!(side.stream.poll_timeout(), nudge.map(|nudge| hold + nudge));
    }
}

/// siw may overlook the first FPDU, until more arrives.
#[test]
fn empty_writes_follow_the_first_fpdu_of_an_initiator_towards_siw() {
    let config = Config { quirks: Quirks::SIW, ..Config::default() };
    let (mut one, mut two) = pair_with(4, None, config);
    let mut out = vec![0; one.stream.room()];
    let mut due = Quirks::SIW.hold_first_fpdu;
    assert_eq!(one.stream.poll_transmit(due, &mut out, &mut one.ram), Transmit::Nothing);
    assert_eq!(one.stream.poll_timeout(), None, "nothing has been sent");
    post(&mut one, 1, write(0), b"x");
    assert_eq!(one.stream.poll_transmit(due, &mut out, &mut one.ram), Transmit::Bytes(24));
    two.receive(&out[..24]);
    for nth in 0..5 {
        due += Quirks::SIW.nudge * 4_u32.pow(nth);
        assert_eq!(one.stream.poll_timeout(), Some(due));
        let early = due - Duration::from_nanos(1);
        assert_eq!(one.stream.poll_transmit(early, &mut out, &mut one.ram), Transmit::Nothing);
        if nth == 1 {
            // A message of the program does as well.
            post(&mut one, 2, write(0), b"x");
            assert_eq!(one.stream.poll_transmit(due, &mut out, &mut one.ram), Transmit::Bytes(24));
        } else {
            // Without room it waits, and no time is due meanwhile.
            one.stream.handle_timeout(due);
            assert_eq!(one.stream.poll_timeout(), None);
            assert_eq!(one.stream.poll_transmit(due, &mut out, &mut one.ram), Transmit::Bytes(20));
            two.receive(&out[..20]);
            assert_eq!(two.stream.state(), State::Open, "it needs no memory");
        }
        assert_eq!(one.stream.poll_transmit(due, &mut out, &mut one.ram), Transmit::Nothing);
    }
    assert_eq!(one.stream.poll_timeout(), None);
}

#[test]
fn an_end_is_held_back_after_the_last_message_of_siw() {
    let config = Config { quirks: Quirks::SIW, ..Config::default() };
    let (mut one, mut two) = pair_with(4, None, config);
    let arrived = Duration::from_secs(1);
    two.ram.post_receive(1, 10);
    let hello = first(&untagged(0x41, 0x43, 0, 1, 0, b"hello"));
    two.stream.receive(arrived, &hello, &mut two.ram);
    assert_eq!(two.stream.poll_timeout(), None, "nothing ends yet");
    two.stream.close(arrived);
    let held = arrived + Quirks::SIW.hold_end;
    assert_eq!(two.stream.poll_timeout(), Some(held));
    let mut out = vec![0; two.stream.room()];
    let early = held - Duration::from_nanos(1);
    assert_eq!(two.stream.end_wait(early), Some(Duration::from_nanos(1)));
    assert_eq!(two.stream.poll_transmit(early, &mut out, &mut two.ram), Transmit::Nothing);
    two.stream.handle_timeout(held);
    assert_eq!(two.stream.poll_transmit(held, &mut out, &mut two.ram), Transmit::Finish);
    // A stream that has received nothing ends at once.
    one.stream.close(arrived);
    assert_eq!(one.stream.poll_transmit(arrived, &mut out, &mut one.ram), Transmit::Finish);
}

#[test]
fn iw_read_refused_is_found_although_siw_writes_its_length_in_place_of_the_msn() {
    // The READ of this MSN or length, from this offset, with the flags of each layout.
    let refusal = |first: [u8; 3], msn, size, from| {
        let repeated = untagged(0x41, 0x41, 1, msn, 0, &read_payload(size, REGION, BASE + from));
        let mut payload = [&first[..], &[0, 0, 0], &repeated].concat();
        payload[24..36].copy_from_slice(&[0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0x40]);
        common::first(&untagged(0x41, 0x47, 2, 1, 0, &payload))
    };
    let (siw, rfc) = ([0x10, 1, 0x07], [0x01, 1, 0xe0]);
    // The offsets of three READs of one byte, the refusal, and which one it means.
    for (offsets, refusal, means) in [
        ([0, 8192, 4], refusal(siw, 1, 1, 8192), 2),
        ([0, 4, 8192], refusal(siw, 1, 1, 8192), 3),
        ([8192, 8192, 0], refusal(siw, 1, 1, 8192), 1),
        ([8192, 8192, 0], refusal(rfc, 2, 1, 8192), 2),
        ([0, 4, 8], refusal(siw, 1, 1, 8192), 0),
    ] {
        let (mut one, _) = pair();
        for (work, offset) in (1..).zip(offsets) {
            post(&mut one, work, read(offset), &[0]);
        }
        one.transmit();
        one.receive(&refusal);
        let status = |work| if work == means { Status::RemoteAccess } else { Status::Flushed };
        assert_eq!(one.completions(), [1, 2, 3].map(|work| (work, status(work))), "{offsets:?}");
    }
}
