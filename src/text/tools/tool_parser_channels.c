/* tool_parser_channels.c - see tool_parser_parts.h: Harmony's messages.
 *
 *     <|start|>assistant to=functions.NAME<|channel|>commentary <|constrain|>json<|message|>{...}<|call|>
 *     <|channel|>analysis<|message|>reasoning<|end|> <|start|>assistant<|channel|>final<|message|>content
 *
 * The recipient stands before or behind the channel. A message to a tool that is built into some other system, to
 * python or browser.search, is for nobody here: it is dropped. */
#include "text/tools/tool_parser_parts.h"

#include "base/status.h"

enum { MAX_HEADER = 2048 };

static const struct str start_mark = {"<|start|>", 9}, channel_mark = {"<|channel|>", 11},
                        message_mark = {"<|message|>", 11}, functions = {"functions.", 10};
static const struct str ends[] = {
    {"<|end|>", 7}, {"<|call|>", 8}, {"<|return|>", 10}, {"<|start|>", 9}, {"<|channel|>", 11}};

// ---- headers ----------------------------------------------------------------------------------------------------

static struct str word_at(struct str s) {
    size_t n = 0;
    while (n < s.len && !is_blank(s.ptr[n]) && s.ptr[n] != '<')
        n++;
    return str_to(s, n);
}

static struct str recipient_of(struct str header) {
    size_t at = text_find_last(header, STR("to="));
    struct str to = at == NOT_FOUND ? STR("") : word_at(str_from(header, at + 3));
    return str_eq(to, STR("assistant")) ? STR("") : to;
}

static struct str channel_of(struct str header) {
    size_t at = text_find_last(header, channel_mark);
    return at == NOT_FOUND ? STR("final") : word_at(str_from(header, at + channel_mark.len));
}

/* What a text may go on with that is a header. */
static enum mark_match begins_header(struct str s) {
    static const struct str begins[] = {
        {"<|start|>", 9}, {"<|channel|>", 11}, {"<|message|>", 11}, {"to=", 3}, {"<|constrain|>", 13}};
    enum mark_match best = MARK_NO;
    s = str_from(s, leading_blanks(s));
    for (size_t i = 0; i < ARRAY_LEN(begins); i++) {
        if (str_starts(s, begins[i]))
            return MARK_YES;
        if (str_starts(begins[i], s))
            best = MARK_MORE;
    }
    return best;
}

static void begin_call(struct tool_parser *p, struct str name) {
    parser_begin_call(p, name, STR(""));
    literal_release(&p->literal);
    literal_init(&p->literal, true, STR(""));
    p->channel = CHANNEL_CALL;
}

/* The message is content as it is written, with its marks. */
static void begin_written(struct tool_parser *p, struct str header) {
    p->channel = CHANNEL_CONTENT;
    p->channel_is_written = true;
    parser_tell(p, TOOL_EVENT_CONTENT, header);
}

static void begin_message(struct tool_parser *p, struct str header, struct str with_mark) {
    struct str to = recipient_of(header), channel = channel_of(header);
    p->channel_is_written = false;
    p->state = PARSER_CHANNEL_BODY;
    if (str_starts(to, functions)) {
        struct str name = str_from(to, functions.len);
        if (parser_tool(p, name))
            begin_call(p, name);
        else
            begin_written(p, with_mark);
    } else if (to.len) {
        if (parser_tool(p, to))
            begin_call(p, to);
        else
            p->channel = CHANNEL_DROPPED;
    } else if (!str_eq(channel, STR("analysis")))
        p->channel = CHANNEL_CONTENT;
    else if (p->options.keep_reasoning)
        begin_written(p, str_from(with_mark, text_find_last(header, channel_mark)));
    else
        p->channel = CHANNEL_REASONING;
}

bool parser_channel_header(struct tool_parser *p) {
    struct str rest = parser_rest(p);
    enum mark_match begins = begins_header(rest);
    if (begins == MARK_MORE && !p->ended)
        return false;
    struct str header = str_to(rest, MIN(rest.len, MAX_HEADER + message_mark.len));
    size_t message = begins == MARK_YES ? text_find(header, message_mark) : NOT_FOUND;
    if (message == NOT_FOUND) {
        if (begins == MARK_YES && rest.len < MAX_HEADER + message_mark.len && !p->ended)
            return false;
        if (rest.len == 0)
            return false;
        // No message: an answer in plain text, its first character too.
        int32_t cp;
        p->state = PARSER_CHANNEL_BODY;
        p->channel = CHANNEL_CONTENT;
        p->channel_is_written = false;
        parser_tell_text(p, TOOL_EVENT_CONTENT, (size_t)utf8_decode(rest.ptr, rest.len, &cp));
        return true;
    }
    size_t end = message + message_mark.len;
    begin_message(p, str_to(rest, message), str_to(rest, end));
    parser_take(p, end);
    return true;
}

// ---- bodies -----------------------------------------------------------------------------------------------------

static size_t find_end(struct str s, size_t *length, size_t *certain) {
    size_t first = NOT_FOUND;
    *certain = s.len;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        size_t at = text_find(s, ends[i]);
        *certain = MIN(*certain, s.len - beginning_at_end(s, ends[i]));
        if (at < first) {
            first = at;
            *length = str_eq(ends[i], start_mark) || str_eq(ends[i], channel_mark) ? 0 : ends[i].len;
        }
    }
    return first;
}

/* Arguments up to where they are whole; what is broken is content from there on. */
static void tell_arguments(struct tool_parser *p, size_t n) {
    struct buf out = {0};
    size_t used;
    enum literal_result r = literal_feed(&p->literal, str_to(parser_rest(p), n), &used, &out);
    parser_tell(p, TOOL_EVENT_ARGUMENTS, buf_view(&out));
    buf_release(&out);
    parser_take(p, used); // an escape may be left over
    if (r == LITERAL_BROKEN || (r == LITERAL_DONE && !str_is_blank(str_to(parser_rest(p), n - used)))) {
        parser_break_call(p);
        p->channel = CHANNEL_CONTENT;
    } else if (r == LITERAL_DONE)
        parser_take(p, n - used);
}

static void tell_body(struct tool_parser *p, size_t n) {
    switch (p->channel) {
    case CHANNEL_CONTENT: parser_tell_text(p, TOOL_EVENT_CONTENT, n); break;
    case CHANNEL_REASONING: parser_tell_text(p, TOOL_EVENT_REASONING, n); break;
    case CHANNEL_CALL: tell_arguments(p, n); break;
    case CHANNEL_DROPPED: parser_take(p, n); break;
    }
}

bool parser_channel_body(struct tool_parser *p) {
    struct str rest = parser_rest(p);
    size_t length = 0, certain, end = find_end(rest, &length, &certain);
    if (end == NOT_FOUND) {
        int before = p->channel;
        tell_body(p, p->ended ? rest.len : certain);
        return (int)p->channel != before; // arguments broke: the rest is content
    }
    size_t behind = rest.len - end;
    tell_body(p, end);
    if (parser_rest(p).len > behind) { // of arguments that broke
        parser_break_call(p);
        parser_tell_text(p, TOOL_EVENT_CONTENT, parser_rest(p).len - behind);
    }
    if (p->channel == CHANNEL_CALL)
        parser_tell_word(p);
    if (p->channel_is_written)
        parser_tell(p, TOOL_EVENT_CONTENT, str_to(parser_rest(p), length));
    parser_take(p, length);
    parser_end_call(p);
    p->state = PARSER_CHANNEL_HEADER;
    return true;
}
