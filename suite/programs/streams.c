/* What the verbs do on two connected queue pairs of iWARP, both of this process.
 *   streams                         lists the rows
 *   streams ROW                     carries a row out
 *   streams -a ADDRESS -p PORT ROW  with a peer that listens there
 * A row whose connection ends exits with 2, so that softhca says why. The near side has accepted: it has
 * the memory, the windows and the receive requests. The far side has called. */
#include "cm.h"

enum { SIZE = 65536, WORD = 8, DEPTH = 8, SGES = 2, ENDED = 2, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };

/* The memory of the near side, and of the far side. */
static _Alignas(4096) uint64_t near_words[SIZE / WORD], far_words[SIZE / WORD];
static struct rdma_event_channel *channel;
static struct rdma_cm_id *near, *far;
static struct ibv_mr *near_mr, *far_mr;

static void create_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { DEPTH, DEPTH, SGES, SGES, 0 } };
    MUST(rdma_create_qp(id, NULL, &init) == 0);
}

static struct ibv_mr *registered(struct ibv_pd *pd, void *words, int rights)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, words, SIZE, rights);
    MUST(mr);
    return mr;
}

static const struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };

static void calls(void)
{
    struct rdma_conn_param own = param;
    far = routed(channel);
    create_qp(far);
    MUST(rdma_connect(far, &own) == 0);
    far_mr = registered(far->qp->pd, far_words, ALL);
}

/* Connects two queue pairs of this process, or one with a peer that listens at the port. */
static void connects(void)
{
    channel = rdma_create_event_channel();
    MUST(channel);
    if (strcmp(port, "0") == 0) {
        char number[8];
        struct rdma_cm_id *listens = listener(channel, 1);
        snprintf(number, sizeof number, "%u", ntohs(rdma_get_src_port(listens)));
        port = number;
        calls();
        struct rdma_conn_param own = param;
        struct rdma_cm_event *event = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
        near = event->id;
        create_qp(near);
        MUST(rdma_accept(near, &own) == 0);
        rdma_ack_cm_event(event);
        rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
        near_mr = registered(near->qp->pd, near_words, ALL | IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_ATOMIC);
    } else {
        calls();
    }
    rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_ESTABLISHED));
}

/* Both sides are told of the end. */
static void both_end(void)
{
    for (int i = 0; i < 2; i++) rdma_ack_cm_event(expect(channel, RDMA_CM_EVENT_DISCONNECTED));
}

static void must_complete(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
    struct ibv_wc wc = next_completion(cq);
    if (wc.wr_id != wr_id || wc.status != status)
        FAIL("completion of %lu: %s", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
}

/* The next asynchronous event, which is of this queue pair. */
static void must_raise(struct ibv_qp *qp, enum ibv_event_type type)
{
    struct pollfd ready = { .fd = qp->context->async_fd, .events = POLLIN };
    struct ibv_async_event event;
    MUST(poll(&ready, 1, LIMIT_SECONDS * 1000) == 1 && ibv_get_async_event(qp->context, &event) == 0);
    if (event.event_type != type || event.element.qp != qp) FAIL("event: %s", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
}

static void no_more_events(void)
{
    struct pollfd ready = { .fd = far->verbs->async_fd, .events = POLLIN };
    MUST(poll(&ready, 1, 0) == 0);
}

static void receive(struct rdma_cm_id *id, struct ibv_mr *mr)
{
    MUST(post_receive(id->qp, mr, (uintptr_t)mr->addr + SIZE / 2, WORD) == 0);
}

/* Returns the completion of a SEND of the far side, which the near side receives. */
static struct ibv_wc send_to_near(enum ibv_wr_opcode opcode, uint32_t invalidates)
{
    struct ibv_send_wr *bad, wr = { .opcode = opcode, .invalidate_rkey = invalidates, .send_flags = IBV_SEND_SIGNALED };
    receive(near, near_mr);
    MUST(ibv_post_send(far->qp, &wr, &bad) == 0);
    good_completion(far->send_cq);
    return next_completion(near->recv_cq);
}

static void write_word(uint32_t rkey)
{
    MUST(post(far->qp, IBV_WR_RDMA_WRITE, far_mr, (uintptr_t)far_words, WORD, (uintptr_t)near_words, rkey) == 0);
    /* The bytes are TCP's. */
    good_completion(far->send_cq);
}

/* The far side reaches the first word with a key. A SEND behind the WRITE says that it has arrived. */
static void must_reach(uint32_t rkey)
{
    static uint64_t value = 0x1234567890abcdef;
    far_words[0] = ++value;
    write_word(rkey);
    MUST(send_to_near(IBV_WR_SEND, 0).status == IBV_WC_SUCCESS && near_words[0] == value);
    far_words[0] = 0;
    MUST(post(far->qp, IBV_WR_RDMA_READ, far_mr, (uintptr_t)far_words, WORD, (uintptr_t)near_words, rkey) == 0);
    MUST(good_completion(far->send_cq).opcode == IBV_WC_RDMA_READ && far_words[0] == value);
}

/* The far side does not reach the memory, and its connection ends. */
static int must_not_reach(uint32_t rkey)
{
    near_words[0] = 1;
    far_words[0] = 2;
    write_word(rkey);
    both_end();
    must_raise(near->qp, IBV_EVENT_QP_ACCESS_ERR);
    no_more_events();
    MUST(near_words[0] == 1);
    return ENDED;
}

static struct ibv_mw *window_of(struct ibv_pd *pd)
{
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    MUST(mw);
    return mw;
}

static struct ibv_mw_bind_info first_words(struct ibv_mr *mr)
{
    return (struct ibv_mw_bind_info){ mr, (uintptr_t)mr->addr, 64, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
}

static uint32_t bound(struct rdma_cm_id *id, struct ibv_mr *mr)
{
    struct ibv_mw *mw = window_of(id->qp->pd);
    struct ibv_send_wr *bad, wr = { .wr_id = 7, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    wr.bind_mw.bind_info = first_words(mr);
    MUST(ibv_post_send(id->qp, &wr, &bad) == 0);
    struct ibv_wc wc = good_completion(id->send_cq);
    MUST(wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 7);
    return wr.bind_mw.rkey;
}

static int bind_2(void)
{
    must_reach(bound(near, near_mr));
    return 0;
}

static int bind_1(void)
{
    struct ibv_mw *mw = ibv_alloc_mw(near->qp->pd, IBV_MW_TYPE_1);
    MUST(mw);
    uint32_t old = mw->rkey;
    for (int round = 0; round < 3; round++) {
        struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED, .bind_info = first_words(near_mr) };
        old = mw->rkey;
        MUST(ibv_bind_mw(near->qp, mw, &bind) == 0);
        MUST(good_completion(near->send_cq).opcode == IBV_WC_BIND_MW);
        must_reach(mw->rkey);
    }
    return must_not_reach(old);
}

static int bind_bounds(void)
{
    uint32_t rkey = bound(near, near_mr);
    MUST(post(far->qp, IBV_WR_RDMA_WRITE, far_mr, (uintptr_t)far_words, WORD, (uintptr_t)near_words + 60, rkey) == 0);
    good_completion(far->send_cq);
    both_end();
    must_raise(near->qp, IBV_EVENT_QP_ACCESS_ERR);
    return ENDED;
}

static int local_inv(void)
{
    uint32_t rkey = bound(near, near_mr);
    must_reach(rkey);
    struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = rkey, .send_flags = IBV_SEND_SIGNALED };
    MUST(ibv_post_send(near->qp, &wr, &bad) == 0);
    MUST(good_completion(near->send_cq).opcode == IBV_WC_LOCAL_INV);
    return must_not_reach(rkey);
}

/* A key that exists and is no window. */
static int local_inv_mr(void)
{
    struct ibv_send_wr *bad, wr = { .wr_id = 9, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED };
    wr.invalidate_rkey = near_mr->rkey;
    MUST(ibv_post_send(near->qp, &wr, &bad) == 0);
    must_complete(near->send_cq, 9, IBV_WC_MW_BIND_ERR);
    both_end();
    return ENDED;
}

static int send_inv(void)
{
    uint32_t rkey = bound(near, near_mr);
    must_reach(rkey);
    struct ibv_wc wc = send_to_near(IBV_WR_SEND_WITH_INV, rkey);
    MUST(wc.status == IBV_WC_SUCCESS && wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == rkey);
    return must_not_reach(rkey);
}

static int must_not_invalidate(uint32_t rkey)
{
    MUST(send_to_near(IBV_WR_SEND_WITH_INV, rkey).status == IBV_WC_REM_INV_REQ_ERR);
    both_end();
    must_raise(near->qp, IBV_EVENT_QP_REQ_ERR);
    no_more_events();
    return ENDED;
}

static int send_inv_unknown(void)
{
    return must_not_invalidate(0x4242);
}

static int send_inv_mr(void)
{
    return must_not_invalidate(near_mr->rkey);
}

/* A window that the far side's own queue pair has bound. */
static int send_inv_foreign(void)
{
    struct ibv_mr *mr = registered(far->qp->pd, far_words, ALL | IBV_ACCESS_MW_BIND);
    return must_not_invalidate(bound(far, mr));
}

static int send_inv_domain(void)
{
    struct ibv_pd *other = ibv_alloc_pd(near->verbs);
    MUST(other);
    return must_not_invalidate(window_of(other)->rkey);
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state, int mask)
{
    struct ibv_qp_attr attr = { .qp_state = state, .en_sqd_async_notify = 1 };
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    MUST(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
    return attr.qp_state;
}

/* SQD closes the connection. There is no way back to RTS, whether the peer closes its side or not. */
static int sqd(void)
{
    if (near) receive(near, near_mr);
    MUST(modify(far->qp, IBV_QPS_SQD, IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
    must_raise(far->qp, IBV_EVENT_SQ_DRAINED);
    MUST(modify(far->qp, IBV_QPS_RTS, 0) == EINVAL);
    no_more_events();
    if (!near) return ENDED;
    both_end();
    must_complete(near->recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
    MUST(state_of(near->qp) == IBV_QPS_ERR && state_of(far->qp) == IBV_QPS_ERR);
    return ENDED;
}

/* The second of four READs is refused. */
static int read_refused(void)
{
    for (uint64_t nth = 0; nth < 4; nth++) {
        struct ibv_sge sge = { (uintptr_t)far_words, WORD, far_mr->lkey };
        struct ibv_send_wr *bad, wr = { .wr_id = nth, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };
        wr.send_flags = IBV_SEND_SIGNALED;
        wr.wr.rdma.remote_addr = (uintptr_t)near_words;
        wr.wr.rdma.rkey = nth == 1 ? 0x4242 : near_mr->rkey;
        MUST(ibv_post_send(far->qp, &wr, &bad) == 0);
    }
    must_complete(far->send_cq, 0, IBV_WC_SUCCESS);
    must_complete(far->send_cq, 1, IBV_WC_REM_ACCESS_ERR);
    must_complete(far->send_cq, 2, IBV_WC_WR_FLUSH_ERR);
    must_complete(far->send_cq, 3, IBV_WC_WR_FLUSH_ERR);
    both_end();
    must_raise(near->qp, IBV_EVENT_QP_REQ_ERR);
    no_more_events();
    return ENDED;
}

/* A request with too many elements is refused, and the next one is carried out. */
static int sges(void)
{
    struct ibv_sge list[SGES + 1];
    for (int i = 0; i <= SGES; i++) list[i] = (struct ibv_sge){ (uintptr_t)(far_words + i), WORD, far_mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = list, .num_sge = 2, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED };
    wr.wr.rdma.remote_addr = (uintptr_t)near_words;
    wr.wr.rdma.rkey = near_mr->rkey;
    MUST(ibv_post_send(far->qp, &wr, &bad) == EINVAL && bad == &wr);
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.num_sge = SGES + 1;
    MUST(ibv_post_send(far->qp, &wr, &bad) == EINVAL && bad == &wr);
    struct ibv_recv_wr *bad_receive, receives = { .sg_list = list, .num_sge = SGES + 1 };
    MUST(ibv_post_recv(far->qp, &receives, &bad_receive) == EINVAL && bad_receive == &receives);
    far_words[0] = 3;
    far_words[1] = 4;
    wr.num_sge = SGES;
    MUST(ibv_post_send(far->qp, &wr, &bad) == 0);
    good_completion(far->send_cq);
    MUST(send_to_near(IBV_WR_SEND, 0).status == IBV_WC_SUCCESS && near_words[0] == 3 && near_words[1] == 4);
    return 0;
}

static int no_receive(void)
{
    receive(far, far_mr);
    MUST(post(far->qp, IBV_WR_SEND, far_mr, (uintptr_t)far_words, WORD, 0, 0) == 0);
    good_completion(far->send_cq);
    both_end();
    must_raise(near->qp, IBV_EVENT_QP_FATAL);
    no_more_events();
    must_complete(far->recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
    MUST(state_of(near->qp) == IBV_QPS_ERR && state_of(far->qp) == IBV_QPS_ERR);
    MUST(post(far->qp, IBV_WR_SEND, far_mr, (uintptr_t)far_words, WORD, 0, 0) == 0);
    must_complete(far->send_cq, 1000 + IBV_WR_SEND, IBV_WC_WR_FLUSH_ERR);
    return ENDED;
}

/* The compare value of `post` is 5, its swap value is 11, and it adds 5. */
static int atomic(enum ibv_wr_opcode opcode, uint32_t rkey, uintptr_t at)
{
    return post(far->qp, opcode, far_mr, (uintptr_t)far_words, WORD, at, rkey);
}

static void must_find(enum ibv_wr_opcode opcode, uint64_t before, uint64_t after)
{
    MUST(atomic(opcode, near_mr->rkey, (uintptr_t)near_words) == 0);
    good_completion(far->send_cq);
    MUST(far_words[0] == before && near_words[0] == after);
}

static int atomics(void)
{
    near_words[0] = 0;
    must_find(IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 5);
    must_find(IBV_WR_ATOMIC_CMP_AND_SWP, 5, 11);
    must_find(IBV_WR_ATOMIC_CMP_AND_SWP, 11, 11);
    near_words[0] = UINT64_MAX;
    must_find(IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX, 4);
    return 0;
}

static int must_not_add(uint32_t rkey, uintptr_t at, enum ibv_wc_status status)
{
    near_words[0] = 1;
    MUST(atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, at) == 0);
    must_complete(far->send_cq, 1000 + IBV_WR_ATOMIC_FETCH_AND_ADD, status);
    both_end();
    must_raise(near->qp, status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_REQ_ERR : IBV_EVENT_QP_FATAL);
    no_more_events();
    MUST(near_words[0] == 1);
    return ENDED;
}

static int atomic_right(void)
{
    return must_not_add(registered(near->qp->pd, near_words, ALL)->rkey, (uintptr_t)near_words, IBV_WC_REM_ACCESS_ERR);
}

static int atomic_bounds(void)
{
    return must_not_add(near_mr->rkey, (uintptr_t)near_words + SIZE, IBV_WC_REM_ACCESS_ERR);
}

static int atomic_alignment(void)
{
    return must_not_add(near_mr->rkey, (uintptr_t)near_words + 4, IBV_WC_REM_OP_ERR);
}

/* Only SENDs that ask for it raise an event. The last one also invalidates a window. */
static int solicited(void)
{
    struct pollfd ready = { .fd = near->recv_cq_channel->fd, .events = POLLIN };
    struct ibv_cq *cq;
    void *context;
    for (int round = 0; round < 3; round++) {
        struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
        if (round > 0) wr.send_flags |= IBV_SEND_SOLICITED;
        if (round > 1) {
            wr.opcode = IBV_WR_SEND_WITH_INV;
            wr.invalidate_rkey = bound(near, near_mr);
        }
        MUST(ibv_req_notify_cq(near->recv_cq, 1) == 0);
        receive(near, near_mr);
        MUST(ibv_post_send(far->qp, &wr, &bad) == 0);
        good_completion(far->send_cq);
        MUST(good_completion(near->recv_cq).invalidated_rkey == wr.invalidate_rkey || round < 2);
        MUST(poll(&ready, 1, round ? LIMIT_SECONDS * 1000 : 0) == (round > 0));
        if (round == 0) continue;
        MUST(ibv_get_cq_event(near->recv_cq_channel, &cq, &context) == 0 && cq == near->recv_cq);
        ibv_ack_cq_events(cq, 1);
    }
    return 0;
}

/* The memory that a READ fills needs no right of the peer. */
static int read_local(void)
{
    struct ibv_mr *sink = registered(far->qp->pd, far_words, IBV_ACCESS_LOCAL_WRITE);
    near_words[0] = 47;
    MUST(post(far->qp, IBV_WR_RDMA_READ, sink, (uintptr_t)far_words, WORD, (uintptr_t)near_words, near_mr->rkey) == 0);
    good_completion(far->send_cq);
    MUST(far_words[0] == 47);
    return 0;
}

/* Immediate data, other services, address handles, and a queue pair that nobody has connected. */
static int refused(void)
{
    struct ibv_send_wr *bad, wr = { .send_flags = IBV_SEND_SIGNALED };
    wr.wr.rdma.rkey = near_mr->rkey;
    for (int i = 0; i < 2; i++) {
        wr.opcode = i ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM;
        bad = NULL;
        MUST(ibv_post_send(far->qp, &wr, &bad) == EINVAL && bad == &wr);
    }
    struct ibv_ah_attr ah = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 1 } };
    MUST(ibv_query_gid(far->verbs, 1, 0, &ah.grh.dgid) == 0 && !ibv_create_ah(far->qp->pd, &ah));
    const enum ibv_qp_type types[] = { IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct ibv_qp_init_attr init = { .send_cq = far->send_cq, .recv_cq = far->recv_cq, .qp_type = types[i],
                                         .cap = { .max_send_wr = 1, .max_send_sge = 1 } };
        MUST(!ibv_create_qp(far->qp->pd, &init) && errno != 0);
    }
    struct ibv_qp *own = make_qp(far->qp->pd, far->send_cq, IBV_QPT_RC, 2);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    MUST(ibv_modify_qp(own, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 1, .ah_attr = ah };
    MUST(ibv_modify_qp(own, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7 };
    MUST(ibv_modify_qp(own, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == EINVAL);
    MUST(state_of(own) == IBV_QPS_RTR && ibv_destroy_qp(own) == 0);
    return 0;
}

static const struct { const char *name; int (*run)(void); } rows[] = {
    { "bind-1", bind_1 }, { "bind-2", bind_2 }, { "bind-bounds", bind_bounds },
    { "local-inv", local_inv }, { "local-inv-mr", local_inv_mr },
    { "send-inv", send_inv }, { "send-inv-unknown", send_inv_unknown }, { "send-inv-mr", send_inv_mr },
    { "send-inv-foreign", send_inv_foreign }, { "send-inv-domain", send_inv_domain },
    { "sqd", sqd }, { "read-refused", read_refused }, { "sges", sges }, { "no-receive", no_receive },
    { "atomics", atomics }, { "atomic-right", atomic_right }, { "atomic-bounds", atomic_bounds },
    { "atomic-alignment", atomic_alignment }, { "solicited", solicited }, { "read-local", read_local },
    { "refused", refused },
};

int main(int argc, char **argv)
{
    int option;
    port = "0";
    while ((option = getopt(argc, argv, "a:p:")) != -1) {
        if (option == 'a') host = optarg;
        if (option == 'p') port = optarg;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (optind == argc) puts(rows[i].name);
        else if (strcmp(argv[optind], rows[i].name) == 0) {
            connects();
            return rows[i].run();
        }
    }
    return optind == argc ? 0 : 1;
}
