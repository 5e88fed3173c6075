//! Copies of packets for captures (`softhca capture`): where they are made and written. The crate
//! `capture` reads them. Principal type: [`CaptureHook`].
//!
//! ```text
//! transmit ── put ────────┐ lanes                     ┌── Batch::flush ── wire
//!                         ├──▶ CaptureHook ──▶ a capture ring per capture
//! progress ── accept ─────┘ lanes, for captures that  └── Packets ── wire
//!                           do not see the peer's ring
//! ```
//!
//! While no capture runs, each of these places tests one word. While one runs, a packet is first
//! copied to a buffer and sent from there, so that the capture shows exactly what was sent. A full
//! capture ring loses copies and counts them; packets never wait for it.

mod copies;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::capture::{CaptureRecord, WORDS_MAX, flag, kind, path, record_flag};
use abi::layout::Record;
use abi::private::LaneOut;
use abi::reason::{Cause, DropRecord};
use parking_lot::Mutex;
use shm::capture_ring::CaptureRingTx;
use wire::{Headers, Qpn, lids};

use crate::clock;

/// The most captures at the same time.
const SINKS: usize = 16;

/// The length of an ICRC.
const ICRC: u32 = 4;

/// The most notes about packets that have not been sent yet.
const NOTES: usize = 64;

/// Where copies of packets go while captures run.
#[derive(Debug, Default)]
pub struct CaptureHook {
    is_on: AtomicBool,
    sinks: Mutex<Vec<Sink>>,
    /// Notes about packets that have not been sent yet.
    notes: Mutex<VecDeque<(Name, String)>>,
}

/// The identity of a packet: its opcode, its destination QP, and its PSN.
type Name = (u8, u32, u32);

/// The identity of a packet, given its bytes from the BTH on.
fn name(bytes: &[u8]) -> Option<Name> {
    let word = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?) & 0xff_ffff);
    Some((*bytes.first()?, word(4)?, word(8)?))
}

/// One capture.
#[derive(Debug)]
struct Sink {
    number: u32,
    /// The most bytes of a packet to keep.
    most: usize,
    /// The capture also wants packets received over lanes.
    lanes_in: bool,
    ring: CaptureRingTx,
}

impl CaptureHook {
    /// A hook without captures.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether a capture runs.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Starts writing to one more capture ring, as a CAPTURE push requests. The reader learns of it
    /// from [`CaptureHook::attach`].
    ///
    /// # Errors
    /// The capture ring is not valid, or there are too many captures.
    pub fn begin(&self, wanted: &LaneOut, ring: &OwnedFd) -> io::Result<()> {
        let room = usize::try_from(wanted.len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut sinks = self.sinks.lock();
        if sinks.len() >= SINKS {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let ring = CaptureRingTx::map(ring.as_fd(), room)?;
        let (number, most) = (wanted.lane, wanted.lane_index as usize);
        sinks.push(Sink { number, most, lanes_in: wanted.side & flag::LANES_IN != 0, ring });
        self.is_on.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Marks a capture as attached: its reader then knows that all packets are written. Call this
    /// when all threads see that a capture runs.
    pub fn attach(&self, number: u32) {
        self.sinks.lock().iter().filter(|sink| sink.number == number).for_each(|sink| sink.ring.attach());
    }

    /// A capture has ended.
    pub fn end(&self, number: u32) {
        let mut sinks = self.sinks.lock();
        sinks.retain(|sink| sink.number != number);
        self.is_on.store(!sinks.is_empty(), Ordering::Relaxed);
    }

    /// Stores a note to show with a packet that will be sent later.
    #[cold]
    pub(crate) fn note(&self, headers: &Headers, words: String) {
        let mut notes = self.notes.lock();
        if notes.len() == NOTES {
            notes.pop_front();
        }
        notes.push_back(((headers.opcode.as_u8(), headers.dest_qp.value(), headers.psn.value()), words));
    }

    /// The stored note about this packet.
    fn noted(&self, bytes: &[u8]) -> Option<String> {
        let mut notes = self.notes.lock();
        let at = notes.iter().position(|(known, _)| name(bytes) == Some(*known))?;
        notes.remove(at).map(|(_, words)| words)
    }

    fn wants_lanes_in(&self) -> bool {
        self.sinks.lock().iter().any(|sink| sink.lanes_in)
    }

    /// Writes a packet, given its bytes from the BTH on, with some words about it. Fills in the
    /// fields of `about` for time, length and kind.
    #[cold]
    pub fn packet(&self, about: &CaptureRecord, bytes: &[u8], words: &str) {
        let is_out = matches!(about.path, path::LANE_OUT | path::WIRE_OUT);
        let is_tcp = about.flags & record_flag::TCP != 0;
        let noted = if is_out && !is_tcp { self.noted(bytes) } else { None };
        let words = noted.as_deref().unwrap_or(words);
        let words = &words.as_bytes()[..words.len().min(WORDS_MAX)];
        let time = if about.time == 0 { clock::since_1970() } else { about.time };
        let icrc = if about.flags & record_flag::UNSEALED != 0 { ICRC } else { 0 };
        let len = bytes.len() as u32 + icrc;
        let whole = CaptureRecord { kind: kind::PACKET, time, len, words: words.len() as u32, ..*about };
        for sink in self.sinks.lock().iter_mut() {
            if about.path == path::LANE_IN && !sink.lanes_in {
                continue;
            }
            let kept = &bytes[..bytes.len().min(sink.most)];
            let record = CaptureRecord { kept: kept.len() as u32, ..whole };
            sink.ring.push(&[record.bytes(), kept, words]);
        }
    }

    /// Writes a packet of the wire, with its ICRC. A datagram that says its LIDs is shown without
    /// them, as a packet of the IBA.
    #[cold]
    pub(crate) fn wire_packet(&self, about: CaptureRecord, bytes: &[u8]) {
        let inside = bytes.len().checked_sub(ICRC as usize).map(|len| &bytes[..len]);
        match inside.and_then(lids::without) {
            Some((headers, plain)) => {
                let out = if about.path == path::WIRE_OUT { headers.deth.src_qp.value() } else { about.src_qp };
                let flags = about.flags | record_flag::UNSEALED;
                self.packet(&CaptureRecord { src_qp: out, flags, ..about }, &plain, "");
            }
            None => self.packet(&about, bytes, ""),
        }
    }

    /// Writes that a packet was dropped.
    #[cold]
    pub fn dropped(&self, cause: Cause, dropped: &DropRecord) {
        let DropRecord { src_qp, dest_qp, psn, opcode, address, got, expected, qpn, .. } = *dropped;
        let record = CaptureRecord {
            kind: kind::DROP,
            cause: cause as u32,
            time: clock::since_1970(),
            from: address,
            src_qp,
            dest_qp,
            psn,
            opcode,
            got,
            expected,
            qpn,
            ..CaptureRecord::default()
        };
        for sink in self.sinks.lock().iter_mut() {
            sink.ring.push(&[record.bytes()]);
        }
    }
}

/// The addresses of a QP's packets, for as long as its lane is locked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    qpn: u32,
    from: [u8; 16],
    to: [u8; 16],
    traffic_class: u8,
    hop_limit: u8,
    port: u8,
    link: Option<LinkHeaders>,
}

/// What the headers of an InfiniBand link say besides the addresses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkHeaders {
    slid: u16,
    dlid: u16,
    sl: u8,
    vl: u8,
    /// The code of the MTU to which packets are cut there; 0 if they are not longer.
    mtu: u8,
    flow_label: u32,
    is_global: bool,
}

impl Ends {
    /// The addresses of a packet of which nothing else is known.
    pub(crate) fn between(qpn: u32, from: [u8; 16], to: [u8; 16]) -> Self {
        Self { qpn, from, to, ..Self::default() }
    }
}

/// The owners of a batch's packets: for each sequence of packets of one QP, the index of the first.
#[derive(Debug, Default)]
pub(crate) struct Owners(Vec<(usize, u32)>);

impl Owners {
    /// Packet number `index` and the packets after it belong to `qpn`.
    pub(crate) fn add(&mut self, index: usize, qpn: Qpn) {
        if let Some(last) = self.0.last_mut().filter(|(first, _)| *first == index) {
            last.1 = qpn.value();
        } else if self.0.last().is_none_or(|(_, last)| *last != qpn.value()) {
            self.0.push((index, qpn.value()));
        }
    }

    /// The owner of packet number `index`; 0 if unknown.
    pub(crate) fn of(&self, index: usize) -> u32 {
        self.0.iter().rev().find(|(first, _)| *first <= index).map_or(0, |(_, qpn)| *qpn)
    }

    /// A new batch begins. Its packets belong to the last owner unless `add` names another one.
    pub(crate) fn renew(&mut self) {
        if let Some((_, qpn)) = self.0.pop() {
            self.0.clear();
            self.0.push((0, qpn));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::capture_ring::{CAPTURE_RING_MIN, CaptureRingRx, create_capture_ring};

    fn wanted(number: u32, most: u32, side: u32) -> LaneOut {
        LaneOut { lane: number, lane_index: most, side, len: CAPTURE_RING_MIN as u32, ..LaneOut::default() }
    }

    fn read(ring: &mut CaptureRingRx) -> Option<(CaptureRecord, Vec<u8>)> {
        let mut bytes = Vec::new();
        ring.pop(&mut bytes).expect("sound").then(|| {
            let rest = bytes.split_off(size_of::<CaptureRecord>());
            (CaptureRecord::read(&bytes).expect("a record"), rest)
        })
    }

    #[test]
    fn each_capture_gets_what_it_wants_and_nothing_after_its_end() {
        let hook = CaptureHook::new();
        assert!(!hook.is_on());
        let mut rings = Vec::new();
        for (number, most, side) in [(1, 10, flag::LANES_IN), (2, 100, 0)] {
            let fd = create_capture_ring(CAPTURE_RING_MIN).expect("memory");
            hook.begin(&wanted(number, most, side), &fd).expect("taken");
            let ring = CaptureRingRx::map(fd.as_fd(), CAPTURE_RING_MIN).expect("mapped");
            assert!(hook.is_on() && !ring.is_attached(), "nobody may count on it before it is on everywhere");
            hook.attach(number);
            assert!(ring.is_attached());
            rings.push(ring);
        }
        let about = CaptureRecord { path: path::LANE_IN, flags: record_flag::UNSEALED, ..CaptureRecord::default() };
        hook.packet(&about, &[7; 20], "late");
        let (record, rest) = read(&mut rings[0]).expect("a record");
        assert_eq!((record.len, record.kept, record.words, record.kind), (24, 10, 4, kind::PACKET));
        assert!(record.time > 0 && rest == [&[7; 10][..], b"late"].concat());
        assert!(read(&mut rings[1]).is_none(), "it does not want what comes over lanes");

        hook.end(1);
        hook.dropped(Cause::Icrc, &DropRecord { dest_qp: 5, ..DropRecord::default() });
        assert!(read(&mut rings[0]).is_none() && hook.is_on());
        let (record, _) = read(&mut rings[1]).expect("a record");
        assert_eq!((record.kind, record.cause, record.dest_qp), (kind::DROP, Cause::Icrc as u32, 5));
        hook.end(2);
        assert!(!hook.is_on());
    }

    #[test]
    fn a_capture_ring_that_is_none_is_refused_and_so_is_one_too_many() {
        let hook = CaptureHook::new();
        let fd = create_capture_ring(CAPTURE_RING_MIN).expect("memory");
        assert!(hook.begin(&LaneOut { len: 2 * CAPTURE_RING_MIN as u32, ..LaneOut::default() }, &fd).is_err());
        assert!(!hook.is_on());
        for number in 0..SINKS as u32 {
            hook.begin(&wanted(number, 1, 0), &fd).expect("taken");
        }
        assert!(hook.begin(&wanted(99, 1, 0), &fd).is_err());
    }

    #[test]
    fn packets_of_a_batch_have_owners() {
        let mut owners = Owners::default();
        assert_eq!(owners.of(3), 0);
        for (index, qpn) in [(0, 5), (1, 5), (4, 6), (7, 5)] {
            owners.add(index, Qpn::new(qpn));
        }
        assert_eq!([0, 3, 4, 6, 7, 9].map(|index| owners.of(index)), [5, 5, 6, 6, 5, 5]);
        owners.renew();
        assert_eq!(owners.of(0), 5, "the last one goes on");
        owners.add(0, Qpn::new(8));
        assert_eq!(owners.of(0), 8);
    }
}
