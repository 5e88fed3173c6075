/* Addressing by LID alone, on InfiniBand ports: datagrams without a GRH that are answered with
 * the data of their completions, a reliable connection, and address vectors that lead nowhere. */
#include "common.h"

enum { ROUNDS = 50, GRH = 40, SIZE = 4096, QKEY = 0x11111111 };

struct side { uint32_t lid, ud, rc, unused; };

static int refused(struct ibv_pd *pd, uint16_t lid)
{
    struct ibv_ah_attr attr = { .dlid = lid, .port_num = 1 };
    errno = 0;
    return ibv_create_ah(pd, &attr) == NULL && errno == EINVAL;
}

static void send_to(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_ah *ah, uint32_t qpn, struct ibv_mr *mr, uint8_t *at, uint32_t length)
{
    struct ibv_sge sge = { .addr = (uintptr_t)at, .length = length, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
                                    .wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY } };
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
    good_completion(cq);
}

/* Receives one datagram, and returns the address of its sender. */
static struct ibv_ah *receive(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_mr *mr, uint8_t *at, uint32_t length, struct side peer)
{
    struct ibv_wc wc = good_completion(cq);
    MUST(wc.byte_len == GRH + length && wc.src_qp == peer.ud && wc.slid == peer.lid && wc.dlid_path_bits == 0);
    MUST(!(wc.wc_flags & IBV_WC_GRH));
    for (int i = 0; i < GRH; i++) MUST(at[i] == 0xee);
    for (uint32_t i = 0; i < length; i++) MUST(at[GRH + i] == (uint8_t)(length + i));
    struct ibv_ah *ah = ibv_create_ah_from_wc(qp->pd, &wc, NULL, 1);
    MUST(ah);
    MUST(post_receive(qp, mr, (uintptr_t)at, SIZE / 2) == 0);
    return ah;
}

static void connect_by_lid(struct ibv_qp *qp, struct side peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTR; attr.path_mtu = IBV_MTU_2048; attr.dest_qp_num = peer.rc; attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12; attr.ah_attr.port_num = 1; attr.ah_attr.dlid = (uint16_t)peer.lid;
    /* The fields of a GRH are not read. */
    memset(&attr.ah_attr.grh, 0x5a, sizeof attr.ah_attr.grh);
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS; attr.timeout = 14; attr.retry_cnt = 7; attr.rnr_retry = 7; attr.max_rd_atomic = 1;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

int main(int argc, char **argv)
{
    int is_client, fd = rendezvous(argc, argv, &is_client);
    struct ibv_context *context = open_first();
    struct ibv_port_attr port;
    MUST(ibv_query_port(context, 1, &port) == 0);
    MUST(port.link_layer == IBV_LINK_LAYER_INFINIBAND && !(port.flags & IBV_QPF_GRH_REQUIRED));
    MUST(port.lid > 0 && port.lid < 0xc000 && port.sm_lid != 0 && port.lmc == 0);

    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sent = ibv_create_cq(context, 16, NULL, NULL, 0), *received = ibv_create_cq(context, 16, NULL, NULL, 0);
    uint8_t *bytes = calloc(1, 2 * SIZE);
    MUST(pd && sent && received && bytes);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(mr);
    MUST(refused(pd, 0) && refused(pd, 0xc000) && refused(pd, 0xffff));

    struct ibv_qp_init_attr init = { .send_cq = sent, .recv_cq = received, .qp_type = IBV_QPT_UD,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *ud = ibv_create_qp(pd, &init);
    MUST(ud);
    struct ibv_qp *rc = make_qp(pd, sent, IBV_QPT_RC, 4);
    ready_ud(ud, QKEY);
    memset(bytes, 0xee, SIZE / 2);
    MUST(post_receive(ud, mr, (uintptr_t)bytes, SIZE / 2) == 0);
    struct side own = { .lid = port.lid, .ud = ud->qp_num, .rc = rc->qp_num }, peer;
    swap_bytes(fd, &own, &peer, sizeof own);

    struct ibv_ah_attr attr = { .dlid = (uint16_t)peer.lid, .port_num = 1 };
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    MUST(ah);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        uint8_t *out = bytes + SIZE / 2;
        uint32_t length = round * 20;
        for (uint32_t i = 0; i < length; i++) out[i] = (uint8_t)(length + i);
        struct ibv_ah *back = NULL;
        if (!is_client) back = receive(ud, received, mr, bytes, length, peer);
        send_to(ud, sent, back ? back : ah, peer.ud, mr, out, length);
        if (is_client) back = receive(ud, received, mr, bytes, length, peer);
        MUST(ibv_destroy_ah(back) == 0);
    }

    connect_by_lid(rc, peer);
    struct address own_memory = address_of(rc, mr), memory;
    swap_bytes(fd, &own_memory, &memory, sizeof memory);
    memset(bytes, is_client ? 3 : 4, SIZE);
    MUST(post(rc, IBV_WR_RDMA_WRITE, mr, (uintptr_t)bytes, SIZE, memory.buffer + SIZE, (uint32_t)memory.rkey) == 0);
    good_completion(sent);
    char done = 1;
    swap_bytes(fd, &done, &done, 1);
    MUST(bytes[SIZE] == (is_client ? 4 : 3) && bytes[2 * SIZE - 1] == bytes[SIZE]);
    printf("LID %u and LID %u\n", own.lid, peer.lid);
    return 0;
}
