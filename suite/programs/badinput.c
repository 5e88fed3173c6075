/* Wrong arguments: each gives the errno of the manual page, or the completion status of the IBA,
 * and nothing breaks. */
#include "common.h"

enum { SIZE = 4096 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;

struct pair { struct ibv_cq *cq, *other; struct ibv_qp *a, *b; };

static struct pair open_pair(struct ibv_pd *of)
{
    struct pair p = { ibv_create_cq(context, 32, NULL, NULL, 0), ibv_create_cq(context, 32, NULL, NULL, 0), NULL, NULL };
    p.a = make_qp(of, p.cq, IBV_QPT_RC, 4);
    p.b = make_qp(of, p.other, IBV_QPT_RC, 4);
    connect_both(p.a, p.b);
    return p;
}

static void close_pair(struct pair p)
{
    MUST(ibv_destroy_qp(p.a) == 0 && ibv_destroy_qp(p.b) == 0 && ibv_destroy_cq(p.cq) == 0 && ibv_destroy_cq(p.other) == 0);
}

static void ends_with(struct pair p, enum ibv_wr_opcode opcode, struct ibv_mr *local, uint64_t at, uint32_t length, uint64_t remote,
                      uint32_t rkey, enum ibv_wc_status status)
{
    MUST(post(p.a, opcode, local, at, length, remote, rkey) == 0);
    struct ibv_wc wc = next_completion(p.cq);
    if (wc.status != status) FAIL("%s instead of %s", ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    /* Only a query for the state changes what the program sees in the queue pair. */
    MUST(ibv_query_qp(p.a, &attr, IBV_QP_CAP, &init) == 0 && p.a->state == IBV_QPS_RTS);
    MUST(ibv_query_qp(p.a, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_ERR);
    MUST(p.a->state == IBV_QPS_ERR);
    close_pair(p);
}

static void queries(void)
{
    struct ibv_port_attr port;
    union ibv_gid gid;
    __be16 pkey;
    MUST(ibv_query_port(context, 9, &port) == EINVAL);
    MUST(ibv_query_gid(context, 1, 5000, &gid) != 0);
    MUST(ibv_query_pkey(context, 1, 5000, &pkey) != 0);
    struct ibv_device_attr device;
    MUST(ibv_query_device(context, &device) == 0);
    MUST(ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0) == NULL && errno == EINVAL);
    struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                     .cap = { .max_send_wr = (uint32_t)device.max_qp_wr + 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
    MUST(ibv_create_qp(pd, &init) == NULL && errno == EINVAL);
    init.cap.max_send_wr = 1;
    init.cap.max_send_sge = (uint32_t)device.max_sge + 1;
    MUST(ibv_create_qp(pd, &init) == NULL && errno == EINVAL);
    MUST(ibv_destroy_cq(cq) == 0);
}

static void transitions(void)
{
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 4);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    attr.qp_state = IBV_QPS_INIT;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
    attr.port_num = 7;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == EINVAL);
    attr.port_num = 1;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    MUST(post(qp, IBV_WR_SEND, mr, (uintptr_t)mr->addr, 8, 0, 0) == EINVAL);
    MUST(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

static void busy(void)
{
    struct ibv_pd *own = ibv_alloc_pd(context);
    struct pair p = open_pair(own);
    MUST(ibv_dealloc_pd(own) == EBUSY);
    MUST(ibv_destroy_cq(p.cq) == EBUSY);
    close_pair(p);
    MUST(ibv_dealloc_pd(own) == 0);
}

static void full_queue(void)
{
    struct pair p = open_pair(pd);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    MUST(ibv_query_qp(p.b, &attr, IBV_QP_CAP, &init) == 0);
    unsigned taken = 0;
    while (post_receive(p.b, mr, (uintptr_t)mr->addr, 8) == 0) taken++;
    MUST(taken == init.cap.max_recv_wr);
    MUST(post_receive(p.b, mr, (uintptr_t)mr->addr, 8) == ENOMEM);
    struct ibv_sge sges[64] = { { 0 } };
    struct ibv_send_wr *bad = NULL, wr = { .sg_list = sges, .num_sge = 64, .opcode = IBV_WR_SEND };
    MUST(ibv_post_send(p.a, &wr, &bad) == EINVAL && bad == &wr);
    wr.num_sge = 0;
    wr.opcode = 99;
    MUST(ibv_post_send(p.a, &wr, &bad) == EINVAL && bad == &wr);
    close_pair(p);
}

int main(void)
{
    context = open_first();
    pd = ibv_alloc_pd(context);
    struct ibv_pd *foreign_pd = ibv_alloc_pd(context);
    void *buffer = calloc(1, SIZE);
    mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_mr *foreign = ibv_reg_mr(foreign_pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    MUST(pd && foreign_pd && mr && foreign);
    uint64_t at = (uintptr_t)buffer;
    queries();
    transitions();
    busy();
    full_queue();
    ends_with(open_pair(pd), IBV_WR_RDMA_WRITE, mr, at, 8, at, mr->rkey + 0x100, IBV_WC_REM_ACCESS_ERR);
    ends_with(open_pair(pd), IBV_WR_RDMA_WRITE, mr, at, 8, at + SIZE - 4, mr->rkey, IBV_WC_REM_ACCESS_ERR);
    ends_with(open_pair(pd), IBV_WR_RDMA_WRITE, mr, at, 8, at, foreign->rkey, IBV_WC_REM_ACCESS_ERR);
    ends_with(open_pair(pd), IBV_WR_RDMA_READ, mr, at, 8, at, mr->rkey, IBV_WC_REM_ACCESS_ERR);
    ends_with(open_pair(pd), IBV_WR_RDMA_WRITE, foreign, at, 8, at, mr->rkey, IBV_WC_LOC_PROT_ERR);
    ends_with(open_pair(pd), IBV_WR_RDMA_WRITE, mr, at + SIZE - 4, 8, at, mr->rkey, IBV_WC_LOC_PROT_ERR);
    struct pair small = open_pair(pd);
    MUST(post_receive(small.b, mr, at, 4) == 0);
    ends_with(small, IBV_WR_SEND, mr, at, 8, 0, 0, IBV_WC_REM_INV_REQ_ERR);
    MUST(ibv_dereg_mr(foreign) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(foreign_pd) == 0 && ibv_dealloc_pd(pd) == 0);
    MUST(ibv_close_device(context) == 0);
    printf("every wrong argument was answered as the manual says\n");
    return 0;
}
