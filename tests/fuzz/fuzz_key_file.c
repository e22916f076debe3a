/* fuzz_key_file.c - any bytes as a file of API keys: taken over or refused with a sentence that shows no key; after a
 * refusal the keys are those that were there before. */
#include "api/keys/keys.h"
#include "base/buf.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

static enum status load(struct keyring *r, const void *bytes, size_t n, struct error *err) {
    char path[64];
    int fd = memfd_create("keys", MFD_CLOEXEC);
    BUG_IF(fd < 0 || write(fd, bytes, n) != (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    enum status st = keyring_load(r, path, err);
    close(fd);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    static const char first[] = "alice sk-secret-of-alice requests=3 tokens=1k\n";
    struct keyring r;
    struct error err;
    keyring_init(&r);
    BUG_IF(load(&r, first, sizeof first - 1, &err) != OK || !keyring_find(&r, STR("sk-secret-of-alice")));
    if (load(&r, bytes, n_bytes, &err) != OK) {
        BUG_IF(!err.text[0] || !utf8_valid(str_of(err.text)));
        BUG_IF(!keyring_find(&r, STR("sk-secret-of-alice")));
    }
    keyring_find(&r, (struct str){(const char *)bytes, n_bytes});
    keyring_release(&r);
    return 0;
}
