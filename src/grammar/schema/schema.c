/* schema.c - reads a JSON Schema into nodes of ir.h. See front.h, and reader.h for how. */
#include "grammar/schema/emit.h"

#include <stdlib.h>

static void reader_release(struct reader *r) {
    free(r->nodes);
    free(r->slots);
    free(r->resources);
    free(r->anchors);
    free(r->scopes);
    free(r->emitted);
    free(r->todo);
    free(r->spelled[0]);
    free(r->spelled[1]);
    arena_release(&r->arena);
}

enum status schema_read(struct ir *ir, const json_t *schema, const struct grammar_style *style, ir_id *out,
                        struct error *err) {
    struct reader r = {.ir = ir, .document = schema, .err = err};
    if (style)
        r.style = *style;
    r.any_char = rx_any_char(ir_rx(ir));
    r.any_text = rx_any_text(ir_rx(ir));
    nodes_init(&r);
    numbers_init(&r);
    refs_index(&r);
    *out = emit_schema(&r, node_schema(&r, schema, (struct place){0, 0}));
    enum status status = r.status;
    if (status == OK)
        status = ir_check(ir, err);
    reader_release(&r);
    return status;
}

enum status json_object_read(struct ir *ir, const struct grammar_style *style, ir_id *out, struct error *err) {
    json_t *schema = json_pack("{s:s}", "type", "object");
    enum status status = schema_read(ir, schema, style, out, err);
    json_decref(schema);
    return status;
}
