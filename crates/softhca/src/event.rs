//! Async events: what happens to a queue, a port or the device without a completion. Principal
//! type: [`Event`].

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use abi::errno::Errno;
use abi::event::EventType;

use crate::about::About;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::wait::readable;

/// An async event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of event.
    pub kind: EventType,
    /// The object that the event is about.
    pub about: About,
}

impl Context {
    /// Returns the next async event, if there is one.
    ///
    /// # Errors
    /// EIO when the device is gone and all events have been read.
    pub fn poll_event(&self) -> Result<Option<Event>> {
        loop {
            let event = match self.inner.engine.async_event() {
                Ok(event) => event,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EIO) => return Err(Error::refused(Errno::EIO, "the device is gone, with its agent")),
                Err(errno) => return Err(errno.into()),
            };
            let Some(kind) = EventType::ALL.into_iter().find(|kind| *kind as u32 == event.kind) else { continue };
            let port = matches!(
                kind,
                EventType::PortActive
                    | EventType::PortErr
                    | EventType::LidChange
                    | EventType::PkeyChange
                    | EventType::SmChange
                    | EventType::ClientReregister
                    | EventType::GidChange
            );
            let about = match self.inner.named.lock().get(&event.element) {
                _ if port => About::Port(event.element as u8),
                Some(about) => *about,
                None if kind == EventType::DeviceFatal => About::Device,
                // The event of an object that is gone.
                None => continue,
            };
            return Ok(Some(Event { kind, about }));
        }
    }

    /// Waits for the next async event.
    ///
    /// # Errors
    /// The errors of [`Context::poll_event`].
    pub fn wait_event(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.wait_event_for(Duration::MAX)? {
                return Ok(event);
            }
        }
    }

    /// Waits for the next async event, at most for `limit`.
    ///
    /// # Errors
    /// The errors of [`Context::poll_event`].
    pub fn wait_event_for(&self, limit: Duration) -> Result<Option<Event>> {
        let end = Instant::now().checked_add(limit);
        loop {
            if let Some(event) = self.poll_event()? {
                return Ok(Some(event));
            }
            if !readable(self.as_fd(), end)? {
                return self.poll_event();
            }
        }
    }
}

/// Readable when there is an async event.
impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.engine.async_fd()
    }
}
