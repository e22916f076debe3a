/* beam_search.c - see beam_search.h. */
#include "api/answer/beam_search.h"

#include "base/clock.h"
#include "engine/beams.h"

enum { PROBE_TOKENS = 64 };

/* What the service is asked after a beam: to go on with the most probable token each time, and the choices beside it.
 * As long as one of the beams goes the same way, the probe serves that one. */
struct probe {
    struct choice choice; // first: the service tells of choices
    struct run *run;
    int32_t start, length;    // tokens of the beam when it was asked, and asked for
    bool taken;               // by a beam of the next round
    bool retired;             // no beam goes its way: waits for its end
    struct probe *next, *all; // idle ones; all of the run
};

/* The search for one prompt's answers. */
struct run {
    struct beam_search *search;
    struct beams beams;
    struct prompt_ids prompt;
    int32_t *sequence; // [room]: prompt and beam, to submit
    size_t room;
    struct probe **of_beam, **of_next; // [width]
    struct probe *idle, *all;
    int32_t *tokens; // [width * n_choices]: what beams_advance wants
    float *logprobs;
    bool begun;
    int64_t n_cached; // of the prompt, when it was first looked at
};

struct beam_search {
    struct generation *g;
    struct gyre_request request; // of a probe, but for its prompt
    struct run *runs;            // [n_runs]
    int n_runs, n_in_flight;     // probes whose answer is not done
    int n_each;                  // answers of a prompt
};

// ---- fields -----------------------------------------------------------------------------------------------------

/* false, true or "never". */
static enum status read_early_stopping(const json_t *body, const char **out, struct error *err) {
    const json_t *value = json_object_get(body, "early_stopping");
    *out = json_is_true(value) ? "true" : "false";
    if (!value || json_is_null(value) || json_is_boolean(value))
        return OK;
    if (!json_is_string(value) || strcmp(json_string_value(value), "never") != 0)
        return fail(err, ERR_ARG, "early_stopping: it must be true, false or \"never\"");
    *out = "never";
    return OK;
}

/* What would change the draw, which there is none of. The temperature that clients send anyway says nothing, nor do the
 * model's own defaults. */
static enum status refuse_sampling(const json_t *body, const struct gyre_request *r, struct error *err) {
    const struct {
        const char *name;
        bool asks;
    } fields[] = {
        {"temperature", r->temperature != 0 && r->temperature != 1},
        {"top_k", r->top_k != 0},
        {"top_p", r->top_p != 1},
        {"min_p", r->min_p != 0},
        {"repetition_penalty", r->repetition_penalty != 1},
        {"presence_penalty", r->presence_penalty != 0},
        {"frequency_penalty", r->frequency_penalty != 0},
        {"logit_bias", r->n_logit_bias > 0},
        {"allowed_token_ids", r->n_allowed_ids > 0},
        {"bad_words", r->n_bad_sequences > 0},
        {"min_tokens", r->min_tokens > 0},
        {"prompt_logprobs", r->score_prompt},
        {"echo", r->score_prompt}, // with logprobs
        {"logprobs", r->n_top_logprobs > 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        if (fields[i].asks && json_object_get(body, fields[i].name))
            return fail(err, ERR_ARG, "%s: beam search cannot honour it", fields[i].name);
    return OK;
}

static int n_stops(const struct generation *g, const struct gyre_request *r) {
    return (r->ignore_eos ? 0 : service_info(g->api->service)->n_eos) + (int)r->n_stop_ids;
}

static enum status check_width(const struct generation *g, const struct params *p, int64_t width, struct error *err) {
    const struct gyre_request *r = &p->fields.request;
    int64_t most = MIN(GYRE_MAX_TOP_LOGPROBS, service_info(g->api->service)->vocab_size) - n_stops(g, r);
    if (r->n_stop_ids >= (size_t)GYRE_MAX_TOP_LOGPROBS || width > most)
        return fail(err, ERR_ARG, "beam_width: %lld; with %d tokens that end an answer it may be at most %lld",
                    (long long)width, n_stops(g, r), (long long)MAX(most, 0));
    if (p->n > width)
        return fail(err, ERR_ARG, "n: %d answers are more than the %lld beams", p->n, (long long)width);
    return OK;
}

/* Without use_beam_search the other fields must ask for nothing. */
static enum status refuse_alone(const json_t *body, int64_t width, const struct beam_fields *f, struct error *err) {
    static const char sentence[] = "%s: only with \"use_beam_search\": true";
    if (json_is_number(json_object_get(body, "beam_width")) && width != 1)
        return fail(err, ERR_ARG, sentence, "beam_width");
    if (f->length_penalty != 1)
        return fail(err, ERR_ARG, sentence, "length_penalty");
    return f->early_stopping[0] == 'f' ? OK : fail(err, ERR_ARG, sentence, "early_stopping");
}

enum status beam_fields_read(const struct generation *g, const json_t *body, const struct params *p,
                             struct beam_fields *out, struct error *err) {
    bool use;
    int64_t width;
    *out = (struct beam_fields){0};
    TRY(jv_bool_or(body, "request", "use_beam_search", false, &use, err));
    TRY(jv_int_or(body, "request", "beam_width", 1, GYRE_MAX_TOP_LOGPROBS, p->n, &width, err));
    TRY(jv_real_or(body, "request", "length_penalty", 1, &out->length_penalty, err));
    TRY(read_early_stopping(body, &out->early_stopping, err));
    if (!use)
        return refuse_alone(body, width, out, err);
    if (!(out->length_penalty >= -100 && out->length_penalty <= 100))
        return fail(err, ERR_ARG, "length_penalty: %g is not between -100 and 100", out->length_penalty);
    if (g->n_best > 0)
        return fail(err, ERR_ARG, "best_of: beam search takes its width from \"beam_width\"");
    if (g->stream)
        return fail(err, ERR_ARG, "stream: the answers of beam search are known at its end");
    if (g->n_stops > 0)
        return fail(err, ERR_ARG, "stop: beam search ends at tokens, not at strings; use \"stop_token_ids\"");
    if (p->fields.request.max_tokens == 0)
        return fail(err, ERR_ARG, "max_tokens: beam search needs at least one");
    TRY(refuse_sampling(body, &p->fields.request, err));
    TRY(check_width(g, p, width, err));
    out->width = (int)width;
    return OK;
}

// ---- probes -----------------------------------------------------------------------------------------------------

static void release_probe(struct probe *probe) {
    struct run *run = probe->run;
    service_release(run->search->g->api->service, probe->choice.answer);
    probe->choice.answer = NULL;
    probe->next = run->idle;
    run->idle = probe;
}

/* Nobody reads it any more. */
static void retire(struct probe *probe) {
    probe->retired = true;
    if (probe->choice.answer->done)
        release_probe(probe);
    else
        service_cancel(probe->run->search->g->api->service, probe->choice.answer);
}

static void retire_all(struct beam_search *s) {
    for (int i = 0; i < s->n_runs; i++)
        for (struct probe *p = s->runs[i].all; p; p = p->all)
            if (p->choice.answer && !p->retired)
                retire(p);
}

static void give_up(struct beam_search *s, enum status st, const char *why) {
    if (s->g->failed.status == OK)
        fail(&s->g->failed, st, "%s", why);
    retire_all(s);
}

static void heard(struct choice *c);

static struct probe *new_probe(struct run *run) {
    struct probe *p = run->idle;
    if (p) {
        run->idle = p->next;
    } else {
        p = arena_calloc(&run->search->g->x->arena, 1, sizeof *p);
        p->all = run->all;
        run->all = p;
    }
    *p = (struct probe){.choice = {.generation = run->search->g, .heard = heard}, .run = run, .all = p->all};
    return p;
}

/* As long as the beams can become before they grow. */
static void grow_sequence(struct run *run) {
    size_t room = run->prompt.n + (size_t)run->beams.capacity;
    if (run->room == room)
        return;
    run->room = room;
    run->sequence = arena_calloc(&run->search->g->x->arena, room, sizeof *run->sequence);
    if (run->prompt.n > 0)
        memcpy(run->sequence, run->prompt.ids, run->prompt.n * sizeof *run->sequence);
}

static void ask(struct run *run, int i) {
    struct beam_search *s = run->search;
    struct probe *probe = new_probe(run);
    const struct beam *beam = &run->beams.running[i];
    struct gyre_request r = s->request;
    struct gyre_error err;
    grow_sequence(run);
    memcpy(run->sequence + run->prompt.n, beam->tokens, (size_t)beam->n * sizeof *beam->tokens);
    probe->start = beam->n;
    probe->length = MIN(PROBE_TOKENS, run->beams.options.max_tokens - beam->n);
    r.prompt = run->sequence;
    r.n_prompt = (int64_t)run->prompt.n + beam->n;
    r.max_tokens = probe->length;
    int (*submit)(struct service *, const struct gyre_request *, void *, struct answer **, struct gyre_error *) =
        run->begun ? service_submit_more : service_submit;
    if (submit(s->g->api->service, &r, &probe->choice, &probe->choice.answer, &err) != 0) {
        probe->next = run->idle;
        run->idle = probe;
        give_up(s, (enum status)err.status, err.text);
        return;
    }
    run->of_beam[i] = probe;
    run->begun = true;
    s->n_in_flight++;
}

// ---- a round ----------------------------------------------------------------------------------------------------

/* For the log and /debug/requests. */
static void note_first_round(struct run *run, const struct answer *a) {
    const struct beam_search *s = run->search;
    run->n_cached = counter_get(&a->progress.n_reused);
    for (int i = 0; i < s->n_each; i++) {
        struct request_progress *to = &s->g->choices[(run - s->runs) * s->n_each + i].answer->progress;
        counter_set(&to->started_us, counter_get(&a->progress.started_us));
        counter_set(&to->first_token_us, counter_get(&a->progress.first_token_us));
        counter_set(&to->n_reused, run->n_cached);
        counter_set(&to->cache_miss, counter_get(&a->progress.cache_miss));
    }
}

/* Whether what may follow each running beam is there. */
static bool is_ready(const struct run *run) {
    for (int i = 0; i < run->beams.n_running; i++) {
        const struct probe *p = run->of_beam[i];
        if (atomic_load_explicit(&p->choice.answer->n_tokens, memory_order_acquire) <= run->beams.n_tokens - p->start)
            return false;
    }
    return true;
}

static void read_choices(struct run *run) {
    size_t n = (size_t)run->beams.n_choices;
    for (int i = 0; i < run->beams.n_running; i++) {
        const struct probe *p = run->of_beam[i];
        const struct answer *a = p->choice.answer;
        size_t from = (size_t)(run->beams.n_tokens - p->start) * n, to = (size_t)i * n;
        memcpy(run->tokens + to, a->top_tokens + from, n * sizeof *a->top_tokens);
        memcpy(run->logprobs + to, a->top_logprobs + from, n * sizeof *a->top_logprobs);
    }
    if (run->beams.n_tokens == 0)
        note_first_round(run, run->of_beam[0]->choice.answer);
}

/* A beam that went on with the most probable token keeps the probe of the beam that it continues. */
static void pass_probes_on(struct run *run, int n_before) {
    struct beams *b = &run->beams;
    for (int i = 0; i < n_before; i++)
        run->of_beam[i]->taken = false;
    for (int i = 0; i < b->n_running; i++) {
        struct probe *p = run->of_beam[b->running[i].from];
        bool serves = !b->done && b->running[i].rank == 0 && b->n_tokens - p->start < p->length;
        run->of_next[i] = serves ? p : NULL;
        p->taken |= serves;
    }
    for (int i = 0; i < n_before; i++)
        if (!run->of_beam[i]->taken)
            retire(run->of_beam[i]);
    struct probe **old = run->of_beam;
    run->of_beam = run->of_next;
    run->of_next = old;
}

static void ask_for_the_others(struct run *run) {
    for (int i = 0; i < run->beams.n_running && run->search->g->failed.status == OK; i++)
        if (!run->of_beam[i])
            ask(run, i);
}

static void go_on(struct run *run) {
    while (!run->beams.done && run->search->g->failed.status == OK && is_ready(run)) {
        int n_before = run->beams.n_running;
        read_choices(run);
        beams_advance(&run->beams, run->tokens, run->logprobs);
        pass_probes_on(run, n_before);
        if (!run->beams.done)
            ask_for_the_others(run);
    }
}

// ---- the end ----------------------------------------------------------------------------------------------------

static bool is_stop(const struct beams *b, int32_t token) {
    for (int i = 0; i < b->options.n_stops; i++)
        if (b->options.stops[i] == token)
            return true;
    return false;
}

/* Beams that never ended stand behind the answers only where the vocabulary ran out, so answers are all there is. */
static void fill_answer(const struct run *run, int i, struct answer *a) {
    const struct beam *best = &run->beams.answers[i];
    a->tokens = best->tokens;
    a->logprobs = best->logprobs;
    a->capacity = best->n;
    a->timing.n_reused = run->n_cached;
    a->timing.n_tokens = best->n;
    bool by_token = is_stop(&run->beams, best->tokens[best->n - 1]);
    a->n_text = by_token ? best->n - 1 : INT32_MAX;
    a->finish = by_token ? GYRE_STOP : GYRE_LENGTH;
    a->done = true;
    atomic_store_explicit(&a->n_tokens, best->n, memory_order_release);
}

static void conclude(struct beam_search *s) {
    if (s->g->failed.status == OK)
        for (int i = 0; i < s->g->n_choices; i++)
            fill_answer(&s->runs[i / s->n_each], i % s->n_each, s->g->choices[i].answer);
    generation_conclude(s->g);
}

/* An answer that nobody cancelled and that did not get to its end. */
static void check_end(struct probe *probe) {
    const struct answer *a = probe->choice.answer;
    if (a->finish == GYRE_FAILED)
        give_up(probe->run->search, a->error_of_request ? ERR_ARG : ERR_DEVICE, a->error);
    else if (a->finish != GYRE_LENGTH)
        give_up(probe->run->search, ERR_DEVICE, "the request was aborted");
}

/* Asked by another thread; each step of a probe asks for a look here. */
static void check_abort(struct beam_search *s) {
    if (!atomic_load(&s->g->abort_asked) || s->g->failed.status != OK)
        return;
    s->g->aborted = true;
    give_up(s, ERR_IO, "the request was aborted");
}

static void heard(struct choice *c) {
    struct probe *probe = (struct probe *)c;
    struct run *run = probe->run;
    struct beam_search *s = run->search;
    service_look(c->answer);
    s->n_in_flight -= c->answer->done;
    if (probe->retired && c->answer->done)
        release_probe(probe);
    else if (c->answer->done)
        check_end(probe);
    check_abort(s);
    if (!http_is_gone(s->g->x))
        go_on(run);
    if (s->n_in_flight > 0)
        return;
    retire_all(s);
    if (http_is_gone(s->g->x))
        generation_abandon(s->g);
    else
        conclude(s);
}

void beam_search_gone(struct generation *g) {
    struct beam_search *s = g->search;
    if (s->n_in_flight > 0)
        retire_all(s);
    else
        generation_abandon(g);
}

// ---- the beginning ----------------------------------------------------------------------------------------------

static struct beams_options options_of(const struct generation *g, const struct gyre_request *r,
                                       const struct beam_fields *f) {
    const struct gyre_info *info = service_info(g->api->service);
    struct beams_options o = {.width = f->width, .length_penalty = f->length_penalty, .n_stops = n_stops(g, r)};
    int32_t *stops = arena_calloc(&g->x->arena, (size_t)o.n_stops, sizeof *stops);
    size_t n_eos = r->ignore_eos ? 0 : (size_t)info->n_eos;
    memcpy(stops, info->eos, n_eos * sizeof *stops);
    if (r->n_stop_ids > 0)
        memcpy(stops + n_eos, r->stop_ids, r->n_stop_ids * sizeof *stops);
    o.stops = stops;
    o.stopping = f->early_stopping[0] == 't' ? BEAMS_FIRST : f->early_stopping[0] == 'n' ? BEAMS_SURE : BEAMS_GUESS;
    return o;
}

/* The most probable token each time, and those beside it; nothing, not even of the model's defaults, that could change
 * or end it. Probes are sent when the body that the request was read from is long gone. */
static struct gyre_request probe_of(const struct gyre_request *r, int n_choices, struct arena *arena) {
    struct gyre_request q = *r;
    q.cache_salt = r->cache_salt ? arena_strdup(arena, str_of(r->cache_salt)) : NULL;
    q.logit_bias = NULL, q.allowed_ids = NULL, q.bad_sequences = NULL; // of which there are none
    q.min_tokens = 0;
    q.temperature = 0;
    q.repetition_penalty = 1, q.presence_penalty = 0, q.frequency_penalty = 0;
    q.ignore_eos = true;
    q.stop_ids = NULL, q.n_stop_ids = 0;
    q.logprobs = true;
    q.n_top_logprobs = n_choices;
    return q;
}

static void init_run(struct run *run, struct beam_search *s, const struct beams_options *options,
                     struct prompt_ids prompt) {
    struct arena *arena = &s->g->x->arena;
    *run = (struct run){.search = s, .prompt = prompt};
    beams_init(&run->beams, options, arena);
    size_t width = (size_t)options->width, n = width * (size_t)run->beams.n_choices;
    run->of_beam = arena_calloc(arena, width, sizeof(struct probe *));
    run->of_next = arena_calloc(arena, width, sizeof(struct probe *));
    run->tokens = arena_calloc(arena, n, sizeof *run->tokens);
    run->logprobs = arena_calloc(arena, n, sizeof *run->logprobs);
}

static int64_t room_after(const struct generation *g, struct prompt_ids prompt) {
    return service_info(g->api->service)->max_model_len - (int64_t)prompt.n;
}

/* A probe asks for one token only, so the engine would see too late that the answer cannot have all its tokens. */
static enum status check_lengths(const struct generation *g, const struct gyre_request *r,
                                 const struct prompt_ids *prompts, int n, struct error *err) {
    const struct gyre_info *info = service_info(g->api->service);
    for (int i = 0; i < n; i++)
        TRY(request_check_room((int64_t)prompts[i].n, r->max_tokens == 0 ? 1 : r->max_tokens, info, err));
    return OK;
}

void beam_search_start(struct generation *g, const struct gyre_request *request, const struct beam_fields *fields,
                       const struct prompt_ids *prompts, int n_prompts, int n) {
    struct arena *arena = &g->x->arena;
    struct error err;
    if (check_lengths(g, request, prompts, n_prompts, &err) != OK) {
        api_reply_fault(g->x, &err);
        return;
    }
    struct beam_search *s = arena_calloc(arena, 1, sizeof *s);
    struct beams_options options = options_of(g, request, fields);
    generation_prepare(g, prompts, n_prompts, n);
    *s = (struct beam_search){.g = g, .n_runs = n_prompts, .n_each = n};
    struct gyre_request r = *request;
    api_key_apply(g->x, &r, g->n_prompt_tokens, n_prompts * options.width);
    s->request = probe_of(&r, options.width + options.n_stops, arena);
    s->runs = arena_calloc(arena, (size_t)n_prompts, sizeof *s->runs);
    for (int i = 0; i < g->n_choices; i++) {
        struct answer *a = g->choices[i].answer = arena_calloc(arena, 1, sizeof *a);
        a->top_tokens = arena_calloc(arena, 1, sizeof *a->top_tokens); // lists of none
        a->top_logprobs = arena_calloc(arena, 1, sizeof *a->top_logprobs);
        a->progress.submitted_us = clock_us();
    }
    for (int i = 0; i < n_prompts; i++) {
        int64_t most = generation_bound(g->api, (int64_t)prompts[i].n, request->max_tokens);
        options.max_tokens = (int32_t)(most == -1 ? room_after(g, prompts[i]) : most);
        init_run(&s->runs[i], s, &options, prompts[i]);
    }
    g->search = s;
    generation_begin(g);
    if (api_check_wait(g->x, r.tenant, &err) != OK) {
        generation_refuse(g, r.tenant, &err);
        return;
    }
    for (int i = 0; i < n_prompts && g->failed.status == OK; i++)
        ask(&s->runs[i], 0);
    if (s->n_in_flight == 0)
        conclude(s);
}
