//! ATOMIC WRITE and FLUSH, receiving side: requests of one packet, whose answer is that of an RDMA
//! READ of zero bytes. They are limited in number and remembered like READs and atomics. A
//! repetition gets its answer again without being executed. The answers are in [`super::answers`].
//! Adds to [`Responder`]. IBA annex A19.

use crate::operation::MAX_MESSAGE;
use crate::reason::Fault;
use crate::responder::{Access, Open, Responder};
use crate::step::Step;
use wire::feth::{placement, selectivity};
use wire::{Feth, Headers, Reth};

/// Bytes of an ATOMIC WRITE.
const WORD: u32 = 8;

impl Responder {
    pub(crate) fn atomic_write(&self, headers: &Headers, payload: u32) -> Result<(Step, Open), Fault> {
        self.check_alone(headers)?;
        self.check_access(headers.opcode, Access::REMOTE_WRITE)?;
        self.check_room()?;
        let Reth { va, rkey, len } = headers.reth;
        if payload != WORD || len != WORD {
            return Err(self.length(headers.opcode, payload));
        }
        if !va.is_multiple_of(u64::from(WORD)) {
            return Err(Fault::Misaligned { va });
        }
        Ok((Step::AtomicWrite { va, rkey }, Open::None))
    }

    pub(crate) fn flush(&self, headers: &Headers, payload: u32) -> Result<(Step, Open), Fault> {
        self.check_alone(headers)?;
        let access = Access::for_flush(headers.feth)?;
        self.check_access(headers.opcode, access)?;
        self.check_room()?;
        let Reth { va, rkey, len } = headers.reth;
        if payload != 0 || len > MAX_MESSAGE {
            return Err(self.length(headers.opcode, payload));
        }
        let region = headers.feth.selectivity == selectivity::REGION;
        Ok((Step::Flush { va, rkey, len, region, access }, Open::None))
    }
}

impl Access {
    /// The rights that a FLUSH needs, of the queue pair and of the memory.
    ///
    /// # Errors
    /// The FLUSH has an unknown placement or selectivity.
    pub fn for_flush(feth: Feth) -> Result<Access, Fault> {
        let known = matches!(feth.selectivity, selectivity::RANGE | selectivity::REGION);
        match feth.placement {
            placement::GLOBAL if known => Ok(Access::FLUSH_GLOBAL),
            placement::PERSISTENT if known => Ok(Access::FLUSH_PERSISTENT),
            both if known && both == placement::GLOBAL | placement::PERSISTENT => {
                Ok(Access(Access::FLUSH_GLOBAL.0 | Access::FLUSH_PERSISTENT.0))
            }
            _ => Err(Fault::Placement { feth }),
        }
    }
}
