//! What arrives at a port, and which agent serves it. Not the agents themselves, which `mad` has,
//! and not what a Set changes ([`super::apply`]).

use super::datagram::GSI_QKEY;
use super::timers::Timer;
use super::{Datagram, Delivered, Managed, Output};
use crate::fabric::{Delivery, End};
use mad::key::Key;
use mad::smi::{self, Step};
use mad::{pma, sma};
use wire::lrh::LID_MULTICAST;
use wire::mad::{
    CLASS_PM, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, Header, METHOD_GET, METHOD_SET, METHOD_TRAP_REPRESS, Mad, RESPONSE,
    STATUS_METHOD_ATTRIBUTE,
};
use wire::notice::KeyNotice;
use wire::smp::{PERMISSIVE_LID, SmInfo, Smp};

impl Managed {
    /// A packet has reached an end port, or a port of a switch on its directed route.
    pub(super) fn arrived(&mut self, delivery: Delivery) {
        let Some(delivery) = self.leave_by_tunnel(delivery) else { return };
        let at = delivery.end;
        self.show(at, false, &delivery.frame);
        match Datagram::of(&delivery.frame) {
            Some(datagram) if datagram.dest_qp == 0 => self.smi(at, &datagram),
            Some(datagram) => self.gmp_arrived(at, datagram),
            // What is on VL 15 and no datagram is for nobody.
            None if delivery.frame.is_management() => {}
            None => {
                let end = self.end_port(at);
                self.output(end, || Output::Packet(Delivery { end, ..delivery }));
            }
        }
    }

    /// A datagram of QP 0 at the subnet management interface of a node.
    fn smi(&mut self, at: End, datagram: &Datagram) {
        let mut smp = Smp::parse(&datagram.mad);
        let (is_switch, ports) = self.shape(at.node);
        // A datagram that cannot leave is lost, as any packet: the port has counted it.
        let _ = match smp.class {
            CLASS_SUBN_LID => return self.smp_arrived(at, &smp, datagram),
            CLASS_SUBN_DIRECTED => match smi::step(&mut smp, is_switch, ports, Some(at.port)) {
                Step::Here => return self.smp_arrived(at, &smp, datagram),
                Step::Port(port) => {
                    let lid = PERMISSIVE_LID;
                    let out = Datagram { slid: lid, dlid: lid, mad: smp.to_mad(), ..*datagram };
                    self.put(End { port, ..at }, &out)
                }
                Step::Lid(dlid) => {
                    let end = self.end_port(at);
                    let slid = self.lid(end);
                    self.put(end, &Datagram { slid, dlid, mad: smp.to_mad(), ..*datagram })
                }
                Step::Drop => return,
            },
            _ => return,
        };
    }

    /// A datagram of subnet management has reached its end.
    pub(super) fn smp_arrived(&mut self, at: End, smp: &Smp, datagram: &Datagram) {
        let end = self.end_port(at);
        let attached = self.attached.contains(&end);
        let for_agent = match smp.method {
            METHOD_GET | METHOD_SET => smp.attribute != SmInfo::ATTRIBUTE || !attached,
            METHOD_TRAP_REPRESS if self.repressed(end, smp.transaction) => return,
            method => method & RESPONSE == 0 && !attached,
        };
        if for_agent && let Some(end) = self.asked(at, smp) {
            // The owner counts first, and the agent answers a picosecond later.
            self.output(end, || Output::Asked { end });
            self.asked.push_back((at, Datagram { mad: smp.to_mad(), ..*datagram }));
            self.timers.insert((self.fabric.now() + 1, Timer::Answer));
        } else if for_agent {
            self.serve(at, smp, datagram);
        } else {
            self.deliver(at, Datagram { mad: smp.to_mad(), ..*datagram });
        }
    }

    fn deliver(&mut self, at: End, datagram: Datagram) {
        let (end, time) = (self.end_port(at), self.fabric.now());
        self.output(end, || Output::Datagram(Box::new(Delivered { time, end, ingress: at.port, datagram })));
    }

    /// The agents carry out what has waited for the counts of owners.
    pub(super) fn serve_asked(&mut self) {
        for (at, datagram) in std::mem::take(&mut self.asked) {
            self.serve(at, &Smp::parse(&datagram.mad), &datagram);
        }
    }

    /// The agent of subnet management carries out a request.
    fn serve(&mut self, at: End, smp: &Smp, datagram: &Datagram) {
        self.mirror(at, smp);
        let now = self.clock();
        let Some(node) = self.nodes.get_mut(at.node.0 as usize) else { return };
        let handled = sma::handle(node, at.port, smp, now);
        let end = self.end_port(at);
        let done = handled.answer.is_some_and(|answer| answer.status == 0 && smp.method == METHOD_SET);
        // The answer goes first: it takes the way that the request has come, and not a new one.
        if let Some(answer) = handled.answer {
            self.answer(at, answer, datagram);
        }
        if done {
            self.apply(at, smp, &handled.events);
        }
        if let Some(notice) = handled.notice {
            self.trap(end, notice);
        }
    }

    /// Sends the answer to a datagram that has come in at `at`.
    fn answer(&mut self, at: End, mut smp: Smp, request: &Datagram) {
        let end = self.end_port(at);
        let (is_switch, ports) = self.shape(at.node);
        let directed = smp.class == CLASS_SUBN_DIRECTED && smp.dr_dlid == PERMISSIVE_LID;
        let step = if directed { smi::step(&mut smp, is_switch, ports, None) } else { Step::Lid(request.slid) };
        let own = if request.dlid == PERMISSIVE_LID { self.lid(end) } else { request.dlid };
        let answer = Datagram { slid: own, ..request.answer(smp.to_mad()) };
        let _ = match step {
            Step::Here => return self.smp_arrived(at, &smp, &answer),
            Step::Port(port) => {
                let out = Datagram { slid: PERMISSIVE_LID, dlid: PERMISSIVE_LID, ..answer };
                self.put(End { port, ..at }, &out)
            }
            // A neighbour without a LID is reached by the port at which the request came in.
            Step::Lid(PERMISSIVE_LID) => self.put(at, &Datagram { dlid: PERMISSIVE_LID, ..answer }),
            Step::Lid(dlid) => self.put(end, &Datagram { dlid, ..answer }),
            Step::Drop => return,
        };
    }

    pub(super) fn refuse_smp(&mut self, at: End, request: &Datagram) {
        let smp = Smp::parse(&request.mad);
        if matches!(smp.method, METHOD_GET | METHOD_SET) {
            let returning = smp.class == CLASS_SUBN_DIRECTED;
            let refusal = Smp { method: METHOD_GET | RESPONSE, status: STATUS_METHOD_ATTRIBUTE, returning, ..smp };
            self.answer(at, refusal, request);
        }
    }

    /// A datagram of QP 1 has reached an end port.
    fn gmp_arrived(&mut self, at: End, datagram: Datagram) {
        let end = self.end_port(at);
        if datagram.qkey != GSI_QKEY {
            return self.bad_qkey(end, &datagram);
        }
        let header = Header::of(&datagram.mad);
        if header.class == CLASS_PM && header.method & RESPONSE == 0 {
            let port = End { port: datagram.mad[wire::perf::DATA + 1], ..end };
            self.count(port.node, port.port);
            self.refresh(port);
            let now = self.clock();
            let node = self.nodes.get_mut(at.node.0 as usize);
            if let Some(mad) = node.and_then(|node| pma::handle(node, &datagram.mad, now)) {
                self.answer_gmp(end, &datagram, mad);
            }
            self.await_sample(end.node);
        } else if self.attached.contains(&end) {
            self.deliver(at, datagram);
        } else {
            self.refuse_gmp(end, &datagram);
        }
    }

    pub(super) fn refuse_gmp(&mut self, end: End, request: &Datagram) {
        if let Some(mad) = pma::unserved(&request.mad) {
            self.answer_gmp(end, request, mad);
        }
    }

    /// An answer has the port's own key of the partition: that of a limited member would not be
    /// admitted by another limited member.
    fn answer_gmp(&mut self, end: End, request: &Datagram, mad: Mad) {
        let pkeys = self.port(end).map(|port| &port.pkeys[..]).unwrap_or_default();
        let own = wire::pkey::index_of(pkeys, request.pkey).and_then(|index| pkeys.get(index));
        let pkey = own.copied().unwrap_or(request.pkey);
        let slid = if request.dlid < LID_MULTICAST { request.dlid } else { self.lid(end) };
        // An answer that cannot leave is lost, as any packet.
        let _ = self.put(end, &Datagram { slid, pkey, ..request.answer(mad) });
    }

    fn bad_qkey(&mut self, end: End, datagram: &Datagram) {
        self.count_violation(end, Key::QKey);
        let (gid1, gid2) = datagram.grh.map(|grh| (grh.sgid, grh.dgid)).unwrap_or_default();
        let details = KeyNotice {
            lid1: datagram.slid,
            lid2: datagram.dlid,
            key: datagram.qkey,
            sl: datagram.sl,
            qp1: datagram.source_qp,
            qp2: datagram.dest_qp,
            gid1,
            gid2,
        };
        self.tell_violation(end, Key::QKey, details);
    }
}
