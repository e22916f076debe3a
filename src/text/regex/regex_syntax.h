/* regex_syntax.h - patterns as tokenizer files write them, said in PCRE2's words.
 *
 * Hugging Face's tokenizers library matches with Oniguruma. The two languages share most of their words but not
 * all of their meanings: here \h is a hexadecimal digit, ^ and $ see every line, (?m) lets the dot match a
 * newline, a{2}+ repeats a{2}, classes nest and intersect ([a-z&&[^aeiou]]), \w and \s are Unicode's own sets and
 * without case "ss" matches ß. The translation writes those out; what has no equal is refused by name.
 *
 * The result is meant for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE and newline = LF. Knows patterns, not text. */
#pragma once

#include "base/buf.h"
#include "base/status.h"

/* Appends the translation to out. ERR_UNSUPPORTED or ERR_FORMAT names the construct; the caller adds the file. */
enum status regex_translate(struct str pattern, struct buf *out, struct error *err);
