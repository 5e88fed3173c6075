/* The client of a connection whose peer ends it at once behind its last message.
 *   lastwords -a ADDRESS -p PORT
 * It stops itself as soon as it is connected. When it is continued, it sends a message first, and
 * then takes the peer's message. It exits with 0 if it gets that message. */
#include "cm.h"
#include <signal.h>

static struct rdma_cm_id *connects(struct rdma_event_channel *channel, char *room, size_t len)
{
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    struct ibv_qp_init_attr init = one_of_each();
    struct rdma_cm_id *id = routed(channel);
    MUST(rdma_create_qp(id, NULL, &init) == 0);
    struct ibv_mr *mr = ibv_reg_mr(id->pd, room, len, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr && rdma_post_recv(id, NULL, room, len, mr) == 0);
    MUST(rdma_connect(id, &param) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    return id;
}

int main(int argc, char **argv)
{
    static char room[16], mine[4] = "ping";
    int option;
    while ((option = getopt(argc, argv, "a:p:")) != -1) {
        if (option == 'a') host = optarg;
        if (option == 'p') port = optarg;
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    struct rdma_cm_id *id = connects(channel, room, sizeof room);
    struct ibv_sge sge = { .addr = (uintptr_t)mine, .length = sizeof mine };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
    struct ibv_wc wc;
    raise(SIGSTOP);
    MUST(ibv_post_send(id->qp, &wr, &bad) == 0);
    MUST(rdma_get_recv_comp(id, &wc) == 1);
    if (wc.status != IBV_WC_SUCCESS) FAIL("the receive request ended with %s", ibv_wc_status_str(wc.status));
    MUST(wc.byte_len == 5 && memcmp(room, "hello", 5) == 0);
    return 0;
}
