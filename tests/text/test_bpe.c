/* test_bpe.c - joining pairs: short words, long words and the definition agree; tries against plain search. */
#include "check.h"

#include "base/clock.h"
#include "base/random.h"
#include "text/merging/bpe.h"
#include "text/merging/byte_trie.h"
#include "text/regex/unicode.h"

enum { LETTERS = 5 };

static uint32_t draw(uint64_t a, uint64_t b) { return philox4x32(test_seed(), a, b).v[0]; }

/* A vocabulary of the letters a to e and of n random joins of what is there. */
static void random_bpe(uint64_t key, int n, struct vocab *vocab, struct bpe *bpe) {
    struct error err;
    *vocab = (struct vocab){0};
    *bpe = (struct bpe){.vocab = vocab, .unk_id = BPE_NO_UNK};
    for (int i = 0; i < LETTERS; i++)
        EXPECT_OK(vocab_add(vocab, (struct str){(char[]){(char)('a' + i)}, 1}, i, "test", NULL, &err), err);
    for (int rank = 0; rank < n; rank++) {
        int32_t left = (int32_t)(draw(key, (uint64_t)rank * 2) % (uint32_t)vocab->n);
        int32_t right = (int32_t)(draw(key, (uint64_t)rank * 2 + 1) % (uint32_t)vocab->n);
        char joined[600];
        int len = snprintf(joined, sizeof joined, "%.*s%.*s", STR_ARG(vocab_text(vocab, left)),
                           STR_ARG(vocab_text(vocab, right)));
        if (len > 250)
            continue;
        int32_t id = vocab_find(vocab, (struct str){joined, (size_t)len});
        if (id < 0) {
            id = vocab->n;
            EXPECT_OK(vocab_add(vocab, (struct str){joined, (size_t)len}, id, "test", NULL, &err), err);
        }
        bpe_add_pair(bpe, left, right, rank, id);
    }
}

static const struct bpe_pair *find_pair(const struct bpe *bpe, int32_t left, int32_t right) {
    for (uint64_t i = 0; i <= bpe->mask; i++)
        if (bpe->pairs[i].key == ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1)
            return &bpe->pairs[i];
    return NULL;
}

/* The definition: the leftmost pair of the lowest rank, until there is none. */
static void join_by_definition(const struct bpe *bpe, struct token_ids *ids) {
    for (;;) {
        const struct bpe_pair *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < ids->n; i++) {
            const struct bpe_pair *pair = find_pair(bpe, ids->ids[i], ids->ids[i + 1]);
            if (pair && (!best || pair->rank < best->rank)) {
                best = pair;
                at = i;
            }
        }
        if (!best)
            return;
        ids->ids[at] = best->id;
        memmove(ids->ids + at + 1, ids->ids + at + 2, (ids->n - at - 2) * sizeof *ids->ids);
        ids->n--;
    }
}

static void words_of_all_lengths_join_by_the_definition(void **state) {
    (void)state;
    struct bpe_memory m = {0};
    struct error err;
    for (uint64_t round = 0, n = test_is_brief() ? 15 : 60; round < n; round++) {
        struct vocab vocab;
        struct bpe bpe;
        random_bpe(round, 40, &vocab, &bpe);
        for (uint64_t k = 0; k < 12; k++) {
            char word[250];
            size_t len = 1 + draw(round, 1000 + k) % (k < 8 ? 90 : sizeof word - 1); // past 96 symbols, a heap
            struct token_ids got = {0}, wanted = {0};
            for (size_t i = 0; i < len; i++) {
                word[i] = (char)('a' + draw(round * 100 + k, i) % LETTERS);
                token_ids_push(&wanted, word[i] - 'a');
            }
            join_by_definition(&bpe, &wanted);
            EXPECT_OK(bpe_encode(&bpe, &m, (struct str){word, len}, &got, &err), err);
            EXPECT_EQ(got.n, wanted.n);
            EXPECT(memcmp(got.ids, wanted.ids, got.n * sizeof *got.ids) == 0);
            token_ids_release(&got);
            token_ids_release(&wanted);
        }
        bpe_release(&bpe);
        vocab_release(&vocab);
    }
    bpe_memory_release(&m);
}

static void a_megabyte_without_a_space_takes_no_minute(void **state) {
    (void)state;
    struct vocab vocab;
    struct bpe bpe;
    struct bpe_memory m = {0};
    struct error err;
    struct token_ids ids = {0};
    enum { N = 1 << 20 };
    char *word = xmalloc(N);
    memset(word, 'a', N);
    random_bpe(7, 60, &vocab, &bpe);
    bpe_add_pair(&bpe, 0, 0, 1000, vocab_find(&vocab, STR("aa")) >= 0 ? vocab_find(&vocab, STR("aa")) : 1);
    int64_t start = clock_us();
    EXPECT_OK(bpe_encode(&bpe, &m, (struct str){word, N}, &ids, &err), err);
    EXPECT(ids.n > 0 && ids.n < N);
    EXPECT(clock_seconds_since(start) < 60); // quadratic time would be hours
    free(word);
    token_ids_release(&ids);
    bpe_memory_release(&m);
    bpe_release(&bpe);
    vocab_release(&vocab);
}

static void a_trie_finds_what_a_plain_search_finds(void **state) {
    (void)state;
    enum { N = 300 };
    for (uint64_t round = 0; round < 30; round++) {
        static char texts[N][8];
        struct trie_key keys[N], sorted[N];
        for (int i = 0; i < N; i++) {
            size_t len = draw(round, (uint64_t)i) % 7;
            for (size_t k = 0; k < len; k++)
                texts[i][k] = (char)(draw(round * 1000 + (uint64_t)i, k) % 3 * 100 - 56);
            keys[i] = sorted[i] = (struct trie_key){{texts[i], len}, i};
        }
        struct byte_trie trie;
        byte_trie_build(&trie, sorted, N);
        for (uint64_t k = 0; k < 200; k++) {
            char text[12];
            for (size_t i = 0; i < sizeof text; i++)
                text[i] = (char)(draw(round * 7777 + k, i) % 3 * 100 - 56);
            int32_t wanted = -1;
            size_t wanted_len = 0, len = 0;
            for (int i = 0; i < N; i++)
                if (keys[i].text.len > 0 && keys[i].text.len >= wanted_len &&
                    memcmp(keys[i].text.ptr, text, keys[i].text.len) == 0) {
                    wanted = i;
                    wanted_len = keys[i].text.len;
                }
            EXPECT_EQ(byte_trie_longest(&trie, 0, (struct str){text, sizeof text}, &len), wanted);
            EXPECT(wanted < 0 || len == wanted_len);
        }
        byte_trie_release(&trie);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_all_lengths_join_by_the_definition),
        cmocka_unit_test(a_megabyte_without_a_space_takes_no_minute),
        cmocka_unit_test(a_trie_finds_what_a_plain_search_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
