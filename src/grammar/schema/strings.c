/* strings.c - what a schema says of strings, as a regular language of the text that a string says. */
#include "grammar/schema/reader.h"

rx_id read_pattern(struct reader *r, struct str pattern) {
    rx_id out = RX_NEVER;
    struct error err;
    if (regex_read_rx(ir_rx(r->ir), pattern, REGEX_SEARCH | REGEX_ECMA, &out, &err) != OK)
        reader_refuse(r, err.status, "pattern \"%.*s\": %s", (int)MIN(pattern.len, 100), pattern.ptr, err.text);
    return out;
}

static struct str string_of(const json_t *v) { return (struct str){json_string_value(v), json_string_length(v)}; }

rx_id read_strings(struct reader *r, const json_t *schema) {
    struct rx_pool *rx = ir_rx(r->ir);
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    rx_id text = r->any_text, length = r->any_text;
    int64_t min = reader_count(r, schema, "minLength", 0), max = reader_count(r, schema, "maxLength", UNBOUNDED);
    if (min > 0 || max != UNBOUNDED)
        length = rx_repeat(rx, r->any_char, (int32_t)min, max == UNBOUNDED ? RX_NO_MAX : (int32_t)max);
    if (pattern && !json_is_string(pattern))
        reader_refuse(r, ERR_FORMAT, "pattern: must be a string, not %s", jv_type_name(pattern));
    else if (pattern)
        text = text_and(r, text, read_pattern(r, string_of(pattern)));
    if (json_is_string(format))
        text = text_and(r, text, read_format(r, string_of(format)));
    return text == r->any_text ? length : length == r->any_text ? text : rx_at_most(rx, text, length);
}
