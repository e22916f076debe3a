/* unigram.c - see unigram.h. */
#include "text/unigram.h"

#include "text/unicode.h"

/* The best way to a position: its last piece and where that began. */
struct unigram_step {
    double score;
    int32_t id;
    uint32_t begin; // UINT32_MAX: not reached
};

/* A stretch of the text on the best path. */
struct unigram_part {
    uint32_t begin, end;
    int32_t id;
};

void unigram_release(struct unigram *u) {
    byte_trie_release(&u->pieces);
    free(u->scores);
}

void unigram_memory_release(struct unigram_memory *m) {
    free(m->steps);
    free(m->parts);
}

static void memory_reserve(struct unigram_memory *m, size_t n) {
    if (n <= m->cap)
        return;
    m->cap = MAX(n, m->cap * 2);
    m->steps = xrealloc(m->steps, m->cap, sizeof *m->steps);
}

static inline void offer(const struct unigram *u, struct unigram_step *to, uint32_t begin, int32_t id, double score) {
    if (u->single_floats)
        score = (double)(float)score;
    if (to->begin == UINT32_MAX || score > to->score)
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

/* The parts of the best path from left to right, neighbouring unknown ones joined; returns how many. */
static size_t trace(const struct unigram *u, struct unigram_memory *m, size_t len) {
    size_t n = 0;
    for (uint32_t end = (uint32_t)len; end > 0; end = m->steps[end].begin) {
        struct unigram_step s = m->steps[end];
        if (n == m->parts_cap) {
            m->parts_cap = m->parts_cap * 2 + 64;
            m->parts = xrealloc(m->parts, m->parts_cap, sizeof *m->parts);
        }
        bool fused = u->fuse_unk && n > 0 && s.id == u->unk_id && m->parts[n - 1].id == u->unk_id;
        if (fused)
            m->parts[n - 1].begin = s.begin;
        else
            m->parts[n++] = (struct unigram_part){s.begin, end, s.id};
    }
    for (size_t i = 0; i < n / 2; i++) {
        struct unigram_part swap = m->parts[i];
        m->parts[i] = m->parts[n - 1 - i];
        m->parts[n - 1 - i] = swap;
    }
    return n;
}

static bool emit_bytes(const struct unigram *u, struct str text, struct token_ids *out) {
    for (size_t i = 0; i < text.len; i++)
        if (u->byte_id[(unsigned char)text.ptr[i]] < 0)
            return false;
    for (size_t i = 0; i < text.len; i++)
        token_ids_push(out, u->byte_id[(unsigned char)text.ptr[i]]);
    return true;
}

enum status unigram_encode(const struct unigram *u, struct unigram_memory *m, struct str text, struct token_ids *out, struct error *err) {
    memory_reserve(m, text.len + 1);
    if (!walk(u, m->steps, text))
        return fail(err, ERR_FORMAT, "the vocabulary has no piece for a character of the text, and no unknown token");
    size_t n = trace(u, m, text.len);
    for (size_t i = 0; i < n; i++) {
        struct unigram_part p = m->parts[i];
        struct str part = {text.ptr + p.begin, p.end - p.begin};
        if (p.id != u->unk_id) {
            token_ids_push(out, p.id);
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
