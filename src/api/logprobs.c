/* logprobs.c - see logprobs.h. */
#include "api/logprobs.h"

#include <math.h>

static void write_number(float logprob, struct buf *out) {
    if (isfinite(logprob))
        buf_printf(out, "%.6g", (double)logprob);
    else
        buf_str(out, STR("-9999.0")); // JSON has no infinity; vLLM's floor
}

static void write_token(const struct tokenizer *tok, int32_t id, struct buf *scratch, struct buf *out) {
    buf_clear(scratch);
    tokenizer_token_bytes(tok, id, scratch);
    buf_json_string(out, buf_view(scratch));
}

/* {"token","logprob","bytes" */
static void write_chat_token(const struct tokenizer *tok, int32_t id, float logprob, struct buf *scratch, struct buf *out) {
    buf_str(out, STR("{\"token\":"));
    write_token(tok, id, scratch, out);
    buf_str(out, STR(",\"logprob\":"));
    write_number(logprob, out);
    buf_str(out, STR(",\"bytes\":["));
    for (size_t i = 0; i < scratch->len; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)scratch->ptr[i]);
    buf_push(out, ']');
}

void logprobs_write_tokens(const struct choice *c, int32_t from, int32_t to, struct buf *out) {
    const struct tokenizer *tok = c->generation->api->options.tokenizer;
    const struct answer *a = c->answer;
    struct buf scratch = {0};
    buf_push(out, '[');
    for (int32_t i = from; i < to; i++) {
        if (i > from)
            buf_push(out, ',');
        write_chat_token(tok, a->tokens[i], a->logprobs[i], &scratch, out);
        buf_str(out, STR(",\"top_logprobs\":["));
        for (int k = 0; k < a->n_top; k++) {
            if (k)
                buf_push(out, ',');
            write_chat_token(tok, a->top_tokens[(int64_t)i * a->n_top + k], a->top_logprobs[(int64_t)i * a->n_top + k], &scratch, out);
            buf_push(out, '}');
        }
        buf_str(out, STR("]}"));
    }
    buf_push(out, ']');
    buf_release(&scratch);
}

void logprobs_write_chat(const struct choice *c, struct buf *out) {
    buf_str(out, STR("{\"content\":"));
    logprobs_write_tokens(c, c->n_written, c->n_seen, out);
    buf_str(out, STR(",\"refusal\":null}"));
}

/* The four arrays of completions, filled side by side. */
struct columns {
    const struct tokenizer *tok;
    struct buf tokens, logprobs, tops, offsets, scratch;
    size_t offset;
};

static void add_top(struct columns *k, const int32_t *tokens, const float *logprobs, int n) {
    buf_push(&k->tops, '{');
    for (int i = 0; i < n; i++) {
        if (i)
            buf_push(&k->tops, ',');
        write_token(k->tok, tokens[i], &k->scratch, &k->tops);
        buf_push(&k->tops, ':');
        write_number(logprobs[i], &k->tops);
    }
    buf_push(&k->tops, '}');
}

/* tops NULL, or logprob NAN: nothing is known of the token (the first of a prompt). */
static void add_token(struct columns *k, int32_t id, float logprob, const int32_t *tops, const float *top_logprobs, int n_top) {
    struct buf *all[] = {&k->tokens, &k->logprobs, &k->tops, &k->offsets};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i]->len > 0)
            buf_push(all[i], ',');
    write_token(k->tok, id, &k->scratch, &k->tokens);
    buf_printf(&k->offsets, "%zu", k->offset);
    k->offset += k->scratch.len;
    if (isnan(logprob)) {
        buf_str(&k->logprobs, STR("null"));
        buf_str(&k->tops, STR("null"));
        return;
    }
    write_number(logprob, &k->logprobs);
    add_top(k, tops, top_logprobs, n_top);
}

void logprobs_write_completion(struct choice *c, bool with_prompt, struct buf *out) {
    const struct answer *a = c->answer;
    struct columns k = {.tok = c->generation->api->options.tokenizer, .offset = c->text_offset};
    int64_t top = a->n_top, prompt_top = a->n_prompt_top;
    for (int32_t i = 0; with_prompt && i < c->n_prompt; i++)
        add_token(&k, c->prompt[i], a->prompt_logprobs[i], a->prompt_top_tokens + i * prompt_top, a->prompt_top_logprobs + i * prompt_top,
                  a->n_prompt_top);
    for (int32_t i = c->n_written; i < c->n_seen; i++)
        add_token(&k, a->tokens[i], a->logprobs[i], a->top_tokens + i * top, a->top_logprobs + i * top, a->n_top);
    buf_printf(out, "{\"tokens\":[%s],\"token_logprobs\":[%s],\"top_logprobs\":[%s],\"text_offset\":[%s]}",
               k.tokens.ptr ? k.tokens.ptr : "", k.logprobs.ptr ? k.logprobs.ptr : "", k.tops.ptr ? k.tops.ptr : "",
               k.offsets.ptr ? k.offsets.ptr : "");
    c->text_offset = k.offset;
    buf_release(&k.tokens);
    buf_release(&k.logprobs);
    buf_release(&k.tops);
    buf_release(&k.offsets);
    buf_release(&k.scratch);
}
