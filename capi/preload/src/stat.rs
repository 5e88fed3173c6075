//! Querying files: `stat` and its variants, `statx`.
//!
//! In the mirror a node is a link to `/dev/null`. Programs see a character device with the numbers
//! that the kernel gives such nodes, which everybody may read and write. This also applies to a
//! node that is named relative to its folder (`ls -l` there, `find`).

use std::ffi::c_int;

use libc::{AT_EMPTY_PATH, AT_FDCWD, AT_SYMLINK_NOFOLLOW, S_IFCHR, S_IFLNK, S_IFMT, c_uint, statx as Statx};

use interpose::intercept;

use crate::entry::{Out, Place, Refusal, Room, Text, last_refusal, pass};
use crate::next::Function;
use crate::paths::Node;
use crate::root;

/// `struct stat`, which is `struct stat64` as well.
type Stat = libc::stat;
type Statted = Out<Stat>;

/// The major number of the kernel's umad, issm and uverbs nodes, and the first minor number of
/// each.
const MAJOR: u32 = 231;
const FIRST_MADS: u32 = 0;
const FIRST_SUBNET_MANAGER: u32 = 64;
const FIRST_VERBS: u32 = 192;
/// The numbers of the connection manager's node, as in the mirror's `/sys`: the major number
/// `misc`, and a free minor number.
const MANAGER: (u32, u32) = (10, 120);
/// The type and rights of a node.
const MODE: u32 = S_IFCHR | 0o666;

intercept! {
    /// `stat`.
    fn stat(path: Text, out: Statted) -> c_int as next => told(AT_FDCWD, path, out, next);
    /// `lstat`.
    fn lstat(path: Text, out: Statted) -> c_int as next => told(AT_FDCWD, path, out, next);
    /// `fstatat`.
    fn fstatat(from: c_int, path: Text, out: Statted, flags: c_int) -> c_int as next =>
        told(from, path, out, |path, out| next(from, path, out, flags));
    /// `stat64`.
    fn stat64(path: Text, out: Statted) -> c_int as next => told(AT_FDCWD, path, out, next);
    /// `lstat64`.
    fn lstat64(path: Text, out: Statted) -> c_int as next => told(AT_FDCWD, path, out, next);
    /// `fstatat64`.
    fn fstatat64(from: c_int, path: Text, out: Statted, flags: c_int) -> c_int as next =>
        told(from, path, out, |path, out| next(from, path, out, flags));
    /// `stat` of programs that were linked with a C library before 2.33.
    fn __xstat(version: c_int, path: Text, out: Statted) -> c_int as next =>
        told(AT_FDCWD, path, out, |path, out| next(version, path, out));
    /// `lstat` of such programs.
    fn __lxstat(version: c_int, path: Text, out: Statted) -> c_int as next =>
        told(AT_FDCWD, path, out, |path, out| next(version, path, out));
    /// `fstatat` of such programs.
    fn __fxstatat(version: c_int, from: c_int, path: Text, out: Statted, flags: c_int) -> c_int as next =>
        told(from, path, out, |path, out| next(version, from, path, out, flags));
    /// `stat64` of such programs.
    fn __xstat64(version: c_int, path: Text, out: Statted) -> c_int as next =>
        told(AT_FDCWD, path, out, |path, out| next(version, path, out));
    /// `lstat64` of such programs.
    fn __lxstat64(version: c_int, path: Text, out: Statted) -> c_int as next =>
        told(AT_FDCWD, path, out, |path, out| next(version, path, out));
    /// `fstatat64` of such programs.
    fn __fxstatat64(version: c_int, from: c_int, path: Text, out: Statted, flags: c_int) -> c_int as next =>
        told(from, path, out, |path, out| next(version, from, path, out, flags));
    /// `statx`.
    fn statx(from: c_int, path: Text, flags: c_int, mask: c_uint, out: Out<Statx>) -> c_int as next =>
        told_more(from, path, out, flags, |path, flags| next(from, path, flags, mask, out));
}

fn told(from: c_int, path: Text, out: Statted, ask: impl Fn(Text, Statted) -> c_int) -> c_int {
    let other = |path| {
        let answer = ask(path, out);
        if answer == 0 && may_be_node(path) {
            out.change(|stat| {
                if stat.st_mode & S_IFMT == S_IFLNK
                    && let Some(node) = node_from_within(from, path)
                {
                    disguise(stat, node);
                }
            });
        }
        answer
    };
    pass(path, other, |place| {
        let Some(node) = place.official.node() else { return Ok(ask(place.at, out)) };
        itself(place.at, out)?;
        out.change(|stat| disguise(stat, node));
        Ok(0)
    })
}

fn told_more(from: c_int, path: Text, out: Out<Statx>, flags: c_int, ask: impl Fn(Text, c_int) -> c_int) -> c_int {
    let other = |path: Text| {
        let answer = ask(path, flags);
        if answer == 0 && may_be_node(path) {
            out.change(|stat| {
                if u32::from(stat.stx_mode) & S_IFMT == S_IFLNK
                    && let Some(node) = node_from_within(from, path)
                {
                    disguise_more(stat, node);
                }
            });
        }
        answer
    };
    let ours = |place: &Place<'_>| {
        let Some(node) = place.official.node() else { return Ok(ask(place.at, flags)) };
        let answer = ask(place.at, (flags & !AT_EMPTY_PATH) | AT_SYMLINK_NOFOLLOW);
        if answer == 0 {
            out.change(|stat| disguise_more(stat, node));
        }
        Ok(answer)
    };
    pass(path, other, ours)
}

/// Changes `stat` to the kernel's values for a node.
pub(crate) fn disguise(stat: &mut Stat, node: Node) {
    let (major, minor) = numbers(node);
    stat.st_mode = MODE;
    stat.st_rdev = libc::makedev(major, minor);
    stat.st_nlink = 1;
    stat.st_uid = 0;
    stat.st_gid = 0;
    stat.st_size = 0;
    stat.st_blocks = 0;
}

fn disguise_more(stat: &mut Statx, node: Node) {
    stat.stx_mode = MODE as u16;
    (stat.stx_rdev_major, stat.stx_rdev_minor) = numbers(node);
    stat.stx_nlink = 1;
    stat.stx_uid = 0;
    stat.stx_gid = 0;
    stat.stx_size = 0;
    stat.stx_blocks = 0;
}

/// A node's numbers, major and minor.
fn numbers(node: Node) -> (u32, u32) {
    match node {
        Node::Mads(number) => (MAJOR, FIRST_MADS.wrapping_add(number)),
        Node::SubnetManager(number) => (MAJOR, FIRST_SUBNET_MANAGER.wrapping_add(number)),
        Node::Verbs(number) => (MAJOR, FIRST_VERBS.wrapping_add(number)),
        Node::Manager => MANAGER,
    }
}

/// Whether a name may be that of a node.
fn may_be_node(name: Text) -> bool {
    [&b"uverbs"[..], b"umad", b"issm", b"rdma_cm"].iter().any(|node| name.begins(node))
}

/// The node for a link called `name`, if `from` is the mirror's folder of nodes.
fn node_from_within(from: c_int, name: Text) -> Option<Node> {
    let node = Node::named(name.bytes())?;
    let mut room = Room::new();
    let nodes = room.hold(root::path()?.chain(b"/dev/infiniband".iter().copied())).ok()?;
    let wanted = identity(AT_FDCWD, Text::of(nodes))?;
    (identity(from, Text::of(c".")) == Some(wanted)).then_some(node)
}

/// The identity of the file that a path leads to: device and inode.
pub(crate) fn identity(from: c_int, path: Text) -> Option<(u64, u64)> {
    type Next = unsafe extern "C" fn(c_int, Text, Statted, c_int) -> c_int;
    // SAFETY: the type is the one that the C library's manual gives.
    let next = unsafe { Function::fstatat.next::<Next>() }?;
    let mut stat = empty();
    // SAFETY: a C string, and a place for the result.
    let answer = unsafe { next(from, path, Out::of(&mut stat), 0) };
    (answer == 0).then_some((stat.st_dev, stat.st_ino))
}

/// Whether a file exists; a dangling link counts too.
pub(crate) fn present(path: Text) -> Result<(), Refusal> {
    itself(path, Out::of(&mut empty()))
}

/// Calls the next `lstat`.
fn itself(path: Text, out: Statted) -> Result<(), Refusal> {
    type Next = unsafe extern "C" fn(Text, Statted) -> c_int;
    // SAFETY: the type is the one that the C library's manual gives.
    let next = unsafe { Function::lstat.next::<Next>() }.ok_or(Refusal(libc::ENOSYS))?;
    // SAFETY: a C string, and a place for the result.
    if unsafe { next(path, out) } == 0 { Ok(()) } else { Err(last_refusal()) }
}

fn empty() -> Stat {
    // SAFETY: a struct of numbers, which may all be zero.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_a_character_device_for_everybody() {
        let mut stat = empty();
        stat.st_ino = 7;
        for (node, numbers) in [
            (Node::Verbs(3), (231, 195)),
            (Node::Mads(3), (231, 3)),
            (Node::SubnetManager(3), (231, 67)),
            (Node::Manager, (10, 120)),
        ] {
            disguise(&mut stat, node);
            assert_eq!((stat.st_mode, stat.st_ino), (0o020_666, 7));
            assert_eq!((libc::major(stat.st_rdev), libc::minor(stat.st_rdev)), numbers);
        }
    }

    #[test]
    fn only_the_folder_of_nodes_has_nodes() {
        assert_eq!(node_from_within(AT_FDCWD, Text::of(c"uverbs0")), None);
        assert_eq!(node_from_within(AT_FDCWD, Text::of(c"rdma_cm")), None);
        assert!(identity(AT_FDCWD, Text::of(c"/")).is_some() && identity(AT_FDCWD, Text::of(c"/no/such")).is_none());
        assert_eq!(present(Text::of(c"/no/such")), Err(Refusal(libc::ENOENT)));
        assert_eq!(present(Text::of(c"/")), Ok(()));
    }
}
