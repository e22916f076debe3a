/* bind_tensor.c - finds one tensor of the checkpoint and checks its shape and storage; a phantom or dummy makes it. */
#include "model/gguf/gguf_model.h"
#include "model/weights/bind_internal.h"

#include <stdio.h>

static void print_shape(char *out, size_t size, int rank, const int64_t *shape) {
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld", i ? ", " : "", (long long)shape[i]);
}

static const struct stored_tensor *phantom_tensor(struct binder *b, const char *name, enum dtype dtype, int rank,
                                                  const int64_t *shape) {
    struct stored_tensor *t = arena_alloc(b->arena, sizeof *t);
    *t = (struct stored_tensor){.name = name, .dtype = dtype, .rank = rank};
    size_t n = 1;
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        if (!size_mul(n, (size_t)shape[i], &n) || n > SIZE_MAX / 16) {
            bind_failed(b, fail(b->err, ERR_LIMIT, "%s: tensor %s would be too large", b->spec->path, name));
            return NULL;
        }
    }
    t->n_bytes = n * dtype_bytes(dtype);
    if (b->load == LOAD_DUMMY)
        t->data = dummy_fill(b, dtype, rank, shape, t->n_bytes);
    return b->load == LOAD_DUMMY && !t->data ? NULL : t;
}

const struct stored_tensor *bind_tensor_as(struct binder *b, const char *name, enum dtype phantom_dtype, int rank,
                                           const int64_t *shape) {
    if (b->status != OK)
        return NULL;
    const struct stored_tensor *t;
    if (b->load == LOAD_CHECKPOINT) {
        struct stored_tensor *found = checkpoint_find(b->checkpoint, name);
        if (!found) {
            bind_failed(b, fail(b->err, ERR_FORMAT, "%s: tensor %s is missing from the checkpoint", b->spec->path,
                                b->spec->gguf ? gguf_stored_name(b->spec->gguf, name, b->arena) : name));
            return NULL;
        }
        bool same = found->rank == rank;
        for (int i = 0; same && i < rank; i++)
            same = found->shape[i] == shape[i];
        if (!same) {
            char want[128], have[128];
            print_shape(want, sizeof want, rank, shape);
            print_shape(have, sizeof have, found->rank, found->shape);
            bind_failed(b, fail(b->err, ERR_FORMAT, "%s: tensor %s has shape [%s], %s for [%s]",
                                checkpoint_path(b->checkpoint, found), stored_name(found), have,
                                b->spec->gguf ? "the metadata ask" : "config.json asks", want));
            return NULL;
        }
        found->consumed = true;
        t = found;
    } else {
        t = phantom_tensor(b, name, phantom_dtype, rank, shape);
        if (!t)
            return NULL;
    }
    b->stored_bytes[storage_of(t->dtype, t->format)] += (int64_t)t->n_bytes;
    return t;
}

const struct stored_tensor *bind_tensor(struct binder *b, const char *name, int rank, const int64_t *shape) {
    return bind_tensor_as(b, name, b->spec->dtype, rank, shape);
}

bool bind_is_number(struct binder *b, const struct stored_tensor *t) {
    if (b->spec->gguf && (t->format || !dtype_is_float(t->dtype))) {
        bind_failed(
            b, fail(b->err, ERR_UNSUPPORTED, "%s: tensor %s is stored as %s, and is read as f32, f16 or bf16 only",
                    checkpoint_path(b->checkpoint, t), stored_name(t), storage_name(storage_of(t->dtype, t->format))));
        return false;
    }
    switch (t->dtype) {
    case DT_F32:
    case DT_F16:
    case DT_BF16: return true;
    default:
        bind_failed(
            b,
            fail(b->err, ERR_UNSUPPORTED,
                 "%s: tensor %s is stored as %s, but config.json has no quantization_config that says how to read it",
                 b->checkpoint ? checkpoint_path(b->checkpoint, t) : b->spec->path, t->name, dtype_name(t->dtype)));
        return false;
    }
}

bool bind_is_stored_as(struct binder *b, const struct stored_tensor *t, enum dtype dtype) {
    if (t->dtype == dtype)
        return true;
    bind_failed(b, fail(b->err, ERR_FORMAT, "%s: tensor %s is stored as %s, it must be %s",
                        b->checkpoint ? checkpoint_path(b->checkpoint, t) : b->spec->path, t->name,
                        dtype_name(t->dtype), dtype_name(dtype)));
    return false;
}
