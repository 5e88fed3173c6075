//! The common part of all listeners: an id that receives requests, and a request with the id that
//! the agent has made for it. Principal types: [`Hearing`] and [`Asked`].

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ::cm::{Address, Event, EventKind};

use crate::cm::id::{Ends, Id};
use crate::error::Result;

/// Default number of requests that wait to be accepted.
pub(crate) const BACKLOG: i32 = 128;

/// An id that listens.
pub(crate) struct Hearing {
    id: Id,
    pub(crate) local: SocketAddr,
}

/// A request. Dropping it rejects it.
pub(crate) struct Asked {
    pub(crate) id: Id,
    pub(crate) ends: Ends,
    pub(crate) event: Event,
}

impl Hearing {
    /// Listens at an address, with an id that has all its other options.
    pub(crate) fn begin(id: Id, address: impl Into<Address>, backlog: i32) -> Result<Self> {
        let (channel, number) = id.command()?;
        channel.bind(number, &address.into())?;
        channel.listen(number, backlog)?;
        let local = id.ends()?.local;
        Ok(Self { id, local })
    }

    /// Waits for the next request.
    pub(crate) fn next(&self) -> Result<Asked> {
        loop {
            let event = self.id.expect(EventKind::CONNECT_REQUEST)?;
            if let Some(asked) = self.asked(event) {
                return Ok(asked);
            }
        }
    }

    /// Waits for the next request, at most for `limit`.
    pub(crate) fn next_for(&self, limit: Duration) -> Result<Option<Asked>> {
        let end = Instant::now().checked_add(limit);
        while let Some(event) = self.id.expect_until(EventKind::CONNECT_REQUEST, end)? {
            if let Some(asked) = self.asked(event) {
                return Ok(Some(asked));
            }
        }
        Ok(None)
    }

    /// [`Hearing::next`] for tasks.
    #[cfg(feature = "tokio")]
    pub(crate) async fn heard(&self) -> Result<Asked> {
        loop {
            let event = self.id.expected(EventKind::CONNECT_REQUEST).await?;
            if let Some(asked) = self.asked(event) {
                return Ok(asked);
            }
        }
    }

    /// The request of an event; `None` if the peer has given up already.
    fn asked(&self, event: Event) -> Option<Asked> {
        let id = self.id.requested(&event);
        let ends = id.ends().ok()?;
        Some(Asked { id, ends, event })
    }
}

impl Asked {
    /// Rejects the request, with up to 136 or 148 bytes for the peer, depending on the port space.
    pub(crate) fn reject(self, private_data: &[u8]) -> Result<()> {
        let (channel, number) = self.id.command()?;
        Ok(channel.reject(number, 0, private_data)?)
    }

    /// Writes the `Debug` form.
    pub(crate) fn show(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{name}({} to {})", self.ends.peer, self.ends.local)
    }
}
