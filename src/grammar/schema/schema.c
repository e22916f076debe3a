/* schema.c - JSON Schema. */
#include "grammar/front.h"

enum status schema_read(struct ir *ir, const json_t *schema, const struct grammar_style *style, ir_id *out,
                        struct error *err) {
    (void)ir, (void)schema, (void)style, (void)out;
    return fail(err, ERR_UNSUPPORTED, "JSON Schema is not enforced yet");
}

enum status json_object_read(struct ir *ir, const struct grammar_style *style, ir_id *out, struct error *err) {
    (void)ir, (void)style, (void)out;
    return fail(err, ERR_UNSUPPORTED, "JSON objects are not enforced yet");
}
