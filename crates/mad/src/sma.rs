//! The agent of subnet management: carries out what the manager asks of a node. Not the way of the
//! datagrams ([`crate::smi`]) and not the links. IBA 14.2.4, 14.2.5 and 14.3. The function is
//! [`handle`].
//!
//! | attribute | Get | Set | who has it |
//! |---|---|---|---|
//! | NodeDescription, NodeInfo | yes | no | every node |
//! | PortInfo, P_KeyTable, SLtoVLMappingTable, VLArbitrationTable | yes | yes | every node |
//! | GUIDInfo | yes | yes | end ports |
//! | SwitchInfo, LinearForwardingTable, MulticastForwardingTable | yes | yes | switches |
//! | ExtendedPortInfo of the vendor 0x2c9 | yes | yes | nodes of this vendor |
//!
//! A Set with a wrong value changes nothing, and its answer has the status 0x1c. Other attributes
//! and methods get 0x0c or 0x08. A wrong management key gets no answer. SMInfo belongs to the
//! manager at the port: the caller asks this agent only if no manager runs there.

mod port;
mod tables;
#[cfg(test)]
mod tests;

use crate::key::Key;
use crate::node::Node;
use std::time::Duration;
use wire::layout::Layout;
use wire::mad::{
    BASE_VERSION, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, METHOD_GET, METHOD_SET, RESPONSE, STATUS_INVALID, STATUS_METHOD,
    STATUS_METHOD_ATTRIBUTE, STATUS_VERSION,
};
use wire::notice::{MKeyNotice, Notice};
use wire::smp::{
    CLASS_VERSION, GuidInfo, LinearTable, MulticastTable, NodeDescription, NodeInfo, PKeyTable, PhysState, PortInfo,
    SlToVl, Smp, SwitchInfo, VlArbitration,
};

/// The time in which a port answers: 4.096 µs × 2^n, about 67 ms.
pub const RESPONSE_TIME: u8 = 14;

/// The attribute of a vendor that tells of FDR10. Managers ask every node of this vendor for it.
const EXTENDED_PORT_INFO: u16 = 0xff90;
const VENDOR: u32 = 0x2c9;

/// `LinkSpeedExtEnabled` of PortInfo: no extended speed. IBA 14.2.5.6.
pub const NO_EXTENDED: u8 = 30;

/// What changed at a node. The owner of the node tells its clients, and moves its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// The LID or the number of LIDs.
    Lid,
    /// The manager's LID or service level.
    SmLid,
    /// The P_Key table.
    PKeys,
    /// The GIDs: the prefix or the GUID table.
    Gids,
    /// Clients shall register again.
    ClientReregister,
    /// The link became active.
    Active,
    /// The link left the active state.
    Inactive,
    /// The link shall go down, and into this physical state.
    Link(PhysState),
    /// Widths or speeds may be used that may not be in use: the link may train again.
    LinkSettings,
    /// The MTU of the link, the timeout of the subnet, or the type of the initialisation.
    Settings,
    /// A table of the switch.
    Forwarding,
    /// The count of packets with a wrong key is 0 again.
    Cleared(Key),
}

impl NodeEvent {
    /// The key whose count a manager has cleared.
    #[must_use]
    pub const fn cleared(self) -> Option<Key> {
        match self {
            Self::Cleared(key) => Some(key),
            _ => None,
        }
    }
}

/// What a request led to.
#[derive(Clone, Debug, Default)]
pub struct Handled {
    /// The answer. It has the class and the pointers of the request, and is on its way back.
    pub answer: Option<Smp>,
    /// What changed, and at which port.
    pub events: Vec<(u8, NodeEvent)>,
    /// A notice for the manager.
    pub notice: Option<Notice>,
}

/// The result of an attribute: the status of the answer.
type Served = Result<(), u16>;

/// A request on its way to an attribute.
struct AttributeRequest<'a> {
    /// The port at which it came in.
    ingress: u8,
    modifier: u32,
    is_set: bool,
    data: &'a mut [u8; 64],
    events: &'a mut Vec<(u8, NodeEvent)>,
}

impl AttributeRequest<'_> {
    fn show<T: Layout>(&mut self, attribute: T) {
        self.data.fill(0);
        attribute.write(self.data);
    }
}

/// Handles a datagram that has arrived at port `ingress`: 0 for one of the switch itself, and of an
/// adapter for none.
pub fn handle(node: &mut Node, ingress: u8, smp: &Smp, now: Duration) -> Handled {
    let mut handled = Handled::default();
    let known = matches!(smp.class, CLASS_SUBN_LID | CLASS_SUBN_DIRECTED);
    if !known || smp.method & RESPONSE != 0 || node.port(ingress).is_none() {
        return handled;
    }
    if !matches!(smp.method, METHOD_GET | METHOD_SET) {
        handled.answer = unknown_method(smp);
        return handled;
    }
    expire_leases(node, now);
    if let Err(notice) = check_mkey(node, ingress, smp, now) {
        handled.notice = Some(notice);
        return handled;
    }
    let mut answer = *smp;
    let mut request = AttributeRequest {
        ingress,
        modifier: smp.modifier,
        is_set: smp.method == METHOD_SET,
        data: &mut answer.data,
        events: &mut handled.events,
    };
    let status = if smp.base_version != BASE_VERSION || smp.class_version != CLASS_VERSION {
        STATUS_VERSION
    } else {
        serve(node, smp.attribute, &mut request).err().unwrap_or(0)
    };
    if smp.attribute == PortInfo::ATTRIBUTE && status == 0 {
        hide_mkey(node, ingress, smp, &mut answer);
    }
    handled.answer = Some(Smp { method: METHOD_GET | RESPONSE, status, returning: is_directed(smp), ..answer });
    handled
}

const fn is_directed(smp: &Smp) -> bool {
    smp.class == CLASS_SUBN_DIRECTED
}

/// Traps and their like are for a manager, and get no answer. Methods that do not exist get one.
fn unknown_method(smp: &Smp) -> Option<Smp> {
    let for_managers = [wire::mad::METHOD_TRAP, wire::mad::METHOD_TRAP_REPRESS, wire::mad::METHOD_REPORT];
    let method = smp.method | RESPONSE;
    let answer = Smp { method, status: STATUS_METHOD, returning: is_directed(smp), ..*smp };
    (!for_managers.contains(&smp.method)).then_some(answer)
}

fn serve(node: &mut Node, attribute: u16, request: &mut AttributeRequest<'_>) -> Served {
    match (attribute, request.is_set) {
        (NodeDescription::ATTRIBUTE, false) => {
            request.show(node.description);
            Ok(())
        }
        (NodeInfo::ATTRIBUTE, false) => node_info(node, request),
        (PortInfo::ATTRIBUTE, _) => port::port_info(node, request),
        (PKeyTable::ATTRIBUTE, _) => tables::pkeys(node, request),
        (GuidInfo::ATTRIBUTE, _) => tables::guids(node, request),
        (SlToVl::ATTRIBUTE, _) => tables::sl_to_vl(node, request),
        (VlArbitration::ATTRIBUTE, _) => tables::arbitration(node, request),
        (SwitchInfo::ATTRIBUTE, _) => tables::switch_info(node, request),
        (LinearTable::ATTRIBUTE, _) => tables::linear(node, request),
        (MulticastTable::ATTRIBUTE, _) => tables::multicast(node, request),
        (EXTENDED_PORT_INFO, _) if node.info.vendor_id == VENDOR => extended_port_info(node, request),
        _ => Err(STATUS_METHOD_ATTRIBUTE),
    }
}

/// No port has FDR10, so all fields are 0, and a Set changes nothing.
fn extended_port_info(node: &Node, request: &mut AttributeRequest<'_>) -> Served {
    let number = u8::try_from(request.modifier).map_err(|_| STATUS_INVALID)?;
    let number = if number == 0 { request.ingress } else { number };
    node.port(number).ok_or(STATUS_INVALID)?;
    request.data.fill(0);
    Ok(())
}

fn node_info(node: &Node, request: &mut AttributeRequest<'_>) -> Served {
    let port_guid = node.port(node.end_port(request.ingress)).map_or(0, |port| port.guid);
    request.show(NodeInfo { port_guid, local_port: request.ingress, ..node.info });
    Ok(())
}

/// Checks the management key. A wrong one counts, begins the lease, and makes a notice.
fn check_mkey(node: &mut Node, ingress: u8, smp: &Smp, now: Duration) -> Result<(), Notice> {
    let end_port = node.end_port(ingress);
    let producer = node.info.node_type.into();
    let Some(port) = node.port_mut(end_port) else { return Ok(()) };
    let info = &mut port.info;
    if info.mkey == 0 || smp.mkey == info.mkey {
        port.lease_ends = None;
        return Ok(());
    }
    if smp.method == METHOD_GET && info.mkey_protect < 2 {
        return Ok(());
    }
    info.mkey_violations = info.mkey_violations.saturating_add(1);
    if info.mkey_lease != 0 && port.lease_ends.is_none() {
        port.lease_ends = Some(now.saturating_add(Duration::from_secs(info.mkey_lease.into())));
    }
    let hops = if is_directed(smp) { smp.hop_count } else { 0 };
    let mut details = MKeyNotice {
        lid: info.lid,
        dr_slid: if is_directed(smp) { smp.dr_slid } else { 0 },
        method: smp.method,
        attribute: smp.attribute,
        modifier: smp.modifier,
        mkey: smp.mkey,
        directed: is_directed(smp),
        truncated: usize::from(hops) > 30,
        hops: hops.min(30),
        ..MKeyNotice::default()
    };
    for (place, port) in details.path.iter_mut().zip(smp.return_path.iter().skip(1).take(hops.into())) {
        *place = *port;
    }
    Err(Notice::with(Notice::SECURITY, producer, Notice::BAD_MKEY, info.lid, details))
}

/// After its lease, a management key protects nothing until a manager renews it.
fn expire_leases(node: &mut Node, now: Duration) {
    for port in &mut node.ports {
        if port.lease_ends.is_some_and(|end| end <= now) {
            port.lease_ends = None;
            port.info.mkey_protect = 0;
        }
    }
}

/// Without the key, a protected key is not shown.
fn hide_mkey(node: &Node, ingress: u8, smp: &Smp, answer: &mut Smp) {
    let protected = node
        .port(node.end_port(ingress))
        .is_some_and(|port| port.info.mkey_protect != 0 && port.info.mkey != 0 && port.info.mkey != smp.mkey);
    // A Set has the key, or sets it.
    if protected && smp.method == METHOD_GET {
        answer.data[..8].fill(0);
    }
}
