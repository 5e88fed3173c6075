//! The peer of an iWARP connection: its start-up frames, then its FPDUs, some with a right CRC.

use std::collections::BTreeSet;
use std::time::Duration;

use iwarp::rdmap::Atomic;
use iwarp::startup::{Frame, HEADER_LEN, Kind, MOST_PRIVATE, RtrSet, UNKNOWN_DEPTH};
use iwarp::{
    Agreement, Answer, Config, Event, Fault, Immediate, Initiator, Memory, Operation, PostError, Quirks, Receive,
    Request, Responder, Role, Rtr, Stag, State, Stream, Terms, Transmit, fpdu,
};
use wire::icrc::Folding;

use crate::Feed;

/// The only region that the peer may access, and the lengths of it and of each buffer.
const REGION: Stag = Stag(0x1100);
const LEN: usize = 256;
/// Requests in each queue.
const DEPTH: usize = 4;
const LATE: Duration = Duration::from_secs(60);

pub(crate) fn run(bytes: &[u8]) {
    start_up(bytes);
    let mut feed = Feed(bytes);
    let flags = feed.byte();
    let is = |bit: u8| flags & bit != 0;
    let agreement = Agreement {
        role: if is(1) { Role::Initiator } else { Role::Responder },
        revision: 2,
        crc: is(2),
        sends_markers: is(4),
        receives_markers: is(8),
        ird: 2,
        ord: 2,
        rtr: [None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)][usize::from(flags >> 4) % 4],
    };
    let config = Config { depth: DEPTH, quirks: quirks(is(64)), ..Config::default() };
    let mut peer = fpdu::Sender::new(agreement.crc, agreement.receives_markers);
    let stream = Stream::new(&agreement, config, Duration::ZERO);
    let memory = Arena { invalidates: is(128), ..Arena::default() };
    let mut end = End { stream, memory, posted: 0, open: BTreeSet::new(), is_closed: false };
    while !feed.is_empty() {
        end.step(&mut feed, &mut peer);
    }
    end.finish();
}

/// Start-up frames: a parsed frame is emitted unchanged, and no state machine panics.
fn start_up(bytes: &[u8]) {
    for kind in [Kind::Request, Kind::Reply] {
        if let Ok(Some((frame, len))) = Frame::parse(kind, bytes) {
            let again = frame.emit().expect("it was parsed");
            assert_eq!(Frame::parse(kind, &again), Ok(Some((frame, len))));
        }
    }
    // The last byte, because a frame begins with its key.
    let last = bytes.last().copied().unwrap_or_default();
    let is = |bit: u8| last & bit != 0;
    let terms = Terms {
        revision: if is(1) { 1 } else { 2 },
        crc: !is(2),
        markers: is(4),
        sends_markers: !is(8),
        peer_to_peer: is(16).then_some(RtrSet { send: is(32), write: !is(32), read: is(64) }),
        quirks: quirks(is(128)),
        ..Terms::default()
    };
    let mut initiator = Initiator::new(terms, b"", LATE).expect("no private data");
    let mut responder = Responder::new(terms, LATE);
    for piece in bytes.chunks(1 + bytes.len() / 3) {
        if let Ok((len, answer)) = initiator.receive(piece) {
            assert!(len <= piece.len());
            if let Some(Answer::Accepted(agreement, private)) = answer {
                check(&agreement, &terms, &private);
            }
        }
        if let Ok(Some(asked)) = responder.receive(piece) {
            let (reply, agreement) = responder.accept(2, 2, b"").expect("no private data, and the request is there");
            check(&agreement, &terms, &asked.private);
            assert!(agreement.ord <= 2 && (agreement.ord <= asked.ird || asked.ird == UNKNOWN_DEPTH));
            assert!(matches!(Frame::parse(Kind::Reply, &reply), Ok(Some((_, len))) if len == reply.len()));
            assert!(responder.accept(2, 2, b"").is_err(), "there is one answer");
        }
    }
    let most = HEADER_LEN + MOST_PRIVATE;
    assert!(initiator.poll_transmit().is_some_and(|last| last.len() <= most));
    assert!(responder.poll_transmit().is_none_or(|last| last.len() <= most));
}

fn quirks(siw: bool) -> Quirks {
    if siw { Quirks::SIW } else { Quirks::default() }
}

/// What start-up agreed on is within the terms of this side.
fn check(agreement: &Agreement, terms: &Terms, private: &[u8]) {
    assert!(private.len() <= MOST_PRIVATE);
    assert!(agreement.ird <= terms.ird.max(terms.most_ird) && agreement.ord <= terms.ord);
    assert!(agreement.crc || !terms.crc);
    assert!(agreement.receives_markers == terms.markers && (terms.sends_markers || !agreement.sends_markers));
    assert!(agreement.rtr.is_none() || agreement.revision == 2);
}

/// One end of a stream, and its program.
struct End {
    stream: Stream,
    memory: Arena,
    posted: u64,
    /// Work requests that have not completed.
    open: BTreeSet<u64>,
    is_closed: bool,
}

impl End {
    fn step(&mut self, feed: &mut Feed<'_>, peer: &mut fpdu::Sender) {
        match feed.byte() % 8 {
            0..3 => {
                let len = usize::from(feed.byte()).max(2);
                let segment = feed.take(len);
                let mut out = vec![0; peer.room(segment.len())];
                let framed = peer.frame(&mut out, segment, 0, |_, _, _| Ok::<_, ()>(false));
                let len = framed.expect("nothing is fetched");
                self.receive(&out[..len]);
            }
            3 => {
                let len = usize::from(feed.byte());
                self.receive(feed.take(len));
            }
            4 => self.post(feed),
            5 => self.transmit(),
            6 => self.memory.receives = (self.memory.receives + 1).min(DEPTH),
            _ => match feed.byte() % 8 {
                0 => self.stream.receive_end(),
                1 => self.stream.close(Duration::ZERO),
                2 => self.stream.handle_timeout(LATE),
                3 => self.stream.lost(),
                4 => self.stream.abort(),
                5 => self.memory.is_closed = false,
                _ => {}
            },
        }
        self.heed();
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.stream.receive(Duration::ZERO, bytes, &mut self.memory);
        self.heed();
    }

    fn post(&mut self, feed: &mut Feed<'_>) {
        let (stag, to) = (Stag(feed.word()), u64::from(feed.word()));
        let kind = feed.byte();
        let immediate = Immediate { data: [kind; 8], solicited: kind & 0x80 != 0 };
        let (one, two) = (to.rotate_left(kind.into()), u64::from(stag.0));
        let operation = match kind % 9 {
            0 => Operation::Send { invalidate: None, solicited: false },
            1 => Operation::Write { stag, to, immediate: None },
            2 => Operation::Read { source: stag, source_to: to, sink: REGION, sink_to: 0 },
            3 => Operation::Local,
            4 => Operation::Send { invalidate: Some(stag), solicited: immediate.solicited },
            5 => Operation::Write { stag, to, immediate: Some(immediate) },
            6 => Operation::Immediate(immediate),
            7 => {
                let atomic = Atomic::FetchAdd { add: one, boundaries: two };
                Operation::Atomic { target: stag, target_to: to, atomic }
            }
            _ => {
                let atomic = Atomic::CompareSwap { swap: one, swap_mask: two, compare: two, compare_mask: one };
                Operation::Atomic { target: stag, target_to: to, atomic }
            }
        };
        let request = Request { work: self.posted, operation, len: feed.byte().into(), fence: feed.byte() & 1 != 0 };
        match self.stream.post(request) {
            Ok(()) => assert!(self.open.insert(self.posted) && self.open.len() <= DEPTH, "the queue has room"),
            Err(error) => assert!(error != PostError::Full || self.open.len() == DEPTH, "the queue is not full"),
        }
        self.posted += 1;
    }

    fn transmit(&mut self) {
        let mut out = vec![0; self.stream.room()];
        // Nothing arrives meanwhile, so what there is to send is bounded.
        for _ in 0..100 {
            match self.stream.poll_transmit(LATE, &mut out, &mut self.memory) {
                Transmit::Bytes(len) => assert!(len > 0 && len <= out.len()),
                _ => return,
            }
            self.heed();
        }
        panic!("it sends for ever");
    }

    fn heed(&mut self) {
        while let Some(event) = self.stream.poll_event() {
            assert!(!self.is_closed, "{event:?} after the end");
            match event {
                Event::Completed { work, .. } => assert!(self.open.remove(&work), "{work} completes once"),
                Event::Closed(_) => self.is_closed = true,
                Event::Received(received) => {
                    assert!(received.len as usize <= LEN && (received.immediate.is_none() || received.len == 0));
                    assert!(received.invalidated.is_none_or(|stag| stag == REGION), "only a region is invalidated");
                }
                _ => {}
            }
        }
    }

    fn finish(mut self) {
        self.stream.abort();
        self.heed();
        assert!(self.is_closed && self.stream.state() == State::Closed && self.open.is_empty(), "{:?}", self.open);
    }
}

/// A region of [`LEN`] bytes, and so many bytes for each buffer.
struct Arena {
    region: [u8; LEN],
    /// The peer may invalidate the region.
    invalidates: bool,
    /// The peer has invalidated the region.
    is_closed: bool,
    receives: usize,
    taken: u64,
}

impl Default for Arena {
    fn default() -> Self {
        Self { region: [0; LEN], invalidates: false, is_closed: false, receives: 0, taken: 0 }
    }
}

fn inside(offset: u32, len: usize) {
    assert!(offset as usize + len <= LEN, "{len} bytes at {offset} of a buffer");
}

impl Arena {
    fn part(&mut self, stag: Stag, to: u64, len: usize) -> Result<&mut [u8], Fault> {
        if stag != REGION || self.is_closed {
            return Err(Fault::Stag);
        }
        let at = usize::try_from(to).map_err(|_| Fault::Bounds)?;
        self.region.get_mut(at..).and_then(|rest| rest.get_mut(..len)).ok_or(Fault::Bounds)
    }
}

impl Memory for Arena {
    fn gather(&mut self, _: u64, offset: u32, out: &mut [u8], _: Option<&mut Folding>) -> Result<bool, Fault> {
        inside(offset, out.len());
        Ok(false)
    }

    fn scatter(&mut self, _: u64, offset: u32, data: &[u8]) -> Result<(), Fault> {
        inside(offset, data.len());
        Ok(())
    }

    fn execute(&mut self, _: u64) -> Result<(), Fault> {
        Ok(())
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.receives = self.receives.checked_sub(1)?;
        self.taken += 1;
        Some(Receive { id: self.taken, len: LEN as u32 })
    }

    fn fill(&mut self, receive: u64, offset: u32, data: &[u8]) -> Result<(), Fault> {
        assert!(receive <= self.taken);
        inside(offset, data.len());
        Ok(())
    }

    fn write(&mut self, stag: Stag, to: u64, data: &[u8]) -> Result<(), Fault> {
        self.part(stag, to, data.len()).map(|part| part.copy_from_slice(data))
    }

    fn readable(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), Fault> {
        self.part(stag, to, len as usize).map(drop)
    }

    fn read(&mut self, stag: Stag, to: u64, out: &mut [u8], _: Option<&mut Folding>) -> Result<bool, Fault> {
        assert_eq!(stag, REGION, "it was checked");
        // The peer may have invalidated the region since.
        out.copy_from_slice(self.part(stag, to, out.len())?);
        Ok(false)
    }

    fn atomic(&mut self, stag: Stag, to: u64, atomic: &Atomic) -> Result<u64, Fault> {
        let part = self.part(stag, to, 8)?;
        let before = u64::from_ne_bytes(part.try_into().expect("8 bytes"));
        part.copy_from_slice(&atomic.apply(before).to_ne_bytes());
        Ok(before)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        if stag != REGION || self.is_closed {
            return Err(Fault::Stag);
        }
        if !self.invalidates {
            return Err(Fault::Invalidate);
        }
        self.is_closed = true;
        Ok(())
    }
}
