//! Async events for tasks: [`Context::next_event`].

use std::os::fd::AsFd;

use crate::aio::driver::{failed, watched};
use crate::context::Context;
use crate::error::Result;
use crate::event::Event;

impl Context {
    /// Waits for the next async event, and lets other tasks run meanwhile (feature `tokio`). No
    /// event is lost when the future is dropped.
    ///
    /// # Errors
    /// EINVAL outside of a runtime; else the errors of [`Context::poll_event`].
    ///
    /// # Panics
    /// In a runtime without `enable_io`.
    pub async fn next_event(&self) -> Result<Event> {
        if let Some(event) = self.poll_event()? {
            return Ok(event);
        }
        let file = watched(self.as_fd())?;
        loop {
            let mut ready = file.readable().await.map_err(failed)?;
            if let Some(event) = self.poll_event()? {
                return Ok(event);
            }
            ready.clear_ready();
        }
    }
}
