/* bench_report.c - see bench_report.h. */
#include "bench/bench_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name, *label, *title;
} metrics[N_METRICS] = {
    {"ttft", "TTFT", "Time to First Token"},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
    {"itl", "ITL", "Inter-token Latency"},
    {"e2el", "E2EL", "End-to-end Latency"},
};

// ---- options ----------------------------------------------------------------------------------------------------

static int metric_named(struct str name) {
    for (int i = 0; i < N_METRICS; i++)
        if (str_eq(name, str_of(metrics[i].name)))
            return i;
    return -1;
}

enum status bench_report_metrics(struct bench_report_options *o, const char *list, struct error *err) {
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ",");
        int i = metric_named((struct str){p, n});
        if (i < 0)
            return fail(err, ERR_ARG, "--percentile-metrics: \"%.*s\" is none of ttft, tpot, itl, e2el",
                        (int)MIN(n, 40), p);
        o->shown[i] = true;
        p += n + (p[n] == ',');
    }
    return OK;
}

enum status bench_report_percentiles(struct bench_report_options *o, const char *list, struct error *err) {
    for (const char *p = list; *p;) {
        char *end;
        double value = strtod(p, &end);
        if (end == p || (*end && *end != ',') || !(value >= 0 && value <= 100))
            return fail(err, ERR_ARG,
                        "--metric-percentiles: \"%.40s\" is not numbers from 0 to 100 with commas between", list);
        if (o->n_percentiles == ARRAY_LEN(o->percentiles))
            return fail(err, ERR_LIMIT, "--metric-percentiles: more than %zu", ARRAY_LEN(o->percentiles));
        o->percentiles[o->n_percentiles++] = value;
        p = end + (*end == ',');
    }
    return OK;
}

enum status bench_report_goodput(struct bench_report_options *o, const char *term, struct error *err) {
    const char *colon = strchr(term, ':');
    int i = colon ? metric_named((struct str){term, (size_t)(colon - term)}) : -1;
    char *end = NULL;
    double ms = colon ? strtod(colon + 1, &end) : 0;
    if (i < 0 || i == METRIC_ITL || end == colon + 1 || *end || !(ms >= 0))
        return fail(err, ERR_ARG, "--goodput: \"%.40s\" is not ttft, tpot or e2el with milliseconds, as ttft:500",
                    term);
    if (!o->has_goodput)
        for (int k = 0; k < N_METRICS; k++)
            o->goodput_ms[k] = -1;
    o->has_goodput = true;
    o->goodput_ms[i] = ms;
    return OK;
}

// ---- figures ----------------------------------------------------------------------------------------------------

struct values {
    double *x; // seconds
    size_t n, cap;
};

struct figures {
    int64_t n_good, n_failed, n_within, n_input, n_output;
    double peak_tokens, peak_requests; // in one second
    struct values of[N_METRICS];
};

static void push(struct values *v, double x) {
    if (v->n == v->cap) {
        v->cap = v->cap * 2 + 1024;
        v->x = xrealloc(v->x, v->cap, sizeof *v->x);
    }
    v->x[v->n++] = x;
}

static int64_t output_tokens(const struct bench_result *r) {
    return r->output_tokens >= 0 ? r->output_tokens : (int64_t)r->n_itl + 1;
}

/* By our own tokenizer where there is one, as vllm bench counts; else what the server says. */
static int64_t input_tokens(const struct bench_load *load, const struct bench_result *results, size_t i) {
    return load->prompts[i].ids.n > 0 ? (int64_t)load->prompts[i].ids.n : MAX(0, results[i].prompt_tokens);
}

static double time_per_token(const struct bench_result *r) {
    int64_t n = output_tokens(r);
    return n > 1 ? (r->latency - r->ttft) / (double)(n - 1) : 0;
}

static bool is_within(const struct bench_report_options *o, const struct bench_result *r) {
    const double ms[N_METRICS] = {
        [METRIC_TTFT] = r->ttft * 1e3, [METRIC_TPOT] = time_per_token(r) * 1e3, [METRIC_E2EL] = r->latency * 1e3};
    for (int i = 0; i < N_METRICS; i++)
        if (o->goodput_ms[i] >= 0 && ms[i] > o->goodput_ms[i])
            return false;
    return true;
}

/* Tokens and requests of each second since the first request; a request counts in each second that it touches. A
 * server may put several tokens into a chunk, so an answer's tokens are spread over its chunks. Of a run under a
 * second the rate is the peak. */
static void find_peaks(struct figures *f, const struct bench_load *load, const struct bench_result *results) {
    double begin = INFINITY, end = 0;
    for (size_t i = 0; i < load->n; i++)
        if (results[i].success) {
            begin = MIN(begin, results[i].start);
            end = MAX(end, results[i].start + results[i].latency);
        }
    if (end <= begin)
        return;
    size_t n = (size_t)ceil(end - begin) + 2;
    double *tokens = xcalloc(n, sizeof *tokens), *requests = xcalloc(n, sizeof *requests);
    for (size_t i = 0; i < load->n; i++) {
        const struct bench_result *r = &results[i];
        if (!r->success)
            continue;
        double at = r->start + r->ttft - begin, of_a_chunk = (double)output_tokens(r) / (double)(r->n_itl + 1);
        tokens[MIN((size_t)at, n - 1)] += of_a_chunk;
        for (size_t k = 0; k < r->n_itl; k++) {
            at += r->itl[k];
            tokens[MIN((size_t)at, n - 1)] += of_a_chunk;
        }
        for (size_t s = (size_t)(r->start - begin); s <= (size_t)(r->start + r->latency - begin) && s < n; s++)
            requests[s]++;
    }
    for (size_t i = 0; i < n; i++) {
        f->peak_tokens = MAX(f->peak_tokens, tokens[i] / MIN(end - begin, 1));
        f->peak_requests = MAX(f->peak_requests, requests[i]);
    }
    free(tokens);
    free(requests);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void collect(struct figures *f, const struct bench_report_options *o, const struct bench_load *load,
                    const struct bench_result *results) {
    for (size_t i = 0; i < load->n; i++) {
        const struct bench_result *r = &results[i];
        if (!r->success) {
            f->n_failed++;
            continue;
        }
        f->n_good++;
        f->n_input += input_tokens(load, results, i);
        f->n_output += output_tokens(r);
        f->n_within += o->has_goodput && is_within(o, r);
        push(&f->of[METRIC_TTFT], r->ttft);
        push(&f->of[METRIC_E2EL], r->latency);
        if (output_tokens(r) > 1)
            push(&f->of[METRIC_TPOT], time_per_token(r));
        for (size_t k = 0; k < r->n_itl; k++)
            push(&f->of[METRIC_ITL], r->itl[k]);
    }
    for (int i = 0; i < N_METRICS; i++)
        if (f->of[i].n > 0)
            qsort(f->of[i].x, f->of[i].n, sizeof(double), by_value);
    find_peaks(f, load, results);
}

double sorted_percentile(const double *x, size_t n, double p) {
    if (n == 0)
        return 0;
    double at = p / 100 * (double)(n - 1);
    size_t low = (size_t)at;
    return low + 1 < n ? x[low] + (at - (double)low) * (x[low + 1] - x[low]) : x[n - 1];
}

static double mean(const struct values *v) {
    double sum = 0;
    for (size_t i = 0; i < v->n; i++)
        sum += v->x[i];
    return v->n ? sum / (double)v->n : 0;
}

static double deviation(const struct values *v) {
    double m = mean(v), sum = 0;
    for (size_t i = 0; i < v->n; i++)
        sum += (v->x[i] - m) * (v->x[i] - m);
    return v->n ? sqrt(sum / (double)v->n) : 0;
}

// ---- the table --------------------------------------------------------------------------------------------------

static void print_title(const char *title, char around) {
    int n = (int)strlen(title), left = (50 - n) / 2;
    for (int i = 0; i < 50 - n + 1; i++) {
        if (i == left)
            fputs(title, stdout);
        if (i < 50 - n)
            putchar(around);
    }
    putchar('\n');
}

static void print_count(const char *label, int64_t n) { printf("%-40s %-10lld\n", label, (long long)n); }
static void print_real(const char *label, double x) { printf("%-40s %-10.2f\n", label, x); }

static void set_real(json_t *json, const char *name, double x) { json_object_set_new(json, name, json_real(x)); }
static void set_count(json_t *json, const char *name, int64_t n) { json_object_set_new(json, name, json_integer(n)); }

/* "99", "99.9" */
static void percentile_name(double p, char out[32]) { snprintf(out, 32, "%.10g", p); }

static void report_metric(const struct bench_report_options *o, int i, const struct values *v, json_t *json) {
    char line[64], word[32];
    double average = mean(v) * 1e3, middle = sorted_percentile(v->x, v->n, 50) * 1e3;
    print_title(metrics[i].title, '-');
    snprintf(line, sizeof line, "Mean %s (ms):", metrics[i].label);
    print_real(line, average);
    snprintf(line, sizeof line, "Median %s (ms):", metrics[i].label);
    print_real(line, middle);
    snprintf(line, sizeof line, "mean_%s_ms", metrics[i].name);
    set_real(json, line, average);
    snprintf(line, sizeof line, "median_%s_ms", metrics[i].name);
    set_real(json, line, middle);
    snprintf(line, sizeof line, "std_%s_ms", metrics[i].name);
    set_real(json, line, deviation(v) * 1e3);
    for (int k = 0; k < o->n_percentiles; k++) {
        double value = sorted_percentile(v->x, v->n, o->percentiles[k]) * 1e3;
        percentile_name(o->percentiles[k], word);
        snprintf(line, sizeof line, "P%s %s (ms):", word, metrics[i].label);
        print_real(line, value);
        snprintf(line, sizeof line, "p%s_%s_ms", word, metrics[i].name);
        set_real(json, line, value);
    }
}

static void set_details(const struct bench_load *load, const struct bench_result *results, json_t *json) {
    static const char *const names[] = {"input_lens", "output_lens", "ttfts", "itls", "generated_texts", "errors"};
    json_t *lists[ARRAY_LEN(names)];
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        json_object_set_new(json, names[i], lists[i] = json_array());
    for (size_t i = 0; i < load->n; i++) {
        const struct bench_result *r = &results[i];
        json_t *gaps = json_array(), *text = json_stringn(r->text.ptr ? r->text.ptr : "", r->text.len);
        for (size_t k = 0; k < r->n_itl; k++)
            json_array_append_new(gaps, json_real(r->itl[k]));
        json_array_append_new(lists[0], json_integer(input_tokens(load, results, i)));
        json_array_append_new(lists[1], json_integer(r->success ? output_tokens(r) : 0));
        json_array_append_new(lists[2], json_real(r->ttft));
        json_array_append_new(lists[3], gaps);
        json_array_append_new(lists[4], text ? text : json_string(""));
        json_array_append_new(lists[5], json_string(r->error ? r->error : ""));
    }
}

void bench_report(const struct bench_report_options *o, const struct bench_load *load,
                  const struct bench_result *results, double duration, bool detailed, json_t *json) {
    struct figures f = {0};
    collect(&f, o, load, results);
    double output_rate = (double)f.n_output / duration, total_rate = (double)(f.n_input + f.n_output) / duration;
    print_title(" Serving Benchmark Result ", '=');
    print_count("Successful requests:", f.n_good);
    print_count("Failed requests:", f.n_failed);
    if (load->max_concurrency > 0)
        print_count("Maximum request concurrency:", load->max_concurrency);
    if (!isinf(load->rate))
        print_real("Request rate configured (RPS):", load->rate);
    print_real("Benchmark duration (s):", duration);
    print_count("Total input tokens:", f.n_input);
    print_count("Total generated tokens:", f.n_output);
    print_real("Request throughput (req/s):", (double)f.n_good / duration);
    if (o->has_goodput)
        print_real("Request goodput (req/s):", (double)f.n_within / duration);
    print_real("Output token throughput (tok/s):", output_rate);
    print_real("Peak output token throughput (tok/s):", f.peak_tokens);
    print_real("Peak concurrent requests:", f.peak_requests);
    print_real("Total token throughput (tok/s):", total_rate);

    set_real(json, "duration", duration);
    set_count(json, "completed", f.n_good);
    set_count(json, "failed", f.n_failed);
    set_count(json, "total_input_tokens", f.n_input);
    set_count(json, "total_output_tokens", f.n_output);
    set_real(json, "request_throughput", (double)f.n_good / duration);
    json_object_set_new(json, "request_goodput",
                        o->has_goodput ? json_real((double)f.n_within / duration) : json_null());
    set_real(json, "output_throughput", output_rate);
    set_real(json, "total_token_throughput", total_rate);
    set_real(json, "max_output_tokens_per_s", f.peak_tokens);
    set_real(json, "max_concurrent_requests", f.peak_requests);
    for (int i = 0; i < N_METRICS; i++) {
        if (o->shown[i])
            report_metric(o, i, &f.of[i], json);
        free(f.of[i].x);
    }
    print_title("", '=');
    if (detailed)
        set_details(load, results, json);
}
