/* A ping-pong over RDMA in C: `pingpong PORT` waits for the other side, `pingpong PORT HOST` connects to it. The two exchange QP number,
 * PSN and GID over TCP, and then send a number back and forth with SEND and RECEIVE. */
#include <endian.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ROUNDS 1000
/* GID index 0 reaches programs of the same host; an index with an address (ibv_devinfo -v) reaches other hosts too. */
#define GID_INDEX 0

/* What the other side has to know, in network order. */
struct address {
    uint32_t qpn, psn;
    union ibv_gid gid;
};

static void check(int fine, const char *what) {
    if (!fine) {
        perror(what);
        exit(1);
    }
}

/* A TCP connection with the other side. */
static int meet(const char *port, const char *host) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE}, *at;
    check(!getaddrinfo(host, port, &hints, &at), "getaddrinfo");
    int fd = socket(at->ai_family, at->ai_socktype, 0), on = 1;
    if (host) {
        check(!connect(fd, at->ai_addr, at->ai_addrlen), "connect");
    } else {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        check(!bind(fd, at->ai_addr, at->ai_addrlen) && !listen(fd, 1), "listen");
        fd = accept(fd, NULL, NULL);
        check(fd >= 0, "accept");
    }
    freeaddrinfo(at);
    return fd;
}

static void exchange(int fd, const void *mine, void *theirs, size_t length) {
    check(write(fd, mine, length) == (ssize_t)length && recv(fd, theirs, length, MSG_WAITALL) == (ssize_t)length, "exchange");
}

/* INIT, RTR, RTS. */
static void connect_qp(struct ibv_qp *qp, const struct address *mine, const struct address *theirs) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    check(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = be32toh(theirs->qpn), .rq_psn = be32toh(theirs->psn),
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = theirs->gid, .sgid_index = GID_INDEX, .hop_limit = 64}},
    };
    check(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = be32toh(mine->psn), .max_rd_atomic = 1,
    };
    check(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                       IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void receive(struct ibv_qp *qp, struct ibv_mr *mr) {
    struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = sizeof(uint64_t), .lkey = mr->lkey};
    struct ibv_recv_wr request = {.sg_list = &sge, .num_sge = 1}, *bad;
    check(!ibv_post_recv(qp, &request, &bad), "ibv_post_recv");
}

static void send_number(struct ibv_qp *qp, struct ibv_mr *mr) {
    struct ibv_sge sge = {.addr = (uintptr_t)mr->addr + sizeof(uint64_t), .length = sizeof(uint64_t), .lkey = mr->lkey};
    struct ibv_send_wr request = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    check(!ibv_post_send(qp, &request, &bad), "ibv_post_send");
}

/* Waits for a completion. */
static void complete(struct ibv_cq *cq) {
    struct ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0) {}
    check(count > 0, "ibv_poll_cq");
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
        exit(1);
    }
}

int main(int count, char **words) {
    if (count < 2) {
        fprintf(stderr, "pingpong PORT [HOST]\n");
        return 1;
    }
    int serves = count == 2;
    int fd = meet(words[1], serves ? NULL : words[2]);
    struct ibv_device **devices = ibv_get_device_list(NULL);
    check(devices && devices[0], "a device");
    struct ibv_context *context = ibv_open_device(devices[0]);
    check(context != NULL, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sent = ibv_create_cq(context, 4, NULL, NULL, 0), *received = ibv_create_cq(context, 4, NULL, NULL, 0);
    check(pd && sent && received, "PD and CQs");
    struct ibv_qp_init_attr attr = {
        .send_cq = sent, .recv_cq = received, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    check(qp != NULL, "ibv_create_qp");
    /* The first number is received, the second one is sent. */
    static volatile uint64_t numbers[2];
    struct ibv_mr *mr = ibv_reg_mr(pd, (void *)numbers, sizeof numbers, IBV_ACCESS_LOCAL_WRITE);
    check(mr != NULL, "ibv_reg_mr");

    struct address mine = {.qpn = htobe32(qp->qp_num), .psn = htobe32(rand() & 0xffffff)}, theirs;
    check(!ibv_query_gid(context, 1, GID_INDEX, &mine.gid), "ibv_query_gid");
    exchange(fd, &mine, &theirs, sizeof mine);
    connect_qp(qp, &mine, &theirs);
    receive(qp, mr);
    char ready = 1;
    exchange(fd, &ready, &ready, 1); /* Both can receive from here on. */

    for (uint64_t hit = 0; hit < 2 * ROUNDS; hit++) {
        if ((hit % 2 == 0) == !serves) {
            numbers[1] = hit;
            send_number(qp, mr);
            complete(sent);
        } else {
            complete(received);
            check(numbers[0] == hit, "another number");
            receive(qp, mr);
        }
    }
    printf("%d messages were sent and returned\n", ROUNDS);

    exchange(fd, &ready, &ready, 1); /* Nobody leaves while the other needs an acknowledgement. */
    ibv_destroy_qp(qp);
    ibv_dereg_mr(mr);
    ibv_destroy_cq(sent);
    ibv_destroy_cq(received);
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    ibv_free_device_list(devices);
    return 0;
}
