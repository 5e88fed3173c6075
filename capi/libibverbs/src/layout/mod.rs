//! The structs of `verbs.h` as Rust sees them: the same bytes at the same offsets. Where a struct
//! has grown, the layout is that of rdma-core v64. It is compatible with v44, because structs grow
//! away from the fields that older programs read.
//!
//! The `mirror!` macro writes the offset of every field beside it and asserts it at compile time.
//! `tests` compares the same offsets with the measured facts in `layout-v44.txt` and
//! `layout-v64.txt`. Nothing here has behaviour.

mod attributes;
mod base;
mod device;
mod objects;
mod queries;
#[cfg(test)]
pub(crate) mod tests;
mod work;

pub(crate) use attributes::*;
pub(crate) use base::*;
pub(crate) use device::*;
pub(crate) use objects::*;
pub(crate) use queries::*;
pub(crate) use work::*;
