/* forced_split.c - see forced_split.h. */
#include "text/forced_split.h"

#include <string.h>

enum { TAIL_TOKENS = 4 };

/* A letter, a digit, a blank, a line end, what JSON goes on with, and a character of two bytes. */
static const char *const followers[] = {"", "a", "1", " ", "\n", "\"", ",", ":", "\xC3\xA9"};

struct split {
    struct token_ids ids;
    struct buf spelled;
};

static void split_release(struct split *s) {
    token_ids_release(&s->ids);
    buf_release(&s->spelled);
}

/* Where the tokens begin that spell `text` behind n_tail bytes; -1: there is no boundary there. Decoders strip a blank
 * that some tokenizers put before all: what is spelled may begin with more than was read. */
static int first_behind(const struct tokenizer *tok, const struct split *s, struct str read, size_t n_tail) {
    if (s->spelled.len < read.len || memcmp(s->spelled.ptr + s->spelled.len - read.len, read.ptr, read.len) != 0)
        return -1;
    size_t want = s->spelled.len - read.len + n_tail, at = 0;
    struct buf one = {0};
    size_t i = 0;
    for (; i < s->ids.n && at < want; i++) {
        buf_clear(&one);
        tokenizer_token_bytes(tok, s->ids.ids[i], &one);
        at += one.len;
    }
    buf_release(&one);
    return at == want ? (int)i : -1;
}

static bool split_text(const struct tokenizer *tok, struct encoder *enc, struct str text, struct split *out) {
    struct error err;
    if (tokenizer_encode(enc, text, 0, &out->ids, &err) != OK)
        return false;
    for (size_t i = 0; i < out->ids.n; i++)
        tokenizer_token_bytes(tok, out->ids.ids[i], &out->spelled);
    return true;
}

/* Of out[n], those that come about with this follower too; the first time, all that lie in the text. */
static int agree(const struct tokenizer *tok, const struct split *s, int first, size_t n_text, bool is_first,
                 int32_t *out, int n) {
    struct buf one = {0};
    size_t at = 0;
    int k = 0;
    for (; k < n && (size_t)(first + k) < s->ids.n; k++) {
        int32_t id = s->ids.ids[first + k];
        buf_clear(&one);
        tokenizer_token_bytes(tok, id, &one);
        at += one.len;
        if (one.len == 0 || at > n_text || (!is_first && out[k] != id))
            break;
        out[k] = id;
    }
    buf_release(&one);
    return k;
}

int tokenizer_split_behind(const struct tokenizer *tok, struct encoder *enc, const int32_t *before, int n_before,
                           struct str text, int32_t *out, int max) {
    struct buf read = {0};
    for (int i = MAX(n_before - TAIL_TOKENS, 0); i < n_before; i++)
        if (!tokenizer_is_special(tok, before[i]))
            tokenizer_token_bytes(tok, before[i], &read);
    size_t n_tail = read.len;
    buf_str(&read, text);
    size_t n_read = read.len;
    int n = max;
    for (size_t i = 0; i < ARRAY_LEN(followers) && n > 0; i++) {
        struct split s = {0};
        read.len = n_read;
        buf_str(&read, str_of(followers[i]));
        int first = split_text(tok, enc, buf_view(&read), &s) ? first_behind(tok, &s, buf_view(&read), n_tail) : -1;
        n = first < 0 ? 0 : agree(tok, &s, first, text.len, i == 0, out, n);
        split_release(&s);
    }
    buf_release(&read);
    return n;
}
