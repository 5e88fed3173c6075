//! PathRecord: paths between end ports, and to multicast groups. Not how a packet is routed
//! ([`super::walk`]). The functions are [`paths`] and [`to_group`].

use super::SaConfig;
use super::index::{Index, is_beyond};
use super::request::{Answer, Records, Refusal, SaRequest, common, pkeys};
use super::walk::{PathLimits, walk};
use crate::inventory::{Port, PortId};
use wire::cm::Gid;
use wire::layout::matches;
use wire::mad::METHOD_GET;
use wire::rate_mbps;
use wire::sa::{McMemberRecord, PathRecord, STATUS_INSUFFICIENT_COMPONENTS, STATUS_INVALID_GID, STATUS_NO_RESOURCES};
use wire::smp::NodeType;

/// The most pairs of ports that one request makes the manager look at.
const MOST_PAIRS: usize = 1 << 16;
/// The hop limit of paths through routers.
const MOST_HOPS: u8 = 255;
/// The selector of an exact value.
pub(super) const EXACTLY: u8 = 2;

/// One end of the paths that a request asks for.
struct Ends {
    ports: Vec<PortId>,
    lid: Option<u16>,
    gid: Option<Gid>,
}

fn ends(request: &SaRequest<'_>, index: &Index, gid: Option<Gid>, lid: Option<u16>) -> Result<Ends, Refusal> {
    let by_gid = match gid {
        Some(gid) => Some(index.find(request.prefix, gid).ok_or(Refusal(STATUS_INVALID_GID))?),
        None => None,
    };
    let by_lid = lid.map(|lid| request.inventory.by_lid(lid));
    let ports = match (by_gid, by_lid) {
        (None, None) => request.inventory.end_ports().map(|(id, ..)| id).collect(),
        (Some(port), None) => vec![port],
        (None, Some(port)) => port.into_iter().collect(),
        (Some(port), Some(other)) => other.filter(|other| *other == port).into_iter().collect(),
    };
    Ok(Ends { ports, lid, gid })
}

/// The router for the destinations of other subnets. Any of them will do: if another one is nearer,
/// it sends the packet on to that one.
fn routers(request: &SaRequest<'_>, gid: Gid, lid: Option<u16>) -> Result<Ends, Refusal> {
    let ports = request
        .inventory
        .end_ports()
        .filter(|(_, node, port)| node.info.node_type == NodeType::Router as u8 && port.info.lid != 0);
    let ports = ports.filter(|(id, ..)| lid.is_none_or(|lid| request.inventory.by_lid(lid) == Some(*id)));
    let first = ports.min_by_key(|(.., port)| port.info.lid).ok_or(Refusal(STATUS_INVALID_GID))?;
    Ok(Ends { ports: vec![first.0], lid, gid: Some(gid) })
}

/// Answers PathRecord. A group is a destination too.
pub(super) fn paths(request: &SaRequest<'_>, index: &Index, config: &SaConfig) -> Answer {
    let template: PathRecord = request.template();
    let mut records = request.records::<PathRecord>();
    let asked = |component, value: Gid| request.asks(component).then_some(value);
    let lid = |component, value: u16| request.asks(component).then_some(value);
    let is_get = request.header.method == METHOD_GET;
    let has = |components: u64| request.mask & components != 0;
    if is_get && !(has(PathRecord::DGID | PathRecord::DLID) && has(PathRecord::SGID | PathRecord::SLID)) {
        return Err(Refusal(STATUS_INSUFFICIENT_COMPONENTS));
    }
    let sources = ends(request, index, asked(PathRecord::SGID, template.sgid), lid(PathRecord::SLID, template.slid))?;
    let (dgid, dlid) = (asked(PathRecord::DGID, template.dgid), lid(PathRecord::DLID, template.dlid));
    let targets = match dgid.filter(|gid| is_beyond(request.prefix, *gid)) {
        Some(gid) => routers(request, gid, dlid)?,
        None => ends(request, index, dgid, dlid)?,
    };
    if sources.ports.len().saturating_mul(targets.ports.len()) > MOST_PAIRS {
        return Err(Refusal(STATUS_NO_RESOURCES));
    }
    for source in &sources.ports {
        for target in &targets.ports {
            let pair = Pair { request, template: &template, source: *source, target: *target, config };
            pair.paths(&sources, &targets, is_get, &mut records)?;
        }
    }
    Ok(records)
}

struct Pair<'a> {
    request: &'a SaRequest<'a>,
    template: &'a PathRecord,
    source: PortId,
    target: PortId,
    config: &'a SaConfig,
}

impl Pair<'_> {
    /// Adds the paths of two ports: with LMC, the n-th LID of one to the n-th LID of the other.
    fn paths(&self, sources: &Ends, targets: &Ends, is_get: bool, records: &mut Records) -> Result<(), Refusal> {
        let request = self.request;
        let Some(source) = request.inventory.port(self.source).filter(|port| request.sees(port)) else { return Ok(()) };
        let Some(target) = request.inventory.port(self.target).filter(|port| request.sees(port)) else { return Ok(()) };
        let lids = |port: &Port, asked: Option<u16>| {
            let first = asked.unwrap_or(port.info.lid);
            (first, if asked.is_some() { 1 } else { 1_u16 << port.info.lmc })
        };
        let ((slid, slids), (dlid, dlids)) = (lids(source, sources.lid), lids(target, targets.lid));
        let number = if request.asks(PathRecord::NUMBER) { u16::from(self.template.number) } else { 127 };
        let wanted = slids.max(dlids).min(if is_get { 1 } else { number });
        for nth in 0..wanted {
            let lids = (slid.saturating_add(nth % slids), dlid.saturating_add(nth % dlids));
            if let Some(mut record) = self.path((source, target), lids) {
                record.sgid = sources.gid.unwrap_or_else(|| request.gid(source));
                record.dgid = targets.gid.unwrap_or_else(|| request.gid(target));
                record.hop_limit = if is_beyond(request.prefix, record.dgid) { MOST_HOPS } else { 0 };
                records.push(record)?;
            }
        }
        Ok(())
    }

    /// The P_Key of the path. A port reaches itself as a limited member too.
    fn partition(&self, own: &[u16], theirs: &[u16]) -> Option<u16> {
        let to_itself = || own.iter().copied().find(|own| self.source == self.target && wire::pkey::is_valid(*own));
        common(own, theirs).or_else(to_itself)
    }

    /// The service level of paths in a partition. Without a policy, the requester may choose one of
    /// those that have a data lane.
    fn level(&self, pkey: u16) -> u8 {
        let (levels, dropped) = (&self.config.levels, self.config.dropped);
        let may_choose = levels.is_empty() && self.request.asks(PathRecord::SL);
        let chosen = Some(self.template.sl).filter(|sl| may_choose && *sl < 16 && dropped >> *sl & 1 == 0);
        levels.get(&(pkey & 0x7fff)).copied().or(chosen).unwrap_or(0)
    }

    fn path(&self, (source, target): (&Port, &Port), (slid, dlid): (u16, u16)) -> Option<PathRecord> {
        let (request, template) = (self.request, self.template);
        let inventory = request.inventory;
        let way = walk(inventory, self.source, self.target, dlid)?;
        let reversible = walk(inventory, self.target, self.source, slid).is_some();
        let must_reverse = request.asks(PathRecord::REVERSIBLE) && template.reversible;
        if slid == 0 || dlid == 0 || must_reverse && !reversible || request.asks(PathRecord::RAW) && template.raw {
            return None;
        }
        let pkey = if request.asks(PathRecord::PKEY) {
            let of = |port| pkeys(port).iter().copied().filter(|own| *own & 0x7fff == template.pkey & 0x7fff);
            let (own, theirs): (Vec<_>, Vec<_>) = (of(source).collect(), of(target).collect());
            self.partition(&own, &theirs)?
        } else {
            self.partition(pkeys(source), pkeys(target))?
        };
        let chosen = |selector, component, asked| (request.asks(selector) && request.asks(component)).then_some(asked);
        let wants = |asked: Option<(u8, u8)>| asked.unwrap_or((3, 0));
        let mtu = wants(chosen(PathRecord::MTU_SELECTOR, PathRecord::MTU, (template.mtu_selector, template.mtu)));
        let rate = wants(chosen(PathRecord::RATE_SELECTOR, PathRecord::RATE, (template.rate_selector, template.rate)));
        let life = if self.source == self.target { 0 } else { self.config.packet_life };
        let record = PathRecord {
            slid,
            dlid,
            reversible,
            number: 1,
            pkey,
            sl: self.level(pkey),
            mtu_selector: EXACTLY,
            mtu: choose_mtu(way.mtu, mtu)?,
            rate_selector: EXACTLY,
            rate: choose_rate(way.rate(), rate)?,
            life_selector: EXACTLY,
            life,
            flow_label: template.flow_label,
            traffic_class: template.traffic_class,
            qos_class: template.qos_class,
            service_id: template.service_id,
            ..PathRecord::default()
        };
        let has_life = request.asks(PathRecord::LIFE_SELECTOR) && request.asks(PathRecord::LIFE);
        let lives = if has_life { PathRecord::LIFE_SELECTOR | PathRecord::LIFE } else { 0 };
        matches(&record, template, request.mask & PathRecord::SL | lives).then_some(record)
    }
}

/// The MTU of a path that carries `most`: by a selector and a value. Smaller ones can be used too.
pub(super) fn choose_mtu(most: u8, (selector, wanted): (u8, u8)) -> Option<u8> {
    match selector {
        0 => (most > wanted).then_some(most),
        1 => Some(most.min(wanted.checked_sub(1)?)).filter(|mtu| *mtu != 0),
        2 => (wanted != 0 && most >= wanted).then_some(wanted),
        _ => Some(most),
    }
}

/// The rate of a path that carries `most`: by a selector and a value. Slower ones can be used too.
pub(super) fn choose_rate(most: u8, (selector, wanted): (u8, u8)) -> Option<u8> {
    let (carried, asked) = (rate_mbps(most)?, rate_mbps(wanted));
    match selector {
        0 => (carried > asked?).then_some(most),
        1 => {
            let asked = asked?;
            let slower = (2..=24).filter(|code| rate_mbps(*code).is_some_and(|rate| rate < asked && rate <= carried));
            slower.max_by_key(|code| rate_mbps(*code))
        }
        2 => (carried >= asked?).then_some(wanted),
        _ => Some(most),
    }
}

/// What one port carries: its MTU and its rate, as codes.
pub(super) fn carries(port: &Port) -> (u8, u8) {
    let way = PathLimits::of(port);
    (way.mtu, way.rate())
}

/// Answers PathRecord for a group.
pub(super) fn to_group(request: &SaRequest<'_>, group: &McMemberRecord) -> Answer {
    let template: PathRecord = request.template();
    let mut records = request.records::<PathRecord>();
    records.push(PathRecord {
        dgid: group.mgid,
        sgid: template.sgid,
        dlid: group.mlid,
        slid: if request.asks(PathRecord::SLID) { template.slid } else { request.from.lid },
        flow_label: group.flow_label,
        hop_limit: group.hop_limit,
        traffic_class: group.traffic_class,
        number: 1,
        pkey: group.pkey,
        sl: group.sl,
        mtu_selector: EXACTLY,
        mtu: group.mtu,
        rate_selector: EXACTLY,
        rate: group.rate,
        life_selector: EXACTLY,
        life: group.life,
        service_id: template.service_id,
        ..PathRecord::default()
    })?;
    Ok(records)
}
