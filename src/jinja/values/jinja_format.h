/* jinja_format.h - format strings, % and JSON (builtins/jinja_format.c, builtins/jinja_percent.c, jinja_json.c). */
#pragma once

#include "jinja/values/jinja_value.h"

struct jargs;
jval jinja_percent(struct jinja *j, jval format, jval args);                   // format % args
jval jinja_str_format(struct jinja *j, jval format, const struct jargs *args); // str.format
void jinja_emit_formatted(struct jinja *j, jval v, struct str spec);           // format(v, spec)
jval jinja_from_json(struct jinja *j, const json_t *json);
struct json_style {
    bool ascii, sort_keys, pretty;
    struct str indent, item_separator, key_separator;
};
void jinja_emit_json(struct jinja *j, jval v, const struct json_style *style, int depth);
