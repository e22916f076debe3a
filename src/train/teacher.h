/* teacher.h - a target as its draft sees it: hidden states of three of its layers, or that behind its last norm, and
 * what it finds most probable next, at each position of a text. */
#pragma once

#include "core/backend.h"
#include "model/model.h"

enum { TEACHER_TAPS = 3, TEACHER_CHOICES = 32 };

struct teacher;

struct teacher_options {
    const struct backend_ops *ops;
    struct device_options device;
    int layers[TEACHER_TAPS]; // whose outputs are read, ascending
    int64_t longest;          // text
    bool reads_last;          // in place of layers: the state behind the last norm
};

/* Places the model's weights on the device. The model outlives it. */
enum status teacher_open(const struct teacher_options *o, const struct model *model, struct teacher **out,
                         struct error *err);
void teacher_free(struct teacher *t); // NULL is fine

/* What is seen at one position. */
struct sight {
    int n_taps;                      // 1 where it reads_last
    const float *taps[TEACHER_TAPS]; // [hidden_size]
    int32_t token[TEACHER_CHOICES];  // the most probable ones, best first; of equal ones the smaller
    float logprob[TEACHER_CHOICES];
};

/* Tells each position of a text in order. What `sight` points to is good during the call. */
enum status teacher_read(struct teacher *t, const int32_t *ids, int64_t n,
                         void (*told)(void *context, int64_t position, const struct sight *sight), void *context,
                         struct error *err);
