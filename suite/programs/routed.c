/* Two programs in two subnets, which one or more routers join: datagrams and a reliable connection
 * with a GRH.
 *   -p PORT [HOST], with the LID of the router in the own subnet in ROUTER_LID, and the number of
 *   routers between the programs in ROUTERS
 * With a hop limit that is not greater than this number nothing passes: a datagram and a SEND. */
#include "common.h"

enum { SIZE = 3000, GRH = 40, QKEY = 0x4711 };

struct side { uint32_t rc, ud; union ibv_gid gid; };

static uint16_t router;
static uint8_t routers;

static struct ibv_ah_attr way_to(union ibv_gid gid, uint8_t hop_limit)
{
    return (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .dlid = router, .grh = { .dgid = gid, .hop_limit = hop_limit } };
}

static void connect_through_router(struct ibv_qp *qp, struct side peer, uint8_t hop_limit)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTR; attr.path_mtu = IBV_MTU_2048; attr.dest_qp_num = peer.rc; attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12; attr.ah_attr = way_to(peer.gid, hop_limit);
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS; attr.timeout = 10; attr.retry_cnt = 2; attr.rnr_retry = 7; attr.max_rd_atomic = 1;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

int main(int argc, char **argv)
{
    int is_client, fd = rendezvous(argc, argv, &is_client);
    router = (uint16_t)atoi(getenv("ROUTER_LID"));
    routers = (uint8_t)atoi(getenv("ROUTERS"));
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0), *datagrams = ibv_create_cq(context, 64, NULL, NULL, 0);
    uint8_t *bytes = calloc(4, 4096);
    MUST(pd && cq && datagrams && bytes);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, 4 * 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(mr);
    struct ibv_qp *rc = make_qp(pd, cq, IBV_QPT_RC, 8), *lost = make_qp(pd, cq, IBV_QPT_RC, 8);
    struct ibv_qp *ud = ready_ud(make_qp(pd, datagrams, IBV_QPT_UD, 8), QKEY);
    struct side own = { .rc = rc->qp_num, .ud = ud->qp_num }, peer;
    MUST(ibv_query_gid(context, 1, 0, &own.gid) == 0);
    MUST(post_receive(ud, mr, (uintptr_t)bytes, 4096) == 0);
    MUST(write(fd, &own, sizeof own) == sizeof own && read(fd, &peer, sizeof peer) == sizeof peer);
    MUST(memcmp(own.gid.raw, peer.gid.raw, 8) != 0);

    connect_through_router(rc, peer, routers + 1);
    MUST(post_receive(rc, mr, (uintptr_t)bytes + 4096, SIZE) == 0);
    char ready = 0;
    MUST(write(fd, &ready, 1) == 1 && read(fd, &ready, 1) == 1);
    for (int i = 0; i < SIZE; i++) bytes[8192 + i] = (uint8_t)(i * 7 + is_client);
    MUST(post(rc, IBV_WR_SEND, mr, (uintptr_t)bytes + 8192, SIZE, 0, 0) == 0);
    good_completion(cq);
    good_completion(cq);
    for (int i = 0; i < SIZE; i++) MUST(bytes[4096 + i] == (uint8_t)(i * 7 + !is_client));

    struct ibv_ah_attr attr = way_to(peer.gid, 64);
    struct ibv_ah *to = ibv_create_ah(pd, &attr);
    MUST(to);
    struct ibv_sge sge = { .addr = (uintptr_t)bytes + 8192, .length = 1000, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
                                    .wr.ud = { .ah = to, .remote_qpn = peer.ud, .remote_qkey = QKEY } };
    MUST(ibv_post_send(ud, &wr, &bad) == 0);
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = good_completion(datagrams);
        if (wc.opcode != IBV_WC_RECV) continue;
        MUST(wc.byte_len == GRH + 1000 && (wc.wc_flags & IBV_WC_GRH) && memcmp(bytes + 8, peer.gid.raw, 16) == 0);
        MUST(wc.slid == router);
        MUST(bytes[GRH + 999] == (uint8_t)(999 * 7 + !is_client));
    }

    attr = way_to(peer.gid, routers);
    wr.wr.ud.ah = ibv_create_ah(pd, &attr);
    MUST(wr.wr.ud.ah && ibv_post_send(ud, &wr, &bad) == 0);
    good_completion(datagrams);

    connect_through_router(lost, (struct side){ .rc = peer.rc, .gid = peer.gid }, routers);
    MUST(post(lost, IBV_WR_SEND, mr, (uintptr_t)bytes + 8192, 8, 0, 0) == 0);
    MUST(next_completion(cq).status == IBV_WC_RETRY_EXC_ERR);
    MUST(write(fd, &ready, 1) == 1 && read(fd, &ready, 1) == 1);
    printf("routers forward packets with a GRH\n");
    return 0;
}
