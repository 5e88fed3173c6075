//! Opening files: `open`, `openat`, `creat`, `fopen` and their variants.
//!
//! The mirror can be read but not changed: opening a file there for writing fails as for the
//! kernel's own files. A device's node opens as `/dev/null`: a character device that can be read
//! and written without effect and answers no ioctl. Only the verbs library really opens a device.
//! The nodes of management datagrams are opened by [`mads`]; as a stream, they are `/dev/null` too.

use std::ffi::{c_int, c_void};

use libc::{
    AT_FDCWD, O_ACCMODE, O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_PATH, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, mode_t,
};

use interpose::intercept;

use crate::entry::{Place, Refusal, Text, pass};
use crate::next::Function;
use crate::paths::Node;
use crate::{counters, mads, stat};

/// A `FILE` of the C library.
type Stream = *mut c_void;

// The mode is always passed on, even if the program gave none: it is in a register, and the next
// function reads it only if it is needed.
intercept! {
    /// `open`.
    fn open(path: Text, flags: c_int, mode: mode_t) -> c_int as next =>
        opened(AT_FDCWD, path, flags, |path, flags| next(path, flags, mode));
    /// `open64`.
    fn open64(path: Text, flags: c_int, mode: mode_t) -> c_int as next =>
        opened(AT_FDCWD, path, flags, |path, flags| next(path, flags, mode));
    /// `openat`.
    fn openat(from: c_int, path: Text, flags: c_int, mode: mode_t) -> c_int as next =>
        opened(from, path, flags, |path, flags| next(from, path, flags, mode));
    /// `openat64`.
    fn openat64(from: c_int, path: Text, flags: c_int, mode: mode_t) -> c_int as next =>
        opened(from, path, flags, |path, flags| next(from, path, flags, mode));
    /// `open` without a mode, in programs that were built with fortification.
    fn __open_2(path: Text, flags: c_int) -> c_int as next => opened(AT_FDCWD, path, flags, next);
    /// `open64` without a mode.
    fn __open64_2(path: Text, flags: c_int) -> c_int as next => opened(AT_FDCWD, path, flags, next);
    /// `openat` without a mode.
    fn __openat_2(from: c_int, path: Text, flags: c_int) -> c_int as next =>
        opened(from, path, flags, |path, flags| next(from, path, flags));
    /// `openat64` without a mode.
    fn __openat64_2(from: c_int, path: Text, flags: c_int) -> c_int as next =>
        opened(from, path, flags, |path, flags| next(from, path, flags));
    /// `creat`.
    fn creat(path: Text, mode: mode_t) -> c_int as next =>
        opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, |path, _| next(path, mode));
    /// `creat64`.
    fn creat64(path: Text, mode: mode_t) -> c_int as next =>
        opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, |path, _| next(path, mode));
    /// `fopen`.
    fn fopen(path: Text, mode: Text) -> Stream as next => streamed(path, mode, |path| next(path, mode));
    /// `fopen64`.
    fn fopen64(path: Text, mode: Text) -> Stream as next => streamed(path, mode, |path| next(path, mode));
    /// `freopen`.
    fn freopen(path: Text, mode: Text, stream: Stream) -> Stream as next =>
        streamed(path, mode, |path| next(path, mode, stream));
    /// `freopen64`.
    fn freopen64(path: Text, mode: Text, stream: Stream) -> Stream as next =>
        streamed(path, mode, |path| next(path, mode, stream));
}

fn opened(from: c_int, path: Text, flags: c_int, open: impl Fn(Text, c_int) -> c_int) -> c_int {
    let ours = |place: &Place<'_>| {
        let followed = allowed(place, flags)?;
        let node = place.official.node().filter(|_| flags & (O_PATH | O_DIRECTORY) == 0);
        match node {
            Some(Node::Mads(number)) => stat::present(place.at).and_then(|()| mads::open_mads(number, flags)),
            Some(Node::SubnetManager(number)) => {
                stat::present(place.at).and_then(|()| mads::open_subnet_manager(number, flags))
            }
            Some(Node::Verbs(_) | Node::Manager) | None => {
                Ok(counters::opened(counters::refresh(place), open(place.at, followed)))
            }
        }
    };
    pass(path, |path| counters::opened(counters::refresh_within(from, path), open(path, flags)), ours)
}

fn streamed(path: Text, mode: Text, open: impl Fn(Text) -> Stream) -> Stream {
    let other = |path| {
        counters::refresh_within(AT_FDCWD, path);
        open(path)
    };
    pass(path, other, |place| {
        allowed(place, flags_of(mode.bytes()))?;
        counters::refresh(place);
        Ok(open(place.at))
    })
}

/// The part of `flags` that applies to a file of the mirror.
fn allowed(place: &Place<'_>, flags: c_int) -> Result<c_int, Refusal> {
    let creates = flags & O_CREAT != 0;
    let writes = flags & O_ACCMODE != O_RDONLY || flags & O_TRUNC != 0;
    let is_node = place.official.node().is_some();
    if creates || (writes && !is_node) {
        match stat::present(place.at) {
            Err(Refusal(libc::ENOENT)) if creates => return Err(Refusal(libc::EACCES)),
            Err(refusal) => return Err(refusal),
            Ok(()) if creates && flags & O_EXCL != 0 => return Err(Refusal(libc::EEXIST)),
            Ok(()) if writes && !is_node => return Err(Refusal(libc::EACCES)),
            Ok(()) => {}
        }
    }
    // In the mirror a node is a link.
    let followed = if is_node { flags & !O_NOFOLLOW } else { flags };
    Ok(followed & !(O_CREAT | O_EXCL | O_TRUNC))
}

/// The flags of `open` for a mode of `fopen`.
fn flags_of(mode: &[u8]) -> c_int {
    let options = mode.split(|byte| *byte == b',').next().unwrap_or_default();
    let update = options.contains(&b'+');
    let exclusive = if options.contains(&b'x') { O_EXCL } else { 0 };
    match options.first() {
        Some(b'w' | b'a') => O_CREAT | exclusive | if update { O_RDWR } else { O_WRONLY },
        _ if update => O_RDWR,
        _ => O_RDONLY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_streams() {
        assert_eq!(flags_of(b"re"), O_RDONLY);
        assert_eq!(flags_of(b"rb+"), O_RDWR);
        assert_eq!(flags_of(b"wx"), O_CREAT | O_EXCL | O_WRONLY);
        assert_eq!(flags_of(b"a+"), O_CREAT | O_RDWR);
        assert_eq!(flags_of(b"r,ccs=x+"), O_RDONLY);
    }
}
