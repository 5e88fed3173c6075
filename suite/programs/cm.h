/* The common part of the suite's programs for the connection manager. They are ordinary users of
 * <rdma/rdma_cma.h>, compiled with Debian's header, and contain nothing specific to softhca. */
#ifndef SUITE_CM_H
#define SUITE_CM_H

#include "common.h"
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

static const char *host = "127.0.0.1", *port = "7471";

static inline struct rdma_addrinfo *place(int flags)
{
    struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found;
    MUST(rdma_getaddrinfo(host, port, &hints, &found) == 0);
    return found;
}

static inline struct rdma_cm_id *listener(struct rdma_event_channel *channel, int backlog)
{
    struct rdma_cm_id *id;
    struct rdma_addrinfo *own = place(RAI_PASSIVE);
    MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(id, own->ai_src_addr) == 0 && rdma_listen(id, backlog) == 0);
    rdma_freeaddrinfo(own);
    return id;
}

/* Returns the next event, which must come in time. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel)
{
    struct pollfd ready = { .fd = channel->fd, .events = POLLIN };
    struct rdma_cm_event *event;
    MUST(poll(&ready, 1, LIMIT_SECONDS * 1000) == 1 && rdma_get_cm_event(channel, &event) == 0);
    return event;
}

/* As next_event, and checks the event. Earlier events that only report the end of a wait are
 * skipped. */
static inline struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    for (;;) {
        struct rdma_cm_event *event = next_event(channel);
        if (event->event == type) return event;
        if (event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT)
            FAIL("%s with %d instead of %s", rdma_event_str(event->event), event->status, rdma_event_str(type));
        rdma_ack_cm_event(event);
    }
}

/* An id whose address and route to the peer are resolved. */
static inline struct rdma_cm_id *routed(struct rdma_event_channel *channel)
{
    struct rdma_addrinfo *peer = place(0);
    struct rdma_cm_id *id;
    MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && rdma_resolve_addr(id, NULL, peer->ai_dst_addr, 2000) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
    MUST(rdma_resolve_route(id, 2000) == 0);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
    rdma_freeaddrinfo(peer);
    return id;
}

static inline struct ibv_qp_init_attr one_of_each(void)
{
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16 } };
    return init;
}

#endif
