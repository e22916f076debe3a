/* probes.h - what a bench asks for, and what there is to tell. */
#pragma once

#include "backend/cuda/cuda.h"

enum status cuda_measure(struct loaded *loaded, struct device_limits *out, struct error *err);
int64_t cuda_weight_bytes(const struct loaded *loaded, const struct weight *w);

enum status cuda_library_floor(struct executable *exe, int n_tokens, int n_out, double *seconds, struct error *err);

enum status cuda_trace(struct executable *exe, double *op_us, int *op_nodes, struct error *err);

enum status cuda_footprint(struct loaded *loaded, struct bucket bucket, int block_size, const int *table_width,
                           struct device_part out[MAX_DEVICE_PARTS], int *n, struct error *err);

int cuda_nodes(struct executable *exe, int n_rows, struct device_node *out, int most);
bool cuda_warning(struct executable *exe, int i, char *out, size_t n);
int cuda_report(const struct executable *exe, struct device_report out[MAX_DEVICE_REPORTS]);
