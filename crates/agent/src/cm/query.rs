//! QUERY_ROUTE and QUERY: what an id knows of its addresses and paths.

use abi::Errno;
use abi::layout::Record;
use abi::ucma::address::{
    PathRec, PathRecData, Query, QueryAddrAnswer, QueryPathAnswer, QueryRouteAnswer, path_flags, query,
};
use abi::ucma::sockaddr::Sockaddr;
use protocol::cm::Path;
use wire::pkey;

use super::Manager;
use super::dispatch::CmCall;
use super::id::{Id, ib_address};
use super::locals::Attachment;
use crate::refusal::{Outcome, refuse};
use crate::world::World;

/// The selector of a path record that means "exactly this".
const EXACTLY: u8 = 2;

impl Manager {
    pub(super) fn query_route(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Query { id: name, .. } = call.command.body();
        let id = self.id(call, name)?;
        let short = |address: &Option<Sockaddr>| address.as_ref().map(Sockaddr::short).unwrap_or_default();
        let mut answer =
            QueryRouteAnswer { src_addr: short(&id.local), dst_addr: short(&id.remote), ..QueryRouteAnswer::default() };
        if let Some(place) = place(world, id) {
            (answer.node_guid, answer.port_num, answer.ibdev_index) = place;
            answer.num_paths = u32::from(shown_path(id).is_some());
            answer.ib_route[0] = match shown_path(id) {
                Some(path) => record_of(path, of_port(id, path)),
                None => PathRec {
                    sgid: id.attachment.map_or([0; 16], |at| own_gid(world, &at)),
                    dgid: peer_gid(id).unwrap_or_default(),
                    pkey: pkey_of(id).to_be(),
                    ..PathRec::default()
                },
            };
        }
        Ok(call.command.answer(&answer))
    }

    pub(super) fn query(&mut self, world: &World, call: &CmCall<'_>) -> Outcome<Vec<u8>> {
        let Query { id: name, option, .. } = call.command.body();
        let id = self.id(call, name)?;
        let answer = match option {
            query::ADDR => addresses(world, id),
            query::GID => gids(world, id),
            query::PATH => return Ok(paths(call, id)),
            other => return refuse(Errno::ENOSYS, format!("question {other} about an id is not known")),
        };
        if call.command.room < size_of::<QueryAddrAnswer>() - size_of::<u64>() {
            return refuse(Errno::ENOSPC, "there is too little room for two addresses");
        }
        Ok(call.command.answer(&answer))
    }
}

/// The answer to QUERY for addresses.
pub(super) fn addresses(world: &World, id: &Id) -> QueryAddrAnswer {
    between(world, id, id.local, id.remote)
}

/// The answer to QUERY for GIDs.
fn gids(world: &World, id: &Id) -> QueryAddrAnswer {
    let service = id.service.unwrap_or_default();
    let remote = id.remote.as_ref().map_or(0, |remote| u64::from(super::id::port(remote)));
    let peer = u64::from(id.space) << 16 | remote;
    let pkey = pkey_of(id);
    let local = id.attachment.map(|at| ib_address(own_gid(world, &at), pkey, service));
    between(world, id, local, peer_gid(id).map(|gid| ib_address(gid, pkey, peer)))
}

/// The GID of an attachment as its device shows it: that of iWARP is not the address.
pub(super) fn own_gid(world: &World, at: &Attachment) -> [u8; 16] {
    let port = world.devices.get(at.device).and_then(|device| device.port(at.port.into()).ok());
    let shown = port.filter(|port| !port.has_packets()).and_then(|port| port.shown_gid(0));
    shown.map_or(at.gid, |entry| entry.gid)
}

/// The GID of an id's peer. On iWARP it would be a MAC address, which the agent does not know: it is
/// 0 then.
pub(super) fn peer_gid(id: &Id) -> Option<[u8; 16]> {
    id.target.map(|gid| if id.start_up().is_none() { gid } else { [0; 16] })
}

/// The path of an id as programs see it. As in Linux's rdma_cm, ids on iWARP have none.
pub(super) fn shown_path(id: &Id) -> Option<&Path> {
    id.path.as_ref().filter(|_| id.start_up().is_none())
}

fn between(world: &World, id: &Id, local: Option<Sockaddr>, remote: Option<Sockaddr>) -> QueryAddrAnswer {
    let (src_addr, src_size) = local.map_or(([0; 128], 0), |address| address.emit());
    let (dst_addr, dst_size) = remote.map_or(([0; 128], 0), |address| address.emit());
    let mut answer = QueryAddrAnswer { src_addr, src_size, dst_addr, dst_size, ..QueryAddrAnswer::default() };
    if let Some(place) = place(world, id) {
        (answer.node_guid, answer.port_num, answer.ibdev_index) = place;
        answer.pkey = pkey_of(id);
    }
    answer
}

/// The partition of an id: that of its path, or the usual one of its port.
fn pkey_of(id: &Id) -> u16 {
    id.pkey().unwrap_or(pkey::DEFAULT)
}

/// The node GUID as it is answered, the port, and the index of the id's device.
fn place(world: &World, id: &Id) -> Option<(u64, u8, u32)> {
    let at = id.attachment?;
    let device = world.devices.get(at.device)?;
    Some((device.node_guid.0.to_be(), at.port, device.index as u32))
}

/// The answer to QUERY for paths.
fn paths(call: &CmCall<'_>, id: &Id) -> Vec<u8> {
    let path = shown_path(id);
    let mut bytes = call.command.answer(&QueryPathAnswer { num_paths: u32::from(path.is_some()), reserved: 0 });
    let room = call.command.room - size_of::<QueryPathAnswer>();
    if let Some(path) = path.filter(|_| room >= size_of::<PathRecData>()) {
        bytes.extend_from_slice(path_data(id, path).bytes());
    }
    bytes
}

/// What a record of a path tells of the port: its LID and that of the target, 0 on Ethernet, and
/// its rate if the path has no other.
#[derive(Clone, Copy, Default)]
struct OfPort {
    slid: u16,
    dlid: u16,
    rate: u8,
}

fn of_port(id: &Id, path: &Path) -> OfPort {
    let of = |at: Attachment| OfPort {
        slid: if path.slid == 0 { at.lid } else { path.slid },
        dlid: if path.dlid == 0 { at.lid_of(&path.dgid) } else { path.dlid },
        rate: if path.rate == 0 { at.rate } else { path.rate },
    };
    id.attachment.map(of).unwrap_or_default()
}

/// A path with its flags.
pub(super) fn path_data(id: &Id, path: &Path) -> PathRecData {
    let flags = path_flags::GMP | path_flags::PRIMARY | path_flags::OUTBOUND | path_flags::INBOUND_REVERSE;
    PathRecData { flags, reserved: 0, path_rec: bytes_of(path, of_port(id, path)) }
}

/// A path as QUERY_ROUTE answers it.
fn record_of(path: &Path, port: OfPort) -> PathRec {
    PathRec {
        dlid: port.dlid.to_be(),
        slid: port.slid.to_be(),
        dgid: path.dgid,
        sgid: path.sgid,
        flow_label: path.flow_label.to_be(),
        reversible: 1,
        mtu: u32::from(path.mtu),
        pkey: path.pkey.to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        sl: path.sl,
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: port.rate,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life,
        ..PathRec::default()
    }
}

/// A path as the IBA's PathRecord (15.2.5.16).
fn bytes_of(path: &Path, port: OfPort) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[8..24].copy_from_slice(&path.dgid);
    bytes[24..40].copy_from_slice(&path.sgid);
    bytes[40..42].copy_from_slice(&port.dlid.to_be_bytes());
    bytes[42..44].copy_from_slice(&port.slid.to_be_bytes());
    bytes[44..48].copy_from_slice(&(path.flow_label << 8 | u32::from(path.hop_limit)).to_be_bytes());
    bytes[48] = path.traffic_class;
    bytes[49] = 0x81;
    bytes[50..52].copy_from_slice(&path.pkey.to_be_bytes());
    bytes[53] = path.sl & 0x0f;
    bytes[54] = EXACTLY << 6 | path.mtu & 0x3f;
    bytes[55] = EXACTLY << 6 | port.rate & 0x3f;
    bytes[56] = EXACTLY << 6 | path.packet_life & 0x3f;
    bytes
}

/// The path in a PathRecord.
pub(super) fn path_of(bytes: &[u8; 64]) -> Path {
    let gid = |at: usize| bytes[at..at + 16].first_chunk::<16>().copied().unwrap_or_default();
    let lid = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let flow = u32::from_be_bytes([bytes[44], bytes[45], bytes[46], bytes[47]]);
    Path {
        dgid: gid(8),
        sgid: gid(24),
        dlid: lid(40),
        slid: lid(42),
        flow_label: flow >> 8 & 0xf_ffff,
        hop_limit: (flow & 0xff) as u8,
        traffic_class: bytes[48],
        pkey: u16::from_be_bytes([bytes[50], bytes[51]]),
        sl: bytes[53] & 0x0f,
        mtu: bytes[54] & 0x3f,
        rate: bytes[55] & 0x3f,
        packet_life: (bytes[56] & 0x3f).min(31),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_goes_both_ways() {
        let path = Path {
            sgid: [1; 16],
            dgid: [2; 16],
            slid: 0x102,
            dlid: 0x304,
            flow_label: 0xabcde,
            traffic_class: 0x68,
            hop_limit: 64,
            sl: 3,
            pkey: 0xffff,
            mtu: 5,
            rate: 16,
            packet_life: 16,
        };
        let bytes = bytes_of(&path, OfPort { slid: 0x102, dlid: 0x304, rate: 16 });
        assert_eq!(
            bytes[40..],
            [3, 4, 1, 2, 0x0a, 0xbc, 0xde, 64, 0x68, 0x81, 0xff, 0xff, 0, 3, 0x85, 0x90, 0x90, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(path_of(&bytes), path);
    }
}
