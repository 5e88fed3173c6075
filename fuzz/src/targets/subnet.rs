//! Management datagrams from an adapter into a subnet of two switches, as a hostile program sends
//! them, and cables that are cut. The agents' answers stay well formed, and afterwards a node still
//! answers its own manager.

use crate::Feed;
use mad::topology::Topology;
use std::sync::LazyLock;
use subnet::CutBy;
use subnet::fabric::{End, NodeId};
use subnet::managed::{Datagram, Managed, Output};
use wire::mad::{CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, Header, MAD_LEN, METHOD_GET, Mad, RESPONSE};
use wire::smp::{NodeInfo, PERMISSIVE_LID, Smp};

const FILE: &str = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"S2\"[2]\n[3] \"S2\"[3]\n\nSwitch 4 \"S2\"\n[1] \"H2\"[1]\n\n\
                    Hca 1 \"H1\"\n\nHca 1 \"H2\"\n";
const MICROSECOND: u64 = 1_000_000;
/// Time for a datagram and its answer, and for links to train.
const WHILE: u64 = 3_000_000 * MICROSECOND;

static TOPOLOGY: LazyLock<Topology> = LazyLock::new(|| Topology::from_text(FILE).expect("a subnet"));

pub(crate) fn run(bytes: &[u8]) {
    let mut feed = Feed(bytes);
    let mut net = Managed::new(&TOPOLOGY).expect("it can be built");
    let end = |net: &Managed, name: &str| End { node: net.id(name).expect("a node"), port: 1 };
    let (attacker, victim) = (end(&net, "H1"), end(&net, "H2"));
    let _ = net.attach(attacker);
    net.advance(WHILE);
    while !feed.is_empty() {
        let (what, with, len) = (feed.byte(), feed.byte(), usize::from(feed.byte()));
        let mut mad = base(with);
        let body = feed.take(len);
        mad[..body.len()].copy_from_slice(body);
        match what % 8 {
            0 => net.cut(End { node: NodeId(u32::from(with) % 4), port: what >> 3 & 3 }, CutBy::Operator),
            1 => net.mend(End { node: NodeId(u32::from(with) % 4), port: what >> 3 & 3 }, CutBy::Operator),
            2..5 => {
                let dlid = if what & 0x80 == 0 { PERMISSIVE_LID } else { with.into() };
                let _ = net.send(attacker, &Datagram::smp(feed.half(), dlid, what >> 4, mad));
            }
            _ => {
                let _ = net.send(attacker, &Datagram::gmp(feed.half(), with.into(), what >> 4, mad));
            }
        }
        let outputs = net.advance(net.now() + u64::from(feed.byte()) * 100 * MICROSECOND);
        for output in outputs {
            if let Output::Datagram(delivered) = output {
                net.refuse(&delivered);
            }
        }
    }
    well(&mut net, attacker);
    well(&mut net, victim);
}

/// The agent of a port answers a directed route of no hops.
fn well(net: &mut Managed, at: End) {
    let _ = net.attach(at);
    net.advance(net.now() + WHILE);
    let mkey = net.port_info(at).expect("a port").mkey;
    let get = Smp {
        base_version: 1,
        class: CLASS_SUBN_DIRECTED,
        class_version: 1,
        method: METHOD_GET,
        transaction: 0x77,
        mkey,
        attribute: NodeInfo::ATTRIBUTE,
        dr_slid: PERMISSIVE_LID,
        dr_dlid: PERMISSIVE_LID,
        ..Smp::default()
    };
    net.send(at, &Datagram::smp(PERMISSIVE_LID, PERMISSIVE_LID, 0, get.to_mad())).expect("it is attached");
    let outputs = net.advance(net.now() + WHILE);
    let answer = outputs.iter().find_map(|output| match output {
        Output::Datagram(delivered) => Some(Smp::parse(&delivered.datagram.mad)).filter(|smp| smp.transaction == 0x77),
        _ => None,
    });
    let answer = answer.expect("an answer");
    assert_eq!((answer.method, answer.status & 0xff), (METHOD_GET | RESPONSE, 0));
}

fn base(with: u8) -> Mad {
    let class = if with & 1 == 0 { CLASS_SUBN_DIRECTED } else { CLASS_SUBN_LID };
    let mut mad = [0; MAD_LEN];
    Header { base_version: 1, class, class_version: 1, method: 1 + (with >> 1 & 1), ..Header::default() }
        .emit_to(&mut mad);
    mad[32..36].fill(0xff);
    mad
}
