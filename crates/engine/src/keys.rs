//! The tables of keys: the memory behind each key, the memory windows, and the grants of direct
//! access. Principal type: [`Keys`].

use std::collections::HashSet;
use std::sync::OnceLock;

use parking_lot::Mutex;

use crate::extent::Extent;
use crate::grant_table::GrantTable;
use crate::table::Table;
use crate::window::MemoryWindow;

/// The keys of an engine.
pub(crate) struct Keys {
    /// The memory behind each key, by the key's index.
    pub(crate) extents: Table<Extent>,
    /// Memory windows, bound or not, by the index of their keys.
    pub(crate) windows: Table<MemoryWindow>,
    /// The grants to peers; made with the first grant.
    pub(crate) grants: OnceLock<GrantTable>,
    /// Engines that had a lane and have ended. Their numbers are not used again; the board still
    /// names them as owners of their QPNs for a while.
    ended: Mutex<HashSet<u32>>,
}

impl Keys {
    pub(crate) fn new() -> Self {
        Self { extents: Table::new(), windows: Table::new(), grants: OnceLock::new(), ended: Mutex::default() }
    }

    /// A key becomes invalid: revokes its grants. When this returns, no grantee uses them.
    pub(crate) fn withdraw_grants(&self, key: u32) {
        if let Some(grants) = self.grants.get() {
            grants.withdraw(key, |engine| self.has_ended(engine));
        }
    }

    /// An engine that had a lane has ended, so it uses no grant any more.
    pub(crate) fn engine_ended(&self, engine: u32) {
        self.ended.lock().insert(engine);
    }

    /// Whether `engine` had a lane and has ended.
    pub(crate) fn has_ended(&self, engine: u32) -> bool {
        self.ended.lock().contains(&engine)
    }
}
