/* spec.c - see spec.h. Reads the keys that all families share, and checks the result; a family reads its own. */
#include "model/spec/spec.h"

#include "base/file.h"
#include "base/folder.h"
#include "base/gguf/gguf_find.h"
#include "model/gguf/gguf_model.h"
#include "model/spec/spec_read.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const size_t max_config_bytes = 64 << 20;

// A key that wrappers keep at the top and text models inside; the outer one wins.
static const json_t *outer_or_text(const struct spec_reader *r, const char *key) {
    const json_t *v = json_object_get(r->root, key);
    return v && !json_is_null(v) ? v : json_object_get(r->text, key);
}

/* ---- the keys of all families ---- */

static enum status read_activation(struct spec_reader *r) {
    static const struct {
        const char *name;
        enum activation act;
    } known[] = {{"silu", ACT_SILU},          {"swish", ACT_SILU},          {"gelu_pytorch_tanh", ACT_GELU_TANH},
                 {"gelu_new", ACT_GELU_TANH}, {"gelu_fast", ACT_GELU_TANH}, {"gelu", ACT_GELU}};
    const char *name;
    TRY(jv_string_or(r->text, r->path, r->type->activation_key, r->type->activation, &name, r->err));
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strcmp(name, known[i].name) == 0) {
            r->spec->activation = known[i].act;
            return OK;
        }
    return fail(r->err, ERR_UNSUPPORTED, "%s: \"%s\" %s is not known", r->path, r->type->activation_key, name);
}

static enum status read_heads(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    const struct model_type *f = r->type;
    TRY(read_dim(r, "num_attention_heads", f->heads, &s->n_heads));
    bool is_null = json_is_null(json_object_get(r->text, "num_key_value_heads"));
    TRY(read_dim(r, "num_key_value_heads", f->kv_heads && !is_null ? f->kv_heads : s->n_heads, &s->n_kv_heads));
    is_null = json_is_null(json_object_get(r->text, "head_dim"));
    TRY(read_dim(r, "head_dim", f->head_dim && !is_null ? f->head_dim : MAX(s->hidden_size / s->n_heads, 1),
                 &s->head_dim));
    s->attention_scale = pow(s->head_dim, -0.5);
    return OK;
}

static enum status read_dims(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    const struct model_type *f = r->type;
    TRY(read_dim(r, "hidden_size", f->hidden, &s->hidden_size));
    TRY(read_dim(r, "num_hidden_layers", f->layers, &s->n_layers));
    if (s->n_layers > SPEC_MAX_LAYERS)
        return fail(r->err, ERR_FORMAT, "%s: \"num_hidden_layers\" is %d, at most %d are supported", r->path,
                    s->n_layers, SPEC_MAX_LAYERS);
    TRY(read_dim(r, "vocab_size", f->vocab, &s->vocab_size));
    TRY(read_dim(r, "intermediate_size", f->ffn, &s->ffn_size));
    TRY(read_heads(r));
    TRY(jv_int_or(r->text, r->path, "max_position_embeddings", 1, INT32_MAX, f->max_positions, &r->max_positions,
                  r->err));
    s->max_positions = r->max_positions;
    TRY(read_real(r, "rms_norm_eps", f->norm_eps, &s->norm_eps));
    if (!(s->norm_eps >= 0 && s->norm_eps <= 1))
        return fail(r->err, ERR_FORMAT, "%s: \"rms_norm_eps\" is %g, it must be between 0 and 1", r->path, s->norm_eps);
    s->embedding_scale = 1;
    s->moe.scale = 1;
    return read_activation(r);
}

static enum status read_dtype(struct spec_reader *r) {
    const json_t *v = outer_or_text(r, "dtype");
    if (!json_is_string(v))
        v = outer_or_text(r, "torch_dtype");
    r->spec->dtype = DT_BF16;
    if (json_is_string(v) && !dtype_from_name(json_string_value(v), &r->spec->dtype))
        return fail(r->err, ERR_FORMAT, "%s: \"dtype\" %s is not known", r->path, json_string_value(v));
    return OK;
}

static enum status read_token(const struct spec_reader *r, const json_t *value, const char *where, const char *key,
                              int32_t *out) {
    int64_t id;
    if (!jv_whole(value, &id) || id < -1 || id > INT32_MAX)
        return fail(r->err, ERR_FORMAT, "%s: \"%s\" is not a token id", where, key);
    *out = (int32_t)id;
    return OK;
}

static enum status add_eos(struct spec_reader *r, const char *where, int32_t id) {
    struct model_spec *s = r->spec;
    for (int i = 0; i < s->n_eos; i++)
        if (s->eos[i] == id)
            return OK;
    if (s->n_eos == MAX_EOS)
        return fail(r->err, ERR_FORMAT, "%s: with the ids of \"eos_token_id\" in config.json there are more than %d",
                    where, MAX_EOS);
    s->eos[s->n_eos++] = id;
    return OK;
}

// A number or a list of numbers, to those that are there; -1 is how some files say none.
static enum status read_eos(struct spec_reader *r, const json_t *value, const char *where) {
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > MAX_EOS)
        return fail(r->err, ERR_FORMAT, "%s: \"eos_token_id\" has %zu ids, at most %d are supported", where, n,
                    MAX_EOS);
    for (size_t i = 0; i < n; i++) {
        int32_t id = -1;
        TRY(read_token(r, json_is_array(value) ? json_array_get(value, i) : value, where, "eos_token_id", &id));
        if (id >= 0)
            TRY(add_eos(r, where, id));
    }
    return OK;
}

static enum status read_tokens(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    const json_t *bos = outer_or_text(r, "bos_token_id"), *pad = outer_or_text(r, "pad_token_id"),
                 *eos[] = {json_object_get(r->root, "eos_token_id"), json_object_get(r->text, "eos_token_id")};
    s->bos = bos ? -1 : r->type->bos;
    s->pad = pad ? -1 : r->type->pad;
    if (bos && !json_is_null(bos))
        TRY(read_token(r, bos, r->path, "bos_token_id", &s->bos));
    if (pad && !json_is_null(pad))
        TRY(read_token(r, pad, r->path, "pad_token_id", &s->pad));
    for (size_t i = 0; i < ARRAY_LEN(eos); i++) // of a wrapper and of its text model
        if (eos[i] && !json_is_null(eos[i]))
            TRY(read_eos(r, eos[i], r->path));
    if (!eos[0] && !eos[1] && r->type->eos >= 0)
        s->eos[s->n_eos++] = r->type->eos;
    return OK;
}

static enum status read_tied(struct spec_reader *r) {
    const json_t *v = outer_or_text(r, "tie_word_embeddings");
    r->spec->tied_embeddings = r->type->tied;
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return fail(r->err, ERR_FORMAT, "%s: \"tie_word_embeddings\" is %s, it must be true or false", r->path,
                    jv_type_name(v));
    if (json_is_boolean(v))
        r->spec->tied_embeddings = json_is_true(v);
    return OK;
}

/* ---- checks that make later arithmetic safe ---- */

static enum status check_product(const struct spec_reader *r, const char *what, int64_t a, int64_t b, int64_t limit) {
    if (a * b > limit)
        return fail(r->err, ERR_FORMAT, "%s: %s would be %lld wide, the limit is %lld", r->path, what,
                    (long long)(a * b), (long long)limit);
    return OK;
}

static enum status check_divides(const struct spec_reader *r, const char *a_name, int a, const char *b_name, int b) {
    if (b < 1 || a % b)
        return fail(r->err, ERR_FORMAT, "%s: \"%s\" %d does not divide \"%s\" %d", r->path, b_name, b, a_name, a);
    return OK;
}

static enum status check_experts(const struct spec_reader *r) {
    const struct moe_spec *m = &r->spec->moe;
    if (m->n_experts == 0)
        return OK;
    if (m->top_k < 1 || m->top_k > m->n_experts)
        return fail(r->err, ERR_FORMAT, "%s: %d of %d experts a token cannot be chosen", r->path, m->top_k,
                    m->n_experts);
    TRY(check_product(r, "the experts of all layers", r->spec->n_layers, m->n_experts, 1 << 18));
    TRY(check_product(r, "the experts of a layer", 2LL * m->n_experts, MAX(m->ffn_size, r->spec->hidden_size),
                      1 << 30));
    if (m->n_groups) {
        TRY(check_divides(r, "n_routed_experts", m->n_experts, "n_group", m->n_groups));
        if (m->top_groups < 1 || m->top_groups > m->n_groups ||
            m->n_experts / m->n_groups * (int64_t)m->top_groups < m->top_k)
            return fail(r->err, ERR_FORMAT, "%s: \"topk_group\" %d of \"n_group\" %d cannot give %d experts", r->path,
                        m->top_groups, m->n_groups, m->top_k);
    }
    return OK;
}

static enum status check_layer(const struct spec_reader *r, const struct layer_spec *l) {
    const struct model_spec *s = r->spec;
    if (l->mixer == MIX_DELTA) {
        const struct delta_spec *d = &s->delta;
        TRY(check_divides(r, "linear_num_value_heads", d->n_value_heads, "linear_num_key_heads", d->n_key_heads));
        // GGUF files make a key head for each value head of it
        TRY(check_product(r, "the keys of linear attention", d->n_value_heads, d->key_dim, SPEC_MAX_DIM));
        return check_product(r, "the values of linear attention", d->n_value_heads, d->value_dim, SPEC_MAX_DIM);
    }
    if (l->mixer == MIX_LATENT)
        return check_product(r, "the query heads", s->n_heads,
                             (int64_t)s->mla.nope_dim + s->mla.rope_dim + s->mla.v_dim, SPEC_MAX_DIM);
    TRY(check_divides(r, "num_attention_heads", s->n_heads, "num_key_value_heads", l->n_kv_heads));
    return check_product(r, "the query heads", s->n_heads, l->head_dim, SPEC_MAX_DIM);
}

static enum status check_spec(const struct spec_reader *r) {
    TRY(check_product(r, "what all layers take of each token", r->spec->n_layers, r->spec->per_layer_input_size,
                      SPEC_MAX_DIM));
    TRY(check_experts(r));
    TRY(check_window(r));
    for (int l = 0; l < r->spec->n_layers; l++)
        TRY(check_layer(r, &r->spec->layers[l]));
    return OK;
}

bool spec_tiles_keys(const struct model_spec *s) { return s->gguf && s->delta.n_value_heads != s->delta.n_key_heads; }

int spec_key_heads(const struct model_spec *s) {
    return spec_tiles_keys(s) ? s->delta.n_value_heads : s->delta.n_key_heads;
}

/* ---- config.json ---- */

/* Models with more than a text model: their config.json keeps it in text_config. */
static const struct {
    const char *model_type, *class_name;
} wrappers[] = {
    {"gemma3", "Gemma3"},    {"gemma4", "Gemma4"},          {"gemma4_unified", "Gemma4Unified"},
    {"qwen3_5", "Qwen3_5"},  {"qwen3_5_moe", "Qwen3_5Moe"}, {"llama4", "Llama4"},
    {"kimi_k25", "KimiK25"}, {"mistral3", "Mistral3"},      {"gemma4_assistant", "Gemma4Assistant"},
};

static bool is_class(const char *architecture, const char *class_name) {
    static const char *const suffixes[] = {"",      "ForCausalLM", "ForConditionalGeneration",
                                           "Model", "TextModel",   "LMHeadModel"};
    size_t n = strlen(class_name);
    for (size_t i = 0; i < ARRAY_LEN(suffixes); i++)
        if (strncmp(architecture, class_name, n) == 0 && strcmp(architecture + n, suffixes[i]) == 0)
            return true;
    return false;
}

static enum status check_architecture(struct spec_reader *r, const char *name, const char *wrapper_class) {
    struct model_spec *s = r->spec;
    const char *wanted = wrapper_class ? wrapper_class : r->type->class_name;
    if (!name) {
        s->architecture =
            arena_printf(&s->arena, "%s%s", wanted, wrapper_class ? "ForConditionalGeneration" : "ForCausalLM");
        return OK;
    }
    s->architecture = arena_strdup(&s->arena, str_of(name));
    if (!is_class(name, wanted) && !is_class(name, r->type->class_name))
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"architectures\" is %s, which is not the language model of type %s",
                    r->path, name, s->model_type);
    return OK;
}

// Finds the text model and its family.
static enum status choose_family(struct spec_reader *r) {
    const char *outer, *type, *wrapper_class = NULL;
    const char *architecture = json_string_value(json_array_get(json_object_get(r->root, "architectures"), 0));
    json_t *text;
    TRY(jv_string(r->root, r->path, "model_type", &outer, r->err));
    TRY(jv_object_or_null(r->root, r->path, "text_config", &text, r->err));
    for (size_t i = 0; text && i < ARRAY_LEN(wrappers); i++)
        if (strcmp(outer, wrappers[i].model_type) == 0)
            wrapper_class = wrappers[i].class_name;
    if (wrapper_class)
        r->text = text;
    r->spec->multimodal = wrapper_class != NULL;
    TRY(jv_string_or(r->text, r->path, "model_type", outer, &type, r->err));
    r->type = model_type_find(type, architecture);
    if (!r->type)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"model_type\" %s is not known", r->path, type);
    r->spec->model_type = r->type->name;
    return check_architecture(r, architecture, wrapper_class);
}

// A copy of the text model's object in our keys, where the family has its own; owned by the caller.
static json_t *renamed(const struct spec_reader *r) {
    json_t *copy = json_copy((json_t *)r->text);
    for (const char *const(*pair)[2] = r->type->renames; (*pair)[0]; pair++) {
        json_t *value = json_object_get(copy, (*pair)[0]);
        if (value)
            json_object_set(copy, (*pair)[1], value);
    }
    return copy;
}

static enum status read_quantisation(struct spec_reader *r) {
    const json_t *q = outer_or_text(r, "quantization_config");
    if (json_is_object(json_object_get(r->root, "quantization")))
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"quantization\" as MLX writes it is not supported", r->path);
    return q && !json_is_null(q) ? quant_spec_parse(&r->spec->arena, q, r->path, &r->spec->quant, r->err) : OK;
}

static enum status read_keys(struct spec_reader *r) {
    TRY(read_dtype(r));
    TRY(read_dims(r));
    TRY(read_tied(r));
    TRY(read_tokens(r));
    TRY(read_quantisation(r));
    if (json_object_size(json_object_get(r->text, "per_layer_config")) &&
        strcmp(r->spec->model_type, "gemma4_text") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"per_layer_config\" is not supported for %s", r->path,
                    r->spec->model_type);
    TRY(r->type->read(r));
    return check_spec(r);
}

static enum status read_family(struct spec_reader *r) {
    TRY(choose_family(r));
    if (!r->type->renames)
        return read_keys(r);
    json_t *text = renamed(r);
    r->text = text;
    enum status st = read_keys(r);
    r->text = r->root;
    json_decref(text);
    return st;
}

static enum status read_config(struct spec_reader *r) {
    json_t *flat;
    if (!json_is_object(r->root))
        return fail(r->err, ERR_FORMAT, "%s: is %s, it must be an object", r->path, jv_type_name(r->root));
    TRY(speculators_flat(r->root, r->path, &flat, r->err));
    if (!flat)
        return read_family(r);
    const json_t *root = r->root;
    r->root = r->text = flat;
    enum status st = read_family(r);
    r->root = r->text = root;
    json_decref(flat);
    return st;
}

/* ---- the files beside it ---- */

// Token ids that config.json leaves open.
static enum status read_generation_token(struct spec_reader *r, const json_t *g, const char *where, const char *key,
                                         int32_t *out) {
    const json_t *v = json_object_get(g, key);
    return *out >= 0 || !v || json_is_null(v) ? OK : read_token(r, v, where, key, out);
}

/* From 0 to most; -1: not said. */
static enum status read_within(struct spec_reader *r, const json_t *g, const char *where, const char *key, double most,
                               double *out) {
    TRY(jv_real_or(g, where, key, -1, out, r->err));
    if (*out == -1 || (*out >= 0 && *out <= most))
        return OK;
    return fail(r->err, ERR_FORMAT, "%s: %s is %g, it must be between 0 and %g", where, key, *out, most);
}

static enum status read_generation(struct spec_reader *r, const json_t *g, const char *where) {
    struct generation_defaults *d = &r->spec->generation;
    const json_t *eos = json_object_get(g, "eos_token_id");
    if (!json_is_object(g))
        return fail(r->err, ERR_FORMAT, "%s: is %s, it must be an object", where, jv_type_name(g));
    if (eos && !json_is_null(eos))
        TRY(read_eos(r, eos, where));
    TRY(read_generation_token(r, g, where, "bos_token_id", &r->spec->bos));
    TRY(read_generation_token(r, g, where, "pad_token_id", &r->spec->pad));
    TRY(read_within(r, g, where, "temperature", 100, &d->temperature));
    TRY(read_within(r, g, where, "top_p", 1, &d->top_p));
    TRY(read_within(r, g, where, "min_p", 1, &d->min_p));
    TRY(read_within(r, g, where, "repetition_penalty", 100, &d->repetition_penalty));
    TRY(jv_int_or(g, where, "top_k", -1, INT32_MAX, -1, &d->top_k, r->err));
    return jv_bool_or(g, where, "do_sample", false, &d->do_sample, r->err);
}

static enum status read_hf_quant(struct spec_reader *r, const json_t *file, const char *where) {
    json_t *q;
    if (!json_is_object(file))
        return fail(r->err, ERR_FORMAT, "%s: is %s, it must be an object", where, jv_type_name(file));
    TRY(jv_object_or_null(file, where, "quantization", &q, r->err));
    return q && !r->spec->quant ? quant_spec_parse(&r->spec->arena, q, where, &r->spec->quant, r->err) : OK;
}

// Reads dir/name, where there is one, with `read`.
static enum status read_beside(struct spec_reader *r, const char *dir, const char *name,
                               enum status (*read)(struct spec_reader *r, const json_t *root, const char *where)) {
    char path[FOLDER_PATH_BYTES];
    json_t *root;
    bool found;
    TRY(folder_find(dir, name, path, &found, r->err));
    if (!found)
        return OK;
    TRY(jv_load(path, max_config_bytes, JV_PYTHON, &root, r->err));
    enum status st = read(r, root, path);
    json_decref(root);
    return st;
}

static enum status read_folder(struct spec_reader *r, const char *dir) {
    TRY(read_beside(r, dir, "hf_quant_config.json", read_hf_quant));
    return read_beside(r, dir, "generation_config.json", read_generation);
}

// dir and path from what the user gave.
static enum status locate(const char *given, char *dir, char *path, struct error *err) {
    if (dir_exists(given)) {
        if (snprintf(dir, FOLDER_PATH_BYTES, "%s", given) >= FOLDER_PATH_BYTES)
            return fail(err, ERR_LIMIT, "%.80s...: path too long", given);
        return folder_file(dir, "config.json", path, err);
    }
    const char *slash = strrchr(given, '/');
    int n_dir = slash ? (int)(slash - given) + 1 : 0;
    if (snprintf(path, FOLDER_PATH_BYTES, "%s", given) >= FOLDER_PATH_BYTES)
        return fail(err, ERR_LIMIT, "%.80s...: path too long", given);
    snprintf(dir, FOLDER_PATH_BYTES, "%.*s", n_dir, given);
    if (!n_dir)
        strcpy(dir, ".");
    return OK;
}

// Reads root and, where dir is given, the files beside it.
static enum status read_all(const json_t *root, const char *path, const char *dir, struct model_spec **out,
                            struct error *err) {
    struct model_spec *s = xcalloc(1, sizeof *s);
    s->path = arena_strdup(&s->arena, str_of(path));
    s->generation = (struct generation_defaults){-1, -1, -1, -1, -1, false};
    struct spec_reader r = {.spec = s, .root = root, .text = root, .path = s->path, .err = err};
    enum status st = read_config(&r);
    if (st == OK && dir)
        st = read_folder(&r, dir);
    if (st != OK) {
        model_spec_free(s);
        s = NULL;
    }
    *out = s;
    return st;
}

enum status model_spec_read(const json_t *config, const char *path, struct model_spec **out, struct error *err) {
    return read_all(config, path, NULL, out, err);
}

static enum status open_gguf(const char *path, struct model_spec **out, struct error *err) {
    struct gguf g;
    const struct gguf_arch *arch;
    json_t *root;
    TRY(gguf_open(path, &g, err));
    enum status st = gguf_config(&g, &arch, &root, err);
    if (st == OK)
        st = read_all(root, path, NULL, out, err);
    if (st == OK)
        gguf_adjust(arch, *out);
    json_decref(root);
    gguf_release(&g);
    return st;
}

enum status model_spec_open(const char *folder_or_config, struct model_spec **out, struct error *err) {
    char dir[FOLDER_PATH_BYTES], path[FOLDER_PATH_BYTES];
    json_t *root;
    bool is_gguf;
    *out = NULL;
    TRY(gguf_find_model(folder_or_config, path, &is_gguf, err));
    if (is_gguf)
        return open_gguf(path, out, err);
    TRY(locate(folder_or_config, dir, path, err));
    TRY(jv_load(path, max_config_bytes, JV_PYTHON, &root, err));
    enum status st = read_all(root, path, dir, out, err);
    json_decref(root);
    return st;
}

void model_spec_free(struct model_spec *spec) {
    if (!spec)
        return;
    arena_release(&spec->arena);
    free(spec);
}
