/* A program with an allocator of its own, which takes small blocks from large mappings. After a
 * fork of a process with threads, the C library uses its streams, which are such blocks, in the
 * child before any handler runs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include "common.h"

enum { ROOM = 16 << 20, HEADER = 16 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *room, *end;

/* Each block has its size in front of it. */
void *malloc(size_t size)
{
    if (size > ROOM / 2) return NULL;
    pthread_mutex_lock(&lock);
    size_t whole = HEADER + (size + HEADER - 1) / HEADER * HEADER;
    if (room == NULL || (size_t)(end - room) < whole) {
        room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) abort();
        end = room + ROOM;
    }
    char *block = room + HEADER;
    *(size_t *)room = size;
    room += whole;
    pthread_mutex_unlock(&lock);
    return block;
}

void free(void *block) { (void)block; }

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void *realloc(void *block, size_t size)
{
    char *new = malloc(size);
    if (block && new) {
        size_t old = *(size_t *)((char *)block - HEADER);
        memcpy(new, block, old < size ? old : size);
    }
    return new;
}

static void *idles(void *argument)
{
    pause();
    return argument;
}

int main(void)
{
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, idles, NULL) == 0);
    FILE *stream = fopen("/dev/null", "w");
    char *block = malloc(1 << 20);
    MUST(stream && block);
    memset(block, 5, 1 << 20);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 1 << 20; i++) MUST(block[i] == 5);
        MUST(fputs("x", stream) >= 0);
        _exit(0);
    }
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    printf("done\n");
    return 0;
}
