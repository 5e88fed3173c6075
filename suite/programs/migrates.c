/* Automatic path migration: a connection between the devices H1 and H2, by LID, with the path
 * between their ports 1 and the alternate path between their ports 2. It writes until the
 * connection has migrated, and then some more. */
#include <fcntl.h>
#include "common.h"

#define WRITES_AFTER 1000

static struct ibv_context *open_named(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    MUST(list != NULL);
    for (int at = 0; list[at] != NULL; at++)
        if (strcmp(ibv_get_device_name(list[at]), name) == 0) context = ibv_open_device(list[at]);
    ibv_free_device_list(list);
    if (context == NULL) FAIL("there is no device %s", name);
    MUST(fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK) == 0);
    return context;
}

static struct ibv_ah_attr way_to(struct ibv_context *peer, uint8_t port)
{
    struct ibv_port_attr attr;
    MUST(ibv_query_port(peer, port, &attr) == 0 && attr.state == IBV_PORT_ACTIVE && attr.lid != 0);
    return (struct ibv_ah_attr){ .dlid = attr.lid, .port_num = port };
}

static void join(struct ibv_qp *qp, struct ibv_qp *peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = way_to(peer->context, 1),
        .alt_ah_attr = way_to(peer->context, 2), .alt_port_num = 2, .alt_timeout = 12 };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH) == 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 7, .rnr_retry = 7,
        .max_rd_atomic = 1, .path_mig_state = IBV_MIG_REARM };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
        | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_PATH_MIG_STATE) == 0);
}

/* Writes once, and waits for the completion. */
static void write_once(struct ibv_qp *qp, struct ibv_mr *from, struct ibv_mr *to)
{
    struct ibv_sge sge = { .addr = (uintptr_t)from->addr, .length = (uint32_t)from->length, .lkey = from->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { .remote_addr = (uintptr_t)to->addr, .rkey = to->rkey } }, *bad;
    struct ibv_wc wc;
    int count;
    ++*(uint64_t *)from->addr;
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
    double start = now();
    while ((count = ibv_poll_cq(qp->send_cq, 1, &wc)) == 0)
        if (now() - start > LIMIT_SECONDS) FAIL("no completion");
    MUST(count == 1);
    if (wc.status != IBV_WC_SUCCESS) FAIL("a write failed: %s", ibv_wc_status_str(wc.status));
    MUST(*(uint64_t *)to->addr == *(uint64_t *)from->addr);
}

/* Whether the connection has migrated. Other events, of the port, come too. */
static int has_migrated(struct ibv_context *context)
{
    struct ibv_async_event event;
    int migrated = 0;
    while (ibv_get_async_event(context, &event) == 0) {
        migrated |= event.event_type == IBV_EVENT_PATH_MIG;
        ibv_ack_async_event(&event);
    }
    return migrated;
}

int main(void)
{
    struct ibv_context *contexts[2] = { open_named("H1"), open_named("H2") };
    struct ibv_qp *qps[2];
    struct ibv_mr *mrs[2];
    static uint64_t memory[2][1024];
    for (int side = 0; side < 2; side++) {
        struct ibv_pd *pd = ibv_alloc_pd(contexts[side]);
        struct ibv_cq *cq = ibv_create_cq(contexts[side], 16, NULL, NULL, 0);
        MUST(pd != NULL && cq != NULL);
        qps[side] = make_qp(pd, cq, IBV_QPT_RC, 4);
        mrs[side] = ibv_reg_mr(pd, memory[side], sizeof memory[side], IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        MUST(mrs[side] != NULL);
    }
    join(qps[0], qps[1]);
    join(qps[1], qps[0]);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    double start = now();
    do {
        write_once(qps[0], mrs[0], mrs[1]);
        MUST(ibv_query_qp(qps[0], &attr, IBV_QP_PATH_MIG_STATE, &init) == 0);
        if (now() - start > LIMIT_SECONDS) FAIL("the connection is not armed");
    } while (attr.path_mig_state != IBV_MIG_ARMED);
    puts("armed");
    fflush(stdout);
    for (start = now(); !has_migrated(contexts[0]); write_once(qps[0], mrs[0], mrs[1]))
        if (now() - start > LIMIT_SECONDS) FAIL("the connection has not migrated");
    for (int count = 0; count < WRITES_AFTER; count++) write_once(qps[0], mrs[0], mrs[1]);
    MUST(ibv_query_qp(qps[0], &attr, IBV_QP_PATH_MIG_STATE | IBV_QP_PORT, &init) == 0);
    MUST(attr.path_mig_state == IBV_MIG_MIGRATED && attr.port_num == 2);
    puts("migrated");
    return 0;
}
