/* tool_literal.c - see tool_literal.h. */
#include "text/tools/tool_literal.h"

#include "base/status.h"
#include "text/tools/tool_marks.h"

#include <ctype.h>

void literal_init(struct literal *l, bool strict, struct str quote) {
    *l = (struct literal){.state = LITERAL_VALUE, .strict = strict, .quote = quote};
}

void literal_release(struct literal *l) { buf_release(&l->word); }

// ---- words ------------------------------------------------------------------------------------------------------

static size_t digits(struct str s, size_t at) {
    size_t n = at;
    while (n < s.len && isdigit((unsigned char)s.ptr[n]))
        n++;
    return n - at;
}

static bool is_number(struct str s) {
    size_t at = s.len && s.ptr[0] == '-', n = digits(s, at);
    if (n == 0 || (n > 1 && s.ptr[at] == '0'))
        return false;
    at += n;
    if (at < s.len && s.ptr[at] == '.') {
        n = digits(s, at + 1);
        if (n == 0)
            return false;
        at += 1 + n;
    }
    if (at < s.len && (s.ptr[at] | 32) == 'e') {
        at++;
        if (at < s.len && (s.ptr[at] == '+' || s.ptr[at] == '-'))
            at++;
        n = digits(s, at);
        if (n == 0)
            return false;
        at += n;
    }
    return at == s.len;
}

/* 1_000, +5, .5 and 5. are numbers to Python; 07 is none, but models write months so. */
static bool python_number(struct str s, struct buf *out) {
    struct buf number = {0};
    for (size_t i = s.len && s.ptr[0] == '+'; i < s.len; i++) {
        bool first = number.len == 0 || (number.len == 1 && number.ptr[0] == '-');
        if (s.ptr[i] == '_' || (first && s.ptr[i] == '0' && i + 1 < s.len && isdigit((unsigned char)s.ptr[i + 1])))
            continue;
        if (s.ptr[i] == '.' && (number.len == 0 || !isdigit((unsigned char)number.ptr[number.len - 1])))
            buf_push(&number, '0');
        buf_push(&number, s.ptr[i]);
        if (s.ptr[i] == '.' && (i + 1 == s.len || !isdigit((unsigned char)s.ptr[i + 1])))
            buf_push(&number, '0');
    }
    bool is = is_number(buf_view(&number));
    if (is)
        buf_str(out, buf_view(&number));
    buf_release(&number);
    return is;
}

bool literal_word(struct str word, bool strict, struct buf *out) {
    static const struct {
        struct str word, json;
        bool python;
    } names[] = {{{"true", 4}, {"true", 4}, false},  {{"false", 5}, {"false", 5}, false},
                 {{"null", 4}, {"null", 4}, false},  {{"True", 4}, {"true", 4}, true},
                 {{"False", 5}, {"false", 5}, true}, {{"None", 4}, {"null", 4}, true}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (str_eq(word, names[i].word) && !(strict && names[i].python)) {
            buf_str(out, names[i].json);
            return true;
        }
    if (is_number(word)) {
        buf_str(out, word);
        return true;
    }
    return !strict && python_number(word, out);
}

// ---- strings ----------------------------------------------------------------------------------------------------

static void put_char(struct buf *out, char c) {
    if ((unsigned char)c < 0x20 && c != '\n' && c != '\t')
        buf_printf(out, "\\u%04x", c);
    else if (c == '\n')
        buf_str(out, STR("\\n"));
    else if (c == '\t')
        buf_str(out, STR("\\t"));
    else {
        if (c == '"' || c == '\\')
            buf_push(out, '\\');
        buf_push(out, c);
    }
}

static size_t hex_digits(struct str s, size_t at, size_t most) {
    size_t n = 0;
    while (n < most && at + n < s.len && isxdigit((unsigned char)s.ptr[at + n]))
        n++;
    return n;
}

/* The escape at s, of which JSON's are kept and Python's are made JSON's. Returns its length; 0: more is needed. */
static size_t put_escape(struct str s, struct buf *out) {
    if (s.len < 2)
        return 0;
    char c = s.ptr[1];
    size_t want = c == 'u' ? 4 : c == 'x' ? 2 : 0, have = hex_digits(s, 2, want);
    if (want && have < want && s.len == 2 + have)
        return 0;
    if (want && have == want) {
        buf_str(out, c == 'u' ? STR("\\u") : STR("\\u00"));
        buf_append(out, s.ptr + 2, want);
        return 2 + want;
    }
    if (strchr("\"\\/bfnrt", c) && c) {
        buf_append(out, s.ptr, 2);
        return 2;
    }
    if (c == '\'') {
        buf_push(out, c);
        return 2;
    }
    buf_str(out, STR("\\\\")); // none of either: a backslash
    return 1;
}

/* Whether Python's quote at the beginning of s ends a string: models forget to escape those within ('don't'), and
 * behind one that ends a string something of the structure follows, or a mark. MARK_MORE: s is too short to say. */
static enum mark_match ends_string(const struct literal *l, struct str s) {
    size_t next = 1 + leading_blanks(str_from(s, 1));
    if (l->strict || !l->quoted_by || next > LITERAL_BLANKS)
        return MARK_YES;
    if (next == s.len)
        return l->ended ? MARK_YES : MARK_MORE;
    return s.ptr[next] && strchr(",:=)]}<[", s.ptr[next]) ? MARK_YES : MARK_NO;
}

static struct str closing_quote(const struct literal *l) {
    return l->quoted_by ? (struct str){&l->quoted_by, 1} : l->quote;
}

static enum literal_result read_string(struct literal *l, struct str text, size_t *used, struct buf *out) {
    struct str close = closing_quote(l);
    while (*used < text.len) {
        struct str rest = str_from(text, *used);
        enum mark_match ends = str_starts(rest, close) ? ends_string(l, rest) : MARK_NO;
        if (ends == MARK_MORE)
            return LITERAL_MORE;
        if (ends == MARK_YES) {
            *used += close.len;
            buf_push(out, '"');
            l->state = l->is_key ? LITERAL_COLON : LITERAL_COMMA_OR_END;
            return LITERAL_DONE;
        }
        if (rest.len < close.len && str_starts(close, rest))
            return LITERAL_MORE;
        if (rest.ptr[0] == '\\' && l->quoted_by) {
            size_t n = put_escape(rest, out);
            if (n == 0)
                return LITERAL_MORE;
            *used += n;
            continue;
        }
        put_char(out, rest.ptr[0]);
        ++*used;
    }
    return LITERAL_MORE;
}

// ---- structure --------------------------------------------------------------------------------------------------

static bool in_object(const struct literal *l) { return l->depth && l->open[l->depth - 1] != '['; }

static void put_comma(struct literal *l, struct buf *out) {
    if (l->comma && !l->strict)
        buf_str(out, STR(", "));
    l->comma = false;
}

static bool open_container(struct literal *l, char c, struct buf *out) {
    bool knows = c == '{' || c == '[' || (c == '(' && !l->strict);
    if (!knows || l->depth == LITERAL_DEPTH || (l->depth == 0 && c == '[' && l->strict))
        return false;
    put_comma(l, out);
    bool is_object = c == '{' || (c == '(' && l->depth == 0); // a tuple is an array
    buf_push(out, is_object ? '{' : '[');
    l->open[l->depth++] = is_object ? c : '[';
    l->state = is_object ? LITERAL_KEY_OR_END : LITERAL_ITEM_OR_END;
    return true;
}

static bool close_container(struct literal *l, char c, struct buf *out) {
    if (l->depth == 0 || (l->comma && l->strict))
        return false;
    char open = l->open[l->depth - 1];
    bool fits = (open == '{' && c == '}') || (open == '[' && (c == ']' || (c == ')' && !l->strict))) ||
                (open == '(' && c == ')');
    if (!fits)
        return false;
    l->comma = false;
    buf_push(out, open == '[' ? ']' : '}');
    l->depth--;
    l->state = l->depth ? LITERAL_COMMA_OR_END : LITERAL_OVER;
    return true;
}

static void begin_string(struct literal *l, char quoted_by, bool is_key, struct buf *out) {
    put_comma(l, out);
    buf_push(out, '"');
    l->quoted_by = quoted_by;
    l->is_key = is_key;
    l->state = LITERAL_STRING;
}

static bool ends_word(const struct literal *l, char c) {
    if (strchr(l->is_key ? ":=,(){}[]" : ",(){}[]", c))
        return true;
    return is_blank(c) && (l->is_key || l->quote.len == 0);
}

static bool finish_word(struct literal *l, struct buf *out) {
    struct str word = str_core(buf_view(&l->word));
    put_comma(l, out);
    if (l->is_key || !literal_word(word, l->strict, out)) {
        if (l->strict)
            return false;
        buf_json_string(out, word);
    }
    buf_clear(&l->word);
    l->state = l->is_key ? LITERAL_COLON : LITERAL_COMMA_OR_END;
    return true;
}

static enum literal_result read_word(struct literal *l, struct str text, size_t *used, struct buf *out) {
    size_t n = *used;
    while (n < text.len && !ends_word(l, text.ptr[n]))
        n++;
    buf_append(&l->word, text.ptr + *used, n - *used);
    *used = n;
    if (l->word.len > LITERAL_WORD_BYTES)
        return LITERAL_BROKEN;
    if (n == text.len)
        return LITERAL_MORE;
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
    if (c == '"' || (c == '\'' && !l->strict)) {
        ++*used;
        begin_string(l, c, is_key, out);
        return LITERAL_DONE;
    }
    if (!is_key && open_container(l, c, out)) {
        ++*used;
        return LITERAL_DONE;
    }
    l->is_key = is_key;
    if (l->depth == 0 || (is_key && l->strict) || ends_word(l, c))
        return LITERAL_BROKEN;
    l->state = LITERAL_WORD;
    return LITERAL_DONE;
}

static enum literal_result punctuate(struct literal *l, char c, size_t *used, struct buf *out) {
    bool done = false;
    if (l->state == LITERAL_COLON && (c == ':' || (c == '=' && l->open[l->depth - 1] == '('))) {
        buf_str(out, l->strict ? STR(":") : STR(": "));
        l->state = LITERAL_VALUE;
        done = true;
    } else if (l->state == LITERAL_COMMA_OR_END && c == ',') {
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
        return read_string(l, text, used, out);
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
    *used = 0;
    while (l->state != LITERAL_OVER) {
        if (*used == text.len)
            return LITERAL_MORE;
        enum literal_result r = read_one(l, text, used, out);
        if (r != LITERAL_DONE)
            return r;
    }
    return LITERAL_DONE;
}

void literal_close(struct literal *l, struct buf *out) {
    if (l->state == LITERAL_WORD && !finish_word(l, out))
        return;
    if (l->state == LITERAL_STRING && !l->is_key) {
        buf_push(out, '"');
        l->state = LITERAL_COMMA_OR_END;
    }
    bool between =
        l->state == LITERAL_COMMA_OR_END || l->state == LITERAL_KEY_OR_END || l->state == LITERAL_ITEM_OR_END;
    while (between && l->depth)
        buf_push(out, l->open[--l->depth] == '[' ? ']' : '}');
}
