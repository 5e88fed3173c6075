//! The tables of ports and switches: which blocks exist, and what a Set may write. IBA 14.2.5.4,
//! 14.2.5.5 and 14.2.5.7 to 14.2.5.12. One function for each attribute.

use super::{AttributeRequest, NodeEvent, Served};
use crate::node::{Node, Switch};
use wire::mad::{STATUS_INVALID, STATUS_METHOD_ATTRIBUTE};
use wire::smp::{GuidInfo, LinearTable, MulticastTable, PKeyTable, SlToVl, SwitchInfo, VlArbitration};

/// The first multicast LID.
const MULTICAST: u16 = 0xc000;
/// SwitchInfo: no limit to the multicast LIDs in use.
const NO_TOP: u16 = 0xbfff;

/// The number as a port: the port of the modifier in a switch, and in others the ingress port.
fn number(node: &Node, request: &AttributeRequest<'_>, asked: u32) -> Result<u8, u16> {
    if node.switch.is_none() {
        return Ok(request.ingress);
    }
    u8::try_from(asked).map_err(|_| STATUS_INVALID)
}

/// Copies a block of a table and the block of an attribute into each other: to the table if it is a
/// Set. The table has `cap` entries. Those that no Set has written have the value `unset`, and the
/// table ends before them. Returns whether the table changed, or `None` if there is no such block.
fn exchange<T: Copy + PartialEq, const N: usize>(
    (table, cap, unset): (&mut Vec<T>, usize, T),
    nth: u32,
    block: &mut [T; N],
    is_set: bool,
) -> Option<bool> {
    let from = (nth as usize).checked_mul(N)?;
    let end = from.saturating_add(N).min(cap);
    if from >= end {
        return None;
    }
    let mut changed = false;
    if is_set {
        let given = &block[..end - from];
        changed = (from..end).zip(given).any(|(at, given)| table.get(at).copied().unwrap_or(unset) != *given);
        if changed && table.len() < end {
            table.resize(end, unset);
        }
        if changed {
            table[from..end].copy_from_slice(given);
        }
    } else {
        block.fill(unset);
        for (given, own) in block.iter_mut().zip(table.iter().take(end).skip(from)) {
            *given = *own;
        }
    }
    Some(changed)
}

pub(super) fn pkeys(node: &mut Node, request: &mut AttributeRequest<'_>) -> Served {
    let number = number(node, request, request.modifier >> 16)?;
    let port = node.port_mut(number).ok_or(STATUS_INVALID)?;
    let mut block = if request.is_set { PKeyTable::parse(request.data) } else { PKeyTable::default() };
    let table = (&mut port.pkeys, port.pkey_cap.into(), 0);
    let changed = exchange(table, request.modifier & 0xffff, &mut block.pkeys, request.is_set).ok_or(STATUS_INVALID)?;
    if changed {
        request.events.push((number, NodeEvent::PKeys));
    }
    request.show(block);
    Ok(())
}

pub(super) fn guids(node: &mut Node, request: &mut AttributeRequest<'_>) -> Served {
    let number = node.end_port(request.ingress);
    let port = node.port_mut(number).ok_or(STATUS_INVALID)?;
    let mut block = if request.is_set { GuidInfo::parse(request.data) } else { GuidInfo::default() };
    if request.modifier == 0 {
        block.guids[0] = port.guid;
    }
    let cap = usize::from(port.info.guid_cap.max(1)).next_multiple_of(8);
    let table = (&mut port.guids, cap, 0);
    let changed = exchange(table, request.modifier, &mut block.guids, request.is_set).ok_or(STATUS_INVALID)?;
    if changed {
        request.events.push((number, NodeEvent::Gids));
    }
    request.show(block);
    Ok(())
}

pub(super) fn sl_to_vl(node: &mut Node, request: &mut AttributeRequest<'_>) -> Served {
    let is_switch = node.switch.is_some();
    if is_switch && request.modifier >> 16 != 0 {
        return Err(STATUS_INVALID);
    }
    let number = number(node, request, request.modifier & 0xff)?;
    let ingress = if is_switch { (request.modifier >> 8) as u8 } else { 0 };
    let exists = !is_switch || node.port(ingress).is_some();
    let port = node.port_mut(number).filter(|_| exists).ok_or(STATUS_INVALID)?;
    if request.is_set {
        port.sl_to_vl.insert(ingress, SlToVl::parse(request.data));
    }
    request.show(port.sl_to_vl.get(&ingress).copied().unwrap_or_default());
    Ok(())
}

pub(super) fn arbitration(node: &mut Node, request: &mut AttributeRequest<'_>) -> Served {
    let number = number(node, request, request.modifier & 0xffff)?;
    let block = request.modifier >> 16;
    let port = node.port_mut(number).ok_or(STATUS_INVALID)?;
    let low = port.info.vls.arbitration_low_cap;
    let high = port.info.vls.arbitration_high_cap;
    let entries = match block {
        1 => low,
        2 => low.saturating_sub(32),
        3 => high,
        4 => high.saturating_sub(32),
        _ => 0,
    };
    if entries == 0 {
        return Err(STATUS_INVALID);
    }
    if request.is_set {
        let mut asked = VlArbitration::parse(request.data);
        // The entries behind the table's end are reserved.
        asked.entries.iter_mut().skip(entries.into()).for_each(|entry| *entry = Default::default());
        if asked.entries.iter().any(|entry| entry.vl == 15 && entry.weight != 0) {
            return Err(STATUS_INVALID);
        }
        port.arbitration.get_or_insert_default()[block as usize - 1] = asked;
    }
    request.show(port.arbitration.as_ref().map(|tables| tables[block as usize - 1]).unwrap_or_default());
    Ok(())
}

fn switch(node: &mut Node) -> Result<&mut Switch, u16> {
    node.switch.as_mut().ok_or(STATUS_METHOD_ATTRIBUTE)
}

pub(super) fn switch_info(node: &mut Node, request: &mut AttributeRequest<'_>) -> Served {
    let info = &mut switch(node)?.info;
    if request.is_set {
        let asked = SwitchInfo::parse(request.data);
        let top = asked.multicast_top;
        let last_multicast = MULTICAST.saturating_add(info.multicast_cap);
        if asked.linear_top >= info.linear_cap || !(top == 0 || (NO_TOP..last_multicast).contains(&top)) {
            return Err(STATUS_INVALID);
        }
        *info = SwitchInfo {
            linear_top: asked.linear_top,
            default_port: asked.default_port,
            default_multicast_primary: asked.default_multicast_primary,
            default_multicast_other: asked.default_multicast_other,
            life_time: asked.life_time,
            multicast_top: top,
            port_state_change: info.port_state_change && !asked.port_state_change,
            ..*info
        };
        request.events.push((0, NodeEvent::Forwarding));
    }
    let info = *info;
    request.show(info);
    Ok(())
}

pub(super) fn linear(node: &mut Node, request: &mut AttributeRequest<'_>) -> Served {
    let switch = switch(node)?;
    let mut block = LinearTable::parse(request.data);
    let table = (&mut switch.linear, switch.info.linear_cap.into(), 255);
    let changed = exchange(table, request.modifier, &mut block.ports, request.is_set).ok_or(STATUS_INVALID)?;
    if changed {
        request.events.push((0, NodeEvent::Forwarding));
    }
    request.show(block);
    Ok(())
}

pub(super) fn multicast(node: &mut Node, request: &mut AttributeRequest<'_>) -> Served {
    let ports = usize::from(node.info.ports);
    let switch = switch(node)?;
    let (from, position) = ((request.modifier & 0x1ff) as usize * 32, (request.modifier >> 28) as usize);
    let end = (from + 32).min(switch.info.multicast_cap.into());
    if request.modifier & 0x0fff_fe00 != 0 || from >= end || position * 16 > ports {
        return Err(STATUS_INVALID);
    }
    let mut block = MulticastTable::default();
    if request.is_set {
        block = MulticastTable::parse(request.data);
        if switch.multicast.len() < end {
            switch.multicast.resize(end, [0; 16]);
        }
    }
    for (row, mask) in switch.multicast.iter_mut().skip(from).zip(&mut block.masks) {
        if request.is_set {
            row[position] = *mask;
        } else {
            *mask = row[position];
        }
    }
    if request.is_set {
        request.events.push((0, NodeEvent::Forwarding));
    }
    request.show(block);
    Ok(())
}
