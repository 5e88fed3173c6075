//! What a node does with a packet that has arrived: an end port delivers it, a switch and a router
//! send it on.

use super::resolve::MOST_HOPS;
use super::step::hold_at;
use super::{Delivery, Fabric, Kind};
use crate::counters::Cause;
use crate::frame::Frame;
use crate::port::{Hold, lifetime};
use crate::rate::Time;
use std::sync::Arc;
use wire::lrh;

impl Fabric {
    pub(super) fn dispatch(&mut self, at: u32, frame: Frame) {
        let port = &self.ports[at as usize];
        // A packet of the switch itself is in no receive buffer.
        let hold = if port.number == 0 { Hold::Nothing } else { hold_at(at, &frame) };
        let done = match self.nodes[port.node as usize].kind {
            Kind::Hca => {
                self.take(at, frame);
                self.release(hold);
                return;
            }
            Kind::Outside => {
                self.deliver(at, frame);
                self.release(hold);
                return;
            }
            Kind::Switch(_) => self.switch(at, &frame, hold.clone()),
            Kind::Router(_) => self.route(at, &frame, hold.clone()),
        };
        if let Err(cause) = done {
            self.drop_at(at, cause, &frame);
            self.release(hold);
        }
    }

    /// An end port takes what is for it.
    fn take(&mut self, at: u32, frame: Frame) {
        let port = &self.ports[at as usize];
        let mine = frame.lrh.is_multicast()
            || port.settings.identity.has(frame.lrh.dlid)
            || frame.lrh.dlid == lrh::LID_PERMISSIVE && frame.is_management();
        if !mine {
            return self.drop_at(at, Cause::NotMine, &frame);
        }
        if !frame.is_management() && frame.pkey().is_some_and(|key| !port.settings.pkeys.admits(key)) {
            return self.drop_at(at, Cause::PartitionIn, &frame);
        }
        self.deliver(at, frame);
    }

    pub(super) fn deliver(&mut self, at: u32, frame: Frame) {
        self.deliveries.push(Delivery { time: self.now, end: self.end(at), frame });
    }

    /// A switch sends a packet, or its copies, on. An error is a drop at the ingress port.
    fn switch(&mut self, at: u32, frame: &Frame, hold: Hold) -> Result<(), Cause> {
        let ingress = &self.ports[at as usize];
        let (node, number) = (&self.nodes[ingress.node as usize], ingress.number);
        let Kind::Switch(switch) = &node.kind else { return Ok(()) };
        // The tables of a hostile manager may lead in a circle, which would never end.
        if usize::from(frame.hops) > MOST_HOPS {
            return Err(Cause::LifeTime);
        }
        ingress.enforces(frame)?;
        let own = self.ports[node.first as usize].settings.identity.has(frame.lrh.dlid);
        let ports = switch.forward(&frame.lrh, number, node.ports, own)?;
        let expires = lifetime(switch.life).map_or(Time::MAX, |life| self.now + life);
        let copies: Vec<(u32, Option<u8>)> =
            ports.iter().map(|port| (node.first + u32::from(port), switch.vl(number, port, frame.lrh.sl))).collect();
        let hold = if copies.len() > 1 { share(hold) } else { hold };
        for (egress, vl) in copies {
            let hold = hold.clone();
            if self.ports[egress as usize].number == 0 {
                self.deliver(at, frame.clone());
                continue;
            }
            self.forward(egress, vl, frame.clone(), hold, expires);
        }
        // A shared place is free when no copy waits anywhere; a delivered packet does not wait.
        if ports.count() > 1 || ports.has(0) {
            self.release(hold);
        }
        Ok(())
    }

    /// Queues a packet at an egress port, or drops it there.
    fn forward(&mut self, egress: u32, vl: Option<u8>, frame: Frame, hold: Hold, expires: Time) {
        match self.ports[egress as usize].admits(&frame, vl) {
            Ok(vl) => self.enqueue(egress, vl, frame, hold, expires),
            Err(cause) => {
                self.drop_at(egress, cause, &frame);
                self.release(hold);
            }
        }
    }

    /// A router sends a packet into other subnets. What has no GRH, or is for the router itself, is
    /// its owner's.
    fn route(&mut self, at: u32, frame: &Frame, hold: Hold) -> Result<(), Cause> {
        let ingress = &self.ports[at as usize];
        let (node, number) = (&self.nodes[ingress.node as usize], ingress.number);
        let Kind::Router(router) = &node.kind else { return Ok(()) };
        let identity = &ingress.settings.identity;
        let grh = frame.grh().filter(|grh| !frame.is_management() && grh.dgid != identity.gid());
        let Some(grh) = grh else {
            self.take(at, frame.clone());
            self.release(hold);
            return Ok(());
        };
        if !frame.lrh.is_multicast() && !identity.has(frame.lrh.dlid) {
            return Err(Cause::NotMine);
        }
        ingress.enforces(frame)?;
        let copies = router.forward(&grh, number)?;
        let first = node.first;
        let header = wire::Grh { hop_limit: grh.hop_limit - 1, ..grh };
        let last = node.ports;
        let hold = share(hold);
        for (port, dlid, sl) in copies.into_iter().filter(|(port, ..)| (1..=last).contains(port)) {
            let egress = first + u32::from(port) - 1;
            let settings = &self.ports[egress as usize].settings;
            let lrh = lrh::Header { dlid, sl, slid: settings.identity.lid, ..frame.lrh };
            let vl = settings.sl_to_vl.vl(sl);
            self.forward(egress, vl, frame.with_grh(lrh, &header), hold.clone(), Time::MAX);
        }
        self.release(hold);
        Ok(())
    }
}

fn share(hold: Hold) -> Hold {
    match hold {
        Hold::One(place) => Hold::Shared(Arc::new(place)),
        other => other,
    }
}
