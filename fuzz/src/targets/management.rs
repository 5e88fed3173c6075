//! Management datagrams to the state machines of a port: its agents, the way of a directed route,
//! RMPP, registrations and transactions.

use crate::Feed;
use mad::dispatch::{Interest, Table};
use mad::node::Node;
use mad::rmpp::{Limits, Outcome, Receiver, Sender};
use mad::transactions::{Registration, Transactions};
use mad::traps::Traps;
use mad::{pma, sma, smi};
use std::time::Duration;
use wire::mad::{CLASS_SA, CLASS_SUBN_LID, Header, MAD_LEN, METHOD_GET, METHOD_GET_TABLE, Mad};
use wire::smp::{NodeInfo, NodeType, PortInfo, PortLink, PortVls, Smp, SwitchInfo};

const GUID: u64 = 0x77;
const PORTS: u8 = 20;
const LONGEST: usize = 4096;

pub(crate) fn run(bytes: &[u8]) {
    let mut feed = Feed(bytes);
    let mut node = node(feed.byte() & 1 != 0);
    let mut traps = Traps::default();
    let mut table = Table::default();
    let server = Interest { qpn: 1, class: CLASS_SA, version: 2, methods: 2, ..Interest::default() };
    let server = table.register(server).expect("the first client");
    let mut transactions = Transactions::default();
    let mut sender = Sender::new(&request(), vec![7; 1000], Duration::from_millis(20), 3).expect("a short message");
    let limits = Limits { longest: LONGEST, window: 8, patience: Duration::from_millis(500) };
    let mut receiver = Receiver::new(&request(), limits, Duration::ZERO);
    let mut now = Duration::ZERO;
    while !feed.is_empty() {
        now += Duration::from_millis(feed.byte().into());
        let (what, port, len) = (feed.byte(), feed.byte(), usize::from(feed.byte()));
        let mut datagram = [0; MAD_LEN];
        let body = feed.take(len);
        datagram[..body.len()].copy_from_slice(body);
        match what % 6 {
            0 => {
                let handled = sma::handle(&mut node, port, &Smp::parse(&datagram), now);
                handled.notice.into_iter().for_each(|notice| traps.push(notice));
                traps.repress(u64::from(port));
                traps.poll_transmit(&node.ports[1].info, now);
            }
            1 => {
                let mut smp = Smp::parse(&datagram);
                smi::step(&mut smp, what & 0x80 != 0, PORTS, Some(port));
            }
            2 => {
                let _ = (pma::handle(&mut node, &datagram, now), pma::unserved(&datagram));
            }
            3 => {
                sender.handle_timeout(now);
                while sender.poll_transmit(now).is_some() {}
                sender.handle(&datagram);
            }
            4 => {
                receiver.handle_timeout(now);
                receiver.handle(&datagram, now);
                receiver.poll_transmit();
                let message = receiver.take();
                assert!(message.is_none() || receiver.outcome() == Some(Outcome::Delivered));
                assert!(message.is_none_or(|message| message.len() <= LONGEST));
            }
            _ => {
                let header = Header::of(&datagram);
                let _ = transactions.begin(header, port, Duration::from_millis(5), port.into(), now);
                let _ = (transactions.answer(&header), transactions.poll(now));
                assert!(table.find(port.into(), &datagram).is_none_or(|found: Registration| found == server));
            }
        }
    }
    well(&mut node, now);
    assert_eq!(table.find(1, &request()), None);
}

/// A manager with the key is still served.
fn well(node: &mut Node, now: Duration) {
    let port = node.end_port(1);
    let mkey = node.port(port).expect("a port").info.mkey;
    let class = CLASS_SUBN_LID;
    let attribute = NodeInfo::ATTRIBUTE;
    let get = Smp { base_version: 1, class, class_version: 1, method: METHOD_GET, mkey, attribute, ..Smp::default() };
    let answer = sma::handle(node, 1, &get, now).answer.expect("an answer");
    assert_eq!((answer.status, NodeInfo::parse(&answer.data).node_guid), (0, GUID));
    for port in &node.ports {
        assert!(
            port.info.vls.operational <= port.info.vls.cap && port.info.link.neighbor_mtu <= port.info.link.mtu_cap
        );
    }
}

fn request() -> Mad {
    let mut mad = [0; MAD_LEN];
    let method = METHOD_GET_TABLE;
    Header { base_version: 1, class: CLASS_SA, class_version: 2, method, ..Header::default() }.emit_to(&mut mad);
    mad
}

fn node(is_switch: bool) -> Node {
    let kind = if is_switch { NodeType::Switch } else { NodeType::Ca };
    let link = PortLink { width_supported: 3, speed_supported: 7, mtu_cap: 5, ..PortLink::default() };
    let vls = PortVls { cap: 4, arbitration_low_cap: 8, arbitration_high_cap: 40, ..PortVls::default() };
    let port = PortInfo { link, vls, guid_cap: 16, ..PortInfo::default() };
    let info = NodeInfo { ports: PORTS, node_guid: GUID, partition_cap: 64, ..NodeInfo::default() };
    let switch = SwitchInfo { linear_cap: 0xc000, multicast_cap: 64, enforcement_cap: 32, ..SwitchInfo::default() };
    Node::new(kind, info, "", &port, switch)
}
