/* tokenize.c - POST /tokenize and /detokenize, GET /tokenizer_info. */
#include "api/chat/chat_prompt.h"
#include "api/endpoints.h"

#include <stdlib.h>

/* "prompt" or "content": a text. */
static enum status read_text(const json_t *body, struct buf *out, struct error *err) {
    const json_t *text = json_object_get(body, "prompt");
    if (!text)
        text = json_object_get(body, "content");
    if (!json_is_string(text))
        return fail(err, ERR_ARG, "prompt: it must be a string, or there must be \"messages\"");
    buf_append(out, json_string_value(text), json_string_length(text));
    return OK;
}

static enum status render(struct http_exchange *x, const json_t *body, struct buf *out, struct error *err) {
    struct chat_ask ask = {0};
    enum status st = chat_ask_read(body, &ask, err);
    if (st == OK)
        st = chat_render(x, &ask, NULL, out, err);
    chat_ask_release(&ask);
    return st;
}

static void write_tokens(struct api *api, const struct token_ids *ids, bool strings, struct buf *out) {
    buf_printf(out, "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":[", ids->n,
               (long long)service_info(api->service)->max_model_len);
    for (size_t i = 0; i < ids->n; i++) {
        if (i)
            buf_push(out, ',');
        buf_int(out, ids->ids[i]);
    }
    buf_str(out, STR("],\"token_strs\":"));
    buf_str(out, strings ? STR("[") : STR("null"));
    for (size_t i = 0; strings && i < ids->n; i++) {
        if (i)
            buf_push(out, ',');
        buf_json_string(out, tokenizer_token_text(api->options.tokenizer, ids->ids[i]));
    }
    buf_str(out, strings ? STR("]}") : STR("}"));
}

/* {"prompt" or "content": text, "add_special_tokens", "parse_special_tokens", "return_token_strs"}, or, as chat
 * completions have them, {"messages", "tools", "chat_template", ...}: then no special tokens are added to what the
 * template writes unless that is asked for. */
static enum status tokenize(struct http_exchange *x, const json_t *body, struct buf *out, struct error *err) {
    struct api *api = api_of(x);
    const json_t *messages = json_object_get(body, "messages");
    bool chat = messages && !json_is_null(messages), add_special, parse_special, strings;
    struct buf text = {0};
    struct token_ids ids = {0};
    TRY(jv_bool_or(body, "request", "add_special_tokens", !chat, &add_special, err));
    TRY(jv_bool_or(body, "request", "parse_special_tokens", true, &parse_special, err));
    TRY(jv_bool_or(body, "request", "return_token_strs", false, &strings, err));
    int flags = (add_special ? ENCODE_ADD_SPECIAL : 0) | (parse_special || chat ? ENCODE_PARSE_SPECIAL : 0);
    enum status st = chat ? render(x, body, &text, err) : read_text(body, &text, err);
    if (st == OK)
        st = api_tokenize(api, buf_view(&text), flags, &ids, err);
    api_charge_text(x, ids.n);
    if (st == OK)
        write_tokens(api, &ids, strings, out);
    token_ids_release(&ids);
    buf_release(&text);
    return st;
}

/* {"tokens": [ids]} */
static enum status detokenize(struct http_exchange *x, const json_t *body, struct buf *out, struct error *err) {
    struct api *api = api_of(x);
    const json_t *array = json_object_get(body, "tokens"), *item;
    struct token_ids ids = {0};
    struct buf text = {0};
    enum status st = OK;
    size_t i;
    if (!json_is_array(array))
        return fail(err, ERR_ARG, "tokens: it must be an array of token ids");
    json_array_foreach(array, i, item) {
        int64_t id;
        if (!jv_whole(item, &id) || id < 0 || id >= tokenizer_n_vocab(api->options.tokenizer)) {
            st = fail(err, ERR_ARG, "tokens: it holds something at %zu that is no token id", i);
            break;
        }
        token_ids_push(&ids, (int32_t)id);
    }
    api_charge_text(x, ids.n);
    if (st == OK)
        st = tokenizer_decode(api->options.tokenizer, ids.ids, ids.n, 0, &text, err);
    buf_str(out, STR("{\"prompt\":"));
    buf_json_string(out, buf_view(&text));
    buf_push(out, '}');
    token_ids_release(&ids);
    buf_release(&text);
    return st;
}

static void run(struct http_exchange *x,
                enum status (*fn)(struct http_exchange *, const json_t *, struct buf *, struct error *)) {
    json_t *body;
    struct buf out = {0};
    struct error err;
    if (!api_read_body(x, &body))
        return;
    if (fn(x, body, &out, &err) == OK)
        api_reply_json(x, 200, buf_view(&out));
    else
        api_reply_fault(x, &err);
    buf_release(&out);
    json_decref(body);
}

void endpoint_tokenize(struct http_exchange *x) { run(x, tokenize); }
void endpoint_detokenize(struct http_exchange *x) { run(x, detokenize); }

void endpoint_tokenizer_info(struct http_exchange *x) {
    char *text = json_dumps(api_of(x)->options.tokenizer_info, JSON_COMPACT | JSON_REAL_PRECISION(15));
    if (text)
        api_reply_json(x, 200, str_of(text));
    else
        api_reply_error(x, 503, NULL, "there is no memory for the answer");
    free(text);
}
