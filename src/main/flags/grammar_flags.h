/* grammar_flags.h - flags that say what an answer must be: --json-schema, --grammar, --regex, --choice. */
#pragma once

#include "engine/constraint.h"
#include "grammar/grammar_cache.h"
#include "gyre.h"
#include "main/flags/flags.h"
#include "main/model/model_text.h"

#include <pthread.h>

struct grammar_flags {
    const char *json_schema, *grammar, *regex, *choice;
    bool jumps; // true unless said otherwise: GRAMMAR_FLAGS_DEFAULT
};
#define GRAMMAR_FLAGS_DEFAULT \
    { .jumps = true }

// clang-format off
#define GRAMMAR_FLAGS(f) \
    {"json-schema", 0, FLAG_STRING, &(f).json_schema, "FILE", "Output", \
     "the answer is JSON that satisfies this schema (draft 2020-12 or 7)"}, \
    {"grammar", 0, FLAG_STRING, &(f).grammar, "FILE", "Output", \
     "the answer is a text of this grammar, in llama.cpp's GBNF or in Lark's EBNF"}, \
    {"regex", 0, FLAG_STRING, &(f).regex, "RE", "Output", "the whole answer matches this regular expression"}, \
    {"choice", 0, FLAG_STRING, &(f).choice, "A,B", "Output", "the answer is one of these texts"}, \
    {"jump-forward", 0, FLAG_BOOL, &(f).jumps, NULL, "Output", \
     "put what these leave no choice for into the answer at once; --no-jump-forward: the model writes it"}
// clang-format on

bool grammar_flags_given(const struct grammar_flags *f);
const char *grammar_flags_misuse(const struct grammar_flags *f); // NULL: fine

/* What is kept from prompt to prompt; zero at first. Released after the engine is closed. */
struct grammar_compiler {
    struct grammar_cache *cache;
    struct token_trie *tokens;
    const struct tokenizer *tok;
    struct encoder *encoder; // under the lock: grammars split texts on threads of the engine's
    pthread_mutex_t lock;
};
void grammar_compiler_release(struct grammar_compiler *c);

/* A grammar for the prompt that `text` has encoded last, which tells whether the model thinks first. out->grammar is
 * NULL where no flag is given, and else a reference. */
enum status grammar_flags_compile(const struct grammar_flags *f, const struct model_text *text,
                                  const struct gyre_info *info, struct grammar_compiler *c, struct gyre_grammar *out,
                                  struct error *err);
