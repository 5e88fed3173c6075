/* As many queue pairs as one process may have, each connected to another, and as many multicast
 * groups, with an agent behind a socket. They cost the process neither mappings nor descriptors,
 * and the first and the last of them carry messages.
 *   many QPS GROUPS */
#include "common.h"
#include <dirent.h>

enum { SIZE = 4096, SOME = 64 };

static unsigned mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    unsigned lines = 0;
    for (int c; (c = getc(maps)) != EOF;) lines += c == '\n';
    fclose(maps);
    return lines;
}

static unsigned descriptors(void)
{
    DIR *open = opendir("/proc/self/fd");
    MUST(open);
    unsigned count = 0;
    while (readdir(open)) count++;
    closedir(open);
    return count;
}

static long resident(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    long all, here;
    MUST(file && fscanf(file, "%ld %ld", &all, &here) == 2);
    fclose(file);
    return here * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    MUST(argc == 3);
    unsigned count = (unsigned)atoi(argv[1]), groups = (unsigned)atoi(argv[2]);
    struct ibv_context *context = open_first();
    struct ibv_device_attr limits;
    MUST(ibv_query_device(context, &limits) == 0 && (unsigned)limits.max_qp >= count && (unsigned)limits.max_mcast_grp >= groups);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    uint8_t *bytes = calloc(1, SIZE);
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_qp **qps = calloc(count, sizeof *qps);
    MUST(pd && cq && mr && qps);
    unsigned maps = mappings(), fds = descriptors();
    long before = resident();
    for (unsigned i = 0; i < count; i++) {
        struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
        qps[i] = ibv_create_qp(pd, &init);
        if (!qps[i]) FAIL("queue pair %u", i);
    }
    long each = (resident() - before) / (long)count;
    unsigned more_maps = mappings() - maps, more_fds = descriptors() - fds;
    printf("%u queue pairs: %u mappings, %u descriptors, %ld bytes each\n", count, more_maps, more_fds, each);
    MUST(more_maps < 200 && more_fds < 20);
    MUST(each <= 4096);
    /* Connects some of the first and the last of them. */
    for (unsigned i = 0; i < SOME; i++) {
        struct ibv_qp *a = qps[i], *b = qps[count - 1 - i];
        connect_both(a, b);
        memset(bytes, (int)i + 1, 8);
        MUST(post_receive(b, mr, (uintptr_t)bytes + 64, 8) == 0 && post(a, IBV_WR_SEND, mr, (uintptr_t)bytes, 8, 0, 0) == 0);
        (void)good_completion(cq); (void)good_completion(cq);
        MUST(memcmp(bytes, bytes + 64, 8) == 0);
    }
    for (unsigned i = 0; i < count; i++) MUST(ibv_destroy_qp(qps[i]) == 0);
    /* Lanes, timers and the sockets of each address: as many as for one connection. */
    MUST(descriptors() <= fds + 100);

    struct ibv_qp *qp = ready_ud(make_qp(pd, cq, IBV_QPT_UD, 8), 0x4712);
    union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 77 } };
    for (unsigned i = 0; i < groups; i++) {
        group.raw[14] = (uint8_t)(i >> 8);
        group.raw[15] = (uint8_t)i;
        if (ibv_attach_mcast(qp, &group, 0) != 0) FAIL("group %u", i);
    }
    /* The last one works. */
    struct ibv_ah *ah = handle_to(pd, group);
    MUST(post_receive(qp, mr, (uintptr_t)bytes, 100) == 0);
    struct ibv_sge sge = { .addr = (uintptr_t)bytes + 200, .length = 10, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
                                    .wr.ud = { .ah = ah, .remote_qpn = 0xffffff, .remote_qkey = 0x4712 } };
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
    (void)good_completion(cq); (void)good_completion(cq);
    group.raw[14] = 0xff;
    MUST(ibv_attach_mcast(qp, &group, 0) == (groups == (unsigned)limits.max_mcast_grp ? ENOMEM : 0));
    printf("%u groups\n", groups);
    MUST(ibv_destroy_ah(ah) == 0);
    /* A process that ends without closing anything releases all of it. */
    return 0;
}
