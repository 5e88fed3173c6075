//! The functions that stand here, by name, and the next one of each name: the C library's, or another preloaded library's.
//!
//! They are looked up when the library is loaded, for the look-up takes a lock that no signal handler may take; a function
//! that is called by another library's constructor before that is looked up then. The principal type is [`Function`].

use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

macro_rules! functions {
    ($($name:ident),+ $(,)?) => {
        /// A function of the C library that takes a path.
        #[derive(Debug, Clone, Copy)]
        #[allow(non_camel_case_types, reason = "the names are the C library's")]
        #[repr(usize)]
        pub(crate) enum Function { $(#[allow(missing_docs, reason = "each is what its manual page says")] $name),+ }

        const NAMES: &[&CStr] = &[$(
            // The literal ends in the only zero byte.
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        ),+];
    };
}

functions!(
    // Opening.
    open,
    open64,
    openat,
    openat64,
    creat,
    creat64,
    __open_2,
    __open64_2,
    __openat_2,
    __openat64_2,
    fopen,
    fopen64,
    freopen,
    freopen64,
    // Asking about a file.
    stat,
    lstat,
    fstatat,
    stat64,
    lstat64,
    fstatat64,
    __xstat,
    __lxstat,
    __fxstatat,
    __xstat64,
    __lxstat64,
    __fxstatat64,
    statx,
    access,
    faccessat,
    eaccess,
    euidaccess,
    getxattr,
    lgetxattr,
    listxattr,
    llistxattr,
    // Names.
    readlink,
    readlinkat,
    __readlink_chk,
    __readlinkat_chk,
    realpath,
    __realpath_chk,
    canonicalize_file_name,
    // Directories.
    opendir,
    scandir,
    scandir64,
    scandirat,
    scandirat64,
    chdir,
    getcwd,
    __getcwd_chk,
    get_current_dir_name,
    // Many files.
    glob,
    glob64,
    ftw,
    ftw64,
    nftw,
    nftw64,
);

static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(null_mut()) }; NAMES.len()];

impl Function {
    /// The next function of this name; `None` when there is none.
    ///
    /// # Safety
    /// `F` is the function's type, as a pointer to an `extern "C"` function.
    pub(crate) unsafe fn next<F: Copy>(self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let index = self as usize;
        let slot = NEXT.get(index)?;
        // The address is all there is to see: nothing is published with it.
        let mut found = slot.load(Ordering::Relaxed);
        if found.is_null() {
            found = look_up(index);
        }
        // SAFETY: an address of a function of the caller's type, which has the size of an address.
        (!found.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&found) })
    }
}

/// Looks one function up and keeps it.
fn look_up(index: usize) -> *mut c_void {
    let (Some(name), Some(slot)) = (NAMES.get(index), NEXT.get(index)) else { return null_mut() };
    // SAFETY: a C string; RTLD_NEXT means the libraries behind this one.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // What went wrong here is not for the program to read.
        // SAFETY: takes nothing; the text stays the C library's.
        unsafe { libc::dlerror() };
    }
    slot.store(found, Ordering::Relaxed);
    found
}

/// Looks all of them up; called when the library is loaded.
pub(crate) fn look_up_all() {
    for index in 0..NAMES.len() {
        look_up(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_c_library_has_them_all() {
        look_up_all();
        for (name, slot) in NAMES.iter().zip(&NEXT) {
            assert!(!slot.load(Ordering::Relaxed).is_null(), "{name:?}");
        }
    }
}
