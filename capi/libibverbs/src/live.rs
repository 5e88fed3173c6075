//! Which objects the program has: the address and kind of each C struct that this library has handed out and not taken back. A call
//! that is given an address looks it up here first, so that an object that was destroyed is an errno and not a read of freed
//! memory. Posting and polling do not look, and cost what they did. What an object is, [`crate::object`] knows.
//!
//! The principal type is [`Ending`].

use crate::entry::{Outcome, Refusal, refuse};
use std::any::TypeId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// What is known of an address.
struct Entry {
    kind: TypeId,
    /// A thread is destroying it.
    ending: bool,
}

type Table = BTreeMap<usize, Entry>;

/// Not one that hands itself over to a thread that waits: in a child process there is no such thread.
static LIVE: Mutex<Table> = Mutex::new(BTreeMap::new());

fn table() -> MutexGuard<'static, Table> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kind of object.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// The type of the whole object.
    pub(crate) id: TypeId,
    /// What refusals call it.
    pub(crate) name: &'static str,
    /// A descriptor names it, and not a handle: one that there is not is EBADF and not ENOENT, as in a kernel.
    pub(crate) is_descriptor: bool,
}

impl Kind {
    /// Refuses an object that there is not.
    pub(crate) fn missing(self, why: std::fmt::Arguments<'_>) -> Refusal {
        if self.is_descriptor { refuse!(EBADF, "{why}") } else { refuse!(ENOENT, "{why}") }
    }
}

/// What an address is, for a call that expects a certain kind.
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
                kind.missing(format_args!("there is no {name} at {address:#x}: it was destroyed, or never was"))
            }
            Self::Ending => refuse!(EBUSY, "another thread is destroying the {name} at {address:#x}"),
            Self::Another | Self::Live => refuse!(EINVAL, "the object at {address:#x} is no {name}"),
        }
    }
}

/// Notes a new object.
pub(crate) fn enter(address: usize, kind: Kind) {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // A child process must not get the table while another thread of its parent is changing it.
        // SAFETY: functions that stay where they are, for this library is never unloaded.
        let _ = unsafe { libc::pthread_atfork(Some(hold), Some(let_go), Some(let_go)) };
    });
    table().insert(address, Entry { kind: kind.id, ending: false });
}

/// Whether an address is that of an object of this kind.
pub(crate) fn is(address: usize, kind: Kind) -> bool {
    matches!(Found::of(table().get(&address), kind), Found::Live | Found::Ending)
}

/// Refuses an address that is not that of an object of this kind.
pub(crate) fn check(address: usize, kind: Kind) -> Outcome<()> {
    let found = Found::of(table().get(&address), kind);
    match found {
        // Who destroys it may be waiting for acknowledgements, and fail yet.
        Found::Live | Found::Ending => Ok(()),
        missing => Err(missing.refusal(address, kind)),
    }
}

/// An object that this thread is destroying. Unless it comes to [`Ending::done`], the object lives on.
pub(crate) struct Ending(usize);

impl Ending {
    /// Refuses as [`check`], and what another thread is destroying.
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

    /// The object is gone. Its memory is freed after this, so that no new object has the address yet.
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
    /// The table, while this thread forks.
    static FORKING: RefCell<Option<MutexGuard<'static, Table>>> = const { RefCell::new(None) };
}

extern "C" fn hold() {
    let held = table();
    let _ = FORKING.try_with(|forking| forking.replace(Some(held)));
}

extern "C" fn let_go() {
    let _ = FORKING.try_with(RefCell::take);
}
