/* tool_tag.c - tool_format_tag: see tool_format.h. */
#include "text/tools/tool_tag.h"

#include "text/tools/tool_marks.h"

struct tagger {
    const struct tool_format *f;
    const struct tool_choice *choice;
};

static bool is_strict(const json_t *function) { return json_is_true(json_object_get(function, "strict")); }

// ---- a call -----------------------------------------------------------------------------------------------------

/* Ids are the model's to make up, in the form that its template takes. */
static json_t *id_element(const struct tool_format *f) {
    const char *pattern = f->id == TOOL_ID_INDEX  ? "[0-9]{1,3}"
                          : f->id == TOOL_ID_NINE ? "[a-zA-Z0-9]{9}"
                                                  : "[a-zA-Z0-9_-]{1,64}";
    return json_pack("{s:s, s:s}", "type", "regex", "pattern", pattern);
}

static void add_name(const struct tool_format *f, struct str name, struct tag_sequence *out) {
    if (f->id != TOOL_ID_PATH || f->style != TOOL_STYLE_MARKED) {
        tag_text(out, name);
        return;
    }
    tag_text(out, STR("functions."));
    tag_text(out, name);
    tag_text(out, STR(":"));
    tag_add(out, json_pack("{s:s, s:s}", "type", "regex", "pattern", "[0-9]{1,3}"));
}

/* The object that json.dumps writes, where the template does not show one. */
static enum status add_plain_object(const struct tool_format *f, const json_t *tool, struct str name, bool strict,
                                    struct tag_sequence *out, struct error *err) {
    struct buf open = {0};
    buf_printf(&open, "{\"%.*s\": \"%.*s\", \"%.*s\": ", STR_ARG(f->name_key), STR_ARG(name),
               STR_ARG(f->arguments_key));
    tag_text(out, buf_view(&open));
    buf_release(&open);
    TRY(tag_arguments(f, tool, strict, out, err));
    tag_text(out, STR("}"));
    return OK;
}

static enum status add_heads(const struct tool_format *f, const json_t *tool, struct str name, bool strict,
                             struct tag_sequence *out, struct error *err) {
    for (size_t i = 0; i < f->n_heads; i++) {
        const struct tool_head *head = &f->heads[i];
        tag_text(out, head->mark);
        if (head->slot == TOOL_SLOT_NAME)
            add_name(f, name, out);
        else if (head->slot == TOOL_SLOT_ID)
            tag_add(out, id_element(f));
        else
            TRY(tag_arguments(f, tool, strict, out, err));
    }
    return OK;
}

static enum status add_call(const struct tagger *t, const json_t *tool, struct tag_sequence *out, struct error *err) {
    const struct tool_format *f = t->f;
    const json_t *function = json_object_get(tool, "function");
    struct str name = str_of(json_string_value(json_object_get(function, "name")));
    bool strict = t->choice->kind != TOOL_CHOICE_AUTO || is_strict(function);
    if (f->style == TOOL_STYLE_CHANNELS) {
        tag_text(out, STR("<|channel|>commentary to=functions."));
        tag_text(out, name);
        tag_text(out, STR(" <|constrain|>json<|message|>"));
        return tag_arguments(f, tool, strict, out, err);
    }
    if (f->style == TOOL_STYLE_JSON) {
        if (!f->in_array)
            tag_text(out, f->call_open);
        TRY(f->n_heads ? add_heads(f, tool, name, strict, out, err)
                       : add_plain_object(f, tool, name, strict, out, err));
        tag_text(out, f->object_close);
    } else {
        TRY(add_heads(f, tool, name, strict, out, err));
    }
    if (!f->in_array)
        tag_text(out, f->call_close);
    return OK;
}

/* A sequence as a tag: what it begins and ends with, and what is between. begin loses the blanks of a trigger. */
static json_t *as_tag(json_t *take_sequence, struct str opened, bool trigger) {
    json_t *elements = json_object_get(take_sequence, "elements");
    size_t n = json_array_size(elements);
    const json_t *first = json_object_get(json_array_get(elements, 0), "value");
    const json_t *last = n > 1 ? json_object_get(json_array_get(elements, n - 1), "value") : NULL;
    struct str begin = first ? (struct str){json_string_value(first), json_string_length(first)} : STR("");
    struct str end = last ? (struct str){json_string_value(last), json_string_length(last)} : STR("");
    if (trigger)
        begin = str_from(begin, leading_blanks(begin));
    if (opened.len && str_starts(begin, opened))
        begin = str_from(begin, opened.len);
    struct tag_sequence inner = {0};
    for (size_t i = first != NULL; i + (last != NULL) < n; i++)
        tag_add(&inner, json_incref(json_array_get(elements, i)));
    json_t *tag = json_pack("{s:s, s:o, s:o, s:o}", "type", "tag", "begin", json_stringn(begin.ptr, begin.len),
                            "content", tag_finish(&inner), "end", json_stringn(end.ptr, end.len));
    json_decref(take_sequence);
    return tag;
}

/* Always a sequence, be it of one element: as_tag looks at its ends. */
static json_t *finish_ends(struct tag_sequence *s) {
    json_t *all = tag_finish(s);
    if (json_object_get(all, "elements"))
        return all;
    return json_pack("{s:[o]}", "elements", all);
}

static enum status call_tags(const struct tagger *t, const json_t *tools, struct str opened, bool trigger, json_t **out,
                             struct error *err) {
    *out = json_array();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
        bool chosen = t->choice->kind != TOOL_CHOICE_NAMED ||
                      (json_is_string(name) && strcmp(json_string_value(name), t->choice->name) == 0);
        struct tag_sequence call = {0};
        if (!json_is_string(name))
            return fail(err, ERR_ARG, "tools[%zu].function.name: it must be a string", i);
        if (!chosen)
            continue;
        enum status st = add_call(t, tool, &call, err);
        json_t *ends = finish_ends(&call);
        if (st != OK) {
            json_decref(ends);
            return st;
        }
        json_array_append_new(*out, as_tag(ends, opened, trigger));
    }
    if (json_array_size(*out) == 0)
        return fail(err, ERR_ARG, "tool_choice: there is no tool named \"%.80s\"",
                    t->choice->name ? t->choice->name : "");
    return OK;
}

// ---- calls ------------------------------------------------------------------------------------------------------

/* One call or more; of a tool that is named, one. */
static json_t *calls_element(const struct tagger *t, json_t *take_tags) {
    struct str separator = t->f->call_separator;
    bool many = t->choice->parallel && t->choice->kind != TOOL_CHOICE_NAMED && !t->f->one_call &&
                t->f->style != TOOL_STYLE_CHANNELS;
    if (!many && json_array_size(take_tags) == 1) {
        json_t *only = json_incref(json_array_get(take_tags, 0));
        json_decref(take_tags);
        return only;
    }
    return json_pack("{s:s, s:o, s:o, s:b, s:b}", "type", "tags_with_separator", "tags", take_tags, "separator",
                     json_stringn(separator.ptr ? separator.ptr : "", separator.len), "at_least_one", 1,
                     "stop_after_first", !many);
}

static bool has_section(const struct tool_format *f) { return f->in_array || !str_is_blank(f->section_open); }

static void add_section(const struct tagger *t, json_t *take_tags, struct tag_sequence *out) {
    const struct tool_format *f = t->f;
    struct str open = f->array_open.len ? f->array_open : STR("["),
               close = f->array_close.len ? f->array_close : STR("]");
    tag_text(out, f->section_open);
    if (f->in_array)
        tag_text(out, open);
    tag_add(out, calls_element(t, take_tags));
    if (f->in_array)
        tag_text(out, close);
    tag_text(out, f->section_close);
}

/* Behind what is thought: any number of messages. */
static json_t *behind_thoughts(json_t *take_element) {
    struct tag_sequence all = {0};
    json_t *thought = json_pack("{s:s, s:s, s:{s:s}, s:s}", "type", "tag", "begin", "<|channel|>analysis<|message|>",
                                "content", "type", "any_text", "end", "<|end|>" TOOL_CHANNEL_AGAIN);
    tag_add(&all, json_pack("{s:s, s:o}", "type", "star", "content", thought));
    tag_add(&all, take_element);
    return tag_finish(&all);
}

json_t *tool_format_answer(const struct tool_format *f, json_t *take_element) {
    struct tag_sequence all = {0};
    if (f->style != TOOL_STYLE_CHANNELS)
        return take_element;
    tag_text(&all, STR(TOOL_CHANNEL_ANSWER));
    tag_add(&all, take_element);
    return behind_thoughts(tag_finish(&all));
}

static enum status required(const struct tagger *t, const json_t *tools, json_t **out, struct error *err) {
    json_t *tags;
    struct str opened = t->choice->opened.len ? t->choice->opened : STR("");
    bool section = has_section(t->f);
    enum status st = call_tags(t, tools, section ? STR("") : opened, false, &tags, err);
    if (st != OK) {
        json_decref(tags);
        return st;
    }
    if (section) {
        struct tag_sequence all = {0};
        add_section(t, tags, &all);
        *out = tag_finish(&all);
    } else
        *out = calls_element(t, tags);
    if (t->f->style == TOOL_STYLE_CHANNELS)
        *out = behind_thoughts(*out);
    return OK;
}

/* What the text of a tag begins with, up to where others may differ. */
static struct str trigger_of(const struct tool_format *f) {
    struct str open = has_section(f) ? f->section_open : f->call_open;
    return str_core(open);
}

/* A call, or an answer in any text. */
static enum status lazy_in_channels(const struct tagger *t, const json_t *tools, json_t **out, struct error *err) {
    json_t *call;
    TRY(required(t, tools, &call, err));
    json_t *answer = tool_format_answer(t->f, json_pack("{s:s}", "type", "any_text"));
    *out = json_pack("{s:s, s:[o, o]}", "type", "or", "elements", call, answer);
    return OK;
}

static enum status lazy(const struct tagger *t, const json_t *tools, json_t **out, struct error *err) {
    struct str trigger = trigger_of(t->f);
    json_t *tags;
    if (t->f->style == TOOL_STYLE_CHANNELS)
        return lazy_in_channels(t, tools, out, err);
    if (trigger.len < 2) // calls without a mark: any text may begin so
        return OK;
    bool section = has_section(t->f);
    enum status st = call_tags(t, tools, STR(""), !section, &tags, err);
    if (st != OK) {
        json_decref(tags);
        return st;
    }
    if (section) {
        struct tag_sequence all = {0};
        add_section(t, tags, &all);
        tags = json_pack("[o]", as_tag(finish_ends(&all), STR(""), true));
    }
    *out = json_pack("{s:s, s:[o], s:o, s:b, s:b}", "type", "triggered_tags", "triggers",
                     json_stringn(trigger.ptr, trigger.len), "tags", tags, "at_least_one", 0, "stop_after_first",
                     !t->choice->parallel || t->f->one_call);
    return OK;
}

static bool binds(const struct tool_choice *choice, const json_t *tools) {
    bool any = choice->kind != TOOL_CHOICE_AUTO || choice->limited || !choice->parallel;
    for (size_t i = 0; !any && i < json_array_size(tools); i++)
        any = is_strict(json_object_get(json_array_get(tools, i), "function"));
    return any;
}

enum status tool_format_tag(const struct tool_format *f, const json_t *tools, const struct tool_choice *choice,
                            json_t **out, struct error *err) {
    const struct tagger t = {.f = f, .choice = choice};
    json_t *format = NULL;
    *out = NULL;
    if (!binds(choice, tools))
        return OK;
    if (f->style == TOOL_STYLE_NONE)
        return fail(err, ERR_UNSUPPORTED, "tools: this model's calls are not understood: %s", f->refusal);
    TRY(choice->kind == TOOL_CHOICE_AUTO ? lazy(&t, tools, &format, err) : required(&t, tools, &format, err));
    if (format)
        *out = json_pack("{s:s, s:o}", "type", "structural_tag", "format", format);
    return OK;
}
