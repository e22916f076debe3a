/* bad_words.c - see bad_words.h. */
#include "api/answer/bad_words.h"

/* A word's tokens; n 0: none. */
static enum status encode_word(struct api *api, const char *word, bool after_space, struct arena *arena,
                               struct gyre_bad_sequence *out, struct error *err) {
    struct buf text = {0};
    struct token_ids ids = {0};
    while (*word == ' ')
        word++;
    if (after_space)
        buf_push(&text, ' ');
    buf_str(&text, str_of(word));
    enum status st = api_tokenize(api, buf_view(&text), 0, &ids, err);
    int32_t *tokens = arena_calloc(arena, ids.n, sizeof *tokens);
    if (st == OK && ids.n > 0)
        memcpy(tokens, ids.ids, ids.n * sizeof *tokens);
    *out = (struct gyre_bad_sequence){tokens, ids.n};
    token_ids_release(&ids);
    buf_release(&text);
    return st;
}

static enum status read_word(struct api *api, const json_t *value, struct request_fields *f,
                             struct gyre_bad_sequence *out, size_t *n, struct error *err) {
    struct gyre_bad_sequence *first = &out[*n], *inside = first + 1;
    if (!json_is_string(value) || json_string_length(value) == 0)
        return fail(err, ERR_ARG, "bad_words: it must be an array of strings, none of them empty");
    TRY(encode_word(api, json_string_value(value), false, &f->arena, first, err));
    TRY(encode_word(api, json_string_value(value), true, &f->arena, inside, err));
    if (first->n == 0)
        return fail(err, ERR_ARG, "bad_words: \"%.40s\" has no tokens", json_string_value(value));
    bool same = inside->n == first->n && memcmp(inside->tokens, first->tokens, first->n * sizeof *first->tokens) == 0;
    *n += same ? 1 : 2;
    return OK;
}

enum status bad_words_read(struct api *api, const json_t *body, struct request_fields *f, struct error *err) {
    json_t *array, *word;
    size_t i, n = 0, most = api->options.limits.max_logit_bias;
    TRY(jv_array_or_null(body, "request", "bad_words", &array, err));
    if (json_array_size(array) > most)
        return fail(err, ERR_ARG, "bad_words: %zu entries, at most %zu are allowed", json_array_size(array), most);
    struct gyre_bad_sequence *out = arena_calloc(&f->arena, 2 * json_array_size(array), sizeof *out);
    json_array_foreach(array, i, word) TRY(read_word(api, word, f, out, &n, err));
    f->request.bad_sequences = out;
    f->request.n_bad_sequences = n;
    return OK;
}
