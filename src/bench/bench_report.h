/* bench_report.h - what the times of a benchmark amount to: vllm bench serve's table, label for label, and its JSON. */
#pragma once

#include "bench/bench_load.h"

enum bench_metric { METRIC_TTFT, METRIC_TPOT, METRIC_ITL, METRIC_E2EL, N_METRICS };

struct bench_report_options {
    bool shown[N_METRICS];
    double percentiles[32];
    int n_percentiles;
    bool has_goodput;
    double goodput_ms[N_METRICS]; // negative: not asked; never of ITL
};

/* "ttft,tpot", "50,99", "ttft:500": into the options, or a sentence. */
enum status bench_report_metrics(struct bench_report_options *o, const char *list, struct error *err);
enum status bench_report_percentiles(struct bench_report_options *o, const char *list, struct error *err);
enum status bench_report_goodput(struct bench_report_options *o, const char *term, struct error *err);

/* Prints the table to standard output and sets its figures, and with detailed also each request's, as fields of
 * json. */
void bench_report(const struct bench_report_options *o, const struct bench_load *load,
                  const struct bench_result *results, double duration, bool detailed, json_t *json);

/* The p-th percentile of n sorted values, with linear interpolation as numpy has it; 0 of none. */
double sorted_percentile(const double *x, size_t n, double p);
