//! What decides in this process which memory is shared: the environment, and what else is in the
//! process. The principal function is [`choice`].

use std::ffi::{CStr, c_char, c_int};

use rustix::fs::{Mode, OFlags};

use crate::choice::Choice;
use crate::next::Function;

/// The environment variable. `softhca run --shared-memory` sets it.
const VARIABLE: &[u8] = b"SOFTHCA_SHARED_MEMORY";

/// The address of a function, or 0 if no library has it. `dlsym` would translate an error message,
/// and the translation takes locks of the C library that this library's caller may hold.
macro_rules! address_of {
    ($name:literal) => {{
        let address: usize;
        // SAFETY: reads the entry that the dynamic linker has filled in for the symbol.
        unsafe {
            std::arch::asm!(
                concat!(".weak ", $name),
                concat!("mov {}, qword ptr [rip + ", $name, "@GOTPCREL]"),
                out(reg) address,
                options(nostack, readonly, preserves_flags),
            );
        }
        address
    }};
}

/// The choice for this process.
pub(crate) fn choice() -> Choice {
    let wanted = environment(VARIABLE, Choice::parse).unwrap_or(Choice::OFF);
    if wanted == Choice::OFF || is_watched() || commits_strictly() { Choice::OFF } else { wanted }
}

/// Whether `malloc` of the program is neither this library's nor the C library's, or calls such a
/// one. It makes small blocks from mappings. A forked child needs some of them, such as the C
/// library's streams, before it has copies of shared mappings.
pub(crate) fn has_other_allocator() -> bool {
    type Malloc = unsafe extern "C" fn(usize) -> *mut std::ffi::c_void;
    // SAFETY: a C string; the name exists, so no error is made.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()) };
    // SAFETY: the type is the one that the C library's manual gives.
    let next = unsafe { Function::malloc.next::<Malloc>() };
    let library = |address: usize| {
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: writes the description of the library that has the address, if there is one.
        let is_found = unsafe { libc::dladdr(std::ptr::with_exposed_provenance(address), found.as_mut_ptr()) };
        // SAFETY: all zeros are a valid value.
        (is_found != 0).then(|| unsafe { found.assume_init() }.dli_fbase.addr())
    };
    let this_library = library(has_other_allocator as fn() -> bool as usize);
    let c_library = library(libc::sigfillset as unsafe extern "C" fn(*mut libc::sigset_t) -> c_int as usize);
    library(first.expose_provenance()) != this_library || next.and_then(|next| library(next as usize)) != c_library
}

/// Whether a sanitizer or valgrind tracks the memory. Direct access is not possible there anyway.
fn is_watched() -> bool {
    let preloads = |value: &[u8]| value.windows(9).any(|part| part == b"vgpreload");
    let sanitizers = [
        address_of!("__asan_init"),
        address_of!("__hwasan_init"),
        address_of!("__tsan_init"),
        address_of!("__msan_init"),
        address_of!("__lsan_init"),
    ];
    sanitizers != [0; 5] || environment(b"LD_PRELOAD", preloads).unwrap_or(false)
}

/// Whether the kernel promises memory only if it has it. Then mmap(2) must fail where shared memory
/// would fail later, with a signal.
fn commits_strictly() -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/sys/vm/overcommit_memory", flags, Mode::empty()) else { return false };
    let mut text = [0];
    let read = rustix::io::read(&file, &mut text[..]);
    read.is_ok() && text == *b"2"
}

/// Reads an environment variable without the program's own `getenv` (shells have one).
fn environment<R>(name: &[u8], read: impl FnOnce(&[u8]) -> R) -> Option<R> {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: read when the process starts, before it has threads that could change it.
    let mut entry = unsafe { environ };
    while !entry.is_null() {
        // SAFETY: the list ends with NULL, where the loop ends.
        let text = unsafe { *entry };
        if text.is_null() {
            return None;
        }
        // SAFETY: each entry is a C string.
        let text = unsafe { CStr::from_ptr(text) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(read(value));
        }
        entry = entry.wrapping_add(1);
    }
    None
}
