/* bench_bound.h - what stands beside every measured time: the device's limits, a floor, the library's products
 * alone, clocks and power. */
#pragma once

#include "base/json/json.h"
#include "bench/gpu_watch.h"
#include "core/backend.h"
#include "gyre.h"

/* A device without limits is infinitely fast, and its floors are 0. */
enum status bench_limits(struct gyre *g, struct device_limits *out, struct error *err);
void bench_limits_print(const struct gyre *g, const struct device_limits *limits);
/* What the device has counted so far (core/backend.h, report). */
void bench_reports_print(const struct gyre *g);
int64_t bench_reported(const struct gyre *g, const char *name); // one of these; 0: the device does not tell it

/* Seconds that the products of n_tokens rows take by the library's fastest algorithms, alone, in steps as large as
 * may be, n_out of them with logits; 0: the backend has no library. Nothing may be in flight. */
enum status bench_ladder(struct gyre *g, int64_t n_tokens, int64_t n_out, double *seconds, struct error *err);

/* Clocks, power and energy, of which there are samples. */
json_t *bench_gpu_json(const struct gpu_report *r);
/* " 1950 MHz 540 W 0.046 J/token (held back: 0x4)"; nothing where the GPU was not watched. */
void bench_gpu_print(const struct gpu_report *r, int64_t n_tokens);

/* n sequences, each of n_prompt tokens and n_output answered, as prompts in full steps and then n_seqs at a time,
 * one token a step. */
struct bench_shape {
    double n, n_prompt, n_output, n_seqs; // lengths are means
};

/* What bounds a load that took so many seconds. */
struct bench_bound {
    struct bench_shape load;
    struct device_limits limits;
    struct gpu_report gpu;
    double seconds, floor_s, ladder_s, n_chunks, n_steps, at_once; // the steps that the load is, of at_once sequences
};

/* Measures the device's limits and the library's products. The bound of a device without limits is nothing: floor_s
 * and ladder_s are 0. */
enum status bench_bound_find(struct gyre *g, const struct bench_shape *load, double seconds,
                             const struct gpu_report *gpu, struct bench_bound *out, struct error *err);
/* The device's limits, lines "floor" and "ladder" with what part of the seconds each is, and the clocks. Nothing for
 * a device without limits. */
void bench_bound_print(const struct gyre *g, const struct bench_bound *b);
/* The same as device, floor_s, share_of_floor, ladder_s and gpu: what there is of it. */
void bench_bound_json(const struct bench_bound *b, json_t *into);
