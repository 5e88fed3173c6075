//! The log of a program that uses this library. It writes to standard error if `SOFTHCA_LOG` is
//! set, and is silent otherwise. An invalid filter is reported in one line, and the program
//! continues without a log.

use std::sync::Once;

use engine::log::{LogOutput, VARIABLE, checked, refused};
use engine::reason::say;
use tracing_subscriber::EnvFilter;

/// Starts the log once, if the environment asks for it.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Some(wanted) = std::env::var_os(VARIABLE).filter(|wanted| !wanted.is_empty()) else { return };
        let filter = checked(&wanted).and_then(|text| EnvFilter::try_new(text).map_err(|why| refused(&wanted, &why)));
        match filter {
            // If standard error has no room, log lines are lost, because an error message there
            // would end the program. A program that has its own subscriber keeps it.
            Ok(filter) => {
                let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| LogOutput);
                let _ = log.log_internal_errors(false).try_init();
            }
            Err(why) => say(format_args!("{why}; nothing is logged")),
        }
    });
}
