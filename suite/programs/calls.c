/* Calls every function that libibverbs.so.1 exports, and those behind the inline functions of
 * <infiniband/verbs.h>: with valid arguments, and with those of a broken program: NULL, unknown
 * numbers, sizes that are too large, wrong masks. Memory that a call does not require stays
 * uninitialized, so that valgrind reports a library that reads it. Prints the name of each
 * called function, one per line.
 *   calls -l NAME …   the names of the private interface, which accept anything and refuse it */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <infiniband/sa.h>
#include <sys/mman.h>

enum { SIZE = 8192, QKEY = 0x11111 };

static const char *called[256];
static unsigned calls;

static void note(const char *name)
{
    for (unsigned i = 0; i < calls; i++) if (strcmp(called[i], name) == 0) return;
    MUST(calls < sizeof called / sizeof *called);
    called[calls++] = name;
}

/* The function itself, not the macro or inline function of the same name. */
#define CALL(function) (note(#function), (function))
/* A call that returns a pointer and is refused. */
#define NONE(call, why) do { errno = 0; MUST((call) == NULL); MUST(errno == (why)); } while (0)
/* A call that returns an errno value. */
#define CODE(call, why) do { int code_ = (call); if (code_ != (why)) FAIL("%s answers %d, not %d", #call, code_, (why)); } while (0)
/* A call that returns -1 and sets errno. */
#define MINUS(call, why) do { errno = 0; MUST((call) == -1); if (errno != (why)) FAIL("%s sets %d, not %d", #call, errno, (why)); } while (0)

/* An uninitialized variable. */
#define UNKNOWN(type, name) type *name = malloc(sizeof(type)); MUST(name)

extern void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from);
extern void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from);
extern void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from);
extern void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, struct ibv_sa_path_rec *from);
extern int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size);
extern const char *ibv_get_sysfs_path(void);
extern int ibv_dontfork_range(void *base, size_t size);
extern int ibv_dofork_range(void *base, size_t size);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *bytes;
static union ibv_gid own_gid;

static void texts(void)
{
    static const int numbers[] = { INT_MIN, -100, -1, 0, 1, 5, 7, 19, 20, 21, 23, 24, 25, 100, 255, 256, 65536, INT_MAX };
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int n = numbers[i];
        MUST(*CALL(ibv_wc_status_str)(n) && *CALL(ibv_node_type_str)(n) && *CALL(ibv_port_state_str)(n) && *CALL(ibv_event_type_str)(n));
        int multiple = CALL(ibv_rate_to_mult)(n), mbps = CALL(ibv_rate_to_mbps)(n);
        if (multiple > 0) MUST((int)CALL(mult_to_ibv_rate)(multiple) == n);
        if (mbps > 0) MUST((int)CALL(mbps_to_ibv_rate)(mbps) == n);
        MUST(mult_to_ibv_rate(n) <= IBV_RATE_1200_GBPS && mbps_to_ibv_rate(n) <= IBV_RATE_1200_GBPS);
    }
}

static void files(void)
{
    char *small = malloc(4), *large = malloc(64);
    const char *root = CALL(ibv_get_sysfs_path)();
    MUST(root && root == ibv_get_sysfs_path());
    char path[512];
    snprintf(path, sizeof path, "%s/class/infiniband_verbs", root);
    int length = CALL(ibv_read_sysfs_file)(path, "abi_version", large, 64);
    MUST(length > 0 && large[length] == 0);
    MUST(ibv_read_sysfs_file(path, "uverbs0/ibdev", small, 4) == 4);
    MUST(ibv_read_sysfs_file(path, "uverbs0/ibdev", small, 0) == 0);
    MINUS(ibv_read_sysfs_file(path, "there is no such file", large, 64), ENOENT);
    MINUS(ibv_read_sysfs_file(path, "", large, 64), EISDIR);
    MINUS(ibv_read_sysfs_file(NULL, "abi_version", large, 64), EINVAL);
    MINUS(ibv_read_sysfs_file(path, NULL, large, 64), EINVAL);
    MINUS(ibv_read_sysfs_file(path, "abi_version", NULL, 64), EINVAL);
    free(small);
    free(large);
    CODE(CALL(ibv_fork_init)(), 0);
    MUST(CALL(ibv_is_fork_initialized)() == IBV_FORK_UNNEEDED);
    CODE(CALL(ibv_dontfork_range)(NULL, SIZE_MAX), 0);
    CODE(CALL(ibv_dofork_range)(NULL, SIZE_MAX), 0);
}

static void devices(void)
{
    int count = -1;
    struct ibv_device **list = CALL(ibv_get_device_list)(&count), **other = ibv_get_device_list(NULL);
    MUST(list && other && count >= 1 && list[count] == NULL && list[0] == other[0]);
    MUST(*CALL(ibv_get_device_name)(list[0]) && CALL(ibv_get_device_guid)(list[0]) != 0 && CALL(ibv_get_device_index)(list[0]) == 0);
    NONE(ibv_get_device_name(NULL), EINVAL);
    MINUS(ibv_get_device_index(NULL), EINVAL);
    MUST(ibv_get_device_guid(NULL) == 0);
    NONE(ibv_open_device(NULL), EINVAL);
    context = CALL(ibv_open_device)(list[0]);
    MUST(context);
    CALL(ibv_free_device_list)(list);
    ibv_free_device_list(other);
    ibv_free_device_list(NULL);
    CODE(ibv_close_device(NULL), EINVAL);
}

static void queries(void)
{
    struct ibv_device_attr *attr = malloc(sizeof *attr);
    CODE(CALL(ibv_query_device)(context, attr), 0);
    MUST(memchr(attr->fw_ver, 0, sizeof attr->fw_ver) && attr->max_qp > 0 && attr->phys_port_cnt == 1);
    CODE(ibv_query_device(NULL, attr), EINVAL);
    CODE(ibv_query_device(context, NULL), EINVAL);
    free(attr);
    struct ibv_device_attr_ex *more = malloc(sizeof *more);
    CODE(ibv_query_device_ex(context, NULL, more), 0);
    struct ibv_query_device_ex_input input = { .comp_mask = 1 };
    MUST(ibv_query_device_ex(context, &input, more) == EINVAL);
    free(more);

    struct ibv_port_attr port;
    struct _compat_ibv_port_attr *compat = malloc(sizeof(struct ibv_port_attr));
    CODE(CALL(ibv_query_port)(context, 1, compat), 0);
    CODE(ibv_query_port(context, 1, &port), 0);
    MUST(port.gid_tbl_len > 0 && port.pkey_tbl_len > 0);
    static const uint8_t nowhere[] = { 0, 2, 128, 255 };
    for (unsigned i = 0; i < sizeof nowhere; i++) {
        CODE((ibv_query_port)(context, nowhere[i], compat), EINVAL);
        CODE(ibv_query_port(context, nowhere[i], &port), EINVAL);
    }
    CODE((ibv_query_port)(NULL, 1, compat), EINVAL);
    CODE((ibv_query_port)(context, 1, NULL), EINVAL);
    free(compat);

    CODE(CALL(ibv_query_gid)(context, 1, 0, &own_gid), 0);
    union ibv_gid gid;
    static const int indices[] = { -1, INT_MIN, INT_MAX, 256, 5000 };
    for (unsigned i = 0; i < sizeof indices / sizeof *indices; i++) {
        MUST(ibv_query_gid(context, 1, indices[i], &gid) == -1);
        __be16 pkey;
        MUST(CALL(ibv_query_pkey)(context, 1, indices[i], &pkey) == -1);
    }
    MUST(ibv_query_gid(context, 9, 0, &gid) == -1 && ibv_query_gid(NULL, 1, 0, &gid) == -1 && ibv_query_gid(context, 1, 0, NULL) == -1);
    __be16 pkey = 0;
    CODE(ibv_query_pkey(context, 1, 0, &pkey), 0);
    MUST(ibv_query_pkey(context, 9, 0, &pkey) == -1 && ibv_query_pkey(NULL, 1, 0, &pkey) == -1 && ibv_query_pkey(context, 1, 0, NULL) == -1);
    MUST(CALL(ibv_get_pkey_index)(context, 1, pkey) == 0);
    MUST(ibv_get_pkey_index(context, 1, htons(0x1234)) == -1 && ibv_get_pkey_index(context, 9, pkey) == -1 && ibv_get_pkey_index(NULL, 1, pkey) == -1);

    struct ibv_gid_entry entry, *table = malloc(300 * sizeof *table);
    CODE(CALL(_ibv_query_gid_ex)(context, 1, 0, &entry, 0, sizeof entry), 0);
    CODE(_ibv_query_gid_ex(context, 1, 0, &entry, 1, sizeof entry), EINVAL);
    CODE(_ibv_query_gid_ex(context, 1, 0, &entry, 0, 0), EINVAL);
    CODE(_ibv_query_gid_ex(context, 1, 0, &entry, 0, 8), 0);
    CODE(_ibv_query_gid_ex(context, 1, 0, (struct ibv_gid_entry *)table, 0, 4096), 0);
    CODE(_ibv_query_gid_ex(context, 1, 60, &entry, 0, sizeof entry), ENODATA);
    CODE(_ibv_query_gid_ex(context, UINT_MAX, 0, &entry, 0, sizeof entry), EINVAL);
    CODE(_ibv_query_gid_ex(context, 1, UINT_MAX, &entry, 0, sizeof entry), EINVAL);
    CODE(_ibv_query_gid_ex(NULL, 1, 0, &entry, 0, sizeof entry), EINVAL);
    CODE(_ibv_query_gid_ex(context, 1, 0, NULL, 0, sizeof entry), EINVAL);
    ssize_t found = CALL(_ibv_query_gid_table)(context, table, 300, 0, sizeof *table);
    MUST(found > 0 && _ibv_query_gid_table(context, table, (size_t)found, 0, sizeof *table) == found);
    MUST(_ibv_query_gid_table(context, table, (size_t)found - 1, 0, sizeof *table) == -EINVAL);
    MUST(_ibv_query_gid_table(context, table, 300, 7, sizeof *table) == -EINVAL);
    MUST(_ibv_query_gid_table(context, table, 300, 0, 0) == -EINVAL);
    MUST(_ibv_query_gid_table(NULL, table, 300, 0, sizeof *table) == -EINVAL);
    MUST(_ibv_query_gid_table(context, NULL, 300, 0, sizeof *table) == -EINVAL);
    free(table);

    struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
    CODE(ibv_query_rt_values_ex(context, &values), 0);
    MUST(values.raw_clock.tv_sec || values.raw_clock.tv_nsec);
    values.comp_mask = UINT32_MAX;
    MUST(ibv_query_rt_values_ex(context, &values) == 0 && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);

    uint8_t mac[6];
    uint16_t vlan;
    struct ibv_ah_attr way = { .port_num = 1, .is_global = 1, .grh = { .dgid = own_gid } };
    CODE(CALL(ibv_resolve_eth_l2_from_gid)(context, &way, mac, &vlan), 0);
    CODE(ibv_resolve_eth_l2_from_gid(context, &way, mac, NULL), 0);
    CODE(ibv_resolve_eth_l2_from_gid(context, &way, NULL, NULL), EINVAL);
    CODE(ibv_resolve_eth_l2_from_gid(context, NULL, mac, NULL), EINVAL);
    CODE(ibv_resolve_eth_l2_from_gid(NULL, &way, mac, NULL), EINVAL);
    way.port_num = 99;
    CODE(ibv_resolve_eth_l2_from_gid(context, &way, mac, NULL), EINVAL);
}

static void copies(void)
{
    struct ib_uverbs_qp_attr qp_from = { .qp_state = UINT32_MAX, .path_mtu = 77, .ah_attr = { .is_global = 1, .port_num = 3 } };
    UNKNOWN(struct ibv_qp_attr, qp);
    CALL(ibv_copy_qp_attr_from_kern)(qp, &qp_from);
    MUST(qp->ah_attr.port_num == 3 && qp->rate_limit == 0);
    UNKNOWN(struct ibv_ah_attr, ah);
    CALL(ibv_copy_ah_attr_from_kern)(ah, &qp_from.ah_attr);
    MUST(ah->port_num == 3 && ah->is_global == 1);
    struct ib_user_path_rec path_from = { .mtu = UINT32_MAX, .reversible = UINT32_MAX };
    UNKNOWN(struct ibv_sa_path_rec, path);
    CALL(ibv_copy_path_rec_from_kern)(path, &path_from);
    UNKNOWN(struct ib_user_path_rec, back);
    CALL(ibv_copy_path_rec_to_kern)(back, path);
    MUST(back->reversible == UINT32_MAX && back->mtu == 255);
    free(qp); free(ah); free(path); free(back);
}

static void domains(void)
{
    pd = CALL(ibv_alloc_pd)(context);
    MUST(pd);
    NONE(ibv_alloc_pd(NULL), EINVAL);
    CODE(CALL(ibv_dealloc_pd)(ibv_alloc_pd(context)), 0);
    CODE(ibv_dealloc_pd(NULL), EINVAL);
}

static void memory(void)
{
    uint64_t at = (uintptr_t)bytes;
    int write = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
    mr = CALL(ibv_reg_mr)(pd, bytes, SIZE, write);
    MUST(mr && mr->length == SIZE && mr->addr == bytes);
    struct ibv_mr *other = CALL(ibv_reg_mr_iova)(pd, bytes, 100, at, 0);
    MUST(other && ibv_dereg_mr(other) == 0);
    other = CALL(ibv_reg_mr_iova2)(pd, bytes, 100, 0, IBV_ACCESS_ZERO_BASED);
    MUST(other && ibv_dereg_mr(other) == 0);
    NONE((ibv_reg_mr)(NULL, bytes, 1, 0), EINVAL);
    other = CALL(ibv_reg_mr)(pd, bytes, 0, 0);
    MUST(other && ibv_dereg_mr(other) == 0);
    NONE((ibv_reg_mr)(pd, NULL, SIZE, 0), EFAULT);
    NONE((ibv_reg_mr)(pd, bytes, SIZE_MAX, 0), EFAULT);
    NONE((ibv_reg_mr)(pd, bytes, SIZE_MAX / 2, 0), EFAULT);
    NONE((ibv_reg_mr)(pd, (void *)(uintptr_t)-4096, 8192, 0), EFAULT);
    NONE((ibv_reg_mr)(pd, bytes, 1, -1), EINVAL);
    NONE((ibv_reg_mr)(pd, bytes, 1, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    NONE((ibv_reg_mr)(pd, bytes, 1, 1 << 19), EINVAL);
    NONE(ibv_reg_mr_iova(pd, bytes, 100, at + 1, 0), EINVAL);
    NONE(ibv_reg_mr_iova2(NULL, bytes, 100, at, 0), EINVAL);
    NONE(CALL(ibv_reg_dmabuf_mr)(pd, 0, 4096, 0, -1, 0), EOPNOTSUPP);
    void *locked = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NONE((ibv_reg_mr)(pd, locked, SIZE, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    other = (ibv_reg_mr)(pd, locked, SIZE, 0);
    MUST(other);
    munmap(locked, SIZE);

    static const struct { int flags, access; size_t length; } wrong[] = {
        { 0, 0, 0 }, { 8, 0, 0 }, { -1, 0, 0 }, { IBV_REREG_MR_CHANGE_TRANSLATION, 0, 0 }, { IBV_REREG_MR_CHANGE_PD, 0, 0 },
        { IBV_REREG_MR_CHANGE_TRANSLATION, 1, 8 }, { INT_MIN, 0, 8 },
    };
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
        MUST(CALL(ibv_rereg_mr)(other, wrong[i].flags, NULL, NULL, wrong[i].length, wrong[i].access) == IBV_REREG_MR_ERR_INPUT);
    MUST(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    MUST(ibv_rereg_mr(other, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) < 0);
    MUST(ibv_rereg_mr(other, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)8, 4096, 0) < 0);
    CODE(ibv_rereg_mr(other, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL, bytes, SIZE, IBV_ACCESS_LOCAL_WRITE), 0);
    CODE(CALL(ibv_dereg_mr)(other), 0);
    CODE(ibv_dereg_mr(NULL), EINVAL);

    struct ibv_mr *nothing = ibv_alloc_null_mr(pd);
    MUST(nothing);
    MUST(ibv_rereg_mr(nothing, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) < 0);
    struct ibv_mr *paged = (ibv_reg_mr)(pd, bytes, SIZE, IBV_ACCESS_ON_DEMAND);
    MUST(paged);
    struct ibv_sge range = { .addr = at, .length = SIZE, .lkey = mr->lkey };
    MUST(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1) == EFAULT);
    range.lkey = paged->lkey;
    MUST(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &range, 1) == 0);
    MUST(ibv_advise_mr(pd, 99, 0, &range, 1) != 0 && ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, UINT32_MAX, &range, 1) != 0);
    range.lkey ^= 0xff00;
    MUST(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &range, 1) != 0);
    MUST(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 5) != 0);
    CODE(ibv_dereg_mr(paged), 0);
    CODE(ibv_dereg_mr(nothing), 0);

    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    MUST(window && ibv_dealloc_mw(window) == 0);
    NONE(ibv_alloc_mw(pd, 0), EINVAL);
    NONE(ibv_alloc_mw(pd, 77), EINVAL);
}

static void device_memory(void)
{
    struct ibv_alloc_dm_attr want = { .length = 4096 };
    struct ibv_dm *dm = ibv_alloc_dm(context, &want);
    MUST(dm);
    CODE(ibv_memcpy_to_dm(dm, 0, bytes, 64), 0);
    CODE(ibv_memcpy_from_dm(bytes, dm, 0, 64), 0);
    MUST(ibv_memcpy_to_dm(dm, 4096, bytes, 4) != 0 && ibv_memcpy_to_dm(dm, UINT64_MAX - 3, bytes, 8) != 0);
    MUST(ibv_memcpy_to_dm(dm, 0, bytes, SIZE_MAX & ~3UL) != 0 && ibv_memcpy_to_dm(dm, 1, bytes, 3) != 0);
    struct ibv_mr *on = ibv_reg_dm_mr(pd, dm, 0, 4096, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
    MUST(on && ibv_free_dm(dm) == EBUSY);
    NONE(ibv_reg_dm_mr(pd, dm, 4096, 1, IBV_ACCESS_ZERO_BASED), EINVAL);
    NONE(ibv_reg_dm_mr(pd, dm, UINT64_MAX, 2, IBV_ACCESS_ZERO_BASED), EINVAL);
    NONE(ibv_reg_dm_mr(pd, dm, 0, 4096, 0), EINVAL);
    CODE(ibv_dereg_mr(on), 0);
    want.length = 0;
    NONE(ibv_alloc_dm(context, &want), EINVAL);
    want.length = SIZE_MAX;
    MUST(ibv_alloc_dm(context, &want) == NULL);
    want = (struct ibv_alloc_dm_attr){ .length = 8, .log_align_req = UINT32_MAX };
    NONE(ibv_alloc_dm(context, &want), EINVAL);
    want = (struct ibv_alloc_dm_attr){ .length = 8, .comp_mask = 1 };
    NONE(ibv_alloc_dm(context, &want), EINVAL);

    /* The same objects in a second context of this process. */
    int fd = dup(context->cmd_fd), pipes[2];
    struct ibv_context *twin = CALL(ibv_import_device)(fd);
    MUST(twin);
    struct ibv_pd *twin_pd = CALL(ibv_import_pd)(twin, pd->handle);
    struct ibv_mr *twin_mr = CALL(ibv_import_mr)(twin_pd, mr->handle);
    struct ibv_dm *twin_dm = CALL(ibv_import_dm)(twin, dm->handle);
    MUST(twin_pd && twin_mr && twin_dm && twin_mr->lkey == mr->lkey);
    NONE(ibv_import_pd(twin, 0xffffffff), ENOENT);
    NONE(ibv_import_pd(twin, mr->handle), ENOENT);
    NONE(ibv_import_pd(NULL, 0), EINVAL);
    NONE(ibv_import_mr(twin_pd, 0), ENOENT);
    NONE(ibv_import_mr(NULL, 0), EINVAL);
    NONE(ibv_import_dm(twin, 12345), ENOENT);
    NONE(ibv_import_dm(NULL, 0), EINVAL);
    CALL(ibv_unimport_mr)(twin_mr);
    CALL(ibv_unimport_dm)(twin_dm);
    CALL(ibv_unimport_pd)(twin_pd);
    ibv_unimport_mr(NULL);
    ibv_unimport_dm(NULL);
    ibv_unimport_pd(NULL);
    CODE(CALL(ibv_close_device)(twin), 0);
    NONE(ibv_import_device(-1), EBADF);
    MUST(ibv_import_device(INT_MAX) == NULL);
    MUST(pipe(pipes) == 0);
    NONE(ibv_import_device(pipes[0]), EINVAL);
    close(pipes[0]); close(pipes[1]);
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pipes) == 0);
    NONE(ibv_import_device(pipes[0]), EINVAL);
    close(pipes[0]); close(pipes[1]);
    CODE(ibv_free_dm(dm), 0);
}

static struct ibv_cq *completions(void)
{
    struct ibv_comp_channel *channel = CALL(ibv_create_comp_channel)(context);
    MUST(channel);
    NONE(ibv_create_comp_channel(NULL), EINVAL);
    CODE(ibv_destroy_comp_channel(NULL), EINVAL);
    struct ibv_cq *cq = CALL(ibv_create_cq)(context, 64, (void *)0x1234, channel, 0);
    MUST(cq && ibv_destroy_comp_channel(channel) == EBUSY);
    NONE(ibv_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
    static const int sizes[] = { 0, -1, INT_MIN, INT_MAX, 1 << 23 };
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        NONE(ibv_create_cq(context, sizes[i], NULL, NULL, 0), EINVAL);
        CODE(CALL(ibv_resize_cq)(cq, sizes[i]), EINVAL);
    }
    NONE(ibv_create_cq(context, 1, NULL, NULL, -1), EINVAL);
    NONE(ibv_create_cq(context, 1, NULL, NULL, INT_MAX), EINVAL);
    CODE(ibv_resize_cq(cq, 100), 0);
    CODE(ibv_resize_cq(NULL, 1), EINVAL);
    CODE(ibv_destroy_cq(NULL), EINVAL);
    struct ibv_wc wc;
    MUST(ibv_poll_cq(cq, 0, NULL) == 0 && ibv_poll_cq(cq, 1, &wc) == 0 && ibv_poll_cq(cq, -1, &wc) < 0);
    fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    struct ibv_cq *which;
    void *what;
    MINUS(CALL(ibv_get_cq_event)(channel, &which, &what), EAGAIN);
    MINUS(ibv_get_cq_event(NULL, &which, &what), EINVAL);
    MINUS(ibv_get_cq_event(channel, NULL, &what), EINVAL);
    MINUS(ibv_get_cq_event(channel, &which, NULL), EINVAL);
    CALL(ibv_ack_cq_events)(cq, 0);
    ibv_ack_cq_events(NULL, 5);
    CODE(ibv_req_notify_cq(cq, 0), 0);

    struct ibv_cq_init_attr_ex more = { .cqe = 4, .wc_flags = IBV_CREATE_CQ_SUP_WC_FLAGS };
    struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &more);
    if (!extended) { more.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP; extended = ibv_create_cq_ex(context, &more); }
    MUST(extended);
    struct ibv_poll_cq_attr poll = { 0 };
    MUST(ibv_start_poll(extended, &poll) == ENOENT);
    poll.comp_mask = UINT32_MAX;
    MUST(ibv_start_poll(extended, &poll) != 0);
    struct ibv_modify_cq_attr moderate = { .attr_mask = UINT32_MAX };
    MUST(ibv_modify_cq(cq, &moderate) != 0);
    CODE(CALL(ibv_destroy_cq)(ibv_cq_ex_to_cq(extended)), 0);
    more.wc_flags = UINT64_MAX;
    MUST(ibv_create_cq_ex(context, &more) == NULL);
    more = (struct ibv_cq_init_attr_ex){ .cqe = UINT32_MAX };
    MUST(ibv_create_cq_ex(context, &more) == NULL);
    more = (struct ibv_cq_init_attr_ex){ .cqe = 4, .comp_mask = UINT32_MAX, .flags = UINT32_MAX };
    MUST(ibv_create_cq_ex(context, &more) == NULL);
    return cq;
}

static void handles(void)
{
    UNKNOWN(struct ibv_ah_attr, attr);
    attr->is_global = 1;
    attr->port_num = 1;
    attr->sl = attr->src_path_bits = attr->static_rate = 0;
    attr->dlid = 0;
    attr->grh = (struct ibv_global_route){ .dgid = own_gid, .hop_limit = 3 };
    struct ibv_ah *ah = CALL(ibv_create_ah)(pd, attr);
    MUST(ah);
    CODE(CALL(ibv_destroy_ah)(ah), 0);
    CODE(ibv_destroy_ah(NULL), EINVAL);
    NONE(ibv_create_ah(NULL, attr), EINVAL);
    NONE(ibv_create_ah(pd, NULL), EINVAL);
    attr->port_num = 200;
    NONE(ibv_create_ah(pd, attr), EINVAL);
    attr->port_num = 1;
    attr->grh.sgid_index = 255;
    NONE(ibv_create_ah(pd, attr), EINVAL);
    free(attr);
    /* Without a GRH, the fields of the GRH are not read. */
    attr = malloc(sizeof *attr);
    attr->is_global = attr->sl = attr->src_path_bits = attr->static_rate = 0;
    attr->port_num = 1;
    attr->dlid = 0;
    NONE(ibv_create_ah(pd, attr), EINVAL);

    uint8_t *grh = calloc(1, 40);
    struct ibv_wc wc = { .wc_flags = IBV_WC_GRH, .slid = 0 };
    MINUS(CALL(ibv_init_ah_from_wc)(context, 1, &wc, (struct ibv_grh *)grh, attr), EINVAL);
    NONE(CALL(ibv_create_ah_from_wc)(pd, &wc, (struct ibv_grh *)grh, 1), EINVAL);
    grh[0] = 0x60;
    memcpy(grh + 8, own_gid.raw, 16);
    memcpy(grh + 24, own_gid.raw, 16);
    CODE(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)grh, attr), 0);
    ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)grh, 1);
    MUST(ah && ibv_destroy_ah(ah) == 0);
    grh[30] ^= 1;
    MINUS(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)grh, attr), EINVAL);
    MINUS(ibv_init_ah_from_wc(context, 1, &wc, NULL, attr), EINVAL);
    MINUS(ibv_init_ah_from_wc(context, 1, NULL, NULL, attr), EINVAL);
    MINUS(ibv_init_ah_from_wc(context, 1, &wc, NULL, NULL), EINVAL);
    MINUS(ibv_init_ah_from_wc(NULL, 1, &wc, NULL, attr), EINVAL);
    NONE(ibv_create_ah_from_wc(NULL, &wc, NULL, 1), EINVAL);
    free(grh);
    free(attr);
}

static void shared_queue(void)
{
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 2 } };
    struct ibv_srq *srq = CALL(ibv_create_srq)(pd, &init);
    MUST(srq);
    NONE(ibv_create_srq(NULL, &init), EINVAL);
    NONE(ibv_create_srq(pd, NULL), EINVAL);
    static const struct ibv_srq_attr wrong[] = { { 0, 1, 0 }, { UINT32_MAX, 1, 0 }, { 1, UINT32_MAX, 0 }, { 1 << 20, 1, 0 } };
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        init.attr = wrong[i];
        NONE(ibv_create_srq(pd, &init), EINVAL);
    }
    init.attr = (struct ibv_srq_attr){ .max_wr = 1 };
    struct ibv_srq *least = ibv_create_srq(pd, &init);
    MUST(least && init.attr.max_sge == 1);
    CODE(ibv_destroy_srq(least), 0);
    UNKNOWN(struct ibv_srq_attr, attr);
    CODE(CALL(ibv_query_srq)(srq, attr), 0);
    MUST(attr->max_wr == 16 && attr->max_sge == 2 && attr->srq_limit == 0);
    CODE(ibv_query_srq(NULL, attr), EINVAL);
    CODE(ibv_query_srq(srq, NULL), EINVAL);
    free(attr);
    attr = malloc(sizeof *attr);
    attr->srq_limit = 5;
    CODE(CALL(ibv_modify_srq)(srq, attr, IBV_SRQ_LIMIT), 0);
    free(attr);
    attr = malloc(sizeof *attr);
    attr->max_wr = 64;
    CODE(ibv_modify_srq(srq, attr, IBV_SRQ_MAX_WR), 0);
    attr->srq_limit = 1000;
    CODE(ibv_modify_srq(srq, attr, IBV_SRQ_LIMIT), EINVAL);
    CODE(ibv_modify_srq(srq, attr, 0), EINVAL);
    CODE(ibv_modify_srq(srq, attr, -1), EINVAL);
    CODE(ibv_modify_srq(NULL, attr, IBV_SRQ_LIMIT), EINVAL);
    CODE(ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT), EINVAL);
    free(attr);
    struct ibv_sge sges[3] = { { .addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey } };
    struct ibv_recv_wr *bad = NULL, wr = { .sg_list = sges, .num_sge = 1 };
    CODE(ibv_post_srq_recv(srq, &wr, &bad), 0);
    static const int counts[] = { 3, -1, INT_MIN, INT_MAX };
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        wr.num_sge = counts[i];
        MUST(ibv_post_srq_recv(srq, &wr, &bad) == EINVAL && bad == &wr);
    }
    uint32_t number;
    MUST(ibv_get_srq_num(srq, &number) != 0);
    CODE(CALL(ibv_destroy_srq)(srq), 0);
    CODE(ibv_destroy_srq(NULL), EINVAL);
}

static void creating(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
    NONE(ibv_create_qp(NULL, &init), EINVAL);
    NONE(ibv_create_qp(pd, NULL), EINVAL);
    init.send_cq = NULL;
    NONE(ibv_create_qp(pd, &init), EINVAL);
    init.send_cq = cq;
    init.recv_cq = NULL;
    NONE(ibv_create_qp(pd, &init), EINVAL);
    init.recv_cq = cq;
    static const int types[] = { 0, 1, 5, 7, 11, 77, 254, 256 + 2, -1 };
    for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
        init.qp_type = (enum ibv_qp_type)types[i];
        NONE(ibv_create_qp(pd, &init), EINVAL);
    }
    init.qp_type = IBV_QPT_RAW_PACKET;
    NONE(ibv_create_qp(pd, &init), EOPNOTSUPP);
    init.qp_type = IBV_QPT_XRC_RECV;
    NONE(ibv_create_qp(pd, &init), EINVAL);
    init.qp_type = IBV_QPT_RC;
    uint32_t *caps = &init.cap.max_send_wr;
    for (int i = 0; i < 5; i++) {
        uint32_t before = caps[i];
        caps[i] = UINT32_MAX;
        NONE(ibv_create_qp(pd, &init), EINVAL);
        caps[i] = 1u << 31;
        NONE(ibv_create_qp(pd, &init), EINVAL);
        caps[i] = before;
    }
    struct ibv_qp_init_attr_ex more = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = init.cap, .comp_mask = 0 };
    NONE(ibv_create_qp_ex(context, &more), EINVAL);
    more.comp_mask = UINT32_MAX;
    MUST(ibv_create_qp_ex(context, &more) == NULL);
    more.comp_mask = IBV_QP_INIT_ATTR_PD;
    NONE(ibv_create_qp_ex(context, &more), EINVAL);
    more.pd = pd;
    more.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    more.send_ops_flags = UINT64_MAX;
    MUST(ibv_create_qp_ex(context, &more) == NULL);
    more.qp_type = IBV_QPT_XRC_RECV;
    more.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    NONE(ibv_create_qp_ex(context, &more), EINVAL);
}

/* softhca's own functions, which a program looks up: a queue pair by its number, why something
 * failed, and an additional sentence. `qp` has refused a send. */
static void reasons(struct ibv_qp *qp, uint64_t refused)
{
    const char *(*why)(struct ibv_qp *, uint64_t) = (const char *(*)(struct ibv_qp *, uint64_t))dlsym(RTLD_DEFAULT, "softhca_why");
    void (*add)(uint32_t, const char *) = (void (*)(uint32_t, const char *))dlsym(RTLD_DEFAULT, "softhca_note");
    struct ibv_qp *(*find)(uint32_t, uint32_t *) = (struct ibv_qp *(*)(uint32_t, uint32_t *))dlsym(RTLD_DEFAULT, "softhca_find_qp");
    uint32_t state = 99;
    MUST(why && add && find);
    note("softhca_find_qp");
    NONE(find(qp->qp_num, NULL), EINVAL);
    MUST(find(UINT32_MAX, &state) == NULL && find(qp->qp_num | 1U << 31, &state) == NULL && state == 99);
    MUST(find(qp->qp_num, &state) == qp && state <= IBV_QPS_ERR);
    note("softhca_why");
    note("softhca_note");
    MUST(why(NULL, refused) == NULL && why(qp, UINT64_MAX) == NULL);
    const char *sentence = why(qp, refused);
    MUST(sentence && strstr(sentence, "post_send"));
    static const uint32_t kinds[] = { 0, 1, 4, 5, 99, UINT32_MAX };
    char *text = malloc(5000);
    memset(text, 0xff, 4999);
    text[4999] = 0;
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        add(kinds[i], NULL);
        add(kinds[i], "");
        add(kinds[i], "\033[2J\n\t%s%n");
        add(kinds[i], text);
    }
    free(text);
}

static void queue_pairs(struct ibv_cq *cq)
{
    creating(cq);
    struct ibv_qp_init_attr *init = calloc(1, sizeof *init);
    init->send_cq = init->recv_cq = cq;
    init->qp_type = IBV_QPT_RC;
    init->cap = (struct ibv_qp_cap){ 8, 8, 2, 2, 64 };
    struct ibv_qp *a = CALL(ibv_create_qp)(pd, init), *b = ibv_create_qp(pd, init);
    MUST(a && b && CALL(ibv_qp_to_qp_ex)(a) == NULL && ibv_qp_to_qp_ex(NULL) == NULL);
    MUST(CALL(ibv_query_qp_data_in_order)(a, IBV_WR_RDMA_WRITE, 0) == 0 && ibv_query_qp_data_in_order(a, 99, UINT32_MAX) == 0);
    UNKNOWN(struct ibv_ece, ece);
    memset(ece, 0, sizeof *ece);
    (void)CALL(ibv_query_ece)(a, ece);
    ece->vendor_id = UINT32_MAX;
    (void)CALL(ibv_set_ece)(a, ece);
    free(ece);

    /* Only the attributes that the mask names count. The others are uninitialized. */
    UNKNOWN(struct ibv_qp_attr, attr);
    UNKNOWN(struct ibv_qp_init_attr, found);
    attr->qp_state = IBV_QPS_INIT;
    CODE(CALL(ibv_modify_qp)(a, attr, IBV_QP_STATE), EINVAL);
    attr->port_num = 1;
    attr->pkey_index = 0;
    attr->qp_access_flags = 0;
    int to_init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    attr->qp_access_flags = 0x7fffffff;
    MUST(ibv_modify_qp(a, attr, to_init) != 0);
    attr->qp_access_flags = 0;
    attr->pkey_index = 0xffff;
    CODE(ibv_modify_qp(a, attr, to_init), EINVAL);
    attr->pkey_index = 0;
    CODE(ibv_modify_qp(a, attr, to_init), 0);
    CODE(ibv_modify_qp(NULL, attr, to_init), EINVAL);
    CODE(ibv_modify_qp(a, NULL, to_init), EINVAL);
    static const int states[] = { -1, 7, 8, 255, 256, INT_MAX, INT_MIN };
    for (unsigned i = 0; i < sizeof states / sizeof *states; i++) {
        attr->qp_state = (enum ibv_qp_state)states[i];
        CODE(ibv_modify_qp(a, attr, IBV_QP_STATE), EINVAL);
    }
    struct ibv_qp_attr zero = { .qp_state = IBV_QPS_RTR };
    MUST(ibv_modify_qp(a, &zero, -1) != 0 && ibv_modify_qp(a, &zero, INT_MIN) != 0);
    CODE(CALL(ibv_query_qp)(a, attr, IBV_QP_STATE, found), 0);
    MUST(attr->qp_state == IBV_QPS_INIT && found->cap.max_send_wr >= 8 && found->qp_type == IBV_QPT_RC);
    CODE(ibv_query_qp(a, attr, -1, found), 0);
    CODE(ibv_query_qp(NULL, attr, 0, found), EINVAL);
    CODE(ibv_query_qp(a, NULL, 0, found), EINVAL);
    CODE(ibv_query_qp(a, attr, 0, NULL), EINVAL);
    attr->qp_state = IBV_QPS_RESET;
    CODE(ibv_modify_qp(a, attr, IBV_QP_STATE), 0);
    free(attr);
    free(found);

    connect_both(a, b);
    CODE(CALL(ibv_attach_mcast)(a, &own_gid, 0), EINVAL);
    CODE(CALL(ibv_detach_mcast)(a, &own_gid, 0), EINVAL);
    CODE(ibv_attach_mcast(NULL, &own_gid, 0), EINVAL);
    CODE(ibv_detach_mcast(a, NULL, 0), EINVAL);

    struct ibv_sge sges[3] = { { .addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey } };
    struct ibv_send_wr *bad = NULL, wr = { .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
    struct ibv_recv_wr *bad_recv = NULL, recv = { .sg_list = sges, .num_sge = 1 };
    static const int counts[] = { 3, -1, INT_MIN, INT_MAX, 1 << 20 };
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        recv.num_sge = wr.num_sge = counts[i];
        MUST(ibv_post_send(a, &wr, &bad) == EINVAL && bad == &wr && ibv_post_recv(b, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
    }
    wr.sg_list = recv.sg_list = NULL;
    wr.num_sge = recv.num_sge = 1;
    MUST(ibv_post_send(a, &wr, &bad) == EINVAL && ibv_post_recv(b, &recv, &bad_recv) == EINVAL);
    wr.sg_list = recv.sg_list = sges;
    static const int opcodes[] = { -1, 7, 10, 11, 12, 13, 14, 16, 99, INT_MAX, INT_MIN };
    for (unsigned i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        if (opcodes[i] == IBV_WR_LOCAL_INV || opcodes[i] == IBV_WR_SEND_WITH_INV || opcodes[i] == IBV_WR_BIND_MW) continue;
        wr.opcode = (enum ibv_wr_opcode)opcodes[i];
        MUST(ibv_post_send(a, &wr, &bad) != 0 && bad == &wr);
    }
    reasons(a, wr.wr_id);
    wr.opcode = IBV_WR_BIND_MW;
    MUST(ibv_post_send(a, &wr, &bad) != 0);
    CODE(ibv_post_send(a, NULL, &bad), 0);
    CODE(ibv_post_recv(a, NULL, &bad_recv), 0);

    /* Only the fields that the opcode needs are set, in uninitialized memory. */
    struct ibv_send_wr *spare = malloc(sizeof *spare);
    spare->wr_id = 9; spare->next = NULL; spare->sg_list = sges; spare->num_sge = 1; spare->opcode = IBV_WR_SEND;
    spare->send_flags = IBV_SEND_SIGNALED;
    struct ibv_recv_wr *spare_recv = malloc(sizeof *spare_recv);
    spare_recv->wr_id = 8; spare_recv->next = NULL; spare_recv->sg_list = sges; spare_recv->num_sge = 1;
    MUST(ibv_post_recv(b, spare_recv, &bad_recv) == 0 && ibv_post_send(a, spare, &bad) == 0);
    MUST(good_completion(cq).wr_id + good_completion(cq).wr_id == 17);
    spare->send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
    spare->num_sge = 0;
    spare_recv->num_sge = 0;
    MUST(ibv_post_recv(b, spare_recv, &bad_recv) == 0 && ibv_post_send(a, spare, &bad) == 0);
    (void)good_completion(cq); (void)good_completion(cq);
    free(spare);
    free(spare_recv);

    /* The armed CQ has reported it. */
    struct ibv_cq *which = NULL;
    void *what = NULL;
    CODE(ibv_get_cq_event(cq->channel, &which, &what), 0);
    MUST(which == cq && what == (void *)0x1234);
    ibv_ack_cq_events(cq, 1);

    CODE(CALL(ibv_destroy_qp)(a), 0);
    CODE(ibv_destroy_qp(b), 0);
    CODE(ibv_destroy_qp(NULL), EINVAL);
    free(init);
}

static void datagrams(struct ibv_cq *cq)
{
    struct ibv_qp *qp = ready_ud(make_qp(pd, cq, IBV_QPT_UD, 8), QKEY);
    union ibv_gid group = { .raw = { 0xff, 0x12, [15] = 9 } };
    CODE(ibv_attach_mcast(qp, &group, 0), 0);
    CODE(ibv_destroy_qp(qp), EBUSY);
    struct ibv_ah *ah = handle_to(pd, group);
    MUST(post_receive(qp, mr, (uintptr_t)bytes, 100) == 0);
    struct ibv_sge sge = { .addr = (uintptr_t)bytes + 200, .length = 10, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
                                    .wr.ud = { .ah = ah, .remote_qpn = 0xffffff, .remote_qkey = QKEY } };
    CODE(ibv_post_send(qp, &wr, &bad), 0);
    (void)good_completion(cq);
    (void)good_completion(cq);
    wr.wr.ud.ah = NULL;
    CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
    wr.wr.ud.ah = ah;
    wr.opcode = IBV_WR_RDMA_WRITE;
    CODE(ibv_post_send(qp, &wr, &bad), EINVAL);
    CODE(ibv_detach_mcast(qp, &group, 0), 0);
    CODE(ibv_detach_mcast(qp, &group, 0), EINVAL);
    CODE(ibv_destroy_ah(ah), 0);
    CODE(ibv_destroy_qp(qp), 0);
}

static void extended_posting(struct ibv_cq *cq)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 2, 2, 64 }, .pd = pd,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
    };
    struct ibv_qp *a = ibv_create_qp_ex(context, &init), *b = ibv_create_qp_ex(context, &init);
    MUST(a && b);
    connect_both(a, b);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a);
    MUST(ex);
    MUST(post_receive(b, mr, (uintptr_t)bytes, 100) == 0);
    ibv_wr_start(ex);
    ex->wr_id = 1;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(ex);
    ibv_wr_set_inline_data(ex, bytes, 10);
    CODE(ibv_wr_complete(ex), 0);
    (void)good_completion(cq); (void)good_completion(cq);
    /* Too many calls, in the wrong order. */
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_set_inline_data(ex, bytes, SIZE);
    MUST(ibv_wr_complete(ex) != 0);
    ibv_wr_start(ex);
    ibv_wr_set_sge(ex, mr->lkey, 0, 1);
    MUST(ibv_wr_complete(ex) != 0);
    ibv_wr_start(ex);
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)bytes);
    ibv_wr_set_sge_list(ex, 3, (struct ibv_sge[3]){ { 0, 0, 0 } });
    MUST(ibv_wr_complete(ex) != 0);
    ibv_wr_start(ex);
    ibv_wr_send(ex);
    ibv_wr_abort(ex);
    CODE(ibv_destroy_qp(a), 0);
    CODE(ibv_destroy_qp(b), 0);
}

static void events(void)
{
    fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
    UNKNOWN(struct ibv_async_event, event);
    MINUS(CALL(ibv_get_async_event)(context, event), EAGAIN);
    MINUS(ibv_get_async_event(NULL, event), EINVAL);
    MINUS(ibv_get_async_event(context, NULL), EINVAL);
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    /* A limit that is already reached. */
    struct ibv_srq_attr attr = { .srq_limit = 3 };
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr qp_init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { 4, 0, 1, 0, 0 } };
    struct ibv_qp *a = ibv_create_qp(pd, &qp_init), *b = ibv_create_qp(pd, &qp_init);
    MUST(srq && a && b);
    connect_both(a, b);
    struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey };
    struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
    for (int i = 0; i < 3; i++) MUST(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    MUST(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
    MUST(post(a, IBV_WR_SEND, mr, (uintptr_t)bytes, 8, 0, 0) == 0);
    (void)good_completion(cq); (void)good_completion(cq);
    double until = now() + LIMIT_SECONDS;
    for (int seen = 0; !seen;) {
        if (ibv_get_async_event(context, event) == 0) {
            seen = event->event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event->element.srq == srq;
            CALL(ibv_ack_async_event)(event);
        }
        MUST(now() < until);
    }
    event->event_type = (enum ibv_event_type)12345;
    ibv_ack_async_event(event);
    ibv_ack_async_event(NULL);
    free(event);
    CODE(ibv_destroy_qp(a), 0);
    CODE(ibv_destroy_qp(b), 0);
    CODE(ibv_destroy_srq(srq), 0);
    CODE(ibv_destroy_cq(cq), 0);
}

static void parents_and_xrc(struct ibv_cq *cq)
{
    struct ibv_td_init_attr td_init = { 0 };
    struct ibv_td *td = ibv_alloc_td(context, &td_init);
    MUST(td);
    struct ibv_parent_domain_init_attr init = { .pd = pd, .td = td };
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &init);
    MUST(parent && ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
    init.pd = NULL;
    NONE(ibv_alloc_parent_domain(context, &init), EINVAL);
    init.pd = pd;
    init.comp_mask = UINT32_MAX;
    NONE(ibv_alloc_parent_domain(context, &init), EOPNOTSUPP);
    struct ibv_qp *qp = make_qp(parent, cq, IBV_QPT_RC, 4);
    CODE(ibv_destroy_qp(qp), 0);
    CODE(ibv_destroy_qp(qp), ENOENT);
    CODE(ibv_dealloc_pd(parent), 0);
    CODE(ibv_dealloc_pd(parent), ENOENT);
    CODE(ibv_dealloc_td(td), 0);
    /* Not twice: the inline functions of verbs.h read the object themselves. */
    td_init.comp_mask = UINT32_MAX;
    MUST(ibv_alloc_td(context, &td_init) == NULL);

    struct ibv_xrcd_init_attr open = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
    struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &open);
    MUST(xrcd);
    open.fd = 12345;
    MUST(ibv_open_xrcd(context, &open) == NULL);
    open.comp_mask = UINT32_MAX;
    MUST(ibv_open_xrcd(context, &open) == NULL);
    struct ibv_srq_init_attr_ex srq_init = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
    struct ibv_srq *srq = ibv_create_srq_ex(context, &srq_init);
    uint32_t number = 0;
    MUST(srq && ibv_get_srq_num(srq, &number) == 0 && number != 0 && ibv_close_xrcd(xrcd) == EBUSY);
    srq_init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    MUST(ibv_create_srq_ex(context, &srq_init) == NULL);
    srq_init.comp_mask = UINT32_MAX;
    MUST(ibv_create_srq_ex(context, &srq_init) == NULL);
    struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
    struct ibv_qp *maker = ibv_create_qp_ex(context, &target);
    MUST(maker);
    struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE, .qp_num = maker->qp_num,
                                     .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV };
    struct ibv_qp *opened = ibv_open_qp(context, &attr);
    MUST(opened);
    attr.qp_num = UINT32_MAX;
    MUST(ibv_open_qp(context, &attr) == NULL);
    attr.comp_mask = 0;
    MUST(ibv_open_qp(context, &attr) == NULL);
    CODE(ibv_destroy_qp(opened), 0);
    CODE(ibv_destroy_qp(maker), 0);
    CODE(ibv_destroy_srq(srq), 0);
    CODE(ibv_close_xrcd(xrcd), 0);
}

/* Functions that only drivers call: with NULL and with random values, because the functions read
 * neither. */
static void private_ones(int count, char **names)
{
    typedef long (*any)(void *, void *, void *, void *, void *, void *);
    for (int i = 0; i < count; i++) {
        void *found = dlvsym(RTLD_DEFAULT, names[i], "IBVERBS_PRIVATE_65");
        if (!found) found = dlsym(RTLD_DEFAULT, names[i]);
        if (!found) FAIL("%s is not there", names[i]);
        note(names[i]);
        if (strcmp(names[i], "verbs_allow_disassociate_destroy") == 0) { MUST(*(uint8_t *)found <= 1); continue; }
        if (strcmp(names[i], "ibv_query_gid_type") == 0) {
            int (*query)(struct ibv_context *, uint8_t, unsigned, unsigned *) = (int (*)(struct ibv_context *, uint8_t, unsigned, unsigned *))found;
            unsigned type = 77;
            MUST(query(context, 1, 0, &type) == 0 && type <= 1 && query(context, 1, 60, &type) == 0);
            MUST(query(context, 9, 0, &type) == -1 && query(context, 1, UINT_MAX, &type) == -1);
            MUST(query(NULL, 1, 0, &type) == -1 && query(context, 1, 0, NULL) == -1);
            continue;
        }
        any function = (any)found;
        void *rubbish = (void *)-1;
        (void)function(NULL, NULL, NULL, NULL, NULL, NULL);
        errno = 0;
        long answer = function(rubbish, rubbish, rubbish, rubbish, rubbish, rubbish);
        if (strncmp(names[i], "ibv_cmd_", 8) == 0) MUST(((int)answer == EOPNOTSUPP || (int)answer == -1) && errno == EOPNOTSUPP);
    }
}

int main(int argc, char **argv)
{
    bytes = calloc(1, SIZE);
    texts();
    devices();
    files();
    queries();
    copies();
    domains();
    memory();
    device_memory();
    struct ibv_cq *cq = completions();
    struct ibv_comp_channel *channel = cq->channel;
    handles();
    shared_queue();
    queue_pairs(cq);
    datagrams(cq);
    extended_posting(cq);
    parents_and_xrc(cq);
    events();
    if (argc > 2 && strcmp(argv[1], "-l") == 0) private_ones(argc - 2, argv + 2);
    CODE(ibv_destroy_cq(cq), 0);
    CODE(CALL(ibv_destroy_comp_channel)(channel), 0);
    CODE(ibv_dereg_mr(mr), 0);
    CODE(ibv_dealloc_pd(pd), 0);
    CODE(ibv_close_device(context), 0);
    free(bytes);
    for (unsigned i = 0; i < calls; i++) printf("called %s\n", called[i]);
    return 0;
}
