/* fork, exec and system() in a program that has a device open. `-m WHAT` picks one: `exit`, `exec`, `live`, `system`. */
#define _GNU_SOURCE
#include "common.h"
#include <signal.h>
#include <sys/wait.h>

enum { SIZE = 4096 };

struct loop { struct ibv_context *context; struct ibv_pd *pd; struct ibv_cq *cq, *other; struct ibv_qp *a, *b; struct ibv_mr *mr; };

static struct loop open_loop(void)
{
    struct loop l = { .context = open_first() };
    l.pd = ibv_alloc_pd(l.context);
    l.cq = ibv_create_cq(l.context, 16, NULL, NULL, 0);
    l.other = ibv_create_cq(l.context, 16, NULL, NULL, 0);
    l.mr = ibv_reg_mr(l.pd, calloc(1, SIZE), SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(l.pd && l.cq && l.other && l.mr);
    l.a = make_qp(l.pd, l.cq, IBV_QPT_RC, 8);
    l.b = make_qp(l.pd, l.other, IBV_QPT_RC, 8);
    connect_both(l.a, l.b);
    return l;
}

static void traffic(struct loop *l, int count)
{
    for (int i = 0; i < count; i++) {
        MUST(post(l->a, IBV_WR_RDMA_WRITE, l->mr, (uintptr_t)l->mr->addr, 64, (uintptr_t)l->mr->addr + 1024, l->mr->rkey) == 0);
        good_completion(l->cq);
    }
}

static void inherited_objects_refuse(struct loop *l)
{
    struct ibv_wc wc;
    struct ibv_port_attr port;
    MUST(ibv_poll_cq(l->cq, 1, &wc) < 0);
    MUST(post(l->a, IBV_WR_RDMA_WRITE, l->mr, (uintptr_t)l->mr->addr, 64, (uintptr_t)l->mr->addr + 1024, l->mr->rkey) != 0);
    MUST(post_receive(l->a, l->mr, (uintptr_t)l->mr->addr, 64) != 0);
    MUST(ibv_query_port(l->context, 1, &port) != 0);
    MUST(ibv_alloc_pd(l->context) == NULL);
    MUST(ibv_req_notify_cq(l->cq, 0) != 0);
}

static void child_ended_well(pid_t child)
{
    int status;
    MUST(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) FAIL("the child ended with status %#x", status);
}

int main(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[2] : "exit";
    MUST(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED || ibv_fork_init() == 0);
    struct loop l = open_loop();
    traffic(&l, 100);
    if (strcmp(what, "system") == 0) {
        for (int i = 0; i < 20; i++) {
            MUST(post(l.a, IBV_WR_RDMA_WRITE, l.mr, (uintptr_t)l.mr->addr, 64, (uintptr_t)l.mr->addr + 1024, l.mr->rkey) == 0);
            MUST(system("true") == 0);
            good_completion(l.cq);
            traffic(&l, 50);
        }
        printf("system() was harmless\n");
        return 0;
    }
    int pipes[2];
    MUST(pipe(pipes) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        if (strcmp(what, "exec") == 0) { execlp("true", "true", NULL); _exit(9); }
        inherited_objects_refuse(&l);
        struct loop fresh = open_loop();
        traffic(&fresh, 100);
        if (strcmp(what, "exit") == 0) exit(0);
        /* Continues after the parent was killed, with the inherited resources. */
        char byte;
        close(pipes[1]);
        printf("child %d lives\n", (int)getpid());
        fflush(stdout);
        while (read(pipes[0], &byte, 1) > 0) { }
        traffic(&fresh, 100);
        printf("the child outlived its parent\n");
        fflush(stdout);
        /* The test examines what is left of the parent, and ends this process afterwards. */
        alarm(2 * LIMIT_SECONDS);
        for (;;) pause();
    }
    traffic(&l, 1000);
    if (strcmp(what, "live") == 0) {
        close(pipes[0]);
        for (;;) traffic(&l, 100);
    }
    child_ended_well(child);
    traffic(&l, 100);
    printf("the child did what it wanted\n");
    return 0;
}
