/* sentencepiece_rules.c - see sentencepiece_rules.h. */
#include "text/formats/sentencepiece_rules.h"

#include "text/regex/unicode.h"

/* What the start of text becomes; returns how many bytes that covers. */
static size_t next_part(const struct sentencepiece_rules *r, struct str text, struct str *part) {
    size_t len;
    if (byte_trie_longest(r->fixed, 0, text, &len) >= 0) {
        *part = (struct str){text.ptr, len};
        return len;
    }
    if (charsmap_find(&r->charsmap, text, true, &len, part))
        return len;
    len = (size_t)utf8_length(text.ptr[0]);
    *part = (struct str){text.ptr, len};
    return len;
}

static struct str space_of(const struct sentencepiece_rules *r) {
    return r->escape_whitespaces ? STR("\xE2\x96\x81") : STR(" ");
}

static void put_part(const struct sentencepiece_rules *r, struct str part, struct buf *out) {
    for (size_t i = 0; i < part.len; i++)
        if (part.ptr[i] == ' ')
            buf_str(out, space_of(r));
        else
            buf_push(out, part.ptr[i]);
}

/* The text without the parts at its start that are a single space. */
static struct str skip_spaces(const struct sentencepiece_rules *r, struct str text) {
    while (text.len > 0) {
        struct str part;
        size_t len = next_part(r, text, &part);
        if (!str_eq(part, STR(" ")))
            break;
        text.ptr += len;
        text.len -= len;
    }
    return text;
}

void sentencepiece_rewrite(const struct sentencepiece_rules *r, struct str text, struct buf *out) {
    if (r->remove_extra_whitespaces)
        text = skip_spaces(r, text);
    if (text.len == 0)
        return;
    size_t begin = out->len;
    struct str space = space_of(r);
    if (r->add_dummy_prefix && !r->treat_whitespace_as_suffix)
        buf_str(out, space);
    bool after_space = r->remove_extra_whitespaces;
    while (text.len > 0) {
        struct str part;
        size_t len = next_part(r, text, &part);
        for (; after_space && str_starts(part, STR(" ")); part.len--)
            part.ptr++;
        put_part(r, part, out);
        if (part.len > 0)
            after_space = r->remove_extra_whitespaces && str_ends(part, STR(" "));
        text.ptr += len;
        text.len -= len;
    }
    if (r->remove_extra_whitespaces)
        while (out->len > begin && str_ends((struct str){out->ptr + begin, out->len - begin}, space))
            out->len -= space.len;
    if (r->add_dummy_prefix && r->treat_whitespace_as_suffix)
        buf_str(out, space);
}
