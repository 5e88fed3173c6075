//! Two streams with memory, queues and a wire between them, compared with the list of bytes that
//! went in.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const LIST: u64 = 0x1000;
const RING: u64 = 0x10_0000;

/// The payload of a posted transfer that is under way.
#[derive(Debug)]
enum Payload {
    Nothing,
    Bytes(Vec<u8>),
    Ring(Pieces),
}

struct Side {
    stream: Stream,
    outbox: Vec<u8>,
    inbox: Vec<u8>,
    list: [[u8; Target::SIZE]; ENTRIES],
    wire: VecDeque<(Transfer, Payload)>,
    completions: VecDeque<Result<Work, u32>>,
    receives: usize,
    /// The bytes that were sent and have not been read.
    oracle: VecDeque<u8>,
    counter: u8,
}

fn hello(sizes: Sizes) -> Hello {
    Hello {
        order: Order::Little,
        credits: sizes.receive_queue,
        iomap: 0,
        list: Target { address: LIST, key: 1, length: ENTRIES as u32 },
        buffer: Target { address: RING, key: 2, length: sizes.receive_ring },
    }
}

impl Side {
    fn new(own: Sizes, peer: Sizes) -> Self {
        let mut stream = Stream::new(own, &hello(peer));
        stream.set_ring(RING, 2);
        Self {
            stream,
            outbox: vec![0; own.send_ring as usize],
            inbox: vec![0; own.receive_ring as usize],
            list: [[0; Target::SIZE]; ENTRIES],
            wire: VecDeque::new(),
            completions: VecDeque::new(),
            receives: own.receive_queue.into(),
            oracle: VecDeque::new(),
            counter: 0,
        }
    }

    fn send(&mut self, wanted: u32, elsewhere: bool) -> u32 {
        let length = wanted.min(self.stream.room());
        if length == 0 {
            return 0;
        }
        let bytes: Vec<u8> =
            (0..length).map(|_| (self.counter = self.counter.wrapping_add(1), self.counter).1).collect();
        self.oracle.extend(&bytes);
        if elsewhere {
            let transfer = self.stream.send_from_elsewhere(length);
            self.wire.push_back((transfer, Payload::Bytes(bytes)));
        } else {
            let (transfer, pieces) = self.stream.send(length);
            let (offset, first) = (pieces.first.0 as usize, pieces.first.1 as usize);
            self.outbox[offset..offset + first].copy_from_slice(&bytes[..first]);
            self.outbox[..pieces.second as usize].copy_from_slice(&bytes[first..]);
            self.wire.push_back((transfer, Payload::Ring(pieces)));
        }
        length
    }

    fn poll(&mut self) {
        while let Some(completion) = self.completions.pop_front() {
            match completion {
                Ok(work) => self.stream.completed(work, true),
                Err(immediate) => {
                    self.stream.received(immediate).unwrap();
                    self.receives += 1;
                }
            }
        }
        while let Some(index) = self.stream.wanted_entry() {
            if self.stream.take_entry(Target::parse(&self.list[index], Order::Little)) {
                self.list[index] = [0; Target::SIZE];
            }
        }
        while let Some(grant) = self.stream.grant() {
            let payload = grant.entry.map_or(Payload::Nothing, |entry| Payload::Bytes(entry.to_vec()));
            self.wire.push_back((grant.transfer, payload));
        }
    }

    fn control(&mut self, control: Control) {
        let transfer = self.stream.control(control).unwrap();
        self.wire.push_back((transfer, Payload::Nothing));
    }
}

/// Carries one transfer, and returns whether one could be carried.
fn carry(from: &mut Side, to: &mut Side) -> bool {
    let Some((transfer, payload)) = from.wire.front() else { return false };
    if transfer.message.is_some() && to.receives == 0 {
        return false;
    }
    let bytes = match payload {
        Payload::Nothing => Vec::new(),
        Payload::Bytes(bytes) => bytes.clone(),
        Payload::Ring(pieces) => {
            let (offset, first) = (pieces.first.0 as usize, pieces.first.1 as usize);
            [&from.outbox[offset..offset + first], &from.outbox[..pieces.second as usize]].concat()
        }
    };
    if transfer.address >= RING {
        let at = (transfer.address - RING) as usize;
        to.inbox[at..at + bytes.len()].copy_from_slice(&bytes);
    } else if !bytes.is_empty() {
        let index = (transfer.address - LIST) as usize / Target::SIZE;
        assert_eq!(
            Target::parse(&to.list[index], Order::Little).length,
            0,
            "an entry is not written before it is taken"
        );
        to.list[index].copy_from_slice(&bytes);
    }
    if let Some(message) = transfer.message {
        to.receives -= 1;
        to.completions.push_back(Err(message.emit()));
    }
    from.completions.push_back(Ok(transfer.work));
    from.wire.pop_front();
    true
}

/// Reads up to `wanted` bytes that `from` has sent.
fn read(side: &mut Side, from: &mut Side, wanted: u32) -> u32 {
    let pieces = side.stream.inbox().pieces(0, wanted);
    let (offset, first) = (pieces.first.0 as usize, pieces.first.1 as usize);
    let bytes = [&side.inbox[offset..offset + first], &side.inbox[..pieces.second as usize]].concat();
    let expected: Vec<u8> = from.oracle.drain(..bytes.len()).collect();
    assert_eq!(bytes, expected);
    side.stream.consume(pieces.length());
    pieces.length()
}

fn sizes(send_ring: u32, receive_ring: u32, send_queue: u16, receive_queue: u16) -> Sizes {
    Sizes { send_ring, receive_ring, send_queue, receive_queue }
}

fn any_sizes() -> impl Strategy<Value = Sizes> {
    (2048_u32..9000, 2048_u32..9000, 16_u16..40, 16_u16..40)
        .prop_map(|(send, receive, sends, receives)| sizes(send, receive, sends, receives).fitted(u16::MAX))
}

#[derive(Debug, Clone)]
enum Step {
    Send { side: bool, length: u32, elsewhere: bool },
    Read { side: bool, length: u32 },
    Carry { side: bool },
    Poll { side: bool },
}

fn any_step() -> impl Strategy<Value = Step> {
    let side = any::<bool>;
    prop_oneof![
        (side(), 1_u32..5000, side()).prop_map(|(side, length, elsewhere)| Step::Send { side, length, elsewhere }),
        (side(), 1_u32..20, side()).prop_map(|(side, length, elsewhere)| Step::Send { side, length, elsewhere }),
        (side(), 1_u32..5000).prop_map(|(side, length)| Step::Read { side, length }),
        side().prop_map(|side| Step::Carry { side }),
        side().prop_map(|side| Step::Poll { side }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn every_byte_arrives_once_and_in_order(a in any_sizes(), b in any_sizes(), steps in prop::collection::vec(any_step(), 0..600)) {
        let mut left = Side::new(a, b);
        let mut right = Side::new(b, a);
        for step in steps {
            let (Step::Send { side, .. } | Step::Read { side, .. } | Step::Carry { side } | Step::Poll { side }) = step;
            let (one, other) = if side { (&mut left, &mut right) } else { (&mut right, &mut left) };
            match step {
                Step::Send { length, elsewhere, .. } => { one.send(length, elsewhere); }
                Step::Read { length, .. } => { read(one, other, length); }
                Step::Carry { .. } => { carry(one, other); }
                Step::Poll { .. } => one.poll(),
            }
        }
        settle(&mut left, &mut right);
        prop_assert!(left.oracle.is_empty() && right.oracle.is_empty());
        prop_assert!(left.stream.all_sent() && right.stream.all_sent());
        // The connection still works.
        prop_assert!(left.send(1, false) == 1 && right.send(1, false) == 1);
    }

    #[test]
    fn no_peer_makes_it_panic(sizes in any_sizes(), steps in prop::collection::vec((any::<u32>(), 0_u32..3000), 0..300)) {
        let mut side = Side::new(sizes, sizes);
        for (word, length) in steps {
            let ours = [Message::Data(length), Message::Credits(word as u16), Message::IomapUpdated(3)];
            let _ = side.stream.received(ours.get(word as usize % 4).map_or(word, |message| message.emit()));
            if side.stream.wanted_entry().is_some() {
                side.stream.take_entry(Target { address: word.into(), key: word, length });
            }
            let _ = (side.stream.grant(), side.send(length, false), side.stream.control(Control::Keepalive));
            side.stream.consume(length / 2);
            prop_assert!(side.stream.inbox().unread() <= sizes.receive_ring);
        }
    }
}

fn settle(left: &mut Side, right: &mut Side) {
    for _ in 0..10_000 {
        let mut moved = false;
        while carry(left, right) | carry(right, left) {
            moved = true;
        }
        left.poll();
        right.poll();
        moved |= read(left, right, u32::MAX) > 0;
        moved |= read(right, left, u32::MAX) > 0;
        left.poll();
        right.poll();
        moved |= !left.wire.is_empty() || !right.wire.is_empty();
        if !moved {
            return;
        }
    }
    panic!("it does not settle");
}

fn pair() -> (Side, Side) {
    let sizes = sizes(4096, 4096, 16, 16);
    (Side::new(sizes, sizes), Side::new(sizes, sizes))
}

#[test]
fn a_half_is_granted_when_it_has_been_read() {
    let (mut left, mut right) = pair();
    right.poll();
    assert!(right.wire.is_empty());
    assert_eq!((left.send(2000, true), left.send(4096, true), left.stream.room()), (2000, 2096, 0));
    while carry(&mut left, &mut right) {}
    right.poll();
    left.poll();
    read(&mut right, &mut left, 2047);
    right.poll();
    assert!(right.wire.is_empty());
    read(&mut right, &mut left, 1);
    right.poll();
    assert!(carry(&mut right, &mut left));
    left.poll();
    assert_eq!((left.stream.room(), left.send(4096, false), left.stream.room()), (2048, 2048, 0));
}

#[test]
fn more_messages_or_bytes_than_allowed_are_violations() {
    let (mut left, _) = pair();
    assert_eq!(left.stream.received(Message::Data(4097).emit()), Err(Violation::Bytes));
    assert_eq!(left.stream.end(), Some(End::Failed));
    let (mut left, _) = pair();
    for _ in 0..16 {
        left.stream.received(Message::Data(1).emit()).unwrap();
    }
    assert_eq!(left.stream.received(Message::Data(1).emit()), Err(Violation::Credits));
}

#[test]
fn one_side_finishes_then_the_other() {
    let (mut left, mut right) = pair();
    assert_eq!(left.send(5, false), 5);
    assert_eq!(left.stream.shut_down(false, true), Some(Control::Shutdown));
    assert_eq!(left.stream.shut_down(false, true), None);
    left.control(Control::Shutdown);
    settle(&mut left, &mut right);
    assert!(!right.stream.is_readable() && right.stream.is_writable() && right.stream.is_up());
    assert_eq!((left.stream.room(), right.send(3, true)), (0, 3));
    assert_eq!(right.stream.shut_down(false, true), Some(Control::Disconnect));
    right.control(Control::Disconnect);
    settle(&mut left, &mut right);
    assert_eq!((left.stream.end(), right.stream.end()), (Some(End::Closed), Some(End::Closed)));
    assert!(left.stream.all_sent() && right.stream.all_sent());
}

#[test]
fn a_peer_that_never_polls_has_receives_for_all_messages() {
    for queue in [16, 20] {
        let sizes = sizes(8192, 8192, queue, queue);
        let (mut left, mut right) = (Side::new(sizes, sizes), Side::new(sizes, sizes));
        left.stream.keep_margin();
        right.stream.keep_margin();
        // The right side sends as much as it may, and then polls no more.
        while right.send(1, true) == 1 {}
        while carry(&mut right, &mut left) {
            left.poll();
            read(&mut left, &mut right, 1);
            left.poll();
        }
        while left.send(1, true) == 1 {}
        left.control(Control::Shutdown);
        left.control(Control::Disconnect);
        while carry(&mut left, &mut right) {}
        assert!(left.wire.is_empty(), "{} receives", right.receives);
        // It goes on when the right side polls.
        settle(&mut left, &mut right);
        assert!(left.oracle.is_empty());
    }
}

#[test]
fn messages_flow_with_a_margin() {
    let sizes = sizes(4096, 4096, 16, 16);
    let (mut left, mut right) = (Side::new(sizes, sizes), Side::new(sizes, sizes));
    left.stream.keep_margin();
    for _ in 0..1000 {
        while left.send(3, true) == 3 {}
        settle(&mut left, &mut right);
    }
    assert!(left.oracle.is_empty() && left.stream.sent > 1000);
}

#[test]
fn data_received_before_a_disconnect_can_be_read() {
    let (mut left, mut right) = pair();
    left.send(100, false);
    assert_eq!(left.stream.shut_down(true, true), Some(Control::Disconnect));
    left.control(Control::Disconnect);
    while carry(&mut left, &mut right) {}
    right.poll();
    assert_eq!((right.stream.end(), right.stream.inbox().unread()), (Some(End::Closed), 100));
    assert_eq!(read(&mut right, &mut left, 200), 100);
    assert_eq!(right.stream.room(), 0);
}

#[test]
fn a_failed_completion_ends_it() {
    let (mut left, _) = pair();
    left.send(100, false);
    left.stream.completed(Work::Data { ring: 100 }, false);
    assert_eq!(left.stream.end(), Some(End::Failed));
    assert!(left.stream.all_sent());
}

#[test]
fn entries_of_an_io_map_are_written_behind_the_list() {
    let sizes = sizes(4096, 4096, 16, 16);
    let mut stream = Stream::new(sizes, &Hello { iomap: 2, ..hello(sizes) });
    let entry = Entry { offset: 7, target: Target { address: 0x5000, key: 9, length: 10 } };
    let (transfer, bytes) = stream.map(1, &entry).unwrap();
    assert_eq!((transfer.address, transfer.key), (LIST + 2 * 16 + 24, 1));
    assert_eq!(transfer.message, Some(Message::IomapUpdated(1)));
    assert_eq!(Entry::parse(&bytes, Order::Little), entry);
    assert_eq!(stream.map(2, &entry), None);
}

#[test]
fn waits_tell_how_much_of_the_send_ring_is_used() {
    use crate::window::LEAST;
    let sizes = sizes(4 * LEAST, 8 * LEAST, 64, 64);
    let mut left = Side::new(sizes, sizes);
    assert_eq!((left.stream.room(), left.send(LEAST, false)), (LEAST, LEAST));
    assert!(left.stream.room() == 0 && left.stream.lacks_ring());
    left.stream.waited(true);
    assert_eq!((left.stream.room(), left.stream.direct_room()), (LEAST, LEAST));
    left.stream.waited(true);
    assert_eq!(left.stream.room(), 3 * LEAST);
    // The program's size is the maximum.
    left.stream.waited(true);
    assert_eq!(left.stream.room(), 3 * LEAST);
    left.stream.waited(false);
    left.stream.waited(false);
    assert!(left.stream.lacks_ring());
}

#[test]
fn a_peer_without_room_is_no_lack_of_the_ring() {
    let mut left = Side::new(sizes(8192, 4096, 16, 16), sizes(4096, 4096, 16, 16));
    left.send(4096, false);
    assert!(left.stream.room() == 0 && !left.stream.lacks_ring());
}
