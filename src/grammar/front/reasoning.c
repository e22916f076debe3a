/* reasoning.c - what a model thinks before the text of a grammar. */
#include "grammar/front.h"

enum { MOST_BLANKS = 8 }; // behind it: without a bound a model that never begins would write blanks for ever

ir_id ir_after_reasoning(struct ir *ir, const struct grammar_reasoning *r, ir_id text) {
    if (!r->end.ptr)
        return text;
    static const struct code_range blanks[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    rx_id blank = rx_class(ir_rx(ir), blanks, sizeof blanks / sizeof *blanks);
    ir_id parts[] = {r->is_open ? IR_EMPTY : ir_bytes(ir, r->begin), ir_text_without(ir, &r->end, 1),
                     ir_bytes(ir, r->end), ir_terminal(ir, rx_repeat(ir_rx(ir), blank, 0, MOST_BLANKS)), text};
    ir_id thought = ir_seq_of(ir, parts, sizeof parts / sizeof *parts);
    return r->is_open ? thought : ir_alt(ir, thought, text);
}
