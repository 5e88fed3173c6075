/* A sender whose receiver does not read, while another queue pair of the sender goes on.
 *   pressure -a ADDRESS -p PORT -l          serves until its last connection has ended
 *   pressure -a ADDRESS -p PORT -c          reads and writes some words, one after the other
 *   pressure -a ADDRESS -p PORT -o OTHER    is connected to both ports, and stops itself. When it is continued,
 *                                           it writes COUNT pieces to PORT, and meanwhile some words to OTHER.
 *                                           It stops itself again. When it is continued, all pieces complete.
 * The listener's reply names its memory, in its byte order. */
#include "cm.h"
#include <signal.h>

enum { PIECE = 4 << 20, COUNT = 32, WORD = 8, TRIPS = 100 };

struct offer { uint64_t address; uint32_t rkey; };

static _Alignas(4096) uint64_t memory[PIECE / WORD];
static struct ibv_mr *mr;

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { COUNT, 1, 1, 1, 0 } };
    MUST(rdma_create_qp(id, NULL, &init) == 0);
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if (!mr) mr = ibv_reg_mr(id->qp->pd, memory, PIECE, rights);
    MUST(mr);
}

static void serves(struct rdma_event_channel *channel)
{
    listener(channel, 8);
    for (int connections = 0;;) {
        struct rdma_cm_event *event = next_event(channel);
        if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            create_qp(event->id);
            struct offer own = { (uintptr_t)memory, mr->rkey };
            struct rdma_conn_param param = { .responder_resources = 16, .initiator_depth = 1, .private_data = &own, .private_data_len = sizeof own };
            MUST(rdma_accept(event->id, &param) == 0);
            connections++;
        } else if (event->event == RDMA_CM_EVENT_DISCONNECTED && --connections == 0) {
            return;
        }
        rdma_ack_cm_event(event);
    }
}

static struct rdma_cm_id *calls(struct rdma_event_channel *channel, struct offer *peer)
{
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    struct rdma_cm_id *id = routed(channel);
    create_qp(id);
    MUST(rdma_connect(id, &param) == 0);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    MUST(event->param.conn.private_data_len >= sizeof *peer);
    memcpy(peer, event->param.conn.private_data, sizeof *peer);
    rdma_ack_cm_event(event);
    return id;
}

/* Writes a value and reads it back, again and again. */
static void trips(struct rdma_cm_id *id, struct offer peer)
{
    uint64_t *word = memory + PIECE / WORD - 1;
    uint64_t at = peer.address + PIECE - WORD;
    for (uint64_t value = 1; value <= TRIPS; value++) {
        *word = value;
        MUST(post(id->qp, IBV_WR_RDMA_WRITE, mr, (uintptr_t)word, WORD, at, peer.rkey) == 0);
        good_completion(id->send_cq);
        *word = 0;
        MUST(post(id->qp, IBV_WR_RDMA_READ, mr, (uintptr_t)word, WORD, at, peer.rkey) == 0);
        good_completion(id->send_cq);
        MUST(*word == value);
    }
}

static void write_pieces(struct rdma_cm_id *id, struct offer peer)
{
    struct ibv_sge sge = { (uintptr_t)memory, PIECE, mr->lkey };
    for (uint64_t nth = 0; nth < COUNT; nth++) {
        struct ibv_send_wr *bad, wr = { .wr_id = nth, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma.remote_addr = peer.address;
        wr.wr.rdma.rkey = peer.rkey;
        MUST(ibv_post_send(id->qp, &wr, &bad) == 0);
    }
}

/* Takes the completions that have come. They come in order, and once. */
static uint64_t take(struct rdma_cm_id *id, uint64_t next)
{
    struct ibv_wc wc;
    for (; ibv_poll_cq(id->send_cq, 1, &wc) == 1; next++) MUST(wc.status == IBV_WC_SUCCESS && wc.wr_id == next);
    return next;
}

int main(int argc, char **argv)
{
    const char *other = NULL;
    int option, listens = 0;
    while ((option = getopt(argc, argv, "a:p:lco:")) != -1) {
        if (option == 'a') host = optarg;
        if (option == 'p') port = optarg;
        if (option == 'l') listens = 1;
        if (option == 'o') other = optarg;
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    if (listens) {
        serves(channel);
        return 0;
    }
    struct offer peer, peer_of_other;
    struct rdma_cm_id *id = calls(channel, &peer);
    if (!other) {
        trips(id, peer);
        return 0;
    }
    port = other;
    struct rdma_cm_id *second = calls(channel, &peer_of_other);
    raise(SIGSTOP);
    write_pieces(id, peer);
    uint64_t done = take(id, 0);
    trips(second, peer_of_other);
    done = take(id, done);
    MUST(done < COUNT);
    puts("the other goes on");
    fflush(stdout);
    raise(SIGSTOP);
    double until = now() + LIMIT_SECONDS;
    while (done < COUNT && now() < until) done = take(id, done);
    MUST(done == COUNT);
    /* Behind the pieces, on the same queue pair. */
    trips(id, peer);
    MUST(take(id, done) == COUNT);
    return 0;
}
