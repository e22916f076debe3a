/* hlo_text.h - pieces of text that the files of hlo.h share. */
#pragma once

#include "backend/xla/lower/hlo.h"

#include <stdio.h>

void put_text(struct buf *out, const char *text);
void put_type(struct buf *out, enum hlo_type type, struct shape shape); // tensor<4x8xf32>
void put_type_of(struct buf *out, struct tensor x);
void put_name(struct buf *out, struct tensor x);                              // %12, %12#1
void put_numbers(struct buf *out, const int *x, int n);                       // [0, 2]
void put_array(struct buf *out, const char *name, const int64_t *x, int n);   // name = array<i64: 0, 2>
struct tensor hlo_new(struct hlo *h, enum hlo_type type, struct shape shape); // a value without an operation yet
/* %3 = "stablehlo.add"(%1, %2); attributes come next, and then : (types) -> type and a new line */
void put_call(struct hlo *h, struct tensor result, const char *op, const struct tensor *operands, int n);
void put_signature(struct hlo *h, struct tensor result, const struct tensor *operands, int n);
