//! Receives fast-path records: takes several in a row for one QP under one lock. Sending is in
//! `sending.rs`. Adds to [`Engine`] and [`Qp`].

use std::sync::Arc;

use abi::cq::{Wc, opcode as wc_opcode};
use abi::mr::access as right;
use abi::queue::qp as word;
use protocol::{Service, Status};
use shm::{LaneRx, Source};

use crate::access::Near;
use crate::cell::{Payload, place};
use crate::cqe::{Cqe, FREES_RECV};
use crate::engine::Engine;
use crate::fast_path::{FastRecord, Partition, Record, What, destination};
use crate::qp::{Inner, Lane, Qp};
use crate::special::Special;
use crate::wqe::RecvEntry;

/// How many records one round takes from a lane, so that all lanes get their share.
const BATCH: usize = 64;
/// About how many bytes of bulk one round takes at most. Then the engine acknowledges what has come
/// while the sender still has work.
const BULK_BATCH: u32 = 256 * 1024;
/// How many records are taken under one lock, and after how many bytes of bulk the run ends,
/// because other threads wait for the lock.
const RUN: usize = 16;
const BULK_RUN: u32 = 32 * 1024;

/// How a run of fast-path records ended.
pub(crate) enum RunEnd {
    /// No other record has come, or others get their share now.
    Over,
    /// The current record, of this length, does not belong to the run.
    Other(usize),
    /// The peer has written an invalid record after it.
    Broken,
}

/// The progress of a round.
#[derive(Default)]
pub(crate) struct Done {
    /// Records that were taken.
    pub(crate) records: usize,
    /// Bytes of bulk.
    pub(crate) bulk: u32,
}

impl Done {
    /// Whether the round goes on.
    #[inline]
    pub(crate) fn may_go_on(&self) -> bool {
        self.records < BATCH && self.bulk < BULK_BATCH
    }
}

impl Engine {
    /// Takes the current record, of `len` bytes, and the records after it, as long as they are for
    /// the fast path and for one QP.
    pub(crate) fn take_run(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        (rx, record, mut len): (&mut LaneRx, &mut Record, usize),
        done: &mut Done,
        touched: &mut Vec<Arc<Qp>>,
        recent: &mut Option<Arc<Qp>>,
    ) -> RunEnd {
        let Some(dest) = destination(record) else { return RunEnd::Other(len) };
        if recent.as_ref().is_none_or(|qp| qp.qpn() != dest) {
            *recent = self.qps.find(dest);
        }
        let Some(qp) = recent else { return RunEnd::Other(len) };
        let mut inner = qp.lock();
        if !qp.takes_fast_path(&inner, self.special.get()) {
            return RunEnd::Other(len);
        }
        let mut near = Near::new(self);
        let partition = Partition::of(inner.responder.pkey());
        let (mut count, until) = (0, done.bulk + BULK_RUN);
        let end = loop {
            let Some(fast) = FastRecord::decode(record, len, partition) else { break RunEnd::Other(len) };
            let from = inner.attributes.dest_qp_num;
            let ours = fast.dest_qp == dest
                && fast.src_qp == from
                && u32::from(fast.path.device) == self.device()
                && self.board.owner(from) == lane.peer;
            if !ours {
                break RunEnd::Other(len);
            }
            let Some(payload) = place(rx, record, fast.payload, fast.len) else { break RunEnd::Broken };
            if !qp.take_fast_path(&mut inner, &fast, payload, &mut near) {
                break RunEnd::Other(len);
            }
            if let Payload::Bulk(offset) = fast.payload {
                rx.bulk.release(offset, fast.len.into());
                done.bulk += u32::from(fast.len);
            }
            count += 1;
            if count == RUN || done.bulk >= until || !done.may_go_on() {
                break RunEnd::Over;
            }
            match rx.ring.pop(record) {
                Ok(None) => break RunEnd::Over,
                Ok(Some(bytes)) => {
                    done.records += 1;
                    len = bytes;
                }
                Err(shm::Broken) => break RunEnd::Broken,
            }
        };
        // Released before answers are sent, as in `Qp::send_fast_path`. Also, a thread that waits
        // for the region may hold a lock that is taken below.
        drop(near);
        if count == 0 {
            return end;
        }
        inner.fast_path.taken += count as u64;
        let is_last = touched.last().is_some_and(|last| Arc::ptr_eq(last, qp));
        if matches!(end, RunEnd::Over) && !(done.may_go_on() && rx.ring.has_next()) {
            qp.pump(&mut inner);
            if is_last {
                // It has just sent its answers.
                drop(inner);
                drop(touched.pop());
            }
        } else if !is_last {
            touched.push(Arc::clone(qp));
        }
        end
    }
}

impl Qp {
    /// Whether no state of this QP requires the general path.
    #[inline]
    fn takes_fast_path(&self, inner: &Inner, engine: Special) -> bool {
        // These concern only what this side sends.
        const SENDS: Special = Special::LOSSY.and(Special::PACED).and(Special::HELD);
        self.service == Service::Rc && !inner.link.special.and(engine).has_beside(SENDS) && inner.awaits_next()
    }

    /// Takes one fast-path record whose sender has been checked. Returns false if it needs the
    /// general path; then nothing has changed.
    #[inline]
    fn take_fast_path(&self, inner: &mut Inner, fast: &FastRecord, payload: Source<'_>, near: &mut Near<'_>) -> bool {
        if fast.path.mtu != inner.link.peer_mtu
            || fast.path.port != inner.attributes.port_num
            || inner.link.migration.heeds(fast.migrated)
        {
            return false;
        }
        match fast.what {
            What::Send => self.take_send(inner, fast, payload, near),
            What::Write { va, rkey, total } => {
                let wanted = self.remote(self.pd, right::REMOTE_WRITE);
                let done = inner.responder.awaits_fast_write(fast.psn, fast.len.into(), total)
                    && (fast.len == 0 || near.write(wanted, (rkey, va), payload));
                if done {
                    inner.responder.took_fast_message(fast.ack_req);
                }
                done
            }
            What::Ack { .. } => {
                let now = self.time(inner);
                fast.len == 0 && inner.requester.acknowledged_on_fast_path(now, fast.psn)
            }
        }
    }

    #[inline]
    fn take_send(&self, inner: &mut Inner, fast: &FastRecord, payload: Source<'_>, near: &mut Near<'_>) -> bool {
        let index = inner.queues.rq_head;
        let len = u32::from(fast.len);
        if self.srq.is_some()
            || self.recv_cq.is_none()
            || index == inner.queues.rq_tail
            || inner.incoming.receive.is_some()
            || !inner.responder.awaits_fast_message(fast.psn, len)
        {
            return false;
        }
        let entry: RecvEntry = inner.queues.rq.read(index);
        let element = || inner.queues.rq.element(index, 0);
        let fits = len == 0 || entry.num_sge == 1 && near.scatter(self.pd, &element(), payload);
        if !fits {
            return false;
        }
        let freed = inner.queues.rq.advance(index);
        inner.queues.rq_head = freed;
        inner.store(word::RQ_HEAD, freed);
        inner.responder.took_fast_message(fast.ack_req);
        let wc = Wc {
            wr_id: entry.wr_id,
            status: Status::Success.as_u32(),
            opcode: wc_opcode::RECV,
            byte_len: len,
            qp_num: self.qpn(),
            src_qp: inner.attributes.dest_qp_num,
            port_num: inner.attributes.port_num,
            sl: fast.path.sl,
            slid: fast.path.slid,
            ..Wc::default()
        };
        inner.incoming.arrived.push((Cqe { wc, timestamp: 0, freed, frees: FREES_RECV }, fast.solicited));
        true
    }
}
