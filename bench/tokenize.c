/* tokenize.c - bytes of text a second that a vocabulary encodes, on one core, and how long its file takes to open.
 *
 * usage: build/release/bench/tokenize [TEXT TOKENIZER...]     (WikiText and the vocabularies of the tests)
 * Each pass has an encoder of its own, so no word is in its cache at the start; the best of the passes counts.
 * Time is this thread's processor time, which other programs on the machine disturb less than the clock. */
#include "base/file.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <time.h>

enum { PASSES = 7 };

static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int complain(const struct error *err) {
    fprintf(stderr, "%s\n", err->text);
    return 1;
}

static enum status one_pass(const struct tokenizer *tok, struct str text, struct token_ids *ids, double *seconds,
                            struct error *err) {
    struct encoder *enc = encoder_open(tok);
    double start = thread_seconds();
    ids->n = 0;
    enum status st = tokenizer_encode(enc, text, 0, ids, err);
    *seconds = thread_seconds() - start;
    encoder_free(enc);
    return st;
}

static enum status measure(const char *path, struct str text, struct error *err) {
    struct tokenizer *tok;
    double start = thread_seconds();
    TRY(tokenizer_open(path, &tok, err));
    double open_seconds = thread_seconds() - start, best = 1e9, seconds;
    struct token_ids ids = {0};
    enum status st = OK;
    for (int i = 0; i < PASSES && st == OK; i++) {
        st = one_pass(tok, text, &ids, &seconds, err);
        best = MIN(best, seconds);
    }
    if (st == OK)
        printf("%-60s opens in %6.1f ms, encodes %6.1f MB/s, %6.2f M tokens/s (%zu tokens)\n", path, open_seconds * 1e3,
               (double)text.len / best * 1e-6, (double)ids.n / best * 1e-6, ids.n);
    token_ids_release(&ids);
    tokenizer_free(tok);
    return st;
}

int main(int argc, char **argv) {
    static char *const usual[] = {"build/data/wikitext2/wiki.test.raw",
                                  "build/data/tokenizers/qwen3/tokenizer.json",
                                  "build/data/tokenizers/llama-3/tokenizer.json",
                                  "build/data/tokenizers/gpt-2/tokenizer.json",
                                  "build/data/tokenizers/o200k/o200k_base.tiktoken",
                                  "build/data/tokenizers/llama-2/tokenizer.json",
                                  "build/data/tokenizers/llama-2/tokenizer.model",
                                  "build/data/tokenizers/bert-base-uncased/tokenizer.json",
                                  "build/data/tokenizers/albert/tokenizer.json"};
    char *const *paths = argc > 2 ? argv + 1 : usual;
    int n = argc > 2 ? argc - 1 : (int)ARRAY_LEN(usual);
    struct error err;
    struct buf text = {0};
    if (file_read(paths[0], 0, &text, &err) != OK)
        return complain(&err);
    for (int i = 1; i < n; i++)
        if (measure(paths[i], buf_view(&text), &err) != OK)
            return complain(&err);
    buf_release(&text);
    return 0;
}
