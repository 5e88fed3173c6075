/* WRITEs into shared memory, which the initiator may carry out itself. `-m WHAT` says what
 * happens to the target (the server) once the initiator (the client) does so. `killed`: it is
 * killed. `fork`: it forks, and deregisters the memory. Nothing may be written afterwards.
 * `ask`: nothing happens; the client only reports whether it got a grant. `malloc`: the same, with
 * memory from malloc. */
#define _GNU_SOURCE
#include "common.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SIZE = 256 * 1024, WRITES = 20000 };

struct side { struct ibv_cq *cq; struct ibv_qp *qp; struct ibv_mr *mr; struct address peer; };

static struct side open_side(int fd, void *buffer)
{
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct side side = { .cq = ibv_create_cq(context, 16, NULL, NULL, 0) };
    MUST(pd && side.cq);
    side.mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(side.mr);
    side.qp = make_qp(pd, side.cq, IBV_QPT_RC, 8);
    struct address own = address_of(side.qp, side.mr);
    swap_bytes(fd, &own, &side.peer, sizeof own);
    connect_qp(side.qp, own, side.peer);
    char ready = 1;
    swap_bytes(fd, &ready, &ready, 1);
    return side;
}

/* Whether this process has mapped the target's memory. */
static int is_granted(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    while (fgets(line, sizeof line, maps)) found |= strstr(line, "/memfd:target") || strstr(line, "/memfd:softhca-memory");
    fclose(maps);
    return found;
}

static void initiator(int fd, int asks)
{
    void *buffer = calloc(1, SIZE);
    struct side side = open_side(fd, buffer);
    int granted = 0;
    memset(buffer, 1, SIZE);
    for (int i = 0; !asks || i < WRITES; i++) {
        uint32_t size = asks ? 8 : SIZE;
        MUST(post(side.qp, IBV_WR_RDMA_WRITE, side.mr, (uintptr_t)buffer, size, side.peer.buffer, (uint32_t)side.peer.rkey) == 0);
        struct ibv_wc wc = next_completion(side.cq);
        if (wc.status != IBV_WC_SUCCESS) {
            if (asks || !granted) FAIL("completion %d: %s", i, ibv_wc_status_str(wc.status));
            MUST(write(fd, "e", 1) == 1);
            break;
        }
        if (!granted && i % 16 == 15 && (granted = is_granted())) {
            if (asks) break;
            MUST(write(fd, "d", 1) == 1);
        }
    }
    printf("%s\n", granted ? "granted" : "not granted");
    if (asks) MUST(write(fd, "e", 1) == 1);
}

static void must_hear(int fd, char what)
{
    char byte = 0;
    MUST(read(fd, &byte, 1) == 1);
    if (byte != what) FAIL("the peer says %c instead of %c", byte, what);
}

/* Data that is stored there now must stay, whatever the initiator was about to do. */
static void nothing_more_comes(int fd, char *memory)
{
    memset(memory, 2, SIZE);
    must_hear(fd, 'e');
    for (int i = 0; i < SIZE; i++) if (memory[i] != 2) FAIL("byte %d was written to", i);
}

int main(int argc, char **argv)
{
    const char *what = "";
    for (int i = 1; i + 1 < argc; i++) if (strcmp(argv[i], "-m") == 0) what = argv[i + 1];
    int is_client, fd = rendezvous(argc, argv, &is_client);
    if (is_client) {
        initiator(fd, strcmp(what, "ask") == 0 || strcmp(what, "malloc") == 0);
        return 0;
    }
    int file = memfd_create("target", 0), status;
    MUST(file >= 0 && ftruncate(file, SIZE) == 0);
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(memory != MAP_FAILED);
    if (strcmp(what, "malloc") == 0) MUST((memory = malloc(SIZE)) != NULL);
    if (strcmp(what, "killed") == 0) {
        pid_t target = fork();
        MUST(target >= 0);
        if (target == 0) {
            open_side(fd, memory);
            must_hear(fd, 'd');
            kill(getpid(), SIGKILL);
        }
        MUST(waitpid(target, &status, 0) == target && WIFSIGNALED(status));
        nothing_more_comes(fd, memory);
        return 0;
    }
    struct side side = open_side(fd, memory);
    if (strcmp(what, "fork") == 0) {
        must_hear(fd, 'd');
        pid_t child = fork();
        MUST(child >= 0);
        /* The child's copies end nothing of the parent's. */
        if (child == 0) exit(ibv_dereg_mr(side.mr) == 0);
        MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        memset(memory, 2, SIZE);
        double until = now() + LIMIT_SECONDS;
        while (*(volatile char *)memory != 1) MUST(now() < until);
        MUST(ibv_dereg_mr(side.mr) == 0);
        nothing_more_comes(fd, memory);
    } else {
        must_hear(fd, 'e');
    }
    return 0;
}
