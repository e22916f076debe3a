/* plan_cache.c - see plan_cache.h.
 *
 *     gyre CUDA plans 3
 *     NVIDIA H200, 132 multiprocessors, driver 13000, cuBLASLt 130001, kernels 5e09...
 *     16 4608 3584 4 4 0 1 256 256 0 0 1 7.04 2a 0 ...        a plan: the key, the path, microseconds, eight words in
 *                                                             hexadecimal
 *     end 1 5f0c...                                           how many, and a hash of all before this line */
#include "backend/cuda/linear/plan_cache.h"

#include "base/buf.h"
#include "base/file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FIRST_LINE "gyre CUDA plans 3\n"
enum { MOST_BYTES = 8 << 20, KEY_FIELDS = sizeof(struct plan_key) / sizeof(int32_t) };

struct plan {
    struct plan_key key;
    struct plan_choice choice;
};

struct plan_cache {
    char *path, *machine;
    struct plan *plans;
    size_t n, capacity, last; // last: where the last search ended, as the next goes on from there
    bool changed;
};

// ---- reading ----------------------------------------------------------------------------------------------------

/* A reader of numbers that are parted by single blanks and line ends; it stops for good at what is neither. */
struct reader {
    const char *at, *end;
    bool bad;
};

static void expect(struct reader *r, const char *text) {
    size_t n = strlen(text);
    r->bad = r->bad || (size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0;
    if (!r->bad)
        r->at += n;
}

static uint64_t read_number(struct reader *r, unsigned base, uint64_t most) {
    uint64_t n = 0;
    int digits = 0;
    for (; !r->bad && r->at < r->end; r->at++, digits++) {
        unsigned char c = (unsigned char)*r->at;
        unsigned digit = c >= '0' && c <= '9' ? c - '0' + 0u : c >= 'a' && c <= 'f' ? c - 'a' + 10u : 99;
        if (digit >= base)
            break;
        if (digits >= 16 || n > (most - digit) / base)
            r->bad = true;
        else
            n = n * base + digit;
    }
    r->bad = r->bad || digits == 0;
    return n;
}

static struct plan read_plan(struct reader *r) {
    struct plan p = {.choice.is_checked = false};
    int32_t fields[KEY_FIELDS];
    for (int i = 0; i < KEY_FIELDS; i++) {
        fields[i] = (int32_t)read_number(r, 10, INT32_MAX);
        expect(r, " ");
    }
    memcpy(&p.key, fields, sizeof p.key);
    p.choice.path = (int32_t)read_number(r, 10, 255);
    expect(r, " ");
    p.choice.us = (double)read_number(r, 10, 1u << 30);
    expect(r, ".");
    p.choice.us += (double)read_number(r, 10, 99) / 100;
    for (int i = 0; i < PLAN_WORDS; i++) {
        expect(r, " ");
        p.choice.algorithm[i] = read_number(r, 16, UINT64_MAX);
    }
    expect(r, "\n");
    return p;
}

static bool starts(const struct reader *r, const char *text) {
    size_t n = strlen(text);
    return (size_t)(r->end - r->at) >= n && memcmp(r->at, text, n) == 0;
}

static void add(struct plan_cache *c, const struct plan *p) {
    if (c->n == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 256;
        c->plans = xrealloc(c->plans, c->capacity, sizeof *c->plans);
    }
    c->plans[c->n++] = *p;
}

static bool read_plans(struct plan_cache *c, struct str text) {
    struct reader r = {text.ptr, text.ptr + text.len, false};
    expect(&r, FIRST_LINE);
    expect(&r, c->machine);
    expect(&r, "\n");
    while (!r.bad && !starts(&r, "end ") && c->n < PLAN_MOST) {
        struct plan p = read_plan(&r);
        if (!r.bad)
            add(c, &p);
    }
    uint64_t hash = XXH3_64bits(text.ptr, (size_t)(r.at - text.ptr));
    expect(&r, "end ");
    r.bad = r.bad || read_number(&r, 10, PLAN_MOST) != c->n;
    expect(&r, " ");
    r.bad = r.bad || read_number(&r, 16, UINT64_MAX) != hash;
    expect(&r, "\n");
    return !r.bad && r.at == r.end;
}

/* A regular file of ours that nobody else may write to. */
static bool is_ours(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() &&
           (s.st_mode & (S_IWGRP | S_IWOTH)) == 0 && s.st_size <= MOST_BYTES;
}

struct plan_cache *plan_cache_open(const char *path, const char *machine) {
    struct plan_cache *c = xcalloc(1, sizeof *c);
    struct buf text = {0};
    struct error err;
    c->path = path ? xstrdup(path) : NULL;
    c->machine = xstrdup(machine);
    if (path && is_ours(path) && file_read(path, MOST_BYTES, &text, &err) == OK && !read_plans(c, buf_view(&text)))
        c->n = 0;
    buf_release(&text);
    return c;
}

void plan_cache_free(struct plan_cache *c) {
    if (!c)
        return;
    free(c->path);
    free(c->machine);
    free(c->plans);
    free(c);
}

// ---- use --------------------------------------------------------------------------------------------------------

/* Layers ask for the same plans in the same order, so the one behind the last is nearly always it. */
struct plan_choice *plan_cache_find(struct plan_cache *c, const struct plan_key *key) {
    for (size_t i = 1; i <= c->n; i++) {
        size_t at = (c->last + i) % c->n;
        if (memcmp(&c->plans[at].key, key, sizeof *key) == 0) {
            c->last = at;
            return &c->plans[at].choice;
        }
    }
    return NULL;
}

void plan_cache_add(struct plan_cache *c, const struct plan_key *key, const struct plan_choice *choice) {
    struct plan p = {*key, *choice};
    struct plan_choice *old = plan_cache_find(c, key);
    if (old)
        *old = *choice;
    else
        add(c, &p);
    c->changed = c->changed || choice->us > 0;
}

// ---- writing ----------------------------------------------------------------------------------------------------

static void write_plan(struct buf *out, const struct plan *p) {
    int32_t fields[KEY_FIELDS];
    memcpy(fields, &p->key, sizeof p->key);
    for (int i = 0; i < KEY_FIELDS; i++)
        buf_printf(out, "%d ", fields[i]);
    long long hundredths = llround(fmin(fmax(p->choice.us, 0), 1e9) * 100);
    buf_printf(out, "%d %lld.%02lld", p->choice.path, hundredths / 100, hundredths % 100);
    for (int i = 0; i < PLAN_WORDS; i++)
        buf_printf(out, " %llx", (unsigned long long)p->choice.algorithm[i]);
    buf_push(out, '\n');
}

static enum status make_folders(const char *path, struct error *err) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return fail(err, ERR_IO, "%s: %s", folder, strerror(errno));
        *slash = '/';
    }
    return OK;
}

enum status plan_cache_save(struct plan_cache *c, struct error *err) {
    if (!c->path || !c->changed || c->n > PLAN_MOST)
        return OK;
    TRY(make_folders(c->path, err));
    struct buf out = {0};
    buf_printf(&out, "%s%s\n", FIRST_LINE, c->machine);
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++)
        if (c->plans[i].choice.us > 0 && ++n)
            write_plan(&out, &c->plans[i]);
    uint64_t hash = XXH3_64bits(out.ptr, out.len);
    buf_printf(&out, "end %zu %llx\n", n, (unsigned long long)hash);
    enum status st = file_write(c->path, buf_view(&out), err);
    buf_release(&out);
    c->changed = st != OK;
    return st;
}

bool plan_cache_path(char *out, size_t out_bytes, const char *machine) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *below = "";
    if (!cache || cache[0] != '/') {
        cache = home;
        below = "/.cache";
    }
    if (!cache || cache[0] != '/')
        return false;
    unsigned long long hash = XXH3_64bits(machine, strlen(machine));
    int n = snprintf(out, out_bytes, "%s%s/gyre/cuda-plans-%016llx", cache, below, hash);
    return n > 0 && (size_t)n < out_bytes;
}
