/* test_detokenizer.c - token ids back to text as they come, for every kind of decoder that the vocabularies have. */
#include "check.h"

#include "base/file.h"
#include "base/random.h"
#include "text/detokenizer.h"

#include <pthread.h>

#define FILES "build/data/tokenizers/"

static const char *const files[] = {FILES "qwen3",
                                    FILES "llama-2/tokenizer.json",
                                    FILES "llama-2/tokenizer.model",
                                    FILES "bert-base-uncased/tokenizer.json",
                                    FILES "albert/tokenizer.json",
                                    FILES "albert/spiece.model",
                                    FILES "o200k"};

static struct tokenizer *open_tokenizer(const char *path) {
    struct error err;
    struct tokenizer *tok;
    EXPECT_OK(tokenizer_open(path, &tok, &err), err);
    return tok;
}

/* Half of them from the first 300 ids, where vocabularies keep their bytes. */
static int32_t random_id(const struct tokenizer *tok, uint64_t a, uint64_t b) {
    struct philox r = philox4x32(test_seed(), a, b);
    int32_t n = tokenizer_n_vocab(tok);
    return (int32_t)(r.v[0] % (uint32_t)(r.v[1] % 2 ? n + 10 : MIN(n, 300)));
}

static void check_stream(const struct tokenizer *tok, int flags, uint64_t key) {
    struct detokenizer *d = detokenizer_open(tok, flags);
    struct buf streamed = {0}, whole = {0};
    buf_reserve(&streamed, 1);
    struct error err;
    int32_t ids[60];
    for (uint64_t round = 0; round < 150; round++) {
        size_t n = round % ARRAY_LEN(ids);
        buf_clear(&streamed);
        buf_clear(&whole);
        for (size_t i = 0; i < n; i++) {
            size_t before = streamed.len;
            ids[i] = random_id(tok, key * 1000 + round, i);
            EXPECT_OK(detokenizer_feed(d, ids[i], &streamed, &err), err);
            EXPECT(utf8_valid((struct str){streamed.ptr + before, streamed.len - before}));
        }
        EXPECT_OK(detokenizer_finish(d, &streamed, &err), err); // and begin anew
        EXPECT_OK(tokenizer_decode(tok, ids, n, flags, &whole, &err), err);
        EXPECT(utf8_valid(buf_view(&whole)));
        EXPECT(str_eq(buf_view(&streamed), buf_view(&whole)));
    }
    detokenizer_free(d);
    buf_release(&streamed);
    buf_release(&whole);
}

static void what_is_fed_one_by_one_is_what_is_decoded_at_once(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct tokenizer *tok = open_tokenizer(files[i]);
        check_stream(tok, 0, i);
        check_stream(tok, DETOKENIZE_SKIP_SPECIAL, i);
        tokenizer_free(tok);
    }
}

static void a_character_leaves_only_when_it_is_whole(void **state) {
    (void)state;
    struct tokenizer *tok = open_tokenizer(FILES "qwen3");
    struct encoder *enc = encoder_open(tok);
    struct token_ids ids = {0};
    struct buf out = {0};
    struct error err;
    EXPECT_OK(tokenizer_encode(enc, STR("\xF0\x90\x8D\x88"), 0, &ids, &err), err); // a Gothic letter, in several tokens
    EXPECT(ids.n > 1);
    struct detokenizer *d = detokenizer_open(tok, 0);
    for (size_t i = 0; i < ids.n; i++) {
        EXPECT_EQ(out.len, 0);
        EXPECT_OK(detokenizer_feed(d, ids.ids[i], &out, &err), err);
    }
    EXPECT_STR(out.ptr, "\xF0\x90\x8D\x88");
    buf_clear(&out);
    EXPECT_OK(detokenizer_feed(d, ids.ids[0], &out, &err), err); // cut off: replaced at the end
    EXPECT_EQ(out.len, 0);
    EXPECT_OK(detokenizer_finish(d, &out, &err), err);
    EXPECT_STR(out.ptr, "\xEF\xBF\xBD");
    detokenizer_free(d);
    encoder_free(enc);
    token_ids_release(&ids);
    buf_release(&out);
    tokenizer_free(tok);
}

static void the_bytes_of_tokens_are_the_text(void **state) {
    (void)state;
    static const char text[] = " The fox's \xC3\xA9t\xC3\xA9: 12345\n\n\t\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E "
                               "\xF0\x9F\xA6\x8A\xF0\x90\x8D\x88!";
    static const char *const exact[] = {FILES "qwen3", FILES "llama-3", FILES "gpt-2/tokenizer.json", FILES "o200k"};
    for (size_t i = 0; i < ARRAY_LEN(exact); i++) {
        struct tokenizer *tok = open_tokenizer(exact[i]);
        struct encoder *enc = encoder_open(tok);
        struct token_ids ids = {0};
        struct buf out = {0};
        struct error err;
        EXPECT_OK(tokenizer_encode(enc, STR(text), 0, &ids, &err), err);
        for (size_t k = 0; k < ids.n; k++)
            tokenizer_token_bytes(tok, ids.ids[k], &out);
        EXPECT_STR(out.ptr, text);
        buf_release(&out);
        token_ids_release(&ids);
        encoder_free(enc);
        tokenizer_free(tok);
    }
    struct tokenizer *tok = open_tokenizer(FILES "llama-2");
    struct buf out = {0};
    tokenizer_token_bytes(tok, tokenizer_find(tok, STR("\xE2\x96\x81the")), &out);
    tokenizer_token_bytes(tok, tokenizer_find(tok, STR("<0x0A>")), &out);
    EXPECT_STR(out.ptr, " the\n");
    buf_release(&out);
    tokenizer_free(tok);
}

static void special_tokens_have_their_names(void **state) {
    (void)state;
    struct tokenizer *tok = open_tokenizer(FILES "qwen3");
    EXPECT(str_eq(tokenizer_special(tok, SPECIAL_EOS).text, STR("<|im_end|>")));
    EXPECT_EQ(tokenizer_special(tok, SPECIAL_EOS).id, 151645);
    EXPECT_EQ(tokenizer_special(tok, SPECIAL_BOS).id, -1);
    EXPECT(tokenizer_is_special(tok, 151645) && !tokenizer_is_special(tok, 100) && !tokenizer_is_special(tok, -5));
    EXPECT(!tokenizer_is_special(tok, 1 << 30) && tokenizer_token_text(tok, 1 << 30).len == 0);
    EXPECT_EQ(tokenizer_n_vocab(tok), 151669);
    tokenizer_free(tok);
    tok = open_tokenizer(FILES "llama-2/tokenizer.model");
    EXPECT_EQ(tokenizer_special(tok, SPECIAL_BOS).id, 1);
    EXPECT_EQ(tokenizer_special(tok, SPECIAL_UNK).id, 0);
    tokenizer_free(tok);
}

struct worker {
    const struct tokenizer *tok;
    struct token_ids ids;
};

static void *encode_some(void *arg) {
    struct worker *w = arg;
    struct encoder *enc = encoder_open(w->tok);
    struct error err;
    for (int i = 0; i < 200; i++) {
        char text[64];
        int len = snprintf(text, sizeof text, "thread %d says: caf\xC3\xA9 %d <|im_end|>", i % 7, i);
        tokenizer_encode(enc, (struct str){text, (size_t)len}, ENCODE_PARSE_SPECIAL, &w->ids, &err);
    }
    encoder_free(enc);
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    struct tokenizer *tok = open_tokenizer(FILES "qwen3");
    struct worker workers[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        workers[i] = (struct worker){.tok = tok};
        EXPECT(pthread_create(&threads[i], NULL, encode_some, &workers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(workers[i].ids.n > 1000 && workers[i].ids.n == workers[0].ids.n);
        EXPECT(memcmp(workers[i].ids.ids, workers[0].ids.ids, workers[0].ids.n * sizeof(int32_t)) == 0);
    }
    for (int i = 0; i < 4; i++)
        token_ids_release(&workers[i].ids);
    tokenizer_free(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_fed_one_by_one_is_what_is_decoded_at_once),
        cmocka_unit_test(a_character_leaves_only_when_it_is_whole),
        cmocka_unit_test(the_bytes_of_tokens_are_the_text),
        cmocka_unit_test(special_tokens_have_their_names),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
