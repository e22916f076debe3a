/* bench_batch.h - many requests through an engine in the process, as fast as it goes: what bench latency and bench
 * throughput measure. */
#pragma once

#include "console/progress.h"
#include "gyre.h"
#include "text/tokenizer.h"

struct bench_job {
    const int32_t *ids; // the prompt
    int64_t n_ids, n_output;
};

struct bench_batch {
    const struct bench_job *jobs; // [n]
    size_t n;
    int64_t copies;                    // answers to each prompt, of other seeds
    const struct tokenizer *tokenizer; // answers become text; NULL: they stay ids
    uint64_t seed;
    struct progress *progress; // told of each finished request; NULL: nobody is
};

/* All requests at once: temperature 1, every token asked for, past the end of the sequence too. *seconds is from the
 * first submission to the last answer, *n_output the tokens of all. */
enum status bench_batch_run(struct gyre *g, const struct bench_batch *batch, double *seconds, int64_t *n_output,
                            struct error *err);
