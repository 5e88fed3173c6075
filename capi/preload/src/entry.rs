//! The entry to the library: what all functions here have in common, and the `unsafe` code for C.
//!
//! [`intercept!`](interpose::intercept) makes a function with the C library's name, which gets the
//! next function of that name and the arguments. [`pass`] decides whether the path is redirected,
//! and calls the next function or the replacement. Pointers from the program have their own types
//! ([`Text`], [`Words`], [`Out`]), which are made only here. Nothing in this library panics. If
//! something does, the process ends at the border to C.

use std::ffi::{CStr, c_char, c_int};

use interpose::Answer;

use crate::packet::Memory;
use crate::paths::Official;
use crate::root;

/// Why a call was refused: an errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal(pub(crate) c_int);

impl Answer for Words {
    const FAILED: Self = Self::NONE;
}

/// The place of an official path in the mirror.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    /// The path in the mirror.
    pub(crate) at: Text,
    /// The path that the program asked for.
    pub(crate) official: &'a Official<'a>,
}

/// Calls `other` with a path that is not redirected, and `ours` with the place in the mirror
/// otherwise.
#[inline]
pub(crate) fn pass<R: Answer>(
    path: Text,
    other: impl FnOnce(Text) -> R,
    ours: impl FnOnce(&Place<'_>) -> Result<R, Refusal>,
) -> R {
    match path.near().and_then(Official::read) {
        None => other(path),
        Some(official) => redirected(&official, ours),
    }
}

/// [`pass`] for functions that treat every file in the same way.
#[inline]
pub(crate) fn pass_on<R: Answer>(path: Text, call: impl FnOnce(Text) -> R) -> R {
    match path.near().and_then(Official::read) {
        None => call(path),
        Some(official) => redirected(&official, |place| Ok(call(place.at))),
    }
}

/// Not inlined, so that only redirected calls use the stack for the path.
#[cold]
#[inline(never)]
fn redirected<R: Answer>(official: &Official<'_>, ours: impl FnOnce(&Place<'_>) -> Result<R, Refusal>) -> R {
    let mut room = Room::new();
    let answer = mirrored(official, &mut room).and_then(|at| ours(&Place { at, official }));
    answer.unwrap_or_else(refused)
}

/// Writes the path in the mirror into `room`.
fn mirrored(official: &Official<'_>, room: &mut Room) -> Result<Text, Refusal> {
    let root = root::path().ok_or(Refusal(libc::ENOENT))?;
    room.hold(root.chain(official.mirrored())).map(Text::of)
}

/// Sets `errno` and returns the failure value.
pub(crate) fn refused<R: Answer>(refusal: Refusal) -> R {
    interpose::refused(refusal.0)
}

/// The calling thread's `errno` as a refusal.
pub(crate) fn last_refusal() -> Refusal {
    Refusal(interpose::errno())
}

/// Space for a path with its final zero.
pub(crate) struct Room([u8; libc::PATH_MAX as usize]);

impl Room {
    /// Makes an empty space.
    pub(crate) fn new() -> Self {
        Self([0; _])
    }

    /// Writes a path, and returns it as a C string.
    pub(crate) fn hold(&mut self, path: impl Iterator<Item = u8>) -> Result<&CStr, Refusal> {
        let mut room = self.0.iter_mut();
        for byte in path {
            *room.next().ok_or(Refusal(libc::ENAMETOOLONG))? = byte;
        }
        *room.next().ok_or(Refusal(libc::ENAMETOOLONG))? = 0;
        CStr::from_bytes_until_nul(&self.0).map_err(|_| Refusal(libc::ENAMETOOLONG))
    }
}

/// A C string from the program, or NULL.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// A string of this library. The result must not outlive `text`; nothing here keeps one.
    pub(crate) fn of(text: &CStr) -> Self {
        Self(text.as_ptr())
    }

    /// The bytes without the final zero; empty for NULL.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.is_null() {
            return &[];
        }
        // SAFETY: not NULL; a caller that passes a path passes a C string that lives as long as the
        // call.
        unsafe { CStr::from_ptr(self.0) }.to_bytes()
    }

    /// The bytes, if the first two characters allow an official path. Most calls do only this
    /// check.
    #[inline]
    fn near(&self) -> Option<&[u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not NULL, and a C string has a first byte.
        let first = unsafe { *self.0 }.cast_unsigned();
        if first != b'/' {
            return None;
        }
        // SAFETY: the first byte is not the final zero, so there is a second.
        let second = unsafe { *self.0.add(1) }.cast_unsigned();
        matches!(second, b's' | b'd' | b'/' | b'.').then(|| self.bytes())
    }

    /// Whether the string begins with `words`. Reads no further than needed.
    pub(crate) fn begins(&self, words: &[u8]) -> bool {
        if self.0.is_null() {
            return false;
        }
        words.iter().enumerate().all(|(index, wanted)| {
            // SAFETY: `all` stops at the first byte that differs, so at the final zero at the
            // latest.
            unsafe { *self.0.add(index) }.cast_unsigned() == *wanted
        })
    }
}

/// A buffer of the program that holds a C string, an allocated C string, or NULL.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Words(*mut c_char);

impl Words {
    /// No buffer.
    pub(crate) const NONE: Self = Self(std::ptr::null_mut());

    /// The bytes of the string, without the final zero.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.is_null() {
            return &[];
        }
        // SAFETY: not NULL; the C library has just written a C string here.
        unsafe { CStr::from_ptr(self.0) }.to_bytes()
    }

    /// Drops the first `count` bytes of the string.
    pub(crate) fn keep_from(self, count: usize) {
        let length = self.bytes().len();
        let Some(rest) = length.checked_sub(count) else { return };
        // SAFETY: `count` is inside the string.
        let from = unsafe { self.0.add(count) };
        // SAFETY: both ranges are inside the string with its final zero; `copy` allows that they
        // overlap.
        unsafe { std::ptr::copy(from, self.0, rest.wrapping_add(1)) };
    }

    /// Writes a path into the buffer. Without a buffer, allocates one, as `realpath` does.
    pub(crate) fn filled(self, text: &CStr) -> Self {
        let bytes = text.to_bytes_with_nul();
        let target = if self.0.is_null() {
            // SAFETY: a plain allocation, which the program frees.
            unsafe { libc::malloc(bytes.len()) }.cast::<c_char>()
        } else {
            self.0
        };
        if target.is_null() {
            return refused(Refusal(libc::ENOMEM));
        }
        // SAFETY: a given buffer has room for the longest path, and the allocation has room for
        // this one.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), target, bytes.len()) };
        Self(target)
    }
}

/// A place in the program's memory for a result.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// A place in this library's memory. The result must not outlive the value; nothing here keeps
    /// one.
    pub(crate) fn of(value: &mut T) -> Self {
        Self(value)
    }

    /// Reads and changes a result after the C library has written it.
    pub(crate) fn change<R>(self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the C library has just written here, so it is NULL or a valid value that nothing
        // else uses meanwhile.
        unsafe { self.0.as_mut() }.map(change)
    }
}

/// The pieces of memory of `readv` and `writev`: an array of `struct iovec`, or NULL.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Pieces(*const libc::iovec);

impl Pieces {
    /// The pieces. More than 1024 are EINVAL, as for the kernel.
    pub(crate) fn memory(self, count: c_int) -> Result<impl Iterator<Item = Memory>, Refusal> {
        const MOST: usize = 1024;
        let count = usize::try_from(count).ok().filter(|count| *count <= MOST).ok_or(Refusal(libc::EINVAL))?;
        let at = Some(self.0).filter(|at| count == 0 || !at.is_null()).ok_or(Refusal(libc::EFAULT))?;
        Ok((0..count).map(move |index| {
            // SAFETY: the program promises `count` pieces.
            let piece = unsafe { at.add(index).read() };
            Memory::new(piece.iov_base, piece.iov_len)
        }))
    }
}

/// Reads an environment variable without the program's own `getenv` (shells have one).
pub(crate) fn environment<R>(name: &CStr, read: impl FnOnce(Option<&[u8]>) -> R) -> R {
    unsafe extern "C" {
        static environ: *const Text;
    }
    // SAFETY: read when the process starts, before it has threads that could change it.
    let mut entry = unsafe { environ };
    while !entry.is_null() {
        // SAFETY: the list ends in NULL, and the loop ends there.
        let text = unsafe { *entry };
        if text.0.is_null() {
            break;
        }
        let bytes = text.bytes();
        let value = bytes.strip_prefix(name.to_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        if value.is_some() {
            return read(value);
        }
        // SAFETY: this was not the last entry.
        entry = unsafe { entry.add(1) };
    }
    read(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_ours_is_read() {
        for (path, read) in [(c"/sys/x", true), (c"//dev", true), (c"/dev", true), (c"/usr/x", false), (c"/", false)] {
            assert_eq!(Text::of(path).near().is_some(), read, "{path:?}");
        }
        assert!(Text::of(c"").near().is_none() && Text(std::ptr::null()).near().is_none());
        assert!(Text::of(c"uverbs0").begins(b"uverbs") && !Text::of(c"uver").begins(b"uverbs"));
    }

    #[test]
    fn a_path_that_is_too_long_is_refused() {
        let mut room = Room::new();
        assert_eq!(room.hold(b"/a".iter().copied()).unwrap(), c"/a");
        let long = std::iter::repeat_n(b'x', 4095);
        assert_eq!(room.hold(long).unwrap().count_bytes(), 4095);
        assert_eq!(room.hold(std::iter::repeat_n(b'x', 4096)), Err(Refusal(libc::ENAMETOOLONG)));
    }

    #[test]
    fn words_lose_their_beginning() {
        let mut buffer = *b"/run/sys/class\0";
        let words = Words(buffer.as_mut_ptr().cast());
        words.keep_from(4);
        assert_eq!(words.bytes(), b"/sys/class");
        words.keep_from(99);
        assert_eq!(words.bytes(), b"/sys/class");
        assert_eq!(words.filled(c"/dev").bytes(), b"/dev");
    }
}
