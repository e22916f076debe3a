/* bench_load.h - sends the requests of a benchmark at their times, and takes the times of their answers.
 *
 * One thread, libcurl's multi interface, connections kept. Times are as vllm bench takes them: a request starts when
 * it is sent (not when it was due); ttft is until the first chunk with choices, whatever its text; an inter-token
 * latency is the gap to the next such chunk; latency is until the last. */
#pragma once

#include "bench/bench_dataset.h"
#include "client/api_client.h"

struct bench_result {
    bool success;
    char *error;                 // when not; owned
    double start, ttft, latency; // seconds; start is since the benchmark's
    double *itl;                 // [n_itl], seconds; owned
    size_t n_itl, itl_cap;
    int64_t prompt_tokens, output_tokens; // by the server's usage; -1: it did not say
    struct buf text;
};

struct bench_load {
    const struct api_server *server;
    const char *path; // "/v1/completions"
    bool chat;        // messages, and max_completion_tokens
    const char *model;
    const json_t *extra; // fields of each request besides
    bool ignore_eos;
    const struct bench_prompt *prompts; // [n]
    size_t n;
    double rate;             // requests a second; infinite: all at once
    double burstiness;       // shape of the gaps' gamma distribution; 1 is a Poisson process
    int64_t max_concurrency; // 0: no bound
    uint64_t seed;
    int64_t patience_s; // how long a server may send nothing; 0: no bound
    bool progress;
};

/* Runs it; results is [n]. Returns the seconds from the first request to the end of the last. Ctrl-C ends what runs:
 * those requests and those not sent have failed. So does one whose answer is longer than what was asked for can be
 * (16 MiB and 256 bytes a token), that brings nothing for patience_s, or that goes on for six hours. */
double bench_load_run(const struct bench_load *load, struct bench_result *results);
void bench_result_release(struct bench_result *r);

/* Seconds after the start at which each request is due, [n]: gaps from a gamma distribution with that shape and mean
 * 1/rate, then scaled so that the last is due at n/rate, as vllm bench does. */
void bench_arrivals(double rate, double burstiness, uint64_t seed, size_t n, double *due);
