/* A server whose program makes the queue pair itself and names its number in the parameters of
 * rdma_accept, on iWARP. As on Linux, rdma_accept moves the queue pair to RTS, whatever state it is
 * in, and the connection ends with the id.
 *   ownqp ADDRESS        server and client are processes of this program */
#include "cm.h"
#include <sys/wait.h>

/* How far the server moves its queue pair before it accepts, and who ends the connection how. All
 * connections have the same queue pair. An id of the server is destroyed during the next one. */
static const struct {
    enum ibv_qp_state moved_to;
    enum { SERVER_DISCONNECTS, CLIENT_DISCONNECTS, SERVER_DESTROYS } end;
} rounds[] = {
    { IBV_QPS_RESET, SERVER_DISCONNECTS },
    { IBV_QPS_INIT, CLIENT_DISCONNECTS },
    { IBV_QPS_RTS, SERVER_DISCONNECTS },
    { IBV_QPS_RTS, SERVER_DESTROYS },
};
enum { ROUNDS = sizeof rounds / sizeof *rounds };

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    MUST(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
    return attr.qp_state;
}

static void move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = { .qp_state = state };
    int mask;
    MUST(rdma_init_qp_attr(id, &attr, &mask) == 0);
    MUST((mask == IBV_QP_PORT) == (state == IBV_QPS_RTS));
    MUST(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void client(unsigned round)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
    static char buffer[64];
    MUST(channel);
    struct rdma_cm_id *id = routed(channel);
    MUST(rdma_create_qp(id, NULL, &init) == 0);
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
    MUST(mr && rdma_post_recv(id, NULL, buffer, sizeof buffer, mr) == 0 && rdma_connect(id, &param) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    struct ibv_wc wc = next_completion(id->recv_cq);
    MUST(wc.status == IBV_WC_SUCCESS && wc.byte_len == 5 && memcmp(buffer, "hello", 5) == 0);
    if (rounds[round].end == CLIENT_DISCONNECTS) MUST(rdma_disconnect(id) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
    MUST(rdma_dereg_mr(mr) == 0);
    rdma_destroy_qp(id);
    MUST(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(channel);
}

static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct rdma_cm_id *earlier;
/* The client may ask for the next connection before the server has heard of the end of this one. */
static struct rdma_cm_event *request;

/* A client's queue pair is as before when the peer has sent no valid reply. */
static void fails_to_connect(void)
{
    struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof own;
    char number[8], bytes[64];
    int peer = socket(AF_INET, SOCK_STREAM, 0);
    MUST(peer >= 0 && bind(peer, (struct sockaddr *)&own, size) == 0 && listen(peer, 1) == 0);
    MUST(getsockname(peer, (struct sockaddr *)&own, &size) == 0);
    snprintf(number, sizeof number, "%u", ntohs(own.sin_port));
    port = number;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    struct rdma_cm_id *id = routed(channel);
    struct ibv_pd *domain = ibv_alloc_pd(id->verbs);
    struct ibv_cq *queue = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
    MUST(domain && queue);
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = queue, .recv_cq = queue, .cap = { 4, 4, 1, 1, 16 } };
    struct ibv_qp *own_qp = ibv_create_qp(domain, &init);
    MUST(own_qp);
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .qp_num = own_qp->qp_num };
    MUST(rdma_connect(id, &param) == 0);
    int caller = accept(peer, NULL, NULL);
    MUST(caller >= 0 && read(caller, bytes, sizeof bytes) > 0 && write(caller, "MPA ID Rep Nonsense 1234", 24) == 24);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_CONNECT_ERROR));
    MUST(rdma_destroy_id(id) == 0 && state_of(own_qp) == IBV_QPS_INIT);
    MUST(ibv_destroy_qp(own_qp) == 0 && ibv_destroy_cq(queue) == 0 && ibv_dealloc_pd(domain) == 0);
    rdma_destroy_event_channel(channel);
    close(caller);
    close(peer);
}

static void server(struct rdma_event_channel *channel, unsigned round)
{
    if (!request) request = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = request->id;
    rdma_ack_cm_event(request);
    request = NULL;
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    if (qp) {
        /* It has had its connection. */
        param.qp_num = qp->qp_num;
        MUST(rdma_accept(id, &param) == -1 && errno == EINVAL);
        struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
        MUST(ibv_modify_qp(qp, &reset, IBV_QP_STATE) == 0);
    } else {
        pd = ibv_alloc_pd(id->verbs);
        cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0);
        MUST(pd && cq);
        struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 16 } };
        qp = ibv_create_qp(pd, &init);
        MUST(qp);
    }
    enum ibv_qp_state last = rounds[round].moved_to;
    for (enum ibv_qp_state state = IBV_QPS_INIT; state <= last; state++) move(id, qp, state);
    MUST(state_of(qp) != IBV_QPS_RTS);

    param.qp_num = qp->qp_num;
    MUST(rdma_accept(id, &param) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    MUST(state_of(qp) == IBV_QPS_RTS);
    if (earlier) MUST(rdma_destroy_id(earlier) == 0);
    move(id, qp, IBV_QPS_RTS);
    MUST(state_of(qp) == IBV_QPS_RTS);
    struct ibv_sge sge = { .addr = (uintptr_t)"hello", .length = 5 };
    struct ibv_send_wr *bad_send, send = {
        .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
    };
    MUST(ibv_post_send(qp, &send, &bad_send) == 0);
    struct ibv_wc wc = next_completion(cq);
    MUST(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);

    struct ibv_recv_wr *bad, wr = { .wr_id = 2 };
    MUST(ibv_post_recv(qp, &wr, &bad) == 0);
    if (rounds[round].end == SERVER_DISCONNECTS) MUST(rdma_disconnect(id) == 0);
    if (rounds[round].end == SERVER_DESTROYS) MUST(rdma_destroy_id(id) == 0);
    wc = next_completion(cq);
    MUST(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR && state_of(qp) == IBV_QPS_ERR);
    earlier = NULL;
    if (rounds[round].end != SERVER_DESTROYS) {
        struct rdma_cm_event *event = next_event(channel);
        if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            request = event;
            event = expect(channel, RDMA_CM_EVENT_DISCONNECTED);
        }
        MUST(event->event == RDMA_CM_EVENT_DISCONNECTED && event->id == id);
        rdma_ack_cm_event(event);
        earlier = id;
    }
}

int main(int argc, char **argv)
{
    int told[2], status;
    static char number[8];
    MUST(argc == 2 && pipe(told) == 0);
    host = argv[1];
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        MUST(read(told[0], number, sizeof number) == sizeof number);
        port = number;
        for (unsigned round = 0; round < ROUNDS; round++) client(round);
        return 0;
    }
    fails_to_connect();
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    port = "0";
    struct rdma_cm_id *listens = listener(channel, 1);
    snprintf(number, sizeof number, "%u", ntohs(rdma_get_src_port(listens)));
    MUST(write(told[1], number, sizeof number) == sizeof number);
    for (unsigned round = 0; round < ROUNDS; round++) server(channel, round);
    MUST(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
    MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    printf("%u connections\n", (unsigned)ROUNDS);
    return 0;
}
