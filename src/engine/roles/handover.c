/* handover.c - see handover.h. */
#include "engine/roles/handover.h"

#include "engine/engine.h"
#include "sched/kv_handover.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const uint64_t MAGIC = 0x31564b6572796701u; // \1 "gyreKV1"

struct header {
    uint64_t magic, identity, text;
    uint32_t block_size, from, n, n_pieces;
};

struct piece {
    uint32_t group, entry;
    uint64_t bytes, hash;
};

enum status handover_check(const struct gyre *g, struct error *err) {
    if (!g->ops->handover)
        return fail(err, ERR_UNSUPPORTED, "device %s cannot hand its cache to another engine yet", g->ops->name);
    if (!g->pool.remembers)
        return fail(err, ERR_UNSUPPORTED,
                    "a prompt's cache is handed over from one prefix cache to another: this engine has none");
    if (g->draft)
        return fail(err, ERR_UNSUPPORTED, "the cache of a draft model is not handed over: no draft model here");
    return OK;
}

enum status handover_prepare(struct gyre *g, struct error *err) {
    TRY(handover_check(g, err));
    return g->ops->handover->prepare ? g->ops->handover->prepare(g->loaded, err) : OK;
}

// ---- sequences that no scheduler knows --------------------------------------------------------------------------

static int32_t whole_blocks(const struct gyre *g, const struct handover_prompt *p) {
    return (p->n - 1) / g->pool.block_size;
}

static void visit(struct handover_visit *v, struct gyre *g, const struct handover_prompt *p) {
    *v = (struct handover_visit){.g = g, .number = g->number, .prompt = p};
    sequence_init(&v->seq, &v->arena, p->n, g->program->n_groups, g->pool.block_size);
    memcpy(v->seq.tokens, p->tokens, (size_t)p->n * sizeof *p->tokens);
    v->seq.n_tokens = v->seq.n_known = p->n;
    v->seq.salt = (struct prefix_salt){.tenant = p->tenant};
}

void handover_leave(struct handover_visit *v) {
    arena_release(&v->arena);
    *v = (struct handover_visit){0};
}

static uint64_t text_hash(const struct gyre *g, const struct handover_prompt *p, int32_t n) {
    return XXH3_64bits_withSeed(p->tokens, (size_t)n * (size_t)g->pool.block_size * sizeof *p->tokens, (uint64_t)n);
}

static uint64_t bytes_hash(const struct piece *piece, uint64_t text, const void *bytes) {
    return XXH3_64bits_withSeed(bytes, piece->bytes, text ^ (uint64_t)piece->group << 40 ^ piece->entry);
}

static int64_t block_bytes(const struct gyre *g, int group) { return g->ops->handover->bytes(g->loaded, group); }

/* In the bytes, from one piece of a group to the next. */
static size_t piece_stride(const struct gyre *g, int group) {
    return sizeof(struct piece) + (size_t)block_bytes(g, group);
}

int64_t handover_most_bytes(const struct gyre *g, int64_t n_tokens) {
    int64_t n = n_tokens / g->pool.block_size + 1, bytes = sizeof(struct header);
    for (int i = 0; i < g->program->n_groups; i++) {
        int64_t all;
        if (__builtin_mul_overflow((int64_t)piece_stride(g, i), n, &all) || __builtin_add_overflow(bytes, all, &bytes))
            return INT64_MAX;
    }
    return bytes;
}

static int32_t known_up_to(struct gyre *g, const struct sequence *seq, int32_t n) {
    return kv_handover_known(&g->pool, seq, n * g->pool.block_size);
}

int32_t handover_known(struct gyre *g, const struct handover_prompt *p) {
    struct handover_visit v;
    visit(&v, g, p);
    int32_t n = known_up_to(g, &v.seq, whole_blocks(g, p));
    handover_leave(&v);
    return n;
}

/* Entries of a group that go over: [first, last], of recurrent groups the state behind n blocks. */
static int32_t first_piece(const struct gyre *g, int group, int32_t from, int32_t n) {
    return MAX(g->pool.groups[group].paged ? from : n, kv_handover_first(&g->pool, group, n));
}
static int32_t n_pieces(const struct gyre *g, int group, int32_t from, int32_t n) {
    int32_t last = g->pool.groups[group].paged ? n - 1 : n;
    return MAX(last - first_piece(g, group, from, n) + 1, 0);
}
static const int32_t *blocks_of(const struct handover_visit *v, int group, int32_t first) {
    return v->g->pool.groups[group].paged ? v->seq.tables[group].block + first : &v->seq.state_slot;
}

static uint32_t count_pieces(const struct gyre *g, int32_t from, int32_t n, int64_t *bytes) {
    uint32_t n_all = 0;
    *bytes = sizeof(struct header);
    for (int i = 0; i < g->program->n_groups; i++) {
        int32_t mine = n_pieces(g, i, from, n);
        n_all += (uint32_t)mine;
        *bytes += mine * (int64_t)piece_stride(g, i);
    }
    return n_all;
}

// ---- copies that are to come ------------------------------------------------------------------------------------

static enum status do_copy(struct gyre *g, struct cache_copy copy, struct error *err) {
    enum status st = OK;
    for (int group = 0; group < g->program->n_groups && st == OK; group++) {
        bool is_state = !g->pool.groups[group].paged;
        if (copy.group != (is_state ? STATE_SLOTS : group))
            continue;
        void *block = xmalloc((size_t)block_bytes(g, group));
        st = g->ops->handover->get(g->loaded, group, &copy.from, 1, block, 0, err);
        if (st == OK)
            st = g->ops->handover->put(g->loaded, group, &copy.to, 1, block, 0, err);
        free(block);
    }
    return st;
}

/* Copies that the next step would begin with, which may not come: nothing is in flight. What fails is left to it, with
 * all behind it: one may read what another writes. */
static enum status do_copies(struct gyre *g, struct error *err) {
    while (g->pool.n_copies > 0) {
        TRY(do_copy(g, g->pool.copies[0], err));
        kv_pool_first_copy_done(&g->pool);
    }
    return OK;
}

enum status handover_settles(struct handover_visit *v, bool *does, struct error *err) {
    struct gyre *g = v->g;
    if (g->n_steps == g->n_collected)
        TRY(do_copies(g, err));
    *does = kv_pool_is_settled(&g->pool, v->settles_at);
    return OK;
}

void handover_end(struct handover_visit *v) {
    if (!v->g)
        return;
    kv_handover_end(&v->g->pool, &v->seq);
    handover_leave(v);
}

void handover_adopt(struct handover_visit *v) {
    kv_handover_remember(&v->g->pool, &v->seq, v->n);
    v->g->collected_us = clock_us(); // idle from now on: what was handed over waits for its request
    handover_leave(v);
}

// ---- giving -----------------------------------------------------------------------------------------------------

enum status handover_hold(struct gyre *g, const struct handover_prompt *p, int32_t from, struct handover_visit *v,
                          struct error *err) {
    *v = (struct handover_visit){0};
    TRY(handover_prepare(g, err));
    visit(v, g, p);
    int32_t n = known_up_to(g, &v->seq, whole_blocks(g, p));
    if (from < 0 || n <= from) {
        handover_leave(v);
        return fail(err, ERR_FULL, "no more than %d blocks of the prompt are remembered", n);
    }
    v->from = from, v->n = n;
    kv_handover_hold(&g->pool, &v->seq, from, n, &v->settles_at);
    return OK;
}

struct handover_part handover_part(const struct handover_visit *v, int32_t from, size_t part_bytes) {
    const struct gyre *g = v->g;
    size_t each = 0;
    for (int i = 0; i < g->program->n_groups; i++) {
        if (!g->pool.groups[i].paged || g->pool.groups[i].window > 0)
            return (struct handover_part){from, v->n};
        each += piece_stride(g, i);
    }
    int64_t most = (int64_t)MIN(part_bytes / MAX(each, 1u), (size_t)INT32_MAX);
    return (struct handover_part){from, (int32_t)MIN(from + MAX(most, 1), v->n)};
}

/* There is room for it. */
static enum status read_group(const struct handover_visit *v, struct handover_part part, int group, uint64_t text,
                              struct buf *out, struct error *err) {
    const struct gyre *g = v->g;
    int32_t first = first_piece(g, group, part.from, part.end), n = n_pieces(g, group, part.from, part.end);
    size_t stride = piece_stride(g, group);
    char *at = out->ptr + out->len;
    if (n == 0)
        return OK;
    BUG_IF(out->cap - out->len <= (size_t)n * stride);
    TRY(g->ops->handover->get(g->loaded, group, blocks_of(v, group, first), n, at + sizeof(struct piece), stride, err));
    for (int32_t i = 0; i < n; i++, at += stride) {
        struct piece piece = {(uint32_t)group, (uint32_t)(first + i), (uint64_t)block_bytes(g, group), 0};
        piece.hash = bytes_hash(&piece, text, at + sizeof piece);
        memcpy(at, &piece, sizeof piece);
    }
    out->len += (size_t)n * stride;
    return OK;
}

static struct header header_of(const struct handover_visit *v, struct handover_part part, int64_t *bytes) {
    return (struct header){.magic = MAGIC,
                           .identity = v->prompt->identity,
                           .text = text_hash(v->g, v->prompt, part.end),
                           .block_size = (uint32_t)v->g->pool.block_size,
                           .from = (uint32_t)part.from,
                           .n = (uint32_t)part.end,
                           .n_pieces = count_pieces(v->g, part.from, part.end, bytes)};
}

enum status handover_read(const struct handover_visit *v, struct handover_part part, size_t max_bytes, struct buf *out,
                          struct error *err) {
    int64_t bytes;
    size_t begun = out->len;
    struct header h = header_of(v, part, &bytes);
    if (bytes < 0 || (uint64_t)bytes > max_bytes)
        return fail(err, ERR_LIMIT, "the prompt's cache has %lld bytes, and %zu may be sent", (long long)bytes,
                    max_bytes);
    if (!buf_reserve(out, (size_t)bytes))
        return fail(err, ERR_MEMORY, "there is no memory for the %lld bytes of the prompt's cache", (long long)bytes);
    buf_append(out, &h, sizeof h);
    enum status st = OK;
    for (int i = 0; i < v->g->program->n_groups && st == OK; i++)
        st = read_group(v, part, i, h.text, out, err);
    if (st != OK)
        out->len = begun;
    return st;
}

static bool has_windows(const struct gyre *g) {
    bool can = g->ops->handover->show != NULL;
    for (int i = 0; i < g->program->n_groups; i++)
        can &= g->pool.groups[i].paged;
    return can;
}

bool handover_can_be_shown(const struct handover_visit *v, struct handover_part part, size_t max_bytes) {
    int64_t bytes;
    count_pieces(v->g, part.from, part.end, &bytes);
    return has_windows(v->g) && bytes >= 0 && (uint64_t)bytes <= max_bytes;
}

enum status handover_show(const struct handover_visit *v, struct handover_part part, size_t at, struct buf *out,
                          struct error *err) {
    const struct gyre *g = v->g;
    int64_t bytes;
    struct header h = header_of(v, part, &bytes);
    BUG_IF(!handover_can_be_shown(v, part, WINDOW_BYTES - at));
    for (int i = 0; i < g->program->n_groups; i++) {
        int32_t first = first_piece(g, i, part.from, part.end), n = n_pieces(g, i, part.from, part.end);
        TRY(g->ops->handover->show(g->loaded, i, blocks_of(v, i, first), n, at, err));
        at += (size_t)n * (size_t)block_bytes(g, i);
    }
    buf_append(out, &h, sizeof h);
    return OK;
}

// ---- taking -----------------------------------------------------------------------------------------------------

/* *bytes: that it should have with its pieces. */
static enum status check_header(const struct gyre *g, const struct handover_prompt *p, const struct header *h,
                                int64_t *bytes, struct error *err) {
    if (h->magic != MAGIC)
        return fail(err, ERR_FORMAT, "what was handed over is no cache of a prompt");
    if (h->identity != p->identity)
        return fail(err, ERR_FORMAT, "the cache that was handed over is of another model, build or number format");
    if (h->block_size != (uint32_t)g->pool.block_size)
        return fail(err, ERR_FORMAT, "the cache that was handed over has blocks of %u tokens, not %d", h->block_size,
                    g->pool.block_size);
    if (h->n > (uint32_t)whole_blocks(g, p) || h->from >= h->n || h->text != text_hash(g, p, (int32_t)h->n))
        return fail(err, ERR_FORMAT, "the cache that was handed over is of another prompt");
    if (h->n_pieces != count_pieces(g, (int32_t)h->from, (int32_t)h->n, bytes))
        return fail(err, ERR_FORMAT, "the cache that was handed over has %u blocks, which are not those of its text",
                    h->n_pieces);
    return OK;
}

static enum status check_piece(const struct gyre *g, uint64_t text, int group, int32_t entry, const char *at,
                               struct error *err) {
    struct piece piece;
    memcpy(&piece, at, sizeof piece);
    if (piece.group != (uint32_t)group || piece.entry != (uint32_t)entry ||
        piece.bytes != (uint64_t)block_bytes(g, group))
        return fail(err, ERR_FORMAT, "block %d of group %d is not where the cache that was handed over should have it",
                    entry, group);
    if (bytes_hash(&piece, text, at + sizeof piece) != piece.hash)
        return fail(err, ERR_FORMAT, "block %d of group %d was changed on its way", entry, group);
    if (!g->pool.groups[group].paged && g->ops->handover->check)
        TRY(g->ops->handover->check(g->loaded, group, entry * g->pool.block_size, at + sizeof piece, err));
    return OK;
}

enum status handover_check_shown(const struct gyre *g, const struct handover_prompt *p, struct str bytes, size_t at,
                                 struct error *err) {
    struct header h;
    int64_t n_bytes;
    TRY(handover_check(g, err));
    if (!has_windows(g))
        return fail(err, ERR_UNSUPPORTED, "device %s takes nothing from windows", g->ops->name);
    if (bytes.len != sizeof h)
        return fail(err, ERR_FORMAT, "what is shown is no cache of a prompt");
    memcpy(&h, bytes.ptr, sizeof h);
    TRY(check_header(g, p, &h, &n_bytes, err));
    return at <= WINDOW_BYTES && n_bytes <= (int64_t)(WINDOW_BYTES - at)
               ? OK
               : fail(err, ERR_FORMAT, "a window has no %lld bytes behind %zu", (long long)n_bytes, at);
}

enum status handover_check_bytes(const struct gyre *g, const struct handover_prompt *p, struct str bytes,
                                 struct error *err) {
    struct header h;
    int64_t n_bytes;
    TRY(handover_check(g, err));
    if (bytes.len < sizeof h)
        return fail(err, ERR_FORMAT, "what was handed over is no cache of a prompt");
    memcpy(&h, bytes.ptr, sizeof h);
    TRY(check_header(g, p, &h, &n_bytes, err));
    if ((uint64_t)n_bytes != bytes.len) // all that follows is within them
        return fail(err, ERR_FORMAT, "the cache that was handed over has %zu bytes, not %lld", bytes.len,
                    (long long)n_bytes);
    const char *at = bytes.ptr + sizeof h;
    for (int group = 0; group < g->program->n_groups; group++) {
        int32_t first = first_piece(g, group, (int32_t)h.from, (int32_t)h.n);
        int32_t n = n_pieces(g, group, (int32_t)h.from, (int32_t)h.n);
        for (int32_t i = 0; i < n; i++, at += piece_stride(g, group))
            TRY(check_piece(g, h.text, group, first + i, at, err));
    }
    return OK;
}

enum status handover_make_room(struct gyre *g, const struct handover_prompt *p, struct str bytes,
                               struct handover_visit *v, struct error *err) {
    struct header h;
    *v = (struct handover_visit){0};
    TRY(handover_prepare(g, err));
    memcpy(&h, bytes.ptr, sizeof h);
    int32_t n = (int32_t)h.n, from = handover_known(g, p) >= n ? n : (int32_t)h.from; // others may have brought it
    visit(v, g, p);
    v->from = from, v->n = n;
    enum status st = kv_handover_take(&g->pool, &v->seq, from, n, &v->settles_at, err);
    if (st != OK)
        handover_leave(v);
    return st;
}

enum status handover_write(const struct handover_visit *v, struct str bytes, struct error *err) {
    struct gyre *g = v->g;
    const char *at = bytes.ptr + sizeof(struct header) + sizeof(struct piece);
    if (v->from == v->n)
        return OK;
    for (int i = 0; i < g->program->n_groups; i++) {
        int32_t first = first_piece(g, i, v->from, v->n), n = n_pieces(g, i, v->from, v->n);
        if (n > 0)
            TRY(g->ops->handover->put(g->loaded, i, blocks_of(v, i, first), n, at, piece_stride(g, i), err));
        at += (size_t)n * piece_stride(g, i);
    }
    return OK;
}

enum status handover_take_shown(const struct handover_visit *v, const char *window, size_t at, struct error *err) {
    struct gyre *g = v->g;
    for (int i = 0; i < g->program->n_groups && v->from < v->n; i++) {
        int32_t first = first_piece(g, i, v->from, v->n), n = n_pieces(g, i, v->from, v->n);
        TRY(g->ops->handover->take(g->loaded, window, i, blocks_of(v, i, first), n, at, err));
        at += (size_t)n * (size_t)block_bytes(g, i);
    }
    return OK;
}
