/* One side of one connection, which stops in a chosen state. It prints each event and each
 * action.
 *   refusals -a ADDRESS -p PORT -l STATE   listens, until STATE: deaf (it reads no event), request, reject, accept,
 *                                          disconnect
 *   refusals -a ADDRESS -p PORT -c STATE   calls, until STATE: address, route, response (it does not confirm the reply),
 *                                          established, disconnect
 *   -d LENGTH                              the request and the accept have this much private data; both sides compare
 * It exits when the connection ends: with 0 after a disconnect, with 2 if there was no
 * connection, with 3 if the devices are gone. */
#include "cm.h"

static const char *until = "";
/* The length of the private data of a request and an accept. */
static unsigned own_data;
/* The number of ids. */
static int ids = 1;

/* The private data of the caller, or of the listener. */
static const uint8_t *data_of(int caller)
{
    static uint8_t data[256];
    for (unsigned i = 0; i < own_data; i++) data[i] = (uint8_t)(7 * i + (caller ? 1 : 2));
    return data;
}

/* Compares private data of the peer. Without iWARP, more zeros may follow. */
static void compare(struct rdma_cm_event *event, int of_caller)
{
    const struct rdma_conn_param *param = &event->param.conn;
    unsigned length = param->private_data_len;
    int is_iwarp = event->id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
    if (length < own_data || (is_iwarp && length != own_data) || memcmp(param->private_data, data_of(of_caller), own_data) != 0)
        FAIL("the private data of %u bytes is not the peer's of %u bytes", length, own_data);
    printf("has %u bytes of private data\n", own_data);
    fflush(stdout);
}

static int up_to(const char *state) { return strcmp(until, state) == 0; }

static void say(struct rdma_cm_event *event)
{
    const struct rdma_conn_param *param = &event->param.conn;
    printf("%s status %d", rdma_event_str(event->event), event->status);
    if (event->event == RDMA_CM_EVENT_REJECTED && param->private_data_len) printf(" private %.80s", (const char *)param->private_data);
    printf("\n");
    fflush(stdout);
}

static void has(const char *done)
{
    printf("has %s\n", done);
    fflush(stdout);
}

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = one_of_each();
    MUST(rdma_create_qp(id, NULL, &init) == 0);
}

/* A queue pair that does not belong to the id: the program itself must report that the
 * connection is established. */
static uint32_t foreign_qp(struct rdma_cm_id *id)
{
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    struct ibv_cq *cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
    MUST(pd && cq);
    return make_qp(pd, cq, IBV_QPT_RC, 1)->qp_num;
}

static void handle(struct rdma_cm_id *id, enum rdma_cm_event_type type)
{
    static const char no[] = "not today";
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
    switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        if (!up_to("address")) MUST(rdma_resolve_route(id, 2000) == 0);
        break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        if (up_to("route")) break;
        if (up_to("response")) param.qp_num = foreign_qp(id);
        else create_qp(id);
        param.private_data = data_of(1);
        param.private_data_len = (uint8_t)own_data;
        MUST(rdma_connect(id, &param) == 0);
        has("called");
        break;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        ids++;
        if (up_to("reject")) MUST(rdma_reject(id, no, sizeof no) == 0);
        if (!up_to("accept") && !up_to("disconnect")) break;
        create_qp(id);
        param.private_data = data_of(0);
        param.private_data_len = (uint8_t)own_data;
        MUST(rdma_accept(id, &param) == 0);
        has("accepted");
        break;
    case RDMA_CM_EVENT_ESTABLISHED:
        if (up_to("disconnect")) MUST(rdma_disconnect(id) == 0);
        break;
    case RDMA_CM_EVENT_DISCONNECTED:
        rdma_disconnect(id);
        exit(0);
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
        if (id->qp) rdma_destroy_qp(id);
        MUST(rdma_destroy_id(id) == 0);
        if (--ids == 0) exit(3);
        break;
    default:
        exit(2);
    }
}

int main(int argc, char **argv)
{
    int option, calls = 0;
    while ((option = getopt(argc, argv, "a:p:l:c:d:")) != -1) {
        if (option == 'a') host = optarg;
        if (option == 'p') port = optarg;
        if (option == 'l' || option == 'c') until = optarg;
        if (option == 'c') calls = 1;
        if (option == 'd') own_data = (unsigned)atoi(optarg) & 0xff; /* private_data_len has 8 bits */
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    if (calls) {
        struct rdma_cm_id *id;
        struct rdma_addrinfo *peer = place(0);
        MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && rdma_resolve_addr(id, NULL, peer->ai_dst_addr, 2000) == 0);
    } else {
        listener(channel, 2);
        while (up_to("deaf")) pause();
    }
    for (;;) {
        struct rdma_cm_event *event;
        if (rdma_get_cm_event(channel, &event) != 0) {
            MUST(errno == EIO);
            rdma_destroy_event_channel(channel);
            exit(3);
        }
        struct rdma_cm_id *id = event->id;
        enum rdma_cm_event_type type = event->event;
        say(event);
        if (own_data && type == RDMA_CM_EVENT_CONNECT_REQUEST) compare(event, 1);
        if (own_data && calls && type == RDMA_CM_EVENT_ESTABLISHED) compare(event, 0);
        MUST(rdma_ack_cm_event(event) == 0);
        handle(id, type);
    }
}
