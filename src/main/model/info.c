/* info.c - gyre info MODEL: what a model is and what it takes, from config.json and the headers of weights that are
 * there; with --device cuda what it takes of a card; gyre info --device xla: what would compute. */
#include "main/verbs.h"

#include "backend/xla/backend.h"
#include "base/file.h"
#include "console/terminal.h"
#include "main/model/info_card.h"
#include "main/model/model_path.h"
#include "model/families/family.h"
#include "model/footprint.h"
#include "model/model.h"
#include "model/weights/scales.h"
#include "text/chat/turn_ends.h"
#include "text/tools/tool_format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
    const char *output, *device, *xla_plugin;
    struct card_flags card;
} opt = {.output = "text", .device = "none", .card = CARD_FLAGS_DEFAULT};

static const struct flag flags[] = {
    {"output", 0, FLAG_CHOICE, &opt.output, "text|json", "Output", "a table to read, or one JSON object"},
    {"device", 0, FLAG_CHOICE, &opt.device, "none|cuda|xla", "Device",
     "cuda: what the model takes of a card, which need not be here; xla: describes what computes, and no model"},
    {"xla-plugin", 0, FLAG_STRING, &opt.xla_plugin, "FILE", "Device",
     "the PJRT plugin; otherwise that of a Python package is looked for"},
    ALLOW_LINKS_FLAG,
    CARD_FLAGS(opt.card),
};

enum { CACHE_ELEMENT_BYTES = 2 }; // bf16

/* All that is printed. */
struct facts {
    struct model_spec *spec;
    bool runnable;
    int64_t n_parameters, n_bytes;
    int64_t bytes_by_storage[N_STORAGES];
    const struct cache_need *caches; // [n_caches]
    int n_caches;
    int64_t bytes_per_token, state_bytes, conv_bytes; // of all groups
    int layers_by_mixer[MIX_DELTA + 1];
    int n_moe_layers, n_dense_layers;
    int64_t n_unused_scales;
    size_t n_unlisted;               // tensors that no index lists
    struct buf tool_calls;           // how the model writes them, for people
    struct error weights_fault;      // of a folder; text empty: its weights can be opened, and of bitsandbytes used
    const struct footprint *on_card; // NULL: nobody asked
};

/* What the headers of a folder's weights say beyond the configuration. A model is described without weights, too. */
static void gather_from_weights(const char *path, struct facts *f) {
    struct checkpoint *c;
    if (f->spec->gguf || !dir_exists(path) || checkpoint_open(&c, path, &f->weights_fault) != OK)
        return;
    f->n_unused_scales = count_unused_scales(c, f->spec->n_layers);
    f->n_unlisted = checkpoint_unlisted(c);
    checkpoint_free(c);
}

/* To the ends of the configs those of the tokenizer, as serve and run take them. A folder without one, or with a
 * faulty one, is described all the same. */
static void add_ends_of_text(const char *path, struct model_spec *s) {
    struct tokenizer *tok;
    struct error ignored;
    struct token_ids ends = {0};
    if (!tokenizer_in_folder(path) || tokenizer_open(path, &tok, &ignored) != OK)
        return;
    turn_ends_in_folder(tok, path, &ends);
    for (size_t i = 0; i < ends.n; i++) {
        bool known = ends.ids[i] >= s->vocab_size || s->n_eos == MAX_EOS;
        for (int k = 0; k < s->n_eos; k++)
            known |= s->eos[k] == ends.ids[i];
        if (!known)
            s->eos[s->n_eos++] = ends.ids[i];
    }
    token_ids_release(&ends);
    tokenizer_free(tok);
}

/* A template that cannot be read is told by what needs it. */
static void describe_calls(const char *path, struct buf *out) {
    struct chat_template *chat = NULL;
    struct error ignored;
    if (chat_template_exists(path))
        (void)chat_template_open(path, &chat, &ignored);
    struct tool_format *format = tool_format_open(chat, NULL);
    tool_format_describe(format, out);
    tool_format_free(format);
    chat_template_free(chat);
}

static enum status gather(const char *path, struct facts *f, struct error *err) {
    TRY(model_path_check(path, MODEL_SETTINGS, err));
    TRY(model_spec_open(path, &f->spec, err));
    TRY(model_count_at(path, f->spec, &f->n_parameters, f->bytes_by_storage, &f->weights_fault, err));
    const struct family *family = family_find(f->spec->model_type);
    f->runnable = family && family->record && quant_is_readable(f->spec->quant);
    for (int i = 0; i < N_STORAGES; i++)
        f->n_bytes += f->bytes_by_storage[i];
    f->n_caches = cache_needs(f->spec, CACHE_ELEMENT_BYTES, &f->caches);
    for (int i = 0; i < f->n_caches; i++) {
        f->bytes_per_token += f->caches[i].bytes_per_token;
        f->state_bytes += f->caches[i].state_bytes;
        f->conv_bytes += f->caches[i].conv_bytes;
    }
    for (int l = 0; l < f->spec->n_layers; l++) {
        f->layers_by_mixer[f->spec->layers[l].mixer]++;
        f->n_moe_layers += f->spec->layers[l].moe;
        f->n_dense_layers += f->spec->layers[l].ffn_size > 0;
    }
    add_ends_of_text(path, f->spec);
    describe_calls(path, &f->tool_calls);
    gather_from_weights(path, f);
    return OK;
}

/* ---- text ---- */

static void label(const char *name) { printf("%-14s", name); }

/* What stands in the model's files. */
static void print_theirs(const char *text) { terminal_print(stdout, str_of(text)); }

static void print_line(const char *name, const char *text) {
    label(name);
    print_theirs(text);
    printf("\n");
}

// 8190735360 as 8,190,735,360.
static void print_count(int64_t n) {
    char digits[32], out[48];
    int len = snprintf(digits, sizeof digits, "%" PRId64, n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    printf("%.*s", at, out);
}

static void print_bytes(int64_t n) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)n;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < ARRAY_LEN(units); unit++)
        value /= 1024;
    printf(unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
}

static void print_weights(const struct facts *f) {
    label("parameters");
    print_count(f->n_parameters);
    printf("\n");
    label("weights");
    print_bytes(f->n_bytes);
    const char *separator = " as stored: ";
    for (int i = 0; i < N_STORAGES; i++) {
        if (!f->bytes_by_storage[i])
            continue;
        printf("%s%s ", separator, storage_name(i));
        print_bytes(f->bytes_by_storage[i]);
        separator = ", ";
    }
    printf("\n");
    print_line("quantisation", f->spec->gguf ? "as each tensor of the GGUF file says" : quant_name(f->spec->quant));
}

static void print_layers(const struct facts *f) {
    const struct model_spec *s = f->spec;
    label("layers");
    printf("%d:", s->n_layers);
    const char *separator = " ";
    for (int m = 0; m <= MIX_DELTA; m++)
        if (f->layers_by_mixer[m]) {
            printf("%s%d %s", separator, f->layers_by_mixer[m], mixer_name((enum mixer)m));
            separator = ", ";
        }
    printf("\n");
    label("width");
    printf("hidden %d", s->hidden_size);
    printf(f->n_dense_layers ? ", FFN %d\n" : "\n", s->ffn_size);
    label("attention");
    printf("%d heads, %d for keys and values, of %d channels\n", s->n_heads, s->n_kv_heads, s->head_dim);
    if (s->mla.kv_rank) {
        label("latent");
        printf("keys and values of rank %d, %d rope channels", s->mla.kv_rank, s->mla.rope_dim);
        printf(s->mla.q_rank ? ", queries of rank %d\n" : "\n", s->mla.q_rank);
    }
    if (f->layers_by_mixer[MIX_DELTA]) {
        label("recurrent");
        printf("%d key heads of %d channels, %d value heads of %d\n", s->delta.n_key_heads, s->delta.key_dim,
               s->delta.n_value_heads, s->delta.value_dim);
    }
    if (s->moe.n_experts) {
        label("experts");
        printf("%d, %d a token, FFN %d, on %d layers", s->moe.n_experts, s->moe.top_k, s->moe.ffn_size,
               f->n_moe_layers);
        printf(s->moe.shared_ffn_size ? "; shared FFN %d\n" : "\n", s->moe.shared_ffn_size);
    }
    label("vocabulary");
    printf("%d, %s\n", s->vocab_size,
           s->tied_embeddings ? "one table for input and output" : "a table for input and one for output");
}

static void print_positions(const struct facts *f) {
    const struct model_spec *s = f->spec;
    label("context");
    printf("%" PRId64 " tokens\n", s->max_positions);
    for (int i = 0; i < s->n_ropes; i++)
        print_line("rope", s->rope_notes[i]);
}

static void print_cache(const struct facts *f) {
    for (int i = 0; i < f->n_caches; i++) {
        const struct cache_need *n = &f->caches[i];
        label(i ? "" : "cache");
        printf("%-17s %2d layers  ", mixer_name(n->mixer), n->n_layers);
        if (n->mixer == MIX_DELTA) {
            print_bytes(n->state_bytes);
            printf(" a sequence in f32, and ");
            print_bytes(n->conv_bytes);
            printf(" of convolution inputs\n");
            continue;
        }
        printf("%" PRId64 " bytes a token in bf16", n->bytes_per_token);
        printf(n->max_tokens ? ", at most %" PRId64 " tokens\n" : "\n", n->max_tokens);
    }
}

static void print_id(const char *name, int32_t id) { printf(id < 0 ? "%s none" : "%s %d", name, id); }

static void print_tokens(const struct model_spec *s) {
    label("tokens");
    print_id("bos", s->bos);
    printf(", eos");
    for (int i = 0; i < s->n_eos; i++)
        printf(" %d", s->eos[i]);
    printf(s->n_eos ? ", " : " none, ");
    print_id("pad", s->pad);
    printf("\n");
}

static void print_sampling(const struct generation_defaults *g) {
    const struct {
        const char *name;
        double value;
    } given[] = {{"temperature", g->temperature},
                 {"top_k", (double)g->top_k},
                 {"top_p", g->top_p},
                 {"min_p", g->min_p},
                 {"repetition_penalty", g->repetition_penalty}};
    bool any = false;
    for (size_t i = 0; i < ARRAY_LEN(given); i++) {
        if (given[i].value < 0)
            continue;
        if (!any)
            label("sampling");
        printf("%s%s %g", any ? ", " : "", given[i].name, given[i].value);
        any = true;
    }
    if (any)
        printf("%s\n", g->do_sample ? "" : " (greedy unless asked)");
}

static void print_draft(const struct model_spec *s) {
    const struct draft_spec *d = &s->draft;
    if (d->vocab == 0)
        return;
    printf("%-14sfor a model of %d channels; it proposes %d of its %d tokens", "draft", d->tap_size, d->vocab,
           s->vocab_size);
    if (d->n_taps > 0 && d->layers[0] != DEFAULT_TAPS)
        for (int i = 0; i < d->n_taps; i++)
            printf("%s%d", i ? ", " : "; reads what comes out of layers ", d->layers[i]);
    if (d->block > 0)
        printf("; guesses in blocks of %d", d->block);
    printf("\n%-14sit runs beside its model: --speculative-config '{\"model\": FOLDER}'\n", "note");
}

static void print_notes(const struct facts *f) {
    const struct model_spec *s = f->spec;
    print_line("tool calls", f->tool_calls.ptr);
    if (s->multimodal)
        printf("%-14sthe vision tower and what feeds it; the text model alone is described\n", "not counted");
    if (s->n_mtp_layers)
        printf("%-14s%d next-token predictor layer%s\n", "not counted", s->n_mtp_layers,
               s->n_mtp_layers > 1 ? "s" : "");
    if (s->draft.n_taps)
        printf("%-14san embedding of the larger model, whose hidden states of %d layers it reads\n", "not counted",
               s->draft.n_taps);
    print_draft(s);
    if (f->n_unused_scales)
        printf("%-14s%" PRId64
               " scales of caches and outputs: a cache of 8 bits makes a scale for each key and value itself\n",
               "read past", f->n_unused_scales);
    if (f->n_unlisted)
        printf("%-14s%zu of the shards' tensors, which the index does not list\n", "read too", f->n_unlisted);
    if (f->weights_fault.text[0])
        print_line("note", f->weights_fault.text);
    if (!f->runnable && s->draft.vocab == 0)
        printf("%-14sgyre describes this model, but does not run it\n", "note");
}

static void print_text(const struct facts *f) {
    label("model");
    print_theirs(f->spec->architecture);
    printf(" (");
    print_theirs(f->spec->model_type);
    printf(")\n");
    print_weights(f);
    print_layers(f);
    print_positions(f);
    print_cache(f);
    print_tokens(f->spec);
    print_sampling(&f->spec->generation);
    print_notes(f);
    card_footprint_print(&opt.card, f->on_card);
}

/* ---- JSON ---- */

static json_t *id_or_null(int32_t id) { return id < 0 ? json_null() : json_integer(id); }

static json_t *weights_json(const struct facts *f) {
    json_t *o = json_object();
    for (int i = 0; i < N_STORAGES; i++)
        if (f->bytes_by_storage[i])
            json_object_set_new(o, storage_name(i), json_integer(f->bytes_by_storage[i]));
    return o;
}

static json_t *layers_json(const struct facts *f) {
    static const char *const names[] = {"full_attention", "sliding_attention", "chunked_attention", "latent_attention",
                                        "linear_attention"};
    json_t *o = json_object();
    for (int m = 0; m <= MIX_DELTA; m++)
        if (f->layers_by_mixer[m])
            json_object_set_new(o, names[m], json_integer(f->layers_by_mixer[m]));
    return o;
}

static json_t *experts_json(const struct facts *f) {
    const struct moe_spec *m = &f->spec->moe;
    if (!m->n_experts)
        return json_null();
    return json_pack("{s:i, s:i, s:i, s:i, s:i}", "count", m->n_experts, "per_token", m->top_k, "ffn_size", m->ffn_size,
                     "shared_ffn_size", m->shared_ffn_size, "layers", f->n_moe_layers);
}

static json_t *rope_json(const struct model_spec *s) {
    json_t *a = json_array();
    for (int i = 0; i < s->n_ropes; i++)
        json_array_append_new(a, json_string(s->rope_notes[i]));
    return a;
}

static json_t *cache_json(const struct facts *f) {
    json_t *groups = json_array();
    for (int i = 0; i < f->n_caches; i++) {
        const struct cache_need *n = &f->caches[i];
        json_array_append_new(
            groups, json_pack("{s:s, s:i, s:i, s:i, s:I, s:o, s:I, s:I}", "kind", mixer_name(n->mixer), "layers",
                              n->n_layers, "kv_heads", n->n_kv_heads, "head_dim", n->head_dim, "bytes_per_token",
                              (json_int_t)n->bytes_per_token, "max_tokens",
                              n->max_tokens ? json_integer(n->max_tokens) : json_null(), "state_bytes_per_sequence",
                              (json_int_t)n->state_bytes, "conv_bytes_per_sequence", (json_int_t)n->conv_bytes));
    }
    return json_pack("{s:s, s:I, s:I, s:I, s:o}", "dtype", "bf16", "bytes_per_token", (json_int_t)f->bytes_per_token,
                     "state_bytes_per_sequence", (json_int_t)f->state_bytes, "conv_bytes_per_sequence",
                     (json_int_t)f->conv_bytes, "groups", groups);
}

static json_t *tokens_json(const struct model_spec *s) {
    json_t *eos = json_array();
    for (int i = 0; i < s->n_eos; i++)
        json_array_append_new(eos, json_integer(s->eos[i]));
    return json_pack("{s:o, s:o, s:o}", "bos", id_or_null(s->bos), "eos", eos, "pad", id_or_null(s->pad));
}

static json_t *sampling_json(const struct generation_defaults *g) {
    json_t *o = json_pack("{s:b}", "do_sample", g->do_sample);
    if (g->temperature >= 0)
        json_object_set_new(o, "temperature", json_real(g->temperature));
    if (g->top_k >= 0)
        json_object_set_new(o, "top_k", json_integer(g->top_k));
    if (g->top_p >= 0)
        json_object_set_new(o, "top_p", json_real(g->top_p));
    if (g->min_p >= 0)
        json_object_set_new(o, "min_p", json_real(g->min_p));
    if (g->repetition_penalty >= 0)
        json_object_set_new(o, "repetition_penalty", json_real(g->repetition_penalty));
    return o;
}

static json_t *not_counted_json(const struct model_spec *s) {
    json_t *a = json_array();
    if (s->multimodal)
        json_array_append_new(a, json_string("vision tower"));
    if (s->n_mtp_layers)
        json_array_append_new(a, json_string("next-token predictor layers"));
    if (s->draft.n_taps)
        json_array_append_new(a, json_string("embedding of the larger model"));
    return a;
}

static void print_json(const struct facts *f) {
    const struct model_spec *s = f->spec;
    json_t *o = json_pack("{s:o?, s:o?, s:b, s:b, s:I, s:I, s:i, s:i, s:i, s:i, s:i}", "architecture",
                          json_string(s->architecture), "model_type", json_string(s->model_type), "runnable",
                          f->runnable, "multimodal", s->multimodal, "parameters", (json_int_t)f->n_parameters,
                          "weight_bytes", (json_int_t)f->n_bytes, "n_layers", s->n_layers, "hidden_size",
                          s->hidden_size, "n_heads", s->n_heads, "n_kv_heads", s->n_kv_heads, "head_dim", s->head_dim);
    json_object_set_new(o, "bytes_by_dtype", weights_json(f));
    json_object_set_new(o, "dtype", json_string(dtype_name(s->dtype)));
    json_object_set_new(o, "quantization", json_string(s->gguf ? "gguf" : quant_name(s->quant)));
    json_object_set_new(o, "layers", layers_json(f));
    json_object_set_new(o, "ffn_size", f->n_dense_layers ? json_integer(s->ffn_size) : json_null());
    json_object_set_new(o, "experts", experts_json(f));
    json_object_set_new(o, "vocab_size", json_integer(s->vocab_size));
    json_object_set_new(o, "tied_embeddings", json_boolean(s->tied_embeddings));
    json_object_set_new(o, "context", json_integer(s->max_positions));
    json_object_set_new(o, "sliding_window", s->sliding_window ? json_integer(s->sliding_window) : json_null());
    json_object_set_new(o, "rope", rope_json(s));
    json_object_set_new(o, "kv_cache", cache_json(f));
    json_object_set_new(o, "tokens", tokens_json(s));
    json_object_set_new(o, "sampling", sampling_json(&s->generation));
    json_object_set_new(o, "tool_calls", json_string(f->tool_calls.ptr));
    json_object_set_new(o, "not_counted", not_counted_json(s));
    json_object_set_new(o, "unused_scales", json_integer(f->n_unused_scales));
    json_object_set_new(o, "unlisted_tensors", json_integer((json_int_t)f->n_unlisted));
    json_object_set_new(o, "weights_fault",
                        f->weights_fault.text[0] ? json_string(f->weights_fault.text) : json_null());
    json_object_set_new(o, "on_card", card_footprint_json(&opt.card, f->on_card));
    char *text = json_dumps(o, JSON_INDENT(2));
    terminal_print(stdout, str_of(text));
    printf("\n");
    free(text);
    json_decref(o);
}

static int run_device(void) {
    struct error err;
    struct buf text = {0};
    bool is_json = strcmp(opt.output, "json") == 0;
    enum status st =
        is_json ? xla_describe_json(opt.xla_plugin, &text, &err) : xla_describe(opt.xla_plugin, &text, &err);
    if (st == OK)
        terminal_print(stdout, buf_view(&text));
    buf_release(&text);
    return st == OK ? 0 : verb_failed(&err);
}

static int run(const struct verb_args *args) {
    struct error err;
    bool of_device = strcmp(opt.device, "xla") == 0, on_card = strcmp(opt.device, "cuda") == 0;
    static struct footprint footprint;
    if (of_device != (args->n == 0)) {
        fail(&err, ERR_ARG, "info: it takes a model, or --device xla and no model");
        (void)verb_failed(&err);
        return 2; // as for any wrong line
    }
    if (of_device)
        return run_device();
    struct facts f = {.on_card = on_card ? &footprint : NULL};
    int rc = 0;
    if (gather(args->operands[0], &f, &err) != OK ||
        (on_card && card_footprint(args->operands[0], opt.device, &opt.card, &footprint, &err) != OK))
        rc = verb_failed(&err);
    else if (strcmp(opt.output, "json") == 0)
        print_json(&f);
    else
        print_text(&f);
    model_spec_free(f.spec);
    buf_release(&f.tool_calls);
    return rc;
}

const struct verb_spec verb_info = {
    "info",
    "[MODEL|config.json]",
    "says what a model is and what it takes, from its configuration; or what a device is",
    flags,
    ARRAY_LEN(flags),
    0,
    1,
    .run = run,
    .epilogue = "Parameters are counted tensor by tensor, each as the checkpoint stores it, scales "
                "included; of weights only the headers are read.\n"
                "Of a model with vision or sound, the text model alone is described.\n"
                "--device cuda: weights as gyre's library for CUDA places them, a step and the caches, on --card; no "
                "GPU is asked.\n"
                "--device xla loads a PJRT plugin and names its versions, devices and memory.\n"};
