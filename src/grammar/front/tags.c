/* tags.c - structural tags: free text, then on a trigger a grammar, then free text. See front.h.
 *
 * Forms are those of XGrammar, as vLLM's users send them: {"type": "structural_tag", "format": F}, and the older
 * {"structures": [{"begin", "schema", "end"}], "triggers": [..]}. F is one of const_string, regex, grammar (GBNF or
 * Lark), json_schema (style json), any_text, any_tokens, token, sequence, or, optional, plus, star, repeat, tag,
 * triggered_tags, token_triggered_tags, tags_with_separator, dispatch, token_dispatch. A member that is not read would
 * be a bound that is not kept, so it is refused by name.
 *
 * Free text ends where a trigger does, or where the tag around it may end. Text that a tag writes (begin, end,
 * separators, constants) may hold names of special tokens, "<|python_tag|>": where the vocabulary has one of that name,
 * the token may stand for its name. */
#include "grammar/front.h"
#include "grammar/front/strings.h"

#include <stdlib.h>

enum { MAX_DEPTH = 64, MAX_NAME = 64 };

struct tags {
    struct ir *ir;
    const struct grammar_style *style;
    struct error *err;
    int depth;
    struct strings ends; // of the nearest tag around: free text ends before them
};

typedef enum status format_reader(struct tags *t, const json_t *f, ir_id *out);
static enum status read_format(struct tags *t, const json_t *f, ir_id *out);

static enum status bad(struct tags *t, const char *form, const char *key, const char *wanted) {
    return fail(t->err, ERR_FORMAT, "the structural tag: %s.%s must be %s", form, key, wanted);
}

// ---- text, and special tokens in it -----------------------------------------------------------------------------

/* The length of what could be the name of a special token at the beginning of s: <...> or [...] without blanks. */
static size_t name_length(struct str s) {
    char close = s.len && s.ptr[0] == '<' ? '>' : s.len && s.ptr[0] == '[' ? ']' : '\0';
    for (size_t i = 1; close && i < s.len && i < MAX_NAME; i++) {
        if (s.ptr[i] == close)
            return i + 1;
        if (s.ptr[i] == ' ' || s.ptr[i] == '\n' || s.ptr[i] == s.ptr[0])
            return 0;
    }
    return 0;
}

ir_id ir_marked(struct ir *ir, struct str s) {
    ir_id out = IR_EMPTY;
    size_t from = 0;
    for (size_t i = 0; i < s.len;) {
        struct str name = {s.ptr + i, name_length((struct str){s.ptr + i, s.len - i})};
        if (name.len == 0) {
            i++;
            continue;
        }
        ir_id token = ir_token(ir, (struct ir_token){.name = name, .may_lack = true});
        ir_id parts[] = {out, ir_bytes(ir, (struct str){s.ptr + from, i - from}),
                         ir_alt(ir, ir_bytes(ir, name), token)};
        out = ir_seq_of(ir, parts, 3);
        from = i += name.len;
    }
    return ir_seq(ir, out, ir_bytes(ir, (struct str){s.ptr + from, s.len - from}));
}

static ir_id text_of(struct tags *t, struct str s) { return ir_marked(t->ir, s); }

static enum status read_token(struct tags *t, const json_t *v, struct ir_token *out) {
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < INT32_MAX)
        *out = (struct ir_token){.id = (int32_t)json_integer_value(v)};
    else if (json_is_string(v))
        *out = (struct ir_token){.name = string_of(v), .id = -1};
    else
        return fail(t->err, ERR_FORMAT, "the structural tag: a token is given by its name or its id");
    return OK;
}

/* The tokens of f[key], an array, which may lack. Free with free(). */
static enum status read_tokens(struct tags *t, const json_t *f, const char *key, struct ir_token **out, size_t *n) {
    const json_t *list = json_object_get(f, key);
    *n = json_array_size(list);
    *out = xcalloc(*n + 1, sizeof **out);
    for (size_t i = 0; i < *n; i++) {
        enum status st = read_token(t, json_array_get(list, i), &(*out)[i]);
        if (st != OK) {
            free(*out);
            return st;
        }
    }
    return OK;
}

// ---- leaves -----------------------------------------------------------------------------------------------------

static enum status read_const(struct tags *t, const json_t *f, ir_id *out) {
    const json_t *value = json_object_get(f, "value");
    if (!json_is_string(value))
        return bad(t, "const_string", "value", "a string");
    *out = text_of(t, string_of(value));
    return OK;
}

static enum status read_regex(struct tags *t, const json_t *f, ir_id *out) {
    const json_t *pattern = json_object_get(f, "pattern");
    if (!json_is_string(pattern))
        return bad(t, "regex", "pattern", "a string");
    return regex_read(t->ir, string_of(pattern), out, t->err);
}

static enum status read_grammar(struct tags *t, const json_t *f, ir_id *out) {
    const json_t *grammar = json_object_get(f, "grammar");
    if (!json_is_string(grammar))
        return bad(t, "grammar", "grammar", "a string");
    const char *syntax = json_string_value(json_object_get(f, "syntax"));
    if (!(syntax && strcmp(syntax, "lark") == 0) && strstr(json_string_value(grammar), "::="))
        return gbnf_read(t->ir, string_of(grammar), out, t->err);
    return lark_read(t->ir, string_of(grammar), out, t->err);
}

/* A text as JSON writes a string. It stands between quotes: where a tag around it may end is no matter within. */
static enum status read_json_string(struct tags *t, const json_t *f, ir_id *out) {
    struct strings outer = t->ends;
    ir_id content;
    t->ends = (struct strings){0};
    enum status st = read_format(t, json_object_get(f, "content"), &content);
    t->ends = outer;
    if (st == OK)
        *out = ir_quoted(t->ir, content);
    return st;
}

static enum status read_schema(struct tags *t, const json_t *f, ir_id *out) {
    const json_t *schema = json_object_get(f, "json_schema"), *style = json_object_get(f, "style");
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return bad(t, "json_schema", "json_schema", "a schema");
    if (json_is_string(style) && strcmp(json_string_value(style), "json") != 0)
        return fail(t->err, ERR_UNSUPPORTED, "the structural tag: json_schema of style %s is not enforced",
                    json_string_value(style));
    return schema_read(t->ir, schema, t->style, out, t->err);
}

static ir_id free_text(struct tags *t, const struct strings *triggers, const struct strings *excludes) {
    struct strings all = {0};
    strings_put_all(&all, triggers);
    strings_put_all(&all, excludes);
    strings_put_all(&all, &t->ends);
    ir_id out = ir_text_without(t->ir, all.at, all.n);
    strings_release(&all);
    return out;
}

static enum status read_any_text(struct tags *t, const json_t *f, ir_id *out) {
    struct strings excludes = {0}, none = {0};
    if (!strings_read(&excludes, json_object_get(f, "excludes")))
        return strings_release(&excludes), bad(t, "any_text", "excludes", "an array of strings that are not empty");
    *out = free_text(t, &none, &excludes);
    strings_release(&excludes);
    return OK;
}

static enum status read_any_tokens(struct tags *t, const json_t *f, ir_id *out) {
    struct ir_token *tokens;
    struct strings none = {0};
    size_t n;
    TRY(read_tokens(t, f, "exclude_tokens", &tokens, &n));
    *out = ir_repeat(t->ir, ir_alt(t->ir, free_text(t, &none, &none), ir_not_tokens(t->ir, tokens, n)), 0, IR_NO_MAX);
    free(tokens);
    return OK;
}

static enum status read_one_token(struct tags *t, const json_t *f, ir_id *out) {
    struct ir_token token;
    TRY(read_token(t, json_object_get(f, "token"), &token));
    *out = ir_token(t->ir, token);
    return OK;
}

// ---- combinations -----------------------------------------------------------------------------------------------

static enum status read_elements(struct tags *t, const json_t *list, const char *form, const char *key, ir_id **out) {
    if (!json_is_array(list) || json_array_size(list) == 0)
        return bad(t, form, key, "an array of at least one form");
    size_t n = json_array_size(list);
    *out = xcalloc(n, sizeof **out);
    for (size_t i = 0; i < n; i++) {
        enum status st = read_format(t, json_array_get(list, i), &(*out)[i]);
        if (st != OK) {
            free(*out);
            return st;
        }
    }
    return OK;
}

static enum status read_sequence(struct tags *t, const json_t *f, ir_id *out) {
    ir_id *parts;
    const json_t *list = json_object_get(f, "elements");
    TRY(read_elements(t, list, "sequence", "elements", &parts));
    *out = ir_seq_of(t->ir, parts, json_array_size(list));
    free(parts);
    return OK;
}

static enum status read_or(struct tags *t, const json_t *f, ir_id *out) {
    ir_id *parts;
    const json_t *list = json_object_get(f, "elements");
    TRY(read_elements(t, list, "or", "elements", &parts));
    *out = ir_alt_of(t->ir, parts, json_array_size(list));
    free(parts);
    return OK;
}

static enum status read_repeated(struct tags *t, const json_t *f, int32_t min, int32_t max, ir_id *out) {
    ir_id content;
    TRY(read_format(t, json_object_get(f, "content"), &content));
    *out = ir_repeat(t->ir, content, min, max);
    return OK;
}
static enum status read_optional(struct tags *t, const json_t *f, ir_id *out) { return read_repeated(t, f, 0, 1, out); }
static enum status read_star(struct tags *t, const json_t *f, ir_id *out) {
    return read_repeated(t, f, 0, IR_NO_MAX, out);
}
static enum status read_plus(struct tags *t, const json_t *f, ir_id *out) {
    return read_repeated(t, f, 1, IR_NO_MAX, out);
}
static enum status read_repeat(struct tags *t, const json_t *f, ir_id *out) {
    int64_t min, max;
    TRY(jv_int(f, "the structural tag: repeat", "min", 0, INT32_MAX, &min, t->err));
    TRY(jv_int(f, "the structural tag: repeat", "max", -1, INT32_MAX, &max, t->err));
    if (max >= 0 && max < min)
        return bad(t, "repeat", "max", "min or more, or -1");
    return read_repeated(t, f, (int32_t)min, (int32_t)max, out);
}

// ---- tags -------------------------------------------------------------------------------------------------------

/* What stands at an end of a tag: text, one of some texts, or a token. Texts are put into `texts` too. */
static enum status read_mark(struct tags *t, const json_t *mark, const char *key, struct strings *texts, ir_id *out) {
    if (json_is_object(mark))
        return read_format(t, mark, out);
    if (json_is_string(mark))
        strings_put(texts, string_of(mark));
    else if (!json_is_array(mark) || json_array_size(mark) == 0 || !strings_read_any(texts, mark))
        return bad(t, "tag", key, "a string, strings, or a token");
    *out = IR_NEVER;
    for (size_t i = 0; i < texts->n; i++)
        *out = ir_alt(t->ir, *out, text_of(t, texts->at[i]));
    return OK;
}

static enum status read_tag(struct tags *t, const json_t *f, ir_id *out) {
    struct strings begins = {0}, ends = {0}, outer = t->ends;
    ir_id begin = IR_NEVER, content = IR_NEVER, end = IR_NEVER;
    if (json_is_array(json_object_get(f, "begin")))
        return bad(t, "tag", "begin", "a string, or a token");
    enum status st = read_mark(t, json_object_get(f, "begin"), "begin", &begins, &begin);
    if (st == OK)
        st = read_mark(t, json_object_get(f, "end"), "end", &ends, &end);
    strings_drop_empty(&ends);
    t->ends = ends;
    if (st == OK)
        st = read_format(t, json_object_get(f, "content"), &content);
    t->ends = outer;
    strings_release(&begins);
    strings_release(&ends);
    if (st == OK)
        *out = ir_seq_of(t->ir, (ir_id[]){begin, content, end}, 3);
    return st;
}

static bool is_set(const json_t *f, const char *key) { return json_is_true(json_object_get(f, key)); }

/* All tags of f, as alternatives. check: each one's begin starts with exactly one of the triggers. */
static enum status read_tags(struct tags *t, const json_t *f, const char *form, const struct strings *triggers,
                             ir_id *out) {
    ir_id *parts;
    const json_t *list = json_object_get(f, "tags");
    for (size_t i = 0; triggers && i < json_array_size(list); i++) {
        const json_t *begin = json_object_get(json_array_get(list, i), "begin");
        size_t n = 0;
        for (size_t k = 0; k < triggers->n && json_is_string(begin); k++)
            n += str_starts(string_of(begin), triggers->at[k]);
        if (n != 1)
            return fail(t->err, ERR_FORMAT,
                        "the structural tag: begin of tag %zu must start with exactly one of the triggers", i);
    }
    TRY(read_elements(t, list, form, "tags", &parts));
    *out = ir_alt_of(t->ir, parts, json_array_size(list));
    free(parts);
    return OK;
}

/* Free text with tags among it. At least one: the text begins with a tag. */
static ir_id among_text(struct tags *t, const json_t *f, ir_id text, ir_id tag) {
    bool at_least_one = is_set(f, "at_least_one"), one = is_set(f, "stop_after_first");
    if (one)
        return at_least_one ? tag : ir_seq(t->ir, text, ir_optional(t->ir, tag));
    ir_id more = ir_seq(t->ir, text, ir_repeat(t->ir, ir_seq(t->ir, tag, text), 0, IR_NO_MAX));
    return at_least_one ? ir_seq(t->ir, tag, more) : more;
}

static enum status read_triggered(struct tags *t, const json_t *f, ir_id *out) {
    struct strings triggers = {0}, excludes = {0};
    ir_id tag = IR_NEVER;
    enum status st = OK;
    if (!strings_read(&triggers, json_object_get(f, "triggers")) || triggers.n == 0)
        st = bad(t, "triggered_tags", "triggers", "an array of at least one string that is not empty");
    else if (!strings_read(&excludes, json_object_get(f, "excludes")))
        st = bad(t, "triggered_tags", "excludes", "an array of strings that are not empty");
    if (st == OK)
        st = read_tags(t, f, "triggered_tags", &triggers, &tag);
    if (st == OK)
        *out = among_text(t, f, free_text(t, &triggers, &excludes), tag);
    strings_release(&triggers);
    strings_release(&excludes);
    return st;
}

static enum status check_excluded(struct tags *t, const json_t *f) {
    const json_t *excluded = json_object_get(f, "exclude_tokens");
    for (size_t i = 0; i < json_array_size(excluded); i++)
        if (!json_is_string(json_array_get(excluded, i)))
            return fail(t->err, ERR_UNSUPPORTED,
                        "the structural tag: exclude_tokens by id is not enforced, special tokens by name are");
    return OK;
}

/* Free text has no special tokens at all, so the triggers are never in it; nor are excluded ones that have a name. */
static enum status read_token_triggered(struct tags *t, const json_t *f, ir_id *out) {
    struct strings none = {0};
    ir_id tag;
    TRY(check_excluded(t, f));
    if (!json_array_size(json_object_get(f, "trigger_tokens")))
        return bad(t, "token_triggered_tags", "trigger_tokens", "an array of at least one token");
    TRY(read_tags(t, f, "token_triggered_tags", NULL, &tag));
    *out = among_text(t, f, free_text(t, &none, &none), tag);
    return OK;
}

static enum status read_separated(struct tags *t, const json_t *f, ir_id *out) {
    ir_id tag;
    const json_t *separator = json_object_get(f, "separator");
    if (!json_is_string(separator))
        return bad(t, "tags_with_separator", "separator", "a string");
    TRY(read_tags(t, f, "tags_with_separator", NULL, &tag));
    ir_id more = ir_seq(t->ir, text_of(t, string_of(separator)), tag);
    *out = is_set(f, "stop_after_first") ? tag : ir_seq(t->ir, tag, ir_repeat(t->ir, more, 0, IR_NO_MAX));
    if (!is_set(f, "at_least_one"))
        *out = ir_optional(t->ir, *out);
    return OK;
}

/* {"rules": [[pattern, form], ..]}: free text until a pattern stands there (a text, or a token), then its form. */
static enum status read_rules(struct tags *t, const json_t *f, const char *form, struct strings *patterns, ir_id *out) {
    const json_t *rules = json_object_get(f, "rules");
    *out = IR_NEVER;
    for (size_t i = 0; i < json_array_size(rules); i++) {
        const json_t *rule = json_array_get(rules, i), *pattern = json_array_get(rule, 0);
        ir_id begin, content;
        struct ir_token token;
        if (json_array_size(rule) != 2 || (patterns && json_string_length(pattern) == 0))
            return bad(t, form, "rules", "an array of pairs, of what begins a form and the form");
        if (patterns)
            strings_put(patterns, string_of(pattern));
        else
            TRY(read_token(t, pattern, &token));
        begin = patterns ? text_of(t, string_of(pattern)) : ir_token(t->ir, token);
        TRY(read_format(t, json_array_get(rule, 1), &content));
        *out = ir_alt(t->ir, *out, ir_seq(t->ir, begin, content));
    }
    return json_array_size(rules) ? OK : bad(t, form, "rules", "an array of at least one pair");
}

/* Where the form of a rule ends free text goes on, unless "loop" is false. */
static ir_id dispatched(struct tags *t, const json_t *f, ir_id text, ir_id rule) {
    if (json_is_false(json_object_get(f, "loop")))
        return ir_seq(t->ir, text, ir_optional(t->ir, rule));
    return ir_seq(t->ir, text, ir_repeat(t->ir, ir_seq(t->ir, rule, text), 0, IR_NO_MAX));
}

static enum status read_dispatch(struct tags *t, const json_t *f, ir_id *out) {
    struct strings patterns = {0}, excludes = {0};
    ir_id rule;
    enum status st = OK;
    if (!strings_read(&excludes, json_object_get(f, "excludes")))
        st = bad(t, "dispatch", "excludes", "an array of strings that are not empty");
    if (st == OK)
        st = read_rules(t, f, "dispatch", &patterns, &rule);
    if (st == OK)
        *out = dispatched(t, f, free_text(t, &patterns, &excludes), rule);
    strings_release(&patterns);
    strings_release(&excludes);
    return st;
}

static enum status read_token_dispatch(struct tags *t, const json_t *f, ir_id *out) {
    struct strings none = {0};
    ir_id rule;
    TRY(check_excluded(t, f));
    TRY(read_rules(t, f, "token_dispatch", NULL, &rule));
    *out = dispatched(t, f, free_text(t, &none, &none), rule);
    return OK;
}

enum { MEMBERS = 6 };

/* What is not read must ask for nothing. */
static enum status check_members(struct tags *t, const json_t *f, const char *type, const char *const known[MEMBERS]) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)f, key, value) {
        bool is_known = strcmp(key, "type") == 0;
        for (int i = 0; i < MEMBERS && known[i] && !is_known; i++)
            is_known = strcmp(key, known[i]) == 0;
        bool nothing = json_is_null(value) || json_is_false(value) || (json_is_array(value) && !json_array_size(value));
        if (!is_known && !nothing)
            return fail(t->err, ERR_UNSUPPORTED, "the structural tag: %s.%.40s is not enforced", type, key);
    }
    return OK;
}

static enum status read_format(struct tags *t, const json_t *f, ir_id *out) {
    static const struct {
        const char *type;
        format_reader *read;
        const char *members[MEMBERS];
    } forms[] = {
        {"const_string", read_const, {"value"}},
        {"json_schema", read_schema, {"json_schema", "style", "any_order"}}, // keys come in any order
        {"grammar", read_grammar, {"grammar", "syntax"}},
        {"json_string", read_json_string, {"content"}},
        {"regex", read_regex, {"pattern"}},
        {"any_text", read_any_text, {"excludes"}},
        {"any_tokens", read_any_tokens, {"exclude_tokens"}},
        {"token", read_one_token, {"token"}},
        {"sequence", read_sequence, {"elements"}},
        {"or", read_or, {"elements"}},
        {"optional", read_optional, {"content"}},
        {"plus", read_plus, {"content"}},
        {"star", read_star, {"content"}},
        {"repeat", read_repeat, {"min", "max", "content"}},
        {"tag", read_tag, {"begin", "content", "end"}},
        {"triggered_tags", read_triggered, {"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}},
        {"token_triggered_tags",
         read_token_triggered,
         {"trigger_tokens", "tags", "at_least_one", "stop_after_first", "exclude_tokens"}},
        {"tags_with_separator", read_separated, {"tags", "separator", "at_least_one", "stop_after_first"}},
        {"dispatch", read_dispatch, {"rules", "loop", "excludes"}},
        {"token_dispatch", read_token_dispatch, {"rules", "loop", "exclude_tokens"}},
    };
    *out = IR_NEVER;
    const char *type = json_string_value(json_object_get(f, "type"));
    if (!type && json_object_get(f, "begin") && !json_object_get(f, "type")) // as lists of tags have them
        type = "tag";
    if (!type)
        return fail(t->err, ERR_FORMAT, "the structural tag: a form must be an object with a type, not %s",
                    f ? jv_type_name(f) : "missing");
    if (t->depth == MAX_DEPTH)
        return fail(t->err, ERR_LIMIT, "the structural tag: forms are nested deeper than %d", MAX_DEPTH);
    for (size_t i = 0; i < ARRAY_LEN(forms); i++)
        if (strcmp(type, forms[i].type) == 0) {
            TRY(check_members(t, f, type, forms[i].members));
            t->depth++;
            enum status st = forms[i].read(t, f, out);
            t->depth--;
            return st;
        }
    return fail(t->err, ERR_UNSUPPORTED, "the structural tag: the form %s is not enforced", type);
}

/* {"structures": [{"begin", "schema", "end"}], "triggers": [..]} in today's form. */
static json_t *of_structures(const json_t *tag) {
    json_t *tags = json_array();
    for (size_t i = 0; i < json_array_size(json_object_get(tag, "structures")); i++) {
        const json_t *s = json_array_get(json_object_get(tag, "structures"), i);
        json_t *schema = json_object_get(s, "schema");
        json_t *content = json_pack("{s:s, s:O?}", "type", "json_schema", "json_schema", schema);
        json_array_append_new(tags,
                              json_pack("{s:s, s:O?, s:o, s:O?}", "type", "tag", "begin", json_object_get(s, "begin"),
                                        "content", content, "end", json_object_get(s, "end")));
    }
    return json_pack("{s:s, s:o, s:O?}", "type", "triggered_tags", "tags", tags, "triggers",
                     json_object_get(tag, "triggers"));
}

enum status tags_read(struct ir *ir, const json_t *tag, const struct grammar_style *style, ir_id *out,
                      struct error *err) {
    struct tags t = {.ir = ir, .style = style, .err = err};
    if (!json_object_get(tag, "structures") && !json_object_get(tag, "format"))
        return fail(err, ERR_FORMAT,
                    "the structural tag must be an object with a format, or with structures and triggers");
    json_t *older = json_object_get(tag, "format") ? NULL : of_structures(tag);
    enum status st = read_format(&t, older ? older : json_object_get(tag, "format"), out);
    json_decref(older);
    return st == OK ? ir_check(ir, err) : st;
}
