//! A request of subnet administration, and the records of its answer. Not what they say. Principal
//! types: [`SaRequest`], [`Records`].

use crate::inventory::{Inventory, Node, Port, PortId};
use wire::cm::Gid;
use wire::layout::{Layout, matches};
use wire::mad::Header;
use wire::{pkey, sa};

/// Who sent a datagram, and how an answer reaches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The LID that the datagram came from.
    pub lid: u16,
    /// The queue pair.
    pub qpn: u32,
    /// The P_Key of the datagram.
    pub pkey: u16,
    /// The service level of the datagram.
    pub sl: u8,
    /// The source of the GRH, if the datagram had one.
    pub gid: Option<Gid>,
}

/// The status of a request that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) u16);

/// What a request is answered with.
pub(super) type Answer = Result<Records, Refusal>;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SaRequest<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) from: Peer,
    /// The port that asks.
    pub(super) asker: PortId,
    /// The request has the SM_Key.
    pub(super) trusted: bool,
    pub(super) header: Header,
    pub(super) mask: u64,
    pub(super) data: &'a [u8],
    /// The prefix of the subnet's GIDs.
    pub(super) prefix: u64,
    /// The longest answer.
    pub(super) longest: usize,
}

impl<'a> SaRequest<'a> {
    /// The template.
    pub(super) fn template<R: Layout + Default>(&self) -> R {
        R::read(self.data).unwrap_or_default()
    }

    /// Whether the mask has all of these components.
    pub(super) const fn asks(&self, components: u64) -> bool {
        self.mask & components == components
    }

    /// An answer without records yet.
    pub(super) fn records<R: Layout>(&self) -> Records {
        Records { bytes: Vec::new(), count: 0, stride: sa::stride::<R>(), longest: self.longest }
    }

    /// Whether the asker may hear of a port: it is his own, or they are in a common partition.
    pub(super) fn sees(&self, port: &Port) -> bool {
        let own = self.inventory.port(self.asker);
        let meets = |own: &Port| own.guid == port.guid || common(pkeys(own), pkeys(port)).is_some();
        self.trusted || own.is_some_and(meets)
    }

    /// The end ports that the asker may hear of: all, or that of one LID.
    pub(super) fn end_ports(&self, lid: Option<u16>) -> Vec<(PortId, &'a Node, &'a Port)> {
        let inventory = self.inventory;
        let seen = |(_, _, port): &(PortId, &Node, &Port)| self.sees(port);
        match lid {
            None => inventory.end_ports().filter(seen).collect(),
            Some(lid) => {
                let found = inventory.by_lid(lid).and_then(|id| {
                    let node = inventory.nodes.get(&id.node)?;
                    Some((id, node, node.ports.get(&id.port)?))
                });
                found.into_iter().filter(seen).collect()
            }
        }
    }

    /// The GID of a port.
    pub(super) fn gid(&self, port: &Port) -> Gid {
        gid(self.prefix, port.guid)
    }
}

/// The GID of a prefix and a GUID.
pub(super) fn gid(prefix: u64, guid: u64) -> Gid {
    (u128::from(prefix) << 64 | u128::from(guid)).to_be_bytes()
}

/// The P_Keys of a port; before its table is read, it is in the default partition.
pub(super) fn pkeys(port: &Port) -> &[u16] {
    if port.pkeys.is_empty() { &[pkey::DEFAULT] } else { &port.pkeys }
}

/// The first P_Key with which a port of the table `own` reaches one of the table `theirs`.
pub(super) fn common(own: &[u16], theirs: &[u16]) -> Option<u16> {
    own.iter().copied().find(|own| theirs.iter().any(|theirs| pkey::is_accepted(*own, *theirs)))
}

/// The records of an answer.
#[derive(Clone, Debug)]
pub(super) struct Records {
    pub(super) bytes: Vec<u8>,
    pub(super) count: usize,
    pub(super) stride: usize,
    longest: usize,
}

impl Records {
    /// Adds a record.
    pub(super) fn push<R: Layout>(&mut self, record: R) -> Result<(), Refusal> {
        let start = self.bytes.len();
        if start + self.stride > self.longest {
            return Err(Refusal(sa::STATUS_NO_RESOURCES));
        }
        self.bytes.resize(start + self.stride, 0);
        record.write(&mut self.bytes[start..]);
        self.count += 1;
        Ok(())
    }

    /// The n-th record, if there are so many.
    pub(super) fn nth<R: Layout>(&self, nth: usize) -> Option<R> {
        R::read(self.bytes.chunks_exact(self.stride).nth(nth)?)
    }

    /// Adds a record if it matches.
    pub(super) fn offer<R: Layout>(&mut self, record: R, template: &R, mask: u64) -> Result<(), Refusal> {
        if matches(&record, template, mask) { self.push(record) } else { Ok(()) }
    }
}
