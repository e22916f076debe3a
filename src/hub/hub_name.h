/* hub_name.h - names of models on the hub: ORG/NAME[:QUANT][@REVISION].
 *
 * A name may come with the address of its page (https://huggingface.co/ORG/NAME, hf.co/ORG/NAME). QUANT picks a GGUF
 * file by its type (Q4_K_M); REVISION is a branch, a tag or a commit, "main" unless it is said. */
#pragma once

#include <stdbool.h>

enum { HUB_REPO_BYTES = 200, HUB_WORD_BYTES = 128 };

struct hub_name {
    char repo[HUB_REPO_BYTES];     // ORG/NAME
    char quant[HUB_WORD_BYTES];    // empty: none is asked for
    char revision[HUB_WORD_BYTES]; // "main"
};

/* False for a text that is no such name. Every part is safe within a path and an address: letters, digits and "-_.",
 * no part of which begins with a dot; a revision may have slashes between such parts. */
bool hub_name_read(const char *text, struct hub_name *out);
