/* grammar.c - what grammars cost at a vocabulary of 152k: compiling real schemas, their first masks, the masks along
 * texts that follow them, and accepting tokens; on one thread.
 *
 * usage: build/release/bench/grammar [SCHEMAS.jsonl TOKENIZER [MORE_THAN_US]] A line of the file has a schema, and
 * tests: whether data is valid, and data. Masks over MORE_THAN_US are told one by one. Each schema has a grammar and a
 * matcher of its own; what depends on a terminal alone is shared by all of them, as in a server. */
#include "base/clock.h"
#include "base/file.h"
#include "grammar/matcher.h"
#include "text/token_trie.h"

#include <stdio.h>
#include <stdlib.h>

struct times {
    double *us;
    size_t n, cap;
};

struct bench {
    struct tokenizer *tok;
    struct encoder *enc;
    struct token_trie *trie;
    uint32_t *mask;
    struct times compile, first, masks, accept;
    size_t refused, bytes, most_bytes;
    double tell_us;
};

static void put(struct times *t, double us) {
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 1024;
        t->us = xrealloc(t->us, t->cap, sizeof *t->us);
    }
    t->us[t->n++] = us;
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(const char *what, struct times *t) {
    if (t->n == 0)
        return;
    double sum = 0;
    for (size_t i = 0; i < t->n; i++)
        sum += t->us[i];
    qsort(t->us, t->n, sizeof *t->us, by_size);
    printf("%-14s n %6zu   mean %8.1f us   p50 %8.1f   p90 %8.1f   p99 %8.1f   worst %8.1f\n", what, t->n,
           sum / (double)t->n, t->us[t->n / 2], t->us[t->n * 9 / 10], t->us[t->n * 99 / 100], t->us[t->n - 1]);
}

static bool follow(struct bench *b, struct grammar *g, const json_t *data, bool *first, const char *name) {
    struct error err;
    struct matcher *m;
    struct token_ids ids = {0};
    char *text = json_dumps(data, JSON_ENCODE_ANY);
    bool ok = text && matcher_open(g, b->trie, &m, &err) == OK;
    if (!ok)
        return free(text), false;
    ok = tokenizer_encode(b->enc, str_of(text), 0, &ids, &err) == OK;
    for (size_t i = 0; i <= ids.n && ok; i++) {
        double start = now_us();
        matcher_mask(m, b->mask);
        double took = now_us() - start;
        put(*first ? &b->first : &b->masks, took);
        *first = false;
        if (b->tell_us && took > b->tell_us)
            printf("  %8.1f us  %s, token %zu of %s\n", took, name, i, text);
        start = now_us();
        ok = i < ids.n && matcher_accept(m, ids.ids[i]);
        put(&b->accept, now_us() - start);
    }
    token_ids_release(&ids);
    free(text);
    matcher_free(m);
    return ok;
}

static void measure(struct bench *b, const json_t *line) {
    struct error err;
    struct grammar *g;
    const json_t *tests = json_object_get(line, "tests");
    const char *name = json_string_value(json_object_get(line, "name"));
    double start = now_us();
    struct grammar_source source = {.kind = GRAMMAR_JSON_SCHEMA, .value = json_object_get(line, "schema")};
    if (grammar_compile(&source, NULL, &g, &err) != OK) {
        b->refused++;
        return;
    }
    put(&b->compile, now_us() - start);
    size_t i;
    json_t *test;
    bool first = true;
    json_array_foreach(tests, i, test) if (json_is_true(json_array_get(test, 0)))
        follow(b, g, json_array_get(test, 1), &first, name ? name : "");
    size_t bytes = grammar_bytes(g);
    b->bytes += bytes;
    b->most_bytes = MAX(b->most_bytes, bytes);
    grammar_release(g);
}

static enum status run(struct bench *b, const char *schemas, const char *tokenizer, struct error *err) {
    struct buf text = {0};
    TRY(file_read(schemas, 1 << 26, &text, err));
    TRY(tokenizer_open(tokenizer, &b->tok, err));
    b->enc = encoder_open(b->tok);
    int32_t end = tokenizer_n_vocab(b->tok) - 1;
    double start = now_us();
    TRY(tokenizer_trie(b->tok, &end, 1, &b->trie, err));
    printf("vocabulary     %d tokens, trie in %.1f ms\n", token_trie_n_vocab(b->trie), (now_us() - start) * 1e-3);
    b->mask = xcalloc((size_t)token_trie_n_words(b->trie), sizeof *b->mask);
    for (size_t at = 0; at < text.len;) {
        const char *line_end = memchr(text.ptr + at, '\n', text.len - at);
        size_t len = line_end ? (size_t)(line_end - text.ptr) - at : text.len - at;
        json_t *line;
        if (len > 0) {
            TRY(jv_parse((struct str){text.ptr + at, len}, schemas, JV_ALLOW_DUPLICATES, &line, err));
            measure(b, line);
            json_decref(line);
        }
        at += len + 1;
    }
    buf_release(&text);
    return OK;
}

int main(int argc, char **argv) {
    struct error err;
    struct bench b = {.tell_us = argc > 3 ? atof(argv[3]) : 0};
    const char *schemas = argc > 2 ? argv[1] : "build/data/json/schemas.jsonl";
    const char *tokenizer = argc > 2 ? argv[2] : "build/data/tokenizers/qwen3/tokenizer.json";
    if (run(&b, schemas, tokenizer, &err) != OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    report("compile", &b.compile);
    report("first mask", &b.first);
    report("mask", &b.masks);
    report("accept", &b.accept);
    printf("memory         %.2f MB a grammar, most %.2f MB, shared by all %.1f MB; %zu schemas refused\n",
           (double)b.bytes / (double)MAX(b.compile.n, 1) * 1e-6, (double)b.most_bytes * 1e-6,
           (double)token_trie_bytes(b.trie) * 1e-6, b.refused);
    free(b.compile.us);
    free(b.first.us);
    free(b.masks.us);
    free(b.accept.us);
    free(b.mask);
    token_trie_free(b.trie);
    encoder_free(b.enc);
    tokenizer_free(b.tok);
    return 0;
}
