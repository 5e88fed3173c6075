/* Keys of memory windows as mlx5 and rxe give them: the lower 8 bits come from the request,
 * whatever they were before. The program binds a window of type 2 with the key that it was
 * allocated with, and again with this key after an invalidate. A window of type 1 gets its next key
 * with each bind. A second QP of the program writes through each key. */
#include "common.h"

enum { SIZE = 4096, HALF = SIZE / 2, WORD = 8 };

static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *near, *far;

/* The second QP writes 8 bytes through a key. */
static enum ibv_wc_status reach(uint32_t rkey)
{
    uint8_t *memory = mr->addr;
    static uint8_t value;
    memset(memory, ++value, WORD);
    uintptr_t from = (uintptr_t)memory, to = from + HALF;
    MUST(post(far, IBV_WR_RDMA_WRITE, mr, from, WORD, to, rkey) == 0);
    enum ibv_wc_status status = next_completion(cq).status;
    MUST((memcmp(memory, memory + HALF, WORD) == 0) == (status == IBV_WC_SUCCESS));
    return status;
}

/* A refused WRITE breaks the connection, so both QPs are connected again. */
static void must_not_reach(uint32_t rkey)
{
    MUST(reach(rkey) == IBV_WC_REM_ACCESS_ERR);
    struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
    MUST(ibv_modify_qp(near, &reset, IBV_QP_STATE) == 0);
    MUST(ibv_modify_qp(far, &reset, IBV_QP_STATE) == 0);
    connect_both(near, far);
}

static struct ibv_mw_bind_info half(void)
{
    uintptr_t from = (uintptr_t)mr->addr + HALF;
    return (struct ibv_mw_bind_info){ mr, from, HALF, IBV_ACCESS_REMOTE_WRITE };
}

static void open_with(struct ibv_mw *mw, uint32_t rkey)
{
    struct ibv_send_wr *bad, wr = { .wr_id = rkey, .opcode = IBV_WR_BIND_MW };
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = half();
    MUST(ibv_post_send(near, &wr, &bad) == 0);
    struct ibv_wc wc = good_completion(cq);
    MUST(wc.opcode == IBV_WC_BIND_MW && wc.wr_id == rkey);
    MUST(reach(rkey) == IBV_WC_SUCCESS);
}

static void invalidate(uint32_t rkey)
{
    struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey };
    wr.send_flags = IBV_SEND_SIGNALED;
    MUST(ibv_post_send(near, &wr, &bad) == 0);
    MUST(good_completion(cq).opcode == IBV_WC_LOCAL_INV);
    must_not_reach(rkey);
}

static void type_2(struct ibv_pd *pd)
{
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    MUST(mw);
    uint32_t allocated = mw->rkey, other = allocated ^ 0xa5;
    must_not_reach(allocated);
    open_with(mw, allocated);
    invalidate(allocated);
    open_with(mw, allocated);
    invalidate(allocated);
    open_with(mw, other);
    must_not_reach(allocated);
    invalidate(other);
    open_with(mw, ibv_inc_rkey(other));
    invalidate(ibv_inc_rkey(other));
    open_with(mw, allocated);
    MUST(ibv_dealloc_mw(mw) == 0);
    must_not_reach(allocated);
}

static void type_1(struct ibv_pd *pd)
{
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
    MUST(mw);
    for (uint64_t round = 1; round <= 300; round++) {
        struct ibv_mw_bind bind = { .wr_id = round, .bind_info = half() };
        bind.send_flags = IBV_SEND_SIGNALED;
        uint32_t before = mw->rkey;
        MUST(ibv_bind_mw(near, mw, &bind) == 0 && mw->rkey == ibv_inc_rkey(before));
        struct ibv_wc wc = good_completion(cq);
        MUST(wc.opcode == IBV_WC_BIND_MW && wc.wr_id == round);
        MUST(reach(mw->rkey) == IBV_WC_SUCCESS);
        if (round % 100 == 0) must_not_reach(before);
    }
    MUST(ibv_dealloc_mw(mw) == 0);
}

int main(void)
{
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    void *memory;
    MUST(pd && posix_memalign(&memory, SIZE, SIZE) == 0);
    memset(memory, 0, SIZE);
    mr = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    MUST(mr && cq);
    near = make_qp(pd, cq, IBV_QPT_RC, 16);
    far = make_qp(pd, cq, IBV_QPT_RC, 16);
    connect_both(near, far);
    type_2(pd);
    type_1(pd);
    MUST(ibv_destroy_qp(near) == 0 && ibv_destroy_qp(far) == 0);
    MUST(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);
    MUST(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
