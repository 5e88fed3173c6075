/* Events: a completion channel with solicited and unsolicited messages, edge-triggered epoll,
 * the limit of an SRQ, the last receive request of a queue pair in error, and a completion queue
 * that overruns. */
#include "common.h"
#include <fcntl.h>
#include <sys/epoll.h>

enum { SIZE = 4096 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint64_t at;

static int waits(int fd, int milliseconds)
{
    int epoll = epoll_create1(0);
    struct epoll_event event = { .events = EPOLLIN };
    MUST(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    int count = epoll_wait(epoll, &event, 1, milliseconds);
    close(epoll);
    return count == 1;
}

static void expect_event(enum ibv_event_type type, void *element)
{
    struct ibv_async_event event;
    for (;;) {
        MUST(waits(context->async_fd, LIMIT_SECONDS * 1000));
        MUST(ibv_get_async_event(context, &event) == 0);
        ibv_ack_async_event(&event);
        if (event.event_type == type) break;
        /* The first message on a queue pair that is not in RTS yet raises an event, too. */
        if (event.event_type != IBV_EVENT_COMM_EST && event.event_type != IBV_EVENT_QP_LAST_WQE_REACHED)
            FAIL("event %s instead of %s", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
    }
    MUST(event.element.qp == element);
}

static void send_one(struct ibv_qp *qp, struct ibv_cq *cq, unsigned flags)
{
    struct ibv_sge sge = { .addr = at, .length = 8, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | flags };
    MUST(ibv_post_send(qp, &wr, &bad) == 0);
    good_completion(cq);
}

static void channels(void)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    MUST(channel);
    struct ibv_cq *sent = ibv_create_cq(context, 16, NULL, NULL, 0), *got = ibv_create_cq(context, 16, (void *)77, channel, 0);
    MUST(sent && got);
    struct ibv_qp *a = make_qp(pd, sent, IBV_QPT_RC, 8), *b = make_qp(pd, got, IBV_QPT_RC, 8);
    connect_both(a, b);
    for (int i = 0; i < 6; i++) MUST(post_receive(b, mr, at, 8) == 0);

    MUST(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    struct ibv_cq *whose;
    void *cookie;
    MUST(ibv_get_cq_event(channel, &whose, &cookie) == -1 && errno == EAGAIN);
    MUST(ibv_req_notify_cq(got, 1) == 0);
    send_one(a, sent, 0);
    good_completion(got);
    MUST(!waits(channel->fd, 50));
    send_one(a, sent, IBV_SEND_SOLICITED);
    MUST(waits(channel->fd, LIMIT_SECONDS * 1000));
    MUST(ibv_get_cq_event(channel, &whose, &cookie) == 0 && whose == got && cookie == (void *)77);
    ibv_ack_cq_events(got, 1);
    good_completion(got);
    MUST(!waits(channel->fd, 0));

    /* One event per arming, however many completions there are. */
    MUST(ibv_req_notify_cq(got, 0) == 0);
    send_one(a, sent, 0);
    send_one(a, sent, 0);
    MUST(waits(channel->fd, LIMIT_SECONDS * 1000));
    MUST(ibv_get_cq_event(channel, &whose, &cookie) == 0);
    ibv_ack_cq_events(got, 1);
    MUST(ibv_get_cq_event(channel, &whose, &cookie) == -1 && errno == EAGAIN);

    MUST(ibv_destroy_comp_channel(channel) == EBUSY);
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(sent) == 0 && ibv_destroy_cq(got) == 0);
    MUST(ibv_destroy_comp_channel(channel) == 0);
}

static void shared_receive_queue(void)
{
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    MUST(srq);
    struct ibv_cq *sent = ibv_create_cq(context, 32, NULL, NULL, 0), *got = ibv_create_cq(context, 32, NULL, NULL, 0);
    struct ibv_qp_init_attr with = { .send_cq = got, .recv_cq = got, .srq = srq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
    struct ibv_qp *a = make_qp(pd, sent, IBV_QPT_RC, 8), *b = ibv_create_qp(pd, &with);
    MUST(b);
    connect_both(a, b);
    struct ibv_sge sge = { .addr = at, .length = 8, .lkey = mr->lkey };
    struct ibv_recv_wr *bad, wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 };
    for (int i = 0; i < 4; i++) MUST(ibv_post_srq_recv(srq, &wr, &bad) == 0);
    struct ibv_srq_attr attr = { .srq_limit = 3 };
    MUST(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
    send_one(a, sent, 0);
    MUST(good_completion(got).qp_num == b->qp_num);
    send_one(a, sent, 0);
    good_completion(got);
    expect_event(IBV_EVENT_SRQ_LIMIT_REACHED, srq);
    MUST(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 0);
    struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
    MUST(ibv_modify_qp(b, &error, IBV_QP_STATE) == 0);
    expect_event(IBV_EVENT_QP_LAST_WQE_REACHED, b);
    MUST(ibv_destroy_srq(srq) == EBUSY);
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_srq(srq) == 0);
    MUST(ibv_destroy_cq(sent) == 0 && ibv_destroy_cq(got) == 0);
}

static void overrun(void)
{
    struct ibv_cq *sent = ibv_create_cq(context, 64, NULL, NULL, 0), *got = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_qp *a = make_qp(pd, sent, IBV_QPT_RC, 16), *b = make_qp(pd, got, IBV_QPT_RC, 16);
    connect_both(a, b);
    int count = got->cqe + 1;
    MUST(count <= 16);
    for (int i = 0; i < count; i++) MUST(post_receive(b, mr, at, 8) == 0);
    for (int i = 0; i < count; i++) MUST(post(a, IBV_WR_SEND, mr, at, 8, 0, 0) == 0);
    expect_event(IBV_EVENT_CQ_ERR, got);
    /* All completions that had room, and an error completion in place of the one that had none. */
    for (int i = 1; i < count; i++) MUST(next_completion(got).status == IBV_WC_SUCCESS);
    MUST(next_completion(got).status == IBV_WC_GENERAL_ERR);
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(sent) == 0 && ibv_destroy_cq(got) == 0);
}

int main(void)
{
    context = open_first();
    pd = ibv_alloc_pd(context);
    void *buffer = calloc(1, SIZE);
    at = (uintptr_t)buffer;
    mr = ibv_reg_mr(pd, buffer, SIZE, IBV_ACCESS_LOCAL_WRITE);
    MUST(pd && mr);
    channels();
    shared_receive_queue();
    overrun();
    MUST(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    printf("every event came once, and to the right one\n");
    return 0;
}
