/* detokenizer.c - see detokenizer.h.
 *
 * The decoder's stages in a row. A token enters the first as text followed by its end; each stage hands the same
 * two events on, and the last one's text is the output. */
#include "text/detokenizer.h"

#include "text/regex/unicode.h"
#include "text/stages/byte_level.h"
#include "text/tokenizer_parts.h"

struct stage_state {
    size_t n_bytes;     // that came to it
    struct buf token;   // what has come of the token at hand, for stages that want it whole
    struct buf pending; // BYTE_LEVEL, RAW_BYTES, BYTE_FALLBACK: bytes that wait; BPE_SUFFIX, CTC: the token before
    bool has_pending;
    bool first;      // no token has ended yet
    int64_t n_cut;   // STRIP: characters cut off the start of the token
    int64_t n_held;  // STRIP: characters at its end that may yet be cut
    bool past_start; // STRIP: another character has come
};

struct detokenizer {
    const struct tokenizer *tok;
    int flags;
    const int32_t *shown; // [n_shown], special tokens that are not skipped
    size_t n_shown;
    struct regex_memory *rm;    // NULL: no pattern in the decoder
    struct stage_state *states; // [tok->decoder.n + 1]
    size_t n_bytes;             // of the tokens that were fed
    struct buf due;             // detokenizer_begin_after: what the text before would end in, if it ended
    size_t n_due_gone;          // of it, what came and was not given out
    size_t n_given;             // characters
    size_t last_place;          // detokenizer_last_place
    struct buf *out;            // during a call; NULL: nobody wants it
    struct error *err;
};

static void reset(struct detokenizer *d) {
    for (size_t i = 0; i < d->tok->decoder.n; i++) {
        struct stage_state *s = &d->states[i];
        struct buf token = s->token, pending = s->pending;
        buf_clear(&token);
        buf_clear(&pending);
        *s = (struct stage_state){.token = token, .pending = pending, .first = true};
    }
    d->states[d->tok->decoder.n].n_bytes = d->n_bytes = 0;
    buf_clear(&d->due);
    d->n_due_gone = d->n_given = d->last_place = 0;
    if (d->rm) {
        regex_memory_begin(d->rm, 0);
        regex_memory_pause(d->rm);
    }
}

struct detokenizer *detokenizer_open(const struct tokenizer *tok, int flags) {
    struct detokenizer *d = xcalloc(1, sizeof *d);
    *d = (struct detokenizer){.tok = tok,
                              .flags = flags,
                              .rm = decoder_has_regex(&tok->decoder) ? regex_memory_open() : NULL,
                              .states = xcalloc(tok->decoder.n + 1, sizeof *d->states)};
    reset(d);
    return d;
}

void detokenizer_free(struct detokenizer *d) {
    if (!d)
        return;
    for (size_t i = 0; i <= d->tok->decoder.n; i++) { // a copy has memory behind the last stage too
        buf_release(&d->states[i].token);
        buf_release(&d->states[i].pending);
    }
    regex_memory_free(d->rm);
    buf_release(&d->due);
    free(d->states);
    free(d);
}

struct detokenizer *detokenizer_copy(const struct detokenizer *d) {
    struct detokenizer *copy = detokenizer_open(d->tok, d->flags);
    for (size_t i = 0; i <= d->tok->decoder.n; i++) {
        struct stage_state *s = &copy->states[i];
        *s = d->states[i];
        s->token = s->pending = (struct buf){0};
        buf_str(&s->token, buf_view(&d->states[i].token));
        buf_str(&s->pending, buf_view(&d->states[i].pending));
    }
    detokenizer_show(copy, d->shown, d->n_shown);
    copy->n_bytes = d->n_bytes;
    copy->n_given = d->n_given;
    copy->last_place = d->last_place;
    buf_str(&copy->due, buf_view(&d->due));
    copy->n_due_gone = d->n_due_gone;
    return copy;
}

static size_t held_by(const struct decoder_stage *stage, const struct stage_state *s) {
    switch (stage->kind) {
    case DECODE_RAW_BYTES:
    case DECODE_BYTE_LEVEL: return s->pending.len > 0; // less than one character
    case DECODE_BYTE_FALLBACK: return MAX(utf8_count(buf_view(&s->pending)), (size_t)(s->pending.len > 0));
    case DECODE_BPE_SUFFIX: {
        struct str text = buf_view(&s->pending), suffix = {stage->text, stage->text_len};
        return utf8_count(text) - (str_ends(text, suffix) ? utf8_count(suffix) : 0);
    }
    default: return 0;
    }
}

size_t detokenizer_place(const struct detokenizer *d) {
    size_t n = 0, due = utf8_count((struct str){buf_view(&d->due).ptr + d->n_due_gone, d->due.len - d->n_due_gone});
    for (size_t i = 0; i < d->tok->decoder.n; i++)
        n += held_by(&d->tok->decoder.stages[i], &d->states[i]);
    return MAX(d->last_place, d->n_given + (n > due ? n - due : 0)); // a later stage may leave out what is held back
}

size_t detokenizer_last_place(const struct detokenizer *d) { return d->last_place; }

bool detokenizer_at_start(const struct detokenizer *d) { return d->n_bytes == 0; }

static enum status stage_text(struct detokenizer *d, size_t i, struct str text);
static enum status stage_end(struct detokenizer *d, size_t i);

static enum status stage_token(struct detokenizer *d, size_t i, struct str text) {
    TRY(stage_text(d, i, text));
    return stage_end(d, i);
}

/* STRIP: counts the mark at the start, holds it back at the end. */
static enum status strip_text(struct detokenizer *d, size_t i, struct str text) {
    const struct decoder_stage *stage = &d->tok->decoder.stages[i];
    struct stage_state *s = &d->states[i];
    char mark[4];
    size_t mark_len = (size_t)utf8_encode(stage->mark, mark);
    for (size_t at = 0, n; at < text.len; at += n) {
        n = (size_t)utf8_length(text.ptr[at]);
        struct str c = {text.ptr + at, n};
        bool is_mark = str_eq(c, (struct str){mark, mark_len});
        if (is_mark && !s->past_start && s->n_cut < stage->start) {
            s->n_cut++;
            continue;
        }
        s->past_start = true;
        if (is_mark && stage->stop > 0) {
            s->n_held++;
            continue;
        }
        for (; s->n_held > 0; s->n_held--)
            TRY(stage_text(d, i + 1, (struct str){mark, mark_len}));
        TRY(stage_text(d, i + 1, c));
    }
    return OK;
}

static enum status strip_end(struct detokenizer *d, size_t i) {
    const struct decoder_stage *stage = &d->tok->decoder.stages[i];
    struct stage_state *s = &d->states[i];
    char mark[4];
    size_t mark_len = (size_t)utf8_encode(stage->mark, mark);
    for (; s->n_held > stage->stop; s->n_held--)
        TRY(stage_text(d, i + 1, (struct str){mark, mark_len}));
    s->n_held = s->n_cut = 0;
    s->past_start = false;
    return stage_end(d, i + 1);
}

/* Hands on the bytes that are whole characters; at the end of the sequence, all. */
static enum status release_bytes(struct detokenizer *d, size_t i, bool more) {
    struct stage_state *s = &d->states[i];
    if (s->pending.len == 0)
        return OK;
    struct buf text = {0};
    size_t used = utf8_append_lossy(&text, buf_view(&s->pending), more);
    enum status st = text.len ? stage_text(d, i + 1, buf_view(&text)) : OK;
    buf_release(&text);
    struct str rest = {s->pending.ptr + used, s->pending.len - used};
    memmove(s->pending.ptr, rest.ptr, rest.len);
    s->pending.len = rest.len;
    return st;
}

static enum status bytes_end(struct detokenizer *d, size_t i) {
    struct stage_state *s = &d->states[i];
    bool plain = d->tok->decoder.stages[i].kind == DECODE_RAW_BYTES;
    if (plain || !byte_level_decode(&s->pending, buf_view(&s->token)))
        buf_str(&s->pending, buf_view(&s->token));
    return release_bytes(d, i, true);
}

/* BYTE_FALLBACK: a run of byte tokens that is no text is one U+FFFD a byte. */
static enum status release_run(struct detokenizer *d, size_t i) {
    struct stage_state *s = &d->states[i];
    enum status st = OK;
    if (s->pending.len && utf8_valid(buf_view(&s->pending)))
        st = stage_token(d, i + 1, buf_view(&s->pending));
    else
        for (size_t k = 0; k < s->pending.len && st == OK; k++)
            st = stage_token(d, i + 1, STR("\xEF\xBF\xBD"));
    buf_clear(&s->pending);
    return st;
}

static enum status fallback_end(struct detokenizer *d, size_t i) {
    struct stage_state *s = &d->states[i];
    int byte = decoder_fallback_byte(buf_view(&s->token));
    if (byte >= 0) {
        buf_push(&s->pending, (char)byte);
        return OK;
    }
    bool had_run = s->pending.len > 0;
    TRY(release_run(d, i));
    if (had_run) // now it is known what became of it
        d->last_place = MAX(d->last_place, d->n_given);
    return stage_token(d, i + 1, buf_view(&s->token));
}

static enum status rewrite(struct detokenizer *d, size_t i, struct str token, bool last) {
    struct stage_state *s = &d->states[i];
    struct budget budget = {.limit = 2 * decoder_most_bytes(d->n_bytes)};
    struct buf text = {.budget = &budget};
    enum status st = decoder_rewrite(&d->tok->decoder.stages[i], d->rm, token, s->first, last, &text, d->err);
    if (st == OK)
        st = budget_check(&budget, "decoding a token", d->err);
    bool vanishes = d->tok->decoder.stages[i].kind == DECODE_CTC && text.len == 0;
    if (st == OK && !vanishes)
        st = stage_token(d, i + 1, buf_view(&text));
    buf_release(&text);
    s->first = false;
    return st;
}

/* BPE_SUFFIX: only the next token tells that this one was not the last. */
static enum status suffix_end(struct detokenizer *d, size_t i) {
    struct stage_state *s = &d->states[i];
    if (s->has_pending)
        TRY(rewrite(d, i, buf_view(&s->pending), false));
    buf_clear(&s->pending);
    buf_str(&s->pending, buf_view(&s->token));
    s->has_pending = true;
    return OK;
}

static enum status ctc_end(struct detokenizer *d, size_t i) {
    struct stage_state *s = &d->states[i];
    if (s->has_pending && str_eq(buf_view(&s->pending), buf_view(&s->token)))
        return OK;
    buf_clear(&s->pending);
    buf_str(&s->pending, buf_view(&s->token));
    s->has_pending = true;
    return rewrite(d, i, buf_view(&s->token), false);
}

/* The characters that the text before had already, as far as they are the same, are not given out. */
static void give_out(struct detokenizer *d, struct str text) {
    while (d->n_due_gone < d->due.len && text.len > 0) {
        size_t n = (size_t)utf8_length(text.ptr[0]);
        if (!str_starts((struct str){d->due.ptr + d->n_due_gone, d->due.len - d->n_due_gone},
                        (struct str){text.ptr, n})) {
            d->n_due_gone = d->due.len;
            break;
        }
        d->n_due_gone += n;
        text.ptr += n;
        text.len -= n;
    }
    if (!d->out)
        return;
    d->n_given += utf8_count(text);
    buf_str(d->out, text);
}

static enum status stage_text(struct detokenizer *d, size_t i, struct str text) {
    d->states[i].n_bytes += text.len;
    if (d->states[i].n_bytes > decoder_most_bytes(d->n_bytes))
        return fail(d->err, ERR_LIMIT, "the decoder of the tokenizer makes more than %zu bytes of tokens of %zu",
                    decoder_most_bytes(d->n_bytes), d->n_bytes);
    if (i == d->tok->decoder.n) {
        give_out(d, text);
        return OK;
    }
    switch (d->tok->decoder.stages[i].kind) {
    case DECODE_FUSE: return stage_text(d, i + 1, text);
    case DECODE_STRIP: return strip_text(d, i, text);
    default: buf_str(&d->states[i].token, text); return OK;
    }
}

static enum status end_whole_token(struct detokenizer *d, size_t i) {
    struct stage_state *s = &d->states[i];
    switch (d->tok->decoder.stages[i].kind) {
    case DECODE_JOIN:
        if (!s->first)
            TRY(stage_text(d, i + 1, STR(" ")));
        s->first = false;
        return stage_token(d, i + 1, buf_view(&s->token));
    case DECODE_RAW_BYTES:
    case DECODE_BYTE_LEVEL: return bytes_end(d, i);
    case DECODE_BYTE_FALLBACK: return fallback_end(d, i);
    case DECODE_BPE_SUFFIX: return suffix_end(d, i);
    case DECODE_CTC: return ctc_end(d, i);
    default: return rewrite(d, i, buf_view(&s->token), false);
    }
}

static enum status stage_end(struct detokenizer *d, size_t i) {
    if (i == d->tok->decoder.n)
        return OK;
    switch (d->tok->decoder.stages[i].kind) {
    case DECODE_FUSE: return OK;
    case DECODE_STRIP: return strip_end(d, i);
    default: break;
    }
    enum status st = end_whole_token(d, i);
    buf_clear(&d->states[i].token);
    return st;
}

/* No more tokens will come to this stage. */
static enum status stage_finish(struct detokenizer *d, size_t i) {
    struct stage_state *s = &d->states[i];
    switch (d->tok->decoder.stages[i].kind) {
    case DECODE_RAW_BYTES:
    case DECODE_BYTE_LEVEL: TRY(release_bytes(d, i, false)); return stage_end(d, i + 1);
    case DECODE_BYTE_FALLBACK: return release_run(d, i);
    case DECODE_FUSE: return stage_end(d, i + 1);
    case DECODE_BPE_SUFFIX: return s->has_pending ? rewrite(d, i, buf_view(&s->pending), true) : OK;
    default: return OK;
    }
}

void detokenizer_show(struct detokenizer *d, const int32_t *ids, size_t n) {
    d->shown = ids;
    d->n_shown = n;
}

static bool is_skipped(const struct detokenizer *d, int32_t id) {
    if (!(d->flags & DETOKENIZE_SKIP_SPECIAL) || !tokenizer_is_special(d->tok, id))
        return false;
    for (size_t i = 0; i < d->n_shown; i++)
        if (d->shown[i] == id)
            return false;
    return true;
}

enum status detokenizer_feed(struct detokenizer *d, int32_t id, struct buf *out, struct error *err) {
    d->out = out;
    d->err = err;
    d->last_place = detokenizer_place(d);
    const struct tokenizer *t = d->tok;
    struct str text = tokenizer_token_text(t, id);
    if (!text.len || is_skipped(d, id))
        return OK;
    d->n_bytes += text.len;
    if (d->rm)
        regex_memory_go_on(d->rm, text.len);
    enum status st = stage_token(d, 0, text);
    if (d->rm)
        regex_memory_pause(d->rm);
    return st;
}

enum status detokenizer_finish(struct detokenizer *d, struct buf *out, struct error *err) {
    d->out = out;
    d->err = err;
    enum status st = OK;
    if (d->rm)
        regex_memory_go_on(d->rm, 0);
    for (size_t i = 0; i < d->tok->decoder.n && st == OK; i++)
        st = stage_finish(d, i);
    reset(d);
    return st;
}

enum status detokenizer_begin_after(struct detokenizer *d, const int32_t *ids, size_t n, struct error *err) {
    for (size_t i = 0; i < n; i++)
        TRY(detokenizer_feed(d, ids[i], NULL, err));
    for (size_t i = 0; i < d->tok->decoder.n;
         i++) // what the answer adds to a run of bytes cannot spoil the prompt's characters
        if (d->tok->decoder.stages[i].kind == DECODE_BYTE_FALLBACK && utf8_valid(buf_view(&d->states[i].pending)))
            TRY(release_run(d, i));
    d->last_place = 0; // what was fed is not given out
    struct detokenizer *ended = detokenizer_copy(d);
    enum status st = detokenizer_finish(ended, &d->due, err);
    detokenizer_free(ended);
    return st;
}

enum status tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n, int flags, struct buf *out,
                             struct error *err) {
    struct detokenizer *d = detokenizer_open(tok, flags);
    enum status st = OK;
    for (size_t i = 0; i < n && st == OK; i++)
        st = detokenizer_feed(d, ids[i], out, err);
    if (st == OK)
        st = detokenizer_finish(d, out, err);
    detokenizer_free(d);
    return st;
}
