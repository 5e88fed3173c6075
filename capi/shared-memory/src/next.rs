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
    pkey_mprotect,
    mlock,
    mlock2,
    // Forking.
    fork,
    _Fork,
    clone,
    daemon,
    forkpty,
    __register_atfork,
    // Stacks.
    pthread_create,
    sigaltstack,
);

interpose::when_loaded!({
    if crate::front::is_ready() {
        crate::front::choose();
    }
});
