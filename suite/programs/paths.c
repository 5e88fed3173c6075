/* Calls every function of the C library that takes a path, for /sys/class/infiniband and
 * /dev/infiniband. `paths there`: a device softhca0 exists. `paths gone`: no device exists.
 * `paths relations`: names relative to a directory. `paths signals`: in signal handlers, threads
 * and children. */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define FAIL(...) do { fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); fprintf(stderr, __VA_ARGS__); \
                       fprintf(stderr, " (errno %d: %s)\n", errno, strerror(errno)); exit(1); } while (0)
#define MUST(condition) do { if (!(condition)) FAIL("%s does not hold", #condition); } while (0)
/* The call returns its failure value, and sets errno. */
#define REFUSED(why, failed, call) do { errno = 0; if ((call) != (failed) || errno != (why)) FAIL("%s is not refused with %s", #call, #why); } while (0)

#define DEVICE "/sys/class/infiniband/softhca0"
#define FILE_THERE DEVICE "/node_type"
#define NODES "/dev/infiniband"
#define NODE NODES "/uverbs0"
#define MANAGER NODES "/rdma_cm"
#define MADS NODES "/umad0"
#define MADS_ENTRY "/sys/class/infiniband_mad/umad0/port"
#define NONE DEVICE "/no_such_file"
static const char TEXT[] = "1: CA\n";

/* Functions that headers do not declare: the names behind fortified and older programs. */
#define OTHER(result, name, ...) static result (*name)(__VA_ARGS__)
OTHER(int, open_2, const char *, int);
OTHER(int, open64_2, const char *, int);
OTHER(int, openat_2, int, const char *, int);
OTHER(int, openat64_2, int, const char *, int);
OTHER(int, xstat, int, const char *, struct stat *);
OTHER(int, lxstat, int, const char *, struct stat *);
OTHER(int, fxstatat, int, int, const char *, struct stat *, int);
OTHER(int, xstat64, int, const char *, struct stat64 *);
OTHER(int, lxstat64, int, const char *, struct stat64 *);
OTHER(int, fxstatat64, int, int, const char *, struct stat64 *, int);
OTHER(ssize_t, readlink_chk, const char *, char *, size_t, size_t);
OTHER(ssize_t, readlinkat_chk, int, const char *, char *, size_t, size_t);
OTHER(char *, realpath_chk, const char *, char *, size_t);
OTHER(char *, getcwd_chk, char *, size_t, size_t);

static void look_up(void)
{
#define FIND(name) do { *(void **)&name = dlsym(RTLD_DEFAULT, "__" #name); MUST(name != NULL); } while (0)
    FIND(open_2); FIND(open64_2); FIND(openat_2); FIND(openat64_2);
    FIND(xstat); FIND(lxstat); FIND(fxstatat); FIND(xstat64); FIND(lxstat64); FIND(fxstatat64);
    FIND(readlink_chk); FIND(readlinkat_chk); FIND(realpath_chk); FIND(getcwd_chk);
}

static void holds_text(int fd)
{
    char buffer[64];
    MUST(fd >= 0);
    MUST(read(fd, buffer, sizeof buffer) == (ssize_t)strlen(TEXT) && memcmp(buffer, TEXT, strlen(TEXT)) == 0);
    close(fd);
}

static void stream_holds_text(FILE *stream)
{
    char buffer[64];
    MUST(stream != NULL && fgets(buffer, sizeof buffer, stream) != NULL && strcmp(buffer, TEXT) == 0);
    fclose(stream);
}

static void opening_there(void)
{
    holds_text(open(FILE_THERE, O_RDONLY));
    holds_text(open64(FILE_THERE, O_RDONLY | O_CLOEXEC));
    holds_text(openat(AT_FDCWD, FILE_THERE, O_RDONLY));
    holds_text(openat64(AT_FDCWD, FILE_THERE, O_RDONLY));
    holds_text(openat(-1, FILE_THERE, O_RDONLY)); /* an absolute path ignores the directory */
    holds_text(open_2(FILE_THERE, O_RDONLY));
    holds_text(open64_2(FILE_THERE, O_RDONLY));
    holds_text(openat_2(AT_FDCWD, FILE_THERE, O_RDONLY));
    holds_text(openat64_2(AT_FDCWD, FILE_THERE, O_RDONLY));
    holds_text(open("//sys/./class///infiniband/softhca0/../softhca0/node_type", O_RDONLY));
    stream_holds_text(fopen(FILE_THERE, "re"));
    stream_holds_text(fopen64(FILE_THERE, "r"));
    stream_holds_text(freopen(FILE_THERE, "r", fopen("/dev/null", "r")));
    stream_holds_text(freopen64(FILE_THERE, "r", fopen("/dev/null", "r")));

    REFUSED(ENOENT, -1, open(NONE, O_RDONLY));
    REFUSED(ENOENT, -1, open64(NONE, O_RDWR));
    REFUSED(ENOENT, NULL, fopen(NONE, "r"));
    REFUSED(ENOTDIR, -1, open(FILE_THERE "/below", O_RDONLY));
    REFUSED(EACCES, -1, open(FILE_THERE, O_WRONLY));
    REFUSED(EACCES, -1, open(FILE_THERE, O_RDONLY | O_TRUNC));
    REFUSED(EACCES, -1, open(FILE_THERE, O_RDWR | O_CREAT, 0600));
    REFUSED(EEXIST, -1, open(FILE_THERE, O_RDWR | O_CREAT | O_EXCL, 0600));
    REFUSED(EACCES, -1, open(NONE, O_RDWR | O_CREAT, 0600));
    REFUSED(EACCES, -1, creat(FILE_THERE, 0600));
    REFUSED(EACCES, -1, creat64(NONE, 0600));
    REFUSED(EACCES, NULL, fopen(FILE_THERE, "w"));
    REFUSED(EACCES, NULL, fopen64(FILE_THERE, "r+"));
    REFUSED(EACCES, NULL, fopen(NONE, "a"));
    holds_text(open(FILE_THERE, O_RDONLY | O_CREAT, 0600));

    static char long_path[PATH_MAX + 100] = DEVICE "/";
    memset(long_path + strlen(DEVICE "/"), 'x', PATH_MAX);
    REFUSED(ENAMETOOLONG, -1, open(long_path, O_RDONLY));
}

/* A node can be opened as a character device, and be read and written without effect. */
static void is_device(int fd)
{
    struct stat st;
    char byte;
    MUST(fd >= 0 && fstat(fd, &st) == 0 && S_ISCHR(st.st_mode));
    MUST(read(fd, &byte, 1) == 0 && write(fd, "x", 1) == 1);
    close(fd);
}

static void opening_a_node(const char *node)
{
    is_device(open(node, O_RDWR));
    is_device(open64(node, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    is_device(openat(AT_FDCWD, node, O_RDWR));
    is_device(open(node, O_RDWR | O_CREAT | O_TRUNC, 0600));
    int fd = creat(node, 0600);
    MUST(fd >= 0);
    close(fd);
    FILE *stream = fopen(node, "r+");
    MUST(stream != NULL);
    fclose(stream);
    REFUSED(EEXIST, -1, open(node, O_RDWR | O_CREAT | O_EXCL, 0600));
    REFUSED(ENOTDIR, -1, open(node, O_RDONLY | O_DIRECTORY));
}

static void opening_nodes(void)
{
    opening_a_node(NODE);
    opening_a_node(MANAGER);
    is_device(openat(AT_FDCWD, NODES "//uverbs0", O_RDWR));
    is_device(openat(AT_FDCWD, NODES "//rdma_cm", O_RDWR));
    REFUSED(ENOTDIR, -1, open(NODE "/", O_RDONLY));
    REFUSED(ENOTDIR, -1, open(MANAGER "/", O_RDONLY));
    REFUSED(ENOENT, -1, open(NODES "/uverbs9", O_RDWR));
    REFUSED(EACCES, -1, open(NODES "/uverbs9", O_RDWR | O_CREAT, 0600));
    REFUSED(ENOENT, -1, open(NODES "/umad9", O_RDWR));
    REFUSED(ENOENT, -1, open(NODES "/issm0", O_RDWR)); /* only an InfiniBand port has one */
    REFUSED(EEXIST, -1, open(MADS, O_RDWR | O_CREAT | O_EXCL, 0600));
    REFUSED(ENOTDIR, -1, open(MADS, O_RDONLY | O_DIRECTORY));
    REFUSED(ENOTDIR, -1, open(MADS "/", O_RDONLY));
}

enum what { IS_FILE, IS_DIRECTORY, IS_NODE, IS_MANAGER };

static void looks_like(enum what what, int answer, mode_t mode, off_t size, dev_t device)
{
    MUST(answer == 0);
    switch (what) {
    case IS_FILE: MUST(S_ISREG(mode) && (mode & 0222) == 0 && size == (off_t)strlen(TEXT)); break;
    case IS_DIRECTORY: MUST(S_ISDIR(mode)); break;
    case IS_NODE: MUST(mode == (S_IFCHR | 0666) && size == 0 && major(device) == 231 && minor(device) == 192); break;
    case IS_MANAGER: MUST(mode == (S_IFCHR | 0666) && size == 0 && major(device) == 10 && minor(device) == 120); break;
    }
}

static void asking(const char *path, enum what what)
{
    struct stat st;
    struct stat64 st64;
    struct statx x;
#define ASK(call, st) do { memset(&st, 0xff, sizeof st); errno = 0; int answer = call; looks_like(what, answer, st.st_mode, st.st_size, st.st_rdev); } while (0)
    ASK(stat(path, &st), st);
    ASK(lstat(path, &st), st);
    ASK(fstatat(AT_FDCWD, path, &st, 0), st);
    ASK(fstatat(-1, path, &st, AT_SYMLINK_NOFOLLOW), st);
    ASK(stat64(path, &st64), st64);
    ASK(lstat64(path, &st64), st64);
    ASK(fstatat64(AT_FDCWD, path, &st64, 0), st64);
    ASK(fstatat64(AT_FDCWD, path, &st64, AT_SYMLINK_NOFOLLOW), st64);
    ASK(xstat(1, path, &st), st);
    ASK(lxstat(1, path, &st), st);
    ASK(fxstatat(1, AT_FDCWD, path, &st, 0), st);
    ASK(xstat64(1, path, &st64), st64);
    ASK(lxstat64(1, path, &st64), st64);
    ASK(fxstatat64(1, AT_FDCWD, path, &st64, AT_SYMLINK_NOFOLLOW), st64);
    for (int flags = 0; flags <= AT_SYMLINK_NOFOLLOW; flags += AT_SYMLINK_NOFOLLOW) {
        int answer = statx(AT_FDCWD, path, flags, STATX_BASIC_STATS, &x);
        looks_like(what, answer, x.stx_mode, (off_t)x.stx_size, makedev(x.stx_rdev_major, x.stx_rdev_minor));
    }
}

static void rights(const char *path, int given, int denied)
{
    MUST(access(path, F_OK) == 0 && access(path, given) == 0);
    MUST(faccessat(AT_FDCWD, path, given, 0) == 0 && faccessat(-1, path, given, AT_EACCESS) == 0);
    MUST(eaccess(path, given) == 0 && euidaccess(path, given) == 0);
    REFUSED(EACCES, -1, access(path, denied));
    REFUSED(EACCES, -1, faccessat(AT_FDCWD, path, denied, 0));
    REFUSED(EACCES, -1, eaccess(path, denied));
    REFUSED(EACCES, -1, euidaccess(path, denied | given));
    REFUSED(EINVAL, -1, access(path, 99));
}

static int not_dots(const struct dirent *entry) { return entry->d_name[0] != '.'; }
static int not_dots64(const struct dirent64 *entry) { return entry->d_name[0] != '.'; }

static void directories(void)
{
    DIR *folder = opendir(NODES);
    MUST(folder != NULL);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (not_dots(entry)) { MUST(strcmp(entry->d_name, "uverbs0") == 0 || strcmp(entry->d_name, "rdma_cm") == 0 || strcmp(entry->d_name, "umad0") == 0); count++; }
    MUST(count == 3);
    closedir(folder);
    struct dirent **list;
    struct dirent64 **list64;
    MUST(scandir("/sys/class/infiniband/", &list, not_dots, alphasort) == 1 && strcmp(list[0]->d_name, "softhca0") == 0);
    MUST(scandir64("/sys/class/infiniband", &list64, not_dots64, alphasort64) == 1);
    MUST(scandirat(AT_FDCWD, DEVICE "/ports", &list, not_dots, alphasort) == 1 && strcmp(list[0]->d_name, "1") == 0);
    MUST(scandirat64(AT_FDCWD, DEVICE "/ports", &list64, not_dots64, alphasort64) == 1);
    REFUSED(ENOENT, NULL, opendir(NONE));
    REFUSED(ENOTDIR, NULL, opendir(FILE_THERE));
    REFUSED(ENOTDIR, NULL, opendir(NODE));
    REFUSED(ENOTDIR, NULL, opendir(MANAGER));
    REFUSED(ENOENT, -1, scandir(NONE, &list, not_dots, alphasort));
}

static void same(char *name, const char *wanted, int allocated)
{
    if (name == NULL || strcmp(name, wanted) != 0) FAIL("\"%s\" is not \"%s\"", name ? name : "(null)", wanted);
    if (allocated) free(name);
}

static void names(void)
{
    char buffer[PATH_MAX];
    const char *given[][2] = {
        { DEVICE, DEVICE }, { "/sys//class/infiniband/softhca0/./ports/../ports/1/", DEVICE "/ports/1" }, { FILE_THERE, FILE_THERE },
        { "/sys/class/infiniband", "/sys/class/infiniband" }, { NODES "/", NODES }, { NODE, NODE }, { MANAGER, MANAGER }, { "/dev//infiniband/./uverbs0", NODE },
        { "/sys/class/infiniband_verbs/uverbs0/device/vendor", DEVICE "/device/vendor" },
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        const char *path = given[i][0], *wanted = given[i][1];
        MUST(realpath(path, buffer) == buffer);
        same(buffer, wanted, 0);
        same(realpath(path, NULL), wanted, 1);
        same(realpath_chk(path, buffer, sizeof buffer), wanted, 0);
        same(canonicalize_file_name(path), wanted, 1);
    }
    same(realpath("/usr/../dev/null", NULL), "/dev/null", 1);
    REFUSED(ENOENT, NULL, realpath(NONE, buffer));
    REFUSED(ENOENT, NULL, realpath(NODES "/uverbs9", NULL));
    REFUSED(ENOENT, NULL, canonicalize_file_name(NONE));

    const char *link = DEVICE "/device/infiniband/softhca0";
    MUST(readlink(link, buffer, sizeof buffer) > 0 && readlinkat(AT_FDCWD, link, buffer, sizeof buffer) > 0);
    MUST(readlink_chk(link, buffer, sizeof buffer, sizeof buffer) > 0 && readlinkat_chk(AT_FDCWD, link, buffer, sizeof buffer, sizeof buffer) > 0);
    REFUSED(EINVAL, -1, readlink(DEVICE, buffer, sizeof buffer));
    REFUSED(EINVAL, -1, readlink(NODE, buffer, sizeof buffer));
    REFUSED(EINVAL, -1, readlink(MANAGER, buffer, sizeof buffer));
    REFUSED(EINVAL, -1, readlinkat(AT_FDCWD, NODE, buffer, sizeof buffer));
    REFUSED(ENOENT, -1, readlink(NONE, buffer, sizeof buffer));

    REFUSED(ENOENT, -1, getxattr(NONE, "user.x", buffer, sizeof buffer));
    REFUSED(ENOENT, -1, llistxattr(NONE, buffer, sizeof buffer));
    MUST(getxattr(DEVICE, "user.x", buffer, sizeof buffer) == -1 && errno != ENOENT);
    MUST(lgetxattr(DEVICE, "user.x", buffer, sizeof buffer) == -1 && errno != ENOENT);
    MUST((listxattr(DEVICE, buffer, sizeof buffer) >= 0 || errno != ENOENT) && (llistxattr(DEVICE, buffer, sizeof buffer) >= 0 || errno != ENOENT));
}

static void wildcards(void)
{
    glob_t found = { .gl_offs = 1 };
    glob64_t found64;
    MUST(glob("/sys/class/infiniband/*/ports/*/gids/[0-2]", GLOB_DOOFFS, NULL, &found) == 0);
    MUST(found.gl_pathc == 3 && strcmp(found.gl_pathv[1], DEVICE "/ports/1/gids/0") == 0 && found.gl_pathv[0] == NULL);
    MUST(glob(NODES "/uverbs*", GLOB_DOOFFS | GLOB_APPEND, NULL, &found) == 0);
    MUST(found.gl_pathc == 4 && strcmp(found.gl_pathv[4], NODE) == 0);
    globfree(&found);
    MUST(glob64("/dev/infini?and/uverbs0", 0, NULL, &found64) == GLOB_NOMATCH); /* an entry that is not listed is not found */
    MUST(glob64(NODE, 0, NULL, &found64) == 0 && found64.gl_pathc == 1);
    globfree64(&found64);
    MUST(glob(NONE "*", 0, NULL, &found) == GLOB_NOMATCH);
    MUST(glob("/dev/nul[l]", 0, NULL, &found) == 0 && strcmp(found.gl_pathv[0], "/dev/null") == 0);
    globfree(&found);
}

static int seen, nodes_seen;

static int visit(const char *path, const struct stat *st, int kind)
{
    MUST(strncmp(path, "/sys/class/infiniband", 21) == 0 || strncmp(path, NODES, strlen(NODES)) == 0);
    MUST(kind == FTW_F || kind == FTW_D);
    seen++;
    nodes_seen += S_ISCHR(st->st_mode);
    return 0;
}

static int visit_more(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    MUST(kind == FTW_F || kind == FTW_D || kind == FTW_SL || kind == FTW_SLN);
    MUST(path[where->base - 1] == '/' && strchr(path + where->base, '/') == NULL);
    return visit(path, st, kind == FTW_D ? FTW_D : FTW_F);
}

static void walks(void)
{
    const char *tops[] = { DEVICE "/ports", NODES };
    for (int i = 0; i < 2; i++) {
        int counts[4], nodes[4];
        for (int k = 0; k < 4; k++) {
            seen = nodes_seen = 0;
            int answer = k == 0 ? ftw(tops[i], visit, 8) : k == 1 ? ftw64(tops[i], (__ftw64_func_t)visit, 8)
                       : k == 2 ? nftw(tops[i], visit_more, 8, FTW_PHYS) : nftw64(tops[i], (__nftw64_func_t)visit_more, 8, FTW_PHYS | FTW_CHDIR);
            MUST(answer == 0);
            counts[k] = seen;
            nodes[k] = nodes_seen;
        }
        for (int k = 0; k < 4; k++) MUST(counts[k] == counts[0] && nodes[k] == 3 * i);
        MUST(i == 0 ? counts[0] > 50 : counts[0] == 4);
    }
    REFUSED(ENOENT, -1, nftw(NONE, visit_more, 8, FTW_PHYS));
}

static void others(void)
{
    struct stat st;
    MUST(stat("/dev/null", &st) == 0 && minor(st.st_rdev) == 3 && open("/dev/null", O_RDWR) >= 0);
    MUST(access("/sys/class", F_OK) == 0 && access("/", F_OK) == 0 && access("/dev/", F_OK) == 0);
    REFUSED(ENOENT, -1, open("/dev/infiniband2", O_RDONLY));
    REFUSED(ENOENT, -1, open("", O_RDONLY));
    const char *volatile nothing = NULL;
    REFUSED(EFAULT, -1, open(nothing, O_RDONLY));
    REFUSED(EFAULT, -1, stat(nothing, &st));
    /* A file is created with the requested mode. */
    char name[] = "/tmp/softhca-paths-XXXXXX", made[64];
    MUST(mkdtemp(name) != NULL);
    snprintf(made, sizeof made, "%s/file", name);
    umask(0);
    int fd = open(made, O_CREAT | O_EXCL | O_WRONLY, 0642);
    MUST(fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0642);
    close(fd);
    MUST(unlink(made) == 0 && rmdir(name) == 0);
}

static void there(void)
{
    opening_there();
    opening_nodes();
    asking(FILE_THERE, IS_FILE);
    asking(DEVICE, IS_DIRECTORY);
    asking(NODES "/", IS_DIRECTORY);
    asking(NODE, IS_NODE);
    asking(MANAGER, IS_MANAGER);
    rights(NODE, R_OK | W_OK, X_OK);
    rights(MANAGER, R_OK | W_OK, X_OK);
    rights(FILE_THERE, R_OK, W_OK);
    rights(DEVICE, R_OK | X_OK, W_OK);
    directories();
    names();
    wildcards();
    walks();
    others();
    /* Functions that allocate nothing in the C library allocate nothing here. */
    struct stat st;
    struct statx x;
    char buffer[PATH_MAX];
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 100; i++) {
        int fd = open(FILE_THERE, O_RDONLY);
        MUST(fd >= 0 && close(fd) == 0 && stat(NODE, &st) == 0 && statx(AT_FDCWD, NODE, 0, STATX_ALL, &x) == 0);
        MUST(access(NODE, R_OK) == 0 && readlink(DEVICE "/device/infiniband/softhca0", buffer, sizeof buffer) > 0);
        MUST(realpath(NODE, buffer) == buffer);
    }
    MUST(mallinfo2().uordblks == before);
}

static void gone(void)
{
    struct stat st;
    struct statx x;
    struct dirent **list;
    char buffer[PATH_MAX];
    glob_t found;
    const char *paths[] = { "/sys/class/infiniband", DEVICE, FILE_THERE, "/sys/class/infiniband_verbs", NODES, NODE, MANAGER, MADS, MADS_ENTRY, "/sys/class/misc/rdma_cm" };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        const char *path = paths[i];
        REFUSED(ENOENT, -1, open(path, O_RDONLY));
        REFUSED(ENOENT, -1, openat64(AT_FDCWD, path, O_RDONLY));
        REFUSED(ENOENT, NULL, fopen(path, "r"));
        REFUSED(ENOENT, -1, stat(path, &st));
        REFUSED(ENOENT, -1, lstat(path, &st));
        REFUSED(ENOENT, -1, xstat(1, path, &st));
        REFUSED(ENOENT, -1, statx(AT_FDCWD, path, 0, STATX_ALL, &x));
        REFUSED(ENOENT, -1, access(path, F_OK));
        REFUSED(ENOENT, NULL, opendir(path));
        REFUSED(ENOENT, -1, scandir(path, &list, NULL, NULL));
        REFUSED(ENOENT, -1, readlink(path, buffer, sizeof buffer));
        REFUSED(ENOENT, NULL, realpath(path, NULL));
        REFUSED(ENOENT, -1, chdir(path));
        REFUSED(ENOENT, -1, nftw(path, visit_more, 8, 0));
        MUST(glob(path, 0, NULL, &found) == GLOB_NOMATCH);
        MUST(getcwd(buffer, sizeof buffer) == buffer);
    }
}

static void relations(void)
{
    char buffer[PATH_MAX];
    struct stat st;
    int device = open(DEVICE, O_RDONLY | O_DIRECTORY), nodes = open(NODES, O_PATH | O_DIRECTORY);
    MUST(device >= 0 && nodes >= 0);
    holds_text(openat(device, "node_type", O_RDONLY));
    holds_text(openat(device, "ports/../node_type", O_RDONLY));
    MUST(fstatat(nodes, "uverbs0", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == 192);
    MUST(fstatat(nodes, "uverbs0", &st, 0) == 0 && S_ISCHR(st.st_mode));
    MUST(fstatat(nodes, "rdma_cm", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == 120);
    MUST(fstatat(nodes, "umad0", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == 0);
    is_device(openat(nodes, "uverbs0", O_RDWR));
    MUST(faccessat(nodes, "uverbs0", R_OK | W_OK, 0) == 0);

    MUST(chdir(DEVICE "/ports/1") == 0);
    same(getcwd(buffer, sizeof buffer), DEVICE "/ports/1", 0);
    same(getcwd(NULL, 0), DEVICE "/ports/1", 1);
    same(getcwd_chk(buffer, sizeof buffer, sizeof buffer), DEVICE "/ports/1", 0);
    unsetenv("PWD");
    same(get_current_dir_name(), DEVICE "/ports/1", 1);
    same(realpath("../..", NULL), DEVICE, 1);
    MUST(access("state", R_OK) == 0 && access("/proc/self/cwd/state", R_OK) == 0);
    MUST(chdir(NODES) == 0);
    same(getcwd(buffer, sizeof buffer), NODES, 0);
    MUST(lstat("uverbs0", &st) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == 192);
    MUST(lstat("rdma_cm", &st) == 0 && S_ISCHR(st.st_mode) && minor(st.st_rdev) == 120);
    MUST(fchdir(device) == 0);
    same(getcwd(buffer, sizeof buffer), DEVICE, 0);
    MUST(chdir("/") == 0);
    same(getcwd(buffer, sizeof buffer), "/", 0);

    /* A link with this name elsewhere is an ordinary link. */
    char name[] = "/tmp/softhca-paths-XXXXXX";
    MUST(mkdtemp(name) != NULL && chdir(name) == 0 && symlink("/dev/null", "uverbs0") == 0);
    MUST(lstat("uverbs0", &st) == 0 && S_ISLNK(st.st_mode));
    MUST(unlink("uverbs0") == 0 && rmdir(name) == 0);
}

static volatile int rounds;

static void in_a_handler(int signal)
{
    int kept = errno;
    struct stat st;
    char buffer[PATH_MAX];
    (void)signal;
    int fd = open(FILE_THERE, O_RDONLY);
    if (fd < 0 || close(fd) != 0 || stat(NODE, &st) != 0 || !S_ISCHR(st.st_mode) || access(NODE, W_OK) != 0
        || readlink(NODE, buffer, sizeof buffer) != -1 || errno != EINVAL) abort();
    rounds++;
    errno = kept;
}

static void *in_a_thread(void *nothing)
{
    struct stat st;
    char buffer[PATH_MAX];
    for (int i = 0; i < 2000; i++) {
        holds_text(open(FILE_THERE, O_RDONLY));
        MUST(stat(NODE, &st) == 0 && S_ISCHR(st.st_mode));
        MUST(realpath(DEVICE, buffer) == buffer && strcmp(buffer, DEVICE) == 0);
        seen = 0;
    }
    return nothing;
}

static void signals(void)
{
    struct sigaction action = { .sa_handler = in_a_handler, .sa_flags = SA_RESTART };
    struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
    MUST(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) MUST(pthread_create(&threads[i], NULL, in_a_thread, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        free(realpath(DEVICE, NULL));
        free(malloc(100000));
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            struct stat st;
            _exit(stat(NODE, &st) == 0 && access(FILE_THERE, R_OK) == 0 ? 0 : 1);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child && status == 0);
    }
    for (int i = 0; i < 3; i++) MUST(pthread_join(threads[i], NULL) == 0);
    while (rounds < 100) free(malloc(1000));
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "there";
    look_up();
    if (strcmp(what, "there") == 0) there();
    else if (strcmp(what, "gone") == 0) gone();
    else if (strcmp(what, "relations") == 0) relations();
    else if (strcmp(what, "signals") == 0) signals();
    else FAIL("nothing is called %s", what);
    printf("as it should be\n");
    return 0;
}
