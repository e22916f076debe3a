/* prompt_wire.c - see prompt_wire.h. */
#include "engine/roles/prompt_wire.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

uint64_t prompt_host(void) {
    char text[128] = {0};
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = f ? fread(text, 1, sizeof text / 2, f) : 0;
    if (f)
        fclose(f);
    ssize_t clock = n > 0 ? readlink("/proc/self/ns/time", text + n, sizeof text - n) : 0; // older systems have one
    return n > 0 ? XXH3_64bits(text, n + (size_t)MAX(clock, 0)) | 1 : 0;
}
