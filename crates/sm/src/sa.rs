//! Subnet administration: answers requests for records, registers services and members of multicast
//! groups, and forwards notices. Not the subnet manager, whose inventory it reads. IBA 15.
//! Principal type: [`Sa`].

mod aliases;
mod events;
mod index;
mod joins;
mod members;
mod multi_paths;
mod paths;
mod records;
mod request;
mod routers;
mod services;
#[cfg(test)]
mod tests;
mod walk;

pub use request::Peer;

use crate::groups::{Group, Groups};
use crate::inventory::{Inventory, Member, PortId};
use aliases::Aliases;
use events::Subscriptions;
use index::Index;
use joins::Joins;
use mad::client::{self, Client};
use mad::transactions::Registration;
use request::{Answer, Records, Refusal, SaRequest, common, pkeys};
use services::Services;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::class_port_info::{ClassPortInfo, Endpoint};
use wire::layout::Layout;
use wire::mad::{
    BASE_VERSION, CLASS_SA, GSI_QKEY, Header, METHOD_DELETE, METHOD_GET, METHOD_GET_MULTI, METHOD_GET_TABLE,
    METHOD_REPORT, METHOD_SET, Mad, RESPONSE, STATUS_METHOD, STATUS_METHOD_ATTRIBUTE, STATUS_VERSION,
};
use wire::notice::{GidNotice, InformInfo, Notice};
use wire::rmpp;
use wire::sa::{self, DATA, McMemberRecord, MultiPathRecord, PathRecord, ServiceRecord};

/// Segments that carry an answer are at most this many bytes together.
const LONGEST: usize = 1 << 20;
/// The tables that are sent to one LID at once.
const MOST_TABLES: usize = 8;
/// How long a subscriber may take to answer a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a report is sent again.
const REPORT_RETRIES: u32 = 3;
/// The response time that is announced: 4.096 µs × 2^n.
const RESPONSE_TIME: u8 = 18;
/// Requests go to this queue pair.
const GSI_QP: u32 = 1;
/// Optional records, groups, MultiPathRecord, and the comparison of capability masks bit by bit.
const CAPABILITIES: u16 = 1 << 8 | 1 << 9 | 1 << 10 | 1 << 13;
/// Alias GUIDs, and send-only full members of groups.
const CAPABILITIES2: u32 = 1 << 5 | 1 << 12;

/// The choices of the subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaConfig {
    /// The key of requesters that see and change all; 0 for no such requester.
    pub sm_key: u64,
    /// The prefix of the subnet's GIDs.
    pub prefix: u64,
    /// The LID of the manager, as issuer of notices.
    pub lid: u16,
    /// The longest time of a packet on a path: 4.096 µs × 2^n.
    pub packet_life: u8,
    /// The service level of paths in a partition, by the P_Key without its membership. Without an
    /// entry it is 0.
    pub levels: BTreeMap<u16, u8>,
    /// The service levels without a data lane, as bits.
    pub dropped: u16,
    /// The longest answer in bytes, up to 1 MiB.
    pub longest: usize,
}

impl Default for SaConfig {
    fn default() -> SaConfig {
        SaConfig {
            sm_key: 1,
            prefix: 0xfe80 << 48,
            lid: 0,
            packet_life: 18,
            levels: BTreeMap::new(),
            dropped: 0,
            longest: LONGEST,
        }
    }
}

/// What the manager hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaEvent {
    /// The multicast forwarding tables must follow [`Sa::groups`].
    GroupsChanged,
    /// The GUID tables of ports must follow [`Sa::aliases`].
    AliasesChanged,
}

/// Subnet administration.
#[derive(Clone, Debug)]
pub struct Sa {
    config: SaConfig,
    client: Client<Peer>,
    index: Index,
    aliases: Aliases,
    groups: Groups,
    joins: Joins,
    services: Services,
    subscriptions: Subscriptions,
    /// The last group GID that was chosen.
    chosen: u32,
    /// The last transaction of a report.
    report: u32,
    events: VecDeque<SaEvent>,
}

impl Sa {
    /// Subnet administration without groups and services. Call [`Sa::inventory_changed`] next.
    #[must_use]
    pub fn new(config: SaConfig) -> Sa {
        Sa {
            config,
            client: Client::new(Registration(1), true, LONGEST + DATA),
            index: Index::default(),
            aliases: Aliases::default(),
            groups: Groups::default(),
            joins: Joins::default(),
            services: Services::default(),
            subscriptions: Subscriptions::default(),
            chosen: 0,
            report: 0,
            events: VecDeque::new(),
        }
    }

    /// The members of each multicast LID.
    #[must_use]
    pub fn groups(&self) -> BTreeMap<u16, Vec<Member>> {
        self.groups.members()
    }

    /// The alias GUIDs of each end port, by their index in its GUID table.
    #[must_use]
    pub const fn aliases(&self) -> &BTreeMap<PortId, Vec<u64>> {
        self.index.tables()
    }

    /// Makes a group that stays without members. Returns its LID; `None` if the group exists or
    /// there is no LID.
    pub fn create_group(&mut self, inventory: &Inventory, record: McMemberRecord) -> Option<u16> {
        let mlid = self.groups.create(record, true, members::cap(inventory))?;
        self.tell(SaEvent::GroupsChanged);
        Some(mlid)
    }

    /// Follows a change of the inventory: ports that are gone leave their groups, and their
    /// services and subscriptions end.
    pub fn inventory_changed(&mut self, inventory: &Inventory, now: Duration) {
        self.index.follow(inventory);
        self.aliases.retain(|guid| self.index.owner(guid).is_some());
        if self.index.tables().values().any(|aliases| !aliases.is_empty()) {
            self.tell(SaEvent::AliasesChanged);
        }
        let exists = |id| inventory.port(id).is_some();
        self.services.retain(exists);
        self.subscriptions.retain(exists);
        let (changed, deleted) = self.groups.retain(exists);
        if changed {
            self.tell(SaEvent::GroupsChanged);
        }
        for mgid in deleted {
            self.group_notice(inventory, Notice::GROUP_DELETED, mgid, now);
        }
    }

    fn tell(&mut self, event: SaEvent) {
        if !self.events.contains(&event) {
            self.events.push_back(event);
        }
    }

    /// Handles a datagram that arrived at QP 1.
    pub fn receive(&mut self, inventory: &Inventory, from: Peer, mad: &Mad, now: Duration) {
        let header = Header::of(mad);
        if header.class != CLASS_SA || header.base_version != BASE_VERSION {
            return;
        }
        // A request is one datagram. Segments of longer ones are not kept.
        let segment = rmpp::Header::read(&mad[rmpp::OFFSET..]).unwrap_or_default();
        let is_data = segment.is_active() && segment.kind == rmpp::TYPE_DATA;
        if is_data && !(segment.segment == 1 && segment.has(rmpp::FLAG_FIRST | rmpp::FLAG_LAST)) {
            return;
        }
        self.client.receive(from, mad, now);
        self.follow_client(inventory, now);
    }

    fn follow_client(&mut self, inventory: &Inventory, now: Duration) {
        while let Some(event) = self.client.poll_event() {
            match event {
                client::Event::Received(from, message) => self.request(inventory, from, &message, now),
                client::Event::Unanswered(to, message) => {
                    if message.get(3) == Some(&METHOD_REPORT) {
                        self.subscriptions.forget(to);
                    }
                }
            }
        }
    }

    fn request(&mut self, inventory: &Inventory, from: Peer, message: &[u8], now: Duration) {
        let header = message.first_chunk().map(Header::parse).unwrap_or_default();
        if header.method & RESPONSE != 0 {
            return;
        }
        let fields = sa::Header::read(message).unwrap_or_default();
        // A wrong key is no request without a key. Nobody learns from an answer that it is wrong.
        if fields.sm_key != 0 && fields.sm_key != self.config.sm_key {
            return;
        }
        let mut data = [0; sa::DATA_LEN];
        let sent = message.get(DATA..).unwrap_or_default();
        let known = sent.len().min(data.len());
        data[..known].copy_from_slice(&sent[..known]);
        let tables = self.client.sending().filter(|to| to.lid == from.lid).count();
        let answer = match inventory.by_lid(from.lid) {
            _ if header.class_version != sa::CLASS_VERSION => Err(Refusal(STATUS_VERSION)),
            None => Err(Refusal(sa::STATUS_INVALID_REQUEST)),
            _ if is_table(header.method) && tables >= MOST_TABLES => Err(Refusal(sa::STATUS_NO_RESOURCES)),
            Some(asker) => self.serve(
                &SaRequest {
                    inventory,
                    from,
                    asker,
                    trusted: fields.sm_key != 0,
                    header,
                    mask: fields.component_mask,
                    data: &data,
                    prefix: self.config.prefix,
                    longest: self.config.longest.min(LONGEST),
                },
                now,
            ),
        };
        let is_join = (header.method, header.attribute) == (METHOD_SET, McMemberRecord::ATTRIBUTE);
        let answer = match answer {
            Ok(records) if is_join => match self.joins.hold(from, header, fields.component_mask, records, now) {
                Ok(()) => return,
                Err(records) => Ok(records),
            },
            answer => answer,
        };
        self.answer(from, header, fields.component_mask, &data, answer, now);
    }

    /// Answers joins: all of them if the multicast tables follow [`Sa::groups`], and otherwise
    /// those that have waited long.
    pub fn answer_joins(&mut self, tables_are_set: bool, now: Duration) {
        while let Some(join) = self.joins.next(tables_are_set, now) {
            self.answer(join.to, join.header, join.mask, &[], Ok(join.records), now);
        }
    }

    fn serve(&mut self, request: &SaRequest<'_>, now: Duration) -> Answer {
        let unsupported = Err(Refusal(STATUS_METHOD_ATTRIBUTE));
        match (request.header.method, request.header.attribute) {
            (METHOD_GET, ClassPortInfo::ATTRIBUTE) => class_port_info(request),
            (METHOD_GET | METHOD_GET_TABLE, attribute) => self.query(request, attribute, now),
            (METHOD_GET_MULTI, MultiPathRecord::ATTRIBUTE) => {
                multi_paths::multi_paths(request, &self.index, &self.config)
            }
            (METHOD_SET, InformInfo::ATTRIBUTE) => self.subscriptions.set(request),
            (METHOD_SET, ServiceRecord::ATTRIBUTE) => self.services.set(request, &self.index, now),
            (METHOD_DELETE, ServiceRecord::ATTRIBUTE) => self.services.delete(request),
            (METHOD_SET | METHOD_DELETE, McMemberRecord::ATTRIBUTE) => self.member(request, now),
            (METHOD_SET | METHOD_DELETE, sa::GuidInfoRecord::ATTRIBUTE) => {
                let (answer, changed) = self.aliases.change(request, &mut self.index, &self.groups);
                if changed {
                    self.tell(SaEvent::AliasesChanged);
                }
                answer
            }
            (METHOD_SET | METHOD_DELETE | METHOD_GET_MULTI, _) => unsupported,
            _ => Err(Refusal(STATUS_METHOD)),
        }
    }

    fn query(&self, request: &SaRequest<'_>, attribute: u16, now: Duration) -> Answer {
        match attribute {
            sa::NodeRecord::ATTRIBUTE => records::nodes(request),
            sa::PortInfoRecord::ATTRIBUTE => records::port_infos(request),
            sa::SlToVlRecord::ATTRIBUTE => records::sl_to_vl(request),
            sa::SwitchInfoRecord::ATTRIBUTE => records::switches(request),
            sa::LinearTableRecord::ATTRIBUTE => records::linear_tables(request),
            sa::MulticastTableRecord::ATTRIBUTE => records::multicast_tables(request),
            sa::SmInfoRecord::ATTRIBUTE => records::managers(request),
            sa::GuidInfoRecord::ATTRIBUTE => aliases::query(request, &self.index),
            sa::PKeyTableRecord::ATTRIBUTE => records::pkey_tables(request),
            sa::VlArbitrationRecord::ATTRIBUTE => records::arbitration(request),
            sa::LinkRecord::ATTRIBUTE => records::links(request),
            sa::InformInfoRecord::ATTRIBUTE => self.subscriptions.query(request),
            ServiceRecord::ATTRIBUTE => self.services.query(request, now),
            McMemberRecord::ATTRIBUTE => members::query(request, &self.groups),
            PathRecord::ATTRIBUTE => {
                let dgid = request.template::<PathRecord>().dgid;
                if request.asks(PathRecord::DGID) && dgid[0] == 0xff {
                    return self.group_path(request, self.groups.find(&dgid));
                }
                paths::paths(request, &self.index, &self.config)
            }
            _ => Err(Refusal(STATUS_METHOD_ATTRIBUTE)),
        }
    }

    fn group_path(&self, request: &SaRequest<'_>, group: Option<&Group>) -> Answer {
        let own = request.inventory.port(request.asker).map_or(&[][..], pkeys);
        let seen = |group: &&Group| request.trusted || common(own, &[group.record.pkey | 0x8000]).is_some();
        let group = group.filter(seen).ok_or(Refusal(sa::STATUS_INVALID_GID))?;
        paths::to_group(request, &group.record)
    }

    fn member(&mut self, request: &SaRequest<'_>, now: Duration) -> Answer {
        let joined = if request.header.method == METHOD_SET {
            members::join(request, &self.index, &mut self.groups, self.config.packet_life, &mut self.chosen)?
        } else {
            members::leave(request, &self.index, &mut self.groups)?
        };
        self.tell(SaEvent::GroupsChanged);
        let mgid = joined.answer.mgid;
        if joined.created {
            self.group_notice(request.inventory, Notice::GROUP_CREATED, mgid, now);
        }
        if joined.deleted {
            self.group_notice(request.inventory, Notice::GROUP_DELETED, mgid, now);
        }
        let mut records = request.records::<McMemberRecord>();
        records.push(joined.answer)?;
        Ok(records)
    }

    fn group_notice(&mut self, inventory: &Inventory, number: u16, mgid: wire::cm::Gid, now: Duration) {
        let details = GidNotice { gid: mgid };
        let lid = self.config.lid;
        let mut notice = Notice::with(Notice::SUBNET, Notice::BY_CLASS_MANAGER, number, lid, details);
        let issuer = inventory.by_lid(lid).and_then(|id| inventory.port(id));
        notice.issuer_gid = issuer.map_or([0; 16], |port| request::gid(self.config.prefix, port.guid));
        self.notice(inventory, &notice, now);
    }

    /// Forwards a notice to its subscribers. Those without the SM_Key hear only of LIDs and GIDs in
    /// their partitions, and of groups.
    pub fn notice(&mut self, inventory: &Inventory, notice: &Notice, now: Duration) {
        let subject = self.subject(inventory, notice);
        let keys = |id: PortId| inventory.port(id).map(pkeys);
        let sees = |id: PortId| {
            subject.and_then(keys).is_none_or(|theirs| keys(id).is_some_and(|own| common(own, theirs).is_some()))
        };
        for peer in self.subscriptions.of(notice, sees) {
            self.report = self.report.wrapping_add(1);
            let header = Header {
                base_version: BASE_VERSION,
                class: CLASS_SA,
                class_version: sa::CLASS_VERSION,
                method: METHOD_REPORT,
                transaction: self.report.into(),
                attribute: Notice::ATTRIBUTE,
                ..Header::default()
            };
            let mut mad = [0; wire::mad::MAD_LEN];
            header.emit_to(&mut mad);
            notice.write(&mut mad[DATA..]);
            // With too many reports on their way, this one is lost, as a trap may be.
            let _ = self.client.send(peer, &mad, REPORT_TIMEOUT, REPORT_RETRIES, now);
        }
    }

    /// The port that a notice is about.
    fn subject(&self, inventory: &Inventory, notice: &Notice) -> Option<PortId> {
        match notice.number {
            Notice::GID_IN_SERVICE | Notice::GID_OUT_OF_SERVICE => {
                self.index.find(self.config.prefix, notice.details::<GidNotice>().gid)
            }
            Notice::GROUP_CREATED | Notice::GROUP_DELETED => None,
            _ => inventory.by_lid(notice.issuer_lid),
        }
    }

    fn answer(&mut self, to: Peer, mut header: Header, mask: u64, data: &[u8], answer: Answer, now: Duration) {
        let is_table = is_table(header.method);
        let one = |records: Records| match records.count {
            _ if is_table => Ok(records),
            0 => Err(Refusal(sa::STATUS_NO_RECORDS)),
            1 => Ok(records),
            _ => Err(Refusal(sa::STATUS_TOO_MANY_RECORDS)),
        };
        header.method = if header.method == METHOD_SET { METHOD_GET } else { header.method } | RESPONSE;
        let mut message = vec![0; DATA];
        let mut fields = sa::Header { component_mask: mask, ..sa::Header::default() };
        match answer.and_then(one) {
            Ok(records) => {
                header.status = 0;
                if header.method == METHOD_GET_MULTI | RESPONSE {
                    header.attribute = PathRecord::ATTRIBUTE;
                }
                fields.attribute_offset = u16::try_from(records.stride / 8).unwrap_or(0);
                fields.write(&mut message);
                if is_table {
                    let flags = rmpp::FLAG_ACTIVE;
                    rmpp::Header { version: rmpp::VERSION, kind: rmpp::TYPE_DATA, flags, ..rmpp::Header::default() }
                        .write(&mut message[rmpp::OFFSET..]);
                }
                message.extend_from_slice(&records.bytes);
            }
            Err(Refusal(status)) => {
                header.status = status;
                fields.write(&mut message);
                message.extend_from_slice(data);
            }
        }
        if let Some(front) = message.first_chunk_mut() {
            header.emit(front);
        }
        // A repeated request whose answer is on its way is in use, and the peer gets that answer.
        if let Err(client::SendError::Full) = self.client.send(to, &message, Duration::ZERO, 0, now)
            && header.status == 0
        {
            header.method ^= RESPONSE;
            self.answer(to, header, mask, data, Err(Refusal(sa::STATUS_NO_RESOURCES)), now);
        }
    }

    /// Handles the time.
    pub fn handle_timeout(&mut self, inventory: &Inventory, now: Duration) {
        self.client.handle_timeout(now);
        self.services.handle_timeout(now);
        self.follow_client(inventory, now);
    }

    /// When [`Sa::handle_timeout`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        [self.client.deadline(), self.services.deadline(), self.joins.deadline()].into_iter().flatten().min()
    }

    /// The next datagram to send, and to whom.
    pub fn poll_transmit(&mut self) -> Option<(Peer, Mad)> {
        self.client.poll_transmit()
    }

    /// The next thing that the manager hears.
    pub fn poll_event(&mut self) -> Option<SaEvent> {
        self.events.pop_front()
    }
}

/// Whether the answer to a method has any number of records.
const fn is_table(method: u8) -> bool {
    matches!(method, METHOD_GET_TABLE | METHOD_GET_MULTI)
}

fn class_port_info(request: &SaRequest<'_>) -> Answer {
    let mut records = request.records::<ClassPortInfo>();
    records.push(ClassPortInfo {
        base_version: BASE_VERSION,
        class_version: sa::CLASS_VERSION,
        capability_mask: CAPABILITIES,
        capability_mask2: CAPABILITIES2,
        response_time: RESPONSE_TIME,
        redirect: Endpoint { qpn: GSI_QP, qkey: GSI_QKEY, ..Endpoint::default() },
        trap: Endpoint { qkey: GSI_QKEY, ..Endpoint::default() },
    })?;
    Ok(records)
}
