//! The queue pair of an interface: sends payloads to targets, and receives payloads. It knows
//! nothing of IP. The principal type is [`DatagramLink`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};

use ipoib::header::LEN as HEADER;
use ipoib::{Connect, LinkAddress, Membership, Target};
use softhca::{Buffer, Completion, Cq, DatagramEndpoint, DatagramQp, Gid, Operation, Part, Path, Peer, Result, Status};

use super::connected::{self, Connected};
use super::manager::Group;
use super::port::PartitionPort;

/// Receives and sends that are in progress at most.
const RECEIVES: u32 = 512;
pub(crate) const SENDS: u32 = 256;
/// Datagrams that are posted with one call.
const BATCH: usize = 32;
/// Payloads of broken connections that are kept.
const LOST: usize = 32;
/// The Q_Key of a link without a subnet manager: that which managers use by default.
pub(crate) const QKEY: u32 = 0x0000_0b1b;

/// A queue pair with its buffers and peers.
pub(crate) struct DatagramLink {
    cq: Cq,
    qp: DatagramQp,
    /// The GIDs of the port: a datagram from one of them and from the own QPN is an echo.
    own: HashSet<Gid>,
    peers: HashMap<Target, Peer>,
    free: Vec<Buffer>,
    pending: Vec<(Part, Peer)>,
    connected: Option<Connected>,
    /// The services of connections that the link-layer address tells.
    flags: u8,
    /// Neighbours whose connection has broken.
    broken: Vec<LinkAddress>,
    /// Payloads that were lost with connections.
    lost: VecDeque<Vec<u8>>,
}

impl DatagramLink {
    /// Creates the queue pair and posts its receives.
    pub(crate) fn new(port: &PartitionPort, qkey: u32) -> Result<Self> {
        let context = &port.context;
        let (pd, cq) = (context.pd()?, context.cq(RECEIVES + SENDS + connected::RECEIVES)?);
        let builder = pd.datagrams(&cq).sends(SENDS).receives(RECEIVES).parts(1).inline(0);
        let builder = builder.partition(port.pkey_index).qkey(qkey);
        let qp = match port.gid_index {
            Some(index) => builder.address(port.number, index).build()?,
            None if port.number == 1 => builder.build()?,
            None => builder.address(port.number, first_address(port)?).build()?,
        };
        let payload = port.payload_max();
        let receive = DatagramQp::HEADER + payload;
        let receives = pd.buffer(receive * RECEIVES as usize)?.pieces(receive);
        receives.into_iter().try_for_each(|buffer| qp.receive(0, buffer))?;
        let longest = (port.interface_mtu() + HEADER).max(payload);
        let free = pd.buffer(longest * SENDS as usize)?.pieces(longest);
        let own = context.gids(port.number)?.into_iter().map(|entry| entry.gid).collect();
        let gid = qp.endpoint().gid;
        let place = (gid, port.pkey, qp.number());
        let connected = port.connected.map(|service| Connected::new(context, (&pd, &cq), service, place));
        let connected = connected.transpose()?;
        let flags = port.connected.map_or(0, |service| Connect::from(service).flag());
        Ok(Self {
            cq,
            qp,
            own,
            peers: HashMap::new(),
            free,
            pending: Vec::new(),
            connected,
            flags,
            broken: Vec::new(),
            lost: VecDeque::new(),
        })
    }

    /// The link-layer address of the queue pair.
    pub(crate) fn address(&self) -> LinkAddress {
        let DatagramEndpoint { qpn, gid, .. } = self.qp.endpoint();
        LinkAddress { flags: self.flags, qpn, gid: gid.0 }
    }

    pub(crate) fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Whether a payload can be sent now.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// A buffer for a payload.
    pub(crate) fn take(&mut self) -> Option<Buffer> {
        self.free.pop()
    }

    /// A buffer that is not sent.
    pub(crate) fn give_back(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Sends the first bytes of a buffer with the next batch. A target that is unknown gets
    /// nothing. If they are `kept` and their connection breaks, [`DatagramLink::lost`] returns
    /// them.
    pub(crate) fn send(&mut self, buffer: Buffer, bytes: usize, target: &Target, kept: bool) -> Result<()> {
        if let (Target::Connection(link), Some(connected)) = (target, &mut self.connected) {
            // The id is the length of a payload that is kept.
            let id = if kept { bytes as u64 } else { 0 };
            if let Err(buffers) = connected.send(id, buffer, bytes, link) {
                self.free.extend(buffers);
            }
            return Ok(());
        }
        let Some(peer) = self.peers.get(target) else {
            self.free.push(buffer);
            return Ok(());
        };
        self.pending.push((buffer.part(..bytes), peer.clone()));
        if self.pending.len() == BATCH { self.flush() } else { Ok(()) }
    }

    /// Posts what was sent.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (parts, peers): (Vec<Part>, Vec<Peer>) = self.pending.drain(..).unzip();
        let mut batch = self.qp.batch();
        for (part, peer) in parts.into_iter().zip(&peers) {
            batch = batch.send(part, peer);
        }
        Ok(batch.post(0)?)
    }

    /// The next datagram that has arrived. Sends that have completed give their buffers back.
    pub(crate) fn poll(&mut self) -> Result<Option<Completion>> {
        while let Some(completion) = self.cq.poll()? {
            let received = completion.operation() == Operation::Receive;
            let good = completion.status() == Status::Success;
            if completion.qp() != self.qp.number() && !(received && good) {
                self.end_of_connection(completion, received)?;
                continue;
            }
            match good {
                true if received && !self.is_echo(&completion) => return Ok(Some(completion)),
                true if received => self.receive(completion)?,
                true => self.free.extend(completion.into_buffers()),
                false => drop(completion.ok()?),
            }
        }
        Ok(None)
    }

    /// The completion of a send on a connection, or of a receive that has failed.
    fn end_of_connection(&mut self, completion: Completion, received: bool) -> Result<()> {
        let Some(connected) = &mut self.connected else { return Ok(()) };
        let (qpn, failed) = (completion.qp(), completion.status() != Status::Success);
        if received {
            return connected.receive(completion.into_buffer());
        }
        self.broken.extend(connected.sent(qpn, failed));
        let length = completion.id() as usize;
        for buffer in completion.into_buffers() {
            if failed && length > 0 && self.lost.len() < LOST {
                self.lost.extend(buffer.get(..length).map(<[u8]>::to_vec));
            }
            self.free.push(buffer);
        }
        Ok(())
    }

    /// Posts the receive of a datagram, or of a connection, again.
    pub(crate) fn receive(&self, completion: Completion) -> Result<()> {
        match &self.connected {
            Some(connected) if completion.qp() != self.qp.number() => connected.receive(completion.into_buffer()),
            _ => Ok(self.qp.receive(0, completion.into_buffer())?),
        }
    }

    /// The connections of connected mode.
    pub(crate) fn connected(&mut self) -> Option<&mut Connected> {
        self.connected.as_mut()
    }

    /// Readable when a connection was made.
    pub(crate) fn waker(&self) -> Option<BorrowedFd<'_>> {
        self.connected.as_ref().map(AsFd::as_fd)
    }

    /// Neighbours whose connection has ended since the last call.
    pub(crate) fn broken(&mut self) -> Vec<LinkAddress> {
        std::mem::take(&mut self.broken)
    }

    /// Payloads that were lost with their connections since the last call: the first of them.
    pub(crate) fn lost(&mut self) -> VecDeque<Vec<u8>> {
        std::mem::take(&mut self.lost)
    }

    /// Whether a datagram to a group came back to its sender.
    fn is_echo(&self, completion: &Completion) -> bool {
        completion.source().is_some_and(|source| source.qpn == self.qp.number() && self.own.contains(&source.gid))
    }

    /// A neighbour, on the path to it, or by its GID alone.
    pub(crate) fn add_neighbour(&mut self, link: LinkAddress, path: Option<&Path>) -> Result<()> {
        let endpoint = DatagramEndpoint { qpn: link.qpn, qkey: self.qp.endpoint().qkey, gid: Gid(link.gid) };
        let peer = match path {
            None => self.qp.peer(&endpoint)?,
            Some(path) => self.qp.peer_on(path, &endpoint)?,
        };
        self.peers.insert(Target::Neighbour(link), peer);
        Ok(())
    }

    /// Forgets a neighbour.
    pub(crate) fn forget(&mut self, link: LinkAddress) {
        self.peers.remove(&Target::Neighbour(link));
    }

    /// Joins a group, with what a manager says of it, or by its GID alone.
    pub(crate) fn join(&mut self, mgid: [u8; 16], membership: Membership, group: Option<&Group>) -> Result<()> {
        if membership == Membership::Full {
            self.qp.join_at(Gid(mgid), group.map_or(0, |group| group.path.lid))?;
        }
        let peer = match group {
            None => self.qp.group(Gid(mgid))?,
            Some(group) => {
                let endpoint = DatagramEndpoint { qpn: DatagramEndpoint::GROUP, qkey: group.qkey, gid: Gid(mgid) };
                self.qp.peer_on(&group.path, &endpoint)?
            }
        };
        self.peers.insert(Target::Group(mgid), peer);
        Ok(())
    }

    /// Leaves a group. Returns how the queue pair was a member.
    pub(crate) fn leave(&mut self, mgid: [u8; 16]) -> Option<Membership> {
        self.peers.remove(&Target::Group(mgid))?;
        // EINVAL if the queue pair only sends to the group.
        Some(self.qp.leave(Gid(mgid)).map_or(Membership::SendOnly, |()| Membership::Full))
    }

    /// The groups that were joined.
    pub(crate) fn groups(&self) -> Vec<[u8; 16]> {
        let group = |target: &Target| match target {
            Target::Group(mgid) => Some(*mgid),
            Target::Neighbour(_) | Target::Connection(_) => None,
        };
        self.peers.keys().filter_map(group).collect()
    }
}

/// The index of the first address of a port that is not its port 1; 0 if it has none.
fn first_address(port: &PartitionPort) -> Result<u8> {
    let gids = port.context.gids(port.number)?;
    Ok(gids.iter().find_map(|entry| u8::try_from(entry.index).ok().filter(|index| *index > 0)).unwrap_or(0))
}
