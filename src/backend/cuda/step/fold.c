/* fold.c - ops that need no node of their own; see cuda.h.
 *
 *     NORM, ADD_NORM      y = norm(x + norm(d)): the norm behind a product (Gemma) is done by the ADD_NORM that adds
 *                         its result
 *     GATED_ADD, ADD_NORM of a few rows the ADD_NORM adds up what the GATED_ADD before it does, where that has no gate
 *     TAKE_ROWS           where every token row gives an output row, readers take the rows from where they are
 *
 * What a fold needs is seen in the program alone, before values have places, because it changes how long values live.
 */
#include "backend/cuda/step/fold.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device/device.h"
#include "backend/cuda/value.h"

enum { WIDEST_NORM = 8192 }; // that ADD_NORM holds in registers

static bool read_by_one(const struct program *p, val v) {
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            n += p->ops[i].in[k].id == v.id;
    return n == 1 && !program_keeps(p, v.id);
}

static bool in_fours(const struct program *p, val v) {
    return v.col % 4 == 0 && v.width % 4 == 0 && p->values[v.id].width % 4 == 0;
}

static int maker_of(const struct program *p, val v) { return p->values[v.id].first_use; }

const struct op *norm_folded_into(const struct program *p, const struct op *add) {
    if (add->code != OP_ADD_NORM || !val_given(add->in[1]))
        return NULL;
    const struct op *norm = &p->ops[maker_of(p, add->in[1])];
    if (norm->code != OP_NORM || val_given(norm->in[1]) || norm->args.norm.scale != 1 ||
        norm->args.norm.group != add->in[1].width)
        return NULL;
    bool lies_well = in_fours(p, add->in[0]) && in_fours(p, norm->in[0]) && add->in[0].width <= WIDEST_NORM;
    return lies_well && norm->weights[0] && read_by_one(p, add->in[1]) ? norm : NULL;
}

const struct op *sum_folded_into(const struct program *p, const struct op *add) {
    if (add->code != OP_ADD_NORM || !val_given(add->in[1]))
        return NULL;
    const struct op *sum = &p->ops[maker_of(p, add->in[1])];
    if (sum->code != OP_GATED_ADD || val_given(sum->in[2]) || sum->out[0].width != add->in[1].width)
        return NULL;
    bool lies_well = in_fours(p, add->in[0]) && in_fours(p, sum->in[0]) && in_fours(p, sum->in[1]);
    return lies_well && add->in[0].width <= WIDEST_NORM && read_by_one(p, add->in[1]) ? sum : NULL;
}

const struct op *reduce_folded_into(const struct program *p, const struct op *add) {
    if (add->code != OP_ADD_NORM || !val_given(add->in[1]))
        return NULL;
    const struct op *norm = norm_folded_into(p, add);
    val d = norm ? norm->in[0] : add->in[1];
    const struct op *reduce = &p->ops[maker_of(p, d)];
    if (reduce->code != OP_ALL_REDUCE || reduce->out[0].width != d.width)
        return NULL;
    bool lies_well = in_fours(p, add->in[0]) && in_fours(p, reduce->in[0]);
    return lies_well && d.width <= WIDEST_NORM && read_by_one(p, d) ? reduce : NULL;
}

/* All readers of the rows taken are LINEARs, and the rows are those that the step keeps to its end. */
static bool take_is_folded(const struct program *p, const struct op *take) {
    if (take->code != OP_TAKE_ROWS || take->in[0].id != p->hidden.id ||
        take->in[0].width != p->values[take->in[0].id].width)
        return false;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            if (p->ops[i].in[k].id == take->out[0].id && p->ops[i].code != OP_LINEAR)
                return false;
    return true;
}

val rows_in_order(const struct program *p, const struct op *op) {
    if (op->code != OP_LINEAR)
        return NO_VAL;
    const struct op *take = &p->ops[maker_of(p, op->in[0])];
    return take_is_folded(p, take) ? val_cols(take->in[0], op->in[0].col, op->in[0].width) : NO_VAL;
}

enum fold fold_of(const struct program *p, const struct op *op) {
    if (take_is_folded(p, op))
        return FOLD_IN_ORDER;
    for (int i = 0; op->code == OP_NORM && i < p->n_ops; i++)
        if (p->ops[i].in[1].id == op->out[0].id && norm_folded_into(p, &p->ops[i]) == op)
            return FOLD_ALWAYS;
    return FOLD_NEVER;
}

void fold_lives(const struct program *p, struct value *values) {
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *norm = norm_folded_into(p, &p->ops[i]);
        if (norm)
            values[norm->in[0].id].last_use = MAX(values[norm->in[0].id].last_use, i);
        const struct op *sum = sum_folded_into(p, &p->ops[i]);
        for (int k = 0; sum && k < 2; k++)
            values[sum->in[k].id].last_use = MAX(values[sum->in[k].id].last_use, i);
        const struct op *reduce = reduce_folded_into(p, &p->ops[i]);
        if (reduce)
            values[reduce->in[0].id].last_use = MAX(values[reduce->in[0].id].last_use, i);
    }
}

void fold_sums(struct executable *exe) {
    const struct program *p = exe->program;
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *sum = sum_folded_into(p, &p->ops[i]), *reduce = reduce_folded_into(p, &p->ops[i]);
        if (sum)
            exe->ops[i].sum = &exe->ops[sum - p->ops], exe->ops[i].sum->sum = &exe->ops[i];
        if (reduce)
            exe->ops[i].reduce = &exe->ops[reduce - p->ops], exe->ops[i].reduce->reduce = &exe->ops[i];
    }
}
