//! The functions that map memory, fork, or take memory as a stack, under the names of the C
//! library. They only pass their arguments on.

#![allow(non_snake_case, reason = "the names are the C library's")]

use std::ffi::c_int;

use interpose::{intercept, refused};

use crate::choice::PAGE;
use crate::forks;
use crate::front::{is_ready, span};
use crate::mappings::{self, Move};
use crate::next::Function;
use crate::stack;

intercept! {
    /// Maps memory.
    fn mmap(
        address: usize, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64,
    ) -> isize as next => mappings::map(
        length, (address, protection, flags), |flags| next(address, length, protection, flags, fd, offset),
    );

    /// The same function, for programs that say how long an offset is.
    fn mmap64(
        address: usize, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64,
    ) -> isize as next => mappings::map(
        length, (address, protection, flags), |flags| next(address, length, protection, flags, fd, offset),
    );

    /// Unmaps memory.
    fn munmap(address: usize, length: usize) -> c_int as next =>
        mappings::unmap(address, length, || next(address, length));

    /// Changes the size and the place of a mapping.
    fn mremap(
        address: usize, length: usize, new_length: usize, flags: c_int, new_address: usize,
    ) -> isize as next => mappings::remap(
        &Move { address, length, new_length, flags, new_address },
        |length, flags| next(address, length, new_length, flags, new_address),
    );

    /// Advises the kernel.
    fn madvise(address: usize, length: usize, advice: c_int) -> c_int as next =>
        mappings::advise(address, length, advice, |address, length| next(address, length, advice));

    /// Sets the protection of memory.
    fn mprotect(address: usize, length: usize, protection: c_int) -> c_int as next =>
        mappings::protect(address, length, protection, || next(address, length, protection));

    /// Sets the protection of memory, and its key.
    fn pkey_mprotect(address: usize, length: usize, protection: c_int, key: c_int) -> c_int as next => {
        let answer = mappings::protect(address, length, protection, || next(address, length, protection, key));
        mappings::mark(address, length);
        answer
    };

    /// Locks memory.
    fn mlock(address: usize, length: usize) -> c_int as next => {
        mappings::mark(address, length);
        next(address, length)
    };

    /// Locks memory, perhaps only what is present.
    fn mlock2(address: usize, length: usize, flags: c_int) -> c_int as next => {
        mappings::mark(address, length);
        next(address, length, flags)
    };

    /// Gives freed memory back to the machine.
    fn malloc_trim(pad: usize) -> c_int as next => c_int::from(crate::front::give_up()) | next(pad);

    /// Forks. The handlers do the rest.
    fn fork() -> c_int as next => forking(next);

    /// Forks without handlers.
    fn _Fork() -> c_int as next =>
        if forks::is_under_way() {
            next()
        } else {
            forking(move || {
                forks::prepare();
                let child = next();
                if child == 0 { forks::in_child() } else { forks::in_parent() }
                child
            })
        };

    /// Goes to the background: the parent ends, and the child goes on.
    fn daemon(stays: c_int, keeps: c_int) -> c_int as next => forking(move || next(stays, keeps));

    /// Forks, with a terminal for the child.
    fn forkpty(place: usize, name: usize, terminal: usize, window: usize) -> c_int as next =>
        forking(move || next(place, name, terminal, window));

    /// Starts a process or a thread. A process of its own gets copies.
    fn clone(
        function: usize, stack: usize, flags: c_int, argument: usize, parent: usize, storage: usize, child: usize,
    ) -> c_int as next => {
        if flags & libc::CLONE_VM != 0 || !is_ready() {
            return next(function, stack, flags, argument, parent, storage, child);
        }
        if let Some(block) = crate::blocks::around(stack.wrapping_sub(1)) {
            forks::make_private(&block, |_| true);
        }
        forking(move || {
            let start = Start { function, argument, shares_files: flags & libc::CLONE_FILES != 0 };
            forks::prepare();
            let begin = begin as extern "C" fn(*const Start) -> c_int as usize;
            let process = next(begin, stack, flags, (&raw const start).expose_provenance(), parent, storage, child);
            forks::in_parent();
            process
        })
    };

    /// Registers handlers of forks: after those of this library.
    fn __register_atfork(prepare: usize, parent: usize, child: usize, library: usize) -> c_int as next => {
        forks::register();
        next(prepare, parent, child, library)
    };

    /// Starts a thread, perhaps on a stack of the program.
    fn pthread_create(
        thread: usize, attributes: *const libc::pthread_attr_t, function: usize, argument: usize,
    ) -> c_int as next => {
        let stack = if attributes.is_null() || !is_ready() { None } else { stack_of(attributes) };
        if let Some((stack, size)) = stack {
            whole_stack(stack, size);
        }
        next(thread, attributes, function, argument)
    };

    /// Gives signal handlers a stack.
    fn sigaltstack(new: *const libc::stack_t, old: usize) -> c_int as next => {
        // SAFETY: NULL, or the caller's description of a stack.
        if let Some(new) = unsafe { new.as_ref() }.filter(|new| new.ss_flags & libc::SS_DISABLE == 0) {
            whole_stack(new.ss_sp.addr(), new.ss_size);
        }
        next(new, old)
    };
}

/// Runs a function that forks, if the child can have copies.
fn forking(fork: impl FnOnce() -> c_int) -> c_int {
    let child = if is_ready() && forks::is_possible() { stack::on_private(fork) } else { None };
    child.unwrap_or_else(|| refused(libc::ENOMEM))
}

/// What the program wants a process to begin with.
struct Start {
    function: usize,
    argument: usize,
    /// The descriptors are also the parent's.
    shares_files: bool,
}

/// The first function of a process that `clone` has made.
extern "C" fn begin(start: *const Start) -> c_int {
    // SAFETY: this process has a copy of the stack of `clone`, with the value. That stack is
    // private memory.
    let Start { function, argument, shares_files } = unsafe { start.read() };
    forks::in_child_with(shares_files);
    // SAFETY: the caller of `clone` gave the function and its argument.
    let function: unsafe extern "C" fn(usize) -> c_int = unsafe { std::mem::transmute(function) };
    // SAFETY: as above.
    unsafe { function(argument) }
}

/// The address and the size of the stack that a thread will have, if the program has set it.
fn stack_of(attributes: *const libc::pthread_attr_t) -> Option<(usize, usize)> {
    let (mut lowest, mut length, mut size) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: the attributes are the program's, and the other pointers are to local variables.
    let is_known = unsafe {
        libc::pthread_attr_getstack(attributes, &raw mut lowest, &raw mut length) == 0
            && libc::pthread_attr_getstacksize(attributes, &raw mut size) == 0
    };
    // The C library computes the lowest address from the highest. The length is 0 if the usual size
    // is meant. Without a stack, the highest address is 0.
    let highest = lowest.addr().wrapping_add(length);
    (is_known && highest != 0).then(|| (highest.saturating_sub(size), size))
}

/// Makes all pages private that a stack touches.
fn whole_stack(stack: usize, size: usize) {
    let first = stack / PAGE * PAGE;
    if let Some(span) = stack.checked_add(size).and_then(|end| span(first, end - first)) {
        forks::make_private(&span, |_| true);
    }
}
