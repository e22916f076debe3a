/* sample_internal.h - what the files of sample.h share. */
#pragma once

#include "core/sample.h"

/* log(sum(exp(logits))); `max` is the largest of them. */
double sample_log_sum_exp(const float *logits, int64_t n, float max);
