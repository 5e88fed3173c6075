//! PortInfo: what a Set may change, and what follows. IBA 14.2.5.6. The function is [`port_info`].

use super::{AttributeRequest, NO_EXTENDED, NodeEvent, Served};
use crate::key::Key;
use crate::node::Node;
use wire::mad::STATUS_INVALID;
use wire::smp::{LinkState, PhysState, PortInfo, PortLink, PortVls};

/// In the modifier: the manager knows extended speeds.
const EXTENDED_SPEEDS: u32 = 1 << 31;
const LAST_UNICAST_LID: u16 = 0xbfff;

/// Shows the port of the modifier, and changes it first if the request is a Set.
pub(super) fn port_info(node: &mut Node, request: &mut AttributeRequest<'_>) -> Served {
    let is_switch = node.switch.is_some();
    let ingress = request.ingress;
    let number = u8::try_from(request.modifier & !EXTENDED_SPEEDS).map_err(|_| STATUS_INVALID)?;
    let number = if number == 0 && !is_switch { ingress } else { number };
    let has_lids = node.end_port(number) == number;
    let port = node.port_mut(number).ok_or(STATUS_INVALID)?;
    if request.is_set {
        let asked = PortInfo::parse(request.data);
        let changed = change(&port.info, &asked, has_lids).ok_or(STATUS_INVALID)?;
        events(&port.info, &changed, &asked, |event| request.events.push((number, event)));
        port.info = changed;
    }
    let info = PortInfo { local_port: ingress, client_reregister: false, ..port.info };
    request.show(info);
    Ok(())
}

/// The state after a Set, or `None` if a value is wrong.
fn change(now: &PortInfo, asked: &PortInfo, has_lids: bool) -> Option<PortInfo> {
    let mut next = PortInfo { link: link(&now.link, &asked.link)?, vls: vls(&now.vls, &asked.vls)?, ..*now };
    if has_lids {
        let aligned = asked.lid & ((1 << asked.lmc) - 1) == 0;
        if asked.lid > LAST_UNICAST_LID || asked.master_sm_lid > LAST_UNICAST_LID || !aligned {
            return None;
        }
        next.mkey = asked.mkey;
        next.mkey_protect = asked.mkey_protect;
        next.mkey_lease = asked.mkey_lease;
        next.gid_prefix = asked.gid_prefix;
        next.lid = asked.lid;
        next.lmc = asked.lmc;
        next.master_sm_lid = asked.master_sm_lid;
        next.master_sm_sl = asked.master_sm_sl;
        next.subnet_timeout = asked.subnet_timeout;
        next.init_type_reply = asked.init_type_reply;
    }
    next.multicast_pkey_trap_suppression = asked.multicast_pkey_trap_suppression;
    // A counter of violations can only be cleared.
    let clear = |now, asked| if asked == 0 { 0 } else { now };
    next.mkey_violations = clear(now.mkey_violations, asked.mkey_violations);
    next.pkey_violations = clear(now.pkey_violations, asked.pkey_violations);
    next.qkey_violations = clear(now.qkey_violations, asked.qkey_violations);
    Some(next)
}

fn link(now: &PortLink, asked: &PortLink) -> Option<PortLink> {
    Some(PortLink {
        state: state(now.state, asked)?,
        phys_state: phys_state(now.phys_state, asked)?,
        down_default: match asked.down_default {
            0 => now.down_default,
            1 | 2 => asked.down_default,
            _ => return None,
        },
        width_enabled: subset(now.width_enabled, asked.width_enabled, now.width_supported, 255)?,
        speed_enabled: subset(now.speed_enabled, asked.speed_enabled, now.speed_supported, 15)?,
        extended_enabled: match asked.extended_enabled {
            NO_EXTENDED => NO_EXTENDED,
            asked => subset(now.extended_enabled, asked, now.extended_supported, 31)?,
        },
        neighbor_mtu: match asked.neighbor_mtu {
            0 => now.neighbor_mtu,
            mtu if mtu <= now.mtu_cap => mtu,
            _ => return None,
        },
        local_phys_errors: asked.local_phys_errors,
        overrun_errors: asked.overrun_errors,
        ..*now
    })
}

/// The logical state after a Set: it rises by one step at a time, or falls to DOWN.
fn state(now: u8, asked: &PortLink) -> Option<u8> {
    const DOWN: u8 = LinkState::Down as u8;
    const INIT: u8 = LinkState::Init as u8;
    const ARMED: u8 = LinkState::Armed as u8;
    const ACTIVE: u8 = LinkState::Active as u8;
    match (now, asked.state) {
        (_, 0) => Some(now),
        (_, DOWN) => Some(DOWN),
        (INIT | ARMED, ARMED) if asked.phys_state == 0 => Some(ARMED),
        (ARMED | ACTIVE, ACTIVE) if asked.phys_state == 0 => Some(ACTIVE),
        _ => None,
    }
}

/// The physical state after a Set. A link whose logical state falls polls or sleeps.
fn phys_state(now: u8, asked: &PortLink) -> Option<u8> {
    match asked.phys_state {
        0 => Some(now),
        1..=3 => Some(asked.phys_state),
        _ => None,
    }
}

/// A mask after a Set: 0 leaves it, `all` means what is supported.
const fn subset(now: u8, asked: u8, supported: u8, all: u8) -> Option<u8> {
    match asked {
        0 => Some(now),
        asked if asked == all => Some(supported),
        asked if asked & !supported == 0 => Some(asked),
        _ => None,
    }
}

fn vls(now: &PortVls, asked: &PortVls) -> Option<PortVls> {
    let operational = match asked.operational {
        0 => now.operational,
        vls if vls <= now.cap => vls,
        _ => return None,
    };
    Some(PortVls {
        operational,
        cap: now.cap,
        arbitration_high_cap: now.arbitration_high_cap,
        arbitration_low_cap: now.arbitration_low_cap,
        ..*asked
    })
}

fn events(before: &PortInfo, after: &PortInfo, asked: &PortInfo, mut tell: impl FnMut(NodeEvent)) {
    const ACTIVE: u8 = LinkState::Active as u8;
    let mut when = |is: bool, event| {
        if is {
            tell(event);
        }
    };
    when((before.lid, before.lmc) != (after.lid, after.lmc), NodeEvent::Lid);
    let manager = |info: &PortInfo| (info.master_sm_lid, info.master_sm_sl);
    when(manager(before) != manager(after), NodeEvent::SmLid);
    when(before.gid_prefix != after.gid_prefix, NodeEvent::Gids);
    when(before.link.state != ACTIVE && after.link.state == ACTIVE, NodeEvent::Active);
    when(before.link.state == ACTIVE && after.link.state != ACTIVE, NodeEvent::Inactive);
    when(asked.client_reregister, NodeEvent::ClientReregister);
    let enabled = |info: &PortInfo| (info.link.width_enabled, info.link.speed_enabled, info.link.extended_enabled);
    when(enabled(before) != enabled(after), NodeEvent::LinkSettings);
    let settings = |info: &PortInfo| (info.link.neighbor_mtu, info.subnet_timeout, info.init_type_reply);
    when(settings(before) != settings(after), NodeEvent::Settings);
    for key in Key::ALL {
        let count = |mut info: PortInfo| *key.violations(&mut info);
        when(count(*before) != 0 && count(*after) == 0, NodeEvent::Cleared(key));
    }
    // A port that is off stays off until the physical state is set.
    let off = before.link.phys_state == PhysState::Disabled as u8;
    let down = asked.link.state == LinkState::Down as u8 && !off || asked.link.phys_state != 0;
    let target = match asked.link.phys_state {
        0 if after.link.down_default == PhysState::Sleep as u8 => PhysState::Sleep,
        1 => PhysState::Sleep,
        3 => PhysState::Disabled,
        _ => PhysState::Polling,
    };
    when(down, NodeEvent::Link(target));
}
