/* reasoning.c - what a model thinks before the text of a grammar. */
#include "grammar/front.h"

enum { MOST_BLANKS = 8 }; // behind it: without a bound a model that never begins would write blanks for ever

static ir_id blanks(struct ir *ir) {
    static const struct code_range ranges[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    rx_id blank = rx_class(ir_rx(ir), ranges, sizeof ranges / sizeof *ranges);
    return ir_terminal(ir, rx_repeat(ir_rx(ir), blank, 0, MOST_BLANKS));
}

ir_id ir_after_reasoning(struct ir *ir, const struct grammar_reasoning *r, ir_id text) {
    if (!r->end.ptr)
        return text;
    bool messages = r->answer.ptr;
    ir_id behind = messages ? ir_marked(ir, r->again) : blanks(ir);
    ir_id open = ir_seq_of(ir, (ir_id[]){ir_text_without(ir, &r->end, 1), ir_marked(ir, r->end), behind}, 3);
    ir_id thought = ir_seq(ir, ir_marked(ir, r->begin), open);
    if (messages) {
        ir_id rest[] = {ir_repeat(ir, thought, 0, IR_NO_MAX), ir_marked(ir, r->answer), text};
        text = ir_seq_of(ir, rest, sizeof rest / sizeof *rest);
        return r->is_open ? ir_seq(ir, open, text) : text;
    }
    return r->is_open ? ir_seq(ir, open, text) : ir_alt(ir, ir_seq(ir, thought, text), text);
}
