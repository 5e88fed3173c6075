//! Memory that the program brings: registered without a copy, and given back when nobody else can
//! access it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{connect, next, sides};
use softhca::{Access, Kept, Mapping, Memory, Status};

#[test]
fn vectors_boxes_and_mappings_travel_and_come_back_where_they_were() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let mut words = Vec::with_capacity(1000);
    words.extend_from_slice(b"a vector of words");
    let (address, length) = (words.as_ptr().addr(), words.len());
    let boxed = vec![0_u8; 64].into_boxed_slice();
    let boxed_address = boxed.as_ptr().addr();
    let mut mapping = Mapping::anonymous(10_000).expect("a mapping");
    mapping[9_999] = 7;
    let mapping_address = mapping.as_ptr().addr();

    right.receive(1, b.pd.register(boxed).expect("registered")).expect("posted");
    right.receive(2, b.pd.register(mapping).expect("registered")).expect("posted");
    left.send(3, a.pd.register(words).expect("registered")).expect("posted");
    let words: Vec<u8> = next(&a.sent).ok().expect("a success").into_buffer().into_inner().expect("given back");
    assert_eq!((words.as_ptr().addr(), words.len(), words.capacity()), (address, length, 1000));
    left.send(4, a.pd.register(words).expect("registered again").part(2..)).expect("posted");
    next(&a.sent).ok().expect("a success");

    let boxed: Box<[u8]> = next(&b.received).ok().expect("a success").into_buffer().into_inner().expect("given back");
    assert_eq!((boxed.as_ptr().addr(), &boxed[..length]), (boxed_address, &b"a vector of words"[..]));
    let came = next(&b.received).ok().expect("a success");
    assert_eq!(came.data(), b"vector of words");
    let mapping: Mapping = came.into_buffer().into_inner().expect("given back");
    assert_eq!((mapping.as_ptr().addr(), &mapping[..6], mapping[9_999]), (mapping_address, &b"vector"[..], 7));
}

#[test]
fn exposed_memory_is_out_of_reach_for_peers_when_it_is_given_back() {
    let (_fabric, a, b) = sides();
    let window = b.pd.expose_memory(vec![1_u8; 4096], Access::ALL).expect("registered");
    let there = window.token();
    let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    left.write_inline(1, b"written", &there.part(8..).expect("inside")).expect("posted");
    next(&a.sent).ok().expect("a success");
    let mut memory: Vec<u8> = window.into_inner().expect("given back");
    assert_eq!((memory[7], &memory[8..15]), (1, &b"written"[..]));
    memory.fill(2);
    left.write_inline(2, b"too late", &there).expect("posted");
    assert_eq!(next(&a.sent).status(), Status::RemAccessErr);
    assert_eq!(memory, [2; 4096]);
}

#[test]
fn memory_taken_back_is_no_longer_written_by_a_peer() {
    let (_fabric, a, b) = sides();
    for round in 0..20_u8 {
        let window = b.pd.expose_memory(vec![0_u8; 1 << 16], Access::WRITE).expect("registered");
        let there = window.token();
        let (left, _right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
        let written = AtomicUsize::new(0);
        std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                let mut source = a.pd.buffer(1 << 16).expect("memory");
                loop {
                    let value = source[0].wrapping_add(1);
                    source.fill(value);
                    left.write(1, source, &there).expect("posted");
                    let done = next(&a.sent);
                    written.fetch_add(1, Ordering::Relaxed);
                    match done.status() {
                        Status::Success => source = done.into_buffer(),
                        status => break assert_eq!(status, Status::RemAccessErr),
                    }
                }
            });
            while written.load(Ordering::Relaxed) < usize::from(round) {
                std::thread::yield_now();
            }
            let memory: Vec<u8> = window.into_inner().expect("given back");
            let before = memory.clone();
            writer.join().expect("no panic");
            assert!(memory == before, "somebody has written after it was given back");
        });
    }
}

#[test]
fn memory_in_use_stays_registered_and_comes_back_with_the_reason() {
    let (_fabric, a, b) = sides();
    let (left, right) = connect(&a, &b, |side| side.pd.reliable(&side.sent).receive_cq(&side.received));
    let (front, back) = a.pd.register(vec![3_u8; 100]).expect("registered").split_at(40);
    let kept = front.into_inner::<Vec<u8>>().expect_err("the other piece exists");
    assert_eq!((kept.error.errno(), &kept.memory[..]), (16, &[3; 40][..]));
    assert_eq!(format!("{kept:?}"), kept.error.to_string());
    drop(kept.memory);
    let other = back.into_inner::<Box<[u8]>>().expect_err("another type");
    assert!(other.error.reason().contains("not of type alloc::boxed::Box<[u8]>"), "{other}");
    assert_eq!(other.memory.into_inner::<Vec<u8>>().expect("all of it"), [3; 100]);
    assert_eq!(a.pd.buffer(8).expect("memory").into_inner::<Vec<u8>>().expect_err("it was none").error.errno(), 22);

    let window = b.pd.expose_memory(vec![0_u8; 64], Access::WRITE).expect("registered");
    right.receive(1, window.part(..)).expect("posted");
    let window = window.into_inner::<Vec<u8>>().expect_err("a receive waits for it").memory;
    left.send_inline(2, b"it came", None).expect("posted");
    next(&b.received).ok().expect("a success");
    let clone = window.clone();
    let window = window.into_inner::<Vec<u8>>().expect_err("there is a clone").memory;
    drop(clone);
    assert_eq!(&window.into_inner::<Vec<u8>>().expect("given back")[..7], b"it came");
}

#[test]
fn memory_that_is_not_registered_comes_back() {
    let (fabric, a, _b) = sides();
    let none = a.pd.register(Vec::with_capacity(10)).expect_err("no bytes");
    assert_eq!((none.error.errno(), none.memory.capacity()), (22, 10));
    drop(fabric);
    let Kept { error, memory } = a.pd.register(vec![5_u8; 10]).expect_err("the agent is gone");
    assert_eq!((error.errno(), memory), (5, vec![5; 10]));
    let kept = a.pd.expose_memory(Mapping::anonymous(10).expect("a mapping"), Access::READ).expect_err("gone");
    assert_eq!(&kept.memory[..], [0; 10]);
    assert_eq!(Mapping::anonymous(0).expect_err("no bytes").errno(), 22);
}

/// Counts its drops.
struct Told(Vec<u8>, &'static AtomicUsize);

// SAFETY: the bytes are those of the vector.
unsafe impl Memory for Told {
    fn bytes(&mut self) -> NonNull<[u8]> {
        self.0.bytes()
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn memory_is_dropped_once_with_its_registration() {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    let (_fabric, a, _b) = sides();
    let told = || Told(vec![0; 10], &DROPPED);
    let pieces = a.pd.register(told()).expect("registered").pieces(5);
    let window = a.pd.expose_memory(told(), Access::READ).expect("registered");
    let given = a.pd.register(told()).expect("registered").into_inner::<Told>().expect("given back");
    assert_eq!(DROPPED.load(Ordering::Relaxed), 0);
    drop(given);
    assert_eq!(DROPPED.load(Ordering::Relaxed), 1);
    drop((pieces, window));
    assert_eq!(DROPPED.load(Ordering::Relaxed), 3);
}
