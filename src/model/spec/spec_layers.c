/* spec_layers.c - what the readers of several families share: which layer is what, windows, biases, ropes. */
#include "model/spec/rope.h"
#include "model/spec/spec_read.h"

#include <stdlib.h>

/* ---- layers ---- */

void layers_init(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    s->layers = arena_calloc(&s->arena, (size_t)s->n_layers, sizeof *s->layers);
    for (int l = 0; l < s->n_layers; l++)
        s->layers[l] = (struct layer_spec){.mixer = MIX_FULL,
                                           .n_kv_heads = s->n_kv_heads,
                                           .head_dim = s->head_dim,
                                           .ffn_size = s->ffn_size,
                                           .kv_source = l};
}

void layers_by_period(struct spec_reader *r, int period, enum mixer mixer) {
    for (int l = 0; l < r->spec->n_layers; l++)
        r->spec->layers[l].mixer = (l + 1) % period ? mixer : MIX_FULL;
}

static const struct {
    const char *name;
    enum mixer mixer;
} mixer_names[] = {
    {"full_attention", MIX_FULL},
    {"sliding_attention", MIX_SLIDING},
    {"chunked_attention", MIX_CHUNKED},
    {"linear_attention", MIX_DELTA},
};

static enum status mixer_of(const struct spec_reader *r, const char *name, const char *const *allowed,
                            enum mixer *out) {
    for (; name && *allowed; allowed++) {
        if (strcmp(name, *allowed) != 0)
            continue;
        for (size_t i = 0; i < ARRAY_LEN(mixer_names); i++)
            if (strcmp(name, mixer_names[i].name) == 0)
                *out = mixer_names[i].mixer;
        return OK;
    }
    return fail(r->err, ERR_UNSUPPORTED, "%s: \"layer_types\" has \"%s\", which %s does not have", r->path,
                name ? name : "?", r->spec->model_type);
}

enum status layers_from_types(struct spec_reader *r, const char *const *allowed, bool *given) {
    json_t *types;
    TRY(jv_array_or_null(r->text, r->path, "layer_types", &types, r->err));
    *given = types != NULL;
    if (!types)
        return OK;
    if (json_array_size(types) != (size_t)r->spec->n_layers)
        return fail(r->err, ERR_FORMAT, "%s: \"layer_types\" has %zu entries, \"num_hidden_layers\" is %d", r->path,
                    json_array_size(types), r->spec->n_layers);
    for (int l = 0; l < r->spec->n_layers; l++)
        TRY(mixer_of(r, json_string_value(json_array_get(types, (size_t)l)), allowed, &r->spec->layers[l].mixer));
    return OK;
}

enum status check_window(const struct spec_reader *r) {
    for (int l = 0; l < r->spec->n_layers; l++)
        if (r->spec->layers[l].mixer == MIX_SLIDING && r->spec->sliding_window < 1)
            return fail(r->err, ERR_FORMAT, "%s: layer %d has a sliding window but \"sliding_window\" gives no size",
                        r->path, l);
    return OK;
}

/* ---- rope ---- */

// Whether rope parameters are kept by layer type.
static bool is_nested(const json_t *parameters) {
    for (size_t i = 0; i < ARRAY_LEN(mixer_names); i++)
        if (json_object_get(parameters, mixer_names[i].name))
            return true;
    return false;
}

const json_t *rope_parameters(const struct spec_reader *r) {
    const json_t *p = json_object_get(r->text, "rope_scaling");
    if (!p || json_is_null(p) || (json_is_object(p) && json_object_size(p) == 0))
        p = json_object_get(r->text, "rope_parameters");
    if (is_nested(p))
        p = json_object_get(p, "full_attention");
    return json_is_null(p) ? NULL : p;
}

// Those of one layer type, or what stood in the older key.
static enum status typed_parameters(const struct spec_reader *r, const char *layer_type, const json_t *old,
                                    const json_t **out) {
    const json_t *all = json_object_get(r->text, "rope_parameters");
    if (json_is_object(all) && !is_nested(all))
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"rope_parameters\" of %s must be kept by layer type", r->path,
                    r->spec->model_type);
    *out = json_is_object(all) ? json_object_get(all, layer_type) : old;
    return OK;
}

static struct rope_said rope_said(struct model_spec *s, const json_t *parameters, double theta) {
    const json_t *own = json_object_get(parameters, "rope_theta");
    struct rope_said said = {json_is_number(own) ? json_number_value(own) : theta, NULL};
    char *text = parameters ? json_dumps(parameters, JSON_COMPACT) : NULL;
    said.parameters = text ? arena_strdup(&s->arena, str_of(text)) : NULL;
    free(text);
    return said;
}

enum status add_rope(struct spec_reader *r, const char *layer_type, const json_t *old, double theta, int head_dim,
                     enum rope_pairing pairing, int *index) {
    struct model_spec *s = r->spec;
    BUG_IF(s->n_ropes == MAX_ROPES);
    if (!s->ropes) {
        s->ropes = arena_calloc(&s->arena, MAX_ROPES, sizeof *s->ropes);
        s->rope_notes = arena_calloc(&s->arena, MAX_ROPES, sizeof *s->rope_notes);
        s->rope_said = arena_calloc(&s->arena, MAX_ROPES, sizeof *s->rope_said);
    }
    const json_t *parameters = rope_parameters(r);
    if (layer_type)
        TRY(typed_parameters(r, layer_type, old, &parameters));
    else if (!parameters)
        parameters = old;
    if (json_is_null(parameters))
        parameters = NULL;
    if (parameters && !json_is_object(parameters))
        return fail(r->err, ERR_FORMAT, "%s: the rope parameters are %s, they must be an object", r->path,
                    jv_type_name(parameters));
    struct rope_request q = {.parameters = parameters,
                             .where = r->path,
                             .theta = theta,
                             .head_dim = head_dim,
                             .pairing = pairing,
                             .max_positions = r->max_positions,
                             .yarn_is_longrope = strcmp(s->model_type, "phi3") == 0,
                             .whole_heads = r->type->partial == 0};
    TRY(read_real(r, "partial_rotary_factor", q.whole_heads ? 1 : r->type->partial, &q.partial));
    TRY(jv_int_or(r->text, r->path, "original_max_position_embeddings", 1, INT32_MAX, 0, &q.original_context, r->err));
    int64_t context;
    TRY(rope_context(&q, &context, r->err));
    s->max_positions = MAX(s->max_positions, context);
    *index = s->n_ropes++;
    s->rope_said[*index] = rope_said(s, parameters, theta);
    return rope_build(&q, &s->arena, &s->ropes[*index], &s->rope_notes[*index], r->err);
}

/* ---- keys that several families have ---- */

// One rope for all layers.
enum status one_rope(struct spec_reader *r, enum rope_pairing pairing, int head_dim) {
    double theta;
    int index;
    TRY(read_real(r, "rope_theta", r->type->theta, &theta));
    return add_rope(r, NULL, NULL, theta, head_dim, pairing, &index);
}

enum status one_half_rope(struct spec_reader *r) { return one_rope(r, ROPE_HALF, r->spec->head_dim); }

void all_layers(struct spec_reader *r, enum mixer mixer) {
    for (int l = 0; l < r->spec->n_layers; l++)
        r->spec->layers[l].mixer = mixer;
}

// A window that, where it is given, every layer has.
enum status window_on_all(struct spec_reader *r, int fallback) {
    TRY(read_optional(r, "sliding_window", fallback, &r->spec->sliding_window));
    if (r->spec->sliding_window)
        all_layers(r, MIX_SLIDING);
    return OK;
}

// sliding_window counts only with use_sliding_window.
enum status window_if_used(struct spec_reader *r) {
    bool used;
    TRY(read_flag(r, "use_sliding_window", false, &used));
    TRY(read_optional(r, "sliding_window", 4096, &r->spec->sliding_window));
    if (!used)
        r->spec->sliding_window = 0;
    return OK;
}

enum status biases(struct spec_reader *r, bool fallback) {
    TRY(read_flag(r, "attention_bias", fallback, &r->spec->qkv_bias));
    r->spec->o_bias = r->spec->qkv_bias;
    return OK;
}

enum status refuse_flag(const struct spec_reader *r, const char *key) {
    bool on;
    TRY(read_flag(r, key, false, &on));
    return on ? fail(r->err, ERR_UNSUPPORTED, "%s: \"%s\" true is not supported for %s", r->path, key,
                     r->spec->model_type)
              : OK;
}

const char *const full_or_sliding[] = {"full_attention", "sliding_attention", NULL};

// qwen2 and qwen3: layers from max_window_layers on slide, unless layer_types says which.
enum status read_qwen_layers(struct spec_reader *r) {
    int first;
    bool given;
    layers_init(r);
    TRY(window_if_used(r));
    TRY(read_count(r, "max_window_layers", 28, &first));
    TRY(layers_from_types(r, full_or_sliding, &given));
    for (int l = first; !given && r->spec->sliding_window && l < r->spec->n_layers; l++)
        r->spec->layers[l].mixer = MIX_SLIDING;
    return one_half_rope(r);
}
