//! The strict mode, which `softhca run --strict` requests: it finds mistakes of a program that
//! seems to work.
//!
//! It is not an error path. Refused and failed requests have a reason (`reason.rs`) and are not
//! reported here again. An engine has a [`Lint`] only if [`VARIABLE`] is set when it is opened.
//! Otherwise each call costs a check of an `Option`. Each check has a file: its input is the
//! [`shadow`] state, its output is a [`finding::Finding`], and the [`report`] collects the
//! findings. Principal type: [`Lint`].
//!
//! The hooks are called with the locks of queues held. The lint's own locks come after all others.

mod attributes;
mod buffers;
mod changed;
mod completions;
mod conduct;
mod finding;
mod memory;
mod receives;
mod report;
mod sends;
mod shadow;
mod site;

use std::sync::Arc;

use parking_lot::Mutex;

pub use finding::Check;
pub use report::{INCOMPLETE, Told, read, watched};

use finding::Finding;
use report::Report;
use shadow::Shadow;

use crate::extent::{Extent, MemoryKind};
use crate::table::Table;

/// The environment variable that switches the strict mode on, unless it is `0`. A value with a `/`
/// is the path of the findings file.
pub const VARIABLE: &str = "SOFTHCA_STRICT";

/// What the checks know about one engine.
pub struct Lint {
    shadow: Mutex<Shadow>,
    report: Report,
}

impl Lint {
    /// The checks of engine number `engine`, if the environment requests them.
    pub(crate) fn from_environment(engine: u32) -> Option<Box<Self>> {
        let value = std::env::var_os(VARIABLE).filter(|value| !value.is_empty() && value != "0")?;
        Some(Box::new(Self { shadow: Mutex::default(), report: Report::new(&value, engine) }))
    }

    /// Reports findings. The place is the current call, unless the finding has its own.
    fn tell(&self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            self.report.add(finding);
        }
    }

    /// A destroy call has waited long for the program to acknowledge events.
    pub fn unacknowledged(&self, call: &'static str, missing: u32) {
        let what = format!("{call} waits: {missing} events of the object were got and not acknowledged");
        self.tell([Finding::here(Check::UnacknowledgedEvent, 0u32, what)]);
    }

    /// The device is being closed: reports objects that still exist. This is the last report.
    #[cold]
    pub(crate) fn closed(&self, qps: usize, extents: &Table<Extent>) {
        let is_region = |extent: &&Arc<Extent>| !extent.is_window() && extent.memory_kind == MemoryKind::Program;
        let mrs = extents.all().iter().filter(is_region).count();
        if qps + mrs > 0 {
            let what = format!("ibv_close_device: {qps} QPs and {mrs} MRs of the device are alive");
            self.tell([Finding::here(Check::LeftOpen, 0u32, what)]);
        }
        self.report.close();
    }
}
