/* request.c - requests: checked, copied, and found by their ids. */
#include "engine/engine.h"

#include "base/clock.h"
#include "engine/service.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

// ---- checking ---------------------------------------------------------------------------------------------------

static enum status check_ids(const char *field, const int32_t *ids, int64_t n, int32_t vocab_size, struct error *err) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab_size)
            return fail(err, ERR_ARG, "%s: id %d at %lld is not in the vocabulary of %d tokens", field, ids[i],
                        (long long)i, vocab_size);
    return OK;
}

static enum status check_range(const char *field, float x, float min, float max, struct error *err) {
    if (!(x >= min && x <= max)) // also NaN
        return fail(err, ERR_ARG, "%s: %g is not between %g and %g", field, (double)x, (double)min, (double)max);
    return OK;
}

static enum status check_sampling(const struct gyre_request *a, int32_t vocab_size, struct error *err) {
    TRY(check_range("temperature", a->temperature, 0, 1e6f, err));
    TRY(check_range("top_p", a->top_p, 0, 1, err));
    TRY(check_range("min_p", a->min_p, 0, 1, err));
    TRY(check_range("repetition_penalty", a->repetition_penalty, 1e-6f, 1e6f, err));
    TRY(check_range("presence_penalty", a->presence_penalty, -1e6f, 1e6f, err));
    TRY(check_range("frequency_penalty", a->frequency_penalty, -1e6f, 1e6f, err));
    if (a->top_k < 0)
        return fail(err, ERR_ARG, "top_k: %d is negative", a->top_k);
    for (size_t i = 0; i < a->n_logit_bias; i++) {
        TRY(check_ids("logit_bias", &a->logit_bias[i].token, 1, vocab_size, err));
        TRY(check_range("logit_bias", a->logit_bias[i].bias, -1e6f, 1e6f, err));
    }
    int most = MAX(vocab_size, MAX_TOP_LOGPROBS);
    if (a->n_top_logprobs < 0 || a->n_top_logprobs > most)
        return fail(err, ERR_ARG, "top_logprobs: %d is not between 0 and %d", a->n_top_logprobs, most);
    if (a->n_prompt_top_logprobs < 0 || a->n_prompt_top_logprobs > most)
        return fail(err, ERR_ARG, "prompt_logprobs: %d is not between 0 and %d", a->n_prompt_top_logprobs, most);
    if (a->n_allowed_ids > (size_t)vocab_size) // each step walks over them
        return fail(err, ERR_ARG, "allowed_token_ids: %zu ids, more than the vocabulary has", a->n_allowed_ids);
    TRY(check_ids("allowed_token_ids", a->allowed_ids, (int64_t)a->n_allowed_ids, vocab_size, err));
    for (size_t i = 0; i < a->n_bad_sequences; i++) {
        if (a->bad_sequences[i].n == 0)
            return fail(err, ERR_ARG, "bad_words: the one at %zu has no tokens", i);
        TRY(check_ids("bad_words", a->bad_sequences[i].tokens, (int64_t)a->bad_sequences[i].n, vocab_size, err));
    }
    return check_ids("stop_token_ids", a->stop_ids, (int64_t)a->n_stop_ids, vocab_size, err);
}

/* Why the context is as long as it is. */
static const char *context_reason(const struct gyre_info *info) {
    return info->max_model_len < info->model_max_len ? " (the model's is longer; see max_model_len and kv_cache_bytes)"
                                                     : "";
}

enum status request_check_room(int64_t n_prompt, int64_t max_tokens, const struct gyre_info *info, struct error *err) {
    int64_t room = info->max_model_len - n_prompt;
    if (room < 0 || (room == 0 && max_tokens != 0))
        return fail_field(err, ERR_ARG, "prompt",
                          "prompt is too long: %lld tokens%s, and this model's maximum context length is %lld tokens%s",
                          (long long)n_prompt, room == 0 ? " leave no room for an answer" : "",
                          (long long)info->max_model_len, context_reason(info));
    if (max_tokens > room)
        return fail_field(err, ERR_ARG, "max_tokens",
                          "this model's maximum context length is %lld tokens%s: a prompt of %lld leaves %lld, and the "
                          "answer may have %lld",
                          (long long)info->max_model_len, context_reason(info), (long long)n_prompt, (long long)room,
                          (long long)max_tokens);
    return OK;
}

static enum status check_length(const struct gyre_request *a, const struct gyre_info *info, struct error *err) {
    if (a->n_prompt < 1)
        return fail_field(err, ERR_ARG, "prompt", "the prompt is empty: it needs at least one token");
    if (a->max_tokens < -1)
        return fail(err, ERR_ARG, "max_tokens: %lld is negative", (long long)a->max_tokens);
    TRY(request_check_room(a->n_prompt, a->max_tokens, info, err));
    int64_t max_tokens = a->max_tokens == -1 ? info->max_model_len - a->n_prompt : a->max_tokens;
    if (a->min_tokens < 0 || a->min_tokens > max_tokens)
        return fail(err, ERR_ARG, "min_tokens: %lld is not between 0 and max_tokens, %lld", (long long)a->min_tokens,
                    (long long)max_tokens);
    if (a->score_from < 0)
        return fail(err, ERR_ARG, "score_from: %lld is negative", (long long)a->score_from);
    return OK;
}

static enum status check_pooling(const struct gyre_request *a, const struct gyre_info *info, struct error *err) {
    if (a->pooling == GYRE_POOL_NONE)
        return OK;
    if (a->pooling != GYRE_POOL_LAST && a->pooling != GYRE_POOL_MEAN)
        return fail(err, ERR_ARG, "pooling: %d is not known", a->pooling);
    if (info->hidden_size == 0)
        return fail(err, ERR_UNSUPPORTED, "pooling: this device gives no hidden states");
    if (a->max_tokens != 0)
        return fail(err, ERR_ARG, "pooling: max_tokens must be 0");
    return OK;
}

/* A caller's array that has a length and is not there. */
static enum status check_arrays(const struct gyre_request *a, struct error *err) {
    const struct {
        const char *name;
        const void *array;
        size_t n;
    } arrays[] = {{"prompt", a->prompt, (size_t)MAX(a->n_prompt, 0)},
                  {"logit_bias", a->logit_bias, a->n_logit_bias},
                  {"allowed_token_ids", a->allowed_ids, a->n_allowed_ids},
                  {"bad_words", a->bad_sequences, a->n_bad_sequences},
                  {"prediction", a->prediction, a->n_prediction},
                  {"stop_token_ids", a->stop_ids, a->n_stop_ids}};
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        if (arrays[i].n > 0 && !arrays[i].array)
            return fail(err, ERR_ARG, "%s: it is NULL, and its length is %zu", arrays[i].name, arrays[i].n);
    return OK;
}

static enum status check_request(const struct gyre *g, const struct gyre_request *a, struct error *err) {
    TRY(check_arrays(a, err));
    TRY(check_length(a, &g->info, err));
    TRY(check_ids("prompt", a->prompt, a->n_prompt, g->info.vocab_size, err));
    TRY(check_sampling(a, g->info.vocab_size, err));
    TRY(check_pooling(a, &g->info, err));
    if (a->n_prediction > MOST_PREDICTED)
        return fail(err, ERR_ARG, "prediction: %zu tokens, at most %d are allowed", a->n_prediction, MOST_PREDICTED);
    TRY(check_ids("prediction", a->prediction, (int64_t)a->n_prediction, g->info.vocab_size, err));
    if (a->tenant < 0 || a->tenant >= g->fair.n_tenants)
        return fail(err, ERR_ARG, "tenant: %d is not one of %d", a->tenant, g->fair.n_tenants);
    if (a->adapter < 0 || a->adapter > g->info.n_adapters)
        return fail(err, ERR_ARG, "adapter: %d is not one of %d", a->adapter, g->info.n_adapters);
    return OK;
}

// ---- copying ----------------------------------------------------------------------------------------------------

static void *copy_array(struct arena *arena, const void *from, size_t n, size_t size) {
    void *to = arena_calloc(arena, n, size);
    if (n > 0)
        memcpy(to, from, n * size);
    return to;
}

/* eos and stop_ids in one array, which min_tokens bans; the part of it that ends the answer is judged. */
static void copy_stops(struct request *r, const struct gyre_info *info) {
    const struct gyre_request *a = &r->asked;
    r->n_banned = info->n_eos + (int)a->n_stop_ids;
    r->banned = arena_calloc(&r->arena, (size_t)r->n_banned, sizeof *r->banned);
    memcpy(r->banned, info->eos, (size_t)info->n_eos * sizeof *r->banned);
    if (a->n_stop_ids > 0)
        memcpy(r->banned + info->n_eos, a->stop_ids, a->n_stop_ids * sizeof *r->banned);
    int skip = a->ignore_eos ? info->n_eos : 0;
    r->stops = r->banned + skip;
    r->n_stops = r->n_banned - skip;
}

static const struct bad_sequence *copy_bad_sequences(struct request *r, const struct gyre_request *asked) {
    struct bad_sequence *bad = arena_calloc(&r->arena, asked->n_bad_sequences, sizeof *bad);
    for (size_t i = 0; i < asked->n_bad_sequences; i++) {
        const struct gyre_bad_sequence *from = &asked->bad_sequences[i];
        bad[i] =
            (struct bad_sequence){copy_array(&r->arena, from->tokens, from->n, sizeof *from->tokens), (int32_t)from->n};
    }
    return bad;
}

static struct sample_params sampling_of(const struct request *r) {
    const struct gyre_request *a = &r->asked;
    return (struct sample_params){
        .temperature = a->temperature,
        .top_p = a->top_p,
        .min_p = a->min_p,
        .top_k = a->top_k,
        .repetition_penalty = a->repetition_penalty,
        .presence_penalty = a->presence_penalty,
        .frequency_penalty = a->frequency_penalty,
        .history = r->sequence.tokens,
        .n_prompt = r->n_prompt,
        .bias = (const struct logit_bias *)a->logit_bias,
        .n_bias = (int32_t)a->n_logit_bias,
        .allowed = a->allowed_ids,
        .n_allowed = (int32_t)a->n_allowed_ids,
        .n_bad = (int32_t)a->n_bad_sequences,
        .seed = a->seed,
        .target = -1,
        .n_top_logprobs = a->n_top_logprobs,
        .want_logprob = a->logprobs || a->n_top_logprobs > 0,
    };
}
_Static_assert(sizeof(struct gyre_logit_bias) == sizeof(struct logit_bias) &&
                   offsetof(struct gyre_logit_bias, bias) == offsetof(struct logit_bias, bias),
               "a bias is the same in and out of the house");

/* The salt is text that a client chose, of any length: only a keyed cryptographic hash keeps two of them apart. */
static struct prefix_salt salt_of(const struct gyre *g, const struct gyre_request *a) {
    struct prefix_salt salt = {.tenant = a->tenant, .adapter = a->adapter};
    const char *text = a->cache_salt;
    if (!text)
        return salt;
    _Static_assert(sizeof salt.word == crypto_generichash_BYTES_MIN, "16 bytes are the shortest digest there is");
    crypto_generichash((unsigned char *)salt.word, sizeof salt.word, (const unsigned char *)text, strlen(text),
                       g->salt_key, sizeof g->salt_key);
    salt.word[1] |= 1; // never the zero that means none
    return salt;
}

static void init_sequence(struct request *r, const struct gyre *g) {
    const struct gyre_request *a = &r->asked;
    r->n_prompt = (int32_t)a->n_prompt;
    sequence_init(&r->sequence, &r->arena, (int32_t)(a->n_prompt + a->max_tokens), g->program->n_groups,
                  g->info.block_size);
    r->sequence.owner = r;
    if (g->drafter.most_branches > 0)
        branches_init(&r->sequence, &r->arena, g->drafter.most_branches);
    r->sequence.salt = salt_of(g, a);
    memcpy(r->sequence.tokens, a->prompt, (size_t)a->n_prompt * sizeof *a->prompt);
    r->sequence.n_tokens = r->sequence.n_known = r->n_prompt;
    r->sequence.whole = a->pooling == GYRE_POOL_MEAN;
    if (a->pooling != GYRE_POOL_NONE)
        r->pooled = arena_calloc(&r->arena, (size_t)g->info.hidden_size, sizeof *r->pooled);
    if (a->pooling == GYRE_POOL_MEAN)
        r->sums = arena_calloc(&r->arena, (size_t)g->info.hidden_size, sizeof *r->sums);
    if (a->score_prompt)
        r->sequence.first_row = (int32_t)MIN(a->score_from, a->n_prompt);
}

/* Log-probabilities are of tokens that a row was computed for; and what changes probabilities could forbid what must
 * come. */
static bool may_jump(const struct gyre_request *a) {
    return !a->logprobs && a->n_top_logprobs == 0 && a->n_logit_bias == 0 && a->n_allowed_ids == 0 &&
           a->n_bad_sequences == 0 && !a->score_prompt && !a->want_last_logits;
}

/* Its first mask is made here, on the caller's thread. */
static enum status open_constraint(struct request *r, const struct gyre *g, struct error *err) {
    const struct gyre_request *a = &r->asked;
    if (!a->grammar || a->max_tokens == 0)
        return OK;
    r->constraint = arena_calloc(&r->arena, 1, sizeof *r->constraint);
    struct constraint_ask ask = {.grammar = a->grammar,
                                 .tokens = r->sequence.tokens,
                                 .n_prompt = r->n_prompt,
                                 .vocab_size = g->info.vocab_size,
                                 .eos = r->banned,
                                 .n_eos = g->info.n_eos,
                                 .stops = r->banned + g->info.n_eos,
                                 .n_stops = r->n_banned - g->info.n_eos,
                                 .ignores_eos = a->ignore_eos,
                                 .jumps = may_jump(a),
                                 .most_guesses = g->drafter.guess || a->n_prediction > 0 ? MOST_GUESSES : 0};
    return constraint_open(r->constraint, &ask, &r->arena, err);
}

enum status request_new(const struct gyre *g, const struct gyre_request *asked, struct request **out,
                        struct error *err) {
    *out = NULL;
    TRY(check_request(g, asked, err));
    struct request *r = *out = xcalloc(1, sizeof *r); // known at once: what follows may run out of memory
    struct gyre_request *a = &r->asked;
    *a = *asked;
    if (a->max_tokens == -1)
        a->max_tokens = g->info.max_model_len - a->n_prompt;
    a->logit_bias = copy_array(&r->arena, asked->logit_bias, a->n_logit_bias, sizeof *a->logit_bias);
    init_sequence(r, g);
    copy_stops(r, &g->info);
    a->prompt = r->sequence.tokens;
    a->stop_ids = NULL;   // in r->banned
    a->cache_salt = NULL; // in the sequence
    a->allowed_ids = copy_array(&r->arena, asked->allowed_ids, a->n_allowed_ids, sizeof *a->allowed_ids);
    r->sample = sampling_of(r);
    r->sample.bad = copy_bad_sequences(r, asked);
    a->bad_sequences = NULL; // in r->sample
    r->n_vocab = g->info.vocab_size;
    r->prediction = (struct prediction){.n = (int32_t)a->n_prediction, .n_seen = r->n_prompt};
    r->prediction.tokens = copy_array(&r->arena, asked->prediction, a->n_prediction, sizeof *a->prediction);
    a->prediction = NULL; // in r->prediction
    r->submitted_us = clock_us();
    enum status st = open_constraint(r, g, err);
    a->grammar = NULL; // in r->constraint
    if (st == OK)
        return OK;
    request_free(r);
    *out = NULL;
    return st;
}

void request_free(struct request *r) {
    if (r->constraint)
        constraint_close(r->constraint);
    arena_release(&r->arena);
    free(r);
}

// ---- ids --------------------------------------------------------------------------------------------------------

static struct request **bucket_of(const struct request_table *t, uint64_t id) {
    return (struct request **)&t->buckets[id % REQUEST_BUCKETS];
}

void request_table_add(struct request_table *t, struct request *r) {
    r->id = ++t->last_id;
    r->next_in_bucket = *bucket_of(t, r->id);
    *bucket_of(t, r->id) = r;
}

struct request *request_table_find(const struct request_table *t, uint64_t id) {
    struct request *r = *bucket_of(t, id);
    while (r && r->id != id)
        r = r->next_in_bucket;
    return r;
}

void request_table_remove(struct request_table *t, struct request *r) {
    struct request **at = bucket_of(t, r->id);
    while (*at != r)
        at = &(*at)->next_in_bucket;
    *at = r->next_in_bucket;
}
