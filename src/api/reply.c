/* reply.c - errors and whole answers; see api.h. */
#include "api/api.h"

#include <stdio.h>
#include <sys/random.h>

static bool is_anthropic(struct str path) { return str_starts(path, STR("/v1/messages")); }

size_t api_extra_headers(struct http_exchange *x, struct http_header *out) {
    if (!is_anthropic(x->path))
        return 0;
    *out = (struct http_header){"request-id", arena_strdup(&x->arena, x->request_id)};
    return 1;
}

void api_reply_json(struct http_exchange *x, int status, struct str body) {
    struct http_header extra;
    size_t n = api_extra_headers(x, &extra);
    http_reply(
        x,
        &(struct http_answer){.status = status, .content_type = "application/json", .headers = &extra, .n_headers = n},
        body);
}

static const char *type_of(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

/* The types of Anthropic's API, which its clients turn into exceptions. */
static const char *anthropic_type_of(int status) {
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 408: return "timeout_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return status >= 499 ? "api_error" : "invalid_request_error";
    }
}

static void append_anthropic_error(struct buf *out, int status, const char *message) {
    buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", anthropic_type_of(status));
    buf_json_string(out, str_of(message));
    buf_str(out, STR("}}"));
}

static bool is_name(struct str s) {
    for (size_t i = 0; i < s.len; i++)
        if (!(s.ptr[i] == '_' || (s.ptr[i] >= 'a' && s.ptr[i] <= 'z') || (i > 0 && strchr("0123456789[].", s.ptr[i]))))
            return false;
    return s.len > 0;
}

/* Sentences about a field begin with it, `temperature: 7 is not ...`, unless the error says the field itself. */
static struct str param_of(const char *message) {
    const char *colon = strchr(message, ':');
    struct str name = {message, colon ? (size_t)(colon - message) : 0};
    return is_name(name) && !str_eq(name, STR("request")) ? name : (struct str){0};
}

/* OpenAI's words for what programs react to; agents shorten a conversation at context_length_exceeded. NULL: there is
 * none. */
static const char *code_of(int status, struct str param, const char *message) {
    if (status == 401)
        return "invalid_api_key";
    if (status == 404 && str_eq(param, STR("model")))
        return "model_not_found";
    if (status == 429)
        return "rate_limit_exceeded";
    return status == 400 && strstr(message, "maximum context length is") ? "context_length_exceeded"
                                                                         : NULL; // the engine's sentence
}

void api_append_error(struct buf *out, struct str path, int status, const char *param, const char *message) {
    if (is_anthropic(path)) {
        append_anthropic_error(out, status, message);
        return;
    }
    struct str name = param ? str_of(param) : status == 400 ? param_of(message) : (struct str){0};
    buf_str(out, STR("{\"error\":{\"message\":"));
    buf_json_string(out, str_of(message));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", type_of(status));
    if (name.len > 0)
        buf_json_string(out, name);
    else
        buf_str(out, STR("null"));
    const char *code = code_of(status, name, message);
    buf_printf(out, code ? ",\"code\":\"%s\"}}" : ",\"code\":null}}", code);
}

void api_error_body(void *context, struct str path, int status, const char *message, struct buf *out) {
    (void)context;
    api_append_error(out, path, status, NULL, message);
}

void api_reply_error(struct http_exchange *x, int status, const char *param, const char *message) {
    struct buf body = {0};
    api_append_error(&body, x->path, status, param, message);
    struct http_header headers[2];
    size_t n = api_extra_headers(x, headers);
    if (status == 429 || status == 503)
        headers[n++] = (struct http_header){"Retry-After", "1"};
    http_reply(x, &(struct http_answer){status, "application/json", headers, n, NULL}, buf_view(&body));
    buf_release(&body);
}

const char *api_public_text(const char *sentence) {
    return strchr(sentence, '/') ? "the device failed; the server's log says why" : sentence;
}

/* The engine knows fields of gyre_request: the request's own name of it. NULL: none is to blame. */
static const char *field_of(const struct http_exchange *x, const struct error *err) {
    static const char *const names[][4] = {{"prompt", "messages", "input"},
                                           {"max_tokens", "max_completion_tokens", "max_output_tokens"}};
    const struct api_record *record = x->record;
    const char *field = err->field;
    for (size_t i = 0; record && i < ARRAY_LEN(names); i++)
        for (int k = 1; strcmp(field, names[i][0]) == 0 && names[i][k]; k++)
            if (json_object_get(record->body, names[i][k]) && !json_is_null(json_object_get(record->body, names[i][k])))
                return names[i][k];
    return *field ? field : NULL;
}

void api_reply_fault(struct http_exchange *x, const struct error *err) {
    int status = 500;
    switch (err->status) {
    case ERR_ARG:
    case ERR_FORMAT:
    case ERR_LIMIT:
    case ERR_UNSUPPORTED: status = 400; break;
    case ERR_FULL: status = 429; break;
    case ERR_DEVICE:
    case ERR_MEMORY: status = 503; break;
    case OK:
    case ERR_IO: break;
    }
    const char *text = err->text;
    if (str_starts(str_of(text), STR("request: ")))
        text += strlen("request: ");
    api_reply_error(x, status, status == 400 ? field_of(x, err) : NULL, status >= 500 ? api_public_text(text) : text);
}

/* Some clients begin with the mark of UTF-8, which RFC 8259 lets a reader skip. */
static struct str without_mark(struct str s) {
    struct str mark = STR("\xEF\xBB\xBF");
    return str_starts(s, mark) ? (struct str){s.ptr + mark.len, s.len - mark.len} : s;
}

bool api_read_body(struct http_exchange *x, json_t **out) {
    struct api_record *record = x->record;
    if (record->body) { // read by another endpoint, which passed the request on
        *out = json_incref(record->body);
        return true;
    }
    size_t budget = 64 << 20; // beside the bytes of strings: the ids of a prompt of a million tokens, and some
    struct error err;
    if (jv_parse_numbers(without_mark(x->body), "request", JV_ALLOW_DUPLICATES, &budget, &record->numbers, out, &err) !=
        OK) {
        api_reply_fault(x, &err);
        return false;
    }
    record->body = json_incref(*out);
    if (json_is_object(*out))
        return true;
    api_reply_error(x, 400, NULL, "the body must be a JSON object");
    json_decref(*out);
    return false;
}

int32_t api_adapter_of(const struct api *api, const json_t *body) {
    const char *name = json_string_value(json_object_get(body, "model"));
    for (size_t i = 0; name && i < api->options.n_adapters; i++)
        if (strcmp(api->options.adapters[i].name, name) == 0)
            return (int32_t)i + 1;
    return 0;
}

bool api_check_model(struct http_exchange *x, const json_t *body) {
    const struct api_options *o = &api_of(x)->options;
    const json_t *model = json_object_get(body, "model");
    if (!model || json_is_null(model))
        return true;
    if (!json_is_string(model)) {
        api_reply_error(x, 400, "model", "model: it must be a string");
        return false;
    }
    if (json_string_length(model) == 0) // as if there were none: clients with one server have nothing to fill in
        return true;
    for (size_t i = 0; i < o->n_names; i++)
        if (strcmp(o->names[i], json_string_value(model)) == 0)
            return true;
    if (api_adapter_of(api_of(x), body))
        return true;
    struct error err;
    fail(&err, ERR_ARG, "the model \"%.200s\" is not served here; GET /v1/models lists what is",
         json_string_value(model));
    api_reply_error(x, 404, "model", err.text);
    return false;
}

void api_new_id(const char *prefix, char out[64]) {
    uint64_t r[2];
    if (getrandom(r, sizeof r, 0) != sizeof r)
        r[0] = (uint64_t)(uintptr_t)out, r[1] = 0;
    snprintf(out, 64, "%s%016llx%016llx", prefix, (unsigned long long)r[0], (unsigned long long)r[1]);
}
