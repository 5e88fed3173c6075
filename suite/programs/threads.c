/* Several threads, each with its own PD, CQ and queue pair, exchange messages of changing sizes
 * with threads of another process, and check every byte. They share one context, which must not
 * disturb them. */
#include "common.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 400, LARGEST = 100000 };

struct worker { pthread_t thread; struct ibv_context *context; struct ibv_cq *cq; struct ibv_qp *qp; struct ibv_mr *in, *out; int number; };

static uint32_t size_of(int round) { return 1 + (uint32_t)(((uint64_t)round * 7919 * 31) % LARGEST); }
static uint8_t byte_of(int thread, int round, uint32_t at) { return (uint8_t)(thread * 31 + round * 7 + (int)at); }

static void *work(void *argument)
{
    struct worker *w = argument;
    uint8_t *out = w->out->addr, *in = w->in->addr;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t size = size_of(round);
        for (uint32_t at = 0; at < size; at++) out[at] = byte_of(w->number, round, at);
        MUST(post(w->qp, IBV_WR_SEND, w->out, (uintptr_t)out, size, 0, 0) == 0);
        int sent = 0, received = 0;
        while (!sent || !received) {
            struct ibv_wc wc = good_completion(w->cq);
            if (wc.opcode == IBV_WC_SEND) { sent = 1; continue; }
            MUST(wc.opcode == IBV_WC_RECV && wc.byte_len == size);
            received = 1;
        }
        for (uint32_t at = 0; at < size; at++)
            if (in[at] != byte_of(w->number, round, at)) FAIL("thread %d round %d: byte %u of %u", w->number, round, at, size);
        MUST(post_receive(w->qp, w->in, (uintptr_t)in, LARGEST) == 0);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int is_client, fd = rendezvous(argc, argv, &is_client);
    struct ibv_context *context = open_first();
    struct worker workers[THREADS];
    struct address own[THREADS], peer[THREADS];
    for (int i = 0; i < THREADS; i++) {
        struct worker *w = &workers[i];
        *w = (struct worker){ .context = context, .number = i };
        struct ibv_pd *pd = ibv_alloc_pd(context);
        w->cq = ibv_create_cq(context, 64, NULL, NULL, 0);
        w->in = ibv_reg_mr(pd, calloc(1, LARGEST), LARGEST, IBV_ACCESS_LOCAL_WRITE);
        w->out = ibv_reg_mr(pd, calloc(1, LARGEST), LARGEST, 0);
        MUST(pd && w->cq && w->in && w->out);
        w->qp = make_qp(pd, w->cq, IBV_QPT_RC, 16);
        own[i] = address_of(w->qp, NULL);
    }
    swap_bytes(fd, own, peer, sizeof own);
    for (int i = 0; i < THREADS; i++) {
        connect_qp(workers[i].qp, own[i], peer[i]);
        MUST(post_receive(workers[i].qp, workers[i].in, (uintptr_t)workers[i].in->addr, LARGEST) == 0);
    }
    char ready = 1;
    swap_bytes(fd, &ready, &ready, 1);
    for (int i = 0; i < THREADS; i++) MUST(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    for (int i = 0; i < THREADS; i++) MUST(pthread_join(workers[i].thread, NULL) == 0);
    swap_bytes(fd, &ready, &ready, 1);
    printf("%d threads exchanged %d messages each\n", THREADS, ROUNDS);
    return 0;
}
