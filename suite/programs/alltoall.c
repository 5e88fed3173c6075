/* Measures processes that all talk to each other at once. Each pair exchanges messages of 8 bytes:
 * a process answers each message with another, and polls all the time.
 *   alltoall rate COUNT     million messages per second, of all processes together
 *   alltoall fair COUNT     how far the process with the fewest messages is below the mean, in percent */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { MOST = 128, SIZE = 8, DEPTH = 8 };
#define SPAN 6.0

struct table {
    pthread_barrier_t barrier;
    struct address address[MOST][MOST];
    uint64_t messages[MOST];
    /* How many processes begin no more exchanges, and how many of them have all completions. */
    atomic_int stopped, finished;
};

static struct table *table;
static int count;

static void meet(void) { pthread_barrier_wait(&table->barrier); }

/* The peer's index is the request's id. */
static void ask(struct ibv_qp *qp, int peer, struct ibv_sge *bytes)
{
    struct ibv_recv_wr *bad, wr = { .wr_id = (uint64_t)peer, .sg_list = bytes, .num_sge = 1 };
    MUST(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void tell(struct ibv_qp *qp, int peer, struct ibv_sge *bytes)
{
    struct ibv_send_wr *bad, wr = { .wr_id = (uint64_t)peer, .sg_list = bytes, .num_sge = 1, .opcode = IBV_WR_SEND,
                                    .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
}

static void one(int own)
{
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4 * DEPTH * count, NULL, NULL, 0);
    uint8_t *memory = calloc(1, SIZE);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp *qps[MOST];
    MUST(pd && cq && mr);
    struct ibv_sge bytes = { (uintptr_t)memory, SIZE, mr->lkey };
    for (int i = 0; i < count; i++) {
        if (i == own) continue;
        qps[i] = make_qp(pd, cq, IBV_QPT_RC, 2 * DEPTH);
        table->address[own][i] = address_of(qps[i], NULL);
    }
    meet();
    for (int i = 0; i < count; i++) {
        if (i == own) continue;
        connect_qp(qps[i], table->address[own][i], table->address[i][own]);
        for (int each = 0; each < DEPTH; each++) ask(qps[i], i, &bytes);
    }
    meet();
    int under_way = 0;
    /* Of each pair, the process with the lower number begins. */
    for (int i = own + 1; i < count; i++) for (int each = 0; each < DEPTH; each++, under_way++) tell(qps[i], i, &bytes);
    uint64_t messages = 0;
    double end = now() + SPAN, limit = end + LIMIT_SECONDS;
    int stopped = 0, finished = 0;
    /* Who has finished still takes the messages of others. */
    while (atomic_load(&table->finished) < count) {
        struct ibv_wc done[16];
        int found = ibv_poll_cq(cq, 16, done);
        double time = now();
        MUST(found >= 0 && time < limit);
        if (!stopped && time >= end) {
            stopped = 1;
            table->messages[own] = messages;
            atomic_fetch_add(&table->stopped, 1);
        }
        if (!finished && !under_way && atomic_load(&table->stopped) == count) {
            finished = 1;
            atomic_fetch_add(&table->finished, 1);
        }
        for (int each = 0; each < found; each++) {
            int peer = (int)done[each].wr_id;
            if (done[each].status != IBV_WC_SUCCESS) FAIL("completion: %s", ibv_wc_status_str(done[each].status));
            if (done[each].opcode == IBV_WC_SEND) { under_way--; continue; }
            messages++;
            if (stopped) continue;
            ask(qps[peer], peer, &bytes);
            tell(qps[peer], peer, &bytes);
            under_way++;
        }
    }
    exit(0);
}

int main(int argc, char **argv)
{
    MUST(argc == 3);
    count = atoi(argv[2]);
    MUST(count > 1 && count <= MOST);
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(table != MAP_FAILED);
    pthread_barrierattr_t shared;
    MUST(pthread_barrierattr_init(&shared) == 0 && pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0);
    MUST(pthread_barrier_init(&table->barrier, &shared, (unsigned)count) == 0);
    for (int i = 0; i < count; i++) {
        int pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            one(i);
        }
    }
    /* If one fails, the others end with this process. */
    for (int i = 0, status; i < count; i++) MUST(waitpid(-1, &status, 0) > 0 && status == 0);
    uint64_t sum = 0, least = UINT64_MAX;
    for (int i = 0; i < count; i++) {
        sum += table->messages[i];
        if (table->messages[i] < least) least = table->messages[i];
    }
    if (!strcmp(argv[1], "rate")) printf("%.3f\n", (double)sum / SPAN / 1e6);
    else printf("%.1f\n", 100 - 100.0 * (double)least * count / (double)sum);
    return 0;
}
