//! `ftw` and `nftw`: the walk goes through the mirror, and the program's function gets official
//! paths.
//!
//! The functions that a walk calls have no argument of their own, so their data is in a
//! thread-local variable. The principal type is [`Walk`].

use std::cell::Cell;
use std::ffi::{CStr, c_int};

use interpose::intercept;

use crate::entry::{Out, Room, Text, pass};
use crate::next::Function;
use crate::paths::Official;
use crate::stat::disguise;

type Stat = libc::stat;
/// The program's function for `ftw` and for `nftw`.
type Visit = Option<unsafe extern "C" fn(Text, Out<Stat>, c_int) -> c_int>;
type VisitMore = Option<unsafe extern "C" fn(Text, Out<Stat>, c_int, Out<Position>) -> c_int>;

/// `FTW_F`: a file.
const FILE: c_int = 0;

/// `struct FTW`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
    base: c_int,
    level: c_int,
}

/// The data of this thread's walk.
#[derive(Clone, Copy)]
struct Walk {
    /// The top as the program named it.
    top: Text,
    /// The length of the top's name in the mirror.
    mirrored: usize,
    visit: Visit,
    visit_more: VisitMore,
}

std::thread_local! {
    static WALK: Cell<Option<Walk>> = const { Cell::new(None) };
}

intercept! {
    /// `ftw`.
    fn ftw(top: Text, visit: Visit, depth: c_int) -> c_int as next =>
        walked(top, visit, None, |top, ours| next(top, if ours { Some(visited) } else { visit }, depth));
    /// `ftw64`.
    fn ftw64(top: Text, visit: Visit, depth: c_int) -> c_int as next =>
        walked(top, visit, None, |top, ours| next(top, if ours { Some(visited) } else { visit }, depth));
    /// `nftw`.
    fn nftw(top: Text, visit: VisitMore, depth: c_int, flags: c_int) -> c_int as next =>
        walked(top, None, visit, |top, ours| next(top, if ours { Some(visited_more) } else { visit }, depth, flags));
    /// `nftw64`.
    fn nftw64(top: Text, visit: VisitMore, depth: c_int, flags: c_int) -> c_int as next =>
        walked(top, None, visit, |top, ours| next(top, if ours { Some(visited_more) } else { visit }, depth, flags));
}

fn walked(top: Text, visit: Visit, visit_more: VisitMore, walk: impl Fn(Text, bool) -> c_int) -> c_int {
    pass(
        top,
        |top| walk(top, false),
        |place| {
            // The program's function may start another walk.
            let outer = exchanged(Some(Walk { top, mirrored: place.at.bytes().len(), visit, visit_more }));
            let answer = walk(place.at, true);
            exchanged(outer);
            Ok(answer)
        },
    )
}

/// Stores a walk in the thread's variable and returns the previous one. (The variable has no
/// destructor, so it exists until the thread ends.)
fn exchanged(walk: Option<Walk>) -> Option<Walk> {
    WALK.try_with(|current| current.replace(walk)).ok().flatten()
}

unsafe extern "C" fn visited(path: Text, stat: Out<Stat>, kind: c_int) -> c_int {
    shown(path, stat, kind, |walk, path, stat, kind| {
        let Some(visit) = walk.visit else { return 0 };
        // SAFETY: the program's function, called as the C library would.
        unsafe { visit(path, stat, kind) }
    })
}

unsafe extern "C" fn visited_more(path: Text, stat: Out<Stat>, kind: c_int, position: Out<Position>) -> c_int {
    shown(path, stat, kind, |walk, official, stat, kind| {
        let Some(visit) = walk.visit_more else { return 0 };
        // Both names have the same end, so the last component has the same distance from the end.
        let (own, given) = (path.bytes().len(), official.bytes().len());
        let shift = given.cast_signed().wrapping_sub(own.cast_signed()) as c_int;
        // The C library continues with its own value.
        let shifted = position.change(|own| Position { base: own.base.wrapping_add(shift), level: own.level });
        let Some(mut shifted) = shifted else { return 0 };
        let position = Out::of(&mut shifted);
        // SAFETY: the program's function, called as the C library would.
        unsafe { visit(official, stat, kind, position) }
    })
}

/// Calls `visit` with a file's official name.
fn shown(
    path: Text,
    stat: Out<Stat>,
    kind: c_int,
    visit: impl FnOnce(&Walk, Text, Out<Stat>, c_int) -> c_int,
) -> c_int {
    let Ok(Some(walk)) = WALK.try_with(Cell::get) else { return 0 };
    let below = path.bytes().get(walk.mirrored..).unwrap_or_default();
    let mut room = Room::new();
    let Ok(official) = room.hold(walk.top.bytes().iter().chain(below).copied()) else { return 0 };
    let node = |path: &CStr| Official::read(path.to_bytes()).and_then(|path| path.node());
    match node(official) {
        Some(node) => {
            stat.change(|stat| disguise(stat, node));
            visit(&walk, Text::of(official), stat, FILE)
        }
        None => visit(&walk, Text::of(official), stat, kind),
    }
}
