//! Extended attributes: the mirror's files have the attributes that their file system gives them.
//! `ls -l` asks for them.

use std::ffi::{c_char, c_void};

use interpose::intercept;

use crate::entry::{Text, pass_on};
use crate::next::Function;

intercept! {
    /// `getxattr`.
    fn getxattr(path: Text, name: Text, value: *mut c_void, size: usize) -> isize as next =>
        pass_on(path, |path| next(path, name, value, size));
    /// `lgetxattr`.
    fn lgetxattr(path: Text, name: Text, value: *mut c_void, size: usize) -> isize as next =>
        pass_on(path, |path| next(path, name, value, size));
    /// `listxattr`.
    fn listxattr(path: Text, list: *mut c_char, size: usize) -> isize as next =>
        pass_on(path, |path| next(path, list, size));
    /// `llistxattr`.
    fn llistxattr(path: Text, list: *mut c_char, size: usize) -> isize as next =>
        pass_on(path, |path| next(path, list, size));
}
