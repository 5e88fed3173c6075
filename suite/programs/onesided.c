/* One-sided operations complete while the target is passive: it is blocked in read(), or it
 * computes. `-m read` or `-m compute` selects what the server (the target) does meanwhile. */
#include "common.h"
#include <fcntl.h>

enum { SIZE = 1 << 20, ROUNDS = 50 };

static void target(int fd, int computes)
{
    char byte;
    if (!computes) {
        MUST(read(fd, &byte, 1) == 1);
        return;
    }
    MUST(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    volatile uint64_t sum = 1;
    double until = now() + 2 * LIMIT_SECONDS;
    while (read(fd, &byte, 1) != 1) {
        for (int i = 0; i < 1000000; i++) sum = sum * 6364136223846793005u + 1;
        MUST(now() < until);
    }
}

static double initiator(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, struct address peer)
{
    uint8_t *bytes = mr->addr;
    double worst = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t size = round % 2 ? SIZE / 2 : 8;
        memset(bytes, round + 1, size);
        double start = now();
        MUST(post(qp, IBV_WR_RDMA_WRITE, mr, (uintptr_t)bytes, size, peer.buffer, (uint32_t)peer.rkey) == 0);
        good_completion(cq);
        MUST(post(qp, IBV_WR_RDMA_READ, mr, (uintptr_t)bytes + SIZE / 2, size, peer.buffer, (uint32_t)peer.rkey) == 0);
        good_completion(cq);
        if (memcmp(bytes, bytes + SIZE / 2, size)) FAIL("what was read is not what was written, round %d", round);
        double took = now() - start;
        if (took > worst) worst = took;
        /* Between rounds the target's engine goes to sleep. */
        usleep(round % 5 == 0 ? 20000 : 100);
    }
    uint64_t *word = (uint64_t *)bytes;
    *word = 5;
    MUST(post(qp, IBV_WR_RDMA_WRITE, mr, (uintptr_t)word, 8, peer.buffer, (uint32_t)peer.rkey) == 0);
    good_completion(cq);
    MUST(post(qp, IBV_WR_ATOMIC_CMP_AND_SWP, mr, (uintptr_t)word, 8, peer.buffer, (uint32_t)peer.rkey) == 0);
    good_completion(cq);
    MUST(*word == 5);
    MUST(post(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, mr, (uintptr_t)word, 8, peer.buffer, (uint32_t)peer.rkey) == 0);
    good_completion(cq);
    MUST(*word == 11);
    return worst;
}

int main(int argc, char **argv)
{
    int computes = 0;
    for (int i = 1; i < argc; i++) computes |= strcmp(argv[i], "compute") == 0;
    int is_client, fd = rendezvous(argc, argv, &is_client);
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    void *buffer;
    MUST(pd && cq && posix_memalign(&buffer, 4096, SIZE) == 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                                     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    MUST(mr);
    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 16);
    struct address own = address_of(qp, mr), peer;
    swap_bytes(fd, &own, &peer, sizeof own);
    connect_qp(qp, own, peer);
    char ready = 1;
    swap_bytes(fd, &ready, &ready, 1);
    if (is_client) {
        printf("slowest round %.0f us\n", initiator(qp, cq, mr, peer) * 1e6);
        MUST(write(fd, &ready, 1) == 1);
    } else {
        target(fd, computes);
        MUST(*(uint64_t *)buffer == 16);
        printf("the memory is as it should be\n");
    }
    return 0;
}
