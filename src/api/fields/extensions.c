/* extensions.c - see extensions.h. */
#include "api/fields/extensions.h"

static const char WHERE[] = "request";

static enum status read_prompt_logprobs(struct generation *g, const json_t *body, struct request_fields *f,
                                        struct error *err) {
    const json_t *value = json_object_get(body, "prompt_logprobs");
    int n = 0;
    if (!value || json_is_null(value))
        return OK;
    TRY(request_logprobs_read(body, "prompt_logprobs", f, &n, err));
    if (g->stream)
        return fail(err, ERR_ARG, "prompt_logprobs: they are not streamed; ask without \"stream\"");
    g->n_prompt_logprobs = n;
    f->request.score_prompt = true;
    f->request.n_prompt_top_logprobs = n;
    return OK;
}

static enum status read_ids_and_text(struct generation *g, const json_t *body, struct error *err) {
    bool detokenize;
    TRY(jv_bool_or(body, WHERE, "return_token_ids", false, &g->return_ids, err));
    TRY(jv_bool_or(body, WHERE, "return_tokens_as_token_ids", false, &g->ids_as_tokens, err));
    TRY(jv_bool_or(body, WHERE, "detokenize", true, &detokenize, err));
    g->no_text = !detokenize;
    if (g->no_text && g->n_stops > 0)
        return fail(err, ERR_ARG, "stop: strings are looked for in text, and \"detokenize\" is false");
    return OK;
}

/* What max_tokens leaves of the context; -1 leaves room for one. */
static int64_t room_for_prompt(const struct generation *g, const struct gyre_request *r) {
    int64_t answer = r->max_tokens == -1 ? 1 : r->max_tokens, context = service_info(g->api->service)->max_model_len;
    return answer < context ? context - answer : 1;
}

static enum status read_cut(struct generation *g, const json_t *body, const struct gyre_request *r,
                            struct prompt_cut *out, struct error *err) {
    const char *side;
    TRY(jv_int_or(body, WHERE, "truncate_prompt_tokens", -1, INT32_MAX, INT64_MAX, &out->most, err));
    TRY(jv_string_or(body, WHERE, "truncation_side", "left", &side, err));
    g->cuts_prompt = out->most != INT64_MAX;
    if (out->most == 0)
        return fail(err, ERR_ARG, "truncate_prompt_tokens: 0 would leave no prompt");
    if (strcmp(side, "left") != 0 && strcmp(side, "right") != 0)
        return fail(err, ERR_ARG, "truncation_side: \"%.40s\" is neither \"left\" nor \"right\"", side);
    out->drops_end = strcmp(side, "right") == 0;
    if (out->most == -1)
        out->most = room_for_prompt(g, r);
    return OK;
}

enum status extensions_read(struct generation *g, const json_t *body, bool add_special, struct params *p,
                            struct extensions *out, struct error *err) {
    struct gyre_request *r = &p->fields.request;
    TRY(read_prompt_logprobs(g, body, &p->fields, err));
    TRY(read_ids_and_text(g, body, err));
    TRY(read_cut(g, body, r, &out->cut, err));
    TRY(jv_bool_or(body, WHERE, "echo", false, &g->echo, err));
    return jv_bool_or(body, WHERE, "add_special_tokens", add_special, &out->add_special, err);
}

void extensions_start(struct generation *g, const json_t *body, struct params *p, const struct prompt_ids *prompts,
                      int n_prompts) {
    struct beam_fields beams;
    struct error err;
    if (beam_fields_read(g, body, p, &beams, &err) != OK ||
        params_compile_structured(g, p, beams.width > 0 ? "use_beam_search" : NULL, &err) != OK) {
        generation_drop(g);
        api_reply_fault(g->x, &err);
    } else if (beams.width > 0)
        beam_search_start(g, &p->fields.request, &beams, prompts, n_prompts, p->n);
    else
        generation_start(g, &p->fields.request, prompts, n_prompts, p->n);
}
