/* truncate.c - "truncation": "auto": a conversation that is longer than the context loses turns from its middle.
 *
 *     [system ...] [user, assistant, tool ...] [user, assistant ...] ... [user]
 *      stay         first turn: goes last       go, oldest first           stays
 *
 * Whole turns, as templates want a user's message first and answers behind calls. How many must go is searched for by
 * halves, rendering each time: a conversation of 1,000 turns is rendered 11 times. */
#include "api/responses/responses.h"

static bool has_role(const json_t *message, const char *role) {
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

struct turns {
    const json_t *messages;
    size_t n_head; // messages before the first turn
    size_t *begin; // [n + 1], of each turn; the end of the last
    size_t n;
};

static void find_turns(const json_t *messages, struct arena *arena, struct turns *t) {
    size_t n = json_array_size(messages), head = 0;
    while (head < n && (has_role(json_array_get(messages, head), "system") ||
                        has_role(json_array_get(messages, head), "developer")))
        head++;
    *t = (struct turns){.messages = messages, .n_head = head, .begin = arena_calloc(arena, n + 1, sizeof *t->begin)};
    for (size_t i = head; i < n; i++)
        if (i == head || has_role(json_array_get(messages, i), "user"))
            t->begin[t->n++] = i;
    t->begin[t->n] = n;
}

/* Whether the turn stays when n_dropped of them go: the second, third ... and at last the first. */
static bool stays(const struct turns *t, size_t turn, size_t n_dropped) {
    if (turn + 1 == t->n)
        return true;
    return turn == 0 ? n_dropped + 1 < t->n : turn > n_dropped;
}

/* Deep copies: rendering makes them fit for the template. */
static json_t *without(const struct turns *t, size_t n_dropped) {
    json_t *left = json_array();
    for (size_t i = 0; i < t->n_head; i++)
        json_array_append_new(left, json_deep_copy(json_array_get(t->messages, i)));
    for (size_t k = 0; k < t->n; k++)
        for (size_t i = t->begin[k]; i < t->begin[k + 1] && stays(t, k, n_dropped); i++)
            json_array_append_new(left, json_deep_copy(json_array_get(t->messages, i)));
    return left;
}

/* A prompt that could not be made counts as one that does not fit: too much text is one of the reasons. */
static bool fits(struct generation *g, json_t *context, const struct turns *t, size_t n_dropped, int64_t room,
                 struct prompt_ids *out, enum status *st, struct error *err) {
    json_object_set_new(context, "messages", without(t, n_dropped));
    *st = chat_prompt(g, &(struct chat_ask){context, CHAT_ASKS, NULL}, out, err);
    return *st == OK && (int64_t)out->n <= room;
}

enum status responses_truncated_prompt(struct generation *g, json_t *context, int64_t max_tokens,
                                       struct prompt_ids *out, struct error *err) {
    int64_t length = service_info(g->api->service)->max_model_len, answer = max_tokens > 0 ? max_tokens : 1;
    json_t *messages = json_incref(json_object_get(context, "messages"));
    struct turns t;
    enum status st;
    find_turns(messages, &g->x->arena, &t);
    size_t low = 0, high = t.n > 0 ? t.n - 1 : 0; // so many dropped are too few; as many as can be
    if (!fits(g, context, &t, 0, length - answer, out, &st, err) && high > 0) {
        int64_t room = length - (max_tokens > 0 ? max_tokens : length / 4); // for an answer of some length
        while (high - low > 1) {
            size_t middle = low + (high - low) / 2;
            *(fits(g, context, &t, middle, room, out, &st, err) ? &high : &low) = middle;
        }
        fits(g, context, &t, high, room, out, &st, err);
    }
    json_decref(messages);
    return st;
}
