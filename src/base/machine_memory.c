/* machine_memory.c - see machine_memory.h. Formats: proc_meminfo(5), cgroups(7), the kernel's cgroup-v1/memory and
 * cgroup-v2. */
#include "base/machine_memory.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

enum { MAX_FILE = 1 << 20, PATH_BYTES = 4096 };
static const int64_t assumed = (int64_t)4 << 30, unbounded = INT64_MAX;

/* Where a control group's files are, by version. */
struct group_files {
    const char *folder; // below the root
    const char *most, *high, *used;
    const char *inactive, *active; // lines of memory.stat: file pages, which can be dropped
};
static const struct group_files versions[] = {
    {"sys/fs/cgroup", "memory.max", "memory.high", "memory.current", "inactive_file ", "active_file "},
    {"sys/fs/cgroup/unified", "memory.max", "memory.high", "memory.current", "inactive_file ", "active_file "},
    {"sys/fs/cgroup/memory", "memory.limit_in_bytes", NULL, "memory.usage_in_bytes", "total_inactive_file ",
     "total_active_file "},
};

static bool read_small(const char *path, struct buf *out) {
    buf_clear(out);
    return file_read(path, MAX_FILE, out, NULL) == OK && out->len > 0;
}

/* The number behind `name` at a line's beginning; -1 where there is none. */
static int64_t line_value(const struct buf *text, const char *name) {
    for (const char *p = text->ptr; p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, name, strlen(name)) == 0)
            return strtoll(p + strlen(name), NULL, 10);
    }
    return -1;
}

/* A file that is one number; -1 where there is none, and for the word max. */
static int64_t file_value(const char *folder, const char *name, struct buf *text) {
    char path[PATH_BYTES], *end;
    if (!name || path_join(path, sizeof path, folder, name, NULL) != OK || !read_small(path, text))
        return -1;
    int64_t value = strtoll(text->ptr, &end, 10);
    return end > text->ptr ? value : -1;
}

static void bound(struct machine_memory *m, int64_t total, int64_t available, const char *whose) {
    if (available >= m->available)
        return;
    *m = (struct machine_memory){MIN(m->total, total), MAX(available, 0), whose, total};
}

/* One group's own limit, where it has one. */
static void bound_by_group(const struct group_files *f, const char *folder, struct buf *text,
                           struct machine_memory *m) {
    int64_t most = file_value(folder, f->most, text), high = file_value(folder, f->high, text),
            used = file_value(folder, f->used, text);
    char path[PATH_BYTES];
    if (high >= 0 && (most < 0 || high < most))
        most = high;
    if (most < 0 || used < 0)
        return;
    int64_t files = 0;
    if (path_join(path, sizeof path, folder, "memory.stat", NULL) == OK && read_small(path, text))
        files = MAX(line_value(text, f->inactive), 0) + MAX(line_value(text, f->active), 0);
    m->total = MIN(m->total, most); // a limit that is not the tightest now may be later
    bound(m, most, most - MAX(used - files, 0), "the control group's");
}

/* The group at `path` and all above it, each of which bounds those below. In a container the path may be the host's:
 * then it leads nowhere here, and the folder itself is the group. */
static void bound_by_groups(const char *root, const struct group_files *f, struct str path, struct buf *text,
                            struct machine_memory *m) {
    char folder[PATH_BYTES];
    int n_top = snprintf(folder, sizeof folder, "%s/%s", root, f->folder);
    if (n_top < 0 || (size_t)n_top + path.len + 2 > sizeof folder)
        return;
    snprintf(folder + n_top, sizeof folder - (size_t)n_top, "%.*s", STR_ARG(path));
    for (;;) {
        bound_by_group(f, folder, text, m);
        char *slash = strrchr(folder + n_top, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* /proc/self/cgroup: lines of NUMBER:CONTROLLERS:PATH; number 0 and no controllers is version 2. */
static void read_groups(const char *root, struct machine_memory *m) {
    char path[PATH_BYTES];
    struct buf list = {0}, text = {0};
    if (path_join(path, sizeof path, root, "proc/self/cgroup", NULL) != OK || !read_small(path, &list))
        goto done;
    for (char *line = list.ptr, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *controllers = strchr(line, ':'), *at = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!at)
            continue;
        *at++ = '\0';
        bool is_2 = strcmp(line, "0:") == 0,
             is_1 = strcmp(controllers, ":memory") == 0 || strstr(controllers, ",memory") != NULL;
        for (size_t i = 0; i < ARRAY_LEN(versions); i++)
            if (versions[i].high ? is_2 : is_1)
                bound_by_groups(root, &versions[i], str_of(at), &text, m);
    }
done:
    buf_release(&list);
    buf_release(&text);
}

static void read_machine(const char *root, struct machine_memory *m) {
    char path[PATH_BYTES];
    struct buf text = {0};
    int64_t total = -1, available = -1;
    if (path_join(path, sizeof path, root, "proc/meminfo", NULL) == OK && read_small(path, &text)) {
        total = line_value(&text, "MemTotal:");
        available = line_value(&text, "MemAvailable:");
    }
    buf_release(&text);
    struct sysinfo info;
    if (total <= 0 && strcmp(root, "/") == 0 && sysinfo(&info) == 0) { // /proc is not mounted
        total = (int64_t)(info.totalram * info.mem_unit) >> 10;
        available = (int64_t)((info.freeram + info.bufferram) * info.mem_unit) >> 10;
    }
    if (total > 0)
        *m = (struct machine_memory){total << 10, (available >= 0 ? available : total) << 10, "the machine's",
                                     total << 10};
}

void machine_memory_read(const char *root, struct machine_memory *out) {
    *out = (struct machine_memory){unbounded, unbounded, "the machine's", unbounded};
    read_machine(root, out);
    read_groups(root, out);
    if (out->total == unbounded)
        *out = (struct machine_memory){assumed, assumed, "the machine's", assumed};
}

/* ulimit -v counts addresses, mapped files among them. */
static void bound_by_rlimit(struct machine_memory *m) {
    struct rlimit limit;
    struct buf text = {0};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < (rlim_t)m->total) {
        int64_t used = read_small("/proc/self/statm", &text) ? strtoll(text.ptr, NULL, 10) * sysconf(_SC_PAGE_SIZE) : 0;
        bound(m, (int64_t)limit.rlim_cur, (int64_t)limit.rlim_cur - used, "ulimit -v's");
    }
    buf_release(&text);
}

void machine_memory_get(struct machine_memory *out) {
    machine_memory_read("/", out);
    bound_by_rlimit(out);
}
