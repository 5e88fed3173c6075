//! Takes receive requests from a QP's own queue or from an SRQ, and completes them.
//!
//! Completions are collected first, and added to the CQ after the answers are sent. Adds to [`Qp`].

use std::sync::Arc;

use abi::cq::{Wc, opcode as wc_opcode, wc_flags};
use abi::event::kind;
use abi::queue::qp as word;
use protocol::{RecvEnd, Service, Status};
use wire::grh::Network;

use crate::board::DevicePort;
use crate::cell::{Packet, Path};
use crate::memory::{Cqe, FREES_RECV, RecvEntry, SOLICITED};
use crate::qp::{Inner, Qp, Receive};

/// The SL value for "the network header is IPv4", as adapters report it.
const SL_IPV4: u8 = 2;

impl Qp {
    /// Takes the next receive request, from the QP's own queue or the SRQ.
    #[inline(always)]
    pub(crate) fn take_receive(&self, inner: &mut Inner) -> bool {
        if let Some(srq) = self.srq.as_ref().or(inner.xrc.named.as_ref()) {
            let Some(entry) = srq.take(&mut inner.incoming.shared) else { return false };
            inner.incoming.receive =
                Some(Receive { wr_id: entry.wr_id, length: entry.length, num_sge: entry.num_sge, index: None });
            return true;
        }
        if inner.queues.rq_head == inner.queues.rq_tail {
            return false;
        }
        let index = inner.queues.rq_head;
        let entry: RecvEntry = inner.queues.rq.read(index);
        inner.queues.rq_head = inner.queues.rq.advance(index);
        inner.store(word::RQ_HEAD, inner.queues.rq_head);
        inner.incoming.receive = Some(Receive {
            wr_id: entry.wr_id,
            length: entry.length,
            num_sge: entry.num_sge.min(self.caps.max_recv_sge),
            index: Some(index),
        });
        true
    }

    /// Completes a receive request. `end` is the end of the message, and the path on which it came.
    /// `datagram` is its packet; other services do not need it.
    #[inline]
    pub(crate) fn complete_receive(
        &self,
        inner: &mut Inner,
        receive: &Receive,
        status: Status,
        end: Option<(RecvEnd, Path)>,
        opcode: u32,
        datagram: Option<&Packet>,
    ) {
        let mut wc = Wc { wr_id: receive.wr_id, status: status.as_u32(), opcode, qp_num: self.qpn(), ..Wc::default() };
        let (freed, mut flags) = receive.index.map_or((0, 0), |index| (inner.queues.rq.advance(index), FREES_RECV));
        if let Some((end, path)) = end {
            wc.byte_len = end.byte_len;
            wc.src_qp = inner.attributes.dest_qp_num;
            wc.port_num = inner.attributes.port_num;
            wc.sl = path.sl;
            wc.slid = path.slid;
            if let Some(imm) = end.imm {
                wc.imm_data = imm.to_be();
                wc.wc_flags |= wc_flags::WITH_IMM;
            }
            if let Some(key) = end.invalidate {
                wc.imm_data = key;
                wc.wc_flags |= wc_flags::WITH_INV;
            }
            if let Some(packet) = datagram.filter(|_| self.service == Service::Ud) {
                wc.src_qp = packet.src_qp.value();
                let place = DevicePort { device: self.engine().device(), port: inner.attributes.port_num.into() };
                wc.dlid_path_bits = path.dlid.to_le_bytes()[0] & self.engine().board.path_bits(place);
                if let Some(grh) = &packet.grh {
                    wc.wc_flags |= wc_flags::GRH;
                    // Service levels mean nothing on Ethernet, where ports have no LIDs. Common
                    // adapters report the kind of the 40 bytes here, and UCX relies on it.
                    if path.slid == 0 && matches!(Network::parse(grh), Ok(Network::V4(_))) {
                        wc.sl = SL_IPV4;
                    }
                }
            }
            if end.solicited {
                flags |= SOLICITED;
            }
        }
        if let Some(lint) = self.lint() {
            let bytes = if opcode == wc_opcode::RECV { wc.byte_len } else { 0 };
            lint.receive_over(self, inner, receive, bytes, status);
        }
        inner.incoming.arrived.push(Cqe { wc, timestamp: 0, freed, flags });
        if let Some(member) = inner.xrc.named.as_ref().and_then(|srq| srq.xrc.as_ref()) {
            inner.xrc.arrived_at.push(Arc::clone(&member.cq));
        }
    }

    /// Flushes all waiting receive requests. Requests of an SRQ stay there (V-53).
    pub(crate) fn flush_receives(&self, inner: &mut Inner) {
        if let Some(receive) = inner.incoming.receive.take() {
            self.complete_receive(inner, &receive, Status::WrFlushErr, None, wc_opcode::RECV, None);
        }
        if self.srq.is_some() || self.target.is_some() {
            self.raise(kind::QP_LAST_WQE_REACHED);
            return;
        }
        while self.take_receive(inner) {
            if let Some(receive) = inner.incoming.receive.take() {
                self.complete_receive(inner, &receive, Status::WrFlushErr, None, wc_opcode::RECV, None);
            }
        }
    }
}
