/* The program takes registered memory away: it unmaps it, protects it, or truncates the file
 * behind it. For each operation and each side the result is a completion with an error, never a
 * signal, and the program continues. */
#define _GNU_SOURCE
#include "common.h"
#include <sys/mman.h>

enum { SIZE = 1 << 16 };
enum way { UNMAP, PROTECT, TRUNCATE, WAYS };
static const char *const WAY[] = { "unmapped", "protected", "truncated" };

struct memory { void *at; int file; struct ibv_mr *mr; };

static struct memory take(struct ibv_pd *pd)
{
    struct memory m = { .file = memfd_create("badmemory", 0) };
    MUST(m.file >= 0 && ftruncate(m.file, SIZE) == 0);
    m.at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, m.file, 0);
    MUST(m.at != MAP_FAILED);
    memset(m.at, 5, SIZE);
    m.mr = ibv_reg_mr(pd, m.at, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    MUST(m.mr);
    return m;
}

static void spoil(struct memory *m, enum way way)
{
    if (way == UNMAP) MUST(munmap(m->at, SIZE) == 0);
    if (way == PROTECT) MUST(mprotect(m->at, SIZE, PROT_NONE) == 0);
    if (way == TRUNCATE) MUST(ftruncate(m->file, 0) == 0);
}

static void give_back(struct memory *m, enum way way)
{
    MUST(ibv_dereg_mr(m->mr) == 0);
    if (way != UNMAP) munmap(m->at, SIZE);
    close(m->file);
}

static int is_atomic(enum ibv_wr_opcode o) { return o == IBV_WR_ATOMIC_CMP_AND_SWP || o == IBV_WR_ATOMIC_FETCH_AND_ADD; }
static int needs_receive(enum ibv_wr_opcode o) { return o == IBV_WR_SEND || o == IBV_WR_SEND_WITH_IMM || o == IBV_WR_RDMA_WRITE_WITH_IMM; }

static void attempt(struct ibv_pd *pd, enum ibv_wr_opcode opcode, enum way way, int spoil_remote, uint32_t length)
{
    struct ibv_cq *cq = ibv_create_cq(pd->context, 32, NULL, NULL, 0), *other = ibv_create_cq(pd->context, 32, NULL, NULL, 0);
    struct ibv_qp *a = make_qp(pd, cq, IBV_QPT_RC, 8), *b = make_qp(pd, other, IBV_QPT_RC, 8);
    connect_both(a, b);
    struct memory local = take(pd), remote = take(pd);
    if (is_atomic(opcode)) length = 8;
    if (needs_receive(opcode)) MUST(post_receive(b, remote.mr, (uintptr_t)remote.at, SIZE) == 0);
    spoil(spoil_remote ? &remote : &local, way);
    MUST(post(a, opcode, local.mr, (uintptr_t)local.at, length, (uintptr_t)remote.at, remote.mr->rkey) == 0);
    struct ibv_wc wc = next_completion(cq);
    if (wc.status == IBV_WC_SUCCESS) FAIL("opcode %d, %s memory %s, %u bytes: success", opcode, spoil_remote ? "remote" : "local", WAY[way], length);
    int expected = spoil_remote ? wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_REM_OP_ERR : wc.status == IBV_WC_LOC_PROT_ERR;
    if (!expected) FAIL("opcode %d, %s memory %s: %s", opcode, spoil_remote ? "remote" : "local", WAY[way], ibv_wc_status_str(wc.status));
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(other) == 0);
    give_back(&local, spoil_remote ? WAYS : way);
    give_back(&remote, spoil_remote ? way : WAYS);
}

int main(void)
{
    static const enum ibv_wr_opcode OPCODES[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                                  IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };
    static const uint32_t LENGTHS[] = { 8, 200, 40000 };
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    int attempts = 0;
    for (unsigned o = 0; o < sizeof OPCODES / sizeof *OPCODES; o++)
        for (int way = 0; way < WAYS; way++)
            for (int remote = 0; remote < 2; remote++)
                for (unsigned l = 0; l < (is_atomic(OPCODES[o]) ? 1 : 3); l++, attempts++)
                    attempt(pd, OPCODES[o], (enum way)way, remote, LENGTHS[l]);

    /* Registration checks the rights without touching a page. */
    void *hole = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(ibv_reg_mr(pd, hole, SIZE, IBV_ACCESS_LOCAL_WRITE) == NULL && errno == EFAULT);
    struct ibv_mr *readable = ibv_reg_mr(pd, hole, SIZE, 0), *again = ibv_reg_mr(pd, hole, SIZE / 2, IBV_ACCESS_REMOTE_READ);
    MUST(readable && again && ibv_dereg_mr(readable) == 0 && ibv_dereg_mr(again) == 0);
    MUST(munmap(hole, SIZE) == 0);
    MUST(ibv_reg_mr(pd, hole, SIZE, 0) == NULL && errno == EFAULT);
    MUST(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    printf("%d attempts on bad memory, each ended with an error completion\n", attempts);
    return 0;
}
