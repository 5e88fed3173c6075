//! The strict mode: finds what a program does wrong although it seems to work, as `softhca run --strict` asks for.
//!
//! Not an error path: what is refused or fails has its reason (`reason.rs`) and is not told again here. An engine has a [`Lint`] only
//! when [`VARIABLE`] is set as it is opened; everybody else pays for a look at an `Option` per call. Each check has a file: what it
//! looks at is the [`shadow`] state, what it finds is a [`finding::Finding`], and where they go is the [`report`].
//!
//! The hooks are called under the locks of queues. Here are locks of our own, which come after all others.

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

use crate::access::LOCAL_READ;
use crate::engine::Engine;
use crate::mr::{Extent, Matter};

/// The environment variable that asks for the strict mode: anything but `0`. What contains a `/` is the file to which findings go.
pub const VARIABLE: &str = "SOFTHCA_STRICT";

/// What one engine knows for its checks.
pub struct Lint {
    shadow: Mutex<Shadow>,
    report: Report,
}

impl Lint {
    /// That of engine number `engine`, where the environment asks for it.
    pub(crate) fn from_environment(engine: u32) -> Option<Box<Self>> {
        let value = std::env::var_os(VARIABLE).filter(|value| !value.is_empty() && value != "0")?;
        Some(Box::new(Self { shadow: Mutex::default(), report: Report::new(&value, engine) }))
    }

    /// Tells what was found; the call that is under way is where, unless the finding knows better.
    fn tell(&self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            self.report.add(finding);
        }
    }

    /// A destroyer has waited long for acknowledgements of events that the program has got.
    pub fn unacknowledged(&self, call: &'static str, missing: u32) {
        let what = format!("{call} waits: {missing} events of the object were got and not acknowledged");
        self.tell([Finding::here(Check::UnacknowledgedEvent, 0u32, what)]);
    }

    /// The device is being closed: what lives is left open. The last that is told.
    #[cold]
    pub(crate) fn closed(&self, engine: &Engine) {
        let is_region = |extent: &&Arc<Extent>| extent.access & LOCAL_READ != 0 && extent.matter == Matter::Memory;
        let (qps, mrs) = (engine.qps.all().len(), engine.extents.all().iter().filter(is_region).count());
        if qps + mrs > 0 {
            let what = format!("ibv_close_device: {qps} QPs and {mrs} MRs of the device are alive");
            self.tell([Finding::here(Check::LeftOpen, 0u32, what)]);
        }
        self.report.close();
    }
}
