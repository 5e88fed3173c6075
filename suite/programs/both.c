/* The C half of a process that uses the C library and the Rust crate. `both_play` connects to a
 * queue pair of the crate over a socket, with the bytes of its `Endpoint`. It sends back the number
 * in each message plus one, and touches memory that is gone. */
#include "common.h"
#include <sys/mman.h>

enum { ENDPOINT = 28, ROUNDS = 100, SIZE = 8192 };

static void put32(uint8_t *at, uint32_t value) { value = htonl(value); memcpy(at, &value, 4); }
static uint32_t get32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }

/* The bytes of the crate's `Endpoint::to_bytes`: service, READs, MTU, QPN, PSN, GID. */
static struct address exchange(int fd, struct address own)
{
    uint8_t bytes[ENDPOINT] = { 1, 4, 1024 >> 8, 0 }, theirs[ENDPOINT];
    put32(bytes + 4, own.qpn);
    put32(bytes + 8, own.psn);
    memcpy(bytes + 12, &own.gid, 16);
    swap_bytes(fd, bytes, theirs, ENDPOINT);
    struct address peer = { .qpn = get32(theirs + 4), .psn = get32(theirs + 8) };
    memcpy(&peer.gid, theirs + 12, 16);
    MUST(theirs[0] == 1);
    return peer;
}

/* A request on unmapped registered memory fails, whichever library installed its fault handler
 * last. */
static void lose_memory(struct ibv_context *context, struct ibv_pd *pd)
{
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp *a = make_qp(pd, cq, IBV_QPT_RC, 4), *b = make_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(a, b);
    void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr && munmap(memory, SIZE) == 0);
    MUST(post(a, IBV_WR_SEND, mr, (uintptr_t)memory, 64, 0, 0) == 0);
    MUST(next_completion(cq).status == IBV_WC_LOC_PROT_ERR);
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
}

int both_play(int fd);
int both_play(int fd)
{
    gid_index = 1;
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sent = ibv_create_cq(context, 16, NULL, NULL, 0), *received = ibv_create_cq(context, 16, NULL, NULL, 0);
    static uint64_t words[2];
    struct ibv_mr *mr = ibv_reg_mr(pd, words, sizeof words, IBV_ACCESS_LOCAL_WRITE);
    MUST(pd && sent && received && mr);
    struct ibv_qp_init_attr init = { .send_cq = sent, .recv_cq = received, .qp_type = IBV_QPT_RC,
                                     .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    MUST(qp);
    struct address own = address_of(qp, NULL);
    struct address peer = exchange(fd, own);
    connect_qp(qp, own, peer);
    MUST(post_receive(qp, mr, (uintptr_t)&words[0], 8) == 0);
    char ready = 1, other;
    swap_bytes(fd, &ready, &other, 1);
    for (int round = 0; round < ROUNDS; round++) {
        MUST(good_completion(received).byte_len == 8);
        words[1] = words[0] + 1;
        MUST(post_receive(qp, mr, (uintptr_t)&words[0], 8) == 0);
        MUST(post(qp, IBV_WR_SEND, mr, (uintptr_t)&words[1], 8, 0, 0) == 0);
        good_completion(sent);
        if (round == ROUNDS / 2) lose_memory(context, pd);
    }
    swap_bytes(fd, &ready, &other, 1);
    MUST(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(sent) == 0 && ibv_destroy_cq(received) == 0);
    MUST(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
