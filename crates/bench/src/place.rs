//! Where the load runs: a port, and an address of it. The principal type is [`Place`].

use softhca::Context;

/// The device's address to use.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The port.
    pub port: u8,
    /// The GID index. `None`: the first entry that is an address of the host.
    pub gid_index: Option<u8>,
}

impl Default for Place {
    fn default() -> Self {
        Self { port: 1, gid_index: None }
    }
}

/// The GID index of a socket's address in a port's table, if there is one.
pub(crate) fn gid_index(context: &Context, port: u8, address: std::net::IpAddr) -> Option<u8> {
    let wanted = softhca::Gid::from(address);
    let entries = context.gids(port).ok()?;
    entries.iter().find(|entry| entry.gid == wanted).and_then(|entry| u8::try_from(entry.index).ok())
}

impl Place {
    /// The place with the GID index of a socket's local address, at which the other side is
    /// reachable.
    #[must_use]
    pub fn of(self, context: &Context, address: std::net::IpAddr) -> Self {
        Self { gid_index: self.gid_index.or_else(|| gid_index(context, self.port, address)), ..self }
    }
}
