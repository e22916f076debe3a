/* token_bytes.c - see token_bytes.h. */
#include "engine/draft/token_bytes.h"

#include "base/str.h"

#include <stdlib.h>
#include <string.h>

struct text_piece {
    int32_t length; // 0: it has joined the one before
    int32_t before; // where that begins; -1: none
    int32_t id;     // -1: no token has these bytes
};

/* The piece at `at` and its neighbour, `length` bytes together, are the token `id`: if they are still there. */
struct text_join {
    int32_t id, at, length;
};

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
    t->pieces = xcalloc(MOST_CUT_BYTES, sizeof *t->pieces);
    t->joins = xcalloc(3 * MOST_CUT_BYTES, sizeof *t->joins); // one a border, and two more for each join
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
    free(t->pieces);
    free(t->joins);
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

// ---- joining ----------------------------------------------------------------------------------------------------

static bool comes_before(struct text_join a, struct text_join b) { return a.id != b.id ? a.id < b.id : a.at < b.at; }

static void push(struct token_bytes *t, struct text_join join) {
    int i = t->n_joins++;
    for (; i > 0 && comes_before(join, t->joins[(i - 1) / 2]); i = (i - 1) / 2)
        t->joins[i] = t->joins[(i - 1) / 2];
    t->joins[i] = join;
}

static struct text_join pop(struct token_bytes *t) {
    struct text_join top = t->joins[0], last = t->joins[--t->n_joins];
    int i = 0;
    for (int child; (child = 2 * i + 1) < t->n_joins; i = child) {
        child += child + 1 < t->n_joins && comes_before(t->joins[child + 1], t->joins[child]);
        if (!comes_before(t->joins[child], last))
            break;
        t->joins[i] = t->joins[child];
    }
    t->joins[i] = last;
    return top;
}

/* Offers the piece at `at` to the one behind it. Special tokens join with nothing. */
static void offer(struct token_bytes *t, const char *bytes, int n, int at) {
    int behind = at + t->pieces[at].length;
    if (behind >= n || token_is_special(t, t->pieces[at].id) || token_is_special(t, t->pieces[behind].id))
        return;
    int length = t->pieces[at].length + t->pieces[behind].length;
    int32_t id = token_find(t, bytes + at, length);
    if (id >= 0)
        push(t, (struct text_join){id, at, length});
}

static void join_pieces(struct token_bytes *t, const char *bytes, int n) {
    while (t->n_joins > 0) {
        struct text_join join = pop(t);
        struct text_piece *left = &t->pieces[join.at];
        int behind = join.at + left->length;
        if (left->length == 0 || behind >= n || left->length + t->pieces[behind].length != join.length)
            continue;
        t->pieces[behind].length = 0;
        *left = (struct text_piece){join.length, left->before, join.id};
        if (join.at + join.length < n)
            t->pieces[join.at + join.length].before = join.at;
        offer(t, bytes, n, join.at);
        if (left->before >= 0)
            offer(t, bytes, n, left->before);
    }
}

// ---- what a text begins as --------------------------------------------------------------------------------------

/* The longest special token that the bytes begin with; -1: none. */
static int32_t special_at(const struct token_bytes *t, const char *bytes, int n) {
    struct range r = {0, t->n_sorted};
    int32_t found = -1;
    for (int i = 0; i < n && (i > 0 || (unsigned char)bytes[0] == 0xff); i++) {
        r = narrow(t, r, i, (unsigned char)bytes[i]);
        if (r.first >= r.end)
            break;
        int32_t id = t->sorted[r.first];
        found = i > 0 && token_length(t, id) == i + 1 ? id : found;
    }
    return found;
}

/* A special token, a character that is a token, or a byte. */
static struct text_piece piece_at(const struct token_bytes *t, const char *bytes, int n, int before) {
    unsigned char byte = (unsigned char)*bytes;
    int length = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    int32_t id = special_at(t, bytes, n);
    if (id >= 0)
        return (struct text_piece){token_length(t, id), before, id};
    id = length > 1 && length <= n ? token_find(t, bytes, length) : -1;
    return id >= 0 ? (struct text_piece){length, before, id} : (struct text_piece){1, before, token_find(t, bytes, 1)};
}

int token_bytes_cut(struct token_bytes *t, const char *bytes, int n, int32_t *out, int32_t *end, int max) {
    int made = 0;
    BUG_IF(n < 0 || n > MOST_CUT_BYTES);
    t->n_joins = 0;
    for (int i = 0, before = -1; i < n; before = i, i += t->pieces[i].length) {
        t->pieces[i] = piece_at(t, bytes + i, n - i, before);
        if (before >= 0)
            offer(t, bytes, n, before);
    }
    join_pieces(t, bytes, n);
    for (int i = 0; i < n && made < max; i += t->pieces[i].length)
        if (t->pieces[i].id >= 0) {
            out[made] = t->pieces[i].id;
            end[made++] = i + t->pieces[i].length;
        }
    return made;
}
