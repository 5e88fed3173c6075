/* Connects, sends a message, disconnects and destroys everything, in a loop.
 *   cycles -a ADDRESS -p PORT -n COUNT      server and client, in two threads
 *   cycles -m serve … and cycles -m call …  one of them */
#include "cm.h"
#include <pthread.h>

static int count = 1000;
static struct rdma_event_channel *channel_of_server;
static struct rdma_cm_id *listening;

static void open_door(void)
{
    channel_of_server = rdma_create_event_channel();
    MUST(channel_of_server);
    listening = listener(channel_of_server, 16);
}

static void *serve(void *unused)
{
    struct rdma_event_channel *channel = channel_of_server;
    for (int i = 0; i < count; i++) {
        char word[16];
        struct ibv_wc wc;
        struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        struct rdma_cm_id *id = event->id;
        struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
        struct ibv_qp_init_attr init = one_of_each();
        MUST(rdma_ack_cm_event(event) == 0 && rdma_create_qp(id, NULL, &init) == 0);
        struct ibv_mr *mr = rdma_reg_msgs(id, word, sizeof word);
        MUST(mr && rdma_post_recv(id, NULL, word, sizeof word, mr) == 0 && rdma_accept(id, &param) == 0);
        MUST(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED)) == 0);
        MUST(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && strcmp(word, "one word") == 0);
        MUST(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED)) == 0);
        rdma_disconnect(id);
        rdma_dereg_mr(mr);
        rdma_destroy_qp(id);
        MUST(rdma_destroy_id(id) == 0);
    }
    MUST(rdma_destroy_id(listening) == 0);
    rdma_destroy_event_channel(channel);
    return unused;
}

static void call(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_addrinfo *peer = place(0);
    for (int i = 0; i < count; i++) {
        char word[16] = "one word";
        struct ibv_wc wc;
        struct rdma_cm_id *id;
        struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
        struct ibv_qp_init_attr init = one_of_each();
        MUST(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
        MUST(rdma_resolve_addr(id, NULL, peer->ai_dst_addr, 2000) == 0);
        MUST(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED)) == 0 && rdma_resolve_route(id, 2000) == 0);
        MUST(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED)) == 0 && rdma_create_qp(id, NULL, &init) == 0);
        MUST(rdma_connect(id, &param) == 0);
        MUST(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED)) == 0);
        MUST(rdma_post_send(id, NULL, word, sizeof word, NULL, IBV_SEND_INLINE | IBV_SEND_SIGNALED) == 0);
        MUST(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
        MUST(rdma_disconnect(id) == 0);
        MUST(rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED)) == 0);
        rdma_destroy_qp(id);
        MUST(rdma_destroy_id(id) == 0);
    }
    rdma_freeaddrinfo(peer);
    rdma_destroy_event_channel(channel);
    printf("%d cycles\n", count);
}

int main(int argc, char **argv)
{
    const char *mode = "both";
    int option;
    while ((option = getopt(argc, argv, "a:p:n:m:")) != -1) {
        if (option == 'a') host = optarg;
        if (option == 'p') port = optarg;
        if (option == 'n') count = atoi(optarg);
        if (option == 'm') mode = optarg;
    }
    pthread_t server;
    if (mode[0] != 'c') open_door();
    if (mode[0] != 'c') MUST(pthread_create(&server, NULL, serve, NULL) == 0);
    if (mode[0] != 's') call();
    if (mode[0] != 'c') MUST(pthread_join(server, NULL) == 0);
    return 0;
}
