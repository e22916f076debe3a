/* answer_event.c - see answer_event.h. Read with the streaming reader: a benchmark takes hundreds of thousands of these
 * a second, and of each only a few bytes are wanted. */
#include "client/answer_event.h"

#include "base/json/json_reader.h"

static enum status take_text(struct json_reader *r, struct buf *out, struct error *err) {
    enum json_kind kind;
    struct str s;
    TRY(json_peek_kind(r, &kind, err));
    if (kind != JSON_KIND_STRING)
        return json_skip(r, NULL, err);
    TRY(json_take_string(r, &s, err));
    buf_str(out, s);
    return OK;
}

static enum status take_count(struct json_reader *r, int64_t *out, struct error *err) {
    enum json_kind kind;
    TRY(json_peek_kind(r, &kind, err));
    return kind == JSON_KIND_NUMBER ? json_take_int(r, out, err) : json_skip(r, NULL, err);
}

/* Enters an object, or passes over whatever else is there; *entered says which. */
static enum status enter(struct json_reader *r, enum json_kind wanted, bool *entered, struct error *err) {
    enum json_kind kind;
    TRY(json_peek_kind(r, &kind, err));
    *entered = kind == wanted;
    if (!*entered)
        return json_skip(r, NULL, err);
    return wanted == JSON_KIND_OBJECT ? json_enter_object(r, err) : json_enter_array(r, err);
}

static enum status read_delta(struct json_reader *r, struct answer_event *e, struct error *err) {
    struct str key;
    bool more;
    TRY(enter(r, JSON_KIND_OBJECT, &more, err));
    while (more) {
        TRY(json_next_key(r, &key, &more, err));
        if (!more)
            break;
        if (str_eq(key, STR("content")))
            TRY(take_text(r, &e->content, err));
        else if (str_eq(key, STR("reasoning_content")) || str_eq(key, STR("reasoning")))
            TRY(take_text(r, &e->reasoning, err));
        else if (str_eq(key, STR("tool_calls")))
            TRY(json_skip(r, &e->tool_calls, err));
        else
            TRY(json_skip(r, NULL, err));
    }
    return OK;
}

static enum status read_choice(struct json_reader *r, struct answer_event *e, struct error *err) {
    struct str key;
    bool more;
    TRY(enter(r, JSON_KIND_OBJECT, &more, err));
    while (more) {
        TRY(json_next_key(r, &key, &more, err));
        if (!more)
            break;
        if (str_eq(key, STR("text")))
            TRY(take_text(r, &e->content, err));
        else if (str_eq(key, STR("delta")) || str_eq(key, STR("message")))
            TRY(read_delta(r, e, err));
        else if (str_eq(key, STR("finish_reason")))
            TRY(take_text(r, &e->finish_reason, err));
        else
            TRY(json_skip(r, NULL, err));
    }
    return OK;
}

static enum status read_choices(struct json_reader *r, struct answer_event *e, struct error *err) {
    bool more;
    TRY(enter(r, JSON_KIND_ARRAY, &more, err));
    while (more) {
        TRY(json_next_item(r, &more, err));
        if (!more)
            break;
        e->has_choice = true;
        TRY(read_choice(r, e, err));
    }
    return OK;
}

static enum status read_usage(struct json_reader *r, struct answer_event *e, struct error *err) {
    struct str key;
    bool more;
    TRY(enter(r, JSON_KIND_OBJECT, &more, err));
    e->has_usage |= more;
    while (more) {
        TRY(json_next_key(r, &key, &more, err));
        if (!more)
            break;
        if (str_eq(key, STR("prompt_tokens")))
            TRY(take_count(r, &e->prompt_tokens, err));
        else if (str_eq(key, STR("completion_tokens")))
            TRY(take_count(r, &e->completion_tokens, err));
        else
            TRY(json_skip(r, NULL, err));
    }
    return OK;
}

/* {"error": {"message"}}, {"error": "..."}; null is none. */
static enum status read_error(struct json_reader *r, struct answer_event *e, struct error *err) {
    enum json_kind kind;
    struct str key;
    bool more;
    TRY(json_peek_kind(r, &kind, err));
    e->failed |= kind == JSON_KIND_OBJECT || kind == JSON_KIND_STRING;
    if (kind == JSON_KIND_STRING)
        return take_text(r, &e->error, err);
    TRY(enter(r, JSON_KIND_OBJECT, &more, err));
    while (more) {
        TRY(json_next_key(r, &key, &more, err));
        if (!more)
            break;
        if (str_eq(key, STR("message")))
            TRY(take_text(r, &e->error, err));
        else
            TRY(json_skip(r, NULL, err));
    }
    return OK;
}

static enum status read_event(struct json_reader *r, struct answer_event *e, struct error *err) {
    struct str key;
    bool more;
    TRY(json_enter_object(r, err));
    for (;;) {
        TRY(json_next_key(r, &key, &more, err));
        if (!more)
            return json_expect_end(r, err);
        if (str_eq(key, STR("choices")))
            TRY(read_choices(r, e, err));
        else if (str_eq(key, STR("usage")))
            TRY(read_usage(r, e, err));
        else if (str_eq(key, STR("error")))
            TRY(read_error(r, e, err));
        else
            TRY(json_skip(r, NULL, err));
    }
}

enum status answer_event_read(struct answer_event *e, struct str json, struct error *err) {
    struct json_reader r;
    buf_clear(&e->content);
    buf_clear(&e->reasoning);
    buf_clear(&e->finish_reason);
    buf_clear(&e->error);
    e->tool_calls = (struct str){0};
    e->has_choice = e->has_usage = e->failed = false;
    e->prompt_tokens = e->completion_tokens = 0;
    json_reader_init(&r, json, "the server's answer");
    enum status st = read_event(&r, e, err);
    json_reader_release(&r);
    return st;
}

void answer_event_release(struct answer_event *e) {
    buf_release(&e->content);
    buf_release(&e->reasoning);
    buf_release(&e->finish_reason);
    buf_release(&e->error);
}
