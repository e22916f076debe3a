/* thinking.c - see thinking.h.
 *
 * Tokens are looked at once they are known, so what an answer gives does not depend on the steps that it came in. The
 * token that ends the thought is drawn among itself alone: it has a row, and a log-probability. A row whose last token
 * is only expected may follow the model's own end, so its step is late, as that of a grammar (constrain.c). With a
 * grammar the end comes where that allows it, which is not within a character. */
#include "engine/engine.h"

#include <string.h>

enum { MOST_BEGIN = 16 };

enum status engine_thinking_init(struct request *r, int32_t n_vocab, struct error *err) {
    const struct gyre_thinking *a = r->asked.thinking;
    if (!a)
        return OK;
    if (a->most_tokens < 0)
        return fail(err, ERR_ARG, "thinking: most_tokens is %lld", (long long)a->most_tokens);
    if (a->n_begin > MOST_BEGIN || (a->n_begin > 0 && !a->begin))
        return fail(err, ERR_ARG, "thinking: it begins with %zu tokens, at most %d are allowed", a->n_begin,
                    MOST_BEGIN);
    for (size_t i = 0; i <= a->n_begin; i++) {
        int32_t id = i < a->n_begin ? a->begin[i] : a->end;
        if (id < 0 || id >= n_vocab)
            return fail(err, ERR_ARG, "thinking: token %d is not in the vocabulary of %d", id, n_vocab);
    }
    int32_t *begin = arena_calloc(&r->arena, a->n_begin + 1, sizeof *begin);
    if (a->n_begin > 0)
        memcpy(begin, a->begin, a->n_begin * sizeof *begin);
    r->thinking = (struct thinking){.is_bound = true,
                                    .begin = begin,
                                    .n_begin = (int)a->n_begin,
                                    .end = a->end,
                                    .left = (int32_t)MIN(a->most_tokens, INT32_MAX / 2),
                                    .begun = a->is_open ? r->n_prompt : -1,
                                    .n_seen = r->n_prompt};
    r->asked.thinking = NULL; // in r->thinking
    return OK;
}

static bool begins_behind(const struct thinking *t, const int32_t *tokens, int32_t n) {
    return t->n_begin > 0 && n >= t->n_begin &&
           memcmp(tokens + n - t->n_begin, t->begin, (size_t)t->n_begin * sizeof *tokens) == 0;
}

static void look(struct request *r) {
    struct thinking *t = &r->thinking;
    const int32_t *tokens = r->sequence.tokens;
    for (; t->n_seen < r->sequence.n_known; t->n_seen++) {
        if (t->begun >= 0 && tokens[t->n_seen] == t->end) {
            t->left = MAX(t->left - (t->n_seen - t->begun), 0);
            t->begun = -1;
        } else if (t->begun < 0 && begins_behind(t, tokens, t->n_seen + 1)) {
            t->begun = t->n_seen + 1;
        }
    }
}

/* From which position on the end must come, as far as is known; one that may begin with the next token counts. */
static int32_t due_at(const struct request *r) {
    const struct thinking *t = &r->thinking;
    if (t->begun >= 0)
        return t->begun + t->left;
    return t->n_begin > 0 ? r->sequence.n_known + 1 + t->left : INT32_MAX;
}

static bool draws(const struct request *r, int32_t position) {
    return r->thinking.is_bound && r->asked.max_tokens > 0 && position >= r->sequence.n_known - 1;
}

bool engine_thinking_is_late(struct request *r, int32_t position) {
    if (!draws(r, position) || !sequence_expects(&r->sequence, position))
        return false;
    look(r);
    return position + 1 >= due_at(r);
}

void engine_end_thinking(struct request *r, int32_t position, struct sample_params *p) {
    const struct thinking *t = &r->thinking;
    if (r->ended || !draws(r, position))
        return;
    look(r);
    bool is_due = t->begun >= 0 && position == r->sequence.n_known - 1 && position + 1 >= due_at(r);
    bool is_allowed = p->mask ? p->mask[t->end / 32] >> (t->end % 32) & 1 : true;
    bool is_forced = r->constraint && r->constraint->n_forced > 0; // by the grammar, which has its own
    if (!is_due || !is_allowed || is_forced)
        return;
    p->mask = NULL;
    p->n_banned = p->n_bad = 0;
    p->allowed = &t->end, p->n_allowed = 1;
}

bool engine_thinking_may_end(const struct request *r, int n) {
    return r->thinking.is_bound && due_at(r) - r->sequence.n_tokens <= n;
}
