//! `ftw` and `nftw`: the walk goes through the mirror, and the program's function is told official paths.
//!
//! The functions that a walk calls get no argument of their own, so what they need waits in a variable of the thread.

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

/// What a walk of this thread is about.
#[derive(Clone, Copy)]
struct Walk {
    /// What the program calls the top.
    top: Text,
    /// How long the top's name in the mirror is.
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
            // A walk may be started by what an outer one calls.
            let outer = exchanged(Some(Walk { top, mirrored: place.at.bytes().len(), visit, visit_more }));
            let answer = walk(place.at, true);
            exchanged(outer);
            Ok(answer)
        },
    )
}

/// Puts a walk in the thread's variable and gives the one that was there. (Without a destructor it is there to the end.)
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
        // The names end alike, so the last component is as far from the end in both.
        let (own, given) = (path.bytes().len(), official.bytes().len());
        let shift = given.cast_signed().wrapping_sub(own.cast_signed()) as c_int;
        // The C library goes on with its own one.
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
