/* tokenizer_json_merges.c - the "merges" of a BPE model in a tokenizer.json, and those of a GGUF file.
 *
 * Each merge looks up two tokens and stores a pair, all at random places of tables larger than the processor's
 * caches, and there are up to half a million. So merges go in batches: first the places of all are asked for,
 * then their texts, then the places of the pairs, and by the time they are used they are there. */
#include "text/formats/tokenizer_json.h"

enum { BATCH = 64 };

struct merge {
    size_t begin;       // in the batch's text: left, right, one behind the other
    size_t left, right; // lengths
    uint32_t left_hash, right_hash;
    int32_t left_id, right_id, joined_id;
};

struct merge_batch {
    struct buf text;
    struct merge merges[BATCH];
    size_t n;
    int32_t rank;        // of merges[0]
    int32_t last_joined; // what the merge before made
};

/* ["left", "right"] */
static enum status take_pair(struct json_reader *r, struct buf *out, struct merge *m, struct error *err) {
    static const char wanted[] = "an item of \"merges\" must be two tokens";
    struct str text;
    TRY(json_enter_array(r, err));
    TRY(json_take_item(r, wanted, err));
    TRY(json_take_string(r, &text, err));
    buf_str(out, text);
    m->left = text.len;
    TRY(json_take_item(r, wanted, err));
    TRY(json_take_string(r, &text, err));
    buf_str(out, text);
    m->right = text.len;
    return json_take_list_end(r, wanted, err);
}

/* "left right" */
static enum status take_line(struct str text, const char *where, struct buf *out, struct merge *m, struct error *err) {
    const char *space = memchr(text.ptr, ' ', text.len);
    m->left = space ? (size_t)(space - text.ptr) : 0;
    m->right = space ? text.len - m->left - 1 : 0;
    if (!space || memchr(space + 1, ' ', m->right))
        return fail(err, ERR_FORMAT, "%s: \"%.*s\" in \"merges\" is not two tokens with a space between", where,
                    (int)MIN(text.len, 60), text.ptr);
    buf_append(out, text.ptr, m->left);
    buf_append(out, space + 1, m->right);
    return OK;
}

static struct str left_text(const struct merge_batch *b, const struct merge *m) {
    return (struct str){b->text.ptr + m->begin, m->left};
}
static struct str right_text(const struct merge_batch *b, const struct merge *m) {
    return (struct str){b->text.ptr + m->begin + m->left, m->right};
}

static struct merge *new_merge(struct merge_batch *b) {
    struct merge *m = &b->merges[b->n++];
    m->begin = b->text.len;
    return m;
}

static void hash_merge(const struct merge_batch *b, struct merge *m, const struct vocab *v) {
    m->left_hash = vocab_hash(left_text(b, m));
    m->right_hash = vocab_hash(right_text(b, m));
    vocab_prefetch_slot(v, m->left_hash);
    vocab_prefetch_slot(v, m->right_hash);
}

static enum status take_merge(struct json_reader *r, struct merge_batch *b, const struct vocab *v, struct error *err) {
    struct merge *m = new_merge(b);
    enum json_kind kind;
    struct str text;
    TRY(json_peek_kind(r, &kind, err));
    if (kind == JSON_KIND_ARRAY) {
        TRY(take_pair(r, &b->text, m, err));
    } else {
        TRY(json_take_string(r, &text, err));
        TRY(take_line(text, r->where, &b->text, m, err));
    }
    hash_merge(b, m, v);
    return OK;
}

static enum status find_token(const struct vocab *v, struct str text, uint32_t hash, const char *path, int32_t *id,
                              struct error *err) {
    *id = vocab_find_hashed(v, text, hash);
    if (*id >= 0)
        return OK;
    return fail(err, ERR_FORMAT, "%s: \"merges\" names the token \"%.*s\", which \"vocab\" lacks", path,
                (int)MIN(text.len, 60), text.ptr);
}

/* The token that two make is their texts together, without the prefix that the right one has inside words; -1 when the
 * vocabulary lacks that, and then the two never join: a copy of GPT-2's file that is met in the wild has one token
 * renamed. */
static int32_t find_joined(const struct bpe *b, struct merge_batch *batch, const struct merge *m) {
    char *right = batch->text.ptr + m->begin + m->left;
    memmove(right, right + b->prefix.len, m->right - b->prefix.len);
    struct str text = {batch->text.ptr + m->begin, m->left + m->right - b->prefix.len};
    int32_t guess = batch->last_joined + 1; // most files number tokens in the order of their merges
    return str_eq(vocab_text(b->vocab, guess), text) ? guess : vocab_find(b->vocab, text);
}

static enum status find_ids(const struct bpe *b, struct merge_batch *batch, struct merge *m, const char *path,
                            struct error *err) {
    TRY(find_token(b->vocab, left_text(batch, m), m->left_hash, path, &m->left_id, err));
    TRY(find_token(b->vocab, right_text(batch, m), m->right_hash, path, &m->right_id, err));
    if (m->right < b->prefix.len)
        return fail(err, ERR_FORMAT, "%s: \"merges\" has \"%.*s\" on the right, which is shorter than the prefix", path,
                    (int)MIN(m->right, 60u), right_text(batch, m).ptr);
    m->joined_id = find_joined(b, batch, m);
    if (m->joined_id >= 0) {
        batch->last_joined = m->joined_id;
        bpe_prefetch_pair(b, m->left_id, m->right_id);
    }
    return OK;
}

static enum status add_batch(struct bpe *b, struct merge_batch *batch, const char *path, struct error *err) {
    for (size_t i = 0; i < batch->n; i++) {
        vocab_prefetch_span(b->vocab, batch->merges[i].left_hash);
        vocab_prefetch_span(b->vocab, batch->merges[i].right_hash);
    }
    for (size_t i = 0; i < batch->n; i++) {
        vocab_prefetch_text(b->vocab, batch->merges[i].left_hash);
        vocab_prefetch_text(b->vocab, batch->merges[i].right_hash);
    }
    for (size_t i = 0; i < batch->n; i++)
        TRY(find_ids(b, batch, &batch->merges[i], path, err));
    for (size_t i = 0; i < batch->n; i++) {
        const struct merge *m = &batch->merges[i];
        if (m->joined_id >= 0)
            bpe_add_pair(b, m->left_id, m->right_id, batch->rank + (int32_t)i, m->joined_id);
    }
    batch->rank += (int32_t)batch->n;
    batch->n = 0;
    buf_clear(&batch->text);
    return OK;
}

static enum status read_list(struct json_reader *r, struct bpe *b, struct merge_batch *batch, struct error *err) {
    TRY(json_enter_array(r, err));
    for (;;) {
        bool more;
        TRY(json_next_item(r, &more, err));
        if (!more)
            return add_batch(b, batch, r->where, err);
        TRY(take_merge(r, batch, b->vocab, err));
        if (batch->n == BATCH)
            TRY(add_batch(b, batch, r->where, err));
    }
}

enum status tokenizer_read_json_merges(struct bpe *b, struct str section, const char *path, struct error *err) {
    struct json_reader r;
    struct merge_batch *batch = xcalloc(1, sizeof *batch);
    buf_reserve(&batch->text, 64);
    json_reader_init(&r, section, path);
    bpe_reserve_pairs(b, MIN((size_t)b->vocab->n_tokens, section.len / 6));
    enum status st = read_list(&r, b, batch, err);
    json_reader_release(&r);
    buf_release(&batch->text);
    free(batch);
    return st;
}

/* ---- GGUF ---- */

static enum status read_lines(const struct gguf_value *lines, const char *path, struct bpe *b,
                              struct merge_batch *batch, struct error *err) {
    const char *at = lines->at;
    for (uint64_t i = 0; i < lines->n; i++) {
        struct merge *m = new_merge(batch);
        TRY(take_line(gguf_next_string(&at, lines->end), path, &batch->text, m, err));
        hash_merge(batch, m, b->vocab);
        if (batch->n == BATCH)
            TRY(add_batch(b, batch, path, err));
    }
    return add_batch(b, batch, path, err);
}

enum status tokenizer_read_gguf_merges(struct bpe *b, const struct gguf_value *lines, const char *path,
                                       struct error *err) {
    struct merge_batch *batch = xcalloc(1, sizeof *batch);
    buf_reserve(&batch->text, 64);
    bpe_reserve_pairs(b, MIN((size_t)b->vocab->n_tokens, lines->n));
    enum status st = read_lines(lines, path, b, batch, err);
    buf_release(&batch->text);
    free(batch);
    return st;
}
