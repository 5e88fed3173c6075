/* A program that ends at once, while its peer does not read.
 *   leaves -a ADDRESS -p PORT -l   listens; prints how many pieces have arrived when the connection has ended
 *   leaves -a ADDRESS -p PORT -c   stops the listener, and writes pieces until none completes any more; then
 *                                     prints how many have completed, lets the listener go on, and exits
 * Both run on one host, because the listener says its process id. */
#include "cm.h"
#include <signal.h>

#define PIECE 65536
#define PIECES 1024
#define DEPTH 16

struct offer { uint64_t address; uint32_t rkey; int32_t pid; };

static _Alignas(4096) char memory[PIECE * PIECES];

static struct ibv_mr *prepare(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = one_of_each();
    init.cap.max_send_wr = DEPTH;
    MUST(rdma_create_qp(id, NULL, &init) == 0);
    struct ibv_mr *mr = ibv_reg_mr(id->qp->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(mr);
    return mr;
}

static char mark(int piece)
{
    return (char)(piece % 127 + 1);
}

static int arrived(void)
{
    for (int piece = 0; piece < PIECES; piece++) {
        char *first = memory + (size_t)piece * PIECE;
        if (*first != mark(piece) || memcmp(first, first + 1, PIECE - 1) != 0) return piece;
    }
    return PIECES;
}

static void listens(struct rdma_event_channel *channel)
{
    listener(channel, 1);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct ibv_mr *mr = prepare(event->id);
    struct offer offer = { .address = (uintptr_t)memory, .rkey = mr->rkey, .pid = getpid() };
    struct rdma_conn_param param = { .private_data = &offer, .private_data_len = sizeof offer };
    MUST(rdma_accept(event->id, &param) == 0);
    rdma_ack_cm_event(event);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
    printf("arrived %d\n", arrived());
}

static void calls(struct rdma_event_channel *channel)
{
    struct rdma_conn_param param = { 0 };
    struct rdma_cm_id *id = routed(channel);
    struct ibv_mr *mr = prepare(id);
    for (int piece = 0; piece < PIECES; piece++) memset(memory + (size_t)piece * PIECE, mark(piece), PIECE);
    MUST(rdma_connect(id, &param) == 0);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    struct offer peer;
    MUST(event->param.conn.private_data_len >= sizeof peer);
    memcpy(&peer, event->param.conn.private_data, sizeof peer);
    rdma_ack_cm_event(event);
    MUST(kill(peer.pid, SIGSTOP) == 0);
    int posted = 0, completed = 0;
    for (double last = now(); completed < PIECES && now() < last + 0.5;) {
        struct ibv_wc wc;
        for (; posted < PIECES && posted < completed + DEPTH; posted++) {
            uint64_t from = (uintptr_t)memory + (uint64_t)posted * PIECE, to = peer.address + (uint64_t)posted * PIECE;
            MUST(post(id->qp, IBV_WR_RDMA_WRITE, mr, from, PIECE, to, peer.rkey) == 0);
        }
        if (ibv_poll_cq(id->send_cq, 1, &wc) == 0) continue;
        MUST(wc.status == IBV_WC_SUCCESS);
        completed++;
        last = now();
    }
    printf("completed %d\n", completed);
    fflush(stdout);
    MUST(kill(peer.pid, SIGCONT) == 0);
    _exit(0);
}

int main(int argc, char **argv)
{
    int option, calling = 0;
    while ((option = getopt(argc, argv, "a:p:lc")) != -1) {
        if (option == 'a') host = optarg;
        if (option == 'p') port = optarg;
        if (option == 'c') calling = 1;
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    if (calling) calls(channel);
    listens(channel);
    return 0;
}
