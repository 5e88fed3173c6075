//! Directories: opening them, reading them, and making them the working directory.
//!
//! After a program has changed into a directory of the mirror, relative names need no translation.
//! Only the name of the working directory is translated back.

use std::ffi::{c_int, c_void};

use interpose::intercept;

use crate::entry::{Text, Words, pass_on};
use crate::links::with_official_name;
use crate::next::Function;

/// A `DIR`, a list of entries, or a function that picks or sorts entries.
type Opaque = *mut c_void;

intercept! {
    /// `opendir`.
    fn opendir(path: Text) -> Opaque as next => pass_on(path, next);
    /// `scandir`.
    fn scandir(path: Text, list: Opaque, pick: Opaque, compare: Opaque) -> c_int as next =>
        pass_on(path, |path| next(path, list, pick, compare));
    /// `scandir64`.
    fn scandir64(path: Text, list: Opaque, pick: Opaque, compare: Opaque) -> c_int as next =>
        pass_on(path, |path| next(path, list, pick, compare));
    /// `scandirat`.
    fn scandirat(from: c_int, path: Text, list: Opaque, pick: Opaque, compare: Opaque) -> c_int as next =>
        pass_on(path, |path| next(from, path, list, pick, compare));
    /// `scandirat64`.
    fn scandirat64(from: c_int, path: Text, list: Opaque, pick: Opaque, compare: Opaque) -> c_int as next =>
        pass_on(path, |path| next(from, path, list, pick, compare));
    /// `chdir`.
    fn chdir(path: Text) -> c_int as next => pass_on(path, next);
    /// `getcwd`.
    fn getcwd(buffer: Words, size: usize) -> Words as next => with_official_name(next(buffer, size));
    /// `getcwd` of programs that were built with fortification.
    fn __getcwd_chk(buffer: Words, size: usize, room: usize) -> Words as next =>
        with_official_name(next(buffer, size, room));
    /// `get_current_dir_name`.
    fn get_current_dir_name() -> Words as next => with_official_name(next());
}
