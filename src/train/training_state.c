/* training_state.c - see training_state.h. */
#include "train/training_state.h"
#include "train/tensor_file.h"

#include "base/file.h"
#include "base/json/json.h"
#include "file/safetensors.h"

#include <stdlib.h>
#include <string.h>

/* Of the head: what training_save writes as "config". */
enum { N_CONFIG = 12 };

enum status training_save(const char *path, const struct trainer *t, const struct texts *texts, const char *options,
                          struct error *err) {
    const struct held_out *h = t->held;
    const struct head_config *c = &t->config;
    const struct head_shape *s = &c->shape;
    int64_t n = head_size(s), none = 0;
    const int64_t config[N_CONFIG] = {s->hidden,   s->taps,  s->n_heads, s->n_kv_heads, s->head_dim,  s->ffn,
                                      s->rope_dim, s->vocab, s->kind,    c->layers[0],  c->layers[1], c->layers[2]};
    const double constants[] = {s->eps, s->rope_theta};
    const struct memory_tensor tensors[] = {
        {"step", DT_I64, 1, {1}, &t->step},
        {"config", DT_I64, 1, {N_CONFIG}, config},
        {"constants", DT_F64, 1, {2}, constants},
        {"start", DT_I64, 1, {texts->n + 1}, texts->n ? texts->start : &none},
        {"held_start", DT_I64, 1, {h->texts.n + 1}, h->texts.n ? h->texts.start : &none},
        {"held_prompt", DT_I64, 1, {h->texts.n}, h->n_prompt},
        {"ids", DT_I32, 1, {texts_tokens(texts)}, texts->ids},
        {"held_ids", DT_I32, 1, {texts_tokens(&h->texts)}, h->texts.ids},
        {"vocabulary", DT_I32, 1, {t->vocab->n}, t->vocab->target_id},
        {"weight", DT_F32, 1, {n}, t->head.weight},
        {"m", DT_F32, 1, {n}, t->m},
        {"v", DT_F32, 1, {n}, t->v},
        {"options", DT_U8, 1, {(int64_t)strlen(options)}, options},
    };
    return tensor_file_write(path, tensors, ARRAY_LEN(tensors), err);
}

// ---- reading ----------------------------------------------------------------------------------------------------

struct reading {
    const char *path;
    struct stored_list list;
    struct error *err;
};

/* A list of numbers by its name, copied; *n: how many. */
static enum status read_list(struct reading *r, const char *name, enum dtype dtype, int64_t least, void **out,
                             int64_t *n) {
    for (size_t i = 0; i < r->list.n; i++) {
        const struct stored_tensor *t = &r->list.items[i];
        if (strcmp(t->name, name) != 0)
            continue;
        if (t->dtype != dtype || t->rank != 1 || t->shape[0] < least)
            return fail(r->err, ERR_FORMAT, "%s: tensor %s has another form than a training's", r->path, name);
        *n = t->shape[0];
        *out = malloc(t->n_bytes + 1);
        if (!*out)
            return fail(r->err, ERR_MEMORY, "%s: no memory for tensor %s", r->path, name);
        memcpy(*out, t->data, t->n_bytes);
        return OK;
    }
    return fail(r->err, ERR_FORMAT, "%s: tensor %s is missing", r->path, name);
}

static enum status read_texts(struct reading *r, const char *start, const char *ids, int32_t n_target,
                              struct texts *out) {
    int64_t n, n_ids;
    TRY(read_list(r, start, DT_I64, 1, (void **)&out->start, &n));
    TRY(read_list(r, ids, DT_I32, 0, (void **)&out->ids, &n_ids));
    bool fine = out->start[0] == 0 && out->start[n - 1] == n_ids;
    for (int64_t i = 1; i < n && fine; i++)
        fine = out->start[i] >= out->start[i - 1];
    for (int64_t i = 0; i < n_ids && fine; i++)
        fine = out->ids[i] >= 0 && out->ids[i] < n_target;
    out->n = out->cap = n - 1;
    out->ids_cap = n_ids;
    return fine ? OK
                : fail(r->err, ERR_FORMAT, "%s: tensors %s and %s are no texts of this model", r->path, start, ids);
}

static enum status read_held(struct reading *r, int32_t n_target, struct training_state *s) {
    int64_t n;
    TRY(read_texts(r, "held_start", "held_ids", n_target, &s->held_texts));
    TRY(read_list(r, "held_prompt", DT_I64, 0, (void **)&s->n_prompt, &n));
    bool fine = n == s->held_texts.n;
    for (int64_t i = 0; i < n && fine; i++)
        fine = s->n_prompt[i] >= 1 && s->n_prompt[i] < texts_length(&s->held_texts, i);
    return fine ? OK : fail(r->err, ERR_FORMAT, "%s: tensor held_prompt does not fit held_start", r->path);
}

static enum status read_vocab(struct reading *r, int32_t n_target, struct training_state *s) {
    int32_t *ids = NULL;
    int64_t n;
    enum status st = read_list(r, "vocabulary", DT_I32, 1, (void **)&ids, &n);
    bool fine = st == OK && n <= n_target && ids[0] >= 0 && ids[n - 1] < n_target;
    for (int64_t i = 1; i < n && fine; i++)
        fine = ids[i] > ids[i - 1];
    if (st == OK && !fine)
        st = fail(r->err, ERR_FORMAT, "%s: tensor vocabulary is not of this model", r->path);
    if (st == OK)
        draft_vocab_of(&s->vocab, ids, (int32_t)n, n_target);
    free(ids);
    return st;
}

/* Each on its own small enough that no size made of them overflows. */
static bool is_config(const int64_t *c, const double *constants, int64_t vocab) {
    enum { MOST = 1 << 24 };
    for (int i = 0; i < N_CONFIG; i++)
        if (c[i] < (i < 8) || c[i] > MOST)
            return false;
    bool heads_fit = c[2] % c[3] == 0 && c[4] % 2 == 0 && c[2] * c[4] <= MOST && c[6] % 2 == 0 && c[6] <= c[4];
    bool is_kind = c[8] <= HEAD_MTP && c[1] == (c[8] == HEAD_MTP ? 1 : TEACHER_TAPS) * c[0];
    return heads_fit && is_kind && c[7] == vocab && constants[0] > 0 && constants[1] > 0;
}

static enum status read_config(struct reading *r, struct training_state *s) {
    int64_t *c = NULL, n;
    double *constants = NULL;
    enum status st = read_list(r, "config", DT_I64, N_CONFIG, (void **)&c, &n);
    if (st == OK)
        st = read_list(r, "constants", DT_F64, 2, (void **)&constants, &n);
    if (st == OK && !is_config(c, constants, s->vocab.n))
        st = fail(r->err, ERR_FORMAT, "%s: tensors config and constants are of no head", r->path);
    if (st == OK)
        s->config = (struct head_config){.shape = {(enum head_kind)c[8], c[0], c[1], (int)c[2], (int)c[3], (int)c[4],
                                                   (int)c[6], c[5], c[7], constants[0], constants[1]},
                                         .layers = {(int)c[9], (int)c[10], (int)c[11]}};
    free(c);
    free(constants);
    return st;
}

static enum status read_numbers(struct reading *r, struct training_state *s) {
    int64_t n_m, n_v, n, *step = NULL;
    TRY(read_list(r, "weight", DT_F32, 1, (void **)&s->weight, &s->n_weights));
    TRY(read_list(r, "m", DT_F32, 1, (void **)&s->m, &n_m));
    TRY(read_list(r, "v", DT_F32, 1, (void **)&s->v, &n_v));
    TRY(read_list(r, "options", DT_U8, 0, (void **)&s->options, &n));
    s->options[n] = '\0';
    TRY(read_list(r, "step", DT_I64, 1, (void **)&step, &n));
    s->step = step[0];
    free(step);
    bool fits = n_m == s->n_weights && n_v == s->n_weights && s->n_weights == head_size(&s->config.shape);
    return fits && s->step >= 0
               ? OK
               : fail(r->err, ERR_FORMAT, "%s: tensors weight, m, v and step do not fit the head", r->path);
}

static enum status read_all(struct reading *r, int32_t n_target, struct training_state *s) {
    TRY(read_texts(r, "start", "ids", n_target, &s->texts));
    TRY(read_held(r, n_target, s));
    TRY(read_vocab(r, n_target, s));
    TRY(read_config(r, s));
    return read_numbers(r, s);
}

enum status training_load(const char *path, int32_t n_target, struct training_state *out, struct error *err) {
    struct file_map map;
    struct arena names = {0};
    struct reading r = {.path = path, .err = err};
    *out = (struct training_state){0};
    TRY(file_map_open(&map, path, 0, err));
    enum status st = safetensors_parse(map.bytes, map.n_bytes, path, 0, &names, &r.list, err);
    if (st == OK)
        st = read_all(&r, n_target, out);
    if (st == OK && file_map_damaged(&map))
        st = fail(err, ERR_IO, "%s: was cut while it was read", path);
    if (st != OK)
        training_state_release(out);
    free(r.list.items);
    arena_release(&names);
    file_map_close(&map);
    return st;
}

void training_state_release(struct training_state *s) {
    texts_release(&s->texts);
    texts_release(&s->held_texts);
    draft_vocab_release(&s->vocab);
    free(s->options);
    free(s->n_prompt);
    free(s->weight);
    free(s->m);
    free(s->v);
    *s = (struct training_state){0};
}
