//! Puts packets on their path: on a lane as records, on the wire as segments of a datagram. The
//! path is an [`Exit`], the unit is an [`OutgoingRun`]. When to send, and what, is decided in
//! `transmit.rs`. Adds to [`Qp`]. Principal type: [`Exit`].

use std::sync::Arc;

use abi::post::Sge;
use shm::memory::CELL_DATA;
use shm::{PushError, RECORD_MAX, Sink, Source};
use wire::icrc::Folding;
use wire::lids;

use crate::access::{self, HeldRegion, Refusal, Use};
use crate::cell::{Envelope, Origin, OutgoingRun, Path};
use crate::engine::Deferred;
use crate::extent::LOCAL_READ;
use crate::lane::Sender;
use crate::lock::MutexGuard;
use crate::memory::SendBrief;
use crate::net::batch::Batch;
use crate::qp::{Flow, Lane, Qp};

impl Qp {
    /// Puts the packets of a run on their path. Returns how many were put, and what happened to the
    /// next one.
    #[inline]
    pub(crate) fn put_run(
        &self,
        exit: &mut Exit<'_>,
        run: &OutgoingRun<'_>,
        region: &mut HeldRegion<'_>,
    ) -> (u32, Sent) {
        match exit {
            Exit::Lane(_, _, _, Some(far)) | Exit::Wire(_, _, Some(far)) => {
                let far = *far;
                let sent = self.put_with_faults(exit, &far, run, region);
                (u32::from(matches!(sent, Sent::Yes | Sent::Lost)), sent)
            }
            Exit::Lane(lane, sender, path, None) => self.put_on_lane(lane, sender, *path, run, None, region),
            Exit::Wire(flow, batch, None) => self.put_on_wire(flow, batch, run, region),
        }
    }

    /// Puts one packet on its path, whatever the fault rules say.
    pub(crate) fn put_unruled(&self, exit: &mut Exit<'_>, run: &OutgoingRun<'_>, region: &mut HeldRegion<'_>) -> Sent {
        match exit {
            Exit::Lane(lane, sender, path, _) => self.put_on_lane(lane, sender, *path, run, None, region).1,
            Exit::Wire(flow, batch, _) => self.put_on_wire(flow, batch, run, region).1,
        }
    }

    /// Adds the packets of a run to the batch for another host.
    pub(crate) fn put_on_wire(
        &self,
        flow: &Flow,
        batch: &mut Batch,
        run: &OutgoingRun<'_>,
        region: &mut HeldRegion<'_>,
    ) -> (u32, Sent) {
        tracing::trace!("to {}: {}, {} packets", flow.target.to.ip(), run.headers.full(0), run.count);
        if let Some(lids) = flow.lids {
            return self.put_with_lids(flow, batch, (run, lids), region);
        }
        let way = (&flow.target, &flow.envelope);
        // What cannot be sent is lost, as on any network.
        let lost = |error: &std::io::Error| flow.complain(error);
        let (count, filled) = batch.put_run(&*flow.port.outlet, way, run, lost, |index, to, folding| {
            self.fill_folding(region, run.from, index * run.len, to, folding)
        });
        (count, filled.map_or_else(Sent::Refused, |()| Sent::Yes))
    }

    /// Adds a datagram that says its LIDs to the batch for another host.
    #[cold]
    fn put_with_lids(
        &self,
        flow: &Flow,
        batch: &mut Batch,
        (run, lids): (&OutgoingRun<'_>, lids::Header),
        region: &mut HeldRegion<'_>,
    ) -> (u32, Sent) {
        let mut payload = vec![0; run.len as usize];
        if let Err(refusal) = self.fill(region, run.from, 0, &mut Sink::from(&mut payload[..])) {
            return (0, Sent::Refused(refusal));
        }
        let packet = lids.packet(&run.headers.full(0), &payload).expect("only datagrams have such flows");
        if let Err(error) = batch.put_bytes(&*flow.port.outlet, (&flow.target, &flow.envelope), &packet) {
            flow.complain(&error);
        }
        (1, Sent::Yes)
    }

    /// Puts the packets of a run on a lane.
    #[inline(always)]
    pub(crate) fn put_on_lane(
        &self,
        lane: &Lane,
        sender: &mut Sender,
        path: Path,
        run: &OutgoingRun<'_>,
        grh: Option<&[u8; 40]>,
        region: &mut HeldRegion<'_>,
    ) -> (u32, Sent) {
        let about = Envelope { path, src_qp: run.src_qp, len: run.len as u16, grh };
        let end = about.len_with(run.headers) + usize::from(about.len);
        if end > RECORD_MAX || self.engine().is_capturing() {
            // Copies: see `OutgoingRun`.
            let (about, run) = (about, *run);
            return self.put_records(lane, sender, &about, &run, region);
        }
        for index in 0..run.count {
            match self.put_inline(lane, sender, &about, (run, index), region) {
                Sent::Yes => {}
                end => return (index, end),
            }
        }
        (run.count, Sent::Yes)
    }

    /// Puts the packets of a run on a lane if a capture runs, or their payload is long.
    #[inline(never)]
    fn put_records(
        &self,
        lane: &Lane,
        sender: &mut Sender,
        about: &Envelope<'_>,
        run: &OutgoingRun<'_>,
        region: &mut HeldRegion<'_>,
    ) -> (u32, Sent) {
        if self.engine().is_capturing() {
            return self.put_captured(lane, sender, about, run, region);
        }
        for index in 0..run.count {
            match self.put_record(lane, sender, about, (run, index), region) {
                Sent::Yes => {}
                end => return (index, end),
            }
        }
        (run.count, Sent::Yes)
    }

    /// Puts one packet on a lane whose payload fits into its record.
    #[inline(always)]
    fn put_inline(
        &self,
        lane: &Lane,
        sender: &mut Sender,
        about: &Envelope<'_>,
        (run, index): (&OutgoingRun<'_>, u32),
        region: &mut HeldRegion<'_>,
    ) -> Sent {
        let Sender { tx, record, .. } = sender;
        let head = about.encode((run.headers, index), None, record);
        let end = head + usize::from(about.len);
        if let Err(refusal) = self.fill(region, run.from, index * run.len, &mut Sink::from(&mut record[head..end])) {
            return Sent::Refused(refusal);
        }
        let pushed = push(tx, record, end);
        self.pushed(lane, pushed)
    }

    /// Puts one packet on a lane. The payload of a large one goes to the bulk area.
    pub(crate) fn put_record(
        &self,
        lane: &Lane,
        sender: &mut Sender,
        about: &Envelope<'_>,
        (run, index): (&OutgoingRun<'_>, u32),
        region: &mut HeldRegion<'_>,
    ) -> Sent {
        let len = usize::from(about.len);
        if about.len_with(run.headers) + len <= RECORD_MAX {
            return self.put_inline(lane, sender, about, (run, index), region);
        }
        let Sender { tx, record, load, wanted, .. } = sender;
        let slot = match tx.bulk.reserve(len) {
            Ok(Some(slot)) => slot,
            Ok(None) => {
                *wanted = len as u32;
                return Sent::Full;
            }
            Err(shm::Broken) => return self.broken(lane),
        };
        if load.add(len as u32) {
            self.engine().waker.copied();
            load.grow(&mut tx.bulk, self.engine().lanes.bulk_memory());
        }
        // The headers first. The push reads them, and would wait for the stores of the payload if
        // these came before (see `Memory::write_cell`).
        let head = about.encode((run.headers, index), Some(slot.offset), record);
        if let Err(refusal) = self.fill(region, run.from, index * run.len, &mut tx.bulk.sink(&slot)) {
            tx.bulk.cancel(slot);
            return Sent::Refused(refusal);
        }
        let pushed = push(tx, record, head);
        if matches!(pushed, Err(PushError::Full)) {
            tx.bulk.cancel(slot);
        }
        self.pushed(lane, pushed)
    }

    /// The result of publishing a record.
    #[inline(always)]
    fn pushed(&self, lane: &Lane, pushed: Result<(), PushError>) -> Sent {
        match pushed {
            Ok(()) => Sent::Yes,
            Err(PushError::Full) => Sent::Full,
            Err(PushError::Broken(_)) => self.broken(lane),
        }
    }

    /// The peer has broken the lane's rules: only its connections with this process end.
    #[cold]
    pub(crate) fn broken(&self, lane: &Lane) -> Sent {
        crate::reason!("lane {} to process {} is broken: the peer wrote invalid data", lane.id, lane.pid);
        lane.kill();
        self.engine().defer(Deferred::Broken(lane.id));
        Sent::Full
    }

    /// A peer's use of this side's memory: of the PD of the QP, or of the SRQ that the request
    /// names.
    pub(crate) fn remote(&self, pd: u32, right: u32) -> Use {
        Use { pd, right, qpn: self.qpn() }
    }

    /// Copies the payload that lies `skip` bytes behind the beginning of `from`.
    #[inline(always)]
    pub(crate) fn fill(
        &self,
        region: &mut HeldRegion<'_>,
        from: Origin<'_>,
        skip: u32,
        to: &mut Sink<'_>,
    ) -> Result<(), Refusal> {
        match from {
            Origin::Nothing => Ok(()),
            Origin::Bytes(bytes) => access::copy(to, Source::from(bytes).part(skip as usize, to.len())),
            Origin::Memory { pd, rkey, addr } => {
                let wanted = self.remote(pd, abi::mr::access::REMOTE_READ);
                region.read(wanted, (rkey, addr.wrapping_add(skip.into())), to)
            }
            Origin::Request { sq, index, offset } => {
                let entry: SendBrief = sq.read(index);
                if entry.inline != 0 {
                    let from = sq.inline(index, entry.length as usize).part((offset + skip) as usize, to.len());
                    return access::copy(to, from);
                }
                let elements = sq.elements(index, usize::from(entry.num_sge));
                access::gather(region, self.pd, elements, offset + skip, to)
            }
        }
    }

    /// Like `fill`. If the bytes are contiguous in a region and there is a [`Folding`], also folds
    /// them into an ICRC. Returns whether it did.
    pub(crate) fn fill_folding(
        &self,
        region: &mut HeldRegion<'_>,
        from: Origin<'_>,
        skip: u32,
        to: &mut Sink<'_>,
        folding: Option<&mut Folding>,
    ) -> Result<bool, Refusal> {
        let place = match from {
            Origin::Memory { pd, rkey, addr } => {
                Some((self.remote(pd, abi::mr::access::REMOTE_READ), (rkey, addr.wrapping_add(skip.into()))))
            }
            Origin::Request { sq, index, offset } => {
                let entry: SendBrief = sq.read(index);
                let count = if entry.inline == 0 { usize::from(entry.num_sge) } else { 0 };
                let elements = sq.elements(index, count);
                access::piece(elements, offset + skip)
                    .filter(|piece| piece.length as usize >= to.len())
                    .map(|Sge { addr, lkey, .. }| (Use { pd: self.pd, right: LOCAL_READ, qpn: 0 }, (lkey, addr)))
            }
            _ => None,
        };
        if let (Some(folding), Some((wanted, place))) = (folding, place)
            && region.read_folding(wanted, place, to, folding)?
        {
            return Ok(true);
        }
        self.fill(region, from, skip, to)?;
        Ok(false)
    }
}

/// Publishes a record of `len` bytes. Whole cells need no padding: the peer could read the bytes
/// behind the record before, too.
#[inline(always)]
fn push(tx: &mut shm::LaneTx, record: &[u8; RECORD_MAX], len: usize) -> Result<(), PushError> {
    match record.first_chunk::<CELL_DATA>() {
        Some(cell) if len <= CELL_DATA => tx.ring.push_cell(cell),
        _ => tx.ring.push(&record[..len.next_multiple_of(CELL_DATA)]),
    }
}

/// The result of sending one packet.
pub(crate) enum Sent {
    Yes,
    /// It is lost on a link of its path, and ports behind that link do not count it.
    Lost,
    /// The lane is full.
    Full,
    /// The payload could not be read.
    Refused(Refusal),
}

/// The address and port of the other end, for the fault rules, and what the path has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    pub(crate) gid: [u8; 16],
    pub(crate) port: u32,
    /// The longest payload that passes the links on the path.
    pub(crate) room: u32,
    /// The fault rules about links on the path, as bits.
    pub(crate) links: u64,
}

/// The lane or the flow over which a connection's packets are sent. `Far` is present only if fault
/// rules or a narrow link may apply.
pub(crate) enum Exit<'a> {
    Lane(&'a Arc<Lane>, MutexGuard<'a, Sender>, Path, Option<Far>),
    Wire(&'a Arc<Flow>, MutexGuard<'a, Batch>, Option<Far>),
}

impl Exit<'_> {
    /// Sends or queues the packets that were put in. Returns whether the peer must be woken.
    pub(crate) fn finish(self, qp: &Arc<Qp>, blocked: bool, sent: bool) -> bool {
        match self {
            Exit::Lane(lane, sender, ..) => {
                if blocked {
                    lane.block(qp, &qp.engine().waker);
                }
                drop(sender);
                sent && lane.peer_needs_wake()
            }
            Exit::Wire(flow, mut batch, _) => {
                if let Err(error) = batch.flush(&*flow.port.outlet) {
                    flow.complain(&error);
                }
                false
            }
        }
    }
}
