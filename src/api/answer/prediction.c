/* prediction.c - see prediction.h. */
#include "api/answer/prediction.h"

#include "engine/draft/prediction.h"

static enum status append_parts(const json_t *parts, struct buf *text, struct error *err) {
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part) {
        const char *type, *piece;
        TRY(jv_string_or(part, "prediction.content", "type", "text", &type, err));
        if (strcmp(type, "text") != 0)
            return fail(err, ERR_ARG, "prediction.content: a part is of type \"%.40s\", it must be text", type);
        TRY(jv_string(part, "prediction.content", "text", &piece, err));
        buf_str(text, str_of(piece));
    }
    return OK;
}

static enum status read_text(const json_t *prediction, struct buf *text, struct error *err) {
    const json_t *content = json_object_get(prediction, "content");
    const char *type;
    TRY(jv_string_or(prediction, "prediction", "type", "content", &type, err));
    if (strcmp(type, "content") != 0)
        return fail(err, ERR_ARG, "prediction: \"type\" is \"%.40s\", it must be \"content\"", type);
    if (json_is_string(content))
        buf_append(text, json_string_value(content), json_string_length(content));
    else if (json_is_array(content))
        return append_parts(content, text, err);
    else
        return fail(err, ERR_ARG, "prediction: \"content\" must be a text or an array of texts");
    return OK;
}

/* The most tokens that can be guessed: an answer's. */
static size_t most_tokens(const struct api *api) {
    return MIN((size_t)service_info(api->service)->max_model_len, (size_t)MOST_PREDICTED);
}

/* Without what stands behind the longest answer, or is more than is tokenized at once; characters stay whole. */
static struct str cut(const struct api *api, struct str text) {
    size_t most = MIN(most_tokens(api) * api->longest_token, api_most_text(api));
    if (text.len <= most)
        return text;
    text.len = most;
    text.len -= utf8_incomplete_tail(text);
    return text;
}

static enum status encode(struct api *api, struct str text, struct request_fields *f, struct error *err) {
    struct token_ids ids = {0};
    enum status st = api_tokenize(api, cut(api, text), 0, &ids, err);
    size_t n = MIN(ids.n, most_tokens(api));
    int32_t *tokens = arena_calloc(&f->arena, n, sizeof *tokens);
    if (st == OK && n > 0)
        memcpy(tokens, ids.ids, n * sizeof *tokens);
    f->request.prediction = tokens;
    f->request.n_prediction = st == OK ? n : 0;
    token_ids_release(&ids);
    return st;
}

enum status prediction_read(struct api *api, const json_t *body, struct request_fields *f, struct error *err) {
    struct buf text = {0};
    json_t *prediction;
    TRY(jv_object_or_null(body, "request", "prediction", &prediction, err));
    if (!prediction)
        return OK;
    enum status st = read_text(prediction, &text, err);
    if (st == OK)
        st = encode(api, buf_view(&text), f, err);
    buf_release(&text);
    return st;
}
