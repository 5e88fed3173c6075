/* A sandbox that forbids system calls, as the seccomp profiles of containers do: `deny ERRNO
 * CALL… -- PROGRAM ARGUMENTS…`. Each CALL of the program and its children fails with this error
 * (EPERM or ENOSYS). */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct { const char *name; unsigned number; } CALLS[] = {
    { "memfd_create", SYS_memfd_create }, { "eventfd2", SYS_eventfd2 }, { "epoll_create1", SYS_epoll_create1 },
    { "timerfd_create", SYS_timerfd_create }, { "recvmsg", SYS_recvmsg }, { "sendmsg", SYS_sendmsg },
    { "pidfd_open", SYS_pidfd_open }, { "pidfd_send_signal", SYS_pidfd_send_signal }, { "membarrier", SYS_membarrier },
    { "inotify_init1", SYS_inotify_init1 }, { "epoll_pwait2", SYS_epoll_pwait2 }, { "socket", SYS_socket },
    { "clone", SYS_clone }, { "clone3", SYS_clone3 }, { "socketpair", SYS_socketpair }, { "fcntl", SYS_fcntl }, { "madvise", SYS_madvise },
};

int main(int argc, char **argv)
{
    struct sock_filter code[64] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
    unsigned short length = 1;
    if (argc < 2) return 2;
    unsigned error = strcmp(argv[1], "ENOSYS") ? EPERM : ENOSYS;
    int word = 2;
    for (; word < argc && strcmp(argv[word], "--"); word++) {
        unsigned known = 0;
        while (known < sizeof CALLS / sizeof *CALLS && strcmp(CALLS[known].name, argv[word])) known++;
        if (known == sizeof CALLS / sizeof *CALLS || length > 60) {
            fprintf(stderr, "deny: %s is not known\n", argv[word]);
            return 2;
        }
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[known].number, 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = { .len = length, .filter = code };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
        perror("deny: seccomp");
        return 2;
    }
    if (word + 1 < argc) execvp(argv[word + 1], argv + word + 1);
    perror("deny: exec");
    return 2;
}
