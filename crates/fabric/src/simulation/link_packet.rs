//! Packets of hosts as packets of InfiniBand links, and back. A host's packet begins with its BTH,
//! and its ICRC covers the addresses of the hosts. A packet of a link has an LRH, and a GRH if the
//! address vector has one; its ICRC covers these. A wrong ICRC stays wrong, by the same bits.
//! Principal functions: [`to_link`] and [`to_host`].

use abi::lid::{NO_GRH, Subnet};
use softhca::Gid;
use subnet::Frame;
use wire::grh::{self, Grh, NEXT_HEADER_IBA};
use wire::icrc::{self, Envelope};
use wire::lrh::{self, Next};

use crate::head::{FIRST_PORT, Head};

/// The host part of the addresses of a simulation: 255.255.255.0, as the agents have it.
const HOSTS: u32 = 0xff;

/// The LID that an address stands for, as the engine of a host with `own` computes it.
pub(super) fn lid_of(own: &Gid, address: &Gid) -> Option<u16> {
    Subnet::around(&own.0, HOSTS)?.lid(&address.0)
}

/// Whether packets have no GRH.
pub(super) fn is_local(head: &Head) -> bool {
    head.hop_limit == NO_GRH
}

/// The packet on the link. `id` is the packet's place in its burst. `None`: no link carries it.
pub(super) fn to_link(head: &Head, id: u16, packet: &[u8], (slid, dlid): (u16, u16)) -> Option<Frame> {
    let (covered, _) = packet.split_last_chunk::<{ icrc::LEN }>()?;
    let mut body = Vec::with_capacity(grh::LEN + packet.len());
    if !is_local(head) {
        let mut bytes = [0; grh::LEN];
        let header = Grh {
            traffic_class: head.traffic_class,
            flow_label: 0,
            payload_len: u16::try_from(packet.len()).ok()?,
            next_header: NEXT_HEADER_IBA,
            hop_limit: head.hop_limit,
            sgid: head.from.0,
            dgid: head.to.0,
        };
        header.emit(&mut bytes);
        body.extend(bytes);
    }
    body.extend(packet);
    let words = u16::try_from((lrh::LEN + body.len()) / 4).ok()?;
    let next = if is_local(head) { Next::Bth } else { Next::Grh };
    let lrh = lrh::Header { vl: 0, sl: head.service_level & 0xf, next, dlid, packet_len: words, slid };
    let of_host = Envelope::new(&head.from.0, &head.to.0, head.from_port).icrc(id, covered);
    exchange(&lrh, &mut body, of_host)?;
    Frame::new(lrh, body).ok()
}

/// The packet as the host with address `own` receives it. `None`: it is no packet of a queue pair.
pub(super) fn to_host(frame: &Frame, own: &Gid) -> Option<(Head, Vec<u8>)> {
    let grh = frame.grh();
    let (from, to, hop_limit, traffic_class) = match &grh {
        Some(grh) => (Gid(grh.sgid), Gid(grh.dgid), grh.hop_limit, grh.traffic_class),
        None => (Gid(Subnet::around(&own.0, HOSTS)?.gid(frame.lrh.slid)?), *own, NO_GRH, 0),
    };
    let head = Head { from, from_port: FIRST_PORT, to, traffic_class, service_level: frame.lrh.sl, hop_limit };
    let mut body = frame.body().to_vec();
    let start = if grh.is_some() { grh::LEN } else { 0 };
    let covered = body.get(start..body.len().checked_sub(icrc::LEN)?)?;
    let of_host = Envelope::new(&from.0, &to.0, FIRST_PORT).icrc(0, covered);
    exchange(&frame.lrh, &mut body, of_host)?;
    body.drain(..start);
    Some((head, body))
}

/// Replaces the ICRC of the link at the end of a body by that of a host, or the other way.
fn exchange(lrh: &lrh::Header, body: &mut [u8], of_host: [u8; icrc::LEN]) -> Option<()> {
    let mut head = [0; lrh::LEN];
    lrh.emit(&mut head);
    let (covered, icrc) = body.split_last_chunk_mut::<{ icrc::LEN }>()?;
    let of_link = icrc::link::icrc(&[&head[..], covered].concat())?;
    for (byte, (link, host)) in icrc.iter_mut().zip(of_link.into_iter().zip(of_host)) {
        *byte ^= link ^ host;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(last: u8) -> Gid {
        Gid(std::net::Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().octets())
    }

    fn packet(head: &Head, id: u16) -> Vec<u8> {
        let mut packet = vec![0x04, 0, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1, 1, 2, 3, 4];
        let icrc = Envelope::new(&head.from.0, &head.to.0, head.from_port).icrc(id, &packet);
        packet.extend(icrc);
        packet
    }

    fn head(hop_limit: u8) -> Head {
        let (from, to) = (gid(1), gid(2));
        Head { from, from_port: 0xc123, to, traffic_class: 0, service_level: 3, hop_limit }
    }

    #[test]
    fn a_packet_has_the_icrc_of_a_link_there_and_that_of_a_host_behind_it() {
        for hop_limit in [NO_GRH, 64] {
            let before = head(hop_limit);
            let bytes = packet(&before, 5);
            let frame = to_link(&before, 5, &bytes, (1, 2)).unwrap();
            let on_link = frame.to_bytes();
            let (covered, icrc) = on_link[..on_link.len() - 2].split_last_chunk().unwrap();
            assert_eq!(icrc::link::icrc(covered).as_ref(), Some(icrc));
            let (after, came) = to_host(&frame, &gid(2)).unwrap();
            assert_eq!((after.from, after.to, after.hop_limit), (gid(1), gid(2), hop_limit));
            let envelope = Envelope::new(&after.from.0, &after.to.0, after.from_port);
            assert_eq!((envelope.check(&came, 0), &came[..16]), (Some(0), &bytes[..16]));
        }
    }

    #[test]
    fn a_damaged_packet_stays_damaged() {
        let before = head(NO_GRH);
        let mut bytes = packet(&before, 0);
        bytes[13] ^= 0x10;
        let (after, came) = to_host(&to_link(&before, 0, &bytes, (1, 2)).unwrap(), &gid(2)).unwrap();
        let right = Envelope::new(&after.from.0, &after.to.0, after.from_port).icrc(0, &came[..16]);
        assert_ne!(came[16..], right);
    }
}
