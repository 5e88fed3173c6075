/* A bad cable: forwards the frames of two interfaces to each other, and loses, delays,
 * duplicates and corrupts some of them, as a seed decides. It parses Ethernet, IP and UDP, but
 * not the contents of datagrams. With `-u PORT` it harms only datagrams to this port.
 *
 *     relay LEFT RIGHT [-s SEED] [-u PORT] [-l LOST] [-r HELD] [-d TWICE] [-c SPOILT]
 *
 * LOST, HELD, TWICE and SPOILT are percentages. A delayed frame goes behind some of the
 * following frames. A duplicate goes at once, or later. In a corrupted frame some bits are
 * flipped. In every third such frame a checksum shows it. In the others the bits are behind the
 * UDP header, and the UDP checksum is recomputed, or left out where IPv4 allows that.
 *
 * It prints "ready" when it forwards, and its counts on SIGTERM. Interfaces may go down and come
 * up again. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MUST(condition) do { if (!(condition)) { perror(#condition); exit(1); } } while (0)

enum { FRAME = 65536, HELD = 64, BEHIND = 8, BURST = 64, BUFFER = 64 << 20, LATE = 2 };

struct frame { size_t length; uint8_t bytes[FRAME]; };
/* A frame that waits until this many frames have passed it, or until its time is over. */
struct held { struct frame *frame; unsigned behind; int64_t since; };
struct way { int from, to; struct held held[HELD]; };

static double rate_lost, rate_held, rate_twice, rate_spoilt;
static unsigned harmed_port;
static uint64_t chance_state, carried, lost, held_back, twice, spoilt, refitted, refused, overrun;
static volatile sig_atomic_t ended;

static void end(int signal) { (void)signal; ended = 1; }

static int64_t milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* splitmix64: every seed is suitable. */
static uint64_t chance(void)
{
    uint64_t z = chance_state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static unsigned below(unsigned limit) { return (unsigned)(chance() % limit); }
static int happens(double percent) { return (double)(chance() >> 11) * 0x1p-53 * 100 < percent; }

static unsigned word(const uint8_t *at) { return (unsigned)at[0] << 8 | at[1]; }
static void put_word(uint8_t *at, unsigned value) { at[0] = (uint8_t)(value >> 8); at[1] = (uint8_t)value; }

static uint32_t sum(const uint8_t *bytes, size_t length, uint32_t sum)
{
    for (size_t at = 0; at + 1 < length; at += 2) sum += word(bytes + at);
    if (length % 2) sum += (uint32_t)bytes[length - 1] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

/* Returns the position of the UDP header in a frame with an unfragmented datagram; 0 if there is
 * none. */
static size_t datagram(const struct frame *frame)
{
    const uint8_t *bytes = frame->bytes, *ip = bytes + ETH_HLEN;
    size_t at = 0;
    if (frame->length < ETH_HLEN + 40) return 0;
    if (word(bytes + 12) == ETH_P_IP && ip[9] == IPPROTO_UDP && (word(ip + 6) & 0x3fff) == 0) at = ETH_HLEN + (size_t)(ip[0] & 15) * 4;
    if (word(bytes + 12) == ETH_P_IPV6 && ip[6] == IPPROTO_UDP) at = ETH_HLEN + 40;
    return at && at + 8 < frame->length && at + word(bytes + at + 4) <= frame->length ? at : 0;
}

/* Recomputes the UDP checksum. */
static void refit(struct frame *frame, size_t udp)
{
    uint8_t *bytes = frame->bytes;
    unsigned length = word(bytes + udp + 4), addresses = word(bytes + 12) == ETH_P_IP ? 8 : 32;
    put_word(bytes + udp + 6, 0);
    uint32_t of = sum(bytes + udp - addresses, addresses, IPPROTO_UDP + length);
    of = ~sum(bytes + udp, length, of) & 0xffff;
    put_word(bytes + udp + 6, of ? of : 0xffff);
}

static void spoil(struct frame *frame)
{
    size_t udp = datagram(frame), from = ETH_HLEN, to = frame->length;
    unsigned how = (unsigned)(spoilt++ % 3);
    if (udp && how > 0) { from = udp + 8; to = udp + word(frame->bytes + udp + 4); }
    if (from >= to) return;
    for (unsigned bits = 1 + below(3); bits > 0; bits--)
        frame->bytes[from + below((unsigned)(to - from))] ^= (uint8_t)(1u << below(8));
    if (!udp || how == 0) return;
    refit(frame, udp);
    if (how == 2 && word(frame->bytes + 12) == ETH_P_IP) put_word(frame->bytes + udp + 6, 0);
    refitted++;
}

static void put(struct way *way, const struct frame *frame)
{
    static const struct virtio_net_hdr nothing;
    struct iovec parts[2] = { { (void *)&nothing, sizeof nothing }, { (void *)frame->bytes, frame->length } };
    struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
    if (sendmsg(way->to, &message, 0) < 0) refused++;
    else carried++;
}

static void release(struct way *way, int64_t now, int passed)
{
    for (unsigned i = 0; i < HELD; i++) {
        struct held *held = &way->held[i];
        if (!held->frame) continue;
        if (passed) held->behind--;
        if (held->behind > 0 && now - held->since < LATE) continue;
        put(way, held->frame);
        free(held->frame);
        held->frame = NULL;
    }
}

/* Keeps a copy for later, if there is room. */
static int hold(struct way *way, const struct frame *frame)
{
    for (unsigned i = 0; i < HELD; i++) {
        if (way->held[i].frame) continue;
        struct frame *copy = malloc(offsetof(struct frame, bytes) + frame->length);
        MUST(copy);
        memcpy(copy, frame, offsetof(struct frame, bytes) + frame->length);
        /* One more, for the passing of this frame itself. */
        way->held[i] = (struct held){ copy, 2 + below(BEHIND), milliseconds() };
        return 1;
    }
    return 0;
}

static void carry(struct way *way, struct frame *frame)
{
    size_t udp = datagram(frame);
    if (!harmed_port || (udp && word(frame->bytes + udp + 2) == harmed_port)) {
        if (happens(rate_lost)) { lost++; return; }
        if (happens(rate_spoilt)) spoil(frame);
        if (happens(rate_held) && hold(way, frame)) { held_back++; return release(way, milliseconds(), 1); }
        if (happens(rate_twice)) {
            if (twice++ % 2) hold(way, frame);
            else put(way, frame);
        }
    }
    put(way, frame);
    release(way, milliseconds(), 1);
}

/* Receives all waiting frames. Completes the checksums that the sender's kernel has left to an
 * adapter. */
static void take(struct way *way)
{
    static struct frame frame;
    for (int i = 0; i < BURST; i++) {
        struct virtio_net_hdr header;
        struct iovec parts[2] = { { &header, sizeof header }, { frame.bytes, FRAME } };
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
        ssize_t length = recvmsg(way->from, &message, MSG_DONTWAIT);
        if (length < 0) return;
        frame.length = (size_t)length - sizeof header;
        if (header.gso_type != VIRTIO_NET_HDR_GSO_NONE) { fprintf(stderr, "a frame that is not cut into packets\n"); exit(1); }
        if (header.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) {
            uint8_t *start = frame.bytes + header.csum_start;
            uint32_t of = ~sum(start, frame.length - header.csum_start, 0) & 0xffff;
            put_word(start + header.csum_offset, of ? of : 0xffff);
        }
        carry(way, &frame);
    }
}

static int attach(const char *interface)
{
    int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)), yes = 1, size = BUFFER;
    MUST(fd >= 0);
    struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(interface) };
    MUST(at.sll_ifindex > 0);
    MUST(setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof yes) == 0);
    MUST(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes) == 0);
    MUST(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &yes, sizeof yes) == 0);
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size) == 0);
    MUST(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static void count_overrun(int fd)
{
    struct tpacket_stats stats = { 0 };
    socklen_t length = sizeof stats;
    if (getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &stats, &length) == 0) overrun += stats.tp_drops;
}

int main(int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "s:u:l:r:d:c:")) != -1) {
        if (option == 's') chance_state = strtoull(optarg, NULL, 0);
        else if (option == 'u') harmed_port = (unsigned)atoi(optarg);
        else if (option == 'l') rate_lost = atof(optarg);
        else if (option == 'r') rate_held = atof(optarg);
        else if (option == 'd') rate_twice = atof(optarg);
        else if (option == 'c') rate_spoilt = atof(optarg);
        else return 2;
    }
    if (argc - optind != 2) return 2;
    int left = attach(argv[optind]), right = attach(argv[optind + 1]);
    static struct way ways[2];
    ways[0] = (struct way){ .from = left, .to = right };
    ways[1] = (struct way){ .from = right, .to = left };
    struct sigaction action = { .sa_handler = end };
    MUST(sigaction(SIGTERM, &action, NULL) == 0);
    puts("ready");
    fflush(stdout);
    while (!ended) {
        struct pollfd waiting[2] = { { .fd = left, .events = POLLIN }, { .fd = right, .events = POLLIN } };
        (void)poll(waiting, 2, 1);
        for (int i = 0; i < 2; i++) {
            if (waiting[i].revents & POLLERR) {
                /* Down: reported once, and over when the interface is up again. */
                int error;
                socklen_t length = sizeof error;
                (void)getsockopt(waiting[i].fd, SOL_SOCKET, SO_ERROR, &error, &length);
            }
            if (waiting[i].revents) take(&ways[i]);
            release(&ways[i], milliseconds(), 0);
        }
    }
    count_overrun(left);
    count_overrun(right);
    printf("carried %llu lost %llu held %llu twice %llu spoilt %llu refitted %llu refused %llu overrun %llu\n",
           (unsigned long long)carried, (unsigned long long)lost, (unsigned long long)held_back, (unsigned long long)twice,
           (unsigned long long)spoilt, (unsigned long long)refitted, (unsigned long long)refused, (unsigned long long)overrun);
    return 0;
}
