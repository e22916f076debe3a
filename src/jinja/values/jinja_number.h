/* jinja_number.h - arithmetic, and texts that are numbers (jinja_number.c). */
#pragma once

#include "jinja/values/jinja_value.h"

enum jop { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW };
jval jval_binary(struct jinja *j, enum jop op, jval a, jval b);
jval jval_negate(struct jinja *j, jval v);
jval jval_plus(struct jinja *j, jval v);
bool jval_is_number(jval v); // int, float, bool
double jval_number(jval v);
jval jval_large(struct jinja *j, struct str digits); // an integer past 64 bits; borrows digits
static inline struct str jval_digits(const struct jinja *j, jval v) { return j->large[v.digits - 1]; } // v.digits > 0
int64_t jval_index(struct jinja *j, jval v, const char *what);              // an int or bool, else leaves
bool str_to_int(struct jinja *j, struct str s, int64_t base, int64_t *out); // int(s, base); false when it is none
bool str_to_float(struct jinja *j, struct str s, double *out);
jval jval_to_int(struct jinja *j, double f); // int(f)
jval jval_round(struct jinja *j, jval v, jval n_digits);
