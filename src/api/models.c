/* models.c - GET /v1/models and /v1/models/{id}: OpenAI's fields, and beside them those of Anthropic's API, whose
 * clients ask at the same path. */
#include "api/endpoints.h"

#include <time.h>

/* The names of the model, then those of its adapters. */
static size_t n_models(const struct api *api) { return api->options.n_names + api->options.n_adapters; }

static const char *name_of(const struct api *api, size_t i) {
    const struct api_options *o = &api->options;
    return i < o->n_names ? o->names[i] : o->adapters[i - o->n_names].name;
}

static void write_model(const struct api *api, size_t i, struct buf *out) {
    const char *name = name_of(api, i);
    buf_str(out, STR("{\"id\":"));
    buf_json_string(out, str_of(name));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"gyre\",\"root\":", (long long)api->created);
    buf_json_string(out, str_of(api->options.names[0]));
    long long len = (long long)service_info(api->service)->max_model_len;
    char created_at[32];
    struct tm utc;
    time_t created = (time_t)api->created;
    strftime(created_at, sizeof created_at, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&created, &utc));
    buf_str(out, STR(",\"parent\":"));
    if (i < api->options.n_names)
        buf_str(out, STR("null"));
    else
        buf_json_string(out, str_of(api->options.names[0]));
    buf_printf(out, ",\"max_model_len\":%lld,\"type\":\"model\",\"display_name\":", len);
    buf_json_string(out, str_of(name));
    buf_printf(out, ",\"created_at\":\"%s\",\"max_input_tokens\":%lld,\"max_tokens\":%lld}", created_at, len, len);
}

void endpoint_models(struct http_exchange *x) {
    const struct api *api = api_of(x);
    struct buf body = {0};
    buf_str(&body, STR("{\"object\":\"list\",\"data\":["));
    for (size_t i = 0; i < n_models(api); i++) {
        if (i)
            buf_push(&body, ',');
        write_model(api, i, &body);
    }
    buf_str(&body, STR("],\"has_more\":false,\"first_id\":"));
    buf_json_string(&body, str_of(name_of(api, 0)));
    buf_str(&body, STR(",\"last_id\":"));
    buf_json_string(&body, str_of(name_of(api, n_models(api) - 1)));
    buf_push(&body, '}');
    api_reply_json(x, 200, buf_view(&body));
    buf_release(&body);
}

void endpoint_model(struct http_exchange *x) {
    const struct api *api = api_of(x);
    for (size_t i = 0; i < n_models(api); i++)
        if (str_eq(x->id, str_of(name_of(api, i)))) {
            struct buf body = {0};
            write_model(api, i, &body);
            api_reply_json(x, 200, buf_view(&body));
            buf_release(&body);
            return;
        }
    api_reply_error(x, 404, "model", "there is no such model here; GET /v1/models lists what is served");
}
