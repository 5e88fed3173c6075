/* Measures the memory of processes that are all connected: each has a queue pair to each other
 * one, and one message has gone in each direction. Then all are idle.
 *   mesh pair COUNT AGENT     bytes per pair of processes: the growth since before the connections, divided by the number of pairs
 *   mesh all COUNT AGENT      MiB of all processes together
 * It counts each process's private memory, its share of shared memory and its page tables, and
 * those of the agent, whose process id is AGENT. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { MOST = 256, SIZE = 64, SECONDS = 100, QUIET = 1000000 };

struct table {
    pthread_barrier_t barrier;
    struct address address[MOST][MOST];
};

static struct table *table;
static int count;

static long member(const char *path, const char *name)
{
    char line[256];
    size_t length = strlen(name);
    FILE *file = fopen(path, "r");
    MUST(file);
    long kib = -1;
    while (fgets(line, sizeof line, file)) if (!strncmp(line, name, length)) { kib = strtol(line + length, NULL, 10); break; }
    fclose(file);
    MUST(kib >= 0);
    return kib * 1024;
}

static long memory_of(int pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    long bytes = member(path, "Pss:");
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    return bytes + member(path, "VmPTE:");
}

static void meet(void) { pthread_barrier_wait(&table->barrier); }

static void one(int own)
{
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 2 * count, NULL, NULL, 0);
    uint8_t *bytes = calloc(1, 2 * SIZE);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp *qps[MOST];
    MUST(pd && cq && mr);
    for (int i = 0; i < count; i++) {
        if (i == own) continue;
        qps[i] = make_qp(pd, cq, IBV_QPT_RC, 1);
        table->address[own][i] = address_of(qps[i], NULL);
    }
    meet();
    meet();
    for (int i = 0; i < count; i++) {
        if (i == own) continue;
        connect_qp(qps[i], table->address[own][i], table->address[i][own]);
        MUST(post_receive(qps[i], mr, (uintptr_t)bytes, SIZE) == 0);
    }
    meet();
    for (int i = 0; i < count; i++) if (i != own) MUST(post(qps[i], IBV_WR_SEND, mr, (uintptr_t)bytes + SIZE, SIZE, 0, 0) == 0);
    double until = now() + SECONDS;
    for (int left = 2 * (count - 1); left > 0;) {
        struct ibv_wc wc;
        int found = ibv_poll_cq(cq, 1, &wc);
        MUST(found >= 0 && now() < until);
        if (found == 0) { sched_yield(); continue; }
        if (wc.status != IBV_WC_SUCCESS) FAIL("completion: %s", ibv_wc_status_str(wc.status));
        left--;
    }
    meet();
    meet();
    exit(0);
}

int main(int argc, char **argv)
{
    MUST(argc == 4);
    count = atoi(argv[2]);
    int agent = atoi(argv[3]), pids[MOST];
    MUST(count > 1 && count <= MOST);
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(table != MAP_FAILED);
    pthread_barrierattr_t shared;
    MUST(pthread_barrierattr_init(&shared) == 0 && pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED) == 0);
    MUST(pthread_barrier_init(&table->barrier, &shared, (unsigned)count + 1) == 0);
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        MUST(pids[i] >= 0);
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            one(i);
        }
    }
    long before = 0, after = 0;
    meet();
    for (int i = 0; i < count; i++) before += memory_of(pids[i]);
    before += memory_of(agent);
    meet();
    meet();
    meet();
    /* A process is idle after a while without work. */
    usleep(QUIET);
    for (int i = 0; i < count; i++) after += memory_of(pids[i]);
    after += memory_of(agent);
    meet();
    for (int i = 0, status; i < count; i++) MUST(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
    if (!strcmp(argv[1], "pair")) printf("%.1f\n", (double)(after - before) / (count * (count - 1) / 2.0));
    else printf("%.1f\n", (double)after / (1 << 20));
    return 0;
}
