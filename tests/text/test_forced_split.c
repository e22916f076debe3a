/* test_forced_split.c - text that must come, as tokens: those that the tokenizer makes of the whole, as far as what
 * follows cannot change them. */
#include "check.h"

#include "base/random.h"
#include "text/forced_split.h"

#define FILES "build/data/tokenizers/"

static const char *const files[] = {FILES "qwen3", FILES "llama-2/tokenizer.model", FILES "gpt-2", FILES "llama-3",
                                    "models/story"};

static const char *const texts[] = {
    "{\"name\": \"Ada Lovelace\", \"year_of_birth\": 1815, \"tags\": [\"mathematics\", \"engines\"]}",
    "{\n  \"type\": \"function\",\n  \"parameters\": {\"properties\": {\"location\": {\"type\": \"string\"}}}\n}",
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
    "Once upon a time there was a little fox, and it liked to run through the woods all day long.",
    "na\xC3\xAFve caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E 12345678 ---- ====",
};

static struct str text_of(const struct tokenizer *tok, const int32_t *ids, size_t n, struct buf *out) {
    buf_clear(out);
    for (size_t i = 0; i < n; i++)
        tokenizer_token_bytes(tok, ids[i], out);
    return buf_view(out);
}

/* Returns how many tokens of the rest were told, of those that were wanted. */
static int check_cut(const struct tokenizer *tok, struct encoder *enc, const struct token_ids *whole, size_t cut) {
    struct buf rest = {0}, told = {0};
    int32_t out[200];
    struct str text = text_of(tok, whole->ids + cut, whole->n - cut, &rest);
    int n = tokenizer_split_behind(tok, enc, whole->ids, (int)cut, text, out, 200);
    EXPECT(n >= 0 && (size_t)n <= whole->n - cut);
    EXPECT(str_starts(text, text_of(tok, out, (size_t)n, &told)));
    for (int i = 0; i < n; i++)
        EXPECT_EQ(out[i], whole->ids[cut + (size_t)i]);
    EXPECT(tokenizer_split_behind(tok, enc, whole->ids, (int)cut, text, out, 1) == MIN(n, 1));
    buf_release(&rest);
    buf_release(&told);
    return n;
}

static void a_text_behind_its_own_beginning_is_split_as_the_whole(void **state) {
    (void)state;
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        struct tokenizer *tok;
        struct error err;
        int n_told = 0, n_all = 0;
        EXPECT_OK(tokenizer_open(files[f], &tok, &err), err);
        struct encoder *enc = encoder_open(tok);
        for (size_t t = 0; t < ARRAY_LEN(texts); t++) {
            struct token_ids whole = {0};
            EXPECT_OK(tokenizer_encode(enc, str_of(texts[t]), 0, &whole, &err), err);
            for (size_t cut = 1; cut < whole.n; cut++) {
                n_told += check_cut(tok, enc, &whole, cut);
                n_all += (int)(whole.n - cut);
            }
            token_ids_release(&whole);
        }
        printf("%s: %d of %d tokens\n", files[f], n_told, n_all);
        EXPECT(n_told > n_all * 9 / 10);
        encoder_free(enc);
        tokenizer_free(tok);
    }
}

/* In the middle of a word the tokenizer has no boundary, and a text of nothing has no tokens. */
static void without_a_boundary_nothing_is_told(void **state) {
    (void)state;
    struct tokenizer *tok;
    struct error err;
    int32_t out[8];
    EXPECT_OK(tokenizer_open(FILES "qwen3", &tok, &err), err);
    struct encoder *enc = encoder_open(tok);
    struct token_ids begin = {0};
    EXPECT_OK(tokenizer_encode(enc, STR("Once upon a ti"), 0, &begin, &err), err);
    EXPECT_EQ(tokenizer_split_behind(tok, enc, begin.ids, (int)begin.n, STR("me there was"), out, 8), 0);
    EXPECT_EQ(tokenizer_split_behind(tok, enc, begin.ids, (int)begin.n, STR(""), out, 8), 0);
    EXPECT_EQ(tokenizer_split_behind(tok, enc, begin.ids, (int)begin.n, STR("\xFF\xFE\xFF"), out, 8), 0);
    EXPECT(tokenizer_split_behind(tok, enc, NULL, 0, STR("there was a fox"), out, 8) > 0);
    token_ids_release(&begin);
    encoder_free(enc);
    tokenizer_free(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_behind_its_own_beginning_is_split_as_the_whole),
        cmocka_unit_test(without_a_boundary_nothing_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
