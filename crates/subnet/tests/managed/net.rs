//! The fabric of the tests: two switches, four adapters, one of them with two ports. Principal
//! type: [`Net`].

use crate::manager::Manager;
use mad::topology::Topology;
use softhca_subnet::fabric::TRAINING;
use softhca_subnet::managed::{Datagram, Managed, Output};
use softhca_subnet::{End, Frame, Time};
use wire::lrh;
use wire::mad::{CLASS_PM, Header, METHOD_GET, RESPONSE};
use wire::notice::Notice;
use wire::smp::Smp;
use wire::{Opcode, Operation, Qpn, Transport, bth, deth};

/// A second of simulated time.
pub(crate) const SECOND: Time = 1_000_000_000_000;

pub(crate) const TEXT: &str = r#"
switchguid=0x200000
Switch 8 "S1"  # "leaf 1"
[1] "H1"[1]    # 4xQDR
[2] "H2"[1]    # 4xEDR
[7] "S2"[8]
[6] "S2"[7]

switchguid=0x200100
Switch 8 "S2"  # "leaf 2"
[1] "H3"[1]
[2] "H4"[1]
[3] "H4"[2]

Hca 1 "H1"     # "host 1"
Hca 1 "H2"     # "host 2"
Hca 1 "H3"     # "host 3"
Hca 2 "H4"     # "host 4"
"#;

/// The fabric with its manager at H1.
pub(crate) struct Net {
    pub(crate) managed: Managed,
    pub(crate) manager: Manager,
}

impl Net {
    /// Trained, and nothing more.
    pub(crate) fn trained() -> Net {
        let mut managed = Managed::new(&Topology::from_text(TEXT).unwrap()).unwrap();
        managed.advance(2 * TRAINING);
        let from = End { node: managed.id("H1").unwrap(), port: 1 };
        let manager = Manager::new(&mut managed, from);
        Net { managed, manager }
    }

    /// Discovered and ACTIVE.
    pub(crate) fn up() -> Net {
        let mut net = Net::trained();
        net.manager.discover(&mut net.managed);
        net.manager.configure(&mut net.managed);
        net.run(SECOND / 1000);
        net
    }

    pub(crate) fn end(&self, name: &str, port: u8) -> End {
        End { node: self.managed.id(name).unwrap(), port }
    }

    /// The LID of an end port.
    pub(crate) fn lid(&self, name: &str) -> u16 {
        let node = self.managed.node(self.managed.id(name).unwrap()).unwrap();
        node.ports.iter().map(|port| port.info.lid).find(|lid| *lid != 0).unwrap()
    }

    pub(crate) fn run(&mut self, time: Time) -> Vec<Output> {
        self.managed.advance(self.managed.now() + time)
    }

    /// The path to a node, by its description.
    pub(crate) fn path(&self, description: &str) -> Vec<u8> {
        self.manager.node(description).path.clone()
    }

    /// Sends a request from the manager's port, QP 1, and waits for its answer.
    pub(crate) fn ask(&mut self, dlid: u16, header: Header, data: &[(usize, u8)]) -> Option<wire::mad::Mad> {
        let mut mad = [0; wire::mad::MAD_LEN];
        let transaction = self.managed.now();
        Header { base_version: 1, transaction, ..header }.emit_to(&mut mad);
        data.iter().for_each(|(at, byte)| mad[*at] = *byte);
        let own = self.lid("H1");
        self.managed.send(self.manager.from, &Datagram::gmp(own, dlid, 0, mad)).unwrap();
        let is_answer = |datagram: &Datagram| {
            let header = Header::of(&datagram.mad);
            datagram.dest_qp == 1 && header.transaction == transaction && header.method == METHOD_GET | RESPONSE
        };
        self.manager.wait(&mut self.managed, is_answer).map(|datagram| datagram.mad)
    }

    /// Reads an attribute of performance management of a port.
    pub(crate) fn performance<T: wire::layout::Layout>(&mut self, name: &str, attribute: u16, port: u8) -> T {
        let header = Header { class: CLASS_PM, class_version: 1, method: METHOD_GET, attribute, ..Header::default() };
        let mad = self.ask(self.lid(name), header, &[(wire::perf::DATA + 1, port)]).unwrap();
        assert_eq!(Header::of(&mad).status, 0);
        T::read(&mad[wire::perf::DATA..]).unwrap()
    }
}

/// The notices in traps for the manager.
pub(crate) fn traps(outputs: &[Output]) -> Vec<(u64, Notice)> {
    let smps = outputs.iter().filter_map(|output| match output {
        Output::Datagram(delivered) if delivered.datagram.dest_qp == 0 => Some(Smp::parse(&delivered.datagram.mad)),
        _ => None,
    });
    let traps = smps.filter(|smp| smp.method == wire::mad::METHOD_TRAP);
    traps.map(|smp| (smp.transaction, notice(&smp))).collect()
}

fn notice(smp: &Smp) -> Notice {
    let mut whole = [0; Notice::LEN];
    whole[..64].copy_from_slice(&smp.data);
    Notice::parse(&whole)
}

/// A datagram to QP 77 with this P_Key.
pub(crate) fn data(slid: u16, dlid: u16, pkey: u16) -> Frame {
    let mut head = [0; bth::LEN];
    let opcode = Opcode::new(Transport::Ud, Operation::SendOnly);
    bth::Header { opcode, pkey, dest_qp: Qpn::new(77), ..bth::Header::default() }.emit(&mut head);
    let mut datagram = [0; deth::LEN];
    deth::Header { qkey: 5, src_qp: Qpn::new(78) }.emit(&mut datagram);
    let body = [&head[..], &datagram, &[0; 1024 + 4]].concat();
    Frame::new(lrh::Header { slid, dlid, ..lrh::Header::default() }, body).unwrap()
}
