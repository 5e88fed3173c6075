/* A multicast group of a partition: datagrams with different P_Keys of the sender, and queue pairs
 * of the members with different ones. The group is that of IPoIB for its partition.
 *   member: -p PORT -k KEY …      sender: -k KEY … HOST:PORT …
 * The first KEY is that of the group, with which the port joins at subnet administration. Each side
 * has a queue pair for each KEY. The sender sends COUNT datagrams with each, and then one more with
 * each key of a full member, so that a member that has got this one knows that nothing else comes.
 * A member prints the keys and numbers of the datagrams that each of its queue pairs has got. */
#include "common.h"
#include <endian.h>
#include <infiniband/umad.h>

enum { SIZE = 64, GRH = 40, QKEY = 0x0b1b, MOST = 4, COUNT = 5, SLOTS = 64, LAST = COUNT };
enum { SA = 3, SET = 2, MEMBER_RECORD = 0x38, MAD = 256, RECORD = 56 };

struct datagram { uint16_t key, number; };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *bytes;

static uint16_t index_of(uint16_t key)
{
    struct ibv_port_attr port;
    MUST(ibv_query_port(context, 1, &port) == 0);
    for (uint16_t i = 0; i < port.pkey_tbl_len; i++) {
        __be16 own;
        MUST(ibv_query_pkey(context, 1, i, &own) == 0);
        if (be16toh(own) == key) return i;
    }
    FAIL("the port has no P_Key 0x%04x", key);
}

static union ibv_gid group_of(uint16_t key)
{
    union ibv_gid gid;
    MUST(inet_pton(AF_INET6, "ff12:401b::ffff:ffff", &gid) == 1);
    uint16_t full = htobe16(key | 0x8000);
    memcpy(gid.raw + 4, &full, sizeof full);
    return gid;
}

/* Joins as a full member of the group (IBA 15.2.5.17), and returns its LID. The port stays a member
 * when the file is closed. */
static uint16_t join(uint16_t key)
{
    union ibv_gid own, group = group_of(key);
    MUST(ibv_query_gid(context, 1, 0, &own) == 0 && umad_init() == 0);
    umad_port_t port;
    MUST(umad_get_port(NULL, 0, &port) == 0);
    int file = umad_open_port(NULL, 0), agent = umad_register(file, SA, 2, 0, NULL), length = MAD;
    uint8_t *umad = umad_alloc(1, umad_size() + MAD), *mad = umad_get_mad(umad);
    MUST(file >= 0 && agent >= 0 && umad);
    uint16_t attribute = htobe16(MEMBER_RECORD), pkey = htobe16(key);
    /* MGID, PortGID, P_Key and JoinState. */
    uint64_t transaction = htobe64(1), components = htobe64(1 << 0 | 1 << 1 | 1 << 7 | 1 << 16);
    mad[0] = 1; mad[1] = SA; mad[2] = 2; mad[3] = SET;
    memcpy(mad + 8, &transaction, 8); memcpy(mad + 16, &attribute, 2); memcpy(mad + 48, &components, 8);
    memcpy(mad + RECORD, group.raw, 16); memcpy(mad + RECORD + 16, own.raw, 16); memcpy(mad + RECORD + 40, &pkey, 2);
    mad[RECORD + 48] = 1;
    umad_set_addr(umad, port.sm_lid, 1, port.sm_sl, 0x80010000);
    MUST(umad_send(file, agent, umad, MAD, 1000 * LIMIT_SECONDS, 0) == 0);
    MUST(umad_recv(file, umad, &length, -1) == agent && umad_status(umad) == 0);
    mad = umad_get_mad(umad);
    if (mad[4] || mad[5]) FAIL("the join is refused with status 0x%02x%02x", mad[4], mad[5]);
    uint16_t lid;
    memcpy(&lid, mad + RECORD + 36, 2);
    umad_release_port(&port);
    return be16toh(lid);
}

static struct ibv_qp *open_ud(uint16_t key, struct ibv_cq *cq)
{
    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_UD, SLOTS);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .pkey_index = index_of(key) };
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    MUST(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    return qp;
}

static void member(int port, const uint16_t *keys, int count)
{
    uint16_t lid = join(keys[0]);
    union ibv_gid group = group_of(keys[0]);
    struct ibv_cq *cqs[MOST];
    for (int i = 0; i < count; i++) {
        cqs[i] = ibv_create_cq(context, SLOTS, NULL, NULL, 0);
        MUST(cqs[i]);
        struct ibv_qp *qp = open_ud(keys[i], cqs[i]);
        for (int slot = 0; slot < SLOTS; slot++) {
            uint64_t at = (uintptr_t)bytes + (uint64_t)(i * SLOTS + slot) * (GRH + SIZE);
            struct ibv_sge sge = { .addr = at, .length = GRH + SIZE, .lkey = mr->lkey };
            struct ibv_recv_wr *bad, wr = { .wr_id = at, .sg_list = &sge, .num_sge = 1 };
            MUST(ibv_post_recv(qp, &wr, &bad) == 0);
        }
        MUST(ibv_attach_mcast(qp, &group, lid) == 0);
    }
    int fd = accept_one(port);
    char byte = 0;
    MUST(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1);
    for (int i = 0; i < count; i++) {
        printf("0x%04x:", keys[i]);
        for (;;) {
            struct ibv_wc wc = good_completion(cqs[i]);
            struct datagram datagram;
            memcpy(&datagram, (uint8_t *)(uintptr_t)wc.wr_id + GRH, sizeof datagram);
            MUST(wc.byte_len == GRH + SIZE);
            if (datagram.number == LAST && datagram.key == (keys[i] | 0x8000)) break;
            printf(" 0x%04x/%u", datagram.key, datagram.number);
        }
        struct ibv_wc wc;
        MUST(ibv_poll_cq(cqs[i], 1, &wc) == 0);
        printf("\n");
    }
}

static void sender(const uint16_t *keys, int count, int argc, char **argv)
{
    int fds[MOST], members = connect_all(argc, argv, fds, MOST);
    char byte = 0;
    for (int m = 0; m < members; m++) MUST(read(fds[m], &byte, 1) == 1);
    struct ibv_ah_attr way = { .is_global = 1, .port_num = 1, .dlid = join(keys[0]), .grh.dgid = group_of(keys[0]) };
    struct ibv_ah *to = ibv_create_ah(pd, &way);
    struct ibv_cq *cq = ibv_create_cq(context, SLOTS, NULL, NULL, 0);
    struct ibv_qp *qps[MOST];
    MUST(to && cq);
    for (int i = 0; i < count; i++) qps[i] = open_ud(keys[i], cq);
    for (int last = 0; last <= 1; last++) {
        for (int i = 0; i < count; i++) {
            if (last && !(keys[i] & 0x8000)) continue;
            for (int number = last ? LAST : 0; number < (last ? LAST + 1 : COUNT); number++) {
                struct datagram datagram = { .key = keys[i], .number = (uint16_t)number };
                memcpy(bytes, &datagram, sizeof datagram);
                struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = SIZE, .lkey = mr->lkey };
                struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
                                                .wr.ud = { .ah = to, .remote_qpn = 0xffffff, .remote_qkey = QKEY } };
                MUST(ibv_post_send(qps[i], &wr, &bad) == 0);
                good_completion(cq);
            }
        }
    }
    for (int m = 0; m < members; m++) MUST(write(fds[m], &byte, 1) == 1);
}

int main(int argc, char **argv)
{
    int port = 0, option, count = 0;
    uint16_t keys[MOST];
    while ((option = getopt(argc, argv, "p:k:")) != -1) {
        if (option == 'p') port = atoi(optarg);
        if (option == 'k') { MUST(count < MOST); keys[count++] = (uint16_t)strtoul(optarg, NULL, 0); }
    }
    MUST(count > 0);
    context = open_first();
    pd = ibv_alloc_pd(context);
    bytes = calloc(MOST * SLOTS, GRH + SIZE);
    MUST(pd && bytes);
    mr = ibv_reg_mr(pd, bytes, MOST * SLOTS * (GRH + SIZE), IBV_ACCESS_LOCAL_WRITE);
    MUST(mr);
    if (port) member(port, keys, count);
    else sender(keys, count, argc, argv);
    return 0;
}
