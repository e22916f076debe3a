/* gguf_vocabulary.c - see gguf_vocabulary.h. Keys: tokenizer_gguf.c, which reads them. */
#include "text/gguf_vocabulary.h"

#include "base/folder.h"
#include "base/json/json.h"
#include "text/chat/template_chat.h"
#include "text/formats/gguf_pretokenizers.h"
#include "text/formats/sentencepiece_model.h"

#include <stdio.h>

#define KEY "tokenizer.ggml."

enum { MAX_FILE_BYTES = 256 << 20, MAX_STEPS = 8 };

struct source {
    char path[FOLDER_PATH_BYTES]; // of tokenizer.json
    struct tokenizer *tok;
    json_t *root, *model;
    const struct gguf_vocabulary *v;
    struct gguf_writer *w;
    struct error *err;
};

/* ---- tokens ---- */

static bool is_byte_token(const struct source *s, struct str text) {
    return s->tok->bpe.byte_fallback && text.len == 6 && str_starts(text, STR("<0x")) && text.ptr[5] == '>';
}

static enum piece_type type_of(const struct source *s, int32_t id, struct str text) {
    if (text.len == 0)
        return PIECE_UNUSED;
    if (id == s->tok->bpe.unk_id && s->tok->bpe.byte_fallback)
        return PIECE_UNKNOWN;
    if (tokenizer_is_special(s->tok, id))
        return PIECE_CONTROL;
    if (tokenizer_is_added(s->tok, id))
        return PIECE_USER_DEFINED;
    return is_byte_token(s, text) ? PIECE_BYTE : PIECE_NORMAL;
}

static int32_t n_tokens(const struct source *s) { return MAX(s->v->n_vocab, tokenizer_n_vocab(s->tok)); }

static struct str text_of(const struct source *s, int32_t id) {
    return id < tokenizer_n_vocab(s->tok) ? tokenizer_token_text(s->tok, id) : STR("");
}

static void put_tokens(const struct source *s) {
    gguf_put_array(s->w, KEY "tokens", GGUF_STRING, (uint64_t)n_tokens(s));
    for (int32_t id = 0; id < n_tokens(s); id++) {
        char unused[32];
        struct str text = text_of(s, id);
        snprintf(unused, sizeof unused, "[PAD%d]", id);
        gguf_item_string(s->w, text.len ? text : str_of(unused));
    }
    gguf_put_array(s->w, KEY "token_type", GGUF_I32, (uint64_t)n_tokens(s));
    for (int32_t id = 0; id < n_tokens(s); id++)
        gguf_item_u32(s->w, type_of(s, id, text_of(s, id)));
}

/* ---- merges ---- */

/* "left right", or a list of both; false for anything else. */
static bool merge_text(const json_t *merge, struct buf *out) {
    const char *left = json_string_value(json_array_get(merge, 0)),
               *right = json_string_value(json_array_get(merge, 1));
    buf_clear(out);
    if (left && right)
        buf_printf(out, "%s %s", left, right);
    else if (json_is_string(merge))
        buf_str(out, str_of(json_string_value(merge)));
    return out->len > 0;
}

static enum status put_merges(const struct source *s) {
    const json_t *merges = json_object_get(s->model, "merges"), *merge;
    struct buf text = {0};
    size_t i;
    gguf_put_array(s->w, KEY "merges", GGUF_STRING, json_array_size(merges));
    json_array_foreach(merges, i, merge) {
        if (!merge_text(merge, &text)) {
            buf_release(&text);
            return fail(s->err, ERR_FORMAT, "%s: \"merges\" has an item that is no pair of texts", s->path);
        }
        gguf_item_string(s->w, buf_view(&text));
    }
    buf_release(&text);
    return OK;
}

/* The score of a token is the first merge that makes it, counted downwards; other tokens are never made. */
static enum status put_scores(const struct source *s) {
    const json_t *merges = json_object_get(s->model, "merges"), *merge;
    int32_t n = n_tokens(s);
    float *scores = xcalloc((size_t)n, sizeof *scores);
    struct buf text = {0};
    size_t i;
    for (int32_t id = 0; id < n; id++)
        scores[id] = -1e6f;
    json_array_foreach(merges, i, merge) {
        char *space = merge_text(merge, &text) ? strchr(text.ptr, ' ') : NULL;
        if (!space)
            continue;
        memmove(space, space + 1, strlen(space));
        int32_t id = tokenizer_find(s->tok, str_of(text.ptr));
        if (id >= 0 && id < n && scores[id] == -1e6f)
            scores[id] = -(float)i;
    }
    gguf_put_array(s->w, KEY "scores", GGUF_F32, (uint64_t)n);
    for (int32_t id = 0; id < n; id++)
        gguf_item_f32(s->w, scores[id]);
    buf_release(&text);
    free(scores);
    return OK;
}

/* ---- what cuts words ---- */

struct steps {
    const char *patterns[MAX_STEPS + 1];
    int n;
    bool odd; // there is one that no pattern says
};

static void add_pattern(struct steps *steps, const char *pattern) {
    if (pattern && steps->n < MAX_STEPS)
        steps->patterns[steps->n++] = pattern;
    else
        steps->odd = true;
}

static void add_step(struct steps *steps, const json_t *step) {
    const char *type = json_string_value(json_object_get(step, "type"));
    const char *pattern = json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(step, "behavior"));
    const json_t *list = json_object_get(step, "pretokenizers"), *item;
    size_t i;
    json_array_foreach(list, i, item) add_step(steps, item);
    if (!type || strcmp(type, "Sequence") == 0)
        steps->odd = steps->odd || !type;
    else if (strcmp(type, "Split") == 0 && behavior && strcmp(behavior, "Isolated") == 0 &&
             !json_is_true(json_object_get(step, "invert")))
        add_pattern(steps, pattern);
    else if (strcmp(type, "Digits") == 0 && json_is_true(json_object_get(step, "individual_digits")))
        add_pattern(steps, "\\p{N}");
    else if (strcmp(type, "ByteLevel") != 0 || json_is_true(json_object_get(step, "add_prefix_space")))
        steps->odd = true;
    else if (!json_is_false(json_object_get(step, "use_regex")))
        add_pattern(steps, gguf_gpt2_pattern);
}

static enum status put_gpt2(const struct source *s) {
    struct steps steps = {.n = 0};
    const json_t *normalizer = json_object_get(s->root, "normalizer");
    const char *normal = json_string_value(json_object_get(normalizer, "type"));
    bool nfc = normal && strcmp(normal, "NFC") == 0;
    add_step(&steps, json_object_get(s->root, "pre_tokenizer"));
    struct str pre =
        gguf_pretokenizer_name(steps.patterns, nfc, json_is_true(json_object_get(s->model, "ignore_merges")));
    if (steps.odd || pre.len == 0 || (json_is_object(normalizer) && !nfc))
        return fail(s->err, ERR_UNSUPPORTED,
                    "%s: no name of tokenizer.ggml.pre stands for its normalizer, \"pre_tokenizer\" and "
                    "\"ignore_merges\", so the vocabulary cannot be written",
                    s->path);
    gguf_put_string(s->w, KEY "model", STR("gpt2"));
    gguf_put_string(s->w, KEY "pre", pre);
    put_tokens(s);
    return put_merges(s);
}

static bool prepends_space(const json_t *normalizer) {
    const char *type = json_string_value(json_object_get(normalizer, "type"));
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(normalizer, "normalizers"), i, item) if (prepends_space(item)) return true;
    return type && strcmp(type, "Prepend") == 0;
}

static enum status put_spaced(const struct source *s) {
    gguf_put_string(s->w, KEY "model", s->v->keeps_merges ? STR("gemma4") : STR("llama"));
    gguf_put_string(s->w, KEY "pre", s->v->keeps_merges ? STR("gemma4") : STR("default"));
    put_tokens(s);
    if (s->v->keeps_merges)
        return put_merges(s);
    gguf_put_bool(s->w, KEY "add_space_prefix", prepends_space(json_object_get(s->root, "normalizer")));
    return put_scores(s);
}

/* ---- special tokens ---- */

/* What stands around a text, by encoding one. */
static enum status put_around(const struct source *s) {
    struct encoder *e = encoder_open(s->tok);
    struct token_ids plain = {0}, whole = {0};
    enum status st = tokenizer_encode(e, STR("a"), 0, &plain, s->err);
    if (st == OK)
        st = tokenizer_encode(e, STR("a"), ENCODE_ADD_SPECIAL, &whole, s->err);
    size_t before = 0;
    while (st == OK && before + plain.n < whole.n && plain.n && whole.ids[before] != plain.ids[0])
        before++;
    if (st == OK) {
        gguf_put_bool(s->w, KEY "add_bos_token", before > 0);
        gguf_put_bool(s->w, KEY "add_eos_token", whole.n > before + plain.n);
        int32_t bos = before > 0 ? whole.ids[0] : tokenizer_special(s->tok, SPECIAL_BOS).id;
        bos = bos < 0 ? s->v->bos : bos;
        if (bos >= 0)
            gguf_put_u32(s->w, KEY "bos_token_id", (uint32_t)bos);
    }
    if (st == OK && before > 1)
        st = fail(s->err, ERR_UNSUPPORTED, "%s: puts %zu tokens before a text, a GGUF file can say one", s->path,
                  before);
    token_ids_release(&plain);
    token_ids_release(&whole);
    encoder_free(e);
    return st;
}

/* The tokenizer's own end first, and then those of the model that are left. */
static enum status put_ends(const struct source *s) {
    static const char *const keys[] = {KEY "eos_token_id", KEY "eot_token_id", KEY "eom_token_id"};
    int32_t eos = tokenizer_special(s->tok, SPECIAL_EOS).id;
    size_t n = 0;
    bool is_end = s->v->n_ends == 0;
    for (int i = 0; i < s->v->n_ends; i++)
        is_end = is_end || s->v->ends[i] == eos;
    if (eos >= 0 && is_end)
        gguf_put_u32(s->w, keys[n++], (uint32_t)eos);
    for (int i = 0; i < s->v->n_ends; i++) {
        if (s->v->ends[i] == eos)
            continue;
        if (n == ARRAY_LEN(keys))
            return fail(s->err, ERR_UNSUPPORTED,
                        "%s: the model has %d tokens that end an answer, a GGUF file names %zu", s->path, s->v->n_ends,
                        n);
        gguf_put_u32(s->w, keys[n++], (uint32_t)s->v->ends[i]);
    }
    return OK;
}

static enum status put_specials(const struct source *s) {
    int32_t unk = tokenizer_special(s->tok, SPECIAL_UNK).id, pad = tokenizer_special(s->tok, SPECIAL_PAD).id;
    if (unk >= 0)
        gguf_put_u32(s->w, KEY "unknown_token_id", (uint32_t)unk);
    if (pad >= 0)
        gguf_put_u32(s->w, KEY "padding_token_id", (uint32_t)pad);
    TRY(put_around(s));
    return put_ends(s);
}

/* ---- the folder ---- */

static enum status put_all(struct source *s, const char *folder) {
    bool found;
    size_t budget = (size_t)4 << 30; // half a million merges, as lists of two texts
    struct buf text = {0};
    TRY(folder_find(folder, "tokenizer.json", s->path, &found, s->err));
    if (!found)
        return fail(s->err, ERR_UNSUPPORTED,
                    "%s: has no tokenizer.json, from which a GGUF file's vocabulary is written", folder);
    TRY(tokenizer_open(folder, &s->tok, s->err));
    enum status st = file_read(s->path, MAX_FILE_BYTES, &text, s->err);
    if (st == OK)
        st = jv_parse_within(buf_view(&text), s->path, 0, &budget, &s->root, s->err);
    buf_release(&text);
    TRY(st);
    TRY(jv_object_or_null(s->root, s->path, "model", &s->model, s->err));
    if (s->tok->kind != MODEL_BPE)
        return fail(s->err, ERR_UNSUPPORTED, "%s: \"model\" is no BPE; vocabularies of other kinds are not written",
                    s->path);
    TRY(s->tok->bpe.byte_fallback ? put_spaced(s) : put_gpt2(s));
    return put_specials(s);
}

enum status gguf_put_vocabulary(const char *folder, const struct gguf_vocabulary *v, struct gguf_writer *w,
                                struct error *err) {
    struct source s = {.v = v, .w = w, .err = err};
    enum status st = put_all(&s, folder);
    json_decref(s.root);
    tokenizer_free(s.tok);
    return st;
}

enum status gguf_put_chat_templates(const char *folder, struct gguf_writer *w, struct error *err) {
    static const char *const names[][2] = {{"default", "tokenizer.chat_template"},
                                           {"tool_use", "tokenizer.chat_template.tool_use"},
                                           {"rag", "tokenizer.chat_template.rag"}};
    struct chat_template *t;
    if (!chat_template_exists(folder))
        return OK;
    TRY(chat_template_open(folder, &t, err));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct chat_variant *v = chat_template_named(t, names[i][0]);
        if (v)
            gguf_put_string(w, names[i][1], v->source);
    }
    chat_template_free(t);
    return OK;
}
