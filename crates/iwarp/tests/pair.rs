//! Two streams against each other: each operation, each way to end, and each mistake that a peer
//! can make, as literal segments.

mod common;
#[path = "pair/siw.rs"]
mod siw;

use common::{
    BASE, Host, NOW, REGION, SEND, exchange, first, ok, pair, pair_with, post, read, read_payload, tagged, untagged,
    write,
};
use softhca_iwarp::rdmap::Atomic;
use softhca_iwarp::{
    Close, Config, Event, Immediate, Operation, PostError, Quirks, Reason, Received, Request, Rtr, Side, Stag, State,
    Status, Transmit, fpdu,
};
use std::time::Duration;

#[test]
fn every_operation_arrives() {
    let (mut one, mut two) = pair();
    two.ram.post_receive(50, 5000);
    two.ram.post_receive(51, 10);
    two.ram.post_receive(52, 10);
    two.ram.post_receive(53, 10);
    two.ram.expose(0x2200, 0, vec![0; 8]);
    let data: Vec<u8> = (0..5000_u32).map(|byte| (byte * 7) as u8).collect();
    post(&mut one, 1, SEND, &data);
    post(&mut one, 2, write(100), &data);
    post(&mut one, 3, read(100), &[0; 5000]);
    let send = Operation::Send { invalidate: Some(Stag(0x2200)), solicited: true };
    post(&mut one, 4, send, b"hello");
    let immediate = Some(Immediate { data: *b"12345678", solicited: true });
    post(&mut one, 5, Operation::Write { stag: Stag(REGION), to: BASE, immediate }, b"with");
    post(&mut one, 6, Operation::Immediate(Immediate { data: [7; 8], solicited: false }), b"");
    let atomic = Atomic::FetchAdd { add: 2, boundaries: 0 };
    post(&mut one, 7, Operation::Atomic { target: Stag(REGION), target_to: BASE + 8, atomic }, &[0; 8]);
    post(&mut one, 8, Operation::Local, b"");
    let before = u64::from_ne_bytes([8, 9, 10, 11, 12, 13, 14, 15]);
    exchange(&mut one, &mut two);

    assert_eq!(one.completions(), ok(1..=8));
    assert_eq!((&one.ram.works[&3], &one.ram.executed), (&data, &vec![8]));
    assert_eq!(one.ram.works[&7], before.to_ne_bytes());
    let region = &two.ram.regions[&Stag(REGION)].bytes;
    assert_eq!((&region[..4], &region[100..5100]), (&b"with"[..], &data[..]));
    assert_eq!(region[8..16], (before + 2).to_ne_bytes());
    let receives = [(50, 5000, false, None, None), (51, 5, true, Some(Stag(0x2200)), None)];
    let immediates = [(52, 0, true, None, Some(*b"12345678")), (53, 0, false, None, Some([7; 8]))];
    let received = receives.into_iter().chain(immediates).map(|(receive, len, solicited, invalidated, immediate)| {
        Event::Received(Received { receive, len, solicited, invalidated, immediate })
    });
    let events: Vec<Event> = std::iter::once(Event::Ready).chain(received).collect();
    assert_eq!(two.events, events);
    assert_eq!(two.ram.receives[&50], data);
    assert!(!two.ram.regions.contains_key(&Stag(0x2200)));
}

#[test]
fn iw_first_a_responder_waits_for_the_first_fpdu() {
    let (mut one, mut two) = pair();
    one.ram.post_receive(1, 10);
    post(&mut two, 1, SEND, b"early");
    exchange(&mut one, &mut two);
    assert_eq!((two.completions(), two.stream.state()), (vec![], State::Waiting));
    post(&mut one, 2, write(0), b"");
    exchange(&mut one, &mut two);
    assert_eq!((two.completions(), two.events[0]), (ok([1]), Event::Ready));
    assert_eq!(&one.ram.receives[&1][..5], b"early");
}

#[test]
fn iw_rtr_is_seen_by_no_program() {
    for rtr in [Rtr::Send, Rtr::Write, Rtr::Read] {
        let (mut one, mut two) = pair_with(0, Some(rtr), Config::default());
        one.ram.post_receive(1, 10);
        two.ram.post_receive(2, 10);
        post(&mut two, 1, SEND, b"first");
        exchange(&mut one, &mut two);
        assert_eq!((one.completions(), two.completions()), (vec![], ok([1])), "{rtr:?}");
        post(&mut one, 2, SEND, b"reply");
        exchange(&mut one, &mut two);
        assert_eq!((one.completions(), &two.ram.receives[&2][..5]), (ok([2]), &b"reply"[..]), "{rtr:?}");
    }
}

#[test]
fn iw_order_a_write_behind_a_read_completes_behind_it() {
    let (mut one, mut two) = pair();
    post(&mut one, 1, read(0), &[0; 4000]);
    post(&mut one, 2, write(0), b"overtakes");
    one.transmit();
    assert_eq!(one.completions(), []);
    exchange(&mut one, &mut two);
    assert_eq!(one.completions(), ok([1, 2]));
}

#[test]
fn iw_fence_and_ord_hold_requests_back() {
    let (mut one, mut two) = pair_with(2, None, Config::default());
    for work in 1..=3 {
        post(&mut one, work, read(0), &[0; 8]);
    }
    one.transmit();
    assert_eq!(one.output.len(), 2 * fpdu::size(46), "two of three READs");
    exchange(&mut one, &mut two);
    assert_eq!(one.completions(), ok(1..=3));
    post(&mut one, 4, read(0), &[0; 8]);
    one.ram.works.insert(5, b"fenced".to_vec());
    one.stream.post(Request { work: 5, operation: write(0), len: 6, fence: true }).unwrap();
    one.transmit();
    assert_eq!(one.output.len(), fpdu::size(46));
    exchange(&mut one, &mut two);
    assert_eq!(one.completions(), ok(1..=5));
}

/// The opcodes of the FPDUs that a side has sent: 0 for a WRITE, 2 for a READ response.
fn sent(host: &Host) -> Vec<u8> {
    let mut receiver = fpdu::Receiver::new(true, false);
    let (mut bytes, mut order) = (&host.output[..], Vec::new());
    while let Some(segment) = receiver.next(&mut bytes).expect("a good FPDU") {
        order.push(segment[1] & 15);
    }
    order
}

/// A side with READs of a peer that it has not answered.
fn asked(len: usize, reads: u64) -> Host {
    let (mut one, mut two) = pair();
    post(&mut one, 1, write(0), b"ready");
    (1..=reads).for_each(|work| post(&mut one, 1 + work, read(0), &vec![0; len]));
    one.transmit();
    two.receive(&one.output);
    two
}

#[test]
fn iw_whole_a_message_begins_when_the_one_before_has_ended() {
    let mut answers = asked(3000, 1);
    assert!(answers.transmit_once());
    post(&mut answers, 1, write(0), &[0; 3000]);
    answers.transmit();
    assert_eq!(sent(&answers), [2, 2, 2, 0, 0, 0]);

    let (mut one, mut two) = pair();
    post(&mut one, 1, write(0), b"ready");
    exchange(&mut one, &mut two);
    post(&mut two, 1, write(0), &[0; 3000]);
    assert!(two.transmit_once());
    post(&mut one, 2, read(0), &[0; 3000]);
    one.transmit();
    two.receive(&std::mem::take(&mut one.output));
    two.transmit();
    assert_eq!(sent(&two), [0, 0, 0, 2, 2, 2]);
}

#[test]
fn messages_and_responses_take_turns() {
    let mut both = asked(8, 3);
    (1..=3).for_each(|work| post(&mut both, work, write(0), b"a message"));
    both.transmit();
    let order = sent(&both);
    assert!(order == [0, 2, 0, 2, 0, 2] || order == [2, 0, 2, 0, 2, 0], "{order:?}");
}

#[test]
fn posts_are_refused_when_they_cannot_be_sent() {
    let (mut one, _) = pair_with(0, None, Config { depth: 1, ..Config::default() });
    let request = |operation| Request { work: 1, operation, len: 0, fence: false };
    assert_eq!(one.stream.post(request(read(0))), Err(PostError::NoReads));
    assert_eq!(one.stream.post(request(SEND)), Ok(()));
    assert_eq!(one.stream.post(request(SEND)), Err(PostError::Full));
    one.stream.abort();
    assert_eq!(one.stream.post(request(SEND)), Err(PostError::Closed));
    // The ready-to-receive message takes no place of the queue.
    let (mut one, _) = pair_with(1, Some(Rtr::Send), Config { depth: 1, ..Config::default() });
    assert_eq!(one.stream.post(request(SEND)), Ok(()));
    assert_eq!(one.stream.post(request(SEND)), Err(PostError::Full));
}

#[test]
fn iw_close_a_graceful_one_ends_both_sides() {
    let (mut one, mut two) = pair();
    post(&mut one, 1, write(0), b"x");
    exchange(&mut one, &mut two);
    one.stream.close(NOW);
    assert_eq!(one.stream.state(), State::Closing);
    exchange(&mut one, &mut two);
    assert_eq!((one.closed(), two.closed()), (Some(Close::Graceful), Some(Close::Graceful)));
    assert!(one.finished && two.finished && !one.reset && !two.reset);
}

#[test]
fn iw_close_responses_are_sent_before_the_end() {
    let (mut one, mut two) = pair();
    post(&mut one, 1, read(0), &[0; 4000]);
    one.transmit();
    two.receive(&std::mem::take(&mut one.output));
    two.stream.close(NOW);
    exchange(&mut one, &mut two);
    assert_eq!(
        (one.completions(), one.closed(), two.closed()),
        (ok([1]), Some(Close::Graceful), Some(Close::Graceful))
    );
}

#[test]
fn a_close_with_work_left_aborts() {
    let (mut one, mut two) = pair();
    post(&mut one, 1, read(0), &[0; 4000]);
    one.transmit();
    one.stream.close(NOW);
    exchange(&mut one, &mut two);
    assert_eq!((one.completions(), one.closed()), (vec![(1, Status::Flushed)], Some(Close::Aborted)));
    assert_eq!((one.reset, two.closed()), (true, Some(Close::Lost)));
}

#[test]
fn iw_lost_an_end_while_work_is_outstanding() {
    let (mut one, _) = pair();
    post(&mut one, 1, read(0), &[0; 8]);
    one.transmit();
    one.receive_end();
    assert_eq!((one.completions(), one.closed()), (vec![(1, Status::Flushed)], Some(Close::Lost)));
}

#[test]
fn iw_lost_an_end_inside_of_a_message() {
    let (_, mut two) = pair();
    two.ram.post_receive(1, 100);
    two.receive(&first(&untagged(0x41, 0x43, 0, 1, 0, b"hello"))[..20]);
    two.receive_end();
    assert_eq!(two.closed(), Some(Close::Lost));

    let (_, mut two) = pair();
    two.ram.post_receive(1, 100);
    two.receive(&first(&untagged(0x01, 0x43, 0, 1, 0, b"hello")));
    two.receive_end();
    let failed = Event::ReceiveFailed { receive: 1, status: Status::Flushed };
    assert_eq!(two.events, [Event::Ready, failed, Event::Closed(Close::Lost)]);
}

#[test]
fn a_peer_that_does_not_close_is_reset_in_time() {
    let (mut one, _) = pair();
    one.stream.close(Duration::from_secs(1));
    one.transmit();
    assert_eq!(one.stream.poll_timeout(), Some(Duration::from_secs(6)));
    one.stream.handle_timeout(Duration::from_secs(5));
    assert_eq!(one.stream.state(), State::Closing);
    one.stream.handle_timeout(Duration::from_secs(6));
    one.transmit();
    assert_eq!((one.closed(), one.reset), (Some(Close::TimedOut), true));
}

#[test]
fn a_peer_that_never_stops_sending_does_not_hold_the_end_back_forever() {
    let config = Config { quirks: Quirks::SIW, ..Config::default() };
    let (_, mut two) = pair_with(4, None, config);
    two.stream.close(NOW);
    let mut sender = fpdu::Sender::new(true, false);
    let mut out = vec![0; two.stream.room()];
    for millis in 0.. {
        let now = Duration::from_millis(millis);
        let write = tagged(0x40, REGION, BASE, b"more");
        let mut more = vec![0; sender.room(write.len())];
        let len = sender.frame(&mut more, &write, 0, |_, _, _| Ok::<_, ()>(false)).expect("nothing is fetched");
        two.stream.receive(now, &more[..len], &mut two.ram);
        two.stream.handle_timeout(now);
        if two.stream.poll_transmit(now, &mut out, &mut two.ram) == Transmit::Finish {
            assert_eq!(now, 10 * Quirks::SIW.hold_end);
            return;
        }
        assert_eq!(two.stream.state(), State::Closing, "at {now:?}");
    }
}

#[test]
fn a_short_buffer_is_refused() {
    let (mut one, _) = pair();
    post(&mut one, 1, write(0), b"x");
    let mut out = vec![0; one.stream.room() - 1];
    assert_eq!(one.stream.poll_transmit(NOW, &mut out, &mut one.ram), Transmit::Full);
}

/// What the responder says to one bad segment: the reason, and whether the message repeats it.
fn refused(segment: &[u8]) -> (Reason, bool) {
    let (_, mut two) = pair();
    two.ram.post_receive(1, 16);
    two.ram.regions.entry(Stag(0x3300)).or_default();
    two.receive(&first(segment));
    assert_eq!(two.stream.state(), State::Terminate, "{segment:x?}");
    let terminated = two.events.iter().find_map(|event| match event {
        Event::Terminated { by: Side::Us, terminate } => Some(*terminate),
        _ => None,
    });
    let terminate = terminated.expect("a Terminate message");
    two.transmit();
    assert!(
        two.finished
            && two.output[3] == 0x47
            && two.output[20] == {
                let (layer, kind, _) = terminate.reason.numbers();
                layer << 4 | kind
            }
    );
    two.receive_end();
    assert_eq!(two.closed(), Some(Close::Terminated));
    (terminate.reason, terminate.failed.is_some())
}

#[test]
fn iw_terminate_each_mistake_of_a_peer_has_its_reason() {
    let request = |first, offset, payload: &[u8]| untagged(first, 0x41, 1, 1, offset, payload);
    let cases = [
        (untagged(0x42, 0x43, 0, 1, 0, b""), Reason::UntaggedVersion, true),
        (vec![0xc0, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Reason::TaggedVersion, true),
        (untagged(0x41, 0x03, 0, 1, 0, b""), Reason::RdmapVersion, true),
        (untagged(0x41, 0x4c, 0, 1, 0, b""), Reason::RdmapOpcode, true),
        (untagged(0x41, 0x43, 5, 1, 0, b""), Reason::UntaggedQueue, true),
        (untagged(0x41, 0x43, 1, 1, 0, b""), Reason::RdmapOpcode, true),
        (untagged(0x41, 0x40, 0, 1, 0, b""), Reason::RdmapOpcode, true),
        (tagged(0x43, REGION, BASE, b""), Reason::RdmapOpcode, true),
        (untagged(0x41, 0x43, 0, 9, 0, b""), Reason::UntaggedMsn, true),
        (untagged(0x41, 0x43, 0, 1, 8, b""), Reason::UntaggedOffset, true),
        (untagged(0x41, 0x43, 0, 1, 0, &[0; 17]), Reason::UntaggedTooLong, true),
        (untagged(0x41, 0x44, 0, 1, 0, b""), Reason::ProtectionStag, true),
        (untagged(0x41, 0x48, 0, 1, 0, &[0; 9]), Reason::UntaggedTooLong, true),
        (untagged(0x41, 0x48, 0, 1, 0, &[0; 7]), Reason::RdmapUnspecified, true),
        (tagged(0x40, 0x9999, BASE, b"x"), Reason::TaggedStag, true),
        (tagged(0x40, REGION, BASE + 8191, b"xx"), Reason::TaggedBounds, true),
        (tagged(0x40, REGION, u64::MAX, b"x"), Reason::TaggedWrap, true),
        (tagged(0x42, REGION, BASE, b"x"), Reason::TaggedStag, true),
        (request(0x41, 0, &read_payload(8, 0x9999, BASE)), Reason::ProtectionStag, true),
        (request(0x41, 0, &read_payload(8, REGION, BASE + 8188)), Reason::ProtectionBounds, true),
        (request(0x41, 0, &read_payload(8, 0x3300, 0)), Reason::ProtectionBounds, true),
        (request(0x41, 0, &read_payload(8, REGION, u64::MAX - 3)), Reason::ProtectionWrap, true),
        (request(0x41, 4, &read_payload(8, REGION, BASE)), Reason::UntaggedOffset, true),
        (request(0x01, 0, &read_payload(8, REGION, BASE)), Reason::UntaggedTooLong, true),
        (request(0x41, 0, &[0; 27]), Reason::RdmapUnspecified, true),
        (untagged(0x41, 0x41, 1, 2, 0, &read_payload(8, REGION, BASE)), Reason::UntaggedMsn, true),
        (untagged(0x41, 0x4b, 3, 1, 0, &[0; 12]), Reason::UntaggedNoBuffer, true),
        (untagged(0x41, 0x47, 2, 1, 0, &[0; 3]), Reason::RdmapCatastrophic, true),
        (vec![0x41], Reason::DdpCatastrophic, false),
    ];
    for (segment, reason, repeats) in cases {
        assert_eq!(refused(&segment), (reason, repeats), "{segment:x?}");
    }
}

#[test]
fn iw_no_receive_a_send_ends_the_stream() {
    let (mut one, mut two) = pair();
    post(&mut one, 1, SEND, b"hello");
    exchange(&mut one, &mut two);
    assert_eq!(one.completions(), ok([1]), "its data was sent");
    let says = "DDP, untagged buffer: no receive is posted for the message (1/2/0x2), for a segment of 23 bytes of a SEND \
                with MSN 1";
    assert!(matches!(one.events[1], Event::Terminated { by: Side::Peer, terminate } if terminate.to_string() == says));
    assert_eq!((one.closed(), two.closed()), (Some(Close::Terminated), Some(Close::Terminated)));
}

#[test]
fn iw_crc_a_wrong_one_ends_the_stream_and_delivers_nothing() {
    let (_, mut two) = pair();
    two.ram.post_receive(1, 16);
    let mut bytes = first(&untagged(0x41, 0x43, 0, 1, 0, b"hello"));
    bytes[22] ^= 1;
    two.receive(&bytes);
    assert!(
        matches!(two.events[..], [Event::Terminated { by: Side::Us, terminate }] if terminate.reason == Reason::MpaCrc)
    );
    assert_eq!(two.ram.receives[&1], [0; 16]);
}

#[test]
fn iw_ird_more_reads_end_the_stream() {
    let (_, mut two) = pair();
    for msn in 1..=5 {
        assert_ne!(two.stream.state(), State::Terminate);
        two.receive(&first(&untagged(0x41, 0x41, 1, msn, 0, &read_payload(8, REGION, BASE))));
    }
    assert!(
        matches!(two.events[..], [Event::Ready, Event::Terminated { terminate, .. }] if terminate.reason == Reason::RdmapStream)
    );
}

#[test]
fn iw_read_refused_gets_the_reason_as_its_status() {
    let (mut one, mut two) = pair();
    post(&mut one, 1, write(0), b"done");
    post(&mut one, 2, read(0), &[0; 8]);
    post(&mut one, 3, read(8190), &[0; 8]);
    post(&mut one, 4, read(0), &[0; 8]);
    exchange(&mut one, &mut two);
    let statuses = [(1, Status::Success), (2, Status::Success), (3, Status::RemoteAccess), (4, Status::Flushed)];
    assert_eq!(one.completions(), statuses);
    assert_eq!((one.closed(), two.closed()), (Some(Close::Terminated), Some(Close::Terminated)));
}

#[test]
fn iw_read_refused_lets_earlier_responses_go_first_and_takes_nothing_behind_it() {
    let (mut one, mut two) = pair();
    two.ram.post_receive(1, 16);
    post(&mut one, 1, read(0), &[0; 4000]);
    post(&mut one, 2, read(8190), &[0; 8]);
    post(&mut one, 3, write(0), b"late");
    post(&mut one, 4, SEND, b"late");
    one.transmit();
    two.receive(&std::mem::take(&mut one.output));
    assert_eq!((two.stream.state(), &two.events[..]), (State::Open, &[Event::Ready][..]));
    exchange(&mut one, &mut two);
    let statuses = [(1, Status::Success), (2, Status::RemoteAccess), (3, Status::Flushed), (4, Status::Flushed)];
    assert_eq!(one.completions(), statuses);
    assert_eq!(two.ram.regions[&Stag(REGION)].bytes[..4], [0, 1, 2, 3]);
    assert_eq!((two.ram.posted.len(), two.closed()), (1, Some(Close::Terminated)));
}

/// The other receive requests are flushed when the program gets the event of the Terminate message.
#[test]
fn a_message_that_has_begun_fails_before_the_end_is_told() {
    let (_, mut two) = pair();
    two.ram.post_receive(1, 100);
    two.receive(&first(&untagged(0x01, 0x43, 0, 1, 0, b"hello")));
    two.receive(&first(&untagged(0x41, 0x43, 0, 9, 5, b"more")));
    let at = |is: fn(&Event) -> bool| two.events.iter().position(is).expect("both");
    let failed = at(|event| matches!(event, Event::ReceiveFailed { receive: 1, .. }));
    assert!(failed < at(|event| matches!(event, Event::Terminated { .. })), "{:?}", two.events);
}

/// A READ that waits for its response, and behind it one that is refused.
fn refused_behind_a_response() -> (Host, Host) {
    let (mut one, mut two) = pair();
    post(&mut one, 1, read(0), &[0; 4000]);
    post(&mut one, 2, read(8190), &[0; 8]);
    one.transmit();
    two.receive(&std::mem::take(&mut one.output));
    assert_eq!(two.stream.state(), State::Open);
    (one, two)
}

#[test]
fn iw_read_refused_is_told_if_the_peer_closes_before_its_responses() {
    let (_one, mut two) = refused_behind_a_response();
    two.receive_end();
    assert!(two.events.iter().any(|event| matches!(event, Event::Terminated { by: Side::Us, .. })));
    assert_eq!(two.closed(), Some(Close::Terminated));
}

#[test]
fn iw_read_refused_ends_the_stream_if_the_peer_does_not_read() {
    let (_one, mut two) = refused_behind_a_response();
    let until = two.stream.poll_timeout().expect("there is a limit");
    two.stream.handle_timeout(until);
    two.receive(&[]);
    assert_eq!(two.closed(), Some(Close::TimedOut));
}

#[test]
fn memory_that_goes_away_during_a_read_ends_it() {
    let (mut one, mut two) = pair();
    post(&mut one, 1, read(0), &[0; 8000]);
    one.transmit();
    two.receive(&std::mem::take(&mut one.output));
    assert!(two.transmit_once());
    two.ram.regions.clear();
    exchange(&mut one, &mut two);
    assert_eq!(one.completions(), [(1, Status::RemoteAccess)]);
}

#[test]
fn a_buffer_that_is_not_there_ends_its_request_and_the_stream() {
    let (mut one, mut two) = pair();
    one.stream.post(Request { work: 1, operation: write(0), len: 5, fence: false }).expect("the stream takes it");
    post(&mut one, 2, write(0), b"after");
    exchange(&mut one, &mut two);
    assert_eq!(one.completions(), [(1, Status::LocalProtection), (2, Status::Flushed)]);
    assert!(matches!(two.events[1], Event::Terminated { by: Side::Peer, .. }));
    assert_eq!((one.closed(), two.closed()), (Some(Close::Terminated), Some(Close::Terminated)));
}

#[test]
fn responses_that_were_not_asked_for_are_refused() {
    let response = |to, len| first(&tagged(0x42, 9, to, &vec![1; len]));
    for (bytes, reason) in [
        (response(0x40, 9), Reason::TaggedBounds),
        (response(0x41, 8), Reason::TaggedBounds),
        (response(0x40, 7), Reason::RdmapUnspecified),
        (first(&tagged(0x42, 8, 0x40, &[1; 8])), Reason::TaggedStag),
    ] {
        let (mut one, _) = pair();
        post(&mut one, 1, read(0), &[0; 8]);
        one.transmit();
        one.receive(&bytes);
        assert!(matches!(one.events[0], Event::Terminated { terminate, .. } if terminate.reason == reason), "{reason}");
        assert_eq!((one.completions(), &one.ram.works[&1][..]), (vec![(1, Status::Flushed)], &[0; 8][..]));
    }
}

/// The reasons of the Terminate messages that a host has sent or got.
fn reasons(host: &Host) -> Vec<Reason> {
    let reason = |event: &Event| match event {
        Event::Terminated { terminate, .. } => Some(terminate.reason),
        _ => None,
    };
    host.events.iter().filter_map(reason).collect()
}

#[test]
fn iw_terminate_another_opcode_inside_of_a_send_is_refused() {
    // With Solicited Event, with Invalidate, and immediate data whose length fits.
    for (opcode, data) in [(0x45, &b"llo"[..]), (0x44, b"llo"), (0x48, &[7; 8]), (0x49, &[7; 8])] {
        let (_, mut two) = pair();
        two.ram.post_receive(1, 16);
        two.ram.post_receive(2, 16);
        two.receive(&first(&untagged(0x01, 0x43, 0, 1, 0, b"he")));
        let offset = if data.len() == 8 { 0 } else { 2 };
        two.receive(&first(&untagged(0x41, opcode, 0, 1, offset, data)));
        assert_eq!(reasons(&two), [Reason::RdmapOpcode], "{opcode:#x}");
        let failed = Event::ReceiveFailed { receive: 1, status: Status::General };
        assert!(two.events.contains(&failed), "{opcode:#x}: {:?}", two.events);
        assert_eq!(two.ram.posted.len(), 1, "{opcode:#x} takes no other receive request");
    }
}

#[test]
fn iw_rtr_a_send_with_data_is_an_ordinary_one() {
    let rtr = || pair_with(4, Some(Rtr::Send), Config::default()).1;
    let received =
        |receive, len| Event::Received(Received { receive, len, solicited: false, invalidated: None, immediate: None });
    let whole = first(&untagged(0x41, 0x43, 0, 1, 0, b"hello"));
    let empty = first(&untagged(0x41, 0x43, 0, 2, 0, b""));
    let mut two = rtr();
    two.ram.post_receive(1, 16);
    two.ram.post_receive(2, 16);
    two.receive(&whole);
    two.receive(&empty);
    assert_eq!(two.events, [received(1, 5), Event::Ready, received(2, 0)]);
    assert_eq!(&two.ram.receives[&1][..5], b"hello");
    // A segment without data that is not the last one of its message.
    let mut two = rtr();
    two.ram.post_receive(1, 16);
    two.receive(&first(&untagged(0x01, 0x43, 0, 1, 0, b"")));
    two.receive(&whole);
    assert_eq!(two.events, [Event::Ready, received(1, 5)]);
    // Only one message is skipped.
    let mut two = rtr();
    two.ram.post_receive(1, 16);
    two.receive(&first(&untagged(0x41, 0x43, 0, 1, 0, b"")));
    two.receive(&empty);
    assert_eq!(two.events, [Event::Ready, received(1, 0)]);
}

#[test]
fn iw_close_a_read_that_arrives_behind_the_own_end_resets() {
    let request = first(&untagged(0x41, 0x41, 1, 1, 0, &read_payload(8, REGION, BASE)));
    let (_, mut two) = pair();
    two.stream.close(NOW);
    // Before the end is sent, the request is served.
    two.receive(&request);
    assert_eq!(two.stream.state(), State::Closing);
    two.transmit();
    assert!(two.finished && !two.output.is_empty());
    two.receive(&first(&untagged(0x41, 0x41, 1, 2, 0, &read_payload(8, REGION, BASE))));
    two.transmit();
    assert_eq!((two.closed(), two.reset), (Some(Close::Lost), true));
    // A WRITE needs no answer, so it is placed.
    let (_, mut two) = pair();
    two.stream.close(NOW);
    two.transmit();
    two.receive(&first(&tagged(0x40, REGION, BASE, b"late")));
    two.receive_end();
    assert_eq!((two.closed(), &two.ram.regions[&Stag(REGION)].bytes[..4]), (Some(Close::Graceful), &b"late"[..]));
}
