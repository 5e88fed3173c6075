//! The table of live objects: the address and kind of each C struct that this library has handed
//! out and not taken back. A call looks its address up here first. So a destroyed object leads to
//! an errno and not to a read of freed memory. Posting and polling skip this check to save its
//! cost. What an object contains is in [`crate::object`].
//!
//! The principal type is [`Ending`].

use crate::entry::{Outcome, Refusal, refuse};
use std::any::TypeId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// What the table stores for an address.
struct Entry {
    kind: TypeId,
    /// A thread is destroying it.
    ending: bool,
}

type Table = BTreeMap<usize, Entry>;

/// A std mutex. A lock of `parking_lot` may hand itself over to a waiting thread, and in a child
/// process that thread does not exist.
static LIVE: Mutex<Table> = Mutex::new(BTreeMap::new());

fn table() -> MutexGuard<'static, Table> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kind of object.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// The type of the whole object.
    pub(crate) id: TypeId,
    /// Its name in refusals.
    pub(crate) name: &'static str,
    /// Whether a descriptor identifies it instead of a handle. A missing object is then EBADF and
    /// not ENOENT, as with a kernel.
    pub(crate) is_descriptor: bool,
}

impl Kind {
    /// Refuses a missing object.
    pub(crate) fn missing(self, why: std::fmt::Arguments<'_>) -> Refusal {
        if self.is_descriptor { refuse!(EBADF, "{why}") } else { refuse!(ENOENT, "{why}") }
    }
}

/// The result of looking an address up, for a call that expects a certain kind.
enum Found {
    Nothing,
    Another,
    Live,
    Ending,
}

impl Found {
    fn of(entry: Option<&Entry>, kind: Kind) -> Self {
        match entry {
            None => Self::Nothing,
            Some(entry) if entry.kind != kind.id => Self::Another,
            Some(Entry { ending: true, .. }) => Self::Ending,
            Some(_) => Self::Live,
        }
    }

    fn refusal(&self, address: usize, kind: Kind) -> Refusal {
        let name = kind.name;
        match self {
            Self::Nothing => {
                kind.missing(format_args!("there is no {name} at {address:#x}: it was destroyed or is not valid"))
            }
            Self::Ending => refuse!(EBUSY, "another thread is destroying the {name} at {address:#x}"),
            Self::Another | Self::Live => refuse!(EINVAL, "the object at {address:#x} is not a {name}"),
        }
    }
}

/// Adds a new object.
pub(crate) fn enter(address: usize, kind: Kind) {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // A child process must not inherit the table while another thread of the parent changes it.
        // SAFETY: the functions stay where they are, because this library is never unloaded.
        let _ = unsafe { libc::pthread_atfork(Some(hold), Some(let_go), Some(let_go)) };
    });
    table().insert(address, Entry { kind: kind.id, ending: false });
}

/// Whether an object of this kind is at the address.
pub(crate) fn is(address: usize, kind: Kind) -> bool {
    matches!(Found::of(table().get(&address), kind), Found::Live | Found::Ending)
}

/// The address of the first object of this kind that `wanted` accepts. While `wanted` runs, no
/// object is freed.
pub(crate) fn find(kind: Kind, mut wanted: impl FnMut(usize) -> bool) -> Option<usize> {
    let live = table();
    let candidates = live.iter().filter(|(_, entry)| entry.kind == kind.id && !entry.ending);
    candidates.map(|(address, _)| *address).find(|address| wanted(*address))
}

/// Refuses an address without an object of this kind.
pub(crate) fn check(address: usize, kind: Kind) -> Outcome<()> {
    let found = Found::of(table().get(&address), kind);
    match found {
        // The destroying thread may be waiting for acknowledgements, and may still fail.
        Found::Live | Found::Ending => Ok(()),
        missing => Err(missing.refusal(address, kind)),
    }
}

/// An object that this thread is destroying. Without [`Ending::done`], the object stays live.
pub(crate) struct Ending(usize);

impl Ending {
    /// Refuses as [`check`] does, and also if another thread is destroying the object.
    pub(crate) fn begin(address: usize, kind: Kind) -> Outcome<Self> {
        let found = {
            let mut live = table();
            let found = Found::of(live.get(&address), kind);
            if let (Found::Live, Some(entry)) = (&found, live.get_mut(&address)) {
                entry.ending = true;
            }
            found
        };
        match found {
            Found::Live => Ok(Self(address)),
            missing => Err(missing.refusal(address, kind)),
        }
    }

    /// Removes the object. Its memory is freed only after this, so that no new object can have the
    /// address yet.
    pub(crate) fn done(self) {
        table().remove(&self.0);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(entry) = table().get_mut(&self.0) {
            entry.ending = false;
        }
    }
}

thread_local! {
    /// The lock of the table, while this thread forks.
    static FORKING: RefCell<Option<MutexGuard<'static, Table>>> = const { RefCell::new(None) };
}

extern "C" fn hold() {
    let held = table();
    let _ = FORKING.try_with(|forking| forking.replace(Some(held)));
}

extern "C" fn let_go() {
    let _ = FORKING.try_with(RefCell::take);
}
