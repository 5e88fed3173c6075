/* Calls every rsocket function that librdmacm.so.1 exports, with valid arguments and with those
 * of a broken program: descriptors that are closed, are no rsockets or are in the wrong state,
 * addresses that are too short or have no family, unknown options, endless vectors. Prints the
 * name of each called function, one per line. It connects to itself over the loopback address. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/uio.h>

extern int repoll_create(int) __attribute__((weak));
extern int repoll_ctl(int, int, int, struct epoll_event *) __attribute__((weak));
extern int repoll_wait(int, struct epoll_event *, int, int) __attribute__((weak));

enum { SIZE = 20000 };

static const char *called[64];
static unsigned calls;

static void note(const char *name)
{
    for (unsigned i = 0; i < calls; i++) if (strcmp(called[i], name) == 0) return;
    MUST(calls < sizeof called / sizeof *called);
    called[calls++] = name;
}

#define CALL(function) (note(#function), (function))
/* A call that returns -1 and sets errno. */
#define MINUS(call) do { errno = 0; MUST((long)(call) == -1); MUST(errno > 0); } while (0)

static struct sockaddr_in own(in_port_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

/* All functions that take a descriptor, with one that is no rsocket. */
static void strange(int fd)
{
    char bytes[16] = "";
    struct sockaddr_in at = own(0);
    socklen_t length = sizeof at;
    int value = 0;
    struct iovec part = { bytes, sizeof bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    MINUS(CALL(rbind)(fd, (struct sockaddr *)&at, sizeof at));
    MINUS(CALL(rlisten)(fd, 1));
    MINUS(CALL(raccept)(fd, (struct sockaddr *)&at, &length));
    MINUS(raccept(fd, NULL, NULL));
    MINUS(CALL(rconnect)(fd, (struct sockaddr *)&at, sizeof at));
    MINUS(CALL(rshutdown)(fd, SHUT_RDWR));
    MINUS(CALL(rrecv)(fd, bytes, sizeof bytes, 0));
    MINUS(CALL(rrecvfrom)(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&at, &length));
    MINUS(CALL(rrecvmsg)(fd, &message, 0));
    MINUS(CALL(rsend)(fd, bytes, sizeof bytes, 0));
    MINUS(CALL(rsendto)(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&at, sizeof at));
    MINUS(CALL(rsendmsg)(fd, &message, 0));
    MINUS(CALL(rread)(fd, bytes, sizeof bytes));
    MINUS(CALL(rreadv)(fd, &part, 1));
    MINUS(CALL(rwrite)(fd, bytes, sizeof bytes));
    MINUS(CALL(rwritev)(fd, &part, 1));
    MINUS(CALL(rgetpeername)(fd, (struct sockaddr *)&at, &length));
    MINUS(CALL(rgetsockname)(fd, (struct sockaddr *)&at, &length));
    length = sizeof value;
    MINUS(CALL(rsetsockopt)(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value));
    MINUS(CALL(rgetsockopt)(fd, SOL_SOCKET, SO_ERROR, &value, &length));
    MINUS(CALL(rfcntl)(fd, F_GETFL));
    MINUS(CALL(riomap)(fd, bytes, sizeof bytes, PROT_WRITE, 0, -1));
    MINUS(CALL(riounmap)(fd, bytes, sizeof bytes));
    MINUS(CALL(riowrite)(fd, bytes, sizeof bytes, 0, 0));
    MINUS(CALL(rclose)(fd));
}

/* Sockets in the wrong state, and objects that do not exist. */
static void early(void)
{
    MINUS(CALL(rsocket)(12345, SOCK_STREAM, 0));
    MINUS(rsocket(AF_INET, SOCK_RAW, 0));
    MINUS(rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    MINUS(rsocket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
    int fd = rsocket(AF_INET, SOCK_STREAM, 0), value = 1;
    MUST(fd >= 0);
    char bytes[64] = "";
    struct iovec part = { bytes, sizeof bytes };
    struct sockaddr_in at = own(0);
    struct sockaddr odd = { .sa_family = 77 };
    socklen_t length = sizeof at;
    MINUS(rbind(fd, (struct sockaddr *)&at, 3));
    MINUS(rbind(fd, &odd, sizeof odd));
    MINUS(rconnect(fd, &odd, sizeof odd));
    MINUS(rconnect(fd, (struct sockaddr *)&at, 3));
    MINUS(rsend(fd, bytes, sizeof bytes, 0));
    MINUS(rrecv(fd, bytes, sizeof bytes, 0));
    MINUS(rreadv(fd, &part, 1));
    MINUS(rwritev(fd, &part, 1));
    MINUS(rgetpeername(fd, (struct sockaddr *)&at, &length));
    MINUS(riowrite(fd, bytes, sizeof bytes, 0, 0));
    static const int options[][2] = {
        { SOL_SOCKET, SO_SNDBUF }, { SOL_SOCKET, SO_RCVBUF }, { SOL_SOCKET, SO_REUSEADDR }, { SOL_SOCKET, SO_KEEPALIVE },
        { SOL_SOCKET, SO_LINGER }, { SOL_SOCKET, SO_OOBINLINE }, { SOL_SOCKET, SO_ERROR }, { IPPROTO_TCP, TCP_NODELAY },
        { IPPROTO_TCP, TCP_MAXSEG }, { IPPROTO_TCP, TCP_KEEPIDLE }, { IPPROTO_IPV6, IPV6_V6ONLY }, { SOL_RDMA, RDMA_SQSIZE },
        { SOL_RDMA, RDMA_RQSIZE }, { SOL_RDMA, RDMA_INLINE }, { SOL_RDMA, RDMA_IOMAPSIZE }, { SOL_RDMA, RDMA_ROUTE },
        { SOL_RDMA, 99 }, { 9999, 1 }, { SOL_SOCKET, -1 },
    };
    for (unsigned i = 0; i < sizeof options / sizeof *options; i++) {
        uint8_t answer[256];
        static const socklen_t lengths[] = { 0, 1, 3, 4, 8, 256 };
        for (unsigned j = 0; j < sizeof lengths / sizeof *lengths; j++) {
            length = lengths[j];
            (void)rgetsockopt(fd, options[i][0], options[i][1], answer, &length);
        }
        (void)rsetsockopt(fd, options[i][0], options[i][1], &value, 0);
        struct linger linger = { 0, 0 };
        (void)rsetsockopt(fd, options[i][0], options[i][1], &linger, sizeof linger);
    }
    MINUS(rsetsockopt(fd, 9999, 1, &value, sizeof value));
    length = sizeof value;
    MINUS(rgetsockopt(fd, 9999, 1, &value, &length));
    MINUS(rfcntl(fd, 99999));
    MUST(rfcntl(fd, F_GETFL) >= 0 && rfcntl(fd, F_SETFL, O_NONBLOCK) == 0 && rfcntl(fd, F_GETFL) & O_NONBLOCK);
    MUST(rclose(fd) == 0);
    MINUS(rclose(fd));
}

struct side { int fd; in_port_t port; };

/* The other end: receives everything, sends it back, and replies at the end. */
static void *serve(void *argument)
{
    struct side *side = argument;
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    int fd = raccept(side->fd, (struct sockaddr *)&from, &length);
    MUST(fd >= 0 && length == sizeof from && from.sin_family == AF_INET);
    uint8_t *bytes = calloc(1, SIZE);
    MUST(bytes);
    struct iovec halves[2] = { { bytes, SIZE / 2 }, { bytes + SIZE / 2, SIZE / 2 } };
    for (int round = 0; round < 4; round++) {
        MUST(rrecv(fd, bytes, SIZE, MSG_WAITALL) == SIZE);
        for (size_t at = 0; at < SIZE;) {
            struct iovec rest = { bytes + at, SIZE - at };
            ssize_t put = at == 0 ? rwritev(fd, halves, 2) : rwritev(fd, &rest, 1);
            MUST(put > 0);
            at += (size_t)put;
        }
    }
    /* Memory that the peer writes by itself; it reports where it has written. */
    static uint8_t window[4096];
    off_t offset = riomap(fd, window, sizeof window, PROT_WRITE, 0, -1);
    MUST(offset >= 0);
    int64_t where = offset;
    MUST(rwrite(fd, &where, sizeof where) == sizeof where);
    char done;
    MUST(rread(fd, &done, 1) == 1);
    MUST(memcmp(window + 7, "written", 7) == 0 && window[0] == 0 && window[14] == 0);
    MUST(riounmap(fd, window, sizeof window) == 0);
    MINUS(riounmap(fd, window, sizeof window));
    MUST(rread(fd, &done, 1) == 0);
    MUST(rclose(fd) == 0);
    free(bytes);
    return NULL;
}

static void take_back(int fd, uint8_t *bytes, int how)
{
    size_t at = 0;
    while (at < SIZE) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        fd_set in;
        FD_ZERO(&in);
        FD_SET(fd, &in);
        struct timeval limit = { LIMIT_SECONDS, 0 };
        if (how % 2) MUST(CALL(rpoll)(&ready, 1, LIMIT_SECONDS * 1000) == 1 && ready.revents & POLLIN);
        else MUST(CALL(rselect)(fd + 1, &in, NULL, NULL, &limit) == 1 && FD_ISSET(fd, &in));
        struct iovec part[2] = { { bytes + at, (SIZE - at) / 2 }, { bytes + at + (SIZE - at) / 2, SIZE - at - (SIZE - at) / 2 } };
        struct msghdr message = { .msg_iov = part, .msg_iovlen = 2 };
        ssize_t got = how == 0 ? rrecvmsg(fd, &message, 0) : how == 1 ? rreadv(fd, part, 2)
                    : how == 2 ? rrecvfrom(fd, bytes + at, SIZE - at, 0, NULL, NULL) : rread(fd, bytes + at, SIZE - at);
        MUST(got > 0);
        at += (size_t)got;
    }
}

static void stream(void)
{
    int listening = rsocket(AF_INET, SOCK_STREAM, 0), fd = rsocket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = own(0);
    socklen_t length = sizeof at;
    MUST(listening >= 0 && fd >= 0 && rbind(listening, (struct sockaddr *)&at, sizeof at) == 0 && rlisten(listening, INT_MAX) == 0);
    MUST(rgetsockname(listening, (struct sockaddr *)&at, &length) == 0 && length == sizeof at && at.sin_port);
    length = 1;
    struct sockaddr_in less = { 0 };
    MUST(rgetsockname(listening, (struct sockaddr *)&less, &length) == 0);
    int many = 4;
    MUST(rsetsockopt(fd, SOL_RDMA, RDMA_IOMAPSIZE, &many, sizeof many) == 0);
    struct side side = { listening, at.sin_port };
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, serve, &side) == 0);
    MUST(rconnect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    (void)rconnect(fd, (struct sockaddr *)&at, sizeof at);
    MINUS(rlisten(fd, 1));
    MINUS(rbind(fd, (struct sockaddr *)&at, sizeof at));
    MINUS(rrecv(fd, &length, sizeof length, MSG_DONTWAIT));
    uint8_t *bytes = malloc(SIZE), *back = malloc(SIZE);
    MUST(bytes && back);
    struct iovec endless[2] = { { bytes, SIZE_MAX }, { bytes, SIZE_MAX } };
    struct msghdr message = { .msg_iov = endless, .msg_iovlen = 2 };
    MINUS(rwritev(fd, endless, -1));
    MINUS(rreadv(fd, endless, -1));
    MINUS(rwritev(fd, endless, 2));
    MINUS(rsendmsg(fd, &message, 0));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < SIZE; i++) bytes[i] = (uint8_t)(i * 7 + round);
        struct iovec halves[2] = { { bytes, SIZE / 2 }, { bytes + SIZE / 2, SIZE / 2 } };
        message = (struct msghdr){ .msg_iov = halves, .msg_iovlen = 2 };
        ssize_t put = round == 0 ? rsendmsg(fd, &message, 0) : round == 1 ? rwritev(fd, halves, 2)
                    : round == 2 ? rsend(fd, bytes, SIZE, 0) : rwrite(fd, bytes, SIZE);
        MUST(put > 0);
        while (put < SIZE) {
            ssize_t more = rsendto(fd, bytes + put, (size_t)(SIZE - put), 0, NULL, 0);
            MUST(more > 0);
            put += more;
        }
        memset(back, 0, SIZE);
        take_back(fd, back, round);
        MUST(memcmp(bytes, back, SIZE) == 0);
    }
    int64_t where;
    MUST(rrecv(fd, &where, sizeof where, MSG_WAITALL) == sizeof where);
    MUST(riowrite(fd, "written", 7, where + 7, 0) == 7);
    (void)riowrite(fd, "written", 7, where + (1 << 20), MSG_DONTWAIT);
    MUST(rsend(fd, "!", 1, 0) == 1);
    length = sizeof at;
    MUST(rgetpeername(fd, (struct sockaddr *)&at, &length) == 0 && at.sin_port == side.port);
    MINUS(rshutdown(fd, 99));
    MUST(rshutdown(fd, SHUT_WR) == 0);
    MUST(pthread_join(thread, NULL) == 0);
    (void)rsend(fd, "late", 4, MSG_NOSIGNAL);
    MUST(rread(fd, back, SIZE) <= 0);
    MUST(rclose(fd) == 0 && rclose(listening) == 0);
    free(bytes);
    free(back);
}

static void datagrams(void)
{
    int a = rsocket(AF_INET, SOCK_DGRAM, 0), b = rsocket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = own(0), from;
    socklen_t length = sizeof at;
    MUST(a >= 0 && b >= 0 && rbind(b, (struct sockaddr *)&at, sizeof at) == 0);
    MUST(rgetsockname(b, (struct sockaddr *)&at, &length) == 0);
    MINUS(rlisten(b, 1));
    char bytes[100] = "datagram", back[100];
    static char large[1 << 20];
    MINUS(rsendto(a, large, sizeof large, 0, (struct sockaddr *)&at, sizeof at));
    MUST(rsendto(a, bytes, sizeof bytes, 0, (struct sockaddr *)&at, sizeof at) == sizeof bytes);
    length = sizeof from;
    MUST(rrecvfrom(b, back, sizeof back, 0, (struct sockaddr *)&from, &length) == sizeof back && strcmp(back, "datagram") == 0);
    MUST(rsendto(b, bytes, 8, 0, (struct sockaddr *)&from, length) == 8);
    MUST(rrecvfrom(a, back, 4, 0, NULL, NULL) == 4);
    MUST(rclose(a) == 0 && rclose(b) == 0);
}

/* Waiting for rsockets, for other descriptors, and for none. */
static void waiting(void)
{
    int pipes[2], fd = rsocket(AF_INET, SOCK_STREAM, 0);
    MUST(fd >= 0 && pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
    struct pollfd all[4] = { { .fd = pipes[0], .events = POLLIN }, { .fd = -1 }, { .fd = fd, .events = POLLIN }, { .fd = 9999 } };
    MUST(rpoll(all, 4, 1000) >= 1 && all[0].revents == POLLIN && all[1].revents == 0);
    MUST(rpoll(NULL, 0, 1) == 0);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(pipes[0], &in);
    struct timeval limit = { 1, 0 }, none = { 0, 0 };
    MUST(rselect(pipes[0] + 1, &in, NULL, NULL, &limit) == 1);
    MUST(rselect(0, NULL, NULL, NULL, &none) == 0);
    if (repoll_create) {
        int set = CALL(repoll_create)(8);
        MUST(set >= 0);
        struct epoll_event event = { .events = EPOLLIN, .data.u32 = 5 };
        MUST(CALL(repoll_ctl)(set, EPOLL_CTL_ADD, pipes[0], &event) == 0);
        MINUS(repoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event));
        MINUS(repoll_ctl(set, 99, pipes[0], &event));
        MINUS(repoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        MINUS(repoll_ctl(fd, EPOLL_CTL_ADD, pipes[0], &event));
        MINUS(CALL(repoll_wait)(set, &event, 0, 0));
        MUST(repoll_wait(set, &event, 1, 1000) == 1 && event.data.u32 == 5);
        MUST(repoll_ctl(set, EPOLL_CTL_DEL, pipes[0], NULL) == 0);
        MUST(rclose(set) == 0 || close(set) == 0);
    }
    MUST(rclose(fd) == 0 && close(pipes[0]) == 0 && close(pipes[1]) == 0);
}

int main(void)
{
    strange(-1);
    strange(99999);
    strange(INT_MAX);
    early();
    stream();
    datagrams();
    waiting();
    for (unsigned i = 0; i < calls; i++) printf("called %s\n", called[i]);
    return 0;
}
