/* test_token_bytes.c - bytes cut into tokens: by the definition, with no table; against real tokenizers; and special
 * tokens by name. */
#include "check.h"
#include "engine/draft/token_bytes.h"
#include "text/tokenizer.h"
#include "text/vocabulary_bytes.h"

#include "base/file.h"
#include "base/random.h"

#include <string.h>

static uint64_t n_drawn;
static int draw(int least, int most) {
    return least + (int)(philox_uniform(test_seed(), n_drawn++, 0) * (double)(most - least + 1));
}

struct words {
    char bytes[4096];
    uint32_t start[257];
    struct gyre_token_bytes view;
};

static void add(struct words *w, const char *bytes, size_t n) {
    int32_t i = w->view.n++;
    memcpy(w->bytes + w->start[i], bytes, n);
    w->start[i + 1] = w->start[i] + (uint32_t)n;
    w->view.bytes = w->bytes, w->view.start = w->start, w->view.first = -1;
}

static int32_t find(const struct words *w, const char *text, int n) {
    for (int32_t i = 0; i < w->view.n; i++)
        if ((int)(w->start[i + 1] - w->start[i]) == n && memcmp(w->bytes + w->start[i], text, (size_t)n) == 0)
            return i;
    return -1;
}

/* By the definition: pieces[i] ends at ends[i]. */
static int joined(const struct words *w, const char *text, int n, int *ends) {
    for (int i = 0; i < n; i++)
        ends[i] = i + 1;
    for (;;) {
        int32_t best = -1, at = 0;
        for (int i = 0; i + 1 < n; i++) {
            int first = i ? ends[i - 1] : 0;
            int32_t id = find(w, text + first, ends[i + 1] - first);
            if (id >= 0 && (best < 0 || id < best))
                best = id, at = i;
        }
        if (best < 0)
            return n;
        memmove(ends + at, ends + at + 1, (size_t)(--n - at) * sizeof *ends);
    }
}

static void pieces_join_in_the_order_of_ids(void **state) {
    (void)state;
    enum { BYTES = 40 };
    for (int round = 0; round < 300; round++) {
        struct words w = {0};
        struct token_bytes t;
        struct error err;
        char text[BYTES];
        int32_t out[BYTES], end[BYTES];
        int ends[BYTES];
        for (char c = 'a'; c <= 'c'; c++)
            add(&w, &c, 1);
        for (int i = draw(0, 40); i > 0; i--) {
            char word[6];
            int n = draw(0, 6);
            for (int k = 0; k < n; k++)
                word[k] = (char)('a' + draw(0, 2));
            add(&w, word, (size_t)n); // perhaps one that is there, or none
        }
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = (char)('a' + draw(0, 2));
        EXPECT_OK(token_bytes_init(&t, &w.view, w.view.n, &err), err);
        int n = token_bytes_cut(&t, text, BYTES, out, end, BYTES);
        EXPECT_EQ(n, joined(&w, text, BYTES, ends));
        for (int i = 0; i < n; i++) {
            int first = i ? end[i - 1] : 0;
            EXPECT(end[i] == ends[i] && out[i] == find(&w, text + first, end[i] - first));
        }
        EXPECT_EQ(token_bytes_cut(&t, text, BYTES, out, end, 2), MIN(n, 2));
        token_bytes_release(&t);
    }
}

/* Characters that are tokens begin as one; others as bytes, which join. */
static void characters_that_are_tokens_begin_whole(void **state) {
    (void)state;
    struct words w = {0};
    struct token_bytes t;
    struct error err;
    int32_t out[8], end[8];
    add(&w, "\xc3", 1), add(&w, "\xa9", 1), add(&w, "\xa8", 1), add(&w, "a\xc3", 2), add(&w, "a", 1);
    add(&w, "\xc3\xa9", 2), add(&w, "\xc3\xa9\xc3\xa8", 4), add(&w, "\xff<s>", 4), add(&w, "<", 1);
    EXPECT_OK(token_bytes_init(&t, &w.view, w.view.n, &err), err);
    EXPECT_EQ(token_bytes_cut(&t, "a\xc3\xa9", 3, out, end, 8), 2);
    EXPECT(out[0] == 4 && out[1] == 5);
    EXPECT_EQ(token_bytes_cut(&t, "a\xc3\xa8", 3, out, end, 8), 2);
    EXPECT(out[0] == 3 && out[1] == 2 && end[0] == 2 && end[1] == 3);
    EXPECT_EQ(token_bytes_cut(&t, "\xff<s><\xc3", 6, out, end, 8), 3); // a character that ends behind the text
    EXPECT(out[0] == 7 && out[1] == 8 && out[2] == 0);
    token_bytes_release(&t);
}

static void what_no_token_has_is_left_out(void **state) {
    (void)state;
    struct words w = {0};
    struct token_bytes t;
    struct error err;
    int32_t out[8], end[8];
    add(&w, "ab", 2), add(&w, "b", 1), add(&w, "\xff<s>", 4), add(&w, "", 0), add(&w, "b", 1);
    EXPECT_OK(token_bytes_init(&t, &w.view, 4, &err), err);
    EXPECT_EQ(token_bytes_cut(&t, "xabyb\xff<s>", 9, out, end, 8), 3);
    EXPECT(out[0] == 0 && out[1] == 1 && out[2] == 2 && end[0] == 3 && end[1] == 5 && end[2] == 9);
    EXPECT_EQ(token_bytes_cut(&t, "", 0, out, end, 8), 0);
    EXPECT(token_is_special(&t, 2) && !token_is_special(&t, 0) && !token_is_special(&t, 3));
    EXPECT_EQ(token_find(&t, "\xff<s>", 4), 2);
    EXPECT_EQ(token_find(&t, "\xff<s", 3), -1);
    EXPECT_EQ(token_find(&t, "", 0), -1);
    token_bytes_release(&t);
    w.start[1] = 4000; // ends behind the next one's end
    EXPECT_EQ(token_bytes_init(&t, &w.view, 5, &err), ERR_ARG);
    EXPECT(strstr(err.text, "token 1"));
    token_bytes_release(&t);
    EXPECT_EQ(token_bytes_init(&t, &(struct gyre_token_bytes){.n = 5}, 5, &err), ERR_ARG);
    EXPECT_EQ(token_bytes_init(&t, &(struct gyre_token_bytes){w.bytes, w.start, -5, 0}, 5, &err), ERR_ARG);
    token_bytes_release(&t);
}

static void a_cut_is_what_a_tokenizer_makes(void **state) {
    (void)state;
    enum { BYTES = 8000 };
    static const char *const folders[] = {"models/story", "tests/models/llama"};
    static int32_t out[BYTES], end[BYTES];
    for (size_t f = 0; f < ARRAY_LEN(folders); f++) {
        struct vocabulary_bytes v;
        struct token_bytes t;
        struct tokenizer *tok;
        struct token_ids ids = {0};
        struct error err;
        struct buf text = {0};
        EXPECT_OK(file_read("models/story/heldout.txt", 1 << 20, &text, &err), err);
        EXPECT_OK(vocabulary_bytes_read(folders[f], &v, &err), err);
        EXPECT_OK(token_bytes_init(&t, &(struct gyre_token_bytes){v.bytes.ptr, v.start, v.n, v.first}, v.n, &err), err);
        EXPECT_OK(tokenizer_open(folders[f], &tok, &err), err);
        struct encoder *enc = encoder_open(tok);
        EXPECT_OK(tokenizer_encode(enc, (struct str){text.ptr, BYTES}, 0, &ids, &err), err);
        int n = token_bytes_cut(&t, text.ptr, BYTES, out, end, BYTES), same = 0;
        for (int i = 0, k = 0, at = 0; i < n; i++) { // tokens with the same bytes at the same place
            int32_t first = i ? end[i - 1] : 0;
            while (k < (int)ids.n && at < first)
                at += token_length(&t, ids.ids[k++]);
            same += k < (int)ids.n && at == first && ids.ids[k] == out[i];
        }
        EXPECT_EQ(end[n - 1], BYTES);
        if (same < (int)ids.n || n != same)
            fail_msg("%s: of %d tokens %d are the tokenizer's, which makes %d", folders[f], n, same, (int)ids.n);
        encoder_free(enc);
        tokenizer_free(tok);
        token_ids_release(&ids);
        token_bytes_release(&t);
        vocabulary_bytes_release(&v);
        buf_release(&text);
    }
}

static void vocabularies_are_the_same_or_not(void **state) {
    (void)state;
    struct words a = {0}, b = {0};
    add(&a, "x", 1), add(&a, "yz", 2);
    add(&b, "x", 1), add(&b, "yz", 2), add(&b, "", 0); // a place that is not used
    EXPECT(token_bytes_equal(&a.view, &b.view));
    add(&b, "q", 1);
    EXPECT(!token_bytes_equal(&a.view, &b.view));
    a.bytes[0] = 'w';
    b.view.n = 3;
    EXPECT(!token_bytes_equal(&a.view, &b.view));
    EXPECT(!token_bytes_equal(&b.view, &a.view));
}

/* What goes through rows may have other special tokens, but no other text. */
static void special_tokens_may_differ(void **state) {
    (void)state;
    struct words a = {0}, b = {0}, c = {0};
    add(&a, "x", 1), add(&a, "\xff<a>", 4), add(&a, "yz", 2), add(&a, "\xff<b>", 4);
    add(&b, "x", 1), add(&b, "\xff<other>", 8), add(&b, "yz", 2);
    add(&c, "x", 1), add(&c, "<a>", 3), add(&c, "yz", 2);
    b.view.first = 1;
    EXPECT(token_bytes_equal(&a.view, &b.view) && token_bytes_equal(&b.view, &a.view));
    EXPECT(!token_bytes_equal(&a.view, &c.view) && !token_bytes_equal(&c.view, &a.view));
    add(&a, "\xff", 1); // a byte, which is no special token
    EXPECT(!token_bytes_equal(&a.view, &b.view) && !token_bytes_equal(&b.view, &a.view));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_join_in_the_order_of_ids),
        cmocka_unit_test(characters_that_are_tokens_begin_whole),
        cmocka_unit_test(what_no_token_has_is_left_out),
        cmocka_unit_test(a_cut_is_what_a_tokenizer_makes),
        cmocka_unit_test(vocabularies_are_the_same_or_not),
        cmocka_unit_test(special_tokens_may_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
