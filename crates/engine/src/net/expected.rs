//! The expected packets among received datagrams: those at their beginning, and those that follow a
//! packet that its QP has just taken. What the packets share, such as their sender, is checked
//! once. Each packet is checked for its QP, its length and its ICRC, and then as on a lane
//! ([`crate::expected`]). The first packet about which anything is special takes the general path
//! ([`crate::net::deliver`]). Adds to [`Qp`].

use shm::Source;
use wire::bth::View;

use crate::access::HeldRegion;
use crate::cell::{Candidate, Path};
use crate::net::batch::ICRC;
use crate::net::deliver::Packets;
use crate::qp::{Inner, Qp, Route};
use crate::special::Special;

impl Qp {
    /// Whether packets between these addresses are on the connection's path, as far as it is known.
    #[inline]
    pub(crate) fn is_on_path(inner: &Inner, from: &[u8; 16], to: &[u8; 16]) -> bool {
        inner.link.on_wire()
            && &inner.attributes.dest.dgid == from
            && matches!(&inner.link.route, Route::Wire(flow) if &flow.source == to)
    }

    /// Takes packets of the connection's path, as long as they are expected.
    pub(crate) fn take_expected_of_host(&self, inner: &mut Inner, packets: &mut Packets<'_>) {
        // Tracing, captures, fault rules and the strict mode see each packet in full.
        const SUPPORTED: Special = Special::WIRE.and(Special::PACED);
        let size = packets.segment;
        if size <= ICRC
            || packets.bytes.len() < packets.at + size
            || tracing::enabled!(tracing::Level::TRACE)
            || !self.expects_packets(inner, SUPPORTED)
        {
            return;
        }
        let measured = packets.envelope.of_length(size - ICRC);
        let (partition, qpn) = (inner.link.partition, self.qpn());
        let mut region = HeldRegion::of_qp(self.engine(), self, std::mem::take(&mut inner.incoming.place));
        while let Some(packet) = packets.bytes.get(packets.at..packets.at + size) {
            let inside = &packet[..size - ICRC];
            let is_ours = inside.first_chunk().is_some_and(|bth| View(bth).dest_qp().value() == qpn);
            let Some((candidate, head)) = Candidate::parse(inside, partition).filter(|_| is_ours) else { break };
            let Some(payload) = inside.get(head..) else { break };
            if !measured.fits(packet, packets.id)
                || !self.take_expected(inner, candidate, Path::default(), Source::from(payload), &mut region)
            {
                break;
            }
            inner.traffic.received(1, payload.len() as u32, head);
            if packets.at == 0 {
                packets.first = Some(packets.id);
            }
            packets.at += size;
            packets.id = packets.id.wrapping_add(1);
        }
        inner.incoming.place = region.into_kept();
    }
}
