//! The functions of `librdmacm.so.1`, which is loaded when the program makes its first socket. The
//! principal type is [`Rdma`].

use libc::{c_int, c_void, iovec, msghdr, nfds_t, pollfd, sockaddr, socklen_t};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::OnceLock;

macro_rules! functions {
    ($($name:ident: fn($($type:ty),*) -> $answer:ty;)+) => {
        /// The rsocket functions.
        #[derive(Clone, Copy)]
        pub(crate) struct Rdma { $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> $answer),+ }

        impl Rdma {
            fn load() -> Option<Self> {
                // SAFETY: a C string.
                let library = unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return None;
                }
                let find = |name: &str| {
                    let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
                    // SAFETY: the library was just loaded; the name is a C string.
                    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                    (!found.is_null()).then_some(found)
                };
                Some(Self { $($name: {
                    let found = find(concat!(stringify!($name), "\0"))?;
                    // SAFETY: the function has had this type since the first librdmacm.so.1.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $answer>(found) }
                }),+ })
            }
        }
    };
}

functions! {
    rsocket: fn(c_int, c_int, c_int) -> c_int;
    rbind: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    rlisten: fn(c_int, c_int) -> c_int;
    raccept: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rconnect: fn(c_int, *const sockaddr, socklen_t) -> c_int;
    rshutdown: fn(c_int, c_int) -> c_int;
    rclose: fn(c_int) -> c_int;
    rrecv: fn(c_int, *mut c_void, usize, c_int) -> isize;
    rrecvfrom: fn(c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> isize;
    rrecvmsg: fn(c_int, *mut msghdr, c_int) -> isize;
    rreadv: fn(c_int, *const iovec, c_int) -> isize;
    rsend: fn(c_int, *const c_void, usize, c_int) -> isize;
    rsendto: fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize;
    rsendmsg: fn(c_int, *const msghdr, c_int) -> isize;
    rwritev: fn(c_int, *const iovec, c_int) -> isize;
    rpoll: fn(*mut pollfd, nfds_t, c_int) -> c_int;
    rgetpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rgetsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rsetsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    rgetsockopt: fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    rfcntl: fn(c_int, c_int, libc::c_long) -> c_int;
}

thread_local! {
    /// Whether the thread is in one of these functions. Sockets that it makes meanwhile belong to
    /// that library.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `body` with the functions. Returns `None` if the library is missing, or if the library
/// itself makes the call.
pub(crate) fn with<A>(body: impl FnOnce(&Rdma) -> A) -> Option<A> {
    static LOADED: OnceLock<Option<Rdma>> = OnceLock::new();
    if is_inside() {
        return None;
    }
    INSIDE.set(true);
    let answer = LOADED.get_or_init(Rdma::load).as_ref().map(body);
    INSIDE.set(false);
    answer
}

/// Whether the calling thread is in that library.
pub(crate) fn is_inside() -> bool {
    INSIDE.try_with(Cell::get).unwrap_or(true)
}

/// Calls one of the functions for a descriptor that is an rsocket. So the library is loaded.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: the program's arguments for the C library's function, which takes the same
        // arguments.
        $crate::rdma::with(|rdma| unsafe { (rdma.$name)($($argument),*) })
            .unwrap_or_else(|| interpose::refused(libc::EBADF))
    };
}
pub(crate) use call;
