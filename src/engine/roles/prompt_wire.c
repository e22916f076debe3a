/* prompt_wire.c - see prompt_wire.h. */
#include "engine/roles/prompt_wire.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

uint64_t prompt_host(void) {
    char text[64] = {0};
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    return n > 0 ? XXH3_64bits(text, n) | 1 : 0;
}
