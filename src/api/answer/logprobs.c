/* logprobs.c - see logprobs.h. */
#include "api/answer/logprobs.h"

#include "text/regex/unicode.h"

#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

static void write_number(float logprob, struct buf *out) {
    if (isfinite(logprob))
        buf_printf(out, "%.6g", (double)logprob);
    else
        buf_str(out, STR("-9999.0")); // JSON has no infinity; vLLM's floor
}

/* How the request wants a token to be called. */
struct namer {
    const struct tokenizer *tok;
    bool by_id;         // "token_id:123"
    bool begins;        // the text: a token is called by what it is there
    struct buf scratch; // the last name, as bytes
};

static struct namer namer_of(const struct choice *c) {
    return (struct namer){.tok = c->generation->api->options.tokenizer, .by_id = c->generation->ids_as_tokens};
}

static void write_token(struct namer *names, int32_t id, struct buf *out) {
    buf_clear(&names->scratch);
    if (names->by_id)
        buf_printf(&names->scratch, "token_id:%d", id);
    else
        (names->begins ? tokenizer_first_token_bytes : tokenizer_token_bytes)(names->tok, id, &names->scratch);
    buf_json_string(out, buf_view(&names->scratch));
}

static void write_bytes(struct namer *names, int32_t id, struct buf *out) {
    buf_clear(&names->scratch);
    (names->begins ? tokenizer_first_token_bytes : tokenizer_token_bytes)(names->tok, id, &names->scratch);
    for (size_t i = 0; i < names->scratch.len; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)names->scratch.ptr[i]);
}

/* {"token","logprob","bytes" */
static void write_chat_token(struct namer *names, int32_t id, float logprob, struct buf *out) {
    buf_str(out, STR("{\"token\":"));
    write_token(names, id, out);
    buf_str(out, STR(",\"logprob\":"));
    write_number(logprob, out);
    buf_str(out, STR(",\"bytes\":["));
    write_bytes(names, id, out);
    buf_push(out, ']');
}

void logprobs_write_tokens(const struct choice *c, int32_t from, int32_t to, struct buf *out) {
    const struct answer *a = c->answer;
    struct namer names = namer_of(c);
    buf_push(out, '[');
    for (int32_t i = from; i < to; i++) {
        if (i > from)
            buf_push(out, ',');
        names.begins = i == c->first_text;
        write_chat_token(&names, a->tokens[i], a->logprobs[i], out);
        buf_str(out, STR(",\"top_logprobs\":["));
        for (int k = 0; k < a->n_top; k++) {
            if (k)
                buf_push(out, ',');
            write_chat_token(&names, a->top_tokens[(int64_t)i * a->n_top + k],
                             a->top_logprobs[(int64_t)i * a->n_top + k], out);
            buf_push(out, '}');
        }
        buf_str(out, STR("]}"));
    }
    buf_push(out, ']');
    buf_release(&names.scratch);
}

void logprobs_write_chat(const struct choice *c, struct buf *out) {
    buf_str(out, STR("{\"content\":"));
    logprobs_write_tokens(c, c->n_written, c->n_seen, out);
    buf_str(out, STR(",\"refusal\":null}"));
}

/* The four arrays of completions, filled side by side. */
struct columns {
    struct namer names;
    struct buf tokens, logprobs, tops, offsets, key;
    uint32_t *places; // [n_places] of the keys of one token, by hash: 1 and where it begins behind the first; 0: none
    size_t n_places;  // a power of two
};

/* A token with what is most probable in its place. */
struct scored {
    int32_t id;
    float logprob; // NAN: nothing is known of it (the first of a prompt)
    const int32_t *top_ids;
    const float *top_logprobs;
    int n_top;
    bool begins;   // the text
    size_t offset; // in characters
};

/* Room for n keys, none of them taken. */
static void clear_places(struct columns *k, int n) {
    size_t wanted = 8;
    while (wanted < 2 * (size_t)n)
        wanted *= 2;
    if (wanted != k->n_places)
        k->places = xrealloc(k->places, wanted, sizeof *k->places);
    k->n_places = wanted;
    memset(k->places, 0, wanted * sizeof *k->places);
}

/* Different ids may have the same text (bytes that are no characters alone): the most probable stands for all. Takes
 * the place of k->key, which begins at the end of k->tops, if it is new. */
static bool has_key(struct columns *k, size_t start) {
    size_t at = XXH3_64bits(k->key.ptr, k->key.len) & (k->n_places - 1);
    for (; k->places[at]; at = (at + 1) & (k->n_places - 1)) {
        const char *other = k->tops.ptr + start + k->places[at] - 1; // whole, as another follows it
        if (k->tops.len - start - k->places[at] >= k->key.len && memcmp(other, k->key.ptr, k->key.len) == 0)
            return true;
    }
    k->places[at] = (uint32_t)(k->tops.len - start + (k->tops.len > start) + 1);
    return false;
}

static void add_entry(struct columns *k, size_t start, int32_t id, float logprob) {
    buf_clear(&k->key);
    write_token(&k->names, id, &k->key);
    buf_push(&k->key, ':');
    if (has_key(k, start))
        return;
    if (k->tops.len > start)
        buf_push(&k->tops, ',');
    buf_str(&k->tops, buf_view(&k->key));
    write_number(logprob, &k->tops);
}

/* Of the token's text: another id with the same text may be more probable than the token itself. */
static float best_of_text(struct columns *k, const struct scored *t) {
    struct buf own = {0};
    float best = t->logprob;
    write_token(&k->names, t->id, &own);
    for (int i = 0; i < t->n_top && t->top_logprobs[i] > t->logprob && best == t->logprob; i++) {
        buf_clear(&k->key);
        write_token(&k->names, t->top_ids[i], &k->key);
        if (str_eq(buf_view(&k->key), buf_view(&own)))
            best = t->top_logprobs[i];
    }
    buf_release(&own);
    return best;
}

/* The token first, as vLLM has it, then the most probable ones: of equal ones a client that looks for the largest takes
 * the first. */
static void add_top(struct columns *k, const struct scored *t) {
    buf_push(&k->tops, '{');
    size_t start = k->tops.len;
    clear_places(k, t->n_top + 1);
    add_entry(k, start, t->id, best_of_text(k, t));
    for (int i = 0; i < t->n_top; i++)
        add_entry(k, start, t->top_ids[i], t->top_logprobs[i]);
    buf_push(&k->tops, '}');
}

static void add_token(struct columns *k, const struct scored *t) {
    struct buf *all[] = {&k->tokens, &k->logprobs, &k->tops, &k->offsets};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i]->len > 0)
            buf_push(all[i], ',');
    k->names.begins = t->begins;
    write_token(&k->names, t->id, &k->tokens);
    buf_printf(&k->offsets, "%zu", t->offset);
    if (isnan(t->logprob)) {
        buf_str(&k->logprobs, STR("null"));
        buf_str(&k->tops, STR("null"));
        return;
    }
    write_number(t->logprob, &k->logprobs);
    add_top(k, t);
}

static void add_prompt(struct columns *k, const struct choice *c, const struct echo *echo) {
    const struct answer *p = c->scored;
    int64_t top = c->answer->n_prompt_top; // the same for all choices
    for (int32_t i = 0; i < c->n_prompt; i++)
        add_token(k, &(struct scored){.id = c->prompt[i],
                                      .logprob = p->prompt_logprobs[i],
                                      .top_ids = p->prompt_top_tokens + i * top,
                                      .top_logprobs = p->prompt_top_logprobs + i * top,
                                      .n_top = MIN(c->answer->n_prompt_top, c->generation->n_top),
                                      .begins = i == echo->first,
                                      .offset = (size_t)echo->begins.ids[i]});
}

/* Where a token of the answer begins; without text (detokenize: false) all of them at the same place. */
static size_t offset_of(const struct choice *c, int32_t i) {
    return c->n_echoed + ((size_t)i < c->begins.n ? (size_t)c->begins.ids[i] : 0);
}

static void add_answer(struct columns *k, const struct choice *c) {
    const struct answer *a = c->answer;
    int64_t top = a->n_top;
    for (int32_t i = c->n_written; i < c->n_seen; i++)
        add_token(k, &(struct scored){.id = a->tokens[i],
                                      .logprob = a->logprobs[i],
                                      .top_ids = a->top_tokens + i * top,
                                      .top_logprobs = a->top_logprobs + i * top,
                                      .n_top = a->n_top,
                                      .begins = i == c->first_text,
                                      .offset = offset_of(c, i)});
}

void logprobs_write_completion(struct choice *c, const struct echo *echo, struct buf *out) {
    struct columns k = {.names = namer_of(c)};
    if (echo) {
        add_prompt(&k, c, echo);
        c->n_echoed = utf8_count(buf_view(&echo->text));
    }
    add_answer(&k, c);
    buf_printf(out, "{\"tokens\":[%.*s],\"token_logprobs\":[%.*s],\"top_logprobs\":[%.*s],\"text_offset\":[%.*s]}",
               STR_ARG(buf_view(&k.tokens)), STR_ARG(buf_view(&k.logprobs)), STR_ARG(buf_view(&k.tops)),
               STR_ARG(buf_view(&k.offsets)));
    free(k.places);
    struct buf *all[] = {&k.tokens, &k.logprobs, &k.tops, &k.offsets, &k.key, &k.names.scratch};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        buf_release(all[i]);
}

static void write_ranked(struct namer *names, int32_t id, float logprob, int32_t rank, struct buf *out) {
    buf_printf(out, "\"%d\":{\"logprob\":", id);
    write_number(logprob, out);
    buf_printf(out, ",\"rank\":%d,\"decoded_token\":", rank);
    write_token(names, id, out);
    buf_push(out, '}');
}

void logprobs_write_prompt(const struct choice *c, struct buf *out) {
    const struct answer *a = c->scored;
    if (c->generation->n_prompt_logprobs < 0) {
        buf_str(out, STR("null"));
        return;
    }
    struct namer names = namer_of(c);
    names.by_id = false; // the key is the id
    int32_t first = echo_first_text(names.tok, c->prompt, c->n_prompt);
    buf_str(out, STR("[null"));
    for (int32_t i = 1; i < c->n_prompt; i++) {
        names.begins = i == first;
        buf_str(out, STR(",{"));
        write_ranked(&names, c->prompt[i], a->prompt_logprobs[i], a->prompt_ranks[i], out);
        for (int k = 0; k < c->generation->n_prompt_logprobs; k++) {
            int64_t at = (int64_t)i * a->n_prompt_top + k;
            if (a->prompt_top_tokens[at] == c->prompt[i])
                continue;
            buf_push(out, ',');
            write_ranked(&names, a->prompt_top_tokens[at], a->prompt_top_logprobs[at], k + 1, out);
        }
        buf_push(out, '}');
    }
    buf_push(out, ']');
    buf_release(&names.scratch);
}

void logprobs_write_ids(const int32_t *ids, int32_t n, struct buf *out) {
    buf_push(out, '[');
    for (int32_t i = 0; i < n; i++)
        buf_printf(out, "%s%d", i ? "," : "", ids[i]);
    buf_push(out, ']');
}
