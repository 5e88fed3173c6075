//! A host with memory for tests: regions that the peer may access, and buffers of work requests.
//! Principal types: [`Host`], [`Ram`].
#![allow(dead_code, reason = "each test uses a part")]

use softhca_iwarp::rdmap::Atomic;
use softhca_iwarp::{
    Agreement, Close, Config, Event, Fault, Memory, Operation, Receive, Request, Role, Rtr, Stag, Status, Stream,
    Transmit, fpdu,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::icrc::Folding;

pub(crate) const NOW: Duration = Duration::ZERO;
/// The region that each host of a pair exposes: 8192 bytes that count up.
pub(crate) const REGION: u32 = 0x1100;
/// The address of that region.
pub(crate) const BASE: u64 = 0x7f00_0000_1000;
pub(crate) const SEND: Operation = Operation::Send { invalidate: None, solicited: false };

/// A region that the peer may access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) writable: bool,
    pub(crate) readable: bool,
}

/// The memory of a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ram {
    pub(crate) regions: BTreeMap<Stag, Region>,
    /// The data of work requests, also what READs and atomics bring.
    pub(crate) works: BTreeMap<u64, Vec<u8>>,
    /// Receive requests that wait.
    pub(crate) posted: VecDeque<Receive>,
    /// The buffers of receive requests.
    pub(crate) receives: BTreeMap<u64, Vec<u8>>,
    pub(crate) executed: Vec<u64>,
}

impl Ram {
    pub(crate) fn expose(&mut self, stag: u32, base: u64, bytes: Vec<u8>) {
        self.regions.insert(Stag(stag), Region { base, bytes, writable: true, readable: true });
    }

    pub(crate) fn post_receive(&mut self, id: u64, len: usize) {
        self.posted.push_back(Receive { id, len: len as u32 });
        self.receives.insert(id, vec![0; len]);
    }

    fn region(&mut self, stag: Stag, to: u64, len: usize) -> Result<(&mut Region, usize), Fault> {
        let region = self.regions.get_mut(&stag).ok_or(Fault::Stag)?;
        let at = to.checked_sub(region.base).ok_or(Fault::Bounds)? as usize;
        if at.checked_add(len).is_none_or(|end| end > region.bytes.len()) {
            return Err(Fault::Bounds);
        }
        Ok((region, at))
    }
}

impl Memory for Ram {
    fn gather(&mut self, work: u64, offset: u32, out: &mut [u8], _: Option<&mut Folding>) -> Result<bool, Fault> {
        assert!(!out.is_empty());
        let from = self.works.get(&work).ok_or(Fault::Local)?;
        out.copy_from_slice(&from[offset as usize..][..out.len()]);
        Ok(false)
    }

    fn scatter(&mut self, work: u64, offset: u32, data: &[u8]) -> Result<(), Fault> {
        let to = self.works.get_mut(&work).ok_or(Fault::Local)?;
        to[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn execute(&mut self, work: u64) -> Result<(), Fault> {
        self.executed.push(work);
        if self.works.contains_key(&work) { Ok(()) } else { Err(Fault::Invalidate) }
    }

    fn take_receive(&mut self) -> Option<Receive> {
        self.posted.pop_front()
    }

    fn fill(&mut self, receive: u64, offset: u32, data: &[u8]) -> Result<(), Fault> {
        let to = self.receives.get_mut(&receive).ok_or(Fault::Local)?;
        to[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn write(&mut self, stag: Stag, to: u64, data: &[u8]) -> Result<(), Fault> {
        let (region, at) = self.region(stag, to, data.len())?;
        if !region.writable {
            return Err(Fault::Access);
        }
        region.bytes[at..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn readable(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), Fault> {
        let (region, _) = self.region(stag, to, len as usize)?;
        if region.readable { Ok(()) } else { Err(Fault::Access) }
    }

    fn read(&mut self, stag: Stag, to: u64, out: &mut [u8], _: Option<&mut Folding>) -> Result<bool, Fault> {
        self.readable(stag, to, out.len() as u32)?;
        let (region, at) = self.region(stag, to, out.len())?;
        out.copy_from_slice(&region.bytes[at..][..out.len()]);
        Ok(false)
    }

    fn atomic(&mut self, stag: Stag, to: u64, atomic: &Atomic) -> Result<u64, Fault> {
        if !to.is_multiple_of(8) {
            return Err(Fault::Unsupported);
        }
        let (region, at) = self.region(stag, to, 8)?;
        let place = region.bytes[at..].first_chunk_mut().expect("8 bytes");
        let before = u64::from_ne_bytes(*place);
        *place = atomic.apply(before).to_ne_bytes();
        Ok(before)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        self.regions.remove(&stag).map(|_| ()).ok_or(Fault::Stag)
    }
}

/// A stream with its memory, and what it has said.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) stream: Stream,
    pub(crate) ram: Ram,
    pub(crate) events: Vec<Event>,
    /// Bytes for the peer.
    pub(crate) output: Vec<u8>,
    /// The sending direction is closed.
    pub(crate) finished: bool,
    pub(crate) reset: bool,
}

impl Host {
    pub(crate) fn new(agreement: &Agreement, config: Config) -> Host {
        let stream = Stream::new(agreement, config, NOW);
        Host { stream, ram: Ram::default(), events: Vec::new(), output: Vec::new(), finished: false, reset: false }
    }

    fn take_events(&mut self) {
        self.events.extend(std::iter::from_fn(|| self.stream.poll_event()));
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.stream.receive(NOW, bytes, &mut self.ram);
        self.take_events();
    }

    pub(crate) fn receive_end(&mut self) {
        self.stream.receive_end();
        self.take_events();
    }

    /// Sends everything that can be sent.
    pub(crate) fn transmit(&mut self) {
        while self.transmit_once() {}
    }

    pub(crate) fn transmit_once(&mut self) -> bool {
        let mut buffer = vec![0xaa; self.stream.room()];
        let transmit = self.stream.poll_transmit(NOW, &mut buffer, &mut self.ram);
        self.take_events();
        match transmit {
            Transmit::Nothing => return false,
            Transmit::Full => panic!("the buffer has the room that was asked for"),
            Transmit::Bytes(len) => {
                assert!(!self.finished, "nothing is sent behind the end");
                self.output.extend_from_slice(&buffer[..len]);
            }
            Transmit::Finish => self.finished = true,
            Transmit::Reset => self.reset = true,
        }
        true
    }

    /// The statuses of the work requests that have ended, in their order.
    pub(crate) fn completions(&self) -> Vec<(u64, Status)> {
        let completed = |event: &Event| match event {
            Event::Completed { work, status } => Some((*work, *status)),
            _ => None,
        };
        self.events.iter().filter_map(completed).collect()
    }

    pub(crate) fn closed(&self) -> Option<Close> {
        match self.events.last() {
            Some(Event::Closed(close)) => Some(*close),
            _ => None,
        }
    }
}

/// An agreement with CRCs and without markers.
pub(crate) fn agreement(role: Role, depth: u16, rtr: Option<Rtr>) -> Agreement {
    Agreement {
        role,
        revision: 2,
        crc: true,
        sends_markers: false,
        receives_markers: false,
        ird: depth,
        ord: depth,
        rtr,
    }
}

/// An initiator and a responder.
pub(crate) fn pair_with(depth: u16, rtr: Option<Rtr>, config: Config) -> (Host, Host) {
    let mut one = Host::new(&agreement(Role::Initiator, depth, rtr), config);
    let mut two = Host::new(&agreement(Role::Responder, depth, rtr), config);
    for host in [&mut one, &mut two] {
        host.ram.expose(REGION, BASE, (0..8192).map(|byte| byte as u8).collect());
    }
    (one, two)
}

pub(crate) fn pair() -> (Host, Host) {
    pair_with(4, None, Config::default())
}

pub(crate) fn post(host: &mut Host, work: u64, operation: Operation, data: &[u8]) {
    host.ram.works.insert(work, data.to_vec());
    let len = if matches!(operation, Operation::Atomic { .. }) { 0 } else { data.len() as u32 };
    host.stream.post(Request { work, operation, len, fence: false }).expect("the stream takes it");
}

pub(crate) fn write(to: u64) -> Operation {
    Operation::Write { stag: Stag(REGION), to: BASE + to, immediate: None }
}

pub(crate) fn read(from: u64) -> Operation {
    Operation::Read { source: Stag(REGION), source_to: BASE + from, sink: Stag(9), sink_to: 0x40 }
}

pub(crate) fn ok(works: impl IntoIterator<Item = u64>) -> Vec<(u64, Status)> {
    works.into_iter().map(|work| (work, Status::Success)).collect()
}

/// Frames a segment as the initiator's first FPDU.
pub(crate) fn first(segment: &[u8]) -> Vec<u8> {
    let mut sender = fpdu::Sender::new(true, false);
    let mut out = vec![0; sender.room(segment.len())];
    let done = sender.frame(&mut out, segment, 0, |_, _, _| Ok::<_, ()>(false));
    out.truncate(done.expect("nothing is fetched"));
    out
}

pub(crate) fn untagged(first: u8, rdmap: u8, queue: u32, msn: u32, offset: u32, data: &[u8]) -> Vec<u8> {
    let numbers = [0, queue, msn, offset].map(u32::to_be_bytes).concat();
    [&[first, rdmap], &numbers[..], data].concat()
}

pub(crate) fn tagged(rdmap: u8, stag: u32, to: u64, data: &[u8]) -> Vec<u8> {
    [&[0xc1, rdmap][..], &stag.to_be_bytes(), &to.to_be_bytes(), data].concat()
}

pub(crate) fn read_payload(size: u32, source: u32, to: u64) -> Vec<u8> {
    [&[0; 12][..], &size.to_be_bytes(), &source.to_be_bytes(), &to.to_be_bytes()].concat()
}

/// Passes all bytes of both hosts, until both are silent.
pub(crate) fn exchange(one: &mut Host, two: &mut Host) {
    loop {
        one.transmit();
        two.transmit();
        if !pass(one, two) & !pass(two, one) {
            return;
        }
    }
}

/// Passes the bytes of one host, and its end once.
fn pass(from: &mut Host, to: &mut Host) -> bool {
    let bytes = std::mem::take(&mut from.output);
    to.receive(&bytes);
    if from.reset {
        to.stream.lost();
        to.take_events();
        return false;
    }
    if from.finished && to.closed().is_none() {
        to.receive_end();
        return true;
    }
    !bytes.is_empty()
}
