/* bench_load.c - see bench_load.h. */
#include "bench/bench_load.h"

#include "base/clock.h"
#include "base/random.h"
#include "console/interrupt.h"
#include "console/progress.h"

#include <math.h>
#include <sys/resource.h>

// ---- arrivals ---------------------------------------------------------------------------------------------------

struct draws {
    uint64_t seed, n;
};

static double uniform(struct draws *d) { return philox_uniform(d->seed, d->n++, 0x61727276); }

static double normal(struct draws *d) {
    double u = 1 - uniform(d), v = uniform(d);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); below shape 1 by its section 6. */
static double gamma_draw(struct draws *draws, double shape) {
    if (shape < 1)
        return gamma_draw(draws, shape + 1) * pow(1 - uniform(draws), 1 / shape);
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(draws), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        if (log(1 - uniform(draws)) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v;
    }
}

void bench_arrivals(double rate, double burstiness, uint64_t seed, size_t n, double *due) {
    struct draws draws = {seed, 0};
    double at = 0;
    for (size_t i = 0; i < n; i++) {
        at += isinf(rate) ? 0 : gamma_draw(&draws, burstiness) / (rate * burstiness);
        due[i] = at;
    }
    for (size_t i = 0; i < n && at > 0; i++)
        due[i] *= (double)n / rate / at;
}

// ---- requests ---------------------------------------------------------------------------------------------------

/* What is kept of an answer, its times included: more than any that was asked for. vllm bench too waits six hours
 * for one. */
enum { MAX_ANSWER = 16 << 20, BYTES_A_TOKEN = 256, LONGEST_ANSWER_S = 6 * 3600 };

struct slot {
    struct api_stream stream;
    struct bench_result *result;
    double start, last; // seconds since the benchmark's start
    size_t most;        // bytes of the answer
    const struct runner *runner;
    struct slot *next_idle;
};

struct runner {
    const struct bench_load *load;
    struct bench_result *results;
    CURLM *multi;
    struct slot *idle;
    int64_t start_us;
    size_t n_sent, n_done, n_running;
    struct progress progress;
};

static double seconds_now(const struct runner *r) { return (double)(clock_us() - r->start_us) * 1e-6; }

static void push_itl(struct bench_result *r, double gap) {
    if (r->n_itl == r->itl_cap) {
        r->itl_cap = r->itl_cap * 2 + 64;
        r->itl = xrealloc(r->itl, r->itl_cap, sizeof *r->itl);
    }
    r->itl[r->n_itl++] = gap;
}

/* Of text and times. */
static size_t kept_bytes(const struct bench_result *r) { return r->text.len + r->n_itl * sizeof *r->itl; }

static enum status take_chunk(struct api_stream *stream, struct error *err) {
    struct slot *slot = stream->user;
    struct bench_result *r = slot->result;
    const struct answer_event *e = &stream->event;
    if (e->has_usage) {
        r->prompt_tokens = e->prompt_tokens;
        r->output_tokens = e->completion_tokens;
    }
    if (!e->has_choice)
        return OK;
    double now = seconds_now(slot->runner);
    if (r->ttft == 0)
        r->ttft = now - slot->start;
    else
        push_itl(r, now - slot->last);
    slot->last = now;
    r->latency = now - slot->start;
    buf_str(&r->text, buf_view(&e->reasoning));
    buf_str(&r->text, buf_view(&e->content));
    if (kept_bytes(r) > slot->most)
        return fail(err, ERR_LIMIT, "the answer is longer than %zu bytes, which is more than what was asked for can be",
                    slot->most);
    return OK;
}

/* The request as vllm bench writes it. */
static struct buf request_body(const struct bench_load *load, const struct bench_prompt *p) {
    struct buf body = {0};
    json_t *o = json_copy((json_t *)load->extra), *text = json_stringn_nocheck(p->text, p->text_bytes);
    json_object_set_new(o, "model", json_string(load->model));
    if (load->chat)
        json_object_set_new(
            o, "messages",
            json_pack("[{s:s, s:[{s:s, s:o}]}]", "role", "user", "content", "type", "text", "text", text));
    else
        json_object_set_new(o, "prompt", text);
    json_object_set_new(o, load->chat ? "max_completion_tokens" : "max_tokens", json_integer(p->n_output_tokens));
    json_object_set_new(o, "stream", json_true());
    json_object_set_new(o, "stream_options", json_pack("{s:b}", "include_usage", 1));
    if (load->ignore_eos)
        json_object_set_new(o, "ignore_eos", json_true());
    char *dumped = json_dumps(o, JSON_COMPACT);
    buf_str(&body, str_of(dumped ? dumped : "{}"));
    free(dumped);
    json_decref(o);
    return body;
}

static void finish(struct runner *r, struct slot *slot, enum status st, const struct error *err) {
    struct bench_result *result = slot->result;
    result->success = st == OK && result->ttft > 0;
    if (!result->success)
        result->error = xstrdup(st == OK ? "the answer has no token" : err->text);
    slot->next_idle = r->idle;
    r->idle = slot;
    r->n_done++;
}

static void set_patience(CURL *easy, int64_t patience_s) {
    libcurl.easy_setopt(easy, CURLOPT_TIMEOUT, (long)LONGEST_ANSWER_S);
    if (patience_s <= 0)
        return;
    libcurl.easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    libcurl.easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)patience_s);
}

static void send_next(struct runner *r) {
    struct error err;
    struct slot *slot = r->idle;
    if (slot)
        r->idle = slot->next_idle;
    else
        slot = xcalloc(1, sizeof *slot);
    slot->result = &r->results[r->n_sent];
    slot->runner = r;
    slot->stream.user = slot;
    slot->stream.take = take_chunk;
    const struct bench_prompt *prompt = &r->load->prompts[r->n_sent++];
    struct buf body = request_body(r->load, prompt);
    enum status st = api_stream_begin(&slot->stream, r->load->server, r->load->path, buf_view(&body), &err);
    buf_release(&body);
    slot->most = MAX_ANSWER + BYTES_A_TOKEN * (size_t)MAX(prompt->n_output_tokens, 0);
    slot->start = slot->last = slot->result->start = seconds_now(r);
    if (st == OK) {
        set_patience(slot->stream.easy, r->load->patience_s);
        libcurl.multi_add_handle(r->multi, slot->stream.easy);
        r->n_running++;
    } else
        finish(r, slot, st, &err);
}

static void take_finished(struct runner *r) {
    int left;
    for (CURLMsg *m; (m = libcurl.multi_info_read(r->multi, &left));) {
        struct slot *slot;
        struct error err;
        CURLcode code = m->data.result;
        libcurl.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &slot);
        enum status st = api_stream_end(&slot->stream, code, &err);
        libcurl.multi_remove_handle(r->multi, slot->stream.easy);
        r->n_running--;
        finish(r, slot, st, &err);
    }
}

/* As many files as are allowed: a connection a request. */
static void raise_file_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static bool may_send(const struct runner *r, const double *due) {
    const struct bench_load *l = r->load;
    return r->n_sent < l->n && (l->max_concurrency == 0 || (int64_t)r->n_running < l->max_concurrency) &&
           due[r->n_sent] <= seconds_now(r);
}

static int wait_ms(const struct runner *r, const double *due) {
    double until = r->n_sent < r->load->n ? due[r->n_sent] - seconds_now(r) : 1;
    return (int)(1000 * MIN(MAX(until, r->n_running > 0 ? 0.001 : 0), 0.2)); // wakes to draw, and for Ctrl-C
}

static void end_unfinished(struct runner *r) {
    for (size_t i = 0; i < r->load->n; i++)
        if (!r->results[i].success && !r->results[i].error)
            r->results[i].error = xstrdup("interrupted");
}

double bench_load_run(const struct bench_load *load, struct bench_result *results) {
    struct runner r = {.load = load, .results = results, .multi = libcurl.multi_init()};
    double *due = xcalloc(load->n, sizeof *due);
    bool interrupted = false;
    bench_arrivals(load->rate, load->burstiness, load->seed, load->n, due);
    raise_file_limit();
    libcurl.multi_setopt(r.multi, CURLMOPT_MAXCONNECTS, (long)MIN(load->n, 65536));
    for (size_t i = 0; i < load->n; i++)
        results[i] = (struct bench_result){.prompt_tokens = -1, .output_tokens = -1};
    if (load->progress)
        progress_begin(&r.progress, "bench serve", "requests", (int64_t)load->n);
    interrupt_catch();
    r.start_us = clock_us();
    while (r.n_done < load->n && !(interrupted = interrupt_taken())) {
        int running;
        while (may_send(&r, due))
            send_next(&r);
        libcurl.multi_perform(r.multi, &running);
        take_finished(&r);
        progress_step(&r.progress, (int64_t)r.n_done);
        if (r.n_done < load->n && !may_send(&r, due))
            libcurl.multi_poll(r.multi, NULL, 0, wait_ms(&r, due), NULL);
    }
    double duration = seconds_now(&r);
    interrupt_release();
    progress_end(&r.progress);
    end_unfinished(&r);
    for (struct slot *s = r.idle, *next; s; s = next) {
        next = s->next_idle;
        api_stream_release(&s->stream);
        free(s);
    }
    libcurl.multi_cleanup(r.multi);
    free(due);
    return duration;
}

void bench_result_release(struct bench_result *r) {
    free(r->error);
    free(r->itl);
    buf_release(&r->text);
}
