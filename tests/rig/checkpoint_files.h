/* checkpoint_files.h - files of checkpoints, right and broken, in a folder of the test's own. */
#pragma once

#include "check.h"

#include "base/file.h"
#include "base/folder.h"
#include "file/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

static char dir[] = "/tmp/gyre_safetensors_XXXXXX";

static inline int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : 1;
}

static inline int remove_dir(void **state) {
    (void)state;
    char command[200];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

// dir/name, in one of a few rotating buffers.
static inline const char *in_dir(const char *name) {
    static char paths[8][FOLDER_PATH_BYTES];
    static int next;
    char *p = paths[next++ % 8];
    snprintf(p, FOLDER_PATH_BYTES, "%s/%s", dir, name);
    return p;
}

static inline void write_bytes(const char *path, const void *bytes, size_t n) {
    struct error err;
    EXPECT_OK(file_write(path, (struct str){bytes, n}, &err), err);
}

// A file of this header length, header, and n_data bytes 0, 1, 2 ...
static inline void write_raw(const char *path, uint64_t n_header, const char *header, size_t n_data) {
    struct buf b = {0};
    for (int i = 0; i < 8; i++)
        buf_push(&b, (char)(n_header >> 8 * i));
    buf_append(&b, header, strlen(header));
    for (size_t i = 0; i < n_data; i++)
        buf_push(&b, (char)i);
    write_bytes(path, b.ptr, b.len);
    buf_release(&b);
}

// The same with the true length, the header padded with spaces to a multiple of 8.
static inline void write_file(const char *path, const char *header, size_t n_data) {
    struct buf b = {0};
    buf_printf(&b, "%s", header);
    while (b.len % 8)
        buf_push(&b, ' ');
    write_raw(path, b.len, b.ptr, n_data);
    buf_release(&b);
}

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[16,22]},"
                           "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}";
enum { GOOD_BYTES = 22 };

static inline void expect_refusal(const char *path, enum status status, const char *says, const char *and_says) {
    struct checkpoint *c = NULL;
    struct error err = {0};
    enum status st = checkpoint_open(&c, path, &err);
    checkpoint_free(c);
    if (st != status || !strstr(err.text, says) || !strstr(err.text, and_says))
        fail_msg("%s: status %s, \"%s\"; wanted %s with \"%s\" and \"%s\"", path, status_name(st), err.text,
                 status_name(status), says, and_says);
    EXPECT(!strchr(err.text, '\n'));
}
