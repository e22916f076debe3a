/* health.c - /health, /health/live, /health/ready, /version, /server_info.
 *
 * Live: the process answers. Ready: the device works, the server accepts, and no step has been running for longer than
 * any step should. */
#include "api/endpoints.h"

#include "base/clock.h"

void endpoint_live(struct http_exchange *x) { api_reply_json(x, 200, STR("{\"status\":\"ok\"}")); }

bool api_step_hangs(const struct api *api, const struct service_state *s) {
    return s->step_started_us > 0 && clock_us() - s->step_started_us > api->options.step_timeout_us;
}

void endpoint_ready(struct http_exchange *x) {
    struct service_state s;
    service_state(api_of(x)->service, &s);
    if (s.failed)
        api_reply_error(x, 503, NULL, api_public_text(s.error));
    else if (s.draining)
        api_reply_error(x, 503, NULL, "the server is shutting down");
    else if (api_step_hangs(api_of(x), &s))
        api_reply_error(x, 503, NULL, "the engine hangs: it has been in one step for too long");
    else
        api_reply_json(x, 200, STR("{\"status\":\"ok\"}"));
}

void endpoint_version(struct http_exchange *x) {
    struct buf body = {0};
    buf_printf(&body, "{\"version\":\"%s\"}", api_of(x)->options.version);
    api_reply_json(x, 200, buf_view(&body));
    buf_release(&body);
}

void endpoint_server_info(struct http_exchange *x) {
    const struct api *api = api_of(x);
    const struct gyre_info *info = service_info(api->service);
    struct service_state s;
    service_state(api->service, &s);
    struct buf body = {0};
    buf_printf(&body, "{\"version\":\"%s\",\"model\":", api->options.version);
    buf_json_string(&body, str_of(api->options.names[0]));
    buf_printf(&body,
               ",\"max_model_len\":%lld,\"kv_cache_bytes\":%lld,\"kv_cache_tokens\":%lld,\"block_size\":%d,\"max_num_"
               "batched_tokens\":%d,"
               "\"max_num_seqs\":%d,\"running\":%d,\"waiting\":%lld,\"kv_cache_usage\":%.4f,\"steps\":%lld,"
               "\"preemptions\":%lld,"
               "\"prompt_tokens\":%lld,\"cached_tokens\":%lld,\"generation_tokens\":%lld}",
               (long long)info->max_model_len, (long long)info->kv_cache_bytes, (long long)info->kv_cache_tokens,
               info->block_size, info->max_batched_tokens, info->max_seqs, s.n_running,
               (long long)(s.n_waiting + s.n_queued), s.kv_usage, (long long)s.n_steps, (long long)s.n_preempted,
               (long long)s.n_prompt_tokens, (long long)s.n_reused_tokens, (long long)s.n_generated_tokens);
    api_reply_json(x, 200, buf_view(&body));
    buf_release(&body);
}
