//! Where the entries of a CQ lie: in its queue memory, as the agent describes it, or in memory of a
//! parent domain's allocator. Principal function: [`place`].

use std::sync::Arc;

use abi::errno::Errno;
use abi::queue::CqOut;

use crate::error::{Result, refusal};
use crate::memory::{Cqe, Layout, View, word};
use crate::parent::Purpose;
use crate::pd::Pd;

/// The view and the offset of a CQ's entries.
pub(super) fn place(domain: Option<&Arc<Pd>>, view: &View, capacity: u32) -> Result<(View, usize)> {
    let (view, layout) = match domain {
        Some(pd) => pd.place_queue(view, layout(capacity), Purpose::Cq)?,
        None => (view.clone(), layout(capacity)),
    };
    Ok((view, layout.offset as usize))
}

pub(super) fn layout(capacity: u32) -> Layout {
    Layout { offset: word::ENTRIES as u32, count: capacity, stride: size_of::<Cqe>() as u32 }
}

pub(super) fn check(out: &CqOut, view: &View) -> Result<u32> {
    let bytes = u64::from(out.cqe_count) * size_of::<Cqe>() as u64 + word::ENTRIES as u64;
    if out.cqe_count == 0 || out.cqe_size as usize != size_of::<Cqe>() || bytes > view.len() as u64 {
        return Err(refusal(Errno::EIO, "the agent described a CQ that does not fit its memory"));
    }
    Ok(out.cqe_count)
}
