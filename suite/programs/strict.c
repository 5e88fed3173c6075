/* One mistake at a time, for the strict mode of `softhca run`:
 *   strict -m NAME
 * makes the mistake that the strict mode calls NAME and no other, and exits with 0
 * (`unacknowledged-event` waits for ever, as the manual says). `strict -m none` does the same
 * things correctly. All queue pairs are in this process. */
#include "common.h"
#include <sys/mman.h>

#define BUFFER 65536
#define DEPTH 16

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *sends, *receives;
static struct ibv_mr *mr;
static char *buffer;

/* The attributes that are wrong. */
static uint8_t timeout = 14, retry_cnt = 7, min_rnr_timer = 12, max_rd_atomic = 4, max_dest_rd_atomic = 4;
static uint32_t psn_bits;

static struct ibv_qp *queue_pair(enum ibv_qp_type type, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = sends, .recv_cq = receives, .srq = srq, .qp_type = type,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = srq ? 0 : DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    MUST(qp);
    return qp;
}

static void make_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = 5 | psn_bits,
                                .max_dest_rd_atomic = max_dest_rd_atomic, .min_rnr_timer = min_rnr_timer,
                                .ah_attr = { .is_global = 1, .port_num = 1, .grh.hop_limit = 64 } };
    MUST(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid) == 0);
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS; attr.sq_psn = 5 | psn_bits; attr.timeout = timeout; attr.retry_cnt = retry_cnt; attr.rnr_retry = 7;
    attr.max_rd_atomic = max_rd_atomic;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_qp *a, *b;

static void pair(struct ibv_srq *srq)
{
    a = queue_pair(IBV_QPT_RC, srq);
    b = queue_pair(IBV_QPT_RC, srq);
    make_init(a); make_init(b);
    connect_to(a, b); connect_to(b, a);
}

static struct ibv_send_wr request(struct ibv_sge *sge, enum ibv_wr_opcode opcode, int flags, size_t local, size_t remote, uint32_t length)
{
    *sge = (struct ibv_sge){ .addr = (uintptr_t)buffer + local, .length = length, .lkey = mr->lkey };
    return (struct ibv_send_wr){ .wr_id = 7, .sg_list = sge, .num_sge = 1, .opcode = opcode, .send_flags = flags,
                                 .wr.rdma = { .remote_addr = (uintptr_t)buffer + remote, .rkey = mr->rkey } };
}

static void send_one(enum ibv_wr_opcode opcode, int flags, size_t local, size_t remote, uint32_t length)
{
    struct ibv_sge sge;
    struct ibv_send_wr *bad, wr = request(&sge, opcode, flags, local, remote, length);
    MUST(ibv_post_send(a, &wr, &bad) == 0);
}

/* Two requests in one call: the second is posted before the first can complete. */
static void send_two(struct ibv_send_wr first, struct ibv_send_wr second)
{
    struct ibv_send_wr *bad;
    first.next = &second;
    MUST(ibv_post_send(a, &first, &bad) == 0);
    good_completion(sends);
    good_completion(sends);
}

static void receive(struct ibv_qp *qp, size_t at, uint32_t length)
{
    MUST(post_receive(qp, mr, (uintptr_t)buffer + at, length) == 0);
}

static void close_all(void)
{
    if (a) MUST(ibv_destroy_qp(a) == 0);
    if (b) MUST(ibv_destroy_qp(b) == 0);
    if (mr) MUST(ibv_dereg_mr(mr) == 0);
    MUST(ibv_destroy_cq(sends) == 0 && ibv_destroy_cq(receives) == 0);
    MUST(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

/* Sends to a side without a receive request; the send completes only when one is posted. */
static void changed_buffer(int wrong)
{
    pair(NULL);
    buffer[0] = 1;
    send_one(IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 0, 4096);
    if (wrong) buffer[0] = 2;
    receive(b, 8192, 4096);
    good_completion(receives);
    good_completion(sends);
    buffer[0] = 3;
}

static void busy_buffer(int wrong)
{
    struct ibv_sge one, other;
    pair(NULL);
    send_two(request(&one, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 0, 8192, 4096),
             request(&other, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, wrong ? 4095 : 4096, 8192, 4096));
}

static void missing_fence(int wrong)
{
    struct ibv_sge one, other;
    pair(NULL);
    send_two(request(&one, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 0, 8192, 4096),
             request(&other, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | (wrong ? 0 : IBV_SEND_FENCE), 0, 16384, 4096));
    /* The other order needs no fence: earlier sends arrive before the response does. */
    send_two(request(&one, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 16384, 4096),
             request(&other, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 0, 8192, 4096));
}

static void missing_remote_fence(int wrong)
{
    struct ibv_sge one, other;
    pair(NULL);
    send_two(request(&one, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 0, 16384, 4096),
             request(&other, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | (wrong ? 0 : IBV_SEND_FENCE), 8192, 16384, 4096));
}

static void overwritten_message(int wrong)
{
    pair(NULL);
    receive(b, 0, 64);
    receive(b, wrong ? 32 : 64, 64);
    send_one(IBV_WR_SEND, IBV_SEND_SIGNALED, 8192, 0, 64);
    send_one(IBV_WR_SEND, IBV_SEND_SIGNALED, 8192, 0, 64);
    good_completion(sends);
    good_completion(sends);
    good_completion(receives);
    good_completion(receives);
    /* Requests that use the same bytes one after the other do no harm. */
    receive(b, 0, 64);
    receive(b, 0, 64);
    for (int i = 0; i < 2; i++) {
        send_one(IBV_WR_SEND, IBV_SEND_SIGNALED, 8192, 0, 64);
        good_completion(sends);
        good_completion(receives);
    }
}

static void deregistered_in_use(int wrong)
{
    pair(NULL);
    receive(b, 0, 64);
    if (!wrong) {
        struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
        MUST(ibv_modify_qp(b, &attr, IBV_QP_STATE) == 0);
    }
    struct ibv_mr *more = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE);
    MUST(more && ibv_dereg_mr(mr) == 0);
    mr = more;
    receive(b, 64, 64);
    /* Destroying objects together with the queue does no harm. */
    MUST(ibv_dereg_mr(mr) == 0);
    mr = NULL;
}

static void stale_key(int wrong)
{
    struct ibv_mr old = *mr;
    pair(NULL);
    struct ibv_mr *more = wrong ? NULL : ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE);
    MUST(ibv_dereg_mr(mr) == 0);
    MUST(post_receive(b, wrong ? &old : more, (uintptr_t)buffer, 64) == 0);
    MUST(ibv_destroy_qp(b) == 0);
    b = NULL;
    mr = more;
}

static void unmapped_memory(int wrong)
{
    void *more = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(more != MAP_FAILED);
    struct ibv_mr *registered = ibv_reg_mr(pd, more, 8192, IBV_ACCESS_LOCAL_WRITE);
    MUST(registered);
    if (wrong) MUST(munmap(more, 8192) == 0);
    MUST(ibv_dereg_mr(registered) == 0);
    if (!wrong) MUST(munmap(more, 8192) == 0);
}

static void unsignaled_queue(int wrong)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    pair(NULL);
    MUST(ibv_query_qp(a, &attr, IBV_QP_CAP, &init) == 0);
    for (uint32_t i = 0; i + !wrong < init.cap.max_send_wr; i++) send_one(IBV_WR_RDMA_WRITE, 0, 0, 8192, 64);
    if (!wrong) {
        send_one(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8192, 64);
        good_completion(sends);
    }
}

static void short_datagram_receive(int wrong)
{
    a = queue_pair(IBV_QPT_UD, NULL);
    ready_ud(a, 0x1111);
    receive(a, 0, wrong ? 39 : 40);
}

static void small_cq(int wrong)
{
    struct ibv_cq *large = receives;
    MUST(receives = ibv_create_cq(context, 2, NULL, NULL, 0));
    struct ibv_cq *small = receives;
    pair(NULL);
    MUST(small->cqe < DEPTH);
    for (int i = 0; i < small->cqe + wrong; i++) receive(b, 64 * (size_t)i, 64);
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(small) == 0);
    a = b = NULL;
    receives = large;
}

static void no_timeout(int wrong) { timeout = wrong ? 0 : 14; pair(NULL); }
static void no_retry(int wrong) { retry_cnt = wrong ? 0 : 7; pair(NULL); }
static void long_psn(int wrong) { psn_bits = wrong ? 0x1000000 : 0; pair(NULL); }

static void slow_rnr(int wrong)
{
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    MUST(srq);
    min_rnr_timer = wrong ? 0 : 12;
    pair(srq);
    send_one(IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 0, 64);
    struct ibv_sge sge = { .addr = (uintptr_t)buffer + 8192, .length = 64, .lkey = mr->lkey };
    struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
    struct ibv_wc wc;
    /* When its sender has a completion, the message has arrived and found no receive request.
     * One poll of a CQ does both. */
    for (int i = 0; i < 1000; i++) MUST(ibv_poll_cq(sends, 1, &wc) == 0);
    MUST(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    good_completion(sends);
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_srq(srq) == 0);
    a = b = NULL;
}

static void wrong_state(int wrong)
{
    struct ibv_sge sge;
    struct ibv_send_wr *bad, wr = request(&sge, IBV_WR_SEND, IBV_SEND_SIGNALED, 0, 0, 64);
    a = queue_pair(IBV_QPT_RC, NULL);
    make_init(a);
    if (wrong) MUST(ibv_post_send(a, &wr, &bad) == EINVAL);
    receive(a, 0, 64);
}

static void ignored_error(int wrong)
{
    struct ibv_sge sge;
    pair(NULL);
    struct ibv_send_wr *bad, wr = request(&sge, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8192, 64);
    wr.wr.rdma.rkey ^= 0x5500;
    MUST(ibv_post_send(a, &wr, &bad) == 0);
    MUST(next_completion(sends).status == IBV_WC_REM_ACCESS_ERR);
    for (int i = 0; i < (wrong ? 20 : 2); i++) {
        MUST(ibv_post_send(a, &wr, &bad) == 0);
        MUST(next_completion(sends).status == IBV_WC_WR_FLUSH_ERR);
    }
}

static void unacknowledged_event(int wrong)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    MUST(channel);
    struct ibv_cq *quiet = sends, *cq;
    void *cookie;
    MUST(sends = ibv_create_cq(context, DEPTH, NULL, channel, 0));
    MUST(ibv_req_notify_cq(sends, 0) == 0);
    pair(NULL);
    send_one(IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 0, 8192, 64);
    MUST(ibv_get_cq_event(channel, &cq, &cookie) == 0 && cq == sends);
    good_completion(sends);
    if (!wrong) ibv_ack_cq_events(cq, 1);
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(sends) == 0);
    a = b = NULL;
    sends = quiet;
    MUST(ibv_destroy_comp_channel(channel) == 0);
}

static void left_open(int wrong)
{
    pair(NULL);
    if (!wrong) return;
    MUST(ibv_close_device(context) == 0);
    exit(0);
}

/* The peer serves one READ at a time, and refuses more. */
static void read_depth(int wrong)
{
    struct ibv_sge sge[4];
    struct ibv_send_wr *bad, wr[4];
    max_dest_rd_atomic = wrong ? 1 : 4;
    pair(NULL);
    for (int i = 0; i < 4; i++) {
        wr[i] = request(&sge[i], IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 8192 * (size_t)i, 40000, 8192);
        wr[i].next = i < 3 ? &wr[i + 1] : NULL;
    }
    MUST(ibv_post_send(a, wr, &bad) == 0);
    int bads = 0;
    for (int i = 0; i < 4; i++) bads += next_completion(sends).status != IBV_WC_SUCCESS;
    MUST(!bads == !wrong);
}

static const struct { const char *name; void (*make)(int wrong); } mistakes[] = {
    { "changed-buffer", changed_buffer }, { "busy-buffer", busy_buffer }, { "missing-fence", missing_fence },
    { "missing-remote-fence", missing_remote_fence }, { "overwritten-message", overwritten_message },
    { "deregistered-in-use", deregistered_in_use }, { "stale-key", stale_key }, { "unmapped-memory", unmapped_memory },
    { "unsignaled-queue", unsignaled_queue }, { "short-datagram-receive", short_datagram_receive }, { "small-cq", small_cq },
    { "no-timeout", no_timeout }, { "no-retry", no_retry }, { "long-psn", long_psn }, { "slow-rnr", slow_rnr },
    { "wrong-state", wrong_state }, { "ignored-error", ignored_error }, { "read-depth", read_depth },
    { "unacknowledged-event", unacknowledged_event }, { "left-open", left_open },
};

int main(int argc, char **argv)
{
    const char *name = "none";
    int option, found = 0;
    while ((option = getopt(argc, argv, "m:")) != -1) if (option == 'm') name = optarg;
    int wrong = strcmp(name, "none") != 0;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        if (wrong && strcmp(name, mistakes[i].name) != 0) continue;
        context = open_first();
        MUST(pd = ibv_alloc_pd(context));
        MUST(sends = ibv_create_cq(context, 64, NULL, NULL, 0));
        MUST(receives = ibv_create_cq(context, 64, NULL, NULL, 0));
        MUST(buffer = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        MUST(mr = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
        a = b = NULL;
        mistakes[i].make(wrong);
        close_all();
        found = 1;
    }
    MUST(found);
    printf("done\n");
    return 0;
}
