//! The log of a program that uses this library: silent unless `SOFTHCA_LOG` is set, then to standard error.

use std::sync::Once;
use tracing_subscriber::EnvFilter;

/// Starts the log, once, when the environment asks for it.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Some(filter) = std::env::var("SOFTHCA_LOG").ok().filter(|filter| !filter.is_empty()) else { return };
        // A program that has a subscriber of its own keeps it.
        let _ =
            tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_writer(std::io::stderr).try_init();
    });
}
