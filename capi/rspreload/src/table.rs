//! Which descriptors of the program are rsockets: an array of words that is read and written
//! without locks, even in signal handlers and forked children. The principal type is [`Kind`].

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The number of descriptors that can be rsockets.
const MOST: usize = 1 << 16;

/// The object behind a descriptor of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An ordinary descriptor of the kernel.
    Plain,
    /// An rsocket, named by its own descriptor.
    Rsocket(c_int),
    /// A TCP socket that becomes an rsocket later, and its state.
    Later(Later),
    /// An epoll descriptor that watches rsockets.
    Epoll,
}

/// The state of a TCP socket that becomes an rsocket later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Later {
    /// It has been made.
    Fresh,
    /// It is a listener.
    Listener,
    /// It was connected here.
    Active,
    /// It was accepted here.
    Passive,
}

static KINDS: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// The number of the program's descriptors for each rsocket, indexed by the rsocket's own
/// descriptor.
static SHARES: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];

const RSOCKET: u64 = 1 << 32;
const LATER: u64 = 2 << 32;
const EPOLL: u64 = 3 << 32;

fn slot(fd: c_int) -> Option<&'static AtomicU64> {
    KINDS.get(usize::try_from(fd).ok()?)
}

fn share(fd: c_int) -> Option<&'static AtomicU32> {
    SHARES.get(usize::try_from(fd).ok()?)
}

/// The object behind a descriptor.
#[inline]
pub(crate) fn find(fd: c_int) -> Kind {
    let word = slot(fd).map_or(0, |slot| slot.load(Ordering::Acquire));
    if word == 0 {
        return Kind::Plain;
    }
    let low = u32::try_from(word & 0xFFFF_FFFF).unwrap_or(0);
    match word & !0xFFFF_FFFF {
        RSOCKET => Kind::Rsocket(low.cast_signed()),
        LATER => Kind::Later(match low {
            0 => Later::Fresh,
            1 => Later::Listener,
            2 => Later::Active,
            _ => Later::Passive,
        }),
        EPOLL => Kind::Epoll,
        _ => Kind::Plain,
    }
}

/// The rsocket of a descriptor, if it is one.
#[inline]
pub(crate) fn rsocket(fd: c_int) -> Option<c_int> {
    match find(fd) {
        Kind::Rsocket(inner) => Some(inner),
        _ => None,
    }
}

/// Sets the object behind a descriptor. Returns false if the descriptor is too large.
pub(crate) fn set(fd: c_int, kind: Kind) -> bool {
    let word = match kind {
        Kind::Plain => 0,
        Kind::Rsocket(inner) => RSOCKET | u64::from(inner.cast_unsigned()),
        Kind::Later(later) => {
            LATER
                | match later {
                    Later::Fresh => 0,
                    Later::Listener => 1,
                    Later::Active => 2,
                    Later::Passive => 3,
                }
        }
        Kind::Epoll => EPOLL,
    };
    let Some(slot) = slot(fd) else { return kind == Kind::Plain };
    if let Kind::Rsocket(inner) = kind {
        let Some(share) = share(inner) else { return false };
        share.fetch_add(1, Ordering::AcqRel);
    }
    slot.store(word, Ordering::Release);
    true
}

/// Removes a descriptor that is being closed. Returns its object, and whether it was the object's
/// last descriptor.
pub(crate) fn take(fd: c_int) -> (Kind, bool) {
    let kind = find(fd);
    if let Some(slot) = slot(fd)
        && kind != Kind::Plain
    {
        slot.store(0, Ordering::Release);
    }
    match kind {
        Kind::Rsocket(inner) => (kind, share(inner).is_some_and(|share| share.fetch_sub(1, Ordering::AcqRel) == 1)),
        _ => (kind, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_several_is_the_last() {
        assert!(set(100, Kind::Rsocket(200)) && set(101, Kind::Rsocket(200)));
        assert_eq!((rsocket(100), rsocket(101), rsocket(102)), (Some(200), Some(200), None));
        assert_eq!(take(100), (Kind::Rsocket(200), false));
        assert_eq!(take(100), (Kind::Plain, true));
        assert_eq!(take(101), (Kind::Rsocket(200), true));
    }

    #[test]
    fn each_kind_is_found_again() {
        let later = [Later::Fresh, Later::Listener, Later::Active, Later::Passive].map(Kind::Later);
        for kind in later.into_iter().chain([Kind::Epoll, Kind::Rsocket(0), Kind::Plain]) {
            assert!(set(300, kind));
            assert_eq!(find(300), kind);
        }
        assert!(!set(1 << 16, Kind::Epoll));
        assert_eq!((find(-1), find(1 << 16)), (Kind::Plain, Kind::Plain));
    }
}
