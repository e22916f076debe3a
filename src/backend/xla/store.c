/* store.c - see store.h. */
#include "backend/xla/store.h"

#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char suffix[] = ".pjrt";

/* ---- the folder ---- */

/* With all folders above it. */
static bool make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    (void)mkdir(path, 0700);
    return dir_exists(path);
}

static bool is_ours_alone(const char *path) {
    struct stat s;
    return lstat(path, &s) == 0 && S_ISDIR(s.st_mode) && s.st_uid == geteuid() &&
           (s.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

char *store_open(const char *given, char *why, size_t why_bytes) {
    char path[PJRT_PATH_BYTES];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    why[0] = '\0';
    if (given && strcmp(given, "0") == 0)
        return NULL;
    int n = given             ? snprintf(path, sizeof path, "%s", given)
            : cache && *cache ? snprintf(path, sizeof path, "%s/gyre/xla", cache)
            : home && *home   ? snprintf(path, sizeof path, "%s/.cache/gyre/xla", home)
                              : 0;
    if (n <= 0 || n >= (int)sizeof path)
        snprintf(why, why_bytes, "compiled programs are not kept: neither HOME nor XDG_CACHE_HOME says where");
    else if (!make_folders(path))
        snprintf(why, why_bytes, "compiled programs are not kept: %.200s cannot be made", path);
    else if (!is_ours_alone(path))
        snprintf(why, why_bytes, "compiled programs are not kept: others can write %.200s", path);
    return why[0] ? NULL : xstrdup(path);
}

/* ---- names ---- */

static void add_bytes(crypto_generichash_state *state, const void *bytes, size_t n) {
    uint64_t length = n; // so that no two lists of parts are one text
    crypto_generichash_update(state, (const unsigned char *)&length, sizeof length);
    crypto_generichash_update(state, bytes, n);
}

static void add_text(crypto_generichash_state *state, const char *text) {
    add_bytes(state, text ? text : "", text ? strlen(text) : 0);
}

/* The line of /proc/cpuinfo that says what code a processor takes. */
static void add_cpu_features(crypto_generichash_state *state) {
    char line[8192];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0) {
            add_text(state, line);
            break;
        }
    if (f)
        fclose(f);
}

void store_name(const struct pjrt *p, int device, struct str text, struct str options, char out[STORE_NAME_BYTES]) {
    static const char *const variables[] = {"XLA_FLAGS", "LIBTPU_INIT_ARGS"};
    crypto_generichash_state state;
    unsigned char hash[(STORE_NAME_BYTES - 1) / 2];
    struct stat s = {0};
    char kind[128];
    pjrt_device_kind(p, device, kind, sizeof kind);
    (void)stat(p->path, &s);
    const int64_t numbers[] = {p->minor,        p->xla_version, p->stablehlo[0],  p->stablehlo[1],
                               p->stablehlo[2], s.st_size,      s.st_mtim.tv_sec, s.st_mtim.tv_nsec};
    crypto_generichash_init(&state, NULL, 0, sizeof hash);
    add_bytes(&state, text.ptr, text.len);
    add_bytes(&state, options.ptr, options.len);
    add_bytes(&state, numbers, sizeof numbers);
    add_text(&state, p->path);
    add_text(&state, p->platform);
    add_text(&state, p->version);
    add_text(&state, kind);
    for (size_t i = 0; i < ARRAY_LEN(variables); i++)
        add_text(&state, getenv(variables[i]));
    if (strcmp(p->platform, "cpu") == 0)
        add_cpu_features(&state);
    crypto_generichash_final(&state, hash, sizeof hash);
    sodium_bin2hex(out, STORE_NAME_BYTES, hash, sizeof hash);
}

/* ---- files: the hash of what follows, and that ---- */

enum { CHECK_BYTES = 32, MOST_BYTES = 1 << 30 };

static bool path_of(const char *folder, const char *name, char out[PJRT_PATH_BYTES]) {
    int n = snprintf(out, PJRT_PATH_BYTES, "%s/%s%s", folder, name, suffix);
    return n > 0 && n < PJRT_PATH_BYTES;
}

static bool is_whole(struct str file) {
    unsigned char check[CHECK_BYTES];
    if (file.len <= CHECK_BYTES)
        return false;
    crypto_generichash(check, sizeof check, (const unsigned char *)file.ptr + CHECK_BYTES, file.len - CHECK_BYTES, NULL,
                       0);
    return memcmp(check, file.ptr, sizeof check) == 0;
}

bool store_load(const char *folder, const char *name, const struct pjrt *p, struct pjrt_loaded **out) {
    char path[PJRT_PATH_BYTES];
    struct buf file = {0};
    struct error ignored;
    bool loaded = false;
    if (path_of(folder, name, path) && file_exists(path) && file_read(path, MOST_BYTES, &file, &ignored) == OK &&
        is_whole(buf_view(&file))) {
        struct str code = {file.ptr + CHECK_BYTES, file.len - CHECK_BYTES};
        loaded = pjrt_deserialize(p, code, out, &ignored) == OK;
    }
    if (loaded) // used now: the last to be dropped
        (void)utimensat(AT_FDCWD, path, NULL, 0);
    buf_release(&file);
    return loaded;
}

/* The program that was used the longest ago; and how many there are. */
static int oldest(const char *folder, char path[PJRT_PATH_BYTES]) {
    DIR *dir = opendir(folder);
    struct timespec least = {0};
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char one[PJRT_PATH_BYTES];
        struct stat s;
        if (!str_ends(str_of(e->d_name), str_of(suffix)) ||
            snprintf(one, sizeof one, "%s/%s", folder, e->d_name) >= (int)sizeof one || stat(one, &s) != 0)
            continue;
        bool is_older =
            s.st_mtim.tv_sec < least.tv_sec || (s.st_mtim.tv_sec == least.tv_sec && s.st_mtim.tv_nsec < least.tv_nsec);
        if (n++ == 0 || is_older) {
            least = s.st_mtim;
            memcpy(path, one, sizeof one);
        }
    }
    if (dir)
        closedir(dir);
    return n;
}

void store_save(const char *folder, const char *name, const struct pjrt *p, struct pjrt_loaded *program) {
    char path[PJRT_PATH_BYTES], old[PJRT_PATH_BYTES];
    struct buf code = {0};
    struct error ignored; // a plugin may not have it
    static const char no_check[CHECK_BYTES];
    buf_append(&code, no_check, CHECK_BYTES);
    if (pjrt_serialize(p, program, &code, &ignored) == OK && path_of(folder, name, path)) {
        crypto_generichash((unsigned char *)code.ptr, CHECK_BYTES, (const unsigned char *)code.ptr + CHECK_BYTES,
                           code.len - CHECK_BYTES, NULL, 0);
        if (file_write(path, buf_view(&code), &ignored) == OK && oldest(folder, old) > STORE_MOST)
            (void)unlink(old);
    }
    buf_release(&code);
}
