//! What a preloaded library needs to replace functions of the C library: for each name, the next
//! function, which may belong to the C library or to another preloaded library. [`functions!`]
//! lists the names, [`intercept!`] makes the replacing functions, and [`when_loaded!`] runs a block
//! when the library is loaded. The principal type is [`Next`]. This file does not decide what a
//! replacement does.
//!
//! Functions are looked up when the library is loaded, because the look-up takes a lock that a
//! signal handler must not take. If another library's constructor calls a function earlier, this
//! function is looked up at that call. Nothing here allocates or panics.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute_copy;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next function of each of `N` names.
#[derive(Debug)]
pub struct Next<const N: usize> {
    names: [&'static CStr; N],
    found: [AtomicPtr<c_void>; N],
}

impl<const N: usize> Next<N> {
    /// Makes the table without looking anything up.
    #[must_use]
    pub const fn new(names: [&'static CStr; N]) -> Self {
        Self { names, found: [const { AtomicPtr::new(null_mut()) }; N] }
    }

    /// The next function of the name with this index, or `None` if no library has one.
    ///
    /// # Safety
    /// `F` is the function's type, as a pointer to an `extern "C"` function.
    #[must_use]
    pub unsafe fn get<F: Copy>(&self, index: usize) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // Relaxed is enough: the address is the only data, and nothing else is published with it.
        let mut found = self.found.get(index)?.load(Ordering::Relaxed);
        if found.is_null() {
            found = self.look_up(index);
        }
        // SAFETY: an address of a function of the caller's type, which has the size of an address.
        (!found.is_null()).then(|| unsafe { transmute_copy::<*mut c_void, F>(&found) })
    }

    /// Looks one function up and keeps it.
    fn look_up(&self, index: usize) -> *mut c_void {
        let (Some(name), Some(slot)) = (self.names.get(index), self.found.get(index)) else { return null_mut() };
        // SAFETY: a C string; RTLD_NEXT means the libraries behind this one.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if found.is_null() {
            // Clears the error of `dlsym`, which the program must not see.
            // SAFETY: takes nothing; the text stays the C library's.
            unsafe { libc::dlerror() };
        }
        slot.store(found, Ordering::Relaxed);
        found
    }

    /// Looks up all functions. The library's constructor calls this.
    pub fn look_up_all(&self) {
        for index in 0..N {
            self.look_up(index);
        }
    }

    /// The names for which no library has a function. Valid after [`Next::look_up_all`].
    pub fn missing(&self) -> impl Iterator<Item = &'static CStr> {
        let all = self.names.iter().zip(&self.found);
        all.filter(|(_, found)| found.load(Ordering::Relaxed).is_null()).map(|(name, _)| *name)
    }
}

/// Makes the type `Function` with one variant for each name, whose `next` is the next function of
/// that name. Also makes `NEXT`, the table of all of them, and a test that the C library has them.
#[macro_export]
macro_rules! functions {
    ($($name:ident),+ $(,)?) => {
        /// A function that the library replaces, by its name in the C library.
        #[derive(Debug, Clone, Copy)]
        #[allow(non_camel_case_types, reason = "the names are the C library's")]
        #[repr(usize)]
        pub(crate) enum Function { $(#[allow(missing_docs, reason = "each is what its manual page says")] $name),+ }

        /// The next function of each name.
        pub(crate) static NEXT: $crate::Next<{ [$(stringify!($name)),+].len() }> = $crate::Next::new([$(
            // The literal ends in the only zero byte.
            match ::std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        ),+]);

        impl Function {
            /// The next function of this name, or `None` if no library has one.
            ///
            /// # Safety
            /// `F` is the function's type, as a pointer to an `extern "C"` function.
            pub(crate) unsafe fn next<F: Copy>(self) -> Option<F> {
                // SAFETY: as the caller promises.
                unsafe { NEXT.get(self as usize) }
            }
        }

        #[cfg(test)]
        mod all_functions {
            #[test]
            fn this_c_library_has_them_all() {
                super::NEXT.look_up_all();
                assert_eq!(super::NEXT.missing().next(), None);
            }
        }
    };
}

/// Runs a block when the library is loaded.
#[macro_export]
macro_rules! when_loaded {
    ($body:block) => {
        #[cfg(not(test))]
        extern "C" fn loaded() $body

        #[cfg(not(test))]
        #[used]
        // SAFETY: the loader calls the functions in this section, which contains one address.
        #[unsafe(link_section = ".init_array")]
        static LOADED: extern "C" fn() = loaded;
    };
}

/// Makes functions that replace those of the C library:
/// `fn name(arguments) -> answer as next => body`, where `next` in the body is the next function of
/// the same name. `Function` of [`functions!`] must be in scope and must have the name.
#[macro_export]
macro_rules! intercept {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty as $next:ident => $body:expr;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As for the C library's function of this name.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
            type Next = unsafe extern "C" fn($($type),*) -> $answer;
            // SAFETY: the type is the one that the C library's manual gives.
            let Some(found) = (unsafe { Function::$name.next::<Next>() }) else { return $crate::not_there() };
            #[allow(unused_variables, reason = "a few functions do without the next one")]
            // SAFETY: the arguments are the program's own, or valid replacements made by this
            // library.
            let $next = move |$($argument: $type),*| unsafe { found($($argument),*) };
            $body
        }
    )+};
}

/// What a function of the C library returns.
pub trait Answer {
    /// The return value that means "see `errno`".
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for () {
    const FAILED: Self = ();
}

impl Answer for isize {
    const FAILED: Self = -1;
}

impl<T> Answer for *mut T {
    const FAILED: Self = null_mut();
}

/// Sets `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: the C library gives every thread an `errno`, valid for as long as the thread lives.
    unsafe { *libc::__errno_location() = errno };
}

/// The value of `errno`.
#[must_use]
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` and returns the failure value.
#[must_use]
pub fn refused<A: Answer>(errno: c_int) -> A {
    set_errno(errno);
    A::FAILED
}

/// Fails with ENOSYS because no library has the function.
#[must_use]
pub fn not_there<A: Answer>() -> A {
    refused(libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_c_library_are_found_and_called() {
        static NEXT: Next<2> = Next::new([c"getpid", c"no_library_has_this"]);
        type GetPid = unsafe extern "C" fn() -> c_int;
        // SAFETY: the type of `getpid`.
        let found = unsafe { NEXT.get::<GetPid>(0) }.expect("found when first needed");
        // SAFETY: takes nothing.
        assert_eq!(unsafe { found() } as u32, std::process::id());
        NEXT.look_up_all();
        assert_eq!(NEXT.missing().collect::<Vec<_>>(), [c"no_library_has_this"]);
        // SAFETY: any type will do for a function that is not there.
        assert!(unsafe { NEXT.get::<GetPid>(1) }.is_none() && unsafe { NEXT.get::<GetPid>(2) }.is_none());
    }

    #[test]
    fn a_refusal_leaves_its_reason_in_errno() {
        assert_eq!(refused::<c_int>(libc::EBADF), -1);
        assert_eq!(errno(), libc::EBADF);
        assert!(refused::<*mut u8>(libc::ENOENT).is_null());
        assert_eq!(errno(), libc::ENOENT);
    }
}
