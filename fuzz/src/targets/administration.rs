//! Requests to a subnet manager with subnet administration, after it has brought a subnet up.
//! Afterwards the manager sweeps again, and a path can still be found.

use crate::Feed;
use mad::topology::Topology;
use sm::sa::Peer;
use sm::service::{Outgoing, Service};
use sm::{Address, Config, Manager};
use std::sync::LazyLock;
use std::time::Duration;
use subnet::fabric::End;
use subnet::managed::{Datagram, Managed, Output};
use wire::layout::Layout;
use wire::mad::{CLASS_SA, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, Header, LEN, MAD_LEN, METHOD_GET, Mad};
use wire::sa::{self, PathRecord};
use wire::smp::PERMISSIVE_LID;

const FILE: &str = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n";
const MILLISECOND: u64 = 1_000_000_000;
const STEP: Duration = Duration::from_millis(1);

static TOPOLOGY: LazyLock<Topology> = LazyLock::new(|| Topology::from_text(FILE).expect("a subnet"));

/// A subnet with a manager at an adapter.
struct Subnet {
    net: Managed,
    service: Service,
    end: End,
    answers: Vec<Mad>,
}

pub(crate) fn run(bytes: &[u8]) {
    let mut feed = Feed(bytes);
    let mut subnet = Subnet::up();
    while !feed.is_empty() {
        let (what, lid, len) = (feed.byte(), feed.byte(), usize::from(feed.byte()));
        let mut mad = request(what >> 4, feed.byte().into());
        let body = feed.take(len);
        mad[24..24 + body.len().min(232)].copy_from_slice(&body[..body.len().min(232)]);
        let now = subnet.now();
        match what % 4 {
            0 => {
                mad[..24.min(body.len())].copy_from_slice(&body[..24.min(body.len())]);
                subnet.service.receive_management(Address::Lid { lid: lid.into(), sl: 0, qp: 0 }, &mad, now);
            }
            1 => subnet.pass(usize::from(lid)),
            _ => {
                let peer = Peer { lid: u16::from(lid) % 4, qpn: 1, pkey: 0xffff, ..Peer::default() };
                subnet.service.receive_administration(peer, &mad, now);
            }
        }
        subnet.pass(1);
    }
    well(&mut subnet);
}

/// A path from the manager's port to itself is found.
fn well(subnet: &mut Subnet) {
    subnet.service.sweep_now();
    subnet.wait_until_up();
    subnet.answers.clear();
    let lid = subnet.net.port_info(subnet.end).expect("a port").lid;
    let mut mad = [0; MAD_LEN];
    let component_mask = PathRecord::SLID | PathRecord::DLID;
    sa::Header { component_mask, ..sa::Header::default() }.write(&mut mad);
    mad[..LEN].copy_from_slice(&request(0, PathRecord::ATTRIBUTE)[..LEN]);
    PathRecord { slid: lid, dlid: lid, ..PathRecord::default() }.write(&mut mad[sa::DATA..]);
    let peer = Peer { lid, qpn: 1, pkey: 0xffff, ..Peer::default() };
    let now = subnet.now();
    subnet.service.receive_administration(peer, &mad, now);
    subnet.pass(2);
    assert!(subnet.answers.iter().any(|mad| Header::of(mad).attribute == PathRecord::ATTRIBUTE), "an answer");
}

fn request(method: u8, attribute: u16) -> Mad {
    let mut mad = [0; MAD_LEN];
    let method = [METHOD_GET, 2, 3, 0x12, 0x13, 0x14, 0x15, 6][usize::from(method) % 8];
    Header {
        base_version: 1,
        class: CLASS_SA,
        class_version: 2,
        method,
        attribute,
        transaction: 5,
        ..Header::default()
    }
    .emit_to(&mut mad);
    mad
}

impl Subnet {
    fn up() -> Self {
        let mut net = Managed::new(&TOPOLOGY).expect("it can be built");
        let end = End { node: net.id("H1").expect("a node"), port: 1 };
        let _ = net.attach(end);
        let guid = net.node(end.node).and_then(|node| node.port(1)).map_or(0, |port| port.guid);
        let service = Service::new(Manager::new(Config::default(), guid, 1));
        let mut subnet = Self { net, service, end, answers: Vec::new() };
        subnet.wait_until_up();
        subnet
    }

    fn wait_until_up(&mut self) {
        for _ in 0..20_000 {
            self.pass(1);
            if self.service.sa().is_some() && self.service.manager().is_idle() {
                return;
            }
        }
        panic!("the subnet does not come up");
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.net.now() / 1000)
    }

    /// Lets milliseconds pass.
    fn pass(&mut self, count: usize) {
        for _ in 0..count {
            let now = self.now() + STEP;
            for output in self.net.advance(self.net.now() + MILLISECOND) {
                self.take(&output, now);
            }
            if self.service.next_timeout().is_some_and(|due| due <= now) {
                self.service.handle_timeout(now);
            }
            self.send();
            while self.service.poll_event().is_some() {}
        }
    }

    fn take(&mut self, output: &Output, now: Duration) {
        let Output::Datagram(delivered) = output else { return };
        let Datagram { source_qp, dest_qp, slid, sl, pkey, mad, .. } = &delivered.datagram;
        match (dest_qp, Header::of(mad).class) {
            (0, CLASS_SUBN_DIRECTED) => self.service.receive_management(Address::Directed, mad, now),
            (0, CLASS_SUBN_LID) => {
                let from = Address::Lid { lid: *slid, sl: *sl, qp: *source_qp };
                self.service.receive_management(from, mad, now);
            }
            (_, CLASS_SA) => {
                let peer = Peer { lid: *slid, qpn: *source_qp, pkey: *pkey, sl: *sl, gid: None };
                self.service.receive_administration(peer, mad, now);
            }
            _ => self.net.refuse(delivered),
        }
    }

    fn send(&mut self) {
        let slid = self.net.port_info(self.end).map_or(0, |info| info.lid);
        while let Some(outgoing) = self.service.poll_transmit() {
            let datagram = match outgoing {
                Outgoing::Management(Address::Directed, mad) => Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, 0, mad),
                Outgoing::Management(Address::Lid { lid, sl, .. }, mad) => Datagram::smp(slid, lid, sl, mad),
                Outgoing::Administration(peer, mad) => {
                    self.answers.push(mad);
                    Datagram::gmp(slid, peer.lid, peer.sl, mad)
                }
            };
            let _ = self.net.send(self.end, &datagram);
        }
    }
}
