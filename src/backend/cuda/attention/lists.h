/* lists.h - attention.c: which kernel an ATTENTION runs on, and the lists of parts that the fast ones work on. */
#pragma once

#include "backend/cuda/cuda.h"

enum { ATTENTION_FEW_TOKENS = FEW_TOKENS }; // sequences with more in a step go to the prefill kernel
enum element attention_query_element(const struct loaded *loaded,
                                     const struct op *op); // what an ATTENTION rounds its queries to
enum status attention_plan(struct executable *exe, struct error *err);
void attention_free(struct executable *exe);
enum status attention_lists_launch(const struct executable *exe, const struct launch *l,
                                   struct error *err); // once a step, before its ops
/* Likewise of latent attention; latent.c. */
enum element latent_query_element(const struct loaded *loaded, const struct op *op);
enum status latent_plan(struct executable *exe, struct error *err);
void latent_free(struct executable *exe);
enum status latent_parts_launch(const struct executable *exe, const struct launch *l, struct error *err);
/* ATTENTIONs that the fast kernels do not take, the first of them in *first: a block computes a token and a head. */
int attention_n_plain(const struct executable *exe, const struct op **first);
