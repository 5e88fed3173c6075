/* Measures the cost of objects: the time to create them, and the memory of queue pairs.
 *   controls qp                microseconds to create a queue pair, move it to RTS (connected to itself), and destroy it
 *   controls mr                microseconds to register 1 GiB and deregister it
 *   controls connect COUNT     microseconds to create and connect each of COUNT queue pairs that stay
 *   controls poll COUNT        nanoseconds to poll an empty completion queue of COUNT connected queue pairs, over each of which one message went
 *   controls memory AGENT      bytes of a queue pair with one request in each queue, in this process and in the agent with this process id
 *   controls pages             pages of 1 GiB that are in memory after it was registered, and were not before
 *   controls threads COUNT     million messages per second of all threads together, each with its own queue pair and completion queues */
#include "common.h"
#include <pthread.h>
#include <sys/mman.h>

enum { WARM = 20, CYCLES = 300, PAIRS = 10000, POLLS = 2000000, THREADS = 16, DEPTH = 16, MESSAGES = 400000 };

static struct ibv_context *context;
static pthread_barrier_t start_line;
static struct ibv_qp *qps[PAIRS];

/* Sends to itself, with one completion per batch of messages and side. */
static void *work(void *unused)
{
    (void)unused;
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
    char *bytes = calloc(1, 4096);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, 4096, IBV_ACCESS_LOCAL_WRITE);
    MUST(pd && cq && mr);
    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 2 * DEPTH);
    connect_qp(qp, address_of(qp, NULL), address_of(qp, NULL));
    pthread_barrier_wait(&start_line);
    for (int sent = 0; sent < MESSAGES; sent += DEPTH) {
        for (int i = 0; i < DEPTH; i++) MUST(post_receive(qp, mr, (uintptr_t)bytes, 8) == 0);
        for (int i = 0; i < DEPTH; i++) MUST(post(qp, IBV_WR_SEND, mr, (uintptr_t)bytes + 64, 8, 0, 0) == 0);
        for (int left = 2 * DEPTH; left > 0;) {
            struct ibv_wc wc[DEPTH];
            int found = ibv_poll_cq(cq, DEPTH, wc);
            MUST(found >= 0);
            for (int i = 0; i < found; i++) MUST(wc[i].status == IBV_WC_SUCCESS);
            left -= found;
        }
    }
    pthread_barrier_wait(&start_line);
    return NULL;
}

static void threads(int count)
{
    MUST(count > 0 && count <= THREADS && pthread_barrier_init(&start_line, NULL, (unsigned)count + 1) == 0);
    pthread_t all[THREADS];
    for (int i = 0; i < count; i++) MUST(pthread_create(&all[i], NULL, work, NULL) == 0);
    pthread_barrier_wait(&start_line);
    double start = now();
    pthread_barrier_wait(&start_line);
    printf("%.6f\n", (double)count * MESSAGES / (now() - start) / 1e6);
    for (int i = 0; i < count; i++) MUST(pthread_join(all[i], NULL) == 0);
}

/* Creates queue pairs that are connected to themselves. */
static void connect_many(struct ibv_pd *pd, struct ibv_cq *cq, int count)
{
    MUST(count > 0 && count <= PAIRS);
    for (int i = 0; i < count; i++) {
        qps[i] = make_qp(pd, cq, IBV_QPT_RC, 1);
        connect_qp(qps[i], address_of(qps[i], NULL), address_of(qps[i], NULL));
    }
}

static void polls(struct ibv_pd *pd, struct ibv_cq *cq, int count)
{
    connect_many(pd, cq, count);
    char *bytes = calloc(1, 64);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, 64, IBV_ACCESS_LOCAL_WRITE);
    MUST(bytes && mr);
    struct ibv_wc wc;
    for (int i = 0; i < count; i++) {
        MUST(post_receive(qps[i], mr, (uintptr_t)bytes, 8) == 0 && post(qps[i], IBV_WR_SEND, mr, (uintptr_t)bytes + 8, 8, 0, 0) == 0);
        for (int left = 2; left > 0;) {
            int found = ibv_poll_cq(cq, 1, &wc);
            MUST(found == 0 || (found == 1 && wc.status == IBV_WC_SUCCESS));
            left -= found;
        }
    }
    double start = now();
    for (int i = 0; i < POLLS; i++) MUST(ibv_poll_cq(cq, 1, &wc) == 0);
    printf("%.3f\n", (now() - start) / POLLS * 1e9);
}

static void pages(struct ibv_pd *pd)
{
    size_t size = (size_t)1 << 30, page = (size_t)sysconf(_SC_PAGESIZE), there = 0;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *seen = malloc(size / page);
    MUST(memory != MAP_FAILED && seen);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(mr && mincore(memory, size, seen) == 0);
    for (size_t i = 0; i < size / page; i++) there += seen[i] & 1;
    /* Shows that mincore counts a page that was written. */
    *(volatile char *)memory = 1;
    MUST(mincore(memory, page, seen) == 0 && (seen[0] & 1) == 1);
    MUST(ibv_dereg_mr(mr) == 0);
    printf("%zu\n", there);
}

/* The private memory of a process, and its share of shared memory. */
static long proportional(const char *pid)
{
    char name[64], line[256];
    snprintf(name, sizeof name, "/proc/%s/smaps_rollup", pid);
    FILE *file = fopen(name, "r");
    MUST(file);
    long kib = -1;
    while (fgets(line, sizeof line, file)) if (sscanf(line, "Pss: %ld", &kib) == 1) break;
    fclose(file);
    MUST(kib >= 0);
    return kib * 1024;
}

int main(int argc, char **argv)
{
    MUST(argc > 1);
    context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    MUST(pd && cq);
    double start = 0;
    if (!strcmp(argv[1], "qp")) {
        for (int i = 0; i < WARM + CYCLES; i++) {
            if (i == WARM) start = now();
            struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC, 16);
            connect_qp(qp, address_of(qp, NULL), address_of(qp, NULL));
            MUST(ibv_destroy_qp(qp) == 0);
        }
        printf("%.6f\n", (now() - start) / CYCLES * 1e6);
    } else if (!strcmp(argv[1], "mr")) {
        size_t size = (size_t)1 << 30;
        void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        MUST(memory != MAP_FAILED);
        for (int i = 0; i < WARM + CYCLES; i++) {
            if (i == WARM) start = now();
            struct ibv_mr *mr = ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
            MUST(mr && ibv_dereg_mr(mr) == 0);
        }
        printf("%.6f\n", (now() - start) / CYCLES * 1e6);
    } else if (!strcmp(argv[1], "pages")) {
        pages(pd);
    } else if (!strcmp(argv[1], "threads")) {
        MUST(argc > 2);
        threads(atoi(argv[2]));
    } else if (!strcmp(argv[1], "connect")) {
        MUST(argc > 2);
        start = now();
        connect_many(pd, cq, atoi(argv[2]));
        printf("%.6f\n", (now() - start) / atoi(argv[2]) * 1e6);
    } else if (!strcmp(argv[1], "poll")) {
        MUST(argc > 2);
        polls(pd, cq, atoi(argv[2]));
    } else {
        MUST(argc > 2);
        for (int i = 0; i < WARM; i++) MUST(ibv_destroy_qp(make_qp(pd, cq, IBV_QPT_RC, 1)) == 0);
        long before = proportional("self") + proportional(argv[2]);
        connect_many(pd, cq, PAIRS);
        printf("%.1f\n", (double)(proportional("self") + proportional(argv[2]) - before) / PAIRS);
    }
    return 0;
}
