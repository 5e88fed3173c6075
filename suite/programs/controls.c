/* What objects cost: their making in time, queue pairs in memory.
 *   controls qp                microseconds of making a queue pair, bringing it to RTS (connected with itself), and ending it
 *   controls mr                microseconds of registering 1 GiB, and ending that
 *   controls memory AGENT      bytes of a queue pair with one request in each queue, here and in the agent with this process id */
#include "common.h"
#include <sys/mman.h>

enum { WARM = 20, CYCLES = 300, PAIRS = 2000 };

/* Memory of its own that a process has, and its part of what it shares. */
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
    struct ibv_context *context = open_first();
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
    } else {
        MUST(argc > 2);
        static struct ibv_qp *qps[PAIRS];
        for (int i = 0; i < WARM; i++) MUST(ibv_destroy_qp(make_qp(pd, cq, IBV_QPT_RC, 1)) == 0);
        long before = proportional("self") + proportional(argv[2]);
        for (int i = 0; i < PAIRS; i++) {
            qps[i] = make_qp(pd, cq, IBV_QPT_RC, 1);
            connect_qp(qps[i], address_of(qps[i], NULL), address_of(qps[i], NULL));
        }
        printf("%.1f\n", (double)(proportional("self") + proportional(argv[2]) - before) / PAIRS);
    }
    return 0;
}
