//! Management datagrams as packets of a port's link, and how captures show them. Principal type:
//! [`PortPacket`].

use abi::capture::{CaptureRecord, path, record_flag};
use subnet::frame::Frame;
use subnet::managed;
use wire::Grh;
use wire::smp::PERMISSIVE_LID;

use super::way::{Datagram, PortId};
use crate::device::Port;

/// A packet at a port.
pub(super) struct PortPacket<'a> {
    pub(super) at: PortId,
    /// Whether the port has sent it.
    pub(super) sent: bool,
    pub(super) frame: &'a Frame,
}

/// A datagram as the link of its port carries it.
pub(super) fn packet_of(port: &Port, datagram: &Datagram) -> managed::Datagram {
    let to = &datagram.to;
    let lid = port.lid.map_or(PERMISSIVE_LID, |lid| lid.number | u16::from(to.path_bits) & ((1 << lid.lmc) - 1));
    let sgid = port.gids.entry(to.gid_index.into()).map(|entry| entry.gid).unwrap_or_default();
    let grh = to.has_grh().then_some(Grh {
        traffic_class: to.traffic_class,
        flow_label: to.flow_label,
        hop_limit: to.hop_limit,
        sgid,
        dgid: to.gid,
        payload_len: 0,
        next_header: 0,
    });
    managed::Datagram {
        source_qp: datagram.qpn,
        dest_qp: to.qpn,
        slid: lid,
        dlid: to.lid,
        sl: to.sl,
        pkey: port.pkeys.get(to.pkey_index.into()).unwrap_or(0),
        qkey: to.qkey,
        grh,
        mad: datagram.mad,
    }
}

impl PortPacket<'_> {
    pub(super) fn record(&self) -> CaptureRecord {
        let lrh = self.frame.lrh;
        let grh = self.frame.grh();
        let Grh { sgid, dgid, traffic_class, flow_label, hop_limit, .. } = grh.unwrap_or_default();
        CaptureRecord {
            path: if self.sent { path::LINK_OUT } else { path::LINK_IN },
            from: sgid,
            to: dgid,
            traffic_class,
            flow_label,
            hop_limit,
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            vl: lrh.vl,
            port: self.at.port,
            device: self.at.device as u32 + 1,
            flags: record_flag::LINK | if grh.is_some() { record_flag::GLOBAL } else { 0 },
            ..CaptureRecord::default()
        }
    }
}
