/* fuzz_lark.c - any bytes as a Lark grammar, and what they say as texts: refused with a sentence, or a grammar whose
 * masks and matcher agree, and that never stands where no text can be finished. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) { return fuzz_grammar(GRAMMAR_LARK, data, n_bytes); }
