//! Requests to subnet administration that wait for their answers. Who asks is in
//! [`super::administration`]. Principal type: [`Questions`].

use std::collections::BTreeMap;

use crate::ids::PortId;

/// What a request is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Subject {
    /// The path of an id.
    Path(u32),
    /// A membership.
    Member(u32),
    /// Nothing waits for the answer.
    Nobody,
}

/// The requests that wait for an answer, and the memberships that were asked for.
#[derive(Debug, Default)]
pub(super) struct Questions {
    pub(super) last: u32,
    pub(super) waiting: BTreeMap<u32, Subject>,
    /// How many programs' memberships stand for one in the subnet: by port, group and kind.
    pub(super) memberships: BTreeMap<(PortId, [u8; 16], u8), u32>,
}
