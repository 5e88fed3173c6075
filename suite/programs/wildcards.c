/* Datagram sockets that are bound to the wildcard address, in both families: the same exchanges
 * with the kernel's UDP sockets and with rsockets. Both must show a program the same addresses
 * and errors. Finally each exchange must use the queue pairs: the UDP sockets below the rsockets
 * drop everything meanwhile. */
#include "common.h"
#include <linux/filter.h>
#include <net/if.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <stdarg.h>

enum { ROUNDS = 4, SOON = 300 };

struct api {
    int (*socket)(int, int, int);
    int (*bind)(int, const struct sockaddr *, socklen_t);
    int (*connect)(int, const struct sockaddr *, socklen_t);
    ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    ssize_t (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
    int (*getsockname)(int, struct sockaddr *, socklen_t *);
    int (*getpeername)(int, struct sockaddr *, socklen_t *);
    int (*setsockopt)(int, int, int, const void *, socklen_t);
    int (*poll)(struct pollfd *, nfds_t, int);
    int (*close)(int);
};

static const struct api kernel = { socket, bind, connect, sendto, recvfrom, getsockname, getpeername, setsockopt, poll, close };
static const struct api ours = { rsocket, rbind, rconnect, rsendto, rrecvfrom, rgetsockname, rgetpeername, rsetsockopt, rpoll, rclose };

/* The server's address, the client's address (NULL: not bound), and the address that the client
 * sends to. */
struct meeting { const char *server, *client, *to; int connected; };

static const struct meeting meetings[] = {
    { "0.0.0.0", NULL, "127.0.0.1", 0 },
    { "0.0.0.0", NULL, "127.0.0.1", 1 },
    { "0.0.0.0", "0.0.0.0", "127.0.0.1", 0 },
    { "0.0.0.0", "0.0.0.0", "127.0.0.1", 1 },
    { "0.0.0.0", NULL, "0.0.0.0", 0 },
    { "0.0.0.0", NULL, "0.0.0.0", 1 },
    { "0.0.0.0", "::", "::ffff:127.0.0.1", 0 },
    { "0.0.0.0", "::", "::ffff:127.0.0.1", 1 },
    { "::", NULL, "::1", 0 },
    { "::", NULL, "::1", 1 },
    { "::", "::", "::1", 0 },
    { "::", "::", "::1", 1 },
    { "::", NULL, "::", 0 },
    { "::", NULL, "::", 1 },
    { "::", NULL, "127.0.0.1", 0 },
    { "::", NULL, "127.0.0.1", 1 },
    { "::", "0.0.0.0", "127.0.0.1", 0 },
    { "::", "0.0.0.0", "127.0.0.1", 1 },
    { "::", "127.0.0.1", "127.0.0.1", 1 },
    { "::", "::", "::ffff:127.0.0.1", 0 },
    { "::", "::", "::ffff:127.0.0.1", 1 },
    { "::ffff:0.0.0.0", "::ffff:127.0.0.1", "::ffff:127.0.0.1", 0 },
    { "::ffff:127.0.0.1", NULL, "127.0.0.1", 1 },
};

/* The result that a program sees, as text. */
static char seen[2][8192];
static unsigned which, length;

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(seen[which] + length, sizeof seen[which] - length, format, arguments);
    va_end(arguments);
    MUST(more >= 0 && length + (unsigned)more < sizeof seen[which]);
    length += (unsigned)more;
}

static struct sockaddr_storage address(const char *text, in_port_t port)
{
    struct sockaddr_storage storage = { 0 };
    struct sockaddr_in *four = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&storage;
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = port;
    } else {
        MUST(inet_pton(AF_INET6, text, &six->sin6_addr) == 1);
        six->sin6_family = AF_INET6;
        six->sin6_port = port;
    }
    return storage;
}

static socklen_t size(const struct sockaddr_storage *storage)
{
    return storage->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* Both families have the field at the same offset. */
static in_port_t port(const struct sockaddr_storage *storage)
{
    return ((const struct sockaddr_in *)storage)->sin_port;
}

static struct sockaddr_storage own(const struct api *api, int fd)
{
    struct sockaddr_storage storage = { 0 };
    socklen_t room = sizeof storage;
    MUST(api->getsockname(fd, (struct sockaddr *)&storage, &room) == 0);
    MUST(room == size(&storage));
    return storage;
}

/* Prints an address, with the owner of its port. */
static void tell_address(const char *what, const struct sockaddr_storage *storage, socklen_t room, in_port_t server, in_port_t client)
{
    char text[INET6_ADDRSTRLEN] = "?";
    const void *at = storage->ss_family == AF_INET ? (const void *)&((const struct sockaddr_in *)storage)->sin_addr
                                                   : (const void *)&((const struct sockaddr_in6 *)storage)->sin6_addr;
    (void)inet_ntop(storage->ss_family, at, text, sizeof text);
    const char *of = port(storage) == server ? "server" : port(storage) == client ? "client" : "another port";
    tell("%s %s %u bytes family %d %s; ", what, text, room, storage->ss_family, of);
}

static void drop_all(const struct api *api, int fd, int on)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = { 1, &nothing };
    if (on) MUST(api->setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
    else MUST(api->setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &program, sizeof program) == 0);
}

struct pair { const struct api *api; int server, client; struct sockaddr_storage to; int connected; in_port_t ports[2]; };

/* Receives one datagram that begins with this number; drops earlier ones. */
static int take(const struct pair *pair, int fd, uint32_t number, int limit, struct sockaddr_storage *from, socklen_t *room)
{
    for (;;) {
        struct pollfd ready = { .fd = fd, .events = POLLIN };
        if (pair->api->poll(&ready, 1, limit) != 1) return 0;
        uint32_t got = 0;
        *room = sizeof *from;
        ssize_t bytes = pair->api->recvfrom(fd, &got, sizeof got, MSG_DONTWAIT, (struct sockaddr *)from, room);
        if (bytes == sizeof got && got == number) return 1;
        MUST(bytes == sizeof got || (bytes < 0 && errno == EAGAIN));
    }
}

/* A request and its reply; 0 if one of them is lost. */
static int exchange(const struct pair *pair, uint32_t number, int limit, int told)
{
    const struct api *api = pair->api;
    struct sockaddr_storage from;
    socklen_t room;
    ssize_t sent = pair->connected ? api->sendto(pair->client, &number, sizeof number, 0, NULL, 0)
                                   : api->sendto(pair->client, &number, sizeof number, 0, (struct sockaddr *)&pair->to, size(&pair->to));
    MUST(sent == sizeof number);
    if (!take(pair, pair->server, number, limit, &from, &room)) return 0;
    in_port_t client = port((struct sockaddr_storage[]){ own(api, pair->client) });
    if (told) tell_address("from", &from, room, pair->ports[0], client);
    MUST(api->sendto(pair->server, &number, sizeof number, 0, (struct sockaddr *)&from, room) == sizeof number);
    if (!take(pair, pair->client, number, limit, &from, &room)) return 0;
    if (told) tell_address("back from", &from, room, pair->ports[0], client);
    return 1;
}

static void meet(const struct api *api, const struct meeting *meeting)
{
    struct sockaddr_storage at = address(meeting->server, 0), to = address(meeting->to, 0), from;
    tell("%s reached from %s by %s%s: ", meeting->server, meeting->client ? meeting->client : "anywhere", meeting->to,
         meeting->connected ? ", connected" : "");
    struct pair pair = { .api = api, .server = api->socket(at.ss_family, SOCK_DGRAM, 0), .connected = meeting->connected };
    MUST(pair.server >= 0 && api->bind(pair.server, (struct sockaddr *)&at, size(&at)) == 0);
    at = own(api, pair.server);
    pair.ports[0] = port(&at);
    tell_address("server", &at, size(&at), pair.ports[0], 0);
    pair.to = address(meeting->to, pair.ports[0]);
    pair.client = api->socket(to.ss_family, SOCK_DGRAM, 0);
    MUST(pair.client >= 0);
    if (meeting->client) {
        from = address(meeting->client, 0);
        MUST(api->bind(pair.client, (struct sockaddr *)&from, size(&from)) == 0);
    }
    if (meeting->connected) {
        MUST(api->connect(pair.client, (struct sockaddr *)&pair.to, size(&pair.to)) == 0);
        struct sockaddr_storage peer = { 0 };
        socklen_t room = sizeof peer;
        MUST(api->getpeername(pair.client, (struct sockaddr *)&peer, &room) == 0);
        tell_address("peer", &peer, room, pair.ports[0], 0);
    }
    for (uint32_t number = 1; number <= ROUNDS; number++) {
        if (!exchange(&pair, number, LIMIT_SECONDS * 1000, 1)) {
            tell("and then nothing comes");
            MUST(api->close(pair.server) == 0 && api->close(pair.client) == 0);
            return;
        }
    }
    from = own(api, pair.client);
    tell_address("client", &from, size(&from), pair.ports[0], port(&from));
    double end = now() + LIMIT_SECONDS;
    for (uint32_t number = 100; api == &ours; number += 100) {
        drop_all(api, pair.server, 1);
        drop_all(api, pair.client, 1);
        int done = exchange(&pair, number, SOON, 0);
        drop_all(api, pair.server, 0);
        drop_all(api, pair.client, 0);
        if (done) {
            MUST(exchange(&pair, number + 1, LIMIT_SECONDS * 1000, 1));
            break;
        }
        if (now() > end) {
            tell("never by the queue pairs");
            break;
        }
        MUST(exchange(&pair, number + 1, LIMIT_SECONDS * 1000, 0));
    }
    if (api == &kernel) MUST(exchange(&pair, ROUNDS + 1, LIMIT_SECONDS * 1000, 1));
    MUST(api->close(pair.server) == 0 && api->close(pair.client) == 0);
}

/* No socket has the port that a connected socket sends to. */
static void nobody(const struct api *api, const char *host)
{
    struct sockaddr_storage at = address(host, 0);
    int fd = api->socket(at.ss_family, SOCK_DGRAM, 0), other = api->socket(at.ss_family, SOCK_DGRAM, 0);
    MUST(fd >= 0 && other >= 0 && api->bind(other, (struct sockaddr *)&at, size(&at)) == 0);
    at = own(api, other);
    MUST(api->close(other) == 0);
    MUST(api->connect(fd, (struct sockaddr *)&at, size(&at)) == 0);
    char byte = 0;
    MUST(api->sendto(fd, &byte, 1, 0, NULL, 0) == 1);
    struct pollfd ready = { .fd = fd, .events = POLLIN };
    int count = api->poll(&ready, 1, LIMIT_SECONDS * 1000);
    tell("nobody at %s: %d ready%s; ", host, count, ready.revents & POLLERR ? " with an error" : "");
    errno = 0;
    ssize_t bytes = count == 1 ? api->recvfrom(fd, &byte, 1, 0, NULL, NULL) : 0;
    tell("receiving %zd, errno %d; ", bytes, errno);
    MUST(api->close(fd) == 0);
}

int main(void)
{
    unsigned wrong = 0;
    const unsigned last = sizeof meetings / sizeof *meetings;
    for (unsigned i = 0; i <= last; i++) {
        const struct api *apis[] = { &kernel, &ours };
        for (which = 0; which < 2; which++) {
            length = 0;
            if (i < last) {
                meet(apis[which], &meetings[i]);
            } else {
                nobody(apis[which], "127.0.0.1");
                nobody(apis[which], "::1");
            }
        }
        if (strcmp(seen[0], seen[1])) {
            fprintf(stderr, "UDP sockets: %s\nrsockets:    %s\n", seen[0], seen[1]);
            wrong++;
        }
    }
    if (wrong) FAIL("%u meetings differ", wrong);
    printf("rsockets show what UDP sockets show\n");
    return 0;
}
