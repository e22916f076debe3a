/* vocabulary_bytes.c - see vocabulary_bytes.h. */
#include "text/vocabulary_bytes.h"
#include "text/tokenizer.h"

#include <stdlib.h>

/* The token that stands before a text that has none of its own: BOS, or -1. */
static int32_t first_token(const struct tokenizer *tok) {
    int32_t bos = tokenizer_special(tok, SPECIAL_BOS).id;
    struct encoder *enc = encoder_open(tok);
    struct token_ids ids = {0};
    struct error err;
    bool begins =
        tokenizer_encode(enc, STR(""), ENCODE_ADD_SPECIAL, &ids, &err) == OK && ids.n > 0 && ids.ids[0] == bos;
    token_ids_release(&ids);
    encoder_free(enc);
    return begins ? bos : -1;
}

static void add(const struct tokenizer *tok, int32_t id, struct buf *out) {
    if (!tokenizer_is_special(tok, id)) {
        tokenizer_token_bytes(tok, id, out);
        return;
    }
    buf_push(out, (char)0xff);
    buf_str(out, tokenizer_token_text(tok, id));
}

enum status vocabulary_bytes_read(const char *path, struct vocabulary_bytes *out, struct error *err) {
    struct tokenizer *tok;
    *out = (struct vocabulary_bytes){0};
    TRY(tokenizer_open(path, &tok, err));
    out->n = tokenizer_n_vocab(tok);
    out->first = first_token(tok);
    out->start = xcalloc((size_t)out->n + 1, sizeof *out->start);
    for (int32_t i = 0; i < out->n && out->bytes.len <= UINT32_MAX; i++) {
        add(tok, i, &out->bytes);
        out->start[i + 1] = (uint32_t)out->bytes.len;
    }
    tokenizer_free(tok);
    if (out->bytes.len <= UINT32_MAX)
        return OK;
    vocabulary_bytes_release(out);
    return fail(err, ERR_LIMIT, "%s: its tokens have more than 4 GiB of text", path);
}

enum status vocabulary_bytes_of_both(const char *model, const char *draft, struct vocabulary_bytes out[2],
                                     struct error *err) {
    out[0] = out[1] = (struct vocabulary_bytes){0};
    if (!tokenizer_in_folder(model) || !tokenizer_in_folder(draft))
        return OK;
    TRY(vocabulary_bytes_read(model, &out[0], err));
    enum status st = vocabulary_bytes_read(draft, &out[1], err);
    if (st != OK)
        vocabulary_bytes_release(&out[0]);
    return st;
}

void vocabulary_bytes_release(struct vocabulary_bytes *v) {
    buf_release(&v->bytes);
    free(v->start);
    *v = (struct vocabulary_bytes){0};
}
