/* train_prompts.c - see train_prompts.h. */
#include "main/train/train_prompts.h"

#include "base/file.h"
#include "base/random.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 30, HELD_TOKENS = 24, LEAST_OPENING = 4, MOST_OPENING = 32, OPENING_BYTES = 400 };

// ---- a text -----------------------------------------------------------------------------------------------------

/* Where sentences begin: at the text's start, behind a line's end, and behind a full stop and the like with a space. */
static bool begins(struct str text, size_t i) {
    if (i >= text.len || isspace((unsigned char)text.ptr[i]) || ((unsigned char)text.ptr[i] & 0xC0) == 0x80)
        return false;
    if (i == 0 || text.ptr[i - 1] == '\n')
        return true;
    return i > 1 && text.ptr[i - 1] == ' ' && strchr(".!?\"", text.ptr[i - 2]);
}

struct places {
    size_t *at;
    size_t n, cap;
};

static void find_places(struct str text, struct places *out) {
    for (size_t i = 0; i < text.len; i++) {
        if (!begins(text, i))
            continue;
        if (out->n == out->cap) {
            out->cap = out->cap ? 2 * out->cap : 256;
            out->at = xrealloc(out->at, out->cap, sizeof *out->at);
        }
        out->at[out->n++] = i;
    }
}

/* Whole characters of the text from `at` on. */
static struct str opening_bytes(struct str text, size_t at) {
    size_t end = MIN(text.len, at + OPENING_BYTES);
    while (end < text.len && ((unsigned char)text.ptr[end] & 0xC0) == 0x80)
        end--;
    return (struct str){text.ptr + at, end - at};
}

static enum status add_opening(const struct prompt_source *s, struct str text, size_t at, int64_t n, struct texts *out,
                               struct error *err) {
    struct token_ids ids = {0};
    enum status st = model_text_encode_plain(s->text, opening_bytes(text, at), &ids, err);
    if (st == OK && ids.n > 0)
        texts_add(out, ids.ids, MIN(MIN((int64_t)ids.n, n), s->longest - 1));
    token_ids_release(&ids);
    return st;
}

static enum status read_openings(const struct prompt_source *s, struct str text, struct texts *out, struct error *err) {
    struct places places = {0};
    enum status st = OK;
    find_places(text, &places);
    for (int64_t i = 0; i < s->n_openings && st == OK && places.n > 0; i++) {
        size_t at = (size_t)(philox_uniform(s->seed, (uint64_t)i, 1) * (double)places.n);
        int64_t n =
            LEAST_OPENING + (int64_t)(philox_uniform(s->seed, (uint64_t)i, 2) * (MOST_OPENING - LEAST_OPENING + 1));
        st = add_opening(s, text, places.at[at], n, out, err);
    }
    free(places.at);
    return st;
}

/* At even distances. */
static enum status read_held(const struct prompt_source *s, struct str text, struct texts *out, struct error *err) {
    struct places places = {0};
    enum status st = OK;
    find_places(text, &places);
    int64_t n = MIN(s->n_held, (int64_t)places.n);
    for (int64_t i = 0; i < n && st == OK; i++)
        st = add_opening(s, text, places.at[(size_t)i * places.n / (size_t)n], HELD_TOKENS, out, err);
    free(places.at);
    return st;
}

static enum status read_whole(const struct prompt_source *s, struct str text, struct texts *out, struct error *err) {
    struct token_ids ids = {0};
    enum status st = model_text_encode_plain(s->text, text, &ids, err);
    for (int64_t at = 0; st == OK && at < (int64_t)ids.n; at += s->longest)
        texts_add(out, ids.ids + at, MIN(s->longest, (int64_t)ids.n - at));
    token_ids_release(&ids);
    return st;
}

// ---- JSON lines -------------------------------------------------------------------------------------------------

/* ShareGPT's turns as messages. */
static enum status messages_of(const json_t *turns, const char *where, json_t **out, struct error *err) {
    json_t *turn;
    size_t i;
    *out = json_array();
    json_array_foreach((json_t *)turns, i, turn) {
        const char *from, *value;
        if (jv_string(turn, where, "from", &from, err) != OK || jv_string(turn, where, "value", &value, err) != OK) {
            json_decref(*out);
            return err->status;
        }
        bool is_person = strcmp(from, "human") == 0 || strcmp(from, "user") == 0;
        const char *role = is_person ? "user" : strcmp(from, "system") == 0 ? "system" : "assistant";
        json_array_append_new(*out, json_pack("{s:s, s:s}", "role", role, "content", value));
    }
    return OK;
}

/* The chat up to where the model is to answer; as_it_is with the answer that is there. */
static enum status encode_messages(const struct prompt_source *s, json_t *messages, const char *where,
                                   struct token_ids *out, struct error *err) {
    json_t *last = json_array_get(messages, json_array_size(messages) - 1), *answer = NULL;
    const char *role = json_string_value(json_object_get(last, "role"));
    if (!s->text->chat)
        TRY(model_text_open_chat(s->text, s->model, err));
    if (role && strcmp(role, "assistant") == 0) {
        answer = json_incref(last);
        json_array_remove(messages, json_array_size(messages) - 1);
    }
    enum status st = json_array_size(messages) > 0
                         ? model_text_encode_chat(s->text, messages, out, err)
                         : fail(err, ERR_FORMAT, "%s: a chat without a message to be answered", where);
    const char *content = json_string_value(json_object_get(answer, "content"));
    if (st == OK && s->as_it_is && content)
        st = model_text_encode_plain(s->text, str_of(content), out, err);
    json_decref(answer);
    return st;
}

static enum status read_ids(const json_t *list, int32_t vocab_size, const char *where, struct token_ids *out,
                            struct error *err) {
    json_t *id;
    size_t i;
    json_array_foreach((json_t *)list, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= vocab_size)
            return fail(err, ERR_FORMAT, "%s: \"prompt_ids\" must list tokens, numbers from 0 to %d", where,
                        vocab_size - 1);
        token_ids_push(out, (int32_t)json_integer_value(id));
    }
    return OK;
}

static enum status encode_line(const struct prompt_source *s, const json_t *line, const char *where,
                               struct token_ids *out, struct error *err) {
    json_t *ids, *messages, *turns;
    const char *prompt;
    TRY(jv_array_or_null(line, where, "prompt_ids", &ids, err));
    TRY(jv_array_or_null(line, where, "messages", &messages, err));
    TRY(jv_array_or_null(line, where, "conversations", &turns, err));
    if (ids)
        return read_ids(ids, s->vocab_size, where, out, err);
    if (messages)
        return encode_messages(s, messages, where, out, err);
    if (turns) {
        TRY(messages_of(turns, where, &messages, err));
        enum status st = encode_messages(s, messages, where, out, err);
        json_decref(messages);
        return st;
    }
    if (!json_object_get(line, "prompt"))
        return fail(err, ERR_FORMAT, "%s: has none of \"prompt\", \"prompt_ids\", \"messages\" and \"conversations\"",
                    where);
    TRY(jv_string(line, where, "prompt", &prompt, err));
    return model_text_encode(s->text, str_of(prompt), out, err);
}

static enum status add_line(const struct prompt_source *s, struct str text, int64_t number, struct texts *out,
                            struct error *err) {
    char where[512];
    json_t *line;
    struct token_ids ids = {0};
    snprintf(where, sizeof where, "%.480s:%lld", s->path, (long long)number);
    TRY(jv_parse(text, where, JV_ALLOW_DUPLICATES, &line, err));
    enum status st = json_is_object(line) ? encode_line(s, line, where, &ids, err)
                                          : fail(err, ERR_FORMAT, "%s: is no JSON object", where);
    if (st == OK && ids.n == 0)
        st = fail(err, ERR_FORMAT, "%s: is empty", where);
    if (st == OK)
        texts_add(out, ids.ids, MIN((int64_t)ids.n, s->as_it_is ? s->longest : s->longest - 1));
    token_ids_release(&ids);
    json_decref(line);
    return st;
}

static enum status read_lines(const struct prompt_source *s, struct str text, struct texts *out, struct error *err) {
    int64_t number = 0;
    for (size_t at = 0; at < text.len;) {
        const char *newline = memchr(text.ptr + at, '\n', text.len - at);
        size_t end = newline ? (size_t)(newline - text.ptr) : text.len, first = at;
        at = end + 1;
        number++;
        while (first < end && isspace((unsigned char)text.ptr[first]))
            first++;
        if (first < end)
            TRY(add_line(s, (struct str){text.ptr + first, end - first}, number, out, err));
    }
    return OK;
}

// ---- both -------------------------------------------------------------------------------------------------------

static bool is_json_lines(struct str text) {
    size_t i = 0;
    while (i < text.len && isspace((unsigned char)text.ptr[i]))
        i++;
    return i < text.len && text.ptr[i] == '{';
}

/* Of an answer that is there the prompt alone is measured with. */
static enum status read_last_lines(const struct prompt_source *s, struct str text, int64_t n, struct texts *held,
                                   struct error *err) {
    struct prompt_source plain = *s;
    struct texts all = {0};
    plain.as_it_is = false;
    enum status st = read_lines(&plain, text, &all, err);
    for (int64_t i = MAX(0, all.n - n); i < all.n && st == OK; i++)
        texts_add(held, texts_ids(&all, i), texts_length(&all, i));
    texts_release(&all);
    return st;
}

static enum status split_lines(const struct prompt_source *s, struct str text, struct texts *prompts,
                               struct texts *held, struct error *err) {
    struct texts all = {0};
    enum status st = read_lines(s, text, &all, err);
    int64_t n = held ? MIN(s->n_held, all.n / 10) : 0;
    for (int64_t i = 0; i < all.n - n && st == OK; i++)
        texts_add(prompts, texts_ids(&all, i), texts_length(&all, i));
    texts_release(&all);
    return st == OK && n > 0 ? read_last_lines(s, text, n, held, err) : st;
}

static enum status split_text(const struct prompt_source *s, struct str text, struct texts *prompts, struct texts *held,
                              struct error *err) {
    size_t most = held ? text.len - text.len / 10 : text.len;
    while (most < text.len && most > 0 && text.ptr[most - 1] != ' ' && text.ptr[most - 1] != '\n')
        most--;
    struct str first = {text.ptr, most}, rest = {text.ptr + most, text.len - most};
    TRY(s->as_it_is ? read_whole(s, first, prompts, err) : read_openings(s, first, prompts, err));
    return held ? read_held(s, rest, held, err) : OK;
}

enum status train_prompts_read(const struct prompt_source *s, struct texts *prompts, struct texts *held,
                               struct error *err) {
    struct buf bytes = {0};
    enum status st = file_read(s->path, MAX_FILE_BYTES, &bytes, err);
    struct str text = buf_view(&bytes);
    if (st == OK)
        st = is_json_lines(text) ? split_lines(s, text, prompts, held, err) : split_text(s, text, prompts, held, err);
    if (st == OK && prompts->n == 0)
        st = fail(err, ERR_FORMAT, "%s: has nothing to train on", s->path);
    buf_release(&bytes);
    return st;
}

enum status train_prompts_read_held(const struct prompt_source *s, struct texts *held, struct error *err) {
    struct buf bytes = {0};
    enum status st = file_read(s->path, MAX_FILE_BYTES, &bytes, err);
    struct str text = buf_view(&bytes);
    if (st == OK)
        st = is_json_lines(text) ? read_last_lines(s, text, s->n_held, held, err) : read_held(s, text, held, err);
    if (st == OK && held->n == 0)
        st = fail(err, ERR_FORMAT, "%s: has nothing to measure with", s->path);
    buf_release(&bytes);
    return st;
}
