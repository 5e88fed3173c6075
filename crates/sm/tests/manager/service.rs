//! The manager with subnet administration, asked by other ports of the fabric.

use crate::net::{MS, SECOND, SMALL, duration};
use mad::topology::Topology;
use softhca_sm::sa::Peer;
use softhca_sm::service::Outgoing;
use softhca_sm::{Address, Config, Manager, Service};
use subnet::fabric::TRAINING;
use subnet::managed::{Datagram, Managed, Output};
use subnet::{CutBy, End};
use wire::layout::Layout;
use wire::mad::{CLASS_SA, CLASS_SUBN_DIRECTED, Header, METHOD_DELETE, METHOD_GET, METHOD_SET, Mad};
use wire::sa::{DATA, GuidInfoRecord, McMemberRecord, PathRecord};
use wire::smp::PERMISSIVE_LID;

struct Site {
    managed: Managed,
    service: Service,
    end: End,
    /// What came out of other ports.
    others: Vec<Datagram>,
}

impl Site {
    fn up() -> Site {
        let mut managed = Managed::new(&Topology::from_text(SMALL).unwrap()).unwrap();
        managed.advance(2 * TRAINING);
        let end = End { node: managed.id("H1").unwrap(), port: 1 };
        managed.attach(end).unwrap();
        managed.attach(End { node: managed.id("H2").unwrap(), port: 1 }).unwrap();
        let guid = managed.node(end.node).unwrap().port(1).unwrap().guid;
        let service = Service::new(Manager::new(Config::default(), guid, 1));
        let mut site = Site { managed, service, end, others: Vec::new() };
        site.run(SECOND);
        assert!(site.service.sa().is_some());
        site
    }

    fn run(&mut self, time: subnet::Time) {
        let until = self.managed.now() + time;
        while self.managed.now() < until {
            self.service.handle_timeout(duration(self.managed.now()));
            let lid = self.managed.port_info(self.end).unwrap().lid;
            while let Some(outgoing) = self.service.poll_transmit() {
                let datagram = match outgoing {
                    Outgoing::Management(Address::Directed, mad) => {
                        Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, 0, mad)
                    }
                    Outgoing::Management(Address::Lid { lid: dlid, sl, .. }, mad) => Datagram::smp(lid, dlid, sl, mad),
                    Outgoing::Administration(to, mad) => {
                        Datagram { dest_qp: to.qpn, pkey: to.pkey, ..Datagram::gmp(lid, to.lid, to.sl, mad) }
                    }
                };
                let _ = self.managed.send(self.end, &datagram);
            }
            while self.service.poll_event().is_some() {}
            let next = self.managed.next_event().unwrap_or(until).min(self.managed.now() + MS);
            for output in self.managed.advance(next) {
                if let Output::Datagram(delivered) = output {
                    self.deliver(delivered.end, delivered.datagram);
                }
            }
        }
    }

    fn deliver(&mut self, end: End, datagram: Datagram) {
        let now = duration(self.managed.now());
        let Datagram { slid: lid, sl, source_qp: qp, pkey, .. } = datagram;
        if end != self.end {
            self.others.push(datagram);
        } else if datagram.dest_qp == 1 {
            self.service.receive_administration(Peer { lid, qpn: qp, pkey, sl, gid: None }, &datagram.mad, now);
        } else {
            let directed = Header::of(&datagram.mad).class == CLASS_SUBN_DIRECTED;
            let from = if directed { Address::Directed } else { Address::Lid { lid, sl, qp } };
            self.service.receive_management(from, &datagram.mad, now);
        }
    }

    /// H2 asks subnet administration. Returns the status and the record of the answer.
    fn ask<R: Layout>(&mut self, method: u8, attribute: u16, mask: u64, record: R) -> (u16, R) {
        let from = End { node: self.managed.id("H2").unwrap(), port: 1 };
        let info = self.managed.port_info(from).unwrap();
        let transaction = self.managed.now();
        let (base_version, class, class_version) = (1, CLASS_SA, 2);
        let header = Header { base_version, class, class_version, method, attribute, transaction, ..Header::default() };
        let mut mad: Mad = [0; 256];
        header.emit_to(&mut mad);
        mad[48..56].copy_from_slice(&mask.to_be_bytes());
        record.write(&mut mad[DATA..]);
        self.managed.send(from, &Datagram::gmp(info.lid, info.master_sm_lid, 0, mad)).unwrap();
        self.others.clear();
        let is_answer = |datagram: &&Datagram| Header::of(&datagram.mad).transaction == transaction;
        // Not longer than until the answer comes.
        let end = self.managed.now() + SECOND / 10;
        while self.managed.now() < end && !self.others.iter().any(|datagram| is_answer(&datagram)) {
            self.run(MS / 100);
        }
        let mad = self.others.iter().find(is_answer).unwrap().mad;
        (Header::of(&mad).status, R::read(&mad[DATA..]).unwrap())
    }

    fn gid(&self, name: &str) -> wire::cm::Gid {
        let node = self.managed.node(self.managed.id(name).unwrap()).unwrap();
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&[0xfe, 0x80]);
        gid[8..].copy_from_slice(&node.port(1).unwrap().guid.to_be_bytes());
        gid
    }
}

#[test]
fn a_path_is_answered_and_a_member_that_joins_is_in_the_multicast_tables() {
    let mut site = Site::up();
    let (sgid, dgid) = (site.gid("H2"), site.gid("H3"));
    let query = PathRecord { sgid, dgid, number: 1, ..PathRecord::default() };
    let mask = 1 << 2 | 1 << 3 | 1 << 12;
    let (status, path) = site.ask(METHOD_GET, PathRecord::ATTRIBUTE, mask, query);
    let h3 = site.managed.id("H3").unwrap();
    assert_eq!((status, path.dlid), (0, site.managed.node(h3).unwrap().port(1).unwrap().info.lid));

    let mgid = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let join = McMemberRecord { mgid, port_gid: sgid, join_state: McMemberRecord::FULL, ..McMemberRecord::default() };
    let (status, member) = site.ask(METHOD_SET, McMemberRecord::ATTRIBUTE, 1 | 1 << 1 | 1 << 16, join);
    assert_eq!((status, member.qkey), (0, 0x0b1b), "the broadcast group of the default partition");
    let switch = site.managed.node(site.managed.id("S1").unwrap()).unwrap().switch.as_ref().unwrap();
    // S1 port 2 leads to H2.
    assert_eq!(switch.multicast[usize::from(member.mlid - 0xc000)][0] & 1 << 2, 1 << 2);
}

#[test]
fn an_alias_guid_is_in_the_table_of_its_port_until_it_is_deleted() {
    let mut site = Site::up();
    let h2 = End { node: site.managed.id("H2").unwrap(), port: 1 };
    let mut record = GuidInfoRecord { lid: site.managed.port_info(h2).unwrap().lid, block: 1, ..Default::default() };
    record.table.guids[3] = 0xa1a5;
    let mask = GuidInfoRecord::LID | GuidInfoRecord::BLOCK | 1 << 7;
    for (method, guid) in [(METHOD_SET, 0xa1a5), (METHOD_DELETE, 0)] {
        let (status, answer) = site.ask(method, GuidInfoRecord::ATTRIBUTE, mask, record);
        assert_eq!((status, answer.table.guids[3]), (0, guid));
        let port = site.managed.node(h2.node).unwrap().port(1).unwrap();
        assert_eq!((port.guids[0], port.guids[11]), (port.guid, guid));
    }
}

impl Site {
    /// How long a node gets no answer of subnet administration, if it asks every few milliseconds.
    fn silence(&mut self, name: &str) -> subnet::Time {
        let from = End { node: self.managed.id(name).unwrap(), port: 1 };
        let begin = self.managed.now();
        self.others.clear();
        while self.others.iter().all(|datagram| Header::of(&datagram.mad).transaction < begin) {
            assert!(self.managed.now() < begin + 20 * SECOND, "no answer to {name}");
            let info = self.managed.port_info(from).unwrap();
            let header = Header {
                base_version: 1,
                class: CLASS_SA,
                class_version: 2,
                method: METHOD_GET,
                attribute: wire::class_port_info::ClassPortInfo::ATTRIBUTE,
                transaction: self.managed.now(),
                ..Header::default()
            };
            let mut mad: Mad = [0; 256];
            header.emit_to(&mut mad);
            let _ = self.managed.send(from, &Datagram::gmp(info.lid, info.master_sm_lid, 0, mad));
            self.run(5 * MS);
        }
        self.managed.now() - begin
    }
}

/// A link is cut at any moment of a sweep. Requests on their way through the link are lost. Neither
/// the sweep nor those who ask wait until the manager has repeated them.
#[test]
fn subnet_administration_answers_soon_after_a_link_is_cut_in_a_sweep() {
    let mut longest = 0;
    for (port, name) in [(7, "H3"), (6, "H4")] {
        for at in 0..12 {
            let mut site = Site::up();
            let node = site.managed.id(name).unwrap();
            site.managed.attach(End { node, port: 1 }).unwrap();
            site.service.sweep_now();
            site.run(at * MS / 100);
            site.managed.cut(End { node: site.managed.id("S1").unwrap(), port }, CutBy::Operator);
            longest = longest.max(site.silence(name));
        }
    }
    assert!((100 * MS..500 * MS).contains(&longest), "{} ms", longest / MS);
}
