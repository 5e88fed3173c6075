//! Management datagrams as packets of the fabric, and back. Not their content. Principal type:
//! [`Datagram`].

use crate::frame::Frame;
use wire::icrc::link::icrc;
use wire::lrh::{self, Next};
use wire::mad::{MAD_LEN, Mad};
use wire::{Grh, Opcode, Operation, Qpn, Transport, bth, deth, grh};

/// The Q_Key of QP 1.
pub const GSI_QKEY: u32 = 0x8001_0000;

const ICRC_LEN: usize = 4;
const LEN: usize = bth::LEN + deth::LEN + MAD_LEN + ICRC_LEN;

/// A management datagram with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The queue pair that sends it.
    pub source_qp: u32,
    /// The queue pair that it is for. 0 travels on VL 15.
    pub dest_qp: u32,
    /// The LID of the sender, with its path bits.
    pub slid: u16,
    /// The LID of the receiver. The permissive LID is right for directed routes only.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The partition.
    pub pkey: u16,
    /// The Q_Key. QP 0 ignores it.
    pub qkey: u32,
    /// The global route, if there is one.
    pub grh: Option<Grh>,
    /// The datagram.
    pub mad: Mad,
}

impl Datagram {
    /// A datagram from QP 0 to QP 0.
    #[must_use]
    pub const fn smp(slid: u16, dlid: u16, sl: u8, mad: Mad) -> Datagram {
        let pkey = wire::pkey::DEFAULT;
        Datagram { source_qp: 0, dest_qp: 0, slid, dlid, sl, pkey, qkey: 0, grh: None, mad }
    }

    /// A datagram from QP 1 to QP 1 in the default partition.
    #[must_use]
    pub const fn gmp(slid: u16, dlid: u16, sl: u8, mad: Mad) -> Datagram {
        Datagram { source_qp: 1, dest_qp: 1, qkey: GSI_QKEY, ..Datagram::smp(slid, dlid, sl, mad) }
    }

    /// The answer to this datagram: the same way back.
    #[must_use]
    pub fn answer(&self, mad: Mad) -> Datagram {
        let back = |grh: Grh| Grh { sgid: grh.dgid, dgid: grh.sgid, hop_limit: 64, ..grh };
        Datagram {
            source_qp: self.dest_qp,
            dest_qp: self.source_qp,
            slid: self.dlid,
            dlid: self.slid,
            grh: self.grh.map(back),
            mad,
            ..*self
        }
    }

    /// The packet that carries the datagram, with its ICRC.
    #[must_use]
    pub fn to_frame(&self) -> Option<Frame> {
        let vl = if self.dest_qp == 0 { lrh::VL_MANAGEMENT } else { 0 };
        let next = if self.grh.is_some() { Next::Grh } else { Next::Bth };
        let mut body = Vec::with_capacity(grh::LEN + LEN);
        if let Some(grh) = self.grh {
            let mut bytes = [0; grh::LEN];
            Grh { payload_len: LEN as u16, next_header: grh::NEXT_HEADER_IBA, ..grh }.emit(&mut bytes);
            body.extend(bytes);
        }
        let mut bytes = [0; bth::LEN];
        let opcode = Opcode::new(Transport::Ud, Operation::SendOnly);
        bth::Header { opcode, pkey: self.pkey, dest_qp: Qpn::new(self.dest_qp), ..bth::Header::default() }
            .emit(&mut bytes);
        body.extend(bytes);
        let mut bytes = [0; deth::LEN];
        deth::Header { qkey: self.qkey, src_qp: Qpn::new(self.source_qp) }.emit(&mut bytes);
        body.extend(bytes);
        body.extend(self.mad);
        let packet_len = ((lrh::LEN + body.len() + ICRC_LEN) / 4) as u16;
        let lrh = lrh::Header { vl, sl: self.sl & 0xf, next, dlid: self.dlid, packet_len, slid: self.slid };
        let mut head = [0; lrh::LEN];
        lrh.emit(&mut head);
        body.extend(icrc(&[&head[..], &body].concat())?);
        Frame::new(lrh, body).ok()
    }

    /// The datagram of a packet. `None`: the packet has no datagram of 256 bytes for QP 0 or QP 1,
    /// or is on the lane of the other one.
    #[must_use]
    pub fn of(frame: &Frame) -> Option<Datagram> {
        let lrh = frame.lrh;
        let (grh, rest) = match lrh.next {
            Next::Grh => (Some(frame.grh()?), frame.body().get(grh::LEN..)?),
            Next::Bth => (None, frame.body()),
            Next::Raw | Next::RawIpv6 => return None,
        };
        let (head, rest) = rest.split_first_chunk()?;
        let bth = bth::Header::parse(head).ok()?;
        let (head, rest) = rest.split_first_chunk()?;
        let deth = deth::Header::parse(head);
        let (mad, icrc) = rest.split_first_chunk()?;
        let fits = bth.opcode == Opcode::new(Transport::Ud, Operation::SendOnly)
            && icrc.len() == ICRC_LEN
            && bth.dest_qp.value() <= 1
            && frame.is_management() == (bth.dest_qp.value() == 0);
        fits.then_some(Datagram {
            source_qp: deth.src_qp.value(),
            dest_qp: bth.dest_qp.value(),
            slid: lrh.slid,
            dlid: lrh.dlid,
            sl: lrh.sl,
            pkey: bth.pkey,
            qkey: deth.qkey,
            grh,
            mad: *mad,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_parsed_as_it_was_built() {
        let smp = Datagram::smp(1, 0xffff, 0, [7; MAD_LEN]);
        let frame = smp.to_frame().unwrap();
        assert_eq!((frame.is_management(), frame.wire_len()), (true, 8 + LEN + 4));
        assert_eq!(Datagram::of(&frame), Some(smp));
        let grh = Grh { payload_len: LEN as u16, next_header: 0x1b, sgid: [1; 16], dgid: [2; 16], ..Grh::default() };
        let gmp = Datagram { grh: Some(grh), ..Datagram::gmp(3, 4, 5, [8; MAD_LEN]) };
        assert_eq!(Datagram::of(&gmp.to_frame().unwrap()), Some(gmp.clone()));
        let answer = gmp.answer([9; MAD_LEN]);
        assert_eq!((answer.slid, answer.dlid, answer.grh.unwrap().dgid), (4, 3, [1; 16]));
    }

    #[test]
    fn a_datagram_on_the_wrong_lane_is_none() {
        let mut frame = Datagram::gmp(3, 4, 5, [8; MAD_LEN]).to_frame().unwrap();
        frame.lrh.vl = 15;
        assert_eq!(Datagram::of(&frame), None);
    }
}
