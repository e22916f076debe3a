/* jinja_str.h - what is done with texts, plain and Markup (jinja_str.c, jinja_markup.c). */
#pragma once

#include "jinja/values/jinja_value.h"

size_t jstr_chars(struct jinja *j, struct jstr *s);
size_t jstr_offset(struct jinja *j, struct jstr *s, size_t n_chars);       // the byte at which code point n begins
jval jstr_part(struct jinja *j, struct jstr *s, size_t begin, size_t end); // by bytes; shares memory, keeps markup
jval jstr_concat(struct jinja *j, jval a, jval b);
jval jstr_repeat(struct jinja *j, jval s, int64_t n);
jval jstr_escape(struct jinja *j, jval v); // markupsafe.escape: a Markup
void jinja_emit_escaped(struct jinja *j, struct str s);
struct str str_trim(struct str s, bool left, bool right);                     // Unicode white space
struct str str_trim_set(struct str s, struct str set, bool left, bool right); // code points of set
size_t str_find(struct str s, struct str needle, size_t from);                // SIZE_MAX when absent
size_t str_rfind(struct jinja *j, struct str s, struct str needle);
enum jstr_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP, CASE_FOLD };
jval jstr_map(struct jinja *j, jval s, enum jstr_case how);
jval jstr_replace(struct jinja *j, jval s, struct str old, struct str new, int64_t count); // count < 0: all
