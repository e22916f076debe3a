/* word_scan.c - see word_scan.h.
 *
 * The alternatives of the patterns, in the order in which they are tried:
 *
 *     contraction   's 't 're 've 'm 'll 'd
 *     word          letters, with one other character before them
 *     number        one digit, up to three, or all
 *     signs         neither letters, digits nor spaces, with a space before them and line ends behind
 *     line ends     spaces up to the last line end in a row
 *     spaces        all but the last one, which belongs to the word that follows; at the end of the text, all */
#include "text/merging/word_scan.h"

#include "base/status.h"
#include "text/regex/unicode.h"

enum contraction { CONTRACTION_NONE, CONTRACTION_EXACT, CONTRACTION_CASELESS, CONTRACTION_AFTER_WORD };
enum lead { LEAD_SPACE, LEAD_SIGN }; // what may stand before the letters of a word: a space; all but CR, LF, L, N

struct word_rules {
    enum contraction contraction;
    enum lead lead;
    bool cased;            // o200k: a word is upper-case letters, then lower-case ones
    unsigned letters;      // bits that count as letters
    int max_digits;        // of a number; 0: all of them, with a space before
    const char *sign_tail; // characters that signs take along; NULL: none
    bool line_ends;        // spaces up to a line end are a match of their own
};

#define MERGED "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES "\\s+(?!\\S)|\\s+"
#define O200K_FIRST "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
#define O200K_SECOND "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"

static const struct {
    const char *pattern;
    struct word_rules rules;
} known[] = {
    // GPT-2
    {MERGED "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" SPACES,
     {CONTRACTION_EXACT, LEAD_SPACE, false, CHAR_LETTER, 0, NULL, false}},
    // Llama 3
    {"(?i:" MERGED ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES,
     {CONTRACTION_CASELESS, LEAD_SIGN, false, CHAR_LETTER, 3, "\r\n", true}},
    // cl100k
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|" SPACES,
     {CONTRACTION_CASELESS, LEAD_SIGN, false, CHAR_LETTER, 3, "\r\n", true}},
    // Qwen 2, 2.5, 3
    {"(?i:" MERGED ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES,
     {CONTRACTION_CASELESS, LEAD_SIGN, false, CHAR_LETTER, 1, "\r\n", true}},
    // Qwen 3.5
    {"(?i:" MERGED
     ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" SPACES,
     {CONTRACTION_CASELESS, LEAD_SIGN, false, CHAR_LETTER | CHAR_MARK, 1, "\r\n", true}},
    // o200k
    {O200K_FIRST "(?i:" MERGED ")?|" O200K_SECOND "(?i:" MERGED
                 ")?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" SPACES,
     {CONTRACTION_AFTER_WORD, LEAD_SIGN, true, CHAR_LETTER, 3, "\r\n/", true}},
    // Mistral's tekken
    {O200K_FIRST "|" O200K_SECOND "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" SPACES,
     {CONTRACTION_NONE, LEAD_SIGN, true, CHAR_LETTER, 1, "\r\n/", true}},
};

const struct word_rules *word_rules_find(struct str pattern) {
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (str_eq(pattern, str_of(known[i].pattern)))
            return &known[i].rules;
    return NULL;
}

const struct word_rules *word_rules_gpt2(void) { return &known[0].rules; }

const char *word_rules_pattern(size_t i) { return i < ARRAY_LEN(known) ? known[i].pattern : NULL; }

/* The bits of the character at p, and its length. */
static inline unsigned look(const char *p, int *len) {
    unsigned char c = (unsigned char)*p;
    if (c < 128) {
        *len = 1;
        return char_bits_ascii[c];
    }
    uint32_t cp;
    *len = utf8_step(p, &cp);
    return char_bits_wide(cp);
}

static inline unsigned bits_at(const char *p, const char *end) {
    int len;
    return p < end ? look(p, &len) : 0;
}

/* Past the characters that have any of these bits. */
static inline const char *while_any(const char *p, const char *end, unsigned bits) {
    for (int len; p < end && (look(p, &len) & bits); p += len)
        ;
    return p;
}

/* Past the characters that have none of these bits. */
static inline const char *while_none(const char *p, const char *end, unsigned bits) {
    for (int len; p < end && !(look(p, &len) & bits); p += len)
        ;
    return p;
}

/* The length of a contraction at p, which holds an apostrophe; 0 if there is none. Without case, the long s
 * (U+017F) is an s. */
static int contraction_length(const char *p, const char *end, bool caseless) {
    size_t n = (size_t)(end - p);
    if (n < 2 || *p != '\'')
        return 0;
    char a = p[1], b = n > 2 ? p[2] : '\0';
    if (caseless) {
        if (a == '\xC5' && b == '\xBF')
            return 3;
        a |= (unsigned char)a < 128 ? 32 : 0;
        b |= (unsigned char)b < 128 ? 32 : 0;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    return (a == 'l' && b == 'l') || (a == 'v' && b == 'e') || (a == 'r' && b == 'e') ? 3 : 0;
}

/* The end of an o200k word whose letters begin at p; p if there is none. `upper` letters, then `lower` ones; a
 * letter that is both (a Chinese one, a mark) may end the first part and be the second. *ends_low says that the
 * first alternative of the pattern, which wants a lower-case end, matched. */
static const char *cased_word(const char *p, const char *end, bool *ends_low) {
    const char *upper_end = p, *last_both_end = p;
    for (int len; upper_end < end; upper_end += len) {
        unsigned bits = look(upper_end, &len);
        if (!(bits & CHAR_UPPER))
            break;
        if (bits & CHAR_LOWER)
            last_both_end = upper_end + len;
    }
    const char *lower_end = while_any(upper_end, end, CHAR_LOWER);
    *ends_low = lower_end > upper_end || last_both_end > p;
    if (lower_end > upper_end)
        return lower_end;
    return last_both_end > p ? last_both_end : upper_end;
}

/* A word at `at`, after one sign or none; NULL if there is none. */
static const char *cased_word_after_sign(const char *at, const char *end, unsigned bits, int len) {
    bool low[2] = {false, false};
    const char *word[2] = {at, at}; // with a sign before it, and without
    bool may_lead = !(bits & (CHAR_LETTER | CHAR_NUMBER | CHAR_NEWLINE));
    if (may_lead) {
        word[0] = cased_word(at + len, end, &low[0]);
        if (word[0] == at + len)
            word[0] = at;
    }
    word[1] = cased_word(at, end, &low[1]);
    if (low[0] || (!low[1] && word[0] > at))
        return word[0];
    return word[1] > at ? word[1] : NULL;
}

static const char *plain_word(const struct word_rules *r, const char *at, const char *end, unsigned bits, int len) {
    if (bits & r->letters)
        return while_any(at + len, end, r->letters);
    bool may_lead = r->lead == LEAD_SPACE ? *at == ' ' : !(bits & (CHAR_NUMBER | CHAR_NEWLINE));
    if (may_lead && (bits_at(at + len, end) & r->letters))
        return while_any(at + len, end, r->letters);
    return NULL;
}

static const char *number(const struct word_rules *r, const char *at, const char *end, unsigned bits) {
    if (r->max_digits == 0) {
        const char *digits = *at == ' ' ? at + 1 : at;
        const char *stop = while_any(digits, end, CHAR_NUMBER);
        return stop > digits ? stop : NULL;
    }
    if (!(bits & CHAR_NUMBER))
        return NULL;
    int len;
    for (int n = 0; n < r->max_digits && at < end && (look(at, &len) & CHAR_NUMBER); n++)
        at += len;
    return at;
}

static const char *signs(const struct word_rules *r, const char *at, const char *end) {
    const char *begin = *at == ' ' ? at + 1 : at;
    const char *stop = while_none(begin, end, CHAR_SPACE | CHAR_NUMBER | r->letters);
    if (stop == begin)
        return NULL;
    if (r->sign_tail)
        while (stop < end && *stop && strchr(r->sign_tail, *stop))
            stop++;
    return stop;
}

static const char *spaces(const struct word_rules *r, const char *at, const char *end) {
    const char *stop = at, *last = at, *after_line_end = NULL;
    for (int len; stop < end; stop += len) {
        unsigned bits = look(stop, &len);
        if (!(bits & CHAR_SPACE))
            break;
        last = stop;
        if (bits & CHAR_NEWLINE)
            after_line_end = stop + len;
    }
    if (r->line_ends && after_line_end)
        return after_line_end;
    return stop < end && last > at ? last : stop;
}

const char *word_scan(const struct word_rules *r, const char *at, const char *end) {
    int len;
    unsigned bits = look(at, &len);
    if (*at == '\'' && (r->contraction == CONTRACTION_EXACT || r->contraction == CONTRACTION_CASELESS)) {
        int n = contraction_length(at, end, r->contraction == CONTRACTION_CASELESS);
        if (n)
            return at + n;
    }
    const char *stop = r->cased ? cased_word_after_sign(at, end, bits, len) : plain_word(r, at, end, bits, len);
    if (stop)
        return r->contraction == CONTRACTION_AFTER_WORD ? stop + contraction_length(stop, end, true) : stop;
    if ((stop = number(r, at, end, bits)))
        return stop;
    if ((stop = signs(r, at, end)))
        return stop;
    return spaces(r, at, end);
}
