/* pretokenizer.c - see pretokenizer.h. Here the steps run; pretokenizer_read.c reads them.
 *
 * A step hands each of its pieces to the next step at once, so no list of pieces is ever kept: the depth of calls
 * is the number of steps. A step that rewrites has a text of its own, which stays until the piece is done. */
#include "text/stages/pretokenizer.h"

#include "text/regex/script.h"
#include "text/regex/unicode.h"
#include "text/stages/byte_level.h"

void pretokenizer_release(struct pretokenizer *p) {
    for (size_t i = 0; i < p->n; i++)
        pattern_release(&p->steps[i].pattern);
    free(p->steps);
    *p = (struct pretokenizer){0};
}

void pretokenizer_take_step(struct pretokenizer *p, struct pretokenizer_step step) {
    p->steps = xrealloc(p->steps, p->n + 1, sizeof *p->steps);
    p->steps[p->n++] = step;
}

void pretokenizer_memory_release(struct pretokenizer_memory *m) {
    for (size_t i = 0; i < m->n; i++)
        buf_release(&m->texts[i]);
    free(m->texts);
    *m = (struct pretokenizer_memory){.budget = m->budget};
}

struct run {
    const struct pretokenizer *p;
    struct pretokenizer_memory *m;
    struct regex_memory *rm;
    word_emit emit;
    void *arg;
};

/* A piece on its way through step `step`. */
struct stage {
    const struct run *run;
    size_t step;
    struct str text;
    bool at_start;
};

static enum status run_step(const struct run *r, size_t step, struct str text, bool at_start, struct error *err);

static enum status check(const struct run *r, struct error *err) {
    return r->m->budget ? budget_check(r->m->budget, "splitting this text", err) : OK;
}

static enum status pass_on(void *arg, size_t begin, size_t end, struct error *err) {
    const struct stage *s = arg;
    return run_step(s->run, s->step + 1, (struct str){s->text.ptr + begin, end - begin}, s->at_start && begin == 0,
                    err);
}

/* GPT-2's words end in visible characters only after they are cut. */
static enum status pass_on_bytes(void *arg, size_t begin, size_t end, struct error *err) {
    const struct stage *s = arg;
    const struct run *r = s->run;
    struct str word = {s->text.ptr + begin, end - begin};
    if (r->p->raw_bytes && s->step + 1 == r->p->n)
        return r->emit(r->arg, word, err);
    struct buf visible = {.budget = r->m->budget};
    byte_level_append(&visible, word);
    enum status st = check(r, err);
    if (st == OK)
        st = run_step(r, s->step + 1, buf_view(&visible), s->at_start && begin == 0, err);
    buf_release(&visible);
    return st;
}

static enum status byte_level(const struct pretokenizer_step *step, struct stage *s, struct error *err) {
    if (step->add_prefix_space && s->text.ptr[0] != ' ') {
        struct buf *text = &s->run->m->texts[s->step];
        buf_clear(text);
        buf_push(text, ' ');
        buf_str(text, s->text);
        s->text = buf_view(text);
        TRY(check(s->run, err));
    }
    if (!step->cuts)
        return pass_on_bytes(s, 0, s->text.len, err);
    return split_text(&step->pattern, SPLIT_ISOLATED, false, s->run->rm, s->text, pass_on_bytes, s, err);
}

static enum status metaspace(const struct pretokenizer_step *step, struct stage *s, struct error *err) {
    char mark[4];
    size_t mark_len = (size_t)utf8_encode(step->mark, mark);
    struct buf *text = &s->run->m->texts[s->step];
    buf_clear(text);
    bool marked = s->text.ptr[0] == ' ' || str_starts(s->text, (struct str){mark, mark_len});
    if (!marked && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && s->at_start)))
        buf_append(text, mark, mark_len);
    for (const char *p = s->text.ptr, *end = p + s->text.len; p < end;) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        buf_append(text, p, (size_t)((space ? space : end) - p));
        if (!space)
            break;
        buf_append(text, mark, mark_len);
        p = space + 1;
    }
    s->text = buf_view(text);
    TRY(check(s->run, err));
    if (!step->cuts)
        return pass_on(s, 0, s->text.len, err);
    struct pattern literal = {.kind = PATTERN_LITERAL, .literal = mark, .literal_len = mark_len};
    return split_text(&literal, SPLIT_MERGED_WITH_NEXT, false, s->run->rm, s->text, pass_on, s, err);
}

/* Spaces go with what is before them. Those before everything else are lost, as in Hugging Face's library. */
static enum status scripts(struct stage *s, struct error *err) {
    int last = SCRIPT_ANY;
    size_t begin = 0;
    for (size_t at = 0, n; at < s->text.len; at += n) {
        uint32_t cp;
        n = (size_t)utf8_step(s->text.ptr + at, &cp);
        int script = script_of(cp);
        if (script == SCRIPT_ANY || script == last)
            continue;
        if (last != SCRIPT_ANY)
            TRY(pass_on(s, begin, at, err));
        begin = at;
        last = script;
    }
    return last == SCRIPT_ANY ? OK : pass_on(s, begin, s->text.len, err);
}

static enum status fixed_length(const struct pretokenizer_step *step, struct stage *s, struct error *err) {
    size_t begin = 0, at = 0;
    for (int64_t n = 0; at < s->text.len; n++) {
        if (n == step->length) {
            TRY(pass_on(s, begin, at, err));
            begin = at;
            n = 0;
        }
        at += (size_t)utf8_length(s->text.ptr[at]);
    }
    return pass_on(s, begin, at, err);
}

static enum status run_step(const struct run *r, size_t step, struct str text, bool at_start, struct error *err) {
    if (step == r->p->n)
        return r->emit(r->arg, text, err);
    const struct pretokenizer_step *at = &r->p->steps[step];
    struct stage s = {r, step, text, at_start};
    switch (at->kind) {
    case PRETOKEN_SPLIT: return split_text(&at->pattern, at->behavior, at->invert, r->rm, text, pass_on, &s, err);
    case PRETOKEN_BYTE_LEVEL: return byte_level(at, &s, err);
    case PRETOKEN_METASPACE: return metaspace(at, &s, err);
    case PRETOKEN_SCRIPTS: return scripts(&s, err);
    case PRETOKEN_FIXED_LENGTH: return fixed_length(at, &s, err);
    }
    return OK;
}

/* The words of a known pattern cover the text, so to isolate them and to keep nothing else are the same. */
static bool cuts_known_words(const struct pretokenizer_step *s) {
    return s->kind == PRETOKEN_SPLIT && s->pattern.kind == PATTERN_WORDS &&
           (s->behavior == SPLIT_ISOLATED || (s->behavior == SPLIT_REMOVED && s->invert));
}

const struct word_rules *pretokenizer_word_rules(const struct pretokenizer *p) {
    if (p->n == 0 || p->n > 2)
        return NULL;
    const struct pretokenizer_step *first = &p->steps[0], *last = &p->steps[p->n - 1];
    bool plain_bytes = p->raw_bytes && !last->add_prefix_space;
    if (p->n == 1)
        return cuts_known_words(first) || (plain_bytes && last->cuts) ? first->pattern.words : NULL;
    return cuts_known_words(first) && plain_bytes && !last->cuts ? first->pattern.words : NULL;
}

enum status pretokenizer_run(const struct pretokenizer *p, struct pretokenizer_memory *m, struct regex_memory *rm,
                             struct str text, bool at_start, word_emit emit, void *arg, struct error *err) {
    if (m->n < p->n) {
        m->texts = xcalloc(p->n, sizeof *m->texts);
        m->n = p->n;
        for (size_t i = 0; i < m->n; i++)
            m->texts[i].budget = m->budget;
    }
    struct run r = {p, m, rm, emit, arg};
    return run_step(&r, 0, text, at_start, err);
}
