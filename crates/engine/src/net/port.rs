//! A port: one source address and UDP port of this engine, and the packets that will be sent
//! through it.
//!
//! A QP's number selects one of a few ports for each address. So threads with QPs of their own
//! often use different ports, and the network sees more than one flow. Principal type: [`Port`].

use std::sync::Arc;

use crate::lock::Mutex;
use crate::net::batch::Batch;
use crate::network::Outlet;

/// The number of ports per address.
pub(crate) const PORTS_PER_ADDRESS: u32 = 4;
/// The first source port of RoCEv2.
pub(crate) const FIRST: u16 = 0xc000;

/// A source address and port.
pub(crate) struct Port {
    pub(crate) outlet: Arc<dyn Outlet>,
    pub(crate) batch: Mutex<Batch>,
}
