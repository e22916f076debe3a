/* test_tokenizer.c - real vocabularies against ids and texts that other programs gave.
 *
 * The vector files say where they are from. Left aside: deepseek-llm, whose vocabulary exists as GGUF only; in
 * bert-base-uncased one case of a pair of texts; and the texts after decoding that transformers.js cleaned up (no
 * space before "!" and the like), which no decoder of the file asks for. */
#include "check.h"

#include "base/file.h"
#include "base/json/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

#define FILES "build/data/tokenizers/"

static json_t *load(const char *path) {
    struct error err;
    json_t *v;
    EXPECT_OK(jv_load(path, 64 << 20, 0, &v, &err), err);
    return v;
}

static struct tokenizer *open_tokenizer(const char *path) {
    struct error err;
    struct tokenizer *tok;
    EXPECT_OK(tokenizer_open(path, &tok, &err), err);
    return tok;
}

static bool same_ids(const struct token_ids *ids, const json_t *wanted) {
    bool same = ids->n == json_array_size(wanted);
    for (size_t i = 0; same && i < ids->n; i++)
        same = ids->ids[i] == json_integer_value(json_array_get(wanted, i));
    return same;
}

static void check_ids(struct encoder *enc, const json_t *c, int flags, const char *name) {
    struct token_ids ids = {0};
    struct error err;
    const json_t *text = json_object_get(c, "text");
    EXPECT_OK(tokenizer_encode(enc, (struct str){json_string_value(text), json_string_length(text)}, flags, &ids, &err),
              err);
    if (!same_ids(&ids, json_object_get(c, "ids"))) {
        for (size_t i = 0; i < ids.n && i < 60; i++)
            print_error("%d ", ids.ids[i]);
        fail_msg("%s: \"%.200s\" gives the ids above", name, json_string_value(text));
    }
    token_ids_release(&ids);
}

/* transformers.js cleans these up after decoding. */
static bool cleaned_up_elsewhere(const char *text) {
    static const char *const texts[] = {"A\n'll !!to?'d''d of, can't.", "A 'll !!to?'d\"d of, can't.",
                                        "You should've done this", "▁This ▁is ▁a ▁test ▁."};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (strcmp(text, texts[i]) == 0)
            return true;
    return false;
}

/* Fed one by one, and all at once. */
static void check_text(const struct tokenizer *tok, const json_t *c, const char *key, int flags, const char *name) {
    const json_t *list = json_object_get(c, "ids"), *wanted = json_object_get(c, key);
    if (!wanted || cleaned_up_elsewhere(json_string_value(json_object_get(c, "text"))))
        return;
    struct buf whole = {0}, pieces = {0};
    struct error err;
    struct detokenizer *d = detokenizer_open(tok, flags);
    int32_t *ids = xcalloc(json_array_size(list) + 1, sizeof *ids);
    for (size_t i = 0; i < json_array_size(list); i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        EXPECT_OK(detokenizer_feed(d, ids[i], &pieces, &err), err);
        EXPECT(utf8_valid(buf_view(&pieces)));
    }
    EXPECT_OK(detokenizer_finish(d, &pieces, &err), err);
    EXPECT_OK(tokenizer_decode(tok, ids, json_array_size(list), flags, &whole, &err), err);
    EXPECT(str_eq(buf_view(&whole), buf_view(&pieces)));
    if (!str_eq(buf_view(&whole), (struct str){json_string_value(wanted), json_string_length(wanted)}))
        fail_msg("%s: \"%s\" is decoded as \"%s\"", name, json_string_value(wanted), buf_view(&whole).ptr);
    free(ids);
    buf_release(&whole);
    buf_release(&pieces);
    detokenizer_free(d);
}

/* folder: where the vectors are; long ones are committed packed. */
static void check_vectors(const char *file, const char *folder, const char *vectors) {
    char path[200];
    snprintf(path, sizeof path, FILES "%s", file);
    struct tokenizer *tok = open_tokenizer(path);
    struct encoder *enc = encoder_open(tok);
    snprintf(path, sizeof path, "%s%s", folder, vectors);
    json_t *v = load(path), *c;
    int flags = (json_is_true(json_object_get(v, "add_special")) ? ENCODE_ADD_SPECIAL : 0) |
                (json_is_true(json_object_get(v, "parse_special")) ? ENCODE_PARSE_SPECIAL : 0);
    size_t i;
    json_array_foreach(json_object_get(v, "cases"), i, c) {
        if (json_object_get(c, "text_pair"))
            continue;
        check_ids(enc, c, flags, vectors);
        check_text(tok, c, "decoded", 0, vectors);
        check_text(tok, c, "decoded_with_special", 0, vectors);
        check_text(tok, c, "decoded_without_special", DETOKENIZE_SKIP_SPECIAL, vectors);
    }
    EXPECT(i > 0);
    json_decref(v);
    encoder_free(enc);
    tokenizer_free(tok);
}

static void qwen3_gives_the_published_ids(void **state) {
    (void)state;
    check_vectors("qwen3", FILES, "qwen3/vectors_llama_cpp.json"); // the folder, with its tokenizer_config.json
    check_vectors("qwen3/tokenizer.json", FILES, "qwen3/vectors_tokenizers_js.json");
}

static void llama_3_gives_the_published_ids(void **state) {
    (void)state;
    check_vectors("llama-3/tokenizer.json", FILES, "llama-3/vectors_llama_cpp.json");
    check_vectors("llama-3", FILES, "llama-3/vectors_swift.json");
    check_vectors("llama-3/tokenizer.json", FILES, "llama-3/vectors_tokenizers_js.json");
}

static void llama_2_gives_the_published_ids(void **state) {
    (void)state;
    check_vectors("llama-2/tokenizer.json", FILES, "llama-2/vectors_llama_cpp.json");
    check_vectors("llama-2", FILES, "llama-2/vectors_swift.json");
    check_vectors("llama-2/tokenizer.json", FILES, "llama-2/vectors_tokenizers_js.json");
}

static void gpt_2_gives_the_published_ids(void **state) {
    (void)state;
    check_vectors("gpt-2/tokenizer.json", FILES, "gpt-2/vectors_llama_cpp.json");
    check_vectors("gpt-2/tokenizer.json", FILES, "gpt-2/vectors_tokenizers_js.json");
    check_vectors("gpt-2/tokenizer.json", FILES, "gpt-2/vectors_long.json");
}

static void bert_gives_the_published_ids(void **state) {
    (void)state;
    check_vectors("bert-base-uncased/tokenizer.json", FILES, "bert-base-uncased/vectors_llama_cpp.json");
    check_vectors("bert-base-uncased/tokenizer.json", FILES, "bert-base-uncased/vectors_swift.json");
    check_vectors("bert-base-uncased/tokenizer.json", FILES, "bert-base-uncased/vectors_tokenizers_js.json");
}

static void albert_gives_the_published_ids(void **state) {
    (void)state;
    check_vectors("albert/tokenizer.json", FILES, "albert/vectors_tokenizers_js.json");
}

static void sentencepiece_files_give_what_their_json_gives(void **state) {
    (void)state;
    check_vectors("llama-2/tokenizer.model", FILES, "llama-2/vectors_llama_cpp.json");
    check_vectors("llama-2/tokenizer.model", FILES, "llama-2/vectors_swift.json");
    check_vectors("llama-2/tokenizer.model", FILES, "llama-2/vectors_tokenizers_js.json");
}

static void ranks_give_the_published_ids(void **state) {
    (void)state;
    check_vectors("o200k/o200k_base.tiktoken", FILES, "o200k/vectors_tokenizers_js.json");
    check_vectors("o200k", FILES, "o200k/vectors_long.json"); // the folder, in which the ranks are found
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3_gives_the_published_ids),
        cmocka_unit_test(llama_3_gives_the_published_ids),
        cmocka_unit_test(llama_2_gives_the_published_ids),
        cmocka_unit_test(gpt_2_gives_the_published_ids),
        cmocka_unit_test(bert_gives_the_published_ids),
        cmocka_unit_test(albert_gives_the_published_ids),
        cmocka_unit_test(sentencepiece_files_give_what_their_json_gives),
        cmocka_unit_test(ranks_give_the_published_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
