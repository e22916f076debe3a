/* embeddings.c - POST /v1/embeddings: texts as vectors, one each.
 *
 *     {"input": "a text" or ids or an array of either, "encoding_format": "float" | "base64", "dimensions": N}
 *
 * The vector is the state behind the model's last norm, of the last token or averaged over all (api_options.pooling),
 * cut to its first `dimensions` numbers and then scaled to length 1. base64 is of little-endian floats, as OpenAI has
 * it. */
#include "api/answer/prompts.h"
#include "api/endpoints.h"
#include "api/fields/params.h"
#include "text/formats/base64.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_INPUTS = 2048 }; // OpenAI's

struct embeddings {
    struct generation g; // first: the dialect gets it
    bool base64, normalize;
    int dimensions;
};

// ---- writing ----------------------------------------------------------------------------------------------------

/* The sum of squares is in double: 8,192 floats of any size. */
static void scale_to_length_1(float *x, int n) {
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    double scale = squares > 0 ? 1 / sqrt(squares) : 0;
    for (int i = 0; i < n; i++)
        x[i] = (float)((double)x[i] * scale);
}

static void write_floats(const float *x, int n, struct buf *out) {
    buf_push(out, '[');
    for (int i = 0; i < n; i++)
        buf_printf(out, "%s%.9g", i ? "," : "", (double)x[i]);
    buf_push(out, ']');
}

static void write_vector(const struct embeddings *e, int index, struct buf *out) {
    float *x = e->g.choices[index].answer->pooled;
    if (e->normalize)
        scale_to_length_1(x, e->dimensions);
    buf_printf(out, "{\"object\":\"embedding\",\"index\":%d,\"embedding\":", index);
    if (e->base64) {
        buf_push(out, '"');
        base64_encode(x, (size_t)e->dimensions * sizeof *x, out); // every machine that this runs on is little-endian
        buf_push(out, '"');
    } else {
        write_floats(x, e->dimensions, out);
    }
    buf_push(out, '}');
}

static void write_body(struct generation *g, struct buf *out) {
    const struct embeddings *e = (const struct embeddings *)g;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", g->id, (long long)g->created);
    buf_json_string(out, str_of(g->model));
    buf_str(out, STR(",\"data\":["));
    for (int i = 0; i < g->n_choices; i++) {
        if (i)
            buf_push(out, ',');
        write_vector(e, i, out);
    }
    buf_printf(out, "],\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}", (long long)g->n_prompt_tokens,
               (long long)g->n_prompt_tokens);
    if (*g->warnings)
        buf_printf(out, ",\"warnings\":[%s]", g->warnings);
    buf_push(out, '}');
}

static const struct dialect dialect = {.id_prefix = "embd-", .body = write_body, .abort_fails = true};

// ---- reading ----------------------------------------------------------------------------------------------------

static const struct field fields[] = {
    {"model", FIELD_READ, NULL},
    {"input", FIELD_READ, NULL},
    {"encoding_format", FIELD_READ, NULL},
    {"dimensions", FIELD_READ, NULL},
    {"add_special_tokens", FIELD_READ, NULL},
    {"truncate_prompt_tokens", FIELD_READ, NULL},
    {"normalize", FIELD_READ, NULL},
    {"use_activation", FIELD_READ, NULL},
    {"priority", FIELD_READ, NULL},
    {"cache_salt", FIELD_READ, NULL},
    {"user", FIELD_SET_ASIDE, NULL},
    {"request_id", FIELD_SET_ASIDE, NULL},
    {"messages", FIELD_UNSUPPORTED, NULL},
    {"embed_dtype", FIELD_UNSUPPORTED, "\"float32\""},
    {"endianness", FIELD_UNSUPPORTED, "\"native\""},
    {NULL, FIELD_READ, NULL},
};

static enum status read_format(const json_t *body, bool *base64, struct error *err) {
    const char *format;
    TRY(jv_string_or(body, "request", "encoding_format", "float", &format, err));
    *base64 = strcmp(format, "base64") == 0;
    if (!*base64 && strcmp(format, "float") != 0)
        return fail(err, ERR_ARG, "encoding_format: \"%.40s\" is neither \"float\" nor \"base64\"", format);
    return OK;
}

/* A text keeps its last tokens, as vLLM does; -1 is as many as the context has. */
static enum status truncate_prompts(struct generation *g, const json_t *body, struct prompt_ids *prompts, int n,
                                    struct error *err) {
    int64_t longest, max = service_info(g->api->service)->max_model_len;
    TRY(jv_int_or(body, "request", "truncate_prompt_tokens", -1, max, INT64_MAX, &longest, err));
    if (longest == 0)
        return fail(err, ERR_ARG, "truncate_prompt_tokens: nothing would be left");
    if (longest == -1)
        longest = max;
    for (int i = 0; i < n; i++) {
        size_t cut = prompts[i].n > (size_t)longest ? prompts[i].n - (size_t)longest : 0;
        prompts[i].ids += cut;
        prompts[i].n -= cut;
    }
    return OK;
}

static enum status read_request(struct embeddings *e, const json_t *body, struct gyre_request *r,
                                struct prompt_ids **prompts, int *n, struct error *err) {
    const struct api_options *o = &e->g.api->options;
    int width = service_info(e->g.api->service)->hidden_size;
    bool add_special;
    int64_t dimensions, priority;
    if (o->no_pooling)
        return fail(err, ERR_UNSUPPORTED, "embeddings: %s", o->no_pooling);
    TRY(read_format(body, &e->base64, err));
    TRY(jv_int_or(body, "request", "dimensions", 1, MAX(width, 1), width, &dimensions, err));
    TRY(jv_bool_or(body, "request", "use_activation", o->normalize, &e->normalize, err));
    TRY(jv_bool_or(body, "request", "normalize", e->normalize, &e->normalize, err));
    TRY(jv_bool_or(body, "request", "add_special_tokens", true, &add_special, err));
    TRY(jv_int_or(body, "request", "priority", INT32_MIN, INT32_MAX, 0, &priority, err));
    TRY(jv_string_or(body, "request", "cache_salt", NULL, &r->cache_salt, err));
    struct prompt_source source = {"input", (add_special ? ENCODE_ADD_SPECIAL : 0) | ENCODE_PARSE_SPECIAL, MAX_INPUTS,
                                   "texts that one request may have",
                                   .is_cut_later = json_is_number(json_object_get(body, "truncate_prompt_tokens"))};
    TRY(prompts_read(e->g.x, body, &source, prompts, n, err));
    e->dimensions = (int)dimensions;
    r->priority = (int32_t)priority;
    r->adapter = api_adapter_of(e->g.api, body);
    if (r->adapter)
        e->g.model = o->adapters[r->adapter - 1].name;
    r->max_tokens = 0;
    r->temperature = 0;
    r->pooling = o->pooling;
    return truncate_prompts(&e->g, body, *prompts, *n, err);
}

void endpoint_embeddings(struct http_exchange *x) {
    json_t *body;
    if (!api_read_body(x, &body))
        return;
    struct embeddings *e = arena_calloc(&x->arena, 1, sizeof *e);
    e->g = (struct generation){
        .api = api_of(x), .x = x, .dialect = &dialect, .model = api_of(x)->options.names[0], .warnings = ""};
    struct gyre_request r = service_request_default(e->g.api->service);
    struct prompt_ids *prompts;
    int n;
    struct error err;
    if (!api_check_model(x, body)) {
        // answered
    } else if (params_check_fields(&e->g, body, fields, false, &err) != OK ||
               read_request(e, body, &r, &prompts, &n, &err) != OK) {
        api_reply_fault(x, &err);
    } else {
        generation_start(&e->g, &r, prompts, n, 1);
    }
    json_decref(body);
}
