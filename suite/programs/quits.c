/* A program that replies to its messages and exits as soon as it has received the last one,
 * without a reply and without closing anything. Its peer's last send succeeds nevertheless.
 *   the one that exits: -p PORT      its peer: HOST:PORT */
#include "common.h"

enum { SIZE = 64, ROUNDS = 200 };

int main(int argc, char **argv)
{
    int option, port = 0;
    while ((option = getopt(argc, argv, "g:p:")) != -1) {
        if (option == 'g') gid_index = atoi(optarg);
        if (option == 'p') port = atoi(optarg);
    }
    int quits = port != 0, fd;
    if (quits) {
        fd = accept_one(port);
    } else {
        MUST(optind < argc);
        char *colon = strrchr(argv[optind], ':');
        MUST(colon);
        *colon = 0;
        fd = connect_one(argv[optind], atoi(colon + 1));
    }
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    static uint8_t bytes[2 * SIZE];
    struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq *sends = ibv_create_cq(context, 8, NULL, NULL, 0), *receives = ibv_create_cq(context, 8, NULL, NULL, 0);
    MUST(pd && mr && sends && receives);
    struct ibv_qp_init_attr init = { .send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    MUST(qp);
    uint64_t out = (uintptr_t)bytes, in = out + SIZE;
    struct address own = address_of(qp, NULL), peer;
    MUST(write(fd, &own, sizeof own) == sizeof own && read(fd, &peer, sizeof peer) == sizeof peer);
    connect_qp(qp, own, peer);
    MUST(post_receive(qp, mr, in, SIZE) == 0);
    char ready = 1;
    MUST(write(fd, &ready, 1) == 1 && read(fd, &ready, 1) == 1);
    for (int round = 0; round < ROUNDS; round++) {
        int last = round == ROUNDS - 1;
        if (!quits) {
            MUST(post(qp, IBV_WR_SEND, mr, out, SIZE, 0, 0) == 0);
            good_completion(sends);
        }
        if (!quits && last) break;
        good_completion(receives);
        if (quits && last) _exit(0);
        MUST(post_receive(qp, mr, in, SIZE) == 0);
        if (quits) {
            MUST(post(qp, IBV_WR_SEND, mr, out, SIZE, 0, 0) == 0);
            good_completion(sends);
        }
    }
    printf("%d messages arrived\n", ROUNDS);
    return 0;
}
