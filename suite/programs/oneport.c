/* One sender sends to the queue pairs of several receiving processes in turn, from as few UDP
 * source ports as its library uses: RC queue pairs, and a single UD queue pair, whose datagrams
 * have one source port for all receivers. A network that merges packets of one port must not mix
 * up their destinations, so each receiver checks and counts every byte.
 *   receiver: -p PORT      sender: HOST:PORT HOST:PORT … */
#include "common.h"

enum { QPS = 8, ROUNDS = 200, SIZE = 64, GRH = 40, BURST = 32, QKEY = 0x4711, RECEIVERS = 4 };

struct all { struct address rc[QPS]; struct address ud; };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static uint8_t *bytes;

static void fill(uint8_t *at, int receiver, int qp, int round)
{
    for (int i = 0; i < SIZE; i++) at[i] = (uint8_t)(receiver * 101 + qp * 17 + round * 7 + i);
}

static void check(const uint8_t *at, int receiver, int qp, int round)
{
    uint8_t wanted[SIZE];
    fill(wanted, receiver, qp, round);
    if (memcmp(at, wanted, SIZE)) FAIL("receiver %d, queue pair %d, round %d: not what was sent to it", receiver, qp, round);
}

static void take(int fd)
{
    struct ibv_qp *qp[QPS], *ud = ready_ud(make_qp(pd, cq, IBV_QPT_UD, 2 * BURST), QKEY);
    struct all own = { .ud = address_of(ud, NULL) }, peer;
    for (int i = 0; i < QPS; i++) {
        qp[i] = make_qp(pd, cq, IBV_QPT_RC, 16);
        own.rc[i] = address_of(qp[i], NULL);
    }
    swap_bytes(fd, &own, &peer, sizeof own);
    char receiver;
    MUST(read(fd, &receiver, 1) == 1);
    for (int i = 0; i < QPS; i++) {
        connect_qp(qp[i], own.rc[i], peer.rc[i]);
        MUST(post_receive(qp[i], mr, (uintptr_t)bytes + (uint32_t)i * SIZE, SIZE) == 0);
    }
    MUST(write(fd, "", 1) == 1);
    int round[QPS] = { 0 };
    for (int count = 0; count < QPS * ROUNDS; count++) {
        struct ibv_wc wc = good_completion(cq);
        int i = 0;
        while (i < QPS && qp[i]->qp_num != wc.qp_num) i++;
        MUST(i < QPS && wc.byte_len == SIZE);
        check(bytes + i * SIZE, receiver, i, round[i]++);
        if (round[i] < ROUNDS) MUST(post_receive(qp[i], mr, (uintptr_t)bytes + (uint32_t)i * SIZE, SIZE) == 0);
    }
    for (int burst = 0; burst < ROUNDS; burst++) {
        for (int i = 0; i < BURST; i++) MUST(post_receive(ud, mr, (uintptr_t)bytes + (uint32_t)i * (SIZE + GRH), SIZE + GRH) == 0);
        MUST(write(fd, "", 1) == 1);
        /* Datagrams may arrive out of order; their numbers are in the immediate data. */
        uint32_t seen = 0;
        for (int i = 0; i < BURST; i++) {
            struct ibv_wc wc = good_completion(cq);
            uint32_t number = ntohl(wc.imm_data);
            MUST(wc.byte_len == SIZE + GRH && wc.src_qp == peer.ud.qpn && number < BURST && !(seen & 1u << number));
            seen |= 1u << number;
            check(bytes + i * (SIZE + GRH) + GRH, receiver, (int)number, burst);
        }
    }
    /* Nothing was for another receiver. */
    MUST(write(fd, "", 1) == 1);
    struct ibv_wc wc;
    MUST(read(fd, &receiver, 1) == 1 && ibv_poll_cq(cq, 1, &wc) == 0);
    printf("%d messages and %d datagrams arrived where they belong\n", QPS * ROUNDS, BURST * ROUNDS);
}

static void await_all(const int *fds, int count)
{
    char byte;
    for (int r = 0; r < count; r++) MUST(read(fds[r], &byte, 1) == 1);
}

static void feed(const int *fds, int count)
{
    struct ibv_qp *qp[RECEIVERS][QPS], *ud = ready_ud(make_qp(pd, cq, IBV_QPT_UD, RECEIVERS * BURST), QKEY);
    struct ibv_ah *to[RECEIVERS];
    struct all peer[RECEIVERS];
    for (int r = 0; r < count; r++) {
        struct all own = { .ud = address_of(ud, NULL) };
        for (int i = 0; i < QPS; i++) {
            qp[r][i] = make_qp(pd, cq, IBV_QPT_RC, 16);
            own.rc[i] = address_of(qp[r][i], NULL);
        }
        swap_bytes(fds[r], &own, &peer[r], sizeof own);
        for (int i = 0; i < QPS; i++) connect_qp(qp[r][i], own.rc[i], peer[r].rc[i]);
        to[r] = handle_to(pd, peer[r].ud.gid);
        char number = (char)r;
        MUST(write(fds[r], &number, 1) == 1);
    }
    await_all(fds, count);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < QPS; i++)
            for (int r = 0; r < count; r++) {
                uint8_t *at = bytes + (r * QPS + i) * SIZE;
                fill(at, r, i, round);
                MUST(post(qp[r][i], IBV_WR_SEND, mr, (uintptr_t)at, SIZE, 0, 0) == 0);
            }
        for (int done = 0; done < QPS * count; done++) good_completion(cq);
    }
    for (int burst = 0; burst < ROUNDS; burst++) {
        struct ibv_sge sge[RECEIVERS * BURST];
        struct ibv_send_wr *bad, wr[RECEIVERS * BURST];
        int all = count * BURST;
        for (int n = 0; n < all; n++) {
            int r = n % count, i = n / count;
            uint8_t *at = bytes + n * SIZE;
            fill(at, r, i, burst);
            sge[n] = (struct ibv_sge){ .addr = (uintptr_t)at, .length = SIZE, .lkey = mr->lkey };
            wr[n] = (struct ibv_send_wr){ .sg_list = &sge[n], .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl((uint32_t)i), .send_flags = IBV_SEND_SIGNALED,
                                          .next = n + 1 < all ? &wr[n + 1] : NULL,
                                          .wr.ud = { .ah = to[r], .remote_qpn = peer[r].ud.qpn, .remote_qkey = QKEY } };
        }
        await_all(fds, count);
        MUST(ibv_post_send(ud, wr, &bad) == 0);
        for (int n = 0; n < all; n++) good_completion(cq);
    }
    await_all(fds, count);
    for (int r = 0; r < count; r++) MUST(write(fds[r], "", 1) == 1);
    printf("sent in turns to %d receivers\n", count);
}

int main(int argc, char **argv)
{
    int port = 0, option, fds[RECEIVERS];
    while ((option = getopt(argc, argv, "p:g:")) != -1) {
        if (option == 'p') port = atoi(optarg);
        if (option == 'g') gid_index = atoi(optarg);
    }
    context = open_first();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
    bytes = calloc(1, 1 << 16);
    MUST(pd && cq && bytes);
    mr = ibv_reg_mr(pd, bytes, 1 << 16, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr);
    if (port) take(accept_one(port));
    else feed(fds, connect_all(argc, argv, fds, RECEIVERS));
    return 0;
}
