/* Takes a message of 8 bytes apart: the time of each step, on one thread that plays both sides.
 *   steps BATCHES              nanoseconds of each step, a line for each
 * The two sides are two openings of the device, with memory that a peer may be granted. A batch has
 * 100 messages. The result is the tenth percentile of the batches' means, without the time to read
 * the clock, so other programs on the machine hardly matter. Each step is a function of its own, so
 * that valgrind can count its instructions (`cargo xtask instructions`). */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>
#include <x86intrin.h>

enum { BATCH = 100, WARM = 20, BYTES = 1 << 16, RIGHTS = 15, STEPS = 9 };

struct side { struct ibv_cq *cq; struct ibv_qp *qp; struct ibv_mr *mr; char *bytes; };
static struct side a, b;
static const char *const names[STEPS] = { "step_post_receive", "step_post_send", "step_poll_message", "step_poll_acknowledgement",
                                          "step_poll_nothing", "step_write", "step_read", "step_fetch_add", "clock" };

static struct side make(void)
{
    struct side s;
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    int file = memfd_create("steps", MFD_CLOEXEC);
    MUST(pd && file >= 0 && ftruncate(file, BYTES) == 0);
    s.bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(s.bytes != MAP_FAILED);
    MUST((s.cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (s.mr = ibv_reg_mr(pd, s.bytes, BYTES, RIGHTS)));
    s.qp = make_qp(pd, s.cq, IBV_QPT_RC, 16);
    return s;
}

/* Where a completion is still missing: a helper thread had the queue just then. */
static struct ibv_cq *missing;

/* Polls once. */
static void one(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int count = ibv_poll_cq(cq, 1, &wc);
    MUST(count == 0 || (count == 1 && wc.status == IBV_WC_SUCCESS));
    missing = count ? NULL : cq;
}

__attribute__((noinline)) static void step_post_receive(void)
{
    MUST(post_receive(b.qp, b.mr, (uintptr_t)b.bytes, 8) == 0);
}

__attribute__((noinline)) static void step_post_send(void)
{
    MUST(post(a.qp, IBV_WR_SEND, a.mr, (uintptr_t)a.bytes, 8, 0, 0) == 0);
}

__attribute__((noinline)) static void step_poll_message(void) { one(b.cq); }
__attribute__((noinline)) static void step_poll_acknowledgement(void) { one(a.cq); }

__attribute__((noinline)) static void step_poll_nothing(void)
{
    struct ibv_wc wc;
    MUST(ibv_poll_cq(a.cq, 1, &wc) == 0);
}

/* Posts and polls; without a grant, the other side must poll, too. */
static void direct(enum ibv_wr_opcode opcode)
{
    MUST(post(a.qp, opcode, a.mr, (uintptr_t)a.bytes, 8, (uintptr_t)b.bytes + 64, b.mr->rkey) == 0);
    struct ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(a.cq, 1, &wc)) == 0) MUST(ibv_poll_cq(b.cq, 1, &wc) == 0);
    MUST(count == 1 && wc.status == IBV_WC_SUCCESS);
}

__attribute__((noinline)) static void step_write(void) { direct(IBV_WR_RDMA_WRITE); }
__attribute__((noinline)) static void step_read(void) { direct(IBV_WR_RDMA_READ); }
__attribute__((noinline)) static void step_fetch_add(void) { direct(IBV_WR_ATOMIC_FETCH_AND_ADD); }
__attribute__((noinline)) static void clock_alone(void) { }

static void (*const steps[STEPS])(void) = { step_post_receive, step_post_send, step_poll_message, step_poll_acknowledgement,
                                            step_poll_nothing, step_write, step_read, step_fetch_add, clock_alone };

static int compare(const void *left, const void *right)
{
    double x = *(const double *)left, y = *(const double *)right;
    return (x > y) - (x < y);
}

int main(int count, char **words)
{
    int batches = count > 1 ? atoi(words[1]) : 1000;
    MUST(batches > 0);
    a = make();
    b = make();
    connect_both(a.qp, b.qp);
    double *ticks[STEPS], begin = now();
    for (int i = 0; i < STEPS; i++) MUST((ticks[i] = calloc((size_t)batches, sizeof **ticks)) != NULL);
    uint64_t first = __rdtsc();
    for (int batch = -WARM; batch < batches; batch++) {
        uint64_t sum[STEPS] = { 0 };
        for (int i = 0; i < BATCH; i++) {
            for (int step = 0; step < STEPS; step++) {
                uint64_t from = __rdtsc();
                steps[step]();
                sum[step] += __rdtsc() - from;
                while (missing) one(missing);
            }
        }
        for (int step = 0; batch >= 0 && step < STEPS; step++) ticks[step][batch] = (double)sum[step] / BATCH;
    }
    double tick = (now() - begin) * 1e9 / (double)(__rdtsc() - first), reading = 0;
    for (int step = STEPS - 1; step >= 0; step--) {
        qsort(ticks[step], (size_t)batches, sizeof **ticks, compare);
        double time = ticks[step][batches / 10] * tick;
        if (step == STEPS - 1) reading = time;
        else printf("%s %.1f\n", names[step], time - reading);
    }
    return 0;
}
