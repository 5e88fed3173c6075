//! Takes the packets that a connection expects next: SEND and WRITE packets in their order, and
//! ACKs. Most packets are of this kind.
//!
//! Such packets are parsed only in part ([`Candidate`]), several in a row are taken under one lock
//! of the QP, and a region that several of them use is held. A packet about which anything is
//! special takes the general path (`receive.rs`), which has the same result, and which finds out
//! what is wrong. So this file refuses no packet. With the strict mode, all packets take the
//! general path. Adds to [`Engine`] and [`Qp`].

use std::sync::Arc;

use abi::cq::opcode as wc_opcode;
use abi::mr::access as right;
use protocol::{PayloadPlace, RecvEnd, Service, Status};
use shm::{LaneRx, Source};
use wire::{Operation, Qpn};

use crate::access::HeldRegion;
use crate::cell::{Candidate, Partition, Path, Payload, Record, destination, head, place};
use crate::engine::Engine;
use crate::qp::{Inner, Lane, Qp};
use crate::special::Special;

/// How many records one round takes from a lane, so that all lanes get their share.
const BATCH: usize = 64;
/// About how many bytes of bulk one round takes at most. Then the engine acknowledges what has come
/// while the sender still has work.
const BULK_BATCH: u32 = 256 * 1024;
/// How many records are taken under one lock, and after how many bytes of bulk the lock is
/// released, because other threads wait for it.
const RUN: usize = 16;
const BULK_RUN: u32 = 32 * 1024;

/// How a run of expected packets ended.
pub(crate) enum RunEnd {
    /// No other record has come.
    Empty,
    /// Others get their share now.
    Paused,
    /// The current record, of this length, does not belong to the run.
    Other(usize),
    /// The peer has written an invalid record after it.
    Broken,
}

/// The progress of a round.
#[derive(Default)]
pub(crate) struct RoundProgress {
    /// Records that were taken.
    pub(crate) records: usize,
    /// Bytes of bulk.
    pub(crate) bulk: u32,
}

impl RoundProgress {
    /// Whether the round goes on.
    #[inline]
    pub(crate) fn may_go_on(&self) -> bool {
        self.records < BATCH && self.bulk < BULK_BATCH
    }
}

impl Engine {
    /// Takes the current record, of `len` bytes, and the records after it, as long as they are
    /// expected packets of one QP.
    pub(crate) fn take_run(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        (rx, record, mut len): (&mut LaneRx, &mut Record, usize),
        done: &mut RoundProgress,
        touched: &mut Vec<Arc<Qp>>,
        recent: &mut Option<Arc<Qp>>,
    ) -> RunEnd {
        let Some(dest) = destination(record) else { return RunEnd::Other(len) };
        if recent.as_ref().is_none_or(|qp| qp.qpn() != dest) {
            *recent = self.qps.find(dest);
        }
        let Some(qp) = &*recent else { return RunEnd::Other(len) };
        let mut inner = qp.lock();
        // These concern only what this side sends.
        const SUPPORTED: Special = Special::LOSSY.and(Special::PACED).and(Special::HELD);
        if !qp.expects_packets(&inner, SUPPORTED) {
            return RunEnd::Other(len);
        }
        let mut region = HeldRegion::of_qp(self, &**qp, std::mem::take(&mut inner.incoming.place));
        let partition = inner.link.partition;
        let (mut count, until) = (0, done.bulk + BULK_RUN);
        let end = loop {
            match self.take_record(lane, (qp, &mut inner), (rx, record, len), partition, &mut region) {
                Ok(bulk) => done.bulk += bulk,
                Err(end) => break end,
            }
            count += 1;
            if count == RUN || done.bulk >= until || !done.may_go_on() {
                break RunEnd::Paused;
            }
            match rx.ring.pop(record) {
                Ok(None) => break RunEnd::Empty,
                Ok(Some(bytes)) => {
                    done.records += 1;
                    len = bytes;
                }
                Err(shm::Broken) => break RunEnd::Broken,
            }
        };
        // Released before answers are sent: a thread that waits for the region may hold a lock that
        // is taken below.
        inner.incoming.place = region.into_kept();
        if count > 0 {
            let more = match end {
                RunEnd::Empty => false,
                RunEnd::Paused => done.may_go_on() && rx.ring.has_next(),
                RunEnd::Other(_) | RunEnd::Broken => true,
            };
            if !more {
                qp.pump(&mut inner);
            }
            drop(inner);
            note_touched(touched, qp, more);
        }
        end
    }

    /// Takes the current record, of `len` bytes, if it is the expected packet of `qp`. Returns its
    /// bytes of bulk.
    #[inline(always)]
    fn take_record(
        &self,
        lane: &Lane,
        (qp, inner): (&Qp, &mut Inner),
        (rx, record, len): (&mut LaneRx, &Record, usize),
        partition: Partition,
        region: &mut HeldRegion<'_>,
    ) -> Result<u32, RunEnd> {
        let (candidate, payload) = Candidate::of_record(record, len, partition).ok_or(RunEnd::Other(len))?;
        let head = head(record);
        let (path, bytes) = (head.path(), head.len());
        if destination(record) != Some(qp.qpn()) || !self.is_from_peer(lane, inner, head.src_qp(), path) {
            return Err(RunEnd::Other(len));
        }
        let source = place(rx, record, payload, bytes).ok_or(RunEnd::Broken)?;
        if !qp.take_expected(inner, candidate, path, source, region) {
            return Err(RunEnd::Other(len));
        }
        let Payload::Bulk(offset) = payload else { return Ok(0) };
        rx.bulk.release(offset, bytes.into());
        Ok(bytes.into())
    }

    /// Whether a packet of a lane comes from the peer of its connection, on the connection's path.
    #[inline(always)]
    fn is_from_peer(&self, lane: &Lane, inner: &Inner, src_qp: Qpn, path: Path) -> bool {
        let from = inner.attributes.dest_qp_num;
        src_qp.value() == from
            && u32::from(path.device) == self.device()
            && path.port == inner.attributes.port_num
            && path.mtu == inner.link.peer_mtu
            && self.board.owner(from) == lane.peer
    }
}

/// Notes whether the QP of the last packet still has to send its answers when the batch ends. It
/// has sent them unless `more` packets have come.
#[inline]
pub(crate) fn note_touched(touched: &mut Vec<Arc<Qp>>, qp: &Arc<Qp>, more: bool) {
    let is_last = touched.last().is_some_and(|last| Arc::ptr_eq(last, qp));
    match (more, is_last) {
        (true, false) => touched.push(Arc::clone(qp)),
        (false, true) => drop(touched.pop()),
        _ => {}
    }
}

impl Qp {
    /// Whether the QP is a connection that can take packets here: nothing is special about it but
    /// what is `supported`, and no request waits that must be served before the next.
    #[inline]
    pub(crate) fn expects_packets(&self, inner: &Inner, supported: Special) -> bool {
        self.service == Service::Rc && !self.special(inner).has_beside(supported) && inner.awaits_next()
    }

    /// Takes a packet of the connection's peer, if it is an expected one. Returns false if the
    /// packet must take the general path. At most, its receive request has been taken then.
    #[inline(always)]
    pub(crate) fn take_expected(
        &self,
        inner: &mut Inner,
        packet: Candidate,
        path: Path,
        payload: Source<'_>,
        region: &mut HeldRegion<'_>,
    ) -> bool {
        if inner.link.migration.heeds(packet.migrated) {
            return false;
        }
        if packet.opcode.operation == Operation::Acknowledge {
            let now = self.time(inner);
            return payload.is_empty() && inner.requester.handle_ack(now, packet.psn);
        }
        let len = payload.len() as u32;
        let Some(expected) = inner.responder.expects((packet.opcode, packet.psn), packet.reth, len) else {
            return false;
        };
        let offset = match expected.place {
            PayloadPlace::Write { va, rkey } => {
                let wanted = self.remote(self.pd, right::REMOTE_WRITE);
                let is_written = len == 0 || region.write(wanted, (rkey, va), payload).is_ok();
                if is_written {
                    inner.responder.accept(expected, packet.ack_req);
                }
                return is_written;
            }
            PayloadPlace::Receive { offset } => offset,
        };
        if inner.incoming.receive.is_none() && !(packet.opcode.place().begins() && self.take_receive(inner)) {
            return false;
        }
        let Some(receive) = &inner.incoming.receive else { return false };
        let fits = u64::from(offset) + u64::from(len) <= u64::from(receive.length);
        if !fits || self.scatter(inner, receive, offset, payload, region).is_err() {
            return false;
        }
        inner.responder.accept(expected, packet.ack_req);
        if packet.opcode.place().ends()
            && let Some(receive) = inner.incoming.receive.take()
        {
            let end = RecvEnd { byte_len: offset + len, solicited: packet.solicited, ..RecvEnd::default() };
            self.complete_receive(inner, &receive, Status::Success, Some((end, path)), wc_opcode::RECV, None);
        }
        true
    }
}
