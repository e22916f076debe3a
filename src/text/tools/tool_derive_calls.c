/* tool_derive_calls.c - see tool_derive.h: how calls are written.
 *
 *     lead  X  [ call's slots and marks ]  S        one call: X opens, S closes
 *     lead  X  [ call ]  M  [ call ]  S             two: M closes, separates and opens
 *
 * What X and M have in common at their ends opens a call, what M and S have in common at their beginnings closes one;
 * the rest of X, M and S belongs to the section around them. */
#include "text/tools/tool_derive.h"
#include "text/tools/tool_marks.h"

#include <stdlib.h>

static size_t find_from(struct str s, size_t at, const char *word) {
    size_t n = text_find(str_from(s, at), str_of(word));
    return n == NOT_FOUND ? n : at + n;
}

// ---- renderings -------------------------------------------------------------------------------------------------

/* A turn of calls, without what any turn begins with and without empty reasoning. */
bool derive_show_calls(struct deriver *d, json_t *take_calls, struct str *out) {
    struct str tail;
    json_t *calls = take_calls;
    bool shown =
        derive_show(d, (struct rendering){.messages = json_pack("[o]", derive_turn(NULL, json_incref(calls)))}, &tail);
    if (!shown || text_find(tail, STR(WORD_NAME)) == NOT_FOUND) {
        // Some write calls only where their results follow.
        json_t *turns = json_pack("[o, {s:s, s:s, s:s, s:s}]", derive_turn(NULL, json_incref(calls)), "role", "tool",
                                  "tool_call_id", WORD_ID, "name", WORD_NAME, "content", "7");
        shown = derive_show(d, (struct rendering){.messages = turns}, &tail);
    }
    json_decref(calls);
    size_t name = shown ? text_find(tail, STR(WORD_NAME)) : NOT_FOUND;
    if (name == NOT_FOUND)
        return false;
    const struct str others[] = {d->prompt, d->thinking, d->no_thinking, d->content};
    size_t lead = 0;
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        lead = MAX(lead, common_prefix(str_to(tail, name), others[i]));
    *out = derive_without_reasoning(d->f, str_from(tail, lead));
    return true;
}

static json_t *one_value(void) { return json_pack("{s:s}", WORD_KEY, WORD_VALUE); }

static json_t *calls_of(const struct deriver *d, json_t *take_object) {
    return json_pack("[o]", derive_call(WORD_NAME, WORD_ID, derive_arguments(d, take_object)));
}

json_t *derive_two_calls(const struct deriver *d) {
    return json_pack("[o, o]", derive_call(WORD_NAME, WORD_ID, derive_arguments(d, one_value())),
                     derive_call(WORD_NAME_2, WORD_ID_2, derive_arguments(d, one_value())));
}

// ---- what stands around -----------------------------------------------------------------------------------------

/* S without what ends any turn. */
struct str derive_without_turn_end(const struct deriver *d, struct str s) {
    size_t word = text_find_last(d->content, STR(WORD_CONTENT));
    if (word != NOT_FOUND)
        s.len -= common_suffix(s, str_from(d->content, word + strlen(WORD_CONTENT)));
    return s;
}

static size_t n_tags(struct str s) {
    size_t count = 0;
    for (size_t i = 0, n; i < s.len; i += n ? n : 1) {
        n = tag_length(str_from(s, i));
        count += n > 0;
    }
    return count;
}

/* What closes has no more tags than what it closes: others end the turn. */
struct str derive_closing(struct str open, struct str close) {
    size_t room = n_tags(open);
    for (size_t i = 0, n; i < close.len; i += n ? n : 1) {
        n = tag_length(str_from(close, i));
        if (n && room-- == 0)
            return str_to(close, i);
    }
    return close;
}

/* x: before the first call, middle: between two (NULL: none is known), close: behind the last. */
void derive_take_section(struct deriver *d, struct str x, struct str middle, struct str close) {
    struct tool_format *f = d->f;
    close = derive_without_turn_end(d, close);
    if (!middle.ptr) {
        f->call_open = x;
        f->call_close = derive_closing(x, close);
        return;
    }
    size_t n_open = common_suffix(x, middle);
    f->call_open = str_from(x, x.len - n_open);
    f->section_open = str_to(x, x.len - n_open);
    middle.len -= n_open;
    size_t n_close = common_prefix(middle, close);
    f->call_close = str_to(middle, n_close);
    f->call_separator = str_from(middle, n_close);
    f->section_close = derive_closing(f->section_open, str_from(close, n_close));
    if (str_is_blank(f->section_open)) { // no section: what else follows the last call ends the turn
        f->section_open = f->section_close = STR("");
        f->call_open = x;
    }
}

// ---- marked -----------------------------------------------------------------------------------------------------

void derive_add_head(struct tool_format *f, struct str mark, enum tool_slot slot) {
    if (f->n_heads < TOOL_HEADS)
        f->heads[f->n_heads++] = (struct tool_head){mark, slot};
}

/* Of a name that stands inside of its id: functions.NAME:0. */
static bool take_path(struct deriver *d, const struct shown *one, size_t *begin, size_t *end) {
    struct str s = one->text;
    static const struct str prefix = {"functions.", 10};
    size_t behind = *end;
    if (*begin < prefix.len || !str_starts(str_from(s, *begin - prefix.len), prefix) || behind + 2 > s.len ||
        s.ptr[behind] != ':' || s.ptr[behind + 1] != '0')
        return false;
    d->f->id = TOOL_ID_PATH;
    *begin -= prefix.len;
    *end += 2;
    return true;
}

/* The text between the name's or the id's end and the arguments. */
static bool take_heads(struct deriver *d, struct shown *one, size_t arguments) {
    struct tool_format *f = d->f;
    struct str s = one->text;
    size_t name = text_find(s, STR(WORD_NAME)), name_end = name + strlen(WORD_NAME);
    size_t id = text_find(s, STR(WORD_ID)), id_end = id + strlen(WORD_ID);
    if (name >= arguments)
        return false;
    take_path(d, one, &name, &name_end);
    if (id != NOT_FOUND && id < arguments) {
        bool first = id < name;
        one->begin = first ? id : name;
        derive_add_head(f, STR(""), first ? TOOL_SLOT_ID : TOOL_SLOT_NAME);
        derive_add_head(f, first ? derive_span(s, id_end, name) : derive_span(s, name_end, id),
                        first ? TOOL_SLOT_NAME : TOOL_SLOT_ID);
        derive_add_head(f, derive_span(s, first ? name_end : id_end, arguments), TOOL_SLOT_ARGUMENTS);
        return true;
    }
    one->begin = name;
    derive_add_head(f, STR(""), TOOL_SLOT_NAME);
    derive_add_head(f, derive_span(s, name_end, arguments), TOOL_SLOT_ARGUMENTS);
    return true;
}

/* Arguments in JSON behind a name. */
static bool take_json_arguments(struct deriver *d, struct shown *one, size_t name) {
    size_t value = find_from(one->text, name, WORD_VALUE), begin;
    json_t *arguments = value == NOT_FOUND ? NULL : derive_json_around(one->text, name, value, &begin, &one->end);
    bool is = json_is_object(arguments) && derive_is_arguments(arguments);
    json_decref(arguments);
    if (!is)
        return false;
    d->f->arguments = TOOL_ARGUMENTS_JSON;
    return take_heads(d, one, begin);
}

/* One mark without blanks; none is one too. */
static bool is_quote(struct str q) {
    for (size_t i = 0; i < q.len; i++)
        if (is_blank(q.ptr[i]))
            return false;
    return q.len != 1 || q.ptr[0] == '"' || q.ptr[0] == '\'';
}

/* What stands before a value that is a string, and before one that is a number, and behind them. */
struct values {
    struct str string_open, number_open, string_close, number_close;
    size_t key, value_end; // in the text of the string
};

static bool show_values(struct deriver *d, const struct shown *one, size_t name, struct values *v) {
    struct str s = one->text, number;
    v->key = find_from(s, name, WORD_KEY);
    size_t key_end = v->key + strlen(WORD_KEY);
    size_t value = v->key == NOT_FOUND ? NOT_FOUND : find_from(s, key_end, WORD_VALUE);
    if (value == NOT_FOUND ||
        !derive_show_calls(d, calls_of(d, json_pack("{s:i}", WORD_KEY, atoi(WORD_NUMBER))), &number))
        return false;
    size_t n_key = find_from(number, text_find(number, STR(WORD_NAME)), WORD_KEY);
    size_t n_value = n_key == NOT_FOUND ? NOT_FOUND : find_from(number, n_key, WORD_NUMBER);
    if (n_value == NOT_FOUND)
        return false;
    v->value_end = value + strlen(WORD_VALUE);
    v->string_open = derive_span(s, key_end, value);
    v->string_close = str_from(s, v->value_end);
    v->number_open = derive_span(number, n_key + strlen(WORD_KEY), n_value);
    v->number_close = str_from(number, n_value + strlen(WORD_NUMBER));
    return true;
}

/* f(a='x') and f{a:<|"|>x<|"|>}: between a sign and a comma or the end, with quotes around strings, around all values
 * or, where a template is careless, around none. */
static bool take_literal(struct deriver *d, struct shown *one, const struct values *v) {
    struct tool_format *f = d->f;
    struct str sign = v->string_open;
    if (sign.len == 0 || (sign.ptr[0] != '=' && sign.ptr[0] != ':'))
        return false;
    size_t n_sign = 1 + leading_blanks(str_from(sign, 1));
    struct str quote = str_from(sign, n_sign);
    if (!is_quote(quote) || !str_starts(v->string_close, quote))
        return false;
    size_t end = v->value_end + quote.len, open = v->key;
    end += leading_blanks(str_from(one->text, end));
    bool closes = end < one->text.len && (one->text.ptr[end] == ')' || one->text.ptr[end] == '}');
    if (!closes)
        return false;
    while (open > 0 && one->text.ptr[open - 1] != '(' && one->text.ptr[open - 1] != '{')
        open--;
    if (open == 0)
        return false;
    f->arguments = TOOL_ARGUMENTS_LITERAL;
    f->arguments_open = derive_span(one->text, open - 1, open);
    f->arguments_close = derive_span(one->text, end, end + 1);
    f->quote = quote.len <= 1 ? STR("") : quote;
    one->end = end + 1;
    return take_heads(d, one, open - 1);
}

/* A tag a key. */
static bool take_tagged(struct deriver *d, struct shown *one, const struct values *v) {
    struct tool_format *f = d->f;
    struct str two;
    json_t *both = json_pack("{s:s, s:i}", WORD_KEY, WORD_VALUE, WORD_KEY_2, atoi(WORD_NUMBER));
    if (!derive_show_calls(d, calls_of(d, both), &two))
        return false;
    size_t value_end = find_from(two, text_find(two, STR(WORD_KEY)), WORD_VALUE);
    if (value_end == NOT_FOUND)
        return false;
    value_end += strlen(WORD_VALUE);
    size_t key_2 = find_from(two, value_end, WORD_KEY_2);
    if (key_2 == NOT_FOUND)
        return false;
    size_t name_end = text_find(one->text, STR(WORD_NAME)) + strlen(WORD_NAME);
    struct str first = derive_span(one->text, name_end, v->key), between = derive_span(two, value_end, key_2);
    size_t n_open = common_suffix(first, between);
    f->key_open = str_from(first, first.len - n_open);
    f->key_close = v->string_open;
    f->key_close_other = str_eq(v->string_open, v->number_open) ? STR("") : v->number_open;
    between.len -= n_open;
    f->value_close = str_to(between, common_prefix(between, v->string_close));
    f->argument_separator = str_from(between, f->value_close.len);
    if (str_core(f->key_open).len == 0 || str_core(f->key_close).len == 0 || str_core(f->value_close).len == 0)
        return false;
    f->arguments = TOOL_ARGUMENTS_TAGGED;
    one->end = v->value_end + f->value_close.len;
    return take_heads(d, one, v->key - n_open);
}

/* A mark that changes with the name is none: to=N<|message|><invoke name="N">. */
static bool has_name_twice(const struct shown *one, size_t name) {
    size_t key = find_from(one->text, name, WORD_KEY), again = find_from(one->text, name + 1, WORD_NAME);
    return again != NOT_FOUND && key != NOT_FOUND && again < key;
}

static bool take_arguments(struct deriver *d, struct shown *one) {
    size_t name = text_find(one->text, STR(WORD_NAME));
    struct values v;
    if (has_name_twice(one, name))
        return false;
    if (take_json_arguments(d, one, name))
        return true;
    return show_values(d, one, name, &v) && (take_literal(d, one, &v) || take_tagged(d, one, &v));
}

/* Between two calls: from the first one's last slot to the second one's first. */
static struct str middle_of(struct deriver *d, const struct shown *one) {
    struct str two;
    if (!derive_show_calls(d, derive_two_calls(d), &two))
        return (struct str){0};
    // Up to its end the first call is written as it is alone, and so is what precedes the name of the second.
    size_t same = one->end;
    size_t first = text_find(two, STR(WORD_NAME)), second = text_find(two, STR(WORD_NAME_2));
    if (first == NOT_FOUND || second == NOT_FOUND || second < same || two.len < same)
        return (struct str){0};
    size_t id = text_find(two, STR(WORD_ID_2));
    size_t begin = d->f->heads[0].slot == TOOL_SLOT_ID && id != NOT_FOUND ? id : second;
    if (d->f->id == TOOL_ID_PATH)
        begin -= strlen("functions.");
    return begin > same ? derive_span(two, same, begin) : (struct str){0};
}

static bool take_marked(struct deriver *d, struct shown *one) {
    struct tool_format *f = d->f;
    if (!take_arguments(d, one))
        return false;
    f->style = TOOL_STYLE_MARKED;
    struct str middle = middle_of(d, one);
    f->one_call = !middle.ptr;
    derive_take_section(d, str_to(one->text, one->begin), middle, str_from(one->text, one->end));
    f->heads[0].mark = f->call_open;
    return true;
}

// ---- all --------------------------------------------------------------------------------------------------------

/* Nine letters and digits where another id is refused. */
static void find_id_form(struct deriver *d) {
    struct str tail;
    if (d->f->id != TOOL_ID_ANY)
        return;
    json_t *other = json_pack("[o]", derive_call(WORD_NAME, "call_1", derive_arguments(d, one_value())));
    if (!derive_show_calls(d, other, &tail))
        d->f->id = TOOL_ID_NINE;
}

void derive_calls(struct deriver *d) {
    struct shown one = {0};
    if (!derive_show_calls(d, calls_of(d, one_value()), &one.text)) {
        d->f->refusal = "the template shows no calls";
        return;
    }
    size_t name = text_find(one.text, STR(WORD_NAME));
    one.value = derive_json_around(one.text, 0, name, &one.begin, &one.end);
    bool found = one.value ? derive_json_calls(d, &one) : take_marked(d, &one);
    json_decref(one.value);
    if (!found) {
        d->f->style = TOOL_STYLE_NONE;
        d->f->refusal = "the template's form of calls is not understood";
        return;
    }
    find_id_form(d);
    d->f->found = "derived";
}
