/* grammar_text.c - which language a grammar's text is written in. */
#include "grammar/grammar.h"

#include <string.h>

static size_t skip(struct str text, size_t at, size_t end, const char *bytes, bool are_in) {
    while (at < end && text.ptr[at] && !!strchr(bytes, text.ptr[at]) == are_in)
        at++;
    return at;
}

enum grammar_kind grammar_kind_of(struct str text) {
    for (size_t i = 0, end; i < text.len; i = end + 1) {
        const char *line_end = memchr(text.ptr + i, '\n', text.len - i);
        end = line_end ? (size_t)(line_end - text.ptr) : text.len;
        size_t at = skip(text, i, end, " \t\r", true);
        at = skip(text, at, end, " \t:=\"'/#", false);
        at = skip(text, at, end, " \t", true);
        if (end - at >= 3 && memcmp(text.ptr + at, "::=", 3) == 0)
            return GRAMMAR_GBNF;
    }
    return GRAMMAR_LARK;
}
