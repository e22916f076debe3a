/* inject.c - a library that makes one call of the C library fail, as a machine does that is short of something, or
 * hang, as one does whose disk is far away. Loaded before gyre by LD_PRELOAD, so that the calls of its libraries fail,
 * too (libmicrohttpd, jansson, PCRE2, GnuTLS).
 *
 * GYRE_INJECT names a file with a struct plan, which test and program map at once (tests/cli/rig/failing.py): of the
 * call that it names, calls of at least so many bytes are counted, and the one that brings `countdown` to 0 fails. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum call { NONE, MALLOC, READ, RECV, WRITE, SEND, ACCEPT, EPOLL_CTL, EPOLL_WAIT, THREAD, OPEN, SOCKET, MMAP };

struct plan {
    _Atomic int64_t call, error, least_bytes;
    _Atomic int64_t countdown; // 0: none is to fail
    _Atomic int64_t run;       // how many fail in a row from there
    _Atomic int64_t n_calls, n_failed;
    _Atomic int64_t hang_s; // it takes so long, and does not fail; 0: it fails
};

static struct plan *plan;

__attribute__((constructor)) static void open_plan(void) {
    const char *path = getenv("GYRE_INJECT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (at != MAP_FAILED)
        plan = at;
}

/* Whether this call is the one; errno is set then. */
static int fails(enum call call, size_t n_bytes) {
    if (!plan || call == NONE || plan->call != call || (int64_t)n_bytes < plan->least_bytes)
        return 0;
    plan->n_calls++;
    if (plan->countdown <= 0)
        return 0;
    int64_t left = atomic_fetch_sub(&plan->countdown, 1) - 1;
    if (left < 0 || left >= plan->run)
        return 0;
    plan->n_failed++;
    if (plan->hang_s > 0) {
        sleep((unsigned)plan->hang_s);
        return 0;
    }
    errno = (int)plan->error;
    return 1;
}

void *__libc_malloc(size_t n_bytes);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *ptr, size_t n_bytes);
void *__libc_memalign(size_t alignment, size_t n_bytes);

void *malloc(size_t n_bytes) { return fails(MALLOC, n_bytes) ? NULL : __libc_malloc(n_bytes); }
void *calloc(size_t n, size_t size) { return fails(MALLOC, n * size) ? NULL : __libc_calloc(n, size); }
void *realloc(void *ptr, size_t n_bytes) {
    return n_bytes && fails(MALLOC, n_bytes) ? NULL : __libc_realloc(ptr, n_bytes);
}
void *aligned_alloc(size_t alignment, size_t n_bytes) {
    return fails(MALLOC, n_bytes) ? NULL : __libc_memalign(alignment, n_bytes);
}
int posix_memalign(void **out, size_t alignment, size_t n_bytes) {
    if (fails(MALLOC, n_bytes))
        return ENOMEM;
    return (*out = __libc_memalign(alignment, n_bytes)) ? 0 : ENOMEM;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
/* A function that calls the library's own, unless it is to fail. */
#define WRAP(call, n_bytes, type, failed, name, parameters, arguments) \
    type name parameters {                                             \
        static __typeof__(&name) next;                                 \
        if (!next)                                                     \
            next = NEXT(name);                                         \
        return fails(call, n_bytes) ? failed : next arguments;         \
    }

WRAP(READ, n, ssize_t, -1, read, (int fd, void *to, size_t n), (fd, to, n))
WRAP(READ, n, ssize_t, -1, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at))
WRAP(RECV, n, ssize_t, -1, recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags))
WRAP(RECV, 0, ssize_t, -1, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags))
WRAP(WRITE, n, ssize_t, -1, write, (int fd, const void *from, size_t n), (fd, from, n))
WRAP(SEND, n, ssize_t, -1, send, (int fd, const void *from, size_t n, int flags), (fd, from, n, flags))
WRAP(SEND, 0, ssize_t, -1, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
WRAP(SEND, 0, ssize_t, -1, writev, (int fd, const struct iovec *v, int n), (fd, v, n))
WRAP(ACCEPT, 0, int, -1, accept, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
WRAP(ACCEPT, 0, int, -1, accept4, (int fd, struct sockaddr *a, socklen_t *n, int flags), (fd, a, n, flags))
// What is removed needs no memory, so that this does not fail.
WRAP(op == EPOLL_CTL_DEL ? NONE : EPOLL_CTL, 0, int, -1, epoll_ctl, (int e, int op, int fd, struct epoll_event *event),
     (e, op, fd, event))
WRAP(EPOLL_WAIT, 0, int, -1, epoll_wait, (int e, struct epoll_event *to, int n, int ms), (e, to, n, ms))
WRAP(SOCKET, 0, int, -1, socket, (int domain, int type, int protocol), (domain, type, protocol))
WRAP(SOCKET, 0, int, -1, bind, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
WRAP(SOCKET, 0, int, -1, listen, (int fd, int n), (fd, n))
WRAP(SOCKET, 0, int, -1, epoll_create1, (int flags), (flags))
WRAP(SOCKET, 0, int, -1, eventfd, (unsigned value, int flags), (value, flags))
WRAP(OPEN, 0, FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode))
WRAP(MMAP, n, void *, MAP_FAILED, mmap, (void *at, size_t n, int protection, int flags, int fd, off_t offset),
     (at, n, protection, flags, fd, offset))
WRAP(THREAD, 0, int, EAGAIN, pthread_create,
     (pthread_t * t, const pthread_attr_t *attributes, void *(*run)(void *), void *argument),
     (t, attributes, run, argument))

int open(const char *path, int flags, ...) {
    static int (*next)(const char *, int, ...);
    if (!next)
        next = NEXT(open);
    if (fails(OPEN, 0))
        return -1;
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return next(path, flags, mode);
}
