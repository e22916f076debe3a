/* fuzz_plan_cache.c - any bytes as the CUDA backend's file of timed products: read as it was written, or as if it were
 * not there. If the first byte is odd, the rest stands between a right head and a right end. */
#include "backend/cuda/linear/plan_cache.c" // part of the CUDA backend, which this build need not have

#include <fcntl.h>
#include <sys/mman.h>

static const char machine[] = "a card";

static void write_file(const char *path, const uint8_t *bytes, size_t n) {
    struct buf text = {0};
    if (n && bytes[0] & 1) {
        buf_printf(&text, "%s%s\n", FIRST_LINE, machine);
        buf_append(&text, bytes + 1, n - 1);
        size_t lines = 0;
        for (size_t i = 1; i < n; i++)
            lines += bytes[i] == '\n';
        buf_printf(&text, "end %zu %llx\n", lines, (unsigned long long)XXH3_64bits(text.ptr, text.len));
    } else {
        buf_append(&text, bytes, n);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    BUG_IF(fd < 0 || write(fd, text.ptr, text.len) != (ssize_t)text.len);
    close(fd);
    buf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    char path[64];
    struct error err;
    snprintf(path, sizeof path, "/tmp/gyre-fuzz-plans-%d", (int)getpid());
    write_file(path, bytes, n_bytes);
    struct plan_cache *c = plan_cache_open(path, machine);
    size_t n = c->n, n_timed = 0;
    BUG_IF(n > PLAN_MOST || (n > 0 && !(bytes[0] & 1))); // a hash is not met by chance
    for (size_t i = 0; i < n; i++) {
        BUG_IF(!plan_cache_find(c, &c->plans[i].key));
        n_timed += c->plans[i].choice.us > 0; // others are not written
    }
    c->changed = true;
    BUG_IF(plan_cache_save(c, &err) != OK);
    plan_cache_free(c);
    c = plan_cache_open(path, machine);
    BUG_IF(c->n != n_timed);
    plan_cache_free(c);
    unlink(path);
    return 0;
}
