//! Two correct threads at full speed, which sleep whenever there is no work: all parts together as
//! an engine uses them. A lost wake-up shows as a sleep that times out, a misordered access as a
//! wrong byte.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{lane, untouched};
use crate::bulk::PIECE_MAX;
use crate::lane::{LaneRx, LaneTx, Side, ends};
use crate::memory::{poster_fence, register_barrier, sleeper_barrier};
use crate::notifier::Notifier;
use crate::region::Region;
use crate::ring::RECORD_MAX;
use crate::wake_word::{WakeWord, WakeWordView};

/// One side: its ends, its own wake word and notifier, and the other side's.
struct Party {
    tx: LaneTx,
    rx: LaneRx,
    wake_word: WakeWord,
    notifier: Notifier,
    peer_wake_word: WakeWordView,
    peer_notifier: Notifier,
    sleeps: usize,
}

fn parties(region: &Arc<Region>) -> (Party, Party) {
    assert!(register_barrier(), "Linux has had global expedited barriers since 4.16");
    let ((wake_word_a, fd_a), (wake_word_b, fd_b)) = (WakeWord::create().unwrap(), WakeWord::create().unwrap());
    let (door_a, door_b) = (Notifier::new().unwrap(), Notifier::new().unwrap());
    let make = |side, wake_word, peer_wake_word: &std::os::fd::OwnedFd, notifier: &Notifier, peer: &Notifier| {
        let (tx, rx) = ends(region.clone(), side);
        Party {
            tx,
            rx,
            wake_word,
            notifier: notifier.try_clone().unwrap(),
            peer_wake_word: WakeWordView::map(peer_wake_word.as_fd()).unwrap(),
            peer_notifier: peer.try_clone().unwrap(),
            sleeps: 0,
        }
    };
    let a = make(Side::A, wake_word_a, &fd_b, &door_a, &door_b);
    let b = make(Side::B, wake_word_b, &fd_a, &door_b, &door_a);
    (a, b)
}

impl Party {
    /// Sends `payload`, in the cell if `inline`, else in bulk. Sleeps while there is no space.
    fn send(&mut self, number: u32, payload: &[u8], inline: bool) {
        let mut record = [0; RECORD_MAX];
        record[..4].copy_from_slice(&number.to_ne_bytes());
        record[4..8].copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        record[12] = u8::from(inline);
        let mut length = 13;
        if inline {
            record[13..][..payload.len()].copy_from_slice(payload);
            length += payload.len();
        } else {
            let slot = self.until_space(|tx| tx.bulk.put(payload).unwrap());
            record[8..12].copy_from_slice(&slot.offset.to_ne_bytes());
        }
        self.until_space(|tx| tx.ring.push(&record[..length]).ok());
        poster_fence();
        if self.peer_wake_word.armed().is_some() {
            self.peer_notifier.notify();
        }
    }

    fn until_space<T>(&mut self, attempt: impl Fn(&mut LaneTx) -> Option<T>) -> T {
        loop {
            if let Some(done) = attempt(&mut self.tx) {
                return done;
            }
            self.tx.ring.set_waiting(true);
            if let Some(done) = attempt(&mut self.tx) {
                self.tx.ring.set_waiting(false);
                return done;
            }
            self.sleep();
        }
    }

    /// Receives a message, sleeping until there is one.
    fn recv(&mut self, payload: &mut Vec<u8>) -> u32 {
        let mut record = [0; RECORD_MAX];
        while self.rx.ring.pop(&mut record).unwrap().is_none() {
            self.wake_word.arm();
            assert!(sleeper_barrier());
            if self.rx.ring.pop(&mut record).unwrap().is_some() {
                self.wake_word.disarm();
                break;
            }
            self.sleep();
            self.wake_word.disarm();
        }
        let word = |at: usize| u32::from_ne_bytes(record[at..at + 4].try_into().unwrap());
        let (number, len, offset) = (word(0), word(4), word(8));
        payload.resize(len as usize, 0);
        if record[12] == 1 {
            payload.copy_from_slice(&record[13..13 + len as usize]);
        } else {
            assert!(self.rx.bulk.take(offset, payload));
        }
        self.rx.ring.publish();
        if self.rx.ring.peer_waiting() {
            self.rx.ring.clear_waiting();
            self.peer_notifier.notify();
        }
        number
    }

    fn sleep(&mut self) {
        self.sleeps += 1;
        let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
        let woken = poll(&mut [PollFd::new(&self.notifier, PollFlags::IN)], Some(&patience)).unwrap();
        assert_eq!(woken, 1, "a wake was lost");
        self.notifier.drain();
    }
}

fn payload(number: u32) -> (Vec<u8>, bool) {
    let mixed = number.wrapping_mul(0x9e37_79b9);
    let inline = mixed >> 28 != 0;
    let len = if inline { mixed as usize % (RECORD_MAX - 13) } else { 1 + mixed as usize % PIECE_MAX };
    ((0..len).map(|i| (mixed as usize + i * 7) as u8).collect(), inline)
}

#[test]
fn one_way() {
    const MESSAGES: u32 = 60_000;
    let region = lane();
    let (mut a, mut b) = parties(&region);
    let sender = std::thread::spawn(move || {
        for number in 0..MESSAGES {
            let (bytes, inline) = payload(number);
            a.send(number, &bytes, inline);
        }
    });
    let mut bytes = Vec::new();
    for number in 0..MESSAGES {
        assert_eq!(b.recv(&mut bytes), number);
        assert!(bytes == payload(number).0, "message {number} arrived damaged");
    }
    sender.join().unwrap();
    assert!(untouched(&region));
}

#[test]
fn there_and_back() {
    const ROUNDS: u32 = 20_000;
    let region = lane();
    let (mut a, mut b) = parties(&region);
    let echo = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for number in 0..ROUNDS {
            assert_eq!(b.recv(&mut bytes), number);
            b.send(number, &bytes, bytes.len() < 100);
        }
        b.sleeps
    });
    let mut bytes = Vec::new();
    for number in 0..ROUNDS {
        let sent = vec![number as u8; 1 + number as usize % 200];
        a.send(number, &sent, true);
        assert_eq!(a.recv(&mut bytes), number);
        assert_eq!(bytes, sent);
    }
    let sleeps = echo.join().unwrap() + a.sleeps;
    assert!(sleeps > 0, "somebody has slept, else this tested nothing");
    assert!(untouched(&region));
}

#[test]
fn both_ends_in_one_thread() {
    let region = lane();
    let (mut a_tx, mut a_rx) = ends(region.clone(), Side::A);
    let (mut b_tx, mut b_rx) = ends(region, Side::B);
    let mut buf = [0; RECORD_MAX];
    for round in 0..2_000_u32 {
        a_tx.ring.push(&round.to_ne_bytes()).unwrap();
        assert_eq!(b_rx.ring.pop(&mut buf), Ok(Some(60)));
        assert_eq!(buf[..4], round.to_ne_bytes());
        b_rx.ring.publish();
        b_tx.ring.push(&[7; RECORD_MAX]).unwrap();
        assert_eq!(a_rx.ring.pop(&mut buf), Ok(Some(300)));
        assert_eq!(buf, [7; RECORD_MAX]);
        a_rx.ring.publish();
        assert_eq!(a_rx.ring.pop(&mut buf), Ok(None));
    }
}
