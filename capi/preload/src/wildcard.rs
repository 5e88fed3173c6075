//! `glob`: the next function gets this library's functions to read directories, so that patterns
//! and results are official paths.
//!
//! A program that provides its own functions keeps them. Wildcards find only entries of a
//! directory. The mirror's folders are reached by name; they do not appear under `/sys/class` and
//! `/dev`.

use std::ffi::{c_int, c_void};

use crate::directories::opendir;
use interpose::intercept;

use crate::entry::{Out, Text};
use crate::next::Function;
use crate::stat::{lstat, stat};

/// `GLOB_ALTDIRFUNC`: use the functions in the struct.
const OWN_FUNCTIONS: c_int = 1 << 9;

/// `glob_t`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Glob {
    count: usize,
    paths: *mut c_void,
    offset: usize,
    flags: c_int,
    functions: Functions,
}

/// The functions of `glob_t`: addresses that are passed on and never called here.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Functions {
    closedir: *const c_void,
    readdir: *const c_void,
    opendir: *const c_void,
    lstat: *const c_void,
    stat: *const c_void,
}

const _: () = assert!(size_of::<Glob>() == size_of::<libc::glob_t>());

intercept! {
    /// `glob`.
    fn glob(pattern: Text, flags: c_int, complain: *const c_void, found: Out<Glob>) -> c_int as next =>
        matched(pattern, flags, found, |flags| next(pattern, flags, complain, found));
    /// `glob64`.
    fn glob64(pattern: Text, flags: c_int, complain: *const c_void, found: Out<Glob>) -> c_int as next =>
        matched(pattern, flags, found, |flags| next(pattern, flags, complain, found));
}

fn matched(pattern: Text, flags: c_int, found: Out<Glob>, search: impl Fn(c_int) -> c_int) -> c_int {
    let near = pattern.begins(b"/sys/") || pattern.begins(b"/dev/");
    if !near || flags & OWN_FUNCTIONS != 0 {
        return search(flags);
    }
    let ours = Functions {
        closedir: libc::closedir as *const c_void,
        readdir: libc::readdir as *const c_void,
        opendir: opendir as *const c_void,
        lstat: lstat as *const c_void,
        stat: stat as *const c_void,
    };
    let before = found.change(|glob| std::mem::replace(&mut glob.functions, ours));
    let answer = search(flags | OWN_FUNCTIONS);
    found.change(|glob| {
        glob.flags &= !OWN_FUNCTIONS;
        if let Some(before) = before {
            glob.functions = before;
        }
    });
    answer
}
