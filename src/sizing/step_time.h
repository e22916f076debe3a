/* step_time.h - how long a step of one rank of a model should take on a card, and what memory it needs there.
 *
 *     struct step_model *m = step_model_new(rank_program, &(struct step_model_options){card, link, ...});
 *     step_model_time(m, &(struct work_kind){32, 1024, 1}, 1, &t);     // 32 sequences, one token each
 *
 * Of each op (core/pass/op_work.h): its bytes at the card's read rate, its products at the card's rate of products,
 * each as far as steps reach them (measured.h, struct reach); the longer of both, a share of the shorter, and a fixed
 * time a node. Sums over ranks are added, and not hidden. Ops that do the same work are one class, so that a step of
 * any model costs some twenty evaluations: a replay asks for millions. */
#pragma once

#include "core/pass/op_work.h"
#include "sizing/measured.h"

/* What keys and values are kept in: 16 bits, fp8 or int4 (core/kv_int4.h). */
enum cache_format { CACHE_16_BITS, CACHE_FP8, CACHE_INT4 };

struct step_model_options {
    const struct card *card;
    const struct link *link;
    bool makes_fp8;    // --quantization fp8
    enum cache_format cache;
    int n_all_experts; // of a layer, where ranks have some of them; 0: all have all
};

/* In seconds. */
struct step_time {
    double nodes, weights, cache, products, sums; // sum up to total; of what overlaps the shorter counts little
    double layers, ends;                          // the same total: what is of layers, and of embedding and head
    double ffn;                                   // of the total: feed-forward and experts, with their sums
    double total;
    enum basis basis;
};

struct step_model;
/* The program is borrowed for as long as the model lives. */
struct step_model *step_model_new(const struct program *rank, const struct step_model_options *options);
void step_model_free(struct step_model *m); // NULL is fine

void step_model_time(const struct step_model *m, const struct work_kind *kinds, int n_kinds, struct step_time *out);

/* Bytes of the rank's weights on its card, of layers alone and of the rest; and of the cache of a sequence of n tokens,
 * in whole blocks. */
double step_model_layer_bytes(const struct step_model *m);
double step_model_end_bytes(const struct step_model *m);
double step_model_cache_bytes(const struct step_model *m, double n_tokens, int block_size);
/* Of one block of a group over all its layers; a slot of state groups. */
double step_model_block_bytes(const struct step_model *m, int group, int block_size);
