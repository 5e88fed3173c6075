//! A port: one source address and UDP port of this engine, and the packets that will be sent
//! through it.
//!
//! A QP's number selects one of a few ports for each address. So threads with QPs of their own
//! often use different ports, and the network sees more than one flow. Principal type: [`Port`].

use std::io;
use std::sync::Arc;

use crate::engine::Engine;
use crate::lock::Mutex;
use crate::net::batch::Batch;
use crate::network::Outlet;

/// The number of ports per address.
pub(crate) const PORTS_PER_ADDRESS: u32 = 4;
/// The first source port of RoCEv2.
const FIRST: u16 = 0xc000;

/// A source address and port.
pub(crate) struct Port {
    pub(crate) outlet: Arc<dyn Outlet>,
    pub(crate) batch: Mutex<Batch>,
}

impl Engine {
    /// The port for an address of this host.
    pub(crate) fn net_port(&self, source: [u8; 16], ifindex: u32, port_index: u32) -> io::Result<Arc<Port>> {
        let mut ports = self.net.ports.lock();
        if let Some(port) = ports.get(&(source, port_index)) {
            return Ok(Arc::clone(port));
        }
        // Spread the port numbers, so that engines that start together do not all try the same
        // ones.
        let spread = self.number().wrapping_mul(2_654_435_761).wrapping_add(port_index.wrapping_mul(7919)) >> 4;
        let outlet = self.net.network.open(source, ifindex, FIRST | (spread as u16 & 0x3fff))?;
        let port = Arc::new(Port {
            outlet,
            batch: Mutex::new(Batch::with_capture_hook(Arc::clone(&self.net.capture_hook), source)),
        });
        ports.insert((source, port_index), Arc::clone(&port));
        Ok(port)
    }
}
