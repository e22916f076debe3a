/* head.h - a head in training: its weights, and a step of a batch forward and backward. There are two kinds, EAGLE-3's
 * (model/draft/eagle3.c says what it is) and the next-token predictor of Qwen3.5 (families/qwen3_next.c), whose head
 * and embedding are the target's and stay so.
 *
 *     a text of tokens t_0 .. t_n; row p, 0 <= p < n: the target's hidden states at p and the embedding of t_p+1
 *     row p should say what the target says of t_p+2
 *
 * Rows are computed in as many steps as a draft makes guesses ("training-time test", EAGLE-3, arXiv 2503.01840). Step 0
 * reads the target's states; in step s row p reads what row p - 1 gave in step s - 1, and attends to what a chain sees
 * that was begun at row p - s. Losses of later steps count less.
 *
 * As in math.h there are two: float32 trains, double is for tests. head_types.h has what depends on it. */
#pragma once

#include "train/math/math.h"

enum head_kind { HEAD_EAGLE3, HEAD_MTP };

struct head_shape {
    enum head_kind kind;
    int64_t hidden, taps; // of the draft; of all states of the target that a row reads, side by side
    int n_heads, n_kv_heads, head_dim;
    int rope_dim; // channels of a head that are turned, even
    int64_t ffn, vocab;
    double eps, rope_theta;
};

/* Matrices are [out, in]; q, k and v stand above each other, as do gate and up. Norms multiply by their weight, whole.
 * What a kind does not have is empty. */
enum head_tensor {
    HEAD_FC,
    HEAD_EMBED_NORM,
    HEAD_HIDDEN_NORM,
    HEAD_INPUT_NORM, // these are a predictor's alone
    HEAD_QKV,
    HEAD_GATE, // of what attention gives, before HEAD_OUT
    HEAD_Q_NORM,
    HEAD_K_NORM,
    HEAD_OUT,
    HEAD_FFN_NORM,
    HEAD_GATE_UP,
    HEAD_DOWN,
    HEAD_NORM,
    HEAD_LM_HEAD, // EAGLE-3's alone
    N_HEAD_TENSORS
};
int64_t head_rows(const struct head_shape *s, enum head_tensor t); // 1 of a norm, 0 of what the kind has not
int64_t head_cols(const struct head_shape *s, enum head_tensor t);
int64_t head_at(const struct head_shape *s, enum head_tensor t); // where it begins among the weights
int64_t head_size(const struct head_shape *s);                   // numbers in all

enum { MOST_HEAD_STEPS = 16 };

#define REAL float
#define NAME(x) x##_f32
#include "train/math/head_types.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_f64
#include "train/math/head_types.h"
#undef REAL
#undef NAME
