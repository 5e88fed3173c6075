//! The answers of the admin node as JSON: devices as in `ibv_devinfo -v`, and objects as in `rdma
//! resource show`.
//!
//! This file only reads the world. States, peers and paths of QPs come from their control blocks,
//! which the engines write. So they are as reliable as those engines.

use std::net::Ipv6Addr;

use abi::device::mtu_bytes;
use abi::qp::state as qp_state;
use abi::queue::{ON_WIRE, cq as cq_word, qp as qp_word, srq as srq_word};
use abi::stream::{StreamOut, state, stream_flags};
use serde_json::{Value, json};

use crate::addresses::interface_name;
use crate::context::Context;
use crate::device::{Device, FIRMWARE, Port};
use crate::gids::{GID_TABLE_LEN, GidEntry};
use crate::ids::ContextId;
use crate::lids;
use crate::mirror::{gid_text, link_layer_text, state_text};
use crate::objects::Qp;
use crate::rundir::node;
use crate::streams::TakenStream;
use crate::table::Kind;
use crate::wire::Wire;
use crate::world::World;

/// Counters and facts of the agent.
pub(crate) fn status(world: &World) -> Value {
    json!({
        "pid": std::process::id(),
        "uid": rustix::process::geteuid().as_raw(),
        "system": world.users.apart,
        "addresses": world.addresses,
        "shared_memory": world.users.shared_memory,
        "version": env!("CARGO_PKG_VERSION"),
        "devices": world.devices.iter().count(),
        "contexts": world.contexts.len(),
        "engines": world.contexts.values().filter(|context| context.engine.is_some()).count(),
        "lanes": world.lanes.len(),
        "objects": world.tables.pds.len() + world.tables.mrs.len() + world.tables.channels.len() + world.tables.cqs.len() + world.tables.qps.len()
            + world.tables.srqs.len() + world.tables.ahs.len() + world.tables.xrcds.len(),
    })
}

/// Every device with everything that programs can query.
pub(crate) fn devices(world: &World) -> Value {
    json!({
        "devices": world.devices.iter().map(|found| device(world, found)).collect::<Vec<_>>(),
        "wire": wire(&world.wire),
    })
}

/// The wire: its mode, its reader, and what was lost.
fn wire(wire: &Wire) -> Value {
    json!({ "mode": wire.name(), "reader": wire.reader(), "drops": wire_drops(wire) })
}

/// Packets of other hosts that reached no program.
pub(crate) fn wire_drops(wire: &Wire) -> Value {
    let drops = wire.forwarder().drops();
    json!({
        "no_engine": drops.no_engine,
        "ring_full": drops.ring_full,
        "own_source": drops.own_source,
        "malformed": drops.malformed,
        "management": drops.management,
    })
}

fn device(world: &World, device: &Device) -> Value {
    let facts = device.attributes();
    let [major, minor, micro] = FIRMWARE;
    json!({
        "name": device.name,
        "node": node(device.index),
        "transport": if device.is_iwarp() { "iWARP (1)" } else { "InfiniBand (0)" },
        "fw_ver": format!("{major}.{minor}.{micro}"),
        "node_guid": device.node_guid.to_string(),
        "sys_image_guid": device.system_guid.to_string(),
        "vendor_id": facts.vendor_id,
        "vendor_part_id": facts.vendor_part_id,
        "hw_ver": facts.hw_ver,
        "phys_port_cnt": facts.phys_port_cnt,
        "max_mr_size": facts.max_mr_size,
        "page_size_cap": facts.page_size_cap,
        "max_qp": facts.max_qp,
        "max_qp_wr": facts.max_qp_wr,
        "device_cap_flags": facts.device_cap_flags,
        "max_sge": facts.max_sge,
        "max_sge_rd": facts.max_sge_rd,
        "max_cq": facts.max_cq,
        "max_cqe": facts.max_cqe,
        "max_mr": facts.max_mr,
        "max_pd": facts.max_pd,
        "max_qp_rd_atom": facts.max_qp_rd_atom,
        "max_res_rd_atom": facts.max_res_rd_atom,
        "max_qp_init_rd_atom": facts.max_qp_init_rd_atom,
        "atomic_cap": facts.atomic_cap,
        "max_mcast_grp": facts.max_mcast_grp,
        "max_mcast_qp_attach": facts.max_mcast_qp_attach,
        "max_total_mcast_qp_attach": facts.max_total_mcast_qp_attach,
        "max_ah": facts.max_ah,
        "max_srq": facts.max_srq,
        "max_srq_wr": facts.max_srq_wr,
        "max_srq_sge": facts.max_srq_sge,
        "max_pkeys": facts.max_pkeys,
        "max_inline_data": device.limits.max_inline_data,
        "local_ca_ack_delay": facts.local_ca_ack_delay,
        "num_comp_vectors": device.completion_vectors,
        "ports": (1..=device.ports.len() as u32).map(|number| port(world, device, number)).collect::<Vec<_>>(),
    })
}

/// One port of a device.
pub(crate) fn port(world: &World, device: &Device, number: u32) -> Value {
    let (Ok(port), Ok(facts)) = (device.port(number), device.port_attributes(number)) else { return Value::Null };
    json!({
        "port": number,
        "guid": port.guid.to_string(),
        "state": state_text(facts.state),
        "max_mtu": mtu_bytes(facts.max_mtu),
        "active_mtu": mtu_bytes(facts.active_mtu),
        "sm_lid": facts.sm_lid,
        "sm_sl": facts.sm_sl,
        "lid": facts.lid,
        "lmc": facts.lmc,
        "subnet_timeout": facts.subnet_timeout,
        "init_type_reply": facts.init_type_reply,
        "dscp": (!port.is_infiniband()).then_some(port.service_levels.dscp),
        "priority": port.service_levels.priority,
        "lids": lids_in_words(port),
        "link_layer": link_layer_text(facts.link_layer),
        "max_msg_sz": facts.max_msg_sz,
        "port_cap_flags": facts.port_cap_flags,
        "gid_tbl_len": facts.gid_tbl_len,
        "pkey_tbl_len": facts.pkey_tbl_len,
        "active_width": facts.active_width,
        "active_speed": facts.active_speed,
        "phys_state": facts.phys_state,
        "pkeys": port.pkeys.used(),
        "gids": gids(world, port),
        "addresses": addresses(port),
    })
}

/// The GIDs that programs see. That of iWARP is a MAC address, which no packet has.
fn gids(world: &World, port: &Port) -> Vec<Value> {
    let has_packets = port.has_packets();
    let kind = if !has_packets {
        "MAC"
    } else if port.is_infiniband() {
        "IB"
    } else {
        "RoCE v2"
    };
    let shown = |index: usize| Some((index, port.shown_gid(index as u32)?));
    let gid = |(index, entry): (usize, GidEntry)| {
        let why = if has_packets { world.wire.why_not(entry) } else { None };
        json!({
            "index": index,
            "gid": gid_text(entry.gid),
            "address": has_packets.then(|| Ipv6Addr::from(entry.gid).to_string()),
            "type": kind,
            "ifindex": entry.ifindex,
            "interface": interface_name(entry.ifindex),
            "wire": has_packets.then_some(why.is_none()),
            "why": why,
        })
    };
    (0..GID_TABLE_LEN).filter_map(shown).map(gid).collect()
}

/// The addresses at which programs on an iWARP port connect and listen.
fn addresses(port: &Port) -> Vec<Value> {
    let entries = port.gids.iter().filter(|(_, entry)| entry.is_address && !port.has_packets());
    let address = |(_, entry): (usize, GidEntry)| {
        json!({
            "address": entry.ip().to_string(),
            "ifindex": entry.ifindex,
            "interface": interface_name(entry.ifindex),
        })
    };
    entries.map(address).collect()
}

/// Describes the LIDs of an InfiniBand port.
fn lids_in_words(port: &Port) -> Option<String> {
    if let Some(address) = port.address {
        let of_manager = "the subnet manager gives the port its LID";
        return Some(format!("{of_manager}, and the connection manager finds it at {address}"));
    }
    let lid = port.lid?;
    if port.subnet.lid.is_some() {
        let (first, last) = lid.all().into_inner();
        let which = if first == last { format!("LID {first} is") } else { format!("LIDs {first} to {last} are") };
        return Some(format!("{which} set; other hosts reach the port by the host part of its address, and by GID"));
    }
    let entry = port.gids.entry(lid.index).filter(|_| lid.index != 0);
    Some(match entry {
        Some(entry) => format!(
            "LID {} stands for {}: a LID is the host part of an address in its subnet, of {} bits",
            lid.number,
            entry.ip(),
            lid.hosts.count_ones()
        ),
        None => format!("LID {} is local: it is valid only inside this agent; use GIDs for other hosts", lid.number),
    })
}

/// The kinds of objects that are shown, each with the name of its list.
pub(crate) const LISTS: [(Kind, &str); 7] = [
    (Kind::Pd, "pds"),
    (Kind::Mr, "mrs"),
    (Kind::Channel, "channels"),
    (Kind::Cq, "cqs"),
    (Kind::Srq, "srqs"),
    (Kind::Ah, "ahs"),
    (Kind::Qp, "qps"),
];

/// Every multicast group.
pub(crate) fn groups(world: &World) -> Vec<Value> {
    let groups = world.tables.groups.iter();
    groups.map(|(gid, members)| json!({ "gid": Ipv6Addr::from(gid).to_string(), "members": members })).collect()
}

/// A context without its objects.
pub(crate) fn context(world: &World, context: &Context) -> Value {
    json!({
        "context": context.id.0,
        "device": world.devices[context.device].name,
        "pid": context.peer.pid,
        "uid": context.peer.uid,
        "comm": context.peer.comm,
        "engine": context.engine.is_some(),
        "queue_regions": context.memory.regions(),
        "queue_bytes": context.memory.bytes(),
    })
}

/// An object of a context, if it still exists. If `conceal`, the object is another user's. Then
/// keys, addresses and sequence numbers are left out, because they would help to interfere.
pub(crate) fn object(world: &World, id: ContextId, kind: Kind, handle: u32, conceal: bool) -> Option<Value> {
    let mut shown = whole_object(world, id, kind, handle)?;
    let secrets: &[&str] = match kind {
        _ if !conceal => &[],
        Kind::Mr => &["lkey", "rkey", "start", "iova"],
        Kind::Qp => &["sq_psn", "rq_psn"],
        _ => &[],
    };
    for secret in secrets {
        shown[*secret] = Value::Null;
    }
    Some(shown)
}

fn whole_object(world: &World, id: ContextId, kind: Kind, handle: u32) -> Option<Value> {
    let pd_number = |handle: u32| world.tables.pds.find(id, handle).map(|pd| pd.number);
    let cq_number = |handle: u32| world.tables.cqs.find(id, handle).map(|cq| cq.number);
    Some(match kind {
        Kind::Pd => {
            let pd = world.tables.pds.find(id, handle)?;
            json!({ "pd": pd.number, "users": pd.users })
        }
        Kind::Mr => {
            let mr = world.tables.mrs.find(id, handle)?;
            json!({
                "lkey": mr.key, "rkey": mr.key, "pd": pd_number(mr.pd), "start": mr.start, "length": mr.length,
                "iova": mr.hca_va, "access": mr.access,
            })
        }
        Kind::Channel => json!({ "cqs": world.tables.channels.find(id, handle)?.users }),
        Kind::Cq => {
            let cq = world.tables.cqs.find(id, handle)?;
            let waiting = cq.block.read(cq_word::PRODUCER).wrapping_sub(cq.block.read(cq_word::CONSUMER));
            json!({
                "cq": cq.number, "cqe": cq.entries, "waiting": waiting, "users": cq.users, "channel": cq.channel,
                "armed": cq.block.read(cq_word::ARMED), "overrun": cq.block.read(cq_word::OVERRUN) != 0,
                "comp_vector": cq.vector,
            })
        }
        Kind::Srq => {
            let srq = world.tables.srqs.find(id, handle)?;
            json!({
                "srq": srq.number, "pd": pd_number(srq.pd), "max_wr": srq.max_wr, "max_sge": srq.max_sge,
                "limit": srq.block.read(srq_word::LIMIT), "outstanding": srq.block.read(srq_word::OUTSTANDING),
                "users": srq.users, "xrc_domain": srq.xrc.map(|xrc| xrc.domain),
            })
        }
        Kind::Ah => {
            let ah = world.tables.ahs.find(id, handle)?;
            json!({
                "pd": pd_number(ah.pd), "dgid": Ipv6Addr::from(ah.attr.dgid).to_string(), "dlid": ah.attr.dlid,
                "sgid_index": ah.attr.sgid_index, "port": ah.attr.port_num,
            })
        }
        Kind::Qp => {
            let qp = world.tables.qps.find(id, handle)?;
            let mut shown = one_qp(world, world.contexts.get(&id)?.device, qp);
            shown["pd"] = json!(pd_number(qp.pd));
            shown["send_cq"] = json!(cq_number(qp.send_cq));
            shown["recv_cq"] = json!(cq_number(qp.recv_cq));
            shown["xrc_domain"] = json!(qp.domain.map(|(domain, _)| domain));
            shown["srq"] = json!(qp.srq.and_then(|srq| world.tables.srqs.find(id, srq)).map(|srq| srq.number));
            shown
        }
        Kind::Xrcd | Kind::Opened | Kind::Mw | Kind::Dm => return None,
    })
}

/// The TCP connection of a QP of iWARP.
fn stream(qp: &Qp, taken: &TakenStream) -> Value {
    let StreamOut { flags, ird, ord, revision, .. } = taken.agreed;
    let has = |flag: u32| flags & flag != 0;
    let address = |index: usize| taken.addresses.map(|both| both[index].to_string());
    json!({
        "local": address(0),
        "remote": address(1),
        "state": match qp.block.read(qp_word::STREAM) {
            state::WAITING => "waiting",
            state::OPEN => "open",
            state::CLOSING => "closing",
            state::TERMINATE => "terminate",
            state::CLOSED => "closed",
            _ => "none",
        },
        "initiator": has(stream_flags::INITIATOR),
        "revision": revision,
        "crc": has(stream_flags::CRC),
        "sends_markers": has(stream_flags::SENDS_MARKERS),
        "receives_markers": has(stream_flags::RECEIVES_MARKERS),
        "ird": ird,
        "ord": ord,
        "sent_bytes": qp.block.read64(qp_word::STREAM_SENT),
        "received_bytes": qp.block.read64(qp_word::STREAM_RECEIVED),
    })
}

fn one_qp(world: &World, device: usize, qp: &Qp) -> Value {
    let word = |at: usize| qp.block.read(at);
    let state = qp.state() as u8;
    let peer = ContextId(word(qp_word::PEER_ENGINE));
    let lane = word(qp_word::LANE);
    let attributes = qp.attributes_now();
    let dest = lids::directed(&world.devices, device, &attributes.dest);
    let taken = world.wire.streams().taken(qp.qpn);
    json!({
        "qpn": qp.qpn,
        "type": qp.service.to_string(),
        "state": qp_state::name(state),
        "port": attributes.port_num,
        "max_send_wr": attributes.max_send_wr,
        "max_recv_wr": attributes.max_recv_wr,
        "sends_posted": word(qp_word::SQ_TAIL),
        "sends_done": word(qp_word::SQ_HEAD),
        "receives_posted": word(qp_word::RQ_TAIL),
        "receives_done": word(qp_word::RQ_HEAD),
        "sq_psn": word(qp_word::SQ_PSN),
        "rq_psn": word(qp_word::RQ_PSN),
        "path_mtu": mtu_bytes(attributes.path_mtu),
        "dest_qpn": attributes.dest_qp_num,
        "dlid": attributes.dest.dlid,
        "dgid": Ipv6Addr::from(dest.dgid).to_string(),
        "sgid_index": dest.sgid_index,
        "groups": qp.groups.iter().map(|gid| Ipv6Addr::from(*gid).to_string()).collect::<Vec<_>>(),
        "path": match lane {
            0 if taken.is_some() => "tcp".to_owned(),
            0 => "none".to_owned(),
            ON_WIRE => "wire".to_owned(),
            lane => format!("lane {lane}"),
        },
        "stream": taken.map(|taken| stream(qp, &taken)),
        "peer": world.contexts.get(&peer).map(|context| {
            json!({ "context": peer.0, "pid": context.peer.pid, "comm": context.peer.comm })
        }),
    })
}
