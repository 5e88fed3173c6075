/* One side of a connection that one request ends.
 *   terminates -a ADDRESS -p PORT -l          listens
 *   terminates -a ADDRESS -p PORT -c REQUEST  sends the request:
 *     write, read                  with a key that does not exist
 *     write-bounds, read-bounds    beyond the end of the region
 *     write-right, read-right      to a region that does not allow it
 *     write-domain, read-domain    to a region of another protection domain
 *     write-wrap, read-wrap        beyond the end of the address space
 *     atomic                       a fetch-and-add with a valid key
 *     send                         to a peer without receive requests
 *     send-long                    a message that is longer than the peer's receive request
 *     send-invalidate              a message that invalidates a key that does not exist
 *     send-fits                    a valid message, which only a fault on the way can spoil
 * The caller names its request in the private data; the listener answers with its keys. Each side prints its
 * completions and asynchronous events, and exits with 2 when the connection ends, so that softhca says why. */
#include "cm.h"

#define SIZE 4096
#define NAME 16

/* What the listener offers. Both sides have the same byte order. */
struct offer { uint64_t address; uint32_t all, only_read, only_write, other_domain; };

static _Alignas(SIZE) char memory[SIZE];

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = one_of_each();
    MUST(rdma_create_qp(id, NULL, &init) == 0);
}

static uint32_t key(struct ibv_pd *pd, int rights)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | rights);
    MUST(mr);
    return mr->rkey;
}

static struct offer offer(struct rdma_cm_id *id)
{
    struct ibv_pd *other = ibv_alloc_pd(id->verbs);
    MUST(other);
    int all = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    struct offer offer = { .address = (uintptr_t)memory, .all = key(id->qp->pd, all), .other_domain = key(other, all) };
    offer.only_read = key(id->qp->pd, IBV_ACCESS_REMOTE_READ);
    offer.only_write = key(id->qp->pd, IBV_ACCESS_REMOTE_WRITE);
    return offer;
}

static void receive(struct rdma_cm_id *id, struct ibv_mr *mr, uint32_t length)
{
    MUST(post_receive(id->qp, mr, (uintptr_t)memory, length) == 0);
}

/* Sends a message and waits until it has left. */
static void greet(struct rdma_cm_id *id, struct ibv_mr *mr)
{
    MUST(post(id->qp, IBV_WR_SEND, mr, (uintptr_t)memory, 8, 0, 0) == 0);
    good_completion(id->send_cq);
}

/* Accepts a caller. Returns whether its request needs a receive request, which is posted. */
static int listens(struct rdma_event_channel *channel, struct rdma_cm_id **id)
{
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    listener(channel, 1);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    char request[NAME] = "";
    MUST(event->param.conn.private_data_len >= NAME);
    memcpy(request, event->param.conn.private_data, NAME - 1);
    *id = event->id;
    create_qp(*id);
    struct offer own = offer(*id);
    param.private_data = &own;
    param.private_data_len = sizeof own;
    struct ibv_mr *mr = ibv_reg_mr((*id)->qp->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr);
    receive(*id, mr, SIZE);
    MUST(rdma_accept(*id, &param) == 0);
    rdma_ack_cm_event(event);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    good_completion((*id)->recv_cq);
    int receives = strncmp(request, "send-", 5) == 0;
    if (receives) receive(*id, mr, strcmp(request, "send-long") == 0 ? 8 : SIZE);
    greet(*id, mr);
    return receives;
}

/* Waits for the listener's greeting. Linux's siw overlooks a message that comes too early, until more data comes.
 * So empty WRITEs follow. */
static void wait_for_greeting(struct rdma_cm_id *id, struct offer peer)
{
    double until = now() + LIMIT_SECONDS;
    struct ibv_wc wc;
    int count = 0;
    while (count == 0 && now() < until) {
        for (double next = now() + 0.2; count == 0 && now() < next;) count = ibv_poll_cq(id->recv_cq, 1, &wc);
        if (count) break;
        MUST(post(id->qp, IBV_WR_RDMA_WRITE, NULL, 0, 0, peer.address, peer.all) == 0);
        good_completion(id->send_cq);
    }
    MUST(count == 1 && wc.status == IBV_WC_SUCCESS);
}

/* Connects. The request may be sent when the listener's greeting has come: Linux's iw_cm stops with a BUG if a
 * connection ends before its listener has handled ESTABLISHED. */
static struct offer calls(struct rdma_event_channel *channel, struct rdma_cm_id **id, const char *request)
{
    char name[NAME] = "";
    strncpy(name, request, NAME - 1);
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .private_data = name, .private_data_len = NAME };
    *id = routed(channel);
    create_qp(*id);
    struct ibv_mr *mr = ibv_reg_mr((*id)->qp->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr);
    receive(*id, mr, SIZE);
    MUST(rdma_connect(*id, &param) == 0);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    struct offer peer;
    MUST(event->param.conn.private_data_len >= sizeof peer);
    memcpy(&peer, event->param.conn.private_data, sizeof peer);
    rdma_ack_cm_event(event);
    greet(*id, mr);
    wait_for_greeting(*id, peer);
    return peer;
}

static int ends(const char *request, const char *with)
{
    size_t length = strlen(request), end = strlen(with);
    return length >= end && strcmp(request + length - end, with) == 0;
}

static void ask(struct ibv_qp *qp, const char *request, struct offer peer)
{
    struct ibv_mr *mr = ibv_reg_mr(qp->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(mr);
    struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
    int reads = strncmp(request, "read", 4) == 0;
    wr.opcode = reads ? IBV_WR_RDMA_READ : strncmp(request, "write", 5) == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND;
    wr.wr.rdma.remote_addr = peer.address;
    wr.wr.rdma.rkey = strchr(request, '-') ? peer.all : 0x4242;
    if (ends(request, "-bounds")) wr.wr.rdma.remote_addr += SIZE - 32;
    if (ends(request, "-right")) wr.wr.rdma.rkey = reads ? peer.only_write : peer.only_read;
    if (ends(request, "-domain")) wr.wr.rdma.rkey = peer.other_domain;
    if (ends(request, "-wrap")) wr.wr.rdma.remote_addr = UINT64_MAX - 31;
    if (ends(request, "-invalidate")) {
        wr.opcode = IBV_WR_SEND_WITH_INV;
        wr.invalidate_rkey = wr.wr.rdma.rkey = 0x4242; // siw's provider takes the second one.
    }
    if (strcmp(request, "atomic") == 0) {
        sge.length = 8;
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.wr.atomic.remote_addr = peer.address;
        wr.wr.atomic.rkey = peer.all;
    }
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
}

/* Prints the events. siw raises some only after DISCONNECTED, and for some requests none: the wait for the first
 * event has a limit in ms. */
static void say_events(struct ibv_context *context, int limit)
{
    struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
    struct ibv_async_event event;
    for (; poll(&ready, 1, limit) == 1 && ibv_get_async_event(context, &event) == 0; limit = 0) {
        printf("event: %s\n", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
}

int main(int argc, char **argv)
{
    const char *request = NULL;
    int option, completes = 1;
    while ((option = getopt(argc, argv, "a:p:lc:")) != -1) {
        if (option == 'a') host = optarg;
        if (option == 'p') port = optarg;
        if (option == 'c') request = optarg;
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    MUST(channel);
    if (request) {
        struct offer peer = calls(channel, &id, request);
        ask(id->qp, request, peer);
    } else {
        completes = listens(channel, &id);
    }
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
    if (completes) {
        struct ibv_wc wc = next_completion(request ? id->send_cq : id->recv_cq);
        printf("completion: %s\n", ibv_wc_status_str(wc.status));
    }
    say_events(id->verbs, request ? 0 : 3000);
    return 2;
}
