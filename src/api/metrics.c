/* metrics.c - GET /metrics: the engine's and the front's counters and histograms as Prometheus text, under the names of
 * vLLM where it has one, so that dashboards, autoscalers and gateways made for it work.
 *
 * A prompt counts when its request ends. All its tokens are looked up in the prefix cache, so the queries are the
 * prompt tokens and the hits those that were not computed again. What there is one of for each answer (n of them make
 * n) is counted so in the histograms of requests, as in vLLM. */
#include "api/endpoints.h"
#include "api/responses/store.h"
#include "base/file.h"
#include "grammar/grammar_cache.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static void describe(struct buf *b, const char *name, const char *type, const char *help) {
    buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value: backslash, quote and line feed are escaped. */
static void append_label(struct buf *b, const char *value) {
    for (; *value; value++) {
        if (*value == '\n')
            buf_append(b, "\\n", 2);
        else if (*value == '"' || *value == '\\')
            buf_printf(b, "\\%c", *value);
        else
            buf_push(b, *value);
    }
}

/* {engine="0",model_name="NAME" and what follows, without the closing brace. */
static void append_labels(struct buf *b, const struct api *api) {
    buf_printf(b, "{engine=\"0\",model_name=\"");
    append_label(b, api->options.names[0]);
    buf_push(b, '"');
}

static void engine_metric(struct buf *b, const struct api *api, const char *name, const char *type, const char *help,
                          double value) {
    describe(b, name, type, help);
    buf_printf(b, "%s", name);
    append_labels(b, api);
    buf_printf(b, "} %.15g\n", value);
}

/* `unit` is how much of what the name says one of the histogram's units is. */
static void engine_histogram(struct buf *b, const struct api *api, const char *name, const char *help,
                             const struct histogram *h, double unit) {
    int64_t n = 0;
    describe(b, name, "histogram", help);
    for (int i = 0; i <= h->n; i++) {
        n += counter_get(&h->counts[i]);
        buf_printf(b, "%s_bucket", name);
        append_labels(b, api);
        if (i < h->n)
            buf_printf(b, ",le=\"%.15g\"} %lld\n", (double)h->bounds[i] * unit, (long long)n);
        else
            buf_printf(b, ",le=\"+Inf\"} %lld\n", (long long)n);
    }
    buf_printf(b, "%s_sum", name);
    append_labels(b, api);
    buf_printf(b, "} %.15g\n%s_count", (double)counter_get(&h->sum) * unit, name);
    append_labels(b, api);
    buf_printf(b, "} %lld\n", (long long)n);
}

static void front_metric(struct buf *b, const char *name, const char *type, const char *help, double value) {
    describe(b, name, type, help);
    buf_printf(b, "%s %.15g\n", name, value);
}

static void append_device(struct buf *b, const struct api *api, const struct service_state *s) {
    for (int i = 0; i < s->n_device; i++) {
        const struct device_report *r = &s->device[i];
        char name[96];
        snprintf(name, sizeof name, "gyre:%s", r->name);
        engine_metric(b, api, name, str_ends(str_of(name), STR("_total")) ? "counter" : "gauge", r->help,
                      (double)r->value);
    }
}

/* Of a model with experts. */
static void append_experts(struct buf *b, const struct api *api) {
    enum { MOST_EXPERTS = 4096 };
    int64_t *loads = xcalloc(MOST_EXPERTS, sizeof *loads);
    int n = service_expert_loads(api->service, loads, MOST_EXPERTS);
    if (n > 0)
        describe(b, "gyre:expert_tokens_total", "counter", "Tokens that were sent to an expert, over all layers.");
    for (int e = 0; e < n; e++)
        buf_printf(b, "gyre:expert_tokens_total{expert=\"%d\"} %lld\n", e, (long long)loads[e]);
    free(loads);
}

static void append_drafts(struct buf *b, const struct api *api, const struct service_state *s) {
    engine_metric(b, api, "vllm:spec_decode_num_drafts_total", "counter", "Drafts of speculation.",
                  (double)s->n_drafts);
    engine_metric(b, api, "vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens guessed by speculation.",
                  (double)s->n_guessed);
    engine_metric(b, api, "vllm:spec_decode_num_accepted_tokens_total", "counter", "Of these, those that were right.",
                  (double)s->n_accepted);
    describe(b, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
             "Guesses that were right, by their place in the draft.");
    for (int i = 0; i < MOST_GUESSES; i++)
        buf_printf(b, "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"%d\"} %lld\n", i,
                   (long long)s->n_right_at[i]);
    describe(b, "gyre:spec_decode_off_total", "counter", "Times that a sequence in a step got no guess, by reason.");
    for (int i = 0; i < N_DRAFT_OFF; i++)
        buf_printf(b, "gyre:spec_decode_off_total{reason=\"%s\"} %lld\n", draft_off_name[i],
                   (long long)s->n_draft_off[i]);
}

static void append_engine(struct buf *b, const struct api *api) {
    const struct gyre_info *info = service_info(api->service);
    struct service_state s;
    service_state(api->service, &s);
    engine_metric(b, api, "vllm:num_requests_running", "gauge", "Sequences that the scheduler runs.", s.n_running);
    engine_metric(b, api, "vllm:num_requests_waiting", "gauge", "Sequences that wait for a step.",
                  (double)(s.n_waiting + s.n_queued));
    engine_metric(b, api, "gyre:num_requests_unread", "gauge", "Sequences of streams that nobody reads, which rest.",
                  s.n_paused);
    engine_metric(b, api, "vllm:kv_cache_usage_perc", "gauge", "Blocks of KV cache in use, 0 to 1.", s.kv_usage);
    engine_metric(b, api, "vllm:num_preemptions_total", "counter", "Sequences that gave their blocks back.",
                  (double)s.n_preempted);
    engine_metric(b, api, "vllm:prompt_tokens_total", "counter", "Prompt tokens of requests that ended.",
                  (double)s.n_prompt_tokens);
    engine_metric(b, api, "vllm:generation_tokens_total", "counter", "Tokens generated.", (double)s.n_generated_tokens);
    engine_metric(b, api, "vllm:prompt_tokens_cached_total", "counter", "Prompt tokens not computed again.",
                  (double)s.n_reused_tokens);
    engine_metric(b, api, "vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up.",
                  (double)s.n_prompt_tokens);
    engine_metric(b, api, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens not computed again.",
                  (double)s.n_reused_tokens);
    engine_metric(b, api, "gyre:predicted_queue_seconds", "gauge",
                  "How long a request without a key would wait for its first step.",
                  (double)queue_model_wait_us(service_queue(api->service, 0), 0) * 1e-6);
    describe(b, "vllm:cache_config_info", "gauge", "How the cache is cut.");
    buf_printf(b, "vllm:cache_config_info{block_size=\"%d\",num_gpu_blocks=\"%lld\"} 1\n", info->block_size,
               (long long)(info->kv_cache_tokens / info->block_size));
    engine_metric(b, api, "gyre:engines", "gauge", "Engines that share the requests (data-parallel-size).",
                  s.n_engines);
    engine_metric(b, api, "gyre:engines_failed", "gauge", "Of these, those whose device has failed.", s.n_failed);
    engine_metric(b, api, "gyre:engine_restarts_total", "counter", "Engines opened anew behind such a failure.",
                  s.n_restarts);
    engine_metric(b, api, "gyre:steps_total", "counter", "Steps of the engine.", (double)s.n_steps);
    engine_metric(b, api, "gyre:late_steps_total", "counter", "Steps that were started without the masks of grammars.",
                  (double)s.n_late_steps);
    engine_metric(b, api, "gyre:mask_wait_seconds_total", "counter", "Time that steps have waited for masks.",
                  (double)s.mask_wait_us * 1e-6);
    engine_metric(b, api, "gyre:held_for_masks_total", "counter",
                  "Times that a sequence was left out of steps while its mask took long.", (double)s.n_held);
    engine_metric(b, api, "gyre:forced_tokens_total", "counter",
                  "Tokens that grammars left no choice for, put in without a draw.", (double)s.n_forced_tokens);
    engine_metric(b, api, "gyre:fetched_prompts_total", "counter", "Prompts whose cache came from a prefill server.",
                  (double)s.n_fetched_prompts);
    engine_metric(b, api, "gyre:fetched_prompt_tokens_total", "counter", "Tokens of these that were not computed here.",
                  (double)s.n_fetched_tokens);
    engine_metric(b, api, "gyre:failed_fetches_total", "counter",
                  "Prompts that were asked of a prefill server, and computed here after all.",
                  (double)s.n_failed_fetches);
    engine_metric(b, api, "gyre:fetched_windows_total", "counter",
                  "Parts of such caches that came from device to device.", (double)s.n_fetched_windows);
    engine_metric(b, api, "gyre:given_prompts_total", "counter", "Prompts whose cache was given to other servers.",
                  (double)s.n_given_prompts);
    engine_metric(b, api, "gyre:giving_seconds_total", "counter",
                  "Time in which these were copied to the other servers, part by part.", (double)s.giving_us * 1e-6);
    append_drafts(b, api, &s);
    append_device(b, api, &s);
    append_experts(b, api);
}

static void append_grammars(struct buf *b, const struct api *api) {
    struct grammar_cache_state s;
    grammar_cache_state(api->grammars, &s);
    engine_metric(b, api, "gyre:grammars_found_total", "counter", "Grammars of requests that were compiled already.",
                  (double)s.n_hits);
    engine_metric(b, api, "gyre:grammars_compiled_total", "counter", "Grammars of requests that were compiled.",
                  (double)s.n_compiled);
    engine_metric(b, api, "gyre:grammars_refused_total", "counter", "Grammars of requests that were refused.",
                  (double)s.n_refused);
    engine_metric(b, api, "gyre:grammar_compile_seconds_total", "counter", "Time that compiling grammars took.",
                  (double)s.compile_us * 1e-6);
    engine_metric(b, api, "gyre:grammar_bytes", "gauge", "Memory of the grammars that are kept.", (double)s.held_bytes);
}

static void append_finished(struct buf *b, const struct api *api) {
    static const char name[] = "vllm:request_success_total";
    const struct telemetry *t = service_telemetry(api->service);
    describe(b, name, "counter", "Answers that ended, by why.");
    for (int i = 0; i < N_FINISHED_REASONS; i++) {
        buf_printf(b, "%s", name);
        append_labels(b, api);
        buf_printf(b, ",finished_reason=\"%s\"} %lld\n", finished_reason_name[i],
                   (long long)counter_get(&t->finished[i]));
    }
}

static void append_histograms(struct buf *b, const struct api *api) {
    const struct telemetry *t = service_telemetry(api->service);
    const struct {
        const char *name, *help;
        const struct histogram *h;
        double unit;
    } all[] = {
        {"vllm:time_to_first_token_seconds", "From the request to its first token.", &t->time_to_first_token, 1e-6},
        {"vllm:inter_token_latency_seconds", "From one token of an answer to the next.", &t->inter_token, 1e-6},
        {"vllm:request_time_per_output_token_seconds", "Mean of an answer's times between tokens.", &t->time_per_token,
         1e-6},
        {"vllm:e2e_request_latency_seconds", "From the request to the end of its answer.", &t->end_to_end, 1e-6},
        {"vllm:request_queue_time_seconds", "From the request to its first step.", &t->queue_time, 1e-6},
        {"vllm:request_inference_time_seconds", "From the first step to the last token.", &t->inference_time, 1e-6},
        {"vllm:request_prefill_time_seconds", "From the first step to the first token.", &t->prefill_time, 1e-6},
        {"vllm:request_decode_time_seconds", "From the first token to the last.", &t->decode_time, 1e-6},
        {"vllm:request_prompt_tokens", "Prompt tokens of a request.", &t->prompt_tokens, 1},
        {"vllm:request_generation_tokens", "Tokens of an answer.", &t->generation_tokens, 1},
        {"vllm:request_params_max_tokens", "Tokens that an answer might have had.", &t->max_tokens, 1},
        {"vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were computed.",
         &t->computed_tokens, 1},
        {"vllm:iteration_tokens_total", "Tokens generated in a step, and of the prompts that it finished.",
         &t->iteration_tokens, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        engine_histogram(b, api, all[i].name, all[i].help, all[i].h, all[i].unit);
}

static void append_stored(struct buf *b, const struct api *api) {
    size_t bytes, n;
    response_store_size(api->responses, &bytes, &n);
    front_metric(b, "gyre:stored_responses", "gauge", "Responses that are stored.", (double)n);
    front_metric(b, "gyre:stored_response_bytes", "gauge", "What they take, with the turns that they go on from.",
                 (double)bytes);
}

enum { UNDER_LOCK = 64 << 10 }; // more than what is written there

static void append_asked(struct buf *b, struct api *api) {
    struct records *r = &api->records;
    buf_reserve(b, UNDER_LOCK); // nothing is allocated under it
    pthread_mutex_lock(&r->lock);
    engine_histogram(b, api, "vllm:request_params_n", "Answers that a request asked for of a prompt, its n.",
                     &r->n_asked, 1);
    pthread_mutex_unlock(&r->lock);
}

static void append_front(struct buf *b, const struct api *api) {
    struct http_stats s;
    http_stats(api->http, &s);
    front_metric(b, "gyre:http_connections", "gauge", "Open connections.", s.connections);
    front_metric(b, "gyre:http_requests_in_flight", "gauge", "Requests without their whole answer.", s.in_flight);
    front_metric(b, "gyre:http_connections_accepted_total", "counter", "Connections accepted.", (double)s.accepted);
    front_metric(b, "gyre:http_connections_refused_total", "counter", "Connections past the limit.",
                 (double)s.refused_full);
    front_metric(b, "gyre:http_requests_total", "counter", "Requests whose head was read.", (double)s.exchanges);
    describe(b, "gyre:http_requests_abandoned_total", "counter", "Requests whose client left or did not read.");
    buf_printf(b, "gyre:http_requests_abandoned_total{reason=\"left\"} %llu\n", (unsigned long long)s.gone_client);
    buf_printf(b, "gyre:http_requests_abandoned_total{reason=\"slow\"} %llu\n", (unsigned long long)s.gone_slow);
    front_metric(b, "gyre:log_lines_dropped_total", "counter", "Lines of the request log that nobody read in time.",
                 (double)atomic_load(&api->log.n_dropped));
    front_metric(b, "gyre:http_stream_bytes_total", "counter", "Bytes of streamed answers.", (double)s.stream_bytes);
}

static void append_statuses(struct buf *b, struct api *api) {
    static const char name[] = "gyre:http_responses_total";
    struct records *r = &api->records;
    describe(b, name, "counter", "Requests that are over, by status; 0 were not answered.");
    buf_reserve(b, UNDER_LOCK); // nothing is allocated under it
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < ARRAY_LEN(r->n_by_status); i++)
        if (r->n_by_status[i] > 0 || i == 200)
            buf_printf(b, "%s{code=\"%zu\"} %lld\n", name, i, (long long)r->n_by_status[i]);
    pthread_mutex_unlock(&r->lock);
}

/* The names that Prometheus' own clients give to every process. */
static void append_process(struct buf *b, const struct api *api) {
    struct rusage u;
    struct buf statm = {0};
    long long pages = 0;
    getrusage(RUSAGE_SELF, &u);
    if (file_read("/proc/self/statm", 4096, &statm, NULL) == OK && sscanf(statm.ptr, "%*s %lld", &pages) == 1)
        front_metric(b, "process_resident_memory_bytes", "gauge",
                     "Resident memory; a model's mapped weights are part of it.",
                     (double)pages * (double)sysconf(_SC_PAGESIZE));
    buf_release(&statm);
    front_metric(b, "process_cpu_seconds_total", "counter", "Processor time of the process.",
                 (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                     1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec));
    front_metric(b, "process_start_time_seconds", "gauge", "When the server was opened, since 1970.",
                 (double)api->created);
}

void endpoint_metrics(struct http_exchange *x) {
    struct buf body = {0};
    append_engine(&body, api_of(x));
    append_grammars(&body, api_of(x));
    append_finished(&body, api_of(x));
    append_histograms(&body, api_of(x));
    append_asked(&body, api_of(x));
    append_stored(&body, api_of(x));
    append_front(&body, api_of(x));
    append_statuses(&body, api_of(x));
    append_process(&body, api_of(x));
    http_reply(x, &(struct http_answer){.status = 200, .content_type = "text/plain; version=0.0.4; charset=utf-8"},
               buf_view(&body));
    buf_release(&body);
}
