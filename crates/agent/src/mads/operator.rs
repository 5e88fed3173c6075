//! What an operator asks of the fabric and does to it: the picture of the subnet, the path between
//! two ports, cut and mended cables. The answers are JSON (docs/json.md). Adds to [`Mads`].

use mad::counters::Counter;
use serde_json::{Map, Value, json};
use subnet::fabric::{End, Kind, Probe};
use subnet::{CutBy, Managed, NodeId};
use wire::smp::Capability;

use super::Mads;
use super::trace::{name, way};
use super::travel::port_of;
use crate::asker::Asker;
use crate::world::World;

/// The counters of the picture, with their names there.
const COUNTERS: &[(&str, Counter)] = &[
    ("xmit_data", Counter::XmitData),
    ("rcv_data", Counter::ReceiveData),
    ("xmit_packets", Counter::XmitPackets),
    ("rcv_packets", Counter::ReceivePackets),
    ("xmit_wait", Counter::XmitWait),
    ("symbol_errors", Counter::SymbolErrors),
    ("link_downed", Counter::LinkDowned),
    ("rcv_errors", Counter::ReceiveErrors),
    ("rcv_switch_relay_errors", Counter::SwitchRelayErrors),
    ("xmit_discards", Counter::XmitDiscards),
    ("xmit_constraint_errors", Counter::XmitConstraintErrors),
    ("rcv_constraint_errors", Counter::ReceiveConstraintErrors),
    ("vl15_dropped", Counter::Vl15Dropped),
];

/// What cuts cables, with the names of the picture.
const CUT_BY: &[(&str, CutBy)] = &[("operator", CutBy::Operator), ("rule", CutBy::Rule), ("absence", CutBy::Absence)];

impl Mads {
    /// Answers the request `subnet`. The second value is true if the fabric was changed.
    pub(crate) fn answer_operator(&mut self, world: &mut World, asker: Asker, question: &Value) -> (Value, bool) {
        // Looking at all queue pairs is work for the agent's own user only.
        if asker == Asker::Root {
            self.count_traffic(world);
        }
        match self.carry_out(asker, question) {
            Ok((mut value, changed)) => {
                if let Some(picture) = value.get_mut("subnet") {
                    self.name_addresses(world, picture);
                    value["conflicts"] = self.conflicts_for_operator(world);
                }
                if changed {
                    self.settle(world);
                }
                (value, changed)
            }
            Err(why) => (json!({ "error": why }), false),
        }
    }

    /// Adds the IP addresses of ports to a picture.
    fn name_addresses(&self, world: &World, picture: &mut Value) {
        let ends = self.fabric.as_ref().map(|fabric| &fabric.ends);
        for (at, end) in ends.into_iter().flatten() {
            let Some(address) = port_of(world, *at).and_then(|port| port.address) else { continue };
            let ports = picture.get_mut(end.node.0 as usize).and_then(|node| node["ports"].as_array_mut());
            if let Some(port) = ports.and_then(|ports| ports.iter_mut().find(|port| port["port"] == end.port)) {
                port["address"] = address.to_string().into();
            }
        }
    }

    fn carry_out(&mut self, asker: Asker, question: &Value) -> Result<(Value, bool), String> {
        let Some(fabric) = &mut self.fabric else {
            return Err("this agent has no switches; start one with `softhca agent --topology FILE`".to_owned());
        };
        let net = &mut fabric.managed;
        let Some(action) = question["do"].as_str() else {
            return Ok((json!({ "subnet": picture(net) }), false));
        };
        let word = |name: &str| question[name].as_str().unwrap_or_default();
        if action == "path" {
            let sl = question["sl"].as_u64().unwrap_or(0);
            let sl = u8::try_from(sl).ok().filter(|sl| *sl < 16).ok_or("a service level is 0 to 15")?;
            return Ok((path(net, word("from"), word("to"), sl)?, false));
        }
        if asker != Asker::Root {
            return Err("only the agent's own user and root may change the subnet".to_owned());
        }
        let place = word("at");
        match action {
            "cut" | "mend" => {
                let end = cable(net, place)?;
                match action {
                    "cut" => net.cut(end, CutBy::Operator),
                    _ => net.mend(end, CutBy::Operator),
                }
            }
            "remove" => net.remove(node(net, place)?),
            "restore" => net.restore(node(net, place)?),
            other => return Err(format!("{other:?} is not known; there are path, cut, mend, remove and restore")),
        }
        Ok((json!({ "done": action, "at": place }), true))
    }
}

fn node(net: &Managed, name: &str) -> Result<NodeId, String> {
    net.id(name).ok_or_else(|| format!("the subnet has no node {name:?}; `softhca subnet` lists them"))
}

/// The port that a text such as `S1[3]` names.
fn port(net: &Managed, text: &str) -> Result<End, String> {
    let bad = || format!("{text:?} is no port; write NODE[PORT], such as S1[3]");
    let (name, port) = text.strip_suffix(']').and_then(|text| text.rsplit_once('[')).ok_or_else(bad)?;
    let end = End { node: node(net, name)?, port: port.parse().map_err(|_| bad())? };
    match net.fabric().port(end) {
        Some(_) => Ok(end),
        None => Err(format!("node {name:?} has no port {port}")),
    }
}

/// A port with a cable.
fn cable(net: &Managed, text: &str) -> Result<End, String> {
    let end = port(net, text)?;
    net.fabric().peer(end).map(|_| end).ok_or_else(|| format!("{text} has no cable"))
}

/// An end port: a node's first one, or the one that is named.
fn end_port(net: &Managed, text: &str) -> Result<End, String> {
    let end = match text.ends_with(']') {
        true => port(net, text)?,
        false => {
            let node = node(net, text)?;
            let is_switch = matches!(net.fabric().node(node).map(subnet::fabric::Node::kind), Some(Kind::Switch(_)));
            End { node, port: u8::from(!is_switch) }
        }
    };
    net.is_end(end).then_some(end).ok_or_else(|| format!("{text} is not an end port; a switch has port 0 only"))
}

/// The path between two end ports.
fn path(net: &Managed, from: &str, to: &str, sl: u8) -> Result<Value, String> {
    let [start, end] = [end_port(net, from)?, end_port(net, to)?];
    let dlid = net.port_info(end).map_or(0, |info| info.lid);
    Ok(way(net, (start, Some(end)), &Probe { dlid, sl, ..Probe::default() }))
}

fn picture(net: &mut Managed) -> Value {
    let nodes = (0..net.fabric().len() as u32).map(NodeId);
    nodes.filter_map(|id| node_picture(net, id)).collect()
}

fn node_picture(net: &mut Managed, id: NodeId) -> Option<Value> {
    let node = net.fabric().node(id)?;
    let (kind, lowest, ports) = match node.kind() {
        Kind::Switch(_) => ("switch", 0, node.ports()),
        Kind::Router(_) => ("router", 1, node.ports()),
        Kind::Hca => ("hca", 1, node.ports()),
        Kind::Outside => return None,
    };
    let own = net.node(id)?;
    let (guid, description) = (own.info.node_guid, own.description.to_string());
    let ports: Vec<Value> = (lowest..=ports).filter_map(|port| port_picture(net, End { node: id, port })).collect();
    let name = net.name(id).unwrap_or_default();
    Some(json!({
        "name": name, "kind": kind, "guid": format!("{guid:#018x}"), "description": description, "ports": ports,
    }))
}

/// A port with a cable, or the end port of a switch.
fn port_picture(net: &mut Managed, end: End) -> Option<Value> {
    let peer = net.fabric().peer(end);
    if peer.is_none() && end.port != 0 {
        return None;
    }
    let info = net.port_info(end)?;
    let port = net.fabric().port(end)?;
    let mut told = json!({ "port": end.port });
    if let Some(peer) = peer {
        told["peer"] = name(net, peer).into();
        told["state"] = port.logical().to_string().into();
        told["physical"] = format!("{:?}", port.physical()).into();
        told["rate"] = port.rate().to_string().into();
        told["mtu"] = abi::device::mtu_bytes(info.link.neighbor_mtu).into();
        told["cut"] = port.is_cut().into();
        let by = CUT_BY.iter().filter(|(_, by)| port.cuts().contains(*by)).map(|(name, _)| *name);
        told["cut_by"] = by.collect();
    }
    if net.is_end(end) {
        told["lid"] = info.lid.into();
        told["lmc"] = info.lmc.into();
        told["sm_lid"] = info.master_sm_lid.into();
        told["manager"] = (info.capability_mask & Capability::SM != 0).into();
    }
    let counters = COUNTERS.iter().map(|(name, counter)| (*name, net.counter(end, *counter)));
    let counters: Map<String, Value> =
        counters.filter(|(_, count)| *count != 0).map(|(name, count)| (name.to_owned(), count.into())).collect();
    told["counters"] = counters.into();
    Some(told)
}
