/* uses.h - who makes each value of a program, and who reads it: the table that passes and backends ask. */
#pragma once

#include "core/program.h"

struct uses {
    const struct program *program;
    int *made_by; // [n_values]: op
    int *first;   // [n_values + 1]: where a value's readers begin in `readers`
    int *readers; // ops in order, an op once for each input of it that is the value or columns of it
};

void uses_init(struct uses *u, const struct program *p);
void uses_release(struct uses *u);

static inline int uses_count(const struct uses *u, int value) { return u->first[value + 1] - u->first[value]; }

/* The op that makes v. */
static inline const struct op *uses_maker(const struct uses *u, val v) { return &u->program->ops[u->made_by[v.id]]; }

/* The one op that reads v or columns of it, once or more often; NULL: nobody does, or several ops. */
const struct op *uses_only_reader(const struct uses *u, val v);
