//! Waiting for a condition with a limit: the only way in which the suite lets time pass.
//!
//! It is not a timer: a condition is looked at again every few milliseconds until it holds or the limit is over.

use std::time::{Duration, Instant};

const GLANCE: Duration = Duration::from_millis(5);

/// Looks at `condition` until it gives a value; the error says what was waited for and for how long.
pub fn until<T>(limit: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> Result<T, String> {
    let started = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if started.elapsed() > limit {
            return Err(format!("waited {} s for {what}", limit.as_secs()));
        }
        std::thread::sleep(GLANCE);
    }
}
