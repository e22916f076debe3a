/* jinja_str_kinds.c - what kind of text a string is: of one case, a title, an identifier. */
#include "jinja/builtins/jinja_builtin.h"
#include "jinja/values/jinja_format.h"
#include "jinja/values/jinja_str.h"
#include "jinja/values/jinja_unicode.h"

bool str_all(struct jinja *j, struct str s, bool (*is)(int32_t cp)) {
    jinja_step_bytes(j, s.len);
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        i += (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
        if (!is(cp))
            return false;
    }
    return true;
}

/* Some are cased, and those all are of the one case. */
static bool all_cased(struct jinja *j, struct str s, bool (*is)(int32_t cp)) {
    jinja_step_bytes(j, s.len);
    bool any = false;
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        i += (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
        if (cp_is_cased(cp) && !is(cp))
            return false;
        any |= cp_is_cased(cp);
    }
    return any;
}

bool str_is_lower(struct jinja *j, struct str s) { return all_cased(j, s, cp_is_lower); }
bool str_is_upper(struct jinja *j, struct str s) { return all_cased(j, s, cp_is_upper); }

bool str_is_title(struct jinja *j, struct str s) {
    jinja_step_bytes(j, s.len);
    bool any = false, inside = false;
    for (size_t i = 0; i < s.len;) {
        int32_t cp;
        i += (size_t)utf8_decode(s.ptr + i, s.len - i, &cp);
        bool begins = cp_is_upper(cp) || cp_is_title(cp), cased = cp_is_cased(cp);
        if (cased && begins == inside)
            return false;
        inside = cased;
        any |= cased;
    }
    return any;
}

static bool is_ascii(int32_t cp) { return cp < 0x80; }
bool str_is_ascii(struct jinja *j, struct str s) { return str_all(j, s, is_ascii); }

bool str_is_identifier(struct jinja *j, struct str s) {
    int32_t cp = -1;
    if (s.len)
        utf8_decode(s.ptr, s.len, &cp);
    return cp >= 0 && cp_is_name_start(cp) && str_all(j, s, cp_is_name_continue);
}
