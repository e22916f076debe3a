/* lark.c - Lark's EBNF. */
#include "grammar/front.h"

enum status lark_read(struct ir *ir, struct str text, ir_id *out, struct error *err) {
    (void)ir, (void)text, (void)out;
    return fail(err, ERR_UNSUPPORTED, "Lark grammars are not enforced yet");
}
