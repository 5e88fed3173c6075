//! The harness: hosts, a network and a clock. Principal types: [`World`], [`Host`], and [`Manner`],
//! the behaviour of a host's user.

pub(crate) use crate::random::Random;
use softhca_protocol::Time;
use softhca_protocol::cm::{
    Attribute, Cm, CmState, Config, Counts, Dropped, Event, Gid, Id, Kind, Mad, Origin, Output, Path, Reason, Reply,
    Request, SidrReply, SidrRequest,
};
use std::collections::{BTreeMap, VecDeque};
use wire::cm::Message;
use wire::{Psn, Qpn};

pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;
pub(crate) const SERVICE: u64 = 0x0106_1d2f;
/// A timeout code: 1.07 seconds.
pub(crate) const RESPONSE: u8 = 18;
pub(crate) const LIFE: u8 = 14;
pub(crate) const RETRIES: u8 = 7;
/// Nanoseconds that a datagram is on its way.
pub(crate) const LATENCY: u64 = 10_000;
/// The maximum time of a run.
const END: Time = Time(3_600_000_000_000);

/// Faults of the network, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Harm {
    pub loss: u32,
    pub duplication: u32,
    pub reordering: u32,
}

/// The behaviour of a host's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The user does nothing; the test makes the calls.
    Silent,
    /// The user agrees to everything, and destroys ids that have nothing more to do.
    Willing,
    /// Like `Willing`, but the user listens to no service.
    Deaf,
}

pub(crate) struct Host {
    pub cm: Cm,
    pub gid: Gid,
    pub ca_guid: u64,
    pub manner: Manner,
    pub events: Vec<Event>,
    pub dropped: Vec<Dropped>,
    next_qpn: u32,
}

impl Host {
    fn new(number: u8, config: Config) -> Host {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, number]);
        let secret = config.secret ^ u64::from(number) << 32 ^ 0x1234_5678;
        Host {
            cm: Cm::new(Config { secret, ..config }),
            gid,
            ca_guid: 0x5054_00ff_fe77_0000 + u64::from(number),
            manner: Manner::Silent,
            events: Vec::new(),
            dropped: Vec::new(),
            next_qpn: 0x10,
        }
    }

    /// The events of one id, without events of earlier ids with its index.
    pub(crate) fn events_of(&self, id: Id) -> Vec<Kind> {
        self.events.iter().filter(|event| event.id == id).map(|event| event.kind).collect()
    }

    pub(crate) fn new_qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }
}

pub(crate) struct World {
    pub now: Time,
    pub hosts: Vec<Host>,
    pub harm: Harm,
    pub random: Random,
    /// Messages to lose: each entry loses one.
    pub lose: Vec<(usize, Attribute)>,
    /// A host that no datagram reaches or leaves.
    pub cut_off: Option<usize>,
    /// Every message that was sent, by whom, in order; lost or not.
    pub sent: Vec<(usize, Message)>,
    /// The transactions of the messages that were sent.
    transactions: Vec<u64>,
    /// Whether to keep the messages that were sent.
    pub keeps: bool,
    network: BTreeMap<(Time, u64), (Gid, Origin, Mad)>,
    sequence: u64,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(Config::default(), 1)
    }

    pub(crate) fn with(config: Config, seed: u64) -> World {
        World {
            now: Time(1_000_000),
            hosts: vec![Host::new(1, config), Host::new(2, config)],
            harm: Harm::default(),
            random: Random(seed),
            lose: Vec::new(),
            cut_off: None,
            sent: Vec::new(),
            transactions: Vec::new(),
            keeps: true,
            network: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// Both users act by themselves.
    pub(crate) fn willing(mut self) -> World {
        for host in &mut self.hosts {
            host.manner = Manner::Willing;
        }
        self
    }

    pub(crate) fn path(&self, from: usize, to: usize) -> Path {
        Path {
            sgid: self.hosts[from].gid,
            dgid: self.hosts[to].gid,
            flow_label: 0xabcde,
            hop_limit: 64,
            pkey: 0xffff,
            mtu: 3,
            packet_life: LIFE,
            ..Path::default()
        }
    }

    /// A request of one host to another.
    pub(crate) fn asking(&mut self, from: usize, to: usize) -> Request<'static> {
        let path = self.path(from, to);
        let host = &mut self.hosts[from];
        let qpn = host.new_qpn();
        Request {
            path,
            service_id: SERVICE,
            ca_guid: host.ca_guid,
            qpn,
            psn: Psn::new(1000 + qpn.value()),
            responder_resources: 4,
            initiator_depth: 3,
            flow_control: true,
            retry_count: 6,
            rnr_retry_count: 5,
            ack_timeout: LIFE + 1,
            remote_response_timeout: RESPONSE,
            local_response_timeout: RESPONSE,
            max_cm_retries: RETRIES,
            private_data: b"from the one who asks",
            ..Request::default()
        }
    }

    pub(crate) fn request(&mut self, from: usize, to: usize) -> Id {
        let request = self.asking(from, to);
        let id = self.hosts[from].cm.request(self.now, &request).unwrap();
        self.collect(from);
        id
    }

    /// A reply that agrees.
    pub(crate) fn agreeing(&mut self, host: usize) -> Reply<'static> {
        let host = &mut self.hosts[host];
        let qpn = host.new_qpn();
        Reply {
            ca_guid: host.ca_guid,
            qpn,
            psn: Psn::new(2000 + qpn.value()),
            responder_resources: 2,
            initiator_depth: 7,
            target_ack_delay: 3,
            rnr_retry_count: 4,
            private_data: b"from the one who is asked",
            ..Reply::default()
        }
    }

    pub(crate) fn reply(&mut self, host: usize, id: Id) {
        let reply = self.agreeing(host);
        self.hosts[host].cm.reply(self.now, id, &reply).unwrap();
        self.collect(host);
    }

    pub(crate) fn sidr_request(&mut self, from: usize, to: usize) -> Id {
        let request = SidrRequest {
            owner: 0,
            path: self.path(from, to),
            service_id: SERVICE,
            remote_response_timeout: RESPONSE,
            max_cm_retries: RETRIES,
            private_data: b"who serves?",
        };
        let id = self.hosts[from].cm.sidr_request(self.now, &request).unwrap();
        self.collect(from);
        id
    }

    /// Calls a host's communication manager, and collects its output.
    pub(crate) fn call<R>(&mut self, host: usize, call: impl FnOnce(&mut Cm, Time) -> R) -> R {
        let result = call(&mut self.hosts[host].cm, self.now);
        self.collect(host);
        result
    }

    pub(crate) fn state(&self, host: usize, id: Id) -> CmState {
        self.hosts[host].cm.state(id).unwrap()
    }

    pub(crate) fn counts(&self, host: usize) -> Counts {
        self.hosts[host].cm.counts()
    }

    /// The id of the newest incoming request of a host.
    pub(crate) fn incoming(&self, host: usize) -> Id {
        let told = self.hosts[host].events.iter().rev();
        let mut requests = told.filter(|event| matches!(event.kind, Kind::Incoming { .. } | Kind::SidrIncoming { .. }));
        requests.next().expect("a request has come").id
    }

    /// Takes a host's output: datagrams to the network, events to its user.
    pub(crate) fn collect(&mut self, host: usize) {
        while let Some(output) = self.hosts[host].cm.poll_output() {
            match output {
                Output::Send { path, mad, .. } => self.send(host, path, mad),
                Output::Event(event) => {
                    self.hosts[host].events.push(event);
                    self.react(host, event);
                }
            }
        }
    }

    fn send(&mut self, host: usize, path: Path, mad: Mad) {
        let (header, message) = Message::parse(&mad).expect("what is sent can be read");
        assert_eq!(path.sgid, self.hosts[host].gid, "sent from a foreign address");
        if self.keeps {
            self.sent.push((host, message));
            self.transactions.push(header.transaction);
        }
        let wanted = (host, message.attribute());
        if let Some(place) = self.lose.iter().position(|lost| *lost == wanted) {
            self.lose.remove(place);
            return;
        }
        if self.cut_off == Some(host) || self.random.percent(self.harm.loss) {
            return;
        }
        let copies = 1 + u32::from(self.random.percent(self.harm.duplication));
        for _ in 0..copies {
            // Reordered datagrams arrive at any time within the packet life time.
            let late = if self.random.percent(self.harm.reordering) { self.random.below(60_000_000) } else { 0 };
            self.inject(path.dgid, path.origin(), mad, LATENCY + u64::from(late));
        }
    }

    /// Puts a datagram into the network as if it had been sent.
    pub(crate) fn inject(&mut self, to: Gid, origin: Origin, mad: Mad, delay: u64) {
        self.sequence += 1;
        self.network.insert((self.now.after(delay), self.sequence), (to, origin, mad));
    }

    /// Delivers a message from one host's address to another, now, and returns the result. A
    /// message that was sent before keeps its transaction.
    pub(crate) fn claim(&mut self, from: usize, to: usize, message: &Message) -> Result<(), Dropped> {
        let origin = self.path(from, to).origin();
        let place = self.sent.iter().position(|sent| *sent == (from, *message));
        let transaction = place.map_or(77, |place| self.transactions[place]);
        let result = self.hosts[to].cm.on_mad(self.now, &origin, &message.emit(transaction, 0));
        self.collect(to);
        result
    }

    fn react(&mut self, host: usize, Event { id, kind }: Event) {
        let now = self.now;
        let manner = self.hosts[host].manner;
        match (manner, kind) {
            (Manner::Silent, _) => return,
            (Manner::Willing, Kind::Incoming { .. }) => {
                let reply = self.agreeing(host);
                self.hosts[host].cm.reply(now, id, &reply).unwrap();
            }
            (Manner::Deaf, Kind::Incoming { .. }) => {
                self.hosts[host].cm.reject(now, id, Reason::INVALID_SERVICE_ID, &[], &[]).unwrap();
            }
            (_, Kind::Agreed { .. }) => self.hosts[host].cm.ready(id, b"ready").unwrap(),
            (_, Kind::DisconnectWanted(_)) => self.hosts[host].cm.disconnect(now, id, b"so be it").unwrap(),
            (_, Kind::SidrIncoming { .. }) => {
                let qpn = self.hosts[host].new_qpn();
                let reply = SidrReply { qpn, qkey: 0x0123_4567, ..SidrReply::default() };
                self.hosts[host].cm.sidr_reply(now, id, &reply).unwrap();
            }
            _ => {}
        }
        let done = [CmState::Idle, CmState::Declined, CmState::SidrAnswered];
        if self.hosts[host].cm.state(id).is_ok_and(|state| done.contains(&state)) {
            self.hosts[host].cm.destroy(now, id).unwrap();
        }
    }

    /// Handles the next datagram or timer, if there is one before `until`.
    pub(crate) fn step(&mut self, until: Time) -> bool {
        let packet = self.network.first_key_value().map(|((time, _), _)| *time);
        let timer = self.hosts.iter().filter_map(|host| host.cm.next_time()).min();
        let Some(next) = packet.into_iter().chain(timer).min().filter(|next| *next <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        if packet == Some(next) {
            let ((..), (to, origin, mad)) = self.network.pop_first().expect("it was there");
            if let Some(host) = self.hosts.iter().position(|host| host.gid == to).filter(|to| self.cut_off != Some(*to))
            {
                let dropped = self.hosts[host].cm.on_mad(self.now, &origin, &mad).err();
                self.hosts[host].dropped.extend(dropped.filter(|_| self.keeps));
                self.collect(host);
            }
            return true;
        }
        for host in 0..self.hosts.len() {
            let now = self.now;
            self.hosts[host].cm.on_time(now);
            self.collect(host);
        }
        true
    }

    /// Runs until no event is left.
    pub(crate) fn run(&mut self) {
        while self.step(END) {}
        assert!(self.hosts.iter().all(|host| host.cm.next_time().is_none()), "something goes on for ever");
    }

    /// Runs for so many milliseconds.
    pub(crate) fn run_for(&mut self, milliseconds: u64) {
        let until = self.now.after(milliseconds * 1_000_000);
        while self.step(until) {}
        self.now = until;
    }

    /// A host dies and restarts without memory.
    pub(crate) fn restart(&mut self, host: usize) {
        let secret = self.random.next();
        let old = &self.hosts[host];
        let number = old.gid[15];
        let (manner, next_qpn) = (old.manner, old.next_qpn);
        self.hosts[host] = Host { manner, next_qpn, ..Host::new(number, Config { secret, ..Config::default() }) };
    }

    /// The messages that were sent, in order.
    pub(crate) fn said(&self) -> Vec<(usize, Attribute)> {
        self.sent.iter().map(|(host, message)| (*host, message.attribute())).collect()
    }

    /// How often a host sent this message.
    pub(crate) fn times(&self, host: usize, attribute: Attribute) -> usize {
        self.said().iter().filter(|said| **said == (host, attribute)).count()
    }

    /// Connects two hosts, step by step.
    pub(crate) fn connect(&mut self, from: usize, to: usize) -> (Id, Id) {
        let active = self.request(from, to);
        self.run_for(1);
        let passive = self.incoming(to);
        self.reply(to, passive);
        self.run_for(1);
        self.call(from, |cm, _| cm.ready(active, b"ready")).unwrap();
        self.run_for(1);
        assert_eq!((self.state(from, active), self.state(to, passive)), (CmState::Established, CmState::Established));
        (active, passive)
    }

    /// Asserts that neither host holds anything.
    pub(crate) fn assert_empty(&self) {
        for (number, host) in self.hosts.iter().enumerate() {
            assert_eq!(host.cm.counts(), Counts::default(), "host {number} still holds something");
        }
    }
}

/// The outputs of a single communication manager.
pub(crate) fn outputs(cm: &mut Cm) -> VecDeque<Output> {
    std::iter::from_fn(|| cm.poll_output()).collect()
}
