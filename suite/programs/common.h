/* The common part of the suite's small verbs programs: a device, connected queue pairs, and
 * completions with a time limit. They are ordinary users of <infiniband/verbs.h>, compiled with
 * Debian's header, and contain nothing specific to softhca. */
#ifndef SUITE_COMMON_H
#define SUITE_COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_SECONDS 30

#define FAIL(...) do { fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); fprintf(stderr, __VA_ARGS__); \
                       fprintf(stderr, " (errno %d: %s)\n", errno, strerror(errno)); exit(1); } while (0)
#define MUST(condition) do { if (!(condition)) FAIL("%s does not hold", #condition); } while (0)

/* The source GID of addresses: `-g INDEX`. */
static int gid_index;

/* The RNR retries that connect_qp sets; 7 means without limit. */
static uint8_t rnr_retry = 7;

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline struct ibv_context *open_first(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    MUST(list != NULL && list[0] != NULL);
    struct ibv_context *context = ibv_open_device(list[0]);
    MUST(context != NULL);
    ibv_free_device_list(list);
    return context;
}

static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type, unsigned depth)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = type,
        .cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    MUST(qp != NULL);
    return qp;
}

/* The address of a queue pair. */
struct address { uint32_t qpn; uint32_t psn; union ibv_gid gid; uint64_t buffer; uint64_t rkey; };

static inline struct address address_of(struct ibv_qp *qp, struct ibv_mr *mr)
{
    struct address address = { .qpn = qp->qp_num, .psn = (qp->qp_num * 7919) & 0xffffff };
    MUST(ibv_query_gid(qp->context, 1, gid_index, &address.gid) == 0);
    if (mr) { address.buffer = (uintptr_t)mr->addr; address.rkey = mr->rkey; }
    return address;
}

static inline void connect_qp(struct ibv_qp *qp, struct address own, struct address peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    int rc = qp->qp_type == IBV_QPT_RC;
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTR; attr.path_mtu = IBV_MTU_1024; attr.dest_qp_num = peer.qpn; attr.rq_psn = peer.psn;
    attr.max_dest_rd_atomic = 4; attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1; attr.ah_attr.port_num = 1; attr.ah_attr.grh.dgid = peer.gid; attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS; attr.sq_psn = own.psn; attr.timeout = 14; attr.retry_cnt = 7; attr.rnr_retry = rnr_retry; attr.max_rd_atomic = 4;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN |
                       (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)) == 0);
}

/* Connects two queue pairs of this process. */
static inline void connect_both(struct ibv_qp *a, struct ibv_qp *b)
{
    struct address to_a = address_of(a, NULL), to_b = address_of(b, NULL);
    connect_qp(a, to_a, to_b);
    connect_qp(b, to_b, to_a);
}

/* Makes a UD queue pair ready to send. */
static inline struct ibv_qp *ready_ud(struct ibv_qp *qp, uint32_t qkey)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = 0xfffffe;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    return qp;
}

static inline struct ibv_ah *handle_to(struct ibv_pd *pd, union ibv_gid gid)
{
    struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1,
                                .grh = { .dgid = gid, .hop_limit = 64, .traffic_class = 0x20, .sgid_index = (uint8_t)gid_index } };
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    MUST(ah);
    return ah;
}

/* Returns the next completion, whatever its status. */
static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    double until = now() + LIMIT_SECONDS;
    for (;;) {
        int count = ibv_poll_cq(cq, 1, &wc);
        MUST(count >= 0);
        if (count) return wc;
        if (now() > until) FAIL("no completion in %d s", LIMIT_SECONDS);
    }
}

static inline struct ibv_wc good_completion(struct ibv_cq *cq)
{
    struct ibv_wc wc = next_completion(cq);
    if (wc.status != IBV_WC_SUCCESS) FAIL("completion of %lu: %s", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
    return wc;
}

static inline int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_mr *mr, uint64_t at, uint32_t length,
                       uint64_t remote, uint32_t rkey)
{
    struct ibv_sge sge = { .addr = at, .length = length, .lkey = mr ? mr->lkey : 0 };
    struct ibv_send_wr *bad, wr = { .wr_id = 1000 + opcode, .sg_list = &sge, .num_sge = length ? 1 : 0, .opcode = opcode,
                                    .send_flags = IBV_SEND_SIGNALED };
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = remote; wr.wr.atomic.rkey = rkey; wr.wr.atomic.compare_add = 5; wr.wr.atomic.swap = 11;
    } else {
        wr.wr.rdma.remote_addr = remote; wr.wr.rdma.rkey = rkey; wr.imm_data = htonl(77);
    }
    return ibv_post_send(qp, &wr, &bad);
}

static inline int post_receive(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t at, uint32_t length)
{
    struct ibv_sge sge = { .addr = at, .length = length, .lkey = mr ? mr->lkey : 0 };
    struct ibv_recv_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = length ? 1 : 0 };
    return ibv_post_recv(qp, &wr, &bad);
}

/* One TCP connection: accepts the first on the port, or connects to a host's port. */
static inline int accept_one(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    struct sockaddr_in own = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY) };
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    MUST(bind(fd, (struct sockaddr *)&own, sizeof own) == 0 && listen(fd, 1) == 0);
    int peer = accept(fd, NULL, NULL);
    MUST(peer >= 0);
    close(fd);
    return peer;
}

static inline int connect_one(const char *host, int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    MUST(inet_pton(AF_INET, host, &to.sin_addr) == 1 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

/* Connects to each HOST:PORT of the arguments; returns the number of connections. */
static inline int connect_all(int argc, char **argv, int *fds, int most)
{
    int count = argc - optind;
    MUST(count > 0 && count <= most);
    for (int i = 0; i < count; i++) {
        char *host = argv[optind + i], *colon = strchr(host, ':');
        MUST(colon);
        *colon = 0;
        fds[i] = connect_one(host, atoi(colon + 1));
    }
    return count;
}

/* `-p PORT` listens, and `-p PORT HOST` connects, as in the pingpongs. Returns the connected
 * socket. */
static inline int rendezvous(int argc, char **argv, int *is_client)
{
    int port = 18515, option;
    while ((option = getopt(argc, argv, "p:m:g:")) != -1) {
        if (option == 'p') port = atoi(optarg);
        if (option == 'g') gid_index = atoi(optarg);
    }
    *is_client = optind < argc;
    return *is_client ? connect_one(argv[optind], port) : accept_one(port);
}

static inline void swap_bytes(int fd, const void *out, void *in, size_t length)
{
    MUST(write(fd, out, length) == (ssize_t)length);
    MUST(recv(fd, in, length, MSG_WAITALL) == (ssize_t)length);
}

#endif
