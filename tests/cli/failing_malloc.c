/* failing_malloc.c - preloaded into a server: the n-th allocation from now on fails, once. Not a test itself.
 *
 * The file that GYRE_FAIL names is mapped by server and test: a count of allocations that may still succeed (negative: all), and one of those
 * that have failed. glibc only. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

struct shared {
    atomic_long left, n_failed;
};
static struct shared *shared;

__attribute__((constructor)) static void attach(void) {
    int fd = open(getenv("GYRE_FAIL") ? getenv("GYRE_FAIL") : "", O_RDWR);
    void *at = fd >= 0 ? mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    shared = at == MAP_FAILED ? NULL : at;
}

static int fails(void) {
    if (!shared || atomic_load(&shared->left) < 0 || atomic_fetch_sub(&shared->left, 1) != 0)
        return 0;
    atomic_fetch_add(&shared->n_failed, 1);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return fails() ? NULL : __libc_realloc(p, n); }
