/* What a program may notice of its large memory, which `softhca run --shared-memory` makes shared:
 * nothing. `-m WHAT` names a part. Each part first checks that the memory is shared, unless `-p`
 * says that this program runs without the option. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pty.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include "common.h"

enum { PAGE = 4096, SIZE = 1 << 20 };
static int is_private;

/* The rights of the mapping at an address, as rw-s. */
static void rights_of(const void *address, char rights[5])
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    MUST(maps);
    strcpy(rights, "none");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char found[5];
        MUST(sscanf(line, "%lx-%lx %4s", &start, &end, found) == 3);
        if ((unsigned long)address >= start && (unsigned long)address < end) strcpy(rights, found);
    }
    fclose(maps);
}

static int is_shared(const void *address)
{
    char rights[5];
    rights_of(address, rights);
    return rights[3] == 's';
}

static char *must_be_shared(void *memory)
{
    MUST(memory && memory != MAP_FAILED);
    MUST(is_private ? !is_shared(memory) : is_shared(memory));
    return memory;
}

static char *map(size_t size, int flags)
{
    return must_be_shared(mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0));
}

static void must_be(const char *memory, size_t size, int value)
{
    for (size_t i = 0; i < size; i++) if (memory[i] != value) FAIL("byte %zu is %d and not %d", i, memory[i], value);
}

/* The memory of all files of shared memory, in KiB. */
static long shared_kib(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    long kib = -1;
    MUST(status);
    while (fgets(line, sizeof line, status)) if (sscanf(line, "RssShmem: %ld", &kib) == 1) break;
    fclose(status);
    MUST(kib >= 0);
    return kib;
}

static void must_succeed(pid_t child)
{
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the child ended with %#x", status);
}

/* Whether the mapping at an address has a flag, as in /proc/self/smaps. */
static int has_flag(const void *address, const char *flag)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    unsigned long start, end;
    int is_here = 0, found = 0;
    MUST(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_here = (unsigned long)address >= start && (unsigned long)address < end;
        if (is_here && strncmp(line, "VmFlags:", 8) == 0) found = strstr(line, flag) != NULL;
    }
    fclose(maps);
    return found;
}

/* Whether the kernel can read a byte: the process itself would get a signal. */
static int is_readable(const char *address)
{
    int ends[2];
    MUST(pipe(ends) == 0);
    int is_readable = write(ends[1], address, 1) == 1;
    MUST(is_readable || errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
    return is_readable;
}

/* Handlers of fork that a program registers before anything has allocated. */
static char *early;
static void early_before(void)
{
    if (!early) return;
    early[0]++;
    char *block = malloc(SIZE);
    MUST(block);
    block[0] = 1;
    free(block);
}
static void early_in_parent(void) { if (early) early[1]++; }
static void early_in_child(void) { if (early) early[2]++; }
static void register_early(void) { pthread_atfork(early_before, early_in_parent, early_in_child); }
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = register_early;

static int descriptors(void)
{
    int count = 0;
    for (int fd = 3; fd < 4096; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* --- allocating --- */

static void allocating(void)
{
    int before = descriptors();
    char *block = must_be_shared(malloc(SIZE));
    MUST(malloc_usable_size(block) >= SIZE);
    memset(block, 1, SIZE);
    free(block);
    block = must_be_shared(calloc(SIZE / 8, 8));
    must_be(block, SIZE, 0);
    free(block);
    errno = 77;
    block = must_be_shared(calloc(1, 1 << 30));
    MUST(shared_kib() < 1 << 18 && errno == 77);
    free(block);
    /* Growing from a small block to shared ones, and back. */
    block = malloc(1000);
    MUST(!is_shared(block));
    memset(block, 3, 1000);
    for (size_t size = 100000; size < 40000000; size = size * 3 / 2) {
        block = realloc(block, size);
        must_be(block, 1000, 3);
        block[size - 1] = 4;
    }
    must_be_shared(block);
    block = realloc(block, SIZE);
    must_be_shared(block);
    block = reallocarray(block, 10, 10);
    must_be(block, 100, 3);
    MUST(!is_shared(block));
    free(block);
    volatile size_t huge = SIZE_MAX / 2;
    MUST(reallocarray(NULL, huge, 3) == NULL && errno == ENOMEM);
    MUST(malloc(huge) == NULL && calloc(huge, 3) == NULL);
    /* Aligned memory is shared from one page on. */
    void *aligned[6];
    MUST(posix_memalign(&aligned[0], PAGE, 2 * PAGE) == 0);
    MUST(posix_memalign(&aligned[1], 1 << 21, SIZE) == 0);
    aligned[2] = memalign(64, SIZE);
    aligned[3] = aligned_alloc(PAGE, PAGE);
    aligned[4] = valloc(PAGE);
    aligned[5] = pvalloc(1);
    size_t align[] = { PAGE, 1 << 21, 64, PAGE, PAGE, PAGE };
    for (int i = 0; i < 6; i++) {
        if (!is_private) must_be_shared(aligned[i]);
        MUST((uintptr_t)aligned[i] % align[i] == 0);
        memset(aligned[i], 5, PAGE);
        free(aligned[i]);
    }
    MUST(posix_memalign(&aligned[0], 3, SIZE) == EINVAL);
    /* What is freed is given back, with its descriptor. */
    malloc_trim(0);
    MUST(descriptors() == before);
    long kib = shared_kib();
    block = malloc(64 * SIZE);
    memset(block, 6, 64 * SIZE);
    free(block);
    MUST(shared_kib() <= kib);
}

/* Freed blocks are used again, and a bounded number of them is kept. */
static void reusing(void)
{
    long kib = shared_kib();
    /* Small and large blocks that were written come back as zeros if the program wants zeros. */
    for (size_t size = SIZE / 4; size <= 16 * SIZE; size *= 4) {
        char *block = must_be_shared(malloc(size)), *again;
        memset(block, 1, size);
        free(block);
        again = must_be_shared(malloc(size - 100));
        MUST(is_private || again == block);
        free(again);
        again = must_be_shared(calloc(size, 1));
        MUST(is_private || again == block);
        must_be(again, size, 0);
        memset(again, 2, size);
        free(again);
    }
    /* A child has no block that its parent has freed. It frees what its parent has allocated. */
    char *block = must_be_shared(malloc(SIZE));
    memset(block, 3, SIZE);
    pid_t child = fork();
    if (child == 0) {
        char *own = must_be_shared(malloc(4 * SIZE));
        memset(own, 4, 4 * SIZE);
        must_be(block, SIZE, 3);
        free(block);
        free(own);
        own = must_be_shared(calloc(4, SIZE));
        must_be(own, 4 * SIZE, 0);
        _exit(0);
    }
    must_succeed(child);
    must_be(block, SIZE, 3);
    free(block);
    child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        char *own = malloc(SIZE);
        memset(own, 5, SIZE);
        free(own);
        _exit(0);
    }
    must_succeed(child);
    /* Protected and locked blocks. */
    if (!is_private) {
        block = must_be_shared(aligned_alloc(PAGE, SIZE));
        MUST(mprotect(block, SIZE, PROT_READ) == 0);
        free(block);
    }
    block = must_be_shared(aligned_alloc(PAGE, SIZE));
    memset(block, 6, SIZE);
    MUST(mlock(block, SIZE) == 0);
    free(block);
    block = must_be_shared(calloc(1, SIZE));
    must_be(block, SIZE, 0);
    free(block);
    /* Many blocks: most of their memory, and most of their descriptors, go back. */
    enum { MANY = 200 };
    static char *blocks[MANY];
    for (int i = 0; i < MANY; i++) {
        blocks[i] = must_be_shared(malloc(SIZE));
        memset(blocks[i], 7, SIZE);
    }
    for (int i = 0; i < MANY; i++) free(blocks[i]);
    MUST(shared_kib() <= kib + (65 << 10));
    MUST(descriptors() <= 64 + 8);
    malloc_trim(0);
    MUST(shared_kib() <= kib);
}

/* The number of the file behind an address. */
static unsigned long file_of(const void *address)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long start, end, file, found = 0;
    MUST(maps);
    while (fgets(line, sizeof line, maps)) {
        MUST(sscanf(line, "%lx-%lx %*s %*s %*s %lu", &start, &end, &file) == 3);
        if ((unsigned long)address >= start && (unsigned long)address < end) found = file;
    }
    fclose(maps);
    return found;
}

/* What the engine does before a peer gets the file. */
static void grant(unsigned long file)
{
    struct stat found;
    int fd = 0;
    while (fd < 65536 && (fstat(fd, &found) != 0 || found.st_ino != file)) fd++;
    MUST(fd < 65536 && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) == 0);
}

/* Blocks whose file a peer may keep, and blocks with pages that are unlike others, are not used again. */
static void not_reused(void)
{
    for (int how = 0; how < 5; how++) {
        char *block = must_be_shared(aligned_alloc(PAGE, SIZE));
        memset(block, 1, SIZE);
        unsigned long file = file_of(block);
        if (how == 1 && !is_private) grant(file);
        if (how == 2) MUST(mlock(block, PAGE) == 0);
        if (how == 3) MUST(madvise(block, PAGE, MADV_DONTDUMP) == 0);
        if (how == 4) MUST(pkey_mprotect(block, PAGE, PROT_READ | PROT_WRITE, -1) == 0);
        free(block);
        block = must_be_shared(aligned_alloc(PAGE, SIZE));
        MUST(is_private || (file_of(block) == file) == (how == 0));
        free(block);
    }
    /* A block that was hardly used stays sparse when it becomes zeros. */
    long kib = shared_kib();
    for (int i = 0; i < 3; i++) {
        char *block = must_be_shared(calloc(16, SIZE));
        must_be(block + 8 * SIZE, PAGE, 0);
        block[8 * SIZE] = 1;
        MUST(shared_kib() <= kib + 4096);
        free(block);
    }
}

/* More allocations than there are descriptors for. */
static void crowd(void)
{
    struct rlimit limit = { 256, 256 };
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    enum { MANY = 2000 };
    static char *blocks[MANY];
    for (int i = 0; i < MANY; i++) {
        blocks[i] = malloc(128 * 1024);
        MUST(blocks[i]);
        blocks[i][0] = (char)i;
    }
    int own = 0, fds[256];
    for (;;) {
        int fd = open("/dev/null", O_RDONLY);
        if (fd < 0) break;
        fds[own++] = fd;
    }
    MUST(own > 150 && fds[0] < 10);
    for (int i = 0; i < MANY; i++) {
        MUST(blocks[i][0] == (char)i);
        free(blocks[i]);
    }
    MUST(open("/dev/null", O_RDONLY) >= 0 || is_private);
}

/* The program closes every descriptor, and gets its numbers back for other files. */
static void closed(void)
{
    char *block = must_be_shared(malloc(SIZE));
    memset(block, 9, SIZE);
    for (int fd = 3; fd < 20000; fd++) close(fd);
    int other = open("/dev/zero", O_RDONLY);
    MUST(other >= 0);
    for (int fd = 3000; fd < 3200; fd++) MUST(dup2(other, fd) == fd);
    block = realloc(block, 2 * SIZE);
    must_be(block, SIZE, 9);
    pid_t child = fork();
    if (child == 0) {
        must_be(block, SIZE, 9);
        _exit(0);
    }
    must_succeed(child);
    free(block);
    for (int fd = 3000; fd < 3200; fd++) MUST(fcntl(fd, F_GETFD) >= 0);
}

/* --- mapping --- */

static void mapping(void)
{
    long kib = shared_kib();
    char *memory = map(SIZE, 0);
    must_be(memory, SIZE, 0);
    memset(memory, 1, SIZE);
    /* Advice. */
    MUST(madvise(memory, 2 * PAGE, MADV_DONTNEED) == 0);
    must_be(memory, 2 * PAGE, 0);
    must_be(memory + 2 * PAGE, PAGE, 1);
    MUST(madvise(memory + PAGE, 1, MADV_FREE) == 0);
    MUST(madvise(memory, SIZE, MADV_HUGEPAGE) == 0 || errno == EINVAL);
    MUST(madvise(memory, SIZE, MADV_WILLNEED) == 0 && madvise(memory, SIZE, MADV_NOHUGEPAGE) >= -1);
    MUST(madvise(memory + 1, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    MUST(madvise(memory, PAGE, MADV_REMOVE) == -1);
    /* Protection. */
    MUST(mprotect(memory + PAGE, PAGE, PROT_NONE) == 0);
    MUST(madvise(memory + PAGE, PAGE, MADV_DONTNEED) == 0);
    MUST(mprotect(memory + PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    must_be(memory + PAGE, PAGE, 0);
    /* Locks. */
    MUST(mlock(memory, 4 * PAGE) == 0);
    MUST(madvise(memory, PAGE, MADV_DONTNEED) == -1 && errno == EINVAL);
    memset(memory, 2, SIZE);
    MUST(madvise(memory, PAGE, MADV_DONTNEED_LOCKED) == 0);
    must_be(memory, PAGE, 0);
    must_be(memory + PAGE, PAGE, 2);
    MUST(munlock(memory, 4 * PAGE) == 0);
    /* Parts are unmapped, and others mapped over. */
    memset(memory, 2, SIZE);
    MUST(munmap(memory + 4 * PAGE, 4 * PAGE) == 0);
    char rights[5];
    rights_of(memory + 4 * PAGE, rights);
    MUST(strcmp(rights, "none") == 0);
    char *over = mmap(memory + 8 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(over == memory + 8 * PAGE && !is_shared(over));
    must_be(over, 4 * PAGE, 0);
    must_be(memory, 4 * PAGE, 2);
    must_be(memory + 12 * PAGE, SIZE - 12 * PAGE, 2);
    MUST(mprotect(memory, SIZE, PROT_READ) == -1 && errno == ENOMEM);
    MUST(munmap(memory, SIZE) == 0);
    MUST(shared_kib() <= kib + 4);
    /* Flags. */
    memory = map(SIZE, MAP_POPULATE);
    MUST(is_private || shared_kib() >= kib + SIZE / 1024);
    MUST(munmap(memory, SIZE) == 0);
    memory = map(SIZE, MAP_NORESERVE);
    memory[SIZE - 1] = 1;
    MUST(munmap(memory, SIZE) == 0);
    /* Never shared: stacks, reservations, code, small ones. */
    int both = PROT_READ | PROT_WRITE, own = MAP_PRIVATE | MAP_ANONYMOUS;
    MUST(!is_shared(mmap(NULL, SIZE, both, own | MAP_STACK, -1, 0)));
    MUST(!is_shared(mmap(NULL, SIZE, PROT_NONE, own, -1, 0)));
    MUST(!is_shared(mmap(NULL, SIZE, both | PROT_EXEC, own, -1, 0)));
    MUST(!is_shared(mmap(NULL, PAGE, both, own, -1, 0)));
    MUST(mmap(NULL, 0, both, own, -1, 0) == MAP_FAILED && errno == EINVAL);
    MUST(munmap((void *)1, PAGE) == -1 && errno == EINVAL);
}

static void moving(void)
{
    char *memory = map(SIZE, 0);
    memset(memory, 1, SIZE);
    memory = mremap(memory, SIZE, SIZE / 2, 0);
    MUST(memory != MAP_FAILED);
    /* What grows again is zeros. */
    memory = must_be_shared(mremap(memory, SIZE / 2, 2 * SIZE, MREMAP_MAYMOVE));
    must_be(memory, SIZE / 2, 1);
    must_be(memory + SIZE / 2, SIZE + SIZE / 2, 0);
    /* Beyond the file's end. */
    memory = must_be_shared(mremap(memory, 2 * SIZE, 64 * SIZE, MREMAP_MAYMOVE));
    must_be(memory, SIZE / 2, 1);
    must_be(memory + SIZE / 2, 63 * SIZE, 0);
    memory[64 * SIZE - 1] = 5;
    /* A part grows: the rest stays where it is. */
    memset(memory + SIZE, 7, SIZE);
    memset(memory + 2 * SIZE, 8, SIZE);
    char *part = mremap(memory + SIZE, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
    MUST(part != MAP_FAILED);
    must_be(part, SIZE, 7);
    must_be(part + SIZE, SIZE, 0);
    must_be(memory + 2 * SIZE, SIZE, 8);
    /* To a given place, over other memory. */
    char *place = map(2 * SIZE, 0);
    memset(place, 9, 2 * SIZE);
    MUST(mremap(part, 2 * SIZE, 2 * SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    must_be(place, SIZE, 7);
    char rights[5];
    rights_of(part, rights);
    MUST(strcmp(rights, "none") == 0);
    /* The old pages stay, as zeros. */
    char *moved = mremap(place, 2 * SIZE, 2 * SIZE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    MUST(moved != MAP_FAILED);
    must_be(moved, SIZE, 7);
    must_be(place, 2 * SIZE, 0);
    place[0] = 1;
    MUST(moved[0] == 7);
    MUST(mremap(moved, 0, SIZE, MREMAP_MAYMOVE) == MAP_FAILED);
    MUST(munmap(moved, 2 * SIZE) == 0 && munmap(place, 2 * SIZE) == 0);
}

/* Adjacent mappings that the kernel makes one, and locked memory. */
static void moving_together(void)
{
    char *memory = mmap(NULL, 8 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED && munmap(memory, 8 * SIZE) == 0);
    int both = PROT_READ | PROT_WRITE;
    for (int i = 0; i < 2; i++) {
        char *part = mmap(memory + i * SIZE, SIZE, both, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(part == memory + i * SIZE);
        memset(must_be_shared(part), 1 + i, SIZE);
    }
    memory = must_be_shared(mremap(memory, 2 * SIZE, 3 * SIZE, MREMAP_MAYMOVE));
    must_be(memory, SIZE, 1);
    must_be(memory + SIZE, SIZE, 2);
    must_be(memory + 2 * SIZE, SIZE, 0);
    MUST(mprotect(memory, SIZE, PROT_READ) == 0);
    MUST(mremap(memory, 2 * SIZE, 4 * SIZE, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    memory = map(SIZE / 4, 0);
    memset(memory, 3, SIZE / 4);
    MUST(mlock(memory, SIZE / 4) == 0 && has_flag(memory, " lo"));
    memory = must_be_shared(mremap(memory, SIZE / 4, 2 * SIZE, MREMAP_MAYMOVE));
    must_be(memory, SIZE / 4, 3);
    MUST(has_flag(memory, " lo"));
    memory = map(SIZE, 0);
    MUST(madvise(memory, SIZE, MADV_DONTDUMP) == 0);
    memory = must_be_shared(mremap(memory, SIZE, 16 * SIZE, MREMAP_MAYMOVE));
    MUST(has_flag(memory, " dd"));
}

/* As many mappings as the kernel allows, from pages of one. */
static void many_mappings(void)
{
    enum { MANY = 20000 };
    char *memory = map(2L * MANY * PAGE, MAP_NORESERVE);
    for (long i = 0; i < MANY; i++) MUST(mprotect(memory + 2 * i * PAGE, PAGE, PROT_NONE) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (long i = 0; i < MANY; i++) {
            MUST(!is_readable(memory + 2 * i * PAGE));
            MUST(is_readable(memory + (2 * i + 1) * PAGE));
        }
        _exit(0);
    }
    must_succeed(child);
    for (long i = MANY - 1; i >= 0; i--) MUST(mprotect(memory + 2 * i * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    for (long i = 0; i < MANY; i++) MUST(munmap(memory + 2 * i * PAGE, PAGE) == 0);
    memory[PAGE] = 1;
    MUST(munmap(memory, 2L * MANY * PAGE) == 0);
    /* Beyond the limit, the kernel refuses; no protection is lost. */
    memory = map(2L * 70000 * PAGE, MAP_NORESERVE);
    long protected = 0;
    while (protected < 70000 && mprotect(memory + 2 * protected * PAGE, PAGE, PROT_NONE) == 0) protected++;
    MUST(protected < 70000 && errno == ENOMEM);
    MUST(!is_readable(memory + 2 * (protected - 1) * PAGE) && is_readable(memory + 2 * protected * PAGE));
}

/* What advice says of memory also holds for children, and for theirs. */
static void advised(void)
{
    enum { GUARD_INSTALL = 102, GUARD_REMOVE = 103 };
    char *undumped = map(SIZE, 0), *dumped = map(SIZE, 0), *wiped = map(SIZE, 0), *twice = map(SIZE, 0), *guarded = map(SIZE, 0);
    memset(wiped, 1, SIZE);
    memset(twice, 1, SIZE);
    memset(guarded, 1, SIZE);
    MUST(madvise(undumped, SIZE, MADV_DONTDUMP) == 0 && madvise(dumped, SIZE, MADV_DONTDUMP) == 0);
    MUST(madvise(dumped, SIZE, MADV_DODUMP) == 0);
    MUST(madvise(wiped, SIZE, MADV_WIPEONFORK) == 0 && madvise(twice, SIZE, MADV_WIPEONFORK) == 0);
    MUST(madvise(twice, SIZE, MADV_DONTFORK) == 0 && madvise(twice, SIZE, MADV_DOFORK) == 0);
    int has_guards = madvise(guarded + PAGE, PAGE, GUARD_INSTALL) == 0;
    MUST(has_guards || errno == EINVAL);
    pid_t child = fork();
    if (child == 0) {
        MUST(has_flag(undumped, " dd") && !has_flag(dumped, " dd"));
        must_be(wiped, SIZE, 0);
        must_be(twice, SIZE, 0);
        must_be(guarded, PAGE, 1);
        must_be(guarded + 2 * PAGE, PAGE, 1);
        if (has_guards) {
            MUST(!is_readable(guarded + PAGE));
            MUST(madvise(guarded + PAGE, PAGE, GUARD_REMOVE) == 0);
            must_be(guarded + PAGE, PAGE, 0);
        }
        memset(wiped, 2, SIZE);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            must_be(wiped, SIZE, 0);
            _exit(0);
        }
        must_succeed(grandchild);
        _exit(0);
    }
    must_succeed(child);
    must_be(wiped, SIZE, 1);
    MUST(has_flag(undumped, " dd") && !has_flag(dumped, " dd"));
    if (has_guards) {
        MUST(!is_readable(guarded + PAGE) && madvise(guarded + PAGE, PAGE, GUARD_REMOVE) == 0);
        must_be(guarded + PAGE, PAGE, 0);
    }
}

/* Code that a program makes. A debugger writes into it. */
static void code(void)
{
    static const unsigned char returns_42[] = { 0xb8, 42, 0, 0, 0, 0xc3 };
    char *memory = map(SIZE, 0);
    memset(memory, 1, SIZE);
    memcpy(memory + PAGE, returns_42, sizeof returns_42);
    MUST(mprotect(memory + PAGE, PAGE, PROT_READ | PROT_EXEC) == 0);
    int (*function)(void) = (int (*)(void))(uintptr_t)(memory + PAGE);
    MUST(function() == 42);
    int file = open("/proc/self/mem", O_RDWR);
    MUST(file >= 0 && pwrite(file, "\053", 1, (off_t)(uintptr_t)(memory + PAGE + 1)) == 1);
    MUST(function() == 43);
    must_be(memory, PAGE, 1);
    must_be_shared(memory + 2 * PAGE);
    pid_t child = fork();
    if (child == 0) _exit(function() != 43);
    must_succeed(child);
    MUST(munmap(memory, SIZE) == 0);
}

/* Memory that cannot move within its file, and requests that the kernel refuses. */
static void moving_protected(void)
{
    char rights[5];
    char *memory = map(SIZE, 0);
    memset(memory, 4, SIZE);
    MUST(mprotect(memory, SIZE, PROT_READ) == 0);
    memory = mremap(memory, SIZE, 64 * SIZE, MREMAP_MAYMOVE);
    MUST(memory != MAP_FAILED);
    must_be(memory, SIZE, 4);
    must_be(memory + SIZE, 63 * SIZE, 0);
    rights_of(memory, rights);
    MUST(strncmp(rights, "r--", 3) == 0);
    /* A part of a mapping. */
    MUST(mprotect(memory, SIZE / 2, PROT_READ | PROT_WRITE) == 0);
    memset(memory, 5, SIZE / 2);
    char *part = mremap(memory, SIZE / 2, SIZE, MREMAP_MAYMOVE);
    MUST(part != MAP_FAILED);
    must_be(part, SIZE / 2, 5);
    must_be(part + SIZE / 2, SIZE / 2, 0);
    must_be(memory + SIZE / 2, SIZE / 2, 4);
    /* What the kernel refuses leaves the memory as it is. */
    char *kept = map(SIZE, 0);
    memset(kept, 6, SIZE);
    MUST(mmap(kept, SIZE, PROT_READ, MAP_SHARED | MAP_FIXED, -1, 0) == MAP_FAILED && errno == EBADF);
    MUST(mremap(part, SIZE, SIZE, MREMAP_FIXED, kept) == MAP_FAILED && errno == EINVAL);
    must_be(kept, SIZE, 6);
    /* Advice goes on behind addresses without memory. */
    MUST(munmap(kept, PAGE) == 0);
    MUST(madvise(kept, 2 * PAGE, MADV_DONTNEED) == -1 && errno == ENOMEM);
    must_be(kept + PAGE, PAGE, 0);
    must_be(kept + 2 * PAGE, SIZE - 2 * PAGE, 6);
}

/* --- forking --- */

static void forking(void)
{
    char *block = must_be_shared(malloc(SIZE)), *memory = map(SIZE, 0), *hole = map(64 * SIZE, 0);
    char *guarded = map(SIZE, 0), *wiped = map(SIZE, 0), *absent = map(SIZE, 0);
    char *absent_block = must_be_shared(aligned_alloc(PAGE, SIZE));
    int to_child[2], to_parent[2];
    char byte;
    memset(block, 1, SIZE);
    memset(memory, 1, SIZE);
    hole[32 * SIZE] = 1;
    MUST(mprotect(guarded, PAGE, PROT_NONE) == 0);
    memset(wiped, 1, SIZE);
    MUST(madvise(wiped, SIZE, MADV_WIPEONFORK) == 0);
    MUST(madvise(absent, SIZE, MADV_DONTFORK) == 0);
    if (!is_private) MUST(madvise(absent_block, SIZE, MADV_DONTFORK) == 0);
    MUST(pipe(to_child) == 0 && pipe(to_parent) == 0);
    long kib = shared_kib();
    int own = descriptors();
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        MUST(is_private || descriptors() == own - 7);
        MUST(read(to_child[0], &byte, 1) == 1);
        must_be(block, SIZE, 1);
        must_be(memory, SIZE, 1);
        must_be(wiped, SIZE, 0);
        MUST(hole[32 * SIZE] == 1 && hole[0] == 0);
        char rights[5];
        rights_of(guarded, rights);
        MUST(strncmp(rights, "---", 3) == 0);
        rights_of(absent, rights);
        MUST(strcmp(rights, "none") == 0);
        /* A block that is absent keeps its addresses until it is freed. */
        rights_of(absent_block, rights);
        MUST(is_private || strncmp(rights, "---", 3) == 0);
        if (!is_private) free(absent_block);
        rights_of(absent_block, rights);
        MUST(is_private || strcmp(rights, "none") == 0);
        memset(block, 3, SIZE);
        memset(memory, 3, SIZE);
        /* The child's memory can do what its parent's can. */
        MUST(madvise(memory, SIZE, MADV_DONTNEED) == 0);
        must_be(memory, SIZE, 0);
        MUST(munmap(memory, SIZE) == 0);
        block = realloc(block, 3 * SIZE);
        must_be(block, SIZE, 3);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            must_be(block, SIZE, 3);
            block[0] = 4;
            free(block);
            _exit(0);
        }
        must_succeed(grandchild);
        must_be(block, SIZE, 3);
        free(block);
        must_be_shared(malloc(SIZE));
        MUST(write(to_parent[1], "c", 1) == 1);
        _exit(0);
    }
    MUST(is_private || shared_kib() <= kib);
    memset(block, 2, SIZE);
    memset(memory, 2, SIZE);
    MUST(write(to_child[1], "p", 1) == 1 && read(to_parent[0], &byte, 1) == 1);
    must_succeed(child);
    must_be(block, SIZE, 2);
    must_be(memory, SIZE, 2);
    must_be(wiped, SIZE, 1);
    MUST(must_be_shared(block) && must_be_shared(memory));
    free(block);
    free(absent_block);
}

/* Memory that handlers of fork change: before it for both, after it for one each. */
static char *handled;
static void before(void) { handled[0]++; }
static void in_parent(void) { handled[1]++; }
static void in_child(void) { handled[2]++; }

static void other_forks(void)
{
    handled = must_be_shared(calloc(1, SIZE));
    early = must_be_shared(calloc(1, SIZE));
    MUST(pthread_atfork(before, in_parent, in_child) == 0);
    pid_t child = fork();
    if (child == 0) {
        MUST(handled[0] == 1 && handled[1] == 0 && handled[2] == 1);
        MUST(early[0] == 1 && early[1] == 0 && early[2] == 1);
        _exit(0);
    }
    must_succeed(child);
    MUST(handled[0] == 1 && handled[1] == 1 && handled[2] == 0);
    MUST(early[0] == 1 && early[1] == 1 && early[2] == 0);
    child = _Fork();
    if (child == 0) {
        handled[5] = 1;
        _exit(handled[0] != 1);
    }
    must_succeed(child);
    MUST(handled[5] == 0);
    int terminal;
    child = forkpty(&terminal, NULL, NULL, NULL);
    if (child == 0) {
        handled[5] = 1;
        _exit(handled[0] != 2);
    }
    must_succeed(child);
    MUST(handled[5] == 0);
    /* A child that shares the memory writes into it. */
    child = vfork();
    if (child == 0) {
        handled[6] = 1;
        _exit(0);
    }
    must_succeed(child);
    MUST(handled[6] == 1);
    MUST(system("true") == 0);
    char *words[] = { "true", NULL };
    extern char **environ;
    MUST(posix_spawnp(&child, "true", NULL, NULL, words, environ) == 0);
    must_succeed(child);
    /* Without the C library, the child does not have the memory, rather than its parent's. */
    child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        static const struct rlimit none;
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL);
        handled[7] = 1;
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && handled[7] == 0);
    MUST(is_private ? WIFEXITED(status) : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static int cloned(void *argument)
{
    char *memory = argument;
    must_be(memory, SIZE, 1);
    memset(memory, 2, SIZE);
    return 0;
}

static void *forks_itself(void *argument)
{
    char *memory = argument;
    pid_t child = fork();
    if (child == 0) {
        must_be(memory, SIZE, 1);
        _exit(0);
    }
    must_succeed(child);
    return NULL;
}

static char *shared_for_handler;
static void handler_forks(int signal)
{
    (void)signal;
    forks_itself(shared_for_handler);
}

static void stacks(void)
{
    char *memory = must_be_shared(malloc(SIZE)), *stack = must_be_shared(malloc(SIZE));
    memset(memory, 1, SIZE);
    must_succeed(clone(cloned, stack + SIZE, SIGCHLD, memory));
    must_be(memory, SIZE, 1);
    free(stack);
    pthread_attr_t attributes;
    pthread_t thread;
    MUST(posix_memalign((void **)&stack, PAGE, SIZE) == 0);
    MUST(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, SIZE) == 0);
    MUST(pthread_create(&thread, &attributes, forks_itself, memory) == 0 && pthread_join(thread, NULL) == 0);
    MUST(!is_shared(stack));
    free(stack);
    /* Stacks that begin and end inside of pages, each in a part of one block. */
    enum { EACH = 100000 };
    char *all = must_be_shared(malloc(8 * SIZE));
    memset(all, 3, 100);
    for (int i = 0; i < 4; i++) {
        MUST(pthread_attr_setstack(&attributes, all + 112 + i * EACH, EACH) == 0);
        MUST(pthread_create(&thread, &attributes, forks_itself, memory) == 0 && pthread_join(thread, NULL) == 0);
    }
    must_be(all, 100, 3);
    must_be_shared(all + SIZE);
    /* A stack of which the program gives the end. */
    MUST(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, SIZE) == 0);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    MUST(pthread_attr_setstackaddr(&attributes, all + 6 * SIZE + 128) == 0);
#pragma GCC diagnostic pop
    MUST(pthread_create(&thread, &attributes, forks_itself, memory) == 0 && pthread_join(thread, NULL) == 0);
    free(all);
    /* A signal handler's stack. */
    stack = must_be_shared(malloc(SIZE));
    shared_for_handler = memory;
    stack_t alternative = { .ss_sp = stack + 48, .ss_size = SIZE - 100 };
    struct sigaction action = { .sa_handler = handler_forks, .sa_flags = SA_ONSTACK };
    MUST(sigaltstack(&alternative, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
}

/* --- coroutines: on a stack that the program has allocated itself --- */

static ucontext_t outside, inside;
static char *shared_data;
static int child_of_coroutine;

/* Works in the parent, and in a child that goes on behind the fork. */
static void must_have_copies(pid_t child, char *local)
{
    MUST(child >= 0);
    if (child == 0) {
        must_be(shared_data, SIZE, 1);
        must_be(local, 5000, 8);
        memset(shared_data, 2, SIZE);
        memset(local, 9, 5000);
        /* Both stacks are the child's own. */
        child_of_coroutine = 1;
        swapcontext(&inside, &outside);
        _exit(3);
    }
    memset(local, 8, 5000);
    must_succeed(child);
    must_be(shared_data, SIZE, 1);
    must_be(local, 5000, 8);
}

static void coroutine(void)
{
    char local[5000];
    memset(local, 8, sizeof local);
    if (!is_private) must_be_shared(local);
    must_have_copies(fork(), local);
    must_have_copies(_Fork(), local);
    int terminal;
    must_have_copies(forkpty(&terminal, NULL, NULL, NULL), local);
    char *stack = malloc(SIZE);
    must_succeed(clone(cloned, stack + SIZE, SIGCHLD, shared_data));
    free(stack);
    MUST(system("true") == 0);
    pid_t child = vfork();
    if (child == 0) _exit(0);
    must_succeed(child);
    swapcontext(&inside, &outside);
    FAIL("nobody comes back");
}

static void coroutines(void)
{
    shared_data = must_be_shared(malloc(SIZE));
    memset(shared_data, 1, SIZE);
    char *stacks[] = { must_be_shared(malloc(SIZE)), map(SIZE, 0), map(SIZE, 0) };
    /* A part of a mapping with a guard page. */
    MUST(mprotect(stacks[2], PAGE, PROT_NONE) == 0);
    for (int i = 0; i < 3; i++) {
        MUST(getcontext(&inside) == 0);
        inside.uc_stack.ss_sp = stacks[i] + PAGE;
        inside.uc_stack.ss_size = SIZE - PAGE;
        makecontext(&inside, coroutine, 0);
        MUST(swapcontext(&outside, &inside) == 0);
        if (child_of_coroutine) _exit(0);
    }
}

/* Threads write while others fork. Each word that a thread writes is a pair of equal halves, and a
 * child's memory does not change. */
enum { WRITERS = 2, FORKS = 30, WORDS = SIZE / 8 };
static _Atomic int is_over;

static void *writer(void *argument)
{
    _Atomic uint64_t *words = argument;
    for (uint64_t round = 1; !atomic_load(&is_over); round++)
        for (int i = 0; i < WORDS; i += 64) atomic_store(&words[i], round << 32 | round);
    return NULL;
}

/* Allocates and maps while others fork. */
static void *maker(void *argument)
{
    (void)argument;
    while (!atomic_load(&is_over)) {
        char *block = malloc(SIZE / 4), *more = mmap(NULL, SIZE / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(block && more != MAP_FAILED);
        block[0] = more[0] = 1;
        block = realloc(block, SIZE / 2);
        MUST(block && munmap(more + PAGE, PAGE) == 0 && munmap(more, SIZE / 4) == 0);
        free(block);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t writers[WRITERS], makers[2];
    _Atomic uint64_t *words[WRITERS];
    char *still = must_be_shared(malloc(SIZE));
    memset(still, 1, SIZE);
    for (int i = 0; i < WRITERS; i++) {
        words[i] = (void *)must_be_shared(calloc(1, SIZE));
        MUST(pthread_create(&writers[i], NULL, writer, words[i]) == 0);
    }
    for (int i = 0; i < 2; i++) MUST(pthread_create(&makers[i], NULL, maker, NULL) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            static uint64_t seen[WRITERS][WORDS];
            for (int again = 0; again < 3; again++) {
                for (int w = 0; w < WRITERS; w++)
                    for (int k = 0; k < WORDS; k += 64) {
                        uint64_t word = words[w][k];
                        if (word >> 32 != (uint32_t)word) _exit(2);
                        if (again && word != seen[w][k]) _exit(3);
                        seen[w][k] = word;
                    }
                sched_yield();
            }
            must_be(still, SIZE, 1);
            memset(still, 2, SIZE);
            for (int w = 0; w < WRITERS; w++) memset((void *)words[w], 0xff, SIZE);
            _exit(0);
        }
        must_succeed(child);
    }
    atomic_store(&is_over, 1);
    for (int i = 0; i < WRITERS; i++) MUST(pthread_join(writers[i], NULL) == 0);
    for (int i = 0; i < 2; i++) MUST(pthread_join(makers[i], NULL) == 0);
    must_be(still, SIZE, 1);
    for (int w = 0; w < WRITERS; w++)
        for (int k = 0; k < WORDS; k += 64) MUST(words[w][k] >> 32 == (uint32_t)words[w][k] && ~words[w][k]);
}

/* --- limits --- */

static void limits(void)
{
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_AS, &limit) == 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 1 << 30;
    MUST(setrlimit(RLIMIT_AS, &limit) == 0);
    MUST(malloc(2UL << 30) == NULL && errno == ENOMEM);
    MUST(mmap(NULL, 2UL << 30, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    limit.rlim_cur = before;
    MUST(setrlimit(RLIMIT_AS, &limit) == 0);
    /* Files of a limited size: the memory stays private, and no signal comes. */
    MUST(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = PAGE;
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    char *block = malloc(SIZE);
    MUST(block && !is_shared(block));
    memset(block, 1, SIZE);
    free(block);
    limit.rlim_cur = RLIM_INFINITY;
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    /* Locked memory beyond the limit, for a program without privileges. */
    struct rlimit lock = { SIZE, SIZE };
    pid_t child = fork();
    if (child == 0) {
        MUST(setrlimit(RLIMIT_MEMLOCK, &lock) == 0 && (geteuid() != 0 || setuid(64002) == 0));
        int own = MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, both = PROT_READ | PROT_WRITE;
        MUST(mmap(NULL, 2 * SIZE, both, own, -1, 0) == MAP_FAILED && errno == EAGAIN);
        MUST(has_flag(map(SIZE / 2, MAP_LOCKED), " lo"));
        _exit(0);
    }
    must_succeed(child);
    /* More than the machine has. */
    MUST(malloc(1UL << 46) == NULL && errno == ENOMEM);
}

static int crash(void)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    setrlimit(RLIMIT_CORE, &limit);
    char *block = must_be_shared(malloc(SIZE));
    for (int i = 0; i + 16 < SIZE; i += 16) memcpy(block + i, "in the core dump", 16);
    abort();
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*part)(void); } parts[] = {
        { "allocating", allocating }, { "reusing", reusing }, { "not_reused", not_reused }, { "crowd", crowd }, { "closed", closed }, { "mapping", mapping }, { "moving", moving },
        { "moving_protected", moving_protected }, { "moving_together", moving_together },
        { "many_mappings", many_mappings }, { "advised", advised }, { "code", code },
        { "forking", forking }, { "other_forks", other_forks }, { "stacks", stacks }, { "coroutines", coroutines }, { "threads", threads }, { "limits", limits },
    };
    const char *what = "";
    for (int option; (option = getopt(argc, argv, "m:p")) != -1;) {
        if (option == 'm') what = optarg;
        else is_private = 1;
    }
    if (strcmp(what, "crash") == 0) return crash();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(what, parts[i].name) != 0) continue;
        parts[i].part();
        printf("done\n");
        return 0;
    }
    FAIL("there is no part %s", what);
}
