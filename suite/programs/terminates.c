/* One side of a connection that one request ends.
 *   terminates -a ADDRESS -p PORT -l          listens
 *   terminates -a ADDRESS -p PORT -c REQUEST  sends: write (to memory that is not there), send (to a peer without
 *                                             receive requests)
 * Both sides exit with 2 when the connection ends, so that softhca says why. */
#include "cm.h"

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = one_of_each();
    MUST(rdma_create_qp(id, NULL, &init) == 0);
}

static struct rdma_cm_id *listens(struct rdma_event_channel *channel)
{
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    listener(channel, 1);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = event->id;
    create_qp(id);
    MUST(rdma_accept(id, &param) == 0);
    rdma_ack_cm_event(event);
    return id;
}

static struct rdma_cm_id *calls(struct rdma_event_channel *channel)
{
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    struct rdma_cm_id *id = routed(channel);
    create_qp(id);
    MUST(rdma_connect(id, &param) == 0);
    return id;
}

int main(int argc, char **argv)
{
    const char *request = NULL;
    int option;
    while ((option = getopt(argc, argv, "a:p:lc:")) != -1) {
        if (option == 'a') host = optarg;
        if (option == 'p') port = optarg;
        if (option == 'c') request = optarg;
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    struct rdma_cm_id *id = request ? calls(channel) : listens(channel);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    if (request) {
        char data[8] = "mistake";
        struct ibv_sge sge = { .addr = (uintptr_t)data, .length = sizeof data };
        struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED };
        wr.opcode = strcmp(request, "write") == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
        wr.wr.rdma.remote_addr = 0x1000;
        wr.wr.rdma.rkey = 0x4242;
        MUST(ibv_post_send(id->qp, &wr, &bad) == 0);
    }
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
    return 2;
}
