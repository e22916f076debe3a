/* unigram.c - see unigram.h. */
#include "text/merging/unigram.h"

#include "text/regex/unicode.h"

/* The best way to a position: its last piece and where that began. Once all are known, those of the best path are
 * turned round: the piece that begins at a position, and where that ends. */
struct unigram_step {
    double score;
    int32_t id;
    uint32_t other; // UINT32_MAX: not reached
};

void unigram_release(struct unigram *u) {
    byte_trie_release(&u->pieces);
    free(u->scores);
}

void unigram_memory_release(struct unigram_memory *m) {
    budget_free(m->budget, m->steps, m->cap * sizeof *m->steps);
    *m = (struct unigram_memory){.budget = m->budget};
}

static bool memory_reserve(struct unigram_memory *m, size_t n) {
    if (n <= m->cap)
        return true;
    void *steps = m->steps;
    if (!budget_resize(m->budget, &steps, m->cap * sizeof *m->steps, n * sizeof *m->steps))
        return false;
    m->steps = steps;
    m->cap = n;
    return true;
}

static inline void offer(const struct unigram *u, struct unigram_step *to, uint32_t begin, int32_t id, double score) {
    if (u->single_floats)
        score = (double)(float)score;
    if (to->other == UINT32_MAX || score > to->score)
        *to = (struct unigram_step){score, id, begin};
}

/* Fills steps[0 .. text.len] from the left. False when the text cannot be written. */
static bool walk(const struct unigram *u, struct unigram_step *steps, struct str text) {
    for (size_t i = 0; i <= text.len; i++)
        steps[i] = (struct unigram_step){0, -1, UINT32_MAX};
    for (size_t at = 0, width; at < text.len; at += width) {
        width = (size_t)utf8_length(text.ptr[at]);
        double so_far = steps[at].score;
        bool single = false; // some piece is exactly this one character
        uint32_t node = 0;
        for (size_t end = at; end < text.len;) {
            node = byte_trie_step(&u->pieces, node, text.ptr[end++]);
            if (node == 0)
                break;
            int32_t id = u->pieces.nodes[node].value;
            if (id < 0)
                continue;
            offer(u, &steps[end], (uint32_t)at, id, so_far + u->scores[id]);
            single |= end == at + width;
        }
        if (!single && u->unk_id < 0)
            return false;
        if (!single)
            offer(u, &steps[at + width], (uint32_t)at, u->unk_id, so_far + u->unk_score);
    }
    return true;
}

/* Turns the best path round; neighbouring unknown pieces become one. */
static void trace(const struct unigram *u, struct unigram_step *steps, size_t len) {
    struct unigram_step here = steps[len];
    for (uint32_t end = (uint32_t)len, begin; end > 0; end = begin) {
        begin = here.other;
        struct unigram_step before = steps[begin];
        bool fused = u->fuse_unk && end < len && here.id == u->unk_id && steps[end].id == u->unk_id;
        steps[begin].other = fused ? steps[end].other : end;
        steps[begin].id = here.id;
        here = before;
    }
}

static bool emit_bytes(const struct unigram *u, struct str text, struct token_ids *out) {
    for (size_t i = 0; i < text.len; i++)
        if (u->byte_id[(unsigned char)text.ptr[i]] < 0)
            return false;
    for (size_t i = 0; i < text.len; i++)
        token_ids_push(out, u->byte_id[(unsigned char)text.ptr[i]]);
    return true;
}

enum status unigram_encode(const struct unigram *u, struct unigram_memory *m, struct str text, struct token_ids *out,
                           struct error *err) {
    if (!memory_reserve(m, text.len + 1))
        return fail(err, m->budget->failed, "a word of the text takes more memory than there is");
    if (!walk(u, m->steps, text))
        return fail(err, ERR_FORMAT, "the vocabulary has no piece for a character of the text, and no unknown token");
    trace(u, m->steps, text.len);
    for (size_t at = 0; at < text.len; at = m->steps[at].other) {
        struct str part = {text.ptr + at, m->steps[at].other - at};
        if (m->steps[at].id != u->unk_id) {
            token_ids_push(out, m->steps[at].id);
            continue;
        }
        // unknown parts that were fused may be a piece together: in Hugging Face's library the text decides
        int32_t id = u->single_floats ? -1 : vocab_find(u->vocab, part);
        if (id < 0 && u->byte_fallback && emit_bytes(u, part, out))
            continue;
        token_ids_push(out, id < 0 ? u->unk_id : id);
    }
    return OK;
}
