/* json_reader.h - reading a large JSON text once, front to back, without building it in memory.
 *
 * For files whose bulk is two huge tables (a tokenizer's vocabulary): the caller walks the text and takes what
 * it needs; what it does not need is skipped, and still checked. As strict as RFC 8259: no comments, no
 * trailing commas, no lone surrogates, UTF-8 only; nesting is limited to JSON_READER_DEPTH. Repeated keys are
 * the caller's to judge.
 *
 *     struct json_reader r;
 *     json_reader_init(&r, text, "vocab.json");
 *     TRY(json_enter_object(&r, err));
 *     for (struct str key; json_next_key(&r, &key, &more, err) == OK && more;)
 *         ... exactly one of json_take_* or json_enter_* for the value ...
 *
 * Every function that fails leaves a sentence with the file (`where`) and the line; the reader is then of no
 * further use. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

enum { JSON_READER_DEPTH = 2048 };

enum json_kind {
    JSON_KIND_OBJECT,
    JSON_KIND_ARRAY,
    JSON_KIND_STRING,
    JSON_KIND_NUMBER,
    JSON_KIND_TRUE,
    JSON_KIND_FALSE,
    JSON_KIND_NULL
};

struct json_reader {
    const char *begin, *at, *end;
    const char *where;    // borrowed: what the user knows the text by
    bool first;           // the container at hand has had no item yet
    struct buf unescaped; // holds the last string that had escapes
};

/* text and where are borrowed for as long as the reader is used. */
void json_reader_init(struct json_reader *r, struct str text, const char *where);
void json_reader_release(struct json_reader *r);

/* Moves to the first byte of the next value. */
void json_skip_space(struct json_reader *r);

/* What the next value is, judged by its first byte. */
enum status json_peek_kind(struct json_reader *r, enum json_kind *kind, struct error *err);

enum status json_enter_object(struct json_reader *r, struct error *err);
enum status json_enter_array(struct json_reader *r, struct error *err);

/* *more is false at the closing bracket, which is then consumed; the reader is back in the outer container. */
enum status json_next_key(struct json_reader *r, struct str *key, bool *more, struct error *err);
enum status json_next_item(struct json_reader *r, bool *more, struct error *err);

/* *out is valid until the next string or key is read; it may hold NUL bytes. */
enum status json_take_string(struct json_reader *r, struct str *out, struct error *err);
enum status json_take_int(struct json_reader *r, int64_t *out, struct error *err);
enum status json_take_real(struct json_reader *r, double *out, struct error *err);

/* An integer where it is written as one and fits into 64 bits, else a real, which is past those on the same side; past
 * a double it is infinite. */
struct json_number {
    bool is_int;
    struct str text; // of an integer that does not fit, and of an infinite one, as long as the text; else empty
    union {
        int64_t i;
        double f;
    };
};
enum status json_take_number(struct json_reader *r, struct json_number *out, struct error *err);
enum status json_take_bool(struct json_reader *r, bool *out, struct error *err);

/* Passes over one whole value, checking it; *span (may be NULL) is its text. */
enum status json_skip(struct json_reader *r, struct str *span, struct error *err);

/* ERR_FORMAT with the sentence "where: not valid JSON: what (line, column)": for what a caller finds wrong at this
 * place. */
enum status json_complain(const struct json_reader *r, const char *what, struct error *err) __attribute__((cold));

/* Nothing but white space may be left. */
enum status json_expect_end(struct json_reader *r, struct error *err);
