/* vllm_flags.h - the flags of `vllm serve`, so that such a line can be pasted after `gyre serve`.
 *
 * Each flag that is known there and not here is one of:
 *
 *     as          another name for a flag of ours
 *     same        accepted with the values that ask for what happens here anyway, and an error with any other
 *     no effect   accepted with a note on stderr that says why: it is about speed, memory or a feature whose
 *                 requests are refused
 *     refused     it would change what answers say, and is not there: an error that says so
 *
 * and nothing is dropped in silence. Flags whose name and meaning are ours too (--host, --max-num-seqs ...) are left
 * alone, but for those that take several values there (--served-model-name A B). Unknown names stay errors. */
#pragma once

#include "main/flags/flags.h"

/* For verb_spec.translate. */
int vllm_flags_translate(const struct verb_spec *spec, struct arena *memory, int *argc, char ***argv);
