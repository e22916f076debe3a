/* tensor_file.c - see tensor_file.h. */
#include "train/tensor_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 16 };

static bool write_all(FILE *f, const struct buf *head, const struct new_tensor *places,
                      const struct memory_tensor *tensors, size_t n) {
    bool fine = fwrite(head->ptr, 1, head->len, f) == head->len;
    for (size_t i = 0; i < n && fine; i++) {
        size_t bytes = (size_t)new_tensor_bytes(&places[i]);
        fine = fseek(f, (long)places[i].offset, SEEK_SET) == 0 && fwrite(tensors[i].data, 1, bytes, f) == bytes;
    }
    return fflush(f) == 0 && fine && fsync(fileno(f)) == 0;
}

static enum status write_beside(const char *path, const char *beside, const struct buf *head,
                                const struct new_tensor *places, const struct memory_tensor *tensors, size_t n,
                                struct error *err) {
    FILE *f = fopen(beside, "wb");
    bool fine = f && write_all(f, head, places, tensors, n);
    int reason = errno;
    if (f && fclose(f) != 0 && fine)
        fine = false, reason = errno;
    if (fine && rename(beside, path) != 0)
        fine = false, reason = errno;
    if (fine)
        return OK;
    if (f)
        unlink(beside);
    return fail(err, ERR_IO, "%s: cannot be written: %s", path, strerror(reason));
}

enum status tensor_file_write(const char *path, const struct memory_tensor *tensors, size_t n, struct error *err) {
    struct new_tensor places[MOST];
    struct buf head = {0}, beside = {0};
    BUG_IF(n > MOST);
    for (size_t i = 0; i < n; i++) {
        places[i] = (struct new_tensor){.name = tensors[i].name, .dtype = tensors[i].dtype, .rank = tensors[i].rank};
        memcpy(places[i].shape, tensors[i].shape, sizeof tensors[i].shape);
    }
    safetensors_write_head(places, n, &head);
    buf_printf(&beside, "%s.part", path);
    enum status st = write_beside(path, beside.ptr, &head, places, tensors, n, err);
    buf_release(&head);
    buf_release(&beside);
    return st;
}
