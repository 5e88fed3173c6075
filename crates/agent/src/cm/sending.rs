//! Datagrams on their way: the protocol's outputs, what is delivered to it, and where messages go.
//! Adds to [`Manager`].

use abi::capture::path;
use protocol::cm::{Mad, Origin, Output, Path};

use super::locals::Attachment;
use super::{BATCH, LoopbackMad, Manager};
use crate::gids::ip_of;
use crate::headroom;
use crate::ids::PortId;
use crate::management::{Addressing, CaptureNote, OnLink};
use crate::world::World;

impl Manager {
    /// Carries out the protocol's outputs until there are no more.
    pub(super) fn take_outputs(&mut self, world: &World) {
        for _ in 0..BATCH {
            self.take_all(world);
            // Datagrams that wait for memory are not lost: the next piece of work continues.
            if self.inner.is_empty() || !headroom::is_there() {
                return;
            }
            let Some(passed) = self.inner.pop_front() else { return };
            let LoopbackMad { origin, mad, .. } = &passed;
            let watched = self.watch(origin, mad);
            self.deliver(origin, mad);
            if watched.is_some() {
                self.take_all(world);
                self.show_passed(watched, &passed);
            }
        }
    }

    pub(super) fn take_all(&mut self, world: &World) {
        loop {
            self.take_each(world);
            if self.delayed.is_empty() || !self.bring_delayed() {
                return;
            }
        }
    }

    fn take_each(&mut self, world: &World) {
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Send { path, mad, owner } if world.faults.is_on() => {
                    self.send_with_faults(world, &path, &mad, owner);
                }
                Output::Send { path, mad, owner } => self.send(&path, &mad, &CaptureNote { owner, words: "" }),
                Output::Event(event) => self.on_news(world, event),
            }
        }
    }

    pub(super) fn deliver(&mut self, origin: &Origin, mad: &Mad) {
        let now = self.now();
        if !self.locals.accepts(&origin.destination, origin.pkey) {
            self.counts.dropped += 1;
            let (from, to) = (ip_of(&origin.source), ip_of(&origin.destination));
            let pkey = origin.pkey;
            tracing::info!(%from, %to, "a management datagram is dropped: the port is not in its partition {pkey:#06x}");
        } else if let Err(dropped) = self.core.on_mad(now, origin, mad) {
            self.counts.dropped += 1;
            tracing::debug!(from = %ip_of(&origin.source), %dropped, "a management datagram is dropped");
        }
    }

    /// Sends a datagram. A datagram to this agent does not use the network.
    pub(super) fn send(&mut self, path: &Path, mad: &Mad, told: &CaptureNote<'_>) {
        let Some(addressing) = self.addressing(path) else {
            self.counts.not_sent += 1;
            return;
        };
        if let Some(at) = self.locals.with_gid(&path.sgid).filter(|at| at.fabric.is_some()) {
            return self.send_into_fabric(&at, path, mad, told);
        }
        if self.locals.with_gid(&path.dgid).is_some() {
            self.pass(path.origin(), mad, told);
            return;
        }
        match self.mail.outlets.send(&addressing, mad, told) {
            Ok(()) => self.counts.sent += 1,
            Err(error) => {
                self.counts.not_sent += 1;
                let to = ip_of(&path.dgid);
                tracing::debug!(%to, %error, "a management datagram could not be sent");
            }
        }
    }

    /// The addressing of a datagram, or `None` if the source address does not belong to this
    /// agent.
    pub(super) fn addressing(&self, path: &Path) -> Option<Addressing> {
        let Attachment { gid, ifindex, dscp, priority, .. } = self.locals.with_gid(&path.sgid)?;
        let Path { dgid, hop_limit, pkey, .. } = *path;
        let traffic_class = dscp.traffic_class(path.sl, path.traffic_class);
        let priority = priority.get(path.sl);
        let link = self.link_between(&path.sgid, &dgid, path.sl);
        Some(Addressing { from: gid, ifindex, to: dgid, traffic_class, priority, hop_limit, pkey, link })
    }

    /// The link between two InfiniBand ports of this agent.
    pub(super) fn link_between(&self, source: &[u8; 16], destination: &[u8; 16], sl: u8) -> Option<OnLink> {
        let from = self.locals.with_gid(source).filter(|at| at.lid != 0)?;
        let dlid = self.locals.with_gid(destination)?.lid;
        Some(OnLink { at: PortId { device: from.device, port: from.port }, slid: from.lid, dlid, sl })
    }

    /// Sends a datagram to this agent itself.
    pub(super) fn pass(&mut self, origin: Origin, mad: &Mad, told: &CaptureNote<'_>) {
        if self.inner.try_reserve(1).is_err() {
            self.counts.not_sent += 1;
            return;
        }
        let link = self.link_between(&origin.source, &origin.destination, origin.sl);
        let psn = self.mail.outlets.show_only(path::INSIDE, &Addressing::of(&origin, link), mad, told);
        self.inner.push_back(LoopbackMad { origin, mad: *mad, owner: told.owner, psn });
    }
}
