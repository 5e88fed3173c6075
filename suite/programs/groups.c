/* A multicast group whose members are processes on several hosts: each member gets each datagram
 * once, and none after it has left.
 *   member: -p PORT -m GROUP      sender: -m GROUP HOST:PORT HOST:PORT …     (GROUP is an IPv6 address or ::ffff:a.b.c.d)
 * The first member leaves half-way. */
#include "common.h"

enum { SIZE = 256, GRH = 40, QKEY = 0x4712, MEMBERS = 4, ROUNDS = 20, BURST = 16, SLOTS = 64 };
enum { HELLO = 0xffffffff };

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *bytes;
static union ibv_gid group;

static void post_slot(struct ibv_qp *qp, uint64_t slot)
{
    struct ibv_sge sge = { .addr = (uintptr_t)bytes + slot * (GRH + SIZE), .length = GRH + SIZE, .lkey = mr->lkey };
    struct ibv_recv_wr *bad, wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 };
    MUST(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* The number of the next datagram; its bytes are checked. */
static uint32_t next_number(struct ibv_qp *qp)
{
    struct ibv_wc wc = good_completion(cq);
    const uint8_t *data = bytes + wc.wr_id * (GRH + SIZE) + GRH;
    uint32_t number;
    memcpy(&number, data, sizeof number);
    MUST(wc.byte_len == GRH + SIZE && (wc.wc_flags & IBV_WC_GRH));
    for (uint32_t i = sizeof number; i < SIZE; i++) MUST(data[i] == (uint8_t)(number + i));
    /* The destination in the GRH is the group: an IPv6 header, or an IPv4 header in its second half. */
    const uint8_t *grh = data - GRH;
    MUST(memcmp(grh + 36, group.raw + 12, 4) == 0);
    post_slot(qp, wc.wr_id);
    return number;
}

static void tell(int fd) { MUST(write(fd, "", 1) == 1); }
static void hear(int fd) { char byte; MUST(read(fd, &byte, 1) == 1); }

static void member(int fd)
{
    struct ibv_qp *qp = ready_ud(make_qp(pd, cq, IBV_QPT_UD, SLOTS), QKEY);
    for (uint64_t slot = 0; slot < SLOTS; slot++) post_slot(qp, slot);
    MUST(ibv_attach_mcast(qp, &group, 0) == 0);
    char leaves;
    MUST(read(fd, &leaves, 1) == 1);
    /* The sender sends hello until all members have received it, because joining takes the
     * network some time. */
    MUST(next_number(qp) == HELLO);
    tell(fd);
    uint32_t number, wanted = 0;
    for (int round = 0; round < ROUNDS; round++) {
        if (leaves && round == ROUNDS / 2) {
            MUST(ibv_detach_mcast(qp, &group, 0) == 0);
            tell(fd);
            hear(fd);
            struct ibv_wc wc;
            MUST(ibv_poll_cq(cq, 1, &wc) == 0);
            printf("left after %u datagrams\n", wanted);
            return;
        }
        for (int i = 0; i < BURST; i++) {
            do number = next_number(qp); while (number == HELLO && wanted == 0);
            if (number != wanted) FAIL("datagram %u came instead of %u", number, wanted);
            wanted++;
        }
        tell(fd);
    }
    hear(fd);
    struct ibv_wc wc;
    MUST(ibv_poll_cq(cq, 1, &wc) == 0 && ibv_detach_mcast(qp, &group, 0) == 0);
    printf("got %u datagrams, each once\n", wanted);
}

static void send_number(struct ibv_qp *qp, struct ibv_ah *to, uint32_t number)
{
    memcpy(bytes, &number, sizeof number);
    for (uint32_t i = sizeof number; i < SIZE; i++) bytes[i] = (uint8_t)(number + i);
    struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = SIZE, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
                                    .wr.ud = { .ah = to, .remote_qpn = 0xffffff, .remote_qkey = QKEY } };
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
    good_completion(cq);
}

static void sender(const int *fds, int count)
{
    struct ibv_qp *qp = ready_ud(make_qp(pd, cq, IBV_QPT_UD, 16), QKEY);
    struct ibv_ah *to = handle_to(pd, group);
    for (int m = 0; m < count; m++) {
        char leaves = m == 0;
        MUST(write(fds[m], &leaves, 1) == 1);
    }
    double until = now() + LIMIT_SECONDS;
    for (int heard = 0, next = 0; heard < count; ) {
        /* A few datagrams each time: a member that has joined has SLOTS receives, and polls
         * while it counts. */
        send_number(qp, to, HELLO);
        usleep(2000);
        char byte;
        while (next < count && recv(fds[next], &byte, 1, MSG_DONTWAIT) == 1) { next++; heard++; }
        if (now() > until) FAIL("member %d heard nothing in %d s", next, LIMIT_SECONDS);
    }
    uint32_t number = 0;
    for (int round = 0, first = 0; round < ROUNDS; round++) {
        if (round == ROUNDS / 2) {
            hear(fds[0]);
            first = 1;
        }
        for (int i = 0; i < BURST; i++) send_number(qp, to, number++);
        for (int m = first; m < count; m++) hear(fds[m]);
    }
    for (int m = 0; m < count; m++) tell(fds[m]);
    printf("sent %u datagrams to %d members\n", number, count);
}

int main(int argc, char **argv)
{
    int port = 0, option, fds[MEMBERS];
    while ((option = getopt(argc, argv, "p:g:m:")) != -1) {
        if (option == 'p') port = atoi(optarg);
        if (option == 'g') gid_index = atoi(optarg);
        if (option == 'm') MUST(inet_pton(AF_INET6, optarg, &group) == 1);
    }
    struct ibv_context *context = open_first();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 256, NULL, NULL, 0);
    bytes = calloc(SLOTS, GRH + SIZE);
    MUST(pd && cq && bytes);
    mr = ibv_reg_mr(pd, bytes, SLOTS * (GRH + SIZE), IBV_ACCESS_LOCAL_WRITE);
    MUST(mr);
    if (port) member(accept_one(port));
    else sender(fds, connect_all(argc, argv, fds, MEMBERS));
    return 0;
}
