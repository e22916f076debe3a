/* tool_marks.c - see tool_marks.h. */
#include "text/tools/tool_marks.h"

#include "base/status.h"

#include <ctype.h>

enum { MAX_TAG = 100 };

size_t leading_blanks(struct str s) {
    size_t n = 0;
    while (n < s.len && is_blank(s.ptr[n]))
        n++;
    return n;
}

size_t trailing_blanks(struct str s) {
    size_t n = 0;
    while (n < s.len && is_blank(s.ptr[s.len - 1 - n]))
        n++;
    return n == s.len ? 0 : n;
}

struct str str_core(struct str s) {
    s = str_from(s, leading_blanks(s));
    return str_to(s, s.len - trailing_blanks(s));
}

size_t text_find(struct str text, struct str what) {
    const char *at = what.len && text.len ? memmem(text.ptr, text.len, what.ptr, what.len) : NULL;
    return at ? (size_t)(at - text.ptr) : NOT_FOUND;
}

size_t text_find_last(struct str text, struct str what) {
    if (what.len == 0)
        return NOT_FOUND;
    for (size_t i = text.len; i-- > 0;)
        if (str_starts(str_from(text, i), what))
            return i;
    return NOT_FOUND;
}

size_t beginning_at_end(struct str text, struct str what) {
    for (size_t n = what.len ? MIN(text.len, what.len - 1) : 0; n > 0; n--)
        if (memcmp(text.ptr + text.len - n, what.ptr, n) == 0)
            return n;
    return 0;
}

// ---- tags -------------------------------------------------------------------------------------------------------

static size_t word_tag(struct str s) {
    size_t n = 1;
    while (n < s.len && n < MAX_TAG && (isupper((unsigned char)s.ptr[n]) || s.ptr[n] == '_' || s.ptr[n] == '/'))
        n++;
    return n > 2 && n < s.len && s.ptr[n] == ']' ? n + 1 : 0;
}

size_t tag_length(struct str s) {
    if (s.len == 0 || (s.ptr[0] != '<' && s.ptr[0] != '['))
        return 0;
    if (s.ptr[0] == '[')
        return word_tag(s);
    for (size_t n = 1; n < s.len && n < MAX_TAG; n++) {
        if (s.ptr[n] == '>')
            return n + 1;
        if (s.ptr[n] == '<' || s.ptr[n] == '\n')
            return 0;
    }
    return 0;
}

size_t last_tag(struct str s) {
    for (size_t i = s.len; i-- > 0;)
        if (tag_length(str_from(s, i)))
            return i;
    return NOT_FOUND;
}

// ---- matching ---------------------------------------------------------------------------------------------------

enum mark_match mark_at(struct str text, size_t *at, struct str mark) {
    struct str core = str_core(mark);
    size_t t = *at;
    for (size_t m = 0; m < core.len; m++) {
        bool any_blanks = m == 0 || is_blank(core.ptr[m]) || core.ptr[m - 1] == '>';
        while (any_blanks && t < text.len && is_blank(text.ptr[t]))
            t++;
        if (is_blank(core.ptr[m]))
            continue;
        if (t == text.len)
            return MARK_MORE;
        if (text.ptr[t++] != core.ptr[m])
            return MARK_NO;
    }
    *at = t;
    return MARK_YES;
}

// ---- comparing --------------------------------------------------------------------------------------------------

/* Where the tag that byte `at` is inside of begins and ends. A tag may have lost its beginning or its end to a slot:
 * `">\n<parameter name="`. */
static bool inside_tag(struct str s, size_t at, size_t *begin, size_t *end) {
    for (size_t i = 0; i < at; i++) {
        size_t n = tag_length(str_from(s, i));
        bool cut_off = s.ptr[i] == '<' && n == 0 && !memchr(s.ptr + i, '\n', s.len - i);
        if (cut_off)
            n = s.len - i;
        if (n && i + n > at) {
            *begin = i;
            *end = i + n;
            return true;
        }
        if (n)
            i += n - 1;
    }
    const char *close = s.len ? memchr(s.ptr, '>', s.len) : NULL, *open = s.len ? memchr(s.ptr, '<', s.len) : NULL;
    if (!close || (open && open < close) || memchr(s.ptr, '\n', (size_t)(close - s.ptr)))
        return false;
    *begin = 0;
    *end = (size_t)(close - s.ptr) + 1;
    return at < *end;
}

static size_t cut_back_prefix(struct str s, size_t n) {
    size_t begin, end;
    return n && n < s.len && inside_tag(s, n, &begin, &end) ? begin : n;
}

size_t common_prefix(struct str a, struct str b) {
    size_t n = 0;
    while (n < a.len && n < b.len && a.ptr[n] == b.ptr[n])
        n++;
    n = MIN(cut_back_prefix(a, n), cut_back_prefix(b, n));
    return n;
}

static size_t cut_back_suffix(struct str s, size_t n) {
    size_t begin, end, at = s.len - n;
    return n && at && inside_tag(s, at, &begin, &end) ? s.len - end : n;
}

size_t common_suffix(struct str a, struct str b) {
    size_t n = 0;
    while (n < a.len && n < b.len && a.ptr[a.len - 1 - n] == b.ptr[b.len - 1 - n])
        n++;
    n = MIN(cut_back_suffix(a, n), cut_back_suffix(b, n));
    return n;
}
