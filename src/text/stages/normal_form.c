/* normal_form.c - see normal_form.h.
 *
 * Most text is in its normal form. Characters that cannot change and that nothing composes with are passed over;
 * only the stretches between them go through utf8proc, each with the character before it, which may be the base
 * of what follows. */
#include "text/stages/normal_form.h"
#include "base/status.h"

#include "text/regex/unicode.h"

#include <utf8proc.h>

enum { MOST_PARTS = 32 }; // of a code point: 18 are the most that any has

/* Starters that compose with the character before them (NFC_Quick_Check = Maybe, combining class 0); no API of
 * utf8proc tells them. test_normal_form.c derives the list anew. */
static bool composes_backward(uint32_t cp) {
    static const uint32_t seconds[] = {0x9BE,   0x9D7,   0xB3E,   0xB56,   0xB57,   0xBBE,   0xBD7,   0xCC2,
                                       0xCD5,   0xCD6,   0xD3E,   0xD57,   0xDCF,   0xDDF,   0x102E,  0x1B35,
                                       0x11127, 0x1133E, 0x11357, 0x114B0, 0x114BA, 0x114BD, 0x115AF, 0x11930};
    if ((cp >= 0x1161 && cp <= 0x1175) || (cp >= 0x11A8 && cp <= 0x11C2)) // Hangul vowels and final consonants
        return true;
    for (size_t i = 0; i < ARRAY_LEN(seconds); i++)
        if (cp == seconds[i])
            return true;
    return false;
}

bool normal_form_is_inert(enum normal_form form, uint32_t cp) {
    bool composed = form == FORM_NFC || form == FORM_NFKC, compatible = form == FORM_NFKC || form == FORM_NFKD;
    if (cp < 0x80 || (cp < 0x300 && form == FORM_NFC))
        return true;
    if (cp >= 0xAC00 && cp <= 0xD7A3)
        return composed;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    bool decomposes = p->decomp_seqindex != UINT16_MAX, canonically = decomposes && p->decomp_type == 0;
    if (p->combining_class != 0 || canonically || (decomposes && compatible))
        return false;
    return !composed || !composes_backward(cp);
}

static utf8proc_option_t options_of(enum normal_form form) {
    bool composed = form == FORM_NFC || form == FORM_NFKC, compatible = form == FORM_NFKC || form == FORM_NFKD;
    return UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (compatible ? UTF8PROC_COMPAT : 0);
}

static bool reserve(struct budget *budget, int32_t **cps, size_t *cap, size_t n) {
    if (n <= *cap)
        return true;
    void *grown = *cps;
    if (!budget_resize(budget, &grown, *cap * sizeof **cps, n * 2 * sizeof **cps))
        return false;
    *cps = grown;
    *cap = n * 2;
    return true;
}

/* What the stretch decomposes to, in its order; returns how many code points. utf8proc_decompose would order marks as
 * well, by exchanging neighbours: a quarter of a megabyte of them takes it half a minute. */
static size_t decompose(enum normal_form form, struct normal_memory *m, struct str stretch) {
    utf8proc_option_t options = options_of(form);
    size_t n = 0;
    for (size_t at = 0; at < stretch.len;) {
        uint32_t cp;
        int ignored = 0;
        at += (size_t)utf8_step(stretch.ptr + at, &cp);
        if (!reserve(m->budget, &m->cps, &m->cap, n + MOST_PARTS))
            return n;
        utf8proc_ssize_t parts =
            utf8proc_decompose_char((utf8proc_int32_t)cp, m->cps + n, MOST_PARTS, options, &ignored);
        BUG_IF(parts < 0 || parts > MOST_PARTS); // the text is valid UTF-8
        n += (size_t)parts;
    }
    return n;
}

static uint8_t class_of(int32_t cp) { return (uint8_t)utf8proc_get_property(cp)->combining_class; }

/* Marks by their class, those of one class as they were. */
static void order_marks(struct normal_memory *m, int32_t *marks, size_t n) {
    size_t place[257] = {0};
    if (!reserve(m->budget, &m->spare, &m->spare_cap, n))
        return;
    int32_t *spare = m->spare;
    for (size_t i = 0; i < n; i++)
        place[class_of(marks[i]) + 1]++;
    for (size_t c = 1; c < ARRAY_LEN(place); c++)
        place[c] += place[c - 1];
    for (size_t i = 0; i < n; i++)
        spare[place[class_of(marks[i])]++] = marks[i];
    memcpy(marks, spare, n * sizeof *marks);
}

/* Each run of marks between starters, if it is not in order. */
static void order(struct normal_memory *m, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t end = at;
        bool ordered = true;
        for (uint8_t before = 0, class; end < n && (class = class_of(m->cps[end])) != 0; end++, before = class)
            ordered = ordered && class >= before;
        if (!ordered)
            order_marks(m, m->cps + at, end - at);
        at = end + 1;
    }
}

static void normalise(enum normal_form form, struct normal_memory *m, struct str stretch, struct buf *out) {
    size_t n_decomposed = decompose(form, m, stretch);
    order(m, n_decomposed);
    utf8proc_ssize_t n = utf8proc_normalize_utf32(m->cps, (utf8proc_ssize_t)n_decomposed, options_of(form));
    for (utf8proc_ssize_t i = 0; i < n; i++)
        buf_push_code_point(out, (uint32_t)m->cps[i]);
}

/* Past the inert characters from `at`; *before is where the last of them began, or `at` when there is none. */
static size_t pass_inert(enum normal_form form, struct str text, size_t at, size_t *before) {
    *before = at;
    while (at < text.len) {
        uint64_t eight;
        if (text.len - at > 8 && (memcpy(&eight, text.ptr + at, 8), (eight & 0x8080808080808080u) == 0)) {
            at += 8;
            *before = at - 1;
            continue;
        }
        uint32_t cp;
        size_t n = (size_t)utf8_step(text.ptr + at, &cp);
        if (!normal_form_is_inert(form, cp))
            break;
        *before = at;
        at += n;
    }
    return at;
}

static size_t pass_active(enum normal_form form, struct str text, size_t at) {
    uint32_t cp;
    for (size_t n; at < text.len; at += n) {
        n = (size_t)utf8_step(text.ptr + at, &cp);
        if (normal_form_is_inert(form, cp))
            break;
    }
    return at;
}

bool normal_form_apply(enum normal_form form, struct normal_memory *m, struct str text, struct buf *out) {
    size_t copied = 0, at = 0, before;
    while ((at = pass_inert(form, text, at, &before)) < text.len) {
        size_t end = pass_active(form, text, at);
        buf_append(out, text.ptr + copied, before - copied);
        normalise(form, m, (struct str){text.ptr + before, end - before}, out);
        copied = at = end;
    }
    if (copied == 0)
        return true;
    buf_append(out, text.ptr + copied, text.len - copied);
    return false;
}
