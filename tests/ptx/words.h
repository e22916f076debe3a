/* words.h - PTX cut into words and marks, and what module.c and parse.c share. */
#pragma once

#include "module.h"

/* A piece of the text. */
struct word {
    const char *at;
    uint32_t n;
};
#define WORD(s) ((struct word){s, sizeof(s) - 1})

struct reader {
    const char *file, *at, *end;
    int line;
};

/* Ends the program with the file, the line and a sentence. */
_Noreturn void bad(const struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* p, which must not be NULL. */
void *wanted(void *p);
/* An array of n elements with room for one more. */
void *grown(void *at, int n, size_t size);

/* The next word or mark; of n == 0 at the end. "a::b" is one word. */
struct word next_word(struct reader *r);
struct word peek_word(const struct reader *r);
void expect(struct reader *r, const char *mark);
void skip_until(struct reader *r, const char *mark); // to behind it

bool is(struct word w, const char *text);
bool same(struct word a, struct word b);
bool begins(struct word w, const char *text);
char *copy_of(struct word w);
/* 12, 0x1f, 0f3F800000, 0d..., 1.0 (as a float's bits). */
uint64_t number_of(struct reader *r, struct word w);

/* Of a type, "b32"; 0: it is none. Of a directive, ".b32". Of the part of a mnemonic behind its last dot that is one.
 */
int bits_of_type(struct word w);
int bits_of_directive(struct word w);
int bits_of_mnemonic(struct word name);

/* Where the text of a function lies. */
struct body {
    struct reader params, code;
    bool is_entry;
};
struct text {
    struct module module; // first: what others know of it
    struct reader all;
    struct body *bodies; // of module.functions
    struct shared_name {
        struct word name;
        uint32_t align;
    } * shared; // .extern .shared
    int n_shared;
};

/* parse.c: the which-th function's body. */
void read_function(struct text *t, int which);
/* Bytes of `.align A .b8 name[N]` or `.b64 name`, and its name; up to what is behind it. */
uint32_t read_variable(struct reader *r, struct word *name, uint32_t *align);
