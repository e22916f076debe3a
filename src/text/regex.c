/* regex.c - see regex.h. */
#include "text/regex.h"

#include "text/regex_syntax.h"
#include "text/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    STEP_LIMIT = 10000000, // backtracking steps of one match, as PCRE2 counts them
    JIT_STACK_BYTES = 1 << 20,
    PATTERN_MAX_BYTES = 1 << 16,
};

struct regex {
    pcre2_code *code;
};

struct regex_memory {
    pcre2_match_context *context;
    pcre2_match_data *match;
    pcre2_jit_stack *stack;
};

static enum status compile(struct str pattern, uint32_t options, const char *where, struct str shown, struct regex **out,
                           struct error *err) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    size_t offset;
    options |= PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern.ptr, pattern.len, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        PCRE2_UCHAR message[200];
        pcre2_get_error_message(code, message, sizeof message);
        return fail(err, ERR_UNSUPPORTED, "%s: the pattern \"%.*s\" cannot be used: %s", where, (int)MIN(shown.len, 200), shown.ptr,
                    (const char *)message);
    }
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); // where there is no JIT, PCRE2 interprets
    *out = xmalloc(sizeof **out);
    (*out)->code = compiled;
    return OK;
}

enum status regex_compile(struct str pattern, enum regex_dialect dialect, const char *where, struct regex **out, struct error *err) {
    if (pattern.len > PATTERN_MAX_BYTES)
        return fail(err, ERR_LIMIT, "%s: a pattern has %zu bytes, the limit is %d", where, pattern.len, PATTERN_MAX_BYTES);
    if (dialect == REGEX_RUST)
        return compile(pattern, PCRE2_DOLLAR_ENDONLY, where, pattern, out, err);
    struct buf translated = {0};
    enum status st = regex_translate(pattern, &translated, err);
    if (st != OK)
        fail_within(err, st, "%s: the pattern \"%.*s\"", where, (int)MIN(pattern.len, 200), pattern.ptr);
    else
        st = compile(buf_view(&translated), PCRE2_MULTILINE, where, pattern, out, err);
    buf_release(&translated);
    return st;
}

void regex_free(struct regex *re) {
    if (!re)
        return;
    pcre2_code_free(re->code);
    free(re);
}

struct regex_memory *regex_memory_open(void) {
    struct regex_memory *m = xmalloc(sizeof *m);
    m->context = pcre2_match_context_create(NULL);
    m->match = pcre2_match_data_create(1, NULL);
    m->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
    pcre2_set_match_limit(m->context, STEP_LIMIT);
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return m;
}

void regex_memory_free(struct regex_memory *m) {
    if (!m)
        return;
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->match);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

static enum status match_failed(int code, struct error *err) {
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(code, message, sizeof message);
    return fail(err, ERR_LIMIT, "a pattern of the tokenizer gave up on this text: %s", (const char *)message);
}

enum status regex_next(const struct regex *re, struct regex_memory *m, struct regex_walk *walk, size_t *begin, size_t *end, bool *found,
                       struct error *err) {
    *found = false;
    while (walk->at <= walk->text.len) {
        int code = pcre2_match(re->code, (PCRE2_SPTR)walk->text.ptr, walk->text.len, walk->at, PCRE2_NO_UTF_CHECK, m->match, m->context);
        if (code == PCRE2_ERROR_NOMATCH)
            return OK;
        if (code < 0)
            return match_failed(code, err);
        const size_t *range = pcre2_get_ovector_pointer(m->match);
        if (range[0] > range[1] || range[0] < walk->last_end) // \K inside a lookaround
            return fail(err, ERR_UNSUPPORTED, "a pattern of the tokenizer matches backwards");
        if (range[0] == range[1] && walk->matched && range[1] == walk->last_end) {
            walk->at += walk->at < walk->text.len ? (size_t)utf8_length(walk->text.ptr[walk->at]) : 1;
            continue;
        }
        *begin = range[0];
        *end = walk->at = walk->last_end = range[1];
        *found = walk->matched = true;
        return OK;
    }
    return OK;
}
