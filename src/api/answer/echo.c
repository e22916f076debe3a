/* echo.c - see echo.h. */
#include "api/answer/echo.h"

#include "text/regex/unicode.h"

int32_t echo_first_text(const struct tokenizer *tok, const int32_t *ids, int32_t n) {
    int32_t i = 0;
    while (i < n && (tokenizer_is_special(tok, ids[i]) || tokenizer_token_text(tok, ids[i]).len == 0))
        i++;
    return i;
}

/* Somewhere in a text. */
struct place {
    struct str rest; // from there on
    size_t n;        // characters before
};

static void pass(struct place *p, size_t n_characters) {
    for (; n_characters > 0 && p->rest.len > 0; n_characters--, p->n++) {
        size_t n = MIN((size_t)utf8_length(p->rest.ptr[0]), p->rest.len);
        p->rest = (struct str){p->rest.ptr + n, p->rest.len - n};
    }
}

/* What a token gives where the client wrote the text. */
static void piece_of(struct detokenizer *d, const struct tokenizer *tok, int32_t id, struct str rest,
                     struct buf *piece) {
    struct error ignored; // a decoder that fails gives places without lengths
    struct str written = tokenizer_token_text(tok, id);
    buf_clear(piece);
    if (!tokenizer_is_special(tok, id))
        detokenizer_feed(d, id, piece, &ignored);
    else if (str_starts(rest, written))
        buf_str(piece, written);
}

/* The client's text: special tokens that it wrote are there, others are not. */
static void place_in_text(const struct choice *c, struct echo *e) {
    const struct tokenizer *tok = c->generation->api->options.tokenizer;
    struct detokenizer *d = detokenizer_open(tok, DETOKENIZE_SKIP_SPECIAL);
    struct place at = {.rest = buf_view(&e->text)};
    struct buf piece = {0};
    size_t n_given = 0;
    for (int32_t i = 0; i < c->n_prompt; i++) {
        struct place begin = at; // behind what waits for more of its character
        pass(&begin, detokenizer_place(d) - n_given);
        token_ids_push(&e->begins, (int32_t)begin.n);
        piece_of(d, tok, c->prompt[i], at.rest, &piece);
        if (!tokenizer_is_special(tok, c->prompt[i]))
            n_given += utf8_count(buf_view(&piece));
        pass(&at, utf8_count(buf_view(&piece)));
    }
    buf_release(&piece);
    detokenizer_free(d);
}

/* The text of ids, special ones too. */
static void decode(const struct choice *c, struct echo *e) {
    struct detokenizer *d = detokenizer_open(c->generation->api->options.tokenizer, 0);
    struct error ignored;
    for (int32_t i = 0; i < c->n_prompt; i++) {
        detokenizer_feed(d, c->prompt[i], &e->text, &ignored);
        token_ids_push(&e->begins, (int32_t)detokenizer_last_place(d));
    }
    detokenizer_finish(d, &e->text, &ignored);
    detokenizer_free(d);
}

void echo_make(const struct choice *c, struct echo *out) {
    const struct tokenizer *tok = c->generation->api->options.tokenizer;
    *out = (struct echo){0};
    buf_reserve(&out->text, 1);
    if (c->prompt_text.ptr) {
        buf_str(&out->text, c->prompt_text);
        place_in_text(c, out);
        out->first = echo_first_text(tok, c->prompt, c->n_prompt);
    } else {
        decode(c, out);
    }
}

void echo_release(struct echo *e) {
    buf_release(&e->text);
    token_ids_release(&e->begins);
}
