//! Direct access: an initiator carries out requests on its peer's memory itself, if that is shared
//! memory and the peer has granted it.
//!
//! The initiator asks for a grant through the agent. The target checks whether it would carry out
//! such requests, and answers with a line of its grant table and two descriptors, which the
//! initiator maps. All of this is in `granting.rs`. `carry.rs` uses a grant, `grant_table.rs`
//! revokes it, and `backing.rs` finds memory that can be granted. `docs/decisions/0024-direct.md`
//! gives the reasons. Principal types: [`Direct`], of an engine, and [`DirectState`], of a QP.

pub(crate) mod at_once;
mod backing;
pub(crate) mod carry;
mod granting;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use abi::mr::access as right;
use parking_lot::Mutex;
use shm::Region;
use shm::share::Share;

use crate::grant_table::GrantLine;
use crate::usermem::guarded;

/// The environment variable that switches direct access off with the value 0.
pub const VARIABLE: &str = "SOFTHCA_DIRECT";

/// The most grants that one QP keeps mapped.
const REMOTE_GRANTS: usize = 8;
/// The most grants that an engine keeps mapped.
const MAPPED: usize = 256;
/// The most requests for grants that wait for the helper thread.
const ASKS: usize = 64;
/// Remote rights that a grant can have.
const RIGHTS: u32 = right::REMOTE_WRITE | right::REMOTE_READ | right::REMOTE_ATOMIC;

/// An engine's state of direct access.
pub(crate) struct Direct {
    on: bool,
    asks: crate::lock::Mutex<Vec<Ask>>,
    /// The grant tables of the peers.
    peers: Mutex<HashMap<u32, Weak<Region>>>,
    /// Each mapped grant ([`RemoteGrant`]) holds one reference, so this counts them.
    mapped: Arc<()>,
}

/// A grant to request from a peer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ask {
    /// The peer's engine.
    engine: u32,
    qpn: u32,
    dest: u32,
    key: u32,
}

/// A grant from a peer, mapped.
pub(crate) struct RemoteGrant {
    /// The granter's engine and QP: the grant is valid for this one connection.
    engine: u32,
    dest: u32,
    key: u32,
    rights: u32,
    addr: u64,
    grant_table: Arc<Region>,
    line: usize,
    number: u32,
    share: Share,
    _counted: Arc<()>,
}

/// A QP's state of direct access.
#[derive(Default)]
pub(crate) struct DirectState {
    /// Grants from the peer.
    pub(crate) remote_grants: Vec<RemoteGrant>,
    /// Keys that were used without a grant, and how often.
    uses: [(u32, u32); 4],
    next: usize,
    /// Asks that were made at the first use of a key.
    first_asks: u8,
    /// The number of checks to skip, because no check has found a grant so far.
    pause: u32,
    /// Requests that were carried out directly.
    pub(crate) carried: u64,
    /// Grants to the peer.
    given: Vec<GrantLine>,
}

impl DirectState {
    fn find(&self, key: u32, engine: u32, dest: u32) -> Option<usize> {
        self.remote_grants.iter().position(|grant| grant.key == key && grant.engine == engine && grant.dest == dest)
    }

    /// The QP stops serving, or serves differently: revokes all its grants to the peer.
    pub(crate) fn withdraw(&mut self) {
        if !self.given.is_empty() {
            GrantLine::shut_all(&std::mem::take(&mut self.given));
        }
    }

    /// The QP leaves its partition: revokes all its grants to the peer, and no longer uses those of
    /// the peer.
    pub(crate) fn leave(&mut self) {
        self.withdraw();
        self.remote_grants.clear();
    }

    /// The QP is reset or ends: revokes all its grants, and forgets those of the peer.
    pub(crate) fn forget(&mut self) {
        self.withdraw();
        *self = Self::default();
    }
}

impl Direct {
    pub(crate) fn new(simulated: bool) -> Self {
        let wanted = std::env::var_os(VARIABLE).is_none_or(|value| value != "0");
        Self {
            on: wanted && !simulated && guarded::exists(),
            asks: crate::lock::Mutex::default(),
            peers: Mutex::default(),
            mapped: Arc::default(),
        }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Whether the engine has a grant of a peer.
    fn knows(&self, engine: u32) -> bool {
        self.peers.lock().get(&engine).is_some_and(|grant_table| grant_table.strong_count() > 0)
    }

    pub(crate) fn has_asks(&self) -> bool {
        self.on && !self.asks.lock().is_empty()
    }
}
