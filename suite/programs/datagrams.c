/* UD in one process: the GRH in the receive buffer, immediate data, Q_Keys, and a multicast group with two members. */
#include "common.h"

enum { SIZE = 4096, GRH = 40, QKEY = 0x1234 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *bytes;

static struct ibv_qp *open_ud(struct ibv_cq *cq)
{
    return ready_ud(make_qp(pd, cq, IBV_QPT_UD, 16), QKEY);
}

static void send_to(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t length, uint32_t imm)
{
    struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = length, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(imm),
                                    .send_flags = IBV_SEND_SIGNALED, .wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = qkey } };
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
}

int main(void)
{
    context = open_first();
    pd = ibv_alloc_pd(context);
    bytes = aligned_alloc(4096, 4 * SIZE);
    MUST(pd && bytes);
    mr = ibv_reg_mr(pd, bytes, 4 * SIZE, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq *sent = ibv_create_cq(context, 32, NULL, NULL, 0);
    struct ibv_cq *first = ibv_create_cq(context, 32, NULL, NULL, 0), *second = ibv_create_cq(context, 32, NULL, NULL, 0);
    MUST(mr && sent && first && second);
    struct ibv_qp *from = open_ud(sent), *a = open_ud(first), *b = open_ud(second);
    union ibv_gid gid;
    MUST(ibv_query_gid(context, 1, 0, &gid) == 0);
    for (int i = 0; i < SIZE; i++) bytes[i] = (uint8_t)(i * 13);

    /* Checks one datagram: GRH, data, immediate data, source. */
    uint8_t *in = bytes + SIZE;
    struct ibv_ah *to = handle_to(pd, gid);
    MUST(post_receive(a, mr, (uintptr_t)in, GRH + 1000) == 0);
    send_to(from, to, a->qp_num, QKEY, 1000, 42);
    good_completion(sent);
    struct ibv_wc wc = good_completion(first);
    MUST(wc.byte_len == GRH + 1000 && wc.src_qp == from->qp_num && (wc.wc_flags & IBV_WC_GRH) && (wc.wc_flags & IBV_WC_WITH_IMM));
    MUST(ntohl(wc.imm_data) == 42 && memcmp(in + GRH, bytes, 1000) == 0);
    struct ibv_grh *grh = (struct ibv_grh *)in;
    MUST(memcmp(&grh->dgid, &gid, sizeof gid) == 0 && memcmp(&grh->sgid, &gid, sizeof gid) == 0);
    struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, grh, 1);
    MUST(back);

    /* A datagram with another Q_Key is not delivered; the following one is. */
    MUST(post_receive(a, mr, (uintptr_t)in, GRH + 1000) == 0);
    send_to(from, to, a->qp_num, QKEY + 1, 8, 1);
    good_completion(sent);
    send_to(from, to, a->qp_num, QKEY, 8, 2);
    good_completion(sent);
    MUST(ntohl(good_completion(first).imm_data) == 2);

    /* A multicast group reaches its members only. */
    union ibv_gid group = { .raw = { 0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3 } };
    MUST(ibv_attach_mcast(a, &group, 0) == 0 && ibv_attach_mcast(b, &group, 0) == 0);
    MUST(post_receive(a, mr, (uintptr_t)in, GRH + 100) == 0 && post_receive(b, mr, (uintptr_t)in + SIZE, GRH + 100) == 0);
    struct ibv_ah *many = handle_to(pd, group);
    send_to(from, many, 0xffffff, QKEY, 100, 3);
    good_completion(sent);
    MUST(good_completion(first).byte_len == GRH + 100 && good_completion(second).byte_len == GRH + 100);
    MUST(memcmp(in + GRH, bytes, 100) == 0 && memcmp(in + SIZE + GRH, bytes, 100) == 0);
    MUST(ibv_detach_mcast(b, &group, 0) == 0);
    MUST(post_receive(a, mr, (uintptr_t)in, GRH + 100) == 0 && post_receive(b, mr, (uintptr_t)in + SIZE, GRH + 100) == 0);
    send_to(from, many, 0xffffff, QKEY, 100, 4);
    good_completion(sent);
    good_completion(first);
    MUST(ibv_poll_cq(second, 1, &wc) == 0);
    MUST(ibv_detach_mcast(a, &group, 0) == 0 && ibv_detach_mcast(a, &group, 0) != 0);

    MUST(ibv_destroy_ah(to) == 0 && ibv_destroy_ah(many) == 0 && ibv_destroy_ah(back) == 0);
    MUST(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    MUST(ibv_destroy_cq(sent) == 0 && ibv_destroy_cq(first) == 0 && ibv_destroy_cq(second) == 0);
    MUST(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    printf("datagrams arrived where they should, and only there\n");
    return 0;
}
