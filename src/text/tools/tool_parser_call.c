/* tool_parser_call.c - see tool_parser_parts.h: the beginning of a call, its arguments as one value, and its end. */
#include "text/tools/tool_parser_parts.h"

#include "base/status.h"

static size_t skip_blanks(struct str s, size_t at) { return at + leading_blanks(str_from(s, at)); }

// ---- names ------------------------------------------------------------------------------------------------------

/* A name or an id: up to what no name has, or to the mark behind it. */
static enum mark_match read_word(struct str s, size_t *at, struct str next_mark, struct str *word) {
    struct str next = str_first_part(next_mark);
    size_t begin = skip_blanks(s, *at), end = begin;
    while (end < s.len && end - begin <= MAX_NAME && !is_blank(s.ptr[end]) && !strchr("<>{}()[]\"'", s.ptr[end]) &&
           !(next.len && str_starts(str_from(s, end), next)))
        end++;
    if (end == s.len && end - begin <= MAX_NAME)
        return MARK_MORE;
    *word = (struct str){s.ptr + begin, end - begin};
    *at = end;
    return end > begin && word->len <= MAX_NAME ? MARK_YES : MARK_NO;
}

/* functions.NAME:0 is the id; either side may be missing. */
static void part_path(struct head *h) {
    struct str name = h->name;
    size_t end = name.len;
    while (end > 0 && name.ptr[end - 1] >= '0' && name.ptr[end - 1] <= '9')
        end--;
    bool numbered = end < name.len && end > 0 && name.ptr[end - 1] == ':';
    bool prefixed = str_starts(name, STR("functions."));
    if (numbered)
        h->id = name;
    h->name = str_to(name, numbered ? end - 1 : name.len);
    if (prefixed)
        h->name = str_from(h->name, strlen("functions."));
}

// ---- beginnings -------------------------------------------------------------------------------------------------

/* The tag of a mark that goes on behind it, and the end of the rest: "<|tool_call>:" of "<|tool_call>call:". */
static bool skip_shortened(struct str s, size_t *at, struct str mark) {
    struct str core = str_core(mark), rest = str_from(s, skip_blanks(s, *at));
    size_t n = tag_length(core);
    if (n == core.len || !mark_is_special(str_to(core, n)) || !str_starts(rest, str_to(core, n)))
        return false;
    struct str behind = str_from(rest, n), end = str_from(core, n);
    while (!str_starts(behind, end))
        end = str_from(end, 1);
    *at = s.len - behind.len + end.len;
    return true;
}

/* The section's and the call's marks, of which some may be forgotten, but not all. */
static enum mark_match read_open(const struct tool_parser *p, struct str s, size_t *at) {
    const struct tool_format *f = p->f;
    if (!p->in_section) {
        if (mark_at(s, at, f->section_open) == MARK_MORE || mark_at(s, at, f->call_prefix) == MARK_MORE)
            return MARK_MORE;
    }
    enum mark_match m = mark_at(s, at, f->call_open);
    if (m != MARK_NO)
        return m;
    for (size_t t = 0; t < p->n_triggers; t++) { // "<function=" without "<tool_call>"
        const struct trigger *trigger = &p->triggers[t];
        bool part = trigger->kind == TRIGGER_CALL && str_ends(str_core(f->call_open), trigger->mark);
        if (part && mark_at(s, at, trigger->mark) == MARK_YES)
            return MARK_YES;
    }
    return skip_shortened(s, at, f->call_open) ? MARK_YES : MARK_NO;
}

/* JSON calls where the template shows none, or others. */
static const struct tool_format usual_json = {
    .style = TOOL_STYLE_JSON, .in_array = true, .name_key = {"name", 4}, .arguments_key = {"arguments", 9}};

static bool is_usual(const struct tool_wrapper *w) { return w && !w->literal; }

/* How the running call is written. */
static const struct tool_format *format_now(const struct tool_parser *p) {
    return is_usual(p->wrapper) ? &usual_json : p->f;
}

/* JSON's {, and what may follow: before it is there the call is none yet, which "{invalid}" never becomes. */
static enum mark_match could_be_object(struct str s, size_t at) {
    if (at == s.len || s.ptr[at] != '{')
        return at == s.len ? MARK_MORE : MARK_YES;
    size_t next = skip_blanks(s, at + 1);
    if (next == s.len)
        return MARK_MORE;
    return s.ptr[next] == '"' || s.ptr[next] == '}' ? MARK_YES : MARK_NO;
}

static enum mark_match read_json(const struct tool_parser *p, const struct tool_format *f, struct str s, size_t at,
                                 struct head *h) {
    at = skip_blanks(s, at);
    if (f->in_array && !p->in_section && at < s.len && s.ptr[at] == '[')
        at = skip_blanks(s, at + 1);
    if (at == s.len)
        return MARK_MORE;
    if (s.ptr[at] != '{')
        return MARK_NO;
    bool bare = str_is_blank(f->section_open) && str_is_blank(f->call_open);
    enum mark_match m = json_head(f, s, at + 1, bare, h);
    if (bare && h->no_arguments) // {"name": "x"} may be any answer
        return MARK_NO;
    if (m == MARK_YES && !h->no_arguments && h->early.len == 0)
        m = could_be_object(s, h->end);
    bool no_tool = h->name.len ? !parser_tool(p, h->name) : m == MARK_YES;
    return no_tool ? MARK_NO : m;
}

/* The mark before the arguments, and that they begin. */
static enum mark_match enter_arguments(const struct tool_parser *p, struct str s, struct str mark, size_t at,
                                       struct head *h) {
    const struct tool_format *f = p->f;
    enum mark_match m = mark_at(s, &at, mark);
    if (f->arguments == TOOL_ARGUMENTS_TAGGED || m == MARK_MORE) {
        h->end = at;
        return m;
    }
    at = skip_blanks(s, at);
    if (at == s.len)
        return MARK_MORE;
    h->end = at;
    if (f->arguments == TOOL_ARGUMENTS_LITERAL)
        return m == MARK_YES && s.ptr[at] == f->arguments_open.ptr[0] ? MARK_YES : MARK_NO;
    if (s.ptr[at] == '{' || (m == MARK_YES && s.ptr[at] == '"'))
        return MARK_YES;
    h->no_arguments = true;
    size_t close = at;
    return m == MARK_YES && str_core(f->call_close).len ? mark_at(s, &close, f->call_close) : MARK_NO;
}

static enum mark_match read_marked(const struct tool_parser *p, struct str s, size_t at, struct head *h) {
    const struct tool_format *f = p->f;
    for (size_t i = 0; i < f->n_heads; i++) {
        const struct tool_head *head = &f->heads[i];
        struct str next = i + 1 < f->n_heads ? f->heads[i + 1].mark : STR("");
        if (head->slot == TOOL_SLOT_ARGUMENTS)
            return enter_arguments(p, s, head->mark, at, h);
        enum mark_match m = i ? mark_at(s, &at, head->mark) : MARK_YES; // the first one is call_open
        if (m == MARK_NO && head->slot == TOOL_SLOT_ID)
            continue; // newer models of the family write none
        if (m == MARK_YES)
            m = read_word(s, &at, next, head->slot == TOOL_SLOT_ID ? &h->id : &h->name);
        if (m != MARK_YES)
            return m;
        if (head->slot != TOOL_SLOT_NAME)
            continue;
        if (f->id == TOOL_ID_PATH)
            part_path(h);
        if (!parser_tool(p, h->name))
            return MARK_NO;
    }
    return MARK_NO;
}

/* A call as the template shows it. */
static enum mark_match read_shown(const struct tool_parser *p, struct str s, size_t at, struct head *h) {
    enum mark_match m = read_open(p, s, &at);
    if (m != MARK_YES)
        return m;
    return p->f->style == TOOL_STYLE_JSON ? read_json(p, p->f, s, at, h) : read_marked(p, s, at, h);
}

static enum mark_match read_wrapped(const struct tool_parser *p, struct str s, const struct tool_wrapper *w,
                                    struct head *h) {
    size_t at = 0;
    *h = (struct head){.wrapper = w};
    enum mark_match m = mark_at(s, &at, w->open);
    if (m != MARK_YES || str_is_blank(w->open))
        return str_is_blank(w->open) ? MARK_NO : m;
    return w->literal ? read_shown(p, s, at, h) : read_json(p, &usual_json, s, at, h);
}

static enum mark_match read_head(const struct tool_parser *p, struct head *h) {
    struct str s = parser_rest(p);
    *h = (struct head){.wrapper = p->wrapper};
    if (p->in_section && is_usual(p->wrapper))
        return read_json(p, &usual_json, s, 0, h);
    enum mark_match m = read_shown(p, s, 0, h);
    if (p->in_section || m != MARK_NO)
        return m;
    for (size_t i = 0; i < TOOL_WRAPPERS && m == MARK_NO; i++)
        if (tool_wrapper_fits(&tool_wrappers[i], p->f))
            m = read_wrapped(p, s, &tool_wrappers[i], h);
    bool shows_json = p->f->style == TOOL_STYLE_JSON || p->f->arguments == TOOL_ARGUMENTS_LITERAL;
    return m == MARK_NO && !shows_json ? read_wrapped(p, s, &p->section, h) : m;
}

static void begin(struct tool_parser *p, const struct head *h) {
    p->wrapper = h->wrapper;
    const struct tool_format *f = format_now(p);
    parser_begin_call(p, h->name, h->id);
    p->depth = h->depth;
    p->n_keys = 0;
    p->value = VALUE_NEXT;
    literal_release(&p->literal);
    literal_init(&p->literal, f->arguments == TOOL_ARGUMENTS_JSON, f->quote);
    p->state =
        f->style == TOOL_STYLE_MARKED && f->arguments == TOOL_ARGUMENTS_TAGGED ? PARSER_TAGGED : PARSER_ARGUMENTS;
    if (h->early.len || h->no_arguments) {
        parser_tell(p, TOOL_EVENT_ARGUMENTS, h->early.len ? h->early : STR("{}"));
        p->state = PARSER_TAIL;
    }
    parser_take(p, h->end);
}

/* What looked like a call is text, from its first character on. */
static bool not_a_call(struct tool_parser *p) {
    struct str rest = parser_rest(p);
    int32_t cp;
    size_t n = rest.len ? (size_t)utf8_decode(rest.ptr, rest.len, &cp) : 0;
    p->state = p->from_reasoning ? PARSER_REASONING : PARSER_TEXT;
    p->blank_so_far = p->after_call = false;
    parser_tell_text(p, p->from_reasoning ? TOOL_EVENT_REASONING : TOOL_EVENT_CONTENT, n);
    return true;
}

bool parser_head(struct tool_parser *p) {
    struct str rest = parser_rest(p);
    struct head h;
    enum mark_match m = read_head(p, &h);
    if (m == MARK_YES) {
        begin(p, &h);
        return true;
    }
    if (m == MARK_NO || p->ended || rest.len > MAX_HELD)
        return not_a_call(p);
    return false;
}

bool parser_tell_partial_head(struct tool_parser *p) {
    struct head h;
    bool known = read_head(p, &h) != MARK_NO && h.name.len && parser_tool(p, h.name);
    if (known)
        parser_begin_call(p, h.name, h.id);
    return known;
}

// ---- arguments --------------------------------------------------------------------------------------------------

/* Arguments that are a JSON text in a JSON string, or null. */
static bool take_odd_arguments(struct tool_parser *p) {
    struct str rest = parser_rest(p);
    size_t n = 0;
    enum mark_match m = json_length(rest, &n);
    if (m == MARK_MORE && !p->ended && rest.len <= MAX_HELD)
        return false;
    json_t *value = m == MARK_YES ? jv_look(str_to(rest, n)) : NULL;
    if (json_is_string(value))
        parser_tell(p, TOOL_EVENT_ARGUMENTS, (struct str){json_string_value(value), json_string_length(value)});
    else if (json_is_null(value))
        parser_tell(p, TOOL_EVENT_ARGUMENTS, STR("{}"));
    else
        n = 0;
    json_decref(value);
    parser_take(p, n);
    p->state = n ? PARSER_TAIL : PARSER_TEXT;
    if (n == 0)
        parser_break_call(p);
    return true;
}

bool parser_arguments(struct tool_parser *p) {
    struct str rest = parser_rest(p);
    bool first = p->literal.depth == 0 && p->literal.state == LITERAL_VALUE;
    if (rest.len && first && p->literal.strict && rest.ptr[0] != '{' && !is_blank(rest.ptr[0]))
        return take_odd_arguments(p);
    struct buf out = {0};
    size_t used;
    p->literal.ended = p->ended;
    enum literal_result r = literal_feed(&p->literal, rest, &used, &out);
    parser_tell(p, TOOL_EVENT_ARGUMENTS, buf_view(&out));
    buf_release(&out);
    parser_take(p, used);
    if (r == LITERAL_MORE)
        return false;
    p->state = r == LITERAL_DONE ? PARSER_TAIL : PARSER_TEXT;
    if (r == LITERAL_BROKEN)
        parser_break_call(p);
    return true;
}

// ---- ends -------------------------------------------------------------------------------------------------------

bool parser_tail(struct tool_parser *p) {
    struct str rest = parser_rest(p), id = STR("");
    size_t at = 0;
    enum mark_match m = p->depth ? json_rest(format_now(p), rest, p->depth, &at, &id) : MARK_YES;
    if (m == MARK_MORE && !p->ended && rest.len <= MAX_HELD)
        return false;
    parser_tell(p, TOOL_EVENT_ID, id);
    parser_take(p, at);
    parser_end_call(p);
    p->state = PARSER_BETWEEN;
    return true;
}

/* A mark that is whole, or that the text ends in. */
static enum mark_match close_at(const struct tool_parser *p, struct str s, size_t *at, struct str mark) {
    if (str_core(mark).len == 0)
        return MARK_NO;
    enum mark_match m = mark_at(s, at, mark);
    if (m == MARK_MORE && p->ended && !str_is_blank(str_from(s, *at))) {
        *at = s.len;
        return MARK_YES;
    }
    return m;
}

static bool one_more(struct tool_parser *p, size_t at) {
    parser_take(p, at);
    p->state = PARSER_HEAD;
    p->in_section = true;
    p->from_reasoning = false;
    return true;
}

/* Calls that have no mark of their own, and are parted by one. */
static bool is_parted(const struct tool_format *f, char c) {
    bool unmarked = f->in_array || str_is_blank(f->call_open);
    return unmarked && (c == ',' || (c == ';' && f->style == TOOL_STYLE_JSON));
}

/* The same, parted by a line end, in a section that ends in a mark. */
static bool is_on_next_line(const struct tool_format *f, struct str s, size_t at, size_t next) {
    bool lines = f->call_separator.len && str_is_blank(f->call_separator) && str_is_blank(f->call_open);
    return lines && str_core(f->section_close).len && memchr(s.ptr + at, '\n', next - at) &&
           !str_starts(str_from(s, next), str_to(str_core(f->section_close), 1));
}

bool parser_between(struct tool_parser *p) {
    const struct tool_format *f = format_now(p);
    struct str s = parser_rest(p);
    size_t at = 0;
    if (close_at(p, s, &at, f->call_close) == MARK_MORE && !p->ended)
        return false;
    size_t next = skip_blanks(s, at);
    if (next == s.len && !p->ended && next - at < MAX_HEAD)
        return false;
    if (next - at >= MAX_HEAD) // of blanks: no call follows them
        next = s.len;
    if (next < s.len && is_parted(f, s.ptr[next]))
        return one_more(p, next + 1);
    if (next < s.len && is_on_next_line(f, s, at, next))
        return one_more(p, next);
    if (next < s.len && s.ptr[next] == '{' && f->style == TOOL_STYLE_JSON && str_is_blank(f->call_open))
        return one_more(p, next);
    if (f->in_array && next < s.len && s.ptr[next] == ']')
        at = next + 1;
    if (close_at(p, s, &at, f->section_close) == MARK_MORE && !p->ended)
        return false;
    if (p->wrapper && close_at(p, s, &at, p->wrapper->close) == MARK_MORE && !p->ended)
        return false;
    parser_take(p, at);
    p->state = PARSER_TEXT;
    return true;
}
