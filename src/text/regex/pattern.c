/* pattern.c - see pattern.h. */
#include "text/regex/pattern.h"

#include "text/regex/unicode.h"

void pattern_release(struct pattern *p) {
    regex_free(p->regex);
    free(p->literal);
}

void pattern_of_literal(struct str literal, struct pattern *out) {
    *out = (struct pattern){.kind = PATTERN_LITERAL, .literal = xmalloc(literal.len + 1), .literal_len = literal.len};
    memcpy(out->literal, literal.ptr, literal.len);
}

enum status pattern_of_regex(struct str regex, enum regex_dialect dialect, const char *where, struct pattern *out,
                             struct error *err) {
    *out = (struct pattern){.kind = PATTERN_WORDS, .words = word_rules_find(regex)};
    if (out->words)
        return OK;
    out->kind = PATTERN_REGEX;
    return regex_compile(regex, dialect, where, &out->regex, err);
}

enum status pattern_read(const json_t *value, const char *where, struct pattern *out, struct error *err) {
    const json_t *string = json_object_get(value, "String"), *regex = json_object_get(value, "Regex");
    if (json_is_string(string) && json_string_length(string) > 0) {
        pattern_of_literal((struct str){json_string_value(string), json_string_length(string)}, out);
        return OK;
    }
    if (json_is_string(string)) // the empty pattern matches between all characters
        regex = string;
    if (!json_is_string(regex))
        return fail(err, ERR_FORMAT, "%s: \"pattern\" is %s, it must be an object with \"String\" or \"Regex\"", where,
                    jv_type_name(value));
    return pattern_of_regex((struct str){json_string_value(regex), json_string_length(regex)}, REGEX_ONIGURUMA, where,
                            out, err);
}

static bool find_literal(const struct pattern *p, struct regex_walk *walk, size_t *begin, size_t *end) {
    const char *from = walk->text.ptr + walk->at;
    const char *hit = memmem(from, walk->text.len - walk->at, p->literal, p->literal_len);
    if (!hit)
        return false;
    *begin = (size_t)(hit - walk->text.ptr);
    *end = *begin + p->literal_len;
    return true;
}

static bool find_character(const struct pattern *p, struct regex_walk *walk, size_t *begin, size_t *end) {
    for (size_t at = walk->at, n; at < walk->text.len; at += n) {
        uint32_t cp;
        n = (size_t)utf8_step(walk->text.ptr + at, &cp);
        if (p->is_match(cp)) {
            *begin = at;
            *end = at + n;
            return true;
        }
    }
    return false;
}

static bool find_run(struct regex_walk *walk, size_t *begin, size_t *end) {
    uint32_t cp = 0;
    size_t at = walk->at;
    while (at < walk->text.len && (utf8_step(walk->text.ptr + at, &cp), char_is_space(cp)))
        at += (size_t)utf8_length(walk->text.ptr[at]);
    if (at == walk->text.len)
        return false;
    *begin = at;
    bool word = char_is_word(cp);
    while (at < walk->text.len && (utf8_step(walk->text.ptr + at, &cp), char_is_word(cp) == word && !char_is_space(cp)))
        at += (size_t)utf8_length(walk->text.ptr[at]);
    *end = at;
    return true;
}

enum status pattern_next(const struct pattern *p, struct regex_memory *m, struct regex_walk *walk, size_t *begin,
                         size_t *end, bool *found, struct error *err) {
    switch (p->kind) {
    case PATTERN_REGEX: return regex_next(p->regex, m, walk, begin, end, found, err);
    case PATTERN_WORDS:
        *begin = *end = walk->at;
        *found = walk->at < walk->text.len;
        if (*found)
            *end = (size_t)(word_scan(p->words, walk->text.ptr + walk->at, walk->text.ptr + walk->text.len) -
                            walk->text.ptr);
        break;
    case PATTERN_LITERAL: *found = find_literal(p, walk, begin, end); break;
    case PATTERN_CHARACTER: *found = find_character(p, walk, begin, end); break;
    case PATTERN_RUNS: *found = find_run(walk, begin, end); break;
    }
    if (*found)
        walk->at = *end;
    return OK;
}

/* The pieces while they are decided: one may wait for what follows it. */
struct splitter {
    enum split_behavior behavior;
    bool invert;
    split_emit emit;
    void *arg;
    bool waits, waiting_match; // a piece that may still grow; whether it was a match
    size_t begin, end;
    bool last_was_match; // of the item before, matches and what lies between them counted alike
};

static enum status release_waiting(struct splitter *s, struct error *err) {
    if (!s->waits)
        return OK;
    s->waits = false;
    return s->begin < s->end ? s->emit(s->arg, s->begin, s->end, err) : OK;
}

/* Whether the item joins the piece that waits. */
static bool joins(const struct splitter *s, bool match) {
    switch (s->behavior) {
    case SPLIT_MERGED_WITH_PREVIOUS: return match && !s->last_was_match;
    case SPLIT_MERGED_WITH_NEXT: return !match && s->waiting_match;
    case SPLIT_CONTIGUOUS: return match == s->last_was_match;
    default: return false;
    }
}

/* One item of the text: a match, or what lies between two. */
static enum status take_item(struct splitter *s, bool match, size_t begin, size_t end, struct error *err) {
    match ^= s->invert;
    if (s->behavior == SPLIT_REMOVED && match)
        return OK;
    if (s->waits && joins(s, match)) {
        s->end = end;
        s->waiting_match = false;
    } else {
        TRY(release_waiting(s, err));
        s->waits = true;
        s->begin = begin;
        s->end = end;
        s->waiting_match = match;
    }
    s->last_was_match = match;
    return OK;
}

enum status split_text(const struct pattern *p, enum split_behavior behavior, bool invert, struct regex_memory *m,
                       struct str text, split_emit emit, void *arg, struct error *err) {
    struct splitter s = {.behavior = behavior, .invert = invert, .emit = emit, .arg = arg};
    struct regex_walk walk = {.text = text};
    size_t covered = 0, begin, end;
    for (;;) {
        bool found;
        TRY(pattern_next(p, m, &walk, &begin, &end, &found, err));
        if (!found)
            break;
        if (covered < begin)
            TRY(take_item(&s, false, covered, begin, err));
        TRY(take_item(&s, true, begin, end, err));
        covered = end;
    }
    if (covered < text.len)
        TRY(take_item(&s, false, covered, text.len, err));
    return release_waiting(&s, err);
}
