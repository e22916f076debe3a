/* regex_fold.c - literal text in the pattern translation, with full case folding; see regex_parse.h.
 *
 * PCRE2 knows letters that fold to one other letter. Unicode has 104 that fold to two or three (ß to ss, ﬁ to fi),
 * and Oniguruma matches those too, both ways. */
#include "text/regex/regex_parse.h"

#include <utf8proc.h>

enum { FOLD_MAX = 3 };

/* The code points that may fold to several all lie here; test_regex.c checks that no other does. */
static const struct { uint32_t first, last; } fold_ranges[] = {{0xDF, 0x587}, {0x1E96, 0x1FFC}, {0xFB00, 0xFB17}};

/* Folds one code point; the number of code points it becomes. */
static int fold(uint32_t cp, int32_t out[static FOLD_MAX]) {
    int last_class = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, out, FOLD_MAX, UTF8PROC_CASEFOLD, &last_class);
    return n < 1 || n > FOLD_MAX ? (out[0] = (int32_t)cp, 1) : (int)n;
}

/* Whether cps[0..n) folds to the same as the one code point `single`. */
static bool folds_to_same(const uint32_t *cps, size_t n, uint32_t single) {
    int32_t whole[FOLD_MAX], part[FOLD_MAX];
    int n_whole = fold(single, whole), at = 0;
    if (n_whole < 2)
        return false;
    for (size_t i = 0; i < n; i++) {
        int n_part = fold(cps[i], part);
        for (int j = 0; j < n_part; j++)
            if (at == n_whole || whole[at++] != part[j])
                return false;
    }
    return at == n_whole;
}

/* Appends "|x" for each single letter that equals cps[0..n) when folded. */
static bool put_singles(struct buf *out, const uint32_t *cps, size_t n) {
    bool any = false;
    for (size_t r = 0; r < ARRAY_LEN(fold_ranges); r++)
        for (uint32_t cp = fold_ranges[r].first; cp <= fold_ranges[r].last; cp++)
            if (folds_to_same(cps, n, cp) && !(n == 1 && cps[0] == cp)) {
                buf_push(out, '|');
                regex_put_code_point(out, cp);
                any = true;
            }
    return any;
}

/* Appends "|abc", what one letter folds to, when that is several. */
static bool put_expansion(struct buf *out, uint32_t cp) {
    int32_t folded[FOLD_MAX];
    int n = fold(cp, folded);
    if (n < 2)
        return false;
    buf_push(out, '|');
    for (int i = 0; i < n; i++)
        regex_put_code_point(out, (uint32_t)folded[i]);
    return true;
}

/* How many of the characters at cps are written here as one group with what equals them. */
static size_t put_folded(struct buf *out, const uint32_t *cps, size_t n) {
    for (size_t k = MIN(n, (size_t)FOLD_MAX); k >= 1; k--) {
        struct buf others = {0};
        bool any = put_singles(&others, cps, k);
        any |= k == 1 && put_expansion(&others, cps[0]);
        if (any) {
            buf_str(out, STR("(?:"));
            for (size_t i = 0; i < k; i++)
                regex_put_code_point(out, cps[i]);
            buf_printf(out, "%s)", others.ptr);
        }
        buf_release(&others);
        if (any)
            return k;
    }
    regex_put_code_point(out, cps[0]);
    return 1;
}

void regex_put_literals(struct buf *out, const uint32_t *cps, size_t n, bool caseless) {
    for (size_t i = 0; i < n;)
        if (caseless)
            i += put_folded(out, cps + i, n - i);
        else
            regex_put_code_point(out, cps[i++]);
}
