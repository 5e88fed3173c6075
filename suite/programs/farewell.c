/* A sender to a multicast group whose queue pairs live no longer than their datagrams: each one is
 * destroyed after its last completion, and the process ends after the last of all.
 *   farewell -m GROUP -r ROUNDS -n DATAGRAMS     (GROUP is an IPv4 address) */
#include "cm.h"

enum { SIZE = 64 };

static void send_some(struct ibv_qp *qp, const struct rdma_ud_param *to, struct ibv_ah *ah, int count)
{
    static uint8_t bytes[SIZE];
    struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = SIZE };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                                    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
                                    .wr.ud = { .ah = ah, .remote_qpn = to->qp_num, .remote_qkey = to->qkey } };
    for (int i = 0; i < count; i++) MUST(ibv_post_send(qp, &wr, &bad) == 0);
    for (int i = 0; i < count; i++) good_completion(qp->send_cq);
}

int main(int argc, char **argv)
{
    struct sockaddr_in group = { .sin_family = AF_INET };
    int option, rounds = 1, count = 1;
    while ((option = getopt(argc, argv, "m:r:n:")) != -1) {
        if (option == 'm') MUST(inet_pton(AF_INET, optarg, &group.sin_addr) == 1);
        if (option == 'r') rounds = atoi(optarg);
        if (option == 'n') count = atoi(optarg);
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    MUST(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&group, 2000) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
    MUST(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
    struct rdma_cm_event *joined = expect(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
    struct rdma_ud_param to = joined->param.ud;
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    struct ibv_cq *cq = ibv_create_cq(id->verbs, count, NULL, NULL, 0);
    MUST(pd && cq);
    struct ibv_ah *ah = ibv_create_ah(pd, &to.ah_attr);
    MUST(ah);
    while (rounds-- > 0) {
        struct ibv_qp *qp = ready_ud(make_qp(pd, cq, IBV_QPT_UD, (unsigned)count), to.qkey);
        send_some(qp, &to, ah, count);
        if (rounds > 0) MUST(ibv_destroy_qp(qp) == 0);
    }
    _exit(0);
}
