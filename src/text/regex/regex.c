/* regex.c - see regex.h. */
#include "text/regex/regex.h"

#include "text/regex/regex_syntax.h"
#include "text/regex/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <limits.h>
#include <pcre2.h>
#include <time.h>

// Steps are PCRE2's of backtracking. It counts them anew at each place where a match may begin.
enum {
    FREE_STEPS = 64,             // at each place, uncounted: a text has no more of them than places
    HARDER = 4,                  // how many times as many the next try has
    STEP_LIMIT = 10000000,       // of one match
    TEXT_STEPS = 5 * STEP_LIMIT, // of all matches in a text: about 0.1 s with the JIT
    STEPS_A_BYTE = 64,           // and these
    WINDOW = 4096,               // places that are tried in one call
    WINDOW_BYTES = 16 << 20,     // which may be read from each of them to the end of the text
    LOOK_EVERY = 64,             // calls, at the clock
    LONG_BYTES = 1 << 16,        // of a text: it is looked at that many times more often
    TEXT_US = 1000000,
    US_A_BYTE = 2,
    JIT_STACK_BYTES = 1 << 20,
    PATTERN_MAX_BYTES = 1 << 16,
};

static const int OUT_OF_TIME = INT_MIN; // beside PCRE2's codes

struct regex {
    pcre2_code *code;
    /* Of a pattern with a \G, which is where the search began: the same for matches that begin more than `reach` bytes
     * behind that, where its \G is never met. NULL: it has none. */
    pcre2_code *elsewhere;
    size_t reach;
};

struct regex_memory {
    pcre2_match_context *context;
    pcre2_match_data *match;
    pcre2_jit_stack *stack;
    int64_t deadline_us; // of the thread's processor time
    int64_t left_us;     // while it is paused
    int64_t steps_left;  // of the text
    size_t unseen;       // calls since the clock was looked at, those of long texts more than once
};

static enum status compile_one(struct str pattern, uint32_t options, const char *where, struct str shown,
                               pcre2_code **out, struct error *err) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    size_t offset;
    options |= PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern.ptr, pattern.len, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        PCRE2_UCHAR message[200];
        pcre2_get_error_message(code, message, sizeof message);
        return fail(err, ERR_UNSUPPORTED, "%s: the pattern \"%.*s\" cannot be used: %s", where,
                    (int)MIN(shown.len, 200), shown.ptr, (const char *)message);
    }
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); // where there is no JIT, PCRE2 interprets
    *out = compiled;
    return OK;
}

/* The pattern with what never matches in place of each \G. */
static bool without_start(struct str pattern, struct buf *out) {
    bool has_one = false;
    for (size_t i = 0; i < pattern.len; i++) {
        bool escapes = pattern.ptr[i] == '\\' && i + 1 < pattern.len;
        if (escapes && pattern.ptr[i + 1] == 'G') {
            buf_str(out, STR("(?!)"));
            has_one = true;
        } else {
            buf_append(out, pattern.ptr + i, 1 + escapes);
        }
        i += escapes;
    }
    return has_one;
}

static enum status compile(struct str pattern, uint32_t options, const char *where, struct str shown,
                           struct regex **out, struct error *err) {
    enum { MOST_UTF8 = 4 }; // bytes of a character
    struct buf elsewhere = {0};
    struct regex *re = xcalloc(1, sizeof *re);
    uint32_t n_behind = 0;
    enum status st = compile_one(pattern, options, where, shown, &re->code, err);
    if (st == OK && without_start(pattern, &elsewhere)) {
        pcre2_pattern_info(re->code, PCRE2_INFO_MAXLOOKBEHIND, &n_behind);
        re->reach = MOST_UTF8 * (size_t)n_behind;
        st = compile_one(buf_view(&elsewhere), options, where, shown, &re->elsewhere, err);
    }
    buf_release(&elsewhere);
    if (st != OK) {
        regex_free(re);
        re = NULL;
    }
    *out = re;
    return st;
}

enum status regex_compile(struct str pattern, enum regex_dialect dialect, const char *where, struct regex **out,
                          struct error *err) {
    if (pattern.len > PATTERN_MAX_BYTES)
        return fail(err, ERR_LIMIT, "%s: a pattern has %zu bytes, the limit is %d", where, pattern.len,
                    PATTERN_MAX_BYTES);
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
    pcre2_code_free(re->elsewhere);
    free(re);
}

struct regex_memory *regex_memory_open(void) {
    struct regex_memory *m = xmalloc(sizeof *m);
    m->context = pcre2_match_context_create(NULL);
    m->match = pcre2_match_data_create(1, NULL);
    m->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    regex_memory_begin(m, 0);
    return m;
}

static int64_t thread_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

void regex_memory_begin(struct regex_memory *m, size_t n_bytes) {
    m->deadline_us = thread_us() + TEXT_US + US_A_BYTE * (int64_t)n_bytes;
    m->steps_left = TEXT_STEPS + STEPS_A_BYTE * (int64_t)n_bytes;
    m->unseen = 0;
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
    if (code == PCRE2_ERROR_MATCHLIMIT)
        return fail(err, ERR_LIMIT, "the patterns of the tokenizer take too many steps for this text");
    if (code == OUT_OF_TIME)
        return fail(err, ERR_LIMIT, "the patterns of the tokenizer take too long for this text");
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(code, message, sizeof message);
    return fail(err, ERR_LIMIT, "a pattern of the tokenizer gave up on this text: %s", (const char *)message);
}

void regex_memory_pause(struct regex_memory *m) { m->left_us = m->deadline_us - thread_us(); }

void regex_memory_go_on(struct regex_memory *m, size_t n_bytes) {
    m->deadline_us = thread_us() + m->left_us + US_A_BYTE * (int64_t)n_bytes;
    m->steps_left += STEPS_A_BYTE * (int64_t)n_bytes;
}

/* A match that begins at `at` or one of the `window` places behind it, with so many steps at each. */
static int match_from(const pcre2_code *code, struct regex_memory *m, struct str text, size_t at, size_t window,
                      int64_t steps) {
    pcre2_set_offset_limit(m->context, at + window);
    pcre2_set_match_limit(m->context, (uint32_t)steps);
    return pcre2_match(code, (PCRE2_SPTR)text.ptr, text.len, at, PCRE2_NO_UTF_CHECK, m->match, m->context);
}

/* Where the free steps were not enough: more and more of the text's own, as if each try used all that it has. A step
 * may read to the end of the text, and no call can be stopped: so one that would take until past the deadline, by what
 * the last one took, is not made. */
static int match_harder(const pcre2_code *pattern, struct regex_memory *m, struct str text, size_t at, size_t window) {
    int code = PCRE2_ERROR_MATCHLIMIT;
    int64_t n_places = (int64_t)window + 1, steps = FREE_STEPS, took_us = 0, now_us = thread_us();
    while (code == PCRE2_ERROR_MATCHLIMIT && steps < STEP_LIMIT && m->steps_left >= n_places) {
        if (now_us + HARDER * took_us > m->deadline_us)
            return OUT_OF_TIME;
        steps = MIN(MIN(steps * HARDER, STEP_LIMIT), m->steps_left / n_places);
        m->steps_left -= steps * n_places;
        code = match_from(pattern, m, text, at, window, steps);
        took_us = thread_us() - now_us;
        now_us += took_us;
    }
    return code;
}

static bool is_late(struct regex_memory *m, struct str text) {
    m->unseen += 1 + text.len / LONG_BYTES;
    if (m->unseen < LOOK_EVERY)
        return false;
    m->unseen = 0;
    return thread_us() > m->deadline_us;
}

static size_t place_behind(struct str text, size_t at) {
    return at + (at < text.len ? (size_t)utf8_length(text.ptr[at]) : 1);
}

static size_t place_past(struct str text, size_t at, size_t end) {
    while (at <= end && at <= text.len)
        at = place_behind(text, at);
    return at;
}

/* A call tries a window of places with free steps, and where they are not enough one place after another. */
static int search_places(const pcre2_code *pattern, struct regex_memory *m, struct str text, size_t at) {
    const size_t wide = MIN(WINDOW, WINDOW_BYTES / (text.len + 1));
    for (size_t careful_until = 0; at <= text.len;) {
        size_t window = at < careful_until ? 0 : wide;
        int code = match_from(pattern, m, text, at, window, FREE_STEPS);
        if (code == PCRE2_ERROR_MATCHLIMIT && window == 0)
            code = match_harder(pattern, m, text, at, 0);
        if (is_late(m, text))
            return OUT_OF_TIME;
        if (code == PCRE2_ERROR_MATCHLIMIT && window > 0)
            careful_until = at + window + 1;
        else if (code == PCRE2_ERROR_NOMATCH)
            at = place_past(text, at, at + window);
        else
            return code;
    }
    return PCRE2_ERROR_NOMATCH;
}

/* With a \G, which the next place would move: the places that it reaches in one call, but the first by itself where it
 * is hard, and then the others without it. */
static int search_from_start(const struct regex *re, struct regex_memory *m, struct str text, size_t at) {
    size_t near = MIN(re->reach, text.len - at);
    int code = match_from(re->code, m, text, at, near, FREE_STEPS);
    if (code == PCRE2_ERROR_MATCHLIMIT) {
        code = match_harder(re->code, m, text, at, 0);
        if (code == PCRE2_ERROR_NOMATCH && near > 0)
            code = match_harder(re->code, m, text, at, near);
    }
    if (is_late(m, text))
        return OUT_OF_TIME;
    return code == PCRE2_ERROR_NOMATCH ? search_places(re->elsewhere, m, text, place_past(text, at, at + near)) : code;
}

/* The first match at or behind `at`. */
static enum status search(const struct regex *re, struct regex_memory *m, struct str text, size_t at, bool *found,
                          struct error *err) {
    int code = re->elsewhere ? search_from_start(re, m, text, at) : search_places(re->code, m, text, at);
    *found = code >= 0;
    return *found || code == PCRE2_ERROR_NOMATCH ? OK : match_failed(code, err);
}

enum status regex_next(const struct regex *re, struct regex_memory *m, struct regex_walk *walk, size_t *begin,
                       size_t *end, bool *found, struct error *err) {
    *found = false;
    while (walk->at <= walk->text.len) {
        bool hit = false;
        TRY(search(re, m, walk->text, walk->at, &hit, err));
        if (!hit)
            return OK;
        const size_t *range = pcre2_get_ovector_pointer(m->match);
        if (range[0] > range[1] || range[0] < walk->last_end) // \K inside a lookaround
            return fail(err, ERR_UNSUPPORTED, "a pattern of the tokenizer matches backwards");
        if (range[0] == range[1] && walk->matched && range[1] == walk->last_end) {
            walk->at = place_behind(walk->text, walk->at);
            continue;
        }
        *begin = range[0];
        *end = walk->at = walk->last_end = range[1];
        *found = walk->matched = true;
        return OK;
    }
    return OK;
}
