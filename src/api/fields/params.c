/* params.c - see params.h. */
#include "api/fields/params.h"

#include "api/answer/bad_words.h"
#include "api/answer/prediction.h"

#include <math.h>
#include <sys/random.h>

static const struct field common_fields[] = {
    {"model", FIELD_READ, NULL},
    {"stream", FIELD_READ, NULL},
    {"stream_options", FIELD_READ, NULL},
    {"n", FIELD_READ, NULL},
    {"priority", FIELD_READ, NULL},
    {"cache_salt", FIELD_READ, NULL},
    {"skip_special_tokens", FIELD_READ, NULL},
    {"include_stop_str_in_output", FIELD_READ, NULL},
    {"user", FIELD_SET_ASIDE, NULL},
    {"metadata", FIELD_SET_ASIDE, NULL},
    {"store", FIELD_SET_ASIDE, NULL},
    {"service_tier", FIELD_SET_ASIDE, NULL},
    {"safety_identifier", FIELD_SET_ASIDE, NULL},
    {"prompt_cache_key", FIELD_SET_ASIDE, NULL},
    {"prompt_cache_retention", FIELD_SET_ASIDE, NULL},
    {"request_id", FIELD_SET_ASIDE, NULL},
    {"spaces_between_special_tokens", FIELD_SET_ASIDE,
     NULL},                                // there are none beyond those that the tokenizer's decoder writes
    {"session_id", FIELD_SET_ASIDE, NULL}, // the prefix cache finds a session by its text
    {"bad_words", FIELD_READ, NULL},
    {"prediction", FIELD_READ, NULL},
    {"best_of", FIELD_UNSUPPORTED, "1"},
    {"use_beam_search", FIELD_UNSUPPORTED, NULL},
    {"beam_width", FIELD_UNSUPPORTED, "1"},
    {"length_penalty", FIELD_UNSUPPORTED, "1.0"},
    {"early_stopping", FIELD_UNSUPPORTED, NULL},
    {"truncate_prompt_tokens", FIELD_UNSUPPORTED, NULL},
    {"truncation_side", FIELD_UNSUPPORTED, "\"left\""},
    {"add_special_tokens", FIELD_UNSUPPORTED, NULL},
    {"detokenize", FIELD_UNSUPPORTED, "true"},
    {"echo", FIELD_UNSUPPORTED, NULL},
    {"prompt_logprobs", FIELD_UNSUPPORTED, NULL},
    {"logits_processors", FIELD_UNSUPPORTED, NULL},
    {"structural_tag", FIELD_READ, NULL},
    {"guided_json", FIELD_READ, NULL},
    {"guided_regex", FIELD_READ, NULL},
    {"guided_choice", FIELD_READ, NULL},
    {"guided_grammar", FIELD_READ, NULL},
    {"guided_json_object", FIELD_READ, NULL},
    {"guided_whitespace_pattern", FIELD_READ, NULL},
    {"guided_decoding_backend", FIELD_SET_ASIDE, NULL},
    {"structured_outputs", FIELD_READ, NULL},
    {"return_token_ids", FIELD_UNSUPPORTED, NULL},
    {"return_tokens_as_token_ids", FIELD_UNSUPPORTED, NULL},
    {"kv_transfer_params", FIELD_UNSUPPORTED, NULL},
    // samplers of other servers, each with the value that switches it off
    {"typical_p", FIELD_UNSUPPORTED, "1"},
    {"tfs_z", FIELD_UNSUPPORTED, "1"},
    {"top_a", FIELD_UNSUPPORTED, "0"},
    {"top_n_sigma", FIELD_UNSUPPORTED, "-1"},
    {"top_p_decay", FIELD_UNSUPPORTED, "1"},
    {"mirostat", FIELD_UNSUPPORTED, "0"},
    {"xtc_probability", FIELD_UNSUPPORTED, "0"},
    {"dry_multiplier", FIELD_UNSUPPORTED, "0"},
    {"dynatemp_range", FIELD_UNSUPPORTED, "0"},
    {"repeat_penalty", FIELD_UNSUPPORTED, "1"},
    {"samplers", FIELD_UNSUPPORTED, NULL},
    // what other servers tell, bound or take besides
    {"top_n_tokens", FIELD_UNSUPPORTED, "0"},
    {"n_probs", FIELD_UNSUPPORTED, "0"},
    {"logprob_token_ids", FIELD_UNSUPPORTED, NULL},
    {"token_ids_logprob", FIELD_UNSUPPORTED, NULL},
    {"logprob_start_len", FIELD_UNSUPPORTED, "-1"},
    {"thinking_token_budget", FIELD_UNSUPPORTED, "-1"},
    {"reasoning_budget_tokens", FIELD_UNSUPPORTED, "-1"},
    {"repetition_detection", FIELD_UNSUPPORTED, NULL},
    {"stream_interval", FIELD_UNSUPPORTED, "1"},
    {"return_progress", FIELD_UNSUPPORTED, NULL},
    {"timings_per_token", FIELD_UNSUPPORTED, NULL},
    {"t_max_predict_ms", FIELD_UNSUPPORTED, "0"},
    {"grammar", FIELD_READ, NULL},
    {"json_schema", FIELD_READ, NULL},
    {"regex", FIELD_READ, NULL},
    {"ebnf", FIELD_READ, NULL},
    {"lora", FIELD_UNSUPPORTED, NULL},
    {"lora_path", FIELD_UNSUPPORTED, NULL},
    {"lora_request", FIELD_UNSUPPORTED, NULL},
    {"vllm_xargs", FIELD_UNSUPPORTED, NULL},
    {"custom_params", FIELD_UNSUPPORTED, NULL},
    {"custom_logit_processor", FIELD_UNSUPPORTED, NULL},
    {NULL, FIELD_READ, NULL},
};

// ---- every field of the body ------------------------------------------------------------------------------------

static const struct field *find_field(const struct field *table, const char *name) {
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    return NULL;
}

static bool asks_for_nothing(const json_t *value, const char *only) {
    bool empty = json_is_null(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
                 (json_is_object(value) && json_object_size(value) == 0);
    if (empty || !only)
        return empty;
    json_t *same = json_loads(only, JSON_DECODE_ANY, NULL);
    BUG_IF(!same);
    bool equal = json_equal(value, same) ||
                 (json_is_number(value) && json_is_number(same) && json_number_value(value) == json_number_value(same));
    json_decref(same);
    return equal;
}

/* Unknown fields are listed, a few of them by name: clients send all kinds of things. */
enum status params_check_fields(struct generation *g, const json_t *body, const struct field *table, bool generates,
                                struct error *err) {
    enum { MOST = 16 };
    struct buf unknown = {0};
    const char *name;
    json_t *value;
    int n = 0;
    enum status st = OK;
    json_object_foreach((json_t *)body, name, value) {
        const struct field *f = find_field(table, name);
        if (!f && generates)
            f = find_field(common_fields, name);
        if (f && f->kind == FIELD_UNSUPPORTED && !asks_for_nothing(value, f->only)) {
            st = fail(err, ERR_UNSUPPORTED, "%s: this server does not support it yet", name);
            break;
        }
        if (f || json_is_null(value) || (generates && request_is_sampling_field(name)) || n++ >= MOST)
            continue;
        struct buf sentence = {0};
        buf_printf(&sentence, "the field \"%.80s\" is not known and was ignored", name);
        if (unknown.len > 0)
            buf_push(&unknown, ',');
        buf_json_string(&unknown, buf_view(&sentence));
        buf_release(&sentence);
    }
    g->warnings = arena_strdup(&g->x->arena, buf_view(&unknown));
    buf_release(&unknown);
    return st;
}

void params_warn(struct generation *g, const char *sentence) {
    struct buf all = {0};
    buf_str(&all, str_of(g->warnings));
    if (all.len > 0)
        buf_push(&all, ',');
    buf_json_string(&all, str_of(sentence));
    g->warnings = arena_strdup(&g->x->arena, buf_view(&all));
    buf_release(&all);
}

// ---- the common ones --------------------------------------------------------------------------------------------

static enum status read_stream(struct generation *g, const json_t *body, struct params *p, struct error *err) {
    json_t *options;
    TRY(jv_bool_or(body, "request", "stream", false, &p->stream, err));
    TRY(jv_object_or_null(body, "request", "stream_options", &options, err));
    g->stream = p->stream;
    if (!options)
        return OK;
    if (!p->stream && json_object_size(options) > 0)
        return fail(err, ERR_ARG, "stream_options: only with \"stream\": true");
    TRY(jv_bool_or(options, "stream_options", "include_usage", false, &g->include_usage, err));
    TRY(jv_bool_or(options, "stream_options", "continuous_usage_stats", false, &g->continuous_usage, err));
    g->continuous_usage &= g->include_usage; // as in vLLM: it says how usage comes, not whether
    return OK;
}

static enum status read_seed(const json_t *body, struct gyre_request *r) {
    const json_t *seed = json_object_get(body, "seed");
    if ((!seed || json_is_null(seed)) && getrandom(&r->seed, sizeof r->seed, 0) != sizeof r->seed)
        r->seed = (uint64_t)(uintptr_t)body;
    return OK;
}

static enum status check_limits(const struct api_limits *limits, const struct params *p, struct error *err) {
    if (p->fields.n_stop > limits->max_stops)
        return fail(err, ERR_ARG, "stop: %zu strings, at most %zu are allowed", p->fields.n_stop, limits->max_stops);
    size_t n_bytes = 0;
    for (size_t i = 0; i < p->fields.n_stop; i++)
        n_bytes += strlen(p->fields.stop[i]);
    if (n_bytes > limits->max_stop_bytes)
        return fail(err, ERR_ARG, "stop: the strings have %zu bytes together, at most %zu are allowed", n_bytes,
                    limits->max_stop_bytes);
    if (p->fields.request.n_logit_bias > limits->max_logit_bias)
        return fail(err, ERR_ARG, "logit_bias: %zu entries, at most %zu are allowed", p->fields.request.n_logit_bias,
                    limits->max_logit_bias);
    if (p->fields.request.n_stop_ids > limits->max_logit_bias) // each token of the answer is compared with all
        return fail(err, ERR_ARG, "stop_token_ids: %zu ids, at most %zu are allowed", p->fields.request.n_stop_ids,
                    limits->max_logit_bias);
    return OK;
}

static enum status check_range(const char *field, float x, float most, struct error *err) {
    if (x < -most || x > most)
        return fail(err, ERR_ARG, "%s: %g is not between %g and %g", field, (double)x, (double)-most, (double)most);
    return OK;
}

/* Narrower than the engine's: OpenAI's, which clients are written for. */
static enum status check_ranges(const struct gyre_request *r, struct error *err) {
    TRY(check_range("presence_penalty", r->presence_penalty, 2, err));
    TRY(check_range("frequency_penalty", r->frequency_penalty, 2, err));
    for (size_t i = 0; i < r->n_logit_bias; i++)
        TRY(check_range("logit_bias", r->logit_bias[i].bias, 100, err));
    return OK;
}

/* For as long as the exchange: which of them ended an answer is told. */
static void keep_stops(struct generation *g, const struct params *p) {
    const char **stops = arena_calloc(&g->x->arena, p->fields.n_stop, sizeof *stops);
    for (size_t i = 0; i < p->fields.n_stop; i++)
        stops[i] = arena_strdup(&g->x->arena, str_of(p->fields.stop[i]));
    g->stops = stops;
    g->n_stops = p->fields.n_stop;
    int32_t *ids = arena_calloc(&g->x->arena, p->fields.request.n_stop_ids, sizeof *ids);
    if (p->fields.request.n_stop_ids > 0)
        memcpy(ids, p->fields.request.stop_ids, p->fields.request.n_stop_ids * sizeof *ids);
    g->stop_ids = ids;
    g->n_stop_ids = p->fields.request.n_stop_ids;
    g->min_tokens = p->fields.request.min_tokens;
}

// ---- reading ----------------------------------------------------------------------------------------------------

static enum status read_common(struct generation *g, const json_t *body, struct params *p, struct error *err) {
    struct gyre_request *r = &p->fields.request;
    const struct api_limits *limits = &g->api->options.limits;
    int64_t n, priority;
    bool skip_special;
    TRY(read_stream(g, body, p, err));
    TRY(jv_int_or(body, "request", "n", 1, limits->max_choices, 1, &n, err));
    TRY(jv_int_or(body, "request", "priority", INT32_MIN, INT32_MAX, 0, &priority, err));
    TRY(jv_string_or(body, "request", "cache_salt", NULL, &r->cache_salt, err));
    TRY(jv_bool_or(body, "request", "skip_special_tokens", true, &skip_special, err));
    TRY(jv_bool_or(body, "request", "include_stop_str_in_output", false, &g->include_stop, err));
    TRY(request_sampling_read(body, &p->fields, err));
    TRY(read_seed(body, r));
    TRY(bad_words_read(g->api, body, &p->fields, err));
    TRY(prediction_read(g->api, body, &p->fields, err));
    TRY(structured_read(body, &p->structured, err));
    TRY(check_limits(limits, p, err));
    TRY(check_ranges(r, err));
    p->n = (int)n;
    r->priority = (int32_t)priority;
    r->adapter = api_adapter_of(g->api, body);
    if (r->adapter)
        g->model = g->api->options.adapters[r->adapter - 1].name;
    g->detokenize_flags = skip_special ? DETOKENIZE_SKIP_SPECIAL : 0;
    g->logprobs = r->logprobs;
    g->n_top = r->n_top_logprobs;
    g->n_prompt_logprobs = -1;
    keep_stops(g, p);
    return OK;
}

static void put_default(double given, float *out) { *out = isnan(given) ? *out : (float)given; }

/* The model's own, but where the server has others. A model that says nothing draws at OpenAI's temperature. */
static struct gyre_request default_request(const struct api *api) {
    struct gyre_request r = service_request_default(api->service);
    const struct request_defaults *d = &api->options.defaults;
    if (r.temperature == 0)
        r.temperature = 1;
    put_default(d->temperature, &r.temperature);
    put_default(d->top_p, &r.top_p);
    put_default(d->min_p, &r.min_p);
    put_default(d->repetition_penalty, &r.repetition_penalty);
    if (!isnan(d->top_k))
        r.top_k = (int32_t)MAX(d->top_k, 0);
    return r;
}

static int32_t max_logprobs(const struct api *api) {
    int64_t most = api->options.limits.max_logprobs, all = service_info(api->service)->vocab_size;
    return (int32_t)(most < 0 ? all : MIN(most, all));
}

bool params_read(struct generation *g, const json_t *body, const struct field *table, struct params *out) {
    struct error err = {0};
    const struct gyre_info *info = service_info(g->api->service);
    *out = (struct params){.fields = {.request = default_request(g->api),
                                      .max_logprobs = max_logprobs(g->api),
                                      .n_vocab = info->vocab_size}};
    if (params_check_fields(g, body, table, true, &err) == OK && read_common(g, body, out, &err) == OK)
        return true;
    api_reply_fault(g->x, &err);
    return false;
}

enum status params_compile_structured(struct generation *g, struct params *p, const char *excludes, struct error *err) {
    struct structured *s = &p->structured;
    if (s->field && excludes)
        return fail(err, ERR_UNSUPPORTED, "%s: it is not supported together with %s", s->field, excludes);
    TRY(structured_compile(g, s, err));
    p->fields.request.grammar = s->field ? &s->compiled : NULL;
    return OK;
}

void params_release(struct params *p) {
    structured_release(&p->structured);
    request_fields_release(&p->fields);
}
