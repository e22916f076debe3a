/* wordpiece.c - see wordpiece.h. */
#include "text/merging/wordpiece.h"

#include "text/regex/unicode.h"

void wordpiece_release(struct wordpiece *w) { byte_trie_release(&w->pieces); }

/* The node behind the prefix; -1 when no piece begins with it. */
static int64_t node_after(const struct byte_trie *t, struct str prefix) {
    uint32_t node = 0;
    for (size_t i = 0; i < prefix.len; i++)
        if ((node = byte_trie_step(t, node, prefix.ptr[i])) == 0)
            return -1;
    return node;
}

static bool too_long(const struct wordpiece *w, struct str word) {
    int64_t n = 0;
    for (size_t i = 0; i < word.len; i += (size_t)utf8_length(word.ptr[i]))
        n++;
    return n > w->max_characters;
}

/* The longest piece at the start of `rest`. Keys may end inside a character of the text only if the vocabulary
 * holds broken characters, which JSON cannot express. */
static int32_t cut(const struct wordpiece *w, struct str rest, bool inside, size_t *len) {
    if (!inside)
        return byte_trie_longest(&w->pieces, 0, rest, len);
    int64_t node = node_after(&w->pieces, w->prefix);
    return node < 0 ? -1 : byte_trie_longest(&w->pieces, (uint32_t)node, rest, len);
}

enum status wordpiece_encode(const struct wordpiece *w, struct str word, struct token_ids *out, struct error *err) {
    size_t mark = out->n;
    bool known = !too_long(w, word);
    for (size_t at = 0, len = 0; known && at < word.len; at += len) {
        int32_t id = cut(w, (struct str){word.ptr + at, word.len - at}, at > 0, &len);
        known = id >= 0;
        if (known)
            token_ids_push(out, id);
    }
    if (known)
        return OK;
    out->n = mark;
    if (w->unk_id < 0)
        return fail(err, ERR_FORMAT, "a word of the text is not in the vocabulary, and there is no unknown token");
    token_ids_push(out, w->unk_id);
    return OK;
}
