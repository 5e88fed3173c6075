//! False datagrams, and users that make arbitrary calls at any time. Other connections do not
//! change, nothing panics, and no id remains.

use super::world::{A, B, Random, World};
use softhca_protocol::cm::{
    Attribute, Cm, CmState, Config, Dropped, Event, Gid, Id, Mad, Origin, Output, Reason, Reply, Request, SidrReply,
    SidrRequest, Suggestion, TransportType,
};
use wire::Qpn;
use wire::cm::{Apr, AprStatus, Drep, Dreq, Lap, Message, Mra, Mraed, Rej, Rejected, Rep, Req, Rtu, SidrRep};

/// Every message that names a connection, with these numbers.
fn all_about(local_comm_id: u32, remote_comm_id: u32, remote_qpn: Qpn) -> Vec<Message> {
    let mra = Mra { local_comm_id, remote_comm_id, message: Mraed::Rep, ..Mra::default() };
    vec![
        Message::Mra(mra),
        Message::Mra(Mra { message: Mraed::Req, ..mra }),
        Message::Mra(Mra { message: Mraed::Lap, ..mra }),
        Message::Rej(Rej { local_comm_id, remote_comm_id, ..Rej::new(Reason::CONSUMER_DEFINED) }),
        Message::Rej(Rej { local_comm_id, remote_comm_id, message: Rejected::Rep, ..Rej::new(Reason::TIMEOUT) }),
        Message::Rep(Rep { local_comm_id, remote_comm_id, ..Rep::default() }),
        Message::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
        Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, ..Dreq::default() }),
        Message::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
        Message::Lap(Lap { local_comm_id, remote_comm_id, remote_qpn, ..Lap::default() }),
        Message::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() }),
        Message::SidrRep(SidrRep { request_id: remote_comm_id, ..SidrRep::default() }),
    ]
}

#[test]
fn messages_from_another_address_are_dropped() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    for (host, id) in [(A, active), (B, passive)] {
        let facts = world.hosts[host].cm.connection(id).unwrap();
        let mut from = world.path(1 - host, host).origin();
        from.source[15] = 99;
        for message in all_about(facts.remote_comm_id, facts.local_comm_id, facts.local_qpn) {
            let dropped = world.hosts[host].cm.on_mad(world.now, &from, &message.emit(1, 0)).unwrap_err();
            let (message, comm_id) = (message.attribute(), facts.local_comm_id);
            assert_eq!(dropped, Dropped::Foreign { message, comm_id, from: from.source });
            assert!(dropped.to_string().ends_with("from ::ffff:10.77.0.99, which is not the connection's peer"));
            assert!(world.hosts[host].cm.poll_output().is_none());
        }
        assert_eq!(world.state(host, id), CmState::Established);
    }
}

#[test]
fn messages_with_a_wrong_communication_id_are_dropped() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    for (host, id) in [(A, active), (B, passive)] {
        let facts = world.hosts[host].cm.connection(id).unwrap();
        for message in all_about(facts.remote_comm_id ^ 1, facts.local_comm_id, facts.local_qpn) {
            let refused = world.claim(1 - host, host, &message);
            assert!(
                matches!(refused, Err(Dropped::Mismatch { .. } | Dropped::Unexpected { .. })),
                "{message}: {refused:?}"
            );
        }
        for message in all_about(facts.remote_comm_id, facts.local_comm_id ^ 1, facts.local_qpn) {
            let refused = world.claim(1 - host, host, &message);
            assert!(matches!(refused, Err(Dropped::Unknown { .. })), "{message}: {refused:?}");
        }
        let wrong = Qpn::new(facts.local_qpn.value() + 1);
        let dreq = Dreq {
            local_comm_id: facts.remote_comm_id,
            remote_comm_id: facts.local_comm_id,
            remote_qpn: wrong,
            ..Dreq::default()
        };
        assert!(matches!(world.claim(1 - host, host, &Message::Dreq(dreq)), Err(Dropped::Mismatch { .. })));
        assert_eq!(world.state(host, id), CmState::Established);
    }
    world.run();
    assert_eq!((world.state(A, active), world.state(B, passive)), (CmState::Established, CmState::Established));
}

#[test]
fn a_request_speaks_for_nobody_else() {
    let mut world = World::new();
    world.request(A, B);
    let (_, Message::Req(req)) = world.sent[0] else { panic!() };
    let mut other = req;
    other.primary.local_gid[15] = 99;
    assert!(matches!(world.claim(A, B, &Message::Req(other)), Err(Dropped::Foreign { .. })));
    // Another host names the queue pair of a connection: the connection stays.
    let (active, passive) = world.connect(A, B);
    let facts = world.hosts[B].cm.connection(passive).unwrap();
    let mut from = world.path(A, B).origin();
    from.source[15] = 99;
    let mut lie = Req { local_comm_id: 7, local_qpn: facts.remote_qpn, ..req };
    lie.primary.local_gid = from.source;
    world.hosts[B].cm.on_mad(world.now, &from, &Message::Req(lie).emit(1, 0)).unwrap();
    assert_eq!((world.state(A, active), world.state(B, passive)), (CmState::Established, CmState::Established));
}

#[test]
fn requests_that_cannot_be_are_rejected_with_what_could() {
    let mut world = World::new();
    world.request(A, B);
    let (_, Message::Req(req)) = world.sent[0] else { panic!() };
    let mut elsewhere = req;
    elsewhere.primary.remote_gid[15] = 99;
    let gid = world.hosts[B].gid;
    for (req, reason, info) in [
        (Req { transport: TransportType::Rd, ..req }, Reason::INVALID_TRANSPORT_TYPE, &[][..]),
        (Req { transport: TransportType::Unknown(6), ..req }, Reason::INVALID_TRANSPORT_TYPE, &[]),
        (Req { mtu: 0, ..req }, Reason::INVALID_MTU, &[5]),
        (Req { mtu: 6, ..req }, Reason::INVALID_MTU, &[5]),
        (elsewhere, Reason::INVALID_GID, &gid[..]),
    ] {
        let message = Attribute::Req;
        assert_eq!(world.claim(A, B, &Message::Req(req)), Err(Dropped::Rejected { message, reason }));
        let Some((B, Message::Rej(rej))) = world.sent.last() else { panic!("{:?}", world.sent.last()) };
        assert_eq!((rej.reason, rej.told(), rej.remote_comm_id), (reason, info, req.local_comm_id));
    }
    // The sender of another version gets a REJ.
    let mut mad = Message::Req(req).emit(1, 0);
    mad[2] = 3;
    let origin = world.path(A, B).origin();
    assert!(world.hosts[B].cm.on_mad(world.now, &origin, &mad).is_err());
    world.collect(B);
    assert!(matches!(world.sent.last(), Some((B, Message::Rej(rej))) if rej.reason == Reason::INVALID_CLASS_VERSION));
    assert_eq!(world.counts(B).ids, 0);
}

#[test]
fn a_rej_without_our_id_declines_the_connection_of_its_adapter() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.lose.push((B, Attribute::Rep));
    world.reply(B, passive);
    world.call(A, |cm, now| cm.destroy(now, id)).unwrap();
    world.run_for(1);
    assert_eq!(world.state(B, passive), CmState::Declined);
    world.run();
    assert_eq!(world.counts(A).ids, 0);
}

/// A user that makes arbitrary calls, and a network that delivers arbitrary datagrams.
struct Chaos {
    cm: [Cm; 2],
    gids: [Gid; 2],
    ids: [Vec<Id>; 2],
    mads: Vec<(usize, Origin, Mad)>,
    random: Random,
    now: softhca_protocol::Time,
}

impl Chaos {
    fn new(seed: u64) -> Chaos {
        let mut random = Random(seed);
        let gids = [[1; 16], [2; 16]];
        let config =
            Config { secret: random.next(), ids: 24, undecided: 8, resting: 6, patience: random.below(16) as u8 };
        let cm = [Cm::new(config), Cm::new(Config { secret: random.next(), ..config })];
        Chaos { cm, gids, ids: Default::default(), mads: Vec::new(), random, now: softhca_protocol::Time(5) }
    }

    fn path(&mut self, host: usize) -> softhca_protocol::cm::Path {
        let to = if self.random.percent(20) { host } else { 1 - host };
        softhca_protocol::cm::Path {
            sgid: self.gids[host],
            dgid: self.gids[to],
            mtu: 3,
            packet_life: self.random.below(16) as u8,
            ..Default::default()
        }
    }

    fn collect(&mut self, host: usize) {
        while let Some(output) = self.cm[host].poll_output() {
            match output {
                Output::Send { path, mad, .. } => {
                    if let Some(to) = self.gids.iter().position(|gid| *gid == path.dgid) {
                        self.mads.push((to, path.origin(), mad));
                    }
                }
                Output::Event(Event { id, .. }) => {
                    assert!(self.cm[host].state(id).is_ok(), "an event for an id that was destroyed");
                    if !self.ids[host].contains(&id) {
                        self.ids[host].push(id);
                    }
                }
            }
        }
        if self.mads.len() > 64 {
            self.mads.drain(..32);
        }
    }

    fn call(&mut self, host: usize) {
        let (now, path) = (self.now, self.path(host));
        let small = self.random.below(32) as u8;
        let ids = &self.ids[host];
        let Some(&id) = ids.get(self.random.below(ids.len() as u32) as usize) else {
            return self.ask(host);
        };
        let qpn = Qpn::new(self.random.below(12));
        let cm = &mut self.cm[host];
        let data = &[7; 230][..self.random.below(231) as usize];
        match self.random.below(14) {
            0 | 1 => return self.ask(host),
            2 | 3 => {
                let _ = cm.reply(now, id, &Reply { qpn, private_data: b"x", ..Reply::default() });
            }
            4 | 5 => {
                let _ = cm.ready(id, b"y");
            }
            6 => {
                let _ = cm.established_by_data(id);
            }
            7 => {
                let _ = cm.reject(now, id, Reason(u16::from(small)), &data[..data.len() / 3], data);
            }
            8 => {
                let _ = cm.forget(id);
            }
            9 => {
                let _ = cm.mra(id, small, data);
            }
            10 => {
                let _ = cm.disconnect(now, id, b"z");
            }
            11 => {
                let suggestion = Suggestion { path, remote_response_timeout: small, ..Suggestion::default() };
                let _ = cm.load_path(now, id, &suggestion);
                let _ = cm.answer_path(id, AprStatus(small / 16), &[], data);
            }
            12 => {
                let _ = cm.sidr_reply(now, id, &SidrReply { qpn, private_data: data, ..SidrReply::default() });
            }
            _ => {
                let _ = cm.destroy(now, id);
                self.ids[host].retain(|other| *other != id);
            }
        }
        assert!(self.cm[host].connection(id).is_ok() || self.cm[host].state(id).is_err());
    }

    fn ask(&mut self, host: usize) {
        let (now, path) = (self.now, self.path(host));
        let max_cm_retries = self.random.below(4) as u8;
        let remote_response_timeout = self.random.below(22) as u8;
        let qpn = Qpn::new(self.random.below(12));
        let asked = if self.random.percent(25) {
            let request = SidrRequest { path, max_cm_retries, remote_response_timeout, ..SidrRequest::default() };
            self.cm[host].sidr_request(now, &request)
        } else {
            let ca_guid = host as u64;
            let request = Request {
                path,
                qpn,
                ca_guid,
                max_cm_retries,
                remote_response_timeout,
                ack_timeout: 15,
                ..Request::default()
            };
            self.cm[host].request(now, &request)
        };
        self.ids[host].extend(asked);
    }

    fn deliver(&mut self) {
        if self.mads.is_empty() {
            return;
        }
        let (mut to, mut from, mut mad) = self.mads[self.random.below(self.mads.len() as u32) as usize];
        if self.random.percent(15) {
            for _ in 0..=self.random.below(3) {
                let place = [self.random.below(256), 24 + self.random.below(12), 17][self.random.below(3) as usize];
                mad[place as usize] =
                    if place == 17 { 0x10 + self.random.below(12) as u8 } else { self.random.next() as u8 };
            }
        }
        if self.random.percent(3) {
            from.source = [self.random.below(3) as u8; 16];
        }
        if self.random.percent(3) {
            to = 1 - to;
        }
        let _ = self.cm[to].on_mad(self.now, &from, &mad);
        self.collect(to);
    }

    fn check(&self) {
        for cm in &self.cm {
            let counts = cm.counts();
            assert!(counts.ids <= 24 && counts.undecided <= 8 && counts.resting <= 6, "{counts:?}");
            assert!(counts.timers <= counts.ids && counts.keys <= 2 * counts.ids, "{counts:?}");
        }
    }
}

#[test]
fn no_sequence_of_calls_and_datagrams_panics_or_leaks() {
    for seed in 0..300 {
        let mut chaos = Chaos::new(seed);
        for _ in 0..600 {
            let host = chaos.random.below(2) as usize;
            match chaos.random.below(10) {
                0..=3 => chaos.call(host),
                4..=8 => chaos.deliver(),
                _ => {
                    let steps = 1u64 << (12 + chaos.random.below(22));
                    chaos.now = chaos.now.after(chaos.random.next() % steps);
                    chaos.cm[host].on_time(chaos.now);
                }
            }
            chaos.collect(host);
            chaos.check();
        }
        chaos.mads.clear();
        for host in [A, B] {
            for id in std::mem::take(&mut chaos.ids[host]) {
                let _ = chaos.cm[host].destroy(chaos.now, id);
            }
            let mut turns = 0;
            while let Some(next) = chaos.cm[host].next_time() {
                chaos.cm[host].on_time(next);
                while let Some(output) = chaos.cm[host].poll_output() {
                    assert!(matches!(output, Output::Send { .. }), "seed {seed}: {output:?}");
                }
                turns += 1;
                assert!(turns < 2000, "seed {seed}: it goes on for ever");
            }
            assert_eq!(chaos.cm[host].counts(), Default::default(), "seed {seed}");
        }
    }
}

#[test]
fn noise_is_dropped() {
    let mut random = Random(3);
    let mut cm = Cm::new(Config::default());
    let from = Origin::default();
    for _ in 0..20_000 {
        let mut mad: Mad = std::array::from_fn(|_| random.next() as u8);
        if random.percent(90) {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, 0x10 + random.below(12) as u8]);
        }
        let dropped = cm.on_mad(softhca_protocol::Time(1), &from, &mad);
        let sidr = mad[17] == 0x17;
        assert!(dropped.is_err() || sidr, "{dropped:?}");
        while cm.poll_output().is_some() {}
    }
    assert_eq!(cm.next_time(), None);
}
