/* charsmap.c - see charsmap.h. */
#include "text/stages/charsmap.h"

#include "text/regex/unicode.h"

#include <utf8proc.h>

static uint32_t read_u32(const char *p) {
    const unsigned char *b = (const unsigned char *)p;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

enum status charsmap_read(struct str blob, const char *where, struct charsmap *out, struct error *err) {
    *out = (struct charsmap){0};
    size_t trie_bytes = blob.len >= 4 ? read_u32(blob.ptr) : 0;
    if (blob.len < 4 || trie_bytes > blob.len - 4 || trie_bytes % 4 != 0 || trie_bytes == 0)
        return fail(err, ERR_FORMAT, "%s: precompiled_charsmap says that its trie has %zu bytes, of %zu in all", where,
                    trie_bytes, blob.len);
    struct str rest = {blob.ptr + 4 + trie_bytes, blob.len - 4 - trie_bytes};
    if (!utf8_valid(rest))
        return fail(err, ERR_FORMAT, "%s: precompiled_charsmap has replacements that are not UTF-8", where);
    out->n_units = trie_bytes / 4;
    out->units = xcalloc(out->n_units, sizeof *out->units);
    for (size_t i = 0; i < out->n_units; i++)
        out->units[i] = read_u32(blob.ptr + 4 + 4 * i);
    out->n_replacement_bytes = rest.len;
    out->replacements = xcalloc(rest.len + 1, 1);
    memcpy(out->replacements, rest.ptr, rest.len);
    return OK;
}

void charsmap_release(struct charsmap *c) {
    free(c->units);
    free(c->replacements);
    *c = (struct charsmap){0};
}

/* A unit: bit 31 and the low byte are the label, bit 8 says that a leaf follows, the rest is an offset to the
 * children, by which positions are XORed. */
static uint32_t unit_offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }
static bool unit_has_leaf(uint32_t unit) { return unit & 0x100; }
static uint32_t unit_label(uint32_t unit) { return unit & 0x800000FF; }

/* The replacement of a leaf; offsets that point nowhere, or into a character, are no rule. */
static bool take_leaf(const struct charsmap *c, uint64_t at, struct str *replacement) {
    uint32_t offset = at < c->n_units ? c->units[at] & 0x7FFFFFFF : UINT32_MAX;
    if (offset > c->n_replacement_bytes || ((unsigned char)c->replacements[offset] & 0xC0) == 0x80)
        return false;
    *replacement = str_of(c->replacements + offset);
    return true;
}

bool charsmap_find(const struct charsmap *c, struct str text, bool longest, size_t *len, struct str *replacement) {
    bool found = false;
    if (c->n_units == 0)
        return false;
    uint64_t at = unit_offset(c->units[0]);
    for (size_t i = 0; i < text.len && text.ptr[i]; i++) {
        unsigned char byte = (unsigned char)text.ptr[i];
        at ^= byte;
        if (at >= c->n_units || unit_label(c->units[at]) != byte)
            break;
        uint32_t unit = c->units[at];
        at ^= unit_offset(unit);
        if (!unit_has_leaf(unit) || !take_leaf(c, at, replacement))
            continue;
        found = true;
        *len = i + 1;
        if (!longest)
            break;
    }
    return found;
}

static void put_character(const struct charsmap *c, struct str character, struct buf *out) {
    size_t len;
    struct str replacement;
    buf_str(out, charsmap_find(c, character, false, &len, &replacement) ? replacement : character);
}

/* The length of the grapheme cluster at the start of text. */
static size_t grapheme_length(struct str text) {
    uint32_t a, b;
    size_t n = (size_t)utf8_step(text.ptr, &a);
    if (n < text.len && a < 0x80 && (unsigned char)text.ptr[n] < 0x80)
        return a == '\r' && text.ptr[n] == '\n' ? 2 : 1;
    for (utf8proc_int32_t state = 0; n < text.len; a = b) {
        size_t step = (size_t)utf8_step(text.ptr + n, &b);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)a, (utf8proc_int32_t)b, &state))
            break;
        n += step;
    }
    return n;
}

void charsmap_apply_by_grapheme(const struct charsmap *c, struct str text, struct buf *out) {
    for (size_t at = 0, n; at < text.len; at += n) {
        n = grapheme_length((struct str){text.ptr + at, text.len - at});
        size_t len;
        struct str grapheme = {text.ptr + at, n}, replacement;
        if (n < 6 && charsmap_find(c, grapheme, false, &len, &replacement)) {
            buf_str(out, replacement);
            continue;
        }
        for (size_t i = 0, width; i < n; i += width) {
            width = (size_t)utf8_length(grapheme.ptr[i]);
            put_character(c, (struct str){grapheme.ptr + i, width}, out);
        }
    }
}
