/* Fails in one known way, asks why, and exits with 1. `-m MODE` selects the failure:
 *   modify   RTR without the path MTU
 *   rkey     an RDMA WRITE with an unknown key, and a SEND behind it that is flushed
 *   rnr      a SEND to a peer that posts no receive request, tried twice
 *   gone     a SEND to a process that was killed
 *   qkey     three datagrams with another Q_Key
 *   attempt  a QP with more inline data than the device has, which is refused; then one without, and an RDMA WRITE with a bad key on it
 *   tries    the same, and nothing else fails
 *   wrong    nothing fails, and it exits with 1
 *   stops    nothing fails; it waits for SIGTERM, moves its QPs out of service and exits with 1
 *   none     nothing fails, and it exits with 0
 * With `-w` it prints "waits" after the failure, and waits for a signal. It looks `softhca_why`
 * up as any program can. */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>

typedef const char *why_function(struct ibv_qp *qp, uint64_t wr_id);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[4096];

static void open_all(void)
{
    context = open_first();
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    MUST(pd && cq);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(mr);
}

static void tell(struct ibv_qp *qp, uint64_t wr_id)
{
    why_function *why = (why_function *)dlvsym(RTLD_DEFAULT, "softhca_why", "SOFTHCA_1.0");
    MUST(why && why == (why_function *)dlsym(RTLD_DEFAULT, "softhca_why") && !why(NULL, wr_id));
    const char *sentence = why(qp, wr_id);
    printf("QP 0x%x wr_id %lu: %s\n", qp->qp_num, (unsigned long)wr_id, sentence ? sentence : "nothing has failed");
    fflush(stdout);
}

static void fails(enum ibv_wc_status expected)
{
    struct ibv_wc wc = next_completion(cq);
    if (wc.status != expected) FAIL("completion of %lu: %s", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
}

static void modify(void)
{
    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 4);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr.qp_state = IBV_QPS_RTR;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                       IBV_QP_MIN_RNR_TIMER) == EINVAL);
    tell(qp, 1);
}

static void rkey(void)
{
    struct ibv_qp *a = make_qp(pd, cq, IBV_QPT_RC, 4), *b = make_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(a, b);
    tell(a, 1000 + IBV_WR_RDMA_WRITE);
    MUST(post(a, IBV_WR_RDMA_WRITE, mr, (uintptr_t)memory, 8, (uintptr_t)memory, 0x77777777) == 0);
    fails(IBV_WC_REM_ACCESS_ERR);
    MUST(post(a, IBV_WR_SEND, mr, (uintptr_t)memory, 8, 0, 0) == 0);
    fails(IBV_WC_WR_FLUSH_ERR);
    tell(a, 1000 + IBV_WR_RDMA_WRITE);
    tell(a, 1000 + IBV_WR_SEND);
}

static void rnr(void)
{
    struct ibv_qp *a = make_qp(pd, cq, IBV_QPT_RC, 4), *b = make_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(a, b);
    /* Attributes that were set on the way to RTS can be changed only in SQD. */
    struct ibv_qp_attr attr = { .rnr_retry = 1, .qp_state = IBV_QPS_SQD };
    MUST(ibv_modify_qp(a, &attr, IBV_QP_STATE) == 0);
    MUST(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_RNR_RETRY) == 0);
    attr.qp_state = IBV_QPS_RTS;
    MUST(ibv_modify_qp(a, &attr, IBV_QP_STATE) == 0);
    MUST(post(a, IBV_WR_SEND, mr, (uintptr_t)memory, 8, 0, 0) == 0);
    fails(IBV_WC_RNR_RETRY_EXC_ERR);
    tell(a, 1000 + IBV_WR_SEND);
}

static void gone(void)
{
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    /* Before a device is open, so that each process has its own. */
    pid_t peer = fork();
    MUST(peer >= 0);
    open_all();
    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 4);
    struct address own = address_of(qp, mr), other;
    swap_bytes(ends[peer == 0], &own, &other, sizeof own);
    connect_qp(qp, own, other);
    char ready = 1;
    swap_bytes(ends[peer == 0], &ready, &ready, 1);
    if (peer == 0) for (;;) pause();
    MUST(kill(peer, SIGKILL) == 0 && waitpid(peer, NULL, 0) == peer);
    MUST(post(qp, IBV_WR_SEND, mr, (uintptr_t)memory, 8, 0, 0) == 0);
    fails(IBV_WC_RETRY_EXC_ERR);
    tell(qp, 1000 + IBV_WR_SEND);
}

static void qkey(void)
{
    struct ibv_qp *a = ready_ud(make_qp(pd, cq, IBV_QPT_UD, 8), 5), *b = ready_ud(make_qp(pd, cq, IBV_QPT_UD, 8), 6);
    struct ibv_ah *ah = handle_to(pd, address_of(b, NULL).gid);
    MUST(post_receive(b, mr, (uintptr_t)memory, 100) == 0);
    /* Three datagrams that are dropped, and one that arrives and shows that the others have,
     * too. */
    for (int i = 0; i < 4; i++) {
        struct ibv_sge sge = { .addr = (uintptr_t)memory + 2048, .length = 8, .lkey = mr->lkey };
        struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
            .wr.ud = { .ah = ah, .remote_qpn = b->qp_num, .remote_qkey = i < 3 ? 7 : 6 } };
        MUST(ibv_post_send(a, &wr, &bad) == 0);
    }
    good_completion(cq);
    tell(b, 1);
}

static void attempt(void)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 65536 } };
    MUST(!ibv_create_qp(pd, &init));
    init.cap.max_inline_data = 0;
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    MUST(qp && ibv_destroy_qp(qp) == 0);
}

static void on_signal(int signal) { (void)signal; }

static void stops(void)
{
    sigset_t blocked, before;
    struct sigaction action = { .sa_handler = on_signal };
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    MUST(sigaction(SIGTERM, &action, NULL) == 0 && sigprocmask(SIG_BLOCK, &blocked, &before) == 0);
    struct ibv_qp *a = make_qp(pd, cq, IBV_QPT_RC, 4), *b = make_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(a, b);
    MUST(post_receive(b, mr, (uintptr_t)memory, 100) == 0);
    printf("waits\n");
    fflush(stdout);
    sigsuspend(&before);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    MUST(ibv_modify_qp(b, &attr, IBV_QP_STATE) == 0);
    fails(IBV_WC_WR_FLUSH_ERR);
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

int main(int argc, char **argv)
{
    const char *mode = "";
    int option, waits = 0;
    while ((option = getopt(argc, argv, "m:w")) != -1) {
        if (option == 'm') mode = optarg;
        if (option == 'w') waits = 1;
    }
    if (!strcmp(mode, "gone")) gone();
    else open_all();
    if (!strcmp(mode, "modify")) modify();
    if (!strcmp(mode, "rkey")) rkey();
    if (!strcmp(mode, "rnr")) rnr();
    if (!strcmp(mode, "qkey")) qkey();
    if (!strcmp(mode, "attempt") || !strcmp(mode, "tries")) attempt();
    if (!strcmp(mode, "attempt")) rkey();
    if (!strcmp(mode, "stops")) stops();
    if (waits) {
        printf("waits\n");
        fflush(stdout);
        for (;;) pause();
    }
    return strcmp(mode, "none") != 0;
}
