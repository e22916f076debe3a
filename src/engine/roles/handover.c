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

// ---- sequences that no scheduler knows --------------------------------------------------------------------------

struct visitor {
    struct arena arena;
    struct sequence seq;
};

static int32_t whole_blocks(const struct gyre *g, const struct handover_prompt *p) {
    return (p->n - 1) / g->pool.block_size;
}

static void visit(struct visitor *v, const struct gyre *g, const struct handover_prompt *p) {
    *v = (struct visitor){0};
    sequence_init(&v->seq, &v->arena, p->n, g->program->n_groups, g->pool.block_size);
    memcpy(v->seq.tokens, p->tokens, (size_t)p->n * sizeof *p->tokens);
    v->seq.n_tokens = v->seq.n_known = p->n;
    v->seq.salt = (struct prefix_salt){.tenant = p->tenant};
}

static uint64_t text_hash(const struct gyre *g, const struct handover_prompt *p, int32_t n) {
    return XXH3_64bits_withSeed(p->tokens, (size_t)n * (size_t)g->pool.block_size * sizeof *p->tokens, (uint64_t)n);
}

static uint64_t bytes_hash(const struct piece *piece, uint64_t text, const void *bytes) {
    return XXH3_64bits_withSeed(bytes, piece->bytes, text ^ (uint64_t)piece->group << 40 ^ piece->entry);
}

static int64_t block_bytes(const struct gyre *g, int group) { return g->ops->handover->bytes(g->loaded, group); }

int64_t handover_most_bytes(const struct gyre *g, int64_t n_tokens) {
    int64_t n = n_tokens / g->pool.block_size + 1, bytes = sizeof(struct header);
    for (int i = 0; i < g->program->n_groups; i++) {
        int64_t one = block_bytes(g, i) + (int64_t)sizeof(struct piece), all;
        if (__builtin_mul_overflow(one, n, &all) || __builtin_add_overflow(bytes, all, &bytes))
            return INT64_MAX;
    }
    return bytes;
}

int32_t handover_known(struct gyre *g, const struct handover_prompt *p) {
    struct visitor v;
    visit(&v, g, p);
    int32_t n = kv_handover_known(&g->pool, &v.seq, whole_blocks(g, p) * g->pool.block_size);
    arena_release(&v.arena);
    return n;
}

/* Entries of a group that go over: [first, n), of recurrent groups the state behind n blocks. */
static int32_t first_piece(const struct gyre *g, int group, int32_t from, int32_t n) {
    return MAX(g->pool.groups[group].paged ? from : n, kv_handover_first(&g->pool, group, n));
}
static int32_t last_piece(const struct gyre *g, int group, int32_t n) {
    return g->pool.groups[group].paged ? n - 1 : n;
}

static uint32_t count_pieces(const struct gyre *g, int32_t from, int32_t n, int64_t *bytes) {
    uint32_t n_pieces = 0;
    *bytes = sizeof(struct header);
    for (int i = 0; i < g->program->n_groups; i++) {
        int32_t mine = MAX(last_piece(g, i, n) - first_piece(g, i, from, n) + 1, 0);
        n_pieces += (uint32_t)mine;
        *bytes += mine * (block_bytes(g, i) + (int64_t)sizeof(struct piece));
    }
    return n_pieces;
}

// ---- giving -----------------------------------------------------------------------------------------------------

/* Copies that the next step would begin with: a state that was just kept is among them. */
static enum status do_copies(struct gyre *g, struct error *err) {
    int most = g->pool.n_copies;
    struct cache_copy *copies = xcalloc((size_t)most + 1, sizeof *copies);
    enum status st = OK;
    kv_pool_take_copies(&g->pool, copies);
    for (int i = 0; i < most; i++)
        for (int group = 0; group < g->program->n_groups && st == OK; group++) {
            bool is_state = !g->pool.groups[group].paged;
            if (copies[i].group != (is_state ? STATE_SLOTS : group))
                continue;
            void *block = xmalloc((size_t)block_bytes(g, group));
            st = g->ops->handover->get(g->loaded, group, copies[i].from, block, err);
            if (st == OK)
                st = g->ops->handover->put(g->loaded, group, copies[i].to, block, err);
            free(block);
        }
    free(copies);
    return st;
}

/* There is room for it. */
static enum status give_piece(struct gyre *g, int group, int32_t entry, uint64_t text, struct buf *out,
                              struct error *err) {
    struct piece piece = {(uint32_t)group, (uint32_t)entry, (uint64_t)block_bytes(g, group), 0};
    buf_append(out, &piece, sizeof piece);
    size_t at = out->len;
    BUG_IF(out->cap - at <= piece.bytes);
    TRY(g->ops->handover->get(g->loaded, group, kv_handover_entry(&g->pool, group, entry), out->ptr + at, err));
    out->len += piece.bytes;
    piece.hash = bytes_hash(&piece, text, out->ptr + at);
    memcpy(out->ptr + at - sizeof piece, &piece, sizeof piece);
    return OK;
}

static enum status give_pieces(struct gyre *g, const struct header *h, struct buf *out, struct error *err) {
    size_t begun = out->len;
    enum status st = OK;
    buf_append(out, h, sizeof *h);
    for (int i = 0; i < g->program->n_groups; i++)
        for (int32_t k = first_piece(g, i, (int32_t)h->from, (int32_t)h->n);
             k <= last_piece(g, i, (int32_t)h->n) && st == OK; k++)
            st = give_piece(g, i, k, h->text, out, err);
    if (st != OK)
        out->len = begun;
    return st;
}

enum status handover_give(struct gyre *g, const struct handover_prompt *p, int32_t from, size_t max_bytes,
                          struct buf *out, struct error *err) {
    int64_t bytes;
    TRY(handover_check(g, err));
    BUG_IF(g->n_steps != g->n_collected);
    TRY(do_copies(g, err));
    int32_t n = handover_known(g, p);
    if (from < 0 || n <= from)
        return fail(err, ERR_FULL, "no more than %d blocks of the prompt are remembered", n);
    struct header h = {.magic = MAGIC,
                       .identity = p->identity,
                       .text = text_hash(g, p, n),
                       .block_size = (uint32_t)g->pool.block_size,
                       .from = (uint32_t)from,
                       .n = (uint32_t)n,
                       .n_pieces = count_pieces(g, from, n, &bytes)};
    if (bytes < 0 || (uint64_t)bytes > max_bytes)
        return fail(err, ERR_LIMIT, "the prompt's cache has %lld bytes, and %zu may be sent", (long long)bytes,
                    max_bytes);
    if (!buf_reserve(out, (size_t)bytes))
        return fail(err, ERR_MEMORY, "there is no memory for the %lld bytes of the prompt's cache", (long long)bytes);
    return give_pieces(g, &h, out, err);
}

// ---- taking -----------------------------------------------------------------------------------------------------

struct taking {
    struct gyre *g;
    struct str left;
    uint64_t text;
};

static enum status take_piece(void *context, int group, int32_t entry, int32_t block, struct error *err) {
    struct taking *t = context;
    struct piece piece;
    if (t->left.len < sizeof piece)
        return fail(err, ERR_FORMAT, "the cache that was handed over ends before its block %d", entry);
    memcpy(&piece, t->left.ptr, sizeof piece);
    const char *bytes = t->left.ptr + sizeof piece;
    if (piece.group != (uint32_t)group || piece.entry != (uint32_t)entry ||
        piece.bytes != (uint64_t)block_bytes(t->g, group) || piece.bytes > t->left.len - sizeof piece)
        return fail(err, ERR_FORMAT, "block %d of group %d is not where the cache that was handed over should have it",
                    entry, group);
    if (bytes_hash(&piece, t->text, bytes) != piece.hash)
        return fail(err, ERR_FORMAT, "block %d of group %d was changed on its way", entry, group);
    t->left = (struct str){bytes + piece.bytes, t->left.len - sizeof piece - piece.bytes};
    if (!t->g->pool.groups[group].paged && t->g->ops->handover->check)
        TRY(t->g->ops->handover->check(t->g->loaded, group, entry * t->g->pool.block_size, bytes, err));
    return t->g->ops->handover->put(t->g->loaded, group, block, bytes, err);
}

static enum status check_header(const struct gyre *g, const struct handover_prompt *p, const struct header *h,
                                size_t n_bytes, struct error *err) {
    int64_t bytes;
    if (h->magic != MAGIC)
        return fail(err, ERR_FORMAT, "what was handed over is no cache of a prompt");
    if (h->identity != p->identity)
        return fail(err, ERR_FORMAT, "the cache that was handed over is of another model, build or number format");
    if (h->block_size != (uint32_t)g->pool.block_size)
        return fail(err, ERR_FORMAT, "the cache that was handed over has blocks of %u tokens, not %d", h->block_size,
                    g->pool.block_size);
    if (h->n > (uint32_t)whole_blocks(g, p) || h->from >= h->n || h->text != text_hash(g, p, (int32_t)h->n))
        return fail(err, ERR_FORMAT, "the cache that was handed over is of another prompt");
    if (h->n_pieces != count_pieces(g, (int32_t)h->from, (int32_t)h->n, &bytes) || (uint64_t)bytes != n_bytes)
        return fail(err, ERR_FORMAT, "the cache that was handed over has %zu bytes, not %lld", n_bytes,
                    (long long)bytes);
    return OK;
}

enum status handover_take(struct gyre *g, const struct handover_prompt *p, struct str bytes, int32_t *n,
                          struct error *err) {
    struct header h;
    struct visitor v;
    *n = 0;
    TRY(handover_check(g, err));
    BUG_IF(g->n_steps != g->n_collected);
    if (bytes.len < sizeof h)
        return fail(err, ERR_FORMAT, "what was handed over is no cache of a prompt");
    memcpy(&h, bytes.ptr, sizeof h);
    TRY(check_header(g, p, &h, bytes.len, err));
    TRY(do_copies(g, err));
    struct taking t = {g, {bytes.ptr + sizeof h, bytes.len - sizeof h}, h.text};
    int32_t from = (int32_t)(handover_known(g, p) >= (int32_t)h.n ? h.n : h.from); // others may have brought it
    visit(&v, g, p);
    enum status st = kv_handover_adopt(&g->pool, &v.seq, from, (int32_t)h.n, take_piece, &t, err);
    arena_release(&v.arena);
    if (st != OK)
        return st;
    *n = (int32_t)h.n;
    g->collected_us = clock_us(); // idle from now on: what was handed over waits for its request
    return OK;
}
