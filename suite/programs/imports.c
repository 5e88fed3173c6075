/* Two processes use one device. The first passes the descriptor of its open device, and the
 * second imports the device, the protection domain and its memory regions by their handles.
 * Device memory and the null region can be used from there, as lkey and as rkey. The first
 * process reads what the second one writes. Memory of the first process cannot be accessed by
 * the second, and the import says so. The second process is killed, and the first continues. */
#include "common.h"

#include <signal.h>
#include <sys/wait.h>

enum { LENGTH = 256 };

struct handles { uint32_t pd, device, nothing, plain, device_lkey, device_rkey; };

static void send_device(int to, int fd, struct handles *handles)
{
    char control[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec part = { .iov_base = handles, .iov_len = sizeof *handles };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET; head->cmsg_type = SCM_RIGHTS; head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    MUST(sendmsg(to, &message, 0) == sizeof *handles);
}

static int receive_device(int from, struct handles *handles)
{
    int fd;
    char control[CMSG_SPACE(sizeof fd)];
    struct iovec part = { .iov_base = handles, .iov_len = sizeof *handles };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    MUST(recvmsg(from, &message, 0) == sizeof *handles && CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* Sends from a region of the imported domain into memory of this process. */
static enum ibv_wc_status fetch(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *from, uint64_t at, struct ibv_mr *to)
{
    struct ibv_qp *a = make_qp(pd, cq, IBV_QPT_RC, 4), *b = make_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(a, b);
    MUST(post(a, IBV_WR_RDMA_WRITE, from, at, LENGTH, (uintptr_t)to->addr, to->rkey) == 0);
    enum ibv_wc_status status = next_completion(cq).status;
    MUST(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    return status;
}

static void importer(int parent)
{
    struct handles handles;
    int fd = receive_device(parent, &handles);
    struct ibv_context *context = ibv_import_device(fd);
    MUST(context);
    struct ibv_pd *pd = ibv_import_pd(context, handles.pd);
    MUST(pd);
    MUST(ibv_import_pd(context, handles.pd + 1) == NULL && errno == ENOENT);

    errno = 0;
    MUST(ibv_import_mr(pd, handles.plain) == NULL && errno == EOPNOTSUPP);

    static char own[LENGTH];
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, own, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    struct ibv_mr *device = ibv_import_mr(pd, handles.device), *nothing = ibv_import_mr(pd, handles.nothing);
    MUST(cq && mr && device && nothing);
    MUST(device->lkey == handles.device_lkey && device->rkey == handles.device_rkey);

    MUST(fetch(pd, cq, device, 0, mr) == IBV_WC_SUCCESS);
    for (int i = 0; i < LENGTH; i++) MUST(own[i] == (char)(i * 3));
    MUST(fetch(pd, cq, nothing, 4096, mr) == IBV_WC_SUCCESS);
    for (int i = 0; i < LENGTH; i++) MUST(own[i] == 0);

    /* By its rkey, from a peer. */
    struct ibv_qp *a = make_qp(pd, cq, IBV_QPT_RC, 4), *b = make_qp(pd, cq, IBV_QPT_RC, 4);
    connect_both(a, b);
    memset(own, 0x5a, LENGTH);
    MUST(post(a, IBV_WR_RDMA_WRITE, mr, (uintptr_t)own, LENGTH, 0, device->rkey) == 0);
    good_completion(cq);
    MUST(write(parent, "w", 1) == 1);
    for (;;) pause();
}

int main(void)
{
    int pair[2];
    char word, there[LENGTH], here[LENGTH] = "the memory of the first process";
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        close(pair[0]);
        importer(pair[1]);
    }
    close(pair[1]);
    struct ibv_context *context = open_first();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd);
    struct ibv_alloc_dm_attr attr = { .length = LENGTH };
    struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
    MUST(dm);
    for (int i = 0; i < LENGTH; i++) there[i] = (char)(i * 3);
    MUST(ibv_memcpy_to_dm(dm, 0, there, LENGTH) == 0);
    struct ibv_mr *device = ibv_reg_dm_mr(pd, dm, 0, LENGTH, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_mr *plain = ibv_reg_mr(pd, here, LENGTH, IBV_ACCESS_LOCAL_WRITE), *nothing = ibv_alloc_null_mr(pd);
    MUST(device && plain && nothing);
    struct handles handles = { .pd = pd->handle, .device = device->handle, .nothing = nothing->handle, .plain = plain->handle,
                               .device_lkey = device->lkey, .device_rkey = device->rkey };
    send_device(pair[0], context->cmd_fd, &handles);
    if (recv(pair[0], &word, 1, MSG_WAITALL) != 1) FAIL("the importer has ended");
    MUST(ibv_memcpy_from_dm(there, dm, 0, LENGTH) == 0);
    for (int i = 0; i < LENGTH; i++) MUST(there[i] == 0x5a);
    int status;
    MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));

    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_mr *into = ibv_reg_mr(pd, there, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    MUST(cq && into && fetch(pd, cq, plain, (uintptr_t)here, into) == IBV_WC_SUCCESS);
    MUST(memcmp(here, there, LENGTH) == 0);
    MUST(ibv_dereg_mr(device) == 0 && ibv_free_dm(dm) == 0 && ibv_dereg_mr(plain) == 0 && ibv_dereg_mr(nothing) == 0);
    MUST(ibv_dereg_mr(into) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}
