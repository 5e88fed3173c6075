//! The memory of a stream: what [`iwarp::Stream`] asks of its queue pair. The keys, rights, copies
//! and receive queues are those of all queue pairs. Principal type: [`Access`].

use abi::mr::access as right;
use iwarp::rdmap::Atomic;
use iwarp::{Fault, Memory, Receive as Taken, Stag};
use protocol::Status;
use shm::{Sink, Source};
use wire::icrc::Folding;

use super::part::Receives;
use crate::access::{self, HeldRegion, Refusal};
use crate::cell::Origin;
use crate::memory::SendBrief;
use crate::qp::{Inner, Qp, Receive};

/// A queue pair while its stream works.
pub(super) struct Access<'a> {
    pub(super) qp: &'a Qp,
    pub(super) inner: &'a mut Inner,
    pub(super) receives: &'a mut Receives<Receive>,
}

/// How often an atomic with masks is tried.
const MASKED_TRIES: u32 = 1 << 16;

/// Carries out an atomic with masks, which the processor does not have. An exchange fails only if
/// the word has changed meanwhile. `None`: it always had.
fn masked(atomic: &Atomic, carry_out: impl Fn(access::Atomic) -> Result<u64, Refusal>) -> Result<Option<u64>, Refusal> {
    let mut before = carry_out(access::Atomic::FetchAdd(0))?;
    for _ in 0..MASKED_TRIES {
        let found = carry_out(access::Atomic::CompareSwap { compare: before, swap: atomic.apply(before) })?;
        if found == before {
            return Ok(Some(before));
        }
        before = found;
    }
    Ok(None)
}

/// Why a peer does not get what it asks for.
fn fault(refusal: &Refusal) -> Fault {
    match refusal {
        Refusal::NoKey { .. } | Refusal::Memory { .. } | Refusal::Keyless(_) => Fault::Stag,
        Refusal::Domain { .. } | Refusal::Queue { .. } => Fault::Stream,
        Refusal::Range { .. } => Fault::Bounds,
        Refusal::Right { .. } => Fault::Access,
    }
}

impl Access<'_> {
    fn brief(&self, work: u64) -> (u32, SendBrief) {
        let slot = work as u32;
        (slot, self.inner.queues.sq.read(slot))
    }

    fn region(&self) -> HeldRegion<'_> {
        HeldRegion::new(self.qp.engine())
    }

    /// The program's own buffer is not there.
    #[cold]
    fn refused_locally(&self, slot: u32, refusal: &Refusal) -> Fault {
        self.qp.explain(self.inner, slot, Status::LocProtErr, refusal, refusal.advice());
        Fault::Local
    }

    /// The peer may not do this.
    #[cold]
    fn refused(&self, what: &str, refusal: &Refusal) -> Fault {
        self.qp.happened(format_args!("refused a peer's {what}: {refusal}"));
        fault(refusal)
    }

    /// Whether the queue pair allows the peer this kind of access.
    fn allows(&self, right: u32) -> Result<(), Fault> {
        let is_allowed = self.inner.attributes.qp_access_flags & right != 0 && self.inner.state.serves();
        if is_allowed { Ok(()) } else { Err(Fault::Access) }
    }
}

impl Memory for Access<'_> {
    fn gather(&mut self, work: u64, offset: u32, out: &mut [u8], folding: Option<&mut Folding>) -> Result<bool, Fault> {
        let (slot, _) = self.brief(work);
        let from = Origin::Request { sq: &self.inner.queues.sq, index: slot, offset };
        let gathered = self.qp.fill_folding(&mut self.region(), from, 0, &mut Sink::from(out), folding);
        gathered.map_err(|refusal| self.refused_locally(slot, &refusal))
    }

    fn scatter(&mut self, work: u64, offset: u32, data: &[u8]) -> Result<(), Fault> {
        let (slot, entry) = self.brief(work);
        let elements = self.inner.queues.sq.elements(slot, usize::from(entry.num_sge));
        access::scatter(&mut self.region(), self.qp.pd, elements, offset, Source::from(data))
            .map_err(|refusal| self.refused_locally(slot, &refusal))
    }

    fn execute(&mut self, _work: u64) -> Result<(), Fault> {
        let op = self.inner.link.stream.as_mut().and_then(|part| part.locals.pop_front());
        let done = op.map_or(Ok(()), |op| self.qp.execute_local(self.inner, &op));
        done.map_err(|_| Fault::Invalidate)
    }

    fn take_receive(&mut self) -> Option<Taken> {
        if !self.qp.take_receive(self.inner) {
            self.qp.happened(format_args!("has no receive request for a peer's SEND, and iWARP does not try again"));
            return None;
        }
        let receive = self.inner.incoming.receive.take()?;
        let len = receive.length;
        Some(Taken { id: self.receives.add(receive), len })
    }

    fn fill(&mut self, receive: u64, offset: u32, data: &[u8]) -> Result<(), Fault> {
        let Some(receive) = self.receives.get(receive) else { return Err(Fault::Local) };
        let mut region = self.region();
        let filled = self.qp.scatter(self.inner, receive, offset, Source::from(data), &mut region);
        region.release();
        filled.map_err(|refusal| {
            let why = format_args!("the receive buffer cannot take the message: {refusal}");
            self.qp.failed(receive.wr_id, Status::LocProtErr, &why, refusal.advice());
            Fault::Local
        })
    }

    fn write(&mut self, stag: Stag, to: u64, data: &[u8]) -> Result<(), Fault> {
        self.allows(right::REMOTE_WRITE)?;
        let wanted = self.qp.remote(self.qp.pd, right::REMOTE_WRITE);
        self.region()
            .write(wanted, (stag.0, to), Source::from(data))
            .map_err(|refusal| self.refused("RDMA WRITE", &refusal))
    }

    fn readable(&mut self, stag: Stag, to: u64, len: u32) -> Result<(), Fault> {
        self.allows(right::REMOTE_READ)?;
        let wanted = self.qp.remote(self.qp.pd, right::REMOTE_READ);
        access::check_remote(self.qp.engine(), wanted, stag.0, to, len.into())
            .map_err(|refusal| self.refused("RDMA READ", &refusal))
    }

    fn read(&mut self, stag: Stag, to: u64, out: &mut [u8], folding: Option<&mut Folding>) -> Result<bool, Fault> {
        let from = Origin::Memory { pd: self.qp.pd, rkey: stag.0, addr: to };
        let read = self.qp.fill_folding(&mut self.region(), from, 0, &mut Sink::from(out), folding);
        read.map_err(|refusal| self.refused("RDMA READ", &refusal))
    }

    fn atomic(&mut self, stag: Stag, to: u64, atomic: &Atomic) -> Result<u64, Fault> {
        self.allows(right::REMOTE_ATOMIC)?;
        let wanted = self.qp.remote(self.qp.pd, right::REMOTE_ATOMIC);
        if !to.is_multiple_of(8) {
            return Err(Fault::Unsupported);
        }
        let qp = self.qp;
        let carry_out = |what| access::atomic(qp.engine(), wanted, (stag.0, to), what);
        let done = match *atomic {
            Atomic::FetchAdd { add, boundaries: 0 } => carry_out(access::Atomic::FetchAdd(add)),
            Atomic::CompareSwap { swap, swap_mask: u64::MAX, compare, compare_mask: u64::MAX } => {
                carry_out(access::Atomic::CompareSwap { compare, swap })
            }
            _ => match masked(atomic, carry_out) {
                Ok(None) => return Err(Fault::Unsupported),
                Ok(Some(before)) => Ok(before),
                Err(refusal) => Err(refusal),
            },
        };
        done.map_err(|refusal| self.refused("atomic", &refusal))
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Fault> {
        self.qp.invalidate(stag.0).map_err(|why| {
            self.qp.happened(format_args!("could not invalidate {:#x} for a peer: {why}", stag.0));
            Fault::Invalidate
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn an_atomic_with_masks_begins_again_if_the_word_changes() {
        let (word, others) = (Cell::new(0x00ff_u64), Cell::new(2));
        let carry_out = |what| {
            let before = word.get();
            match what {
                access::Atomic::FetchAdd(add) => word.set(before.wrapping_add(add)),
                access::Atomic::CompareSwap { compare, swap } if compare == before => word.set(swap),
                _ => {}
            }
            // Another thread writes behind two of the accesses.
            if others.get() > 0 {
                others.set(others.get() - 1);
                word.set(word.get() + 0x1_0000);
            }
            Ok(before)
        };
        // Bit 7 is a boundary, so 0xff + 1 does not reach bit 8.
        let add = Atomic::FetchAdd { add: 1, boundaries: 0x80 };
        let before = masked(&add, carry_out).ok().flatten();
        assert_eq!((before, word.get()), (Some(0x2_00ff), 0x2_0000));
    }
}
