//! Records that show attributes of the inventory: nodes, ports, switches, tables and links. Not
//! paths. The functions answer one attribute each.

use super::request::{Answer, Refusal, SaRequest};
use crate::inventory::{Port, PortId};
use wire::layout::Layout;
use wire::sa::{
    LinearTableRecord, LinkRecord, MulticastTableRecord, NodeRecord, PKeyTableRecord, PortInfoRecord,
    STATUS_INVALID_REQUEST, SlToVlRecord, SmInfoRecord, SwitchInfoRecord, VlArbitrationRecord,
};
use wire::smp::{LinearTable, MulticastTable, PKeyTable, VlArbitration};

/// The bit of the modifier that compares capability masks bit by bit.
const MATCH_CAPABILITIES: u32 = 1 << 31;

/// Answers NodeRecord.
pub(super) fn nodes(request: &SaRequest<'_>) -> Answer {
    let template: NodeRecord = request.template();
    let mut records = request.records::<NodeRecord>();
    for (id, node, port) in request.end_ports(request.asks(NodeRecord::LID).then_some(template.lid)) {
        let mut info = node.info;
        (info.port_guid, info.local_port) = (port.guid, id.port);
        let record = NodeRecord { lid: port.info.lid, info, description: node.description };
        records.offer(record, &template, request.mask & !NodeRecord::LID)?;
    }
    Ok(records)
}

/// Calls `each` with the LID and every port of the nodes that the asker may hear of.
fn ports(
    request: &SaRequest<'_>,
    lid: Option<u16>,
    mut each: impl FnMut(u16, PortId, &Port) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    for (id, node, end) in request.end_ports(lid) {
        if node.switch.is_none() {
            each(end.info.lid, id, end)?;
            continue;
        }
        for (number, port) in &node.ports {
            each(end.info.lid, PortId { port: *number, ..id }, port)?;
        }
    }
    Ok(())
}

/// Answers PortInfoRecord. Without the SM_Key, management keys are zeros, also when compared.
pub(super) fn port_infos(request: &SaRequest<'_>) -> Answer {
    let template: PortInfoRecord = request.template();
    let mut records = request.records::<PortInfoRecord>();
    let mut mask = request.mask & !PortInfoRecord::LID & !PortInfoRecord::OPTIONS;
    let bitwise = request.header.modifier & MATCH_CAPABILITIES != 0 && mask & PortInfoRecord::CAPABILITY_MASK != 0;
    if bitwise {
        mask &= !PortInfoRecord::CAPABILITY_MASK;
    }
    let lid = request.asks(PortInfoRecord::LID).then_some(template.lid);
    ports(request, lid, |lid, id, port| {
        let mut record = PortInfoRecord { lid, port: id.port, options: 0, info: port.info };
        if !request.trusted {
            record.info.mkey = 0;
        }
        let wanted = template.info.capability_mask;
        if bitwise && record.info.capability_mask & wanted != wanted {
            return Ok(());
        }
        records.offer(record, &template, mask)
    })?;
    Ok(records)
}

/// Answers P_KeyTableRecord, to those with the SM_Key.
pub(super) fn pkey_tables(request: &SaRequest<'_>) -> Answer {
    if !request.trusted {
        return Err(Refusal(STATUS_INVALID_REQUEST));
    }
    let template: PKeyTableRecord = request.template();
    let mut records = request.records::<PKeyTableRecord>();
    let lid = request.asks(PKeyTableRecord::LID).then_some(template.lid);
    ports(request, lid, |lid, id, port| {
        for (block, keys) in (0..).zip(port.pkeys.chunks(32)) {
            let mut table = PKeyTable::default();
            table.pkeys[..keys.len()].copy_from_slice(keys);
            let record = PKeyTableRecord { lid, block, port: id.port, table };
            records.offer(record, &template, request.mask & !PKeyTableRecord::LID)?;
        }
        Ok(())
    })?;
    Ok(records)
}

/// Answers SLtoVLMappingTableRecord. An adapter has one table, and the template's ports do not
/// count. A table that the manager does not know is shown as zeros.
pub(super) fn sl_to_vl(request: &SaRequest<'_>) -> Answer {
    let template: SlToVlRecord = request.template();
    let mut records = request.records::<SlToVlRecord>();
    let both = SlToVlRecord::IN_PORT | SlToVlRecord::OUT_PORT;
    for (_, node, end) in request.end_ports(request.asks(SlToVlRecord::LID).then_some(template.lid)) {
        let mut offer = |in_port, out_port, port: &Port, mask| {
            let table = port.sl_to_vl.get(&in_port).copied().unwrap_or_default();
            let record = SlToVlRecord { lid: end.info.lid, in_port, out_port, table };
            records.offer(record, &template, request.mask & !SlToVlRecord::LID & mask)
        };
        if node.switch.is_none() {
            offer(0, 0, end, !both)?;
            continue;
        }
        for (out_port, port) in &node.ports {
            for in_port in node.ports.keys() {
                offer(*in_port, *out_port, port, u64::MAX)?;
            }
        }
    }
    Ok(records)
}

/// Answers VLArbitrationTableRecord, with four blocks for each port. The port of an adapter does
/// not count in the template. Entries that the port does not have, or that the manager does not
/// know, are zeros.
pub(super) fn arbitration(request: &SaRequest<'_>) -> Answer {
    let template: VlArbitrationRecord = request.template();
    let mut records = request.records::<VlArbitrationRecord>();
    let lid = request.asks(VlArbitrationRecord::LID).then_some(template.lid);
    ports(request, lid, |lid, id, port| {
        let is_switch = request.inventory.nodes.get(&id.node).is_some_and(|node| node.switch.is_some());
        let mask = if is_switch { u64::MAX } else { !VlArbitrationRecord::PORT } & !VlArbitrationRecord::LID;
        for block in 1..=4 {
            let entries = if block <= 2 { &port.arbitration_low } else { &port.arbitration_high };
            let known = entries.chunks(32).nth(usize::from((block - 1) % 2)).unwrap_or_default();
            let mut table = VlArbitration::default();
            table.entries[..known.len()].copy_from_slice(known);
            let record = VlArbitrationRecord { lid, port: id.port, block, table };
            records.offer(record, &template, request.mask & mask)?;
        }
        Ok(())
    })?;
    Ok(records)
}

/// Answers SMInfoRecord. Without the SM_Key, the key is zeros.
pub(super) fn managers(request: &SaRequest<'_>) -> Answer {
    let template: SmInfoRecord = request.template();
    let mut records = request.records::<SmInfoRecord>();
    for (_, _, port) in request.end_ports(request.asks(SmInfoRecord::LID).then_some(template.lid)) {
        if let Some(mut info) = port.sm {
            info.sm_key = if request.trusted { info.sm_key } else { 0 };
            let record = SmInfoRecord { lid: port.info.lid, info };
            records.offer(record, &template, request.mask & !SmInfoRecord::LID)?;
        }
    }
    Ok(records)
}

/// Answers SwitchInfoRecord.
pub(super) fn switches(request: &SaRequest<'_>) -> Answer {
    let template: SwitchInfoRecord = request.template();
    let mut records = request.records::<SwitchInfoRecord>();
    for (_, node, port) in request.end_ports(request.asks(SwitchInfoRecord::LID).then_some(template.lid)) {
        if let Some(switch) = &node.switch {
            let record = SwitchInfoRecord { lid: port.info.lid, info: switch.info };
            records.offer(record, &template, request.mask & !SwitchInfoRecord::LID)?;
        }
    }
    Ok(records)
}

/// Answers LinearForwardingTableRecord.
pub(super) fn linear_tables(request: &SaRequest<'_>) -> Answer {
    let template: LinearTableRecord = request.template();
    let mut records = request.records::<LinearTableRecord>();
    for (_, node, port) in request.end_ports(request.asks(LinearTableRecord::LID).then_some(template.lid)) {
        let Some(switch) = &node.switch else { continue };
        for (block, ports) in (0..).zip(switch.linear.chunks(64)) {
            let mut table = LinearTable { ports: [u8::MAX; 64] };
            table.ports[..ports.len()].copy_from_slice(ports);
            let record = LinearTableRecord { lid: port.info.lid, block, table };
            records.offer(record, &template, request.mask & !LinearTableRecord::LID)?;
        }
    }
    Ok(records)
}

/// Answers MulticastForwardingTableRecord, with the blocks that are in use.
pub(super) fn multicast_tables(request: &SaRequest<'_>) -> Answer {
    let template: MulticastTableRecord = request.template();
    let mut records = request.records::<MulticastTableRecord>();
    for (_, node, port) in request.end_ports(request.asks(MulticastTableRecord::LID).then_some(template.lid)) {
        let Some(switch) = &node.switch else { continue };
        let mut blocks: Vec<u16> = switch.multicast.keys().map(|lid| lid / 32).collect();
        blocks.dedup();
        for (block, position) in
            blocks.into_iter().flat_map(|block| (0..=node.info.ports / 16).map(move |p| (block, p)))
        {
            let mut table = MulticastTable::default();
            let first = block.saturating_mul(32);
            for (lid, ports) in switch.multicast.range(first..=first.saturating_add(31)) {
                let at = usize::from(position) * 2;
                let low = ports.get(at).copied().unwrap_or(0);
                let high = ports.get(at + 1).copied().unwrap_or(0);
                table.masks[usize::from(lid - first)] = u16::from_le_bytes([low, high]);
            }
            let record = MulticastTableRecord { lid: port.info.lid, position, block, table };
            records.offer(record, &template, request.mask & !MulticastTableRecord::LID)?;
        }
    }
    Ok(records)
}

/// Answers LinkRecord.
pub(super) fn links(request: &SaRequest<'_>) -> Answer {
    let template: LinkRecord = request.template();
    let mut records = request.records::<LinkRecord>();
    let lid = request.asks(LinkRecord::FROM_LID).then_some(template.from_lid);
    ports(request, lid, |from_lid, id, port| {
        let Some(peer) = port.peer else { return Ok(()) };
        let Some(node) = request.inventory.nodes.get(&peer.node) else { return Ok(()) };
        let end = if node.switch.is_some() { 0 } else { peer.port };
        let Some(other) = node.ports.get(&end).filter(|port| request.sees(port)) else { return Ok(()) };
        let record = LinkRecord { from_lid, from_port: id.port, to_port: peer.port, to_lid: other.info.lid };
        records.offer(record, &template, request.mask & !LinkRecord::FROM_LID)
    })?;
    Ok(records)
}

const _: () = assert!(NodeRecord::LEN <= wire::sa::DATA_LEN && <NodeRecord as Layout>::LEN == NodeRecord::LEN);
