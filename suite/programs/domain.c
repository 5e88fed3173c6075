/* An XRC domain that processes share. The server is a parent with three children, each with its
 * own device: one makes two target queue pairs, and two own shared receive queues and open the
 * targets, too. The client sends to the first owner's queue, and uses atomics on its memory.
 * Meanwhile the maker is killed, and everything continues: nothing is lost and nothing is done
 * twice. Then the second owner is killed: requests that name its queue are refused, and requests
 * for the first owner's queue continue. */
#include "common.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

enum { DEPTH = 64, WINDOW = 16, MESSAGES = 3000, KILL_AT = 1000, SIZE = 6000 };

struct queue { uint32_t number, rkey; uint64_t buffer; };
struct targets { struct address target[2]; };

static struct ibv_xrcd *open_domain(struct ibv_context *context, int fd)
{
    struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT };
    struct ibv_xrcd *domain = ibv_open_xrcd(context, &init);
    MUST(domain);
    return domain;
}

static void connect_end(struct ibv_qp *qp, struct address own, struct address peer)
{
    int sends = qp->qp_type == IBV_QPT_XRC_SEND;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = sends ? 0 : IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTR; attr.path_mtu = IBV_MTU_1024; attr.dest_qp_num = peer.qpn; attr.rq_psn = peer.psn;
    attr.max_dest_rd_atomic = 4; attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1; attr.ah_attr.port_num = 1; attr.ah_attr.grh.dgid = peer.gid; attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.sgid_index = (uint8_t)gid_index;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       (sends ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) == 0);
    memset(&attr, 0, sizeof attr);
    attr.qp_state = IBV_QPS_RTS; attr.sq_psn = own.psn; attr.timeout = 14; attr.retry_cnt = 7; attr.rnr_retry = 7; attr.max_rd_atomic = 4;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
                       (sends ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0)) == 0);
}

static void say(int fd, const void *what, size_t length) { MUST(write(fd, what, length) == (ssize_t)length); }
static void hear(int fd, void *what, size_t length) { MUST(recv(fd, what, length, MSG_WAITALL) == (ssize_t)length); }

/* Makes both targets and connects them. */
static void maker(int parent, int file)
{
    struct ibv_context *context = open_first();
    struct ibv_xrcd *domain = open_domain(context, file);
    struct ibv_qp *qp[2];
    struct targets own, peer;
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = domain };
        qp[i] = ibv_create_qp_ex(context, &init);
        MUST(qp[i]);
        own.target[i] = address_of(qp[i], NULL);
    }
    say(parent, &own, sizeof own);
    hear(parent, &peer, sizeof peer);
    for (int i = 0; i < 2; i++) connect_end(qp[i], own.target[i], peer.target[i]);
    say(parent, "r", 1);
    for (;;) pause();
}

/* Opens both targets, and has a shared receive queue. Checks that each message comes once and in
 * order. */
static void owner(int parent, int file)
{
    static char buffer[DEPTH][SIZE] __attribute__((aligned(8)));
    static uint64_t word;
    struct ibv_context *context = open_first();
    struct ibv_xrcd *domain = open_domain(context, file);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, DEPTH * 2, NULL, NULL, 0);
    MUST(pd && cq);
    struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = DEPTH, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq, .xrcd = domain,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD };
    struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
    MUST(srq);
    struct queue queue = { .buffer = (uintptr_t)&word };
    MUST(ibv_get_srq_num(srq, &queue.number) == 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *open = ibv_reg_mr(pd, &word, sizeof word, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ);
    MUST(mr && open);
    queue.rkey = open->rkey;
    struct targets targets;
    hear(parent, &targets, sizeof targets);
    struct ibv_qp *held[2];
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
            .qp_num = targets.target[i].qpn, .xrcd = domain, .qp_type = IBV_QPT_XRC_RECV };
        held[i] = ibv_open_qp(context, &attr);
        MUST(held[i]);
    }
    for (uint64_t i = 0; i < DEPTH; i++) {
        struct ibv_sge sge = { .addr = (uintptr_t)buffer[i], .length = SIZE, .lkey = mr->lkey };
        struct ibv_recv_wr *bad, wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
        MUST(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    }
    say(parent, &queue, sizeof queue);
    uint32_t sends = MESSAGES / 2 + 1;
    for (uint32_t next = 0; next < sends; next++) {
        struct ibv_wc wc = good_completion(cq);
        if (ntohl(wc.imm_data) != next) FAIL("message %u came, %u was awaited", ntohl(wc.imm_data), next);
        char *bytes = buffer[wc.wr_id];
        MUST(wc.byte_len == SIZE && bytes[0] == (char)next && bytes[SIZE - 1] == (char)next);
        struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = SIZE, .lkey = mr->lkey };
        struct ibv_recv_wr *bad, wr = { .wr_id = wc.wr_id, .sg_list = &sge, .num_sge = 1 };
        MUST(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    }
    say(parent, "d", 1);
    char end;
    hear(parent, &end, 1);
    if (word != MESSAGES / 2) FAIL("%lu additions were made, %d were asked for", (unsigned long)word, MESSAGES / 2);
    for (int i = 0; i < 2; i++) MUST(ibv_destroy_qp(held[i]) == 0);
    MUST(ibv_destroy_srq(srq) == 0 && ibv_close_xrcd(domain) == 0);
    exit(0);
}

static pid_t child(void (*role)(int, int), int file, int *to)
{
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        close(pair[0]);
        role(pair[1], file);
    }
    close(pair[1]);
    *to = pair[0];
    return pid;
}

static int kill_now(pid_t pid)
{
    int status;
    MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void server(int client)
{
    char name[] = "/tmp/domain-XXXXXX";
    int file = mkstemp(name), to_maker, to_owner[2], status;
    MUST(file >= 0 && unlink(name) == 0);
    pid_t made = child(maker, file, &to_maker), owners[2];
    for (int i = 0; i < 2; i++) owners[i] = child(owner, file, &to_owner[i]);
    struct targets own, peer;
    struct queue queues[2];
    char word;
    hear(to_maker, &own, sizeof own);
    swap_bytes(client, &own, &peer, sizeof own);
    say(to_maker, &peer, sizeof peer);
    hear(to_maker, &word, 1);
    for (int i = 0; i < 2; i++) {
        say(to_owner[i], &own, sizeof own);
        hear(to_owner[i], &queues[i], sizeof queues[i]);
    }
    say(client, queues, sizeof queues);
    hear(client, &word, 1);
    MUST(kill_now(made));
    say(client, "k", 1);
    hear(client, &word, 1);
    MUST(kill_now(owners[1]));
    say(client, "k", 1);
    hear(to_owner[0], &word, 1);
    hear(client, &word, 1);
    say(to_owner[0], "e", 1);
    MUST(waitpid(owners[0], &status, 0) == owners[0]);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) FAIL("the owner of the queue ended with %#x", status);
    say(client, "e", 1);
}

static void send_to(struct ibv_qp *qp, struct queue *queue, struct ibv_mr *mr, uint32_t number)
{
    static uint32_t sent;
    char *bytes = (char *)mr->addr + (number % WINDOW) * SIZE;
    struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = SIZE, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
    wr.qp_type.xrc.remote_srqn = queue->number;
    if (number % 2) {
        sge.length = 8;
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.wr.atomic.remote_addr = queue->buffer; wr.wr.atomic.rkey = queue->rkey; wr.wr.atomic.compare_add = 1;
    } else {
        memset(bytes, (char)sent, SIZE);
        wr.opcode = IBV_WR_SEND_WITH_IMM;
        wr.imm_data = htonl(sent++);
    }
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
}

static void client(int to_server)
{
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
    char *memory = calloc(WINDOW, SIZE);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, WINDOW * SIZE, IBV_ACCESS_LOCAL_WRITE);
    MUST(pd && cq && mr);
    struct ibv_qp *qp[2];
    struct targets own, peer;
    struct queue queues[2];
    char word;
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
            .cap = { .max_send_wr = WINDOW, .max_send_sge = 1 } };
        qp[i] = ibv_create_qp_ex(context, &init);
        MUST(qp[i]);
        own.target[i] = address_of(qp[i], NULL);
    }
    swap_bytes(to_server, &own, &peer, sizeof own);
    for (int i = 0; i < 2; i++) connect_end(qp[i], own.target[i], peer.target[i]);
    hear(to_server, queues, sizeof queues);
    uint32_t posted = 0;
    for (uint32_t done = 0; done < MESSAGES; done++) {
        while (posted < MESSAGES && posted - done < WINDOW) send_to(qp[0], &queues[0], mr, posted++);
        if (done == KILL_AT) {
            say(to_server, "m", 1);
            hear(to_server, &word, 1);
        }
        struct ibv_wc wc = good_completion(cq);
        MUST(wc.wr_id == done);
    }
    say(to_server, "o", 1);
    hear(to_server, &word, 1);
    send_to(qp[1], &queues[1], mr, 1);
    struct ibv_wc wc = next_completion(cq);
    if (wc.status != IBV_WC_REM_INV_RD_REQ_ERR) FAIL("the queue of a process that is dead: %s", ibv_wc_status_str(wc.status));
    send_to(qp[0], &queues[0], mr, 0);
    good_completion(cq);
    say(to_server, "e", 1);
    hear(to_server, &word, 1);
}

int main(int argc, char **argv)
{
    int is_client, peer = rendezvous(argc, argv, &is_client);
    if (is_client) client(peer); else server(peer);
    return 0;
}
