/* file.c - see file.h. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Live maps, as the signal handler sees them. A slot is published by storing `end` last. */
enum { MAX_MAPS = 4096 };
static struct {
    _Atomic uintptr_t begin, end;
    atomic_int damaged;
} maps[MAX_MAPS];
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction previous_handler;
static uintptr_t page_bytes; // read by the handler, set before it is installed

static void on_sigbus(int signo, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t fault = (uintptr_t)info->si_addr;
    for (int i = 0; i < MAX_MAPS; i++) {
        uintptr_t end = atomic_load(&maps[i].end), begin = atomic_load(&maps[i].begin);
        if (fault < begin || fault >= end)
            continue;
        void *at = (void *)(fault & ~(page_bytes - 1)); // NOLINT: addresses of our own map
        if (mmap(at, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at) {
            atomic_store(&maps[i].damaged, 1);
            return;
        }
    }
    // Not ours: let the default action (or whoever was there before) have it when the access repeats.
    sigaction(signo, &previous_handler, NULL);
}

static int register_map(const char *bytes, size_t n_bytes) {
    static bool installed;
    pthread_mutex_lock(&maps_lock);
    if (!installed) {
        page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
        struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_RESTART};
        sigaction(SIGBUS, &action, &previous_handler);
        installed = true;
    }
    int slot = -1;
    for (int i = 0; i < MAX_MAPS && slot < 0; i++)
        if (atomic_load(&maps[i].end) == 0)
            slot = i;
    if (slot >= 0) {
        atomic_store(&maps[slot].damaged, 0);
        atomic_store(&maps[slot].begin, (uintptr_t)bytes);
        atomic_store(&maps[slot].end, (uintptr_t)bytes + n_bytes);
    }
    pthread_mutex_unlock(&maps_lock);
    return slot;
}

static enum status open_regular(const char *path, int *fd, size_t *n_bytes, struct error *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return fail(err, ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    struct stat st;
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        return fail(err, ERR_IO, "%s: not a regular file", path);
    }
    *n_bytes = (size_t)st.st_size;
    return OK;
}

enum status file_map_open(struct file_map *map, const char *path, size_t max_bytes, struct error *err) {
    *map = (struct file_map){.bytes = "", .slot = -1};
    int fd;
    size_t n_bytes = 0;
    TRY(open_regular(path, &fd, &n_bytes, err));
    if (max_bytes && n_bytes > max_bytes) {
        close(fd);
        return fail(err, ERR_LIMIT, "%s: has %zu bytes, the limit is %zu", path, n_bytes, max_bytes);
    }
    if (n_bytes == 0) {
        close(fd);
        return OK;
    }
    void *p = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    int saved = errno;
    close(fd);
    if (p == MAP_FAILED)
        return fail(err, ERR_IO, "%s: cannot map: %s", path, strerror(saved));
    *map = (struct file_map){.bytes = p, .n_bytes = n_bytes, .slot = register_map(p, n_bytes)};
    if (map->slot < 0) {
        munmap(p, n_bytes);
        *map = (struct file_map){.bytes = "", .slot = -1};
        return fail(err, ERR_LIMIT, "%s: more than %d files are mapped", path, MAX_MAPS);
    }
    return OK;
}

enum status file_map_copy(struct file_map *map, const char *path, size_t shift, struct error *err) {
    if (map->n_bytes == 0)
        return OK;
    char *p = mmap(NULL, map->n_bytes + shift, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return fail(err, ERR_MEMORY, "%s: no memory for a copy of its %zu bytes", path, map->n_bytes);
    memcpy(p + shift, map->bytes, map->n_bytes);
    mprotect(p, map->n_bytes + shift, PROT_READ);
    atomic_store(&maps[map->slot].begin, UINTPTR_MAX); // no address is the slot's now; it knows what the copy lost
    munmap((void *)(map->bytes - map->shift), map->n_bytes + map->shift);
    map->bytes = p + shift;
    map->shift = shift;
    return OK;
}

void file_map_close(struct file_map *map) {
    if (map->n_bytes) {
        atomic_store(&maps[map->slot].end, 0);
        munmap((void *)(map->bytes - map->shift), map->n_bytes + map->shift);
    }
    *map = (struct file_map){.bytes = "", .slot = -1};
}

bool file_map_damaged(const struct file_map *map) { return map->n_bytes && atomic_load(&maps[map->slot].damaged); }

enum status file_read(const char *path, size_t max_bytes, struct buf *out, struct error *err) {
    bool is_stdin = strcmp(path, "-") == 0;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(err, ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    enum status st = OK;
    size_t start = out->len;
    for (;;) {
        buf_reserve(out, 64 * 1024);
        ssize_t n = read(fd, out->ptr + out->len, 64 * 1024);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = fail(err, ERR_IO, "%s: cannot read: %s", path, strerror(errno));
            break;
        }
        out->len += (size_t)n;
        out->ptr[out->len] = '\0';
        if (n == 0)
            break;
        if (max_bytes && out->len - start > max_bytes) {
            st = fail(err, ERR_LIMIT, "%s: has more than %zu bytes", path, max_bytes);
            break;
        }
    }
    if (!is_stdin)
        close(fd);
    return st;
}

enum status file_write(const char *path, struct str bytes, struct error *err) {
    char temporary[4096];
    int n = snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    if (n < 0 || (size_t)n >= sizeof temporary)
        return fail(err, ERR_LIMIT, "%s: path too long", path);
    int fd = mkstemp(temporary);
    if (fd < 0)
        return fail(err, ERR_IO, "%s: cannot create: %s", path, strerror(errno));
    size_t done = 0;
    while (done < bytes.len) {
        ssize_t w = write(fd, bytes.ptr + done, bytes.len - done);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            break;
        done += (size_t)w;
    }
    bool written = done == bytes.len && fchmod(fd, 0644) == 0;
    int saved = errno;
    if (close(fd) != 0 || !written || rename(temporary, path) != 0) {
        if (written)
            saved = errno;
        unlink(temporary);
        return fail(err, ERR_IO, "%s: cannot write: %s", path, strerror(saved));
    }
    return OK;
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum status path_join(char *out, size_t out_bytes, const char *dir, const char *name, struct error *err) {
    size_t n_dir = strlen(dir);
    const char *slash = n_dir && dir[n_dir - 1] != '/' ? "/" : "";
    int n = snprintf(out, out_bytes, "%s%s%s", dir, slash, name);
    if (n < 0 || (size_t)n >= out_bytes)
        return fail(err, ERR_LIMIT, "%.80s...: path too long", dir);
    return OK;
}
