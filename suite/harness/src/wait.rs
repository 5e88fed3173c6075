//! Waits for a condition with a limit. The suite lets time pass in no other way.
//!
//! It is not a timer: it checks a condition every few milliseconds until the condition holds or the
//! limit is over. The principal function is [`until`].

use std::time::{Duration, Instant};

const GLANCE: Duration = Duration::from_millis(5);

/// Checks `condition` until it returns a value. The error says what the caller waited for and for
/// how long.
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
