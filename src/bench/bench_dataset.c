/* bench_dataset.c - see bench_dataset.h. */
#include "bench/bench_dataset.h"

#include "base/file.h"
#include "base/json/json.h"
#include "base/random.h"
#include "text/detokenizer.h"

#include <math.h>
#include <stdio.h>

enum { MAX_FILE = 1 << 30, MAX_TRIES = 10 };

struct maker {
    const struct bench_dataset_options *options;
    const struct bench_text *text;
    struct bench_dataset *out;
    size_t cap;
    uint64_t drawn;  // random numbers so far
    int32_t *usable; // ids that stand for text
    size_t n_usable;
};

static double uniform(struct maker *m) { return philox_uniform((uint64_t)m->options->seed, m->drawn++, 0x64617461); }

/* Of low .. high, both among them. */
static int64_t between(struct maker *m, int64_t low, int64_t high) {
    return low + MIN((int64_t)(uniform(m) * (double)(high - low + 1)), high - low);
}

static struct bench_prompt *add(struct maker *m, struct str text, const struct token_ids *ids, int64_t n_output) {
    struct bench_dataset *d = m->out;
    if (d->n == m->cap) {
        m->cap = m->cap * 2 + 64;
        d->prompts = xrealloc(d->prompts, m->cap, sizeof *d->prompts);
    }
    struct bench_prompt *p = &d->prompts[d->n++];
    *p = (struct bench_prompt){.text = xmalloc(text.len + 1), .text_bytes = text.len, .n_output_tokens = n_output};
    memcpy(p->text, text.ptr, text.len);
    p->text[text.len] = 0;
    for (size_t i = 0; ids && i < ids->n; i++)
        token_ids_push(&p->ids, ids->ids[i]);
    return p;
}

static void shuffle(struct maker *m) {
    struct bench_dataset *d = m->out;
    for (size_t i = d->n; i > 1; i--) {
        size_t k = (size_t)between(m, 0, (int64_t)i - 1);
        struct bench_prompt swap = d->prompts[k];
        d->prompts[k] = d->prompts[i - 1];
        d->prompts[i - 1] = swap;
    }
}

// ---- random tokens ----------------------------------------------------------------------------------------------

static void find_usable(struct maker *m) {
    int32_t n = tokenizer_n_vocab(m->text->tok);
    m->usable = xcalloc((size_t)n, sizeof *m->usable);
    for (int32_t id = 0; id < n; id++)
        if (tokenizer_token_text(m->text->tok, id).len > 0 && !tokenizer_is_special(m->text->tok, id))
            m->usable[m->n_usable++] = id;
}

static void push_random(struct maker *m, struct token_ids *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        token_ids_push(ids, m->usable[between(m, 0, (int64_t)m->n_usable - 1)]);
}

/* Makes ids what their own text is read as, and n of them. Some vocabularies cannot always; then it is about n. */
static enum status settle(struct maker *m, struct token_ids *ids, size_t n, struct buf *text, struct error *err) {
    for (int i = 0; i < MAX_TRIES; i++) {
        buf_clear(text);
        TRY(tokenizer_decode(m->text->tok, ids->ids, ids->n, 0, text, err));
        ids->n = 0;
        TRY(tokenizer_encode(m->text->encoder, buf_view(text), 0, ids, err));
        if (ids->n == n || i + 1 == MAX_TRIES)
            return OK;
        if (ids->n > n)
            ids->n = n;
        else
            push_random(m, ids, (int64_t)(n - ids->n));
    }
    return OK;
}

static enum status add_random(struct maker *m, const struct token_ids *prefix, int64_t n, int64_t n_output,
                              struct error *err) {
    struct token_ids ids = {0};
    struct buf text = {0};
    for (size_t i = 0; i < prefix->n; i++)
        token_ids_push(&ids, prefix->ids[i]);
    push_random(m, &ids, n);
    enum status st = settle(m, &ids, prefix->n + (size_t)n, &text, err);
    if (st == OK)
        add(m, buf_view(&text), &ids, n_output);
    token_ids_release(&ids);
    buf_release(&text);
    return st;
}

/* How many tokens the server will add to a text (BOS ...): vllm bench takes them off a random prompt's length. */
static enum status count_added(struct maker *m, int64_t *n, struct error *err) {
    struct token_ids ids = {0};
    enum status st = tokenizer_encode(m->text->encoder, STR(""), ENCODE_ADD_SPECIAL | ENCODE_PARSE_SPECIAL, &ids, err);
    *n = (int64_t)ids.n;
    token_ids_release(&ids);
    return st;
}

static enum status make_random(struct maker *m, struct error *err) {
    const struct bench_dataset_options *f = m->options;
    int64_t n_added, input = f->input_len > 0 ? f->input_len : f->random_input_len;
    TRY(count_added(m, &n_added, err));
    input = MAX(0, input - n_added);
    int64_t output = f->output_len > 0 ? f->output_len : f->random_output_len;
    double ratio = f->random_range_ratio;
    int64_t in_low = (int64_t)floor((double)input * (1 - ratio)), in_high = (int64_t)ceil((double)input * (1 + ratio));
    int64_t out_low = MAX(1, (int64_t)floor((double)output * (1 - ratio))),
            out_high = MAX(1, (int64_t)ceil((double)output * (1 + ratio)));
    if (f->random_prefix_len + in_low < 1)
        return fail(err, ERR_ARG, "--random-input-len is too small: prompts could have no token");
    struct token_ids prefix = {0};
    enum status st = OK;
    push_random(m, &prefix, f->random_prefix_len);
    for (int64_t i = 0; i < f->n_prompts && st == OK; i++) {
        int64_t n = between(m, in_low, in_high);
        st = add_random(m, &prefix, n, between(m, out_low, out_high), err);
    }
    token_ids_release(&prefix);
    return st;
}

static enum status make_prefix_repetition(struct maker *m, struct error *err) {
    const struct bench_dataset_options *f = m->options;
    int64_t each = f->n_prompts / f->n_prefixes, output = f->output_len > 0 ? f->output_len : f->prefix_output_len;
    if (each == 0)
        return fail(err, ERR_ARG, "--num-prompts is %lld: fewer than --prefix-repetition-num-prefixes, %lld",
                    (long long)f->n_prompts, (long long)f->n_prefixes);
    struct token_ids prefix = {0};
    struct buf text = {0};
    enum status st = OK;
    for (int64_t p = 0; p < f->n_prefixes && st == OK; p++) {
        prefix.n = 0;
        push_random(m, &prefix, f->prefix_len);
        st = settle(m, &prefix, (size_t)f->prefix_len, &text, err);
        for (int64_t i = 0; i < each && st == OK; i++)
            st = add_random(m, &prefix, f->suffix_len, output, err);
    }
    token_ids_release(&prefix);
    buf_release(&text);
    if (!f->disable_shuffle)
        shuffle(m);
    return st;
}

// ---- files ------------------------------------------------------------------------------------------------------

static enum status count_tokens(struct maker *m, struct str text, struct token_ids *ids, struct error *err) {
    ids->n = 0;
    return m->text->tok ? tokenizer_encode(m->text->encoder, text, 0, ids, err) : OK;
}

/* Entries of 4 to 1024 prompt tokens and at most 2048 in all, as vllm bench takes them. */
static enum status add_conversation(struct maker *m, const json_t *entry, struct error *err) {
    const json_t *turns = json_object_get(entry, "conversations");
    const json_t *asked = json_object_get(json_array_get(turns, 0), "value"),
                 *said = json_object_get(json_array_get(turns, 1), "value");
    const struct bench_dataset_options *f = m->options;
    int64_t given = f->output_len > 0 ? f->output_len : f->sharegpt_output_len;
    if (!json_is_string(asked) || !json_is_string(said))
        return OK;
    struct str prompt = {json_string_value(asked), json_string_length(asked)},
               answer = {json_string_value(said), json_string_length(said)};
    struct token_ids ids = {0}, answer_ids = {0};
    enum status st = count_tokens(m, prompt, &ids, err);
    if (st == OK)
        st = count_tokens(m, answer, &answer_ids, err);
    int64_t n = (int64_t)ids.n, n_output = given > 0 ? given : (int64_t)answer_ids.n;
    if (st == OK && n >= 4 && n <= 1024 && n + n_output <= 2048 && (given > 0 || n_output >= 4))
        add(m, prompt, &ids, n_output);
    token_ids_release(&ids);
    token_ids_release(&answer_ids);
    return st;
}

static enum status make_sharegpt(struct maker *m, struct error *err) {
    json_t *entries, *entry;
    size_t i;
    enum status st = OK;
    TRY(jv_load(m->options->path, MAX_FILE, JV_ALLOW_DUPLICATES, &entries, err));
    if (!json_is_array(entries))
        st = fail(err, ERR_FORMAT, "%s: it is not an array of conversations", m->options->path);
    json_array_foreach(entries, i, entry) {
        if (st != OK)
            break;
        st = add_conversation(m, entry, err);
    }
    json_decref(entries);
    return st;
}

static enum status apply_template(struct maker *m, const char *prompt, struct buf *out, struct error *err) {
    json_t *context =
        json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", prompt, "add_generation_prompt", 1);
    enum status st = chat_template_render(m->text->chat, context, &(struct template_options){0}, out, err);
    json_decref(context);
    return st;
}

static enum status add_custom(struct maker *m, struct str line, const char *where, struct error *err) {
    json_t *entry;
    const char *prompt;
    struct buf text = {0};
    struct token_ids ids = {0};
    TRY(jv_parse(line, where, JV_ALLOW_DUPLICATES, &entry, err));
    enum status st = jv_string(entry, where, "prompt", &prompt, err);
    if (st == OK && m->text->chat && !m->options->skip_chat_template)
        st = apply_template(m, prompt, &text, err);
    else if (st == OK)
        buf_str(&text, str_of(prompt));
    if (st == OK)
        st = count_tokens(m, buf_view(&text), &ids, err);
    if (st == OK)
        add(m, buf_view(&text), &ids,
            m->options->output_len > 0 ? m->options->output_len : m->options->custom_output_len);
    json_decref(entry);
    buf_release(&text);
    token_ids_release(&ids);
    return st;
}

static enum status make_custom(struct maker *m, struct error *err) {
    struct buf file = {0};
    char where[4200];
    enum status st = file_read(m->options->path, MAX_FILE, &file, err);
    int number = 0;
    for (size_t at = 0; st == OK && at < file.len;) {
        const char *newline = memchr(file.ptr + at, '\n', file.len - at);
        size_t n = newline ? (size_t)(newline - file.ptr) - at : file.len - at;
        snprintf(where, sizeof where, "%.4000s:%d", m->options->path, ++number);
        if (strspn(file.ptr + at, " \t\r") < n)
            st = add_custom(m, (struct str){file.ptr + at, n}, where, err);
        at += n + 1;
    }
    buf_release(&file);
    return st;
}

/* Cuts to the number wanted, or repeats some at random to reach it. */
static enum status to_number(struct maker *m, struct error *err) {
    struct bench_dataset *d = m->out;
    size_t wanted = (size_t)m->options->n_prompts, had = d->n;
    if (had == 0)
        return fail(err, ERR_FORMAT, "%s: there is no prompt in it that the %s dataset takes", m->options->path,
                    m->options->name);
    if (!m->options->disable_shuffle)
        shuffle(m);
    for (; d->n > wanted; d->n--) {
        free(d->prompts[d->n - 1].text);
        token_ids_release(&d->prompts[d->n - 1].ids);
    }
    while (d->n < wanted && !m->options->no_oversample) {
        struct bench_prompt p = d->prompts[between(m, 0, (int64_t)had - 1)];
        add(m, (struct str){p.text, p.text_bytes}, &p.ids, p.n_output_tokens);
    }
    return OK;
}

// ---- all --------------------------------------------------------------------------------------------------------

enum status bench_dataset_make(const struct bench_dataset_options *options, const struct bench_text *text,
                               struct bench_dataset *out, struct error *err) {
    struct maker m = {.options = options, .text = text, .out = out};
    bool from_file = strcmp(options->name, "sharegpt") == 0 || strcmp(options->name, "custom") == 0;
    *out = (struct bench_dataset){0};
    if (from_file && !options->path)
        return fail(err, ERR_ARG, "--dataset-name %s needs --dataset-path", options->name);
    if (strcmp(options->name, "custom") != 0 && !text->tok)
        return fail(err, ERR_ARG, "--dataset-name %s counts tokens: give the model's folder as --tokenizer",
                    options->name);
    enum status st;
    if (from_file) {
        st = strcmp(options->name, "custom") == 0 ? make_custom(&m, err) : make_sharegpt(&m, err);
        if (st == OK)
            st = to_number(&m, err);
    } else {
        find_usable(&m);
        if (m.n_usable == 0)
            st = fail(err, ERR_FORMAT, "the tokenizer has no token that is text");
        else
            st = strcmp(options->name, "random") == 0 ? make_random(&m, err) : make_prefix_repetition(&m, err);
    }
    free(m.usable);
    if (st != OK)
        bench_dataset_release(out);
    return st;
}

void bench_dataset_release(struct bench_dataset *d) {
    for (size_t i = 0; i < d->n; i++) {
        free(d->prompts[i].text);
        token_ids_release(&d->prompts[i].ids);
    }
    free(d->prompts);
    *d = (struct bench_dataset){0};
}
