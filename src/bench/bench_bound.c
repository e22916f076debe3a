/* bench_bound.c - see bench_bound.h. */
#include "bench/bench_bound.h"

#include "bench/bench_floor.h"
#include "engine/inspect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool can_measure(const struct gyre *g) {
    const struct backend_probes *probes = engine_parts(g).ops->probes;
    return probes && probes->measure;
}

enum status bench_limits(struct gyre *g, struct device_limits *out, struct error *err) {
    struct engine_parts e = engine_parts(g);
    if (can_measure(g))
        return e.ops->probes->measure(e.loaded, out, err);
    *out = (struct device_limits){
        .read_bytes_per_s = INFINITY, .flops_per_s = INFINITY, .wide_flops_per_s = INFINITY, .product = "nothing"};
    snprintf(out->name, sizeof out->name, "%s", e.ops->name);
    return OK;
}

void bench_limits_print(const struct gyre *g, const struct device_limits *l) {
    struct gpu_watch *watch;
    const char *why;
    if (!isfinite(l->read_bytes_per_s)) {
        printf("device    %s: has no limits\n", l->name);
        return;
    }
    printf("device    %s: reads %.1f GB/s, multiplies %s at %.1f TFLOP/s, what is wider at %.1f, measured now\n",
           l->name, l->read_bytes_per_s * 1e-9, l->product, l->flops_per_s * 1e-12, l->wide_flops_per_s * 1e-12);
    if (gpu_watch_start(&watch, &why))
        gpu_watch_stop(watch, NULL);
    else if (engine_parts(g).ops->cache_room) // a device with memory of its own: a GPU
        printf("clocks    not known: %s\n", why);
}

int64_t bench_reported(const struct gyre *g, const char *name) {
    struct device_report all[MAX_DEVICE_REPORTS];
    struct engine_parts e = engine_parts(g);
    for (int i = 0, n = e.ops->report(e.exe, all); i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return all[i].value;
    return 0;
}

void bench_reports_print(const struct gyre *g) {
    struct device_report all[MAX_DEVICE_REPORTS];
    struct engine_parts e = engine_parts(g);
    for (int i = 0, n = e.ops->report(e.exe, all); i < n; i++)
        if (strcmp(all[i].unit, "bytes") != 0 && all[i].value > 0)
            printf("counted   %lld %s: %s\n", (long long)all[i].value, all[i].unit, all[i].help);
}

enum status bench_ladder(struct gyre *g, int64_t n_tokens, int64_t n_out, double *seconds, struct error *err) {
    struct engine_parts e = engine_parts(g);
    int64_t rows = MIN(n_tokens, gyre_info(g)->max_batched_tokens);
    *seconds = 0;
    if (!e.ops->probes || !e.ops->probes->library_floor)
        return OK;
    TRY(e.ops->probes->library_floor(e.exe, (int)rows, (int)MIN(n_out, gyre_info(g)->max_seqs), seconds, err));
    *seconds *= (double)n_tokens / (double)rows;
    return OK;
}

void bench_gpu_print(const struct gpu_report *r, int64_t n_tokens) {
    if (r->n_samples == 0)
        return;
    printf("  %4.0f MHz %3.0f W", r->sm_mhz, r->watts);
    if (r->joules > 0)
        printf(" %6.3f J/token", r->joules / (double)n_tokens);
    if (r->held_back)
        printf(" (held back: 0x%llx)", (unsigned long long)r->held_back);
}

json_t *bench_gpu_json(const struct gpu_report *r) {
    return json_pack("{s:f, s:i, s:i, s:f, s:f, s:i, s:I}", "sm_mhz", r->sm_mhz, "sm_mhz_least", r->sm_mhz_least,
                     "memory_mhz", r->memory_mhz, "watts", r->watts, "joules", r->joules, "celsius", r->celsius,
                     "held_back", (json_int_t)r->held_back);
}

enum status bench_bound_find(struct gyre *g, const struct bench_shape *l, double seconds, const struct gpu_report *gpu,
                             struct bench_bound *out, struct error *err) {
    struct bench_floor prompts, step;
    double of_prompts, of_step;
    *out = (struct bench_bound){.load = *l, .gpu = *gpu, .seconds = seconds};
    if (!can_measure(g))
        return OK;
    TRY(bench_limits(g, &out->limits, err));
    double rows = fmin(fmax(l->n * l->n_prompt, 1), gyre_info(g)->max_batched_tokens);
    out->at_once = fmin(l->n_seqs, gyre_info(g)->max_seqs);
    out->n_chunks = l->n * l->n_prompt / rows;
    out->n_steps = l->n * fmax(l->n_output - 1, 0) / out->at_once;
    bench_floor(g, &out->limits, rows / l->n_prompt, 0, l->n_prompt, 0, &prompts);
    bench_floor(g, &out->limits, out->at_once, l->n_prompt + l->n_output / 2, 1, 0, &step);
    TRY(bench_ladder(g, (int64_t)rows, (int64_t)fmax(rows / l->n_prompt, 1), &of_prompts, err));
    TRY(bench_ladder(g, (int64_t)out->at_once, (int64_t)out->at_once, &of_step, err));
    out->floor_s = out->n_chunks * prompts.seconds + out->n_steps * step.seconds;
    out->ladder_s = out->n_chunks * of_prompts + out->n_steps * of_step;
    return OK;
}

void bench_bound_print(const struct gyre *g, const struct bench_bound *b) {
    bench_reports_print(g);
    if (!can_measure(g))
        return;
    bench_limits_print(g, &b->limits);
    if (b->floor_s > 0)
        printf("floor     %.3f s: %.1f %% of that; %.1f chunks of prompts and %.0f steps of %.0f sequences\n",
               b->floor_s, 100 * b->floor_s / b->seconds, b->n_chunks, b->n_steps, b->at_once);
    if (b->ladder_s > 0)
        printf("ladder    %.3f s: %.1f %%; the library's products alone, the fastest of its algorithms\n", b->ladder_s,
               100 * b->ladder_s / b->seconds);
    if (b->gpu.n_samples > 0) {
        printf("gpu     ");
        bench_gpu_print(&b->gpu, (int64_t)fmax(b->load.n * b->load.n_output, 1));
        printf(" %d C\n", b->gpu.celsius);
    }
}

void bench_bound_json(const struct bench_bound *b, json_t *into) {
    if (b->limits.name[0])
        json_object_set_new(into, "device", json_string(b->limits.name));
    if (b->floor_s > 0) {
        json_object_set_new(into, "floor_s", json_real(b->floor_s));
        json_object_set_new(into, "share_of_floor", json_real(b->floor_s / b->seconds));
    }
    if (b->ladder_s > 0)
        json_object_set_new(into, "ladder_s", json_real(b->ladder_s));
    if (b->gpu.n_samples > 0)
        json_object_set_new(into, "gpu", bench_gpu_json(&b->gpu));
}
