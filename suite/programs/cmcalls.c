/* Calls every rdma_ function that librdmacm.so.1 exports, with valid arguments and with those of
 * a broken program: NULL, ids in the wrong state, unknown numbers, lengths that are too large.
 * Prints the name of each called function, one per line. It connects to itself over the loopback
 * address. */
#include "cm.h"
#include <fcntl.h>
#include <limits.h>

static const char *called[128];
static unsigned calls;

static void note(const char *name)
{
    for (unsigned i = 0; i < calls; i++) if (strcmp(called[i], name) == 0) return;
    MUST(calls < sizeof called / sizeof *called);
    called[calls++] = name;
}

#define CALL(function) (note(#function), (function))
/* A call that returns -1 and sets errno. */
#define MINUS(call) do { errno = 0; MUST((call) == -1); MUST(errno > 0); } while (0)

extern int rdma_resolve_addrinfo(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *) __attribute__((weak));
extern int rdma_query_addrinfo(struct rdma_cm_id *, struct rdma_addrinfo **) __attribute__((weak));
extern int rdma_write_cm_event(struct rdma_cm_id *, int, int, uint64_t) __attribute__((weak));

static struct rdma_event_channel *channel;

static void done(struct rdma_cm_event *event) { MUST(CALL(rdma_ack_cm_event)(event) == 0); }

static void devices(void)
{
    int count = -1;
    struct ibv_context **list = CALL(rdma_get_devices)(&count);
    MUST(list && count >= 1 && list[count] == NULL);
    CALL(rdma_free_devices)(list);
    list = rdma_get_devices(NULL);
    MUST(list);
    rdma_free_devices(list);
    static const int numbers[] = { INT_MIN, -1, 0, 5, 15, 16, 17, 100, INT_MAX };
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) MUST(*CALL(rdma_event_str)(numbers[i]));
}

static void addresses(void)
{
    struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found = NULL;
    MUST(CALL(rdma_getaddrinfo)(host, port, &hints, &found) == 0 && found);
    CALL(rdma_freeaddrinfo)(found);
    MUST(rdma_getaddrinfo("no such host.", port, &hints, &found) != 0);
    MUST(rdma_getaddrinfo(host, "no such service", &hints, &found) != 0);
    MUST(rdma_getaddrinfo(NULL, NULL, NULL, &found) != 0);
    hints.ai_flags = RAI_NUMERICHOST;
    MUST(rdma_getaddrinfo("localhost", port, &hints, &found) != 0);
    hints = (struct rdma_addrinfo){ .ai_family = 12345, .ai_port_space = 99 };
    if (rdma_getaddrinfo(host, port, &hints, &found) == 0) rdma_freeaddrinfo(found);
}

/* An id in the wrong state for a call. */
static void too_early(void)
{
    struct rdma_cm_id *id;
    MINUS(CALL(rdma_create_id)(channel, NULL, NULL, RDMA_PS_TCP));
    MINUS(rdma_create_id(channel, &id, NULL, (enum rdma_port_space)0x9999));
    MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    struct rdma_conn_param param = { .retry_count = 7 };
    MINUS(CALL(rdma_connect)(id, &param));
    MINUS(CALL(rdma_accept)(id, &param));
    MINUS(CALL(rdma_reject)(id, NULL, 0));
    MINUS(CALL(rdma_reject_ece)(id, NULL, 0));
    MINUS(CALL(rdma_disconnect)(id));
    MINUS(CALL(rdma_establish)(id));
    MINUS(CALL(rdma_resolve_route)(id, 100));
    MINUS(CALL(rdma_notify)(id, IBV_EVENT_COMM_EST));
    struct rdma_cm_id *asked;
    MINUS(CALL(rdma_get_request)(id, &asked));
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
    int mask, none = 0;
    static uint8_t much[4096];
    MINUS(CALL(rdma_init_qp_attr)(id, &attr, &mask));
    MUST(CALL(rdma_get_src_port)(id) == 0 && CALL(rdma_get_dst_port)(id) == 0);
    struct ibv_ece ece = { 0 };
    (void)CALL(rdma_get_remote_ece)(id, &ece);
    (void)CALL(rdma_set_local_ece)(id, &ece);
    MINUS(CALL(rdma_set_option)(id, 99, 0, &none, sizeof none));
    MINUS(rdma_set_option(id, RDMA_OPTION_ID, 99, &none, sizeof none));
    MINUS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, much, sizeof much));
    uint8_t tos = 8;
    MUST(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) == 0);
    struct sockaddr odd = { .sa_family = 77 };
    MINUS(CALL(rdma_bind_addr)(id, &odd));
    MINUS(CALL(rdma_resolve_addr)(id, NULL, &odd, 100));
    MUST(CALL(rdma_leave_multicast)(id, &odd) != 0);
    MUST(CALL(rdma_join_multicast)(id, &odd, NULL) != 0);
    struct rdma_cm_join_mc_attr_ex join = { .comp_mask = UINT32_MAX };
    MUST(CALL(rdma_join_multicast_ex)(id, &join, NULL) != 0);
    struct ibv_qp_init_attr init = one_of_each();
    MUST(CALL(rdma_create_qp)(id, NULL, &init) != 0);
    struct ibv_qp_init_attr_ex more = { .qp_type = IBV_QPT_RC, .comp_mask = UINT32_MAX };
    MUST(CALL(rdma_create_qp_ex)(id, &more) != 0);
    struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
    MUST(CALL(rdma_create_srq)(id, NULL, &srq) != 0);
    struct ibv_srq_init_attr_ex srq_ex = { .attr = { 1, 1, 0 }, .comp_mask = UINT32_MAX };
    MUST(CALL(rdma_create_srq_ex)(id, &srq_ex) != 0);
    if (rdma_write_cm_event) (void)CALL(rdma_write_cm_event)(id, 99, 0, 0);
    if (rdma_resolve_addrinfo) (void)CALL(rdma_resolve_addrinfo)(id, NULL, NULL, NULL);
    struct rdma_addrinfo *info = NULL;
    if (rdma_query_addrinfo && CALL(rdma_query_addrinfo)(id, &info) == 0 && info) rdma_freeaddrinfo(info);
    MUST(CALL(rdma_destroy_id)(id) == 0);
    struct rdma_cm_event *event;
    int flags = fcntl(channel->fd, F_GETFL);
    MUST(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) == 0);
    MINUS(CALL(rdma_get_cm_event)(channel, &event));
    MUST(errno == EAGAIN);
    MUST(fcntl(channel->fd, F_SETFL, flags) == 0);
}

/* Connection parameters of a program with its own QP: the peer gets them and uses none. */
static void options(struct rdma_cm_id *listening, struct rdma_event_channel *other, struct sockaddr_in *place)
{
    struct rdma_cm_id *id;
    MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)place, 2000) == 0);
    done(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
    MUST(rdma_resolve_route(id, 2000) == 0);
    done(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
    struct ibv_ece mine = { .vendor_id = 0x123456, .options = 0x89abcdef }, seen = { 0 };
    MUST(rdma_set_local_ece(id, &mine) == 0);
    struct rdma_conn_param param = { .qp_num = 0x777, .retry_count = 7 };
    MUST(rdma_connect(id, &param) == 0);
    struct rdma_cm_event *event = expect(other, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *peer = event->id;
    MUST(event->listen_id == listening);
    done(event);
    MUST(rdma_get_remote_ece(peer, &seen) == 0 && seen.vendor_id == mine.vendor_id && seen.options == mine.options);
    MUST(CALL(rdma_reject_ece)(peer, NULL, 0) == 0);
    event = expect(channel, RDMA_CM_EVENT_REJECTED);
    MUST(event->status == 35);
    done(event);
    MUST(rdma_destroy_id(id) == 0 && rdma_destroy_id(peer) == 0);
}

/* A connection of this process to itself, on two event channels. */
static void connection(void)
{
    struct rdma_event_channel *other = CALL(rdma_create_event_channel)();
    MUST(other);
    struct rdma_cm_id *listening, *id;
    struct sockaddr_in own = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    MUST(rdma_create_id(channel, &listening, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(listening, (struct sockaddr *)&own) == 0);
    MINUS(rdma_bind_addr(listening, (struct sockaddr *)&own));
    MUST(CALL(rdma_listen)(listening, -1) == 0);
    MUST(CALL(rdma_migrate_id)(listening, other) == 0);
    own.sin_port = rdma_get_src_port(listening);
    MUST(own.sin_port != 0 && rdma_create_id(channel, &id, (void *)7, RDMA_PS_TCP) == 0);
    MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&own, 2000) == 0);
    done(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
    MUST(rdma_resolve_route(id, 2000) == 0);
    done(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
    struct ibv_srq_init_attr shared = { .attr = { 4, 1, 0 } };
    MUST(rdma_create_srq(id, NULL, &shared) == 0);
    CALL(rdma_destroy_srq)(id);
    struct ibv_qp_init_attr init = one_of_each();
    init.cap.max_send_wr = UINT32_MAX;
    MUST(rdma_create_qp(id, NULL, &init) != 0);
    init = one_of_each();
    MUST(rdma_create_qp(id, NULL, &init) == 0);
    MUST(rdma_create_qp(id, NULL, &init) != 0);
    options(listening, other, &own);
    struct ibv_ece ece = { .vendor_id = 1 };
    MINUS(rdma_set_local_ece(id, &ece));
    MINUS(rdma_get_remote_ece(id, &ece));
    char words[256] = "hello";
    struct rdma_conn_param param = { .private_data = words, .private_data_len = 255, .retry_count = 7 };
    MINUS(rdma_connect(id, &param));
    param.private_data_len = 6;
    MUST(rdma_connect(id, &param) == 0);
    struct rdma_cm_event *event = expect(other, RDMA_CM_EVENT_CONNECT_REQUEST);
    MUST(memcmp(event->param.conn.private_data, "hello", 6) == 0);
    struct rdma_cm_id *peer = event->id;
    done(event);
    struct ibv_device_attr facts;
    MUST(ibv_query_device(peer->verbs, &facts) == 0 && rdma_get_remote_ece(peer, &ece) == 0);
    MUST(ece.vendor_id == facts.vendor_id && ece.options == 0 && ece.comp_mask == 0);
    struct ibv_qp_init_attr init_peer = one_of_each();
    MUST(rdma_create_qp(peer, NULL, &init_peer) == 0);
    param.private_data_len = 0;
    MUST(rdma_accept(peer, &param) == 0);
    done(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    done(expect(other, RDMA_CM_EVENT_ESTABLISHED));
    MINUS(rdma_connect(id, &param));
    MINUS(rdma_accept(peer, &param));
    MUST(rdma_get_dst_port(id) == own.sin_port && rdma_get_src_port(peer) == own.sin_port);
    MUST(rdma_disconnect(id) == 0);
    done(expect(other, RDMA_CM_EVENT_DISCONNECTED));
    MUST(rdma_disconnect(peer) == 0 || errno == EINVAL);
    done(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
    CALL(rdma_destroy_qp)(id);
    rdma_destroy_qp(peer);
    MUST(rdma_destroy_id(id) == 0 && rdma_destroy_id(peer) == 0 && rdma_destroy_id(listening) == 0);
    /* The kernel has no such id any more; nothing crashes. */
    MUST(rdma_destroy_id(id) == -1 && errno == ENOENT);
    MUST(rdma_listen(listening, 1) == -1 && errno == ENOENT);
    CALL(rdma_destroy_event_channel)(other);
    rdma_destroy_event_channel(other);
}

/* Synchronous ids. */
static void endpoints(void)
{
    struct rdma_addrinfo *own = place(RAI_PASSIVE);
    struct rdma_cm_id *id;
    struct ibv_qp_init_attr init = one_of_each();
    MUST(CALL(rdma_create_ep)(&id, own, NULL, &init) == 0);
    MUST(rdma_listen(id, 1) == 0);
    CALL(rdma_destroy_ep)(id);
    rdma_freeaddrinfo(own);
    struct rdma_addrinfo nothing = { .ai_port_space = 12345 };
    MUST(rdma_create_ep(&id, &nothing, NULL, &init) != 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) port = argv[1];
    channel = rdma_create_event_channel();
    MUST(channel);
    devices();
    addresses();
    too_early();
    connection();
    endpoints();
    rdma_destroy_event_channel(channel);
    for (unsigned i = 0; i < calls; i++) printf("called %s\n", called[i]);
    return 0;
}
