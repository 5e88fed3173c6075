/* What two processors of this machine can do without an adapter: the reference for latencies and
 * bandwidths.
 *   baseline WHAT [BYTES]     prints one number
 *   bounce     microseconds for a cache line to go from one processor to the other
 *   cells      the same for a cell of 64 bytes in a ring, with one ring in each direction
 *   verbs      the same for a message of 8 bytes with what verbs promise beside the transfer
 *   verbs-rate million such messages in a second, one way
 *   ring       MiB/s through a byte ring in shared memory: one processor copies in, the other out
 *   memcpy     MiB/s of one processor that copies
 *   writev     MiB/s of process_vm_writev into the other process
 *   futex      microseconds for one process to wake the other by a futex
 *   eventfd    the same by an eventfd
 *   socket     microseconds of a request and its reply over a unix socket, 64 bytes each
 *   nearby     the same for two processes that share a processor
 * This process runs on the last processor. The other process runs on the first one, unless they
 * share one. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <signal.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)
/* Longer than the second-level cache, which a line leaves before it is written again. */
#define RING ((size_t)4 << 20)
#define PIECE ((size_t)32 << 10)
#define SPAN 0.25
enum { CELLS = 64, WARM = 1000, MANY = 200000, FEW = 20000 };

struct line { _Alignas(64) _Atomic uint64_t word; char rest[56]; };
struct shared {
    struct line ball, head, tail, stop;
    _Alignas(64) _Atomic uint32_t there;
    _Alignas(64) _Atomic uint32_t back;
    struct line to[CELLS], from[CELLS];
    _Alignas(4096) char bytes[RING];
};

static struct shared *shared;
static pid_t other;
static int together;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void stay(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static inline void rest(void) { __builtin_ia32_pause(); }

/* Forks; returns true in the other process. */
static int two(void)
{
    int last = (int)sysconf(_SC_NPROCESSORS_ONLN) - 1;
    other = fork();
    MUST(other >= 0);
    if (other == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    stay(other == 0 && !together ? 0 : last);
    return other == 0;
}

static void report(double value)
{
    printf("%.6f\n", value);
    int status;
    if (other > 0) MUST(waitpid(other, &status, 0) == other && status == 0);
}

static void bounce(void)
{
    int answers = two();
    double start = 0;
    for (uint64_t i = 0; i < WARM + MANY; i++) {
        if (i == WARM) start = now();
        if (!answers) atomic_store_explicit(&shared->ball.word, 2 * i + 1, memory_order_release);
        uint64_t awaited = answers ? 2 * i + 1 : 2 * i + 2;
        while (atomic_load_explicit(&shared->ball.word, memory_order_acquire) != awaited) rest();
        if (answers) atomic_store_explicit(&shared->ball.word, 2 * i + 2, memory_order_release);
    }
    if (!answers) report((now() - start) / MANY / 2 * 1e6);
}

static void put(struct line *ring, uint64_t i, const char *from)
{
    struct line *cell = &ring[i % CELLS];
    memcpy(cell->rest, from, sizeof cell->rest);
    atomic_store_explicit(&cell->word, i + 1, memory_order_release);
}

static void take(struct line *ring, uint64_t i, char *into)
{
    struct line *cell = &ring[i % CELLS];
    while (atomic_load_explicit(&cell->word, memory_order_acquire) != i + 1) rest();
    memcpy(into, cell->rest, sizeof cell->rest);
}

static void cells(void)
{
    int answers = two();
    char mine[56] = { 1 };
    double start = 0;
    for (uint64_t i = 0; i < WARM + MANY; i++) {
        if (i == WARM) start = now();
        if (answers) {
            take(shared->to, i, mine);
            put(shared->from, i, mine);
        } else {
            put(shared->to, i, mine);
            take(shared->from, i, mine);
        }
    }
    if (!answers) report((now() - start) / MANY / 2 * 1e6);
}

/* The least that a reliable queue pair does for each message. The program posts requests to a send
 * queue and a receive queue, each with its lock and bounds that are checked. The receiver copies the
 * message to the buffer of the oldest receive request, writes a completion, and acknowledges the
 * message. The acknowledgement completes the oldest send requests. Polling takes a lock, too. As in
 * ib_send_bw -l 16, requests are posted in lists and only the last of a list has a completion. */
enum { MESSAGE = 1, ACK, SENT = 16, RECEIVED };
enum { WINDOW = CELLS / 2, BATCH = 16 };
struct request { uint64_t id; char *data; uint32_t length, key; int signaled; };
struct completion { uint64_t id; uint32_t status, opcode, bytes, qp; uint64_t more[3]; };
struct queue { _Atomic int lock; uint64_t head, tail; struct request entry[CELLS]; };
struct results { _Atomic int lock; uint64_t head, tail; struct completion entry[2 * CELLS]; };
struct region { char *start; uint32_t length, key; };
struct packet { uint32_t kind, qp, psn, length; char data[40]; };
struct pair {
    struct queue send, receive;
    struct results sent, received;
    struct region regions[4];
    struct line *out, *in;
    uint64_t put, taken, unacked;
};

static void lock(_Atomic int *word)
{
    while (atomic_exchange_explicit(word, 1, memory_order_acquire)) rest();
}

static void unlock(_Atomic int *word) { atomic_store_explicit(word, 0, memory_order_release); }

static void check(struct pair *pair, struct request *request)
{
    struct region *region = &pair->regions[request->key % 4];
    MUST(region->key == request->key && request->data >= region->start
         && request->data + request->length <= region->start + region->length);
}

static void push(struct pair *pair, struct packet *packet)
{
    packet->psn = (uint32_t)pair->put;
    put(pair->out, pair->put++, (char *)packet);
}

static __attribute__((noinline)) void post_receive(struct pair *pair, struct request *request)
{
    lock(&pair->receive.lock);
    MUST(pair->receive.tail - pair->receive.head < CELLS);
    pair->receive.entry[pair->receive.tail++ % CELLS] = *request;
    unlock(&pair->receive.lock);
}

static __attribute__((noinline)) void post_send(struct pair *pair, struct request *request, int count)
{
    lock(&pair->send.lock);
    MUST(pair->send.tail - pair->send.head + count <= CELLS);
    while (count-- > 0) {
        struct request *entry = &pair->send.entry[pair->send.tail++ % CELLS];
        *entry = *request;
        entry->signaled = count == 0;
        check(pair, entry);
        struct packet packet = { .kind = MESSAGE, .qp = 1, .length = entry->length };
        memcpy(packet.data, entry->data, entry->length);
        push(pair, &packet);
    }
    unlock(&pair->send.lock);
}

static void complete(struct results *results, struct request *request, uint32_t opcode, uint32_t bytes)
{
    struct completion *entry = &results->entry[results->tail++ % (2 * CELLS)];
    *entry = (struct completion){ .id = request->id, .opcode = opcode, .bytes = bytes, .qp = 1 };
}

/* Handles one packet, if there is one. `acks`: acknowledges it now, and not with a later one. */
static int progress(struct pair *pair, int acks)
{
    struct line *cell = &pair->in[pair->taken % CELLS];
    if (atomic_load_explicit(&cell->word, memory_order_acquire) != pair->taken + 1) return 0;
    struct packet packet;
    memcpy(&packet, cell->rest, sizeof packet);
    MUST(packet.psn == (uint32_t)pair->taken++ && packet.qp == 1);
    if (packet.kind == ACK) {
        for (uint32_t i = 0; i < packet.length; i++) {
            struct request *entry = &pair->send.entry[pair->send.head++ % CELLS];
            if (entry->signaled) complete(&pair->sent, entry, SENT, 0);
        }
        return 1;
    }
    MUST(pair->receive.head < pair->receive.tail);
    struct request *request = &pair->receive.entry[pair->receive.head++ % CELLS];
    check(pair, request);
    MUST(packet.length <= request->length && packet.length <= sizeof packet.data);
    memcpy(request->data, packet.data, packet.length);
    complete(&pair->received, request, RECEIVED, packet.length);
    if (++pair->unacked >= BATCH || acks) {
        struct packet ack = { .kind = ACK, .qp = 1, .length = (uint32_t)pair->unacked };
        push(pair, &ack);
        pair->unacked = 0;
    }
    return 1;
}

static __attribute__((noinline)) int poll_results(struct pair *pair, struct results *results,
                                                  struct completion *into, int most, int acks)
{
    int found = 0;
    lock(&results->lock);
    while (results->tail - results->head < (uint64_t)most && progress(pair, acks)) {}
    for (; found < most && results->head != results->tail; found++) {
        into[found] = results->entry[results->head++ % (2 * CELLS)];
        MUST(into[found].status == 0);
    }
    unlock(&results->lock);
    return found;
}

static struct pair *pair_of(int answers, char *memory, uint32_t length)
{
    struct pair *pair = calloc(1, sizeof *pair);
    MUST(pair);
    pair->regions[1] = (struct region){ memory, length, 1 };
    pair->out = answers ? shared->from : shared->to;
    pair->in = answers ? shared->to : shared->from;
    return pair;
}

static void verbs(void)
{
    int answers = two();
    char memory[16] = { 1 };
    struct pair *pair = pair_of(answers, memory, sizeof memory);
    struct request message = { .data = memory, .length = 8, .key = 1 };
    struct request room = { .data = memory + 8, .length = 8, .key = 1 };
    struct completion completion;
    double start = 0;
    post_receive(pair, &room);
    for (uint64_t i = 0; i < WARM + MANY; i++) {
        if (i == WARM) start = now();
        message.id = room.id = i;
        if (!answers) post_send(pair, &message, 1);
        while (!poll_results(pair, &pair->received, &completion, 1, 1)) rest();
        post_receive(pair, &room);
        if (answers) post_send(pair, &message, 1);
        while (!poll_results(pair, &pair->sent, &completion, 1, 1)) rest();
    }
    if (!answers) report((now() - start) / MANY / 2 * 1e6);
}

static void verbs_rate(void)
{
    enum { ALL = (WARM + MANY) / BATCH * BATCH };
    int receives = two();
    char memory[16] = { 1 };
    struct pair *pair = pair_of(receives, memory, sizeof memory);
    struct request request = { .data = memory, .length = 8, .key = 1 };
    struct completion completions[BATCH];
    for (; receives && request.id < CELLS; request.id++) post_receive(pair, &request);
    double start = 0;
    uint64_t begun = 0, done = 0, first = 0;
    while (done < ALL) {
        if (!receives && begun < ALL && begun - done + BATCH <= WINDOW) {
            post_send(pair, &request, BATCH);
            begun += BATCH;
        }
        int found = poll_results(pair, receives ? &pair->received : &pair->sent, completions, BATCH, 0);
        for (int i = 0; receives && i < found; i++) post_receive(pair, &request);
        done += (uint64_t)found * (receives ? 1 : BATCH);
        if (!first && done >= WARM) start = now(), first = done;
    }
    if (!receives) report((double)(ALL - first) / (now() - start) / 1e6);
}

/* Both processors copy at the same time, each between its own buffer and the ring. */
static void ring(size_t size)
{
    int reads = two();
    char *own = malloc(size);
    MUST(own);
    memset(own, 1, size);
    uint64_t at = 0, end = UINT64_MAX;
    double start = now(), warm = 0;
    uint64_t from = 0;
    while (at < end) {
        for (size_t done = 0; done < size;) {
            size_t piece = size - done < PIECE ? size - done : PIECE, place = at % RING;
            if (piece > RING - place) piece = RING - place;
            if (reads) {
                uint64_t head;
                while ((head = atomic_load_explicit(&shared->head.word, memory_order_acquire)) <= at) {
                    if (atomic_load_explicit(&shared->stop.word, memory_order_acquire)) return;
                    rest();
                }
                if (piece > head - at) piece = head - at;
                memcpy(own + done, shared->bytes + place, piece);
                at += piece;
                atomic_store_explicit(&shared->tail.word, at, memory_order_release);
            } else {
                while (at + piece - atomic_load_explicit(&shared->tail.word, memory_order_acquire) > RING) rest();
                memcpy(shared->bytes + place, own + done, piece);
                at += piece;
                atomic_store_explicit(&shared->head.word, at, memory_order_release);
            }
            done += piece;
        }
        if (reads) continue;
        double passed = now() - start;
        if (warm == 0 && passed > SPAN / 5) { warm = passed; from = at; }
        if (passed > SPAN) end = at;
    }
    while (atomic_load_explicit(&shared->tail.word, memory_order_acquire) != at) rest();
    double time = now() - start - warm;
    atomic_store_explicit(&shared->stop.word, 1, memory_order_release);
    report((double)(at - from) / time / (1 << 20));
}

static void copies(size_t size)
{
    char *a = malloc(size), *b = malloc(size);
    MUST(a && b);
    memset(a, 1, size);
    memset(b, 2, size);
    stay((int)sysconf(_SC_NPROCESSORS_ONLN) - 1);
    uint64_t count = 0;
    double start = now(), time;
    do {
        memcpy(b, a, size);
        __asm__ volatile("" ::"r"(b) : "memory");
        count++;
    } while ((time = now() - start) < SPAN);
    report((double)count * (double)size / time / (1 << 20));
}

static void writes(size_t size)
{
    /* At the same address in both processes. */
    char *a = malloc(size), *b = malloc(size);
    MUST(a && b);
    memset(a, 1, size);
    memset(b, 2, size);
    if (two()) {
        memset(b, 3, size);
        atomic_store(&shared->ball.word, 1);
        while (!atomic_load(&shared->stop.word)) rest();
        return;
    }
    while (!atomic_load(&shared->ball.word)) rest();
    uint64_t count = 0;
    double start = now(), time;
    struct iovec from = { a, size }, into = { b, size };
    do {
        MUST(process_vm_writev(other, &from, 1, &into, 1, 0) == (ssize_t)size);
        count++;
    } while ((time = now() - start) < SPAN);
    atomic_store(&shared->stop.word, 1);
    report((double)count * (double)size / time / (1 << 20));
}

static void wait_for(_Atomic uint32_t *word, uint32_t value)
{
    uint32_t seen;
    while ((seen = atomic_load_explicit(word, memory_order_acquire)) != value) syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void wake(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void futexes(void)
{
    int answers = two();
    double start = 0;
    for (uint32_t i = 1; i <= WARM + FEW; i++) {
        if (i == WARM + 1) start = now();
        if (!answers) wake(&shared->there, i);
        wait_for(answers ? &shared->there : &shared->back, i);
        if (answers) wake(&shared->back, i);
    }
    if (!answers) report((now() - start) / FEW / 2 * 1e6);
}

static void eventfds(void)
{
    int there = eventfd(0, 0), back = eventfd(0, 0);
    MUST(there >= 0 && back >= 0);
    int answers = two();
    double start = 0;
    for (int i = 0; i < WARM + FEW; i++) {
        uint64_t one = 1;
        if (i == WARM) start = now();
        if (!answers) MUST(write(there, &one, 8) == 8);
        MUST(read(answers ? there : back, &one, 8) == 8);
        one = 1;
        if (answers) MUST(write(back, &one, 8) == 8);
    }
    if (!answers) report((now() - start) / FEW / 2 * 1e6);
}

static void sockets(void)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    int answers = two();
    char words[64] = { 0 };
    double start = 0;
    for (int i = 0; i < WARM + FEW; i++) {
        if (i == WARM) start = now();
        if (!answers) MUST(send(ends[0], words, sizeof words, 0) == sizeof words);
        MUST(recv(ends[answers], words, sizeof words, 0) == sizeof words);
        if (answers) MUST(send(ends[1], words, sizeof words, 0) == sizeof words);
    }
    if (!answers) report((now() - start) / FEW * 1e6);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    size_t size = argc > 2 ? strtoul(argv[2], NULL, 0) : 65536;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    MUST(shared != MAP_FAILED && size > 0);
    if (!strcmp(what, "bounce")) bounce();
    else if (!strcmp(what, "cells")) cells();
    else if (!strcmp(what, "verbs")) verbs();
    else if (!strcmp(what, "verbs-rate")) verbs_rate();
    else if (!strcmp(what, "ring")) ring(size);
    else if (!strcmp(what, "memcpy")) copies(size);
    else if (!strcmp(what, "writev")) writes(size);
    else if (!strcmp(what, "futex")) futexes();
    else if (!strcmp(what, "eventfd")) eventfds();
    else if (!strcmp(what, "socket")) sockets();
    else if (!strcmp(what, "nearby")) together = 1, sockets();
    else { fprintf(stderr, "baseline: %s is nothing that it measures\n", what); return 2; }
    return 0;
}
