//! Links and canonical names: `readlink` and `realpath` and their variants.
//!
//! A canonical name in the mirror is returned as the official name. A node is not a link.

use std::ffi::{c_char, c_int};

use libc::AT_FDCWD;

use interpose::intercept;

use crate::entry::{Place, Refusal, Room, Text, Words, pass};
use crate::next::Function;
use crate::{paths, root, stat};

intercept! {
    /// `readlink`.
    fn readlink(path: Text, buffer: *mut c_char, size: usize) -> isize as next =>
        read(path, |path| next(path, buffer, size));
    /// `readlinkat`.
    fn readlinkat(from: c_int, path: Text, buffer: *mut c_char, size: usize) -> isize as next =>
        read(path, |path| next(from, path, buffer, size));
    /// `readlink` of programs that were built with fortification.
    fn __readlink_chk(path: Text, buffer: *mut c_char, size: usize, room: usize) -> isize as next =>
        read(path, |path| next(path, buffer, size, room));
    /// `readlinkat` of programs that were built with fortification.
    fn __readlinkat_chk(from: c_int, path: Text, buffer: *mut c_char, size: usize, room: usize) -> isize as next =>
        read(path, |path| next(from, path, buffer, size, room));
    /// `realpath`.
    fn realpath(path: Text, resolved: Words) -> Words as next => resolve(path, resolved, |path| next(path, resolved));
    /// `realpath` of programs that were built with fortification.
    fn __realpath_chk(path: Text, resolved: Words, room: usize) -> Words as next =>
        resolve(path, resolved, |path| next(path, resolved, room));
    /// `canonicalize_file_name`.
    fn canonicalize_file_name(path: Text) -> Words as next => resolve(path, Words::NONE, next);
}

fn read(path: Text, read: impl Fn(Text) -> isize) -> isize {
    pass(path, &read, |place| {
        if place.official.node().is_some() {
            stat::present(place.at)?;
            return Err(Refusal(libc::EINVAL));
        }
        Ok(read(place.at))
    })
}

fn resolve(path: Text, buffer: Words, resolve: impl Fn(Text) -> Words) -> Words {
    let ours = |place: &Place<'_>| match place.official.node() {
        Some(node) => {
            stat::present(place.at)?;
            let mut room = Room::new();
            Ok(buffer.filled(room.hold(node.path())?))
        }
        None => Ok(with_official_name(resolve(place.at))),
    };
    pass(path, |path| with_official_name(resolve(path)), ours)
}

/// Translates a canonical name in the mirror to the official name.
pub(crate) fn with_official_name(name: Words) -> Words {
    if let Some((root, official)) = paths::before_official(name.bytes()) {
        translated(name, root, official);
    }
    name
}

/// Not inlined, so that only translated names use the stack for the paths.
#[cold]
#[inline(never)]
fn translated(name: Words, root: usize, official: usize) {
    let (mut room, mut mirror) = (Room::new(), Room::new());
    let Some(root) = name.bytes().get(..root).and_then(|root| room.hold(root.iter().copied()).ok()) else { return };
    let Some(mirror) = root::path().and_then(|path| mirror.hold(path).ok()) else { return };
    let own = stat::identity(AT_FDCWD, Text::of(mirror));
    if own.is_some() && own == stat::identity(AT_FDCWD, Text::of(root)) {
        name.keep_from(official);
    }
}
