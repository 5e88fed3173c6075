/* A program of 2006: the functions of libibverbs with the version IBVERBS_1.0, with the struct
 * declarations of that time. It sends messages over an RC QP with a shared receive queue and
 * over a UD QP, with completion and async events. Prints the name of each called function, one
 * per line. */
#include "common.h"

struct first_context;
struct first_pd { struct first_context *context; uint32_t handle; };
struct first_mr { struct first_context *context; struct first_pd *pd; uint32_t handle, lkey, rkey; };
struct first_cq { struct first_context *context; void *cq_context; uint32_t handle; int cqe; };
struct first_srq { struct first_context *context; void *srq_context; struct first_pd *pd; uint32_t handle; };
struct first_qp { struct first_context *context; void *qp_context; struct first_pd *pd; struct first_cq *send_cq, *recv_cq; struct first_srq *srq;
                  uint32_t handle, qp_num; enum ibv_qp_state state; enum ibv_qp_type qp_type; };
struct first_ah { struct first_context *context; struct first_pd *pd; uint32_t handle; };
struct first_init { void *qp_context; struct first_cq *send_cq, *recv_cq; struct first_srq *srq; struct ibv_qp_cap cap; enum ibv_qp_type qp_type; int sq_sig_all; };
struct first_recv { struct first_recv *next; uint64_t wr_id; struct ibv_sge *sg_list; int num_sge; };
struct first_send { struct first_send *next; uint64_t wr_id; struct ibv_sge *sg_list; int num_sge; enum ibv_wr_opcode opcode; int send_flags; uint32_t imm_data;
                    union { struct { uint64_t remote_addr; uint32_t rkey; } rdma;
                            struct { uint64_t remote_addr, compare_add, swap; uint32_t rkey; } atomic;
                            struct { struct first_ah *ah; uint32_t remote_qpn, remote_qkey; } ud; } wr; };
struct first_ops {
    void *before_poll[7];
    int (*poll_cq)(struct first_cq *cq, int count, struct ibv_wc *wc);
    int (*req_notify_cq)(struct first_cq *cq, int solicited_only);
    void *before_post_srq[7];
    int (*post_srq_recv)(struct first_srq *srq, struct first_recv *wr, struct first_recv **bad);
    void *before_post[4];
    int (*post_send)(struct first_qp *qp, struct first_send *wr, struct first_send **bad);
    int (*post_recv)(struct first_qp *qp, struct first_recv *wr, struct first_recv **bad);
    void *after_post[4];
};
struct first_context { void *device; struct first_ops ops; int cmd_fd, async_fd, num_comp_vectors; };

#define FIRST(type, name, ...) extern type first_##name(__VA_ARGS__); __asm__(".symver first_" #name ", ibv_" #name "@IBVERBS_1.0")
FIRST(void, ack_async_event, struct ibv_async_event *event);
FIRST(void, ack_cq_events, struct first_cq *cq, unsigned count);
FIRST(struct first_pd *, alloc_pd, struct first_context *context);
FIRST(int, attach_mcast, struct first_qp *qp, union ibv_gid *gid, uint16_t lid);
FIRST(int, close_device, struct first_context *context);
FIRST(struct first_ah *, create_ah, struct first_pd *pd, struct ibv_ah_attr *attr);
FIRST(struct first_cq *, create_cq, struct first_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int vector);
FIRST(struct first_qp *, create_qp, struct first_pd *pd, struct first_init *init);
FIRST(struct first_srq *, create_srq, struct first_pd *pd, struct ibv_srq_init_attr *init);
FIRST(int, dealloc_pd, struct first_pd *pd);
FIRST(int, dereg_mr, struct first_mr *mr);
FIRST(int, destroy_ah, struct first_ah *ah);
FIRST(int, destroy_cq, struct first_cq *cq);
FIRST(int, destroy_qp, struct first_qp *qp);
FIRST(int, destroy_srq, struct first_srq *srq);
FIRST(int, detach_mcast, struct first_qp *qp, union ibv_gid *gid, uint16_t lid);
FIRST(void, free_device_list, void **list);
FIRST(int, get_async_event, struct first_context *context, struct ibv_async_event *event);
FIRST(int, get_cq_event, struct ibv_comp_channel *channel, struct first_cq **cq, void **cq_context);
FIRST(uint64_t, get_device_guid, void *device);
FIRST(void **, get_device_list, int *count);
FIRST(const char *, get_device_name, void *device);
FIRST(int, modify_qp, struct first_qp *qp, struct ibv_qp_attr *attr, int mask);
FIRST(int, modify_srq, struct first_srq *srq, struct ibv_srq_attr *attr, int mask);
FIRST(struct first_context *, open_device, void *device);
FIRST(int, query_device, struct first_context *context, struct ibv_device_attr *attr);
FIRST(int, query_gid, struct first_context *context, uint8_t port, int index, union ibv_gid *gid);
FIRST(int, query_pkey, struct first_context *context, uint8_t port, int index, uint16_t *pkey);
FIRST(int, query_port, struct first_context *context, uint8_t port, struct ibv_port_attr *attr);
FIRST(int, query_qp, struct first_qp *qp, struct ibv_qp_attr *attr, int mask, struct first_init *init);
FIRST(int, query_srq, struct first_srq *srq, struct ibv_srq_attr *attr);
FIRST(struct first_mr *, reg_mr, struct first_pd *pd, void *addr, size_t length, int access);
FIRST(int, resize_cq, struct first_cq *cq, int cqe);
/* This function has never changed its version, and gets the context of that time. */
FIRST(struct ibv_comp_channel *, create_comp_channel, struct first_context *context);

#define CALL(name) (printf("called ibv_%s\n", #name), first_##name)
enum { QKEY = 0x1234, GRH = 40 };

static struct ibv_wc wait_for(struct first_cq *cq)
{
    struct ibv_wc wc;
    double end = now() + LIMIT_SECONDS;
    int found;
    while ((found = cq->context->ops.poll_cq(cq, 1, &wc)) == 0) MUST(now() < end);
    MUST(found == 1 && wc.status == IBV_WC_SUCCESS);
    return wc;
}

static void to_rts(struct first_qp *qp, union ibv_gid gid)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .timeout = 14,
                                .retry_cnt = 7, .rnr_retry = 7, .ah_attr = { .is_global = 1, .port_num = 1, .grh.dgid = gid, .grh.hop_limit = 1 } };
    int rc = qp->qp_type == IBV_QPT_RC;
    MUST(CALL(modify_qp)(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (rc ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY)) == 0);
    attr.qp_state = IBV_QPS_RTR;
    MUST(first_modify_qp(qp, &attr, IBV_QP_STATE | (rc ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
                                                       | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
    attr.qp_state = IBV_QPS_RTS;
    MUST(first_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN
                         | (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)) == 0);
    MUST(qp->state == IBV_QPS_RTS);
}

int main(void)
{
    int count = 0;
    void **list = CALL(get_device_list)(&count);
    MUST(list && count == 1 && list[0] && !list[1]);
    MUST(*CALL(get_device_name)(list[0]) && CALL(get_device_guid)(list[0]) != 0);
    struct first_context *context = CALL(open_device)(list[0]);
    MUST(context && context->device == list[0] && context->cmd_fd >= 0 && context->num_comp_vectors > 0);
    CALL(free_device_list)(list);

    struct ibv_device_attr device;
    struct ibv_port_attr port;
    union ibv_gid gid;
    uint16_t pkey;
    MUST(CALL(query_device)(context, &device) == 0 && device.max_qp > 0);
    MUST(CALL(query_port)(context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE && first_query_port(context, 9, &port) == EINVAL);
    MUST(CALL(query_gid)(context, 1, 0, &gid) == 0 && CALL(query_pkey)(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
    MUST(first_query_gid(context, 9, 0, &gid) == -1 && errno == EINVAL);

    struct first_pd *pd = CALL(alloc_pd)(context);
    char *bytes = calloc(1, 4096);
    MUST(pd && pd->context == context && bytes);
    struct first_mr *mr = CALL(reg_mr)(pd, bytes, 4096, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr && mr->pd == pd && mr->lkey);
    MUST(first_reg_mr(pd, bytes, 4096, 1 << 8 | IBV_ACCESS_REMOTE_WRITE) == NULL && errno);
    struct ibv_comp_channel *channel = first_create_comp_channel(context);
    int of_cq, of_srq, of_qp;
    MUST(channel);
    struct first_cq *cq = CALL(create_cq)(context, 8, &of_cq, channel, 0);
    MUST(cq && cq->context == context && cq->cq_context == &of_cq && cq->cqe >= 8);
    MUST(CALL(resize_cq)(cq, 32) == 0 && cq->cqe >= 32);
    struct ibv_srq_init_attr shared = { .srq_context = &of_srq, .attr = { .max_wr = 8, .max_sge = 1 } };
    struct first_srq *srq = CALL(create_srq)(pd, &shared);
    MUST(srq && srq->pd == pd && srq->srq_context == &of_srq);

    struct first_init init = { .qp_context = &of_qp, .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
                               .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
    struct first_qp *rc = CALL(create_qp)(pd, &init);
    MUST(rc && rc->srq == srq && rc->qp_context == &of_qp && rc->qp_num && init.cap.max_send_wr >= 4);
    init.srq = NULL, init.qp_type = IBV_QPT_UD, init.cap.max_recv_wr = 4, init.cap.max_recv_sge = 1;
    struct first_qp *ud = first_create_qp(pd, &init);
    MUST(ud && ud->srq == NULL);
    to_rts(rc, gid);
    to_rts(ud, gid);
    struct ibv_qp_attr attr;
    struct first_init found;
    MUST(CALL(query_qp)(rc, &attr, IBV_QP_STATE, &found) == 0 && attr.qp_state == IBV_QPS_RTS);
    MUST(found.send_cq == cq && found.recv_cq == cq && found.srq == srq && found.qp_context == &of_qp);

    /* A message from the RC QP to itself: the completion event names the CQ, and the event of the limit the SRQ. */
    struct ibv_sge to = { (uintptr_t)bytes, 1024, mr->lkey }, from = { (uintptr_t)bytes + 2048, 8, mr->lkey };
    struct first_recv second = { .wr_id = 2, .sg_list = &to, .num_sge = 1 }, first = { .next = &second, .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_recv;
    MUST(context->ops.post_srq_recv(srq, &first, &bad_recv) == 0);
    struct ibv_srq_attr limit = { .srq_limit = 2 };
    MUST(CALL(modify_srq)(srq, &limit, IBV_SRQ_LIMIT) == 0 && CALL(query_srq)(srq, &limit) == 0 && limit.srq_limit == 2);
    MUST(context->ops.req_notify_cq(cq, 0) == 0);
    memcpy(bytes + 2048, "of 2006", 8);
    struct first_send send = { .wr_id = 3, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send = NULL;
    MUST(context->ops.post_send(rc, &send, &bad_send) == 0);
    struct first_cq *of_event;
    void *its_context;
    MUST(CALL(get_cq_event)(channel, &of_event, &its_context) == 0 && of_event == cq && its_context == &of_cq);
    CALL(ack_cq_events)(cq, 1);
    uint64_t ids = wait_for(cq).wr_id + wait_for(cq).wr_id;
    MUST(ids == 4 && strcmp(bytes, "of 2006") == 0);
    struct ibv_async_event event;
    do {
        MUST(CALL(get_async_event)(context, &event) == 0);
        if (event.event_type == IBV_EVENT_COMM_EST) MUST((void *)event.element.qp == rc);
        if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED) MUST((void *)event.element.srq == srq);
        CALL(ack_async_event)(&event);
    } while (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED);

    /* A datagram with an AH, and a list whose second request is refused. */
    struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh.dgid = gid, .grh.hop_limit = 1 };
    struct first_ah *ah = CALL(create_ah)(pd, &path);
    MUST(ah && ah->pd == pd);
    first.next = NULL;
    MUST(context->ops.post_recv(ud, &first, &bad_recv) == 0);
    send.wr.ud.ah = ah, send.wr.ud.remote_qpn = ud->qp_num, send.wr.ud.remote_qkey = QKEY;
    struct first_send wrong = { .wr_id = 9, .opcode = (enum ibv_wr_opcode)77, .wr.ud = { .ah = ah } };
    send.next = &wrong;
    MUST(context->ops.post_send(ud, &send, &bad_send) == EINVAL && bad_send == &wrong);
    ids = wait_for(cq).wr_id + wait_for(cq).wr_id;
    MUST(ids == 4 && strcmp(bytes + GRH, "of 2006") == 0);
    union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 7 } };
    MUST(CALL(attach_mcast)(ud, &group, 0) == 0 && CALL(detach_mcast)(ud, &group, 0) == 0 && first_detach_mcast(ud, &group, 0) != 0);

    MUST(first_dealloc_pd(pd) == EBUSY && CALL(destroy_ah)(ah) == 0 && CALL(destroy_qp)(ud) == 0 && first_destroy_qp(rc) == 0);
    MUST(first_destroy_qp(rc) == ENOENT && CALL(destroy_srq)(srq) == 0 && CALL(destroy_cq)(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
    MUST(CALL(dereg_mr)(mr) == 0 && CALL(dealloc_pd)(pd) == 0 && CALL(close_device)(context) == 0);
    MUST(first_close_device(context) == EBADF);
    free(bytes);
    return 0;
}
