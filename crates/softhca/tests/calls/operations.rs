//! Every operation of every service through the safe API: the data that arrives, and the content of
//! the completions.

use std::time::Duration;

use crate::common::{Side, connect, next, sides};
use softhca::{Access, DatagramQp, Gid, Message, Operation, RemoteRegion, Status};

#[test]
fn messages_of_parts_with_a_number() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let (mut head, tail) = a.pd.buffer(64).expect("memory").split_at(16);
    head.fill(7);
    right.receive(5, b.pd.buffer(100).expect("memory").part(10..)).expect("posted");
    let message = Message::from(vec![head.into(), tail.part(..4)]).immediate(0x0102_0304).solicited();
    left.send(6, message).expect("posted");

    let came = next(&b.received);
    assert_eq!(
        (came.id(), came.operation(), came.status(), came.bytes()),
        (5, Operation::Receive, Status::Success, 20)
    );
    assert_eq!((came.immediate(), came.qp(), came.source()), (Some(0x0102_0304), right.number(), None));
    assert_eq!(came.data(), [[7; 16].as_slice(), &[0; 4]].concat());
    let whole = came.into_buffer();
    assert_eq!((whole.len(), whole[9], whole[10]), (100, 0, 7));

    let sent = next(&a.sent);
    assert_eq!((sent.id(), sent.operation(), sent.bytes(), sent.data().len()), (6, Operation::Send, 20, 0));
    let buffers = sent.into_buffers();
    assert_eq!(buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>(), [16, 48]);
    assert!(a.sent.poll().expect("polled").is_none());
}

#[test]
fn one_sided_operations() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let window = b.pd.expose(4096, Access::ALL).expect("memory");
    let there = RemoteRegion::from_bytes(&window.token().to_bytes());
    assert_eq!(there.to_string().parse::<RemoteRegion>().expect("its own text"), there);
    let done = || next(&a.sent).ok().expect("a success");

    let mut buffer = a.pd.buffer(100).expect("memory");
    buffer.fill(3);
    left.write(1, buffer, &there.part(8..).expect("inside")).expect("posted");
    let buffer = done().into_buffer();
    assert_eq!((window.to_vec(7..9), window.to_vec(107..109)), (vec![0, 3], vec![3, 0]));

    left.write_inline(2, b"inline", &there).expect("posted");
    assert_eq!(done().operation(), Operation::Write);
    let mut six = [0; 6];
    window.read(0, &mut six);
    assert_eq!(&six, b"inline");

    right.receive(9, b.pd.buffer(8).expect("memory")).expect("posted");
    left.write(3, Message::from(buffer.part(..50)).immediate(99), &there).expect("posted");
    let came = next(&b.received).ok().expect("a success");
    assert_eq!((came.operation(), came.immediate(), came.bytes()), (Operation::ReceiveWrite, Some(99), 50));
    assert!(came.data().is_empty(), "it is in the window");
    let buffer = done().into_buffer();

    window.write(200, b"read me");
    left.read(4, buffer.part(20..27), &there.part(200..).expect("inside")).expect("posted");
    let read = done();
    assert_eq!((read.operation(), read.data()), (Operation::Read, &b"read me"[..]));
    let buffer = read.into_buffer();

    window.store(64, 40);
    let word = there.part(64..72).expect("inside");
    left.fetch_add(5, buffer, &word, 2).expect("posted");
    let added = done();
    assert_eq!((added.word(), window.load(64)), (Some(40), 42));
    left.compare_swap(6, added.into_buffer(), &word, 42, 1).expect("posted");
    assert_eq!((done().word(), window.load(64)), (Some(42), 1));
    assert_eq!((window.fetch_add(64, 1), window.compare_swap(64, 2, 3), window.load(64)), (1, 2, 3));
}

#[test]
fn exposed_memory_is_sent_from_and_received_into_as_well() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.unreliable(&side.sent).receive_cq(&side.received));
    let (from, into) =
        (a.pd.expose(64, Access::READ).expect("memory"), b.pd.expose(64, Access::WRITE).expect("memory"));
    from.write(10, b"across");
    right.receive(1, into.part(30..)).expect("posted");
    left.send(2, from.part(10..16)).expect("posted");
    let came = next(&b.received).ok().expect("a success");
    assert_eq!((came.bytes(), into.to_vec(30..36).as_slice()), (6, &b"across"[..]));
    assert!(came.into_buffers().is_empty());
    assert!(next(&a.sent).ok().expect("a success").into_buffers().is_empty());
}

fn datagrams(side: &Side) -> DatagramQp {
    side.pd.datagrams(&side.sent).receive_cq(&side.received).build().expect("a QP")
}

#[test]
fn datagrams_say_where_they_come_from() {
    let (_fabric, a, b) = sides();
    let (left, right) = (datagrams(&a), datagrams(&b));
    let to_right = left.peer(&right.endpoint()).expect("an address");
    right.receive(1, b.pd.buffer(200).expect("memory").part(50..)).expect("posted");
    let mut buffer = a.pd.buffer(64).expect("memory");
    buffer[..5].copy_from_slice(b"hello");
    left.send(2, Message::from(buffer.part(..5)).immediate(1), &to_right).expect("posted");
    let came = next(&b.received).ok().expect("a success");
    assert_eq!((came.data(), came.bytes(), came.immediate()), (&b"hello"[..], 5, Some(1)));
    let source = came.source().expect("a datagram has one");
    assert_eq!(
        (source.qpn, source.gid, source.destination),
        (left.number(), left.endpoint().gid, right.endpoint().gid)
    );

    left.receive(3, a.pd.buffer(DatagramQp::HEADER).expect("memory")).expect("posted");
    right.send_inline(4, b"", &right.answer(&source).expect("an address"), Some(8)).expect("posted");
    let back = next(&a.received).ok().expect("a success");
    assert_eq!((back.data(), back.immediate()), (&b""[..], Some(8)));
}

#[test]
fn a_group_hears_what_is_sent_to_it() {
    let (_fabric, a, b) = sides();
    let (left, right) = (datagrams(&a), datagrams(&b));
    let group: Gid = "ff12::7".parse().expect("a GID");
    assert!(group.is_multicast() && left.join(left.endpoint().gid).is_err());
    right.join(group).expect("joined");
    right.join(group).expect("a second time is no error");
    right.receive(1, b.pd.buffer(100).expect("memory")).expect("posted");
    left.send_inline(2, b"all", &left.group(group).expect("an address"), None).expect("posted");
    let came = next(&b.received).ok().expect("a success");
    assert_eq!((came.data(), came.source().map(|source| source.destination)), (&b"all"[..], Some(group)));
    right.leave(group).expect("left");
    assert_eq!(right.leave(group).expect_err("not a member any more").errno(), 22);
    right.join(group).expect("joined");
    // A member that is dropped leaves by itself.
    drop(right);
}

#[test]
fn several_queue_pairs_take_from_one_queue() {
    let (_fabric, a, b) = sides();
    let srq = b.pd.srq(8).expect("an SRQ");
    let pairs: Vec<_> = (0..2)
        .map(|_| {
            let left = a.pd.reliable(&a.sent).build().expect("a QP");
            let right = b.pd.reliable(&b.sent).receive_cq(&b.received).srq(&srq).build().expect("a QP");
            let (to_left, to_right) = (left.endpoint(), right.endpoint());
            (left.connect(&to_right).expect("connected"), right.connect(&to_left).expect("connected"))
        })
        .collect();
    for (id, piece) in b.pd.buffer(64).expect("memory").pieces(16).into_iter().enumerate() {
        srq.receive(id as u64, piece).expect("posted");
    }
    srq.limit(3).expect("armed");
    for (number, (left, right)) in pairs.iter().enumerate() {
        left.send_inline(0, &[number as u8], None).expect("posted");
        let came = next(&b.received).ok().expect("a success");
        assert_eq!((came.id(), came.qp(), came.data()), (number as u64, right.number(), &[number as u8][..]));
        next(&a.sent).ok().expect("a success");
    }
    let event = b.context.wait_event_for(Duration::from_secs(20)).expect("no error").expect("an event");
    // The connection's own first event may come before.
    let event =
        if event.kind == softhca::EventKind::CommEst { b.context.wait_event().expect("an event") } else { event };
    assert_eq!((event.kind, event.about), (softhca::EventKind::SrqLimitReached, softhca::About::Srq(srq.number())));
    let refused = pairs[0].1.receive(0, b.pd.buffer(1).expect("memory")).expect_err("it has an SRQ");
    assert_eq!((refused.error.errno(), refused.buffers.len()), (22, 1));
}

#[test]
fn a_part_of_a_remote_region_is_inside_or_an_error() {
    let region = RemoteRegion { addr: 0x1000, rkey: 7, len: 100 };
    let part = |range: std::ops::Range<usize>| region.part(range);
    assert_eq!(part(10..30).expect("inside"), RemoteRegion { addr: 0x100a, rkey: 7, len: 20 });
    assert_eq!(part(100..100).expect("inside").len, 0);
    assert_eq!(region.part(..).expect("all of it"), region);
    assert_eq!(region.part(..=99).expect("all of it"), region);
    assert_eq!(region.part(90..).expect("the end").part(1..2).expect("inside").addr, 0x1000 + 91);
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let backwards = part(30..10);
    for outside in [part(0..101), part(101..101), backwards, part(usize::MAX..usize::MAX), region.part(..=usize::MAX)] {
        assert_eq!(outside.expect_err("outside").errno(), 22);
    }
    let error = region.part(64..=100).expect_err("one byte too many");
    assert_eq!(error.reason(), "the range 64..=100 is outside the remote region 0x1000+100@0x7");

    // A peer may claim any address: the sum never wraps.
    let claimed = RemoteRegion { addr: u64::MAX - 9, rkey: 7, len: u64::MAX };
    assert_eq!(claimed.part(2..10).expect("the last bytes").addr, u64::MAX - 7);
    assert!(claimed.part(2..11).is_err() && claimed.part(10..).is_err() && claimed.part(..).is_err());
}

#[test]
fn timers_and_mtus_are_checked_where_the_queue_pair_is_made() {
    use softhca::{Mtu, Retries, RnrRetries};
    let (_fabric, a, b) = sides();
    let port = a.context.port(1).expect("the port");
    assert!(port.mtu <= port.max_mtu);
    let slow = a.pd.reliable(&a.sent).min_rnr_timer(Duration::from_secs(1)).build().expect_err("too long");
    assert!(slow.to_string().contains("min_rnr_timer 1s: the maximum is 655.36ms"), "{slow}");
    let make = |side: &Side, mtu| {
        let qp = side.pd.reliable(&side.sent).receive_cq(&side.received).mtu(mtu);
        qp.rnr_retries(RnrRetries::NONE).retries(Retries::MOST).min_rnr_timer(Duration::ZERO).build().expect("a QP")
    };
    let (left, right) = (make(&a, Mtu::B256), make(&b, Mtu::B512));
    assert_eq!((left.endpoint().mtu, right.endpoint().mtu), (Mtu::B256, Mtu::B512));
    let (to_left, to_right) = (left.endpoint(), right.endpoint());
    let (left, _right) = (left.connect(&to_right).expect("connected"), right.connect(&to_left).expect("connected"));
    // The peer has no receive, and there are no retries.
    left.send_inline(1, b"x", None).expect("posted");
    assert_eq!(next(&a.sent).status(), Status::RnrRetryExcErr);
    if port.mtu < Mtu::B4096 {
        let long = a.pd.reliable(&a.sent).mtu(Mtu::B4096).build().expect_err("longer than the port takes");
        assert!(long.reason().contains("an MTU of 4096"), "{long}");
    }
}

#[test]
fn a_partition_that_the_port_does_not_have_is_refused() {
    let (_fabric, a, _) = sides();
    assert!(a.pd.reliable(&a.sent).partition(0).build().is_ok());
    let refused = a.pd.reliable(&a.sent).partition(1).build().err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|text| text.contains("has no P_Key index 1")), "{refused:?}");
}
