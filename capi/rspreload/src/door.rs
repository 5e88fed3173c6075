//! The border to C: the macro that makes a function of the C library's name, and `errno`.

use std::ffi::c_int;

/// Makes functions that stand in front of the C library's: `fn name(arguments) -> answer as next => body`, where `next` in
/// the body is the next function of the same name.
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
            let Some(found) = (unsafe { $crate::next::Function::$name.next::<Next>() }) else {
                $crate::door::set_errno(libc::ENOSYS);
                return <$answer as $crate::door::Answer>::FAILED;
            };
            // SAFETY: what is passed on is what the program gave, or a descriptor in place of another.
            #[allow(unused_variables, reason = "a few functions do without the next one")]
            let $next = move |$($argument: $type),*| unsafe { found($($argument),*) };
            $body
        }
    )+};
}
pub(crate) use intercept;

/// What a function of the C library gives back.
pub(crate) trait Answer {
    /// The value that says "look at `errno`".
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for isize {
    const FAILED: Self = -1;
}

/// Puts a reason in `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library gives every thread an `errno`, valid for as long as the thread lives.
    unsafe { *libc::__errno_location() = errno };
}

/// What `errno` says.
pub(crate) fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Fails with a reason.
pub(crate) fn refused<A: Answer>(errno: c_int) -> A {
    set_errno(errno);
    A::FAILED
}
