/* tool_derive.c - see tool_derive.h: the renderings, and the marks of reasoning and content. */
#include "text/tools/tool_derive.h"

#include "text/tools/tool_marks.h"

#include <stdlib.h>

enum { MAX_TAIL = 64 << 10 };

struct str derive_keep(struct deriver *d, struct str s) {
    return (struct str){arena_strdup(&d->f->arena, s), s.len};
}

// ---- renderings -------------------------------------------------------------------------------------------------

static bool render(struct deriver *d, const json_t *context) {
    // Steps and not time, so that a busy machine finds the same.
    static const struct template_options bounded = {
        .limits = {.max_steps = 200 * 1000, .max_output_bytes = 1 << 20, .max_memory_bytes = 8 << 20}};
    buf_clear(&d->shown);
    return chat_variant_render(d->chat, d->variant, context, &bounded, &d->shown, &d->err) == OK;
}

static json_t *context_of(struct deriver *d, const struct rendering *r) {
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", WORD_USER);
    if (d->variant->form.content[CHAT_USER] == CHAT_CONTENT_PARTS)
        json_object_set_new(json_array_get(messages, 0), "content",
                            json_pack("[{s:s, s:s}]", "type", "text", "text", WORD_USER));
    if (r->messages)
        json_array_extend(messages, r->messages);
    json_decref(r->messages);
    json_t *context = json_pack("{s:o, s:O, s:b}", "messages", messages, "tools", d->tools, "add_generation_prompt",
                                r->generation_prompt);
    // Firefunction's template reads these two and no tools.
    json_object_set_new(context, "functions", json_string("[]"));
    json_object_set_new(context, "datetime", json_string("now"));
    // A template that is a file by itself has no special tokens. What ends a turn is no part of a call.
    json_object_set_new(context, "bos_token", json_string(""));
    json_object_set_new(context, "eos_token", json_string(""));
    if (r->thinking != THINKING_NOT_SAID) {
        json_object_set_new(context, "enable_thinking", json_boolean(r->thinking == THINKING_ON));
        json_object_set_new(context, "thinking", json_boolean(r->thinking == THINKING_ON));
    }
    return context;
}

bool derive_show(struct deriver *d, struct rendering r, struct str *tail) {
    json_t *context = context_of(d, &r);
    bool shown = render(d, context);
    if (!shown) {
        json_object_set_new(context, "tools", json_null());
        shown = render(d, context);
    }
    json_decref(context);
    size_t at = shown ? text_find_last(buf_view(&d->shown), STR(WORD_USER)) : NOT_FOUND;
    if (at == NOT_FOUND)
        return false;
    struct str rest = str_from(buf_view(&d->shown), at + strlen(WORD_USER));
    if (rest.len > MAX_TAIL)
        return false;
    *tail = derive_keep(d, rest);
    return true;
}

json_t *derive_turn(json_t *take_content, json_t *take_calls) {
    json_t *turn = json_pack("{s:s}", "role", "assistant");
    json_object_set_new(turn, "content", take_content ? take_content : json_string(""));
    if (take_calls)
        json_object_set_new(turn, "tool_calls", take_calls);
    return turn;
}

json_t *derive_call(const char *name, const char *id, json_t *take_arguments) {
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name, "arguments",
                     take_arguments);
}

json_t *derive_arguments(const struct deriver *d, json_t *take_object) {
    if (!d->variant->form.arguments_are_text)
        return take_object;
    char *text = json_dumps(take_object, 0);
    json_t *value = json_string(text);
    json_decref(take_object);
    free(text);
    return value;
}

// ---- reasoning --------------------------------------------------------------------------------------------------

/* The forms in which templates take a message's reasoning: a field of the message, or a part of its content. */
static json_t *turn_with_reasoning(int form, bool with_call, const struct deriver *d) {
    json_t *calls = with_call
                        ? json_pack("[o]", derive_call(WORD_NAME, WORD_ID,
                                                       derive_arguments(d, json_pack("{s:s}", WORD_KEY, WORD_VALUE))))
                        : NULL;
    json_t *content = json_string(with_call ? "" : WORD_CONTENT);
    if (form == 1 || form == 2) {
        const char *type = form == 1 ? "thinking" : "thoughts", *key = form == 1 ? "thinking" : "text";
        json_decref(content);
        content = json_pack("[{s:s, s:s}, {s:s, s:s}]", "type", type, key, WORD_REASON, "type",
                            form == 1 ? "text" : "response", "text", WORD_CONTENT);
        if (form == 2)
            content = json_pack("{s:o}", "blocks", content);
    }
    json_t *turn = derive_turn(content, calls);
    static const char *const fields[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t i = 0; form == 0 && i < ARRAY_LEN(fields); i++)
        json_object_set_new(turn, fields[i], json_string(WORD_REASON));
    return turn;
}

/* A turn that shows its reasoning, and the word behind it. */
static bool show_reasoning(struct deriver *d, struct str *tail, struct str *next) {
    static const struct {
        int form;
        bool with_call;
    } tries[] = {{0, false}, {0, true}, {1, false}, {2, false}};
    for (size_t i = 0; i < ARRAY_LEN(tries); i++) {
        *next = tries[i].with_call ? STR(WORD_NAME) : STR(WORD_CONTENT);
        json_t *turns = json_pack("[o]", turn_with_reasoning(tries[i].form, tries[i].with_call, d));
        struct rendering r = {.messages = turns, .thinking = THINKING_ON};
        if (!derive_show(d, r, tail))
            continue;
        size_t reason = text_find(*tail, STR(WORD_REASON));
        if (reason != NOT_FOUND && text_find(str_from(*tail, reason), *next) != NOT_FOUND)
            return true;
    }
    return false;
}

/* "</think>" has a twin "<think>". */
static struct str twin_of(struct deriver *d, struct str close) {
    size_t n = tag_length(close);
    if (n < 3 || close.ptr[1] != '/')
        return STR("");
    char *twin = arena_strdup(&d->f->arena, str_to(close, n));
    memmove(twin + 1, twin + 2, n - 1);
    return (struct str){twin, n - 1};
}

/* The beginning that the model's turns have in common: the shortest one that two renderings agree on. */
static size_t turn_begins(const struct deriver *d, struct str tail) {
    const struct str others[] = {d->earlier, d->content, d->thinking};
    size_t least = 0;
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        size_t word = text_find(others[i], STR(WORD_CONTENT));
        size_t n = common_prefix(tail, word == NOT_FOUND ? others[i] : str_to(others[i], word));
        if (n && (!least || n < least))
            least = n;
    }
    return least;
}

static void take_reasoning(struct deriver *d, struct str tail, struct str next) {
    struct tool_format *f = d->f;
    size_t reason = text_find(tail, STR(WORD_REASON)), after = reason + strlen(WORD_REASON);
    struct str before = str_to(tail, reason), close = str_from(tail, after);
    close = str_to(close, text_find(close, next));
    size_t at = leading_blanks(close), n_tag = tag_length(str_from(close, at));
    if (n_tag == 0)
        return;
    size_t twin = text_find_last(before, twin_of(d, str_from(close, at)));
    size_t begin = twin != NOT_FOUND ? twin : turn_begins(d, before);
    begin += leading_blanks(str_from(before, begin));
    if (begin >= before.len)
        return;
    // What follows may be the beginning of the content, or of a call.
    if (f->content_open.len && str_ends(close, f->content_open))
        close.len -= f->content_open.len;
    else if (!str_eq(next, STR(WORD_CONTENT)) || twin != NOT_FOUND)
        close.len = at + n_tag + leading_blanks(str_from(close, at + n_tag));
    f->reasoning_open = derive_keep(d, str_from(before, begin));
    f->reasoning_close = derive_keep(d, close);
    f->reasoning_is_exact = str_eq(next, STR(WORD_CONTENT));
}

/* Reasoning that no history shows. Prompts may end in its beginning, and sources know its end. */
static const struct {
    struct str open, close;
} pairs[] = {
#define PAIR(a, b)                               \
    {                                            \
        {a, sizeof(a) - 1}, { b, sizeof(b) - 1 } \
    }
    PAIR("<think>", "</think>"),
    PAIR("<thinking>", "</thinking>"),
    PAIR("[THINK]", "[/THINK]"),
    PAIR("<|START_THINKING|>", "<|END_THINKING|>"),
    PAIR("<|inner_prefix|>", "<|inner_suffix|>"),
    PAIR("◁think▷", "◁/think▷"),
    PAIR("Here is my thought process:", "Here is my response:"),    // Granite 3.2
    PAIR("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"), // Apriel
#undef PAIR
};

static void take_known_pair(struct deriver *d) {
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        bool prompted = text_find(d->thinking, pairs[i].open) != NOT_FOUND;
        if (!prompted && text_find(d->variant->source, pairs[i].close) == NOT_FOUND)
            continue;
        d->f->reasoning_open = pairs[i].open;
        d->f->reasoning_close = pairs[i].close;
        // An empty block with words right behind it: no blanks belong there.
        size_t word = text_find(d->content, STR(WORD_CONTENT)), close = text_find_last(d->content, pairs[i].close);
        d->f->reasoning_is_exact = word != NOT_FOUND && close != NOT_FOUND && close + pairs[i].close.len == word;
        return;
    }
}

struct str derive_without_reasoning(const struct tool_format *f, struct str s) {
    struct str open = str_core(f->reasoning_open), close = str_core(f->reasoning_close);
    size_t at = leading_blanks(s);
    if (close.len == 0)
        return s;
    if (str_starts(str_from(s, at), open)) {
        at += open.len;
        at += leading_blanks(str_from(s, at));
    }
    if (!str_starts(str_from(s, at), close))
        return s;
    at += close.len;
    return str_from(s, at + leading_blanks(str_from(s, at)));
}

// ---- content ----------------------------------------------------------------------------------------------------

/* What stands around a content, beside an empty reasoning and what a prompt ends with anyway. */
static void take_content(struct deriver *d) {
    size_t word = text_find(d->content, STR(WORD_CONTENT));
    if (word == NOT_FOUND)
        return;
    struct str before = str_to(d->content, word);
    size_t lead = MAX(common_prefix(before, d->prompt), common_prefix(before, d->thinking));
    struct str open = derive_without_reasoning(d->f, str_from(before, lead));
    struct str close = str_from(d->content, word + strlen(WORD_CONTENT));
    close = str_from(close, leading_blanks(close));
    size_t n_tag = tag_length(str_core(open));
    // One tag and no more, and one that closes it: other text in front is a form of the turn.
    if (d->prompt.len == 0 || n_tag == 0 || n_tag != str_core(open).len || tag_length(close) == 0)
        return;
    if (str_starts(str_core(open), STR("</"))) // of an empty reasoning
        return;
    open = str_from(open, leading_blanks(open));
    d->f->content_open = derive_keep(d, str_to(open, n_tag + str_starts(str_from(open, n_tag), STR("\n"))));
    d->f->content_close = derive_keep(d, str_to(close, tag_length(close)));
}

/* A turn of calls whose content is empty may have marks around it all the same (Llama 4): they open no call. x is what
 * precedes the first one. */
struct str derive_without_content(struct deriver *d, json_t *take_calls, struct str x) {
    struct str tail;
    json_t *turns = json_pack("[o]", derive_turn(json_string(WORD_CONTENT), take_calls));
    size_t word =
        derive_show(d, (struct rendering){.messages = turns}, &tail) ? text_find(tail, STR(WORD_CONTENT)) : NOT_FOUND;
    if (word == NOT_FOUND)
        return x;
    struct str before = str_to(tail, word), behind = str_from(tail, word + strlen(WORD_CONTENT));
    size_t n_open = tag_length(x), n_close = tag_length(str_from(x, n_open));
    if (n_open == 0 || n_close == 0 || n_open + n_close != x.len || !str_ends(before, str_to(x, n_open)) ||
        !str_starts(behind, str_from(x, n_open)))
        return x;
    d->f->content_open = str_to(x, n_open);
    d->f->content_close = str_from(x, n_open);
    return STR("");
}

static void show_common_turns(struct deriver *d) {
    struct rendering prompt = {.generation_prompt = true};
    derive_show(d, prompt, &d->prompt);
    prompt.thinking = THINKING_ON;
    derive_show(d, prompt, &d->thinking);
    prompt.thinking = THINKING_OFF;
    derive_show(d, prompt, &d->no_thinking);
    derive_show(d, (struct rendering){.messages = json_pack("[o]", derive_turn(json_string(WORD_CONTENT), NULL))},
                &d->content);
    json_t *more =
        json_pack("[o, {s:s, s:s}]", derive_turn(json_string(WORD_CONTENT), NULL), "role", "user", "content", "Go on.");
    derive_show(d, (struct rendering){.messages = more, .generation_prompt = true}, &d->earlier);
}

void derive_reasoning(struct deriver *d) {
    struct str tail, next;
    show_common_turns(d);
    take_content(d);
    if (show_reasoning(d, &tail, &next))
        take_reasoning(d, tail, next);
    if (d->f->reasoning_close.len == 0)
        take_known_pair(d);
}
