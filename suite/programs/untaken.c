/* A client that cannot take its connection over, because it has as many open files as it may have.
 * Its program gets an error, and the server is told at once that the connection has ended.
 *   untaken ADDRESS        server and client are processes of this program */
#include "cm.h"
#include <sys/resource.h>
#include <sys/wait.h>

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
    MUST(rdma_create_qp(id, NULL, &init) == 0);
}

/* No file can be opened any more. */
static void open_no_more_files(void)
{
    struct rlimit files;
    int next = dup(0);
    MUST(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = (rlim_t)next;
    MUST(setrlimit(RLIMIT_NOFILE, &files) == 0 && dup(0) == -1);
}

static int client(void)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    MUST(channel);
    struct rdma_cm_id *id = routed(channel);
    create_qp(id);
    open_no_more_files();
    MUST(rdma_connect(id, &param) == 0);
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_ERROR);
    MUST(event->status != 0);
    rdma_ack_cm_event(event);
    return 0;
}

/* Its queue pair has been in the state RTS, so its receive request is flushed. */
static int server(struct rdma_event_channel *channel)
{
    struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
    struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *id = event->id;
    struct ibv_recv_wr *bad, wr = { .wr_id = 7 };
    create_qp(id);
    MUST(ibv_post_recv(id->qp, &wr, &bad) == 0 && rdma_accept(id, &param) == 0);
    rdma_ack_cm_event(event);
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
    struct ibv_wc wc = next_completion(id->recv_cq);
    MUST(wc.wr_id == 7 && wc.status == IBV_WC_WR_FLUSH_ERR);
    return 0;
}

int main(int argc, char **argv)
{
    int told[2], status;
    char number[8] = "";
    MUST(argc == 2 && pipe(told) == 0);
    host = argv[1];
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        MUST(read(told[0], number, sizeof number) == sizeof number);
        port = number;
        return client();
    }
    struct rdma_event_channel *channel = rdma_create_event_channel();
    MUST(channel);
    port = "0";
    struct rdma_cm_id *listens = listener(channel, 1);
    snprintf(number, sizeof number, "%u", ntohs(rdma_get_src_port(listens)));
    MUST(write(told[1], number, sizeof number) == sizeof number && server(channel) == 0);
    MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("the server was told");
    return 0;
}
