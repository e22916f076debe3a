/* topology.h - what a plugin compiles of a program for devices that are not there: does it compile, and fit? */
#pragma once

#include "base/buf.h"
#include "core/backend.h"

enum { XLA_BLOCKWISE_TOKENS = 8192, XLA_PIECE_TOKENS = 8192, XLA_RINGS_BEYOND = 32768, XLA_STEPS = 8 };

struct xla_target {
    const char *plugin;   // a path; NULL: as pjrt_find has it
    const char *topology; // as the plugin names it: "v6e:2x2"
    struct load_options load;
    int n_seqs, n_queries, context, block_size; // of the launch
    int blockwise;                              // as the device option
};

/* Compiles one launch of the program (that of rank 0, where it is cut) and appends what it takes of each chip, in text.
 * Caches are as large as the sequences need. */
enum status xla_compile_for(const struct program *p, const struct xla_target *t, struct buf *out, struct error *err);
