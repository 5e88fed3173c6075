//! Fabrics for the tests, and packets for them. Principal type: [`Net`].

use softhca_subnet::fabric::TRAINING;
use softhca_subnet::state::Event;
use softhca_subnet::{Delivery, End, Fabric, Frame, NodeId, Time};
use wire::lrh::{self, Next};
use wire::{Grh, bth};

/// The delay of every cable: 2 m.
pub(crate) const CABLE: Time = 10_000;
/// A second of simulated time, longer than anything here takes.
pub(crate) const LONG: Time = 1_000_000_000_000;

pub(crate) const fn end(node: NodeId, port: u8) -> End {
    End { node, port }
}

/// A fabric, with the nodes in order of creation.
pub(crate) struct Net {
    pub(crate) fabric: Fabric,
    pub(crate) hcas: Vec<NodeId>,
    pub(crate) switches: Vec<NodeId>,
}

impl Net {
    /// Nodes without cables. HCA `n` has the LID n + 1 and one port.
    pub(crate) fn new(hcas: usize, switches: usize) -> Net {
        let mut fabric = Fabric::new();
        let switches = (0..switches).map(|at| fabric.add_switch(0x5000 + at as u64 * 0x100, 8)).collect();
        let hcas: Vec<NodeId> = (0..hcas).map(|at| fabric.add_hca(0x1000 + at as u64 * 0x10, 1)).collect();
        for (at, hca) in hcas.iter().enumerate() {
            fabric.settings_mut(end(*hca, 1)).unwrap().identity.lid = at as u16 + 1;
        }
        Net { fabric, hcas, switches }
    }

    /// One switch with an HCA at each port; HCA `n` is at port n + 1.
    pub(crate) fn star(hcas: usize) -> Net {
        let mut net = Net::new(hcas, 1);
        for at in 0..hcas {
            net.cable(end(net.hcas[at], 1), end(net.switches[0], at as u8 + 1));
            net.fabric.switch_mut(net.switches[0]).unwrap().set_route(at as u16 + 1, at as u8 + 1);
        }
        net.up();
        net
    }

    /// A row of switches, linked by their ports 7 (to the next) and 8 (to the one before), with an
    /// HCA at port 1 of the first and of the last.
    pub(crate) fn row(switches: usize) -> Net {
        let mut net = Net::new(2, switches);
        for at in 1..switches {
            net.cable(end(net.switches[at - 1], 7), end(net.switches[at], 8));
        }
        net.cable(end(net.hcas[0], 1), end(net.switches[0], 1));
        net.cable(end(net.hcas[1], 1), end(net.switches[switches - 1], 1));
        for at in 0..switches {
            let switch = net.fabric.switch_mut(net.switches[at]).unwrap();
            switch.set_route(1, if at == 0 { 1 } else { 8 });
            switch.set_route(2, if at == switches - 1 { 1 } else { 7 });
        }
        net.up();
        net
    }

    pub(crate) fn cable(&mut self, a: End, b: End) {
        self.fabric.connect(a, b, CABLE).unwrap();
    }

    /// Waits for training, and takes all ports that are INIT to ACTIVE.
    pub(crate) fn up(&mut self) {
        let now = self.fabric.now();
        self.fabric.advance(now + 2 * TRAINING);
        for node in 0..self.fabric.len() as u32 {
            for port in 1..=self.fabric.node(NodeId(node)).unwrap().ports() {
                let _ = self.fabric.set_state(end(NodeId(node), port), Event::SetArmed);
                let _ = self.fabric.set_state(end(NodeId(node), port), Event::SetActive);
            }
        }
    }

    /// The port of an HCA.
    pub(crate) fn hca(&self, at: usize) -> End {
        end(self.hcas[at], 1)
    }

    /// Sends a packet from HCA to HCA.
    pub(crate) fn send(&mut self, from: usize, to: usize, sl: u8, payload: usize) {
        self.fabric.inject(self.hca(from), packet(from as u16 + 1, to as u16 + 1, sl, payload)).unwrap();
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(&mut self) -> Vec<Delivery> {
        let until = self.fabric.now() + LONG;
        self.fabric.advance(until)
    }

    pub(crate) fn dropped(&self, at: End, cause: softhca_subnet::Cause) -> u64 {
        self.fabric.port(at).unwrap().counters().dropped(cause)
    }

    /// All drops of the whole fabric.
    pub(crate) fn drops(&self) -> u64 {
        self.causes().map(|(_, count)| count).sum()
    }

    /// All drops of the whole fabric with this cause.
    pub(crate) fn drops_for(&self, cause: softhca_subnet::Cause) -> u64 {
        self.causes().filter(|(of, _)| *of == cause).map(|(_, count)| count).sum()
    }

    fn causes(&self) -> impl Iterator<Item = (softhca_subnet::Cause, u64)> + '_ {
        let ends = (0..self.fabric.len() as u32).flat_map(|node| (0..=8).map(move |port| end(NodeId(node), port)));
        ends.filter_map(|at| self.fabric.port(at)).flat_map(|port| port.counters().drops())
    }
}

/// A local packet in the default partition.
pub(crate) fn packet(slid: u16, dlid: u16, sl: u8, payload: usize) -> Frame {
    keyed(slid, dlid, sl, payload, 0xffff)
}

pub(crate) fn keyed(slid: u16, dlid: u16, sl: u8, payload: usize, pkey: u16) -> Frame {
    let lrh = lrh::Header { sl, dlid, slid, ..lrh::Header::default() };
    Frame::new(lrh, body(pkey, payload)).unwrap()
}

/// A management packet.
pub(crate) fn smp(slid: u16, dlid: u16) -> Frame {
    let lrh = lrh::Header { vl: 15, dlid, slid, ..lrh::Header::default() };
    Frame::new(lrh, body(0xffff, 256)).unwrap()
}

/// A packet with a GRH.
pub(crate) fn global(lrh: lrh::Header, grh: Grh) -> Frame {
    let mut bytes = [0; wire::grh::LEN];
    grh.emit(&mut bytes);
    Frame::new(lrh::Header { next: Next::Grh, ..lrh }, [&bytes[..], &body(0xffff, 64)].concat()).unwrap()
}

fn body(pkey: u16, payload: usize) -> Vec<u8> {
    let mut bytes = [0; bth::LEN];
    bth::Header { pkey, ..bth::Header::default() }.emit(&mut bytes);
    let mut body = bytes.to_vec();
    body.resize(bth::LEN + payload + 4, 0);
    body
}
