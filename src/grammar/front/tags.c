/* tags.c - structural tags. */
#include "grammar/front.h"

enum status tags_read(struct ir *ir, const json_t *tag, const struct grammar_style *style, ir_id *out,
                      struct error *err) {
    (void)ir, (void)tag, (void)style, (void)out;
    return fail(err, ERR_UNSUPPORTED, "structural tags are not enforced yet");
}
