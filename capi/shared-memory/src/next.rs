//! The functions of the C library that this library replaces: those that allocate and map memory,
//! those that fork, and those that take memory as a stack.

interpose::functions!(
    // Allocating.
    malloc,
    calloc,
    realloc,
    reallocarray,
    free,
    memalign,
    aligned_alloc,
    posix_memalign,
    valloc,
    pvalloc,
    malloc_usable_size,
    malloc_trim,
    // Mapping.
    mmap,
    mmap64,
    munmap,
    mremap,
    madvise,
    mprotect,
    // Forking.
    fork,
    _Fork,
    clone,
    daemon,
    forkpty,
    // Stacks.
    pthread_attr_setstack,
    sigaltstack,
);

/// Runs when the library is loaded.
#[cfg(not(test))]
extern "C" fn loaded() {
    if crate::front::is_ready() {
        crate::front::choose();
    }
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls the functions in this section, which contains one address.
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_c_library_has_them_all() {
        NEXT.look_up_all();
        assert_eq!(NEXT.missing().next(), None);
    }
}
