//! A connection whose service is chosen when the program runs. Principal types: [`Line`], which is
//! a connection of either service, and [`Service`].

use clap::ValueEnum;
use ipoib::Connect;
use softhca::cm::Connection;
use softhca::{Connected, Cq, Part, Pd, QpBuilder, Rejected, Result};

/// Makes queue pairs of one service: `Pd::reliable` or `Pd::unreliable`.
pub(crate) type Build<S> = for<'a> fn(&'a Pd, &'a Cq) -> QpBuilder<'a, S>;

/// The service of the connections of connected mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Service {
    /// Reliable connections, as Linux has them
    Rc,
    /// Unreliable connections: lost packets are not sent again
    Uc,
}

impl From<Service> for Connect {
    fn from(service: Service) -> Self {
        match service {
            Service::Rc => Self::Reliable,
            Service::Uc => Self::Unreliable,
        }
    }
}

/// A connection.
pub(crate) trait Line: Send {
    /// Posts a send. Its completion comes with `id`.
    fn send(&self, id: u64, part: Part) -> Result<(), Rejected>;
    /// The queue pair of this side.
    fn qpn(&self) -> u32;
    fn is_closed(&self) -> bool;
    fn disconnect(&self) -> Result<()>;
    /// What the peer has said of itself.
    fn private_data(&self) -> &[u8];
}

impl<S: Connected + 'static> Line for Connection<S> {
    fn send(&self, id: u64, part: Part) -> Result<(), Rejected> {
        (**self).send(id, part)
    }

    fn qpn(&self) -> u32 {
        self.endpoint().qpn
    }

    fn is_closed(&self) -> bool {
        Connection::is_closed(self)
    }

    fn disconnect(&self) -> Result<()> {
        Connection::disconnect(self)
    }

    fn private_data(&self) -> &[u8] {
        Connection::private_data(self)
    }
}
