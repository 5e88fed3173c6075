/* Calls the functions that libibverbs.so.1 has since rdma-core v59, with valid and with wrong
 * arguments. The header of Debian 12 does not have them, so they are declared here. Prints the
 * name of each called function, one per line. */
#include "common.h"

struct ibv_buf;
struct handle { struct ibv_context *context; };
struct hints { uint32_t comp_mask, cpu_id; uint8_t ph, tph_mem_type; };
struct region { size_t length; int access; uint64_t comp_mask, iova; void *addr; int fd; uint64_t fd_offset; struct handle *dmah; struct ibv_buf *buf; };
enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32, SIZE = 8192 };

extern struct handle *ibv_alloc_dmah(struct ibv_context *context, struct hints *attr);
extern int ibv_dealloc_dmah(struct handle *dmah);
extern struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct region *attr);
extern int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);
extern int ibv_query_port_speed(struct ibv_context *context, uint32_t port, uint64_t *speed);
extern void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
extern void ibv_free_buf(struct ibv_buf *buf);
extern struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access);
extern int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);
extern void *ibv_create_comp_cntr(struct ibv_context *context, void *attr);
extern int ibv_destroy_comp_cntr(void *counter);
extern int _ibv_query_comp_cntr_caps(struct ibv_context *context, void *caps, size_t size);
extern int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, void *counter, void *attr);
extern int ibv_inc_comp_cntr(void *counter, uint64_t amount);
extern int ibv_inc_err_comp_cntr(void *counter, uint64_t amount);
extern int ibv_set_comp_cntr(void *counter, uint64_t value);
extern int ibv_set_err_comp_cntr(void *counter, uint64_t value);
extern int ibv_read_comp_cntr(void *counter, uint64_t *value);
extern int ibv_read_err_comp_cntr(void *counter, uint64_t *value);

/* The function itself, and a line with its name. */
#define CALL(function) (printf("called %s\n", #function), (function))
#define NONE(call, why) do { errno = 0; MUST((call) == NULL); MUST(errno == (why)); } while (0)

int main(void)
{
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd);
    uint64_t speed = 0;
    /* The slowest link has 2.5 Gb/s. */
    MUST(CALL(ibv_query_port_speed)(context, 1, &speed) == 0 && speed >= 25);
    MUST(ibv_query_port_speed(context, 2, &speed) == EINVAL && ibv_query_port_speed(NULL, 1, &speed) == EINVAL);

    struct ibv_buf *buf = NULL;
    char *bytes = CALL(ibv_alloc_buf)(pd, SIZE, &buf);
    MUST(bytes && buf && (uintptr_t)bytes % 4096 == 0);
    memset(bytes, 1, SIZE);
    struct ibv_mr *mr = CALL(ibv_reg_buf_mr)(pd, buf, bytes + 4096, 4096, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr && mr->addr == bytes + 4096 && mr->length == 4096);
    MUST(ibv_dereg_mr(mr) == 0);
    NONE(ibv_reg_buf_mr(pd, buf, bytes, SIZE + 1, 0), EINVAL);
    NONE(ibv_reg_buf_mr(pd, NULL, bytes, 1, 0), EINVAL);
    MUST(CALL(ibv_export_buf_dmabuf_fd)(buf) == -1 && errno == ENODATA);

    /* Only the attributes that comp_mask names are read. */
    struct hints *none = malloc(sizeof *none);
    MUST(none);
    none->comp_mask = 0;
    struct handle *handle = CALL(ibv_alloc_dmah)(context, none);
    MUST(handle && handle->context == context);
    struct region *attr = malloc(sizeof *attr);
    MUST(attr);
    attr->length = 4096, attr->access = IBV_ACCESS_LOCAL_WRITE, attr->addr = bytes, attr->dmah = handle;
    attr->comp_mask = ADDR | DMAH;
    mr = CALL(ibv_reg_mr_ex)(pd, attr);
    MUST(mr && ibv_dealloc_dmah(handle) == EBUSY && ibv_dereg_mr(mr) == 0);
    attr->comp_mask = ADDR | FD | FD_OFFSET | IOVA;
    NONE(ibv_reg_mr_ex(pd, attr), EINVAL);
    attr->comp_mask = ADDR | 1ull << 40;
    NONE(ibv_reg_mr_ex(pd, attr), EOPNOTSUPP);
    attr->comp_mask = ADDR | BUF, attr->buf = buf;
    mr = ibv_reg_mr_ex(pd, attr);
    MUST(mr && ibv_dereg_mr(mr) == 0);
    free(attr);
    free(none);
    MUST(CALL(ibv_dealloc_dmah)(handle) == 0);
    CALL(ibv_free_buf)(buf);

    struct ibv_alloc_dm_attr wanted = { .length = 4096 };
    struct ibv_dm *dm = ibv_alloc_dm(context, &wanted);
    MUST(dm && CALL(ibv_dm_export_dmabuf_fd)(dm) == -1 && errno == EOPNOTSUPP && ibv_free_dm(dm) == 0);

    NONE(CALL(ibv_create_comp_cntr)(context, NULL), EOPNOTSUPP);
    MUST(CALL(_ibv_query_comp_cntr_caps)(context, NULL, 16) == EOPNOTSUPP && CALL(ibv_destroy_comp_cntr)(NULL) == EOPNOTSUPP);
    MUST(CALL(ibv_qp_attach_comp_cntr)(NULL, NULL, NULL) == EOPNOTSUPP);
    MUST(CALL(ibv_inc_comp_cntr)(NULL, 1) == EOPNOTSUPP && CALL(ibv_inc_err_comp_cntr)(NULL, 1) == EOPNOTSUPP);
    MUST(CALL(ibv_set_comp_cntr)(NULL, 1) == EOPNOTSUPP && CALL(ibv_set_err_comp_cntr)(NULL, 1) == EOPNOTSUPP);
    MUST(CALL(ibv_read_comp_cntr)(NULL, &speed) == EOPNOTSUPP && CALL(ibv_read_err_comp_cntr)(NULL, &speed) == EOPNOTSUPP);

    MUST(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
