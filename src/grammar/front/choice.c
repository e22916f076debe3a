/* choice.c - one of some texts. See front.h. */
#include "grammar/front.h"

#include <stdlib.h>

enum status choice_read(struct ir *ir, const json_t *choices, ir_id *out, struct error *err) {
    size_t n = json_array_size(choices);
    if (!json_is_array(choices) || n == 0)
        return fail(err, ERR_FORMAT, "choices must be an array of at least one string");
    struct str *texts = xcalloc(n, sizeof *texts);
    enum status st = OK;
    for (size_t i = 0; i < n && st == OK; i++) {
        const json_t *text = json_array_get(choices, i);
        if (!json_is_string(text))
            st = fail(err, ERR_FORMAT, "choice %zu is %s, it must be a string", i, jv_type_name(text));
        else
            texts[i] = (struct str){json_string_value(text), json_string_length(text)};
    }
    if (st == OK)
        *out = ir_terminal(ir, rx_choice(ir_rx(ir), texts, n));
    free(texts);
    return st == OK ? ir_check(ir, err) : st;
}
