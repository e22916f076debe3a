/* token_bytes.c - what one token stands for, by itself: names of tokens in lists. Texts are detokenizer.c's. */
#include "base/guard.h"
#include "text/regex/unicode.h"
#include "text/stages/byte_level.h"
#include "text/tokenizer_parts.h"

/* A token on its way through the decoder. */
struct passage {
    struct regex_memory *rm;
    bool begins;   // it is the first of its text
    bool is_fused; // a stage made one of all tokens: what later ones see begins with the text and ends with it
};

static struct str strip(const struct decoder_stage *s, const struct passage *p, struct str text) {
    char mark[4];
    size_t mark_len = (size_t)utf8_encode(s->mark, mark);
    struct str m = {mark, mark_len};
    for (int64_t n = 0; n < s->start && (p->begins || !p->is_fused) && str_starts(text, m); n++)
        text = (struct str){text.ptr + mark_len, text.len - mark_len};
    for (int64_t n = 0; n < s->stop && !p->is_fused && str_ends(text, m); n++)
        text.len -= mark_len;
    return text;
}

/* What a stage makes of the token; out is set. True when further stages have nothing more to say: what bytes stand for
 * may be part of a character, which no pattern can look at. */
static bool rewrite(const struct decoder_stage *s, const struct passage *p, struct str token, struct buf *out) {
    int byte = s->kind == DECODE_BYTE_FALLBACK ? decoder_fallback_byte(token) : -1;
    if (byte >= 0) {
        buf_push(out, (char)byte);
        return true;
    }
    if (s->kind == DECODE_BYTE_LEVEL && byte_level_decode(out, token))
        return true;
    if (s->kind == DECODE_STRIP)
        token = strip(s, p, token);
    if (s->kind == DECODE_JOIN && !p->begins)
        buf_push(out, ' ');
    struct error ignored; // a pattern that gives up leaves the token as it is
    size_t mark = out->len;
    if (decoder_rewrite(s, p->rm, token, p->begins || p->is_fused, false, out, &ignored) != OK || out->budget->failed) {
        out->len = mark;
        buf_str(out, token);
    }
    return s->kind == DECODE_RAW_BYTES;
}

static void put_bytes(const struct tokenizer *tok, int32_t id, bool begins, struct buf *out) {
    const struct decoder *d = &tok->decoder;
    struct budget budget = {.limit = 4 * decoder_most_bytes(tokenizer_token_text(tok, id).len)};
    struct buf text = {.budget = &budget}, next = {.budget = &budget};
    struct passage p = {.rm = decoder_has_regex(d) ? regex_memory_open() : NULL, .begins = begins};
    buf_str(&text, tokenizer_token_text(tok, id));
    for (size_t i = 0; i < d->n; i++) {
        buf_clear(&next);
        bool done = rewrite(&d->stages[i], &p, buf_view(&text), &next);
        struct buf swap = text;
        text = next;
        next = swap;
        if (done)
            break;
        p.is_fused |= d->stages[i].kind == DECODE_FUSE || d->stages[i].kind == DECODE_BYTE_LEVEL;
    }
    regex_memory_free(p.rm);
    if (budget.failed != ERR_MEMORY)
        buf_str(out, buf_view(&text));
    buf_release(&text);
    buf_release(&next);
    if (budget.failed == ERR_MEMORY) // half a token would be taken for the whole
        alloc_failed(budget.limit);
}

void tokenizer_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out) { put_bytes(tok, id, false, out); }

void tokenizer_first_token_bytes(const struct tokenizer *tok, int32_t id, struct buf *out) {
    put_bytes(tok, id, !tokenizer_is_special(tok, id), out);
}
