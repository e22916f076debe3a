/* tool_parser.c - see tool_parser.h: text and reasoning. */
#include "text/tools/tool_parser_parts.h"

#include "base/status.h"

#include <stdlib.h>

// ---- opening ----------------------------------------------------------------------------------------------------

static void add_trigger(struct tool_parser *p, struct str mark, enum trigger_kind kind, bool first) {
    mark = str_core(mark);
    if (mark.len == 0 || p->n_triggers == MAX_TRIGGERS)
        return;
    for (size_t i = 0; i < p->n_triggers; i++)
        if (str_eq(p->triggers[i].mark, mark))
            return;
    p->triggers[p->n_triggers++] = (struct trigger){.mark = mark, .kind = kind, .first = first};
    p->starts[(unsigned char)mark.ptr[0]] = true;
}

static void add_bare(struct tool_parser *p, const char *bracket) {
    size_t n = p->n_triggers;
    add_trigger(p, str_of(bracket), TRIGGER_CALL, true);
    if (p->n_triggers > n)
        p->triggers[n].bare = true;
}

static void add_call_triggers(struct tool_parser *p) {
    const struct tool_format *f = p->f;
    bool has_section = !str_is_blank(f->section_open);
    struct str open = str_first_part(has_section ? f->section_open : f->call_open);
    if (open.len > 1)
        add_trigger(p, open, TRIGGER_CALL, false);
    else if (open.len == 1 || f->style == TOOL_STYLE_MARKED)
        add_bare(p, "[");
    // A section, or a call's first tag, may be forgotten.
    if (has_section && str_first_part(f->call_open).len > 1)
        add_trigger(p, str_first_part(f->call_open), TRIGGER_CALL, false);
    struct str call = str_core(f->call_open);
    for (size_t i = 1; i < call.len; i++)
        if (call.ptr[i] == '<' && call.len - i > 3 && !memchr(call.ptr + i, '>', call.len - i))
            add_trigger(p, str_from(call, i), TRIGGER_CALL, false);
    if (open.len == 0 && f->style == TOOL_STYLE_JSON) {
        add_bare(p, f->in_array ? "[" : "{");
        p->triggers[p->n_triggers - 1].first = f->in_array || f->name_key.len == 0;
        add_trigger(p, f->call_prefix, TRIGGER_CALL, false);
    }
    for (size_t i = 0; i < TOOL_WRAPPERS; i++)
        if (tool_wrapper_fits(&tool_wrappers[i], f))
            add_trigger(p, tool_wrappers[i].open, TRIGGER_CALL, false);
}

/* The tag of a mark that goes on behind it: models may forget the rest. */
static struct str reasoning_tag(const struct tool_format *f) {
    struct str core = str_core(f->reasoning_open);
    return str_to(core, tag_length(core));
}

static void add_triggers(struct tool_parser *p) {
    const struct tool_format *f = p->f;
    if (json_object_size(p->tools) && f->style != TOOL_STYLE_NONE)
        add_call_triggers(p);
    add_trigger(p, f->content_open, TRIGGER_NOTHING, false);
    add_trigger(p, f->content_close, TRIGGER_NOTHING, false);
    if (p->options.keep_reasoning)
        return;
    bool special = mark_is_special(f->reasoning_open);
    add_trigger(p, f->reasoning_open, TRIGGER_REASONING, !special);
    if (!special)
        return;
    add_trigger(p, f->reasoning_close, TRIGGER_NOTHING, false);
    add_trigger(p, reasoning_tag(f), TRIGGER_REASONING, false);
}

static json_t *tools_by_name(const json_t *tools) {
    json_t *all = json_object();
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        json_t *function = json_object_get(tool, "function");
        const json_t *name = json_object_get(function ? function : tool, "name");
        if (json_is_string(name))
            json_object_set(all, json_string_value(name), function ? function : (json_t *)tool);
    }
    return all;
}

/* A prompt that ends in the reasoning has written its mark, blanks and all. */
static void begin_behind(struct tool_parser *p, struct str opened) {
    struct str core = str_core(p->f->reasoning_open);
    if (p->options.keep_reasoning || core.len == 0 || !str_starts(opened, core)) {
        tool_parser_feed(p, opened);
        return;
    }
    p->state = PARSER_REASONING;
    p->mark_is_whole = true;
}

struct tool_parser *tool_parser_open(const struct tool_format *f, const struct tool_parser_options *options) {
    struct tool_parser *p = xcalloc(1, sizeof *p);
    p->f = f;
    p->options = *options;
    p->tools = tools_by_name(options->tools);
    p->blank_so_far = true;
    if (f->style == TOOL_STYLE_CHANNELS)
        p->state = PARSER_CHANNEL_HEADER;
    else
        add_triggers(p);
    p->section = (struct tool_wrapper){.open = f->section_open, .close = f->section_close};
    begin_behind(p, options->opened);
    return p;
}

void tool_parser_free(struct tool_parser *p) {
    if (!p)
        return;
    json_decref(p->tools);
    buf_release(&p->held);
    literal_release(&p->literal);
    buf_release(&p->value_open);
    buf_release(&p->value_close);
    free(p);
}

// ---- text -------------------------------------------------------------------------------------------------------

/* The first trigger in s, at *at; NULL: none, and *at is where one may be beginning. */
static const struct trigger *find_trigger(const struct tool_parser *p, struct str s, bool blank, size_t *at) {
    bool beginning = false;
    for (size_t i = 0; i < s.len; i++) {
        const struct trigger *found = NULL;
        if (!p->starts[(unsigned char)s.ptr[i]]) {
            blank = blank && is_blank(s.ptr[i]);
            continue;
        }
        struct str rest = str_from(s, i);
        for (size_t t = 0; t < p->n_triggers; t++) {
            const struct trigger *trigger = &p->triggers[t];
            if (trigger->first && !blank)
                continue;
            if (str_starts(rest, trigger->mark) && (!found || found->mark.len < trigger->mark.len))
                found = trigger;
            beginning |= rest.len < trigger->mark.len && str_starts(trigger->mark, rest);
        }
        if (found || beginning) {
            *at = i;
            return beginning && !p->ended ? NULL : found;
        }
        blank = false;
    }
    *at = s.len;
    return NULL;
}

/* At the mark, or at its tag alone, which is nothing before another one. False: more is needed. */
static bool begin_reasoning(struct tool_parser *p) {
    size_t at = 0;
    struct str rest = parser_rest(p), tag = reasoning_tag(p->f);
    bool whole = mark_at(rest, &at, p->f->reasoning_open) == MARK_YES;
    struct str behind = str_from(rest, whole ? at : tag.len);
    if (!whole && !p->ended && behind.len < tag.len && str_starts(tag, behind))
        return false;
    parser_take(p, rest.len - behind.len);
    if (!whole && str_starts(behind, tag))
        return true;
    p->state = PARSER_REASONING;
    p->reasoning_began = p->verbatim = p->mark_is_whole = p->mark_was_twice = false;
    return true;
}

static void go_to_head(struct tool_parser *p, bool from_reasoning) {
    p->state = PARSER_HEAD;
    p->from_reasoning = from_reasoning;
    p->in_section = false;
    p->wrapper = NULL;
}

static bool follow(struct tool_parser *p, const struct trigger *trigger) {
    switch (trigger->kind) {
    case TRIGGER_CALL: go_to_head(p, false); break;
    case TRIGGER_REASONING: return begin_reasoning(p);
    case TRIGGER_NOTHING:
        p->line_end = str_eq(trigger->mark, str_core(p->f->content_open)) && str_ends(p->f->content_open, STR("\n"));
        parser_take(p, trigger->mark.len);
        break;
    }
    return true;
}

/* Content of blanks alone is kept until something follows them: before a call, and after one, they say nothing. */
static void tell_content(struct tool_parser *p, size_t n) {
    if (n == 0)
        return;
    p->blank_so_far = p->after_call = false;
    parser_tell_text(p, TOOL_EVENT_CONTENT, n);
}

static bool parse_text(struct tool_parser *p) {
    if (p->line_end && p->at < p->held.len) {
        p->line_end = false;
        if (p->held.ptr[p->at] == '\n')
            parser_take(p, 1);
    }
    struct str rest = parser_rest(p);
    size_t at;
    const struct trigger *trigger = find_trigger(p, rest, p->blank_so_far, &at);
    bool blank = p->blank_so_far && str_is_blank(str_to(rest, at));
    if (trigger) {
        if (blank && at <= MAX_HEAD)
            parser_take(p, at);
        else
            tell_content(p, at);
        return follow(p, trigger);
    }
    if (!blank || at > MAX_HEAD)
        tell_content(p, at);
    return false;
}

// ---- reasoning --------------------------------------------------------------------------------------------------

/* Before </think>: the blanks that the mark begins with, or all where they are not known. */
static size_t without_blanks(const struct tool_parser *p, struct str s, bool all) {
    struct str close = p->f->reasoning_close;
    size_t in_mark = leading_blanks(close), n = 0;
    while (n < s.len && is_blank(s.ptr[s.len - 1 - n]))
        n++;
    if (p->verbatim)
        return s.len;
    if (all || !p->f->reasoning_is_exact)
        return s.len - n;
    n = MIN(n, in_mark);
    while (n && memcmp(s.ptr + s.len - n, close.ptr + in_mark - n, n) != 0)
        n--;
    return s.len - n;
}

/* A mark that comes twice, as models write it behind a prompt that has: it is no text, unless there are but blanks.
 * False: more is needed. */
static bool skip_second_mark(struct tool_parser *p) {
    const struct tool_format *f = p->f;
    struct str rest = parser_rest(p), core = str_core(f->reasoning_open), close = str_core(f->reasoning_close);
    size_t n = leading_blanks(rest);
    if (p->mark_was_twice || !str_starts(str_from(rest, n), core))
        return true;
    struct str behind = str_from(rest, n + core.len);
    size_t blanks = leading_blanks(behind);
    behind = str_from(behind, blanks);
    if (behind.len < close.len && str_starts(close, behind) && !p->ended && rest.len <= MAX_HEAD)
        return false;
    p->verbatim = blanks > 0 && str_starts(behind, close);
    if (p->verbatim)
        return true;
    p->mark_is_whole = false;
    p->mark_was_twice = true;
    parser_take(p, n + core.len);
    return true;
}

/* Blanks that open a block, and whether its mark comes twice. False: more is needed. */
static bool enter_reasoning(struct tool_parser *p) {
    const struct tool_format *f = p->f;
    if (!skip_second_mark(p))
        return false;
    struct str rest = parser_rest(p), core = str_core(f->reasoning_open);
    size_t n = leading_blanks(rest), in_mark = f->reasoning_open.len - leading_blanks(f->reasoning_open) - core.len;
    if (n == rest.len && !p->ended && n <= MAX_NAME)
        return false;
    if (rest.len - n < core.len && str_starts(core, str_from(rest, n)) && !p->ended && !p->mark_was_twice)
        return false;
    struct str mark_blanks = str_from(f->reasoning_open, f->reasoning_open.len - in_mark);
    size_t drop = MIN(in_mark, n);
    while (drop && memcmp(rest.ptr, mark_blanks.ptr, drop) != 0)
        drop--;
    while (!f->reasoning_is_exact && drop < n && rest.ptr[drop] == '\n') // which marks often end in
        drop++;
    parser_take(p, p->mark_is_whole ? 0 : drop);
    p->reasoning_began = true;
    return true;
}

/* Where a call begins inside of the reasoning: a mark, and no bracket. */
static size_t find_call(const struct tool_parser *p, struct str s, size_t end) {
    size_t first = NOT_FOUND;
    for (size_t t = 0; t < p->n_triggers; t++) {
        const struct trigger *trigger = &p->triggers[t];
        if (trigger->kind == TRIGGER_CALL && !trigger->bare)
            first = MIN(first, text_find(str_to(s, MIN(s.len, end)), trigger->mark));
    }
    return first;
}

static size_t could_begin(const struct tool_parser *p, struct str s) {
    size_t most = beginning_at_end(s, str_core(p->f->reasoning_close));
    for (size_t t = 0; t < p->n_triggers; t++)
        if (p->triggers[t].kind == TRIGGER_CALL && !p->triggers[t].bare)
            most = MAX(most, beginning_at_end(s, p->triggers[t].mark));
    return most;
}

static bool parse_reasoning(struct tool_parser *p) {
    if (!p->reasoning_began && !enter_reasoning(p))
        return false;
    struct str rest = parser_rest(p), core = str_core(p->f->reasoning_close);
    size_t close = text_find(rest, core);
    size_t call = find_call(p, rest, close == NOT_FOUND ? rest.len : close);
    if (call != NOT_FOUND) {
        size_t n = without_blanks(p, str_to(rest, call), false);
        if (n)
            parser_tell_text(p, TOOL_EVENT_REASONING, n);
        go_to_head(p, true);
        return true;
    }
    if (close != NOT_FOUND) {
        size_t n = without_blanks(p, str_to(rest, close), false);
        parser_tell(p, TOOL_EVENT_REASONING, str_to(rest, n));
        parser_take(p, close + core.len);
        p->state = PARSER_AFTER_REASONING;
        return true;
    }
    size_t text = rest.len - could_begin(p, rest), certain = without_blanks(p, str_to(rest, text), true);
    if (text - certain > MAX_HEAD) // of blanks
        certain = text;
    parser_tell_text(p, TOOL_EVENT_REASONING, certain);
    return false;
}

/* Blanks behind </think>: those of the mark are nobody's; what is more is the reasoning's, where that is known. */
static bool parse_after_reasoning(struct tool_parser *p) {
    struct str rest = parser_rest(p), close = p->f->reasoning_close;
    size_t n = MIN(leading_blanks(rest), MAX_HEAD);
    if (n == rest.len && !p->ended && n < MAX_HEAD)
        return false;
    struct str of_mark = str_from(close, leading_blanks(close) + str_core(close).len);
    size_t common = 0;
    while (common < MIN(n, of_mark.len) && rest.ptr[common] == of_mark.ptr[common])
        common++;
    if (p->f->reasoning_is_exact)
        parser_tell(p, TOOL_EVENT_BLANKS, str_from(str_to(rest, n), common));
    parser_take(p, n);
    p->state = PARSER_TEXT;
    p->blank_so_far = true;
    return true;
}

// ---- feeding ----------------------------------------------------------------------------------------------------

static bool step(struct tool_parser *p) {
    switch (p->state) {
    case PARSER_TEXT: return parse_text(p);
    case PARSER_REASONING: return parse_reasoning(p);
    case PARSER_AFTER_REASONING: return parse_after_reasoning(p);
    case PARSER_HEAD: return parser_head(p);
    case PARSER_ARGUMENTS: return parser_arguments(p);
    case PARSER_TAGGED: return parser_tagged(p);
    case PARSER_TAIL: return parser_tail(p);
    case PARSER_BETWEEN: return parser_between(p);
    case PARSER_CHANNEL_HEADER: return parser_channel_header(p);
    case PARSER_CHANNEL_BODY: return parser_channel_body(p);
    }
    return false;
}

/* What is held and long is not read anew with each piece, but when it has grown by an eighth. */
static void look_again_later(struct tool_parser *p) {
    size_t n = parser_rest(p).len;
    p->look_again = n > 4096 ? n + n / 8 : 0;
}

static void run(struct tool_parser *p) {
    if (parser_rest(p).len < p->look_again && !p->ended)
        return;
    while ((p->at < p->held.len || p->ended) && step(p)) {
    }
    look_again_later(p);
    if (p->at > 4096) {
        memmove(p->held.ptr, p->held.ptr + p->at, p->held.len - p->at);
        p->held.len -= p->at;
        p->at = 0;
    }
}

void tool_parser_feed(struct tool_parser *p, struct str piece) {
    buf_append(&p->held, p->tail, p->n_tail);
    buf_str(&p->held, piece);
    p->n_tail = utf8_incomplete_tail(parser_rest(p));
    memcpy(p->tail, p->held.ptr + p->held.len - p->n_tail, p->n_tail);
    p->held.len -= p->n_tail;
    run(p);
}

/* JSON that stops in the middle stays as it is, with its last word. */
static void finish_literal(struct tool_parser *p, bool close) {
    struct buf out = {0};
    if (!close || p->literal.strict) {
        parser_tell_word(p);
        return;
    }
    literal_close(&p->literal, &out);
    parser_tell(p, TOOL_EVENT_ARGUMENTS, buf_view(&out));
    buf_release(&out);
}

void tool_parser_finish(struct tool_parser *p, enum tool_end end) {
    if (end == TOOL_TEXT_PARTIAL) {
        if (p->state == PARSER_HEAD)
            parser_tell_partial_head(p);
        return;
    }
    buf_append(&p->held, p->tail, p->n_tail);
    p->n_tail = 0;
    if (end == TOOL_TEXT_CUT && p->state == PARSER_HEAD && parser_tell_partial_head(p))
        parser_take(p, parser_rest(p).len);
    p->ended = true;
    run(p);
    struct str rest = parser_rest(p);
    bool blank = p->after_call && str_is_blank(rest);
    switch (p->state) {
    case PARSER_TEXT:
        if (!blank)
            parser_tell(p, TOOL_EVENT_CONTENT, rest);
        break;
    case PARSER_REASONING: parser_tell(p, TOOL_EVENT_REASONING, rest); break;
    case PARSER_TAGGED: parser_finish_tagged(p, end == TOOL_TEXT_ENDED); break;
    case PARSER_ARGUMENTS: finish_literal(p, end == TOOL_TEXT_ENDED); break;
    case PARSER_CHANNEL_BODY:
        if (p->channel == CHANNEL_CALL)
            parser_tell_word(p);
        break;
    default: break;
    }
    parser_take(p, parser_rest(p).len);
    parser_end_call(p);
}

enum tool_place tool_parser_place(const struct tool_parser *p) {
    if (p->state == PARSER_REASONING || (p->state == PARSER_CHANNEL_BODY && p->channel == CHANNEL_REASONING))
        return TOOL_IN_REASONING;
    return p->state == PARSER_AFTER_REASONING ? TOOL_BEHIND_REASONING : TOOL_IN_TEXT;
}

int tool_parser_n_calls(const struct tool_parser *p) { return p->n_calls; }
