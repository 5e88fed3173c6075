//! The harness: hosts, network and clock. Principal type: [`World`]; [`Host`] is a queue pair with
//! an executor of its own.

use crate::packet::{Answers, packets};
pub(crate) use crate::random::Random;
pub(crate) use crate::scenario::Scenario;
use softhca_protocol::{
    Access, AtomicOp, Destination, Fault, Incoming, Nak, Operation, Outcome, RecvEnd, Requester, RequesterConfig,
    Responder, ResponderConfig, ResponseData, SendOp, Service, Status, Step, Time,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use wire::feth::{placement, selectivity};
use wire::{Feth, Headers, Psn, Qpn};

pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const RKEY: u32 = 0x1a07;
pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

/// One end of the connection.
pub(crate) struct Host {
    pub requester: Requester,
    pub responder: Responder,
    /// The memory that the peer may access, from [`BASE`] on with [`RKEY`].
    pub memory: Vec<u8>,
    /// Local memory of each send request, by slot.
    pub local: Vec<Vec<u8>>,
    /// Capacities of posted receive requests.
    pub receives: VecDeque<usize>,
    current: Option<Vec<u8>>,
    capacity: usize,
    /// Messages received, with the ends of their receive requests.
    pub received: Vec<(Vec<u8>, RecvEnd)>,
    pub completions: Vec<(u32, Status)>,
    /// Packets dropped by the responder, and why.
    pub ignored: Vec<Fault>,
    /// Atomics carried out.
    pub atomics: u32,
    /// FLUSHes carried out, with what the range held.
    pub flushed: Vec<Vec<u8>>,
    /// The queue pair is in a state that serves.
    pub serves: bool,
    /// A local error to inject: gathering or placing for this slot fails.
    pub unreadable: Option<u32>,
    pub unwritable: Option<u32>,
    pub unbindable: Option<u32>,
    /// Local requests, in the order of execution, with the number of packets sent before each.
    pub carried_out: Vec<(u32, Psn)>,
}

impl Host {
    /// The payload of the packet with this index of an answer; `None` if it cannot be read.
    fn payload(&self, source: &ResponseData, index: u32) -> Option<Vec<u8>> {
        let ResponseData::Read { va, rkey, offset, len, .. } = *source else { return Some(Vec::new()) };
        if len == 0 {
            return Some(Vec::new());
        }
        let start = (va - BASE) as usize + (offset + index * len) as usize;
        self.memory.get(start..start + len as usize).filter(|_| rkey == RKEY).map(<[u8]>::to_vec)
    }

    fn new(scenario: &Scenario, me: usize) -> Host {
        let (own, peer) = (Qpn::new(0x11 + me as u32), Qpn::new(0x12 - me as u32));
        let psn = |host: usize| Psn::new(scenario.psn + 1000 * host as u32);
        // XRC has an initiator at one end and a target at the other.
        let service = if me == 1 && scenario.service == Service::XrcIni { Service::XrcTgt } else { scenario.service };
        let mut requester = Requester::new(service, 64);
        requester.configure(RequesterConfig {
            mtu: scenario.mtu,
            src_qp: own,
            dest_qp: peer,
            pkey: 0xffff,
            sq_psn: psn(me),
            timeout: scenario.timeout,
            retry_cnt: scenario.retry_cnt,
            rnr_retry: scenario.rnr_retry,
            max_rd_atomic: scenario.rd_atomic,
            lossless: scenario.lossless,
            read_piece: scenario.read_piece,
            probe_after: scenario.probe_after,
            patience: scenario.patience,
            ack_every: 0,
            migrated: false,
        });
        requester.set_window(scenario.window);
        let mut responder = Responder::new(service);
        responder.configure(ResponderConfig {
            mtu: scenario.mtu,
            dest_qp: peer,
            pkey: 0xffff,
            rq_psn: psn(1 - me),
            max_dest_rd_atomic: scenario.rd_atomic,
            min_rnr_timer: 1,
            access: Access(
                Access::REMOTE_ATOMIC.0 | Access::REMOTE_READ.0 | Access::REMOTE_WRITE.0 | Access::FLUSH_GLOBAL.0,
            ),
            qkey: 0x1111,
            service,
            migrated: false,
        });
        Host {
            requester,
            responder,
            memory: vec![0; 1 << 20],
            local: Vec::new(),
            receives: VecDeque::new(),
            current: None,
            capacity: 0,
            received: Vec::new(),
            completions: Vec::new(),
            ignored: Vec::new(),
            atomics: 0,
            flushed: Vec::new(),
            serves: true,
            unreadable: None,
            unwritable: None,
            unbindable: None,
            carried_out: Vec::new(),
        }
    }

    /// Posts a request with local memory; its slot is the memory's index.
    pub(crate) fn post(&mut self, op: SendOp, local: Vec<u8>) -> u32 {
        let slot = self.local.len() as u32;
        let length = match op.operation {
            Operation::Flush => op.length,
            operation if operation.is_atomic() => 8,
            _ => local.len() as u32,
        };
        let dest = Destination { dest_qp: Qpn::new(0x12), qkey: 0x1111 };
        self.local.push(local);
        self.requester.post(SendOp { slot, length, dest, ..op }).expect("the harness posts no more than fits");
        slot
    }

    pub(crate) fn send(&mut self, local: &[u8]) -> u32 {
        self.post(SendOp::default(), local.to_vec())
    }

    pub(crate) fn write(&mut self, at: u64, local: &[u8]) -> u32 {
        let op = SendOp { operation: Operation::Write, remote_addr: BASE + at, rkey: RKEY, ..SendOp::default() };
        self.post(op, local.to_vec())
    }

    pub(crate) fn read(&mut self, at: u64, len: usize) -> u32 {
        let op = SendOp { operation: Operation::Read, remote_addr: BASE + at, rkey: RKEY, ..SendOp::default() };
        self.post(op, vec![0; len])
    }

    pub(crate) fn fetch_add(&mut self, at: u64, add: u64) -> u32 {
        let op = SendOp {
            operation: Operation::FetchAdd,
            remote_addr: BASE + at,
            rkey: RKEY,
            swap_add: add,
            ..SendOp::default()
        };
        self.post(op, vec![0; 8])
    }

    pub(crate) fn atomic_write(&mut self, at: u64, value: u64) -> u32 {
        let op = SendOp { operation: Operation::AtomicWrite, remote_addr: BASE + at, rkey: RKEY, ..SendOp::default() };
        self.post(op, value.to_le_bytes().to_vec())
    }

    pub(crate) fn flush(&mut self, at: u64, length: u32) -> u32 {
        let op = SendOp {
            operation: Operation::Flush,
            remote_addr: BASE + at,
            rkey: RKEY,
            length,
            feth: Feth { placement: placement::GLOBAL, selectivity: selectivity::RANGE },
            ..SendOp::default()
        };
        self.post(op, Vec::new())
    }

    fn range(&self, va: u64, rkey: u32, len: u32) -> Result<usize, Nak> {
        let start = va.wrapping_sub(BASE);
        let inside = start <= self.memory.len() as u64 && u64::from(len) <= self.memory.len() as u64 - start;
        if len == 0 {
            Ok(0)
        } else if rkey == RKEY && inside {
            Ok(start as usize)
        } else {
            Err(Nak::RemoteAccess)
        }
    }

    fn take_receive(&mut self) -> bool {
        if self.current.is_some() {
            return true;
        }
        let Some(capacity) = self.receives.pop_front() else { return false };
        self.capacity = capacity;
        self.current = Some(Vec::new());
        true
    }

    /// Carries out a step of the responder.
    fn execute(&mut self, step: Step, payload: &[u8]) -> Outcome {
        match step {
            Step::Ignore(_) | Step::Reply | Step::OutOfOrder => unreachable!("nothing to carry out"),
            Step::Receive { offset, first, last, .. } => {
                if first && !self.take_receive() {
                    return Outcome::Rnr;
                }
                let buffer = self.current.as_mut().expect("a message has a receive request");
                buffer.truncate(offset as usize);
                assert_eq!(buffer.len(), offset as usize, "payload follows payload");
                if buffer.len() + payload.len() > self.capacity {
                    return Outcome::Refused(Nak::InvalidRequest);
                }
                buffer.extend_from_slice(payload);
                if let Some(end) = last {
                    let buffer = self.current.take().expect("taken above");
                    self.received.push((buffer, end));
                }
            }
            Step::Write { va, rkey, total, offset, imm, .. } => {
                let start = match self.range(va, rkey, total) {
                    Ok(start) => start,
                    Err(nak) => return Outcome::Refused(nak),
                };
                if imm.is_some() && !self.take_receive() {
                    return Outcome::Rnr;
                }
                let start = start + offset as usize;
                self.memory[start..start + payload.len()].copy_from_slice(payload);
                if let Some(end) = imm {
                    self.current = None;
                    self.received.push((Vec::new(), end));
                }
            }
            Step::Read { va, rkey, len } => {
                if let Err(nak) = self.range(va, rkey, len) {
                    return Outcome::Refused(nak);
                }
            }
            Step::Atomic { op, va, rkey, swap_add, compare } => {
                let start = match self.range(va, rkey, 8) {
                    Ok(start) => start,
                    Err(nak) => return Outcome::Refused(nak),
                };
                self.atomics += 1;
                let old = self.word(start);
                let new = match op {
                    AtomicOp::CmpSwap if old == compare => swap_add,
                    AtomicOp::CmpSwap => old,
                    AtomicOp::FetchAdd => old.wrapping_add(swap_add),
                };
                self.memory[start..start + 8].copy_from_slice(&new.to_le_bytes());
                return Outcome::AtomicDone(old);
            }
            Step::AtomicWrite { va, rkey } => {
                let start = match self.range(va, rkey, 8) {
                    Ok(start) => start,
                    Err(nak) => return Outcome::Refused(nak),
                };
                self.atomics += 1;
                self.memory[start..start + 8].copy_from_slice(payload);
            }
            Step::Flush { va, rkey, len, region, .. } => {
                let start = match self.range(va, rkey, if region { 1 } else { len }) {
                    Ok(start) => start,
                    Err(nak) => return Outcome::Refused(nak),
                };
                self.flushed.push(self.memory[start..start + len as usize].to_vec());
            }
        }
        Outcome::Done
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.memory[at..at + 8].try_into().expect("eight bytes"))
    }

    pub(crate) fn complete(&mut self) {
        while let Some(completion) = self.requester.poll_completion() {
            self.completions.push((completion.slot, completion.status));
        }
    }

    /// The status of each completion, in order.
    pub(crate) fn statuses(&self) -> Vec<Status> {
        self.completions.iter().map(|completion| completion.1).collect()
    }
}

/// A scheduled event.
enum Event {
    Packet {
        to: usize,
        bytes: Vec<u8>,
        payload: Vec<u8>,
    },
    /// A lossless path reports a loss.
    Notice {
        to: usize,
    },
    Receive {
        host: usize,
        capacity: usize,
    },
    Serve {
        host: usize,
    },
    /// A path that was full has room.
    Room,
}

type Filter = Box<dyn FnMut(usize, &Headers) -> bool>;

pub(crate) struct World {
    pub hosts: [Host; 2],
    pub now: Time,
    pub scenario: Scenario,
    pub random: Random,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    waiting: BTreeMap<u64, Event>,
    count: u64,
    /// When the next packet from each host may leave.
    free: [u64; 2],
    /// Every packet sent: from whom, and its headers.
    pub sent: Vec<(usize, Headers)>,
    /// Decides for each packet whether it is lost, in addition to random losses.
    pub lose: Filter,
}

impl World {
    pub(crate) fn new(scenario: Scenario) -> World {
        World {
            hosts: [Host::new(&scenario, A), Host::new(&scenario, B)],
            now: Time(0),
            scenario,
            random: Random(scenario.seed),
            events: BinaryHeap::new(),
            waiting: BTreeMap::new(),
            count: 0,
            free: [0; 2],
            sent: Vec::new(),
            lose: Box::new(|_, _| false),
        }
    }

    /// Loses the `n`th packet (from 0) of `host` for which `is` holds.
    pub(crate) fn lose_nth(&mut self, host: usize, n: usize, is: impl Fn(&Headers) -> bool + 'static) {
        let mut seen = 0;
        self.lose = Box::new(move |from, headers| {
            let hit = from == host && is(headers);
            seen += usize::from(hit);
            hit && seen == n + 1
        });
    }

    fn at(&mut self, after: u64, event: Event) {
        self.count += 1;
        self.waiting.insert(self.count, event);
        self.events.push(Reverse((self.now.after(after), self.count)));
    }

    pub(crate) fn post_receive_later(&mut self, host: usize, after: u64, capacity: usize) {
        self.at(after, Event::Receive { host, capacity });
    }

    pub(crate) fn serve_later(&mut self, host: usize, after: u64) {
        self.at(after, Event::Serve { host });
    }

    /// A packet enters the network.
    fn put(&mut self, from: usize, headers: &Headers, payload: Vec<u8>) {
        self.sent.push((from, *headers));
        let queued = self.free[from].saturating_sub(self.now.0);
        self.free[from] = self.now.0 + queued + self.scenario.spacing;
        if (self.lose)(from, headers) || self.random.percent(self.scenario.loss) {
            if self.scenario.lossless {
                self.at(1000, Event::Notice { to: from });
            }
            return;
        }
        let mut bytes = vec![0; wire::MAX_LEN];
        let len = headers.emit(&mut bytes).expect("headers fit");
        bytes.truncate(len);
        let copies = 1 + u32::from(self.random.percent(self.scenario.duplication));
        for _ in 0..copies {
            let late = if self.random.percent(self.scenario.reordering) { self.random.below(20_000) } else { 0 };
            let (bytes, payload) = (bytes.clone(), payload.clone());
            self.at(queued + self.scenario.latency + u64::from(late), Event::Packet { to: 1 - from, bytes, payload });
        }
    }

    /// Sends everything that may be sent now. Returns true if there was any packet.
    fn transmit(&mut self, host: usize) -> bool {
        let mut any = false;
        'answers: loop {
            let full = self.random.percent(self.scenario.path_full);
            let most = 1 + self.random.below(6);
            let Host { responder, .. } = &mut self.hosts[host];
            let Some((packets, source)) = responder.poll_packets(most) else { break };
            any = true;
            // The path may have room for some of the packets.
            let room = if full { self.random.below(packets.len() as u32) as usize } else { packets.len() };
            for (index, headers) in packets.iter().take(room).enumerate() {
                let Some(payload) = self.hosts[host].payload(&source, index as u32) else {
                    self.hosts[host].responder.read_failed(index as u32, Nak::RemoteAccess);
                    continue 'answers;
                };
                self.put(host, headers, payload);
            }
            if full {
                self.hosts[host].responder.untransmit(room as u32);
                return self.try_later();
            }
        }
        loop {
            let full = self.random.percent(self.scenario.path_full);
            let Host { requester, local, unreadable, unbindable, carried_out, .. } = &mut self.hosts[host];
            let Some(run) = requester.poll_run(self.now) else {
                let Some(SendOp { slot, .. }) = requester.poll_local(self.now) else { break };
                any = true;
                carried_out.push((slot, requester.sq_psn()));
                let refused = if *unbindable == Some(slot) { Err(Status::MwBindErr) } else { Ok(()) };
                requester.local_done(refused);
                continue;
            };
            any = true;
            if *unreadable == Some(run.slot) {
                requester.fail_next(Status::LocProtErr);
                continue;
            }
            if full {
                self.hosts[host].complete();
                return self.try_later();
            }
            // The path takes some of the packets now.
            let run = run.at_most(1 + self.random.below(8));
            let packets = packets(requester, &run);
            requester.sent(self.now, &run);
            let Scenario { window, read_piece, mtu, .. } = self.scenario;
            let asked_for = if run.opcode.operation == wire::Operation::ReadRequest {
                packets[0].headers.reth.len.div_ceil(mtu).max(1)
            } else {
                1
            };
            assert!(requester.under_way() <= window.max(asked_for), "{:?}", self.scenario);
            assert!(read_piece == 0 || asked_for <= read_piece, "{:?}", self.scenario);
            let message = &local[run.slot as usize];
            let with_payload = packets.iter().map(|packet| {
                let (start, end) = (packet.offset as usize, (packet.offset + packet.len) as usize);
                (packet.headers, if packet.len == 0 { Vec::new() } else { message[start..end].to_vec() })
            });
            for (headers, payload) in with_payload.collect::<Vec<_>>() {
                self.put(host, &headers, payload);
            }
        }
        self.hosts[host].complete();
        any
    }

    fn try_later(&mut self) -> bool {
        let after = u64::from(self.random.below(5_000));
        self.at(after, Event::Room);
        false
    }

    fn deliver(&mut self, to: usize, bytes: &[u8], payload: &[u8]) {
        let headers = Headers::parse(bytes).expect("our own headers");
        assert_eq!(headers.len(), bytes.len());
        let (now, len) = (self.now, payload.len() as u32);
        let host = &mut self.hosts[to];
        if headers.opcode.is_response() {
            let result =
                |slot: u32, host: &Host| if host.unwritable == Some(slot) { Err(Status::LocProtErr) } else { Ok(()) };
            match host.requester.handle_response(now, &headers, len) {
                Incoming::Nothing => {}
                Incoming::OutOfOrder => host.requester.missed_data(now, headers.psn),
                Incoming::Place { slot, offset, len, .. } => {
                    let (start, end) = (offset as usize, (offset + len) as usize);
                    host.local[slot as usize][start..end].copy_from_slice(payload);
                    let result = result(slot, host);
                    host.requester.placed(now, result);
                }
                Incoming::PlaceAtomic { slot, value } => {
                    host.local[slot as usize].copy_from_slice(&value.to_le_bytes());
                    let result = result(slot, host);
                    host.requester.placed(now, result);
                }
            }
        } else if !host.serves || host.responder.dead().is_some() {
            if self.scenario.lossless {
                self.at(1000, Event::Notice { to: 1 - to });
            }
        } else {
            match host.responder.handle(&headers, len) {
                Step::Ignore(fault) => host.ignored.push(fault),
                Step::Reply => {}
                Step::OutOfOrder => host.responder.missed(),
                step => {
                    let outcome = host.execute(step, payload);
                    host.responder.finish(outcome);
                }
            }
        }
        self.hosts[to].complete();
    }

    /// Runs until no event is left.
    pub(crate) fn run(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("no end in sight: {:?}", self.scenario);
    }

    /// Sends everything, and goes on to the next event. Returns false if no event is left.
    pub(crate) fn step(&mut self) -> bool {
        while self.transmit(A) | self.transmit(B) {}
        let next = self.events.peek().map(|Reverse(next)| next.0);
        let timer = |host: &Host| host.requester.poll_timeout();
        let timers = [timer(&self.hosts[A]), timer(&self.hosts[B])];
        let Some(now) = next.into_iter().chain(timers.into_iter().flatten()).min() else { return false };
        self.now = self.now.max(now);
        for host in &mut self.hosts {
            host.requester.handle_timeout(now);
        }
        // All events of this time are one batch: their answers are sent together.
        while let Some(&Reverse((time, number))) = self.events.peek() {
            if time > now {
                break;
            }
            self.events.pop();
            match self.waiting.remove(&number).expect("every event waits once") {
                Event::Packet { to, bytes, payload } => self.deliver(to, &bytes, &payload),
                Event::Notice { to } => self.hosts[to].requester.note_loss(now),
                Event::Receive { host, capacity } => self.hosts[host].receives.push_back(capacity),
                Event::Serve { host } => self.hosts[host].serves = true,
                Event::Room => {}
            }
        }
        true
    }

    /// The operations of the packets that `host` sent.
    pub(crate) fn operations(&self, host: usize) -> Vec<wire::Operation> {
        self.sent.iter().filter(|packet| packet.0 == host).map(|packet| packet.1.opcode.operation).collect()
    }

    pub(crate) fn count(&self, host: usize, operation: wire::Operation) -> usize {
        self.operations(host).into_iter().filter(|&sent| sent == operation).count()
    }
}
