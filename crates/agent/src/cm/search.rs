//! A neighbour that is being looked for, while the host finds its address. Principal type: [`Search`].

use std::net::IpAddr;

use protocol::Time;

use super::locals::Attachment;

/// A neighbour that is being looked for.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) found: Found,
    /// Who is asked for, by which interface.
    pub(super) hop: IpAddr,
    pub(super) ifindex: u32,
    pub(super) deadline: Time,
    pub(super) wait: u64,
    pub(super) probed: bool,
}

/// What has been found out about an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) source: IpAddr,
    pub(super) attachment: Attachment,
    pub(super) target: [u8; 16],
}
