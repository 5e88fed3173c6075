/* Measures connections per second: connects, disconnects and destroys in a loop, over RDMA or
 * over TCP.
 *   connections rdma|tcp serve ADDRESS PORT COUNT    accepts COUNT connections
 *   connections rdma|tcp call ADDRESS PORT COUNT     makes them, and prints connections per second
 * In both cases each side waits until the other has closed, too. The queue pairs share one
 * completion queue. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MUST(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

static struct sockaddr_in place;
static int count;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event;
    MUST(rdma_get_cm_event(channel, &event) == 0);
    struct rdma_cm_id *id = event->id;
    if (event->event != type) {
        fprintf(stderr, "%s (%d), not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
        exit(1);
    }
    MUST(rdma_ack_cm_event(event) == 0);
    return id;
}

static void make_qp(struct rdma_cm_id *id)
{
    static struct ibv_pd *pd;
    static struct ibv_cq *cq;
    if (!pd) {
        MUST((pd = ibv_alloc_pd(id->verbs)) && (cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0)));
    }
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
    MUST(rdma_create_qp(id, pd, &init) == 0);
}

static struct rdma_conn_param terms = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

static void end(struct rdma_cm_id *id)
{
    rdma_destroy_qp(id);
    MUST(rdma_destroy_id(id) == 0);
}

static void serve_rdma(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    MUST(channel && rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(listener, (struct sockaddr *)&place) == 0 && rdma_listen(listener, 16) == 0);
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < count; i++) {
        struct rdma_cm_id *id = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        make_qp(id);
        MUST(rdma_accept(id, &terms) == 0);
        expect(channel, RDMA_CM_EVENT_ESTABLISHED);
        expect(channel, RDMA_CM_EVENT_DISCONNECTED);
        end(id);
    }
    end(listener);
}

static void call_rdma(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    for (int i = 0; i < count; i++) {
        struct rdma_cm_id *id;
        MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
        MUST(rdma_resolve_addr(id, NULL, (struct sockaddr *)&place, 2000) == 0);
        expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        MUST(rdma_resolve_route(id, 2000) == 0);
        expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
        make_qp(id);
        MUST(rdma_connect(id, &terms) == 0);
        expect(channel, RDMA_CM_EVENT_ESTABLISHED);
        MUST(rdma_disconnect(id) == 0);
        expect(channel, RDMA_CM_EVENT_DISCONNECTED);
        end(id);
    }
}

static void serve_tcp(void)
{
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    MUST(bind(listener, (struct sockaddr *)&place, sizeof place) == 0 && listen(listener, 16) == 0);
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < count; i++) {
        int stream = accept(listener, NULL, NULL);
        MUST(stream >= 0 && read(stream, &byte, 1) == 0);
        close(stream);
    }
}

static void call_tcp(void)
{
    char byte;
    for (int i = 0; i < count; i++) {
        int stream = socket(AF_INET, SOCK_STREAM, 0);
        MUST(stream >= 0 && connect(stream, (struct sockaddr *)&place, sizeof place) == 0);
        MUST(shutdown(stream, SHUT_WR) == 0 && read(stream, &byte, 1) == 0);
        close(stream);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "connections rdma|tcp serve|call ADDRESS PORT COUNT\n");
        return 2;
    }
    int rdma = strcmp(argv[1], "rdma") == 0, serves = strcmp(argv[2], "serve") == 0;
    place.sin_family = AF_INET;
    place.sin_port = htons(atoi(argv[4]));
    MUST(inet_pton(AF_INET, argv[3], &place.sin_addr) == 1);
    count = atoi(argv[5]);
    double start = now();
    if (serves)
        rdma ? serve_rdma() : serve_tcp();
    else
        rdma ? call_rdma() : call_tcp();
    if (!serves)
        printf("%.0f connections per second\n", count / (now() - start));
    return 0;
}
