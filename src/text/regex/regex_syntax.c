/* regex_syntax.c - see regex_syntax.h.
 *
 * A recursive descent over the pattern that writes as it reads. What each Oniguruma construct means was found by
 * asking the library (version 6.9, inside tokenizers 0.23). */
#include "text/regex/regex_syntax.h"

#include "text/regex/regex_parse.h"

static enum status parse_alternatives(struct regex_parser *p, struct error *err);

/* A word boundary by Oniguruma's idea of a word. */
static void put_boundary(struct buf *out, bool negated) {
    buf_str(out, STR("(?:(?<=[" REGEX_WORD "])"));
    buf_printf(out, "(?%c[%s])|", negated ? '=' : '!', REGEX_WORD);
    buf_str(out, STR("(?<![" REGEX_WORD "])"));
    buf_printf(out, "(?%c[%s]))", negated ? '!' : '=', REGEX_WORD);
}

/* \k<name>, \g<name> */
static enum status parse_reference(struct regex_parser *p, char kind, struct error *err) {
    const char *begin = p->pattern.ptr + p->at;
    const char *close = regex_peek(p) == '<' ? memchr(begin, '>', p->pattern.len - p->at) : NULL;
    if (!close)
        return fail(err, ERR_FORMAT, "\\%c needs a <name>", kind);
    size_t n = (size_t)(close + 1 - begin);
    buf_printf(p->out, "\\%c", kind);
    buf_append(p->out, begin, n);
    p->at += n;
    return OK;
}

/* An escape that is neither a character nor a set; the backslash is the next byte. */
static enum status parse_escape(struct regex_parser *p, struct error *err) {
    if (p->at + 1 == p->pattern.len)
        return fail(err, ERR_FORMAT, "the pattern ends with a backslash");
    char c = p->pattern.ptr[p->at + 1];
    p->at += 2;
    switch (c) {
    case 'A':
    case 'Z':
    case 'z':
    case 'G':
    case 'X':
    case 'K': buf_printf(p->out, "\\%c", c); return OK;
    case 'b':
    case 'B': put_boundary(p->out, c == 'B'); return OK;
    case 'N': buf_str(p->out, STR("[^\\n]")); return OK;
    case 'O': buf_str(p->out, STR("\\p{Any}")); return OK;
    case 'R': buf_str(p->out, STR("(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])")); return OK;
    case 'k':
    case 'g': return parse_reference(p, c, err);
    default: break;
    }
    if (c < '1' || c > '9')
        return fail(err, ERR_UNSUPPORTED, "\\%c is not supported", c);
    if (regex_peek(p) >= '0' && regex_peek(p) <= '9')
        return fail(err, ERR_UNSUPPORTED, "a reference to a group past the ninth is not supported");
    buf_printf(p->out, "(?:\\%c)", c); // apart from digits that may follow
    return OK;
}

static enum status parse_set(struct regex_parser *p, bool *is_set, struct error *err) {
    struct buf items = {0};
    bool negated;
    enum status st = regex_parse_shorthand(p, false, &items, &negated, is_set, err);
    if (st == OK && *is_set)
        buf_printf(p->out, "[%s%s]", negated ? "^" : "", items.ptr);
    buf_release(&items);
    return st;
}

static enum status skip_comment(struct regex_parser *p, struct error *err) {
    for (; !regex_at_end(p) && regex_peek(p) != ')'; p->at++)
        p->at += regex_peek(p) == '\\' && p->at + 1 < p->pattern.len;
    return regex_accept(p, ")") ? OK : fail(err, ERR_FORMAT, "a comment is not closed");
}

/* The rest of a group whose opening was written, with its closing. */
static enum status parse_inside(struct regex_parser *p, struct error *err) {
    struct regex_options outer = p->options;
    if (++p->depth > REGEX_NEST_MAX)
        return fail(err, ERR_LIMIT, "groups nest more than %d deep", REGEX_NEST_MAX);
    TRY(parse_alternatives(p, err));
    p->depth--;
    p->options = outer;
    if (!regex_accept(p, ")"))
        return fail(err, ERR_FORMAT, "a group is not closed");
    buf_push(p->out, ')');
    return OK;
}

/* The letters of (?imx-imx, up to ':' or ')', which is left. */
static enum status parse_options(struct regex_parser *p, struct error *err) {
    bool on = true;
    for (;; p->at++) {
        char c = regex_peek(p);
        switch (c) {
        case '-': on = false; break;
        case 'i': p->options.caseless = on; break;
        case 'm': p->options.dot_all = on; break;
        case 'x': p->options.extended = on; break;
        case ':':
        case ')': return OK;
        default:
            return fail(err, ERR_UNSUPPORTED, "the group (?%.*s is not supported", c ? 1 : 0, p->pattern.ptr + p->at);
        }
    }
}

static void put_options(struct buf *out, const struct regex_options *o) {
    buf_printf(out, "(?%s%s", o->caseless ? "i" : "", o->dot_all ? "s" : "");
    if (!o->caseless || !o->dot_all)
        buf_printf(out, "-%s%s", o->caseless ? "" : "i", o->dot_all ? "" : "s");
    buf_push(out, ':');
}

/* (?i:...), or (?i), which holds to the end of the enclosing group, over its alternatives too: a(?i)b|c is
 * a(?i:b|c). */
static enum status parse_option_group(struct regex_parser *p, struct error *err) {
    struct regex_options outer = p->options;
    TRY(parse_options(p, err));
    put_options(p->out, &p->options);
    if (regex_accept(p, ":")) {
        TRY(parse_inside(p, err));
    } else {
        p->at++;
        if (++p->depth > REGEX_NEST_MAX)
            return fail(err, ERR_LIMIT, "groups nest more than %d deep", REGEX_NEST_MAX);
        TRY(parse_alternatives(p, err));
        p->depth--;
        buf_push(p->out, ')');
    }
    p->options = outer;
    return OK;
}

static enum status parse_named_group(struct regex_parser *p, struct error *err) {
    buf_str(p->out, STR("(?<"));
    while (!regex_at_end(p) && regex_peek(p) != '>')
        buf_push(p->out, p->pattern.ptr[p->at++]);
    if (!regex_accept(p, ">"))
        return fail(err, ERR_FORMAT, "the name of a group is not closed");
    buf_push(p->out, '>');
    return parse_inside(p, err);
}

static enum status parse_group(struct regex_parser *p, struct error *err) {
    static const char *const plain[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        if (regex_accept(p, plain[i])) {
            buf_str(p->out, str_of(plain[i]));
            return parse_inside(p, err);
        }
    if (regex_accept(p, "(?<"))
        return parse_named_group(p, err);
    if (regex_accept(p, "(?"))
        return parse_option_group(p, err);
    if (regex_accept(p, "(*"))
        return fail(err, ERR_UNSUPPORTED, "the group (* is not supported");
    p->at++;
    buf_push(p->out, '(');
    return parse_inside(p, err);
}

/* {n}, {n,}, {n,m}, {,m}; anything else in braces is literal text. *high is -1 where there is no upper bound. */
static bool parse_interval(struct regex_parser *p, int *low, int *high) {
    int bound[2] = {-1, -1};
    int which = 0;
    size_t at = p->at + 1;
    for (; at < p->pattern.len; at++) {
        char c = p->pattern.ptr[at];
        if (c >= '0' && c <= '9' && bound[which] < 100000)
            bound[which] = MAX(bound[which], 0) * 10 + (c - '0');
        else if (c == ',' && which == 0)
            which = 1;
        else
            break;
    }
    if (at == p->pattern.len || p->pattern.ptr[at] != '}' || (bound[0] < 0 && bound[1] < 0))
        return false;
    p->at = at + 1;
    *low = MAX(bound[0], 0);
    *high = which == 0 ? bound[0] : bound[1];
    return true;
}

/* Makes one group of what was written since `mark`. */
static void wrap(struct buf *out, size_t mark) {
    struct buf inner = {0};
    buf_append(&inner, out->ptr + mark, out->len - mark);
    out->len = mark;
    buf_str(out, STR("(?:"));
    buf_str(out, buf_view(&inner));
    buf_push(out, ')');
    buf_release(&inner);
}

static bool quantifier_follows(struct regex_parser *p) {
    int low, high;
    size_t at = p->at;
    bool interval = regex_peek(p) == '{' && parse_interval(p, &low, &high);
    p->at = at;
    return interval || (regex_peek(p) && strchr("?*+", regex_peek(p)));
}

/* The quantifier that follows. {2}+ and {2}? are no possessive and no lazy form in Oniguruma: what comes after is
 * a quantifier of its own. */
static void put_quantifier(struct regex_parser *p) {
    int low, high;
    if (regex_peek(p) != '{') {
        buf_push(p->out, p->pattern.ptr[p->at++]);
        if (regex_peek(p) == '?' || regex_peek(p) == '+')
            buf_push(p->out, p->pattern.ptr[p->at++]);
    } else if (parse_interval(p, &low, &high)) {
        buf_printf(p->out, "{%d", low);
        if (high < 0)
            buf_push(p->out, ',');
        else if (high != low)
            buf_printf(p->out, ",%d", high);
        buf_push(p->out, '}');
        if (high != low && regex_accept(p, "?"))
            buf_push(p->out, '?');
    }
}

/* All quantifiers for what was written since `mark`: each repeats what the one before made. */
static void put_quantifiers(struct regex_parser *p, size_t mark) {
    for (bool first = true; quantifier_follows(p); first = false) {
        if (!first)
            wrap(p->out, mark);
        put_quantifier(p);
    }
}

/* What is no single character: appends one atom. */
static enum status parse_atom(struct regex_parser *p, struct error *err) {
    bool is_set;
    switch (regex_peek(p)) {
    case '(': return parse_group(p, err);
    case '[': return regex_parse_class(p, p->out, err);
    case '.':
    case '^':
    case '$': buf_push(p->out, p->pattern.ptr[p->at++]); return OK;
    case '\\': TRY(parse_set(p, &is_set, err)); return is_set ? OK : parse_escape(p, err);
    default: return fail(err, ERR_FORMAT, "a quantifier has nothing to repeat");
    }
}

/* White space and comments, where they mean nothing. */
static enum status skip_unread(struct regex_parser *p, bool *skipped, struct error *err) {
    *skipped = true;
    if (regex_accept(p, "(?#"))
        return skip_comment(p, err);
    char c = regex_peek(p);
    if (p->options.extended && c == '#') {
        while (!regex_at_end(p) && regex_peek(p) != '\n')
            p->at++;
        return OK;
    }
    *skipped = p->options.extended && c && strchr(" \t\n\r\v\f", c);
    p->at += *skipped;
    return OK;
}

/* Characters that stand side by side are written together: without case, "ss" has more to match than two "s". */
struct literal_run {
    uint32_t cps[64];
    size_t n;
};

static void put_run(struct regex_parser *p, struct literal_run *run, size_t keep) {
    regex_put_literals(p->out, run->cps, run->n - keep, p->options.caseless);
    if (keep)
        run->cps[0] = run->cps[run->n - 1];
    run->n = keep;
}

static enum status parse_sequence(struct regex_parser *p, struct error *err) {
    struct literal_run run = {.n = 0};
    while (!regex_at_end(p) && regex_peek(p) != '|' && regex_peek(p) != ')') {
        bool skipped, is_one;
        TRY(skip_unread(p, &skipped, err));
        if (skipped)
            continue;
        uint32_t cp;
        TRY(regex_parse_character(p, false, &cp, &is_one, err));
        if (is_one) {
            run.cps[run.n++] = cp;
            if (!quantifier_follows(p)) {
                if (run.n == ARRAY_LEN(run.cps))
                    put_run(p, &run, 0);
                continue;
            }
        }
        put_run(p, &run, is_one); // a quantifier binds the last character alone
        size_t mark = p->out->len;
        if (is_one)
            put_run(p, &run, 0);
        else
            TRY(parse_atom(p, err));
        put_quantifiers(p, mark);
    }
    put_run(p, &run, 0);
    return OK;
}

static enum status parse_alternatives(struct regex_parser *p, struct error *err) {
    for (;;) {
        TRY(parse_sequence(p, err));
        if (!regex_accept(p, "|"))
            return OK;
        buf_push(p->out, '|');
    }
}

enum status regex_translate(struct str pattern, struct buf *out, struct error *err) {
    struct regex_parser p = {.pattern = pattern, .out = out};
    TRY(parse_alternatives(&p, err));
    return regex_at_end(&p) ? OK : fail(err, ERR_FORMAT, "a parenthesis is closed that was not opened");
}
