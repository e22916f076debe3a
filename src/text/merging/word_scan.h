/* word_scan.h - hand-written scanners for the splitting patterns that most models share.
 *
 * The patterns of GPT-2, cl100k, Llama 3, Qwen, o200k and Mistral's tekken tile a text: every character belongs to
 * exactly one match. They differ in a few rules, so one scanner with a row of rules a pattern replaces the regular
 * expression, at some ten times its speed. A pattern gets one only when its text is exactly the one in the table;
 * tests/text/test_regex.c holds every row against PCRE2. */
#pragma once

#include "base/str.h"

struct word_rules;

/* The rules for a pattern as a tokenizer file writes it; NULL when it is not one of the known ones. */
const struct word_rules *word_rules_find(struct str pattern);

/* GPT-2's, which the ByteLevel pre-tokenizer has built in. */
const struct word_rules *word_rules_gpt2(void);

/* The end of the word that begins at `at`, which is before `end`. The text is valid UTF-8 and goes on to `end`. */
const char *word_scan(const struct word_rules *rules, const char *at, const char *end);

/* The known patterns, for tests: NULL past the last. */
const char *word_rules_pattern(size_t i);
