/* openai_answer.c - see openai_answer.h. */
#include "api/chat/openai_answer.h"

#include "api/answer/logprobs.h"

void openai_head(const struct generation *g, const char *object, struct buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
               (long long)g->created);
    buf_json_string(out, str_of(g->model));
    buf_printf(out, ",\"system_fingerprint\":\"%s\"", g->api->options.fingerprint);
}

void openai_chunk_head(struct generation *g, const char *object, struct buf *out) {
    if (g->chunk_head.len == 0) {
        struct buf head = {0};
        buf_str(&head, STR("data: "));
        openai_head(g, object, &head);
        buf_str(&head, STR(",\"choices\":["));
        g->chunk_head = str_of(arena_strdup(&g->x->arena, buf_view(&head)));
        buf_release(&head);
    }
    buf_str(out, g->chunk_head);
}

void openai_chunk_end(struct generation *g, struct buf *out) {
    if (g->continuous_usage) {
        buf_push(out, ',');
        generation_usage(g, out);
    }
    buf_str(out, STR("}\n\n"));
}

void openai_last_chunk(struct generation *g, const char *object, struct buf *out) {
    openai_chunk_head(g, object, out);
    buf_str(out, STR("],"));
    generation_usage(g, out);
    buf_str(out, STR("}\n\n"));
}

void openai_finish(const struct choice *c, struct str open, struct buf *out) {
    if (!c->ended) {
        buf_str(out, open);
        return;
    }
    buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", c->finish_reason);
    generation_stop_reason(c, out);
}

void openai_token_ids(const struct choice *c, struct buf *out) {
    buf_str(out, STR(",\"token_ids\":"));
    logprobs_write_ids(c->answer->tokens + c->n_written, c->n_seen - c->n_written, out);
}

void openai_warnings(const struct generation *g, struct buf *out) {
    if (*g->warnings)
        buf_printf(out, ",\"warnings\":[%s]", g->warnings);
}
