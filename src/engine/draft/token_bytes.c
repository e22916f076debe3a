/* token_bytes.c - see token_bytes.h. */
#include "engine/draft/token_bytes.h"

#include "base/str.h"

#include <stdlib.h>
#include <string.h>

// ---- the table --------------------------------------------------------------------------------------------------

static int compare(const struct token_bytes *t, int32_t a, int32_t b) {
    int n = token_length(t, a), m = token_length(t, b),
        order = memcmp(token_at(t, a), token_at(t, b), (size_t)MIN(n, m));
    return order ? order : n != m ? n - m : (a > b) - (a < b);
}

static void merge(const struct token_bytes *t, const int32_t *from, int32_t first, int32_t middle, int32_t end,
                  int32_t *to) {
    for (int32_t i = first, j = middle, k = first; k < end; k++)
        to[k] = j >= end || (i < middle && compare(t, from[i], from[j]) <= 0) ? from[i++] : from[j++];
}

/* From runs of 1 to runs of all. */
static void sort(struct token_bytes *t) {
    int32_t n = t->n_sorted, *other = xcalloc((size_t)n + 1, sizeof *other);
    for (int32_t run = 1; run < n; run *= 2) {
        for (int32_t first = 0; first < n; first += 2 * run)
            merge(t, t->sorted, first, MIN(first + run, n), MIN(first + 2 * run, n), other);
        int32_t *kept = t->sorted;
        t->sorted = other;
        other = kept;
    }
    free(other);
}

static void drop_equals(struct token_bytes *t) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_sorted; i++) {
        int32_t id = t->sorted[i], length = token_length(t, id);
        bool is_same = n > 0 && token_length(t, t->sorted[n - 1]) == length &&
                       memcmp(token_at(t, t->sorted[n - 1]), token_at(t, id), (size_t)length) == 0;
        if (!is_same)
            t->sorted[n++] = id;
    }
    t->n_sorted = n;
}

static void fill_range(struct token_bytes *t) {
    int32_t i = 0;
    for (int byte = 0; byte <= 256; byte++) {
        while (i < t->n_sorted && (unsigned char)*token_at(t, t->sorted[i]) < byte)
            i++;
        t->range[byte] = i;
    }
}

enum status token_bytes_init(struct token_bytes *t, const struct gyre_token_bytes *from, int32_t n_vocab,
                             struct error *err) {
    int32_t n = MIN(from->n, n_vocab);
    *t = (struct token_bytes){.n = n, .first = from->first >= 0 && from->first < n ? from->first : -1};
    if (n < 1 || !from->start || !from->bytes)
        return fail(err, ERR_ARG, "token bytes: there are none of %d tokens", from->n);
    for (int32_t i = 0; i < from->n; i++)
        if (from->start[i] > from->start[i + 1])
            return fail(err, ERR_ARG, "token bytes: token %d ends before it begins", i);
    t->bytes = xcalloc((size_t)from->start[n] + 1, 1);
    t->start = xcalloc((size_t)n + 1, sizeof *t->start);
    t->sorted = xcalloc((size_t)n + 1, sizeof *t->sorted);
    t->cost = xcalloc(MOST_CUT_BYTES + 1, sizeof *t->cost);
    t->chosen = xcalloc(MOST_CUT_BYTES + 1, sizeof *t->chosen);
    for (int32_t i = 0; i < n; i++) {
        uint32_t length = from->start[i + 1] - from->start[i];
        length = length <= MOST_TOKEN_BYTES ? length : 0;
        memcpy(t->bytes + t->start[i], from->bytes + from->start[i], length);
        t->start[i + 1] = t->start[i] + length;
        if (length > 0)
            t->sorted[t->n_sorted++] = i;
    }
    sort(t);
    drop_equals(t);
    fill_range(t);
    return OK;
}

void token_bytes_release(struct token_bytes *t) {
    free(t->bytes);
    free(t->start);
    free(t->sorted);
    free(t->cost);
    free(t->chosen);
    *t = (struct token_bytes){0};
}

/* What a token adds to a text; of special tokens, and where there is no such token, nothing. */
static struct str text_of(const struct gyre_token_bytes *t, int32_t id) {
    if (id >= t->n || t->start[id + 1] <= t->start[id])
        return (struct str){"", 0};
    struct str s = {t->bytes + t->start[id], t->start[id + 1] - t->start[id]};
    return s.len > 1 && (unsigned char)*s.ptr == 0xff ? (struct str){"", 0} : s;
}

bool token_bytes_equal(const struct gyre_token_bytes *a, const struct gyre_token_bytes *b) {
    if (MIN(a->n, b->n) < 1 || !a->start || !b->start || !a->bytes || !b->bytes)
        return false; // token_bytes_init says so
    int32_t n = MAX(a->n, b->n), i = 0;
    while (i < n && str_eq(text_of(a, i), text_of(b, i)))
        i++;
    return i == n;
}

bool token_is_special(const struct token_bytes *t, int32_t id) {
    return token_length(t, id) > 1 && (unsigned char)*token_at(t, id) == 0xff;
}

// ---- texts ------------------------------------------------------------------------------------------------------

/* Tokens of `sorted` that begin alike. */
struct range {
    int32_t first, end;
};

/* Of tokens that agree in `depth` bytes the first whose next byte is `byte` or more. Shorter ones come before. */
static int32_t lower(const struct token_bytes *t, struct range r, int depth, int byte) {
    while (r.first < r.end) {
        int32_t middle = r.first + (r.end - r.first) / 2, id = t->sorted[middle];
        int here = token_length(t, id) > depth ? (unsigned char)token_at(t, id)[depth] : -1;
        if (here < byte)
            r.first = middle + 1;
        else
            r.end = middle;
    }
    return r.first;
}

static struct range narrow(const struct token_bytes *t, struct range r, int depth, int byte) {
    if (depth == 0)
        return (struct range){t->range[byte], t->range[byte + 1]};
    int32_t first = lower(t, r, depth, byte);
    return (struct range){first, lower(t, (struct range){first, r.end}, depth, byte + 1)};
}

int32_t token_find(const struct token_bytes *t, const char *bytes, int n) {
    struct range r = {0, t->n_sorted};
    for (int i = 0; i < n && r.first < r.end; i++)
        r = narrow(t, r, i, (unsigned char)bytes[i]);
    return n > 0 && r.first < r.end && token_length(t, t->sorted[r.first]) == n ? t->sorted[r.first] : -1;
}

/* Of the bytes from i on. */
static void choose(struct token_bytes *t, const char *bytes, int n, int i) {
    enum { LEFT_OUT = 16 }; // tokens that a byte counts as that none has
    struct range r = {0, t->n_sorted};
    t->chosen[i] = -1;
    t->cost[i] = t->cost[i + 1] + ((int64_t)LEFT_OUT << 32);
    for (int k = 0; i + k < n; k++) {
        r = narrow(t, r, k, (unsigned char)bytes[i + k]);
        if (r.first >= r.end)
            return;
        int32_t id = t->sorted[r.first];
        int64_t cost = t->cost[MIN(i + k + 1, n)] + ((int64_t)1 << 32) + id;
        if (token_length(t, id) == k + 1 && cost < t->cost[i]) {
            t->chosen[i] = id;
            t->cost[i] = cost;
        }
    }
}

int token_bytes_cut(struct token_bytes *t, const char *bytes, int n, int32_t *out, int32_t *end, int max) {
    int made = 0;
    BUG_IF(n < 0 || n > MOST_CUT_BYTES);
    t->cost[n] = 0;
    for (int i = n - 1; i >= 0; i--)
        choose(t, bytes, n, i);
    for (int i = 0; i < n && made < max;) {
        int32_t id = t->chosen[i];
        i += id < 0 ? 1 : token_length(t, id);
        if (id < 0)
            continue;
        out[made] = id;
        end[made++] = i;
    }
    return made;
}
