/* gguf_config.c - the keys that all architectures share, from metadata to config.json; see gguf_model.h. */
#include "model/gguf/gguf_translation.h"
#include "model/spec/spec_read.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- reading keys ---- */

const char *gguf_key_name(const struct gguf_translation *t, const char *key) {
    static _Thread_local char name[160];
    snprintf(name, sizeof name, "%s.%s", t->arch->name, key);
    return name;
}

const struct gguf_value *gguf_key(struct gguf_translation *t, const char *key) {
    const struct gguf_value *v = gguf_get(t->g, gguf_key_name(t, key));
    BUG_IF(t->n_read == GGUF_MAX_READ);
    if (v)
        t->read[t->n_read++] = v;
    return v;
}

void gguf_set_int(struct gguf_translation *t, const char *name, int64_t value) {
    json_object_set_new(t->config, name, json_integer(value));
}

void gguf_set_string(struct gguf_translation *t, const char *name, const char *value) {
    json_object_set_new(t->config, name, json_string(value));
}

enum status gguf_read_dim(struct gguf_translation *t, const char *key, int64_t least, int64_t *out) {
    gguf_key(t, key);
    return gguf_int(t->g, gguf_key_name(t, key), least, SPEC_MAX_DIM, out, t->err);
}

enum status gguf_copy_dim(struct gguf_translation *t, const char *key, int64_t least, const char *name) {
    int64_t n = 0;
    TRY(gguf_read_dim(t, key, least, &n));
    gguf_set_int(t, name, n);
    return OK;
}

enum status gguf_copy_dim_if(struct gguf_translation *t, const char *key, int64_t least, const char *name) {
    return gguf_key(t, key) ? gguf_copy_dim(t, key, least, name) : OK;
}

enum status gguf_copy_real_if(struct gguf_translation *t, const char *key, const char *name) {
    double x;
    if (!gguf_key(t, key))
        return OK;
    TRY(gguf_real_or(t->g, gguf_key_name(t, key), 0, &x, t->err));
    json_object_set_new(t->config, name, json_real(x));
    return OK;
}

enum status gguf_read_same(struct gguf_translation *t, const char *key, int64_t least, int64_t fallback, int64_t *out) {
    const struct gguf_value *v = gguf_key(t, key);
    const char *name = gguf_key_name(t, key);
    if (!v || !v->is_array)
        return gguf_int_or(t->g, name, least, SPEC_MAX_DIM, fallback, out, t->err);
    TRY(gguf_ints(t->g, name, &v, t->err));
    if (v->n < (uint64_t)t->n_layers)
        return fail(t->err, ERR_FORMAT, "%s: %s has %llu numbers for %lld layers", t->g->path, name,
                    (unsigned long long)v->n, (long long)t->n_layers);
    *out = gguf_item_int(v, 0);
    for (int64_t l = 0; l < t->n_layers; l++)
        if (gguf_item_int(v, (uint64_t)l) != *out)
            return fail(t->err, ERR_UNSUPPORTED, "%s: %s differs between layers, which is not supported for %s",
                        t->g->path, name, t->arch->name);
    if (*out < least || *out > SPEC_MAX_DIM)
        return fail(t->err, ERR_FORMAT, "%s: %s is %lld, it must be from %lld to %d", t->g->path, name, (long long)*out,
                    (long long)least, SPEC_MAX_DIM);
    return OK;
}

/* ---- tensors that are metadata ---- */

const struct gguf_tensor *gguf_tensor_named(const struct gguf *g, const char *name) {
    for (size_t i = 0; i < g->n_tensors; i++)
        if (str_eq(g->tensors[i].name, str_of(name)))
            return &g->tensors[i];
    return NULL;
}

enum status gguf_float_list(struct gguf_translation *t, const char *name, json_t **out) {
    enum { F32 = 0, MOST = 4096 };
    const struct gguf *g = t->g;
    const struct gguf_tensor *tensor = gguf_tensor_named(g, name);
    *out = NULL;
    if (!tensor)
        return OK;
    size_t room = g->map.n_bytes - g->data_begin, n = tensor->n_dims ? (size_t)tensor->dims[0] : 0;
    if (tensor->type != F32 || tensor->n_dims != 1 || n > MOST)
        return fail(t->err, ERR_UNSUPPORTED, "%s: tensor %s must be up to %d numbers of type F32", g->path, name, MOST);
    if (tensor->offset > room || n * sizeof(float) > room - tensor->offset)
        return fail(t->err, ERR_FORMAT, "%s: tensor %s goes past the end of the file: it is cut short", g->path, name);
    *out = json_array();
    for (size_t i = 0; i < n; i++) {
        float f;
        memcpy(&f, g->map.bytes + g->data_begin + tensor->offset + i * sizeof f, sizeof f);
        json_array_append_new(*out, isfinite(f) ? json_real((double)f) : json_null());
    }
    return OK;
}

/* ---- rope ---- */

static enum status rope_yarn(struct gguf_translation *t, json_t *rope) {
    static const char *const keys[][2] = {{"rope.scaling.yarn_beta_fast", "beta_fast"},
                                          {"rope.scaling.yarn_beta_slow", "beta_slow"}};
    double x, factor = json_number_value(json_object_get(rope, "factor"));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        TRY(gguf_real_or(t->g, gguf_key_name(t, keys[i][0]), 0, &x, t->err));
        if (gguf_key(t, keys[i][0]))
            json_object_set_new(rope, keys[i][1], json_real(x));
    }
    gguf_key(t, "rope.scaling.yarn_attn_factor");
    TRY(gguf_real_or(t->g, gguf_key_name(t, "rope.scaling.yarn_attn_factor"), 1, &x, t->err));
    if (x != 1)
        json_object_set_new(rope, "attention_factor", json_real(x * (0.1 * log(MAX(factor, 1)) + 1)));
    if (gguf_key(t, "rope.scaling.yarn_log_multiplier")) { // converters write a tenth of mscale_all_dim
        TRY(gguf_real_or(t->g, gguf_key_name(t, "rope.scaling.yarn_log_multiplier"), 0, &x, t->err));
        json_object_set_new(rope, "mscale", json_real(x * 10));
        json_object_set_new(rope, "mscale_all_dim", json_real(x * 10));
    }
    json_object_set_new(rope, "truncate", json_boolean(strcmp(t->arch->model_type, "gpt_oss") != 0));
    return OK;
}

static enum status rope_longrope(struct gguf_translation *t, json_t *rope) {
    json_t *short_list = NULL, *long_list = NULL;
    TRY(gguf_float_list(t, "rope_factors_short.weight", &short_list));
    json_object_set_new(rope, "short_factor", short_list);
    TRY(gguf_float_list(t, "rope_factors_long.weight", &long_list));
    json_object_set_new(rope, "long_factor", long_list);
    double x;
    TRY(gguf_real_or(t->g, gguf_key_name(t, "rope.scaling.attn_factor"), 1, &x, t->err));
    gguf_key(t, "rope.scaling.attn_factor");
    json_object_set_new(rope, "attention_factor", json_real(x));
    return OK;
}

static enum status scaling(struct gguf_translation *t, const char *type, json_t *rope) {
    double factor;
    int64_t original;
    gguf_key(t, "rope.scaling.factor");
    TRY(gguf_real_or(t->g, gguf_key_name(t, "rope.scaling.factor"), 1, &factor, t->err));
    TRY(gguf_int_or(t->g, gguf_key_name(t, "rope.scaling.original_context_length"), 1, INT32_MAX, 0, &original,
                    t->err));
    json_object_set_new(rope, "rope_type", json_string(type));
    json_object_set_new(rope, "factor", json_real(factor));
    if (gguf_key(t, "rope.scaling.original_context_length"))
        json_object_set_new(rope, "original_max_position_embeddings", json_integer(original));
    if (strcmp(type, "yarn") == 0)
        return rope_yarn(t, rope);
    return strcmp(type, "longrope") == 0 ? rope_longrope(t, rope) : OK;
}

/* "linear", "yarn" or "longrope"; NULL: the frequencies are plain. */
static enum status scaling_type(struct gguf_translation *t, const char **out) {
    static const char *const known[] = {"linear", "yarn", "longrope"};
    struct str type;
    gguf_key(t, "rope.scaling.type");
    TRY(gguf_string_or(t->g, gguf_key_name(t, "rope.scaling.type"), STR("none"), &type, t->err));
    *out = NULL;
    if (gguf_tensor_named(t->g, "rope_factors_long.weight"))
        type = STR("longrope");
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (str_eq(type, str_of(known[i])))
            *out = known[i];
    if (*out || str_eq(type, STR("none")))
        return OK;
    return fail(t->err, ERR_UNSUPPORTED, "%s: %s is \"%.*s\", which is not supported", t->g->path,
                gguf_key_name(t, "rope.scaling.type"), (int)MIN(type.len, 60), type.ptr);
}

static enum status rope(struct gguf_translation *t) {
    const char *type = NULL;
    json_t *divisors = NULL;
    TRY(gguf_copy_real_if(t, "rope.freq_base", "rope_theta"));
    TRY(scaling_type(t, &type));
    TRY(gguf_float_list(t, "rope_freqs.weight", &divisors));
    if (divisors && strcmp(t->arch->model_type, "gemma4_text") != 0) {
        json_object_set_new(t->config, "rope_scaling",
                            json_pack("{s:s, s:o}", "rope_type", "divisors", "divisors", divisors));
        return type
                   ? fail(t->err, ERR_UNSUPPORTED, "%s: %s and the tensor rope_freqs.weight together are not supported",
                          t->g->path, gguf_key_name(t, "rope.scaling.type"))
                   : OK;
    }
    json_decref(divisors);
    if (!type)
        return OK;
    json_t *object = json_object();
    json_object_set_new(t->config, "rope_scaling", object);
    return scaling(t, type, object);
}

/* ---- sizes, tokens ---- */

static enum status heads(struct gguf_translation *t) {
    int64_t n_heads = 0, n_kv = 0, value, turned;
    TRY(gguf_read_same(t, "attention.head_count", 1, 0, &n_heads));
    if (n_heads < 1)
        return fail(t->err, ERR_FORMAT, "%s: the key %s is missing", t->g->path,
                    gguf_key_name(t, "attention.head_count"));
    gguf_set_int(t, "num_attention_heads", n_heads);
    if (!json_object_get(t->config, "num_key_value_heads")) { // of layers that differ, what the architecture said
        TRY(gguf_read_same(t, "attention.head_count_kv", 1, n_heads, &n_kv));
        gguf_set_int(t, "num_key_value_heads", n_kv);
    }
    if (!t->head_dim) {
        t->head_dim = MAX(t->hidden_size / n_heads, 1);
        TRY(gguf_int_or(t->g, gguf_key_name(t, "attention.key_length"), 1, SPEC_MAX_DIM, t->head_dim, &t->head_dim,
                        t->err));
        TRY(gguf_int_or(t->g, gguf_key_name(t, "attention.value_length"), 1, SPEC_MAX_DIM, t->head_dim, &value,
                        t->err));
        if (value != t->head_dim)
            return fail(t->err, ERR_UNSUPPORTED,
                        "%s: %s.attention.value_length is %lld and key_length %lld, which must "
                        "be the same for this architecture",
                        t->g->path, t->arch->name, (long long)value, (long long)t->head_dim);
        gguf_key(t, "attention.key_length"), gguf_key(t, "attention.value_length");
        gguf_key(t, "rope.dimension_count");
        TRY(gguf_int_or(t->g, gguf_key_name(t, "rope.dimension_count"), 1, SPEC_MAX_DIM, t->head_dim, &turned, t->err));
        if (turned != t->head_dim && !t->arch->partial_rope)
            return fail(t->err, ERR_UNSUPPORTED,
                        "%s: %s is %lld, heads have %lld channels; that RoPE turns a part is not "
                        "supported for this architecture",
                        t->g->path, gguf_key_name(t, "rope.dimension_count"), (long long)turned,
                        (long long)t->head_dim);
        if (turned != t->head_dim)
            json_object_set_new(t->config, "partial_rotary_factor", json_real((double)turned / (double)t->head_dim));
        gguf_set_int(t, "head_dim", t->head_dim);
    }
    return OK;
}

static enum status sizes(struct gguf_translation *t) {
    int64_t n_blocks = 0, n_predictors;
    gguf_key(t, "block_count"), gguf_key(t, "nextn_predict_layers");
    TRY(gguf_int_or(t->g, gguf_key_name(t, "nextn_predict_layers"), 0, SPEC_MAX_LAYERS, 0, &n_predictors, t->err));
    TRY(gguf_int(t->g, gguf_key_name(t, "block_count"), n_predictors + 1, n_predictors + SPEC_MAX_LAYERS, &n_blocks,
                 t->err)); // before anything goes through the layers
    t->n_layers = n_blocks - n_predictors;
    gguf_set_int(t, "num_hidden_layers", t->n_layers);
    TRY(gguf_read_dim(t, "embedding_length", 1, &t->hidden_size));
    gguf_set_int(t, "hidden_size", t->hidden_size);
    TRY(gguf_copy_dim(t, "context_length", 1, "max_position_embeddings"));
    return gguf_copy_real_if(t, "attention.layer_norm_rms_epsilon", "rms_norm_eps");
}

static enum status feed_forward(struct gguf_translation *t) {
    int64_t n;
    if (json_object_get(t->config, "intermediate_size")) // as the architecture said
        return OK;
    TRY(gguf_read_same(t, "feed_forward_length", 0, 0, &n));
    if (n)
        gguf_set_int(t, "intermediate_size", n);
    return OK;
}

static enum status vocabulary(struct gguf_translation *t) {
    const struct gguf_tensor *table = gguf_tensor_named(t->g, "token_embd.weight");
    if (!table || table->n_dims != 2 || table->dims[1] < 1 || table->dims[1] > SPEC_MAX_DIM)
        return fail(t->err, ERR_FORMAT,
                    "%s: there is no tensor token_embd.weight with two dimensions, so it is no "
                    "language model",
                    t->g->path);
    gguf_set_int(t, "vocab_size", (int64_t)table->dims[1]);
    gguf_key(t, "vocab_size");
    json_object_set_new(t->config, "tie_word_embeddings",
                        json_boolean(t->arch->tied || !gguf_tensor_named(t->g, "output.weight")));
    return OK;
}

static enum status token(struct gguf_translation *t, const char *key, int64_t *out) {
    TRY(gguf_int_or(t->g, key, -1, UINT32_MAX, -1, out, t->err));
    *out = *out > INT32_MAX ? -1 : *out; // how some writers say none
    return OK;
}

static enum status tokens(struct gguf_translation *t) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    int64_t bos, pad, end;
    TRY(token(t, "tokenizer.ggml.bos_token_id", &bos));
    TRY(token(t, "tokenizer.ggml.padding_token_id", &pad));
    gguf_set_int(t, "bos_token_id", bos);
    gguf_set_int(t, "pad_token_id", pad);
    json_t *list = json_array();
    json_object_set_new(t->config, "eos_token_id", list);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        TRY(token(t, ends[i], &end));
        json_array_append_new(list, json_integer(end));
    }
    return OK;
}

/* ---- the whole ---- */

/* Keys that tell of the file or of what other programs do; what they say here is said elsewhere too. */
static bool is_harmless(struct str key) {
    static const char *const leaves[] = {"rope.scaling.finetuned", "tensor_data_layout", "rope.dimension_sections",
                                         "embedding_length_out",   "attention.causal",   "pooling_type"};
    for (size_t i = 0; i < ARRAY_LEN(leaves); i++)
        if (str_eq(key, str_of(leaves[i])))
            return true;
    return false;
}

static bool was_read(const struct gguf_translation *t, const struct gguf_value *v) {
    for (size_t i = 0; i < t->n_read; i++)
        if (t->read[i] == v)
            return true;
    return false;
}

static enum status refuse_unread(const struct gguf_translation *t) {
    struct str arch = str_of(t->arch->name);
    for (size_t i = 0; i < t->g->n_values; i++) {
        const struct gguf_value *v = &t->g->values[i];
        if (!str_starts(v->key, arch) || v->key.len <= arch.len + 1 || v->key.ptr[arch.len] != '.' || was_read(t, v) ||
            is_harmless((struct str){v->key.ptr + arch.len + 1, v->key.len - arch.len - 1}))
            continue;
        return fail(t->err, ERR_UNSUPPORTED,
                    "%s: the key %.*s is not known for this architecture, and may change what "
                    "the model computes",
                    t->g->path, (int)MIN(v->key.len, 120), v->key.ptr);
    }
    return OK;
}

static enum status find_arch(const struct gguf *g, const struct gguf_arch **out, struct error *err) {
    struct str name;
    char key[96];
    int64_t n_experts;
    TRY(gguf_string(g, "general.architecture", &name, err));
    snprintf(key, sizeof key, "%.*s.expert_count", (int)MIN(name.len, 60), name.ptr);
    TRY(gguf_int_or(g, key, 0, INT32_MAX, 0, &n_experts, err));
    for (const struct gguf_arch *a = gguf_archs; a->name; a++)
        if (str_eq(name, str_of(a->name)) && a->experts == (n_experts > 0)) {
            *out = a;
            return OK;
        }
    return fail(err, ERR_UNSUPPORTED, "%s: general.architecture is \"%.*s\"%s, which gyre does not compute", g->path,
                (int)MIN(name.len, 60), name.ptr, n_experts ? " with experts" : "");
}

static enum status translate(struct gguf_translation *t) {
    gguf_set_string(t, "model_type", t->arch->model_type);
    TRY(sizes(t));
    if (t->arch->translate)
        TRY(t->arch->translate(t));
    TRY(heads(t));
    TRY(feed_forward(t));
    TRY(vocabulary(t));
    TRY(tokens(t));
    TRY(rope(t));
    return refuse_unread(t);
}

enum status gguf_config(const struct gguf *g, const struct gguf_arch **arch, json_t **out, struct error *err) {
    struct gguf_translation t = {.g = g, .err = err};
    *out = NULL;
    TRY(find_arch(g, &t.arch, err));
    t.config = json_object();
    enum status st = translate(&t);
    if (st == OK)
        *out = t.config;
    else
        json_decref(t.config);
    *arch = t.arch;
    return st;
}

void gguf_adjust(const struct gguf_arch *arch, struct model_spec *spec) {
    spec->gguf = arch;
    spec->norms_hold_one = arch->norms_hold_one;
    for (int i = 0; arch->interleaved && i < spec->n_ropes; i++)
        spec->ropes[i].pairing = ROPE_INTERLEAVED;
}
