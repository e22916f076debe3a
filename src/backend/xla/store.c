/* store.c - see store.h. */
#include "backend/xla/store.h"

#include "base/file.h"

#include <dirent.h>
#include <errno.h>
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

/* Of kind S_IFDIR or S_IFREG. */
static bool is_ours_alone(const struct stat *s, mode_t kind) {
    return (s->st_mode & S_IFMT) == kind && s->st_uid == geteuid() && (s->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* -1: it is none that we alone can write. */
static int open_folder(const char *path) {
    struct stat s;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder >= 0 && (fstat(folder, &s) != 0 || !is_ours_alone(&s, S_IFDIR))) {
        close(folder);
        folder = -1;
    }
    return folder;
}

int store_open(const char *given, char *why, size_t why_bytes) {
    char path[PJRT_PATH_BYTES];
    int folder = -1;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    why[0] = '\0';
    if (given && strcmp(given, "0") == 0)
        return folder;
    int n = given             ? snprintf(path, sizeof path, "%s", given)
            : cache && *cache ? snprintf(path, sizeof path, "%s/gyre/xla", cache)
            : home && *home   ? snprintf(path, sizeof path, "%s/.cache/gyre/xla", home)
                              : 0;
    if (n <= 0 || n >= (int)sizeof path)
        snprintf(why, why_bytes, "compiled programs are not kept: neither HOME nor XDG_CACHE_HOME says where");
    else if (!make_folders(path))
        snprintf(why, why_bytes, "compiled programs are not kept: %.200s cannot be made", path);
    else if ((folder = open_folder(path)) < 0)
        snprintf(why, why_bytes, "compiled programs are not kept: %.200s is a link, or others can write it", path);
    return folder;
}

void store_close(int folder) {
    if (folder >= 0)
        close(folder);
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

enum { FILE_NAME_BYTES = STORE_NAME_BYTES + sizeof suffix };

static void file_name(const char *name, char out[FILE_NAME_BYTES]) {
    snprintf(out, FILE_NAME_BYTES, "%s%s", name, suffix);
}

static bool is_whole(struct str file) {
    unsigned char check[CHECK_BYTES];
    if (file.len <= CHECK_BYTES)
        return false;
    crypto_generichash(check, sizeof check, (const unsigned char *)file.ptr + CHECK_BYTES, file.len - CHECK_BYTES, NULL,
                       0);
    return memcmp(check, file.ptr, sizeof check) == 0;
}

/* So many bytes, or what there is of them. */
static void read_bytes(int fd, size_t n, struct buf *out) {
    buf_reserve(out, n);
    while (out->len < n) {
        ssize_t got = read(fd, out->ptr + out->len, n - out->len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        out->len += (size_t)got;
    }
}

static bool write_bytes(int fd, struct str bytes) {
    while (bytes.len > 0) {
        ssize_t done = write(fd, bytes.ptr, bytes.len);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        bytes.ptr += done;
        bytes.len -= (size_t)done;
    }
    return true;
}

bool store_load(int folder, const char *name, const struct pjrt *p, struct pjrt_loaded **out) {
    char file[FILE_NAME_BYTES];
    struct buf bytes = {0};
    struct error ignored;
    struct stat s;
    bool loaded = false;
    file_name(name, file);
    int fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &s) == 0 && is_ours_alone(&s, S_IFREG) && s.st_size <= MOST_BYTES) {
        read_bytes(fd, (size_t)s.st_size, &bytes);
        if (is_whole(buf_view(&bytes))) {
            struct str code = {bytes.ptr + CHECK_BYTES, bytes.len - CHECK_BYTES};
            loaded = pjrt_deserialize(p, code, out, &ignored) == OK;
        }
    }
    if (loaded) // used now: the last to be dropped
        (void)futimens(fd, NULL);
    close(fd);
    buf_release(&bytes);
    return loaded;
}

/* Beside what is there, and then in its place: a reader sees all of one or of the other. */
static bool write_file(int folder, const char *name, struct str bytes) {
    char file[FILE_NAME_BYTES], random[17], beside[FILE_NAME_BYTES + sizeof random];
    unsigned char drawn[8];
    randombytes_buf(drawn, sizeof drawn);
    sodium_bin2hex(random, sizeof random, drawn, sizeof drawn);
    file_name(name, file);
    snprintf(beside, sizeof beside, "%s.%s", file, random);
    int fd = openat(folder, beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool is_written = write_bytes(fd, bytes);
    is_written &= close(fd) == 0;
    is_written = is_written && renameat(folder, beside, folder, file) == 0;
    if (!is_written)
        (void)unlinkat(folder, beside, 0);
    return is_written;
}

/* The program that was used the longest ago; and how many there are. */
static int oldest(int folder, char name[FILE_NAME_BYTES]) {
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); // closedir closes it
    DIR *dir = again < 0 ? NULL : fdopendir(again);
    struct timespec least = {0};
    int n = 0;
    if (!dir) {
        store_close(again);
        return 0;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat s;
        if (!str_ends(str_of(e->d_name), str_of(suffix)) || strlen(e->d_name) >= FILE_NAME_BYTES ||
            fstatat(folder, e->d_name, &s, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        bool is_older =
            s.st_mtim.tv_sec < least.tv_sec || (s.st_mtim.tv_sec == least.tv_sec && s.st_mtim.tv_nsec < least.tv_nsec);
        if (n++ == 0 || is_older) {
            least = s.st_mtim;
            snprintf(name, FILE_NAME_BYTES, "%s", e->d_name);
        }
    }
    closedir(dir);
    return n;
}

void store_save(int folder, const char *name, const struct pjrt *p, struct pjrt_loaded *program) {
    char old[FILE_NAME_BYTES];
    struct buf code = {0};
    struct error ignored; // a plugin may not have it
    static const char no_check[CHECK_BYTES];
    buf_append(&code, no_check, CHECK_BYTES);
    if (pjrt_serialize(p, program, &code, &ignored) == OK) {
        crypto_generichash((unsigned char *)code.ptr, CHECK_BYTES, (const unsigned char *)code.ptr + CHECK_BYTES,
                           code.len - CHECK_BYTES, NULL, 0);
        if (write_file(folder, name, buf_view(&code)) && oldest(folder, old) > STORE_MOST)
            (void)unlinkat(folder, old, 0);
    }
    buf_release(&code);
}
