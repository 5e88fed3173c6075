/* Measures how many queue pairs share a link: first one of them writes alone, then all write at
 * the same time, then one writes alone again.
 *   crowd COUNT -p PORT            is the target
 *   crowd COUNT -p PORT HOST       writes, and prints: MiB/s of one, of all together, Jain's fairness index of all,
 *                                  the least and the most that one of them got, in MiB */
#include "common.h"

enum { SIZE = 64 * 1024, SLOTS = 8, DEPTH = 4, MOST = 4096 };
#define SPAN 1.0

static struct ibv_qp *qps[MOST];
static uint64_t bytes[MOST];

/* Writes for a while on the first `count` queue pairs; returns MiB/s. All writes are complete
 * when it returns. */
static double write_for_a_while(unsigned count, struct ibv_cq *cq, struct ibv_mr *mr, const struct address *peers)
{
    unsigned under_way = 0;
    uint64_t all = 0;
    memset(bytes, 0, sizeof bytes);
    double start = now(), end = start + SPAN, time = start;
    for (unsigned i = 0; i < count * DEPTH; i++) {
        unsigned number = i % count, slot = (number + i / count) % SLOTS;
        struct ibv_sge sge = { (uintptr_t)mr->addr + (uint64_t)slot * SIZE, SIZE, mr->lkey };
        struct ibv_send_wr *bad, wr = { .wr_id = (uint64_t)slot << 32 | number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { peers[number].buffer + (uint64_t)slot * SIZE, (uint32_t)peers[number].rkey } };
        MUST(ibv_post_send(qps[number], &wr, &bad) == 0);
        under_way++;
    }
    while (under_way) {
        struct ibv_wc done[16];
        int got = ibv_poll_cq(cq, 16, done);
        MUST(got >= 0);
        time = now();
        if (time > end + LIMIT_SECONDS) FAIL("%u writes do not complete", under_way);
        for (int i = 0; i < got; i++) {
            if (done[i].status != IBV_WC_SUCCESS) FAIL("a write: %s", ibv_wc_status_str(done[i].status));
            unsigned number = (uint32_t)done[i].wr_id, slot = (unsigned)(done[i].wr_id >> 32);
            under_way--;
            if (time > end) continue;
            bytes[number] += SIZE;
            all += SIZE;
            struct ibv_sge sge = { (uintptr_t)mr->addr + (uint64_t)slot * SIZE, SIZE, mr->lkey };
            struct ibv_send_wr *bad, wr = { .wr_id = done[i].wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { peers[number].buffer + (uint64_t)slot * SIZE, (uint32_t)peers[number].rkey } };
            MUST(ibv_post_send(qps[number], &wr, &bad) == 0);
            under_way++;
        }
    }
    return (double)all / SPAN / (1 << 20);
}

int main(int argc, char **argv)
{
    MUST(argc > 1);
    unsigned count = (unsigned)atoi(argv[1]);
    MUST(count > 0 && count <= MOST);
    int is_client, fd = rendezvous(argc - 1, argv + 1, &is_client);
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, (int)count * DEPTH + 1, NULL, NULL, 0);
    char *buffer = calloc(SLOTS, SIZE);
    MUST(pd && cq && buffer);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, SLOTS * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct address *own = calloc(count, sizeof *own), *peers = calloc(count, sizeof *peers);
    MUST(mr && own && peers);
    for (unsigned i = 0; i < count; i++) {
        qps[i] = make_qp(pd, cq, IBV_QPT_RC, DEPTH);
        own[i] = address_of(qps[i], mr);
        swap_bytes(fd, &own[i], &peers[i], sizeof *own);
        connect_qp(qps[i], own[i], peers[i]);
    }
    char byte = 0;
    swap_bytes(fd, &byte, &byte, 1);
    if (is_client) {
        double before = write_for_a_while(1, cq, mr, peers);
        double together = write_for_a_while(count, cq, mr, peers);
        double sum = 0, squares = 0;
        uint64_t least = UINT64_MAX, most = 0;
        for (unsigned i = 0; i < count; i++) {
            sum += (double)bytes[i];
            squares += (double)bytes[i] * (double)bytes[i];
            if (bytes[i] < least) least = bytes[i];
            if (bytes[i] > most) most = bytes[i];
        }
        double after = write_for_a_while(1, cq, mr, peers);
        printf("%.1f %.1f %.4f %.2f %.2f\n", (before + after) / 2, together, squares > 0 ? sum * sum / (count * squares) : 0,
               (double)least / (1 << 20), (double)most / (1 << 20));
    }
    swap_bytes(fd, &byte, &byte, 1);
    return 0;
}
