//! Datagrams of the agent's connection manager on ports of a topology: its messages, and its
//! requests to subnet administration with their answers. Adds to [`Mads`].

use std::collections::VecDeque;
use std::time::Duration;

use mad::client::Event;
use mad::transactions::Registration;
use subnet::fabric::{End, Probe};
use wire::Grh;
use wire::layout::Layout;
use wire::mad::{Header, Mad};
use wire::sa::{self, PathRecord};

use super::Mads;
use super::port::RegistrationOwner;
use super::travel::port_of;
use super::way::{Datagram, Way};
use crate::outward::{GrhFields, Outward, OutwardKind, SaReply};
use crate::world::World;

/// A request is sent again after this time, as often as its time allows.
const AGAIN: Duration = Duration::from_millis(500);

impl Mads {
    /// Sends datagrams of the connection manager. If too many are on their way, messages are lost,
    /// and their senders repeat them.
    pub(crate) fn send_for_manager(&mut self, world: &mut World, datagrams: VecDeque<Outward>) {
        if datagrams.is_empty() {
            return;
        }
        for outward in datagrams {
            let Outward { from: at, path_bits, lid, sl, pkey, route, mad, kind } = outward;
            let Some(pkey_index) = port_of(world, at).and_then(|port| port.pkeys.index_of(pkey)) else { continue };
            let to = Way { sl, path_bits, pkey_index, ..Way::to_lid(lid, 1) };
            let to = route.map_or(to, |GrhFields { dgid, hop_limit, traffic_class, flow_label }| Way {
                gid: dgid,
                hop_limit,
                traffic_class,
                flow_label,
                ..to
            });
            match kind {
                OutwardKind::Message(owner) if !self.travelling.is_crowded(owner) => {
                    self.travelling.push(Datagram { at, qpn: 1, to, mad, owner });
                }
                OutwardKind::Message(_) => {}
                OutwardKind::Question(timeout) => self.ask(at, to, &mad, timeout),
            }
        }
        self.settle(world);
    }

    /// Sends a request to subnet administration.
    fn ask(&mut self, at: super::PortId, to: Way, mad: &Mad, timeout: Duration) {
        let now = self.now();
        let Some(port) = self.ports.get_mut(&at) else { return };
        let asker = port.registered.iter_mut().find(|(_, registered)| registered.owner == RegistrationOwner::Asker);
        let Some((registration, registered)) = asker else { return };
        let wait = timeout.clamp(Duration::from_millis(1), AGAIN);
        let retries = (timeout.as_millis() / AGAIN.as_millis()).min(60) as u32;
        if registered.client.send(to, mad, wait, retries, now).is_err() {
            let transaction = Header::of(mad).transaction as u32;
            self.results.answers.push(SaReply { transaction, mad: None });
        }
        let registration: Registration = *registration;
        self.follow_client(at, registration);
    }

    /// Keeps what the client of the connection manager has heard.
    pub(super) fn keep_answer(&mut self, event: &Event<Way>) {
        let (message, is_answer) = match event {
            Event::Received(_, message) => (message, true),
            Event::Unanswered(_, message) => (message, false),
        };
        let Some(mad) = message.first_chunk() else { return };
        let transaction = Header::of(mad).transaction as u32;
        self.results.answers.push(SaReply { transaction, mad: is_answer.then(|| self.with_whole_path(*mad)) });
    }

    /// Lowers the MTU in a path record to that of the whole path. Subnet administration knows the
    /// links up to the first router only; the links behind it may be narrower.
    pub(super) fn with_whole_path(&self, mut mad: Mad) -> Mad {
        let Header { attribute, status: 0, .. } = Header::of(&mad) else { return mad };
        let record = (attribute == PathRecord::ATTRIBUTE).then(|| PathRecord::read(&mad[sa::DATA..])).flatten();
        let Some(record) = record.filter(|record| record.sgid[..8] != record.dgid[..8]) else { return mad };
        let Some(fabric) = &self.fabric else { return mad };
        let gid = |end: &End| fabric.managed.fabric().port(*end).map(|port| port.settings().identity.gid());
        let Some(start) = fabric.ends.values().find(|end| gid(end) == Some(record.sgid)) else { return mad };
        let PathRecord { sgid, dgid, hop_limit, traffic_class, .. } = record;
        let grh = Some(Grh { sgid, dgid, hop_limit, traffic_class, ..Grh::default() });
        let probe = Probe { dlid: record.dlid, sl: record.sl, grh, ..Probe::default() };
        if let Ok(path) = fabric.managed.resolve_to(*start, &probe) {
            let mtu = record.mtu.min(path.mtu as u8);
            PathRecord { mtu, ..record }.write(&mut mad[sa::DATA..]);
        }
        mad
    }
}
