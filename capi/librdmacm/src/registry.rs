//! The cookies that events carry: which id or membership each cookie names. This process chose the
//! numbers. A number that is not in the table names nothing, whatever the agent says.
//!
//! An id made by a request has no cookie until it is accepted; until then, its handle names it. The
//! principal type is [`Named`].

use crate::cma::CmId;
use crate::membership::Membership;
use crate::object::{cookie, from_cookie};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The object that a cookie names.
#[derive(Clone, Copy)]
pub(crate) enum Named {
    /// An id.
    Id(*mut CmId),
    /// A membership in a group.
    Group(*mut Membership),
}

/// The table holds pointers as numbers, so that threads may share it.
#[derive(Default)]
struct Table {
    ids: HashMap<u64, u64>,
    groups: HashMap<u64, u64>,
    handles: HashMap<u32, u64>,
    live: HashSet<u64>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A cookie that was never used before.
pub(crate) fn fresh() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Lets `number` name the id from now on.
pub(crate) fn name_id(number: u64, id: *mut CmId) {
    let mut table = TABLE.lock();
    table.ids.insert(number, cookie(id));
    table.live.insert(cookie(id));
}

/// Whether `id` is a live id. (Some programs go on with an id that they destroyed after a refused
/// connection.)
pub(crate) fn is_live(id: *mut CmId) -> bool {
    TABLE.lock().live.contains(&cookie(id))
}

/// The first id, by age, for which `holds` is true. No id is freed meanwhile; `holds` must not call
/// this module.
pub(crate) fn find_id(mut holds: impl FnMut(*mut CmId) -> bool) -> Option<*mut CmId> {
    let table = TABLE.lock();
    let mut ids: Vec<(u64, u64)> = table.ids.iter().map(|(number, id)| (*number, *id)).collect();
    ids.sort_unstable();
    ids.into_iter().map(|(_, id)| from_cookie(id)).find(|id| holds(*id))
}

/// Lets `number` name the membership from now on.
pub(crate) fn name_group(number: u64, group: *mut Membership) {
    TABLE.lock().groups.insert(number, cookie(group));
}

/// Whether `group` is still a membership.
pub(crate) fn is_joined(group: *mut Membership) -> bool {
    TABLE.lock().groups.values().any(|known| *known == cookie(group))
}

/// Lets the handle name the id of a request.
pub(crate) fn name_handle(handle: u32, id: *mut CmId) {
    TABLE.lock().handles.insert(handle, cookie(id));
}

/// The object that `number` names.
pub(crate) fn find(number: u64) -> Option<Named> {
    let table = TABLE.lock();
    let id = table.ids.get(&number).map(|id| Named::Id(from_cookie(*id)));
    id.or_else(|| table.groups.get(&number).map(|group| Named::Group(from_cookie(*group))))
}

/// The id of a request that has this handle.
pub(crate) fn find_handle(handle: u32) -> Option<*mut CmId> {
    TABLE.lock().handles.get(&handle).map(|id| from_cookie(*id))
}

/// Forgets a destroyed id.
pub(crate) fn forget_id(number: u64, handle: u32) {
    let mut table = TABLE.lock();
    if let Some(id) = table.ids.remove(&number) {
        table.live.remove(&id);
    }
    table.handles.remove(&handle);
}

/// Forgets a membership that has ended.
pub(crate) fn forget_group(number: u64) {
    TABLE.lock().groups.remove(&number);
}
