/* dummies.c - see weights.h: random weights that the device makes itself, for benchmarks without a checkpoint: matrices
 * N(0, 1 / in), vectors in [0.9, 1.1] (backend.h, makes_dummies). A program a shape; the seed is its argument. */
#include "backend/xla/compiled.h"
#include "backend/xla/weights.h"

#include <math.h>
#include <stdlib.h>

static struct tensor number(struct hlo *h, uint32_t x) { return hlo_full(h, TYPE_U32, SCALAR, (double)x); }

/* x ^ x >> n */
static struct tensor fold(struct hlo *h, struct tensor x, uint32_t n) {
    return hlo_binary(h, "xor", x, hlo_binary(h, "shift_right_logical", x, number(h, n)));
}

/* 32 bits an element that look random: its index and the seed through the last steps of MurmurHash3. */
static struct tensor random_bits(struct hlo *h, struct shape shape, struct tensor seed) {
    struct tensor at = hlo_iota(h, TYPE_U32, SHAPE(shape_count(shape)), 0);
    struct tensor x = hlo_binary(h, "add", hlo_reshape(h, at, shape), seed);
    x = fold(h, x, 16);
    x = fold(h, hlo_binary(h, "multiply", x, number(h, 0x85ebca6b)), 13);
    return fold(h, hlo_binary(h, "multiply", x, number(h, 0xc2b2ae35)), 16);
}

static struct tensor byte_of(struct hlo *h, struct tensor bits, uint32_t i) {
    struct tensor byte = hlo_binary(h, "shift_right_logical", bits, number(h, 8 * i));
    return hlo_convert(h, hlo_binary(h, "and", byte, number(h, 255)), TYPE_S32);
}

/* The sum of four uniform bytes is near enough to a normal number: of mean 510 and deviation 147.8. */
static struct tensor normal(struct hlo *h, struct tensor bits, float deviation) {
    struct tensor sum = byte_of(h, bits, 0);
    for (uint32_t i = 1; i < 4; i++)
        sum = hlo_binary(h, "add", sum, byte_of(h, bits, i));
    struct tensor x = hlo_binary(h, "subtract", hlo_convert(h, sum, TYPE_F32), hlo_float(h, 510));
    return hlo_binary(h, "multiply", x, hlo_float(h, deviation / 147.8f));
}

static const float deviation_of_int8 = 73.9f; // of all 256, alike often

static void lower_dummy(const struct placed *p, struct buf *out) {
    struct hlo h = {0};
    struct tensor seed = hlo_argument(&h, TYPE_U32, SHAPE(1), NO_ALIAS);
    struct tensor bits = random_bits(&h, p->shape, hlo_reshape(&h, seed, SCALAR)), x;
    if (p->type == TYPE_S8) {
        x = hlo_binary(&h, "subtract", byte_of(&h, bits, 0), hlo_int(&h, 128));
    } else if (p->shape.rank == 1) {
        struct tensor fine = hlo_convert(&h, byte_of(&h, bits, 0), TYPE_F32);
        x = hlo_binary(&h, "add", hlo_binary(&h, "multiply", fine, hlo_float(&h, 0.2f / 255)), hlo_float(&h, 0.9f));
    } else {
        x = normal(&h, bits, 1 / sqrtf((float)p->weight->in));
    }
    hlo_result(&h, hlo_convert(&h, x, p->type));
    hlo_module(&h, "dummy", 1, out);
}

static enum status make_scales(const struct loaded *l, struct placed *p, struct error *err) {
    float *scales = malloc((size_t)p->weight->out * sizeof *scales);
    if (!scales)
        return fail(err, ERR_MEMORY, "%s: no memory for its scales", p->weight->name);
    for (int64_t i = 0; i < p->weight->out; i++)
        scales[i] = 1 / (deviation_of_int8 * sqrtf((float)p->weight->in));
    enum status st =
        pjrt_upload(l->device->pjrt, l->device->index, PJRT_F32, &p->weight->out, 1, scales, &p->scales, err);
    free(scales);
    return st;
}

static bool is_alike(const struct placed *a, const struct placed *b) {
    return a->type == b->type && a->weight->in == b->weight->in && shape_equals(a->shape, b->shape);
}

static enum status make_alike(struct loaded *l, int first, struct error *err) {
    struct buf text = {0};
    struct pjrt_loaded *program = NULL;
    lower_dummy(&l->weights[first], &text);
    enum status st = compiled_make(l, buf_view(&text), &program, err);
    for (int i = first; i < l->n_weights && st == OK; i++) {
        struct placed *p = &l->weights[i];
        uint32_t seed = 0x9e3779b9u * (uint32_t)(i + 1);
        struct pjrt_buffer *argument = NULL;
        if (!is_alike(p, &l->weights[first]))
            continue;
        st = pjrt_upload(l->device->pjrt, l->device->index, PJRT_U32, (int64_t[]){1}, 1, &seed, &argument, err);
        if (st == OK)
            st = compiled_run(l, program, &argument, 1, &p->buffer, err);
        if (st == OK && p->is_scaled)
            st = make_scales(l, p, err);
        pjrt_buffer_free(l->device->pjrt, argument);
    }
    pjrt_loaded_free(l->device->pjrt, program);
    buf_release(&text);
    return st;
}

enum status dummies_make(struct loaded *l, struct error *err) {
    for (int i = 0; i < l->n_weights; i++)
        if (!l->weights[i].buffer)
            TRY(make_alike(l, i, err));
    return OK;
}
