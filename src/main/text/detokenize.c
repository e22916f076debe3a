/* detokenize.c - gyre detokenize TOK: token ids to text. */
#include "console/terminal.h"
#include "main/model/model_path.h"
#include "main/run/batch.h"
#include "main/verbs.h"
#include "text/detokenizer.h"

#include <stdio.h>

static struct {
    struct flag_ids ids;
    bool skip_special, batch;
} opt;

static const struct flag flags[] = {
    {"ids", 0, FLAG_IDS, &opt.ids, "1,2,3", "Input", "the token ids"},
    {"batch", 0, FLAG_BOOL, &opt.batch, NULL, "Input",
     "JSON lines in, each an array of ids; JSON lines out, each a string or an error"},
    {"skip-special", 0, FLAG_BOOL, &opt.skip_special, NULL, "Tokens", "leave special tokens out of the text"},
    ALLOW_LINKS_FLAG,
};

/* Every id must be one of the vocabulary's. */
static enum status decode(const struct tokenizer *tok, const struct token_ids *ids, struct buf *out,
                          struct error *err) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->ids[i] < 0 || ids->ids[i] >= tokenizer_n_vocab(tok))
            return fail(err, ERR_ARG, "the id %d is not in the vocabulary, ids are between 0 and %d", ids->ids[i],
                        tokenizer_n_vocab(tok) - 1);
    return tokenizer_decode(tok, ids->ids, ids->n, opt.skip_special ? DETOKENIZE_SKIP_SPECIAL : 0, out, err);
}

static enum status read_ids(const json_t *line, struct token_ids *ids, struct error *err) {
    if (!json_is_array(line))
        return fail(err, ERR_ARG, "the line is %s, it must be an array of ids", jv_type_name(line));
    size_t i;
    json_t *item;
    json_array_foreach(line, i, item) {
        int64_t id;
        if (!jv_whole(item, &id) || id < 0 || id > INT32_MAX)
            return fail(err, ERR_ARG, "item %zu of the line is no token id", i);
        token_ids_push(ids, (int32_t)id);
    }
    return OK;
}

static enum status answer(void *arg, const json_t *line, struct buf *out, struct error *err) {
    struct token_ids ids = {0};
    struct buf text = {0};
    enum status st = read_ids(line, &ids, err);
    if (st == OK)
        st = decode(arg, &ids, &text, err);
    if (st == OK)
        buf_json_string(out, buf_view(&text));
    token_ids_release(&ids);
    buf_release(&text);
    return st;
}

static int run(const struct verb_args *args) {
    if (opt.ids.given == opt.batch)
        return verb_misused(args->spec, "detokenize takes ids with --ids, or many lists with --batch");
    struct error err;
    struct tokenizer *tok;
    if (model_path_check(args->operands[0], MODEL_TOKENIZER, &err) != OK ||
        tokenizer_open(args->operands[0], &tok, &err) != OK)
        return verb_failed(&err);
    int rc = 0;
    struct buf text = {0};
    if (opt.batch)
        rc = batch_run(answer, tok, NULL);
    else if (decode(tok, &(struct token_ids){opt.ids.ids, opt.ids.n, 0}, &text, &err) != OK)
        rc = verb_failed(&err);
    else {
        buf_push(&text, '\n');
        terminal_print(stdout, buf_view(&text)); // it may hold a NUL
    }
    buf_release(&text);
    tokenizer_free(tok);
    return rc;
}

const struct verb_spec verb_detokenize = {
    "detokenize",
    "TOK",
    "prints the text of token ids",
    flags,
    ARRAY_LEN(flags),
    1,
    1,
    .run = run,
    .epilogue = "TOK is what tokenize takes. Special tokens are part of the text unless --skip-special is given.\n"};
