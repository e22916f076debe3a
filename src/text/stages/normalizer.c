/* normalizer.c - see normalizer.h. Here the steps run; normalizer_read.c reads them. */
#include "text/stages/normalizer.h"

#include "text/regex/unicode.h"
#include "text/stages/byte_level.h"

#include <utf8proc.h>

void normalizer_release(struct normalizer *n) {
    for (size_t i = 0; i < n->n; i++) {
        pattern_release(&n->steps[i].pattern);
        charsmap_release(&n->steps[i].charsmap);
        free(n->steps[i].content);
        if (n->steps[i].rules)
            charsmap_release(&n->steps[i].rules->charsmap);
        free(n->steps[i].rules);
    }
    free(n->steps);
    *n = (struct normalizer){0};
}

void normalizer_memory_release(struct normalizer_memory *m) {
    buf_release(&m->text[0]);
    buf_release(&m->text[1]);
    normal_memory_release(&m->form);
}

void normalizer_take_step(struct normalizer *n, struct normalizer_step step) {
    n->steps = xrealloc(n->steps, n->n + 1, sizeof *n->steps);
    n->steps[n->n++] = step;
}

static struct str strip(struct str s, bool left, bool right) {
    uint32_t cp;
    while (left && s.len > 0) {
        size_t n = (size_t)utf8_step(s.ptr, &cp);
        if (!char_is_space(cp))
            break;
        s.ptr += n;
        s.len -= n;
    }
    while (right && s.len > 0) {
        const char *last = utf8_back(s.ptr + s.len);
        utf8_step(last, &cp);
        if (!char_is_space(cp))
            break;
        s.len = (size_t)(last - s.ptr);
    }
    return s;
}

static enum status replace(const struct normalizer_step *step, struct normalizer_memory *m, struct regex_memory *rm,
                           struct str text, struct buf *out, struct error *err) {
    struct regex_walk walk = {.text = text};
    size_t copied = 0, begin, end;
    for (;;) {
        bool found;
        TRY(pattern_next(&step->pattern, rm, &walk, &begin, &end, &found, err));
        if (!found)
            break;
        buf_append(out, text.ptr + copied, begin - copied);
        buf_append(out, step->content, step->content_len);
        m->lost_start |= begin == 0 && end > 0 && step->content_len == 0;
        copied = end;
    }
    buf_append(out, text.ptr + copied, text.len - copied);
    return OK;
}

static bool is_other(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO ||
           c == UTF8PROC_CATEGORY_CN;
}

static void bert_clean(struct buf *out, uint32_t cp) {
    bool line_space = cp == '\t' || cp == '\n' || cp == '\r';
    if (!line_space && (is_other(cp) || cp == 0xFFFD))
        return;
    buf_push_code_point(out, char_is_space(cp) ? ' ' : cp);
}

static void bert_chinese(struct buf *out, uint32_t cp) {
    bool ideograph = char_is_cjk_ideograph(cp);
    if (ideograph)
        buf_push(out, ' ');
    buf_push_code_point(out, cp);
    if (ideograph)
        buf_push(out, ' ');
}

static void strip_accents(struct buf *out, uint32_t cp) {
    if (!char_is_mark(cp))
        buf_push_code_point(out, cp);
}

static void strip_nonspacing(struct buf *out, uint32_t cp) {
    if (utf8proc_category((utf8proc_int32_t)cp) != UTF8PROC_CATEGORY_MN)
        buf_push_code_point(out, cp);
}

static void nmt(struct buf *out, uint32_t cp) {
    if ((cp >= 0x01 && cp <= 0x08) || cp == 0x0B || (cp >= 0x0E && cp <= 0x1F) || cp == 0x7F || cp == 0x8F ||
        cp == 0x9F)
        return;
    bool space = cp == 0x09 || cp == 0x0A || cp == 0x0C || cp == 0x0D || cp == 0x1680 ||
                 (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xFEFF ||
                 cp == 0xFFFD;
    buf_push_code_point(out, space ? ' ' : cp);
}

static void each_character(struct str text, struct normalizer_memory *m, struct buf *out,
                           void (*put)(struct buf *out, uint32_t cp)) {
    buf_reserve(out, text.len);
    for (size_t at = 0; at < text.len;) {
        uint32_t cp;
        bool first = at == 0;
        at += (size_t)utf8_step(text.ptr + at, &cp);
        put(out, cp);
        m->lost_start |= first && out->len == 0;
    }
}

/* Runs one step over *text. What it writes goes to out, and *text is then that. */
static enum status run_step(const struct normalizer_step *step, struct normalizer_memory *m, struct regex_memory *rm,
                            struct buf *out, struct str *text, struct error *err) {
    buf_clear(out);
    switch (step->kind) {
    case NORMALIZE_FORM:
        if (normal_form_apply(step->form, &m->form, *text, out))
            return OK;
        break;
    case NORMALIZE_STRIP: {
        const char *begin = text->ptr;
        *text = strip(*text, step->left, step->right);
        m->lost_start |= text->ptr != begin;
        return OK;
    }
    case NORMALIZE_LOWERCASE: each_character(*text, m, out, char_append_lower); break;
    case NORMALIZE_STRIP_ACCENTS: each_character(*text, m, out, strip_accents); break;
    case NORMALIZE_BERT_CLEAN: each_character(*text, m, out, bert_clean); break;
    case NORMALIZE_BERT_CHINESE: each_character(*text, m, out, bert_chinese); break;
    case NORMALIZE_BERT_ACCENTS: each_character(*text, m, out, strip_nonspacing); break;
    case NORMALIZE_NMT: each_character(*text, m, out, nmt); break;
    case NORMALIZE_REPLACE: TRY(replace(step, m, rm, *text, out, err)); break;
    case NORMALIZE_PREPEND:
    case NORMALIZE_APPEND:
        if (text->len == 0)
            return OK;
        if (step->kind == NORMALIZE_PREPEND) {
            buf_append(out, step->content, step->content_len);
            m->lost_start = false;
        }
        buf_str(out, *text);
        if (step->kind == NORMALIZE_APPEND)
            buf_append(out, step->content, step->content_len);
        break;
    case NORMALIZE_CHARSMAP: charsmap_apply_by_grapheme(&step->charsmap, *text, out); break;
    case NORMALIZE_BYTE_LEVEL: byte_level_append(out, *text); break;
    case NORMALIZE_SENTENCEPIECE: sentencepiece_rewrite(step->rules, *text, out); break;
    }
    *text = buf_view(out);
    return OK;
}

enum status normalizer_run(const struct normalizer *n, struct normalizer_memory *m, struct regex_memory *rm,
                           struct str text, struct str *out, struct error *err) {
    *out = text;
    m->lost_start = false;
    m->text[0].budget = m->text[1].budget = m->form.budget = m->budget;
    int next = 0;
    for (size_t i = 0; i < n->n; i++) {
        const char *before = out->ptr;
        TRY(run_step(&n->steps[i], m, rm, &m->text[next], out, err));
        if (m->budget)
            TRY(budget_check(m->budget, "normalising this text", err));
        if (out->ptr != before && out->ptr == m->text[next].ptr)
            next ^= 1;
    }
    return OK;
}
