/* tool_format.c - see tool_format.h. */
#include "text/tools/tool_format.h"

#include "text/tools/tool_derive.h"
#include "text/tools/tool_marks.h"
#include "text/tools/tool_response_template.h"
#include "text/tools/tool_rows.h"

#include <stdlib.h>

// ---- opening ----------------------------------------------------------------------------------------------------

static json_t *example_tool(const char *name) {
    return json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}, s:{s:s, s:s}}, s:[s]}}}", "type", "function",
                     "function", "name", name, "description", "Looks.", "parameters", "type", "object", "properties",
                     WORD_KEY, "type", "string", "description", "Where.", WORD_KEY_2, "type", "integer", "description",
                     "How many.", "required", WORD_KEY);
}

static void find(struct deriver *d) {
    struct tool_format *f = d->f;
    struct str source = d->variant->source;
    derive_reasoning(d);
    if (tool_response_template_take(f, chat_template_response(d->chat)) || tool_row_take(f, source, true))
        return;
    derive_calls(d);
    if (f->style == TOOL_STYLE_NONE)
        tool_row_take(f, source, false);
    // Llama 3's mark of a call that is not always written.
    if (f->style == TOOL_STYLE_JSON && str_is_blank(f->call_open) && str_is_blank(f->section_open) &&
        text_find(source, STR("<|python_tag|>")) != NOT_FOUND)
        f->call_prefix = STR("<|python_tag|>");
}

/* A text that was not found is empty, and is one. */
static void fill_texts(struct tool_format *f) {
    struct str *texts[] = {&f->reasoning_open, &f->reasoning_close, &f->content_open,       &f->content_close,
                           &f->section_open,   &f->section_close,   &f->call_open,          &f->call_separator,
                           &f->call_close,     &f->call_prefix,     &f->array_open,         &f->array_close,
                           &f->object_close,   &f->wrapper_key,     &f->name_key,           &f->arguments_key,
                           &f->id_key,         &f->arguments_open,  &f->arguments_close,    &f->key_open,
                           &f->key_close,      &f->value_close,     &f->argument_separator, &f->key_close_other,
                           &f->quote,          &f->heads[0].mark,   &f->heads[1].mark,      &f->heads[2].mark};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (!texts[i]->ptr)
            *texts[i] = STR("");
}

static void guess_reasoning(struct tool_format *f) {
    if (f->reasoning_close.len)
        return;
    f->reasoning_open = STR("<think>");
    f->reasoning_close = STR("</think>");
    f->reasoning_is_guess = true;
}

struct tool_format *tool_format_open(const struct chat_template *t, const struct chat_variant *v) {
    struct tool_format *f = xcalloc(1, sizeof *f);
    f->refusal = "the model has no chat template";
    if (t && !v)
        v = chat_template_named(t, "tool_use");
    if (t && !v)
        v = chat_template_named(t, "default");
    if (!v || !v->template) {
        guess_reasoning(f);
        fill_texts(f);
        return f;
    }
    struct deriver d = {.chat = t, .variant = v, .f = f};
    d.tools = json_pack("[o, o]", example_tool(WORD_NAME), example_tool(WORD_NAME_2));
    find(&d);
    if (f->style != TOOL_STYLE_NONE)
        f->refusal = NULL;
    guess_reasoning(f);
    fill_texts(f);
    json_decref(d.tools);
    buf_release(&d.shown);
    return f;
}

void tool_format_free(struct tool_format *f) {
    if (!f)
        return;
    arena_release(&f->arena);
    free(f);
}

// ---- saying -----------------------------------------------------------------------------------------------------

static void put_mark(struct buf *out, struct str mark) {
    for (struct str s = str_core(mark); s.len; s = str_from(s, 1))
        buf_push(out, is_blank(s.ptr[0]) ? ' ' : s.ptr[0]);
}

static const char *form_of(const struct tool_format *f) {
    static const char *const arguments[] = {"JSON", "literals", "tags"};
    if (f->nested)
        return "nested tags";
    if (f->style == TOOL_STYLE_CHANNELS)
        return "in channels, JSON";
    if (f->style == TOOL_STYLE_JSON)
        return f->in_array ? "JSON array" : "JSON";
    return arguments[f->arguments];
}

void tool_format_describe(const struct tool_format *f, struct buf *out) {
    if (f->style == TOOL_STYLE_NONE) {
        buf_printf(out, "none: %s", f->refusal);
    } else {
        struct str open = str_is_blank(f->section_open) ? f->call_open : f->section_open;
        put_mark(out, open);
        buf_printf(out, "%s%s (%s)", str_is_blank(open) ? "" : " ", form_of(f), f->found);
    }
    if (!f->reasoning_is_guess) {
        buf_str(out, STR(", reasoning: "));
        put_mark(out, f->reasoning_open);
    }
}

// ---- prompts and ids --------------------------------------------------------------------------------------------

static bool is_opened(struct str mark, struct str close, struct str prompt, size_t *at) {
    struct str core = str_core(mark);
    *at = text_find_last(prompt, core);
    if (*at == NOT_FOUND)
        return false;
    struct str rest = str_from(prompt, *at + core.len);
    return str_is_blank(rest) && text_find(rest, str_core(close)) == NOT_FOUND;
}

struct str tool_format_opened(const struct tool_format *f, struct str prompt) {
    size_t at;
    if (f->style == TOOL_STYLE_CHANNELS)
        return STR("");
    if (is_opened(f->reasoning_open, f->reasoning_close, prompt, &at))
        return str_from(prompt, at);
    if (f->style == TOOL_STYLE_MARKED && str_ends(prompt, f->call_open) && f->call_open.len)
        return str_from(prompt, prompt.len - f->call_open.len);
    return STR("");
}

bool tool_format_opens_reasoning(const struct tool_format *f, struct str prompt) {
    size_t at;
    return f->style != TOOL_STYLE_CHANNELS && is_opened(f->reasoning_open, f->reasoning_close, prompt, &at);
}

bool tool_format_ends_reasoning(const struct tool_format *f, struct str prompt) {
    if (f->style == TOOL_STYLE_CHANNELS) {
        size_t start = text_find_last(prompt, STR("<|start|>")), message = text_find_last(prompt, STR("<|message|>"));
        return message != NOT_FOUND && (start == NOT_FOUND || start < message);
    }
    prompt.len -= trailing_blanks(prompt);
    return str_ends(prompt, str_core(f->reasoning_close));
}

static void put_random(struct buf *out, const uint64_t random[2], int n) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t a = random[0], b = random[1];
    for (int i = 0; i < n; i++) {
        uint64_t *from = i % 2 ? &b : &a;
        buf_push(out, digits[*from % 62]);
        *from /= 62;
        if (*from == 0)
            *from = random[i % 2] ^ 0x9E3779B97F4A7C15u * (uint64_t)(i + 1);
    }
}

void tool_format_make_id(const struct tool_format *f, struct str name, int index, const uint64_t random[2],
                         struct buf *out) {
    switch (f->id) {
    case TOOL_ID_INDEX: buf_int(out, index); break;
    case TOOL_ID_NINE: put_random(out, random, 9); break;
    case TOOL_ID_PATH: buf_printf(out, "functions.%.*s:%d", STR_ARG(name), index); break;
    case TOOL_ID_ANY:
        buf_str(out, STR("call_"));
        put_random(out, random, 20);
        break;
    }
}
