//! Connections by the connection manager in simulated time. Programs on three hosts request
//! connections from each other, accept, reject, send one message in each direction, disconnect, or
//! die in the middle. Requests, replies and the packets of the queue pairs are lost, late,
//! duplicated and corrupted as the seed says. A seed decides everything, and a failed assertion
//! names it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Plan, Side};
use abi::cq::{Wc, status};
use abi::qp::{Dest, ModifyQp, attr};
use cm::{Channel, ConnParam, Event, EventKind, Id, PortSpace, QpAttributes, QpKind, QpState};
use engine::{Engine, SendWr};
use fabric::simulation::{Conditions, Happened, HostId, Simulation};

/// Number of seeds.
const SEEDS: u64 = 200;
/// The port on which every program listens, and a port on which no program listens.
const PORT: u16 = 7471;
const NOBODYS: u16 = 7472;
const ADDRESSES: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
/// The cookie of the listening id.
const LISTENER: u64 = u64::MAX;
/// The REJ reason of the manager if no program has this service, and the REJ reason of a program.
const NO_SERVICE: i32 = 8;
const OF_PROGRAM: i32 = 28;
/// How late datagrams can be: later than the next ones; nearly as late as [`LIFE`]; later than
/// their retransmissions.
const EXTRA_DELAYS: [Duration; 3] = [Duration::from_micros(50), Duration::from_millis(250), Duration::from_secs(6)];
/// The maximal packet lifetime on a network that keeps its promise (code 16). The state of a
/// connection is kept for twice this time.
const LIFE: Duration = Duration::from_micros(268_435);
/// `IBV_EVENT_COMM_EST`.
const COMM_EST: u32 = 4;
/// Longer than all tries of a message take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Accepted,
    Rejected,
    /// No program listens.
    Vain,
}

/// One connection, or one failed request.
#[derive(Clone, Debug)]
struct Meeting {
    /// The host that requests, and the host that it requests from.
    way: [usize; 2],
    fate: Fate,
    /// The end that disconnects first.
    parts: usize,
    /// Whether the accepting end tells the manager that it has received a message on its queue
    /// pair.
    tells: bool,
    ends: [End; 2],
}

/// One end of a connection.
#[derive(Clone, Default)]
struct End {
    id: Option<Id>,
    side: Option<Arc<Side>>,
    /// The events since the request, in order.
    told: Vec<EventKind>,
    sent: bool,
    heard: bool,
    parted: bool,
    over: bool,
}

impl std::fmt::Debug for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { told, sent, heard, parted, over, .. } = self;
        write!(f, "{told:?} sent {sent} heard {heard} parted {parted} over {over}")
    }
}

impl End {
    fn has(&self, kind: EventKind) -> bool {
        self.told.contains(&kind)
    }
}

/// A program, which listens and requests connections.
struct Program {
    engine: Arc<Engine>,
    channel: Option<Channel>,
}

struct Story {
    seed: u64,
    simulation: Simulation,
    programs: Vec<Program>,
    meetings: Vec<Meeting>,
    /// The program that dies in the middle.
    dies: Option<usize>,
    /// Packets may be later than the maximal packet lifetime.
    packets_outlive_records: bool,
    /// Sides of ended connections. Registered memory must stay mapped, so they are kept.
    spent: Vec<Arc<Side>>,
}

fn modify(side: &Side, from: &QpAttributes) {
    let path = &from.ah_attr;
    side.modify(&ModifyQp {
        attr_mask: from.qp_attr_mask,
        qp_state: from.qp_state as u8,
        path_mtu: from.path_mtu as u8,
        qp_access_flags: from.qp_access_flags,
        pkey_index: from.pkey_index,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        dest: Dest {
            dgid: path.dgid,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            is_global: path.is_global,
            port_num: path.port_num,
            ..Dest::default()
        },
        ..ModifyQp::default()
    });
}

fn polled(side: &Side) -> Vec<Wc> {
    let mut all = Vec::new();
    for cq in [&side.scq, &side.rcq] {
        let mut wcs = [Wc::default(); 4];
        let count = cq.poll(&mut wcs).expect("a device");
        all.extend_from_slice(&wcs[..count]);
    }
    all
}

/// The message of an end: 100 bytes.
fn message(number: usize, end: usize) -> Vec<u8> {
    (0..100).map(|at| (at * 7 + number * 2 + end) as u8).collect()
}

impl Story {
    fn begin(seed: u64) -> Self {
        let mut simulation = Simulation::new(seed);
        let hosts: Vec<HostId> = ADDRESSES.map(|address| simulation.host(address).expect("a host")).into();
        let programs = hosts
            .iter()
            .map(|host| Program {
                engine: simulation.connect(*host).expect("an engine"),
                channel: Some(simulation.manager(*host).expect("a channel")),
            })
            .collect::<Vec<_>>();
        for program in &programs {
            let channel = program.channel.as_ref().expect("it has begun");
            let id = channel.create_id(LISTENER, PortSpace::TCP, QpKind::RC).expect("an id");
            let any: SocketAddr = ([0, 0, 0, 0], PORT).into();
            channel.bind(id, &any.into()).expect("bound");
            channel.listen(id, 64).expect("it listens");
        }
        let which = simulation.below(3) as usize;
        let mut part = |most: u64| simulation.below(most) as f64 / 100.0;
        let conditions = Conditions {
            loss: part(12),
            duplication: part(12),
            reordering: part(12),
            corruption: part(6),
            extra_delay: EXTRA_DELAYS[which],
            pauses: 0.1,
            ..Conditions::default()
        };
        simulation.set_conditions(conditions);
        let count = 4 + simulation.below(5) as usize;
        let meetings = (0..count).map(|_| Meeting::drawn(&mut simulation)).collect();
        for number in 0..count as u64 {
            let when = Duration::from_micros(simulation.below(3000));
            simulation.alarm(when, number);
        }
        let dies = (simulation.below(4) == 0).then(|| simulation.below(3) as usize);
        if dies.is_some() {
            let when = Duration::from_micros(simulation.below(6000));
            simulation.alarm(when, LISTENER);
        }
        Self {
            seed,
            simulation,
            programs,
            meetings,
            dies,
            packets_outlive_records: EXTRA_DELAYS[which] > LIFE,
            spent: Vec::new(),
        }
    }

    fn channel(&self, host: usize) -> &Channel {
        self.programs[host].channel.as_ref().expect("it has not ended")
    }

    /// Resolves the address, unless the program has died.
    fn ask(&mut self, number: usize) {
        let Meeting { way, fate, .. } = self.meetings[number];
        if self.programs[way[0]].channel.is_none() {
            self.meetings[number].ends[0].over = true;
            return;
        }
        let channel = self.channel(way[0]);
        let port = if fate == Fate::Vain { NOBODYS } else { PORT };
        let id = channel.create_id(number as u64 * 2, PortSpace::TCP, QpKind::RC).expect("an id");
        let to: SocketAddr = format!("{}:{port}", ADDRESSES[way[1]]).parse().expect("an address");
        channel.resolve_addr(id, None, &to.into(), 1000).expect("it is looked for");
        self.meetings[number].ends[0].id = Some(id);
    }

    /// A queue pair in INIT with one receive posted.
    fn side(&self, host: usize, id: Id) -> Arc<Side> {
        let side = Side::new(&self.programs[host].engine, &Plan { memory: 4096, ..Plan::rc() });
        let mut init = self.channel(host).qp_attributes(id, QpState::INIT).expect("attributes");
        init.qp_attr_mask |= attr::ACCESS_FLAGS;
        modify(&side, &init);
        side.recv(1, 2048, 1024);
        Arc::new(side)
    }

    /// Brings an end's queue pair to RTS.
    fn ready(&self, host: usize, id: Id, side: &Side) -> cm::Result<()> {
        for state in [QpState::RTR, QpState::RTS] {
            let mut attributes = self.channel(host).qp_attributes(id, state)?;
            attributes.qp_attr_mask |= match state {
                QpState::RTR => attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER,
                _ => attr::MAX_QP_RD_ATOMIC,
            };
            modify(side, &attributes);
        }
        Ok(())
    }

    /// Whether the call succeeded. It may fail only if the program at either end of the connection
    /// has died.
    fn unless_ended(&self, number: usize, result: cm::Result<()>) -> bool {
        let ended = self.dies.is_some_and(|dies| self.meetings[number].way.contains(&dies));
        result.inspect_err(|error| assert!(ended, "seed {}: {number}: {error}", self.seed)).is_ok()
    }

    fn send(&mut self, number: usize, end: usize) {
        let side = self.meetings[number].ends[end].side.as_ref().expect("a queue pair");
        let bytes = message(number, end);
        side.memory.put(0, &bytes);
        side.post(&SendWr { wr_id: 2, sges: &side.sge(0, bytes.len()), ..SendWr::default() });
    }

    /// Answers a request that has arrived.
    fn on_request(&mut self, host: usize, event: &Event) {
        let seed = self.seed;
        let number = usize::from(event.conn().private_data[0]);
        let meeting = &self.meetings[number];
        assert_eq!((meeting.way[1], event.cookie), (host, LISTENER), "seed {seed}: it is another's");
        if self.packets_outlive_records && meeting.ends[1].over && meeting.fate == Fate::Accepted {
            // A duplicate that is older than every record of it. The requester has no record
            // either, and the answer does not harm it.
            self.channel(host).destroy_id(event.id).expect("ended");
            return;
        }
        // The manager remembers a rejection for some duplicates of the request. If the rejection is
        // lost each time, the program rejects once more.
        let again = meeting.fate == Fate::Rejected;
        assert!(again || meeting.ends[1].id.is_none(), "seed {seed}: {number} is asked for twice, {meeting:?}");
        assert_eq!(event.conn().private_data[..3], [number as u8, 1, 2], "seed {seed}");
        let fate = meeting.fate;
        self.meetings[number].ends[1].id = Some(event.id);
        match fate {
            Fate::Vain => unreachable!("seed {seed}: nobody listens there"),
            Fate::Rejected => {
                let rejected = self.channel(host).reject(event.id, OF_PROGRAM as u8, &[number as u8, 3]);
                self.unless_ended(number, rejected);
                self.end(number, 1);
            }
            Fate::Accepted => {
                let side = self.side(host, event.id);
                let ready = self.ready(host, event.id, &side);
                if !self.unless_ended(number, ready) {
                    return self.end(number, 1);
                }
                let words = [number as u8, 4];
                let param = ConnParam { qp_num: side.qp.qpn(), ..param(&words) };
                self.meetings[number].ends[1].side = Some(side);
                let accepted = self.channel(host).accept(event.id, number as u64 * 2 + 1, &param);
                if !self.unless_ended(number, accepted) {
                    self.end(number, 1);
                }
            }
        }
    }

    fn on_event(&mut self, host: usize, event: &Event) {
        let seed = self.seed;
        if event.kind == EventKind::CONNECT_REQUEST {
            return self.on_request(host, event);
        }
        let (number, end) = ((event.cookie / 2) as usize, (event.cookie % 2) as usize);
        let meeting = &mut self.meetings[number];
        assert_eq!(meeting.way[end], host, "seed {seed}: an event of another's {number}: {:?}", event.kind);
        assert!(!meeting.ends[end].over, "seed {seed}: {number} is over, and is told {:?}: {meeting:?}", event.kind);
        meeting.ends[end].told.push(event.kind);
        let told = &meeting.ends[end].told;
        let times = told.iter().filter(|kind| **kind == event.kind).count();
        assert_eq!(times, 1, "seed {seed}: {number} is told twice: {meeting:?}");
        let channel = self.programs[host].channel.as_ref().expect("it has not ended");
        match event.kind {
            EventKind::ADDR_RESOLVED => channel.resolve_route(event.id, 1000).expect("it is looked for"),
            EventKind::ROUTE_RESOLVED => {
                let side = self.side(host, event.id);
                let words = [number as u8, 1, 2];
                let param = ConnParam { qp_num: side.qp.qpn(), ..param(&words) };
                self.channel(host).connect(event.id, &param).expect("asked");
                self.meetings[number].ends[0].side = Some(side);
            }
            EventKind::CONNECT_RESPONSE => {
                assert_eq!((end, meeting.fate), (0, Fate::Accepted), "seed {seed}: {number}");
                assert_eq!(event.conn().private_data[..2], [number as u8, 4], "seed {seed}");
                let side = Arc::clone(meeting.ends[0].side.as_ref().expect("it has asked"));
                let ready = self.ready(host, event.id, &side).and_then(|()| self.channel(host).establish(event.id));
                // If this fails, the next event says that the connection has ended.
                if self.unless_ended(number, ready) {
                    self.send(number, 0);
                }
            }
            EventKind::ESTABLISHED => {
                assert_eq!((end, meeting.fate), (1, Fate::Accepted), "seed {seed}: {number}");
                self.send(number, 1);
            }
            EventKind::REJECTED => {
                let (expected, data) = match meeting.fate {
                    Fate::Vain => (NO_SERVICE, &[][..]),
                    _ => (OF_PROGRAM, &[number as u8, 3][..]),
                };
                let as_planned = event.status == expected && event.conn().private_data.starts_with(data);
                let right = meeting.fate != Fate::Accepted && as_planned || self.dies.is_some();
                assert!(right, "seed {seed}: {number} is rejected: {} {:?}", event.status, event.reason);
                self.end(number, end);
            }
            EventKind::DISCONNECTED if !meeting.ends[end].parted => {
                meeting.ends[end].parted = true;
                // The answer to a disconnect request. If both ends disconnect at once, there is
                // nothing to answer.
                let _ = channel.disconnect(event.id);
            }
            EventKind::DISCONNECTED => {}
            EventKind::TIMEWAIT_EXIT => self.end(number, end),
            EventKind::UNREACHABLE => {
                assert!(self.dies.is_some(), "seed {seed}: {number} gives up: {:?}", event.reason);
                self.end(number, end);
            }
            other => panic!("seed {seed}: {number} is told {other:?}: {:?}", event.reason),
        }
    }

    /// Ends one end of a connection.
    fn end(&mut self, number: usize, end: usize) {
        let channel = self.programs[self.meetings[number].way[end]].channel.as_ref().expect("it has not ended");
        let this = &mut self.meetings[number].ends[end];
        channel.destroy_id(this.id.expect("it has begun")).expect("ended");
        this.over = true;
        if let Some(side) = this.side.take() {
            side.qp.destroy().expect("destroyed");
            self.spent.push(side);
        }
    }

    /// Polls the queue pairs, and disconnects connections whose messages have all arrived.
    fn look(&mut self) {
        let seed = self.seed;
        for number in 0..self.meetings.len() {
            for end in 0..2 {
                let Some(side) = self.meetings[number].ends[end].side.clone() else { continue };
                for wc in polled(&side) {
                    // An end that disconnects destroys its queue pair, and a program that dies
                    // loses its queue pairs.
                    let parted = self.meetings[number].ends.iter().any(|end| end.parted) || self.dies.is_some();
                    assert!(wc.status == status::SUCCESS || parted, "seed {seed}: {number} ends with {}", wc.status);
                    if wc.status != status::SUCCESS {
                        continue;
                    }
                    if wc.wr_id == 2 {
                        self.meetings[number].ends[end].sent = true;
                        continue;
                    }
                    let there = side.memory.get(2048, wc.byte_len as usize);
                    assert!(there == message(number, 1 - end), "seed {seed}: {number} got another message");
                    self.meetings[number].ends[end].heard = true;
                    let Meeting { way, tells, ends, .. } = &self.meetings[number];
                    if *tells && end == 1 && !ends[1].has(EventKind::ESTABLISHED) {
                        let told = self.channel(way[1]).notify(ends[1].id.expect("accepted"), COMM_EST);
                        self.unless_ended(number, told);
                    }
                }
            }
            let Meeting { way, parts, ends, .. } = &self.meetings[number];
            let all = ends.iter().all(|end| end.sent && end.heard && !end.over);
            if all && !ends[*parts].parted && !ends[*parts].has(EventKind::DISCONNECTED) {
                let id = ends[*parts].id.expect("connected");
                self.channel(way[*parts]).disconnect(id).expect("it is connected");
                let parts = *parts;
                self.meetings[number].ends[parts].parted = true;
            }
        }
    }

    /// A program dies, with its ids and its queue pairs.
    fn die(&mut self) {
        let dies = self.dies.expect("somebody");
        self.programs[dies].channel = None;
        self.programs[dies].engine.close();
        for meeting in &mut self.meetings {
            let ends = meeting.way.iter().zip(&mut meeting.ends).filter(|(host, _)| **host == dies);
            for (_, end) in ends {
                end.over = true;
                self.spent.extend(end.side.take());
            }
        }
    }

    fn is_over(&self) -> bool {
        let over = |meeting: &Meeting| {
            let [asks, asked] = &meeting.ends;
            asks.over && (asked.over || asked.id.is_none())
        };
        self.meetings.iter().all(over)
    }

    fn go_on(&mut self) {
        while !self.is_over() {
            let (seed, now) = (self.seed, self.simulation.now());
            assert!(now < 4 * PATIENCE, "seed {seed}: no end: {:#?}", self.meetings);
            let happened = self.simulation.step();
            let dead = self.dies.is_some_and(|dies| self.programs[dies].channel.is_none());
            match happened {
                Some(Happened::Alarm(LISTENER)) => self.die(),
                Some(Happened::Alarm(number)) => self.ask(number as usize),
                Some(_) => {}
                None => assert!(dead, "seed {seed}: nothing happens any more: {:#?}", self.meetings),
            }
            for host in 0..self.programs.len() {
                while let Some(channel) = &self.programs[host].channel
                    && let Some(event) = channel.try_event().expect("an agent")
                {
                    self.on_event(host, &event);
                }
            }
            self.look();
            if dead && (happened.is_none() || self.simulation.now() > PATIENCE) {
                self.give_up_on_the_dead();
            }
        }
    }

    /// Ends the connections to the program that has died. Its peer may know only that its own queue
    /// pair is in error, or know nothing: a peer that has accepted waits for a message that never
    /// arrives.
    fn give_up_on_the_dead(&mut self) {
        for number in 0..self.meetings.len() {
            for end in 0..2 {
                let Meeting { way, ends, .. } = &self.meetings[number];
                if self.dies == Some(way[1 - end]) && ends[end].id.is_some() && !ends[end].over {
                    self.end(number, end);
                }
            }
        }
    }
}

/// The parameters of all connections.
fn param(private_data: &[u8]) -> ConnParam<'_> {
    ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        private_data,
        ..ConnParam::default()
    }
}

impl Meeting {
    fn drawn(simulation: &mut Simulation) -> Self {
        let way = [simulation.below(3) as usize, simulation.below(3) as usize];
        let fate = match simulation.below(8) {
            0 => Fate::Vain,
            1 | 2 => Fate::Rejected,
            _ => Fate::Accepted,
        };
        let (parts, tells) = (simulation.below(2) as usize, simulation.below(2) == 0);
        Self { way, fate, parts, tells, ends: <[End; 2]>::default() }
    }
}

/// Checks that each request ends as planned, once, and that nothing happens after the end. Returns
/// the digest and the number of connections.
fn tell(seed: u64) -> (u64, usize) {
    let mut story = Story::begin(seed);
    story.go_on();
    let mut count = 0;
    for (number, Meeting { fate, ends: [asks, asked], way, .. }) in story.meetings.iter().enumerate() {
        if story.dies.is_some_and(|dies| way.contains(&dies)) {
            continue;
        }
        let connected = [EventKind::CONNECT_RESPONSE, EventKind::DISCONNECTED, EventKind::TIMEWAIT_EXIT];
        let right = match fate {
            Fate::Vain | Fate::Rejected => asks.told.last() == Some(&EventKind::REJECTED),
            Fate::Accepted => {
                count += 1;
                let all = [asks, asked].iter().all(|end| end.sent && end.heard && end.told.ends_with(&connected[1..]));
                all && asks.told[2] == connected[0] && asked.told[0] == EventKind::ESTABLISHED
            }
        };
        assert!(right, "seed {seed}: {number}, {fate:?}: {asks:?}, {asked:?}");
    }
    let Story { mut simulation, programs, .. } = story;
    programs.iter().for_each(|program| program.engine.close());
    drop(programs);
    // The managers answer retransmissions for ended connections for a while. After that, nothing
    // happens any more.
    let end = simulation.now() + 4 * PATIENCE;
    while simulation.step().is_some() {
        assert!(simulation.now() < end, "seed {seed}: something goes on for ever");
    }
    (simulation.digest(), count)
}

#[test]
fn each_request_has_its_end_once() {
    let connected: usize = (0..SEEDS).map(|seed| tell(seed).1).sum();
    assert!(connected > SEEDS as usize * 2, "only {connected} connections");
}

#[test]
fn a_seed_connects_twice_the_same() {
    for seed in (0..SEEDS).step_by(25) {
        assert_eq!(tell(seed), tell(seed), "seed {seed}");
    }
    assert_ne!(tell(1).0, tell(2).0);
}
