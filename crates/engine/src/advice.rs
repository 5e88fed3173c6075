//! Advice about on-demand regions: prefetches their pages.
//!
//! Regions are never pinned, and every copy pages in the memory that it needs, so advice only saves
//! page faults. It is still checked as a device checks it (ibv_advise_mr(3)). Principal method:
//! [`Pd::advise`].

use abi::errno::Errno;
use abi::post::Sge;

use crate::access;
use crate::error::{Result, refusal};
use crate::pd::Pd;
use crate::usermem;

/// `IBV_ADVISE_MR_ADVICE_*`.
const PREFETCH: u32 = 0;
const PREFETCH_WRITE: u32 = 1;
const PREFETCH_NO_FAULT: u32 = 2;

/// `IBV_ADVISE_MR_FLAG_FLUSH`: return only after the prefetch, which is always so here.
const FLUSH: u32 = 1;

impl Pd {
    /// Prefetches the pages of these ranges.
    ///
    /// # Errors
    /// EOPNOTSUPP for unknown advice; EINVAL for unknown flags or no ranges; EFAULT for a range
    /// that is not in an on-demand region on this PD with the right, or not in this process.
    pub fn advise(&self, advice: u32, flags: u32, ranges: &[Sge]) -> Result<()> {
        self.core().check_process()?;
        if !matches!(advice, PREFETCH | PREFETCH_WRITE | PREFETCH_NO_FAULT) {
            return Err(refusal(Errno::EOPNOTSUPP, format!("advice {advice} is not known")));
        }
        if flags & !FLUSH != 0 || ranges.is_empty() {
            let count = ranges.len();
            return Err(refusal(Errno::EINVAL, format!("advice with flags {flags:#x} about {count} ranges")));
        }
        let write = advice == PREFETCH_WRITE;
        let fault = |why: &dyn std::fmt::Display| refusal(Errno::EFAULT, format!("advice: {why}"));
        let host = |sge: &Sge| access::on_demand(self.core(), self.handle(), sge, write).map_err(|why| fault(&why));
        let places = ranges.iter().map(host).collect::<Result<Vec<u64>>>()?;
        for (range, host) in ranges.iter().zip(places) {
            let len = u64::from(range.length);
            usermem::mappings::check(host, len, write).map_err(|why| fault(&why))?;
            if advice != PREFETCH_NO_FAULT {
                usermem::populate(host, len, write).map_err(|why| fault(&why))?;
            }
        }
        Ok(())
    }
}
