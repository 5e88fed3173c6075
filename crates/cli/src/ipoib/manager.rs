//! Subnet administration for an interface: joins and leaves groups, and finds paths. The answers
//! come later, so packets of others do not wait. The principal type is [`Manager`].

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ipoib::{LinkAddress, Membership};
use rustix::event::{PollFd, PollFlags, poll};
use softhca::Path;
use wire::cm::Gid;
use wire::layout::Layout;
use wire::mad::{self, Mad};
use wire::sa::{self, McMemberRecord, PathRecord};

use super::umad::{Arrived, File};

/// Requests that the manager has at most at a time.
const MOST: usize = 32;
/// Requests that wait at most. Further ones are refused here.
const WAITING: usize = 1024;
/// A path of the same subnet needs no GIDs in its datagrams.
const LOCAL_HOPS: u8 = 1;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Join(Gid, Membership),
    Leave(Gid, Membership),
    Path(LinkAddress),
}

/// An answer; `None` is a refusal.
pub(crate) enum Answer {
    Joined(Gid, Membership, Option<Group>),
    Path(LinkAddress, Option<Path>),
}

/// What the manager says of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) path: Path,
    pub(crate) qkey: u32,
    /// In bytes.
    pub(crate) mtu: u32,
    record: McMemberRecord,
}

/// The port that asks, and where the manager is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) gid: Gid,
    pub(crate) pkey: u16,
    pub(crate) sm_lid: u16,
    pub(crate) sm_sl: u8,
}

/// A connection to subnet administration.
pub(crate) struct Manager {
    file: File,
    asker: Asker,
    /// The broadcast group, whose values other groups get.
    broadcast: Option<Group>,
    transaction: u32,
    pending: BTreeMap<u32, Request>,
    waiting: VecDeque<Request>,
    ready: VecDeque<Answer>,
}

impl Manager {
    pub(crate) fn new(file: File, asker: Asker) -> Self {
        Self {
            file,
            asker,
            broadcast: None,
            transaction: 0,
            pending: BTreeMap::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
        }
    }

    /// Joins the broadcast group, and waits for the answer.
    ///
    /// # Errors
    /// Why the interface cannot start.
    pub(crate) fn join_broadcast(&mut self, mgid: Gid) -> Result<Group, String> {
        let lid = self.asker.sm_lid;
        let cannot = |error: io::Error| format!("cannot ask the subnet manager at LID {lid}: {error}");
        let request = Request::Join(mgid, Membership::Full);
        self.post(request).map_err(cannot)?;
        loop {
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(cannot(error.into())),
            }
            match self.file.next().map_err(cannot)? {
                Some(Arrived::TimedOut(_)) => {
                    return Err(format!(
                        "the subnet manager at LID {lid} does not answer; start it, or use --no-manager if there is none"
                    ));
                }
                Some(Arrived::Answer(answer)) => {
                    let header = mad::Header::of(&answer);
                    if self.pending.remove(&(header.transaction as u32)) != Some(request) {
                        continue;
                    }
                    let group = group(&answer).ok_or_else(|| {
                        format!(
                            "the subnet manager refuses the broadcast group {} (status {:#06x}): the partition {:#06x} \
                             needs IPoIB there, as `ipoib` in partitions.conf of opensm",
                            std::net::Ipv6Addr::from(mgid),
                            header.status,
                            self.asker.pkey
                        )
                    })?;
                    self.broadcast = Some(group);
                    return Ok(group);
                }
                None => {}
            }
        }
    }

    /// Asks. Every join and every path gets an [`Answer`].
    pub(crate) fn ask(&mut self, request: Request) -> io::Result<()> {
        if self.pending.len() < MOST {
            return self.post(request);
        }
        match request {
            _ if self.waiting.len() < WAITING => self.waiting.push_back(request),
            Request::Join(mgid, membership) => self.ready.push_back(Answer::Joined(mgid, membership, None)),
            Request::Path(link) => self.ready.push_back(Answer::Path(link, None)),
            Request::Leave(..) => {}
        }
        Ok(())
    }

    /// The next answer.
    pub(crate) fn next(&mut self) -> io::Result<Option<Answer>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            let Some(arrived) = self.file.next()? else { return Ok(None) };
            let (transaction, answer) = match arrived {
                Arrived::TimedOut(transaction) => (transaction, None),
                Arrived::Answer(answer) => (mad::Header::of(&answer).transaction, Some(answer)),
            };
            // The upper half of a transaction is the agent's.
            let Some(request) = self.pending.remove(&(transaction as u32)) else { continue };
            if let Some(next) = self.waiting.pop_front() {
                self.post(next)?;
            }
            match request {
                Request::Leave(..) => {}
                Request::Join(mgid, membership) => {
                    let group = answer.and_then(|answer| group(&answer));
                    return Ok(Some(Answer::Joined(mgid, membership, group)));
                }
                Request::Path(link) => {
                    return Ok(Some(Answer::Path(link, answer.and_then(|answer| path(&answer)))));
                }
            }
        }
    }

    /// The subnet has changed: another manager, or other LIDs.
    pub(crate) fn changed(&mut self, sm_lid: u16, sm_sl: u8) {
        (self.asker.sm_lid, self.asker.sm_sl) = (sm_lid, sm_sl);
    }

    fn post(&mut self, request: Request) -> io::Result<()> {
        self.transaction = self.transaction.wrapping_add(1);
        let mad = self.encode(request);
        self.file.send(self.asker.sm_lid, self.asker.sm_sl, &mad)?;
        self.pending.insert(self.transaction, request);
        Ok(())
    }

    fn encode(&self, request: Request) -> Mad {
        match request {
            Request::Join(mgid, membership) => {
                let (record, mask) = self.member(mgid, membership, true);
                self.datagram(mad::METHOD_SET, McMemberRecord::ATTRIBUTE, record, mask)
            }
            Request::Leave(mgid, membership) => {
                let (record, mask) = self.member(mgid, membership, false);
                self.datagram(mad::METHOD_DELETE, McMemberRecord::ATTRIBUTE, record, mask)
            }
            Request::Path(link) => {
                let record = PathRecord {
                    dgid: link.gid,
                    sgid: self.asker.gid,
                    reversible: true,
                    number: 1,
                    pkey: self.asker.pkey,
                    ..PathRecord::default()
                };
                let mask = PathRecord::DGID
                    | PathRecord::SGID
                    | PathRecord::REVERSIBLE
                    | PathRecord::NUMBER
                    | PathRecord::PKEY;
                self.datagram(mad::METHOD_GET, PathRecord::ATTRIBUTE, record, mask)
            }
        }
    }

    /// The record and the mask of a membership. If the group does not exist, a full member
    /// creates it with the values of the broadcast group.
    fn member(&self, mgid: Gid, membership: Membership, joins: bool) -> (McMemberRecord, u64) {
        type R = McMemberRecord;
        let join_state = match membership {
            Membership::Full => R::FULL,
            Membership::SendOnly => R::SEND_ONLY_NON,
        };
        let plain = R { mgid, port_gid: self.asker.gid, join_state, ..R::default() };
        let mask = R::MGID | R::PORT_GID | R::JOIN_STATE;
        match self.broadcast.filter(|_| joins) {
            Some(Group { record: values, .. }) if membership == Membership::Full && values.mgid != mgid => {
                let record =
                    R { mgid, port_gid: self.asker.gid, join_state, mtu_selector: 2, rate_selector: 2, ..values };
                let values =
                    R::QKEY | R::MTU_SELECTOR | R::MTU | R::TRAFFIC_CLASS | R::PKEY | R::RATE_SELECTOR | R::RATE;
                (record, mask | values | R::SL | R::FLOW_LABEL | R::HOP_LIMIT)
            }
            _ => (R { pkey: self.asker.pkey, ..plain }, if joins { mask | R::PKEY } else { mask }),
        }
    }

    fn datagram<R: Layout>(&self, method: u8, attribute: u16, record: R, component_mask: u64) -> Mad {
        let mut datagram = [0; mad::MAD_LEN];
        sa::Header { component_mask, ..sa::Header::default() }.emit(&mut datagram);
        let header = mad::Header {
            base_version: mad::BASE_VERSION,
            class: mad::CLASS_SA,
            class_version: sa::CLASS_VERSION,
            method,
            transaction: self.transaction.into(),
            attribute,
            ..mad::Header::default()
        };
        header.emit_to(&mut datagram);
        record.write(&mut datagram[sa::DATA..]);
        datagram
    }
}

/// Readable when an answer has arrived.
impl AsFd for Manager {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The record of an answer without an error.
fn record<R: Layout>(answer: &Mad) -> Option<R> {
    (mad::Header::of(answer).status == 0).then(|| R::read(&answer[sa::DATA..])).flatten()
}

fn group(answer: &Mad) -> Option<Group> {
    let record: McMemberRecord = record(answer)?;
    let McMemberRecord { mlid: lid, sl, traffic_class, flow_label, hop_limit, qkey, mtu, .. } = record;
    let path = Path { lid, sl, global: true, traffic_class, flow_label, hop_limit };
    Some(Group { path, qkey, mtu: 128 << mtu.clamp(1, 5), record })
}

fn path(answer: &Mad) -> Option<Path> {
    let record: PathRecord = record(answer)?;
    let PathRecord { dlid: lid, sl, traffic_class, flow_label, hop_limit, .. } = record;
    Some(Path { lid, sl, global: hop_limit > LOCAL_HOPS, traffic_class, flow_label, hop_limit })
}
