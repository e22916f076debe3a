/* large_pages.c - see large_pages.h. */
#include "base/large_pages.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t most_large_page = 32 << 20, run_bytes = 16 << 20; // copied at a time, and for so long there twice

/* What PAGEMAP_SCAN takes (linux/fs.h, since 6.7). */
struct scan {
    uint64_t size, flags, start, end, walk_end, found, n_found, most_pages;
    uint64_t inverted, wanted, wanted_any, told;
};
struct found {
    uint64_t start, end, categories;
};
enum { SCAN_IS_HUGE = 1 << 6 };

static bool first_line(const char *path, char *out, int size) {
    FILE *f = fopen(path, "r");
    bool is_read = f && fgets(out, size, f);
    if (f)
        fclose(f);
    return is_read;
}

/* 0: the system gives none to memory that asks for them. */
static size_t large_page_bytes(void) {
    char line[128];
    unsigned long n;
    if (!first_line("/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof line) || strstr(line, "[never]") ||
        !first_line("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", line, sizeof line))
        return 0;
    return sscanf(line, "%lu", &n) == 1 && n <= most_large_page ? n : 0;
}

/* Whether no page of [at, at + n) is a small one. A system that does not tell keeps files in small ones. */
static bool is_large(int pagemap, uintptr_t at, size_t n) {
    struct found small;
    struct scan s = {.size = sizeof s,
                     .start = at,
                     .end = at + n,
                     .found = (uintptr_t)&small,
                     .n_found = 1,
                     .most_pages = 1,
                     .inverted = SCAN_IS_HUGE,
                     .wanted = SCAN_IS_HUGE,
                     .told = SCAN_IS_HUGE};
    return ioctl(pagemap, _IOWR('f', 16, struct scan), &s) == 0;
}

static bool put(uintptr_t at, size_t n, size_t page) {
    char *room = mmap(NULL, n + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        return false;
    char *copy = room + (page - (uintptr_t)room % page) % page, *behind = copy + n;
    if (copy > room)
        munmap(room, (size_t)(copy - room));
    if (behind < room + n + page)
        munmap(behind, (size_t)(room + n + page - behind));
    madvise(copy, n, MADV_HUGEPAGE);
    memcpy(copy, (const void *)at, n);                 // NOLINT: an address of the map
    bool is_put = mprotect(copy, n, PROT_READ) == 0 && // threads that read it wait in the kernel
                  mremap(copy, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)at) != MAP_FAILED; // NOLINT
    if (!is_put)
        munmap(copy, n);
    return is_put;
}

/* The bytes that are missing; with `stop`, which ends it, those that were put. */
static int64_t walk(const void *begin, size_t n_bytes, const atomic_bool *stop) {
    size_t page = large_page_bytes();
    if (page == 0)
        return 0;
    uintptr_t at = ((uintptr_t)begin + page - 1) / page * page, end = ((uintptr_t)begin + n_bytes) / page * page;
    int64_t sum = 0;
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    for (size_t n; at < end && !(stop && atomic_load(stop)); at += MAX(n, page)) {
        for (n = 0; at + n < end && n < run_bytes && !is_large(pagemap, at + n, page);)
            n += page;
        if (n > 0 && (!stop || put(at, n, page)))
            sum += (int64_t)n;
    }
    if (pagemap >= 0)
        close(pagemap);
    return sum;
}

int64_t large_pages_missing(const void *at, size_t n_bytes) { return walk(at, n_bytes, NULL); }

int64_t large_pages_put(const void *at, size_t n_bytes, const atomic_bool *stop) { return walk(at, n_bytes, stop); }
