/* Creates objects while the process has as many open files as it may have, and again afterwards.
 * The refused calls must leave nothing behind: neither objects nor memory that later objects use. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <sys/resource.h>

enum { FILES = 256, ROUNDS = 40 };

static struct ibv_cq *cqs[ROUNDS];
static struct ibv_qp *qps[ROUNDS];
static struct ibv_srq *srqs[ROUNDS];

/* Large queues, so that each round needs new queue memory. */
static struct ibv_srq *make_srq(struct ibv_pd *pd)
{
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 8192, .max_sge = 4 } };
    return ibv_create_srq(pd, &init);
}

static struct ibv_qp *try_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4096, .max_recv_wr = 4096, .max_send_sge = 4, .max_recv_sge = 4 },
    };
    return ibv_create_qp(pd, &init);
}

static void refused(const void *object)
{
    MUST(object == NULL);
    MUST(errno == EMFILE);
}

int main(void)
{
    struct rlimit limit = { FILES, FILES };
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_srq *srq = make_srq(pd);
    MUST(pd && cq && srq);
    int files[FILES], count = 0;
    while ((files[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) count++;
    MUST(errno == EMFILE);

    /* The library may hold descriptors for the first of these. */
    unsigned early = 0;
    while (early < ROUNDS && (cqs[early] = ibv_create_cq(context, 8192, NULL, NULL, 0))) early++;
    MUST(early < ROUNDS);
    for (unsigned round = 0; round < ROUNDS; round++) {
        errno = 0;
        refused(ibv_create_cq(context, 8192, NULL, NULL, 0));
        refused(try_qp(pd, cq));
        refused(make_srq(pd));
        refused(ibv_create_comp_channel(context));
        MUST(ibv_resize_cq(cq, 8192) != 0);
        struct ibv_srq_attr more = { .max_wr = 16384 };
        MUST(ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR) != 0);
    }
    for (unsigned i = 0; i < early; i++) MUST(ibv_destroy_cq(cqs[i]) == 0);
    for (int i = 0; i < count; i++) close(files[i]);

    MUST(ibv_resize_cq(cq, 8192) == 0);
    for (unsigned round = 0; round < ROUNDS; round++) {
        MUST(cqs[round] = ibv_create_cq(context, 8192, NULL, NULL, 0));
        MUST(qps[round] = try_qp(pd, cqs[round]));
        MUST(srqs[round] = make_srq(pd));
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        MUST(ibv_destroy_qp(qps[round]) == 0);
        MUST(ibv_destroy_srq(srqs[round]) == 0);
        MUST(ibv_destroy_cq(cqs[round]) == 0);
    }
    MUST(ibv_destroy_srq(srq) == 0);
    MUST(ibv_destroy_cq(cq) == 0);
    MUST(ibv_dealloc_pd(pd) == 0);
    MUST(ibv_close_device(context) == 0);
    printf("%u objects before the refusal\n", early);
    return 0;
}
