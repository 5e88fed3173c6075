/* Sends each packet type of RC, UC and UD queue pairs once: messages of one, two and three
 * packets with every possible last packet, READs, atomics, and three refusals, each on its own
 * queue pair. Both sides print name, QPN and first PSN, for a check of the packets. `-p PORT -g
 * INDEX` serves; with a host it is the client. */
#include "common.h"

enum { SIZE = 65536, AREA = 4096, GRH = 40, QKEY = 0x4711, RECEIVES = 16, WINDOWS = 2 };
enum { MAIN, NOT_READY, NO_ACCESS, TOO_LONG, RCS };

struct all { struct address rc[RCS], uc, ud; uint32_t window[WINDOWS]; };

static struct ibv_mr *mr;
static struct ibv_cq *cq;

static void tell(const char *name, struct address own)
{
    printf("%s %u %u\n", name, own.qpn, own.psn);
}

/* A key for the first bytes of this process's memory that the peer may invalidate. */
static uint32_t window(struct ibv_pd *pd, struct ibv_qp *qp)
{
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    MUST(mw);
    struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)mr->addr, AREA, IBV_ACCESS_REMOTE_WRITE };
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
    good_completion(cq);
    return wr.bind_mw.rkey;
}

static enum ibv_wc_status ask(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t length, struct address peer, uint32_t flags)
{
    struct ibv_sge sge = { .addr = (uintptr_t)mr->addr + AREA, .length = length, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | flags };
    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = peer.buffer;
        wr.wr.atomic.rkey = (uint32_t)peer.rkey;
        wr.wr.atomic.compare_add = 5;
        wr.wr.atomic.swap = 11;
    } else {
        wr.wr.rdma.remote_addr = peer.buffer;
        wr.wr.rdma.rkey = (uint32_t)peer.rkey;
        wr.imm_data = htonl(0x11223344);
    }
    if (opcode == IBV_WR_SEND_WITH_INV) wr.invalidate_rkey = (uint32_t)peer.rkey;
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
    return next_completion(cq).status;
}

static void must_ask(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t length, struct address peer)
{
    enum ibv_wc_status status = ask(qp, opcode, length, peer, 0);
    if (status != IBV_WC_SUCCESS) FAIL("opcode %d of %u bytes: %s", opcode, length, ibv_wc_status_str(status));
}

static void sends_and_writes(struct ibv_qp *qp, struct address peer)
{
    must_ask(qp, IBV_WR_SEND, 2500, peer);
    must_ask(qp, IBV_WR_SEND, 0, peer);
    must_ask(qp, IBV_WR_SEND_WITH_IMM, 2501, peer);
    must_ask(qp, IBV_WR_SEND_WITH_IMM, 66, peer);
    must_ask(qp, IBV_WR_RDMA_WRITE, 3000, peer);
    must_ask(qp, IBV_WR_RDMA_WRITE, 7, peer);
    must_ask(qp, IBV_WR_RDMA_WRITE_WITH_IMM, 3001, peer);
    must_ask(qp, IBV_WR_RDMA_WRITE_WITH_IMM, 30, peer);
}

static void datagram(struct ibv_qp *qp, struct ibv_ah *ah, struct address peer, enum ibv_wr_opcode opcode, uint32_t length)
{
    struct ibv_sge sge = { .addr = (uintptr_t)mr->addr + AREA, .length = length, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
                                    .imm_data = htonl(0x55667788) };
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = peer.qpn;
    wr.wr.ud.remote_qkey = QKEY;
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
    good_completion(cq);
}

static void client(struct ibv_qp **rc, struct ibv_qp *uc, struct ibv_qp *ud, struct ibv_ah *ah, struct all peer)
{
    sends_and_writes(rc[MAIN], peer.rc[MAIN]);
    for (int i = 0; i < WINDOWS; i++) {
        struct address window = { .rkey = peer.window[i] };
        must_ask(rc[MAIN], IBV_WR_SEND_WITH_INV, i ? 5 : 2502, window);
    }
    must_ask(rc[MAIN], IBV_WR_RDMA_READ, 3003, peer.rc[MAIN]);
    must_ask(rc[MAIN], IBV_WR_RDMA_READ, 66, peer.rc[MAIN]);
    must_ask(rc[MAIN], IBV_WR_ATOMIC_CMP_AND_SWP, 8, peer.rc[MAIN]);
    must_ask(rc[MAIN], IBV_WR_ATOMIC_FETCH_AND_ADD, 8, peer.rc[MAIN]);
    MUST(ask(rc[MAIN], IBV_WR_SEND, 64, peer.rc[MAIN], IBV_SEND_SOLICITED) == IBV_WC_SUCCESS);
    MUST(ask(rc[NOT_READY], IBV_WR_SEND, 64, peer.rc[NOT_READY], 0) == IBV_WC_RNR_RETRY_EXC_ERR);
    struct address wrong = peer.rc[NO_ACCESS];
    wrong.rkey ^= 0x5500;
    MUST(ask(rc[NO_ACCESS], IBV_WR_RDMA_WRITE, 64, wrong, 0) == IBV_WC_REM_ACCESS_ERR);
    /* Linux's own driver says the latter. */
    enum ibv_wc_status status = ask(rc[TOO_LONG], IBV_WR_SEND, 64, peer.rc[TOO_LONG], 0);
    MUST(status == IBV_WC_REM_INV_REQ_ERR || status == IBV_WC_REM_OP_ERR);
    sends_and_writes(uc, peer.uc);
    datagram(ud, ah, peer.ud, IBV_WR_SEND, 256);
    datagram(ud, ah, peer.ud, IBV_WR_SEND_WITH_IMM, 33);
}

/* Receives of 4096 bytes, all into the same buffer, which is not checked. */
static void receives(struct ibv_qp *qp)
{
    for (int i = 0; i < RECEIVES; i++) MUST(post_receive(qp, mr, (uintptr_t)mr->addr + 2 * AREA, AREA) == 0);
}

int main(int argc, char **argv)
{
    int is_client, fd = rendezvous(argc, argv, &is_client);
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 256, NULL, NULL, 0);
    uint8_t *buffer;
    MUST(pd && cq && posix_memalign((void **)&buffer, 4096, SIZE) == 0);
    memset(buffer, 0xa5, SIZE);
    mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                      IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);
    MUST(mr);
    struct ibv_qp *rc[RCS], *uc = make_qp(pd, cq, IBV_QPT_UC, 32);
    struct ibv_qp *ud = ready_ud(make_qp(pd, cq, IBV_QPT_UD, 32), QKEY);
    struct all own = { .uc = address_of(uc, mr), .ud = address_of(ud, mr) }, peer;
    own.ud.psn = 0xfffffe; /* the one of ready_ud */
    for (int i = 0; i < RCS; i++) {
        rc[i] = make_qp(pd, cq, IBV_QPT_RC, 32);
        own.rc[i] = address_of(rc[i], mr);
    }
    own.rc[MAIN].psn = 0xfffffb; /* The PSNs wrap. */
    swap_bytes(fd, &own, &peer, sizeof own);
    for (int i = 0; i < RCS; i++) {
        rnr_retry = i == NOT_READY ? 0 : 7;
        connect_qp(rc[i], own.rc[i], peer.rc[i]);
    }
    connect_qp(uc, own.uc, peer.uc);
    struct ibv_ah *ah = handle_to(pd, peer.ud.gid);
    if (!is_client) {
        for (int i = 0; i < WINDOWS; i++) own.window[i] = window(pd, rc[MAIN]);
        receives(rc[MAIN]);
        receives(uc);
        receives(ud);
        MUST(post_receive(rc[TOO_LONG], mr, (uintptr_t)buffer, 16) == 0);
    }
    swap_bytes(fd, &own, &peer, sizeof own);
    tell("main", own.rc[MAIN]);
    tell("not-ready", own.rc[NOT_READY]);
    tell("no-access", own.rc[NO_ACCESS]);
    tell("too-long", own.rc[TOO_LONG]);
    tell("uc", own.uc);
    tell("ud", own.ud);
    if (is_client) client(rc, uc, ud, ah, peer);
    char done = 1;
    swap_bytes(fd, &done, &done, 1);
    return 0;
}
