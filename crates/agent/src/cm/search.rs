//! The search for a neighbour, while the host finds its address. The principal type is [`Search`].

use std::net::IpAddr;

use protocol::Time;

use super::locals::Attachment;

/// A neighbour for which the agent searches.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) found: Found,
    /// The neighbour's address, and the interface that leads to it.
    pub(super) hop: IpAddr,
    pub(super) ifindex: u32,
    pub(super) deadline: Time,
    pub(super) wait: u64,
    pub(super) probed: bool,
}

/// The result for an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) source: IpAddr,
    pub(super) attachment: Attachment,
    pub(super) target: [u8; 16],
}
