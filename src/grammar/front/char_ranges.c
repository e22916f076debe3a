/* char_ranges.c - see char_ranges.h. Categories are utf8proc's. */
#include "grammar/front/char_ranges.h"

#include "base/status.h"

#include <pthread.h>
#include <stdlib.h>
#include <utf8proc.h>

enum { LAST_CHAR = 0x10FFFF };

void char_ranges_put(struct char_ranges *r, uint32_t first, uint32_t last) {
    if (first > last)
        return;
    if (r->n && r->at[r->n - 1].last + 1 == first) {
        r->at[r->n - 1].last = last;
        return;
    }
    if (r->n == r->cap) {
        r->cap = r->cap ? r->cap * 2 : 16;
        r->at = xrealloc(r->at, r->cap, sizeof *r->at);
    }
    r->at[r->n++] = (struct code_range){first, last};
}

void char_ranges_release(struct char_ranges *r) {
    free(r->at);
    *r = (struct char_ranges){0};
}

static int by_first(const void *a, const void *b) {
    uint32_t x = ((const struct code_range *)a)->first, y = ((const struct code_range *)b)->first;
    return x < y ? -1 : x > y;
}

void char_ranges_put_others(struct char_ranges *r, const struct char_ranges *of) {
    struct code_range *sorted = xmalloc((of->n + 1) * sizeof *sorted);
    if (of->n)
        memcpy(sorted, of->at, of->n * sizeof *sorted);
    qsort(sorted, of->n, sizeof *sorted, by_first);
    uint32_t from = 0;
    for (size_t i = 0; i < of->n; i++) {
        if (sorted[i].first > from)
            char_ranges_put(r, from, sorted[i].first - 1);
        from = MAX(from, sorted[i].last + 1);
    }
    if (from <= LAST_CHAR)
        char_ranges_put(r, from, LAST_CHAR);
    free(sorted);
}

void char_ranges_join(struct char_ranges *r) {
    size_t n = r->n;
    if (n)
        qsort(r->at, n, sizeof *r->at, by_first);
    r->n = MIN(n, 1);
    for (size_t i = 1; i < n; i++) {
        struct code_range *before = &r->at[r->n - 1];
        if (r->at[i].first <= before->last + 1)
            before->last = MAX(before->last, r->at[i].last);
        else
            r->at[r->n++] = r->at[i];
    }
}

static void put_one(struct char_ranges *r, int32_t c) { char_ranges_put(r, (uint32_t)c, (uint32_t)c); }

void char_ranges_fold(struct char_ranges *r) {
    enum { LAST_CASED = 0x1E943 };
    char_ranges_join(r);
    size_t n = r->n;
    for (size_t i = 0; i < n; i++) {
        struct code_range range = r->at[i];
        for (uint32_t c = range.first; c <= MIN(range.last, LAST_CASED); c++) {
            utf8proc_int32_t lower = utf8proc_tolower((int32_t)c), upper = utf8proc_toupper((int32_t)c);
            if (lower != (int32_t)c)
                put_one(r, lower);
            if (upper != (int32_t)c)
                put_one(r, upper);
            if (utf8proc_toupper(lower) != upper)
                put_one(r, utf8proc_toupper(lower));
            if (lower == 'k' || lower == 0xE5) // the signs Kelvin and Angstrom
                put_one(r, lower == 'k' ? 0x212A : 0x212B);
            if (lower == 's')
                put_one(r, 0x17F);
        }
    }
}

// ---- categories -------------------------------------------------------------------------------------------------

struct run {
    uint32_t first, last;
    uint8_t category;
};
static struct run *runs;
static size_t n_runs;
static pthread_once_t runs_once = PTHREAD_ONCE_INIT;

static void find_runs(void) {
    size_t cap = 0;
    for (uint32_t c = 0; c <= LAST_CHAR; c++) {
        uint8_t category = (uint8_t)utf8proc_category((int32_t)c);
        if (n_runs && runs[n_runs - 1].category == category) {
            runs[n_runs - 1].last = c;
            continue;
        }
        if (n_runs == cap) {
            cap = cap ? cap * 2 : 4096;
            runs = realloc(runs, cap * sizeof *runs); // kept for the life of the process: no request's memory
            BUG_IF(!runs);
        }
        runs[n_runs++] = (struct run){c, c, category};
    }
}

/* Characters whose category is in a set of bits. */
static void put_categories(struct char_ranges *r, uint32_t bits) {
    pthread_once(&runs_once, find_runs);
    for (size_t i = 0; i < n_runs; i++)
        if (bits >> runs[i].category & 1)
            char_ranges_put(r, runs[i].first, runs[i].last);
}

#define BIT(name) (1u << UTF8PROC_CATEGORY_##name)
static const struct {
    const char *name;
    uint32_t bits;
} categories[] = {
    {"L", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO)},
    {"LC", BIT(LU) | BIT(LL) | BIT(LT)},
    {"Lu", BIT(LU)},
    {"Ll", BIT(LL)},
    {"Lt", BIT(LT)},
    {"Lm", BIT(LM)},
    {"Lo", BIT(LO)},
    {"M", BIT(MN) | BIT(MC) | BIT(ME)},
    {"Mn", BIT(MN)},
    {"Mc", BIT(MC)},
    {"Me", BIT(ME)},
    {"N", BIT(ND) | BIT(NL) | BIT(NO)},
    {"Nd", BIT(ND)},
    {"Nl", BIT(NL)},
    {"No", BIT(NO)},
    {"P", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
    {"Pc", BIT(PC)},
    {"Pd", BIT(PD)},
    {"Ps", BIT(PS)},
    {"Pe", BIT(PE)},
    {"Pi", BIT(PI)},
    {"Pf", BIT(PF)},
    {"Po", BIT(PO)},
    {"S", BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO)},
    {"Sm", BIT(SM)},
    {"Sc", BIT(SC)},
    {"Sk", BIT(SK)},
    {"So", BIT(SO)},
    {"Z", BIT(ZS) | BIT(ZL) | BIT(ZP)},
    {"Zs", BIT(ZS)},
    {"Zl", BIT(ZL)},
    {"Zp", BIT(ZP)},
    {"C", BIT(CC) | BIT(CF) | BIT(CO) | BIT(CN)},
    {"Cc", BIT(CC)},
    {"Cf", BIT(CF)},
    {"Co", BIT(CO)},
    {"Cn", BIT(CN)},
    {"Letter", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO)},
    {"Number", BIT(ND) | BIT(NL) | BIT(NO)},
    {"Punctuation", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO)},
    {"Uppercase_Letter", BIT(LU)},
    {"Lowercase_Letter", BIT(LL)},
    {"Decimal_Number", BIT(ND)},
};

bool char_ranges_put_property(struct char_ranges *r, struct str name) {
    if (str_starts(name, STR("gc=")))
        name = (struct str){name.ptr + 3, name.len - 3};
    for (size_t i = 0; i < ARRAY_LEN(categories); i++)
        if (str_eq(name, str_of(categories[i].name))) {
            put_categories(r, categories[i].bits);
            return true;
        }
    if (str_eq(name, STR("Any")) || str_eq(name, STR("ASCII"))) {
        char_ranges_put(r, 0, name.len == 3 ? LAST_CHAR : 0x7F);
        return true;
    }
    return false;
}

void char_ranges_put_escape(struct char_ranges *r, char which, bool ecma) {
    static const struct code_range spaces[] = {{9, 13},          {32, 32},         {0xA0, 0xA0},
                                               {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                               {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
    switch (which) {
    case 's':
        for (size_t i = 0; i < ARRAY_LEN(spaces); i++)
            char_ranges_put(r, spaces[i].first, spaces[i].last);
        if (ecma)
            char_ranges_put(r, 0xFEFF, 0xFEFF);
        else {
            char_ranges_put(r, 0x1C, 0x1F);
            char_ranges_put(r, 0x85, 0x85);
        }
        break;
    case 'd':
        if (ecma)
            char_ranges_put(r, '0', '9');
        else
            put_categories(r, BIT(ND));
        break;
    default: // w
        if (ecma) {
            char_ranges_put(r, '0', '9');
            char_ranges_put(r, 'A', 'Z');
            char_ranges_put(r, 'a', 'z');
        } else
            put_categories(r, categories[0].bits | BIT(ND) | BIT(NL) | BIT(NO));
        char_ranges_put(r, '_', '_');
    }
}

bool char_ranges_put_posix(struct char_ranges *r, struct str name) {
    static const struct {
        const char *name;
        struct code_range ranges[4];
        int n;
    } classes[] = {
        {"alpha", {{'A', 'Z'}, {'a', 'z'}}, 2},
        {"digit", {{'0', '9'}}, 1},
        {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}, 3},
        {"upper", {{'A', 'Z'}}, 1},
        {"lower", {{'a', 'z'}}, 1},
        {"space", {{9, 13}, {' ', ' '}}, 2},
        {"blank", {{9, 9}, {' ', ' '}}, 2},
        {"punct", {{33, 47}, {58, 64}, {91, 96}, {123, 126}}, 4},
        {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}, 3},
        {"cntrl", {{0, 31}, {127, 127}}, 2},
        {"print", {{32, 126}}, 1},
        {"graph", {{33, 126}}, 1},
        {"word", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, 4},
    };
    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        if (str_eq(name, str_of(classes[i].name))) {
            for (int k = 0; k < classes[i].n; k++)
                char_ranges_put(r, classes[i].ranges[k].first, classes[i].ranges[k].last);
            return true;
        }
    return false;
}
