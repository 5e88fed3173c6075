/* One program on a RoCE device and an iWARP device of one agent.
 *   transports ROCE IWARP   the addresses of both devices
 * One listener takes connections at both addresses. Each end is on the device of its address. An error and
 * a port event of one device do not appear at the other one. "ready" asks for the port of the RoCE device to
 * go down. */
#include "cm.h"

enum { SIZE = 64 };

struct link { struct rdma_cm_id *near, *far; struct ibv_mr *near_mr, *far_mr; };

static char memory[SIZE];
static struct rdma_event_channel *channel;

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
    MUST(rdma_create_qp(id, NULL, &init) == 0);
}

static struct ibv_mr *registered(struct rdma_cm_id *id)
{
    struct ibv_mr *mr = ibv_reg_mr(id->qp->pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr);
    return mr;
}

/* Both ends of a connection are on the device of this kind, which has the address in its own way. */
static void check_device(struct rdma_cm_id *id, const char *address, int iwarp)
{
    struct ibv_context *context = id->verbs;
    uint8_t mapped[16] = { [10] = 0xff, [11] = 0xff };
    MUST(inet_pton(AF_INET, address, mapped + 12) == 1);
    MUST(context->device->transport_type == (iwarp ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB));
    MUST(strcmp(ibv_get_device_name(context->device), iwarp ? "iw0" : "roce0") == 0);
    struct ibv_port_attr port;
    MUST(ibv_query_port(context, 1, &port) == 0);
    int has_address = 0, count = 0;
    for (int index = 0; index < port.gid_tbl_len; index++) {
        union ibv_gid gid, empty = { 0 };
        if (ibv_query_gid(context, 1, index, &gid) || memcmp(&gid, &empty, sizeof gid) == 0) continue;
        count++;
        has_address |= memcmp(&gid, mapped, sizeof gid) == 0;
    }
    MUST(has_address == !iwarp && (!iwarp || count == 1));
    MUST((memcmp(&id->route.addr.addr.ibaddr.sgid, mapped, sizeof mapped) == 0) == !iwarp);
}

static struct link connects(const char *address, int iwarp)
{
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    struct link link = { 0 };
    host = address;
    link.far = routed(channel);
    check_device(link.far, address, iwarp);
    create_qp(link.far);
    MUST(rdma_connect(link.far, &param) == 0);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    link.near = event->id;
    check_device(link.near, address, iwarp);
    create_qp(link.near);
    MUST(rdma_accept(link.near, &param) == 0);
    rdma_ack_cm_event(event);
    for (int i = 0; i < 2; i++) rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    link.near_mr = registered(link.near);
    link.far_mr = registered(link.far);
    return link;
}

static void must_talk(struct link link)
{
    MUST(post_receive(link.near->qp, link.near_mr, (uintptr_t)memory, SIZE) == 0);
    MUST(post(link.far->qp, IBV_WR_SEND, link.far_mr, (uintptr_t)memory, SIZE, 0, 0) == 0);
    good_completion(link.far->send_cq);
    MUST(good_completion(link.near->recv_cq).byte_len == SIZE);
}

/* The device gets this event, and perhaps others of its GIDs. The other device gets nothing. */
static void must_raise(struct ibv_context *context, enum ibv_event_type type, struct ibv_context *other)
{
    struct pollfd own = { .fd = context->async_fd, .events = POLLIN }, others = { .fd = other->async_fd, .events = POLLIN };
    struct ibv_async_event event;
    do {
        MUST(poll(&own, 1, LIMIT_SECONDS * 1000) == 1 && ibv_get_async_event(context, &event) == 0);
        if (event.event_type != type && event.event_type != IBV_EVENT_GID_CHANGE) FAIL("event: %s", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    } while (event.event_type != type);
    MUST(poll(&others, 1, 0) == 0);
}

int main(int argc, char **argv)
{
    char number[8];
    MUST(argc == 3);
    channel = rdma_create_event_channel();
    MUST(channel);
    host = "0.0.0.0";
    port = "0";
    struct rdma_cm_id *listens = listener(channel, 2);
    snprintf(number, sizeof number, "%u", ntohs(rdma_get_src_port(listens)));
    port = number;
    struct link roce = connects(argv[1], 0), iwarp = connects(argv[2], 1);
    must_talk(roce);
    must_talk(iwarp);
    /* iWARP does not wait for a receive request. */
    MUST(post(iwarp.far->qp, IBV_WR_SEND, iwarp.far_mr, (uintptr_t)memory, SIZE, 0, 0) == 0);
    for (int i = 0; i < 2; i++) {
        struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_DISCONNECTED);
        MUST(event->id == iwarp.near || event->id == iwarp.far);
        rdma_ack_cm_event(event);
    }
    must_raise(iwarp.near->verbs, IBV_EVENT_QP_FATAL, roce.near->verbs);
    must_talk(roce);
    puts("ready");
    fflush(stdout);
    must_raise(roce.near->verbs, IBV_EVENT_PORT_ERR, iwarp.near->verbs);
    return 0;
}
