/* tool_literal.c - see tool_literal.h. */
#include "text/arguments/tool_literal.h"

#include "text/tools/tool_marks.h"

void literal_init(struct literal *l, bool strict, struct str quote) {
    *l = (struct literal){.state = LITERAL_VALUE, .strict = strict, .quote = quote};
}

void literal_release(struct literal *l) {
    buf_release(&l->word);
    buf_release(&l->json);
}

enum { UNDECIDED = '\1' }; // in json, where a bracket may have to be: no JSON has it

// ---- what is told -----------------------------------------------------------------------------------------------

/* Of the innermost level. */
static void decide(struct literal *l, char as) {
    char bracket = as == LITERAL_SET || as == LITERAL_TUPLE ? '[' : as;
    l->json.ptr[l->mark[l->depth - 1]] = bracket;
    l->open[l->depth - 1] = as;
    l->n_undecided--;
}

static bool is_undecided(const struct literal *l, int level) {
    return l->open[level] == LITERAL_PAREN || l->open[level] == LITERAL_BRACE;
}

/* What is decided goes to out. */
static void tell(struct literal *l, struct buf *out) {
    int first = 0;
    while (l->n_undecided && !is_undecided(l, first))
        first++;
    size_t n = l->n_undecided ? l->mark[first] : l->json.len;
    for (size_t i = 0, end; i < n; i = end + 1) {
        const char *none = memchr(l->json.ptr + i, UNDECIDED, n - i); // of (x), which is x
        end = none ? (size_t)(none - l->json.ptr) : n;
        buf_append(out, l->json.ptr + i, end - i);
    }
    if (n) {
        memmove(l->json.ptr, l->json.ptr + n, l->json.len - n);
        l->json.len -= n;
    }
    for (int i = first; n && l->n_undecided && i < l->depth; i++)
        l->mark[i] -= is_undecided(l, i) ? n : 0;
}

/* What is not decided will not be any more. */
static void settle(struct literal *l) {
    for (int i = 0; i < l->depth; i++)
        if (is_undecided(l, i)) {
            bool paren = l->open[i] == LITERAL_PAREN;
            l->json.ptr[l->mark[i]] = paren ? '[' : '{';
            l->open[i] = paren ? LITERAL_TUPLE : '{';
        }
    l->n_undecided = 0;
}

// ---- structure --------------------------------------------------------------------------------------------------

static char innermost(const struct literal *l) { return l->depth ? l->open[l->depth - 1] : '\0'; }
static bool in_object(const struct literal *l) { return innermost(l) == '{' || innermost(l) == '('; }

static void put_comma(struct literal *l, struct buf *out) {
    if (l->comma && !l->strict)
        buf_str(out, STR(", "));
    l->comma = false;
}

/* What a bracket opens; \0: nothing. */
static char opened_by(const struct literal *l, char c) {
    if (l->depth == LITERAL_DEPTH || (l->depth == 0 && c == '[' && l->strict))
        return '\0';
    bool python = !l->strict && (l->depth || l->is_value);
    if (c == '{')
        return python ? LITERAL_BRACE : '{';
    if (c == '(' && !l->strict)
        return python ? LITERAL_PAREN : '(';
    return c == '[' ? '[' : '\0';
}

static bool open_container(struct literal *l, char c, struct buf *out) {
    char as = opened_by(l, c);
    if (!as)
        return false;
    put_comma(l, out);
    bool undecided = as == LITERAL_PAREN || as == LITERAL_BRACE;
    l->mark[l->depth] = out->len;
    l->n_undecided += undecided;
    buf_push(out, undecided ? UNDECIDED : as == '(' ? '{' : as);
    l->open[l->depth++] = as;
    l->state = c == '[' || as == LITERAL_PAREN ? LITERAL_ITEM_OR_END : LITERAL_KEY_OR_END;
    return true;
}

static bool close_container(struct literal *l, char c, struct buf *out) {
    char open = innermost(l);
    if (l->depth == 0 || (l->comma && l->strict) || c != literal_closer(open))
        return false;
    if (open == LITERAL_BRACE)
        decide(l, '{');
    else if (open == LITERAL_PAREN && l->state == LITERAL_ITEM_OR_END)
        decide(l, LITERAL_TUPLE);
    l->comma = false;
    open = innermost(l);
    l->n_undecided -= open == LITERAL_PAREN;
    if (open != LITERAL_PAREN)
        buf_push(out, open == '{' || open == '(' ? '}' : ']');
    l->depth--;
    l->state = l->depth ? LITERAL_COMMA_OR_END : LITERAL_OVER;
    return true;
}

static void begin_string(struct literal *l, char quoted_by, bool is_key, struct buf *out) {
    put_comma(l, out);
    buf_push(out, '"');
    l->quoted_by = quoted_by;
    l->triple = false;
    l->is_key = is_key;
    l->state = LITERAL_STRING;
}

// ---- words ------------------------------------------------------------------------------------------------------

/* Of a word so far that is one character: which. */
static char only_char(const struct literal *l, struct str more) {
    return l->word.len + more.len != 1 ? '\0' : more.len ? more.ptr[0] : l->word.ptr[0];
}

static bool ends_word(const struct literal *l, struct str more, char c) {
    if (l->is_key && l->quote.len) // Gemma's: what stands before the colon, blanks and all
        return strchr(":,{}", c) != NULL;
    if (strchr(l->is_key ? ":=,(){}[]" : ",(){}[]", c))
        return true;
    char only = only_char(l, more);
    return is_blank(c) && l->quote.len == 0 && only != '-' && only != '+';
}

/* json.dumps writes keys that are no texts as texts. */
static void put_key(struct literal *l, struct str word, struct buf *out) {
    struct buf constant = {0};
    bool is = innermost(l) != '(' && l->quote.len == 0 && literal_word(word, false, &constant);
    buf_json_string(out, is ? buf_view(&constant) : word);
    buf_release(&constant);
}

static bool finish_word(struct literal *l, struct buf *out) {
    struct str word = str_core(buf_view(&l->word));
    put_comma(l, out);
    if (l->is_key && l->strict)
        return false;
    if (l->is_key)
        put_key(l, word, out);
    else if (!literal_word(word, l->strict, out)) {
        if (l->strict)
            return false;
        buf_json_string(out, word);
    }
    buf_clear(&l->word);
    l->state = l->is_key ? LITERAL_COLON : LITERAL_COMMA_OR_END;
    return true;
}

static enum literal_result read_quotes(struct literal *l, struct str text, size_t *used, bool is_key, struct buf *out) {
    size_t n = literal_quotes(l, str_from(text, *used));
    if (n == 0)
        return LITERAL_MORE;
    begin_string(l, text.ptr[*used], is_key, out);
    l->triple = n == 3;
    *used += n;
    return LITERAL_DONE;
}

/* Whether the word so far says how a string is to be read that begins with c. */
static bool is_prefix_of(const struct literal *l, struct str more, char c) {
    return !l->strict && (c == '"' || c == '\'') && literal_is_prefix(only_char(l, more));
}

static enum literal_result read_word(struct literal *l, struct str text, size_t *used, struct buf *out) {
    size_t n = *used;
    bool prefix = false;
    while (n < text.len && !prefix) {
        struct str more = {text.ptr + *used, n - *used};
        if (ends_word(l, more, text.ptr[n]))
            break;
        prefix = is_prefix_of(l, more, text.ptr[n]);
        n += !prefix;
    }
    buf_append(&l->word, text.ptr + *used, n - *used);
    *used = n;
    if (prefix) {
        l->raw = (l->word.ptr[0] | 32) == 'r';
        enum literal_result r = read_quotes(l, text, used, l->is_key, out);
        if (r == LITERAL_DONE)
            buf_clear(&l->word);
        return r;
    }
    if (l->word.len > LITERAL_WORD_BYTES)
        return LITERAL_BROKEN;
    if (n == text.len)
        return LITERAL_MORE;
    if (l->is_key && innermost(l) == LITERAL_BRACE) { // it is written when it is known for a key or an item
        l->state = LITERAL_COLON;
        return LITERAL_DONE;
    }
    return finish_word(l, out) ? LITERAL_DONE : LITERAL_BROKEN;
}

/* A value or a key begins. */
static enum literal_result begin(struct literal *l, struct str text, size_t *used, bool is_key, struct buf *out) {
    struct str rest = str_from(text, *used);
    char c = rest.ptr[0];
    if (l->quote.len && str_starts(rest, l->quote)) {
        *used += l->quote.len;
        begin_string(l, '\0', is_key, out);
        return LITERAL_DONE;
    }
    if (l->quote.len && rest.len < l->quote.len && str_starts(l->quote, rest))
        return LITERAL_MORE;
    l->raw = false;
    if (c == '"' || (c == '\'' && !l->strict))
        return read_quotes(l, text, used, is_key, out);
    if (is_key && c == '(' && innermost(l) == LITERAL_BRACE) { // JSON has no such keys
        decide(l, LITERAL_SET);
        is_key = false;
    }
    if (!is_key && open_container(l, c, out)) {
        ++*used;
        return LITERAL_DONE;
    }
    l->is_key = is_key;
    if (l->depth == 0 || (is_key && l->strict) || ends_word(l, STR(""), c))
        return LITERAL_BROKEN;
    l->state = LITERAL_WORD;
    return LITERAL_DONE;
}

/* Behind the first item of a brace, which may be a key. */
static void decide_brace(struct literal *l, bool is_key, struct buf *out) {
    decide(l, is_key ? '{' : LITERAL_SET);
    l->is_key = is_key;
    if (l->word.len)
        finish_word(l, out);
    if (!is_key)
        l->state = LITERAL_COMMA_OR_END;
}

static enum literal_result punctuate(struct literal *l, char c, size_t *used, struct buf *out) {
    bool done = false;
    if (l->state == LITERAL_COLON && innermost(l) == LITERAL_BRACE)
        decide_brace(l, c != ',' && c != '}', out);
    if (l->state == LITERAL_COLON && (c == ':' || (c == '=' && innermost(l) == '('))) {
        buf_str(out, l->strict ? STR(":") : STR(": "));
        l->state = LITERAL_VALUE;
        done = true;
    } else if (l->state == LITERAL_COMMA_OR_END && c == ',') {
        if (innermost(l) == LITERAL_PAREN)
            decide(l, LITERAL_TUPLE);
        l->comma = true;
        if (l->strict) // as it comes; others may have one too many
            buf_push(out, ',');
        l->state = in_object(l) ? LITERAL_KEY_OR_END : LITERAL_ITEM_OR_END;
        done = true;
    } else if (l->state != LITERAL_COLON)
        done = close_container(l, c, out);
    *used += done;
    return done ? LITERAL_DONE : LITERAL_BROKEN;
}

static enum literal_result read_one(struct literal *l, struct str text, size_t *used, struct buf *out) {
    char c = text.ptr[*used];
    if (l->state == LITERAL_STRING)
        return literal_string(l, text, used, out);
    if (l->state == LITERAL_WORD)
        return read_word(l, text, used, out);
    if (is_blank(c)) {
        if (l->strict && l->depth)
            buf_push(out, c);
        ++*used;
        return LITERAL_DONE;
    }
    bool may_close = l->state == LITERAL_ITEM_OR_END || l->state == LITERAL_KEY_OR_END;
    if (l->state == LITERAL_COLON || l->state == LITERAL_COMMA_OR_END ||
        (may_close && (c == ']' || c == '}' || c == ')')))
        return punctuate(l, c, used, out);
    return begin(l, text, used, l->state == LITERAL_KEY_OR_END, out);
}

enum literal_result literal_feed(struct literal *l, struct str text, size_t *used, struct buf *out) {
    struct buf *json = l->strict ? out : &l->json;
    enum literal_result r = LITERAL_DONE;
    *used = 0;
    while (l->state != LITERAL_OVER && r == LITERAL_DONE)
        r = *used == text.len ? LITERAL_MORE : read_one(l, text, used, json);
    l->taken += *used;
    if (r == LITERAL_BROKEN)
        settle(l);
    tell(l, out);
    return r;
}

void literal_cut(struct literal *l, struct buf *out) {
    settle(l);
    tell(l, out);
    buf_str(out, buf_view(&l->word));
    buf_clear(&l->word);
}

void literal_close(struct literal *l, struct buf *out) {
    struct buf *json = l->strict ? out : &l->json;
    bool word = l->state == LITERAL_WORD || (l->state == LITERAL_COLON && l->word.len);
    if (word && !finish_word(l, json))
        return;
    if (l->state == LITERAL_STRING && !l->is_key) {
        buf_push(json, '"');
        l->state = LITERAL_COMMA_OR_END;
    }
    bool between =
        l->state == LITERAL_COMMA_OR_END || l->state == LITERAL_KEY_OR_END || l->state == LITERAL_ITEM_OR_END;
    while (between && l->depth)
        between = close_container(l, literal_closer(innermost(l)), json);
    settle(l);
    tell(l, out);
}
