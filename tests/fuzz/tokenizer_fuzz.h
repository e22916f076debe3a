/* tokenizer_fuzz.h - what the fuzz targets of tokenizer files do with bytes: make them a file, open it, and when that
 * succeeds, take text through it and back. */
#pragma once

#include "base/file.h"
#include "text/detokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A folder for this process, removed at its end by nobody: it holds the few files that every input overwrites. */
static inline const char *fuzz_folder(void) {
    static char folder[] = "/tmp/gyre-fuzz-XXXXXX";
    static bool made;
    if (!made)
        BUG_IF(!mkdtemp(folder));
    made = true;
    return folder;
}

static inline void fuzz_write(const char *name, struct str bytes, char path[static 64]) {
    struct error err;
    snprintf(path, 64, "%s/%s", fuzz_folder(), name);
    BUG_IF(file_write(path, bytes, &err) != OK);
}

/* Behind each place the rest is the end of the whole, and characters are whole. */
static inline void fuzz_continue(const struct tokenizer *tok, const struct token_ids *ids, struct str whole,
                                 bool has_text) {
    for (size_t from = 0; from <= ids->n; from += 1 + ids->n / 8) {
        struct detokenizer *d = detokenizer_open(tok, 0);
        struct buf rest = {0};
        struct error err;
        enum status st = detokenizer_begin_after(d, ids->ids, from, &err);
        for (size_t i = from; i < ids->n && st == OK; i++)
            st = detokenizer_feed(d, ids->ids[i], &rest, &err);
        BUG_IF(st == OK && detokenizer_last_place(d) > detokenizer_place(d));
        if (st == OK)
            st = detokenizer_finish(d, &rest, &err);
        BUG_IF(st == OK && !utf8_valid(buf_view(&rest)));
        BUG_IF(st == OK && has_text && from == 0 && !str_eq(whole, buf_view(&rest)));
        detokenizer_free(d);
        buf_release(&rest);
    }
}

static inline void fuzz_decode(const struct tokenizer *tok, const struct token_ids *ids) {
    struct buf whole = {0}, parts = {0}, bytes = {0};
    struct error err;
    struct detokenizer *d = detokenizer_open(tok, 0);
    enum status st = tokenizer_decode(tok, ids->ids, ids->n, 0, &whole, &err);
    for (size_t i = 0; i < ids->n && st == OK; i++) {
        st = detokenizer_feed(d, ids->ids[i], &parts, &err);
        tokenizer_token_bytes(tok, ids->ids[i], &bytes);
    }
    if (st == OK)
        st = detokenizer_finish(d, &parts, &err);
    BUG_IF(st == OK && !str_eq(buf_view(&whole), buf_view(&parts)));
    fuzz_continue(tok, ids, buf_view(&whole), st == OK);
    BUG_IF(st == OK && !utf8_valid(buf_view(&whole)));
    detokenizer_free(d);
    buf_release(&whole);
    buf_release(&parts);
    buf_release(&bytes);
}

static inline void fuzz_tokenizer(const char *path) {
    static const char *const texts[] = {
        "", "Hello world's  caf\xC3\xA9 123\n",
        "<s>[X] </s>a\xF0\x9F\xA6\x8A\xCC\x81\xE6\x97\xA5\xE2\x96\x81 \xFF\xE2\x82",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa b"};
    struct tokenizer *tok;
    struct error err = {0};
    enum status st = tokenizer_open(path, &tok, &err);
    BUG_IF((st == OK) != (err.text[0] == '\0'));
    if (st != OK)
        return;
    struct encoder *enc = encoder_open(tok);
    for (size_t i = 0; i < ARRAY_LEN(texts) * 4; i++) {
        struct token_ids ids = {0};
        if (tokenizer_encode(enc, str_of(texts[i / 4]), (int)(i % 4), &ids, &err) == OK)
            fuzz_decode(tok, &ids);
        token_ids_release(&ids);
    }
    encoder_free(enc);
    tokenizer_free(tok);
}
