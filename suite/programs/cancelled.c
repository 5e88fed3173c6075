/* Cancels threads in functions of the libraries.
 *   cancelled waits    a thread that waits for an event is cancelled, and its locks and descriptors go on working
 *   cancelled calls    a thread that has been cancelled before calls functions that create and destroy objects: they do their work,
 *                      and the thread ends afterwards */
#define _GNU_SOURCE
#include "common.h"
#include <pthread.h>
#include <rdma/rdma_cma.h>

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct rdma_event_channel *events;
static struct rdma_cm_id *listener;
static int returned;

static void *of_channel(void *unused)
{
    struct ibv_cq *cq;
    void *cq_context;
    (void)unused;
    ibv_get_cq_event(channel, &cq, &cq_context);
    returned = 1;
    return NULL;
}

static int pipe_ends[2];

static void *of_pipe(void *unused)
{
    char byte;
    (void)unused;
    returned = read(pipe_ends[0], &byte, 1) != 0;
    return NULL;
}

static void *of_device(void *unused)
{
    struct ibv_async_event event;
    (void)unused;
    ibv_get_async_event(context, &event);
    returned = 1;
    return NULL;
}

static void *of_connections(void *unused)
{
    struct rdma_cm_event *event;
    (void)unused;
    rdma_get_cm_event(events, &event);
    returned = 1;
    return NULL;
}

static void *of_listener(void *unused)
{
    struct rdma_cm_id *id;
    (void)unused;
    rdma_get_request(listener, &id);
    returned = 1;
    return NULL;
}

/* Ends a thread that waits, or, if `is_pending`, perhaps one that is about to. */
static void cancel(const char *name, void *(*work)(void *), int is_pending)
{
    pthread_t thread;
    void *result;
    struct timespec limit;
    MUST(pthread_create(&thread, NULL, work, NULL) == 0);
    if (!is_pending) usleep(50000);
    MUST(pthread_cancel(thread) == 0);
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += LIMIT_SECONDS;
    if (pthread_timedjoin_np(thread, &result, &limit) != 0) FAIL("%s: the thread goes on", name);
    if (result != PTHREAD_CANCELED || returned) FAIL("%s: the thread was not cancelled", name);
}

static void waits(void)
{
    struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *address;
    struct ibv_qp_init_attr attr = { .cap = { 1, 1, 1, 1, 0 }, .sq_sig_all = 1 };
    channel = ibv_create_comp_channel(context);
    events = rdma_create_event_channel();
    MUST(channel && events && rdma_getaddrinfo("127.0.0.1", NULL, &hints, &address) == 0);
    MUST(rdma_create_ep(&listener, address, NULL, &attr) == 0 && rdma_listen(listener, 1) == 0);
    rdma_freeaddrinfo(address);
    MUST(pipe(pipe_ends) == 0);
    for (int is_pending = 0; is_pending < 2; is_pending++) {
        cancel("read", of_pipe, is_pending);
        cancel("ibv_get_cq_event", of_channel, is_pending);
        cancel("ibv_get_async_event", of_device, is_pending);
        cancel("rdma_get_cm_event", of_connections, is_pending);
        cancel("rdma_get_request", of_listener, is_pending);
    }
    /* The channel still works. */
    struct ibv_cq *cq = ibv_create_cq(context, 4, (void *)7, channel, 0), *found;
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 1);
    void *cq_context;
    struct ibv_wc wc;
    connect_qp(qp, address_of(qp, NULL), address_of(qp, NULL));
    MUST(ibv_req_notify_cq(cq, 0) == 0 && post_receive(qp, NULL, 0, 0) == 0 && post(qp, IBV_WR_SEND, NULL, 0, 0, 0, 0) == 0);
    MUST(ibv_get_cq_event(channel, &found, &cq_context) == 0 && found == cq && cq_context == (void *)7);
    ibv_ack_cq_events(cq, 1);
    for (int left = 2; left > 0;) {
        int got = ibv_poll_cq(cq, 1, &wc);
        MUST(got >= 0 && (got == 0 || wc.status == IBV_WC_SUCCESS));
        left -= got;
    }
    MUST(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_destroy_comp_channel(channel) == 0);
    rdma_destroy_ep(listener);
    rdma_destroy_event_channel(events);
}

static int done;

static void *calls(void *unused)
{
    (void)unused;
    MUST(pthread_cancel(pthread_self()) == 0);
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    MUST(list && count > 0);
    struct ibv_context *own = ibv_open_device(list[0]);
    MUST(own);
    struct ibv_comp_channel *events_of_cqs = ibv_create_comp_channel(own);
    struct ibv_pd *pd = ibv_alloc_pd(own);
    struct ibv_cq *cq = ibv_create_cq(own, 4, NULL, events_of_cqs, 0);
    char *bytes = malloc(4096);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 1);
    struct rdma_event_channel *connections = rdma_create_event_channel();
    struct rdma_cm_id *id;
    MUST(pd && cq && mr && qp && connections && rdma_create_id(connections, &id, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(connections);
    /* The libraries note why these requests fail. */
    connect_qp(qp, address_of(qp, NULL), address_of(qp, NULL));
    MUST(post_receive(qp, NULL, 0, 0) == 0 && post(qp, IBV_WR_SEND, mr, 64, 64, 0, 0) == 0);
    for (int left = 2; left > 0;) {
        struct ibv_wc wc;
        int got = ibv_poll_cq(cq, 1, &wc);
        MUST(got >= 0 && (got == 0 || wc.status != IBV_WC_SUCCESS));
        left -= got;
    }
    MUST(post(qp, IBV_WR_SEND, NULL, 0, 1 << 20, 0, 0) != 0 || ibv_query_gid(own, 9, 0, &(union ibv_gid){ 0 }) != 0);
    MUST(ibv_destroy_qp(qp) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(events_of_cqs) == 0);
    MUST(ibv_dealloc_pd(pd) == 0 && ibv_close_device(own) == 0);
    ibv_free_device_list(list);
    free(bytes);
    done = 1;
    pthread_testcancel();
    returned = 1;
    return NULL;
}

int main(int argc, char **argv)
{
    MUST(argc == 2);
    context = open_first();
    if (!strcmp(argv[1], "waits")) {
        waits();
    } else {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, calls, NULL) == 0 && pthread_join(thread, &result) == 0);
        MUST(done && !returned && result == PTHREAD_CANCELED);
    }
    puts("well");
    return 0;
}
