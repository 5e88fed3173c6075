//! Carries out a request while it is posted. If nothing is queued before a request that a grant
//! covers, the request needs neither an entry in queue memory nor a place in the requester. Adds to
//! [`Qp`]. Principal method: [`Qp::carry_one`].

use abi::post::Sge;
use protocol::{SendOp, Time};

use super::carry::{Carried, LocalData};
use crate::access::{HeldRegion, Refusal};
use crate::qp::{Inner, Qp, Route};
use crate::special::Special;

/// The outcome.
pub(crate) enum AtOnce {
    /// The request is carried out.
    Done,
    /// The request is to be queued.
    Unfit,
    /// The atomic has been carried out, but its response cannot be stored. The request is to be
    /// queued, and to fail ([`Qp::fail_unanswered`]).
    Unanswered(Refusal),
}

impl Qp {
    /// Carries out a request for which the requester is idle, if a grant covers it.
    #[inline]
    pub(crate) fn carry_one<I>(&self, inner: &mut Inner, op: &SendOp, data: LocalData<'_, I>) -> AtOnce
    where
        I: Iterator<Item = Sge> + Clone,
    {
        let is_special = self.special(inner).has_beside(Special::default());
        let peer = match &inner.link.route {
            Route::Lane(lane) if !is_special && !lane.is_dead() => lane.peer,
            _ => return AtOnce::Unfit,
        };
        let Some(index) = inner.direct.find(op.rkey, peer, inner.attributes.dest_qp_num) else {
            return AtOnce::Unfit;
        };
        let mut region = HeldRegion::of_qp(self.engine(), self, std::mem::take(&mut inner.queues.source));
        let carried = self.carry(op, &inner.direct.remote_grants[index], data, &mut region);
        inner.queues.source = region.into_kept();
        match carried {
            Carried::Done => {
                self.count_carried(inner, op);
                AtOnce::Done
            }
            Carried::Unanswered(refusal) => AtOnce::Unanswered(refusal),
            // The pump finds out that the grant is shut.
            Carried::Unfit | Carried::Shut => AtOnce::Unfit,
        }
    }

    /// Ends the atomic that was queued after [`AtOnce::Unanswered`].
    #[cold]
    pub(crate) fn fail_unanswered(&self, inner: &mut Inner, refusal: &Refusal) {
        // Nothing else is queued, so this is the atomic. No timer of its connection runs.
        if let Some(op) = inner.requester.poll_direct(Time(0)) {
            self.fail_direct(inner, op.slot, refusal);
        }
    }
}
