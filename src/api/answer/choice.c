/* choice.c - see choice.h. */
#include "api/answer/choice.h"

void choice_release(struct choice *c) {
    detokenizer_free(c->detokenizer);
    stop_filter_release(&c->stop);
    tool_parser_free(c->parser);
    tool_calls_release(&c->calls);
    buf_release(&c->content);
    buf_release(&c->reasoning);
    token_ids_release(&c->begins);
    if (c->answer && !c->generation->search)
        service_release(c->generation->api->service, c->answer);
}

static void hear_part(void *arg, const struct tool_event *e) {
    struct choice *c = arg;
    const struct generation *g = c->generation;
    if (e->kind == TOOL_EVENT_CONTENT)
        buf_str(&c->content, e->text);
    else if (e->kind == TOOL_EVENT_REASONING)
        buf_str(&c->reasoning, e->text);
    else if (e->kind != TOOL_EVENT_BLANKS)
        tool_calls_take(&c->calls, g->format, &g->tools, e);
}

void choice_init(struct choice *c, struct generation *g, int index, struct prompt_ids prompt) {
    *c = (struct choice){.generation = g,
                         .index = index,
                         .prompt = prompt.ids,
                         .n_prompt = (int32_t)prompt.n,
                         .prompt_text = prompt.text,
                         .first_text = -1};
    stop_filter_init(&c->stop, g->stops, g->n_stops);
    const struct tool_parser_options parts = {
        .tools = g->tools.tools, .opened = g->opened, .told = hear_part, .arg = c};
    if (g->format)
        c->parser = tool_parser_open(g->format, &parts);
}

void choice_begin_texts(struct generation *g) {
    for (int i = 0; i < g->n_choices && !g->no_text; i++) {
        struct choice *c = &g->choices[i], *before = i > 0 && c[-1].prompt == c->prompt ? c - 1 : NULL;
        if (before) {
            c->detokenizer = detokenizer_copy(before->detokenizer);
            continue;
        }
        c->detokenizer = detokenizer_open(g->api->options.tokenizer, g->detokenize_flags);
        const struct token_ids *marks = &g->api->marks[g->tools.tools != NULL];
        if (g->format == g->api->format) // of another template the tokens are not known
            detokenizer_show(c->detokenizer, marks->ids, marks->n);
        struct error err;
        if (detokenizer_begin_after(c->detokenizer, c->prompt, (size_t)c->n_prompt, &err) != OK)
            g->failed = err;
    }
}

/* Text that may be shown goes to reasoning, content or calls. */
static void pass_on(struct choice *c, const struct buf *text) {
    if (c->parser)
        tool_parser_feed(c->parser, buf_view(text));
    else
        buf_str(&c->content, buf_view(text));
}

static enum tool_place place_of(const struct choice *c) {
    return c->parser ? tool_parser_place(c->parser) : TOOL_IN_TEXT;
}

/* What comes before a stop string may be shown, and the string itself if that was asked. */
static void stop_or_show(struct choice *c, const struct buf *text, struct buf *shown) {
    const struct generation *g = c->generation;
    c->stopped = stop_filter_feed(&c->stop, buf_view(text), shown);
    if (!c->stopped)
        return;
    c->stop_string = g->stops[stop_filter_met(&c->stop)];
    if (g->include_stop)
        buf_str(shown, str_of(c->stop_string));
}

/* Feeds a token to its text, and notes where it begins, and whether the text begins with it. */
static enum status feed(struct choice *c, int32_t i, bool has_text, struct buf *piece) {
    const struct generation *g = c->generation;
    if (g->no_text)
        return OK;
    bool at_start = detokenizer_at_start(c->detokenizer);
    size_t place = detokenizer_place(c->detokenizer);
    if (has_text) {
        TRY(detokenizer_feed(c->detokenizer, c->answer->tokens[i], piece, &c->generation->failed));
        place = detokenizer_last_place(c->detokenizer);
    }
    if (at_start && !detokenizer_at_start(c->detokenizer))
        c->first_text = i;
    if (g->logprobs)
        token_ids_push(&c->begins, (int32_t)place);
    return OK;
}

static void read_token(struct choice *c, int32_t i, struct buf *piece, struct buf *shown) {
    struct generation *g = c->generation;
    struct answer *a = c->answer;
    buf_clear(piece);
    buf_clear(shown);
    if (place_of(c) == TOOL_IN_REASONING)
        c->n_reasoning++;
    // The token that ends an answer is no part of its text (an end-of-sequence token may have one).
    bool is_end = i >= atomic_load_explicit(&a->n_text, memory_order_relaxed) && !g->include_stop;
    if (feed(c, i, !is_end, piece) != OK)
        return;
    if (i < g->min_tokens) {
        pass_on(c, piece);
        return;
    }
    stop_or_show(c, piece, shown);
    pass_on(c, shown);
}

void choice_read_tokens(struct choice *c) {
    struct api_thread *t = &c->generation->api->threads[c->generation->thread];
    int32_t n = atomic_load_explicit(&c->answer->n_tokens, memory_order_acquire);
    if (n == c->answer->capacity && !c->answer->done)
        n--; // its end is on the way, so that both are one chunk
    for (; c->n_seen < n && !c->stopped && c->generation->failed.status == OK; c->n_seen++) {
        read_token(c, c->n_seen, &t->piece, &t->shown);
        if (place_of(c) != TOOL_IN_TEXT)
            c->n_before_text = c->n_seen + 1;
    }
}

static void read_rest(struct choice *c) {
    struct buf piece = {0}, shown = {0};
    if (!c->stopped && c->detokenizer)
        detokenizer_finish(c->detokenizer, &piece, &c->generation->failed);
    if (!c->stopped && c->n_seen <= c->generation->min_tokens) // what the last token held back is text of it
        buf_str(&shown, buf_view(&piece));
    else if (!c->stopped)
        stop_or_show(c, &piece, &shown);
    if (!c->stopped)
        stop_filter_finish(&c->stop, &shown);
    pass_on(c, &shown);
    bool by_itself = !c->stopped && c->answer->finish == GYRE_STOP;
    if (c->parser)
        tool_parser_finish(c->parser, by_itself ? TOOL_TEXT_ENDED : TOOL_TEXT_CUT);
    buf_release(&piece);
    buf_release(&shown);
}

static const char *finish_of(const struct choice *c) {
    if (c->stopped)
        return "stop";
    switch (c->answer->finish) {
    case GYRE_STOP: return c->calls.n > 0 ? "tool_calls" : "stop";
    case GYRE_LENGTH: return "length";
    case GYRE_CANCELLED:
    case GYRE_FAILED: break;
    }
    return "abort";
}

void choice_end(struct choice *c) {
    struct generation *g = c->generation;
    read_rest(c);
    c->ended = true;
    c->finish_reason = finish_of(c);
    c->n_cached = c->answer->timing.n_reused;
    c->n_predicted_right = c->answer->timing.n_predicted_right;
    c->n_predicted_wrong = c->answer->timing.n_predicted_wrong;
    if (c->answer->finish == GYRE_FAILED)
        fail(&g->failed, c->answer->error_of_request ? ERR_ARG : ERR_DEVICE, "%s",
             c->answer->error_of_request ? c->answer->error : api_public_text(c->answer->error));
    if (g->dialect->abort_fails && !c->stopped && c->answer->finish == GYRE_CANCELLED && g->failed.status == OK) {
        g->aborted = true;
        fail(&g->failed, ERR_IO, "the request was aborted");
    }
    g->n_ended++;
}
