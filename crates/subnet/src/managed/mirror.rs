//! What happens in the model, as management sees it: states of links, rates, and packets of foreign
//! partitions. Not the counters ([`super::counting`]) and not the other direction
//! ([`super::apply`]).

use super::{Managed, Output};
use crate::fabric::{End, Note, Probe};
use crate::frame::Frame;
use crate::state::{Logical, Physical};
use mad::key::Key;
use mad::node::Port;
use mad::sma::NodeEvent;
use wire::lrh::Next;
use wire::notice::{KeyNotice, Notice, SwitchPKeyNotice};
use wire::smp::{LinkState, PhysState, PortInfo, Smp};
use wire::{Transport, bth, deth, grh};

/// The code of the width 4X, and that of the speed SDR: what a port without a link shows.
const NO_LINK: (u8, u8) = (2, 1);
/// What every notice of a bad P_Key at a switch tells.
const ALWAYS_VALID: u16 = SwitchPKeyNotice::LIDS | SwitchPKeyNotice::PKEY | SwitchPKeyNotice::SL;

impl Managed {
    /// PortInfo of a port as it is now, with the management key.
    #[must_use]
    pub fn port_info(&self, end: End) -> Option<PortInfo> {
        let mut info = self.port(end)?.info;
        let link = &mut info.link;
        let Some(port) = self.fabric.port(end).filter(|_| end.port != 0) else {
            // Port 0 of a switch has no link, so it is always up.
            (link.state, link.phys_state) = (LinkState::Active as u8, PhysState::LinkUp as u8);
            return Some(info);
        };
        (link.state, link.phys_state) = (port.logical() as u8, port.physical() as u8);
        (link.width_active, link.speed_active, link.extended_active) = (NO_LINK.0, NO_LINK.1, 0);
        if matches!(port.physical(), Physical::LinkUp | Physical::Recovery) {
            let speed = port.rate().speed.code();
            link.width_active = port.rate().width.code();
            (link.speed_active, link.extended_active) = if speed < 8 { (speed, 0) } else { (4, speed >> 3) };
        }
        Some(info)
    }

    /// The attached end port of whose PortInfo a datagram is. Its owner counts wrong keys.
    pub(super) fn asked(&self, at: End, smp: &Smp) -> Option<End> {
        if smp.attribute != PortInfo::ATTRIBUTE {
            return None;
        }
        let port = if smp.modifier as u8 == 0 { at.port } else { smp.modifier as u8 };
        Some(End { port, ..at }).filter(|end| self.attached.contains(end))
    }

    /// Before a datagram that may ask for PortInfo: the ports that it can mean are up to date.
    pub(super) fn mirror(&mut self, at: End, smp: &Smp) {
        if smp.attribute != PortInfo::ATTRIBUTE {
            return;
        }
        for number in [at.port, smp.modifier as u8] {
            self.refresh(End { port: number, ..at });
        }
    }

    /// Brings PortInfo of a port up to date for the agents of its node.
    pub(super) fn refresh(&mut self, end: End) {
        if let (Some(info), Some(port)) = (self.port_info(end), self.port_mut(end)) {
            port.info = info;
        }
    }

    /// Tells management what has happened in the model.
    pub(super) fn follow(&mut self) {
        for note in self.fabric.notes() {
            match note {
                Note::State { end, before, now } => self.state_changed(end, before, now),
                Note::Partition { end, frame } => self.bad_pkey(end, &frame),
            }
        }
    }

    fn state_changed(&mut self, end: End, before: Logical, now: Logical) {
        let Some(node) = self.nodes.get_mut(end.node.0 as usize) else { return };
        // A manager that takes a port to ARMED and ACTIVE knows of it.
        let notice = if before == Logical::Down || now == Logical::Down {
            let up = now != Logical::Down;
            let (state, physical) =
                if up { (LinkState::Init, PhysState::LinkUp) } else { (LinkState::Down, PhysState::Polling) };
            node.link_changed(end.port, state, physical)
        } else {
            if let Some(port) = node.port_mut(end.port) {
                port.info.link.state = now as u8;
            }
            None
        };
        if let Some(notice) = notice {
            self.trap(self.end_port(end), notice);
        }
        self.tunnel_state(end, now);
        if (before == Logical::Down || now == Logical::Down) && self.is_router(end.node) {
            self.teach_routers();
        }
        self.output(end, || Output::Link { end, state: now });
        let is_active = |state| matches!(state, Logical::Active | Logical::ActiveDefer);
        match (is_active(before), is_active(now)) {
            (false, true) => self.output(end, || Output::Changed { end, event: NodeEvent::Active }),
            (true, false) => self.output(end, || Output::Changed { end, event: NodeEvent::Inactive }),
            _ => {}
        }
    }

    /// A port has dropped a packet for its partition.
    fn bad_pkey(&mut self, at: End, frame: &Frame) {
        self.count_violation(at, Key::PKey);
        let end = self.end_port(at);
        let (key, lrh) = (frame.pkey().unwrap_or(0), frame.lrh);
        let (sender, receiver) = queue_pairs(frame);
        let (qp1, qp2) = (sender.unwrap_or(0), receiver.unwrap_or(0));
        let gids = frame.grh().map(|grh| (grh.sgid, grh.dgid));
        let (gid1, gid2) = gids.unwrap_or_default();
        if self.is_of_switch(at) {
            let when = |known: bool, bits: u16| if known { bits } else { 0 };
            let details = SwitchPKeyNotice {
                valid: ALWAYS_VALID
                    | when(sender.is_some(), SwitchPKeyNotice::QP1)
                    | when(receiver.is_some(), SwitchPKeyNotice::QP2)
                    | when(gids.is_some(), SwitchPKeyNotice::GIDS),
                lid1: lrh.slid,
                lid2: lrh.dlid,
                pkey: key,
                sl: lrh.sl,
                qp1,
                qp2,
                gid1,
                gid2,
                ..SwitchPKeyNotice::default()
            };
            self.tell_of_switch(at, details);
        } else {
            let (lid1, lid2, key, sl) = (lrh.slid, lrh.dlid, key.into(), lrh.sl);
            self.tell_violation(end, Key::PKey, KeyNotice { lid1, lid2, key, sl, qp1, qp2, gid1, gid2 });
        }
    }

    /// Counts packets that the owner carries by itself from an end port, and that a port of a switch
    /// drops for their partition. The switch tells its manager.
    pub fn drop_for_partition(&mut self, at: End, from: End, probe: &Probe, count: u64) {
        if count == 0 || !self.is_of_switch(at) {
            return;
        }
        if let Some(violations) = self.violations_mut(at, Key::PKey) {
            *violations = violations.saturating_add(u16::try_from(count).unwrap_or(u16::MAX));
        }
        let grh = probe.grh.unwrap_or_default();
        let details = SwitchPKeyNotice {
            valid: if probe.grh.is_some() { ALWAYS_VALID | SwitchPKeyNotice::GIDS } else { ALWAYS_VALID },
            lid1: self.lid(from),
            lid2: probe.dlid,
            pkey: probe.pkey.unwrap_or_default(),
            sl: probe.sl,
            gid1: grh.sgid,
            gid2: grh.dgid,
            ..SwitchPKeyNotice::default()
        };
        self.tell_of_switch(at, details);
    }

    fn is_of_switch(&self, at: End) -> bool {
        self.shape(at.node).0 && at.port != 0
    }

    /// A switch tells its manager what one of its ports has dropped.
    fn tell_of_switch(&mut self, at: End, details: SwitchPKeyNotice) {
        let end = self.end_port(at);
        let details = SwitchPKeyNotice { switch_lid: self.lid(end), port: at.port, ..details };
        self.trap(end, self.notice(end, Notice::SECURITY, Notice::SWITCH_BAD_PKEY, details));
    }

    /// Counts a packet with a wrong key at the port that has dropped it.
    pub(super) fn count_violation(&mut self, end: End, key: Key) {
        if let Some(count) = self.violations_mut(end, key) {
            *count = count.saturating_add(1);
            self.output(end, || Output::Violation { end, key });
        }
    }

    fn violations_mut(&mut self, end: End, key: Key) -> Option<&mut u16> {
        Some(key.violations(&mut self.port_mut(end)?.info))
    }

    /// Sets how many packets with a wrong key an end port has counted. The owner of the port counts
    /// those of the packets that it carries by itself.
    pub fn set_violations(&mut self, end: End, key: Key, count: u16) {
        if let Some(now) = self.violations_mut(end, key) {
            *now = count;
        }
    }

    /// An end port tells its manager of a packet with a wrong key. Its rate is that of all traps.
    pub fn tell_violation(&mut self, end: End, key: Key, details: KeyNotice) {
        self.trap(end, self.notice(end, Notice::SECURITY, key.trap(), details));
    }

    /// The LID of an end port, or the permissive LID before it has one.
    pub(super) fn lid(&self, end: End) -> u16 {
        let lid = self.port(end).map_or(0, |port| port.info.lid);
        if lid == 0 { wire::smp::PERMISSIVE_LID } else { lid }
    }

    pub(super) fn port(&self, end: End) -> Option<&Port> {
        self.nodes.get(end.node.0 as usize)?.port(end.port)
    }

    pub(super) fn port_mut(&mut self, end: End) -> Option<&mut Port> {
        self.nodes.get_mut(end.node.0 as usize)?.port_mut(end.port)
    }
}

/// The queue pairs of a packet, as far as it names them: only datagrams name that of the sender.
fn queue_pairs(frame: &Frame) -> (Option<u32>, Option<u32>) {
    let body = if frame.lrh.next == Next::Grh { frame.body().get(grh::LEN..) } else { Some(frame.body()) };
    let Some((head, rest)) = body.unwrap_or_default().split_first_chunk() else { return (None, None) };
    let Ok(bth) = bth::Header::parse(head) else { return (None, None) };
    let sender = rest.first_chunk().filter(|_| bth.opcode.transport == Transport::Ud);
    (sender.map(|head| deth::Header::parse(head).src_qp.value()), Some(bth.dest_qp.value()))
}
