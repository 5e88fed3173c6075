//! Datagrams on their way: between ports of this agent, and to and from other hosts. Adds to
//! [`Mads`].

use abi::lid::NO_GRH;
use abi::qp::Dest;
use mad::client::Event;
use mad::key::Key;
use mad::pma;
use mad::smi::{self, Step};
use mad::transactions::{Registration, is_response};
use wire::icrc::Envelope;
use wire::mad::{CLASS_PM, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, GSI_QKEY, Header, LEN, METHOD_TRAP_REPRESS, Mad};
use wire::notice::KeyNotice;
use wire::pkey;
use wire::smp::{PERMISSIVE_LID, SmInfo, Smp};

use super::managed::is_up;
use super::port::RegistrationOwner;
use super::way::{Datagram, PortId, Way};
use super::{Mads, Outgoing};
use crate::device::Port;
use crate::lids;
use crate::management::{self, Addressing, ReceivedMad};
use crate::world::World;

/// The errno of a request without an answer.
const ETIMEDOUT: u32 = 110;
/// The hop limit of datagrams whose sender names none.
const HOP_LIMIT: u8 = 64;

impl Mads {
    /// Sends what a client has to send, and gives its file what the client has received.
    pub(super) fn follow_client(&mut self, at: PortId, registration: Registration) {
        let Some(registered) = self.ports.get_mut(&at).and_then(|port| port.registered.get_mut(&registration)) else {
            return;
        };
        if registered.owner == RegistrationOwner::Asker {
            let sent = std::iter::from_fn(|| registered.client.poll_transmit());
            let sent = sent.map(|(to, mad)| Datagram { at, qpn: registered.qpn, to, mad, owner: 0 });
            sent.for_each(|datagram| self.travelling.push(datagram));
            let heard: Vec<Event<Way>> = std::iter::from_fn(|| registered.client.poll_event()).collect();
            return heard.iter().for_each(|event| self.keep_answer(event));
        }
        let RegistrationOwner::File(name, id) = registered.owner else { return };
        let Some(file) = self.files.get_mut(&name) else { return };
        while let Some((to, mad)) = registered.client.poll_transmit() {
            self.travelling.push(Datagram { at, qpn: registered.qpn, to, mad, owner: file.uid });
        }
        let before = registered.counted + file.bytes();
        while let Some(event) = registered.client.poll_event() {
            match event {
                Event::Received(from, message) => file.push(id, 0, &from, &message),
                // As in a kernel, only the common header comes back.
                Event::Unanswered(to, message) => file.push(id, ETIMEDOUT, &to, &message[..LEN.min(message.len())]),
            }
        }
        registered.counted = registered.client.held();
        self.accounts.change(file.uid, before, registered.counted + file.bytes());
        if file.first().is_some() {
            self.results.readable.push(name);
        }
    }

    /// Carries a datagram from its port.
    pub(super) fn travel(&mut self, world: &mut World, mut datagram: Datagram) {
        if !self.ports.contains_key(&datagram.at) {
            return;
        }
        let class = Header::of(&datagram.mad).class;
        if class == CLASS_PM {
            self.count_traffic(world);
        }
        if self.send_into_fabric(world, &datagram) {
            return;
        }
        if datagram.qpn == 0 && class == CLASS_SUBN_DIRECTED {
            return self.travel_directed(world, datagram);
        }
        if datagram.to.has_grh() {
            return self.carry_to_gid(world, &datagram);
        }
        if datagram.to.lid == PERMISSIVE_LID {
            datagram.to.lid = 0;
            return self.deliver(world, datagram.at, &datagram);
        }
        self.carry_to_lid(world, &datagram);
    }

    /// Carries a datagram of a directed route. No link leads from here to another port.
    fn travel_directed(&mut self, world: &mut World, datagram: Datagram) {
        let mut smp = Smp::parse(&datagram.mad);
        let ports = self.devices.get(datagram.at.device).map_or(0, |it| it.node.info.ports);
        let step = smi::step(&mut smp, false, ports, None);
        let datagram = Datagram { mad: smp.to_mad(), ..datagram };
        match step {
            Step::Here => self.deliver(world, datagram.at, &datagram),
            Step::Lid(lid) => {
                let to = Way { lid, ..datagram.to };
                self.carry_to_lid(world, &Datagram { to, ..datagram });
            }
            Step::Port(_) | Step::Drop => {}
        }
    }

    fn carry_to_lid(&mut self, world: &mut World, datagram: &Datagram) {
        let lid = datagram.to.lid;
        let has = |port: &Port| port.lid.is_some_and(|known| known.all().contains(&lid));
        if let Some(target) = find_port(world, has) {
            return self.deliver(world, target, datagram);
        }
        if datagram.qpn == 0 {
            return;
        }
        let PortId { device, port } = datagram.at;
        let path = Dest { dlid: lid, port_num: port, ..Dest::default() };
        let path = lids::directed(&world.devices, device, &path);
        if path.dgid != [0; 16] {
            self.carry_to_host(world, datagram, path.dgid, path.sgid_index, NO_GRH);
        }
    }

    fn carry_to_gid(&mut self, world: &mut World, datagram: &Datagram) {
        let gid = datagram.to.gid;
        if let Some(target) = find_port(world, |port| port.gids.iter().any(|(_, entry)| entry.gid == gid)) {
            return self.deliver(world, target, datagram);
        }
        if datagram.qpn != 0 {
            let hop_limit = if datagram.to.hop_limit == 0 { HOP_LIMIT } else { datagram.to.hop_limit };
            self.carry_to_host(world, datagram, gid, datagram.to.gid_index, hop_limit);
        }
    }

    fn carry_to_host(&mut self, world: &World, datagram: &Datagram, to: [u8; 16], gid_index: u8, hop_limit: u8) {
        let Some(port) = port_of(world, datagram.at) else { return };
        let entry = port.gids.entry(gid_index.into()).filter(|_| is_up(world, datagram.at.device, datagram.at.port));
        let pkey = port.pkeys.get(datagram.to.pkey_index.into()).filter(|pkey| *pkey != 0);
        let (Some(entry), Some(pkey)) = (entry, pkey) else { return };
        let addressing = Addressing {
            from: entry.gid,
            ifindex: entry.ifindex,
            to,
            traffic_class: datagram.to.traffic_class,
            priority: None,
            hop_limit,
            pkey,
            link: None,
        };
        self.results.outgoing.push(Outgoing { addressing, mad: datagram.mad, owner: datagram.owner });
    }

    /// Delivers a datagram to a port of this agent. A port reaches itself also when it is down.
    fn deliver(&mut self, world: &mut World, target: PortId, datagram: &Datagram) {
        let Datagram { at, qpn, to, .. } = datagram;
        let passes = target == *at || [*at, target].iter().all(|end| is_up(world, end.device, end.port));
        let (Some(sender), Some(receiver)) = (port_of(world, *at), port_of(world, target)) else { return };
        let pkey = sender.pkeys.get(to.pkey_index.into()).unwrap_or(0);
        let index = receiver.pkeys.index_of(pkey);
        if !passes {
            return;
        }
        let wrong = wrong_key(receiver, pkey, to.qkey).filter(|_| *qpn != 0);
        self.show_passed(world, datagram, target);
        let lid = sender.lid.map_or(0, |lid| lid.number | u16::from(to.path_bits) & ((1 << lid.lmc) - 1));
        let gid = sender.gids.entry(to.gid_index.into()).map(|entry| entry.gid).filter(|_| to.has_grh());
        if let Some((kind, key)) = wrong {
            let gid2 = if to.has_grh() { to.gid } else { [0; 16] };
            let (lid1, lid2, sl, qp1, qp2) = (lid, to.lid, to.sl, *qpn, to.qpn);
            let gid1 = gid.unwrap_or_default();
            let details = KeyNotice { lid1, lid2, key, sl, qp1, qp2, gid1, gid2 };
            return self.drop_for_key(world, target, kind, details);
        }
        let path_bits = receiver.lid.map_or(0, |known| to.lid.saturating_sub(known.number) as u8);
        let from = Way {
            lid: if to.lid == 0 && !to.has_grh() { PERMISSIVE_LID } else { lid },
            gid: gid.unwrap_or_default(),
            gid_index: 0,
            path_bits: if to.lid == 0 { 0 } else { path_bits },
            pkey_index: index.unwrap_or(0),
            ..*to
        };
        if Header::of(&datagram.mad).class == wire::mad::CLASS_CM && *qpn == 1 {
            let gid_of = |port: &Port| port.gids.entry(0).map(|entry| entry.gid).unwrap_or_default();
            let (from, to) = (gid_of(sender), gid_of(receiver));
            return self.results.for_manager.extend(inner(from, to, pkey, &datagram.mad));
        }
        self.arrive(world, target, *qpn, from, (&datagram.mad, datagram.owner));
    }

    /// A datagram of another host has arrived.
    pub(super) fn arrive_from_host(&mut self, world: &mut World, arrived: &ReceivedMad) {
        let is_there = |port: &Port| port.gids.iter().any(|(_, entry)| entry.gid == arrived.to);
        let Some(at) = find_port(world, is_there) else { return };
        let Some(port) = port_of(world, at).filter(|_| is_up(world, at.device, at.port)) else { return };
        let index = port.gids.iter().find(|(_, entry)| entry.gid == arrived.to).map_or(0, |(index, _)| index);
        let lid = port.subnet().and_then(|subnet| subnet.lid(&arrived.from)).unwrap_or(0);
        if let Some((kind, key)) = wrong_key(port, arrived.pkey(), arrived.qkey()) {
            let (gid1, gid2) = (arrived.from, arrived.to);
            let details = KeyNotice { lid1: lid, key, qp1: 1, qp2: 1, gid1, gid2, ..KeyNotice::default() };
            return self.drop_for_key(world, at, kind, details);
        }
        let from = Way {
            lid,
            // A port without LIDs answers to the GID.
            gid: if lid == 0 { arrived.from } else { [0; 16] },
            gid_index: index as u8,
            hop_limit: HOP_LIMIT,
            pkey_index: port.pkeys.index_of(arrived.pkey()).unwrap_or(0),
            ..Way::to_lid(lid, 1)
        };
        self.arrive(world, at, 1, from, (&arrived.mad, 0));
    }

    /// A datagram has arrived at its port. The answer of an agent counts for the user who asks.
    fn arrive(&mut self, world: &mut World, at: PortId, qpn: u32, from: Way, (mad, owner): (&Mad, u32)) {
        let header = Header::of(mad);
        let response = is_response(&header);
        let Some(port) = self.ports.get_mut(&at) else { return };
        if qpn == 0 && header.method == METHOD_TRAP_REPRESS && port.traps.repress(header.transaction) {
            return;
        }
        let client = port.table.find(qpn, mad);
        let is_subnet = matches!(header.class, CLASS_SUBN_LID | CLASS_SUBN_DIRECTED);
        if qpn == 0 && is_subnet && !response && !(client.is_some() && is_for_managers(&header)) {
            return self.manage(world, at, from, &Smp::parse(mad), owner);
        }
        if qpn == 1 && header.class == CLASS_PM && !response {
            self.count_traffic(world);
            let now = self.now();
            let answer = self.devices.get_mut(at.device).and_then(|device| pma::handle(&mut device.node, mad, now));
            return self.answer(at, qpn, from, answer, owner);
        }
        if !self.hand_over(at, qpn, from, mad) && !response {
            self.answer(at, qpn, from, pma::unserved(mad), owner);
        }
    }

    /// Delivers a datagram to the client that is registered for it. Returns false if there is none.
    pub(super) fn hand_over(&mut self, at: PortId, qpn: u32, from: Way, mad: &Mad) -> bool {
        let now = self.now();
        let Some(port) = self.ports.get_mut(&at) else { return false };
        let Some(registration) = port.table.find(qpn, mad) else { return false };
        if let Some(registered) = port.registered.get_mut(&registration) {
            let uid = match registered.owner {
                RegistrationOwner::File(name, _) => self.files.get(&name).map(|file| file.uid),
                RegistrationOwner::Manager | RegistrationOwner::Asker => None,
            };
            // A user who keeps too much gets nothing more until its programs read.
            if uid.is_some_and(|uid| !self.accounts.has_room(uid, LEN)) {
                return true;
            }
            registered.client.receive(from, mad, now);
        }
        self.follow_client(at, registration);
        true
    }

    /// Carries out what a subnet manager asks of a port.
    fn manage(&mut self, world: &mut World, at: PortId, from: Way, smp: &Smp, owner: u32) {
        let now = self.now();
        let Some(device) = self.devices.get_mut(at.device) else { return };
        let outcome = device.manage(world, at.device, at.port, smp, now);
        self.results.ports_changed |= outcome.changed;
        if let (Some(notice), Some(port)) = (outcome.handled.notice, self.ports.get_mut(&at)) {
            port.traps.push(notice);
        }
        self.answer(at, 0, from, outcome.handled.answer.map(|answer| answer.to_mad()), owner);
    }

    fn answer(&mut self, at: PortId, qpn: u32, to: Way, answer: Option<Mad>, owner: u32) {
        if let Some(mad) = answer {
            self.travelling.push(Datagram { at, qpn, to, mad, owner });
        }
    }

    /// Sends a trap of a port, if one is due. A trap that no manager takes is forgotten.
    pub(super) fn send_trap(&mut self, world: &World, at: PortId) {
        let now = self.now();
        if let (Some(device), Some(present)) = (self.devices.get_mut(at.device), world.devices.get(at.device)) {
            device.refresh(present);
        }
        let Some(info) = self.devices.get(at.device).and_then(|it| it.node.port(at.port)).map(|port| port.info) else {
            return;
        };
        let Some(trap) = self.ports.get_mut(&at).and_then(|port| port.traps.poll_transmit(&info, now)) else { return };
        let mad = trap.to_mad();
        let lid = info.master_sm_lid;
        let target = find_port(world, |port| port.lid.is_some_and(|known| known.all().contains(&lid)));
        let taken = target.and_then(|target| self.ports.get(&target)).and_then(|port| port.table.find(0, &mad));
        if taken.is_none() {
            if let Some(port) = self.ports.get_mut(&at) {
                port.traps.repress(trap.transaction);
            }
            return;
        }
        let to = Way { sl: info.master_sm_sl, ..Way::to_lid(lid, 0) };
        self.travelling.push(Datagram { at, qpn: 0, to, mad, owner: 0 });
    }
}

/// The key for which a port drops a datagram of QP 1.
fn wrong_key(port: &Port, pkey: u16, qkey: u32) -> Option<(Key, u32)> {
    if !pkey::is_in_table(port.pkeys.entries(), pkey) {
        return Some((Key::PKey, pkey.into()));
    }
    (qkey != GSI_QKEY).then_some((Key::QKey, qkey))
}

/// Requests that a subnet manager serves at its port, and not the port's agent.
fn is_for_managers(header: &Header) -> bool {
    use wire::mad::{METHOD_GET, METHOD_SET};
    header.attribute == SmInfo::ATTRIBUTE || !matches!(header.method, METHOD_GET | METHOD_SET)
}

/// The first port of this agent for which `is` holds.
pub(super) fn find_port(world: &World, is: impl Fn(&Port) -> bool) -> Option<PortId> {
    world.devices.port_with(is).map(|(device, port)| PortId { device, port })
}

pub(super) fn port_of(world: &World, at: PortId) -> Option<&Port> {
    world.devices.get(at.device)?.port(at.port.into()).ok()
}

/// A datagram inside of this agent for its connection manager, as if it had arrived.
pub(super) fn inner(from: [u8; 16], to: [u8; 16], pkey: u16, mad: &Mad) -> Option<ReceivedMad> {
    let from_port = management::SOURCE_PORT;
    let packet = management::emit(&Envelope::new(&from, &to, from_port), pkey, 0, mad)?;
    let head = *packet.first_chunk()?;
    Some(ReceivedMad { from, to, from_port, id: 0, head, router: (0, 0), mad: *mad })
}
