/* dummy.c - random weights for benchmarks without a checkpoint.
 *
 * Matrices are N(0, 1/in), so that activations keep their size through the layers; vectors are uniform in
 * [0.9, 1.1]. Values come from a table of normal numbers indexed by a generator: 494 million of them take well
 * under a second, and no two rows are alike. */
#include "model/weights/bind_internal.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

struct dummy_memory {
    struct dummy_memory *next;
    void *ptr;
    size_t n_bytes;
};

enum { TABLE = 4096 };

void dummy_memory_free(struct dummy_memory *memory) {
    while (memory) {
        struct dummy_memory *next = memory->next;
        munmap(memory->ptr, memory->n_bytes);
        free(memory);
        memory = next;
    }
}

static uint64_t next_random(uint64_t *state) { // xorshift64*
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ull;
}

static void normal_table(float *table, float scale, uint64_t *state) {
    for (int i = 0; i < TABLE; i += 2) {
        double u = ((double)(next_random(state) >> 11) + 1) * 0x1p-53, v = (double)(next_random(state) >> 11) * 0x1p-53;
        double r = sqrt(-2 * log(u)) * scale, angle = 2 * 3.14159265358979323846 * v;
        table[i] = (float)(r * cos(angle));
        table[i + 1] = (float)(r * sin(angle));
    }
}

static void fill_16(uint16_t *out, size_t n, const uint16_t *table, uint64_t *state) {
    for (size_t i = 0; i < n; i += 5) {
        uint64_t r = next_random(state);
        for (size_t j = i; j < i + 5 && j < n; j++, r >>= 12)
            out[j] = table[r & (TABLE - 1)];
    }
}

const void *dummy_fill(struct binder *b, enum dtype dtype, int rank, const int64_t *shape, size_t n_bytes) {
    if (dtype != DT_BF16 && dtype != DT_F16 && dtype != DT_F32) {
        bind_failed(b, fail(b->err, ERR_UNSUPPORTED, "%s: dummy weights of type %s are not made", b->spec->path,
                            dtype_name(dtype)));
        return NULL;
    }
    size_t padded = (n_bytes + 4095) & ~(size_t)4095;
    void *p = mmap(NULL, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        bind_failed(b,
                    fail(b->err, ERR_MEMORY, "%s: no memory for %zu bytes of dummy weights", b->spec->path, n_bytes));
        return NULL;
    }
    madvise(p, padded, MADV_HUGEPAGE);
    struct dummy_memory *m = xmalloc(sizeof *m);
    *m = (struct dummy_memory){b->dummy, p, padded};
    b->dummy = m;

    uint64_t state = 0x9E3779B97F4A7C15ull * ++b->dummy_seed;
    float table[TABLE];
    bool is_vector = rank == 1;
    normal_table(table, is_vector ? 1 : 1 / sqrtf((float)shape[rank - 1]), &state);
    for (int i = 0; is_vector && i < TABLE; i++)
        table[i] = 0.9f + 0.2f * (float)i / TABLE;
    if (dtype == DT_F32) {
        for (size_t i = 0; i < n_bytes / 4; i++)
            ((float *)p)[i] = table[next_random(&state) & (TABLE - 1)];
    } else {
        uint16_t small[TABLE];
        for (int i = 0; i < TABLE; i++)
            small[i] = dtype == DT_BF16 ? f32_to_bf16(table[i]) : f32_to_f16(table[i]);
        fill_16(p, n_bytes / 2, small, &state);
    }
    b->dummy_done += (int64_t)n_bytes;
    load_progress_step(&b->progress, b->dummy_done, b->dummy_total);
    return p;
}
