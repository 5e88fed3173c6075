//! Asking for access rights: `access` and its variants.
//!
//! Everybody may read and write a node, and nobody may execute it. The rest of the mirror cannot be
//! written.

use std::ffi::c_int;

use libc::{F_OK, R_OK, W_OK, X_OK};

use interpose::intercept;

use crate::entry::{Refusal, Text, pass};
use crate::next::Function;
use crate::stat;

intercept! {
    /// `access`.
    fn access(path: Text, mode: c_int) -> c_int as next => granted(path, mode, next);
    /// `faccessat`.
    fn faccessat(from: c_int, path: Text, mode: c_int, flags: c_int) -> c_int as next =>
        granted(path, mode, |path, mode| next(from, path, mode, flags));
    /// `eaccess`.
    fn eaccess(path: Text, mode: c_int) -> c_int as next => granted(path, mode, next);
    /// `euidaccess`.
    fn euidaccess(path: Text, mode: c_int) -> c_int as next => granted(path, mode, next);
}

fn granted(path: Text, mode: c_int, ask: impl Fn(Text, c_int) -> c_int) -> c_int {
    pass(
        path,
        |path| ask(path, mode),
        |place| {
            if mode & !(R_OK | W_OK | X_OK | F_OK) != 0 {
                return Err(Refusal(libc::EINVAL));
            }
            let (answer, denied) = match place.official.node() {
                Some(_) => (stat::present(place.at).map(|()| 0)?, X_OK),
                None => (ask(place.at, mode & !W_OK), W_OK),
            };
            if answer == 0 && mode & denied != 0 { Err(Refusal(libc::EACCES)) } else { Ok(answer) }
        },
    )
}
